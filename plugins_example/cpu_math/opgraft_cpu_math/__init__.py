"""An op pack that overrides: mathematical functions of float32 that are faster on MLX's CPU device than the built-in
pack's, and within a few units of the last place.

They are fused kernels, which must be built once on a machine: python -m opgraft_cpu_math build.
"""

from .building import obstacle
from .operators import gelu, softmaxes, swish, unaries

__all__ = ["gelu", "obstacle", "softmaxes", "swish", "unaries"]
