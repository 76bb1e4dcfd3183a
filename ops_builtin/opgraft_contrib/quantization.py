"""Quantized operators of ONNX Runtime's own domain. Rounding is done where and as its CPU provider does it."""

from __future__ import annotations

from functools import reduce
from math import prod
from operator import add

import mlx.core as mx

from opgraft.ops import PACKED, Context, Layout, Node, op
from opgraft.ops.layouts import channels_first
from opgraft_contrib._required import require_inputs
from opgraft_ops._functions import sigmoid
from opgraft_ops._sizes import check_shape, counted, flags
from opgraft_ops._windows import claim_windows, fitted, windows
from opgraft_ops.activation import leaky_relu
from opgraft_ops.convolution import claim_convolution
from opgraft_ops.pooling import window_counts
from opgraft_ops.quantization import (
    BYTES,
    centred,
    check_parameters,
    dequantize_linear,
    dynamic_quantize_linear,
    exact_product,
    qlinear_conv,
    quantize_linear,
    saturated,
)
from opgraft_ops.reduction import softmax

SCALES = frozenset({"float32", "float16"})
QUANTIZED = BYTES | {"int16", "uint16"} | (PACKED & {"int4", "uint4"})


@op("com.microsoft::QuantizeLinear", dtypes={"x": SCALES, "y_scale": SCALES, "y_zero_point": QUANTIZED})
def quantize(ctx: Context, x, y_scale, y_zero_point=None, *, axis=1):
    """x / y_scale, rounded half to even, + y_zero_point, within the range of the result's type. Scale and zero point
    are scalars or vectors along `axis`.
    """
    return quantize_linear(ctx, x, y_scale, y_zero_point, axis=axis)


@op(
    "com.microsoft::DequantizeLinear",
    dtypes={"x": QUANTIZED | {"int32"}, "x_scale": SCALES, "x_zero_point": QUANTIZED | {"int32"}},
)
def dequantize(ctx: Context, x, x_scale, x_zero_point=None, *, axis=1):
    """(x - x_zero_point) * x_scale, which are scalars or vectors along `axis`."""
    return dequantize_linear(ctx, x, x_scale, x_zero_point, axis=axis)


def value_of(x: mx.array, scale: mx.array, zero_point: mx.array | None) -> mx.array:
    """What quantized elements stand for."""
    return centred(x, zero_point) * scale


def parameters(**each: mx.array | None) -> None:
    """Check that scales and zero points are single numbers.

    Raises:
        ValueError: one is not.
    """
    for name, given in each.items():
        check_shape(name, given, [], [1])


def or_zero(zero_point: mx.array | None, like: mx.array) -> mx.array:
    return mx.array(0, like.dtype) if zero_point is None else zero_point.reshape([])


def rounded_with_zero_point(quotient: mx.array, zero_point: mx.array) -> mx.array:
    """quotient + zero_point, rounded half to even within the range of the latter's type: a half goes another way than
    by `saturated`, which adds after it has rounded."""
    least, most = mx.iinfo(zero_point.dtype).min, mx.iinfo(zero_point.dtype).max
    return mx.clip(mx.round(quotient + zero_point.astype(mx.float32)), least, most).astype(zero_point.dtype)


def byte_types(*quantized: str) -> dict[str, frozenset[str]]:
    return {name: BYTES for name in quantized}


ARITHMETIC = {
    **byte_types("A", "A_zero_point", "B", "B_zero_point", "C_zero_point"),
    **{name: {"float32"} for name in ("A_scale", "B_scale", "C_scale")},
}


@op("com.microsoft::QLinearAdd", dtypes=ARITHMETIC, layout=Layout.ANY)
def qlinear_add(
    A, A_scale, A_zero_point=None, B=None, B_scale=None, B_zero_point=None, C_scale=None, C_zero_point=None
):
    """The sum of A and B, broadcast to each other, quantized."""
    check_operands(A_scale, A_zero_point, B_scale, B_zero_point, C_scale, C_zero_point)
    ratio_a, ratio_b = A_scale.reshape([]) / C_scale.reshape([]), B_scale.reshape([]) / C_scale.reshape([])
    total = centred(A, A_zero_point) * ratio_a + centred(B, B_zero_point) * ratio_b
    return rounded_with_zero_point(total, or_zero(C_zero_point, A))


@op("com.microsoft::QLinearMul", dtypes=ARITHMETIC, layout=Layout.ANY)
def qlinear_mul(
    A, A_scale, A_zero_point=None, B=None, B_scale=None, B_zero_point=None, C_scale=None, C_zero_point=None
):
    """The product of A and B, broadcast to each other, quantized."""
    check_operands(A_scale, A_zero_point, B_scale, B_zero_point, C_scale, C_zero_point)
    ratio = A_scale.reshape([]) * B_scale.reshape([]) / C_scale.reshape([])
    product = centred(A, A_zero_point) * centred(B, B_zero_point)
    return rounded_with_zero_point(product * ratio, or_zero(C_zero_point, A))


for _handler in (qlinear_add, qlinear_mul):
    require_inputs(_handler, "B", "B_scale", "C_scale")


def check_operands(*given: mx.array | None) -> None:
    names = ("A_scale", "A_zero_point", "B_scale", "B_zero_point", "C_scale", "C_zero_point")
    parameters(**dict(zip(names, given, strict=True)))


def unary(scale: str, zero_point: str, output: str) -> dict[str, frozenset[str]]:
    """The element types of an operator with one quantized input, whose parameters have these names."""
    floating = {name: frozenset({"float32"}) for name in (scale, f"{output}_scale")}
    return {**byte_types("X", zero_point, f"{output}_zero_point"), **floating}


@op("com.microsoft::QLinearLeakyRelu", dtypes=unary("X_scale", "X_zero_point", "Y"), layout=Layout.ANY)
def qlinear_leaky_relu(X, X_scale, X_zero_point=None, Y_scale=None, Y_zero_point=None, *, alpha=0.009999999776482582):
    """LeakyRelu of what X stands for, quantized."""
    parameters(X_scale=X_scale, X_zero_point=X_zero_point, Y_scale=Y_scale, Y_zero_point=Y_zero_point)
    y = leaky_relu(value_of(X, X_scale.reshape([]), X_zero_point), alpha=alpha)
    return saturated(y / Y_scale.reshape([]), or_zero(Y_zero_point, X))


@op("com.microsoft::QLinearSigmoid", dtypes=unary("X_scale", "X_zero_point", "Y"), layout=Layout.ANY)
def qlinear_sigmoid(X, X_scale, X_zero_point=None, Y_scale=None, Y_zero_point=None):
    """The sigmoid of what X stands for, quantized."""
    parameters(X_scale=X_scale, X_zero_point=X_zero_point, Y_scale=Y_scale, Y_zero_point=Y_zero_point)
    y = sigmoid(value_of(X, X_scale.reshape([]), X_zero_point))
    return saturated(y / Y_scale.reshape([]), or_zero(Y_zero_point, X))


@op("com.microsoft::QLinearSoftmax", dtypes=unary("X_scale", "x_zero_point", "y"))
def qlinear_softmax(X, X_scale, x_zero_point=None, y_scale=None, y_zero_point=None, *, opset, axis=-1):
    """Softmax of what X stands for, quantized: along `axis`, or for an `opset` before 13 over all axes from it on."""
    parameters(X_scale=X_scale, x_zero_point=x_zero_point, y_scale=y_scale, y_zero_point=y_zero_point)
    axis = counted(axis, X.ndim)
    value = value_of(X, X_scale.reshape([]), x_zero_point)
    if opset < 13:
        y = softmax(value.reshape(prod(X.shape[:axis]), prod(X.shape[axis:]))).reshape(X.shape)
    else:
        y = mx.moveaxis(softmax(mx.moveaxis(value, axis, -1)), -1, axis)
    return saturated(y / y_scale.reshape([]), y_zero_point.reshape([]))


@op("com.microsoft::QLinearAveragePool", dtypes=unary("x_scale", "x_zero_point", "y"))
def qlinear_average_pool(
    X,
    x_scale,
    x_zero_point=None,
    y_scale=None,
    y_zero_point=None,
    *,
    kernel_shape,
    auto_pad="NOTSET",
    ceil_mode=0,
    channels_last=0,
    count_include_pad=0,
    pads=None,
    strides=None,
):
    """AveragePool of what X stands for, quantized. X: (N, C, D1...Dn), or with channels_last (N, D1...Dn, C)."""
    parameters(x_scale=x_scale, x_zero_point=x_zero_point, y_scale=y_scale, y_zero_point=y_zero_point)
    image = X if channels_last else mx.moveaxis(X, 1, -1)
    place = windows(image.shape[1:-1], kernel_shape, strides, None, pads, auto_pad, ceil_mode)
    value = fitted(value_of(image, x_scale.reshape([]), x_zero_point), place.begins, place.spans)
    # Added up tap by tap, as by ONNX Runtime: with equal scales, many a mean lies just between two bytes.
    total = reduce(add, (value[(slice(None), *place.strided(tap))] for tap in place.taps))
    counts = mx.array(window_counts(place, bool(count_include_pad)).astype("float32"))[..., None]
    y = rounded_with_zero_point(total / counts / y_scale.reshape([]), or_zero(y_zero_point, X))
    return y if channels_last else channels_first(y)


for _handler in (qlinear_leaky_relu, qlinear_sigmoid):
    require_inputs(_handler, "Y_scale")
require_inputs(qlinear_softmax, "y_scale", "y_zero_point")
require_inputs(qlinear_average_pool, "y_scale")


@qlinear_average_pool.condition
def _(node: Node):
    rank = node.rank(0)
    claim_windows(node, None if rank is None else rank - 2)
    node.require(rank is None or rank > 2, "an image has axes beside batch and channels")


@op("com.microsoft::QLinearGlobalAveragePool", dtypes=unary("x_scale", "x_zero_point", "y"))
def qlinear_global_average_pool(X, x_scale, x_zero_point, y_scale, y_zero_point, *, channels_last=0):
    """GlobalAveragePool of what X stands for, quantized. X: (N, C, D1...Dn), or with channels_last (N, D1...Dn, C)."""
    parameters(x_scale=x_scale, x_zero_point=x_zero_point, y_scale=y_scale, y_zero_point=y_zero_point)
    axes = tuple(range(1, X.ndim - 1) if channels_last else range(2, X.ndim))
    pixels = prod(X.shape[axis] for axis in axes)
    if not pixels:
        raise ValueError(f"X of shape {list(X.shape)} has nothing to pool over")
    wide = X.astype(mx.int32) - x_zero_point.reshape([]).astype(mx.int32)
    total = mx.sum(wide, axes, keepdims=True).astype(mx.float32)
    ratio = x_scale.reshape([]) / (y_scale.reshape([]) * pixels)
    return saturated(total * ratio, y_zero_point.reshape([]))


qlinear_average_pool.condition(flags("ceil_mode", "channels_last", "count_include_pad"))
qlinear_global_average_pool.condition(flags("channels_last"))


@op(
    "com.microsoft::QLinearConcat",
    dtypes={"Y_scale": {"float32"}, "Y_zero_point": BYTES, "inputs": BYTES | {"float32"}},
)
def qlinear_concat(Y_scale, Y_zero_point, *inputs, axis):
    """Arrays in a row along `axis`, each with a scale and a zero point of its own, quantized with one."""
    parameters(Y_scale=Y_scale, Y_zero_point=Y_zero_point)
    shift = Y_zero_point.reshape([])

    def requantized(x, scale, zero_point):
        parameters(scale=scale, zero_point=zero_point)
        return saturated(value_of(x, scale.reshape([]), zero_point) / Y_scale.reshape([]), shift)

    parts = zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
    return mx.concatenate([requantized(*each) for each in parts], axis=axis)


@qlinear_concat.condition
def _(node: Node):
    node.require(
        len(node.inputs) > 2 and len(node.inputs) % 3 == 2, "inputs come in threes: x, its scale, its zero point"
    )
    for index, value in enumerate(node.inputs[2:]):
        wanted = {"float32"} if index % 3 == 1 else BYTES
        node.require(value is not None, f"input {index + 2} is absent")
        known = None if value is None else value.dtype
        node.require(known in {None, *wanted}, f"element type {known} of input {index + 2} is not supported")


@op(
    "com.microsoft::QLinearConv",
    dtypes={
        **byte_types("x", "x_zero_point", "w", "w_zero_point", "y_zero_point"),
        **{name: {"float32"} for name in ("x_scale", "w_scale", "y_scale")},
        "B": {"int32"},
    },
)
def qlinear_conv_either_way(
    ctx: Context,
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
    channels_last=0,
    dilations=None,
    group=1,
    kernel_shape=None,
    pads=None,
    strides=None,
):
    """QLinearConv, with channels_last of images (N, D1...Dn, C) to (N, O1...On, M); w is (M, C / group, k1...kn)."""
    place = {"auto_pad": auto_pad, "dilations": dilations, "kernel_shape": kernel_shape, "pads": pads}
    settings = {"group": group, "strides": strides, **place}
    image = channels_first(x) if channels_last else x
    quantized = (image, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B)
    y = qlinear_conv(ctx, *quantized, **settings)
    return mx.moveaxis(y, 1, -1) if channels_last else y


qlinear_conv_either_way.condition(lambda node: claim_convolution(node, 3))
qlinear_conv_either_way.condition(flags("channels_last"))


@op(
    "com.microsoft::MatMulIntegerToFloat",
    dtypes={
        **byte_types("A", "B", "a_zero_point", "b_zero_point"),
        **{n: SCALES for n in ("a_scale", "b_scale", "bias")},
    },
)
def mat_mul_integer_to_float(A, B, a_scale, b_scale, a_zero_point=None, b_zero_point=None, bias=None):
    """The product of what A and B stand for, + bias. The scale and zero point of A are scalars; those of B scalars, or
    go by column; bias: (N).
    """
    parameters(a_scale=a_scale, a_zero_point=a_zero_point)
    check_parameters(A, B, a_scale, b_scale, a_zero_point, b_zero_point)
    check_shape("bias", bias, B.shape[-1:])
    total = exact_product(centred(A, a_zero_point), centred(B, b_zero_point)).astype(mx.float32)
    y = total * (a_scale.astype(mx.float32).reshape([]) * b_scale.astype(mx.float32))
    return (y if bias is None else y + bias).astype(a_scale.dtype)


@op(
    "com.microsoft::DynamicQuantizeMatMul",
    dtypes={"A": {"float32"}, "B": BYTES, "b_scale": {"float32"}, "b_zero_point": BYTES, "bias": {"float32"}},
)
def dynamic_quantize_mat_mul(A, B, b_scale, b_zero_point=None, bias=None):
    """MatMulIntegerToFloat of A as DynamicQuantizeLinear makes it."""
    quantized, scale, zero_point = dynamic_quantize_linear(A)
    return mat_mul_integer_to_float(quantized, B, scale, b_scale, zero_point, b_zero_point, bias)
