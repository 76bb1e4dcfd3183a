"""MLX's library: its version, and functions that Python has no name for."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx


@cache
def mlx_function(symbol: str) -> Any:
    """The function with that symbol; None where this MLX has none, or its library is elsewhere."""
    for library in Path(mx.__file__).parent.glob("lib/libmlx.*"):
        try:
            return ctypes.CDLL(str(library), os.RTLD_NOLOAD | os.RTLD_NOW)[symbol]
        except (OSError, AttributeError):
            continue
    return None


def mlx_version() -> str:
    """The version of MLX, by itself: reading it from a file would let other threads have the interpreter."""
    return str(mx.__version__)  # type: ignore[attr-defined]
