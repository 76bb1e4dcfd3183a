"""What several operator families share."""

from __future__ import annotations

from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np

from opgraft.ops import Context, Handler, to_device, to_host

Numpy: TypeAlias = np.ndarray[Any, Any]

Array: TypeAlias = mx.array | Numpy

Integers: TypeAlias = Numpy | tuple[int, ...]
"""Whole numbers from an attribute or from a host input."""

Bound: TypeAlias = int | tuple[int, ...]
"""A limit of all values, or one for each entry of their last axis."""

LARGEST = 2**63 - 1
"""The largest int64."""


def same_on_host(handler: Handler) -> Handler:
    """Let a translator serve as its own NumPy form, as a decorator: it does nothing that NumPy arrays do otherwise."""
    handler.host(handler.function)
    return handler


def along(rank: int, axis: int) -> list[int]:
    """The shape that lays a vector along one of `rank` dimensions, so that it broadcasts along the others."""
    shape = [1] * rank
    shape[axis] = -1
    return shape


def indices_within(ctx: Context, indices: Array, sizes: Bound, *, from_end: bool = True) -> mx.array:
    """Indices into a dimension of size `sizes`, or into one for each entry of their last axis: see `between`.

    Args:
        from_end: negative indices count from the end; otherwise they are out of range.
    """
    if isinstance(sizes, int):
        return between(ctx, indices, -sizes if from_end else 0, sizes - 1, "indices")
    lowest = tuple(-size if from_end else 0 for size in sizes)
    return between(ctx, indices, lowest, tuple(size - 1 for size in sizes), "indices")


def between(ctx: Context, values: Array, lowest: Bound, highest: Bound, what: str) -> mx.array:
    """Integers that must lie from `lowest` to `highest`: bounds for all, or one for each entry of the last axis.

    Those that only the device knows are checked while the outputs are computed, and clamped, since MLX reads and writes
    whatever lies at an index out of range. Those of a constant are looked through once.

    Args:
        what: what the values are, for the error.

    Returns:
        The values on the device, those that were checked there as int64.

    Raises:
        ValueError: one that is known on the host is out of range, or nothing lies in the range.
    """
    if not values.size:
        return to_device(values)
    constant = [index for index, given in enumerate(ctx.inputs) if given is values and ctx.is_constant(index)]
    if constant:
        least, most = ctx.cached((between, *constant), lambda: _extremes(values, highest))
    elif isinstance(values, np.ndarray):
        least, most = _extremes(values, highest)
    elif np.greater(lowest, highest).any():
        raise ValueError(f"{what} must lie between {lowest} and {highest}, where nothing does")
    else:
        if values.dtype == mx.uint64:
            values = mx.minimum(values, mx.array(LARGEST, mx.uint64))
        values = values.astype(mx.int64)
        clamped = mx.clip(values, mx.array(lowest, mx.int64), mx.array(highest, mx.int64))
        ctx.check(clamped == values, f"{what} must lie between {lowest} and {highest}")
        return clamped
    if (least < lowest).any() or (most > highest).any():
        raise ValueError(f"{what} must lie between {lowest} and {highest}, and are from {least} to {most}")
    return to_device(values)


def _extremes(values: Array, bound: Bound) -> tuple[Numpy, Numpy]:
    """The least and the greatest of values, or of each entry of the last axis where the bound is one for each."""
    axes = tuple(range(values.ndim - np.ndim(bound)))
    if isinstance(values, mx.array):
        return to_host(mx.min(values, axes)), to_host(mx.max(values, axes))
    return values.min(axis=axes), values.max(axis=axes)
