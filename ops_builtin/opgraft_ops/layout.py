"""Operators that join, cut, repeat, pad and mask arrays, and move blocks of elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.graph.element_types import NAME_OF_ONNX
from opgraft.ops import HELD, INTEGERS, Anywhere, Host, Layout, op
from opgraft.ops.arrays import MLX_TYPE, element_type
from opgraft_ops._shared import Array, Integers, Numpy, along, between, same_on_host
from opgraft_ops._sizes import all_counted, check_shape, counted, flags


@op("Concat", layout=Layout.ANY)
def concat(ctx, *inputs, axis=1):
    """The inputs one after another along `axis`. ONNX Concat-13."""
    return joined(inputs, ctx.axis(axis, inputs[0].ndim))


def joined(inputs: Sequence[mx.array], axis: int) -> mx.array:
    """The inputs one after another along `axis`."""
    return mx.concatenate(_without_empty(inputs, axis), axis)


@concat.host
def concat_on_host(*inputs, axis=1):
    return np.concatenate(_without_empty(inputs, axis), axis)


def _without_empty(inputs: Sequence[Any], axis: int) -> list[Any]:
    """Inputs that hold elements: ONNX Runtime lets one that is empty along `axis` have any sizes beside it.

    Raises:
        ValueError: an input is empty in another way, and some are not.
    """
    full = [each for each in inputs if each.size]
    for each in inputs:
        if full and not each.size and each.ndim == full[0].ndim and each.shape[axis]:
            raise ValueError(f"inputs of shapes {[list(each.shape) for each in inputs]} cannot be joined along {axis}")
    return full or list(inputs)


@op("Split", until=12, layout=Layout.ANY)
def split_attribute(ctx, input: Anywhere, *, axis=0, split=None):
    """Pieces of `input` along `axis`, of the sizes `split` or all equal. ONNX Split-11."""
    return _pieces(input, ctx.axis(axis, input.ndim), split, len(ctx.node.outputs))


@op("Split", since=13, layout=Layout.ANY)
def split(ctx, input: Anywhere, split: Host | None = None, *, axis=0, num_outputs=None):
    """Pieces of `input` along `axis`, of the sizes `split`, or `num_outputs` equal ones, the last perhaps smaller.

    ONNX Split-18.
    """
    axis = ctx.axis(axis, input.ndim)
    if num_outputs is not None and split is None:
        size = -(-input.shape[axis] // num_outputs)
        split = [size] * (num_outputs - 1) + [input.shape[axis] - size * (num_outputs - 1)]
    return _pieces(input, axis, split, len(ctx.node.outputs))


@split.condition
def _(node):
    count, split = node.attributes.get("num_outputs"), node.input(1)
    node.require(count is None or split is None, "num_outputs and split are given both")
    node.require(count in (None, len(node.outputs)), f"num_outputs is {count}, and there are {len(node.outputs)}")


def _pieces(input: Array, axis: int, sizes: Any, count: int) -> Any:
    """`count` pieces. NumPy arrays come here too: a NumPy form would not know the node's number of outputs."""
    axis = counted(axis, input.ndim)
    total = input.shape[axis]
    sizes = [total // count] * count if sizes is None or not len(sizes) else [int(size) for size in sizes]
    if len(sizes) != count or min(sizes) < 0 or sum(sizes) != total:
        raise ValueError(f"cannot split a dimension of {total} into {count} pieces of sizes {sizes}")
    cuts = np.cumsum(sizes)[:-1].tolist()
    return np.split(input, cuts, axis) if isinstance(input, np.ndarray) else mx.split(input, cuts, axis)


@same_on_host
@op("Slice", until=9)
def slice_attributes(data, *, starts, ends, axes=None):
    """data[starts:ends] along `axes` (by default the first ones). ONNX Slice-1."""
    return data[_slices(data.shape, starts, ends, axes, None)]


@op("Slice", since=10)
def slice_(data, starts: Host, ends: Host, axes: Host | None = None, steps: Host | None = None):
    """data[starts:ends:steps] along `axes` (by default the first ones). ONNX Slice-13."""
    return data[_slices(data.shape, starts, ends, axes, steps)]


@slice_.host
def slice_on_host(data, starts, ends, axes=None, steps=None):
    return data[_slices(data.shape, starts, ends, axes, steps)].copy()  # MLX takes no negative strides


OPEN_ENDS = (2**31 - 1, 2**63 - 1)
"""Ends by which models mean "as far as it goes"; ONNX Runtime understands them so at negative steps too."""


def _slices(shape: Sequence[int], starts: Any, ends: Any, axes: Any, steps: Any) -> tuple[slice, ...]:
    """The index that ONNX's Slice means, with the bounds clamped to the dimensions."""
    axes = all_counted(range(len(starts)) if axes is None else axes, len(shape))
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        counts = f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps"
        raise ValueError(f"{counts} do not go together")
    index = [slice(None)] * len(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[axis] = _slice(shape[axis], int(start), int(end), int(step))
    return tuple(index)


def _slice(size: int, start: int, end: int | None, step: int) -> slice:
    """The slice of one dimension, as ONNX Runtime clamps it."""
    if step < 0:  # where Python would begin before the first element, or end at once
        start = max(start + size if start < 0 else start, 0)
        end = None if end in OPEN_ENDS else end
    chosen = range(size)[start:end:step]
    if len(chosen) <= 1:  # steps may be huge here
        return slice(chosen[0], chosen[0] + 1) if chosen else slice(0, 0)
    past = chosen[-1] + (1 if step > 0 else -1)
    return slice(chosen[0], past if past >= 0 else None, step)


@op("Expand")
def expand(input, shape: Host):
    """input repeated along dimensions of size 1 (or new ones) until it and `shape` broadcast. ONNX Expand-13."""
    return mx.broadcast_to(input, _broadcast_shape(input, shape))


@expand.host(expands=True)
def expand_on_host(input, shape):
    return np.broadcast_to(input, _broadcast_shape(input, shape))


def _broadcast_shape(input: Array, shape: Integers) -> tuple[int, ...]:
    return np.broadcast_shapes(tuple(input.shape), tuple(int(size) for size in shape))


@op("Tile", until=5)
def tile_axis(input, tiles: Host, axis: Host):
    """input, `tiles` times over along `axis`. ONNX Tile-1."""
    return mx.concatenate([input] * int(tiles.item()), int(axis.item()))


@op("Tile", since=6)
def tile(input, repeats: Host):
    """input, repeats[i] times over along each dimension i. ONNX Tile-13."""
    return mx.tile(input, _repeats(input, repeats))


@tile.host(expands=True)
def tile_on_host(input, repeats):
    return np.tile(input, _repeats(input, repeats))


def _repeats(input: Array, repeats: Numpy) -> list[int]:
    if repeats.shape != (input.ndim,) or repeats.min(initial=0) < 0:
        raise ValueError(f"repeats {repeats.tolist()} do not say how often each of {input.ndim} dimensions repeats")
    return repeats.tolist()


PAD_MODES = ("constant", "reflect", "edge", "wrap")


@op("Pad", until=1)
def pad_paddings(data, *, paddings, mode="constant", value=0.0):
    """data with elements added around it, as Pad-11 does. ONNX Pad-1."""
    return padded(data, *_pairs(paddings), mode, mx.array(value, data.dtype))


@op("Pad", since=2, until=10)
def pad_attribute(data, *, pads, mode="constant", value=0.0):
    """data with elements added around it, as Pad-11 does. ONNX Pad-2."""
    return padded(data, *_pairs(pads), mode, mx.array(value, data.dtype))


PADDABLE = HELD - {"float8e8m0"}
"""float8e8m0 has no zero to pad with."""


@op(
    "Pad",
    since=11,
    dtypes={"data": PADDABLE, "pads": INTEGERS, "constant_value": PADDABLE, "axes": INTEGERS},
)
def pad(data, pads: Host, constant_value=None, axes: Host | None = None, *, mode="constant"):
    """data with pads = [before..., after...] elements added (removed where negative) along `axes`, by default all.

    Removing comes first. Reflected pads must be shorter than the dimension. ONNX Pad-25.
    """
    return padded(data, *_pairs(pads, data.ndim, axes), mode, constant_value)


@pad.host
def pad_on_host(data, pads, constant_value=None, axes=None, *, mode="constant"):
    data, widths = _cropped(data, *_pairs(pads, data.ndim, axes), mode)
    value = {"constant_values": 0 if constant_value is None else constant_value.item()} if mode == "constant" else {}
    return np.pad(data, widths, mode, **value)


@pad_paddings.condition
@pad_attribute.condition
@pad.condition
def _(node):
    mode = node.attributes.get("mode", "constant")
    node.require(mode in PAD_MODES, f"pad mode {mode!r} is not one of {', '.join(PAD_MODES)}")


def padded(
    data: mx.array, before: Sequence[int], after: Sequence[int], mode: Any = "constant", value: mx.array | None = None
) -> mx.array:
    """data with before[i] and after[i] elements added at the ends of dimension i, or removed where negative."""
    data, widths = _cropped(data, before, after, mode)
    if mode == "constant":
        value = mx.array(0, data.dtype) if value is None else value.reshape([])
        return mx.pad(data, widths, constant_values=value) if any(map(any, widths)) else data
    for axis, (left, right) in enumerate(widths):
        if left or right:
            places = np.pad(np.arange(data.shape[axis]), (left, right), mode)
            first = mx.take(data, mx.array(places[:left]), axis)
            last = mx.take(data, mx.array(places[left + data.shape[axis] :]), axis)
            data = mx.concatenate([first, data, last], axis)
    return data


def _cropped(data: Any, before: Sequence[int], after: Sequence[int], mode: str) -> tuple[Any, list[tuple[int, int]]]:
    """data less what negative pads remove, and the (before, after) widths still to add along each dimension.

    A negative pad may remove what the other one adds.

    Raises:
        ValueError: the pads remove more than there is, or leave too little to be repeated or reflected so far.
    """
    index, widths = [], []
    for size, left, right in zip(data.shape, before, after, strict=True):
        length, start, stop = left + size + right, max(0, -left), size - max(0, -right)
        if length < 0:
            raise ValueError(f"pads {left} and {right} remove more than the {size} elements there are")
        if start < stop:
            width = max(0, left), max(0, right)
        elif mode == "constant" or not (length or data.size):
            start, stop, width = 0, 0, (length, 0)
        else:
            raise ValueError(f"pads {left} and {right} leave nothing of {size} elements to fill {length} with")
        if mode == "reflect" and max(width) > max(0, stop - start - 1):
            raise ValueError(f"pads {left} and {right} reflect more than {stop - start} elements allow")
        index.append(slice(start, stop))
        widths.append(width)
    return data[tuple(index)], widths


def _pairs(pads: Any, rank: int | None = None, axes: Numpy | None = None) -> tuple[list[int], list[int]]:
    """ONNX's pads, first all begins and then all ends (of the dimensions `axes`), as two lists over all dimensions."""
    half = len(pads) // 2
    rank = half if rank is None else rank
    places = range(rank) if axes is None else [counted(axis, rank) for axis in np.ravel(axes)]
    if len(pads) != 2 * len(places):
        raise ValueError(f"pads {list(pads)} are not two for each of {len(places)} dimensions")
    before, after = [0] * rank, [0] * rank
    for axis, left, right in zip(places, pads[:half], pads[half:], strict=True):
        before[axis], after[axis] = int(left), int(right)
    return before, after


@op("CenterCropPad")
def center_crop_pad(input_data, shape: Host, *, axes=None):
    """input_data cut or padded with zeros, evenly at both ends, until its dimensions `axes` are `shape`.

    ONNX CenterCropPad-18.
    """
    before, after = [0] * input_data.ndim, [0] * input_data.ndim
    axes = all_counted(range(input_data.ndim) if axes is None else axes, input_data.ndim)
    for axis, size in zip(axes, np.broadcast_to(shape, len(axes)), strict=True):
        grow = max(int(size), 0) - input_data.shape[axis]
        before[axis] = int(grow / 2)
        after[axis] = grow - before[axis]
    return padded(input_data, before, after)


@op("Trilu")
def trilu(input, k: Host | None = None, *, upper=1):
    """The upper (or lower) triangle of the last two dimensions from diagonal k on, zeros elsewhere. ONNX Trilu-14."""
    diagonal = _diagonal(input.shape, k)
    return mx.triu(input, diagonal) if upper else mx.tril(input, diagonal)


@trilu.host
def trilu_on_host(input, k=None, *, upper=1):
    diagonal = _diagonal(input.shape, k)
    return np.triu(input, diagonal) if upper else np.tril(input, diagonal)


trilu.condition(flags("upper"))


def _diagonal(shape: Sequence[int], k: Numpy | None) -> int:
    rows, columns = shape[-2:]
    return 0 if k is None else int(np.clip(k.item(), -rows - 1, columns + 1))


@op("EyeLike")
def eye_like(ctx, input: Anywhere, *, dtype=None, k=0):
    """Ones on diagonal k and zeros elsewhere, in the shape (N, M) of the input. ONNX EyeLike-22."""
    rows, columns = input.shape
    name = (ctx.node.dtype(0) or element_type(input)) if dtype is None else NAME_OF_ONNX[dtype]
    return mx.eye(rows, columns, min(max(k, -rows), columns), dtype=MLX_TYPE[name])


@eye_like.condition
def _(node):
    name = NAME_OF_ONNX.get(node.attributes.get("dtype", 1))
    node.require(name in MLX_TYPE, f"element type {name} of the result is not one that MLX has")


@op("DepthToSpace")
def depth_to_space(input, *, blocksize, mode="DCR"):
    """(N, C, H, W) to (N, C / b², H b, W b): b² channels become blocks of b by b elements. ONNX DepthToSpace-28."""
    check_shape("input", input, [None] * 4)
    count, channels, height, width = input.shape
    depth, rest = divmod(channels, blocksize**2)
    if rest:
        raise ValueError(f"{channels} channels do not make blocks of {blocksize} by {blocksize}")
    if mode == "DCR":
        split, order = [count, blocksize, blocksize, depth, height, width], [0, 3, 4, 1, 5, 2]
    else:
        split, order = [count, depth, blocksize, blocksize, height, width], [0, 1, 4, 2, 5, 3]
    return input.reshape(split).transpose(order).reshape([count, depth, height * blocksize, width * blocksize])


@op("SpaceToDepth")
def space_to_depth(input, *, blocksize, mode="DCR"):
    """(N, C, H, W) to (N, C b², H / b, W / b): blocks of b by b elements become channels. ONNX SpaceToDepth-28."""
    check_shape("input", input, [None] * 4)
    count, channels, height, width = input.shape
    rows, columns = height // blocksize, width // blocksize
    if height % blocksize or width % blocksize:
        raise ValueError(f"blocks of {blocksize} by {blocksize} do not make {height} by {width} elements")
    blocks = input.reshape([count, channels, rows, blocksize, columns, blocksize])
    blocks = blocks.transpose([0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4])
    return blocks.reshape([count, channels * blocksize**2, rows, columns])


@depth_to_space.condition
@space_to_depth.condition
def _(node):
    mode = node.attributes.get("mode", "DCR")
    node.require(mode in ("DCR", "CRD"), f"mode {mode!r} is neither DCR nor CRD")
    size = node.attributes["blocksize"]
    node.require(size > 0, f"blocksize {size} is not positive")


@op("OneHot")
def one_hot(indices, depth: Host, values, *, axis=-1):
    """values = [off, on]: on where the new dimension `axis`, of size depth, has the place that indices say.

    Negative indices count from the end; those out of range are off everywhere; fractions are cut off. ONNX OneHot-28.
    """
    if values.shape != (2,):
        raise ValueError(f"values of shape {list(values.shape)} are not the two, off and on")
    depth = _depth(depth)
    kind = mx.uint64 if indices.dtype == mx.uint64 else mx.int64
    indices = mx.expand_dims(indices.astype(kind), axis)
    places = mx.arange(depth, dtype=kind).reshape(along(indices.ndim, axis))
    hot = (indices == places) | (indices == places - depth) if kind == mx.int64 else indices == places
    return mx.where(hot, values[1], values[0])


@one_hot.host(expands=True)
def one_hot_on_host(indices, depth, values, *, axis=-1):
    places = np.arange(_depth(depth))
    indices = np.expand_dims(indices if indices.dtype == np.uint64 else indices.astype(np.int64), axis)
    places = places.reshape(along(indices.ndim, axis))
    return np.where((indices == places) | (indices == places - places.size), values[1], values[0])


def _depth(depth: Numpy) -> int:
    if depth.item() < 1:
        raise ValueError(f"a depth of {depth.item()} has no place for anything")
    return int(depth.item())


@op("ReverseSequence")
def reverse_sequence(ctx, input, sequence_lens: Anywhere, *, batch_axis=1, time_axis=0):
    """input with the first sequence_lens[i] steps of each batch entry i in reverse order. ONNX ReverseSequence-28."""
    if sequence_lens.shape != input.shape[batch_axis : batch_axis + 1]:
        raise ValueError(f"sequence_lens has shape {list(sequence_lens.shape)}, and input {list(input.shape)}")
    places = mx.arange(input.shape[time_axis], dtype=mx.int64).reshape(along(input.ndim, time_axis))
    lengths = between(ctx, sequence_lens, 0, input.shape[time_axis], "sequence_lens")
    lengths = lengths.reshape(along(input.ndim, batch_axis))
    return mx.take_along_axis(input, mx.where(places < lengths, lengths - 1 - places, places), time_axis)


@reverse_sequence.condition
def _(node):
    axes = node.attributes.get("batch_axis", 1), node.attributes.get("time_axis", 0)
    node.require(sorted(axes) == [0, 1], f"batch_axis and time_axis are {axes}, and must be 0 and 1")
