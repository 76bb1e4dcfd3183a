"""Fused matrix products and inverses of com.microsoft, against ONNX Runtime's CPU provider, or NumPy in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from opgraft.errors import TranslationError
from opgraft.testing import check_declined, check_node

MATMUL, GEMM, INVERSE = (f"com.microsoft::{name}" for name in ("FusedMatMul", "FusedGemm", "Inverse"))
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3, "bfloat16": 1.6e-2}


def floats(*shape, dtype="float32", seed=0):
    dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def turned(x, transpose, batch):
    x = np.moveaxis(x, 0, -2) if batch else x
    return np.swapaxes(x, -1, -2) if transpose and x.ndim > 1 else x


def turned_back(x, transpose, batch):
    x = np.swapaxes(x, -1, -2) if transpose else x
    return np.ascontiguousarray(np.moveaxis(x, -2, 0) if batch else x)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("flags", [(a, b, c, d) for a in (0, 1) for b in (0, 1) for c in (0, 1) for d in (0, 1)])
def test_every_way_of_turning(batch, flags):
    transpose_a, transpose_b, batch_a, batch_b = flags
    if (batch_a or batch_b) and not batch:
        return
    a, b = (
        turned_back(floats(*batch, 4, 5), transpose_a, batch_a),
        turned_back(floats(*batch, 5, 6), transpose_b, batch_b),
    )
    attributes = {"transA": transpose_a, "transB": transpose_b, "transBatchA": batch_a, "transBatchB": batch_b}
    check_node(MATMUL, a, b, alpha=0.5, output_types=["float32"], **attributes)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("left", "right", "transpose_a", "transpose_b"),
    [
        ((4,), (4, 5), 1, 0),
        ((4,), (5, 4), 0, 1),
        ((3, 4), (4,), 0, 1),
        ((4, 3), (4,), 1, 1),
        ((2, 3, 4), (4, 5), 0, 0),
        ((3, 4), (2, 5, 4), 0, 1),
        ((2, 1, 4, 3), (7, 4, 5), 1, 0),
    ],
)
def test_shapes_and_element_types(dtype, left, right, transpose_a, transpose_b):
    a, b = floats(*left, dtype=dtype), floats(*right, dtype=dtype)
    product = turned(a.astype(np.float64), transpose_a, 0) @ turned(b.astype(np.float64), transpose_b, 0)
    settings = {"transA": transpose_a, "transB": transpose_b, "output_types": [dtype], "tolerance": TOLERANCE[dtype]}
    check_node(MATMUL, a, b, reference=[(product * 0.25).astype(a.dtype)], alpha=0.25, **settings)
    if dtype != "bfloat16" and not (transpose_a and len(right) == 1):  # the CPU provider leaves A as it is there
        check_node(MATMUL, a, b, alpha=0.25, **settings)


def test_a_batch_to_move_takes_equal_ranks():
    settings = {"output_types": ["float32"], "transBatchA": 1}
    check_declined(MATMUL, floats(4, 2, 5), floats(5, 6), because="are not of one rank above 2", **settings)
    check_declined(MATMUL, floats(4, 5), floats(5, 6), because="transA is 2", transA=2, output_types=["float32"])


ACTIVATIONS = {
    "Celu": {"alpha": 0.7},
    "Elu": {"alpha": 0.3},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
    "LeakyRelu": {"alpha": 0.1},
    "ParametricSoftplus": {"alpha": 0.5, "beta": 1.5},
    "Relu": {},
    "ScaledTanh": {"alpha": 0.5, "beta": 1.5},
    "Selu": {"alpha": 1.6, "gamma": 1.1},
    "Sigmoid": {},
    "Softplus": {},
    "Softsign": {},
    "Tanh": {},
    "ThresholdedRelu": {"alpha": 0.5},
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [None, (5,), (1,), (3, 5), (3, 1), ()])
def test_fused_gemm(activation, bias):
    numbers = {f"activation_{name}": value for name, value in ACTIVATIONS[activation].items()}
    c = None if bias is None else floats(*bias, seed=1)
    settings = {"activation": activation, "output_types": ["float32"], **numbers}
    check_node(GEMM, floats(3, 4), floats(4, 5), c, **settings)
    check_node(GEMM, floats(4, 3), floats(5, 4), c, transA=1, transB=1, alpha=0.5, beta=2.0, **settings)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_fused_gemm_in_other_element_types(dtype):
    a, b, c = floats(3, 4, dtype=dtype), floats(4, 5, dtype=dtype), floats(5, dtype=dtype, seed=1)
    product = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    expected = [np.maximum(product, 0).astype(a.dtype)]
    settings = {"activation": "Relu", "output_types": [dtype], "tolerance": TOLERANCE[dtype]}
    check_node(GEMM, a, b, c, reference=expected, **settings)


def test_what_fused_gemm_declines():
    settings = {"output_types": ["float32"]}
    inputs = floats(3, 4), floats(4, 5)
    check_declined(GEMM, *inputs, because="attribute activation is required", **settings)
    check_declined(GEMM, *inputs, activation="Gelu", because="activation Gelu is not one of", **settings)
    because = "attribute activation_alpha is required"
    check_declined(GEMM, *inputs, activation="LeakyRelu", because=because, **settings)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (5, 5), (3, 4, 4), (2, 3, 3, 3), (0, 3, 3), (40, 40)])
def test_inverses(dtype, shape):
    x = (floats(*shape, dtype="float64") + 4 * np.eye(shape[-1])).astype(dtype)
    expected = [np.linalg.inv(x.astype(np.float64)).astype(dtype)] if x.size else [x]
    settings = {"output_types": [dtype], "tolerance": TOLERANCE[dtype]}
    check_node(INVERSE, x, reference=expected, **settings)
    if x.size and dtype != "float16":
        check_node(INVERSE, x, **settings)


def test_matrices_without_an_inverse():
    check_declined(INVERSE, floats(2, 3), because="are not square", output_types=["float32"])
    with pytest.raises((TranslationError, RuntimeError), match="factorization failed"):
        check_node(
            INVERSE, np.ones((3, 3), np.float32), reference=[np.ones((3, 3), np.float32)], output_types=["float32"]
        )
