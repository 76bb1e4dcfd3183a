"""Losses, against ONNX's reference evaluator and NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import PLACES, check_refused, placed

from opgraft.errors import TranslationError
from opgraft.testing import check_declined, check_model, check_node, node_model

TOLERANCE = {"float32": 2e-6, "float64": 1e-13, "float16": 2e-3}


def floats(*shape, dtype="float32", seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def loss(log_prob, target, weight, ignore_index, reduction):
    """By the definition, one element at a time."""
    losses, weights = np.zeros(target.shape), np.zeros(target.shape)
    for place in np.ndindex(target.shape):
        kind = target[place]
        if kind != ignore_index:
            weights[place] = 1 if weight is None else weight[kind]
            losses[place] = -log_prob[place[0], kind, *place[1:]] * weights[place]
    if reduction == "none":
        return losses
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sum(losses) / np.sum(weights) if reduction == "mean" else np.sum(losses)


def log_softmax(scores):
    shifted = scores - scores.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def problem(shape, weighted, ignore_index, dtype, index_dtype):
    generator = np.random.default_rng([*shape])
    target = generator.integers(0, shape[1], (shape[0], *shape[2:])).astype(index_dtype)
    if ignore_index is not None:
        target[..., :1] = ignore_index
    weight = np.abs(floats(shape[1], dtype=dtype)) if weighted else None
    return floats(*shape, dtype=dtype), target, weight


@pytest.mark.parametrize("shape", [(4, 5), (3, 4, 6), (2, 3, 4, 5), (3, 1)])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore_index", [None, 0, -5, 100])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_losses(shape, reduction, weighted, ignore_index, dtype):
    x, target, weight = problem(shape, weighted, ignore_index, dtype, np.int64 if dtype == "float32" else np.int32)
    attributes = {"reduction": reduction} | ({} if ignore_index is None else {"ignore_index": ignore_index})
    settings = {"tolerance": TOLERANCE[dtype], **attributes}
    inputs = [x, target] if weight is None else [x, target, weight]
    wide = x.astype(np.float64)
    expected = np.asarray(loss(wide, target, weight, ignore_index, reduction)).astype(dtype)
    log_prob = log_softmax(wide)
    entropy = np.asarray(loss(log_prob, target, weight, ignore_index, reduction)).astype(dtype)
    for opset in (12, 13, 22):
        check_node("NegativeLogLikelihoodLoss", *inputs, opset=opset, reference=[expected], **settings)
    for opset in (12, 13):
        check_node("SoftmaxCrossEntropyLoss", *inputs, opset=opset, reference=[entropy], **settings)
        both = [entropy, log_prob.astype(dtype)]
        check_node("SoftmaxCrossEntropyLoss", *inputs, opset=opset, outputs=2, reference=both, **settings)


def test_the_default_is_the_mean():
    x, target, _ = problem((4, 5), False, None, "float32", np.int64)
    check_node("NegativeLogLikelihoodLoss", x, target, reference="onnx")
    check_node("SoftmaxCrossEntropyLoss", x, target, outputs=2)


def test_nothing_counted():
    x, target = floats(2, 3), np.array([1, 1])
    expected = [np.array(math.nan, np.float32)]
    check_node("NegativeLogLikelihoodLoss", x, target, ignore_index=1, reference=expected)
    check_node("NegativeLogLikelihoodLoss", x, target, ignore_index=1, reduction="sum", reference=[np.float32(0)])


def test_impossible_classes():
    """An infinite score of a class that is not asked for, or ignored, is no loss."""
    x = np.array([[0, -math.inf, 1], [-math.inf, 0, 1]], np.float32)
    for ignore_index in (0, 5):
        attributes = {"ignore_index": ignore_index, "reduction": "none"}
        expected = loss(log_softmax(x.astype(np.float64)), np.array([0, 2]), None, ignore_index, "none")
        reference = [expected.astype(np.float32)]
        check_node("SoftmaxCrossEntropyLoss", x, np.array([0, 2]), reference=reference, **attributes)
    expected = [np.array([math.inf, 0], np.float32)]
    attributes = {"reduction": "none", "ignore_index": 0}
    check_node("NegativeLogLikelihoodLoss", x, np.array([1, 0]), reference=expected, **attributes)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("operator", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
@pytest.mark.parametrize("kind", [4, -5, 10**9, -(10**9), 2**62])
def test_classes_that_are_not_there(kind, operator, weighted):
    """An error, unless they are ignored."""
    x, target, weight = np.ones((3, 4), np.float32), np.array([0, 1, kind]), [np.ones(4, np.float32)] * weighted
    check_refused(operator, x, target, *weight, match="indices must lie between -4 and 3")
    check_refused(operator, x, target, *weight, ignore_index=1, match="indices must lie between -4 and 3")
    feeds = dict(zip(("x0", "x1", "x2"), (x, target, *weight), strict=False))
    for place in PLACES:
        model = node_model(operator, [x, target, *weight], ignore_index=kind)
        model = placed(model, feeds, "x1", place)
        check_model(model, {each.name: feeds[each.name] for each in model.graph.input})


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("operator", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_negative_classes_count_from_the_end(operator, weighted):
    weight = [np.arange(1, 5, dtype=np.float32)] * weighted
    check_node(operator, floats(3, 4), np.array([0, -1, -4]), *weight)


@pytest.mark.parametrize("operator", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_targets_of_another_shape(operator):
    for scores, shape in (((2, 3), (1,)), ((2, 3, 1), (2, 4)), ((1, 3, 2), (4, 2)), ((2, 3, 4), (2,))):
        with pytest.raises(TranslationError, match="do not fit scores of shape"):
            check_node(operator, floats(*scores), np.zeros(shape, np.int64), dynamic=True, reference=[])


@pytest.mark.parametrize("shape", [(2, 3, 0), (0, 3)])
def test_the_mean_of_no_losses(shape):
    x, target = np.zeros(shape, np.float32), np.zeros((shape[0], *shape[2:]), np.int64)
    check_node("NegativeLogLikelihoodLoss", x, target)
    check_node("NegativeLogLikelihoodLoss", x, target, np.ones(3, np.float32))
    check_node("NegativeLogLikelihoodLoss", x, target, ignore_index=0)


def test_weights_of_other_classes():
    with pytest.raises(TranslationError, match="do not fit 4 classes"):
        check_node(
            "NegativeLogLikelihoodLoss", floats(3, 4), np.array([0, 1, 3]), floats(2), dynamic=True, reference=[]
        )


@pytest.mark.parametrize("op_type", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_reductions_that_onnx_does_not_know(op_type):
    for word in ("", "avg"):
        because = f"reduction {word!r} is not one of"
        check_declined(op_type, floats(3, 4), np.array([0, 1, 3]), reduction=word, because=because)


@given(st.data())
def test_a_loss_of_scores_is_a_loss_of_their_logarithms(data):
    """SoftmaxCrossEntropyLoss is the likelihood loss of its own second output."""
    classes = data.draw(st.integers(1, 5))
    shape = (data.draw(st.integers(1, 3)), classes, *data.draw(st.lists(st.integers(1, 3), max_size=2)))
    x, target, weight = problem(shape, data.draw(st.booleans()), None, "float32", np.int64)
    settings = {"reduction": data.draw(st.sampled_from(["none", "sum", "mean"])), "tolerance": 1e-6}
    inputs = [target] if weight is None else [target, weight]
    wide = log_softmax(x.astype(np.float64))
    expected = np.asarray(loss(wide, target, weight, None, settings["reduction"])).astype(np.float32)
    output, log_prob = check_node(
        "SoftmaxCrossEntropyLoss", x, *inputs, outputs=2, reference=[expected, wide.astype(np.float32)], **settings
    )
    check_node("NegativeLogLikelihoodLoss", log_prob, *inputs, reference=[output], **settings)
