"""Linear models and support vector machines, against ONNX Runtime's CPU provider, or NumPy in float64 where it has no
kernel."""

from __future__ import annotations

import numpy as np
import pytest
from forests import examples

from opgraft.testing import check_declined, check_node

REGRESSOR, CLASSIFIER, SVM_REGRESSOR, SVM = (
    f"ai.onnx.ml::{name}" for name in ("LinearRegressor", "LinearClassifier", "SVMRegressor", "SVMClassifier")
)
TOLERANCE = 1e-5
PROBIT_TOLERANCE = 1e-4
"""Its formula subtracts numbers that are nearly the same."""
TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"]
SINGLE = {"output_types": ["float32"]}
ONE = {**SINGLE, "tolerance": TOLERANCE}
PAIR = {"outputs": 2, "output_types": ["int64", "float32"]}
TWO = {**PAIR, "tolerance": TOLERANCE}
FEATURES = 4


def tolerance(transform):
    return PROBIT_TOLERANCE if transform == "PROBIT" else TOLERANCE


def numbers(*shape, seed=0, low=-1.0, high=1.0):
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape).astype(np.float32)


def listed(*shape, **settings):
    return [float(each) for each in numbers(*shape, **settings).ravel()]


def labels(count):
    return [10 * (each + 1) for each in range(count)]


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 2, 5])
@pytest.mark.parametrize("intercepts", [False, True])
@pytest.mark.parametrize("count", [0, 1, 50])
def test_linear_regressor(transform, targets, intercepts, count):
    offset = {"intercepts": listed(targets, seed=1)} if intercepts else {}
    settings = {"targets": targets, "post_transform": transform, **offset, **SINGLE}
    settings["coefficients"] = listed(targets, FEATURES)
    check_node(REGRESSOR, examples(count), tolerance=tolerance(transform), **settings)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(("classes", "scores"), [(2, 1), (2, 2), (3, 3), (6, 6)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("count", [0, 1, 50])
def test_linear_classifier(transform, classes, scores, dtype, count):
    settings = {"classlabels_ints": labels(classes), "post_transform": transform, "multi_class": 1, **PAIR}
    settings |= {"coefficients": listed(scores, FEATURES), "intercepts": listed(scores, seed=1)}
    x = examples(count).round().astype(dtype) if "int" in dtype else examples(count, dtype=dtype)
    if (scores, classes, transform) == (1, 2, "PROBIT"):
        check_declined(CLASSIFIER, x, because="ONNX Runtime leaves the other score unset", **settings)
    else:
        check_node(CLASSIFIER, x, tolerance=tolerance(transform), **settings)


def test_labels_that_nobody_gives():
    settings = {"coefficients": listed(1, FEATURES), "intercepts": [0.25]}
    check_node(CLASSIFIER, examples(), **settings, **TWO)


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
def test_regressors_of_other_element_types(dtype):
    """Which the CPU provider lacks."""
    x, weights = examples().round().astype(dtype), numbers(2, FEATURES)
    expected = (x.astype(np.float64) @ weights.astype(np.float64).T).astype(np.float32)
    flat = [float(each) for each in weights.ravel()]
    check_node(REGRESSOR, x, coefficients=flat, targets=2, reference=[expected], **ONE)
    vector = {"coefficients": flat[:FEATURES], "rho": [0.25]}
    check_node(SVM_REGRESSOR, x, reference=[expected[:, :1] + np.float32(0.25)], **vector, **ONE)


def test_what_linear_models_decline():
    x = examples()
    check_declined(REGRESSOR, x, coefficients=[1.0] * 3, because="3 coefficients are not 1 for each of 4", **SINGLE)
    wrong = {"coefficients": [1.0] * 8, "targets": 2, "intercepts": [1.0]}
    check_declined(REGRESSOR, x, because="1 intercepts for 2 targets", **wrong, **SINGLE)
    two = {"coefficients": [1.0] * 8, "classlabels_ints": [1, 2]}
    check_declined(CLASSIFIER, x, because="attribute intercepts is required", **two, **PAIR)
    check_declined(CLASSIFIER, x, intercepts=[1.0] * 3, because="2 labels for 3 scores", **two, **PAIR)
    strings = {"coefficients": [1.0] * 8, "classlabels_strings": ["a", "b"], "intercepts": [0.0, 1.0]}
    check_declined(
        CLASSIFIER,
        x,
        because="the labels as integers",
        **strings,
        **{**PAIR, "output_types": ["string", "float32"]},
    )


KERNELS = ["LINEAR", "POLY", "RBF", "SIGMOID"]
PARAMETERS = [0.3, 0.5, 3.0]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("degree", [2.0, 3.0, 4.0])
@pytest.mark.parametrize("one_class", [0, 1])
@pytest.mark.parametrize("count", [0, 1, 50])
def test_svm_regressor(kernel, degree, one_class, count):
    vectors = {
        "support_vectors": listed(9, FEATURES),
        "n_supports": 9,
        "coefficients": listed(9, seed=1),
        "rho": [0.125],
    }
    settings = {"kernel_type": kernel, "kernel_params": [0.3, 0.5, degree], "one_class": one_class, **vectors, **ONE}
    check_node(SVM_REGRESSOR, examples(count), **settings)


def test_linear_svm_regressor():
    for one_class in (0, 1):
        settings = {"coefficients": listed(FEATURES), "rho": [0.25], "one_class": one_class, "kernel_type": "LINEAR"}
        check_node(SVM_REGRESSOR, examples(), kernel_params=PARAMETERS, **settings, **ONE)


def machine(classes, *, probabilities=False, positive=False):
    sizes = [2 + each % 3 for each in range(classes)]
    total, pairs = sum(sizes), classes * (classes - 1) // 2
    coefficients = listed(classes - 1, total, seed=1, low=0.0 if positive else -1.0)
    slopes = (
        {"prob_a": listed(pairs, seed=4, low=-2.0, high=-0.5), "prob_b": listed(pairs, seed=5)} if probabilities else {}
    )
    return {
        "classlabels_ints": labels(classes),
        "vectors_per_class": sizes,
        "support_vectors": listed(total, FEATURES),
        "coefficients": coefficients,
        "rho": listed(pairs, seed=2),
        "kernel_params": PARAMETERS,
        **slopes,
    }


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 50])
def test_votes(kernel, classes, count):
    check_node(SVM, examples(count), kernel_type=kernel, **machine(classes), **TWO)
    check_node(SVM, examples(count), kernel_type=kernel, **machine(classes, positive=True), **TWO)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("count", [0, 40])
def test_probabilities(kernel, classes, count):
    check_node(SVM, examples(count), kernel_type=kernel, **machine(classes, probabilities=True), **TWO)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("probabilities", [False, True])
def test_transforms_of_votes(transform, classes, probabilities):
    settings = {"post_transform": transform, **machine(classes, probabilities=probabilities), **PAIR}
    if (transform, classes, probabilities) == ("PROBIT", 2, False):
        check_declined(SVM, examples(), because="ONNX Runtime leaves a score unset", **settings)
    else:
        check_node(SVM, examples(), kernel_type="RBF", tolerance=tolerance(transform), **settings)


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
def test_votes_of_other_element_types(dtype):
    x = examples().round().astype(dtype)
    check_node(SVM, x, kernel_type="RBF", **machine(3), **TWO)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("probabilities", [False, True])
def test_linear_machines(classes, positive, transform, probabilities):
    pairs = classes * (classes - 1) // 2
    given = {"prob_a": listed(pairs, seed=4), "prob_b": listed(pairs, seed=5)} if probabilities else {}
    settings = {
        "classlabels_ints": labels(classes),
        "coefficients": listed(classes, FEATURES, low=0.0 if positive else -1.0),
        "rho": [0.25],
        "kernel_params": PARAMETERS,
        "post_transform": transform,
    }
    check_node(SVM, examples(), **settings, **given, **TWO)


def test_what_machines_decline():
    x = examples()
    for change, because in (
        ({"kernel_type": "COSINE"}, "kernel_type COSINE is not one of"),
        ({"kernel_params": [1.0]}, "must be gamma, coef0 and degree"),
        ({"vectors_per_class": [2, 3]}, "vectors_per_class has 2 numbers for 3 labels"),
        ({"rho": [1.0]}, "rho has fewer than 3 numbers"),
        ({"coefficients": [1.0]}, "too few coefficients"),
        ({"support_vectors": [1.0]}, "1 numbers are not 9 vectors of 4 features"),
        ({"prob_a": [1.0, 1.0, 1.0]}, "of prob_a and prob_b only one"),
        ({"prob_a": [1.0], "prob_b": [1.0]}, "prob_a has 1 numbers for 3 pairs"),
        ({"post_transform": "CUBE"}, "CUBE is not one of"),
    ):
        check_declined(SVM, x, because=because, **{**machine(3), **change}, **PAIR)
    check_declined(SVM, x, because="nothing to tell apart", classlabels_ints=[1], coefficients=[1.0], rho=[1.0], **PAIR)


def test_distances_are_taken_in_parts(monkeypatch):
    from opgraft_ml import svm

    for held in (1, 500):
        monkeypatch.setattr(svm, "HELD_AT_ONCE", held)
        check_node(SVM, examples(), kernel_type="RBF", **machine(3), **TWO)
