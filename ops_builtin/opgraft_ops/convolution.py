"""Convolutions and their transposes.

MLX convolves channels-last, so images are turned around each convolution: views, which cost nothing between two of
them. On the CPU its convolution lays out every window before it multiplies, and is very slow with groups; there a
convolution is a sum over the taps of the kernel, of one matrix product each (a product of elements where each channel
has its own kernel). For that the padded image is taken as a list of pixels, one row each: what a tap reads is a run of
rows. A run goes on from the end of one line of the image into the next, and gives pixels there that nobody wants; they
are cut off at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from math import prod
from operator import lt
from typing import Any

import mlx.core as mx

from opgraft.ops import FLOATS, NUMBERS, Host, Layout, Node, op
from opgraft.ops.layouts import channels_first, channels_last
from opgraft_ops._folding import widened
from opgraft_ops._shared import Array
from opgraft_ops._sizes import check_shape
from opgraft_ops._windows import Windows, claim_windows, fitted, windows

FEW_CHANNELS = 8
"""Below this number of channels, MLX's convolution beats one matrix product for each tap."""

EXACT_TERMS = 256
"""So many products of two 8-bit integers, each less its zero point, have a sum that float32 holds exactly."""

Term = tuple[mx.array, int, mx.array]
"""One tap's part of a sum: rows (N, R, C) or (N, G, R, C), the first row that it reads, and its weights."""


@op("Conv", dtypes=FLOATS, layout=Layout.CHANNELS_LAST)
def conv(ctx, X, W, B=None, *, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, pads=None, strides=None):
    """X (N, C, D1...Dn) correlated with W (M, C / group, k1...kn), plus B (M): (N, M, O1...On). ONNX Conv-22."""
    place = {"auto_pad": auto_pad, "dilations": dilations, "kernel_shape": kernel_shape, "pads": pads}
    return convolved(X, W, B, partial(ctx.prepared, 1), ctx.device, group=group, strides=strides, **place)


def convolved(
    X: mx.array,
    W: mx.array,
    B: mx.array | None,
    prepared: Callable[[Callable[[mx.array], Any]], Any],
    device: str,
    *,
    auto_pad: str,
    dilations: Sequence[int] | None,
    group: int,
    kernel_shape: Sequence[int] | None,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> mx.array:
    """What Conv computes. `prepared` keeps what is made of W once, where W is a constant."""
    check_weight(X, W, group, W.shape[0], W.shape[1] * group, kernel_shape)
    check_shape("B", B, W.shape[:1])
    place = windows(X.shape[2:], W.shape[2:], strides, dilations, pads, auto_pad)
    if 0 in (X.shape[0], *W.shape[:2], *place.outputs):
        return _of_no_terms((X.shape[0], W.shape[0], *place.outputs), B, X.dtype)
    on_cpu = device == "cpu"
    working = widened if on_cpu else _same
    x, bias = channels_last(working(X)), None if B is None else working(B)
    pointwise = set(place.kernel) == set(place.strides) == {1}
    lays_out_windows = place.rank <= 3 and (group == 1 or place.rank < 3) and not pointwise
    lays_out_windows &= x.dtype != mx.float64  # MLX convolves that in float32
    if on_cpu:
        lays_out_windows &= group == 1 and (x.shape[-1] < FEW_CHANNELS or max(place.strides) > 1)
    if lays_out_windows:
        weight = prepared(lambda w: mx.contiguous(channels_last(working(w))))
        y = _laid_out(x, weight, place, group)
        y = y if bias is None else y + bias
    else:
        y = _correlated(x, prepared(lambda w: _taps(working(w), group)), group, place, bias)
    return channels_first(y).astype(X.dtype)


@op("ConvTranspose", dtypes=FLOATS, layout=Layout.CHANNELS_LAST)
def conv_transpose(
    ctx,
    X,
    W,
    B=None,
    *,
    auto_pad="NOTSET",
    dilations=None,
    group=1,
    kernel_shape=None,
    output_padding=None,
    output_shape=None,
    pads=None,
    strides=None,
):
    """The transpose of Conv: X (N, C, D1...Dn) and W (C, M / group, k1...kn) give (N, M, O1...On), plus B (M).
    ONNX ConvTranspose-22."""
    channels = W.shape[1] * group
    check_weight(X, W, group, channels, W.shape[0], kernel_shape)
    check_shape("B", B, [channels])
    rank = X.ndim - 2
    strides, dilations = tuple(strides or (1,) * rank), tuple(dilations or (1,) * rank)
    begins, outputs = transposed_places(
        X.shape[2:], W.shape[2:], strides, dilations, pads, auto_pad, output_padding, output_shape
    )
    if 0 in (X.shape[0], *W.shape[:2], *outputs):
        return _of_no_terms((X.shape[0], channels, *outputs), B, X.dtype)
    on_cpu = ctx.device == "cpu"
    working = widened if on_cpu else _same
    x, bias = channels_last(working(X)), None if B is None else working(B)
    place = Windows(X.shape[2:], W.shape[2:], strides, dilations, begins, begins, outputs)
    if on_cpu or group > 1 or rank > 3:
        weights = ctx.prepared(1, lambda w: _taps(_transposed_weight(working(w), group), group))
        y = _spread(x, weights, group, place, bias)
    else:
        weight = ctx.prepared(1, lambda w: mx.contiguous(channels_last(_transposed_weight(working(w), 1))))
        y = _spread_by_dilation(x, weight, place)
        y = y if bias is None else y + bias
    return channels_first(y).astype(X.dtype)


@op("ConvInteger", since=10, dtypes={"x": {"int8", "uint8"}, "w": {"int8", "uint8"}})
def conv_integer(
    ctx,
    x,
    w,
    x_zero_point=None,
    w_zero_point=None,
    *,
    auto_pad="NOTSET",
    dilations=None,
    group=1,
    kernel_shape=None,
    pads=None,
    strides=None,
):
    """Conv of integers less their zero points, in int32: x (N, C, D1...Dn), w (M, C / group, k1...kn). x_zero_point is
    one value; w_zero_point one, or one for each of the M. ONNX ConvInteger-10."""
    check_weight(x, w, group, w.shape[0], w.shape[1] * group, kernel_shape)
    check_shape("x_zero_point", x_zero_point, [], [1])
    check_shape("w_zero_point", w_zero_point, [], [1], w.shape[:1])
    place = windows(x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)
    if 0 in (x.shape[0], *w.shape[:2], *place.outputs):
        return _of_no_terms((x.shape[0], w.shape[0], *place.outputs), None, mx.int32)
    image = channels_last(x).astype(mx.float32)
    if x_zero_point is not None:
        image = image - x_zero_point.astype(mx.float32)

    def centered() -> mx.array:
        weight = w.astype(mx.float32)
        if w_zero_point is None:
            return weight
        return weight - w_zero_point.astype(mx.float32).reshape(-1, *[1] * (w.ndim - 1))

    weights = ctx.cached_of("weights", (1, 3), lambda: _taps(centered(), group))
    return channels_first(_correlated(image, weights, group, place, None, exact=True))


@op("Col2Im", since=18, dtypes=NUMBERS | {"complex64"})
def col2im(input, image_shape: Host, block_shape: Host, *, dilations=None, pads=None, strides=None):
    """Add columns up into an image: input (N, C * b1...bn, L), where the blocks b1...bn have L places in the image
    (N, C, image_shape...). ONNX Col2Im-18."""
    sizes, block = image_shape.tolist(), block_shape.tolist()
    place = windows(sizes, block, strides, dilations, pads, "NOTSET")
    if input.ndim != 3 or input.shape[1] % prod(block) or input.shape[2] != prod(place.outputs):
        raise ValueError(
            f"input of shape {list(input.shape)} does not hold blocks of {block} at {place.outputs} places"
        )
    x = widened(input).reshape(input.shape[0], input.shape[1] // prod(block), *block, *place.outputs)
    for axis in range(place.rank):
        x = _folded(x, 2 + place.rank - axis, place, axis)
    return x.astype(input.dtype)


def claim_convolution(node: Node, weight: int = 1) -> None:
    """Decline attributes that no convolution has; `weight` is the index of that input."""
    rank, kernel = node.rank(0), node.rank(weight)
    claim_windows(node, None if rank is None else rank - 2)
    node.require(rank is None or rank > 2, "an image has axes beside batch and channels")
    node.require(None in (rank, kernel) or rank == kernel, "input and weight must have the same rank")
    group = node.attributes.get("group", 1)
    node.require(group > 0, f"group {group} is not positive")
    alone = node.attributes.get("auto_pad", "NOTSET") == "NOTSET" or not node.attributes.get("pads")
    node.require(alone, "auto_pad and pads are given both")


for _handler in (conv, conv_transpose, conv_integer):
    _handler.condition(claim_convolution)
col2im.condition(lambda node: claim_windows(node, None))


@conv_transpose.condition
def _(node):
    shape, padding = (node.attributes.get(name) or () for name in ("output_shape", "output_padding"))
    node.require(min(shape, default=1) > 0, f"output_shape {list(shape)} is not positive")
    node.require(min(padding, default=0) >= 0, f"output_padding {list(padding)} is negative")
    strides = node.attributes.get("strides") or (1,) * len(padding)
    less = all(map(lt, padding, strides))
    node.require(less, f"output_padding {list(padding)} is not less than strides {list(strides)}")


def check_weight(
    x: Array, weight: Array, group: int, outputs: int, inputs: int, kernel_shape: Sequence[int] | None
) -> None:
    """Check that a weight fits an image x (N, C, D1...Dn), the channels in and out, the groups and kernel_shape.

    Raises:
        ValueError: it does not.
    """
    shape = list(weight.shape)
    if x.ndim != weight.ndim or x.ndim < 3 or x.shape[1] != inputs or inputs % group or outputs % group:
        raise ValueError(f"a weight of shape {shape}, in {group} groups, does not fit an image of {list(x.shape)}")
    if kernel_shape and list(kernel_shape) != shape[2:]:
        raise ValueError(f"kernel_shape is {list(kernel_shape)}, and the weight has shape {shape}")


def _same(x):
    return x


def _of_no_terms(shape: Sequence[int], bias: mx.array | None, dtype: mx.Dtype) -> mx.array:
    """A convolution of no channels, or without elements, (N, M, O1...On): nothing but its bias (M)."""
    y = mx.zeros(shape, dtype)
    return y if bias is None else y + bias.reshape(-1, *[1] * (len(shape) - 2))


def _laid_out(x: mx.array, weight: mx.array, place: Windows, group: int) -> mx.array:
    """MLX's own convolution. x: (N, D1...Dn, C); weight: (M, k1...kn, C / group); returns (N, O1...On, M)."""
    ends = [span - begin - size for span, begin, size in zip(place.spans, place.begins, place.sizes, strict=True)]
    if min(ends) < 0:  # the image's end that no window reaches: let it take part, and give no more windows
        ends = [max(end, 0) for end in ends]
    return mx.conv_general(
        x,
        weight,
        stride=list(place.strides),
        padding=(list(place.begins), ends),
        kernel_dilation=list(place.dilations),
        groups=group,
    )


def _taps(weight: mx.array, group: int) -> list[mx.array]:
    """A weight (M, C / group, k1...kn) by tap: each (C, M), with groups (group, C / group, M / group), and only (M)
    where each group is one channel."""
    outputs, inputs = weight.shape[:2]
    by_tap = weight.reshape(group, outputs // group, inputs, prod(weight.shape[2:])).transpose(3, 0, 2, 1)
    if group == 1:
        by_tap = by_tap.squeeze(1)
    elif inputs == 1:
        by_tap = by_tap.reshape(-1, outputs)
    by_tap = mx.contiguous(by_tap)
    return [by_tap[tap] for tap in range(by_tap.shape[0])]


def _transposed_weight(weight: mx.array, group: int) -> mx.array:
    """ConvTranspose's weight (C, M / group, k1...kn) in Conv's order, (M, C / group, k1...kn)."""
    inputs, outputs = weight.shape[:2]
    grouped = weight.reshape(group, inputs // group, outputs, *weight.shape[2:])
    return mx.swapaxes(grouped, 1, 2).reshape(group * outputs, inputs // group, *weight.shape[2:])


def _rows(x: mx.array, group: int, weights: Sequence[mx.array]) -> mx.array:
    """The pixels of (N, D1...Dn, C) one below another: (N, R, C), or (N, group, R, C / group)."""
    batch, channels, pixels = x.shape[0], x.shape[-1], prod(x.shape[1:-1])
    rows = x.reshape(batch, pixels, channels)
    if weights[0].ndim == 1:
        multiplier = weights[0].size // channels
        return mx.repeat(rows, multiplier, axis=-1) if multiplier > 1 else rows
    if group == 1:
        return rows
    return mx.contiguous(mx.swapaxes(rows.reshape(batch, pixels, group, channels // group), 1, 2))


def _correlated(
    x: mx.array, weights: Sequence[mx.array], group: int, place: Windows, bias: mx.array | None, exact: bool = False
) -> mx.array:
    """A convolution as a sum over taps. x: (N, D1...Dn, C), weights as of `_taps`; returns (N, O1...On, M).

    With a stride of s, every s-th pixel from each of the first s on makes an image of its own, and in that one a tap
    reads a run of rows again.
    """
    reach = [tap // stride for tap, stride in zip(_last(place), place.strides, strict=True)]
    lengths = [output + each for output, each in zip(place.outputs, reach, strict=True)]
    lengths[0] += any(reach[1:])  # the last run goes on into one more line
    x = fitted(x, place.begins, [length * stride for length, stride in zip(lengths, place.strides, strict=True)])
    parts: dict[tuple[int, ...], mx.array] = {}
    terms: list[Term] = []
    for tap, weight in zip(place.taps, weights, strict=True):
        offsets = [each * dilation for each, dilation in zip(tap, place.dilations, strict=True)]
        phase = tuple(offset % stride for offset, stride in zip(offsets, place.strides, strict=True))
        if phase not in parts:
            every = (slice(start, None, stride) for start, stride in zip(phase, place.strides, strict=True))
            parts[phase] = _rows(x[(slice(None), *every)], group, weights)
        shift = [offset // stride for offset, stride in zip(offsets, place.strides, strict=True)]
        terms.append((parts[phase], _row_of(shift, lengths), weight))
    lines = (place.outputs[0], *lengths[1:])
    if exact:
        return _cut(_exact_sum(terms, prod(lines)), lines, place.outputs)
    return _cut(_sum(terms, prod(lines), bias), lines, place.outputs)


def _spread(x: mx.array, weights: Sequence[mx.array], group: int, place: Windows, bias: mx.array | None) -> mx.array:
    """A transposed convolution: with a stride of s, the outputs at every s-th place are a convolution of x with every
    s-th tap. x: (N, D1...Dn, C); `place` holds the begins and outputs to cut out; returns (N, O1...On, M)."""
    reach = [tap // stride for tap, stride in zip(_last(place), place.strides, strict=True)]
    wanted = [begin + output for begin, output in zip(place.begins, place.outputs, strict=True)]
    counts = [-(-length // stride) for length, stride in zip(wanted, place.strides, strict=True)]
    lengths = [count + each for count, each in zip(counts, reach, strict=True)]
    lengths[0] += any(reach[1:])
    rows = _rows(fitted(x, reach, lengths), group, weights)
    terms: dict[tuple[int, ...], list[Term]] = {phase: [] for phase in product(*map(range, place.strides))}
    for tap, weight in zip(place.taps, weights, strict=True):
        offsets = [each * dilation for each, dilation in zip(tap, place.dilations, strict=True)]
        phase = tuple(offset % stride for offset, stride in zip(offsets, place.strides, strict=True))
        shift = [each - offset // stride for each, offset, stride in zip(reach, offsets, place.strides, strict=True)]
        terms[phase].append((rows, _row_of(shift, lengths), weight))
    lines = (counts[0], *lengths[1:])
    channels = weights[0].shape[-1] * (group if weights[0].ndim == 3 else 1)
    nothing = mx.zeros((channels,), x.dtype) if bias is None else bias
    whole = (x.shape[0], *counts, channels)
    parts = [
        _cut(_sum(each, prod(lines), bias), lines, counts) if each else mx.broadcast_to(nothing, whole)
        for each in terms.values()
    ]
    y = parts[0]
    if len(parts) > 1:
        rank = place.rank
        interleaved = [rank, *(axis for each in range(rank) for axis in (rank + 1 + each, each)), 2 * rank + 1]
        y = mx.stack(parts).reshape(*place.strides, *whole).transpose(interleaved)
        sizes = (count * stride for count, stride in zip(counts, place.strides, strict=True))
        y = y.reshape(x.shape[0], *sizes, channels)
    return y[(slice(None), *(slice(begin, end) for begin, end in zip(place.begins, wanted, strict=True)))]


def _spread_by_dilation(x: mx.array, weight: mx.array, place: Windows) -> mx.array:
    """A transposed convolution by MLX's own: x with holes of zeros, and the kernel backwards.
    x: (N, D1...Dn, C); weight: (M, k1...kn, C); returns (N, O1...On, M)."""
    wanted = [begin + output for begin, output in zip(place.begins, place.outputs, strict=True)]
    y = mx.conv_general(
        x,
        weight,
        padding=(_last(place), _last(place)),
        kernel_dilation=list(place.dilations),
        input_dilation=list(place.strides),
        flip=True,
    )
    y = fitted(y, [0] * place.rank, wanted)
    return y[(slice(None), *(slice(begin, end) for begin, end in zip(place.begins, wanted, strict=True)))]


def _last(place: Windows) -> list[int]:
    """How far the last tap of a kernel lies from its first."""
    return [(kernel - 1) * dilation for kernel, dilation in zip(place.kernel, place.dilations, strict=True)]


def _row_of(position: Iterable[int], lengths: Iterable[int]) -> int:
    row = 0
    for place, length in zip(position, lengths, strict=True):
        row = row * length + place
    return row


def _cut(y: mx.array, lines: Sequence[int], outputs: Sequence[int]) -> mx.array:
    """(N, R, M) rows as an image (N, lines..., M), cut down to (N, outputs..., M)."""
    return y.reshape(y.shape[0], *lines, y.shape[-1])[(slice(None), *(slice(output) for output in outputs))]


def _sum(terms: Iterable[Term], length: int, bias: mx.array | None) -> mx.array:
    """The terms' runs of `length` rows, each times its weights, added up, plus bias (M): (N, length, M)."""
    total = bias
    for rows, first, weight in terms:
        run = rows[..., first : first + length, :]
        if weight.ndim == 1:
            total = run * weight if total is None else total + run * weight
        elif total is None:
            total = run @ weight
        elif total is bias and weight.ndim == 3:
            total = mx.addmm(bias.reshape(weight.shape[0], 1, weight.shape[2]), run, weight)
        else:
            total = mx.addmm(total, run, weight)
    assert total is not None
    if total.ndim == 4:  # (N, G, R, M / G)
        batch, group, _, outputs = total.shape
        total = mx.swapaxes(total, 1, 2).reshape(batch, length, group * outputs)
    return total


def _exact_sum(terms: Iterable[Term], length: int) -> mx.array:
    """`_sum` of integers in float32, in int32: so few products at a time that float32 holds their sum."""
    pieces: list[tuple[int, Term]] = []
    for rows, first, weight in terms:
        depth = 1 if weight.ndim == 1 else weight.shape[-2]
        for start in range(0, depth, EXACT_TERMS) if depth > EXACT_TERMS else ():
            part = slice(start, start + EXACT_TERMS)
            pieces.append((min(EXACT_TERMS, depth - start), (rows[..., part], first, weight[..., part, :])))
        if depth <= EXACT_TERMS:
            pieces.append((depth, (rows, first, weight)))
    sums: list[mx.array] = []
    batch: list[Term] = []
    held = 0
    for depth, term in pieces:
        if batch and held + depth > EXACT_TERMS:
            sums.append(_sum(batch, length, None).astype(mx.int32))
            batch, held = [], 0
        batch.append(term)
        held += depth
    sums.append(_sum(batch, length, None).astype(mx.int32))
    return sum(sums[1:], sums[0])


def _folded(x: mx.array, place_axis: int, place: Windows, axis: int) -> mx.array:
    """Add up what falls on the same pixel of one axis of the image. Of x, axis 2 is the kernel's taps and `place_axis`
    the windows' places; both vanish, and the image's axis is appended."""
    stride, dilation, begin, size = (each[axis] for each in (place.strides, place.dilations, place.begins, place.sizes))
    by_tap = mx.moveaxis(mx.moveaxis(x, place_axis, -1), 2, 0)
    count = -(-(begin + size) // stride)
    phases = [mx.zeros((*by_tap.shape[1:-1], count), x.dtype)] * stride
    for tap in range(place.kernel[axis]):
        shift, phase = divmod(tap * dilation, stride)
        used = min(place.outputs[axis], count - shift)
        if used > 0:
            widths = [(0, 0)] * (by_tap.ndim - 2) + [(shift, count - shift - used)]
            phases[phase] = phases[phase] + mx.pad(by_tap[tap][..., :used], widths)
    whole = mx.stack(phases, axis=-1).reshape(*by_tap.shape[1:-1], count * stride)
    return whole[..., begin : begin + size]


def transposed_places(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int] | None,
    auto_pad: str,
    output_padding: Sequence[int] | None,
    output_shape: Sequence[int] | None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where ConvTranspose's output lies in the whole that its windows reach: its begin and its size for each axis.

    Raises:
        ValueError: a kernel of size 0, an output without extent, or an `output_shape` that asks for a stride or more
            beyond the whole.
    """
    rank = len(sizes)
    if min(kernel) < 1:
        raise ValueError(f"a kernel of size {list(kernel)} is empty")
    parts = zip(sizes, kernel, strides, dilations, output_padding or [0] * rank, strict=True)
    whole = [stride * (size - 1) + (length - 1) * dilation + 1 + more for size, length, stride, dilation, more in parts]
    if output_shape:
        outputs = list(output_shape[-rank:])
        if any(output - length >= stride for output, length, stride in zip(outputs, whole, strides, strict=True)):
            raise ValueError(f"output_shape {outputs} has places that no stride reaches: {whole} are computed")
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        outputs = [min(length, size * stride) for length, size, stride in zip(whole, sizes, strides, strict=True)]
    else:
        both = [0] * (2 * rank) if auto_pad == "VALID" else list(pads or [0] * (2 * rank))
        outputs = [length - begin - end for length, begin, end in zip(whole, both[:rank], both[rank:], strict=True)]
        if min(outputs) < 1:
            raise ValueError(f"pads {both} leave nothing of {whole}")
        return tuple(both[:rank]), tuple(outputs)
    totals = [max(0, length - output) for length, output in zip(whole, outputs, strict=True)]
    begins = [total // 2 if auto_pad == "SAME_UPPER" else total - total // 2 for total in totals]
    return tuple(begins), tuple(outputs)
