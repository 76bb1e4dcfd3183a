"""Tree ensembles, against ONNX Runtime's CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from forests import EVERY, SAME, examples, forest

from opgraft.testing import check_declined, check_node, run_model
from opgraft.testing import node_model as model_of_node

REGRESSOR, CLASSIFIER, NEW = (
    f"ai.onnx.ml::{name}" for name in ("TreeEnsembleRegressor", "TreeEnsembleClassifier", "TreeEnsemble")
)
TOLERANCE = 1e-5
TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"]


def regressor(targets, **settings):
    return {**forest("target", targets=targets, **settings), "n_targets": targets}


def classifier(classes, **settings):
    attributes = forest("class", targets=classes, **settings)
    return {**attributes, "classlabels_int64s": [10 * (label + 1) for label in range(classes)]}


def check_regressor(x, attributes, **settings):
    check_node(REGRESSOR, x, opset=3, tolerance=TOLERANCE, output_types=["float32"], **attributes, **settings)


def check_classifier(x, attributes, **settings):
    types = {"outputs": 2, "output_types": ["int64", "float32"]}
    check_node(CLASSIFIER, x, opset=3, tolerance=TOLERANCE, **types, **attributes, **settings)


@pytest.mark.parametrize("modes", [SAME, EVERY, *[(mode,) for mode in EVERY[1:]]])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("depth", [0, 1, 2, 6])
def test_every_way_to_decide(modes, dtype, depth):
    for trees in (1, 7):
        check_regressor(examples(dtype=dtype), regressor(1, modes=modes, trees=trees, depth=depth))


@pytest.mark.parametrize("modes", [SAME, EVERY])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_missing_values(modes, dtype):
    x = examples(60, dtype=dtype)
    x[np.random.default_rng(3).random(x.shape) < 0.4] = np.nan
    check_regressor(x, regressor(2, modes=modes, missing=True))
    check_regressor(x, regressor(2, modes=modes))
    check_classifier(x, classifier(3, modes=modes, missing=True))


@pytest.mark.parametrize("function", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize(("targets", "weighed"), [(1, "all"), (3, "all"), (3, "one"), (3, "tree"), (2, 1)])
@pytest.mark.parametrize("with_base", [False, True])
@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX"])
def test_folds_over_trees(function, targets, weighed, with_base, transform):
    attributes = regressor(targets, weighed=weighed)
    base = {"base_values": [0.5, -0.25, 0.125][:targets]} if with_base else {}
    settings = {"aggregate_function": function, "post_transform": transform, **base}
    check_regressor(examples(), attributes, **settings)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 2, 4])
def test_transforms_of_targets(transform, targets):
    check_regressor(examples(), regressor(targets, positive=True, trees=1), post_transform=transform)
    check_regressor(examples(), regressor(targets), post_transform=transform)


@pytest.mark.parametrize("shape", [(0, 4), (1, 4), (300, 4)])
def test_numbers_of_examples(shape):
    x = examples(300)[: shape[0]]
    check_regressor(x, regressor(2, trees=90))
    check_regressor(x, regressor(1, trees=90), dynamic=True)
    check_classifier(x, classifier(3, trees=90))


def test_many_targets_are_folded_in_parts(monkeypatch):
    from opgraft_ml import _forest

    for held in (1, 200, 2000):
        monkeypatch.setattr(_forest, "HELD_AT_ONCE", held)
        for function in ("SUM", "AVERAGE", "MIN", "MAX"):
            check_regressor(examples(), regressor(3, trees=9), aggregate_function=function)


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_integers(dtype):
    x = examples(dtype="float32").round().astype(dtype)
    check_classifier(x, classifier(3))
    expected = run_regressor(x.astype(np.float32), regressor(2))
    check_regressor(x, regressor(2), reference=expected)  # the CPU provider has no kernel for it


def run_regressor(x, attributes):
    model = model_of_node(REGRESSOR, [x], opset=3, output_types=["float32"], **attributes)
    return run_model(model, {"x0": x})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_as_tensors(dtype):
    attributes: dict[str, Any] = regressor(2)
    for name in ("nodes_values", "target_weights"):
        values = np.array(attributes.pop(name), dtype) + np.array(1e-9, dtype)
        attributes[f"{name}_as_tensor"] = onnx.numpy_helper.from_array(values)
    attributes["base_values_as_tensor"] = onnx.numpy_helper.from_array(np.array([0.25, 1], dtype))
    check_regressor(examples(dtype=dtype), attributes)
    attributes = classifier(3)
    values = np.array(attributes.pop("class_weights"), dtype)
    attributes["class_weights_as_tensor"] = onnx.numpy_helper.from_array(values)
    check_classifier(examples(dtype=dtype), attributes)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("classes", [3, 5])
@pytest.mark.parametrize("weighed", ["all", "one", "tree"])
@pytest.mark.parametrize("with_base", [False, True])
def test_many_classes(transform, classes, weighed, with_base):
    base = {"base_values": [0.1, 0.2, 0.3, -0.4, 0.5][:classes]} if with_base else {}
    for positive in (False, True):
        attributes = classifier(classes, weighed=weighed, positive=positive, trees=6)
        check_classifier(examples(), attributes, post_transform=transform, **base)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("weighed", ["all", 0, 1])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("base", [None, [0.25], [0.5, -0.25]])
def test_two_classes(transform, weighed, positive, base):
    attributes = classifier(2, weighed=weighed, positive=positive, trees=3)
    settings = {"post_transform": transform, **({} if base is None else {"base_values": base})}
    if len(base or ()) == 2 and weighed != 0:
        because = "ONNX Runtime leaves some of them out"
    elif weighed == 0 and len(base or ()) < 2 and transform == "PROBIT":
        because = "ONNX Runtime leaves a score unset"
    else:
        return check_classifier(examples(), attributes, **settings)
    types = {"outputs": 2, "output_types": ["int64", "float32"], "opset": 3}
    check_declined(CLASSIFIER, examples(), because=because, **types, **attributes, **settings)


def test_two_classes_of_which_some_leaves_weigh_the_second():
    types = {"outputs": 2, "output_types": ["int64", "float32"], "opset": 3}
    attributes = classifier(2, weighed="one", trees=2)
    check_declined(CLASSIFIER, examples(), because="no tree weighs the second class", **types, **attributes)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("base", [None, [0.5]])
def test_one_class(transform, base):
    settings = {"post_transform": transform, **({} if base is None else {"base_values": base})}
    check_classifier(examples(), classifier(1), **settings)


def test_opset_1():
    for opset in (1, 3):
        types = {"opset": opset, "tolerance": TOLERANCE}
        check_node(REGRESSOR, examples(), output_types=["float32"], **types, **regressor(2))
        outputs = {"outputs": 2, "output_types": ["int64", "float32"]}
        check_node(CLASSIFIER, examples(), **outputs, **types, **classifier(3))


def test_what_is_declined():
    types = {"outputs": 2, "output_types": ["string", "float32"], "opset": 3}
    attributes = classifier(3)
    attributes["classlabels_strings"] = ["a", "b", "c"]
    del attributes["classlabels_int64s"]
    check_declined(CLASSIFIER, examples(), because="(the labels as integers)", **types, **attributes)
    settings = {"output_types": ["float32"], "opset": 3}
    for change, because in (
        ({"base_values": [1.0]}, "1 base values for 2 targets"),
        ({"aggregate_function": "MEDIAN"}, "MEDIAN is not one of"),
        ({"post_transform": "CUBE"}, "CUBE is not one of"),
        ({"target_ids": [9] * len(regressor(2)["target_ids"])}, "weighs target 9 of 2"),
        ({"nodes_truenodeids": [99] * len(regressor(2)["nodes_modes"])}, "there is no node"),
        ({"nodes_truenodeids": [0] * len(regressor(2)["nodes_modes"])}, "never ends"),
        ({"nodes_modes": ["BRANCH_LIKE"] * len(regressor(2)["nodes_modes"])}, "BRANCH_LIKE, which is none"),
        ({"nodes_values": [1.0]}, "are of different lengths"),
    ):
        check_declined(REGRESSOR, examples(), because=because, **settings, **{**regressor(2), **change})
    check_declined(
        REGRESSOR, examples(features=2), because="2 features, and the trees ask for 4", **settings, **regressor(2)
    )


def new_ensemble(dtype, modes, seed=0, **changes):
    """Two trees that share a branch, and one of a single leaf."""
    rng = np.random.default_rng(seed)

    def tensor(values, kind=dtype):
        return onnx.numpy_helper.from_array(np.asarray(values, kind))

    attributes = {
        "n_targets": 2,
        "tree_roots": [0, 1, 4],
        "nodes_modes": tensor([modes[index % len(modes)] for index in range(5)], np.uint8),
        "nodes_featureids": [0, 1, 2, 3, 0],
        "nodes_splits": tensor([0, 1, -1, 0, 0]),
        "nodes_truenodeids": [2, 0, 1, 2, 5],
        "nodes_falsenodeids": [3, 3, 2, 3, 5],
        "nodes_trueleafs": [0, 1, 1, 1, 1],
        "nodes_falseleafs": [0, 0, 1, 1, 1],
        "leaf_targetids": [0, 1, 0, 1, 0, 1],
        "leaf_weights": tensor(rng.standard_normal(6)),
    }
    return {**attributes, **changes}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("modes", [(0,), (1,), (2,), (3,), (4,), (5,), (0, 1, 2, 3, 4), (5, 4, 0)])
@pytest.mark.parametrize("function", [0, 1, 2, 3])
def test_new_ensembles(dtype, modes, function):
    settings = {"opset": 5, "output_types": [dtype], "tolerance": TOLERANCE, "aggregate_function": function}
    x = examples(dtype=dtype)
    check_node(NEW, x, **settings, **new_ensemble(dtype, modes))
    x[::3, 1] = np.nan
    tracks = {"nodes_missing_value_tracks_true": [1, 1, 0, 1, 0]}
    check_node(NEW, x, **settings, **new_ensemble(dtype, modes, **tracks))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("members", [[[1, 2], [0, 1, 3], [2], [1, 2]], [[40, 2], [0], [-1], list(range(-3, 40))]])
def test_members(dtype, members):
    """Where a set holds negative or large numbers, ONNX Runtime truncates what it looks for to an integer."""
    values = np.concatenate([[*each, np.nan] for each in members]).astype(dtype)
    attributes = new_ensemble(dtype, (6, 6, 6, 6, 0), membership_values=onnx.numpy_helper.from_array(values))
    settings = {"opset": 5, "output_types": [dtype], "tolerance": TOLERANCE}
    check_node(NEW, examples(dtype=dtype).round(), **settings, **attributes)
    if max(map(max, members)) < 30:
        check_node(NEW, examples(dtype=dtype), **settings, **attributes)


@pytest.mark.parametrize("transform", [0, 3, 4])
def test_transforms_of_new_ensembles(transform):
    settings = {"opset": 5, "output_types": ["float32"], "tolerance": TOLERANCE, "post_transform": transform}
    check_node(NEW, examples(), **settings, **new_ensemble("float32", (0,)))


def test_new_ensembles_in_float16():
    x = examples(dtype="float16")
    single = check_node(NEW, x.astype(np.float32), opset=5, output_types=["float32"], **new_ensemble("float32", (0,)))
    expected = [each.astype(np.float16) for each in single]
    settings = {"opset": 5, "output_types": ["float16"], "tolerance": 2e-3}
    check_node(NEW, x, reference=expected, **settings, **new_ensemble("float16", (0,)))


def test_what_is_declined_of_new_ensembles():
    settings = {"opset": 5, "output_types": ["float32"]}
    for change, because in (
        ({"post_transform": 1}, "ONNX and ONNX Runtime read it differently"),
        ({"post_transform": 7}, "post_transform 7 is not one of"),
        ({"aggregate_function": 4}, "aggregate_function 4 is not one of"),
        ({"nodes_truenodeids": [0, 0, 1, 2, 5]}, "never ends"),
    ):
        check_declined(NEW, examples(), because=because, **settings, **new_ensemble("float32", (0,), **change))
