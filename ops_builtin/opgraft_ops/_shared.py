"""What several operator families share."""

from __future__ import annotations

from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np

from opgraft.ops import Handler, to_device

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


def within(indices: Array, sizes: int | Numpy, *, from_end: bool = True) -> mx.array:
    """Indices into dimensions of `sizes` (one for all, or one for each entry of the last axis), none out of range: MLX
    reads and writes whatever lies there. Those that only the device knows are clamped.

    Args:
        from_end: negative indices count from the end; otherwise they are out of range.

    Raises:
        IndexError: one of those known on the host is out of range.
    """
    if isinstance(indices, mx.array):
        upper = mx.array(sizes, indices.dtype)
        return mx.clip(indices, -upper if from_end else mx.zeros_like(upper), upper - 1)
    if not np.all(((np.negative(sizes) if from_end else 0) <= indices) & (indices < sizes)):
        raise IndexError(f"indices from {indices.min()} to {indices.max()} do not fit dimensions of {sizes}")
    return to_device(indices)


def lengths_within(lengths: Array, limit: int) -> mx.array:
    """Lengths from 0 to `limit`. Those that only the device knows are clamped.

    Raises:
        ValueError: one of those known on the host is less or more.
    """
    if isinstance(lengths, mx.array):
        return mx.clip(lengths, 0, limit)
    if not np.all((lengths >= 0) & (lengths <= limit)):
        raise ValueError(f"lengths from {lengths.min()} to {lengths.max()} do not lie between 0 and {limit}")
    return to_device(lengths)
