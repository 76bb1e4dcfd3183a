"""Activation functions, against ONNX Runtime and formulas in float64."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from kit import check_refused

from opgraft.testing import check_declined, check_node, node_model, run_model

TOLERANCE = {"float32": 1e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}
X = np.concatenate([[0.0, -0.0, 1e-4, -1e-4, -20.0, 60.0], np.random.default_rng(2).normal(size=60) * 4])
SPECIAL = np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, 100.0, -100.0, -20.0, 1.0], np.float32)


def erf(x):
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def logistic(x):
    return 1 / (1 + np.exp(-x))


def elu(x, alpha=1.0):
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def hard_sigmoid(x, alpha, beta):
    return np.clip(alpha * x + beta, 0, 1)


# operator, attributes, first opset, formula
CASES = [
    ("Relu", {}, 14, lambda x: np.maximum(x, 0)),
    ("LeakyRelu", {}, 16, lambda x: np.where(x < 0, np.float32(0.01) * x, x)),
    ("LeakyRelu", {"alpha": 1.5}, 16, lambda x: np.where(x < 0, 1.5 * x, x)),
    ("LeakyRelu", {"alpha": -0.25}, 16, lambda x: np.where(x < 0, -0.25 * x, x)),
    ("LeakyRelu", {"alpha": 0.0}, 16, lambda x: np.where(x < 0, 0 * x, x)),
    ("ThresholdedRelu", {}, 22, lambda x: np.where(x > 1, x, 0)),
    ("ThresholdedRelu", {"alpha": -2.0}, 22, lambda x: np.where(x > -2, x, 0)),
    ("Sigmoid", {}, 13, logistic),
    ("HardSigmoid", {}, 22, lambda x: hard_sigmoid(x, np.float32(0.2), 0.5)),
    ("HardSigmoid", {"alpha": 0.5, "beta": 0.25}, 22, lambda x: hard_sigmoid(x, 0.5, 0.25)),
    ("HardSwish", {}, 22, lambda x: x * hard_sigmoid(x, 1 / 6, 0.5)),
    ("Elu", {}, 22, elu),
    ("Elu", {"alpha": 2.0}, 22, lambda x: elu(x, 2.0)),
    ("Selu", {}, 22, lambda x: np.float32(1.0507010221481323) * elu(x, 1.6732631921768188)),
    ("Selu", {"alpha": 2.0, "gamma": 3.0}, 22, lambda x: 3 * elu(x, 2.0)),
    ("Celu", {}, 28, elu),
    ("Celu", {"alpha": 2.0}, 28, lambda x: 2 * elu(x / 2)),
    ("Celu", {"alpha": -2.0}, 28, lambda x: np.maximum(x, 0) + np.minimum(0, -2 * np.expm1(x / -2))),
    ("Gelu", {}, 20, lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2)))),
    ("Gelu", {"approximate": "tanh"}, 20,
     lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    ("Softplus", {}, 22, lambda x: np.logaddexp(x, 0)),
    ("Softsign", {}, 22, lambda x: x / (1 + np.abs(x))),
    ("Mish", {}, 22, lambda x: x * np.tanh(np.logaddexp(x, 0))),
    ("Swish", {}, 24, lambda x: x * logistic(x)),
    ("Swish", {"alpha": 1.5}, 24, lambda x: x * logistic(1.5 * x)),
    ("Shrink", {}, 9, lambda x: np.where(np.abs(x) > 0.5, x, 0)),
    ("Shrink", {"lambd": 1.5, "bias": 1.25}, 9, lambda x: np.where(np.abs(x) > 1.5, x - np.sign(x) * 1.25, 0)),
]  # fmt: skip
CHECKS = [
    pytest.param(*case, dtype, id=f"{case[0]}-{number}-{dtype}")
    for number, case in enumerate(CASES)
    for dtype in TOLERANCE
    if (case[0], dtype) != ("Shrink", "bfloat16")  # which ONNX has not
]


@pytest.mark.parametrize(("operator", "attributes", "opset", "formula", "dtype"), CHECKS)
def test_formula(operator, attributes, opset, formula, dtype):
    x = X.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    expected = formula(x.astype(np.float64)).astype(x.dtype)
    check_node(operator, x, opset=opset, reference=[expected], tolerance=TOLERANCE[dtype], **attributes)


OLD = [(operator, attributes, version) for operator, attributes, versions in [
    ("Relu", {}, (6, 13)),
    ("LeakyRelu", {"alpha": 0.3}, (6, 16)),
    ("ThresholdedRelu", {"alpha": 0.3}, (10,)),
    ("Sigmoid", {}, (6, 13)),
    ("HardSigmoid", {"alpha": 0.3}, (6,)),
    ("HardSwish", {}, (14,)),
    ("Elu", {"alpha": 0.3}, (6,)),
    ("Selu", {}, (6,)),
    ("Celu", {"alpha": 0.3}, (12,)),
    ("Gelu", {}, (20,)),
    ("Gelu", {"approximate": "tanh"}, (20,)),
    ("Softplus", {}, (1, 22)),
    ("Softsign", {}, (1, 22)),
    ("Mish", {}, (18,)),
    ("Shrink", {"lambd": 0.3, "bias": 0.2}, (9,)),
] for version in versions]  # fmt: skip


@pytest.mark.parametrize(("operator", "attributes", "version"), OLD)
def test_special_values_as_onnx_runtime(operator, attributes, version):
    opset = max(version, 7)
    check_node(operator, SPECIAL, opset=opset, **attributes)
    check_node(operator, SPECIAL.reshape(3, 1, 3), opset=opset, dynamic=True, **attributes)
    check_node(operator, np.array(-0.7, np.float32), opset=opset, **attributes)
    check_node(operator, np.zeros((2, 0), np.float32), opset=opset, **attributes)


@pytest.mark.parametrize("attributes", [{}, {"approximate": "tanh"}])
def test_gelu_of_a_large_array(attributes):
    """The CPU takes another way for large arrays."""
    check_node("Gelu", np.linspace(-12, 12, 20_000, dtype=np.float32), opset=20, tolerance=1e-7, **attributes)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_relu_of_integers(dtype):
    check_node("Relu", np.array([-3, 0, 5], dtype), reference=[np.array([0, 0, 5], dtype)])


@pytest.mark.parametrize("opset", [7, 9, 16])
@pytest.mark.parametrize("shape", [(1,), (3, 1, 1), (2, 3, 2, 2), (2,), ()])
def test_prelu(opset, shape):
    x = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 2, 2)
    slope = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    check_node("PRelu", x, slope, opset=opset)
    check_node("PRelu", x, slope, opset=opset, constant=(1,))


def test_prelu_of_special_values():
    check_node("PRelu", SPECIAL, np.array([0.5], np.float32))
    check_node("PRelu", SPECIAL, np.array([0], np.float32))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_prelu_of_integers(dtype):
    x = np.array([3, 0, 7] if dtype.startswith("u") else [-3, 0, 7], dtype)
    expected = np.where(x < 0, 2 * x.astype(np.int64), x).astype(dtype)
    check_node("PRelu", x, np.array([2], dtype), reference=[expected])


@pytest.mark.parametrize("channels", [1, 3])
def test_first_prelu_has_a_slope_for_each_channel(channels):
    x = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 2, 2)
    slope = np.array([0.5, -1, 2], np.float32)[:channels]
    expected = np.where(x < 0, x * slope[:, None, None], x)
    check_node("PRelu", x, slope, opset=6, reference=[expected])


@pytest.mark.parametrize("attributes", [{}, {"alpha": 1.7}])
def test_swiglu(attributes):
    a, b = np.random.default_rng(4).normal(size=(2, 3, 4))
    expected = a * logistic(attributes.get("alpha", 1) * a) * b
    # alpha is a float32: 1.7 is 5e-8 away
    check_node("SwiGLU", a, b, opset=28, reference=[expected], tolerance=1e-7, **attributes)
    a, b = a.astype(np.float16), b.astype(np.float16)
    check_node("SwiGLU", a, b, opset=28, reference=[expected.astype(np.float16)], tolerance=2e-3, **attributes)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32"])
@pytest.mark.parametrize(("lambd", "bias"), [(1.5, 1.5), (0.0, 2.5), (2.0, 0.0)])
def test_shrink_of_integers(dtype, lambd, bias):
    values = [0, 1, 2, 3, 100] if dtype.startswith("u") else [-100, -3, -2, -1, 0, 1, 2, 3, 100]
    check_node("Shrink", np.array(values, dtype), opset=9, lambd=lambd, bias=bias)


def test_gelu_declines_what_it_does_not_know():
    x = np.ones(2, np.float32)
    check_declined("Gelu", x, opset=20, approximate="cubic", because="neither none nor tanh", output_types=["float32"])


@pytest.mark.parametrize(("opset", "mask"), [(7, np.float32), (10, np.bool_), (12, np.bool_), (22, np.bool_)])
def test_dropout_at_inference_keeps_everything(opset, mask):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    attributes = {"ratio": 0.3} if opset < 12 else {}
    check_node("Dropout", x, opset=opset, reference=[x], **attributes)
    check_node("Dropout", x, opset=opset, outputs=2, reference=[x, np.ones_like(x, mask)], **attributes)


@pytest.mark.parametrize("constant", [(1, 2), ()])
@pytest.mark.parametrize(("ratio", "training"), [(0.3, False), (0.0, True)])
def test_dropout_that_drops_nothing(ratio, training, constant):
    x = np.arange(6, dtype=np.float32)
    inputs = x, np.array(ratio, np.float32), np.array(training)
    check_node("Dropout", *inputs, constant=constant, outputs=2, reference=[x, np.ones(6, bool)])


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_dropout_in_training(dtype, seed):
    """About the given share is dropped, and what is kept makes up for it."""
    x = np.linspace(1, 2, 4000).astype(dtype)
    model = node_model(
        "Dropout", [x, np.array(0.25, dtype), np.array(True)], outputs=2, **({} if seed is None else {"seed": seed})
    )
    inputs = {"x0": x, "x1": np.array(0.25, dtype), "x2": np.array(True)}
    output, mask = run_model(model, inputs)
    assert output.dtype == x.dtype
    assert 0.7 < np.mean(mask) < 0.8
    np.testing.assert_allclose(output, np.where(mask, x / 0.75, 0), rtol=1e-3 if dtype == np.float16 else 1e-6)
    again, _ = run_model(model, inputs)
    assert np.array_equal(output, again) == (seed is not None)


def test_seeded_dropout_draws_as_the_reference_does():
    x = np.arange(1, 41, dtype=np.float64)
    inputs = x, np.array(0.5), np.array(True)
    mask = np.random.RandomState(7).uniform(0, 1, x.shape) >= 0.5
    check_node("Dropout", *inputs, outputs=2, seed=7, reference=[x * mask * 2, mask])
    check_node("Dropout", *inputs, outputs=2, seed=7, reference="onnx")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gelu_far_out(dtype):
    """What is added to 1 there is -1 to the last bit."""
    x = np.array([-math.inf, math.inf, -40, 40, math.nan], dtype)
    expected = np.array([math.nan, math.inf, 0, 40, math.nan], dtype)
    check_node("Gelu", x, opset=20, reference=[expected])


@pytest.mark.parametrize("constant", [(), (1,)])
@pytest.mark.parametrize("slope", [math.inf, -math.inf, math.nan])
def test_prelu_of_endless_slopes(slope, constant):
    """Where the input is positive, the slope does not matter."""
    x = np.array([3.0, 0.0, -2.0, math.inf, -math.inf, math.nan], np.float32)
    check_node("PRelu", x, np.array([slope], np.float32), constant=constant)


@pytest.mark.parametrize("operator", ["LeakyRelu", "Elu"])
@pytest.mark.parametrize("alpha", [math.inf, math.nan])
def test_endless_attributes_are_declined(operator, alpha):
    check_declined(operator, np.ones(3, np.float32), alpha=alpha, because="must be finite")


@pytest.mark.parametrize("training", [(), (np.array(True),)])
@pytest.mark.parametrize("ratio", [-0.5, 1.0, 1.5, math.nan])
def test_dropout_of_no_share(ratio, training):
    inputs = np.ones(4, np.float32), np.array(ratio, np.float32), *training
    check_refused("Dropout", *inputs, match="is not at least 0 and less than 1")


@pytest.mark.parametrize("alpha", [0.0, math.inf, math.nan])
def test_celu_divides_by_alpha(alpha):
    check_declined("Celu", np.ones(3, np.float32), alpha=alpha, because="must be finite, and not 0")
