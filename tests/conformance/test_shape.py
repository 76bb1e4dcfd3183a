"""Operators that read or change shapes, against ONNX Runtime's CPU provider."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kit import check_refused

from opgraft.engine import Program
from opgraft.errors import TranslationError
from opgraft.graph import Node, Value
from opgraft.graph.onnx_source import graph_of_model
from opgraft.ops import Context
from opgraft.plan import build_plan
from opgraft.registry import load_registry
from opgraft.testing import check_declined, check_model, check_node
from opgraft_ops import shape as handlers

DTYPES = ("bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64")
INPUT = np.arange(12, dtype=np.float32).reshape(1, 3, 1, 4)


def ints(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("opset", [1, 13, 15, 21, 23])
@pytest.mark.parametrize("array", [np.float32(3), INPUT, np.zeros((0, 5), np.int8)])
@pytest.mark.parametrize("operator", ["Shape", "Size"])
def test_shape_and_size(operator, array, opset):
    reference = "cpu" if opset > 6 else [np.array(np.shape(array) if operator == "Shape" else np.size(array), np.int64)]
    check_node(operator, np.asarray(array), opset=opset, reference=reference)


@pytest.mark.parametrize("bounds", [{}, {"start": 1}, {"end": -1}, {"start": -2, "end": 9}, {"start": -9, "end": 2}])
@pytest.mark.parametrize("dynamic", [False, True])
def test_part_of_a_shape(bounds, dynamic):
    check_node("Shape", INPUT, dynamic=dynamic, **bounds)


def test_empty_part_of_a_shape():
    check_node("Shape", INPUT, reference=[ints()], start=3, end=1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_identity(dtype):
    check_node("Identity", INPUT.astype(dtype))
    check_node("Identity", np.asarray(1, dtype), opset=13)


def test_identity_of_a_small_bfloat16_constant_keeps_its_type():
    constant = onnx.helper.make_tensor("x", onnx.TensorProto.BFLOAT16, [2], [1.0, 2.0])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.BFLOAT16, [2])
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "constant", [], [result], [constant]))
    (output,) = Program(build_plan(graph_of_model(model)), load_registry(), "cpu").run([])
    assert output.dtype == mx.bfloat16 and output.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "target", [(12,), (-1,), (0, -1), (3, 4), (2, -1, 1, 2), (0, 0, 0, 4), (1, 0, -1), (1, 1, 1, 12, 1)]
)
@pytest.mark.parametrize("opset", [5, 13, 14, 21])
def test_reshape(target, opset):
    check_node("Reshape", INPUT, ints(*target), opset=opset, reference="cpu" if opset > 6 else [_reshaped(target)])


def _reshaped(target):
    return INPUT.reshape([INPUT.shape[axis] if size == 0 else size for axis, size in enumerate(target)])


def test_reshape_by_attribute():
    check_node("Reshape", INPUT, opset=1, shape=[0, -1], reference=[INPUT.reshape(1, 12)])


@pytest.mark.parametrize("constant", [(), (1,)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_reshape_by_a_constant_or_a_run_time_shape(constant, dynamic):
    check_node("Reshape", INPUT, ints(3, -1), constant=constant, dynamic=dynamic)


@pytest.mark.parametrize("dtype", DTYPES)
def test_reshape_to_a_scalar_and_back(dtype):
    check_node("Reshape", np.ones((1, 1), dtype), ints())
    check_node("Reshape", np.asarray(1, dtype), ints(1, -1))


def test_reshape_of_nothing():
    empty = np.zeros((0, 3), np.float32)
    check_node("Reshape", empty, ints(3, 0), allowzero=1)
    check_node("Reshape", empty, ints(-1, 3))
    check_node("Reshape", empty, ints(0, 1, 3))


@pytest.mark.parametrize("axis", [0, 1, 3, 4, -1, -4])
@pytest.mark.parametrize("opset", [9, 11, 13, 21])
def test_flatten(axis, opset):
    if axis >= 0 or opset >= 11:
        check_node("Flatten", INPUT, axis=axis, opset=opset)


def test_flatten_defaults_and_edges():
    check_node("Flatten", INPUT, opset=1, reference=[INPUT.reshape(1, 12)])
    check_node("Flatten", np.asarray(2.5, np.float32), axis=0)
    check_node("Flatten", np.zeros((2, 0, 3), np.int32), axis=2)


@pytest.mark.parametrize("axes", [(0,), (2,), (0, 2), (-2, 0), (-4,)])
@pytest.mark.parametrize("opset", [7, 11, 13, 21, 23])
def test_squeeze(axes, opset):
    if opset >= 13:
        check_node("Squeeze", INPUT, ints(*axes), opset=opset)
    elif opset >= 11 or min(axes) >= 0:
        check_node("Squeeze", INPUT, axes=axes, opset=opset)


@pytest.mark.parametrize("opset", [7, 11, 13, 21])
@pytest.mark.parametrize("shape", [(1, 3, 1), (1, 1), (2, 3), (1, 0)])
def test_squeeze_of_all_ones(shape, opset):
    check_node("Squeeze", np.ones(shape, np.float32), opset=opset)


def test_squeeze_refuses_what_is_not_one():
    with pytest.raises(ValueError, match="size 1"):
        handlers.squeeze(np.zeros((0, 3)), ints(0))


@pytest.mark.parametrize("axes", [(0,), (4,), (0, 5), (-1, 0), (3, 1), (-6,), (2, -1, 0)])
@pytest.mark.parametrize("opset", [7, 11, 13, 21, 23])
def test_unsqueeze(axes, opset):
    rank = INPUT.ndim + len(axes)
    if all(-rank <= axis < rank for axis in axes):
        if opset >= 13:
            check_node("Unsqueeze", INPUT, ints(*axes), opset=opset)
        elif opset >= 11 or min(axes) >= 0:
            check_node("Unsqueeze", INPUT, axes=axes, opset=opset)


def test_unsqueeze_of_a_scalar():
    check_node("Unsqueeze", np.asarray(3, np.int64), ints(0))
    check_node("Unsqueeze", np.asarray(3, np.int64), ints(-1, 0))
    with pytest.raises(ValueError, match="twice"):
        handlers.unsqueeze(np.zeros(3), ints(0, -3))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("perm", [None, (0, 2, 1, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_transpose(perm, dtype):
    check_node("Transpose", INPUT.astype(dtype), **({} if perm is None else {"perm": perm}))


@pytest.mark.parametrize("shape", [(), (3,), (0, 2)])
def test_transpose_edges(shape):
    check_node("Transpose", np.ones(shape, np.float32))


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"value_int": 3}, ints(3)[0]),
        ({"value_ints": (1, -2)}, ints(1, -2)),
        ({"value_ints": ()}, ints()),
        ({"value_float": 1.5}, np.float32(1.5)),
        ({"value_floats": (1.5, 2.0)}, np.array([1.5, 2.0], np.float32)),
        ({"value": np.array([[True, False]])}, np.array([[True, False]])),
    ],
)
def test_constant(attributes, expected):
    """A graph turns Constant nodes into initializers by itself, so that the handler is seldom asked."""
    (found,) = _translated_constant(str(expected.dtype), attributes)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


def test_constant_in_bfloat16():
    (found,) = _translated_constant("bfloat16", {"value": np.array([0x3F80, 0x4000], np.uint16)})
    assert found.dtype == mx.bfloat16 and found.tolist() == [1.0, 2.0]


def _translated_constant(dtype, attributes):
    node = Node("", "Constant", "ai.onnx", 13, (), (Value("y", dtype),), attributes)
    context = Context(node, [], device="cpu", cache={}, constant=[], bodies={}, random_key=lambda: None)
    assert handlers.constant.reason(node) is None
    return handlers.constant.translate(context, node)


def test_constant_of_a_kind_that_mlx_lacks():
    node = Node("", "Constant", "ai.onnx", 13, (), (Value("y", "string"),), {"value_strings": ("a",)})
    assert "value_strings" in handlers.constant.reason(node)


@pytest.mark.parametrize("value", [None, np.array([7], np.int64), np.array([True]), np.array([-1.5], np.float16)])
@pytest.mark.parametrize("sizes", [(), (3,), (2, 0), (40, 50)])
@pytest.mark.parametrize("constant", [(), (0,)])
def test_constant_of_shape(value, sizes, constant):
    given_value = {} if value is None else {"value": onnx.numpy_helper.from_array(value)}
    check_node("ConstantOfShape", ints(*sizes), opset=9, constant=constant, **given_value)


def test_constant_of_shape_in_bfloat16():
    value = onnx.helper.make_tensor("value", onnx.TensorProto.BFLOAT16, [1], [1.5])
    check_node("ConstantOfShape", ints(2, 3), opset=21, value=value, reference=[np.full((2, 3), 1.5, np.float32)])


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("bounds", [(0, 10, 3), (10, 0, -3), (3, 3, 1), (5, 9, -1), (-4, 5, 2), (1, 2, 9)])
def test_range(bounds, dtype):
    check_node("Range", *(np.asarray(each, dtype) for each in bounds), opset=11)


@given(
    st.floats(-50, 50, width=32),
    st.floats(-50, 50, width=32),
    st.floats(0.125, 9, width=32),
    st.sampled_from(["float32", "float64"]),
)
def test_range_of_floats(start, limit, delta, dtype):
    delta = delta if limit > start else -delta
    check_node("Range", *(np.asarray(each, dtype) for each in (start, limit, delta)), tolerance=0)


def test_range_in_16_bits():
    bounds = [np.asarray(each, np.float16) for each in (2048, 2060, 1)]
    check_node("Range", *bounds, opset=27, reference=[np.arange(2048, 2060).astype(np.float16)])
    check_declined("Range", *bounds, opset=27, stash_type=10, because="stash_type 10")


def test_range_refuses_a_zero_step():
    for number in (np.int64, np.float32):
        bounds = [np.array(each, number) for each in (1, 2, 0)]
        check_refused("Range", *bounds, index=2, match="in steps of 0")


INT64 = np.iinfo(np.int64)


@pytest.mark.parametrize(
    ("start", "limit", "step"),
    [
        (INT64.min, INT64.max, 2**62),
        (INT64.max, INT64.min, -(2**62)),
        (INT64.max - 5, INT64.max, 2),
        (INT64.min, INT64.min + 2, 1),
        (0, 5, INT64.min),
        (5, 0, INT64.min),
        (0, 2**53 + 3, 2**53),
    ],
)
def test_range_over_all_of_int64(start, limit, step):
    expected = [np.array(range(start, limit, step), np.int64)]
    check_node("Range", *map(np.array, (start, limit, step)), reference=expected, dynamic=True)


@given(
    hnp.arrays(
        st.sampled_from([np.bool_, np.int64, np.float32]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3),
    ),
    st.data(),
)
def test_squeeze_undoes_unsqueeze_in_both_forms(array, data):
    rank = array.ndim + data.draw(st.integers(1, 3))
    axes = data.draw(
        st.lists(st.integers(0, rank - 1), min_size=rank - array.ndim, max_size=rank - array.ndim, unique=True)
    )
    axes = ints(*(axis - rank if data.draw(st.booleans()) else axis for axis in axes))
    wide = check_node("Unsqueeze", array, axes)[0]
    check_node("Squeeze", wide, axes, reference=[array])
    np.testing.assert_array_equal(handlers.unsqueeze.host_form.function(array, axes), wide)
    np.testing.assert_array_equal(handlers.squeeze.host_form.function(wide, axes), array)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.data())
def test_reshape_and_transpose_have_equal_forms(sizes, data):
    array = np.arange(np.prod(sizes), dtype=np.int64).reshape(sizes)
    perm = data.draw(st.permutations(range(len(sizes))))
    turned = check_node("Transpose", array, perm=perm)[0]
    np.testing.assert_array_equal(handlers.transpose.host_form.function(array, perm=perm), turned)
    target = ints(*data.draw(st.permutations(sizes)))
    allowzero = int(0 in sizes)
    reshaped = check_node("Reshape", array, target, allowzero=allowzero)[0]
    np.testing.assert_array_equal(handlers.reshape.host_form.function(array, target, allowzero=allowzero), reshaped)


def test_shape_arithmetic_stays_on_the_host():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        agraph (float[N, 3, H, W] x) => (float[a, b] y, int64[2] target)
        <int64[1] zero = {0}, int64[1] minus_one = {-1}> {
            s = Shape(x)
            n, c, h, w = Split <axis = 0, num_outputs = 4>(s)
            flat = Squeeze(n, zero)
            again = Unsqueeze(flat, zero)
            target = Concat <axis = 0>(again, minus_one)
            y = Reshape(x, target)
        }""")
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)
    check_model(model, {"x": x}, reference=[x.reshape(2, 12), ints(2, -1)])
    _, target = Program(build_plan(graph_of_model(model)), load_registry(), "cpu").run([x])
    assert isinstance(target, np.ndarray), "shape arithmetic went to the device"


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((3, 4), (-1, -1)),
        ((3, 4), (5, -1)),
        ((3, 4), (-2, 6)),
        ((3, 4), (0, 0, 0)),
        ((3, 4), (13,)),
        ((0, 4), (0, -1)),
        ((0, 4), (0, 0, -1)),
        ((0, 4), (2, 3)),
        ((), (0,)),
        ((), (-1, -1)),
    ],
)
def test_shapes_that_do_not_fit(shape, target, dtype):
    refusal = r"do not fit shape|keeps a dimension that"
    check_refused("Reshape", np.zeros(shape, dtype), ints(*target), match=refusal, dynamic=True)


def test_a_size_left_over_from_nothing():
    check_node("Reshape", np.zeros((0, 4), np.float32), ints(3, -1), dynamic=True)
    with pytest.raises(TranslationError, match="do not fit shape"):  # what is left is not defined, ONNX says
        check_node("Reshape", np.zeros((0, 4), np.float32), ints(0, -1), allowzero=1, dynamic=True, reference=[])


def test_axes_that_are_not_there():
    one, x = np.ones((1, 1), np.float32), np.ones((3, 4), np.float32)
    for axis in (3, -4, 2**40, -(2**63)):
        check_refused("Squeeze", one, ints(axis), match=f"no axis {axis} among 2")
        check_refused("Unsqueeze", x, ints(axis), match=f"no axis {axis} among 3")
        check_refused("Squeeze", one, axes=[axis], opset=11, index=0, match=f"no axis {axis} among 2")
        check_refused("Unsqueeze", x, axes=[axis], opset=11, index=0, match=f"no axis {axis} among 3")
        check_refused("Flatten", x, axis=axis, index=0, match=f"no axis {axis} among 2")
        check_refused("Transpose", x, perm=[0, axis], index=0, match="is no order of 2 dimensions")
    for perm in ([0, 0], [0], [0, -1], [0, 1, 2]):
        check_refused("Transpose", x, perm=perm, index=0, match="is no order of 2 dimensions")
    check_refused("Unsqueeze", x, ints(0, -4), match="name one twice")
    check_node("Flatten", x, axis=2)
