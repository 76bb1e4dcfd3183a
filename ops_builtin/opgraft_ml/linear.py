"""Linear models."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from opgraft.ops import Context, Node, op
from opgraft_ml._scores import (
    TRANSFORMS,
    best,
    claim_transform,
    labelled,
    of_one_score,
    of_two_classes,
    rows,
)
from opgraft_ml._types import NUMBERS


def products(
    ctx: Context, X: mx.array, coefficients: Sequence[float], intercepts: Sequence[float] | None, count: int
) -> mx.array:
    """X (N, features) times each of `count` vectors of coefficients, plus its intercept: (N, count), float32.

    Raises:
        ValueError: there are not as many coefficients as that takes.
    """
    X = rows(X).astype(mx.float32)
    if len(coefficients) != count * X.shape[1]:
        raise ValueError(f"{len(coefficients)} coefficients are not {count} for each of {X.shape[1]} features")
    weights = ctx.cached("weights", lambda: mx.array(coefficients, mx.float32).reshape(count, -1).T)
    offset = mx.array(intercepts or [0.0], mx.float32)
    return X @ weights + offset


@op("ai.onnx.ml::LinearRegressor", dtypes=NUMBERS)
def linear_regressor(ctx: Context, X, *, coefficients, intercepts=None, post_transform="NONE", targets=1):
    """X (N, features) times the coefficients of each target, plus its intercept: (N, targets), float32. Of a lone
    target, post_transform counts only if it is PROBIT. ONNX LinearRegressor-1.
    """
    scores = products(ctx, X, coefficients, intercepts, targets)
    return of_one_score(scores, post_transform) if targets == 1 else TRANSFORMS[post_transform](scores)


@linear_regressor.condition
def _(node: Node):
    targets, intercepts = node.attributes.get("targets", 1), len(node.attributes.get("intercepts") or ())
    node.require(targets > 0, "targets must be positive")
    node.require(intercepts in (0, targets), f"there are {intercepts} intercepts for {targets} targets")


@op("ai.onnx.ml::LinearClassifier", dtypes=NUMBERS)
def linear_classifier(
    ctx: Context,
    X,
    *,
    coefficients,
    intercepts,
    classlabels_ints=(),
    multi_class=0,
    post_transform="NONE",
):
    """The label (N) with the highest score, and the scores, float32: X (N, features) times the coefficients of each,
    plus its intercept. A lone score is that of the second of two labels, by default 0 and 1. ONNX LinearClassifier-1.
    """
    scores = products(ctx, X, coefficients, intercepts, len(intercepts))
    if len(intercepts) > 1:
        return labelled(best(scores), classlabels_ints), TRANSFORMS[post_transform](scores)
    label = labelled((scores[:, 0] > 0).astype(mx.int32), classlabels_ints or (0, 1))
    if not classlabels_ints:
        return label, of_one_score(scores, post_transform)
    return label, of_two_classes(scores, post_transform, probability=True)


@linear_classifier.condition
def _(node: Node):
    labels, scores = len(node.attributes.get("classlabels_ints") or ()), len(node.attributes["intercepts"])
    node.require(scores > 0, "intercepts are absent, and ONNX Runtime takes their number for that of the classes")
    node.require(
        labels in (0, 2) if scores == 1 else labels >= scores, f"there are {labels} labels for {scores} scores"
    )
    node.require(
        (scores, labels) != (1, 2) or node.attributes.get("post_transform") != "PROBIT",
        "PROBIT of one score for two labels: ONNX Runtime leaves the other score unset",
    )


linear_classifier.condition(claim_transform)
linear_regressor.condition(claim_transform)
