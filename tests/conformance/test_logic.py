"""Comparison, logic and bitwise operators, against NumPy, exact integer arithmetic and ONNX Runtime."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from opgraft.ops import INTEGERS
from opgraft.testing import check_declined, check_node

COMPARISONS = {
    "Equal": np.equal,
    "Less": np.less,
    "Greater": np.greater,
    "LessOrEqual": np.less_equal,
    "GreaterOrEqual": np.greater_equal,
}
LOGIC = {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}


@pytest.mark.parametrize("operator", COMPARISONS)
def test_comparisons_of_special_floats(operator):
    values = np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 1.00390625])
    for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16):
        a, b = values.astype(dtype), values.astype(dtype)[:, None]
        check_node(operator, a, b, reference=[COMPARISONS[operator](a.astype(np.float64), b.astype(np.float64))])
    check_node(operator, values.astype(np.float32), values.astype(np.float32)[:, None])


@pytest.mark.parametrize(
    ("operator", "opsets"),
    [
        ("Equal", (7, 11, 13, 19)),
        ("Less", (9, 13)),
        ("Greater", (9, 13)),
        ("LessOrEqual", (12, 16)),
        ("GreaterOrEqual", (12, 16)),
    ],
)
def test_comparison_versions(operator, opsets):
    for opset in opsets:
        check_node(operator, np.array([[1], [2]]), np.array([2, 1, 0]), opset=opset)


def test_unsigned_comparison_beyond_int64():
    a, b = (
        np.array([2**63 + 5, 2**64 - 1, 3, 2**53 + 1], np.uint64),
        np.array([2**63 + 4, 1, 2**64 - 1, 2**53], np.uint64),
    )
    for operator, function in COMPARISONS.items():
        check_node(operator, a, b, reference=[function(a, b)])


def test_equal_on_booleans():
    check_node("Equal", np.array([[True], [False]]), np.array([True, False]))


def test_equal_on_strings_is_declined():
    check_declined("Equal", np.array(["a"]), np.array(["b"]), because="string", opset=19)


@pytest.mark.parametrize("values", [np.array(True), np.array([True, False]), np.zeros((0, 2), bool)])
def test_not(values):
    check_node("Not", values)


@pytest.mark.parametrize("dtype", sorted(INTEGERS))
def test_bitwise_not(dtype):
    limits = np.iinfo(dtype)
    check_node("BitwiseNot", np.array([0, 1, limits.max, limits.min], dtype))


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_shift_of_unsigned(dtype, direction):
    bits = np.dtype(dtype).itemsize * 8
    values = np.array([1, 2, 5, np.iinfo(dtype).max], dtype)[:, None]
    places = np.array([0, 1, 3, bits - 1, bits, bits + 1], dtype)
    exact = [[int(x) << int(y) if direction == "LEFT" else int(x) >> int(y) for y in places] for x in values[:, 0]]
    expected = np.array([[each & (2**bits - 1) for each in line] for line in exact], dtype)
    check_node("BitShift", values, places, opset=11, direction=direction, reference=[expected])
    check_node("BitShift", values, places[:4], opset=28, direction=direction, reference=[expected[:, :4]])


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_shift_of_signed(dtype):
    bits = np.dtype(dtype).itemsize * 8
    values = np.array([1, -1, -6, np.iinfo(dtype).min], dtype)[:, None]
    places = np.array([0, 1, bits - 1, bits, -1], dtype)
    left = [[v, 2 * v, -(2 ** (bits - 1)) if v % 2 else 0, 0, 0] for v in (1, -1, -6)] + [
        [-(2 ** (bits - 1)), 0, 0, 0, 0]
    ]
    right = [[v, v >> 1, v >> bits, v >> bits, v >> bits] for v in (1, -1, -6, -(2 ** (bits - 1)))]
    check_node("BitShift", values, places, opset=28, direction="LEFT", reference=[np.array(left, dtype)])
    check_node("BitShift", values, places, opset=28, direction="RIGHT", reference=[np.array(right, dtype)])


@pytest.mark.parametrize("operator", ["And", "Or", "Xor", "Equal"])
def test_legacy_broadcasting(operator):
    a, b = np.indices((2, 3, 4)).sum(0) % 2 == 0, np.array([True, False, False])
    expected = (LOGIC | COMPARISONS)[operator](a, b[:, None])
    check_node(operator, a, b, opset=6, broadcast=1, axis=1, reference=[expected], output_types=["bool"])
