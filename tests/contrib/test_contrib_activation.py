"""Activations of com.microsoft, against ONNX Runtime's CPU provider, or NumPy in float64 where it has no kernel."""

from __future__ import annotations

from math import erf, sqrt

import ml_dtypes
import numpy as np
import pytest

from opgraft.testing import check_declined, check_node

TOLERANCE = {"float32": 2e-6, "float64": 1e-13, "float16": 2e-3, "bfloat16": 1.6e-2}
SHAPES = [(1,), (8,), (2, 3, 8), (5, 300), (70, 300), (0, 8)]
SPECIAL = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-20, 80.0, -80.0, 6.0, -6.0]


def numpy_type(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def floats(*shape, dtype="float32", seed=0, scale=3.0):
    values = np.random.default_rng([seed, *shape]).standard_normal(shape) * scale
    return values.astype(numpy_type(dtype))


def exact_gelu(x):
    return 0.5 * x * (1 + np.vectorize(erf, otypes=[float])(x / sqrt(2)))


def tanh_gelu(x):
    return 0.5 * x * (1 + np.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def quick_gelu(x, alpha=1.7020000219345093):
    return x / (1 + np.exp(-alpha * x))


FORMULAS = {"Gelu": exact_gelu, "FastGelu": tanh_gelu, "QuickGelu": quick_gelu, "BiasGelu": exact_gelu}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("operator", ["Gelu", "FastGelu", "QuickGelu"])
def test_without_a_bias(operator, dtype, shape):
    settings = {"tolerance": TOLERANCE[dtype], "output_types": [dtype]}
    check_node(f"com.microsoft::{operator}", floats(*shape, dtype=dtype), **settings)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("operator", ["BiasGelu", "FastGelu"])
@pytest.mark.parametrize("constant", [(), (1,)])
def test_with_a_bias(operator, dtype, shape, constant):
    x, bias = floats(*shape, dtype=dtype), floats(shape[-1], dtype=dtype, seed=1)
    settings = {"tolerance": TOLERANCE[dtype], "output_types": [dtype], "constant": constant}
    check_node(f"com.microsoft::{operator}", x, bias, **settings)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("operator", FORMULAS)
def test_formulas_in_every_element_type(operator, dtype):
    x = floats(4, 6, dtype=dtype)
    inputs, total = [x], x.astype(np.float64)
    if operator == "BiasGelu":
        inputs.append(floats(6, dtype=dtype, seed=1))
        total = total + inputs[1].astype(np.float64)
    expected = [FORMULAS[operator](total).astype(x.dtype)]
    settings = {"tolerance": TOLERANCE[dtype], "output_types": [dtype]}
    check_node(f"com.microsoft::{operator}", *inputs, reference=expected, **settings)


@pytest.mark.parametrize("alpha", [1.0, 0.5, -1.0, 1.702])
def test_the_slope_of_quick_gelu(alpha):
    check_node("com.microsoft::QuickGelu", floats(5, 7), alpha=alpha, tolerance=2e-6, output_types=["float32"])


@pytest.mark.parametrize("operator", ["Gelu", "FastGelu", "QuickGelu"])
def test_special_values(operator):
    x = np.array([each for each in SPECIAL if not np.isinf(each)], np.float32)
    check_node(f"com.microsoft::{operator}", x, tolerance=2e-6, output_types=["float32"])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(1, 1, 2), (2, 3, 8), (2, 9, 640), (0, 3, 8)])
def test_bias_split_gelu(dtype, shape):
    x, bias = floats(*shape, dtype=dtype), floats(shape[-1], dtype=dtype, seed=1)
    total = x.astype(np.float64) + bias.astype(np.float64)
    kept, gate = np.split(total, 2, axis=-1)
    expected = [(kept * exact_gelu(gate)).astype(x.dtype)]
    settings = {"tolerance": TOLERANCE[dtype], "output_types": [dtype]}
    check_node("com.microsoft::BiasSplitGelu", x, bias, reference=expected, **settings)


def test_what_does_not_fit_is_declined():
    settings = {"output_types": ["float32"]}
    x = floats(2, 3, 5)
    check_declined("com.microsoft::BiasSplitGelu", x, floats(5), because="has no two halves", **settings)
    for operator in ("BiasGelu", "FastGelu", "BiasSplitGelu"):
        check_declined(f"com.microsoft::{operator}", x, floats(3), because="must have [5]", **settings)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("ratio", [None, 0.0, 0.5])
def test_bias_dropout_of_an_inference(dtype, with_residual, ratio):
    x, bias, residual = (
        floats(2, 3, 8, dtype=dtype),
        floats(8, dtype=dtype, seed=1),
        floats(2, 3, 8, dtype=dtype, seed=2),
    )
    total = x.astype(np.float64) + bias.astype(np.float64) + with_residual * residual.astype(np.float64)
    given = None if ratio is None else np.array(ratio, np.float32)
    settings = {"outputs": 2, "output_types": [dtype, "bool"], "tolerance": TOLERANCE[dtype]}
    inputs = [x, bias, residual if with_residual else None, given, np.array(False)]
    expected = [total.astype(x.dtype), np.ones(x.shape, bool)]
    check_node("com.microsoft::BiasDropout", *inputs, reference=expected, **settings)


@pytest.mark.parametrize("ratio", [0.25, 0.75])
def test_bias_dropout_in_training(ratio):
    x, bias, residual = np.ones((40, 50), np.float32), np.ones(50, np.float32), np.full((40, 50), 3, np.float32)
    kept = np.random.RandomState(5).uniform(size=x.shape) >= np.float32(ratio)
    expected = [(3 + np.where(kept, 2 / (1 - ratio), 0)).astype(np.float32), kept]
    settings = {"outputs": 2, "output_types": ["float32", "bool"], "seed": 5, "reference": expected}
    check_node("com.microsoft::BiasDropout", x, bias, residual, np.array(ratio, np.float32), np.array(True), **settings)
