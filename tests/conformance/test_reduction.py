"""Reductions, positions of extremes, sorting, running sums and softmax, against ONNX Runtime or NumPy."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kit import check_refused
from onnx import TensorProto, helper

from opgraft.ops import INTEGERS, to_device
from opgraft.testing import check_declined, check_model, check_node, node_model, run_model
from opgraft_ops import reduction
from opgraft_ops._folding import Fold, exponential

TOLERANCE = {"float32": 1e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}
BITS = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64, "uint64": 64}


def floats(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(numpy_type(dtype))


def numpy_type(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def ints(*values):
    return np.array(values, np.int64)


def wrapped(values, dtype):
    """Exact integers as `dtype` holds them after overflow."""
    unsigned = np.array([int(each) % 2 ** BITS[dtype] for each in np.ravel(values)], f"u{BITS[dtype] // 8}")
    return unsigned.view(dtype).reshape(np.shape(values))


# Reductions

WIDE = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceL1": lambda x, **where: np.sum(np.abs(x), **where),
    "ReduceL2": lambda x, **where: np.sqrt(np.sum(np.square(x), **where)),
    "ReduceLogSum": lambda x, **where: np.log(np.sum(x, **where)),
    "ReduceLogSumExp": lambda x, **where: np.log(np.sum(np.exp(x), **where)),
    "ReduceSumSquare": lambda x, **where: np.sum(np.square(x), **where),
}


def check_reduction(operator, x, axes, *, opset, **attributes):
    """`check_node` with the axes where that version has them, against NumPy in float64."""
    keepdims = bool(attributes.get("keepdims", 1))
    wide = x.astype(np.float64)
    expected = WIDE[operator](wide, axis=axes, keepdims=keepdims)
    reference = [np.asarray(expected).astype(x.dtype)]
    tolerance = TOLERANCE[x.dtype.name]
    if opset < (13 if operator == "ReduceSum" else 18):
        given = {} if axes is None else {"axes": list(axes)}
        check_node(operator, x, opset=opset, reference=reference, tolerance=tolerance, **given, **attributes)
    else:
        given = [] if axes is None else [ints(*axes)]
        check_node(operator, x, *given, opset=opset, reference=reference, tolerance=tolerance, **attributes)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("operator", WIDE)
def test_reductions_of_floats(operator, dtype):
    positive = np.abs(floats(3, 4, 5, dtype=dtype)) + numpy_type(dtype).type(0.5)
    for axes in (None, (0,), (1,), (-1,), (0, 2), (1, 2), (-3, -1)):
        for keepdims in (0, 1):
            check_reduction(operator, positive, axes, opset=20, keepdims=keepdims)


@pytest.mark.parametrize("opset", [7, 11, 12, 13, 17, 18, 20, 21])
@pytest.mark.parametrize("operator", WIDE)
def test_reductions_of_all_versions(operator, opset):
    x = np.abs(floats(2, 3, 4)) + 1
    check_reduction(operator, x, (1, -1), opset=opset)
    check_reduction(operator, x, None, opset=opset, keepdims=0)
    check_reduction(operator, np.float32(2.5).reshape(()), None, opset=opset)


@pytest.mark.parametrize("operator", WIDE)
def test_reductions_over_long_axes_are_as_good_as_short_ones(operator):
    x = 1 + np.abs(floats(3, 1021))
    if operator == "ReduceProd":  # a product rounds at every factor, but for powers of two
        x = np.exp2(np.resize([1.0, -1, -1, 1, 0], x.shape))
    check_reduction(operator, x.astype(np.float32), (1,), opset=20)
    x = x[:, :1020].reshape(3, 4, 15, 17).astype(np.float32)
    check_reduction(operator, x, (2, 3), opset=20, keepdims=0)
    check_reduction(operator, x, (0, 2, 3), opset=20)
    check_reduction(operator, x, None, opset=20)


@pytest.mark.parametrize("operator", WIDE)
def test_no_axes_reduce_all_or_nothing(operator):
    x = np.array([[0.5, 3.0]], np.float32)
    check_node(operator, x, ints(), opset=18)
    check_node(operator, x, ints(), opset=18, noop_with_empty_axes=1)
    check_node(operator, x, None, opset=18, noop_with_empty_axes=1)


@pytest.mark.parametrize("operator", WIDE)
def test_reductions_over_nothing(operator):
    for dtype in ("float32", "float16") if "Log" in operator else ("float32", "float16", "int32", "int64"):
        reference = "cpu" if dtype != "float16" else None
        for shape in ((2, 0, 4), (0, 2), (2, 3, 0)):
            x = np.zeros(shape, dtype)
            expected = reference or [check_node(operator, x.astype(np.float32), ints(1), opset=18)[0].astype(dtype)]
            check_node(operator, x, ints(1), opset=18, reference=expected)
    if operator != "ReduceMean":  # over nothing the mean is undefined
        check_node(operator, np.zeros((0,), np.float32), opset=18, keepdims=0)


def test_the_values_of_a_type_bound_the_extremes_of_nothing():
    for dtype in sorted(INTEGERS - {"int16", "uint16"}):
        limits = np.iinfo(dtype)
        x = np.zeros((2, 0), dtype)
        check_node("ReduceMax", x, ints(1), opset=20, reference=[np.full((2, 1), limits.min, dtype)])
        check_node("ReduceMin", x, ints(1), opset=20, reference=[np.full((2, 1), limits.max, dtype)])
    x = np.zeros((2, 0), bool)
    check_node("ReduceMax", x, ints(1), opset=20, reference=[np.full((2, 1), False)])
    check_node("ReduceMin", x, ints(1), opset=20, reference=[np.full((2, 1), True)])


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
def test_extremes(operator):
    extreme = np.max if operator == "ReduceMax" else np.min
    for dtype in ("bool", "int8", "uint8", "int32", "int64", "uint32", "uint64"):
        x = np.array([[0, 1, 0], [1, 1, 1], [0, 0, 0]]).astype(dtype)
        check_node(operator, x, ints(1), opset=20, keepdims=0, reference=[extreme(x, 1)])
    close = np.array([[2**53, 2**53 + 1], [-(2**53) - 1, -(2**53)]])
    check_node(operator, close, ints(1), opset=18)
    special = np.array([[math.nan, 1], [1, math.nan], [math.inf, 1], [-math.inf, 1], [math.inf, -math.inf]], np.float32)
    check_node(operator, special, ints(1), opset=18, reference=[extreme(special, 1, keepdims=True)])


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceL1", "ReduceSumSquare", "ReduceL2", "ReduceLogSum"])
def test_infinities_and_nan(operator):
    x = np.array([[math.nan, 1], [math.inf, 1], [math.inf, -math.inf], [-math.inf, -math.inf]], np.float32)
    check_node(operator, x, ints(1), opset=18)


def test_log_sum_exp_of_extremes():
    rows = [[math.nan, 1], [math.inf, 1], [math.inf, -math.inf], [-math.inf, -math.inf], [1000, 1000], [-1000, -1000]]
    expected = np.array([math.nan, math.inf, math.inf, -math.inf, 1000 + math.log(2), -1000 + math.log(2)])
    for dtype in ("float32", "float64"):
        x = np.array(rows, dtype)
        reference = [expected.astype(dtype)]
        tolerance = TOLERANCE[dtype]
        check_node("ReduceLogSumExp", x, axes=[1], opset=13, keepdims=0, reference=reference, tolerance=tolerance)


@given(data=st.data())
def test_integer_reductions_are_exact(data):
    dtype = data.draw(st.sampled_from(["int32", "int64", "uint32", "uint64"]))
    x = data.draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=2, max_dims=2, max_side=4)))
    rows = [[int(each) for each in row] for row in x]
    size = 2 ** BITS[dtype]

    def as_dtype(value):
        value %= size
        return value - size if dtype[0] == "i" and value >= size // 2 else value

    expected = {
        "ReduceSum": [sum(row) for row in rows],
        "ReduceProd": [math.prod(row) for row in rows],
        "ReduceL1": [sum(map(abs, row)) for row in rows],
        "ReduceSumSquare": [sum(each * each for each in row) for row in rows],
        "ReduceL2": [math.isqrt(sum(each * each for each in row) % 2**64) for row in rows],
    }
    if BITS[dtype] == 32:  # the sum of two 64-bit integers wraps, whatever divides it then
        expected["ReduceMean"] = [abs(sum(row)) // len(row) * (1 if sum(row) > 0 else -1) for row in rows]
    for operator, values in expected.items():
        reference = [np.array([as_dtype(each) for each in values], dtype)]
        check_node(operator, x, ints(1), opset=18, keepdims=0, reference=reference)


@given(hnp.arrays(np.uint64, 20), st.integers(0, 2**32 - 1))
def test_integer_roots(values, root):
    values[:5] = [0, 1, 2, 3, 2**64 - 1]
    values[5:9] = [(root * root + step) % 2**64 for step in (-1, 0, 1, 2)]
    found = np.array(reduction.integer_root(to_device(values)))
    assert found.tolist() == [math.isqrt(int(each)) for each in values]


def test_logarithms_of_integers_are_declined():
    check_declined("ReduceLogSum", np.ones((2, 2), np.int32), because="int32 of input data", opset=13)
    check_declined("ReduceLogSumExp", np.ones((2, 2), np.int64), because="int64 of input data", opset=18)


@given(data=st.data())
def test_folds_in_two_stages(data):
    shape = data.draw(hnp.array_shapes(max_dims=4, max_side=7)) + data.draw(
        st.sampled_from([(), (256,), (300,), (17, 16)])
    )
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1)))))
    x = np.random.default_rng(0).integers(-100, 100, shape, np.int32)
    for function in (reduction.mx.sum, reduction.mx.max):
        found = np.array(Fold(axes)(function, to_device(x)))
        expected = np.sum(x, axes, keepdims=True) if function is reduction.mx.sum else np.max(x, axes, keepdims=True)
        np.testing.assert_array_equal(found, expected)


HOST = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"]


@pytest.mark.parametrize("operator", HOST)
def test_reductions_in_shape_arithmetic(operator):
    """Sizes go through the reduction into Reshape's shape, and never to the device."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node(operator, ["sizes", "axes"], ["size"]),
        helper.make_node("Expand", ["one", "size"], ["y"]),
    ]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [0])
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])
    graph = helper.make_graph(nodes, "sizes", [x], [y], [axes, one])
    check_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), {"x": floats(3, 4)}
    )


@given(data=st.data())
def test_host_forms_of_reductions_are_their_device_forms(data):
    operator = data.draw(st.sampled_from(HOST))
    dtype = data.draw(
        st.sampled_from(["int32", "int64", "uint32", "uint64", "float32", *(["bool"] if operator in HOST[2:4] else [])])
    )
    shape = data.draw(hnp.array_shapes(min_side=0 if operator != "ReduceMean" else 1, max_side=3))
    elements = st.floats(-9, 9, width=32) if dtype == "float32" else None
    x = data.draw(hnp.arrays(dtype, shape, elements=elements))
    axes = np.array(data.draw(st.lists(st.integers(-len(shape), len(shape) - 1), max_size=2)), np.int64)
    attributes = {"keepdims": data.draw(st.integers(0, 1)), "noop_with_empty_axes": data.draw(st.integers(0, 1))}
    handler = next(each for each in reduction.reductions if each.op_type == operator and each.until is None)
    with np.errstate(all="ignore"):
        expected = handler.host_form.function(x, axes, **attributes)
    check_node(operator, x, axes, opset=20, reference=[expected], tolerance=1e-6, **attributes)


# Positions


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16", "float32", "float64"])
def test_positions_of_extremes(operator, dtype):
    x = np.random.default_rng(0).integers(0, 3, (4, 5, 6)).astype(dtype)
    for axis in (0, 1, -1):
        for keepdims in (0, 1):
            check_node(operator, x, axis=axis, keepdims=keepdims, opset=11)
            check_node(operator, x, axis=axis, keepdims=keepdims, opset=13, select_last_index=1)


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
def test_positions_of_close_and_strange_values(operator):
    position = np.argmax if operator == "ArgMax" else np.argmin
    for x in (
        np.array([[2**53, 2**53 + 1, 2**53]]),
        np.array([[2**64 - 1, 2**63, 2**64 - 2]], np.uint64),
        np.array([[math.inf, 1, math.inf], [-math.inf, -math.inf, -0.0], [0.0, -0.0, 0.0]], np.float32),
        np.array([[1.5, 1.5, -1.0]], ml_dtypes.bfloat16),
    ):
        check_node(operator, x, axis=1, keepdims=0, reference=[position(x, 1)])
        last = x.shape[1] - 1 - position(x[:, ::-1], 1)
        check_node(operator, x, axis=1, keepdims=0, select_last_index=1, reference=[last])


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
def test_positions_in_empty_arrays(operator):
    check_node(operator, np.zeros((0, 3), np.float32), axis=1)
    check_node(operator, np.zeros((0, 3), np.float32), axis=-1, keepdims=0)
    with pytest.raises(Exception, match="failed in pack"):
        run_model(node_model(operator, [np.zeros((2, 0), np.float32)], axis=1, dynamic=True), {"x0": floats(2, 0)})


# Sorting


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("largest", [0, 1])
def test_top_k_breaks_ties_by_position(dtype, largest):
    x = np.random.default_rng(1).integers(0, 4, (3, 7, 4)).astype(dtype)
    for axis, k in ((0, 2), (1, 5), (-1, 4), (1, 0)):
        expected = top_k(x, k, axis, largest)
        check_node("TopK", x, ints(k), axis=axis, largest=largest, outputs=2, reference=expected)
        check_node("TopK", x, ints(k), axis=axis, largest=largest, sorted=0, outputs=2, reference=expected)


def top_k(x, k, axis, largest):
    """By the definition: sorted by value and then by position, NaN above all."""

    def of_vector(vector):
        def rank(index):
            value = vector[index]
            key = (1, 0) if value != value else (0, value.item())
            return (-key[0], -key[1], index) if largest else (*key, index)

        return np.array(sorted(range(len(vector)), key=rank)[:k], np.int64)

    positions = np.apply_along_axis(of_vector, axis, x)
    return [np.take_along_axis(x, positions, axis), positions]


@given(
    x=hnp.arrays(
        np.float32,
        hnp.array_shapes(max_dims=2, max_side=9),
        elements=st.sampled_from([0, -0.0, 1, math.nan, math.inf, -math.inf, 2]),
    ),
    largest=st.integers(0, 1),
    data=st.data(),
)
def test_top_k_of_anything(x, largest, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    k = data.draw(st.integers(0, x.shape[axis]))
    expected = top_k(x, k, axis, largest)
    check_node("TopK", x, ints(k), axis=axis, largest=largest, outputs=2, reference=expected)
    for found, wanted in zip(
        reduction.top_k.host_form.function(x, ints(k), axis=axis, largest=largest), expected, strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


def test_top_k_versions():
    x = floats(3, 6)
    check_node("TopK", x, k=2, axis=1, opset=9, outputs=2)
    check_node("TopK", x, ints(2), opset=10, outputs=2)
    check_node("TopK", x, ints(2), opset=11, outputs=2, constant=(1,))
    check_node("TopK", np.zeros((0, 3), np.float32), ints(2), outputs=2)
    bfloat16 = x.astype(ml_dtypes.bfloat16)
    check_node("TopK", bfloat16, ints(2), opset=24, outputs=2, reference=top_k(bfloat16, 2, 1, 1))


def test_top_k_of_too_many():
    with pytest.raises(Exception, match="K is 4, and axis 0 has 3"):
        run_model(node_model("TopK", [floats(3), ints(4)], outputs=2), {"x0": floats(3), "x1": ints(4)})


# Running sums and products


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_running_sums_and_products(reverse, exclusive):
    attributes = {"reverse": reverse, "exclusive": exclusive}
    for dtype in ("float32", "float64", "int32", "int64"):
        x = floats(3, 4, 2).astype(dtype) if dtype[0] == "f" else np.arange(-12, 12, dtype=dtype).reshape(3, 4, 2)
        for axis in (np.int64(1), np.int32(-1), ints(0)):
            axis = np.asarray(axis)
            for opset in (11, 14):
                check_node("CumSum", x, axis, opset=opset, tolerance=1e-6, **attributes)
            on_host = reduction.cum_sum.host_form.function(x, axis, **attributes)
            check_node("CumSum", x, axis, reference=[on_host], tolerance=1e-6, **attributes)
    x = np.array([[1, 2, -3, 4]])
    products = {
        (0, 0): [1, 2, -6, -24],
        (0, 1): [1, 1, 2, -6],
        (1, 0): [-24, -24, -12, 4],
        (1, 1): [-24, -12, 4, 1],
    }[reverse, exclusive]
    for dtype in ("int32", "int64", "uint64", "float16", "float32", "float64"):
        expected = [np.array([products]).astype(dtype)]
        check_node("CumProd", x.astype(dtype), np.array(1), opset=26, reference=expected, **attributes)


def test_running_sums_of_large_and_strange_values():
    large = np.array([2**63 - 1, 1, 2**62, 2**62])
    check_node("CumSum", large, np.array(0), reference=[np.cumsum(large)])
    strange = np.array([1, math.inf, 2, math.nan, 3], np.float32)
    check_node("CumSum", strange, np.array(0))
    check_node("CumSum", strange, np.array(0), exclusive=1)
    check_node("CumSum", np.zeros((2, 0), np.float32), np.array(1))
    ones = np.ones(5000, np.float16)
    check_node("CumSum", ones, np.array(0), opset=14, reference=[np.cumsum(ones, dtype=np.float32).astype(np.float16)])


# Softmax, LogSoftmax and Hardmax

SOFTMAXES = ["Softmax", "LogSoftmax", "Hardmax"]


@pytest.mark.parametrize("operator", SOFTMAXES)
@pytest.mark.parametrize("opset", [7, 11, 13, 21])
def test_softmax_along_each_axis(operator, opset):
    x = floats(3, 4, 5) * 3
    for axis in (0, 1, 2) if opset < 11 else (0, 1, 2, -1, -2):
        check_node(operator, x, axis=axis, opset=opset, tolerance=1e-6)
    check_node(operator, x, opset=opset, tolerance=1e-6)


@pytest.mark.parametrize("operator", SOFTMAXES)
def test_softmax_edges(operator):
    check_node(operator, np.zeros((2, 0), np.float32))
    check_node(operator, np.zeros((0, 2), np.float32))
    check_node(operator, np.zeros((2, 0, 3), np.float32), opset=11)
    check_node(operator, floats(4), axis=0, opset=11)
    check_node(operator, np.array([[1000, 1001], [-1000, -1000], [1e30, -1e30]], np.float32), tolerance=1e-6)
    inf, nan = math.inf, math.nan
    rows = np.array([[-inf, -inf], [inf, 1], [-inf, 1], [2, 2]], np.float32)
    check_node(operator, rows)
    if operator != "Hardmax":
        check_node(operator, np.array([[nan, 1], [1, nan]], np.float32))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_softmax_to_the_precision_of_its_type(dtype):
    x = floats(4, 300, dtype=dtype) * numpy_type(dtype).type(3)
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(1, keepdims=True))
    softmax = powers / powers.sum(1, keepdims=True)
    for operator, expected in (("Softmax", softmax), ("LogSoftmax", np.log(softmax))):
        check_node(operator, x, reference=[expected.astype(x.dtype)], tolerance=TOLERANCE[dtype])


def test_exponentials_of_many_elements():
    """MLX's own serve few elements; many go another way, up to where float32 ends and down to its last bit."""
    x = np.linspace(-110, 95, 40000).astype(np.float32)
    x[:6] = [math.inf, -math.inf, math.nan, 0, 88.72283, -103.9]
    with np.errstate(over="ignore"):
        wide = np.exp(x.astype(np.float64))
        expected = wide.astype(np.float32)
    found = np.array(exponential(to_device(x)))
    np.testing.assert_allclose(found, expected, rtol=1.3e-7, atol=3e-45)
    check_node("Softmax", x[6:].reshape(2, -1), tolerance=1e-6)


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@given(
    hnp.arrays(
        np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.sampled_from([math.nan, 0, 1, 2])
    ),
    st.integers(0, 1),
    st.integers(0, 1),
)
def test_positions_pass_over_what_is_not_a_number(operator, x, axis, last):
    check_node(operator, x, axis=axis, select_last_index=last)
    handler = reduction.positions[list(reduction.POSITIONS).index(operator)]
    on_host = handler.host_form.function(x, axis=axis, select_last_index=last)
    check_node(operator, x, axis=axis, select_last_index=last, reference=[on_host])


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("shape", [(0, 4, 0), (0, 0), (4, 0), (0,), ()])
def test_positions_where_there_is_nothing(operator, shape):
    for axis in range(max(len(shape), 1)):
        for keepdims in (0, 1):
            attributes = {"axis": axis, "keepdims": keepdims, "dynamic": True}
            if not shape:
                check_node(operator, np.array(3, np.float32), reference=[np.array(0)], **attributes)
            elif 0 in shape[:axis] + shape[axis + 1 :]:
                check_node(operator, np.zeros(shape, np.float32), **attributes)
            elif shape[axis] == 0:
                refusal = f"axis {axis} of data of shape"
                check_refused(operator, np.zeros(shape, np.float32), index=0, match=refusal, **attributes)


AXES_THAT_ARE_NOT_THERE = [2, -3, 5, 2**40, -(2**63)]


@pytest.mark.parametrize("axis", AXES_THAT_ARE_NOT_THERE)
def test_axes_that_are_not_there(axis):
    x, refusal = floats(3, 4), f"no axis {axis} among 2 dimensions"
    for operator in reduction.REDUCTIONS:
        for dtype in (np.float32, np.int64) if operator in ("ReduceSum", "ReduceMax") else (np.float32,):
            check_refused(operator, x.astype(dtype), ints(axis), opset=18, match=refusal)
            check_refused(operator, x.astype(dtype), axes=[axis], opset=11, index=0, match=refusal)
    for operator in ("ArgMax", "ArgMin", "Softmax", "LogSoftmax", "Hardmax") if abs(axis) < 9 else ():
        check_refused(operator, x, axis=axis, index=0, match=refusal)
    for operator in ("Softmax", "LogSoftmax", "Hardmax"):
        with pytest.raises(Exception, match=refusal):
            run_model(node_model(operator, [x], opset=11, axis=axis), {"x0": x})
    check_refused("TopK", x, ints(1), axis=axis, outputs=2, match=refusal)
    for dtype in (np.float32, np.int64):
        check_refused("CumSum", x.astype(dtype), np.array(axis), match=refusal)
    check_refused("CumProd", x, np.array(axis), opset=26, match=refusal)


@pytest.mark.parametrize("operator", reduction.REDUCTIONS)
def test_a_lone_number_has_no_axes_to_reduce(operator):
    for axis in (0, -1, 7):
        check_node(operator, np.array(3, np.float32), ints(axis), opset=18)
    check_node(operator, np.array(3, np.float32), ints(), opset=18)


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
def test_rows_of_one_number(operator):
    for opset, axis in ((11, 0), (13, 0), (13, -1)):
        expected = np.array(0 if operator == "LogSoftmax" else 1, np.float32)
        check_node(operator, np.array(3, np.float32), opset=opset, axis=axis, reference=[expected])


@pytest.mark.parametrize("k", [5, -1, -(2**63)])
def test_more_than_there_is(k):
    check_refused("TopK", floats(3, 4), ints(k), outputs=2, match="and axis 1 has 4 elements")


@pytest.mark.parametrize(
    ("operator", "inputs", "flag"),
    [
        ("ReduceSum", (), "keepdims"),
        ("ReduceMax", (ints(),), "noop_with_empty_axes"),
        ("ArgMax", (), "select_last_index"),
        ("TopK", (ints(1),), "largest"),
        ("CumSum", (np.array(0),), "reverse"),
    ],
)
def test_flags_of_other_numbers(operator, inputs, flag):
    """ONNX Runtime refuses some, and takes others for 0."""
    for number in (2, -1):
        attributes = {flag: number, "outputs": 2 if operator == "TopK" else 1, "output_types": ["float32"]}
        check_declined(operator, floats(3, 4), *inputs, because=f"{flag} is {number}", **attributes)
