"""Pooling over sliding windows, over whole images and over regions, and its inverse.

Windows are pooled one axis after another, which gives the same maximum and the same sum with far fewer reads. Images
are taken channels-last, as convolutions leave them: neighbours in memory are then neighbours in the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from operator import add, lt

import mlx.core as mx
import numpy as np

from opgraft.ops import FLOATS, Anywhere, Host, Layout, op
from opgraft.ops.layouts import channels_first, channels_last
from opgraft_ops._folding import widened
from opgraft_ops._shared import indices_within
from opgraft_ops._sizes import check_shape, flags
from opgraft_ops._windows import Windows, claim_windows, fitted, windows

Combine = Callable[[mx.array, mx.array], mx.array]


@op("AveragePool", dtypes=FLOATS, layout=Layout.CHANNELS_LAST)
def average_pool(
    ctx,
    X,
    *,
    kernel_shape,
    auto_pad="NOTSET",
    ceil_mode=0,
    count_include_pad=0,
    dilations=None,
    pads=None,
    strides=None,
):
    """Mean over sliding windows, over what is not padding unless count_include_pad: X (N, C, D1...Dn) gives
    (N, C, O1...On). ONNX AveragePool-22."""
    place = windows(_images(X).shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    total = _pooled(channels_last(widened(X)), place, add, 0)
    if count_include_pad and not ceil_mode and ctx.node.since_version < 19:  # as in ONNX Runtime, whole windows
        counts = np.full(place.outputs, prod(place.kernel))
    else:
        counts = window_counts(place, bool(count_include_pad))
    if counts.size and (counts == counts.flat[0]).all():
        mean = total / int(counts.flat[0])
    else:
        mean = total / mx.array(counts[..., None].astype(np.float32)).astype(total.dtype)
    return channels_first(mean).astype(X.dtype)


@op("MaxPool", dtypes=FLOATS | {"int8", "uint8"}, layout=Layout.CHANNELS_LAST)
def max_pool(
    ctx,
    X,
    *,
    kernel_shape,
    auto_pad="NOTSET",
    ceil_mode=0,
    dilations=None,
    pads=None,
    storage_order=0,
    strides=None,
):
    """Maximum over sliding windows: X (N, C, D1...Dn) gives (N, C, O1...On), and where each was found in the flat X, or
    in X with its spatial axes reversed where storage_order is 1. ONNX MaxPool-22."""
    place = windows(_images(X).shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    x = channels_last(X)
    if not ctx.node.wants(1):
        return channels_first(_pooled(x, place, mx.maximum, _lowest(X.dtype)))
    if 0 in place.outputs:
        return tuple(mx.zeros((*X.shape[:2], *place.outputs), dtype) for dtype in (X.dtype, mx.int64))
    best, index = _found(fitted(x, place.begins, place.spans, _lowest(X.dtype)), place, storage_order)
    image = mx.arange(X.shape[0] * X.shape[1], dtype=mx.int64) * prod(place.sizes)
    image = image.reshape(X.shape[0], *[1] * place.rank, X.shape[1])
    return channels_first(best), channels_first(index + image)


@op("LpPool", since=2, dtypes=FLOATS, layout=Layout.CHANNELS_LAST)
def lp_pool(X, *, kernel_shape, auto_pad="NOTSET", ceil_mode=0, dilations=None, p=2, pads=None, strides=None):
    """The p-norm of sliding windows: X (N, C, D1...Dn) gives (N, C, O1...On). ONNX LpPool-22."""
    place = windows(_images(X).shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    total = _pooled(channels_last(_powers(widened(X), p)), place, add, 0)
    return channels_first(_root(total, p)).astype(X.dtype)


@op("GlobalAveragePool", dtypes=FLOATS)
def global_average_pool(X):
    """Mean over all spatial axes: X (N, C, D1...Dn) gives (N, C, 1...1). ONNX GlobalAveragePool-22."""
    return (_image_sum(widened(_images(X))) / prod(X.shape[2:])).astype(X.dtype)


@op("GlobalMaxPool", dtypes=FLOATS)
def global_max_pool(X):
    """Maximum over all spatial axes: X (N, C, D1...Dn) gives (N, C, 1...1). ONNX GlobalMaxPool-22."""
    return channels_first(mx.max(channels_last(_images(X)), axis=tuple(range(1, X.ndim - 1)), keepdims=True))


@op("GlobalLpPool", since=2, dtypes=FLOATS)
def global_lp_pool(X, *, p=2):
    """The p-norm over all spatial axes: X (N, C, D1...Dn) gives (N, C, 1...1). ONNX GlobalLpPool-22."""
    return _root(_image_sum(_powers(widened(_images(X)), p)), p).astype(X.dtype)


@op("MaxUnpool", since=9, dtypes={"X": FLOATS})
def max_unpool(ctx, X, I: Anywhere, output_shape: Host | None = None, *, kernel_shape, pads=None, strides=None):  # noqa: E741
    """Zeros, with X (N, C, D1...Dn) set at the flat positions I, as of MaxPool's Indices. ONNX MaxUnpool-22."""
    check_shape("I", I, X.shape)
    shape = (*X.shape[:2], *unpooled_sizes(X.shape[2:], kernel_shape, pads, strides))
    flat = mx.zeros((prod(shape),), X.dtype)
    if X.size:
        flat[indices_within(ctx, I, flat.size, from_end=False).reshape(-1)] = X.reshape(-1)
    return flat.reshape(shape)


@max_unpool.condition
def _(node):
    if node.input(2) is not None:
        given, shape = node.constant(2), node.shape(0)
        known = given is not None and shape is not None and all(isinstance(size, int) for size in shape)
        attributes = map(node.attributes.get, ("kernel_shape", "pads", "strides"))
        implied = known and given.tolist() == [*shape[:2], *unpooled_sizes(shape[2:], *attributes)]
        node.require(
            implied, "output_shape other than the kernel implies: ONNX and ONNX Runtime read indices differently"
        )


@op("MaxRoiPool", dtypes=FLOATS)
def max_roi_pool(ctx, X, rois, *, pooled_shape, spatial_scale=1.0):
    """Maximum over the bins of each region, 0 over an empty bin: X (N, C, H, W) and rois (R, 5), each an image's number
    and x1, y1, x2, y2, both ends included, give (R, C, pooled_shape...). ONNX MaxRoiPool-22."""
    check_shape("X", X, [None] * 4)
    check_shape("rois", rois, [None, 5])
    images = indices_within(ctx, rois[:, 0].astype(mx.int64), X.shape[0], from_end=False)
    images = images.astype(mx.int32)[:, None, None]
    if not X.size or not rois.size:
        return mx.zeros((rois.shape[0], X.shape[1], *pooled_shape), X.dtype)
    corners = rois[:, 1:].astype(mx.float32) * spatial_scale
    corners = mx.where(corners < 0, -mx.floor(0.5 - corners), mx.floor(corners + 0.5)).astype(mx.int32)
    (tops, bottoms), (lefts, rights) = (
        _bins(corners[:, 1 - axis], corners[:, 3 - axis], pooled_shape[axis], X.shape[2 + axis]) for axis in (0, 1)
    )
    rows, columns = _halves(tops, bottoms), _halves(lefts, rights)
    levels = [X.shape[axis].bit_length() for axis in (2, 3)]
    table = _range_maxima(_range_maxima(channels_last(X), 1, levels[0]), 3, levels[1]).reshape(-1, X.shape[1])

    def at(row, column):
        (row_level, y), (column_level, x) = row, column
        level = column_level[:, None, :] * levels[0] + row_level[:, :, None]
        place = ((level * X.shape[0] + images) * X.shape[2] + y[:, :, None]) * X.shape[3] + x[:, None, :]
        return mx.take(table, place, axis=0)

    best = reduce(mx.maximum, [at(row, column) for row in rows for column in columns])
    empty = (bottoms <= tops)[:, :, None] | (rights <= lefts)[:, None, :]
    return channels_first(mx.where(empty[..., None], mx.zeros((), X.dtype), best))


@max_roi_pool.condition
def _(node):
    shape, scale = node.attributes["pooled_shape"], node.attributes.get("spatial_scale", 1.0)
    node.require(len(shape) == 2 and min(shape) > 0, f"pooled_shape {list(shape)} is not a height and a width")
    node.require(scale > 0, f"spatial_scale {scale} is not positive")


@max_pool.condition
def _(node):
    order = node.attributes.get("storage_order", 0)
    node.require(order in (0, 1), f"storage_order {order} is neither 0 nor 1")


@lp_pool.condition
@global_lp_pool.condition
def _(node):
    p = node.attributes.get("p", 2)
    node.require(p > 0, f"p is {p}, and must be positive")


for _handler in (average_pool, max_pool, lp_pool, max_unpool):
    _handler.condition(flags("ceil_mode", "count_include_pad"))

    @_handler.condition
    def _(node):
        rank = node.rank(0)
        kernel = node.attributes["kernel_shape"]
        claim_windows(node, len(kernel))
        node.require(rank is None or rank == len(kernel) + 2, "kernel_shape is not of X's rank")
        dilations = node.attributes.get("dilations") or (1,) * len(kernel)
        reach = [(length - 1) * dilation + 1 for length, dilation in zip(kernel, dilations, strict=True)]
        pads = node.attributes.get("pads") or ()
        node.require(all(map(lt, pads, 2 * reach)), f"pads {list(pads)} leave windows with nothing but padding")
        if node.attributes.get("auto_pad", "").startswith("SAME"):
            gaps = [stride - size for stride, size in zip(node.attributes.get("strides", kernel), kernel, strict=True)]
            apart = max(node.attributes.get("dilations", ()), default=1) > 1 or max(gaps) > 1
            node.require(not apart, "auto_pad SAME of dilated or scattered windows: ONNX and ONNX Runtime differ")


def unpooled_sizes(
    sizes: Sequence[int], kernel: Sequence[int], pads: Sequence[int] | None, strides: Sequence[int] | None
) -> list[int]:
    """The spatial sizes that pooling would bring down to `sizes`."""
    rank = len(kernel)
    pads, strides = pads or (0,) * (2 * rank), strides or (1,) * rank
    parts = zip(sizes, kernel, strides, pads[:rank], pads[rank:], strict=True)
    return [(size - 1) * stride - begin - end + length for size, length, stride, begin, end in parts]


def _lowest(dtype: mx.Dtype) -> float | int:
    """What no element of an array is below."""
    return {mx.int8: -128, mx.uint8: 0}.get(dtype, -np.inf)


def _powers(x: mx.array, p: int) -> mx.array:
    """The absolute value of x to the power p."""
    return mx.square(x) if p == 2 else mx.abs(x) if p == 1 else mx.power(mx.abs(x), mx.array(p, x.dtype))


def _root(x: mx.array, p: int) -> mx.array:
    """The p-th root of x."""
    return mx.sqrt(x) if p == 2 else x if p == 1 else mx.power(x, mx.array(1 / p, x.dtype))


def _images(X: mx.array) -> mx.array:
    if X.ndim < 3 or 0 in X.shape[2:]:
        raise ValueError(f"X of shape {list(X.shape)} has nothing to pool over beside its batch and its channels")
    return X


def _image_sum(x: mx.array) -> mx.array:
    """The sum over the spatial axes of (N, C, D1...Dn), as a product with ones: BLAS reads an image at the same speed,
    and adds it up with the same care, whether its channels come first or last in memory."""
    pixels = prod(x.shape[2:])
    total = x.reshape(*x.shape[:2], pixels) @ mx.ones((pixels, 1), x.dtype)
    return total.reshape(*x.shape[:2], *[1] * (x.ndim - 2))


def _pooled(x: mx.array, place: Windows, combine: Combine, padding: float) -> mx.array:
    """`combine` over the windows of (N, D1...Dn, C): (N, O1...On, C)."""
    if 0 in place.outputs:
        return mx.zeros((x.shape[0], *place.outputs, x.shape[-1]), x.dtype)
    x = mx.contiguous(fitted(x, place.begins, place.spans, padding))
    for axis in range(place.rank):
        if place.strides[axis] == 1:
            x = _combined(x, axis + 1, place.kernel[axis], place.dilations[axis], combine)
        else:
            taps = (_along(place, axis, tap) for tap in range(place.kernel[axis]))
            x = reduce(combine, [x[tap] for tap in taps])
    return x


def _along(place: Windows, axis: int, tap: int) -> tuple[slice, ...]:
    """What one tap of all windows reads along one axis of (N, D1...Dn, C)."""
    start, stride = tap * place.dilations[axis], place.strides[axis]
    return *[slice(None)] * (axis + 1), slice(start, start + (place.outputs[axis] - 1) * stride + 1, stride)


def _combined(x: mx.array, axis: int, kernel: int, dilation: int, combine: Combine) -> mx.array:
    """`combine` over each run of `kernel` elements along an axis, from the runs of half the length."""
    if kernel == 1:
        return x

    def shifted(part: mx.array, taps: int) -> mx.array:
        start = taps * dilation
        return part[(*[slice(None)] * axis, slice(start, start + x.shape[axis] - (kernel - 1) * dilation))]

    half = _combined(x, axis, kernel // 2, dilation, combine)
    whole = combine(shifted(half, 0), shifted(half, kernel // 2))
    return combine(whole, shifted(x, kernel - 1)) if kernel % 2 else whole


def window_counts(place: Windows, with_padding: bool) -> np.ndarray:
    """How many elements an average over each window counts (O1...On): those in the image, or in the image and the
    padding asked for; 1 where there are none."""
    return np.maximum(reduce(np.multiply.outer, _counts(place, with_padding)), 1)


def _counts(place: Windows, with_padding: bool) -> list[np.ndarray]:
    """For each axis, how many taps of each window lie in the image, or in the image and the padding asked for."""
    counts = []
    for axis in range(place.rank):
        starts = np.arange(place.outputs[axis])[:, None] * place.strides[axis] - place.begins[axis]
        positions = starts + np.arange(place.kernel[axis]) * place.dilations[axis]
        within = positions < place.sizes[axis] + (place.ends[axis] if with_padding else 0)
        counts.append((within if with_padding else within & (positions >= 0)).sum(axis=1))
    return counts


def _found(x: mx.array, place: Windows, storage_order: int) -> tuple[mx.array, mx.array]:
    """The first maximum of each window of (N, D1...Dn, C), and its place in its image."""
    axes = range(place.rank)
    order = axes if storage_order else reversed(axes)
    steps = dict.fromkeys(axes, 1)
    length = 1
    for axis in order:
        steps[axis] = length
        length *= place.sizes[axis]
    best = index = None
    for tap in place.taps:
        candidate, inside = np.zeros(1, np.int64), np.ones(1, bool)
        for axis in axes:
            positions = np.arange(place.outputs[axis]) * place.strides[axis] - place.begins[axis]
            positions = positions + tap[axis] * place.dilations[axis]
            candidate = np.add.outer(candidate, positions * steps[axis])
            inside = np.logical_and.outer(inside, (positions >= 0) & (positions < place.sizes[axis]))
        value = x[(slice(None), *place.strided(tap))]
        position = mx.array(np.where(inside, candidate, -1)[..., None])
        if best is None:
            best, index = value, mx.broadcast_to(position, value.shape)
        else:
            better = (value > best) | (index < 0)
            better = better if inside.all() else better & mx.array(inside[..., None])
            best, index = mx.where(better, value, best), mx.where(better, position, index)
    return best, index


def _bins(starts: mx.array, ends: mx.array, count: int, size: int) -> tuple[mx.array, mx.array]:
    """The first and the past-the-last pixel (R, count) of the bins of regions, within an axis of `size` pixels."""
    lengths = mx.maximum(ends - starts + 1, 1).astype(mx.float32)[:, None] / count
    numbers = mx.arange(count, dtype=mx.float32)
    firsts = mx.floor(numbers * lengths).astype(mx.int32) + starts[:, None]
    pasts = mx.ceil((numbers + 1) * lengths).astype(mx.int32) + starts[:, None]
    return mx.clip(firsts, 0, size), mx.clip(pasts, 0, size)


def _halves(firsts: mx.array, pasts: mx.array) -> list[tuple[mx.array, mx.array]]:
    """Two runs of a power of two (its logarithm, its first pixel) that together make up each run of pixels."""
    lengths = pasts - firsts
    levels = reduce(add, [(lengths >= 1 << level).astype(mx.int32) for level in range(1, 31)])
    second = pasts - mx.left_shift(mx.ones_like(levels), levels)
    return [(levels, mx.minimum(firsts, mx.maximum(second, 0))), (levels, mx.maximum(second, 0))]


def _range_maxima(x: mx.array, axis: int, levels: int) -> mx.array:
    """Maxima of the 1, 2, 4, ... elements from each on along an axis, stacked as a first axis."""
    stacked = [x]
    for level in range(levels - 1):
        reach = 1 << level
        widths = [(0, reach if each == axis else 0) for each in range(x.ndim)]
        longer = mx.pad(stacked[-1], widths, constant_values=-np.inf)
        after = longer[(*[slice(None)] * axis, slice(reach, None))]
        stacked.append(mx.maximum(stacked[-1], after))
    return mx.stack(stacked)
