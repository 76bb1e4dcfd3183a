"""Arithmetic and other element-by-element operators."""

from __future__ import annotations

from functools import reduce
from math import inf
from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.ops import BOOL, FLOATS, INTEGERS, NUMBERS, SIGNED, Anywhere, Context, Layout, Node, op
from opgraft.ops.arrays import MLX_TYPE, element_type, to_device
from opgraft_ops import _functions
from opgraft_ops._folding import exponential, is_float, widened
from opgraft_ops._functions import in_float32
from opgraft_ops._sizes import flags
from opgraft_ops._table import laid_over, legacy_row, quiet, row
from opgraft_ops.cast import converted, converted_on_host

EXACT_IN_FLOAT32 = 2**24
"""Up to this magnitude, float32 holds every integer."""


def sign(x: mx.array) -> mx.array:
    """-1, 0 or 1; NaN for NaN."""
    return mx.where(mx.isnan(x), x, mx.sign(x)) if mx.issubdtype(x.dtype, mx.floating) else mx.sign(x)


# name, input, MLX's function, NumPy's, element types, what it computes
UNARY = (
    ("Abs", "X", mx.abs, np.abs, NUMBERS, "|X|. ONNX Abs-13."),
    ("Neg", "X", mx.negative, np.negative, FLOATS | SIGNED, "-X. ONNX Neg-13."),
    ("Sign", "input", sign, np.sign, NUMBERS, "The sign of input: -1, 0 or 1. ONNX Sign-13."),
    ("Reciprocal", "X", mx.reciprocal, np.reciprocal, FLOATS, "1 / X. ONNX Reciprocal-13."),
    ("Floor", "X", mx.floor, np.floor, FLOATS, "The greatest whole number up to X. ONNX Floor-13."),
    ("Ceil", "X", mx.ceil, np.ceil, FLOATS, "The least whole number from X on. ONNX Ceil-13."),
    ("Round", "X", mx.round, np.rint, FLOATS, "The nearest whole number, halves to even. ONNX Round-22."),
    ("Sqrt", "X", mx.sqrt, np.sqrt, FLOATS, "The square root of X. ONNX Sqrt-13."),
    ("Exp", "input", exponential, np.exp, FLOATS, "e to the power input. ONNX Exp-13."),
    ("Log", "input", mx.log, np.log, FLOATS, "The natural logarithm of input. ONNX Log-13."),
    ("Sin", "input", _functions.sin, np.sin, FLOATS, "The sine of input. ONNX Sin-22."),
    ("Cos", "input", _functions.cos, np.cos, FLOATS, "The cosine of input. ONNX Cos-22."),
    ("Tan", "input", mx.tan, np.tan, FLOATS, "The tangent of input. ONNX Tan-22."),
    ("Asin", "input", mx.arcsin, np.arcsin, FLOATS, "The arc sine of input. ONNX Asin-22."),
    ("Acos", "input", mx.arccos, np.arccos, FLOATS, "The arc cosine of input. ONNX Acos-22."),
    ("Atan", "input", mx.arctan, np.arctan, FLOATS, "The arc tangent of input. ONNX Atan-22."),
    ("Sinh", "input", mx.sinh, np.sinh, FLOATS, "The hyperbolic sine of input. ONNX Sinh-22."),
    ("Cosh", "input", mx.cosh, np.cosh, FLOATS, "The hyperbolic cosine of input. ONNX Cosh-22."),
    ("Tanh", "input", _functions.tanh, np.tanh, FLOATS, "The hyperbolic tangent of input. ONNX Tanh-13."),
    ("Asinh", "input", mx.arcsinh, np.arcsinh, FLOATS, "The inverse hyperbolic sine of input. ONNX Asinh-22."),
    ("Acosh", "input", mx.arccosh, np.arccosh, FLOATS, "The inverse hyperbolic cosine of input. ONNX Acosh-22."),
    ("Atanh", "input", mx.arctanh, np.arctanh, FLOATS, "The inverse hyperbolic tangent of input. ONNX Atanh-22."),
    ("Erf", "input", _functions.erf, None, FLOATS, "The error function of input. ONNX Erf-13."),
    ("IsNaN", "X", mx.isnan, np.isnan, FLOATS, "True where X is not a number. ONNX IsNaN-20."),
)  # fmt: skip

unary = [row(*each) for each in UNARY]


def magnitude(x: mx.array) -> mx.array:
    """|x| of integers, unsigned: so the least one has a magnitude too, and no division can overflow."""
    return mx.abs(x).astype(MLX_TYPE["u" + element_type(x).removeprefix("u")])


def quotient(A: mx.array, B: mx.array) -> mx.array:
    """A / B; integers toward zero."""
    if mx.issubdtype(A.dtype, mx.floating):
        return A / B
    if mx.issubdtype(A.dtype, mx.unsignedinteger):
        return A // B
    whole = (magnitude(A) // magnitude(B)).astype(A.dtype)
    return mx.where((A < 0) != (B < 0), -whole, whole)


def quotient_on_host(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    return A / B if A.dtype.kind == "f" else (A - np.fmod(A, B)) // divisor_on_host(B)


def divisor(ctx: Context) -> mx.array:
    """The second input, by which integers are divided: a zero in it is an error."""
    ctx.check(ctx.prepared(1, lambda B: B != 0), "integer division by zero")
    return to_device(ctx.inputs[1])


def divisor_on_host(B: np.ndarray) -> np.ndarray:
    if B.dtype.kind in "iu" and not B.all():
        raise ZeroDivisionError("integer division by zero")
    return B


# name, MLX's function, NumPy's, what it computes
ARITHMETIC = (
    ("Add", mx.add, np.add, "A + B, with broadcasting; integers wrap. ONNX Add-14."),
    ("Sub", mx.subtract, np.subtract, "A - B, with broadcasting; integers wrap. ONNX Sub-14."),
    ("Mul", mx.multiply, np.multiply, "A * B, with broadcasting; integers wrap. ONNX Mul-14."),
)

arithmetic = [row(name, "A B", *functions, NUMBERS, meaning, since=7) for name, *functions, meaning in ARITHMETIC]
legacy = [legacy_row(name, function, NUMBERS) for name, function, _, _ in ARITHMETIC]
legacy_divide = legacy_row("Div", quotient, FLOATS)
divide = row("Div", "A B", quotient, quotient_on_host, FLOATS, "A / B, with broadcasting. ONNX Div-14.", since=7)


@op("Div", since=7, dtypes=INTEGERS)
def divide_integers(ctx, A, B: Anywhere):
    """A / B toward zero, with broadcasting. ONNX Div-14."""
    return quotient(A, divisor(ctx))


divide_integers.host(quiet(quotient_on_host))


@op("Div", until=6, dtypes=INTEGERS)
def legacy_divide_integers(ctx, A, B, *, broadcast=0, axis=None, consumed_inputs=None):
    """A / B toward zero, with B laid over the dimensions of A from `axis` on. ONNX Div-6."""
    return quotient(A, laid_over(A, divisor(ctx), broadcast, axis))


legacy_divide_integers.condition(flags("broadcast"))


@op("Mod", since=10, dtypes=NUMBERS)
def mod(ctx, A, B: Anywhere, *, fmod=0):
    """What is left of A after division by B, with broadcasting: with the sign of A where fmod is 1, otherwise of B.
    ONNX Mod-28."""
    integer = mx.issubdtype(A.dtype, mx.integer)
    B = divisor(ctx) if integer else to_device(B)
    if not fmod and not mx.issubdtype(A.dtype, mx.signedinteger):
        return mx.remainder(A, B)
    rest = mx.remainder(magnitude(A), magnitude(B)).astype(A.dtype) if integer else mx.remainder(mx.abs(A), mx.abs(B))
    rest = mx.where(A < 0, -rest, rest)
    return rest if fmod else mx.where((rest != 0) & ((rest < 0) != (B < 0)), rest + B, rest)


@mod.host
@quiet
def _(A, B, *, fmod=0):
    return (np.fmod if fmod else np.remainder)(A, divisor_on_host(B))


mod.condition(flags("fmod"))


@mod.condition
def _(node: Node):
    allowed = node.attributes.get("fmod", 0) or node.since_version >= 28 or node.dtype(0) not in FLOATS
    node.require(allowed, "floats with fmod=0, which Mod has from version 28 on only")


@op("Pow", since=7, dtypes=NUMBERS, layout=Layout.ANY)
def power(X, Y: Anywhere):
    """X to the power Y, with broadcasting, in the element type of X. ONNX Pow-15."""
    if mx.issubdtype(X.dtype, mx.integer):
        with mx.stream(mx.cpu):  # which alone has float64
            return integer_power(mx, X, to_device(Y))
    base = widened(X)
    if Y.size == 1 and Y.ndim <= X.ndim and isinstance(Y, np.ndarray) and Y.item() in (2, 3):
        square = base * base
        result = square if Y.item() == 2 else square * base
    elif X.dtype == mx.float64 or not fits_float32(Y):
        result = power_in_float64(base, to_device(Y))
    else:
        result = mx.power(base, to_device(Y).astype(mx.float32))
    return result.astype(X.dtype)


def fits_float32(exponent: mx.array | np.ndarray) -> bool:
    """True where float32 holds every element of an exponent, by its type or, where they are known, by their values."""
    name = element_type(exponent)
    if isinstance(exponent, np.ndarray) and name in INTEGERS:
        return bool(np.all(np.abs(exponent.astype(float)) <= EXACT_IN_FLOAT32))
    return name not in ("float64", "int32", "int64", "uint32", "uint64")


def power_in_float64(X: mx.array, Y: mx.array) -> mx.array:
    """X to the power Y, reckoned in float64, which MLX has on the CPU only."""
    with mx.stream(mx.cpu):
        return mx.power(X.astype(mx.float64), Y.astype(mx.float64)).astype(X.dtype)


def integer_power(library: Any, X: Any, Y: Any) -> Any:
    """Integers to a power, in terms of a library, NumPy or MLX: cut off, exact where Y is of integers, and the least
    integer where the result is too large. Squares and cubes, where Y is one number, wrap. So does ONNX Runtime's CPU
    provider, less exactly."""
    name = element_type(X)
    rough = library.power(X.astype(library.float64), Y.astype(library.float64))
    whole = ((Y == 2) | (Y == 3)) & (Y.size == 1)
    if element_type(Y) in INTEGERS:
        whole = whole | (Y >= 0) & (Y < 64) & (library.abs(rough) < 2.0 ** (8 * np.dtype(name).itemsize - 1))
    exact = library.power(X.astype(library.int64), library.where(whole, Y, 0).astype(library.int64))
    cut = converted(rough, name) if library is mx else converted_on_host(rough, name)
    return library.where(whole, exact.astype(X.dtype), cut)


@power.host
@quiet
def _(X, Y):
    if X.dtype.kind == "f":
        wide = np.float64 if X.dtype == np.float64 or not fits_float32(Y) else np.float32
        return np.power(X.astype(wide), Y.astype(wide)).astype(X.dtype)
    return integer_power(np, X, Y)


legacy_power = legacy_row("Pow", power.function, FLOATS)


@op("Max", dtypes=NUMBERS, layout=Layout.ANY)
def maximum(*data_0):
    """The greatest of the inputs, with broadcasting; NaN where one is NaN. ONNX Max-13."""
    return reduce(mx.maximum, data_0)


@op("Min", dtypes=NUMBERS, layout=Layout.ANY)
def minimum(*data_0):
    """The least of the inputs, with broadcasting; NaN where one is NaN. ONNX Min-13."""
    return reduce(mx.minimum, data_0)


@op("Sum", dtypes=FLOATS, layout=Layout.ANY)
@in_float32
def total(*data_0):
    """The sum of the inputs, with broadcasting. ONNX Sum-13."""
    return reduce(mx.add, data_0)


@op("Mean", dtypes=FLOATS, layout=Layout.ANY)
@in_float32
def mean(*data_0):
    """The mean of the inputs, with broadcasting. ONNX Mean-13."""
    return reduce(mx.add, data_0) / len(data_0)


maximum.host(lambda *data_0: reduce(np.maximum, data_0))
minimum.host(lambda *data_0: reduce(np.minimum, data_0))
total.host(quiet(lambda *data_0: reduce(np.add, data_0)))
mean.host(quiet(lambda *data_0: reduce(np.add, data_0) / len(data_0)))


@op("Clip", since=6, until=10, dtypes=FLOATS, layout=Layout.ANY)
def clip_to_attributes(input, *, min=-3.4028234663852886e38, max=3.4028234663852886e38):
    """input with what is below min or above max replaced by it. ONNX Clip-6."""
    return mx.clip(input, min, max)


@op("Clip", since=11, dtypes=NUMBERS, layout=Layout.ANY)
def clip(ctx, input, min=None, max=None):
    """input with what is below min or above max replaced by it; max wins. A bound that is NaN bounds nothing.
    Infinities are clipped to the largest finite floats where a bound is absent. ONNX Clip-13."""
    low = None if min is None else ctx.prepared(1, lambda bound: one_number(bound, -inf))
    high = None if max is None else ctx.prepared(2, lambda bound: one_number(bound, inf))
    if mx.issubdtype(input.dtype, mx.floating):
        limits = mx.finfo(input.dtype)
        return mx.clip(input, limits.min if low is None else low, limits.max if high is None else high)
    if low is not None:
        input = mx.maximum(input, low)
    return input if high is None else mx.minimum(input, high)


def one_number(bound: mx.array, instead: float) -> mx.array:
    """A bound as a scalar; `instead` where it is NaN."""
    if bound.shape not in ((), (1,)):
        raise ValueError(f"a bound of shape {list(bound.shape)} is not one number")
    bound = bound.reshape([])
    return mx.where(mx.isnan(bound), mx.array(instead, bound.dtype), bound) if is_float(bound) else bound


@clip_to_attributes.host
@quiet
def _(input, *, min=-3.4028234663852886e38, max=3.4028234663852886e38):
    return np.clip(input, input.dtype.type(min), input.dtype.type(max))


@clip_to_attributes.condition
def _(node: Node):
    low, high = (node.attributes.get(name, limit) for name, limit in (("min", -inf), ("max", inf)))
    node.require(low <= high, f"min {low} is not less than max {high}")


@clip.host
def _(input, min=None, max=None):
    limits = np.finfo(input.dtype) if input.dtype.kind == "f" else np.iinfo(input.dtype)
    low = limits.min if min is None else -inf if np.isnan(min.item()) else min.item()
    high = limits.max if max is None else inf if np.isnan(max.item()) else max.item()
    return np.minimum(np.maximum(input, low), high)


@op("IsInf", since=10, dtypes=FLOATS, layout=Layout.ANY)
def is_infinite(X, *, detect_negative=1, detect_positive=1):
    """True where X is infinite, of the signs asked for. ONNX IsInf-20."""
    if detect_negative and detect_positive:
        return mx.isinf(X)
    if detect_negative or detect_positive:
        return mx.isposinf(X) if detect_positive else mx.isneginf(X)
    return mx.zeros(X.shape, mx.bool_)


is_infinite.condition(flags("detect_negative", "detect_positive"))


@op("Where", since=9, dtypes={"condition": BOOL}, layout=Layout.ANY)
def where(condition, X, Y):
    """X where condition holds, otherwise Y, with broadcasting. ONNX Where-16."""
    return mx.where(condition, X, Y)


where.host(np.where)
