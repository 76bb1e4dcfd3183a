"""Convolutions, their transposes and Col2Im, against ONNX Runtime's CPU provider, ONNX's reference or NumPy."""

from __future__ import annotations

from itertools import product

import mlx.core as mx
import numpy as np
import pytest
from kit import check_refused

from opgraft.engine import Program
from opgraft.errors import TranslationError
from opgraft.graph.onnx_source import graph_of_model
from opgraft.ops import Context, to_host
from opgraft.plan import build_plan
from opgraft.registry import load_registry
from opgraft.testing import assert_same, check_declined, check_node, node_model, reference_outputs
from opgraft_ops import convolution as handlers

RNG = np.random.default_rng(7)


def normal(*shape, dtype="float32"):
    return RNG.normal(size=shape).astype(dtype)


def check(operator, x, w, *more, opset=21, **attributes):
    """`check_node` with constant weights and with weights that are inputs."""
    check_node(operator, x, w, *more, opset=opset, constant=(1,), **attributes)
    check_node(operator, x, w, *more, opset=opset, dynamic=True, **attributes)


def check_as_on_gpu(handler, operator, *inputs, **attributes):
    """The way a GPU takes through a translator, on the CPU, against ONNX Runtime."""
    model = node_model(operator, inputs, **attributes)
    node = graph_of_model(model).nodes[0]
    arrays = [mx.array(each) for each in inputs]
    constant = [False] * len(inputs)
    context = Context(
        node, arrays, device="gpu", cache={}, constant=constant, bodies={}, random_key=lambda: mx.random.key(0)
    )
    with mx.stream(mx.cpu):
        output = to_host(handler(context, *arrays, **attributes))
    (expected,) = reference_outputs(model, {f"x{index}": each for index, each in enumerate(inputs)})
    assert_same(output, expected, 1e-5)


# Conv

SHAPES = {  # input channels, output channels, group
    "few channels": (3, 4, 1),
    "many channels": (9, 4, 1),
    "groups": (6, 4, 2),
    "depthwise": (5, 5, 5),
    "depthwise multiplied": (3, 6, 3),
    "wide groups": (16, 2, 2),
}


@pytest.mark.parametrize("channels", SHAPES)
@pytest.mark.parametrize("opset", [9, 11, 22])
def test_conv(channels, opset):
    c, m, group = SHAPES[channels]
    x, w, b = normal(2, c, 7, 6), normal(m, c // group, 3, 2), normal(m)
    check("Conv", x, w, b, group=group, pads=[1, 0, 2, 1], opset=opset)
    check("Conv", x, w, group=group, strides=[2, 3], dilations=[2, 1], pads=[2, 1, 2, 0], opset=opset)


@pytest.mark.parametrize("channels", SHAPES)
@pytest.mark.parametrize("sizes", [(9,), (4, 5, 6)])
def test_conv_in_one_and_three_dimensions(sizes, channels):
    c, m, group = SHAPES[channels]
    kernel = (3, 2, 2)[: len(sizes)]
    check(
        "Conv", normal(2, c, *sizes), normal(m, c // group, *kernel), normal(m), group=group, kernel_shape=list(kernel)
    )
    check("Conv", normal(1, c, *sizes), normal(m, c // group, *kernel), group=group, strides=[2] * len(sizes))


@pytest.mark.parametrize("channels", ["few channels", "many channels", "depthwise"])
@pytest.mark.parametrize("auto_pad", ["VALID", "SAME_UPPER", "SAME_LOWER"])
def test_conv_auto_pad(auto_pad, channels):
    c, m, group = SHAPES[channels]
    for stride, size in product((1, 2, 3), (6, 7)):
        x, w = normal(1, c, size, 5), normal(m, c // group, 2, 3)
        check("Conv", x, w, group=group, auto_pad=auto_pad, strides=[stride, 1])


def test_conv_same_of_dilated_windows_keeps_the_size():
    x, w = np.arange(1, 8, dtype=np.float32).reshape(1, 1, 7), np.array([[[1, 10, 100]]], np.float32)
    padded = np.pad(x[0, 0], 2)
    expected = np.array([[[padded[o] + 10 * padded[o + 2] + 100 * padded[o + 4] for o in range(7)]]], np.float32)
    check_node("Conv", x, w, auto_pad="SAME_UPPER", dilations=[2], reference=[expected])


@pytest.mark.parametrize("group", [1, 8])
def test_conv_pointwise(group):
    x, w = normal(2, 8, 5, 4), normal(16, 8 // group, 1, 1)
    check("Conv", x, w, normal(16), group=group)
    check("Conv", x, w, group=group, pads=[1, 0, 0, 1])
    check("Conv", x, w, group=group, strides=[2, 2])


@pytest.mark.parametrize("channels", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float16", 2e-3)])
def test_conv_dtypes(dtype, tolerance, channels):
    c, m, group = SHAPES[channels]
    x, w, b = normal(1, c, 5, 5, dtype=dtype), normal(m, c // group, 3, 3, dtype=dtype), normal(m, dtype=dtype)
    exact = [each.astype(np.float64) for each in (x, w, b)]
    model = node_model("Conv", exact, group=group)
    (expected,) = reference_outputs(model, dict(zip(("x0", "x1", "x2"), exact, strict=True)), "onnx")
    check_node("Conv", x, w, b, group=group, reference=[expected.astype(dtype)], tolerance=tolerance)


def test_conv_bfloat16():
    x, w = normal(1, 9, 4, 4), normal(2, 9, 3, 3)
    bits = [(each.view(np.uint32) >> 16).astype(np.uint16) for each in (x, w)]
    model = node_model("Conv", [x, w], opset=22)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = 16
    program = Program(build_plan(graph_of_model(model)), load_registry(), "cpu")
    (output,) = program.run(bits)
    assert output.dtype == mx.bfloat16
    rounded = [(each.astype(np.uint32) << 16).view(np.float32) for each in bits]
    (expected,) = reference_outputs(node_model("Conv", rounded), dict(zip(("x0", "x1"), rounded, strict=True)))
    assert_same(to_host(output), expected, 1e-2)


@pytest.mark.parametrize(("x", "w"), [((0, 3, 4, 4), (2, 3, 3, 3)), ((1, 9, 4, 4), (0, 9, 3, 3))])
def test_conv_of_nothing(x, w):
    expected = np.zeros((x[0], w[0], x[2] - w[2] + 1, 2), np.float32)
    check_node("Conv", normal(*x), normal(*w), reference=[expected])


@pytest.mark.parametrize("sizes", [(5,), (5, 4), (4, 5, 3)])
def test_convolutions_of_no_channels_are_their_bias(sizes):
    x, kernel = normal(2, 0, *sizes), [3, 2, 2][: len(sizes)]
    for bias in ([], [normal(3)]):
        check("Conv", x, normal(3, 0, *kernel), *bias)
        check("ConvTranspose", x, normal(0, 3, *kernel), *bias)
    quantized = [np.ones(each, np.uint8) for each in (x.shape, (3, 0, *kernel))]
    (of_floats,) = check_node("Conv", x, normal(3, 0, *kernel))
    check_node("ConvInteger", *quantized, reference=[of_floats.astype(np.int32)])  # ONNX Runtime leaves it unset


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose", "ConvInteger"])
@pytest.mark.parametrize("kernel", [(0,), (0, 3), (3, 0), (0, 0)])
def test_empty_kernels_are_refused(operator, kernel):
    dtype = "uint8" if operator == "ConvInteger" else "float32"
    x, w = np.ones((1, 2, *[5] * len(kernel)), dtype), np.ones((2, 2, *kernel), dtype)
    check_declined(operator, x, w, because="is empty")
    with pytest.raises(TranslationError, match="is empty"):
        check_node(operator, x, w, dynamic=True, reference=[])


@pytest.mark.parametrize("operator", ["Conv", "ConvInteger"])
@pytest.mark.parametrize(
    ("sizes", "kernel", "attributes"),
    [
        ((2, 2), (3, 3), {"strides": [2, 2]}),
        ((2, 2), (3, 3), {}),
        ((5, 2), (3, 5), {"pads": [0, 1, 0, 1], "strides": [1, 3]}),
        ((2, 2), (2, 2), {"dilations": [2, 1], "strides": [2, 2]}),
        ((0, 4), (1, 3), {}),
        ((2,), (4,), {"strides": [3], "auto_pad": "VALID"}),
    ],
)
def test_kernels_larger_than_the_padded_image_are_refused(operator, sizes, kernel, attributes):
    """As ONNX Runtime does, and not only where the sizes are known beforehand."""
    dtype = "uint8" if operator == "ConvInteger" else "float32"
    x, w = np.ones((1, 1, *sizes), dtype), np.ones((1, 1, *kernel), dtype)
    model = node_model(operator, [x, w], dynamic=True, **attributes)
    with pytest.raises(Exception, match="Invalid input shape"):
        reference_outputs(model, {"x0": x, "x1": w})
    check_declined(operator, x, w, because="too large", **attributes)
    with pytest.raises(TranslationError, match="too large"):
        check_node(operator, x, w, dynamic=True, reference=[], **attributes)


def test_conv_transpose_of_pads_that_leave_nothing_is_refused():
    x, w = normal(1, 1, 2, 2), normal(1, 1, 3, 3)
    for pad in (2, 3):
        check_declined("ConvTranspose", x, w, pads=[pad] * 4, because="leave nothing")
        with pytest.raises(TranslationError, match="leave nothing"):
            check_node("ConvTranspose", x, w, pads=[pad] * 4, dynamic=True, reference=[])


def test_conv_nan_and_infinity_stay_where_they_reach():
    for c in (3, 9):
        x = normal(1, c, 6, 6)
        x[0, 0, 1, 1], x[0, 0, 4, 4] = np.nan, np.inf
        check_node("Conv", x, normal(2, c, 2, 2), pads=[1, 1, 1, 1])


def test_conv_larger_than_the_image_cuts_nothing_that_counts():
    check_node("Conv", normal(1, 9, 3), normal(2, 9, 1), pads=[5, 0], strides=[10])


def test_conv_declines():
    check_declined("Conv", normal(2, 3), normal(4, 3), because="axes beside batch and channels")


@pytest.mark.parametrize("channels", SHAPES)
def test_conv_as_on_a_gpu(channels):
    c, m, group = SHAPES[channels]
    arguments = normal(2, c, 7, 6), normal(m, c // group, 3, 2), normal(m)
    check_as_on_gpu(handlers.conv, "Conv", *arguments, group=group, strides=[2, 1], pads=[1, 0, 2, 1], dilations=[1, 2])
    volumes = normal(1, c, 4, 5, 3), normal(m, c // group, 2, 2, 1)
    check_as_on_gpu(handlers.conv, "Conv", *volumes, group=group)


# ConvTranspose


@pytest.mark.parametrize("channels", [(3, 2, 1), (9, 4, 1), (4, 2, 2), (5, 1, 5), (3, 2, 3)])
@pytest.mark.parametrize("opset", [9, 11, 22])
def test_conv_transpose(channels, opset):
    c, per_group, group = channels
    x, w, b = normal(2, c, 4, 3), normal(c, per_group, 3, 4), normal(per_group * group)
    check("ConvTranspose", x, w, b, group=group, opset=opset)
    check("ConvTranspose", x, w, group=group, strides=[2, 3], pads=[1, 0, 0, 2], output_padding=[1, 2], opset=opset)
    check("ConvTranspose", x, w, b, group=group, strides=[3, 1], dilations=[2, 1], opset=opset)


@pytest.mark.parametrize("sizes", [(5,), (2, 3, 4)])
def test_conv_transpose_in_one_and_three_dimensions(sizes):
    rank = len(sizes)
    check("ConvTranspose", normal(1, 3, *sizes), normal(3, 2, *[2] * rank), normal(2), strides=[3] * rank)


@pytest.mark.parametrize("auto_pad", ["VALID", "SAME_UPPER", "SAME_LOWER", "NOTSET"])
def test_conv_transpose_auto_pad_and_output_shape(auto_pad):
    x, w = normal(1, 3, 4, 5), normal(3, 2, 3, 4)
    check("ConvTranspose", x, w, auto_pad=auto_pad, strides=[2, 3])
    for shape in ([8, 15], [7, 16], [9, 14]):
        check("ConvTranspose", x, w, auto_pad=auto_pad, strides=[2, 3], output_shape=shape)


def test_conv_transpose_strides_longer_than_the_kernel_leave_the_bias():
    check("ConvTranspose", normal(1, 3, 3, 3), normal(3, 2, 1, 2), normal(2), strides=[3, 4], output_padding=[2, 1])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float16", 2e-3)])
def test_conv_transpose_dtypes(dtype, tolerance):
    x, w = normal(1, 3, 4, 4, dtype=dtype), normal(3, 2, 3, 3, dtype=dtype)
    check_node("ConvTranspose", x, w, strides=[2, 2], reference="onnx", tolerance=tolerance)


def test_conv_transpose_declines_an_output_that_nothing_reaches():
    x, w = normal(1, 1, 3), normal(1, 1, 2)
    check_declined("ConvTranspose", x, w, output_shape=[9], because="places that no stride reaches")


def test_conv_transpose_of_nothing():
    check_node("ConvTranspose", normal(0, 3, 4), normal(3, 2, 2), reference=[np.zeros((0, 2, 5), np.float32)])


@pytest.mark.parametrize("group", [1, 3])
def test_conv_transpose_as_on_a_gpu(group):
    arguments = normal(2, 3, 4, 3), normal(3, 2, 3, 4), normal(2 * group)
    attributes = {"group": group, "strides": [2, 3], "pads": [1, 0, 0, 2], "output_padding": [1, 2]}
    check_as_on_gpu(handlers.conv_transpose, "ConvTranspose", *arguments, **attributes)
    check_as_on_gpu(handlers.conv_transpose, "ConvTranspose", *arguments, group=group, dilations=[2, 1])


# ConvInteger


def integers(dtype, *shape):
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, size=shape).astype(dtype)


def convolved(x, w, x_zero, w_zero, group=1):
    """The same in 64-bit integers, without padding or strides."""
    x = x.astype(np.int64) - np.asarray(x_zero, np.int64)
    w = w.astype(np.int64) - np.asarray(w_zero, np.int64).reshape(-1, 1, 1, 1)
    views = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
    views = views.reshape(len(x), group, -1, *views.shape[2:])
    parts = [np.einsum("nchwij,mcij->nmhw", views[:, g], part) for g, part in enumerate(np.split(w, group))]
    return np.concatenate(parts, 1).astype(np.int32)


@pytest.mark.parametrize("channels", SHAPES)
@pytest.mark.parametrize("dtypes", [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8"), ("int8", "uint8")])
def test_conv_integer(dtypes, channels):
    c, m, group = SHAPES[channels]
    x, w = integers(dtypes[0], 2, c, 5, 4), integers(dtypes[1], m, c // group, 3, 2)
    x_zero, w_zero, w_zeros = integers(dtypes[0]), integers(dtypes[1]), integers(dtypes[1], m)
    check_node("ConvInteger", x, w, group=group, reference=[convolved(x, w, 0, 0, group)])
    check_node("ConvInteger", x, w, x_zero, group=group, reference=[convolved(x, w, x_zero, 0, group)])
    for zero, constant in ((w_zero, ()), (w_zeros, (1,)), (w_zeros, (1, 3))):
        expected = [convolved(x, w, x_zero, zero, group)]
        check_node("ConvInteger", x, w, x_zero, zero, group=group, constant=constant, reference=expected)


def test_conv_integer_pads_with_the_zero_point():
    x, w = integers("uint8", 1, 3, 6, 5), integers("uint8", 4, 3, 3, 3)
    zeros = np.array(17, np.uint8), np.array(201, np.uint8)
    check_node("ConvInteger", x, w, *zeros, pads=[1, 2, 0, 1], strides=[2, 1], dilations=[1, 2])
    check_node("ConvInteger", x, w, auto_pad="SAME_LOWER", strides=[2, 2])


@pytest.mark.parametrize("channels", [300, 520])
def test_conv_integer_is_exact_for_the_largest_sums(channels):
    x, w = np.full((1, channels, 4, 4), 255, np.uint8), np.full((2, channels, 3, 3), 255, np.uint8)
    w[1, ::2] = 254
    check_node("ConvInteger", x, w, reference=[convolved(x, w, 0, 0)])


# Col2Im


def test_col2im():
    for image, block, attributes in (
        ([5, 5], [2, 3], {}),
        ([6, 5], [2, 2], {"strides": [2, 3]}),
        ([4, 5], [3, 2], {"pads": [1, 0, 2, 1], "dilations": [1, 2]}),
        ([7], [3], {"strides": [2], "pads": [1, 1]}),
        ([3, 4, 5], [2, 2, 1], {"strides": [1, 2, 2], "pads": [0, 1, 0, 1, 0, 1]}),
    ):
        rank = len(image)
        strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
        pads = attributes.get("pads", [0] * 2 * rank)
        room = [image[a] + pads[a] + pads[a + rank] - (block[a] - 1) * dilations[a] - 1 for a in range(rank)]
        places = int(np.prod([each // stride + 1 for each, stride in zip(room, strides, strict=True)]))
        x = normal(2, 3 * int(np.prod(block)), places)
        check_node("Col2Im", x, np.array(image), np.array(block), constant=(1, 2), **attributes)
        check_node("Col2Im", x, np.array(image), np.array(block), reference="onnx", **attributes)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint64", "float64", "float16"])
def test_col2im_dtypes(dtype):
    x = RNG.integers(0, 9, size=(1, 8, 9)).astype(dtype)
    check_node("Col2Im", x, np.array([4, 4]), np.array([2, 2]), reference="onnx")


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose", "ConvInteger"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": [0, 1]},
        {"strides": [-1, 1]},
        {"dilations": [0, 1]},
        {"dilations": [-1, 1]},
        {"kernel_shape": [2, 2]},
        {"kernel_shape": [3]},
        {"kernel_shape": [-3, 3]},
        {"group": 0},
        {"group": 5},
        {"auto_pad": "SAME"},
    ],
)
def test_attributes_that_do_not_fit(operator, attributes):
    dtype = np.uint8 if operator == "ConvInteger" else np.float32
    w = (2, 3, 3, 3) if operator == "ConvTranspose" else (3, 2, 3, 3)
    inputs = np.ones((1, 2, 5, 5), dtype), np.ones(w, dtype)
    check_refused(operator, *inputs, index=0, match=next(iter(attributes)), dynamic=True, **attributes)


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_pads_stated_twice(operator):
    inputs = normal(1, 2, 5, 5), normal(2, 2, 3, 3)
    attributes = {"auto_pad": "SAME_UPPER", "pads": [1] * 4}
    check_refused(operator, *inputs, index=0, match="auto_pad and pads are given both", **attributes)


def test_negative_pads_are_declined():
    for operator in ("Conv", "ConvTranspose"):
        check_declined(operator, normal(1, 2, 5, 5), normal(2, 2, 3, 3), pads=[-1] * 4, because="elements below 0")


@pytest.mark.parametrize(
    ("operator", "x", "w", "bias", "attributes"),
    [
        ("Conv", (1, 3, 5, 5), (6, 1, 3, 3), None, {"group": 2}),
        ("Conv", (1, 4, 5, 5), (3, 2, 3, 3), None, {"group": 2}),
        ("Conv", (1, 3, 5, 5), (3, 2, 3, 3), None, {}),
        ("Conv", (1, 2, 5), (3, 2, 3, 3), None, {}),
        ("Conv", (1, 2, 5, 5), (3, 2, 3, 3), (1,), {}),
        ("Conv", (1, 3, 5, 5), (3, 1, 3, 3), (1,), {"group": 3}),
        ("ConvTranspose", (1, 2, 5, 5), (3, 2, 3, 3), None, {"group": 3}),
        ("ConvTranspose", (1, 2, 5, 5), (3, 2, 3, 3), None, {}),
        ("ConvTranspose", (1, 2, 5, 5), (2, 3, 3, 3), (1,), {}),
    ],
)
def test_weights_that_do_not_fit(operator, x, w, bias, attributes):
    inputs = [normal(*x), normal(*w), *([] if bias is None else [normal(*bias)])]
    refusal = "does not fit an image|B has shape|same rank"
    check_refused(operator, *inputs, match=refusal, dynamic=True, **attributes)


@pytest.mark.parametrize(
    "attributes",
    [{"output_padding": [-1, 0]}, {"output_padding": [2, 2]}, {"output_shape": [0, 9]}, {"output_shape": [-1, 9]}],
)
def test_outputs_that_do_not_fit(attributes):
    inputs = normal(1, 2, 5, 5), normal(2, 3, 3, 3)
    check_declined("ConvTranspose", *inputs, strides=[2, 2], because=next(iter(attributes)), **attributes)


def test_zero_points_that_do_not_fit():
    x, w = np.ones((1, 2, 5, 5), np.uint8), np.ones((3, 2, 3, 3), np.uint8)
    zero = np.zeros((), np.uint8)
    check_refused("ConvInteger", x, w, np.zeros(2, np.uint8), index=2, match="x_zero_point has shape", dynamic=True)
    for shape in ((2,), (3, 1), (1, 3)):
        inputs = x, w, zero, np.zeros(shape, np.uint8)
        check_refused("ConvInteger", *inputs, index=3, match="w_zero_point has shape", dynamic=True)


@pytest.mark.parametrize(
    ("shape", "image", "block", "attributes"),
    [
        ((1, 4, 15), (5, 5), (2, 2), {}),
        ((1, 5, 16), (5, 5), (2, 2), {}),
        ((1, 4, 16), (-5, 5), (2, 2), {}),
        ((1, 4, 16), (5, 5), (0, 2), {}),
        ((1, 4, 16), (5,), (2, 2), {}),
        ((0, 4, 15), (5, 5), (2, 2), {}),
        ((1, 4, 16), (5, 5), (2, 2), {"strides": [0, 1]}),
        ((1, 4, 16), (5, 5), (2, 2), {"dilations": [0, 1]}),
        ((1, 4, 16), (5, 5), (2, 2), {"strides": [1]}),
    ],
)
def test_columns_that_do_not_fit(shape, image, block, attributes):
    inputs = normal(*shape), np.array(image), np.array(block)
    refusal = "does not hold blocks|is empty|do not fit an image|too large|strides|dilations"
    check_refused("Col2Im", *inputs, match=refusal, dynamic=True, **attributes)
