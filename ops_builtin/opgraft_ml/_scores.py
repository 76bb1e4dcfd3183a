"""Scores and what is made of them: the transforms that several operators have, and labels."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import mlx.core as mx

from opgraft.ops import Node
from opgraft_ops._folding import exponential
from opgraft_ops._functions import sigmoid
from opgraft_ops.reduction import softmax

NEXT_TO_NOTHING = 1e-7
"""What SOFTMAX_ZERO takes for zero."""


def probit(x: mx.array) -> mx.array:
    """The number that a normal variable is less than with probability x, by Winitzki's approximation, as ONNX Runtime
    has it."""
    centred = 2 * x - 1
    logarithm = mx.log((1 - centred) * (1 + centred))
    half = 2 / (pi * 0.147) + logarithm / 2
    magnitude = mx.sqrt(mx.sqrt(half * half - logarithm / 0.147) - half)
    return sqrt(2) * mx.where(centred < 0, -magnitude, magnitude)


def softmax_of_others(x: mx.array) -> mx.array:
    """Softmax along the last axis over what is not zero, which stays so."""
    largest = mx.max(x, axis=-1, keepdims=True)
    powers = mx.where(mx.abs(x) > NEXT_TO_NOTHING, exponential(x - largest), 0)
    shown = mx.where(mx.abs(x) > NEXT_TO_NOTHING, powers, x * exponential(-largest))
    return shown / mx.sum(powers, axis=-1, keepdims=True)


TRANSFORMS: dict[str, Callable[[mx.array], mx.array]] = {
    "NONE": lambda scores: scores,
    "LOGISTIC": sigmoid,
    "SOFTMAX": softmax,
    "SOFTMAX_ZERO": softmax_of_others,
    "PROBIT": probit,
}
"""What becomes of the scores (N, K) of two classes or targets at least."""


def of_one_score(score: mx.array, transform: str) -> mx.array:
    """What becomes of the score (N, 1) of a lone class or target: only PROBIT counts, as in ONNX Runtime."""
    return probit(score) if transform == "PROBIT" else score


def of_two_classes(score: mx.array, transform: str, probability: bool) -> mx.array:
    """The scores (N, 2) of both of two classes from that of the second (N, 1).

    Args:
        probability: the score is one, and the other's is what it lacks to 1; otherwise the other's is its negative.
    """
    if transform == "LOGISTIC":
        return mx.concatenate([sigmoid(-score), sigmoid(score)], axis=-1)
    return mx.concatenate([1 - score if probability else -score, score], axis=-1)


def best(scores: mx.array) -> mx.array:
    """The place of the highest score of each row (N, K), the first of several."""
    return mx.argmax(scores, axis=-1) if scores.size else mx.zeros(scores.shape[:1], mx.uint32)


def labelled(place: mx.array, labels: tuple[int, ...]) -> mx.array:
    """The labels of classes by their places."""
    return mx.take(mx.array(labels, mx.int64), place, axis=0)


def rows(X: mx.array) -> mx.array:
    """X with a row for each example: a vector is one.

    Raises:
        ValueError: it has neither one axis nor two.
    """
    if X.ndim not in (1, 2):
        raise ValueError(f"X of shape {list(X.shape)} is neither one row of features nor a matrix of them")
    return X[None] if X.ndim == 1 else X


def claim_transform(node: Node) -> None:
    name = node.attributes.get("post_transform", "NONE")
    node.require(name in TRANSFORMS, f"post_transform {name} is not one of {', '.join(TRANSFORMS)}")
