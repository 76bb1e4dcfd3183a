"""Reading images between their pixels: grids, regions of interest, and convolutions whose taps move."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product
from math import isfinite, prod

import mlx.core as mx
import numpy as np

from opgraft.ops import ANY, FLOATS, Anywhere, Context, Host, op
from opgraft.ops.arrays import to_device
from opgraft.ops.layouts import channels_first, channels_last
from opgraft_ops._folding import widened
from opgraft_ops._shared import Array, between
from opgraft_ops._sizes import check_shape, flags
from opgraft_ops._windows import fitted, windows
from opgraft_ops.convolution import check_weight, claim_convolution

CUBIC_COEFFICIENT = -0.75
"""The coefficient of GridSample's cubic interpolation."""

FARTHEST = 2.0**63
"""From this distance on, GridSample takes a place to be the image's first edge; what is not a number, too."""

MOST_SAMPLES = 2**22
"""RoiAlign reads so many elements of an image at a time, and sums them up."""

Neighbours = list[tuple[mx.array, mx.array | None]]
"""Along one axis: which pixel each place reads, and its weight (None: all of it), for each neighbour read."""


@op("GridSample", since=16, dtypes={"X": ANY, "grid": FLOATS})
def grid_sample(X, grid, *, align_corners=0, mode="linear", padding_mode="zeros"):
    """X (N, C, D1...Dn) read at the places that grid (N, O1...On, n) gives, from -1 to 1 across X, the last axis first:
    (N, C, O1...On). ONNX GridSample-22."""
    sizes = X.shape[2:]
    if not X.ndim > 2 or 0 in sizes:
        raise ValueError(f"X of shape {list(X.shape)} has no pixels")
    check_shape("grid", grid, [X.shape[0], *[None] * len(sizes), len(sizes)])
    if 0 in (*X.shape, *grid.shape):
        return mx.zeros((*X.shape[:2], *grid.shape[1:-1]), X.dtype)
    x = channels_last(X if mode == "nearest" else widened(X))
    if padding_mode == "zeros":  # a frame of zeros, which is what lies outside from there on
        x = fitted(x, [1] * len(sizes), [size + 2 for size in sizes])
    places = widened(grid)
    neighbours = []
    for axis, size in enumerate(sizes):
        place = places[..., len(sizes) - 1 - axis] + 1
        place = place / 2 * (size - 1) if align_corners else (place * size - 1) / 2
        place = mx.where(mx.abs(place) < FARTHEST, place, 0 if align_corners else -0.5)  # as in ONNX Runtime
        found = _neighbours(place, mode.removeprefix("bi"))
        neighbours.append([(_inside(pixel, size, padding_mode, align_corners), weight) for pixel, weight in found])
    return channels_first(_read(x, neighbours)).astype(X.dtype)


@grid_sample.condition
def _(node):
    mode = node.attributes.get("mode", "linear").removeprefix("bi")
    node.require(mode in ("nearest", "linear", "cubic"), f"mode {mode!r} is not one of ONNX's")
    padding = node.attributes.get("padding_mode", "zeros")
    node.require(padding in ("zeros", "border", "reflection"), f"padding_mode {padding!r} is not one of ONNX's")
    exact = mode == "nearest" or node.dtype(0) in (None, *FLOATS)
    node.require(exact, "interpolation of integers: how they are rounded is not defined; cast to float")


@op("AffineGrid", since=20, dtypes={"theta": FLOATS, "size": {"int64"}})
def affine_grid(theta, size: Host, *, align_corners=0):
    """The places of an image's pixels, from -1 to 1, moved by theta (N, n, n + 1): (N, D1...Dn, n), the last axis
    first, for a size of (N, C, D1...Dn). ONNX AffineGrid-20."""
    sizes = size[2:].tolist()
    precise = widened(theta)
    rank = len(sizes)
    if min(sizes, default=1) < 1:
        raise ValueError(f"a size of {size.tolist()} has no pixels")
    check_shape("theta", theta, [*size[:1].tolist(), rank, rank + 1])
    grid = precise[:, *[None] * rank, :, rank]
    for axis, length in enumerate(sizes):
        places = mx.array(_pixel_places(length, align_corners), precise.dtype)
        places = places.reshape([-1 if each == axis else 1 for each in range(rank)] + [1])
        grid = grid + places * precise[:, *[None] * rank, :, rank - 1 - axis]
    return grid.astype(theta.dtype)


@affine_grid.condition
def _(node):
    size = node.constant(1)
    alone = size is not None and 1 in size[2:] and node.attributes.get("align_corners", 0)
    node.require(not alone, "align_corners of a single pixel: ONNX and ONNX Runtime place it differently")


@op("DeformConv", since=19, dtypes=FLOATS)
def deform_conv(
    ctx,
    X,
    W,
    offset,
    B=None,
    mask=None,
    *,
    dilations=None,
    group=1,
    kernel_shape=None,
    offset_group=1,
    pads=None,
    strides=None,
):
    """A convolution of X (N, C, D1...Dn) with W (M, C / group, k1...kn), plus B (M), each of whose taps reads X at an
    offset of its own, from offset (N, offset_group * k1...kn * n, O1...On), times mask (N, offset_group * k1...kn,
    O1...On). ONNX DeformConv-22."""
    batch, channels, *sizes = X.shape
    check_weight(X, W, group, W.shape[0], W.shape[1] * group, kernel_shape)
    check_shape("B", B, W.shape[:1])
    place = windows(sizes, W.shape[2:], strides, dilations, pads, "NOTSET")
    rank, taps, outputs = place.rank, prod(place.kernel), prod(place.outputs)
    if channels % offset_group:
        raise ValueError(f"{channels} channels do not make {offset_group} equal groups")
    check_shape("offset", offset, [batch, offset_group * taps * rank, *place.outputs])
    check_shape("mask", mask, [batch, offset_group * taps, *place.outputs])
    if 0 in (batch, W.shape[0], *place.outputs):
        return mx.zeros((batch, W.shape[0], *place.outputs), X.dtype)
    x = widened(X).reshape(batch * offset_group, channels // offset_group, *sizes)
    x = fitted(channels_last(x), [1] * rank, [size + 2 for size in sizes])
    moves = widened(offset).reshape(batch * offset_group, taps, rank, *place.outputs)
    neighbours = []
    for axis, size in enumerate(sizes):
        steps = np.arange(place.kernel[axis]) * place.dilations[axis]
        steps = steps.reshape([-1 if each == axis else 1 for each in range(rank)])
        steps = np.broadcast_to(steps, place.kernel).reshape(taps, *[1] * rank)
        starts = np.arange(place.outputs[axis]) * place.strides[axis] - place.begins[axis]
        starts = starts.reshape([-1 if each == axis else 1 for each in range(rank)])
        places = moves[:, :, axis] + mx.array((steps + starts).astype(np.float32)).astype(moves.dtype)
        places = mx.where(mx.isfinite(places), places, -2)  # outside, as in ONNX Runtime
        found = _neighbours(places, "linear")
        neighbours.append([(_inside(pixel, size, "zeros", 0), weight) for pixel, weight in found])
    read = _read(x, neighbours)  # (N * offset_group, taps, O1...On, C / offset_group)
    if mask is not None:
        read = read * widened(mask).reshape(batch * offset_group, taps, *place.outputs, 1)
    columns = read.reshape(batch, offset_group, taps, outputs, channels // offset_group).transpose(0, 3, 1, 4, 2)
    columns = columns.reshape(batch, outputs, group, channels // group * taps).transpose(0, 2, 1, 3)
    weight = widened(W).reshape(group, W.shape[0] // group, channels // group * taps)
    y = (columns @ mx.swapaxes(weight, 1, 2)).transpose(0, 1, 3, 2).reshape(batch, W.shape[0], *place.outputs)
    if B is not None:
        y = y + widened(B).reshape(-1, *[1] * rank)
    return y.astype(X.dtype)


@deform_conv.condition
def _(node):
    claim_convolution(node)
    groups = node.attributes.get("offset_group", 1)
    node.require(groups > 0, f"offset_group {groups} is not positive")


for _handler in (grid_sample, affine_grid):
    _handler.condition(flags("align_corners"))


def _roi_align(since, until, shift):
    """RoiAlign's handlers for some versions, whose default coordinate_transformation_mode is `shift`: one for a given
    number of samples, which needs no values, and one that sees the regions because their sizes give that number."""

    types = {"X": FLOATS, "rois": FLOATS, "batch_indices": {"int64"}}

    @op("RoiAlign", since=since, until=until, dtypes=types)
    def roi_align(
        ctx,
        X,
        rois,
        batch_indices: Anywhere,
        *,
        coordinate_transformation_mode=shift,
        mode="avg",
        output_height=1,
        output_width=1,
        sampling_ratio=0,
        spatial_scale=1.0,
    ):
        """The mean, or the maximum, of sampling_ratio ** 2 samples in each bin of each region: X (N, C, H, W) and rois
        (R, 4), each x1, y1, x2, y2, in the images batch_indices, give (R, C, output_height, output_width).
        ONNX RoiAlign-22."""
        images = _images_of(ctx, X, rois, batch_indices)
        bins = output_height, output_width
        if 0 in (*X.shape, *rois.shape):
            return mx.zeros((rois.shape[0], X.shape[1], *bins), X.dtype)
        ctx.check(mx.isfinite(rois), "rois must be finite")
        regions = _regions(widened(rois), spatial_scale, coordinate_transformation_mode)
        samples = mx.arange(sampling_ratio, dtype=regions[0].dtype)
        axes = [_samples(regions, axis, bins[axis], sampling_ratio, samples, X.shape[2 + axis]) for axis in (0, 1)]
        total = _pooled(widened(X), images, axes, mode)
        return channels_first(total if mode == "max" else total / sampling_ratio**2).astype(X.dtype)

    @op("RoiAlign", since=since, until=until, dtypes=types)
    def roi_align_adaptive(
        ctx,
        X,
        rois: Host,
        batch_indices: Anywhere,
        *,
        coordinate_transformation_mode=shift,
        mode="avg",
        output_height=1,
        output_width=1,
        sampling_ratio=0,
        spatial_scale=1.0,
    ):
        """RoiAlign with as many samples in a bin as it is pixels high and wide, rounded up; those outside the image,
        which are 0, are left out but for a few. ONNX RoiAlign-22."""
        images = _images_of(ctx, X, rois, batch_indices)
        ctx.check(np.isfinite(rois), "rois must be finite")
        bins = np.array((output_height, output_width))
        rois = rois.astype(np.float32) if rois.dtype == np.float16 else rois
        starts, lengths = _regions(rois, spatial_scale, coordinate_transformation_mode)
        widths = lengths / bins.astype(rois.dtype)
        counts = np.maximum(np.ceil(widths), 0)
        ctx.check(np.isfinite(counts), "rois are too large")
        result = mx.zeros((rois.shape[0], *bins.tolist(), X.shape[1]), widened(X).dtype)
        if 0 in X.shape:
            return channels_first(result).astype(X.dtype)
        sizes = np.array(X.shape[2:])
        steps = np.where(counts > 0, widths, 1) / np.maximum(counts, 1)
        taken = np.minimum(counts, np.ceil((sizes + 1) / steps) + 4).astype(np.int64)
        for pair in np.unique(taken[taken.all(axis=1)], axis=0):
            chosen = np.flatnonzero((taken == pair).all(axis=1))
            start, width, step, count = (each[chosen, :, None] for each in (starts, widths, steps, counts))
            regions = to_device(starts[chosen]), to_device(lengths[chosen])
            axes = []
            for axis in (0, 1):
                edges = start[:, axis] + np.arange(bins[axis]) * width[:, axis]
                first = np.clip(np.floor((-1 - edges) / step[:, axis]) - 2, 0, count[:, axis] - pair[axis])
                numbers = to_device((first[..., None] + np.arange(pair[axis])).astype(rois.dtype))
                of_bin = to_device(count[:, axis, None])
                axes.append(_samples(regions, axis, bins[axis].item(), of_bin, numbers, X.shape[2 + axis]))
            total = _pooled(widened(X), mx.take(images, mx.array(chosen), axis=0), axes, mode)
            if mode == "avg":
                total = total / to_device(count.prod(axis=1)[..., None, None]).astype(total.dtype)
            result[mx.array(chosen)] = total
        return channels_first(result).astype(X.dtype)

    @roi_align.condition
    def _(node):
        given = node.attributes.get("sampling_ratio", 0) != 0
        node.require(given, "sampling_ratio 0: the number of samples depends on the regions")

    @roi_align.condition
    @roi_align_adaptive.condition
    def _(node):
        for name, least in (("output_height", 1), ("output_width", 1), ("sampling_ratio", 0)):
            value = node.attributes.get(name, least)
            node.require(value >= least, f"{name} is {value}, and must be {least} at least")
        scale = node.attributes.get("spatial_scale", 1.0)
        node.require(isfinite(scale), f"spatial_scale is {scale}, and must be finite")
        modes = {"mode": ("avg", "max"), "coordinate_transformation_mode": ("half_pixel", "output_half_pixel")}
        for name, known in modes.items():
            value = node.attributes.get(name)
            node.require(value in (None, *known), f"{name} {value!r} is neither {' nor '.join(known)}")

    return [roi_align, roi_align_adaptive]


roi_align_handlers = _roi_align(10, 15, "output_half_pixel") + _roi_align(16, None, "half_pixel")


def _neighbours(place: mx.array, mode: str) -> Neighbours:
    """The pixels around a place on one axis, as whole floats, with their weights."""
    if mode == "nearest":
        return [(mx.round(place), None)]
    first = mx.floor(place)
    share = place - first
    if mode == "linear":
        return [(first, 1 - share), (first + 1, share)]
    a = CUBIC_COEFFICIENT

    def near(x):
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x):
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    weights = (far(share + 1), near(share), near(1 - share), far(2 - share))
    return [(first + step, weight) for step, weight in zip(range(-1, 3), weights, strict=True)]


def _inside(pixel: mx.array, size: int, padding_mode: str, align_corners: int) -> mx.array:
    """The pixel that stands for one anywhere on an axis of `size`; with zeros, on that axis in a frame of zeros."""
    last = size - 1
    if padding_mode == "zeros":
        pixel, last = pixel + 1, size + 1
    elif padding_mode == "reflection":
        if align_corners:  # at the centers of the outermost pixels: period 2 * size - 2
            pixel = size - 1 - mx.abs(_modulo(pixel, max(2 * size - 2, 1)) - (size - 1))
        else:  # at their outer edges: period 2 * size
            pixel = _modulo(pixel, 2 * size)
            pixel = mx.minimum(pixel, 2 * size - 1 - pixel)
    return mx.clip(mx.clip(pixel, 0, last).astype(mx.int32), 0, last)  # again: what is not a number casts to anything


def _modulo(x: mx.array, period: int) -> mx.array:
    return x - period * mx.floor(x / period)


def _read(images: mx.array, neighbours: Sequence[Neighbours]) -> mx.array:
    """The weighted sum of the pixels of images (B, D1...Dn, C) at every combination of the axes' neighbours, each
    (B, places...): (B, places..., C)."""
    batch, *sizes, channels = images.shape
    pixels = images.reshape(-1, channels)
    places = neighbours[0][0][0].ndim - 1
    first = mx.arange(batch).reshape(batch, *[1] * places)
    total = None
    for chosen in product(*neighbours):
        index = first
        for size, (pixel, _) in zip(sizes, chosen, strict=True):
            index = index * size + pixel
        part = mx.take(pixels, index, axis=0)
        weights = [weight for _, weight in chosen if weight is not None]
        if weights:
            part = part * reduce(mx.multiply, weights)[..., None]
        total = part if total is None else total + part
    return total


def _pixel_places(size: int, align_corners: int) -> np.ndarray:
    """Where the pixels of an axis lie between -1 and 1."""
    if align_corners:
        return np.linspace(-1, 1, size) if size > 1 else np.ones(size)  # a lone pixel: as ONNX Runtime does
    return (2 * np.arange(size) + 1) / size - 1


def _regions(rois, spatial_scale: float, mode: str):
    """The starts and the lengths of regions (R, 4) in pixels, each (R, 2), height first. MLX or NumPy arrays."""
    half_pixel = mode == "half_pixel"
    corners = rois * spatial_scale - (0.5 if half_pixel else 0.0)
    starts, lengths = corners[:, 1::-1], corners[:, 3:1:-1] - corners[:, 1::-1]
    if not half_pixel:  # where half a pixel is not taken off, a region is at least one pixel
        lengths = mx.maximum(lengths, 1) if isinstance(lengths, mx.array) else np.maximum(lengths, 1)
    return starts, lengths


def _images_of(ctx: Context, X: mx.array, rois: Array, batch_indices: Array) -> mx.array:
    """The image of each region, of shape (R); all of RoiAlign's shapes are as they must be."""
    check_shape("X", X, [None] * 4)
    check_shape("rois", rois, [None, 4])
    check_shape("batch_indices", batch_indices, rois.shape[:1])
    return between(ctx, batch_indices, 0, X.shape[0] - 1, "batch_indices").astype(mx.int32)


def _samples(
    regions: tuple[mx.array, mx.array], axis: int, bins: int, count: int | mx.array, numbers: mx.array, size: int
) -> tuple[mx.array, mx.array]:
    """The pixels that the samples of each bin lie between along an axis of `size` pixels, and their weights: each
    (R, bins, 2 * samples). The weights are 0 more than a pixel outside.

    Args:
        regions: as of `_regions`.
        count: how many samples there are in a bin, a number or (R, 1, 1).
        numbers: which of them are asked for: (samples), or (R, bins, samples).
    """
    start, length = (each[:, axis : axis + 1] for each in regions)
    width = length / bins
    firsts = start + mx.arange(bins).astype(start.dtype) * width
    place = firsts[..., None] + (numbers + 0.5) * width[..., None] / count
    within = ((place >= -1) & (place <= size)).astype(place.dtype)
    place = mx.clip(place, 0, size - 1)
    low = mx.floor(place)
    share = place - low
    pixel = mx.clip(low.astype(mx.int32), 0, size - 1)
    pixels = mx.concatenate([pixel, mx.minimum(pixel + 1, size - 1)], axis=-1)
    return pixels, mx.concatenate([(1 - share) * within, share * within], axis=-1)


def _pooled(x: mx.array, images: mx.array, axes: Sequence[tuple[mx.array, mx.array]], mode: str) -> mx.array:
    """The weighted pixels of each bin of x (N, C, H, W), for each pair of one along each axis, added up, or the largest
    one: (R, height, width, C). `axes` as of `_samples`. Not all pairs are read at once, but as many as is reasonable.
    """
    (rows, row_weights), (columns, column_weights) = axes
    height, width = x.shape[2:]
    pixels = channels_last(x).reshape(-1, x.shape[1])
    rows = (images[:, None, None] * height + rows) * width
    pairs = rows.shape[2] * columns.shape[2]
    once = max(1, MOST_SAMPLES // (images.size * rows.shape[1] * columns.shape[1] * x.shape[1]))
    parts = []
    for start in range(0, pairs, once):
        row, column = map(mx.array, divmod(np.arange(start, min(start + once, pairs)), columns.shape[2]))
        place = mx.take(rows, row, axis=2)[:, :, None] + mx.take(columns, column, axis=2)[:, None]
        weight = mx.take(row_weights, row, axis=2)[:, :, None] * mx.take(column_weights, column, axis=2)[:, None]
        weight, read = weight.astype(x.dtype), mx.take(pixels, place, axis=0)
        if mode == "max":
            parts.append(mx.max(weight[..., None] * read, axis=3))
        else:
            parts.append((weight[..., None, :] @ read).squeeze(3))
    return reduce(mx.maximum if mode == "max" else mx.add, parts)
