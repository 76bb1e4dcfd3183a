"""What MLX can run on here, and which of it a session gets."""

from __future__ import annotations

import sys
from typing import Final

import mlx.core as mx

from opgraft.errors import OptionError

NVIDIA: Final = 0x10DE


_CURE: Final = (
    'with an NVIDIA GPU, pip install "opgraft[cuda13]" (or "opgraft[cuda12]"); without one, leave the option out'
    if sys.platform.startswith("linux")
    else "pip install -U mlx on a Mac with Apple silicon; elsewhere, leave the option out"
)


def gpu_backend() -> str | None:
    """The name of MLX's GPU backend on this machine, `metal` or `cuda`; None where it has only the CPU."""
    for name in ("metal", "cuda"):
        backend = getattr(mx, name, None)
        if backend is not None and backend.is_available():
            return name
    return None


def default_device() -> str:
    """The device that MLX itself would choose: `cpu` or `gpu`."""
    return "gpu" if mx.default_device() == mx.Device(mx.gpu) else "cpu"


def drives(backend: str | None, vendor_id: int) -> bool:
    """Whether MLX's GPU backend can drive a GPU of this vendor."""
    return backend == "metal" or (backend == "cuda" and vendor_id == NVIDIA)


def chosen_device(option: str, *, gpu_chosen: bool, gpu_offered: bool) -> str:
    """The device of a session: `cpu` or `gpu`.

    Args:
        option: the value of the provider option `device`.
        gpu_chosen: a GPU is among the hardware devices that the session was made for.
        gpu_offered: opgraft offers a GPU in this process; where it offers none, MLX may still drive one that ONNX
            Runtime does not know of.

    Raises:
        OptionError: a GPU is asked for, and MLX has no backend for one.
    """
    if option == "gpu" and gpu_backend() is None:
        raise OptionError(f"option 'device' is 'gpu', but MLX has no GPU backend on this machine: {_CURE}")
    if option != "auto":
        return option
    if gpu_chosen:
        return "gpu"
    return "cpu" if gpu_offered else default_device()
