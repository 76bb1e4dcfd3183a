"""What must be installed beside opgraft, and the message that says how to get it."""

from __future__ import annotations

import re
import sys
from typing import Any

from opgraft.errors import InstallationError
from opgraft.host.abi import API_VERSION, OLDEST_API_VERSION


def api_version_of(version: str) -> int:
    """The C API version to ask an ONNX Runtime for: its own, or the newest that opgraft has the layouts of.

    Args:
        version: of ONNX Runtime, as in '1.24.4'.

    Raises:
        InstallationError: it is older than 1.24, or no version at all.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    major, minor = (int(match[1]), int(match[2])) if match else (0, 0)
    if (major, minor) < (1, OLDEST_API_VERSION):
        raise InstallationError(
            f"opgraft needs onnxruntime 1.{OLDEST_API_VERSION} or newer, this is {version}: pip install -U onnxruntime"
        )
    return min(API_VERSION, minor) if major == 1 else API_VERSION


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
        InstallationError: it is missing, or it has no backend on this machine.
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
