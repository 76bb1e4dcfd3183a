"""Fused and channels-last convolutions of com.microsoft, against ONNX Runtime's CPU provider; where that has no kernel,
against its Conv between two transposes."""

from __future__ import annotations

import numpy as np
import pytest

from opgraft.testing import check_declined, check_node, node_model, reference_outputs

FUSED, NHWC, NHWC_FUSED, NHWC_POOL = (
    f"com.microsoft::{name}" for name in ("FusedConv", "NhwcConv", "NhwcFusedConv", "NhwcMaxPool")
)
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3}


def floats(*shape, dtype="float32", seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def last(x):
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def convolved(x, w, b, **attributes):
    """ONNX Runtime's Conv in float32, or ONNX's reference in float64."""
    wide = np.float64 if x.dtype == np.float64 else np.float32
    inputs = [None if each is None else each.astype(wide) for each in (x, w, b)]
    inputs = inputs[: 2 if b is None else 3]
    feeds = {f"x{index}": each for index, each in enumerate(inputs)}
    return reference_outputs(node_model("Conv", inputs, **attributes), feeds, "onnx" if wide is np.float64 else "cpu")[
        0
    ]


ACTIVATIONS = {
    None: (),
    "Clip": (-0.5, 1.5),
    "HardSigmoid": (0.3, 0.4),
    "HardSwish": (),
    "LeakyRelu": (0.1,),
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
}


def attributes_of(activation):
    numbers = {"activation_params": list(ACTIVATIONS[activation])} if ACTIVATIONS[activation] else {}
    return {} if activation is None else {"activation": activation, **numbers}


PLACES = [
    ((2, 3, 6, 7), (4, 3, 3, 3), {}),
    ((1, 9, 6, 7), (4, 9, 1, 1), {}),
    ((1, 4, 6, 7), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    ((1, 4, 7, 7), (6, 2, 3, 2), {"group": 2, "strides": [2, 2], "dilations": [2, 1]}),
    ((2, 3, 9), (4, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2]}),
]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("image", "weight", "place"), PLACES)
@pytest.mark.parametrize("constant", [(), (1,)])
def test_fused_convolution(activation, image, weight, place, constant):
    settings = {**place, **attributes_of(activation), "constant": constant, "output_types": ["float32"]}
    x, w, b = floats(*image), floats(*weight), floats(weight[0], seed=1)
    check_node(FUSED, x, w, **settings)
    check_node(FUSED, x, w, b, **settings)
    z = floats(*convolved(x, w, b, **place).shape, seed=2)
    if len(image) == 4:
        check_node(FUSED, x, w, b, z, **settings)
        check_node(FUSED, x, w, None, z, **settings)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_fused_convolution_in_other_element_types(dtype):
    x, w, b, z = (floats(*shape, dtype=dtype) for shape in [(2, 3, 6, 7), (4, 3, 3, 3), (4,), (2, 4, 4, 5)])
    expected = np.maximum(convolved(x, w, b) + z, 0).astype(dtype)
    settings = {"activation": "Relu", "output_types": [dtype], "tolerance": TOLERANCE[dtype]}
    check_node(FUSED, x, w, b, z, reference=[expected], **settings)


def test_what_fused_convolution_declines():
    inputs = floats(1, 2, 4, 4), floats(2, 2, 3, 3)
    settings = {"output_types": ["float32"]}
    check_declined(FUSED, *inputs, activation="Gelu", because="activation Gelu is not one of", **settings)
    check_declined(FUSED, *inputs, activation="LeakyRelu", because="takes 1 numbers, and 0 are given", **settings)
    z = floats(1, 2, 3, 3)
    check_declined(FUSED, *inputs, None, z, because="Z has shape [1, 2, 3, 3], and must have [1, 2, 2, 2]", **settings)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("image", "weight", "place"), PLACES)
@pytest.mark.parametrize("constant", [(), (1,)])
def test_channels_last(dtype, image, weight, place, constant):
    x, w, b = floats(*image, dtype=dtype), floats(*weight, dtype=dtype), floats(weight[0], dtype=dtype, seed=1)
    y = convolved(x, w, b, **place)
    z = floats(*y.shape, dtype=dtype, seed=2)
    expected, fused = last(y.astype(dtype)), last(np.maximum(y + z, 0).astype(dtype))
    settings = {**place, "constant": constant, "output_types": [dtype], "tolerance": TOLERANCE[dtype]}
    # ONNX Runtime's shape inference takes the kernel's size from the attribute, or from the wrong axes.
    check_node(NHWC, last(x), last(w), b, reference=[expected], kernel_shape=weight[2:], **settings)
    check_node(NHWC_FUSED, last(x), w, b, last(z), reference=[fused], activation="Relu", **settings)
    check_node(NHWC_FUSED, last(x), w, b, reference=[expected], **settings)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("image", "attributes"),
    [
        ((2, 6, 7, 3), {"kernel_shape": [2, 2]}),
        ((2, 6, 7, 3), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ((2, 6, 7, 3), {"kernel_shape": [3, 2], "strides": [2, 2], "dilations": [2, 1]}),
        ((1, 7, 7, 5), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ((1, 7, 7, 5), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ((1, 7, 7, 5), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
        ((1, 7, 7, 5), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "VALID"}),
        ((2, 9, 3), {"kernel_shape": [3]}),
        ((1, 4, 5, 6, 2), {"kernel_shape": [2, 3, 2]}),
        ((1, 20, 20, 40), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1]}),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_max_pool(dtype, image, attributes, dynamic):
    limits = np.iinfo(dtype)
    x = np.random.default_rng(len(image)).integers(limits.min, limits.max, image, dtype, endpoint=True)
    check_node(NHWC_POOL, x, dynamic=dynamic, output_types=[dtype], **attributes)
