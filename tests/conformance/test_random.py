"""Random operators: element types, shapes, distributions, and what a seed fixes."""

from __future__ import annotations

from math import erf, sqrt

import mlx.core as mx
import numpy as np
import onnx
import pytest

from opgraft.engine import Program
from opgraft.errors import TranslationError
from opgraft.graph.element_types import NAME_OF_ONNX
from opgraft.graph.onnx_source import graph_of_model
from opgraft.ops.arrays import element_type, to_host
from opgraft.plan import build_plan
from opgraft.registry import load_registry
from opgraft.testing import check_declined, node_model

COUNT = 20000
FLOATS = {"float32": 1, "float16": 10, "float64": 11, "bfloat16": 16}
HALF = np.full(6, 0.5, np.float32)


class Runs:
    """A one-node model, ready for many runs."""

    def __init__(self, operator, *inputs, **attributes):
        model = node_model(operator, inputs, **{"opset": 22, **attributes})
        self.program = Program(build_plan(graph_of_model(model)), load_registry(), "cpu")
        self.inputs = inputs

    def __call__(self):
        (output,) = self.program.run(list(self.inputs))
        return output


def distance(sample, distribution):
    """The largest distance between a sample's distribution and another (Kolmogorov and Smirnov's)."""
    ordered = np.sort(to_host(sample).astype(np.float64).ravel())
    expected = distribution(ordered)
    places = np.arange(len(ordered))
    return max(np.max((places + 1) / len(ordered) - expected), np.max(expected - places / len(ordered)))


def normal_distribution(mean, scale):
    return np.vectorize(lambda x: 0.5 + 0.5 * erf((x - mean) / scale / sqrt(2)))


def uniform_distribution(low, high):
    return lambda x: np.clip((x - low) / (high - low), 0, 1)


FAR = {"float32": 0.02, "float64": 0.02, "float16": 0.02, "bfloat16": 0.03}
"""1% of samples as large as these are farther than 0.0115; what 16-bit floats are rounded to comes on top."""


@pytest.mark.parametrize(("dtype", "opset"), [*((dtype, 22) for dtype in FLOATS), ("float16", 7)])
def test_normal(dtype, opset):
    output = Runs(
        "RandomNormal", shape=[100, COUNT // 100], dtype=FLOATS[dtype], mean=1.5, scale=0.5, seed=1.0, opset=opset
    )()
    assert output.shape == (100, COUNT // 100) and element_type(output) == dtype
    assert distance(output, normal_distribution(1.5, 0.5)) < FAR[dtype]


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype):
    output = Runs("RandomUniform", shape=[COUNT], dtype=FLOATS[dtype], low=-1.0, high=3.0, seed=2.0)()
    assert output.shape == (COUNT,) and element_type(output) == dtype
    assert distance(output, uniform_distribution(-1, 3)) < FAR[dtype]
    values = to_host(output)
    assert values.min() >= -1 and values.max() <= 3


def test_uniform_of_float64_fills_all_its_bits():
    values = to_host(Runs("RandomUniform", shape=[1000], dtype=11, seed=3.0)())
    assert (values != values.astype(np.float32)).mean() > 0.99
    assert ((values * 2**53) % 2 == 1).mean() > 0.2


@pytest.mark.parametrize("operator", ["RandomNormalLike", "RandomUniformLike"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
@pytest.mark.parametrize("named", [None, "float32", "float64"])
def test_like_an_input(operator, dtype, named):
    like = np.zeros((2, 0, 3) if named else (50, COUNT // 50), dtype)
    attributes = {"dtype": FLOATS[named]} if named else {}
    if not named and dtype not in FLOATS:
        check_declined(operator, like, because=f"element type {dtype}", opset=22)
        return
    output = Runs(operator, like, **attributes)()
    assert output.shape == like.shape and element_type(output) == (named or dtype)
    if not named:
        exact = normal_distribution(0, 1) if operator == "RandomNormalLike" else uniform_distribution(0, 1)
        assert distance(output, exact) < 0.03


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_bernoulli(number, dtype):
    probabilities = np.tile(np.array([0, 0.2, 0.7, 1], dtype), (COUNT // 4, 1))
    output = Runs("Bernoulli", probabilities, dtype=number, seed=4.0)()
    assert element_type(output) == NAME_OF_ONNX[number]
    values = to_host(output).astype(np.float64)
    assert set(np.unique(values)) == {0, 1}
    means = values.mean(axis=0)
    assert means[0] == 0 and means[3] == 1 and np.abs(means[1:3] - [0.2, 0.7]).max() < 0.03


def test_bernoulli_keeps_its_input_type():
    assert element_type(Runs("Bernoulli", HALF.astype(np.float16))()) == "float16"
    assert element_type(Runs("Bernoulli", HALF, opset=15)()) == "float32"


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize(("attributes", "result"), [({}, "int32"), ({"dtype": 7}, "int64"), ({"dtype": 6}, "int32")])
def test_multinomial(dtype, attributes, result):
    shares = np.array([[0.2, 0.3, 0.5], [0.5, 0.5, 0]])
    with np.errstate(divide="ignore"):
        logits = (np.log(shares) + np.array([[3.0], [-2.0]])).astype(dtype)
    output = Runs("Multinomial", logits, sample_size=COUNT, seed=5.0, **attributes)()
    assert output.shape == (2, COUNT) and element_type(output) == result
    counts = np.stack([np.bincount(row, minlength=3) / COUNT for row in to_host(output)])
    assert np.abs(counts - shares).max() < 0.02 and counts[1, 2] == 0


SEEDED = {
    "RandomNormal": ((), {"shape": [6]}),
    "RandomUniform": ((), {"shape": [6]}),
    "RandomNormalLike": ((HALF,), {}),
    "RandomUniformLike": ((HALF,), {}),
    "Bernoulli": ((np.full(60, 0.5, np.float32),), {}),
    "Multinomial": ((np.zeros((2, 9), np.float32),), {"sample_size": 40}),
}


@pytest.mark.parametrize("operator", SEEDED)
def test_a_seed_fixes_the_stream_of_a_session(operator):
    inputs, attributes = SEEDED[operator]
    first, second, other = (
        [to_host(run()).tolist() for run in [Runs(operator, *inputs, seed=seed, **attributes)] for _ in range(3)]
        for seed in (7.5, 7.5, 8.5)
    )
    assert first == second
    assert first != other
    assert first[0] != first[1] != first[2]


@pytest.mark.parametrize("operator", SEEDED)
def test_without_a_seed_sessions_differ(operator):
    inputs, attributes = SEEDED[operator]
    first, second = (to_host(Runs(operator, *inputs, **attributes)()).tolist() for _ in range(2))
    assert first != second


def test_trips_of_a_loop_draw_anew():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 22]> g (int64 M) => (float[K, 4] rows) {
        rows = Loop <body = b (int64 i, bool going) => (bool on, float[4] row) {
            on = Identity (going)
            row = RandomUniform <shape: ints = [4], seed: float = 3.0> ()
        }> (M)
    }""")
    program = Program(build_plan(graph_of_model(model)), load_registry(), "cpu")
    (rows,) = program.run([np.int64(5)])
    assert len(np.unique(to_host(rows))) == 20


@pytest.mark.parametrize("operator", ["RandomNormal", "RandomUniform"])
def test_output_types_that_nobody_has(operator):
    check_declined(operator, because="element type int32", shape=[2], dtype=6, output_types=["int32"])


def test_shapes_without_elements():
    assert Runs("RandomNormal", shape=[0, 2])().shape == (0, 2)
    assert isinstance(Runs("Multinomial", np.zeros((0, 3), np.float32), sample_size=2)(), mx.array)


def test_multinomial_of_more_than_a_matrix():
    with pytest.raises(TranslationError, match="input has shape"):
        Runs("Multinomial", np.zeros((2, 3, 4), np.float32), sample_size=2)()
