"""What several operator families share."""

from __future__ import annotations

from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np

from opgraft.ops import Handler

Numpy: TypeAlias = np.ndarray[Any, Any]

Array: TypeAlias = mx.array | Numpy

Integers: TypeAlias = Numpy | tuple[int, ...]
"""Whole numbers from an attribute or from a host input."""


def same_on_host(handler: Handler) -> Handler:
    """Let a translator serve as its own NumPy form, as a decorator: it does nothing that NumPy arrays do otherwise."""
    handler.host(handler.function)
    return handler


def along(rank: int, axis: int) -> list[int]:
    """The shape that lays a vector along one of `rank` dimensions, so that it broadcasts along the others."""
    shape = [1] * rank
    shape[axis] = -1
    return shape
