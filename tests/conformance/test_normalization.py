"""Normalizations, against ONNX Runtime's CPU provider or NumPy in float64."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import check_refused
from onnx import TensorProto, helper

from opgraft.testing import check_declined, check_model, check_node
from opgraft_ops import normalization

TOLERANCE = {"float32": 2e-6, "float64": 1e-13, "float16": 2e-3, "bfloat16": 1.6e-2}
DEFAULT = float(np.float32(1e-5))
"""The default of epsilon: attributes are float32 numbers."""

EPSILON = 2.0**-7
"""Attributes are float32, which holds this exactly."""


def numpy_type(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def floats(*shape, dtype="float32", seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(numpy_type(dtype))


def wide(*arrays):
    return [np.asarray(each, np.float64) for each in arrays]


def standardized(x, axes, epsilon):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def by_channel(vector, rank):
    return vector.reshape(1, -1, *[1] * (rank - 2))


# LayerNormalization and RMSNormalization


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("axis", [-1, 1, 2, -3])
def test_layer_normalization(dtype, axis):
    x = floats(3, 4, 5, dtype=dtype)
    scale, bias = floats(*x.shape[axis:], dtype=dtype), floats(*x.shape[axis:], dtype=dtype, seed=1)
    axes = tuple(range(axis % 3, 3))
    x64, scale64, bias64 = wide(x, scale, bias)
    normal = standardized(x64, axes, DEFAULT)
    mean = x64.mean(axes, keepdims=True).astype(np.float32)
    inverse = (1 / np.sqrt(x64.var(axes, keepdims=True) + DEFAULT)).astype(np.float32)
    settings = {"opset": 17, "axis": axis, "tolerance": TOLERANCE[dtype]}
    expected = [(normal * scale64 + bias64).astype(x.dtype), mean, inverse]
    check_node("LayerNormalization", x, scale, bias, outputs=3, reference=expected, **settings)
    expected = [(normal * scale64).astype(x.dtype)]
    check_node("LayerNormalization", x, scale, reference=expected, **settings)


@pytest.mark.parametrize("shape", [(1,), (5,), (4, 1), (1, 4, 1), (3, 1, 5)])
def test_layer_normalization_broadcasts_scale_and_bias(shape):
    x, scale, bias = floats(3, 4, 5), floats(*shape), floats(*shape, seed=1)
    expected = standardized(*wide(x), (1, 2), 1e-3) * scale + bias
    settings = {"axis": 1, "epsilon": 1e-3, "tolerance": TOLERANCE["float32"]}
    check_node("LayerNormalization", x, scale, bias, reference=[expected.astype(np.float32)], **settings)


def test_layer_normalization_of_hard_rows():
    far = floats(4, 768) + 1000  # the deviation is a thousandth of the mean
    expected = standardized(*wide(far), (1,), DEFAULT).astype(np.float32)
    check_node("LayerNormalization", far, np.ones(768, np.float32), reference=[expected], tolerance=1e-4)
    flat = np.full((2, 4), 3, np.float32)
    check_node("LayerNormalization", flat, np.ones(4, np.float32), floats(4))
    for shape in ((0, 4), (2, 0, 4)):
        check_node("LayerNormalization", np.zeros(shape, np.float32), np.ones(4, np.float32))
    large = np.array([[60000, -60000, 60000, 0]], np.float16)
    expected = standardized(*wide(large), (1,), DEFAULT).astype(np.float16)
    check_node("LayerNormalization", large, np.ones(4, np.float16), reference=[expected], tolerance=2e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_kernels_of_the_gpu_give_the_same(dtype, monkeypatch):
    """MLX has its fused normalizations on the CPU too, where they are no faster."""
    x, scale, bias = floats(3, 40, dtype=dtype), floats(40, dtype=dtype), floats(40, dtype=dtype, seed=1)
    x64, scale64, bias64 = wide(x, scale, bias)
    normal = standardized(x64, (1,), DEFAULT)
    root = np.sqrt(np.square(x64).mean(1, keepdims=True) + DEFAULT)
    monkeypatch.setattr(normalization, "on_cpu", lambda: False)
    for operator, inputs, expected in (
        ("LayerNormalization", [scale, bias], normal * scale64 + bias64),
        ("LayerNormalization", [scale], normal * scale64),
        ("LayerNormalization", [scale[:1], bias], normal * scale64[:1] + bias64),
        ("RMSNormalization", [scale], x64 / root * scale64),
        ("RMSNormalization", [scale[:1]], x64 / root * scale64[:1]),
    ):
        expected = [expected.astype(x.dtype)]
        check_node(operator, x, *inputs, opset=23, reference=expected, tolerance=TOLERANCE[dtype])


def test_statistics_are_kept_in_the_type_asked_for():
    x, scale = floats(3, 4, dtype="float16"), floats(4, dtype="float16")
    (_, mean, inverse) = check_node("LayerNormalization", x, scale, outputs=3, tolerance=2e-3)
    settings = {"outputs": 3, "stash_type": TensorProto.BFLOAT16}
    rounded = [each.astype(ml_dtypes.bfloat16) for each in (mean, inverse)]
    y = check_node("LayerNormalization", x, scale, tolerance=2e-3)
    check_node("LayerNormalization", x, scale, reference=[*y, *rounded], tolerance=8e-3, **settings)
    check_declined("LayerNormalization", x, scale, stash_type=TensorProto.DOUBLE, because="stash_type must be")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("axis", [-1, 1, 2, -3])
def test_rms_normalization(dtype, axis):
    x = floats(3, 4, 5, dtype=dtype)
    scale = floats(*x.shape[axis:], dtype=dtype)
    x64, scale64 = wide(x, scale)
    root = np.sqrt(np.square(x64).mean(tuple(range(axis % 3, 3)), keepdims=True) + EPSILON)
    expected = [(x64 / root * scale64).astype(x.dtype)]
    settings = {"opset": 23, "axis": axis, "epsilon": EPSILON, "tolerance": TOLERANCE[dtype]}
    check_node("RMSNormalization", x, scale, reference=expected, **settings)


def test_rms_normalization_gives_the_type_of_its_scale():
    x, scale = floats(3, 4, dtype="float16"), floats(4)
    expected = x / np.sqrt(np.square(x.astype(np.float64)).mean(1, keepdims=True) + DEFAULT) * scale
    reference = [expected.astype(np.float32)]
    check_node("RMSNormalization", x, scale, opset=23, output_types=["float32"], reference=reference)


# GroupNormalization and InstanceNormalization


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_normalization(dtype, groups):
    for shape in ((2, 4, 3, 5), (2, 4, 3), (2, 4, 20, 20)):
        x = floats(*shape, dtype=dtype)
        grouped = x.astype(np.float64).reshape(2, groups, -1)
        normal = standardized(grouped, (2,), DEFAULT).reshape(shape)
        for opset, count in ((18, groups), (21, 4)):
            scale, bias = floats(count, dtype=dtype), floats(count, dtype=dtype, seed=1)
            per_channel = [by_channel(np.repeat(each, 4 // count), len(shape)) for each in wide(scale, bias)]
            expected = [(normal * per_channel[0] + per_channel[1]).astype(x.dtype)]
            settings = {"num_groups": groups, "opset": opset, "tolerance": TOLERANCE[dtype]}
            check_node("GroupNormalization", x, scale, bias, reference=expected, **settings)


def test_group_normalization_saves_statistics_in_known_types():
    x, scale = floats(2, 4, 3), floats(4)
    check_declined(
        "GroupNormalization", x, scale, scale, num_groups=2, stash_type=TensorProto.DOUBLE, because="stash_type must be"
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (1, 3, 2, 2, 2), (2, 3, 30, 10), (0, 3, 4), (2, 3, 1)])
def test_instance_normalization(dtype, shape):
    x, scale, bias = floats(*shape, dtype=dtype), floats(3, dtype=dtype), floats(3, dtype=dtype, seed=1)
    x64, scale64, bias64 = wide(x, by_channel(scale, len(shape)), by_channel(bias, len(shape)))
    expected = standardized(x64, tuple(range(2, len(shape))), EPSILON) * scale64 + bias64
    for opset in (7, 21, 22):
        if dtype != "bfloat16" or opset == 22:
            settings = {"epsilon": EPSILON, "opset": opset, "tolerance": TOLERANCE[dtype]}
            check_node("InstanceNormalization", x, scale, bias, reference=[expected.astype(x.dtype)], **settings)


# BatchNormalization


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("opset", [7, 8, 9, 13, 14, 15, 21])
@pytest.mark.parametrize("constant", [(), (1, 2, 3, 4)])
def test_batch_normalization(dtype, opset, constant):
    for shape in ((2, 3), (2, 3, 4), (2, 3, 4, 5), (1, 3, 2, 2, 2), (0, 3, 4)):
        x = floats(*shape, dtype=dtype)
        scale, bias, mean, variance = (floats(3, dtype=dtype, seed=seed) for seed in range(4))
        variance = np.abs(variance)
        x64 = x.astype(np.float64)
        scale64, bias64, mean64, variance64 = (by_channel(each, x.ndim) for each in wide(scale, bias, mean, variance))
        expected = (x64 - mean64) / np.sqrt(variance64 + EPSILON) * scale64 + bias64
        settings = {"epsilon": EPSILON, "opset": opset, "constant": constant, "tolerance": TOLERANCE[dtype]}
        reference = [expected.astype(dtype)]
        check_node("BatchNormalization", x, scale, bias, mean, variance, reference=reference, **settings)


def test_batch_normalization_before_version_7():
    x, vector = floats(2, 3, 4), np.abs(floats(3))
    expected = (x - by_channel(vector, 3)) / np.sqrt(by_channel(vector, 3) + DEFAULT) * by_channel(vector, 3)
    expected = [expected + by_channel(vector, 3)]
    inputs = [x, vector, vector, vector, vector]
    check_node("BatchNormalization", *inputs, is_test=1, opset=6, reference=expected)
    check_node("BatchNormalization", *inputs, is_test=1, consumed_inputs=[0, 0, 0, 1, 1], opset=1, reference=expected)
    check_declined("BatchNormalization", *inputs, opset=6, because="for training is not supported")


def test_batch_normalization_for_each_place():
    x = floats(2, 3, 4, 5)
    scale, bias, mean, variance = (np.abs(floats(3, 4, 5, seed=seed)) for seed in range(4))
    expected = (x - mean) / np.sqrt(variance + DEFAULT) * scale + bias
    check_node("BatchNormalization", x, scale, bias, mean, variance, spatial=0, opset=7, reference=[expected])


@pytest.mark.parametrize("opset", [14, 15])
def test_batch_normalization_in_training(opset):
    for shape in ((2, 3), (4, 3, 5), (2, 3, 20, 20)):
        x = floats(*shape)
        scale, bias, mean, variance = (np.abs(floats(3, seed=seed)) for seed in range(4))
        settings = {"training_mode": 1, "momentum": 0.75, "outputs": 3, "opset": opset, "tolerance": 2e-6}
        check_node("BatchNormalization", x, scale, bias, mean, variance, reference="onnx", **settings)


def test_batch_normalization_in_training_before_version_14():
    x, vector = floats(2, 3, 4), np.abs(floats(3))
    because = "BatchNormalization-9 for training is not supported"
    check_declined("BatchNormalization", x, *[vector] * 4, outputs=5, opset=9, because=because)


def test_batch_normalization_of_mixed_types():
    x, scale, mean = floats(2, 3, 4, dtype="float16"), floats(3), np.abs(floats(3)).astype(np.float64)
    parts = (by_channel(each, 3) for each in wide(scale, mean))
    scale64, mean64 = parts
    expected = (x.astype(np.float64) - mean64) / np.sqrt(mean64 + DEFAULT) * scale64 + scale64
    settings = {"opset": 15, "reference": [expected.astype(np.float16)], "tolerance": TOLERANCE["float16"]}
    check_node("BatchNormalization", x, scale, scale, mean, mean, **settings)


def test_constants_shared_by_two_batch_normalizations_of_different_ranks():
    names = ["scale", "bias", "mean", "variance"]
    nodes = [helper.make_node("BatchNormalization", [x, *names], [y]) for x, y in (("a", "c"), ("b", "d"))]
    carried = [helper.make_tensor(name, TensorProto.FLOAT, [3], [1.0, 2.0, 3.0]) for name in names]
    inputs = {"a": floats(2, 3, 4), "b": floats(2, 3)}
    formals = [helper.make_tensor_value_info(name, TensorProto.FLOAT, each.shape) for name, each in inputs.items()]
    outputs = [
        helper.make_tensor_value_info(y, TensorProto.FLOAT, inputs[x].shape) for x, y in (("a", "c"), ("b", "d"))
    ]
    graph = helper.make_graph(nodes, "two", formals, outputs, carried)
    check_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=10), inputs)


# The others


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_lp_normalization(p, dtype):
    x = floats(3, 4, 5, dtype=dtype)
    x[0, 0] = x[:, 1, 1] = 0
    for axis in (0, 1, -1):
        norm = np.linalg.norm(x.astype(np.float64), p, axis, keepdims=True)
        expected = [np.divide(x.astype(np.float64), norm, where=norm != 0, out=np.zeros(x.shape)).astype(x.dtype)]
        for opset in (22,) if dtype == "bfloat16" else (7, 22):
            settings = {"opset": opset, "tolerance": TOLERANCE[dtype]}
            check_node("LpNormalization", x, axis=axis, p=p, reference=expected, **settings)
    check_node("LpNormalization", floats(2, 3), opset=7)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 11])
def test_lrn(size, dtype):
    x = floats(2, 5, 3, 2, dtype=dtype)
    squares = np.square(x.astype(np.float64))
    around = [
        squares[:, max(0, channel - (size - 1) // 2) : channel + size // 2 + 1].sum(1) for channel in range(x.shape[1])
    ]
    expected = x.astype(np.float64) / (2 + 0.5 / size * np.stack(around, 1)) ** 0.625
    settings = {"alpha": 0.5, "beta": 0.625, "bias": 2.0, "tolerance": TOLERANCE[dtype]}
    check_node("LRN", x, size=size, opset=13, reference=[expected.astype(x.dtype)], **settings)
    if dtype == "float32":
        check_node("LRN", x, size=3, opset=7)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_mean_variance_normalization(dtype):
    x = floats(2, 3, 4, 5, dtype=dtype)
    for axes in (None, [1], [0, -1], [0, 1, 2, 3]):
        where = (0, 2, 3) if axes is None else tuple(axes)
        x64 = x.astype(np.float64)
        expected = [((x64 - x64.mean(where, keepdims=True)) / (x64.std(where, keepdims=True) + 1e-9)).astype(x.dtype)]
        for opset in (13,) if dtype == "bfloat16" else (9, 13):
            attributes = {} if axes is None else {"axes": axes}
            settings = {"opset": opset, "tolerance": TOLERANCE[dtype]}
            check_node("MeanVarianceNormalization", x, reference=expected, **settings, **attributes)
    flat = np.full((1, 2, 3, 3), 2, np.float32)
    check_node("MeanVarianceNormalization", flat, reference=[np.zeros_like(flat)])


@given(
    scale=st.floats(0.01, 100),
    shift=st.floats(-10, 10),
    width=st.sampled_from([1, 2, 7, 255, 256, 257, 300]),
    seed=st.integers(0, 9),
)
def test_layer_normalization_forgets_scale_and_shift(scale, shift, width, seed):
    """Of rows without epsilon it gives the same, however they are stretched and moved."""
    x = np.random.default_rng(seed).standard_normal((3, width))
    x[0, 0] = math.pi
    moved = (x * scale + shift * scale).astype(np.float32)
    ones = np.ones(width, np.float32)
    if width > 1:
        expected = standardized(*wide(moved), (1,), 0).astype(np.float32)
        check_node("LayerNormalization", moved, ones, epsilon=1e-30, reference=[expected], tolerance=2e-5)
    else:
        check_node("LayerNormalization", moved, ones, reference=[np.zeros_like(moved)])


@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 2, 2)])
@pytest.mark.parametrize("axes", [None, (0, 2, 3), (0, 5), (1, 2), (3, 2, 0), (-1,), (0, 0), (0, 1, 2, 3)])
def test_mean_variance_normalization_along_the_axes_that_there_are(axes, shape):
    attributes = {} if axes is None else {"axes": axes}
    if any(-len(shape) <= axis < len(shape) for axis in axes or (0,)):
        check_node("MeanVarianceNormalization", floats(*shape), opset=13, dynamic=True, **attributes)
    else:
        refusal = f"{len(shape)} dimensions, and none of axes"
        check_refused("MeanVarianceNormalization", floats(*shape), opset=13, index=0, match=refusal, **attributes)


@pytest.mark.parametrize("axis", [2, -3, 5])
def test_axes_that_are_not_there(axis):
    x, ones, refusal = floats(3, 4), np.ones(4, np.float32), f"no axis {axis} among 2"
    check_refused("LpNormalization", x, axis=axis, index=0, match=refusal)
    check_refused("LayerNormalization", x, ones, axis=axis, opset=17, match=refusal)
    check_refused("RMSNormalization", x, ones, axis=axis, opset=23, match=refusal)


@pytest.mark.parametrize(("shape", "axis"), [((2, 0), -1), ((0, 3), 0), ((2, 3, 0), 1)])
def test_nothing_to_normalize(shape, axis):
    x, scale = floats(*shape), np.ones(shape[axis:], np.float32)
    check_refused("LayerNormalization", x, scale, axis=axis, opset=17, match="no elements to normalize")
    check_refused("RMSNormalization", x, scale, axis=axis, opset=23, match="no elements to normalize")


@pytest.mark.parametrize("wrong", [1, 2, 3, 4])
def test_statistics_of_other_shapes(wrong):
    for shape in ((1,), (3,), (), (1, 4)):
        inputs = [floats(2, 4, 3), *[np.ones(4, np.float32)] * 4]
        inputs[wrong] = np.ones(shape, np.float32)
        for opset in (7, 9, 15):
            check_refused("BatchNormalization", *inputs, opset=opset, index=wrong, match="must have .4.", dynamic=True)
        if wrong < 3:
            instances = inputs[:3]
            check_refused("InstanceNormalization", *instances, index=wrong, match="must have .4.", dynamic=True)


def test_batch_normalization_of_a_lone_axis():
    one = [np.array([each], np.float32) for each in (2, 3, 0.5, 4)]
    check_node("BatchNormalization", floats(5), *one, dynamic=True)
    check_refused("BatchNormalization", floats(5), *[np.ones(5, np.float32)] * 4, match="must have .1.", dynamic=True)


def test_groups_that_do_not_fit():
    x, parameters = floats(2, 4, 3), [np.ones(4, np.float32)] * 2
    for groups in (3, 5):
        refusal = f"do not make {groups} equal groups"
        check_refused("GroupNormalization", x, *parameters, num_groups=groups, match=refusal, index=0)
    check_declined("GroupNormalization", x, *parameters, num_groups=0, because="num_groups is 0")


@pytest.mark.parametrize("p", [0, 3, -1])
def test_norms_of_another_order(p):
    check_refused("LpNormalization", floats(3, 4), p=p, index=0, match=f"p is {p}")


def test_scales_that_reach_beyond_the_input():
    x = floats(2, 1, 4)
    for operator, opset in (("LayerNormalization", 17), ("RMSNormalization", 23)):
        scale = np.ones((3, 4), np.float32)
        check_refused(operator, x, scale, axis=1, opset=opset, match="does not broadcast to", dynamic=True)
    wide = np.ones(4, np.float32)
    check_refused("GroupNormalization", x, wide, wide, num_groups=1, match="are not for 1 channels", dynamic=True)


def test_the_default_of_epsilon_is_a_float32_number():
    x = np.array([[[0, 0], [0.1276, 0.149]]])
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + DEFAULT)
    check_node("InstanceNormalization", x, np.ones(2), np.zeros(2), opset=6, tolerance=1e-12, reference=[expected])
