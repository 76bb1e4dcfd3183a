"""Quantized operators, against ONNX Runtime's CPU provider: integers, so every one must be equal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import check_refused

from opgraft.testing import check_declined, check_node

BYTES = ("int8", "uint8")
WORDS = ("int16", "uint16")
SPECIAL = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0, -0.0], np.float32)


def scalar(value, dtype=np.float32):
    return np.array(value, dtype)


def floats(*shape, scale=10.0, seed=0):
    return (np.random.default_rng([seed, *shape]).normal(size=shape) * scale).astype(np.float32)


def scales(*shape, size=1.0):
    return (np.random.default_rng([9, *shape]).uniform(0.2, 1, shape) * size).astype(np.float32)


def integers(dtype, *shape, seed=0):
    limits = np.iinfo(dtype)
    return np.random.default_rng([seed, *shape]).integers(limits.min, limits.max, shape, dtype, endpoint=True)


def types_of(opset):
    return BYTES if opset < 21 else BYTES + WORDS


each_type = pytest.mark.parametrize(
    ("opset", "dtype"), [(opset, dtype) for opset in (10, 13, 19, 21, 23, 24) for dtype in types_of(opset)]
)


@each_type
def test_one_scale_for_all(opset, dtype):
    check_node("QuantizeLinear", floats(5, 6, scale=200), scalar(0.7), scalar(7, dtype), opset=opset)
    check_node("QuantizeLinear", floats(300, scale=100), scalar(0.25), scalar(3, dtype), opset=opset)
    check_node("QuantizeLinear", np.tile(SPECIAL, 5), scalar(1), scalar(3, dtype), opset=opset)
    check_node("QuantizeLinear", scalar(2.5), scalar(1), scalar(3, dtype), opset=opset)
    check_node("QuantizeLinear", np.zeros((0, 3), np.float32), scalar(1), scalar(3, dtype), opset=opset)
    check_node("DequantizeLinear", integers(dtype, 5, 6), scalar(0.7), scalar(7, dtype), opset=opset)
    check_node("DequantizeLinear", integers(dtype, 0, 6), scalar(0.7), opset=opset)


@each_type
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_scale_along_an_axis(opset, dtype, axis, dynamic):
    if opset >= 13:
        shape = (3, 4, 5)
        zero_point = integers("int8", shape[axis]).clip(0).astype(dtype)
        attributes = {"opset": opset, "axis": axis, "dynamic": dynamic}
        check_node("QuantizeLinear", floats(*shape, scale=40), scales(shape[axis]), zero_point, **attributes)
        check_node("DequantizeLinear", integers(dtype, *shape), scales(shape[axis]), zero_point, **attributes)


@each_type
@pytest.mark.parametrize(
    ("axis", "block_size", "shape"), [(0, 2, (3, 6)), (1, 4, (5, 2)), (-1, 3, (5, 2)), (-2, 5, (1, 6)), (1, 1, (5, 6))]
)
def test_a_scale_for_each_block(opset, dtype, axis, block_size, shape):
    if opset >= 21:
        zero_point = integers("int8", *shape).clip(0).astype(dtype)
        attributes = {"opset": opset, "axis": axis, "block_size": block_size}
        check_node("QuantizeLinear", floats(5, 6, scale=40), scales(*shape), zero_point, **attributes)
        check_node("DequantizeLinear", integers(dtype, 5, 6), scales(*shape), zero_point, **attributes)


def test_quantizing_to_a_type_that_no_zero_point_names():
    check_node("QuantizeLinear", floats(5, 6), scalar(0.5), opset=10)
    for number, dtype in ((2, "uint8"), (3, "int8"), (4, "uint16"), (5, "int16")):
        (output,) = check_node("QuantizeLinear", floats(5, 6, scale=300), scalar(0.5), opset=21, output_dtype=number)
        assert output.dtype == dtype


def test_quantizing_integers():
    values = np.array([2**24 + 1, 700, -5, 9, 11], np.int32)
    check_node("QuantizeLinear", values, scalar(2), scalar(3, "uint8"), opset=13, reference="onnx")


@pytest.mark.parametrize("dtype", BYTES + WORDS)
def test_float16(dtype):
    half, scale = floats(500, scale=30).astype(np.float16), scalar(0.37, np.float16)
    for opset in (21, 23):  # the division is in float32, and in float16: 1 in 100 differs
        check_node("QuantizeLinear", half, scale, scalar(7, dtype), opset=opset)
    check_node("DequantizeLinear", integers(dtype, 300), scalar(0.0137, np.float16), scalar(9, dtype), opset=21)


def test_quantizing_in_a_given_precision():
    values = floats(500, scale=30)
    coarse, fine = (
        check_node(
            "QuantizeLinear", values, scalar(0.37), scalar(0, "uint8"), opset=23, precision=number, reference=[expected]
        )
        for number, expected in (
            (10, np.rint(values.astype(np.float16) / np.float16(0.37)).clip(0, 255).astype(np.uint8)),
            (1, np.rint(values / np.float32(0.37)).clip(0, 255).astype(np.uint8)),
        )
    )
    assert (coarse[0] != fine[0]).any()


def test_dequantizing_to_another_type():
    values = integers("int8", 4, 5)
    for number, dtype in ((1, np.float32), (10, np.float16)):
        expected = (values * np.float32(0.25)).astype(dtype)
        check_node("DequantizeLinear", values, scalar(0.25), opset=23, output_dtype=number, reference=[expected])


def test_dequantizing_int32():
    check_node("DequantizeLinear", np.array([2**24 + 1, 2**30 + 65, -5, 7], np.int32), scalar(2), opset=13)
    check_node("DequantizeLinear", integers("int32", 4, 3), scales(3), opset=13, axis=1)


def test_constant_weights_give_the_same():
    inputs = (integers("int8", 4, 5), scales(5), np.zeros(5, np.int8))
    free, fixed = (check_node("DequantizeLinear", *inputs, opset=13, constant=each) for each in ((), (0, 1, 2)))
    np.testing.assert_array_equal(free[0], fixed[0])


def test_what_quantizing_declines():
    check_declined(
        "QuantizeLinear",
        floats(4),
        scalar(1),
        opset=21,
        output_dtype=6,
        because="output_dtype int32 is not one of",
        output_types=["uint8"],
    )
    check_declined(
        "QuantizeLinear",
        floats(4),
        scalar(1),
        scalar(1, "int8"),
        opset=21,
        output_dtype=2,
        because="not the type of y_zero_point",
        output_types=["int8"],
    )
    check_declined("QuantizeLinear", floats(4), scalar(1), opset=23, precision=11, because="a precision of number 11")
    check_declined("DequantizeLinear", integers("int8", 4), scalar(1, np.float64), because="element type float64")


@pytest.mark.parametrize(
    "values", [floats(50), floats(3, 4, seed=1) + 90, [0, 0], [1, 1], [-1, -1], [-3, 2], [1e-40, 0], np.zeros((0, 3))]
)
def test_dynamic_quantization(values):
    check_node("DynamicQuantizeLinear", np.asarray(values, np.float32), opset=11, outputs=3)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20))
def test_dynamic_quantization_of_anything(values):
    check_node("DynamicQuantizeLinear", np.array(values, np.float32), opset=11, outputs=3)


each_pair = pytest.mark.parametrize(("left", "right"), [(left, right) for left in BYTES for right in BYTES])


@each_pair
@pytest.mark.parametrize("size", [1, 256, 257, 1000])
def test_integer_products(left, right, size):
    a, b = integers(left, 3, size), integers(right, size, 4)
    check_node("MatMulInteger", a, b, opset=10, reference="onnx")
    for zero_point in (scalar(7, right), integers(right, 4)):
        check_node("MatMulInteger", a, b, scalar(3, left), zero_point, opset=10, reference="onnx")
    check_node("MatMulInteger", a, b, integers(left, 3)[:, None], integers(right, 4), opset=10, reference="onnx")


def test_integer_products_by_row():
    a, b, zero_point = integers("uint8", 3, 20), integers("int8", 20, 4), integers("uint8", 3)
    expected = (a.astype(np.int32) - zero_point[:, None].astype(np.int32)) @ b.astype(np.int32)
    check_node("MatMulInteger", a, b, zero_point, opset=10, reference=[expected])


@pytest.mark.parametrize("left", ["uint8", "int8"])
def test_the_largest_sums_are_exact(left):
    limits = np.iinfo(left)
    a = np.full((2, 5000), limits.max, left)
    a[1] = limits.min
    a[:, 17] -= np.array([1, 0], left)
    check_node("MatMulInteger", a, a.T.copy(), scalar(limits.min, left), scalar(limits.max, left), reference="onnx")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((2, 3, 300), (300, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((300,), (300, 2)),
        ((4, 300), (300,)),
        ((7,), (7,)),
        ((2, 0), (0, 3)),
    ],
)
def test_integer_products_of_other_ranks(first, second):
    check_node("MatMulInteger", integers("uint8", *first), integers("int8", *second), opset=10, reference="onnx")


@each_pair
@pytest.mark.parametrize("result", BYTES)
@pytest.mark.parametrize("opset", [10, 21])
@pytest.mark.parametrize("size", [2, 64, 700])
def test_quantized_products(left, right, result, opset, size):
    inputs = [
        integers(left, 3, size),
        scalar(0.03),
        scalar(5, left),
        integers(right, size, 4),
        scalar(0.02),
        scalar(9, right),
        scalar(0.05 * size**0.5),
        scalar(11, result),
    ]
    reference = "cpu" if (left, right, result) in KNOWN_TO_ONNXRUNTIME else "onnx"
    check_node("QLinearMatMul", *inputs, opset=opset, reference=reference)
    inputs[4:6] = scales(4, size=0.03), integers(right, 4)
    check_node("QLinearMatMul", *inputs, opset=opset, reference=reference)


KNOWN_TO_ONNXRUNTIME = {("uint8", "uint8", "uint8"), ("uint8", "int8", "uint8"), ("int8", "int8", "int8")}


def test_quantized_products_that_fall_on_halves():
    a, b = integers("uint8", 60, 30), integers("uint8", 30, 60)
    check_node(
        "QLinearMatMul",
        *(a, scalar(0.5), scalar(5, "uint8"), b, scalar(0.5), scalar(9, "uint8"), scalar(512), scalar(101, "uint8")),
        opset=10,
    )


CONVOLUTIONS = {
    "plain": ((2, 3, 9, 9), (4, 3, 3, 3), {}),
    "padded, many channels": ((1, 64, 5, 5), (8, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
    "strided": ((2, 3, 9, 8), (4, 3, 3, 3), {"strides": [2, 3], "pads": [1, 0, 2, 1]}),
    "dilated": ((2, 3, 9, 9), (4, 3, 3, 3), {"dilations": [2, 1]}),
    "grouped": ((2, 4, 9, 9), (6, 2, 3, 3), {"group": 2}),
    "depthwise": ((2, 4, 9, 9), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    "depthwise, two for each": ((2, 4, 9, 9), (8, 1, 3, 3), {"group": 4, "strides": [2, 2]}),
    "one channel": ((2, 1, 9, 9), (3, 1, 3, 3), {}),
    "one place": ((2, 300, 3, 3), (5, 300, 1, 1), {}),
    "same upper": ((2, 3, 9, 8), (4, 3, 3, 2), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "same lower": ((2, 3, 9, 8), (4, 3, 2, 3), {"auto_pad": "SAME_LOWER"}),
    "valid": ((2, 3, 9, 8), (4, 3, 2, 3), {"auto_pad": "VALID", "kernel_shape": [2, 3]}),
    "one dimension": ((2, 3, 9), (4, 3, 3), {"pads": [1, 1]}),
    "three dimensions": ((1, 2, 5, 5, 5), (3, 2, 2, 2, 2), {}),
}


@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.parametrize(("image", "weight"), [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")])
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("constant", [(), (3, 4, 5, 8)])
def test_quantized_convolutions(case, image, weight, by_channel, constant):
    image_shape, weight_shape, attributes = case
    channels = weight_shape[0]
    terms = np.prod(weight_shape[1:])
    check_node(
        "QLinearConv",
        integers(image, *image_shape),
        scalar(0.03),
        scalar(5, image),
        integers(weight, *weight_shape),
        scales(channels, size=0.02) if by_channel else scalar(0.01),
        np.full(channels, 4, weight) if by_channel else scalar(4, weight),
        scalar(0.03 * terms**0.5),
        scalar(11, image),
        np.random.default_rng(1).integers(-1000, 1000, channels, np.int32),
        opset=10,
        constant=constant,
        **attributes,
    )


def test_a_quantized_convolution_without_a_bias_and_with_unknown_sizes():
    inputs = [
        *(integers("uint8", 2, 3, 7, 7), scalar(0.03), scalar(5, "uint8")),
        *(integers("int8", 4, 3, 3, 3), scalar(0.01), scalar(0, "int8"), scalar(0.2), scalar(11, "uint8")),
    ]
    check_node("QLinearConv", *inputs, opset=10)
    check_node("QLinearConv", *inputs, opset=10, dynamic=True, constant=(3, 4, 5))


@given(
    st.sampled_from(BYTES + WORDS),
    st.sampled_from([(), (3,), (4,)]),
    st.floats(2**-10, 2**10, width=32),
    st.lists(st.floats(-(2**17), 2**17, width=32), min_size=12, max_size=12),
    st.integers(0, 100),
)
def test_quantizing_anything(dtype, shape, scale, values, zero_point):
    steps = np.full(shape, scale, np.float32)
    if shape:
        steps *= np.arange(1, 1 + shape[0])
    zero_points = np.full(shape, zero_point, dtype)
    attributes = {"opset": 21, "axis": 0 if shape == (3,) else 1}
    numbers = np.array(values, np.float32).reshape(3, 4)
    (quantized,) = check_node("QuantizeLinear", numbers, steps, zero_points, **attributes)
    check_node("DequantizeLinear", quantized, steps, zero_points, **attributes)


@pytest.mark.parametrize("operator", ["QuantizeLinear", "DequantizeLinear"])
@pytest.mark.parametrize(
    ("shape", "scale", "zero_point", "attributes"),
    [
        ((3, 4), (3,), (3,), {"axis": 1}),
        ((3, 1), (4,), (4,), {"axis": 1}),
        ((3, 4), (4,), (), {"axis": 1}),
        ((3, 4), (), (4,), {"axis": 1}),
        ((3, 4), (1, 1), (1, 1), {"axis": 1}),
        ((3, 4), (4,), (4,), {"axis": 2}),
        ((3, 4), (4,), (4,), {"axis": -3}),
        ((3, 5), (3, 2), (3, 2), {"axis": 1, "block_size": 2}),
        ((3, 4), (3, 4), (3, 4), {"axis": 1, "block_size": 2}),
        ((3, 4), (1, 2), (1, 2), {"axis": 1, "block_size": 2}),
        ((3, 4), (3, 2), (3, 2), {"axis": 1, "block_size": -2}),
    ],
)
def test_scales_and_zero_points_that_do_not_fit(shape, scale, zero_point, attributes, operator):
    x = floats(*shape) if operator == "QuantizeLinear" else integers(np.uint8, *shape)
    refusal = "scale|no axis|block_size"
    parameters = np.ones(scale, np.float32), np.zeros(zero_point, np.uint8)
    check_refused(operator, x, *parameters, dynamic=True, match=refusal, **attributes)


@pytest.mark.parametrize(("a", "b"), [((3, 256), (300, 2)), ((3, 300), (256, 2)), ((256,), (300,)), ((), (4,))])
def test_products_of_sizes_that_differ(a, b):
    a, b = np.ones(a, np.uint8), np.ones(b, np.uint8)
    check_refused("MatMulInteger", a, b, index=0, match="have no matrix product", dynamic=True)
    one, zero = scalar(1), scalar(0, np.uint8)
    inputs = a, one, zero, b, one, zero, one, zero
    check_refused("QLinearMatMul", *inputs, index=0, match="have no matrix product", dynamic=True)


def quantized_convolution(x=(1, 2, 5, 5), w=(3, 2, 3, 3), bias=None, **others):
    inputs = [integers(np.uint8, *x), scalar(1), scalar(0, np.uint8), integers(np.uint8, *w), scalar(1),
              scalar(0, np.uint8), scalar(900), scalar(0, np.uint8)]  # fmt: skip
    for index, shape in others.items():
        inputs[int(index[1:])] = np.ones(shape, inputs[int(index[1:])].dtype)
    return inputs if bias is None else [*inputs, np.ones(bias, np.int32)]


@pytest.mark.parametrize(
    ("shapes", "attributes"),
    [
        ({"x": (1, 3, 5, 5)}, {}),
        ({"w": (3, 1, 3, 3)}, {"group": 2}),
        ({"w": (3, 2, 3)}, {}),
        ({"bias": (1,)}, {}),
        ({"i1": (3,)}, {}),
        ({"i4": (2,)}, {}),
        ({"i5": (3, 1)}, {}),
        ({"i7": (1, 3)}, {}),
        ({}, {"kernel_shape": [2, 2]}),
        ({}, {"strides": [0, 1]}),
        ({}, {"group": 0}),
    ],
)
def test_quantized_convolutions_that_do_not_fit(shapes, attributes):
    inputs = quantized_convolution(**shapes)
    refusal = "does not fit an image|must have|kernel_shape|strides|group|same rank"
    check_refused("QLinearConv", *inputs, index=0, match=refusal, dynamic=True, **attributes)


def test_quantized_convolutions_without_elements():
    check_node("QLinearConv", *quantized_convolution(x=(0, 2, 5, 5)), dynamic=True)
    check_node("QLinearConv", *quantized_convolution(w=(0, 2, 3, 3)), dynamic=True)
    nothing = quantized_convolution(x=(1, 0, 5, 5), w=(3, 0, 3, 3), bias=(3,))
    expected = np.zeros((1, 3, 3, 3), np.uint8)
    check_node("QLinearConv", *nothing, reference=[expected], dynamic=True)


@pytest.mark.parametrize(("index", "shape"), [(2, (3,)), (2, (1, 3)), (3, (3,)), (3, (2, 1))])
def test_zero_points_of_matrices_that_do_not_fit(index, shape):
    inputs = [np.ones((1, 4), np.uint8), np.ones((4, 2), np.uint8), *[scalar(0, np.uint8)] * 2]
    inputs[index] = np.zeros(shape, np.uint8)
    check_refused("MatMulInteger", *inputs, index=index, match="a parameter of [ab] has shape", dynamic=True)
