"""What must be installed beside opgraft, and the message that says how to get it."""

from __future__ import annotations

import re
import sys
from typing import Any, Final, TypeAlias

from opgraft.errors import InstallationError
from opgraft.host.abi import API_VERSION, OLDEST_API_VERSION

Version: TypeAlias = tuple[int, int, int]

OLDEST_ONNXRUNTIME: Final = (1, OLDEST_API_VERSION, 4)
"""Older ones give the subgraphs of a second round of claims the names of the first round's, and refuse the model."""

OLDEST_MLX: Final = (0, 32, 2)
"""In older ones, the process ends where an evaluation fails, or where two threads evaluate."""


def api_version_of(version: str) -> int:
    """The C API version to ask an ONNX Runtime for: its own, or the newest that opgraft has the layouts of.

    Args:
        version: of ONNX Runtime, as in '1.27.1'.

    Raises:
        InstallationError: it is older than `OLDEST_ONNXRUNTIME`, or no version at all.
    """
    major, minor, _ = _at_least(OLDEST_ONNXRUNTIME, "onnxruntime", version)
    return min(API_VERSION, minor) if major == 1 else API_VERSION


def _at_least(oldest: Version, name: str, version: str) -> Version:
    """A version as numbers.

    Raises:
        InstallationError: it is older than `oldest`, or no version at all.
    """
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    major, minor, patch = (int(each or 0) for each in match.groups()) if match else (0, 0, 0)
    if (major, minor, patch) < oldest:
        needed = ".".join(map(str, oldest))
        raise InstallationError(f"opgraft needs {name} {needed} or newer, this is {version}: pip install -U {name}")
    return major, minor, patch


def require_onnxruntime() -> Any:
    """The onnxruntime module.

    Raises:
        InstallationError: it is missing, or too old.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise InstallationError(f"opgraft needs onnxruntime ({error}): pip install onnxruntime") from error
    api_version_of(onnxruntime.__version__)
    return onnxruntime


def require_mlx() -> None:
    """Make sure that MLX can be imported.

    Raises:
        InstallationError: it is missing, or too old, or it has no backend on this machine.
    """
    try:
        import mlx.core  # noqa: F401
    except ImportError as error:
        cure = (
            'pip install "opgraft[cpu]" (or "opgraft[cuda12]", "opgraft[cuda13]" with an NVIDIA GPU)'
            if sys.platform.startswith("linux")
            else "pip install -U mlx"
        )
        raise InstallationError(f"opgraft needs MLX with a backend for this machine ({error}): {cure}") from error
    from opgraft.mlx_library import mlx_version

    _at_least(OLDEST_MLX, "mlx", mlx_version())
