"""Operators that pick, place and count elements by index. One that is out of range is an error."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from math import prod
from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.ops import HELD, Anywhere, Context, Host, op, to_device
from opgraft_ops._shared import LARGEST, Array, Numpy, along, between, indices_within
from opgraft_ops._sizes import flags

REDUCTIONS = {
    "add": (np.add, "add"),
    "mul": (np.multiply, "multiply"),
    "max": (np.maximum, "maximum"),
    "min": (np.minimum, "minimum"),
}
"""What a scatter may do with the element that is there: in NumPy, and as a method of MLX's `array.at`."""


@op("Gather")
def gather(ctx, data, indices: Anywhere, *, axis=0):
    """The entries of data at `indices` along `axis`, in their shape. Negative ones count from the end.

    ONNX Gather-13.
    """
    axis = range(data.ndim)[axis]
    places = indices_within(ctx, indices, data.shape[axis])
    if isinstance(indices, np.ndarray) and indices.ndim == 0:
        return data[(slice(None),) * axis + (int(indices),)]
    if not data.size:  # of which MLX takes nothing
        return mx.zeros((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]), data.dtype)
    return mx.take(data, places, axis)


@gather.host
def gather_on_host(data, indices, *, axis=0):
    return np.take(data, indices, axis)


@op("GatherElements")
def gather_elements(ctx, data, indices: Anywhere, *, axis=0):
    """data[i, indices[i, j, k], k] for axis 1, and so on; indices are no larger than data along the other dimensions.

    ONNX GatherElements-13.
    """
    axis = range(data.ndim)[axis]
    places = indices_within(ctx, indices, data.shape[axis])
    return mx.take_along_axis(data[_beside(data.shape, indices.shape, axis)], places, axis)


@gather_elements.host
def gather_elements_on_host(data, indices, *, axis=0):
    axis = range(data.ndim)[axis]
    return np.take_along_axis(data[_beside(data.shape, indices.shape, axis)], indices, axis)


@op("GatherND")
def gather_nd(ctx, data, indices: Anywhere, *, batch_dims=0):
    """The slices of data at the index vectors indices[..., :], each within its batch (`batch_dims` dimensions).

    ONNX GatherND-13.
    """
    depth = batch_dims + indices.shape[-1]
    shape = _gathered(data.shape, indices.shape, batch_dims)
    if not prod(shape):
        return mx.zeros(shape, data.dtype)
    places = flat_places(ctx, data.shape[batch_dims:depth], indices)
    batches, size = prod(data.shape[:batch_dims]), prod(data.shape[batch_dims:depth])
    if batch_dims:
        first = mx.arange(batches, dtype=mx.int64) * size
        places = places + first.reshape(data.shape[:batch_dims] + (1,) * (places.ndim - batch_dims))
    return mx.take(data.reshape((batches * size, *data.shape[depth:])), places, 0)


@gather_nd.condition
def _(node):
    batch_dims, rank = node.attributes.get("batch_dims", 0), node.rank(1)
    node.require(rank is None or batch_dims < rank, f"batch_dims={batch_dims} leaves nothing of indices of rank {rank}")


@gather_nd.host
def gather_nd_on_host(data, indices, *, batch_dims=0):
    shape = _gathered(data.shape, indices.shape, batch_dims)
    if not prod(shape):
        return np.zeros(shape, data.dtype)
    grid = np.ogrid[tuple(slice(size) for size in indices.shape[:-1])][:batch_dims]
    picked = data[(*grid, *np.moveaxis(indices, -1, 0))]
    return np.broadcast_to(picked, shape)


def _gathered(shape: Sequence[int], indices: Sequence[int], batch_dims: int) -> tuple[int, ...]:
    """The shape of what index vectors in an array of shape `indices` pick from data of a shape."""
    depth = batch_dims + indices[-1]
    if shape[:batch_dims] != indices[:batch_dims] or depth > len(shape):
        raise ValueError(
            f"indices of shape {list(indices)} do not fit data of {list(shape)} with batch_dims={batch_dims}"
        )
    return (*indices[:-1], *shape[depth:])


@op("Scatter")
def scatter(ctx, data, indices: Anywhere, updates, *, axis=0):
    """data with updates written at places along `axis`. ONNX Scatter-11, renamed ScatterElements."""
    return scatter_elements(ctx, data, indices, updates, axis=axis)


@op("ScatterElements")
def scatter_elements(ctx, data, indices: Anywhere, updates, *, axis=0, reduction="none"):
    """data with data[i, indices[i, j, k], k] = updates[i, j, k] for axis 1, and so on. ONNX ScatterElements-18.

    A reduction combines what is there with each update.
    """
    axis = range(data.ndim)[axis]
    _beside(data.shape, indices.shape, axis)
    _as_large(updates.shape, indices.shape)
    if not updates.size:
        return data
    index = [mx.arange(size).reshape(along(data.ndim, each)) for each, size in enumerate(updates.shape)]
    index[axis] = indices_within(ctx, indices, data.shape[axis])
    return _written(ctx, data, tuple(index), updates, reduction)


@scatter_elements.host
def scatter_elements_on_host(data, indices, updates, *, axis=0, reduction="none"):
    axis = range(data.ndim)[axis]
    _beside(data.shape, indices.shape, axis)
    _as_large(updates.shape, indices.shape)
    index = list(np.ogrid[tuple(slice(size) for size in indices.shape)])
    index[axis] = indices
    return _written_on_host(data, tuple(index), updates, reduction)


scatter.host(lambda data, indices, updates, *, axis=0: scatter_elements_on_host(data, indices, updates, axis=axis))


@op("ScatterND")
def scatter_nd(ctx, data, indices: Anywhere, updates, *, reduction="none"):
    """data with updates (slices of it) written at the index vectors indices[..., :]. ONNX ScatterND-18.

    A reduction combines what is there with each update.
    """
    inner, slices = data.shape[: indices.shape[-1]], data.shape[indices.shape[-1] :]
    _as_large(updates.shape, _gathered(data.shape, indices.shape, 0))
    places = flat_places(ctx, inner, indices).reshape([-1])
    if not updates.size:
        return data
    rows = _written(ctx, data.reshape((prod(inner), *slices)), places, updates.reshape((-1, *slices)), reduction)
    return rows.reshape(data.shape)


@scatter_nd.host
def scatter_nd_on_host(data, indices, updates, *, reduction="none"):
    _as_large(updates.shape, _gathered(data.shape, indices.shape, 0))
    return _written_on_host(data, tuple(np.moveaxis(indices, -1, 0)), updates, reduction)


@scatter_elements.condition
@scatter_nd.condition
def _(node):
    reduction = node.attributes.get("reduction", "none")
    node.require(reduction == "none" or reduction in REDUCTIONS, f"reduction {reduction!r} is not known")


@op("TensorScatter", dtypes={"past_cache": HELD, "update": HELD})
def tensor_scatter(ctx, past_cache, update, write_indices: Anywhere = None, *, axis=-2, mode="linear"):
    """past_cache (B, ..., L, ...) with update (B, ..., S, ...) written along `axis`, for batch entry b from
    write_indices[b] on (by default 0); "circular" goes on at the start. ONNX TensorScatter-24.
    """
    cache, update = mx.moveaxis(past_cache, axis, 1), mx.moveaxis(update, axis, 1)
    (batch, length), count = cache.shape[:2], update.shape[1]
    _as_large(update.shape, (batch, min(count, length), *cache.shape[2:]))
    first = np.zeros(batch, np.int64) if write_indices is None else write_indices
    if first.shape != (batch,):
        raise ValueError(f"write_indices of shape {list(first.shape)} do not fit a batch of {batch}")
    circular = mode == "circular"
    first = between(ctx, first, 0, LARGEST if circular else length - count, "write_indices")
    if not update.size:
        return past_cache
    places = (first % length if circular else first)[:, None] + mx.arange(count)
    places = places % length if circular else places
    return mx.moveaxis(_written(ctx, cache, (mx.arange(batch)[:, None], places), update, "none"), 1, axis)


@tensor_scatter.condition
def _(node):
    mode = node.attributes.get("mode", "linear")
    node.require(mode in ("linear", "circular"), f"mode {mode!r} is neither linear nor circular")


@op("Compress")
def compress(input, condition: Host, *, axis=None):
    """The entries along `axis` (of the flattened input, by default) where condition is true. ONNX Compress-28.

    A condition that is too short is false from there on, and of one that is too long the rest is ignored.
    """
    if axis is None:
        input, axis = input.reshape([-1]), 0
    return mx.take(input, mx.array(np.flatnonzero(condition[: input.shape[axis]])), axis)


@compress.condition
def _(node):
    node.require(node.rank(1) in (1, None), f"a condition of rank {node.rank(1)}, and not of rank 1")


@compress.host
def compress_on_host(input, condition, *, axis=None):
    return np.compress(condition[: input.size if axis is None else input.shape[axis]], input, axis)


@op("NonZero")
def non_zero(X: Host):
    """The indices of the elements that are not zero, row by row: (rank, count), int64. ONNX NonZero-13."""
    return np.array(np.nonzero(np.atleast_1d(X)), np.int64)


@non_zero.condition
def _(node):
    node.require(node.rank(0) != 0, "a scalar input: ONNX and ONNX Runtime disagree about the shape of the result")


@op("Unique")
def unique(ctx, X: Host, *, axis=None, sorted=1):
    """The unique elements, or slices along `axis`; their first places; where each went; how many there are.

    In ascending order, or in the order of their first places where not sorted. ONNX Unique-28.
    """
    values, first, inverse, counts = np.unique(X, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        values = np.take(values, order, 0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    if ctx.node.dtype(0) == "bfloat16":
        values = to_device(values).astype(mx.bfloat16)
    return values, first, inverse, counts


unique.condition(flags("sorted"))


def flat_places(ctx: Context, shape: Sequence[int], indices: Array) -> mx.array:
    """The row-major places in `shape` of the index vectors indices[..., :], as int64."""
    places = indices_within(ctx, indices, tuple(shape))
    if not shape:
        return mx.zeros(indices.shape[:-1], mx.int64)
    strides = mx.array([prod(shape[axis + 1 :]) for axis in range(len(shape))], mx.int64)
    return mx.sum(mx.where(places < 0, places + mx.array(shape, mx.int64), places) * strides, -1)


def _beside(shape: Sequence[int], inner: Sequence[int], axis: int) -> tuple[slice, ...]:
    """The part of an array that indices of shape `inner` speak of: all along `axis`, elsewhere as much as they have."""
    others = [each for each in range(len(shape)) if each != axis]
    if len(inner) != len(shape) or any(inner[each] > shape[each] for each in others):
        raise ValueError(f"indices of shape {list(inner)} are larger than the data, {list(shape)}, beside axis {axis}")
    return tuple(slice(None) if each == axis else slice(size) for each, size in enumerate(inner))


def _as_large(updates: Sequence[int], shape: Sequence[int]) -> None:
    if updates != shape:
        raise ValueError(f"updates are of shape {list(updates)}, and must be of {list(shape)}")


def _written(ctx: Context, data: mx.array, index: Any, updates: mx.array, reduction: str) -> mx.array:
    """data with updates at `index`, put there or combined with what is there."""
    # Metal has no scatter for elements of eight bytes.
    with mx.stream(mx.cpu) if ctx.device == "gpu" and data.dtype.size == 8 else nullcontext():
        if reduction != "none":
            return getattr(data.at[index], REDUCTIONS[reduction][1])(updates)
        result = mx.array(data)
        result[index] = updates
        return result


def _written_on_host(data: Numpy, index: tuple[Numpy, ...], updates: Numpy, reduction: str) -> Numpy:
    result = data.copy()
    if reduction == "none":
        result[index] = updates
    else:
        REDUCTIONS[reduction][0].at(result, index, updates)
    return result
