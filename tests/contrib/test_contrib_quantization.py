"""Quantized operators of com.microsoft, against ONNX Runtime's CPU provider: integers, so every one must be equal, but
for sums that come to lie within a rounding error of the middle between two."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from opgraft.testing import check_declined, check_model, check_node, node_model, reference_outputs, run_model

BYTES = ("int8", "uint8")
EPSILON = 1e-5
"""Of float32 results, relative to the largest."""


def named(operator):
    return f"com.microsoft::{operator}"


def scalar(value, dtype=np.float32):
    return np.array(value, dtype)


def floats(*shape, scale=10.0, seed=0, dtype=np.float32):
    return (np.random.default_rng([seed, *shape]).normal(size=shape) * scale).astype(dtype)


def scales(*shape, size=1.0):
    return (np.random.default_rng([9, *shape]).uniform(0.2, 1, shape) * size).astype(np.float32)


def integers(dtype, *shape, seed=0):
    limits = np.iinfo(dtype)
    return np.random.default_rng([seed, *shape]).integers(limits.min, limits.max, shape, dtype, endpoint=True)


each_type = pytest.mark.parametrize("dtype", BYTES)


@pytest.mark.parametrize("dtype", [*BYTES, "int16", "uint16"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_quantize_and_dequantize(dtype, axis):
    shape = (4, 5)
    attributes = {} if axis is None else {"axis": axis}
    steps = scalar(0.37) if axis is None else scales(shape[axis])
    zero_point = scalar(7, dtype) if axis is None else integers("int8", shape[axis]).clip(0).astype(dtype)
    settings = {"output_types": [dtype], **attributes}
    check_node(named("QuantizeLinear"), floats(*shape, scale=60), steps, zero_point, **settings)
    check_node(named("QuantizeLinear"), floats(*shape, scale=60), steps, zero_point, constant=(1, 2), **settings)
    settings["output_types"] = ["float32"]
    check_node(named("DequantizeLinear"), integers(dtype, *shape), steps, zero_point, **settings)
    check_node(named("DequantizeLinear"), integers(dtype, *shape), steps, zero_point, constant=(0, 1, 2), **settings)


def test_the_second_axis_is_that_of_vectors_where_none_is_named():
    steps, zero_point = scales(5), integers("int8", 5).clip(0).astype(np.uint8)
    check_node(named("QuantizeLinear"), floats(4, 5, scale=60), steps, zero_point, output_types=["uint8"])
    check_node(named("DequantizeLinear"), integers("uint8", 4, 5), steps, zero_point, output_types=["float32"])


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_halves_of_bytes(dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype))
    low, high = (0, 16) if dtype == "uint4" else (-8, 8)
    codes = np.arange(low, high).astype(kind).reshape(4, 4)
    points = np.array([1, 2, 0, 3]).astype(kind)
    settings = {"axis": 0, "output_types": ["float32"]}
    check_node(named("DequantizeLinear"), codes, scales(4), points, **settings)
    settings["output_types"] = [dtype]
    check_node(named("QuantizeLinear"), floats(4, 6, scale=3), scales(4), points, **settings)


def test_quantize_and_dequantize_otherwise():
    check_node(named("QuantizeLinear"), floats(4, 5), scalar(0.5), output_types=["uint8"])
    check_node(named("DequantizeLinear"), integers("uint8", 4, 5), scalar(0.5), output_types=["float32"])
    values = integers("int32", 4, 5)
    check_node(named("DequantizeLinear"), values, scalar(0.5), scalar(0, "int32"), output_types=["float32"])
    half, step = floats(300, dtype=np.float16), scalar(0.25, np.float16)
    expected = (np.rint(half.astype(np.float32) / 0.25) + 3).clip(0, 255).astype(np.uint8)
    check_node(named("QuantizeLinear"), half, step, scalar(3, "uint8"), reference=[expected], output_types=["uint8"])
    expected = ((expected.astype(np.float32) - 3) * 0.25).astype(np.float16)
    codes = integers("uint8", 300)
    expected = ((codes.astype(np.float32) - 3) * 0.25).astype(np.float16)
    check_node(
        named("DequantizeLinear"), codes, step, scalar(3, "uint8"), reference=[expected], output_types=["float16"]
    )


def check_nearly(operator, *inputs, dtype, **attributes):
    """Check that a node gives what ONNX Runtime's CPU provider does, except for one step in at most 1 of 300 elements:
    it adds with and without a rounding in between, by the machine it runs on."""
    model = node_model(named(operator), inputs, output_types=[dtype], **attributes)
    feeds = {f"x{index}": each for index, each in enumerate(inputs) if each is not None}
    (expected,) = reference_outputs(model, feeds)
    (output,) = check_model(model, feeds, reference=run_model(model, feeds))
    difference = np.abs(output.astype(int) - expected.astype(int))
    assert output.dtype == expected.dtype and output.shape == expected.shape
    assert difference.max(initial=0) <= 1
    assert (difference > 0).sum() <= output.size / 300


OPERANDS = [((3000,), (3000,)), ((2, 3, 200), (3, 1)), ((4, 1), (1, 300)), ((300,), ()), ((), (5, 5)), ((0, 3), (3,))]


@each_type
@pytest.mark.parametrize("operator", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize(("left", "right"), OPERANDS)
@pytest.mark.parametrize("steps", [(0.25, 0.25, 0.5), (0.0137, 0.0211, 0.031), (0.02, 0.0039, 0.7)])
@pytest.mark.parametrize("zero_points", [(3, 7, 5), (0, 0, 0), (3, 7, 4), (3, 7)])
def test_sums_and_products(operator, dtype, left, right, steps, zero_points):
    a, b = integers(dtype, *left), integers(dtype, *right, seed=1)
    points = [scalar(each, dtype) for each in zero_points]
    inputs = [a, scalar(steps[0]), points[0], b, scalar(steps[1]), points[1], scalar(steps[2]), *points[2:]]
    check_nearly(operator, *inputs, dtype=dtype)
    if operator == "QLinearMul":
        check_node(named(operator), *inputs, output_types=[dtype])


@each_type
@pytest.mark.parametrize("operator", ["QLinearLeakyRelu", "QLinearSigmoid"])
@pytest.mark.parametrize("steps", [(0.25, 0.5), (0.05, 1 / 256), (0.03, 0.011), (1.0, 0.02)])
@pytest.mark.parametrize("zero_points", [(3, 4), (3, 5), (0, 0), (7, 127)])
def test_functions(operator, dtype, steps, zero_points):
    x, points = integers(dtype, 4, 100), [scalar(each, dtype) for each in zero_points]
    inputs = (x, scalar(steps[0]), points[0], scalar(steps[1]), points[1])
    attributes = {"alpha": 0.5} if operator == "QLinearLeakyRelu" else {}
    check_node(named(operator), *inputs, output_types=[dtype], **attributes)
    check_node(named(operator), *inputs, output_types=[dtype], constant=(1, 2, 3, 4), dynamic=True)


def softmax_model(x, axis, opset, step, zero_point, result_step, result_point):
    """`node_model` has an argument that is called opset, too."""
    parameters = {"x_scale": step, "x_zero_point": zero_point, "y_scale": result_step, "y_zero_point": result_point}
    node = helper.make_node(
        "QLinearSoftmax", ["x", *parameters], ["y"], name="node", domain="com.microsoft", axis=axis, opset=opset
    )
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node],
        "one_node",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, x.shape)],
        [onnx.numpy_helper.from_array(each, name) for name, each in parameters.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@each_type
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
@pytest.mark.parametrize("step", [0.05, 0.5, 0.001])
@pytest.mark.parametrize("result", [0, 7])
def test_softmax(dtype, opset, axis, step, result):
    x = integers(dtype, 3, 5, 7)
    point = result + np.iinfo(dtype).min
    model = softmax_model(x, axis, opset, scalar(step), scalar(3, dtype), scalar(1 / 256), scalar(point, dtype))
    check_model(model, {"x": x})


def image(dtype, shape, channels_last):
    x = integers(dtype, *shape)
    return np.ascontiguousarray(np.moveaxis(x, 1, -1)) if channels_last else x


@each_type
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [2, 2]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
        {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER", "strides": [2, 2]},
        {"kernel_shape": [8, 8]},
    ],
)
@pytest.mark.parametrize("steps", [(0.05, 0.05), (0.05, 0.037)])
@pytest.mark.parametrize("zero_point", [4, 5])
def test_average_pool(dtype, channels_last, attributes, steps, zero_point):
    x = image(dtype, (2, 3, 8, 8), channels_last)
    inputs = (x, scalar(steps[0]), scalar(3, dtype), scalar(steps[1]), scalar(zero_point, dtype))
    settings = {"output_types": [dtype], "channels_last": channels_last, **attributes}
    check_node(named("QLinearAveragePool"), *inputs, **settings)


@each_type
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 40, 7, 7), (2, 3, 5), (1, 2, 60, 60)])
@pytest.mark.parametrize(("steps", "zero_point"), [((0.05, 0.05), 4), ((0.05, 0.002), 5), ((0.5, 0.4), 0)])
def test_global_average_pool(dtype, channels_last, shape, steps, zero_point):
    inputs = (scalar(steps[0]), scalar(3, dtype), scalar(steps[1]), scalar(zero_point, dtype))
    settings = {"output_types": [dtype], "channels_last": channels_last}
    check_node(named("QLinearGlobalAveragePool"), image(dtype, shape, channels_last), *inputs, **settings)


@each_type
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("step", [0.1, 0.05])
@pytest.mark.parametrize("zero_point", [4, 5])
def test_concat(dtype, axis, count, step, zero_point):
    parts = []
    for index in range(count):
        shape = [3, 4]
        shape[axis] += index
        parts += [
            integers(dtype, *shape, seed=index),
            scalar((0.05, 0.1)[index % 2]),
            scalar((3, zero_point)[index % 2], dtype),
        ]
    constant = (0, 1, *(index for index in range(2, 2 + len(parts)) if index % 3 != 2))
    inputs = (scalar(step), scalar(zero_point, dtype), *parts)
    settings = {"axis": axis, "output_types": [dtype]}
    check_node(named("QLinearConcat"), *inputs, **settings)
    check_node(named("QLinearConcat"), *inputs, constant=constant, dynamic=True, **settings)


def test_concat_declines_what_does_not_come_in_threes():
    inputs = scalar(1), scalar(1, "uint8"), integers("uint8", 3), scalar(1)
    check_declined(named("QLinearConcat"), *inputs, axis=0, because="inputs come in threes", output_types=["uint8"])
    inputs = scalar(1), scalar(1, "uint8"), scalar(1), integers("uint8", 3), scalar(1)
    check_declined(named("QLinearConcat"), *inputs, axis=0, because="of input 2 is not", output_types=["uint8"])


CONVOLUTIONS = [
    ((2, 3, 6, 7), (4, 3, 3, 3), {}),
    ((1, 9, 6, 7), (4, 9, 1, 1), {}),
    ((1, 4, 6, 7), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    ((1, 4, 7, 7), (6, 2, 3, 2), {"group": 2, "strides": [2, 2], "dilations": [2, 1]}),
    ((2, 3, 9), (4, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2]}),
]


@pytest.mark.parametrize(("dtype", "weight_type"), [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")])
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize(("shape", "weight", "place"), CONVOLUTIONS)
@pytest.mark.parametrize("by_channel", [False, True])
def test_convolution(dtype, weight_type, channels_last, shape, weight, place, by_channel):
    x, w = image(dtype, shape, channels_last), integers(weight_type, *weight)
    steps = scales(weight[0], size=0.1) if by_channel else scalar(0.05)
    points = np.zeros(weight[0], weight_type) if by_channel else scalar(2, weight_type)
    b = np.random.default_rng(1).integers(-500, 500, weight[0]).astype(np.int32)
    inputs = (x, scalar(0.05), scalar(3, dtype), w, steps, points, scalar(1.3), scalar(7, dtype))
    settings = {"channels_last": channels_last, "output_types": [dtype], **place}
    for more in ((), (b,)):
        check_node(named("QLinearConv"), *inputs, *more, constant=(1, 2, 3, 4, 5, 6, 7), **settings)
        check_node(named("QLinearConv"), *inputs, *more, **settings)


@pytest.mark.parametrize(("left", "right"), [(left, right) for left in BYTES for right in BYTES])
@pytest.mark.parametrize(("first", "second"), [((3, 4), (4, 5)), ((2, 3, 300), (300, 5)), ((2, 3, 4), (2, 4, 5))])
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("optional", [False, True])
def test_products_to_floats(left, right, first, second, by_column, optional):
    a, b = integers(left, *first), integers(right, *second)
    columns = second[-1:] if len(second) == 2 else (second[0], 1, second[-1])
    steps = scales(*columns, size=0.1) if by_column else scalar(0.05)
    points = integers("int8", *columns).clip(0).astype(right) if by_column else scalar(2, right)
    more = (scalar(3, left), points, floats(second[-1])) if optional else ()
    settings = {"output_types": ["float32"], "tolerance": EPSILON}
    product = (a - np.float64(more[0] if more else 0)) @ (b - (more[1] if more else 0) * np.float64(1))
    expected = [(product * 0.03 * steps + (more[2] if more else 0)).astype(np.float32)]
    check_node(named("MatMulIntegerToFloat"), a, b, scalar(0.03), steps, *more, reference=expected, **settings)
    if (left, right) != ("int8", "uint8"):  # which the CPU provider lacks
        check_node(named("MatMulIntegerToFloat"), a, b, scalar(0.03), steps, *more, **settings)
    if left == "uint8":
        x = floats(*first)
        check_node(named("DynamicQuantizeMatMul"), x, b, steps, *more[1:], **settings)
        check_node(named("DynamicQuantizeMatMul"), x, b, steps, *more[1:], constant=(1, 2, 3), dynamic=True, **settings)


def test_products_to_float16():
    a, b, bias = integers("uint8", 3, 40), integers("int8", 40, 5), floats(5, dtype=np.float16)
    steps = scalar(0.01, np.float16), scales(5, size=0.02).astype(np.float16)
    product = (a.astype(np.float64) - 3) @ b.astype(np.float64) * steps[0] * steps[1].astype(np.float64)
    expected = [(product + bias).astype(np.float16)]
    inputs = (a, b, *steps, scalar(3, "uint8"), None, bias)
    settings = {"output_types": ["float16"], "tolerance": 2e-3}
    check_node(named("MatMulIntegerToFloat"), *inputs, reference=expected, **settings)


def test_inputs_that_must_be_there():
    a, one = integers("uint8", 4), scalar(1)
    cases = {
        "QLinearAdd": ([a, one, None, a, one, None, None], "C_scale"),
        "QLinearMul": ([a, one, None, None, one, None, one], "input B is required"),
        "QLinearSigmoid": ([a, one], "Y_scale"),
        "QLinearLeakyRelu": ([a, one], "Y_scale"),
    }
    for operator, (inputs, because) in cases.items():
        check_declined(named(operator), *inputs, because=because, output_types=["uint8"])
