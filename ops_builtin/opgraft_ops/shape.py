"""Operators that read or change shapes, and those that make arrays from a shape or from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

import mlx.core as mx
import numpy as np

from opgraft.ops import HELD, Anywhere, Context, Host, Layout, Tensors, op, to_device
from opgraft.ops.arrays import device_from_storage
from opgraft_ops._shared import Integers, same_on_host
from opgraft_ops._sizes import all_counted, counted, flags

SMALL = 1024
"""An array of equal elements is made on the host up to this size, since it may be a shape."""


@op("Shape", dtypes=HELD)
def shape(data: Anywhere, *, start=0, end=None):
    """The sizes data.shape[start:end], as int64. ONNX Shape-25."""
    return np.array(data.shape[slice(start, end)], np.int64)


@op("Size", dtypes=HELD)
def size(data: Anywhere):
    """The number of elements, as an int64 scalar. ONNX Size-25."""
    return np.array(prod(data.shape), np.int64)


@same_on_host
@op("Identity", dtypes=HELD, layout=Layout.ANY)
def identity(input: mx.array | Tensors) -> mx.array | Tensors:
    """The input itself. ONNX Identity-25."""
    return input


@same_on_host
@op("Reshape", until=4)
def reshape_to_attribute(data, *, shape, consumed_inputs=None):
    """data with another shape, which an attribute gives. ONNX Reshape-1."""
    return data.reshape(target_shape(data.shape, shape, 0))


@same_on_host
@op("Reshape", since=5, dtypes=HELD)
def reshape(data, shape: Host, *, allowzero=0):
    """data with another shape; 0 keeps a dimension (unless allowzero), -1 takes what is left. ONNX Reshape-25."""
    return data.reshape(target_shape(data.shape, shape, allowzero))


reshape.condition(flags("allowzero"))


@same_on_host
@op("Flatten", dtypes=HELD)
def flatten(input, *, axis=1):
    """A matrix: the dimensions before axis make its rows, the others its columns. ONNX Flatten-25."""
    axis = axis if axis == input.ndim else counted(axis, input.ndim)
    return input.reshape([prod(input.shape[:axis]), prod(input.shape[axis:])])


@same_on_host
@op("Squeeze", until=12)
def squeeze_attribute(data, *, axes=()):
    """data without the dimensions `axes`, each of size 1; without axes, without all of size 1. ONNX Squeeze-11."""
    return data.reshape(shape_without(data.shape, axes))


@same_on_host
@op("Squeeze", since=13, dtypes=HELD)
def squeeze(data, axes: Host | None = None):
    """data without the dimensions `axes`, each of size 1; without axes, without all of size 1. ONNX Squeeze-25."""
    return data.reshape(shape_without(data.shape, () if axes is None else axes))


@same_on_host
@op("Unsqueeze", until=12)
def unsqueeze_attribute(data, *, axes):
    """data with new dimensions of size 1 at the places `axes` of the result. ONNX Unsqueeze-11."""
    return data.reshape(shape_with(data.shape, axes))


@same_on_host
@op("Unsqueeze", since=13, dtypes=HELD)
def unsqueeze(data, axes: Host):
    """data with new dimensions of size 1 at the places `axes` of the result. ONNX Unsqueeze-25."""
    return data.reshape(shape_with(data.shape, axes))


@op("Transpose", dtypes=HELD)
def transpose(data, *, perm=None):
    """Dimension i of the result is dimension perm[i] of data; without perm, in reverse order. ONNX Transpose-25."""
    return mx.transpose(data, order_of(perm, data.ndim))


@transpose.host
def transpose_on_host(data, *, perm=None):
    return np.transpose(data, order_of(perm, data.ndim))


@op("Constant", dtypes=HELD)
def constant(ctx, *, value=None, value_int=None, value_ints=None, value_float=None, value_floats=None):
    """The value of the one attribute given: a tensor, int64 or float32. ONNX Constant-25."""
    if value is not None:
        return device_from_storage(value, "bfloat16") if _makes_bfloat16(ctx) else value
    if value_int is not None or value_ints is not None:
        return np.array(value_ints if value_int is None else value_int, np.int64)
    return np.array(value_floats if value_float is None else value_float, np.float32)


@op("ConstantOfShape", dtypes=HELD)
def constant_of_shape(ctx, input: Host, *, value=None):
    """An array of shape `input` whose elements are all `value`, a float32 zero by default. ONNX ConstantOfShape-25."""
    value = np.zeros((), np.float32) if value is None else value.reshape(())
    sizes = [int(each) for each in input]
    if _makes_bfloat16(ctx):
        return mx.full(sizes, device_from_storage(value, "bfloat16"))
    if prod(sizes) <= SMALL:
        return np.full(sizes, value)
    return mx.full(sizes, to_device(value))


@op("Range")
def range_(ctx, start: Host, limit: Host, delta: Host, *, stash_type=1):
    """start, start + delta, start + 2 delta and so on, short of limit. Each a single number. ONNX Range-27.

    Floats are summed step by step, as ONNX Runtime does it, 16-bit ones in float32.
    """
    start, limit, delta = (each.reshape(()) for each in (start, limit, delta))
    if delta == 0:
        raise ValueError(f"from {start} to {limit} in steps of {delta} there is no end")
    if start.dtype.kind == "f":
        wide = np.result_type(start, np.float32)
        count = ceil(float(limit.astype(wide) - start.astype(wide)) / float(delta))
    else:
        wide = start.dtype
        count = -((start.item() - limit.item()) // delta.item())
    steps = np.full(max(0, count), delta, wide)
    steps[:1] = start
    values = np.add.accumulate(steps, dtype=wide)
    return to_device(values).astype(mx.bfloat16) if _makes_bfloat16(ctx) else values.astype(start.dtype)


@range_.condition
def _(node):
    stash = node.attributes.get("stash_type", 1)
    node.require(stash == 1, f"stash_type {stash}: Range sums in float32 only")


def target_shape(current: Sequence[int], shape: Integers, allowzero: int) -> list[int]:
    """The shape that Reshape means: 0 is the size at the same place, -1 what is left over.

    Raises:
        ValueError: what is left over is not defined, or the elements are not as many.
    """
    sizes = np.ravel(shape).tolist()
    if not allowzero and any(size == 0 and place >= len(current) for place, size in enumerate(sizes)):
        raise ValueError(f"shape {sizes} keeps a dimension that {list(current)} does not have")
    target = [size if size or allowzero else current[place] for place, size in enumerate(sizes)]
    total = prod(current)
    if -1 in target:
        rest = prod(size for size in target if size != -1)
        if rest:  # otherwise any size would do
            target[target.index(-1)] = total // rest
    if min(target, default=0) < 0 or prod(target) != total:
        raise ValueError(f"the {total} elements of shape {list(current)} do not fit shape {sizes}")
    return target


def order_of(perm: Sequence[int] | None, rank: int) -> list[int]:
    """The order of dimensions that Transpose means.

    Raises:
        ValueError: `perm` is no order of `rank` dimensions.
    """
    order = list(reversed(range(rank)) if perm is None else perm)
    if sorted(order) != list(range(rank)):
        raise ValueError(f"perm {order} is no order of {rank} dimensions")
    return order


def shape_without(current: Sequence[int], axes: Integers) -> list[int]:
    """`current` less its dimensions `axes`; where there are none, less all those of size 1."""
    dropped = {counted(axis, len(current)) for axis in np.ravel(axes)}
    dropped = dropped or {axis for axis, size in enumerate(current) if size == 1}
    if any(current[axis] != 1 for axis in dropped):
        raise ValueError(
            f"only dimensions of size 1 can be squeezed; axes {sorted(dropped)} of {list(current)} are not"
        )
    return [size for axis, size in enumerate(current) if axis not in dropped]


def shape_with(current: Sequence[int], axes: Integers) -> list[int]:
    """`current` and new dimensions of size 1, at the places `axes` of the result."""
    rank = len(current) + np.size(axes)
    places = all_counted(np.ravel(axes), rank)
    old = iter(current)
    return [1 if axis in places else next(old) for axis in range(rank)]


def _makes_bfloat16(ctx: Context) -> bool:
    """True where the node's output is bfloat16, whose elements NumPy cannot hold."""
    return ctx.node.outputs[0].dtype == "bfloat16"
