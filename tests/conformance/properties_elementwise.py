"""Cases of element-by-element operators: arithmetic, comparison, logic, activation functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from properties import Case, numpy_type
from strategies import Draws, cases

from opgraft.graph import Array
from opgraft.graph.element_types import FLOATS, HELD, INTEGERS

# Of each, the kind of values, and the attributes that a node may have.
UNARY = {
    **dict.fromkeys(("Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "IsNaN", "Reciprocal", "Sqrt", "Log"), "any"),
    **dict.fromkeys(("Exp", "Erf", "Sigmoid", "Tanh", "Softplus", "Softsign", "Relu", "Mish", "HardSwish"), "any"),
    **dict.fromkeys(("Sin", "Cos", "Tan", "Asin", "Acos", "Atan"), "any"),
    **dict.fromkeys(("Sinh", "Cosh", "Asinh", "Acosh", "Atanh"), "any"),
    **dict.fromkeys(("Not", "BitwiseNot"), "any"),
}


BY_FLOAT32 = dict.fromkeys(("Erf", "HardSwish", "Gelu", "Shrink"), 1e-7)
"""Those that the oracle reckons in float32, or with constants of float32, and the tolerance for float64."""


def elementwise(d: Draws, x: Array, **attributes: Any) -> Case:
    return d.case(
        x,
        attributes=attributes,
        elementwise=True,
        tolerance=BY_FLOAT32.get(d.operator) if x.dtype == np.float64 else None,
    )


@cases(*UNARY)
def unary(d: Draws) -> Case:
    return elementwise(d, d.array(d.dtype(), d.shape(), UNARY[d.operator]))


PARAMETERS = {
    "LeakyRelu": {"alpha": (0, 2)},
    "ThresholdedRelu": {"alpha": (-1, 3)},
    "HardSigmoid": {"alpha": (0, 1), "beta": (-1, 1)},
    "Elu": {"alpha": (0, 2)},
    "Selu": {"alpha": (0, 2), "gamma": (1, 2)},
    "Celu": {"alpha": (0.125, 2)},
    "Swish": {"alpha": (-2, 2)},
    "Shrink": {"bias": (-2, 2), "lambd": (0, 2)},
}


@cases(*PARAMETERS)
def parametrized(d: Draws) -> Case:
    attributes = d.some(**{name: d.number(*ends) for name, ends in PARAMETERS[d.operator].items()})
    return elementwise(d, d.array(d.dtype(), d.shape(), "any"), **attributes)


@cases("Gelu")
def gelu(d: Draws) -> Case:
    return elementwise(d, d.array(d.dtype(), d.shape(), "any"), **d.some(approximate=d.pick("none", "tanh")))


@cases("IsInf")
def is_infinite(d: Draws) -> Case:
    attributes = d.some(detect_negative=d.integer(0, 1), detect_positive=d.integer(0, 1))
    return d.case(d.array(d.dtype(), d.shape(), "any"), attributes=attributes)


@cases("SwiGLU")
def swiglu(d: Draws) -> Case:
    dtype, shape = d.dtype(), d.shape()
    arrays = [d.array(dtype, shape) for _ in range(2)]
    return d.case(*arrays, attributes=d.some(alpha=d.number(-2, 2)))


@cases("PRelu")
def prelu(d: Draws) -> Case:
    dtype = d.dtype()
    shape = d.shape(0 if d.version >= 7 else 2, 4)
    slope = d.broadcast_part(shape) if d.version >= 7 else d.pick((1,), shape[1:2])
    x, slope = d.array(dtype, shape, "any"), d.array(dtype, slope)
    if d.version >= 7:
        return d.case(x, slope, elementwise=True)
    column = slope.reshape(-1, *[1] * (x.ndim - 2))
    return d.case(x, slope, elementwise=True, oracle=[np.where(x < 0, column * x, x).astype(x.dtype)])


def truncated(a, b):
    """a / b of integers, toward zero, exactly; what does not fit wraps."""
    quotient = [abs(int(x)) // abs(int(y)) * (1 if (x < 0) == (y < 0) else -1) for x, y in np.broadcast(a, b)]
    return wrapped(quotient, a.dtype, np.broadcast(a, b).shape)


def wrapped(numbers, dtype, shape):
    bits = 8 * dtype.itemsize
    unsigned = np.array([each % 2**bits for each in numbers], np.uint64)
    return unsigned.astype(f"u{dtype.itemsize}").view(dtype).reshape(shape)


def remainder(a, b):
    return wrapped([int(x) % int(y) for x, y in np.broadcast(a, b)], a.dtype, np.broadcast(a, b).shape)


def signed_remainder(a, b):
    with np.errstate(all="ignore"):
        return np.fmod(a, b)


ANSWERS = {"Equal", "Less", "Greater", "And", "Or", "Xor"}
"""Those of booleans that have versions before 7, which broadcast B alone."""


@cases("Add", "Sub", "Mul", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Xor")
def binary(d: Draws) -> Case:
    if d.version < 7:
        return legacy(d)
    dtype, kind = d.dtype(), d.pick("any", "whole")  # in the latter, equal ones meet
    return d.case(*(d.array(dtype, shape, kind) for shape in d.broadcast_shapes(2)), elementwise=True)


def legacy(d: Draws) -> Case:
    """B is laid over A from an axis on, by default the last ones."""
    dtype, shape = d.dtype(), d.shape(1, 4)
    first = d.integer(0, len(shape))
    last = d.pick(len(shape), d.integer(first, len(shape)))
    a, b = d.array(dtype, shape, "any"), d.array(dtype, shape[first:last], "any")
    attributes = {"broadcast": 1}
    if last < len(shape) or d.flag():
        attributes["axis"] = d.pick(first, first - len(shape)) if first < len(shape) else first
    if first == 0 and last == len(shape) and d.flag():
        attributes = {}
    whole = d.operator == "Div" and dtype in INTEGERS
    b = np.where(b == 0, 1, b).astype(b.dtype) if whole else b
    laid = b.reshape((*b.shape, *[1] * (len(shape) - last)))
    types = ("bool" if d.operator in ANSWERS else dtype,)
    oracle = [truncated(a, laid)] if whole else Case(d.operator, (a, laid), 21, output_types=types)
    return d.case(a, b, attributes=attributes, oracle=oracle, output_types=types, elementwise=True)


@cases("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bitwise(d: Draws) -> Case:
    dtype = d.dtype()
    return d.case(*(d.array(dtype, shape, "any") for shape in d.broadcast_shapes(2)))


@cases("BitShift")
def bit_shift(d: Draws) -> Case:
    dtype = d.dtype()
    one, other = d.broadcast_shapes(2)
    x, bits = d.array(dtype, one, "any"), 8 * numpy_type(dtype).itemsize
    direction = d.pick("LEFT", "RIGHT")
    if d.version < 28 or d.flag():
        return d.case(x, d.whole(other, 0, bits - 1, dtype), attributes={"direction": direction})
    y = d.array(dtype, other, "any")  # what shifts by other numbers give, version 28 says
    pairs = [(int(number), int(place) if 0 <= place < bits else bits) for number, place in np.broadcast(x, y)]
    shifted = [number << place if direction == "LEFT" else number >> place for number, place in pairs]
    expected = wrapped(shifted, x.dtype, np.broadcast(x, y).shape)
    return d.case(x, y, attributes={"direction": direction}, oracle=[expected])


@cases("Div", "Mod")
def division(d: Draws) -> Case:
    if d.version < 7:
        return legacy(d)
    dtype = d.dtype()
    attributes = d.some(fmod=d.integer(0, 1)) if d.operator == "Mod" else {}
    if dtype in FLOATS and d.operator == "Mod" and d.version < 28:
        attributes = {"fmod": 1}
    a, b = (d.array(dtype, shape, "any") for shape in d.broadcast_shapes(2))
    if dtype not in INTEGERS:
        return d.case(a, b, attributes=attributes, elementwise=True)
    if d.rarely() and not b.all():  # which ends the process where ONNX Runtime divides
        return d.case(a, b, attributes=attributes)
    b = np.where(b == 0, 1, b).astype(b.dtype)
    function = truncated if d.operator == "Div" else signed_remainder if attributes.get("fmod") else remainder
    return d.case(a, b, attributes=attributes, oracle=[function(a, b)])


@cases("Pow")
def power(d: Draws) -> Case:
    if d.version < 7:
        return legacy(d)
    one, other = d.broadcast_shapes(2)
    base = d.dtype()
    exponent = d.dtype(1) if d.version >= 12 else base
    x = d.array(base, one, "any" if base in FLOATS else "moderate")
    y = d.array(exponent, other, d.pick("whole", "any") if exponent in FLOATS else "moderate")
    case = d.case(x, y, elementwise=True)
    if exponent in INTEGERS - {"int32", "int64"}:  # for which the oracle has no kernel
        return replace(case, oracle=replace(case, inputs=(x, y.astype(np.int64))))
    return case


@cases("Max", "Min", "Sum", "Mean")
def variadic(d: Draws) -> Case:
    dtype, count = d.dtype(), d.integer(1, 4)
    shapes = d.broadcast_shapes(count) if d.version >= 8 else [d.shape()] * count
    kind = "any" if d.operator in ("Max", "Min") else "moderate"
    return d.case(*(d.array(dtype, shape, kind) for shape in shapes))


@cases("Clip")
def clip(d: Draws) -> Case:
    dtype = d.dtype()
    # What is infinite the oracle clips only where it has a kernel.
    since = {"float16": 13, "float64": 12, "bfloat16": 99}.get(dtype, 0)
    kind = "any" if d.version >= since else "finite"
    x = d.array(dtype, d.shape(), kind)
    if d.version < 11:
        low = d.number(-4, 4)
        return d.case(x, attributes=d.some(min=low, max=low + d.number(0, 4)))
    bounds = [d.array(dtype, (), d.pick("moderate", kind)) if d.flag() else None for _ in range(2)]
    return d.case(x, *bounds, widened=dtype == "bfloat16")


@cases("Where")
def where(d: Draws) -> Case:
    dtype = d.dtype(1, HELD)
    condition, x, y = d.broadcast_shapes(3)
    arrays = d.array("bool", condition), d.array(dtype, x, "any"), d.array(dtype, y, "any")
    return d.case(*arrays, moves=True, oracle=[np.where(*arrays)])  # ONNX Runtime makes 0 of -0


@cases("Dropout")
def dropout(d: Draws) -> Case:
    x = d.array(d.dtype(), d.shape(), "moderate")
    if d.version < 12:  # ONNX Runtime's mask says that everything is dropped
        oracle = [x, np.ones_like(x, dtype=bool if d.version >= 10 else x.dtype)][: d.integer(1, 2)]
        return d.case(x, attributes=d.some(ratio=d.number(0, 1)), outputs=len(oracle), oracle=oracle)
    ratio = d.pick(None, np.array(d.pick(0.5, 0, 0.25, 0.875), numpy_type(d.dtype(1))))
    training = d.pick(None, np.array(False), np.array(True))
    case = d.case(x, ratio, training, outputs=2, attributes=d.some(seed=d.integer(0, 5)))
    share = 0.5 if ratio is None else float(ratio)
    if training is None or not training or share == 0:
        return case

    def drops(run):
        y, mask = run()
        assert y.shape == mask.shape == x.shape
        assert mask.dtype == np.bool_
        scaled = (x.astype(np.float64) / (1 - share)).astype(x.dtype).astype(y.dtype)
        np.testing.assert_allclose(y, np.where(mask, scaled, 0), rtol=1e-2 if x.itemsize == 2 else 1e-6)
        again = run()
        if "seed" in case.attributes:
            np.testing.assert_array_equal(again[1], mask)

    return replace(case, oracle=drops)
