"""Element type conversions, against ONNX Runtime and NumPy."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper

from opgraft.graph.element_types import ONNX_OF_NAME
from opgraft.ops import INTEGERS
from opgraft.testing import check_declined, check_model, check_node
from opgraft_ops.cast import cast_between

FLOATS = ("float16", "float32", "float64")
TYPES = (*FLOATS, *sorted(INTEGERS), "bool")
FLOAT_VALUES = np.array(
    [
        0,
        -0.0,
        0.4,
        0.5,
        -0.9,
        1.5,
        -1.5,
        2.5,
        100.99,
        -100.99,
        2049.0,
        1 + 2**-11,
        1 + 3 * 2**-11,
        6e-8,
        65519.9,
        65520.0,
    ]
)
INTEGER_VALUES = np.array(
    [0, 1, -1, 127, 128, 255, 256, -129, 2049, 65520, -65519, 2**24 + 1, 2**31, 2**53 + 3, -(2**63)]
)


def values_of(source: str, target: str) -> np.ndarray:
    """Values whose conversion ONNX defines: floats must fit into an integer type."""
    if source == "bool":
        return np.array([True, False])
    if source in INTEGERS:
        return INTEGER_VALUES.astype(source)
    with np.errstate(over="ignore"):
        values = FLOAT_VALUES.astype(source)
    if target in INTEGERS:
        limits = np.iinfo(target)
        exact = values.astype(np.float64)
        return values[(exact >= min(limits.min, 0)) & (exact <= limits.max)]
    return np.concatenate([values, np.array([math.nan, math.inf, -math.inf], source)])


@pytest.mark.parametrize("target", TYPES)
@pytest.mark.parametrize("source", TYPES)
def test_cast(source, target):
    check_node("Cast", values_of(source, target), to=ONNX_OF_NAME[target], tolerance=0)


@pytest.mark.parametrize("target", sorted(INTEGERS - {"uint32", "uint64"}))
@pytest.mark.parametrize("source", FLOATS)
def test_floats_that_do_not_fit_wrap_as_in_onnx_runtime(source, target):
    values = np.array([-1.5, 127.6, 128.5, 200.7, 255.9, 256.0, 300.4, -129.0, 40000.5, 65000.0, -40000.0], source)
    check_node("Cast", values, to=ONNX_OF_NAME[target])


@given(st.sampled_from(TYPES), st.data())
def test_host_form(target, data):
    source = data.draw(st.sampled_from(TYPES))
    elements = {"min_value": -100, "max_value": 100} if source in FLOATS and target in INTEGERS else {}
    if source in FLOATS and target.startswith("u"):
        elements["min_value"] = 0
    x = data.draw(hnp.arrays(source, hnp.array_shapes(max_dims=2, max_side=3), elements=elements or None))
    expected = cast_between(x, source, target)
    check_node("Cast", x, to=ONNX_OF_NAME[target], reference=[expected])
    check_node("CastLike", x, np.zeros(1, target), reference=[expected])


@pytest.mark.parametrize("opset", [6, 9, 13, 19, 21, 23, 24])
def test_versions(opset):
    check_node("Cast", np.array([[1.7, -2.2]], np.float32), to=TensorProto.INT32, opset=opset)


def test_first_version_names_its_target():
    for name, dtype in (("FLOAT", np.float32), ("DOUBLE", np.float64), ("INT64", np.int64), ("BOOL", np.bool_)):
        x = np.array([1, 0], np.int32)
        check_node("Cast", x, to=name, opset=1, reference=[x.astype(dtype)], output_types=[np.dtype(dtype).name])


def test_bfloat16_rounds_to_nearest_even():
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 3.4e38, math.nan, math.inf, -1e-40, 0.1], np.float32)
    check_node("Cast", x, to=TensorProto.BFLOAT16, reference=[x.astype(ml_dtypes.bfloat16)], tolerance=0)
    back = x.astype(ml_dtypes.bfloat16)
    check_node("Cast", back, to=TensorProto.FLOAT, reference=[back.astype(np.float32)], tolerance=0)
    small = back[np.abs(back.astype(np.float32)) < 2]
    check_node("Cast", small, to=TensorProto.INT64, reference=[small.astype(np.int64)])
    check_node("Cast", back, to=TensorProto.BOOL, reference=[back.astype(np.float32).astype(bool)])


def test_shape_to_bfloat16_and_back():
    """Values that are known on the host leave it for a type that NumPy lacks."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["rounded"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["rounded"], ["y"], to=TensorProto.FLOAT),
    ]
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])]
    infos.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1]))
    graph = helper.make_graph(nodes, "shapes", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    check_model(model, {"x": np.zeros(259, np.float32)}, reference=[np.array([260], np.float32)])


@pytest.mark.parametrize("shape", [(), (0, 2), (1, 2, 1)])
def test_shapes(shape):
    check_node("Cast", np.ones(shape, np.float32), to=TensorProto.INT8)
    check_node("CastLike", np.ones(shape, np.float32), np.zeros((2, 2), np.int8), opset=19)


def test_types_that_nothing_holds_are_declined():
    check_declined("Cast", np.ones(2, np.float32), to=TensorProto.STRING, because="element type")
    check_declined("Cast", np.ones(2, np.float32), to=TensorProto.COMPLEX128, because="element type")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("float32", "int32"),
        ("int64", "float64"),
        ("float16", "uint16"),
        ("int8", "uint8"),
        ("uint64", "int64"),
        ("bool", "uint8"),
        ("float32", "float32"),
        ("complex64", "int64"),
    ],
)
@pytest.mark.parametrize("shape", [(3,), (), (0, 2)])
def test_bit_cast(source, target, shape):
    x = np.resize(np.array([1, 0, 5]).astype(source), shape)
    check_node("BitCast", x, to=ONNX_OF_NAME[target], opset=26, reference=[x.view(target)], tolerance=0)


def test_bit_cast_of_bfloat16():
    x = np.array([1.5, -2.0, math.nan], ml_dtypes.bfloat16)
    check_node("BitCast", x, to=TensorProto.INT16, opset=26, reference=[x.view(np.int16)])
    check_node("BitCast", x.view(np.int16), to=TensorProto.BFLOAT16, opset=26, reference=[x], tolerance=0)


def test_bit_cast_declines():
    check_declined("BitCast", np.ones(2, np.float32), to=TensorProto.INT64, opset=26, because="width")
    check_declined("BitCast", np.ones(2, np.uint8), to=TensorProto.COMPLEX128, opset=26, because="element type")
