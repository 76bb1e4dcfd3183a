"""Cases of operators that convert element types, quantize, and reckon with quantized numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from properties import Case, numpy_type
from strategies import Draws, cases

from opgraft.graph import Array
from opgraft.graph.element_types import BITS, FLOAT8, FLOATS, HELD, INTEGERS, NARROW, NUMBERS, ONNX_OF_NAME, PACKED

POWERS = "float8e8m0"
NARROW_INTEGERS = PACKED - {"float4e2m1"}


def castable(d: Draws, source: str, target: str) -> Array:
    """Values that can be cast: what an integer type does not hold is undefined for floats."""
    shape = d.shape(0, 3)
    if source == POWERS and target in NARROW_INTEGERS:
        return np.ones(shape, numpy_type(source))
    if target == POWERS or source == POWERS:
        return d.array(source, shape, "positive")
    if source in FLOATS and target in NARROW_INTEGERS:
        low, high = (0, 3) if target.startswith("u") else (-2, 1)
        # Thirds: how a half is rounded, ONNX does not say.
        return (d.whole(shape, 3 * low, 3 * high) / 3).astype(numpy_type(source))
    if source in FLOATS and target in INTEGERS:
        return np.abs(d.array(source, shape)) if target.startswith("u") else d.array(source, shape)
    if "float" in source and source not in FLOATS and target in INTEGERS | NARROW_INTEGERS:
        return np.ones(shape, numpy_type(source))
    if source not in NUMBERS:
        return d.array(source, shape)
    x = d.array(source, shape, "any")
    if target in NARROW and source in FLOATS:  # in which NaN has several codes, or none
        return np.where(np.isnan(x), 1, x).astype(x.dtype)
    return x


def targets(version: int) -> list[str]:
    """The element types that a version of Cast and CastLike knows."""
    schema = onnx.defs.get_schema("Cast", version, "")
    texts = {"float": "float32", "double": "float64"}
    names = (text.removeprefix("tensor(").removesuffix(")") for text in schema.outputs[0].types)
    found = {texts.get(name, name) for name in names} & HELD - {"complex64"}
    return ["float32", *sorted(found - {"float32"})]


@cases("Cast", "CastLike")
def cast(d: Draws) -> Case:
    target = d.pick(*targets(max(each for each in (1, 6, 9, 13, 19, 21, 23, 24, 25, 28) if each <= d.version)))
    source = d.dtype(among=HELD)
    x = castable(d, source, target)
    attributes: dict[str, Any] = d.some(saturate=d.integer(0, 1)) if target in FLOAT8 else {}
    if d.operator == "CastLike":
        return d.case(x, np.zeros(1, numpy_type(target)), attributes=attributes, widened=False)
    if d.version < 6:
        text = {"float32": "FLOAT", "float64": "DOUBLE"}.get(target, target.upper())
        expected = x.astype(np.float32) if source in ("float16", "bfloat16") else x
        return d.case(x, attributes={"to": text}, oracle=[expected.astype(numpy_type(target))], output_types=(target,))
    if target == POWERS:
        attributes |= d.some(round_mode=d.pick("up", "down", "nearest"))
    return d.case(x, attributes=attributes | {"to": ONNX_OF_NAME[target]}, widened=False)


@cases("BitCast")
def bit_cast(d: Draws) -> Case:
    source = d.dtype(among=HELD)
    target = d.pick(*sorted(name for name in HELD if BITS[name] == BITS[source]))
    if BITS[source] < 8:
        target = source
    x = d.array(source, d.shape(0, 3), "any")
    return d.case(x, attributes={"to": ONNX_OF_NAME[target]}, oracle=[x.view(numpy_type(target))], moves=True)


def grain(d: Draws, shape: Sequence[int]) -> tuple[tuple[int, ...], dict[str, int]]:
    """The shape of a scale: one number, one for each entry of an axis, or one for each block."""
    kinds = ("one", "axis", "blocks")[: 1 if not shape or d.version < 13 else 2 if d.version < 21 else 3]
    kind = d.pick(*kinds)
    if kind == "one":
        return d.pick((), (1,)), {}
    axis = d.axis(len(shape))
    attributes = {"axis": axis} if axis != 1 or d.flag() else {}
    if kind == "axis":
        return (shape[axis],), attributes
    size = d.integer(1, 3)
    scale = list(shape)
    scale[axis] = -(-shape[axis] // size)
    return tuple(scale), attributes | {"block_size": size}


@cases("QuantizeLinear")
def quantize(d: Draws) -> Case:
    shape = d.shape(0, 3, 1)
    dtype = d.dtype(among=NUMBERS if d.version >= 23 else NUMBERS - {"bfloat16"})  # in which ONNX divided, once
    sizes, attributes = grain(d, shape)
    x = d.array(dtype, shape) * np.array(d.pick(1, 16, 100), numpy_type(dtype))
    x = x.astype(numpy_type(dtype))
    scale = d.array(dtype if dtype in FLOATS else "float32", sizes, "positive")
    target = d.dtype(2, HELD)
    if (target != "uint8" and d.version < 21) or d.flag():
        zero = np.zeros(sizes, numpy_type(target)) if "float" in target else d.array(target, sizes, "moderate")
        return d.case(x, scale, zero, attributes=attributes, widened=False)
    if d.version >= 21:
        attributes |= d.some(output_dtype=ONNX_OF_NAME[target])
    if d.version >= 23 and d.flag():
        attributes["precision"] = ONNX_OF_NAME[dtype if dtype in FLOATS else "float32"]
    return d.case(x, scale, attributes=attributes, widened=False)


@cases("DequantizeLinear")
def dequantize(d: Draws) -> Case:
    shape = d.shape(0, 3, 1)
    dtype = d.dtype(among=HELD)
    sizes, attributes = grain(d, shape)
    scale = d.array(d.dtype(1, FLOATS), sizes, "positive")
    x = d.array(dtype, shape, "any")
    zero = None
    if d.flag():
        zero = np.zeros(sizes, x.dtype) if "float" in dtype or dtype == "int32" else d.array(dtype, sizes, "any")
    if d.version >= 23 and d.flag():
        attributes["output_dtype"] = ONNX_OF_NAME[scale.dtype.name]
    return d.case(x, scale, zero, attributes=attributes, widened=False)


@cases("DynamicQuantizeLinear")
def dynamic_quantize(d: Draws) -> Case:
    return d.case(d.array("float32", d.shape(0, 3, 1)), outputs=3)


@cases("MatMulInteger")
def mat_mul_integer(d: Draws) -> Case:
    rows, inner, columns = (d.size(1) for _ in range(3))
    one, other = d.broadcast_shapes(2, 1)
    a, b = d.array(d.dtype(0), (*one, rows, inner), "any"), d.array(d.dtype(1), (*other, inner, columns), "any")
    zero = d.array(a.dtype.name, d.pick((), (1,), (rows,)), "any") if d.flag() else None
    if zero is not None and zero.size > 1:  # which ONNX Runtime lacks
        wide = a.astype(np.int64) - zero.astype(np.int64)[:, None]
        return d.case(a, b, zero, oracle=[(wide @ b.astype(np.int64)).astype(np.int32)])
    zeros = d.array(b.dtype.name, d.pick((), (1,), (columns,)), "any") if d.flag() else None
    return d.case(a, b, zero, zeros)


@cases("QLinearMatMul")
def qlinear_mat_mul(d: Draws) -> Case:
    rows, inner, columns = (d.size(1) for _ in range(3))
    one, other = d.broadcast_shapes(2, 1)
    first = d.pick("uint8", "int8")
    second = d.pick("uint8", "int8") if first == "uint8" else "int8"
    a, b = d.array(first, (*one, rows, inner), "any"), d.array(second, (*other, inner, columns), "any")
    scale, coarse = (d.array("float32", d.pick((), (1,)), "positive") for _ in range(2))
    each = d.pick((), (1,), *([] if other else [(columns,)]))
    zero, last = (d.array(first, (), "any") for _ in range(2))
    scales, zeros = d.array("float32", each, "positive"), d.array(second, each, "any")
    return d.case(a, scale, zero, b, scales, zeros, coarse * np.float32(32), last)
