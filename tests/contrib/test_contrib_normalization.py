"""Normalizations of com.microsoft, against ONNX Runtime's CPU provider, or NumPy in float64 where it has no kernel."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from opgraft.errors import TranslationError
from opgraft.testing import check_declined, check_model, check_node, node_model

TOLERANCE = {"float32": 2e-6, "float64": 1e-13, "float16": 2e-3, "bfloat16": 1.6e-2}
LAYER = "com.microsoft::SkipLayerNormalization"
SIMPLIFIED = "com.microsoft::SkipSimplifiedLayerNormalization"
EMBED = "com.microsoft::EmbedLayerNormalization"
SHAPES = [
    ((2, 3, 8), (2, 3, 8)),
    ((2, 3, 8), (1, 3, 8)),
    ((2, 3, 8), (3, 8)),
    ((6, 8), (6, 8)),
    ((1, 1, 300), (1, 1, 300)),
    ((0, 3, 8), (0, 3, 8)),
]


def numpy_type(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def floats(*shape, dtype="float32", seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(numpy_type(dtype))


def wide(*arrays):
    return [None if each is None else np.asarray(each, np.float64) for each in arrays]


def standardized(x, axes, epsilon):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def rooted(x, epsilon):
    return np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("shape", "skip"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("outputs", [1, 4])
def test_skip_layer_normalization(dtype, shape, skip, with_bias, outputs):
    size = shape[-1:]
    x, other, gamma = floats(*shape, dtype=dtype), floats(*skip, dtype=dtype, seed=1), floats(*size, dtype=dtype)
    bias = floats(*size, dtype=dtype, seed=3) if with_bias else None
    types = [dtype, "float32", "float32", dtype][:outputs]
    settings = {"outputs": outputs, "output_types": types, "tolerance": TOLERANCE[dtype], "epsilon": 1e-5}
    if outputs == 1:
        check_node(LAYER, x, other, gamma, floats(*size, dtype=dtype, seed=2), bias, **settings)
        check_node(LAYER, x, other, gamma, None, bias, **settings)
        check_node(SIMPLIFIED, x, other, gamma, bias, **settings)
    elif x.size:
        total = sum(each for each in wide(x, other, bias) if each is not None)
        mean, deviation = total.mean(-1, keepdims=True), np.sqrt(total.var(-1, keepdims=True) + 1e-5)
        beta = floats(*size, dtype=dtype, seed=2)
        y = standardized(total, -1, 1e-5) * wide(gamma)[0] + wide(beta)[0]
        expected = [each.astype(kind) for each, kind in zip((y, mean, 1 / deviation, total), types, strict=True)]
        check_node(LAYER, x, other, gamma, beta, bias, reference=expected, **settings)


@pytest.mark.parametrize("operator", [LAYER, SIMPLIFIED])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_sum_comes_out_too(operator, dtype):
    x, skip, gamma, bias = (
        floats(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate([(2, 3, 8)] * 2 + [(8,)] * 2)
    )
    total = sum(wide(x, skip, bias))
    normal = standardized(total, -1, 1e-12) if operator == LAYER else total / rooted(total, 1e-12)
    inputs = (x, skip, gamma, *([None] if operator == LAYER else []), bias)
    model = four_outputs(operator, inputs)
    expected = [each.astype(x.dtype) for each in (normal * wide(gamma)[0], total)]
    given = {f"x{index}": each for index, each in enumerate(inputs) if each is not None}
    check_model(model, given, reference=expected, tolerance=TOLERANCE[dtype])
    if dtype != "bfloat16":
        check_model(model, given, tolerance=TOLERANCE[dtype])


def four_outputs(operator, inputs):
    """A model of one node whose second and third outputs nobody wants, as optimizers write it."""
    kind = inputs[0].dtype
    name = "bfloat16" if kind == ml_dtypes.bfloat16 else kind.name
    model = node_model(operator, inputs, outputs=4, output_types=[name] * 4)
    model.graph.node[0].output[1] = model.graph.node[0].output[2] = ""
    del model.graph.output[1:3]
    return model


def test_the_inverse_root_of_the_simplified_form():
    x, skip, gamma = floats(2, 3, 8), floats(2, 3, 8, seed=1), floats(8)
    model = node_model(SIMPLIFIED, (x, skip, gamma), outputs=3, output_types=["float32"] * 3)
    model.graph.node[0].output[1] = ""
    del model.graph.output[1]
    total = sum(wide(x, skip))
    root = rooted(total, 1e-12)
    expected = [each.astype(np.float32) for each in (total / root * gamma, 1 / root)]
    check_model(model, {"x0": x, "x1": skip, "x2": gamma}, reference=expected)
    settings = {"outputs": 2, "output_types": ["float32"] * 2}
    check_declined(SIMPLIFIED, x, skip, gamma, because="a mean, is nothing that", **settings)


def test_what_does_not_fit_is_an_error():
    for skip, gamma, because in (((2, 4, 8), (8,), "does not broadcast"), ((2, 3, 8), (4,), "gamma has shape [4]")):
        inputs = floats(2, 3, 8), floats(*skip), floats(*gamma)
        check_declined(LAYER, *inputs, because=because, output_types=["float32"])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("axis", [-1, 1, -2])
def test_simplified_layer_normalization(dtype, axis):
    x = floats(3, 4, 5, dtype=dtype)
    scale = floats(*x.shape[axis:], dtype=dtype)
    axes = tuple(range(axis % 3, 3))
    x64, scale64 = wide(x, scale)
    root = np.sqrt(np.square(x64).mean(axes, keepdims=True) + 2.0**-7)
    settings = {"axis": axis, "epsilon": 2.0**-7, "tolerance": TOLERANCE[dtype], "output_types": [dtype, "float32"]}
    expected = [(x64 / root * scale64).astype(x.dtype), (1 / root).astype(np.float32)]
    check_node("SimplifiedLayerNormalization", x, scale, outputs=2, reference=expected, **settings)
    settings["output_types"] = [dtype]
    if dtype in ("float32", "float16", "float64"):
        check_node("SimplifiedLayerNormalization", x, scale, **settings)


def test_simplified_layer_normalization_declines_other_statistics():
    check_declined(
        "SimplifiedLayerNormalization",
        floats(2, 4),
        floats(4),
        stash_type=TensorProto.DOUBLE,
        output_types=["float32"],
        because="stash_type must be",
    )


def embedding_inputs(batch, length, segments, mask, positions, dtype="float32"):
    rng = np.random.default_rng(batch * 10 + length)
    ids = rng.integers(0, 11, (batch, length)).astype(np.int32)
    return [
        ids,
        rng.integers(0, 2, (batch, length)).astype(np.int32) if segments else None,
        floats(11, 8, dtype=dtype),
        floats(9, 8, dtype=dtype, seed=1),
        floats(2, 8, dtype=dtype, seed=2) if segments else None,
        floats(8, dtype=dtype),
        floats(8, dtype=dtype, seed=1),
        rng.integers(0, 3, (batch, length)).astype(np.int32) if mask else None,
        rng.integers(0, 9, (positions, length)).astype(np.int32) if positions else None,
    ]


EMBED_OUTPUTS = {"outputs": 3, "output_types": ["float32", "int32", "float32"]}


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 5), (3, 9)])
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("positions", ["none", "one", "each"])
def test_embed_layer_normalization(batch, length, segments, mask, positions):
    rows = {"none": 0, "one": 1, "each": batch}[positions]
    inputs = embedding_inputs(batch, length, segments, mask, rows)
    check_node(EMBED, *inputs, tolerance=TOLERANCE["float32"], epsilon=1e-5, **EMBED_OUTPUTS)
    check_node(EMBED, *inputs, constant=(2, 3, 4, 5, 6), dynamic=True, tolerance=TOLERANCE["float32"], **EMBED_OUTPUTS)


def test_embed_layer_normalization_in_float16():
    ids, segment_ids, *tables = embedding_inputs(2, 5, True, False, 0, "float16")
    word, position, segment, gamma, beta = wide(*tables[:5])
    total = word[ids] + position[:5] + segment[segment_ids]
    normal = standardized(total, -1, 1e-12) * gamma + beta
    expected = [normal.astype(np.float16), np.zeros(2, np.int32), total.astype(np.float16)]
    types = {"outputs": 3, "output_types": ["float16", "int32", "float16"]}
    check_node(EMBED, ids, segment_ids, *tables, reference=expected, tolerance=4e-3, **types)


def test_words_and_positions_that_there_are_not():
    inputs = embedding_inputs(2, 5, False, False, 0)
    with pytest.raises(TranslationError, match="indices must lie between 0 and 10"):
        check_node(EMBED, np.full((2, 5), 11, np.int32), *inputs[1:], reference=[], **EMBED_OUTPUTS)
    inputs = embedding_inputs(2, 9, False, False, 0)
    inputs[3] = inputs[3][:4]
    check_declined(EMBED, *inputs, because="a sequence of 9 has more places than the 4 positions", **EMBED_OUTPUTS)
    inputs = embedding_inputs(2, 5, True, False, 0)
    inputs[4] = None
    check_declined(EMBED, *inputs, because="only one is there", **EMBED_OUTPUTS)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("channels_last", [1, 0])
@pytest.mark.parametrize(("groups", "skip"), [(1, (2, 3, 4, 8)), (4, (2, 8)), (8, (2, 1, 1, 8)), (2, None)])
def test_group_norm(dtype, activation, channels_last, groups, skip):
    """ONNX Runtime has these on the GPU only."""

    def as_asked(image):
        return image if channels_last or image.ndim < 4 else np.moveaxis(image, -1, 1).copy()

    x, gamma, beta, bias = floats(2, 3, 4, 8, dtype=dtype), floats(8), floats(8, seed=1), floats(8, dtype=dtype, seed=2)
    given = [] if skip is None else [floats(*skip, dtype=dtype, seed=3)]
    total = wide(x)[0]
    if skip is not None:
        over = given[0].reshape(skip[0], *[1] * (4 - len(skip)), *skip[1:])
        total = total + wide(over)[0] + wide(bias)[0]
    grouped = total.reshape(2, 12, groups, 8 // groups)
    y = standardized(grouped, (1, 3), 1e-5).reshape(total.shape) * gamma + beta
    y = y / (1 + np.exp(-y)) if activation else y
    expected = [as_asked(each).astype(x.dtype) for each in (y, total)]
    settings = {
        "groups": groups,
        "activation": activation,
        "channels_last": channels_last,
        "tolerance": TOLERANCE[dtype],
    }
    if skip is None:
        settings["output_types"] = [dtype]
        check_node("com.microsoft::GroupNorm", as_asked(x), gamma, beta, reference=expected[:1], **settings)
    else:
        settings |= {"outputs": 2, "output_types": [dtype] * 2}
        inputs = (as_asked(x), gamma, beta, as_asked(given[0]), bias)
        check_node("com.microsoft::SkipGroupNorm", *inputs, reference=expected, **settings)


def test_group_norm_declines():
    inputs = floats(2, 3, 4, 8), floats(8), floats(8)
    for attributes, because in (
        ({"groups": 0}, "must be positive"),
        ({"groups": 2, "activation": 2}, "activation must be"),
    ):
        settings = {"activation": 0, "output_types": ["float32"], **attributes}
        check_declined("com.microsoft::GroupNorm", *inputs, because=because, **settings)
    check_declined(
        "com.microsoft::GroupNorm",
        *inputs,
        because="do not make 3 equal groups",
        groups=3,
        activation=0,
        output_types=["float32"],
    )
