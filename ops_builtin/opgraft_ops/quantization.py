"""Quantized operators. Sums of products are exact integers, and rounding is done where and as ONNX Runtime does it."""

from __future__ import annotations

from math import prod

import mlx.core as mx

from opgraft.graph.element_types import BITS, NAME_OF_ONNX
from opgraft.ops import FLOAT8, FLOATS, PACKED, Context, op
from opgraft.ops.arrays import HELD_TYPE, MLX_TYPE, element_type
from opgraft.ops.layouts import channels_first, channels_last
from opgraft_ops import _narrow
from opgraft_ops._shared import along
from opgraft_ops._sizes import check_shape, counted, flags
from opgraft_ops._windows import Windows, fitted, windows
from opgraft_ops.convolution import check_weight, claim_convolution

SCALES = FLOATS - {"float64"}
BYTES = frozenset({"int8", "uint8"})
POWERS = frozenset({"float8e8m0"})
NARROW_FLOATS = (FLOAT8 - POWERS) | {"float4e2m1"}
QUANTIZED = BYTES | {"int16", "uint16"} | PACKED | NARROW_FLOATS

EXACT_TERMS = 256
"""So many products of differences of bytes sum to less than 2 to the power 24, which float32 holds exactly."""


@op(
    "QuantizeLinear",
    since=10,
    dtypes={"x": SCALES | {"int32"}, "y_scale": SCALES | POWERS, "y_zero_point": QUANTIZED},
)
def quantize_linear(
    ctx, x, y_scale, y_zero_point=None, *, axis=1, block_size=0, output_dtype=0, precision=0, saturate=1
):
    """x / y_scale, rounded half to even, + y_zero_point, within the range of the result's type.

    The scale is a scalar, a vector along `axis`, or has one element for each block of block_size along it. It decides
    what x is divided in from version 23 on (float32, if it is float8e8m0), float32 before, as in ONNX Runtime.
    ONNX QuantizeLinear-28.
    """
    check_alike(y_scale, y_zero_point)
    scale = _narrow.values(y_scale, ctx.node.dtype(1))
    if precision:
        division = MLX_TYPE[NAME_OF_ONNX[precision]]
    else:
        division = scale.dtype if ctx.node.since_version >= 23 else mx.float32
    quotient = x.astype(division) / over(x, scale, axis, block_size).astype(division)
    if y_zero_point is None:
        target = NAME_OF_ONNX[output_dtype or 2]
        zero_point = mx.array(0, HELD_TYPE[target])
    else:
        target = ctx.node.dtype(2) or element_type(y_zero_point)
        zero_point = over(x, y_zero_point, axis, block_size)
    if target in NARROW_FLOATS:
        shift = _narrow.values(zero_point, target)
        return _narrow.holding(mx.where(shift == 0, quotient, quotient + shift), target, saturate)  # minus 0 stays
    return saturated(quotient, zero_point, target)


quantize_linear.condition(flags("saturate"))


@quantize_linear.condition
def claim_quantize_linear(node):
    number = node.attributes.get("output_dtype", 0)
    name = NAME_OF_ONNX.get(number, f"number {number}") if number else None
    node.require(name in QUANTIZED | {None}, f"output_dtype {name} is not one of {sorted(QUANTIZED)}")
    node.require(node.input(2) is None or name in (None, node.dtype(2)), "output_dtype is not the type of y_zero_point")
    claim_blocks(node)
    precision = node.attributes.get("precision", 0)
    node.require(not precision or NAME_OF_ONNX.get(precision) in SCALES, f"a precision of number {precision}")


@op(
    "DequantizeLinear",
    since=10,
    dtypes={"x": QUANTIZED | {"int32"}, "x_scale": SCALES | POWERS, "x_zero_point": QUANTIZED | {"int32"}},
)
def dequantize_linear(ctx, x, x_scale, x_zero_point=None, *, axis=1, block_size=0, output_dtype=0):
    """(x - x_zero_point) * x_scale; see QuantizeLinear for the scale. The weights of a model are computed once.
    ONNX DequantizeLinear-28.
    """

    check_alike(x_scale, x_zero_point)
    dtype = ctx.node.dtype(0)

    def steps(quantized):
        return _narrow.values(quantized, dtype) if dtype in NARROW_FLOATS else quantized.astype(mx.int32)

    def values():
        scale = _narrow.values(x_scale, ctx.node.dtype(1))
        total = steps(x)
        if x_zero_point is not None:
            total = total - steps(over(x, x_zero_point, axis, block_size))
        result = total.astype(mx.float32) * over(x, scale, axis, block_size).astype(mx.float32)
        return result.astype(MLX_TYPE[NAME_OF_ONNX[output_dtype]] if output_dtype else scale.dtype)

    return ctx.cached_of("values", range(3), values)


@dequantize_linear.condition
def claim_dequantize_linear(node):
    claim_blocks(node)
    number = node.attributes.get("output_dtype", 0)
    node.require(not number or NAME_OF_ONNX.get(number) in SCALES, f"an output_dtype of number {number}")


def claim_blocks(node):
    size = node.attributes.get("block_size", 0)
    node.require(size >= 0, f"block_size {size} is negative")


def check_alike(scale: mx.array, zero_point: mx.array | None) -> None:
    """Check that there is one zero point, if any, for each scale.

    Raises:
        ValueError: there are fewer, or more.
    """
    if zero_point is not None and zero_point.size != scale.size:
        raise ValueError(f"the zero point has shape {list(zero_point.shape)}, and the scale {list(scale.shape)}")


@op("DynamicQuantizeLinear", dtypes={"x": {"float32"}})
def dynamic_quantize_linear(x):
    """x as uint8, with a scale and a zero point that just hold its range and 0. ONNX DynamicQuantizeLinear-11."""
    if not x.size:
        return mx.zeros(x.shape, mx.uint8), mx.array(1.0, mx.float32), mx.array(0, mx.uint8)
    lowest, highest = mx.minimum(mx.min(x), 0), mx.maximum(mx.max(x), 0)
    scale = mx.where(highest == lowest, 1, (highest - lowest) / 255)
    zero_point = mx.round(mx.clip(-lowest / scale, 0, 255)).astype(mx.uint8)
    return saturated(x / scale, zero_point), scale, zero_point


@op("MatMulInteger", dtypes=BYTES)
def matmul_integer(A, B, a_zero_point=None, b_zero_point=None):
    """(A - a_zero_point) times (B - b_zero_point), as int32. Zero points are scalars, or go by row of A and by column
    of B. ONNX MatMulInteger-10.
    """
    check_parameters(A, B, a_zero_point, b_zero_point)
    return exact_product(centred(A, by_row(a_zero_point)), centred(B, b_zero_point))


def check_parameters(a: mx.array, b: mx.array, *parameters: mx.array | None) -> None:
    """Check that the scales and zero points of a, and after each that of b, go by row of a and by column of b.

    Raises:
        ValueError: one of them has another shape.
    """
    for number, each in enumerate(parameters):
        if number % 2:
            check_shape("a parameter of b", each, [], [1], b.shape[1:][-1:], [*b.shape[:-2], 1, *b.shape[1:][-1:]])
        else:
            check_shape("a parameter of a", each, [], [1], a.shape[:-1][-1:], [*a.shape[:-1], 1])


@op(
    "QLinearMatMul",
    since=10,
    dtypes={
        **{name: BYTES for name in ("a", "a_zero_point", "b", "b_zero_point", "y_zero_point")},
        **{name: SCALES for name in ("a_scale", "b_scale", "y_scale")},
    },
)
def qlinear_matmul(a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point):
    """The product of quantized matrices, quantized. Scales and zero points are scalars, or go by row of a and y and by
    column of b. ONNX QLinearMatMul-21.
    """
    check_parameters(a, b, a_scale, b_scale, a_zero_point, b_zero_point)
    for each in (y_scale, y_zero_point):
        check_shape("a parameter of y", each, [], [1], a.shape[:-1][-1:], [*a.shape[:-1], 1])
    total = exact_product(centred(a, by_row(a_zero_point)), centred(b, b_zero_point))
    return requantized(total, by_row(a_scale), b_scale, by_row(y_scale), by_row(y_zero_point))


@op(
    "QLinearConv",
    dtypes={
        **{name: BYTES for name in ("x", "x_zero_point", "w", "w_zero_point", "y_zero_point")},
        **{name: {"float32"} for name in ("x_scale", "w_scale", "y_scale")},
        "B": {"int32"},
    },
)
def qlinear_conv(
    ctx,
    x,
    x_scale,
    x_zero_point,
    w,
    w_scale,
    w_zero_point,
    y_scale,
    y_zero_point,
    B=None,
    *,
    auto_pad="NOTSET",
    dilations=None,
    group=1,
    kernel_shape=None,
    pads=None,
    strides=None,
):
    """A convolution of a quantized image, quantized. x: (N, C, D1...Dn); w: (M, C / group, k1...kn), its scale and zero
    point scalars or (M); B: (M), in steps of x_scale * w_scale. ONNX QLinearConv-10.
    """
    check_weight(x, w, group, w.shape[0], w.shape[1] * group, kernel_shape)
    check_shape("B", B, w.shape[:1])
    for each in (x_scale, x_zero_point, y_scale, y_zero_point):
        check_shape("a scale or zero point of x or y", each, [], [1])
    for each in (w_scale, w_zero_point):
        check_shape("the scale or zero point of w", each, [], [1], w.shape[:1])
    image = channels_last(centred(x, x_zero_point))
    places = windows(image.shape[1:-1], w.shape[2:], strides, dilations, pads, auto_pad)
    if 0 in (*x.shape, *w.shape, *places.outputs):
        total = mx.zeros((x.shape[0], *places.outputs, w.shape[0]), mx.int32)
    else:
        total = window_sums(ctx, fitted(image, places.begins, places.spans), w, w_zero_point, group, places)
    if B is not None:
        total = total + B
    return channels_first(requantized(total, x_scale, w_scale, y_scale, y_zero_point))


qlinear_conv.condition(lambda node: claim_convolution(node, 3))


def window_sums(
    ctx: Context, image: mx.array, w: mx.array, zero_point: mx.array, group: int, places: Windows
) -> mx.array:
    """What QLinearConv sums up over each window of an image (N, D1...Dn, C), in int32: (N, O1...On, M)."""
    taps = [image[(slice(None), *places.strided(tap))] for tap in places.taps]
    if w.shape[1] == 1:
        kernels = ctx.cached_of("weights", (3, 5), lambda: depthwise_weights(w, zero_point))
        wanted = w.shape[0] // group
        return sum(
            mx.repeat(tap.astype(mx.int32), wanted, axis=-1) * kernel for tap, kernel in zip(taps, kernels, strict=True)
        )
    matrix = ctx.cached_of("weights", (3, 5), lambda: matrix_weights(w, zero_point, group))
    shape = taps[0].shape[:-1]
    columns = [mx.reshape(tap, (prod(shape), group, w.shape[1])) for tap in taps]
    products = exact_product(mx.swapaxes(mx.concatenate(columns, axis=-1), 0, 1), matrix)
    return mx.reshape(mx.swapaxes(products, 0, 1), (*shape, w.shape[0]))


def depthwise_weights(w: mx.array, zero_point: mx.array) -> list[mx.array]:
    """(M, 1, k1...kn) as one (M) for each tap, less their zero points."""
    channels = w.shape[0]
    kernel = mx.reshape(w, (channels, -1)).astype(mx.int32) - by_row(zero_point).astype(mx.int32)
    return [kernel[:, tap] for tap in range(kernel.shape[1])]


def matrix_weights(w: mx.array, zero_point: mx.array, group: int) -> mx.array:
    """(M, C / group, k1...kn) as (group, taps * C / group, M / group), less their zero points."""
    outputs, inputs = w.shape[:2]
    kernel = mx.reshape(w, (outputs, inputs, -1))
    by_tap = centred(mx.reshape(mx.swapaxes(kernel, 1, 2), (outputs, -1)), by_row(zero_point))
    return mx.contiguous(mx.swapaxes(mx.reshape(by_tap, (group, outputs // group, -1)), 1, 2))


def over(x: mx.array, parameter: mx.array, axis: int, block_size: int) -> mx.array:
    """A scale or zero point so shaped that it broadcasts over x.

    Raises:
        ValueError: it has another shape than x, the axis and the block size ask for.
    """
    if parameter.ndim < 2 and parameter.size == 1 and not block_size:
        return mx.reshape(parameter, ())
    axis = counted(axis, x.ndim)
    if not block_size:
        check_shape("the scale or zero point", parameter, x.shape[axis : axis + 1])
        return mx.reshape(parameter, along(x.ndim, axis))
    blocks = -(-x.shape[axis] // block_size)
    check_shape("the scale or zero point", parameter, [*x.shape[:axis], blocks, *x.shape[axis + 1 :]])
    repeated = mx.repeat(parameter, min(block_size, x.shape[axis]), axis=axis)
    kept = [slice(None)] * x.ndim
    kept[axis] = slice(0, x.shape[axis])
    return repeated[tuple(kept)]


def by_row(parameter: mx.array | None) -> mx.array | None:
    """A vector with an element for each row of a matrix, as a column."""
    return parameter[:, None] if parameter is not None and parameter.ndim == 1 and parameter.size > 1 else parameter


def centred(array: mx.array, zero_point: mx.array | None) -> mx.array:
    """Bytes less their zero point, as float32, which is exact."""
    wide = array.astype(mx.float32)
    return wide if zero_point is None else wide - zero_point.astype(mx.float32)


def exact_product(a: mx.array, b: mx.array) -> mx.array:
    """The matrix product of integers in float32, each at most 255 in magnitude, as int32."""
    if 0 in (a.ndim, b.ndim) or a.shape[-1] != b.shape[max(b.ndim - 2, 0)]:
        raise ValueError(f"shapes {list(a.shape)} and {list(b.shape)} have no matrix product")
    size = a.shape[-1]

    def part(start: int) -> mx.array:
        some = slice(start, start + EXACT_TERMS)
        return (a[..., some] @ (b[some] if b.ndim == 1 else b[..., some, :])).astype(mx.int32)

    return sum((part(start) for start in range(EXACT_TERMS, size, EXACT_TERMS)), part(0))


def requantized(
    total: mx.array, first_scale: mx.array, second_scale: mx.array, scale: mx.array, zero_point: mx.array
) -> mx.array:
    """A sum of products in steps of first_scale * second_scale, in steps of `scale`."""
    ratio = first_scale.astype(mx.float32) * second_scale.astype(mx.float32) / scale.astype(mx.float32)
    return saturated(total.astype(mx.float32) * ratio, zero_point)


def saturated(quotient: mx.array, zero_point: mx.array, dtype: str | None = None) -> mx.array:
    """`quotient` rounded half to even, + zero_point, within the range of its type `dtype`; NaN gives the lowest."""
    shift = zero_point.astype(mx.float32)
    dtype = dtype or element_type(zero_point)
    numbers = 2 ** BITS[dtype]
    first = 0 if dtype.startswith("u") else -numbers // 2
    lowest, highest = first - shift, first + numbers - 1 - shift
    rounded = mx.round(quotient.astype(mx.float32))
    within = mx.where(rounded > lowest, mx.minimum(rounded, highest), lowest)
    return (within + shift).astype(zero_point.dtype)
