"""Resize and Upsample.

Along each axis, an output is a weighted sum of neighbouring inputs: which ones and how much of each is worked out on
the host, in float32 as ONNX Runtime does, since a rounding of a coordinate decides which pixel is the nearest. Where
the scale is a simple ratio p / q, every p-th output reads every q-th input: the p families of outputs are sums of
strided views, which is far faster than gathering.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from opgraft.ops import ANY, FLOATS, Host, Layout, op
from opgraft.ops.layouts import channels_first, channels_last
from opgraft_ops._folding import widened
from opgraft_ops._shared import along
from opgraft_ops._sizes import all_counted, choices, flags
from opgraft_ops._table import quiet

LONGEST_PERIOD = 16
"""The largest p for which outputs are computed by family."""

MANY_CHANNELS = 16
"""From this number of channels on, images are resized channels-last, as convolutions leave them."""

HALF_WAY = 1e-6

ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)


@dataclass(frozen=True)
class Method:
    """The attributes that say where an output reads, and with what weights."""

    mode: str
    coordinates: str = "asymmetric"
    nearest_mode: str = "simple"
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


@dataclass(frozen=True)
class Segment:
    """Outputs `start` to `start + length` of an axis, each reading `stride` inputs beyond the `period`-th before it."""

    start: int
    length: int
    period: int
    stride: int

    @property
    def count(self) -> int:
        """How many outputs each of the `period` families has; the last one may be too many."""
        return -(-self.length // self.period)

    @property
    def reach(self) -> int:
        """How far apart a family's last and first output read."""
        return (self.count - 1) * self.stride


@dataclass(frozen=True)
class Table:
    """How one axis is resized.

    Attributes:
        axis: which one.
        size: its length in the input.
        firsts: the first input that each output reads; places beyond the ends mean the outermost input.
        weights: (outputs, taps); None where each output is one input as it is.
        outside: which outputs take the extrapolation value instead; None for none.
        segments: the outputs, by how they read.
    """

    axis: int
    size: int
    firsts: np.ndarray
    weights: np.ndarray | None
    outside: np.ndarray | None
    segments: tuple[Segment, ...]

    @property
    def repeats(self) -> int:
        """How many times each input stands in the output, in order; 0 where it is not as simple as that."""
        times, rest = divmod(len(self.firsts), self.size)
        simple = self.weights is None and self.outside is None and not rest
        return times if simple and (self.firsts == np.arange(len(self.firsts)) // times).all() else 0


@op("Resize", since=11, dtypes={"X": ANY, "roi": FLOATS}, layout=Layout.KEPT)
def resize(
    ctx,
    X,
    roi: Host | None = None,
    scales: Host | None = None,
    sizes: Host | None = None,
    *,
    antialias=0,
    axes=None,
    coordinate_transformation_mode="half_pixel",
    cubic_coeff_a=-0.75,
    exclude_outside=0,
    extrapolation_value=0.0,
    keep_aspect_ratio_policy="stretch",
    mode="nearest",
    nearest_mode="round_prefer_floor",
):
    """X with the given axes (all of them by default) resized by scales or to sizes, taking the nearest input or
    interpolating linearly or cubically. ONNX Resize-19."""
    numbers = all_counted(axes or range(X.ndim), X.ndim)
    lengths = [X.shape[axis] for axis in numbers]
    given = [each for each in (scales, sizes) if each is not None and each.size]
    if len(given) != 1:
        raise ValueError(f"{len(given)} of scales and sizes are given, for axes of {lengths}")
    if scales is not None and scales.size:
        factors, targets = scaled(scales, lengths)
    else:
        factors, targets = sized(sizes.tolist(), lengths, keep_aspect_ratio_policy)
    crop = coordinate_transformation_mode == "tf_crop_and_resize" and roi is not None
    if crop and roi.size != 2 * len(numbers):
        raise ValueError(f"roi of {roi.size} numbers does not hold a start and an end of each of {len(numbers)} axes")
    starts, ends = np.split(roi.astype(np.float32), 2) if crop else ([np.float32(0)] * X.ndim, [ONE] * X.ndim)
    method = Method(
        mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, bool(exclude_outside), bool(antialias)
    )
    parts = list(zip(numbers, lengths, targets, factors, starts, ends, strict=False))
    tables = ctx.cached(("tables", *parts), lambda: [table(method, *each) for each in parts])
    return resized(ctx, X, dict(zip(numbers, targets, strict=True)), tables, extrapolation_value)


@op("Resize", since=10, until=10, layout=Layout.KEPT)
def resize_10(ctx, X, scales: Host, *, mode="nearest"):
    """X with each axis resized by its scale. ONNX Resize-10."""
    factors, targets = scaled(scales, X.shape)
    if targets == list(X.shape):  # by scales that are too small to tell, too
        return X
    method = Method({"bilinear": "linear"}.get(mode, mode))
    parts = list(zip(range(X.ndim), X.shape, targets, factors, strict=True))
    tables = ctx.cached(("tables", *parts), lambda: [table(method, *each) for each in parts])
    return resized(ctx, X, dict(enumerate(targets)), tables, 0.0)


@op("Upsample", since=9, until=9, layout=Layout.KEPT)
def upsample(ctx, X, scales: Host, *, mode="nearest"):
    """X with each axis enlarged by its scale. ONNX Upsample-9."""
    check_enlarging(scales)
    return resize_10(ctx, X, scales, mode=mode)


@op("Upsample", since=7, until=8, layout=Layout.KEPT)
def upsample_7(ctx, X, *, scales, mode="nearest"):
    """X with each axis enlarged by its scale. ONNX Upsample-7."""
    check_enlarging(np.array(scales))
    return resize_10(ctx, X, np.array(scales, np.float32), mode=mode)


resize.condition(flags("antialias", "exclude_outside"))


def check_enlarging(scales: np.ndarray) -> None:
    if not (scales >= 1).all():
        raise ValueError(f"scales {scales.tolist()} do not enlarge")


for _handler in (resize, resize_10, upsample, upsample_7):

    @_handler.condition
    def _(node):
        mode = node.attributes.get("mode", "nearest")
        node.require(mode in ("nearest", "linear", "bilinear", "cubic"), f"mode {mode!r} is not one of ONNX's")
        exact = mode == "nearest" or node.dtype(0) in (None, *FLOATS)
        node.require(exact, "interpolation of integers: how they are rounded is not defined; cast to float")
        node.require(mode != "nearest" or not node.attributes.get("antialias", 0), "antialias of nearest means nothing")


resize.condition(
    choices(
        coordinate_transformation_mode=(
            *("asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"),
            *("align_corners", "tf_crop_and_resize", "tf_half_pixel_for_nn"),
        ),
        nearest_mode=("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"),
        keep_aspect_ratio_policy=("stretch", "not_larger", "not_smaller"),
    )
)


@resize.condition
def _(node):
    mode = node.attributes.get("coordinate_transformation_mode")
    if mode in ("align_corners", "tf_crop_and_resize") and node.input(2) is not None:
        scales, shape = node.constant(2), node.shape(0)
        whole = scales is not None and (scales == np.floor(scales)).all()
        if scales is not None and shape is not None and not whole:
            sizes = [shape[axis] for axis in node.attributes.get("axes", range(len(shape)))]
            parts = zip(scales.tolist(), sizes, strict=True)
            whole = all(scale == 1 or (isinstance(size, int) and (scale * size).is_integer()) for scale, size in parts)
        node.require(whole, f"{mode} with scales that may give a fraction of a pixel: ONNX and ONNX Runtime differ")


@quiet
def scaled(scales: np.ndarray, lengths: Sequence[int]) -> tuple[list[np.float32], list[int]]:
    """The scales, in float32, and the lengths that they mean for axes of `lengths`.

    Raises:
        ValueError: there are more scales or fewer, or some are not positive.
    """
    if scales.shape != (len(lengths),) or not ((scales > 0) & (scales < np.inf)).all():
        raise ValueError(f"scales {scales.tolist()} are not a positive number for each of the axes of {list(lengths)}")
    factors = list(scales.astype(np.float32))
    return factors, [int(factor * np.float32(length)) for factor, length in zip(factors, lengths, strict=True)]


def sized(sizes: Sequence[int], lengths: Sequence[int], policy: str) -> tuple[list[np.float32], list[int]]:
    """The scales and the lengths that the input `sizes` means for axes of `lengths`.

    Raises:
        ValueError: there are more sizes or fewer, or they would leave an axis without elements, or give it some from
            nothing. That one has none left because the aspect ratio is kept is no error.
    """
    if len(sizes) != len(lengths):
        raise ValueError(f"sizes {list(sizes)} do not fit axes of {list(lengths)}")
    if any(size < 1 if length else size for size, length in zip(sizes, lengths, strict=True)):
        raise ValueError(f"sizes {list(sizes)} cannot be made from axes of {list(lengths)}")
    parts = zip(sizes, lengths, strict=True)
    factors, targets = [np.float32(size) / np.float32(length) if length else ONE for size, length in parts], list(sizes)
    if policy != "stretch":
        factors = [(min if policy == "not_larger" else max)(factors)] * len(factors)
        targets = [int(np.floor(factors[0] * np.float32(length) + HALF)) for length in lengths]
    return factors, targets


def resized(ctx, X, targets, tables, extrapolation_value):
    """X with each axis resized as its table says; `targets` are the new lengths by axis."""
    tables = [each for each in tables if each is not None]
    shape = [targets.get(axis, size) for axis, size in enumerate(X.shape)]
    if 0 in (*X.shape, *shape):
        return mx.zeros(shape, X.dtype)
    if not tables:
        return X
    x = X if all(each.weights is None for each in tables) else widened(X)
    many = ctx.channels_last or X.shape[1:2] >= (MANY_CHANNELS,)
    turned = X.ndim > 2 and many and all(each.axis > 1 for each in tables)
    x = mx.contiguous(channels_last(x)) if turned else x
    times = {each.axis - turned: each.repeats for each in tables}
    if all(times.values()):
        x = _repeated(x, times)
        tables = []
    for each in reversed(tables):  # the innermost axis first, while there is least to copy
        axis = each.axis - turned
        x = _summed(x, axis, each)
        if each.outside is not None:
            outside = mx.array(each.outside).reshape(along(x.ndim, axis))
            x = mx.where(outside, mx.array(extrapolation_value).astype(x.dtype), x)
    return (channels_first(x) if turned else x).astype(X.dtype)


@quiet
def table(
    method: Method,
    axis: int,
    size: int,
    target: int,
    factor: np.float32,
    start: np.float32 = ZERO,
    end: np.float32 = ONE,
) -> Table | None:
    """How an axis of `size` becomes one of `target` by `factor`; None where nothing changes. `start` and `end` are the
    axis's region, for tf_crop_and_resize."""
    cropped = method.coordinates == "tf_crop_and_resize"
    kept = size == target and (method.antialias or (factor == 1 and (start, end) == (0, 1)))
    if kept or 0 in (size, target):
        return None
    places = original_places(method.coordinates, size, target, factor, start, end)
    if method.mode == "nearest":
        firsts, weights = nearest(places, method.nearest_mode, bool(factor < 1)), None
    elif method.antialias:
        firsts, weights = _filtered(method, places, size, factor)
    elif method.mode == "cubic":
        firsts, weights = _cubic(method, places, size)
    else:
        firsts = np.floor(places).astype(np.int64)
        share = places - firsts.astype(np.float32)
        weights = np.stack([ONE - share, share], axis=1)
    taps = 1 if weights is None else weights.shape[1]
    outside = cropped & ((places < 0) | (places > size - 1))
    firsts = np.clip(firsts, -taps, size)
    return Table(axis, size, firsts, weights, outside if outside.any() else None, _segments(firsts))


def original_places(
    mode: str, size: int, target: int, factor: np.float32, start: np.float32, end: np.float32
) -> np.ndarray:
    """Where each output of an axis lies among its inputs, in float32."""
    outputs = np.arange(target, dtype=np.float32)
    last, last_target = np.float32(size - 1), np.float32(target - 1)
    if mode == "asymmetric":
        return outputs / factor
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and target > 1):
        return (outputs + HALF) / factor - HALF
    if mode == "tf_half_pixel_for_nn":
        return (outputs + HALF) / factor
    if mode == "half_pixel_symmetric":
        adjustment = np.float32(target) / (factor * np.float32(size))
        offset = np.float32(size) / np.float32(2) * (ONE - adjustment)
        return (float(offset) + (outputs.astype(np.float64) + 0.5) / float(factor) - 0.5).astype(np.float32)
    if mode == "tf_crop_and_resize":
        if target == 1:
            return np.array([0.5 * float(start + end) * float(last)], np.float32)
        return start * last + outputs * (end - start) * last / last_target
    if mode == "align_corners" and target > 1:
        return outputs * last / last_target
    if mode in ("align_corners", "pytorch_half_pixel"):
        return np.zeros(1, np.float32)
    raise ValueError(f"coordinate_transformation_mode {mode!r} is not one of ONNX's")


def nearest(places: np.ndarray, mode: str, shrinks: bool) -> np.ndarray:
    """The input nearest to each place. As in ONNX Runtime, a place is half-way where it is so to a millionth."""
    places = places.astype(np.float64)
    if mode == "floor" or (mode == "simple" and not shrinks):
        chosen = np.floor(places)
    elif mode in ("ceil", "simple"):
        chosen = np.ceil(places)
    elif mode == "round_prefer_ceil":
        chosen = np.floor(places + 0.5 + HALF_WAY)
    else:
        chosen = np.ceil(places - 0.5 - HALF_WAY)
    return chosen.astype(np.int64)


def _cubic(method: Method, places: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The first of the four inputs around each place, and their weights by Keys' cubic convolution."""
    firsts = np.floor(places).astype(np.int64)
    share = places - firsts.astype(np.float32)
    weights = _keys(share[:, None] - np.arange(-1, 3, dtype=np.float32), np.float32(method.cubic_coeff_a))
    firsts -= 1
    if method.exclude_outside:
        weights = _within(firsts, weights, size)
    return firsts, weights


def _filtered(method: Method, places: np.ndarray, size: int, factor: np.float32) -> tuple[np.ndarray, np.ndarray]:
    """The inputs under each output's filter, widened by 1 / factor where the axis shrinks, and their weights."""
    stretch = max(ONE / factor, ONE)
    support = np.float32(2 if method.mode == "cubic" else 1) * stretch
    centers = places + HALF
    firsts = np.floor(centers - support + HALF).astype(np.int64)
    pasts = np.floor(centers + support + HALF).astype(np.int64)
    positions = firsts[:, None] + np.arange(int((pasts - firsts).max()))
    distances = (positions.astype(np.float32) - centers[:, None] + HALF) / stretch
    if method.mode == "cubic":
        weights = _keys(distances, np.float32(method.cubic_coeff_a))
    else:
        weights = np.maximum(ONE - np.abs(distances), np.float32(0))
    weights = np.where(positions < pasts[:, None], weights, np.float32(0))
    if method.exclude_outside:
        return firsts, _within(firsts, weights, size)
    total = weights.sum(axis=1, keepdims=True)
    return firsts, weights / np.where(total == 0, ONE, total)


def _keys(distances: np.ndarray, a: np.float32) -> np.ndarray:
    """Keys' cubic convolution kernel."""
    x = np.abs(distances)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0)).astype(np.float32)


def _within(firsts: np.ndarray, weights: np.ndarray, size: int) -> np.ndarray:
    """The weights without those of places beyond the ends, made to add up to 1 again."""
    positions = firsts[:, None] + np.arange(weights.shape[1])
    kept = np.where((positions >= 0) & (positions < size), weights, np.float32(0))
    total = kept.sum(axis=1, keepdims=True)
    return kept / np.where(total == 0, ONE, total)


def _summed(x: mx.array, axis: int, table: Table) -> mx.array:
    """x with one axis resized."""
    taps = 1 if table.weights is None else table.weights.shape[1]
    last = max(int(table.firsts[each.start : each.start + each.period].max()) + each.reach for each in table.segments)
    before = max(0, -int(table.firsts.min()))
    x = _extended(x, axis, before, max(0, last + taps - table.size))
    pieces = []
    for each in table.segments:
        families = []
        for start in range(each.start, each.start + min(each.period, each.length)):
            first = int(table.firsts[start]) + before
            views = [_sliced(x, axis, first + tap, each.count, each.stride) for tap in range(taps)]
            if table.weights is None:
                families.append(views[0])
            else:
                rows = table.weights[start : each.start + each.length : each.period]
                families.append(_blend(views, axis, _continued(rows, each.count)))
        pieces.append(_interleaved(families, axis, each.length))
    return mx.concatenate(pieces, axis=axis) if len(pieces) > 1 else pieces[0]


def _segments(firsts: np.ndarray) -> tuple[Segment, ...]:
    """The outputs cut into segments, each as far as one short period goes on."""
    segments = []
    start = 0
    while start < len(firsts):
        rest = firsts[start:]
        length, period, stride = 1, 1, 1
        for candidate in range(1, min(LONGEST_PERIOD, len(rest) - 1) + 1):
            steps = rest[candidate:] - rest[:-candidate]
            differs = np.flatnonzero(steps != steps[0])
            reached = candidate + (int(differs[0]) if differs.size else steps.size)
            if steps[0] >= 0 and reached * period > length * candidate:
                length, period, stride = reached, candidate, int(steps[0])
        segments.append(Segment(start, length, period, stride))
        start += length
    return tuple(segments)


def _interleaved(families: Sequence[mx.array], axis: int, length: int) -> mx.array:
    """Every p-th element along an axis from each of p arrays, in turn, cut to `length`."""
    if len(families) == 1:
        return families[0]
    shape = list(families[0].shape)
    shape[axis] *= len(families)
    y = mx.stack(families, axis=axis + 1).reshape(shape)
    return y if shape[axis] == length else y[(*[slice(None)] * axis, slice(length))]


def _repeated(x: mx.array, times: Mapping[int, int]) -> mx.array:
    """x with each element repeated along axes, so many times for each."""
    narrow = [length for size in x.shape for length in (size, 1)]
    wide = [length for axis, size in enumerate(x.shape) for length in (size, times.get(axis, 1))]
    shape = [size * times.get(axis, 1) for axis, size in enumerate(x.shape)]
    return mx.broadcast_to(x.reshape(narrow), wide).reshape(shape)


def _extended(x: mx.array, axis: int, before: int, after: int) -> mx.array:
    """x with its outermost elements along an axis repeated."""
    parts = [_sliced(x, axis, 0, before, 0)] if before else []
    parts.append(x)
    if after:
        parts.append(_sliced(x, axis, x.shape[axis] - 1, after, 0))
    return mx.concatenate(parts, axis=axis) if len(parts) > 1 else x


def _sliced(x: mx.array, axis: int, start: int, count: int, stride: int) -> mx.array:
    """`count` elements of x along an axis, each `stride` further on; the same one where that is 0."""
    if stride == 0:
        shape = list(x.shape)
        shape[axis] = count
        return mx.broadcast_to(x[(*[slice(None)] * axis, slice(start, start + 1))], shape)
    return x[(*[slice(None)] * axis, slice(start, start + (count - 1) * stride + 1, stride))]


def _blend(views: Sequence[mx.array], axis: int, weights: np.ndarray) -> mx.array:
    """The sum of the views, each times its column of (outputs, taps) weights laid along an axis."""
    total = None
    for view, column in zip(views, weights.T, strict=True):
        if not column.any():
            continue
        if (column == column[0]).all():
            part = view if column[0] == 1 else view * float(column[0])
        else:
            part = view * mx.array(column, view.dtype).reshape(along(view.ndim, axis))
        total = part if total is None else total + part
    return mx.zeros_like(views[0]) if total is None else total


def _continued(rows: np.ndarray, count: int) -> np.ndarray:
    """`rows`, with the last one repeated to make `count`."""
    return rows if len(rows) == count else np.concatenate([rows, np.repeat(rows[-1:], count - len(rows), axis=0)])
