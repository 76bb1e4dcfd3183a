"""Support vector machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import mlx.core as mx
import numpy as np

from opgraft.ops import Context, Node, op
from opgraft_ml._scores import TRANSFORMS, best, claim_transform, labelled, of_two_classes, rows
from opgraft_ml._types import NUMBERS
from opgraft_ops._folding import exponential
from opgraft_ops._functions import sigmoid, tanh

HELD_AT_ONCE = 1 << 24
"""How many differences of features are held before they are added up."""

SWEEPS = 100
"""How often the probabilities of classes are corrected at most."""

CLOSEST = 1e-7
"""How close to 0 and 1 the probability of one class against another may come."""


def squared_distances(X: mx.array, vectors: mx.array) -> mx.array:
    """Those of each row of X (N, F) from each vector (V, F): (N, V)."""
    step = max(HELD_AT_ONCE // max(X.size, 1), 1)
    parts = [
        mx.sum(mx.square(X[:, None] - vectors[start : start + step]), axis=-1)
        for start in range(0, vectors.shape[0], step)
    ]
    return mx.concatenate(parts, axis=1)


Kernel = Callable[[mx.array, mx.array, float, float, float], mx.array]

KERNELS: dict[str, Kernel] = {
    "LINEAR": lambda X, vectors, gamma, coef0, degree: X @ vectors.T,
    "POLY": lambda X, vectors, gamma, coef0, degree: power(gamma * (X @ vectors.T) + coef0, degree),
    "RBF": lambda X, vectors, gamma, coef0, degree: exponential(-gamma * squared_distances(X, vectors)),
    "SIGMOID": lambda X, vectors, gamma, coef0, degree: tanh(gamma * (X @ vectors.T) + coef0),
}
"""The likeness of rows of X (N, F) and vectors (V, F): (N, V)."""


def power(x: mx.array, degree: float) -> mx.array:
    """x to the power `degree`; squares and cubes exactly."""
    return x * x if degree == 2 else x * x * x if degree == 3 else mx.power(x, degree)


def vectors_of(ctx: Context, X: mx.array, vectors: Sequence[float], count: int) -> mx.array:
    """`count` vectors as long as the rows of X.

    Raises:
        ValueError: there are not as many numbers as that takes.
    """
    if len(vectors) != count * X.shape[1]:
        raise ValueError(f"{len(vectors)} numbers are not {count} vectors of {X.shape[1]} features")
    return ctx.cached("vectors", lambda: mx.array(vectors, mx.float32).reshape(count, -1))


@op("ai.onnx.ml::SVMRegressor", dtypes=NUMBERS)
def svm_regressor(
    ctx: Context,
    X,
    *,
    coefficients,
    rho,
    kernel_params=(),
    kernel_type="LINEAR",
    n_supports=0,
    one_class=0,
    post_transform="NONE",
    support_vectors=(),
):
    """The likeness of X (N, features) with each support vector, times its coefficient, plus rho: (N, 1), float32.
    Without support vectors, the coefficients are those of the features. With one_class, the sign of that: 1 or -1. As
    in ONNX Runtime, post_transform does not count. ONNX SVMRegressor-1.
    """
    X = rows(X).astype(mx.float32)
    weights = ctx.cached("weights", lambda: mx.array(coefficients, mx.float32)[:, None])
    if n_supports:
        vectors = vectors_of(ctx, X, support_vectors, n_supports)
        X = KERNELS[kernel_type](X, vectors, *(kernel_params or (0.0, 0.0, 0.0)))
    y = X @ weights + rho[0]
    return mx.where(y > 0, 1.0, -1.0) if one_class else y


@op("ai.onnx.ml::SVMClassifier", dtypes=NUMBERS)
def svm_classifier(
    ctx: Context,
    X,
    *,
    coefficients,
    rho,
    classlabels_ints,
    kernel_params=(),
    kernel_type="LINEAR",
    post_transform="NONE",
    prob_a=(),
    prob_b=(),
    support_vectors=(),
    vectors_per_class=(),
):
    """The label (N) that wins most of the votes between two classes each, and scores, float32: with prob_a, the
    probability (N, K) of each class, otherwise that vote's margin (N, pairs), or (N, 2) for two classes. Without
    support vectors, a linear model's label and scores (N, K). ONNX SVMClassifier-1.

    The probabilities come from up to 100 corrections, and are as far from their limit as those of ONNX Runtime.
    """
    X = rows(X).astype(mx.float32)
    if not sum(vectors_per_class):
        return linear_scores(ctx, X, coefficients, rho, classlabels_ints, post_transform, bool(prob_a))
    count = len(classlabels_ints)
    vectors = vectors_of(ctx, X, support_vectors, sum(vectors_per_class))
    likeness = KERNELS[kernel_type](X, vectors, *(kernel_params or (0.0, 0.0, 0.0)))
    pairs = list(combinations(range(count), 2))
    weights = ctx.cached("weights", lambda: mx.array(pair_weights(coefficients, vectors_per_class)))
    margins = likeness @ weights + mx.array(rho[: len(pairs)], mx.float32)
    first, second = (mx.array(np.eye(count, dtype=np.int32)[list(each)]) for each in zip(*pairs, strict=True))
    votes = mx.sum(mx.where(margins[..., None] > 0, first, second), axis=1)
    label = labelled(best(votes), classlabels_ints)
    if prob_a:
        slope, offset = (mx.array(each[: len(pairs)], mx.float32) for each in (prob_a, prob_b))
        scores = coupled(mx.clip(sigmoid(-(margins * slope + offset)), CLOSEST, 1 - CLOSEST), count, pairs)
        return label, TRANSFORMS[post_transform](scores)
    if count > 2:
        return label, TRANSFORMS[post_transform](margins)
    return label, of_two_classes(margins, post_transform, probability=post_transform != "NONE")


def linear_scores(
    ctx: Context,
    X: mx.array,
    coefficients: Sequence[float],
    rho: Sequence[float],
    labels: tuple[int, ...],
    transform: str,
    probabilities: bool,
) -> tuple[mx.array, mx.array]:
    """The labels and scores of a linear model. Of two classes, the second wins wherever any score is positive (at least
    a half, if no coefficient is negative), as in ONNX Runtime."""
    scores = X @ vectors_of(ctx, X, coefficients, len(labels)).T + rho[0]
    place = best(scores)
    if len(labels) == 2 and not probabilities:
        highest = mx.max(scores, axis=-1)
        place = mx.where(highest >= 0.5 if min(coefficients) >= 0 else highest > 0, 1, place)
    return labelled(place, labels), TRANSFORMS[transform](scores)


def pair_weights(coefficients: Sequence[float], sizes: Sequence[int]) -> np.ndarray:
    """The weight of each vector in the vote of each pair of classes: (V, pairs). A class's vectors have a coefficient
    against each other class, in the order of these."""
    rows_of_others = np.array(coefficients, np.float32)[: (len(sizes) - 1) * sum(sizes)].reshape(len(sizes) - 1, -1)
    bounds = np.cumsum([0, *sizes])
    weights = []
    for one, other in combinations(range(len(sizes)), 2):
        column = np.zeros(bounds[-1], np.float32)
        for own, against in ((one, other - 1), (other, one)):
            part = slice(bounds[own], bounds[own + 1])
            column[part] = rows_of_others[against, part]
        weights.append(column)
    return np.stack(weights, axis=1)


def coupled(wins: mx.array, count: int, pairs: Sequence[tuple[int, int]]) -> mx.array:
    """The probabilities (N, K) of classes of which each pair's first wins with the probability `wins` (N, pairs).

    By Wu, Lin and Weng's second method: the least of a quadratic form, by corrections of one class after another, until
    every error is below 0.005 / K.
    """
    one, other = (mx.array(each) for each in zip(*pairs, strict=True))
    place = mx.arange(count * count)
    won, lost = (place == (count * one + other)[:, None]), (place == (count * other + one)[:, None])
    against = wins @ won.astype(mx.float32) + (1 - wins) @ lost.astype(mx.float32)
    against = against.reshape(wins.shape[0], count, count)
    swapped = mx.swapaxes(against, 1, 2)
    diagonal = mx.sum(mx.square(swapped), axis=2)
    form = -swapped * against + diagonal[..., None] * mx.eye(count)
    share = mx.full((wins.shape[0], count), 1 / count)
    running = mx.ones((wins.shape[0], 1), mx.bool_)
    for _ in range(SWEEPS):
        pulls = mx.sum(form * share[:, None], axis=2)
        total = mx.sum(share * pulls, axis=1, keepdims=True)
        running = running & (mx.max(mx.abs(pulls - total), axis=1, keepdims=True) >= 0.005 / count)
        corrected = share
        for place in range(count):
            own = diagonal[:, place : place + 1]
            change = (total - pulls[:, place : place + 1]) / own
            total = (total + change * (change * own + 2 * pulls[:, place : place + 1])) / mx.square(1 + change)
            pulls = (pulls + change * form[:, place]) / (1 + change)
            corrected = (corrected + change * mx.eye(count)[place]) / (1 + change)
        share = mx.where(running, corrected, share)
    return share


@svm_classifier.condition
def _(node: Node):
    attributes = node.attributes
    count, sizes = len(attributes["classlabels_ints"]), attributes.get("vectors_per_class") or ()
    pairs = count * (count - 1) // 2
    node.require(count > 1, "there is one label, and nothing to tell apart")
    if sum(sizes):
        node.require(len(sizes) == count, f"vectors_per_class has {len(sizes)} numbers for {count} labels")
        node.require(len(attributes["rho"]) >= pairs, f"rho has fewer than {pairs} numbers")
        node.require(len(attributes["coefficients"]) >= (count - 1) * sum(sizes), "there are too few coefficients")
    for name in ("prob_a", "prob_b"):
        given = len(attributes.get(name) or ())
        node.require(not given or given >= pairs, f"{name} has {given} numbers for {pairs} pairs of classes")
    alike = bool(attributes.get("prob_a")) == bool(attributes.get("prob_b"))
    node.require(alike, "of prob_a and prob_b only one is there")
    node.require(
        count > 2 or not sum(sizes) or attributes.get("prob_a") or attributes.get("post_transform") != "PROBIT",
        "PROBIT of the margin between two classes: ONNX Runtime leaves a score unset",
    )


@svm_classifier.condition
@svm_regressor.condition
def _(node: Node):
    claim_transform(node)
    kernel, params = node.attributes.get("kernel_type", "LINEAR"), node.attributes.get("kernel_params") or ()
    node.require(kernel in KERNELS, f"kernel_type {kernel} is not one of {', '.join(KERNELS)}")
    node.require(len(params) in (0, 3), f"kernel_params are {list(params)}, and must be gamma, coef0 and degree")
    node.require(node.attributes["rho"], "rho is empty")
