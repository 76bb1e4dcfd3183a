"""Functions of MLX's library that Python has no name for."""

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
