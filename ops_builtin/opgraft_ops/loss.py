"""Losses."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from opgraft.ops import FLOATS, Anywhere, op, to_device
from opgraft_ops._folding import Fold, exponential, widened
from opgraft_ops._shared import indices_within
from opgraft_ops._sizes import choices


@op("NegativeLogLikelihoodLoss", dtypes={"input": FLOATS, "weight": FLOATS})
def negative_log_likelihood_loss(ctx, input, target: Anywhere, weight=None, *, ignore_index=None, reduction="mean"):
    """-input at each target class, times the class's weight; or their sum, or their weighted mean.
    input (N, C, ...), target (N, ...). ONNX NegativeLogLikelihoodLoss-22."""
    return loss(ctx, widened(input), target, weight, ignore_index, reduction).astype(input.dtype)


@op("SoftmaxCrossEntropyLoss", dtypes={"scores": FLOATS, "weights": FLOATS})
def softmax_cross_entropy_loss(ctx, scores, labels: Anywhere, weights=None, *, ignore_index=None, reduction="mean"):
    """The negative log likelihood loss of LogSoftmax(scores) over the classes, and LogSoftmax itself.
    scores (N, C, ...), labels (N, ...). ONNX SoftmaxCrossEntropyLoss-13."""
    classes = Fold((1,))
    wide = widened(scores)
    wide = wide - classes(mx.max, wide)
    log_prob = wide - mx.log(classes(mx.sum, exponential(wide)))
    total = loss(ctx, log_prob, labels, weights, ignore_index, reduction)
    return total.astype(scores.dtype), log_prob.astype(scores.dtype)


for _handler in (negative_log_likelihood_loss, softmax_cross_entropy_loss):
    _handler.condition(choices(reduction=("none", "mean", "sum")))


def loss(ctx, log_prob, target, weight, ignore_index, reduction):
    """The negative log likelihood of the target classes; ignored ones weigh nothing."""
    classes = log_prob.shape[1]
    if target.shape != (log_prob.shape[0], *log_prob.shape[2:]):
        raise ValueError(f"targets of shape {list(target.shape)} do not fit scores of shape {list(log_prob.shape)}")
    library = np if isinstance(target, np.ndarray) else mx
    counted = library.ones(target.shape, library.bool_) if ignore_index is None else target != ignore_index
    target = indices_within(ctx, library.where(counted, target, library.zeros_like(target)), classes)
    counted = to_device(counted)
    importance = counted.astype(log_prob.dtype)
    if weight is not None:
        if weight.shape != (classes,):
            raise ValueError(f"weights of shape {list(weight.shape)} do not fit {classes} classes")
        importance = importance * mx.take(widened(weight), target)
    likelihood = mx.squeeze(mx.take_along_axis(log_prob, mx.expand_dims(target, 1), axis=1), 1)
    losses = mx.where(counted, -likelihood * importance, mx.zeros_like(likelihood))
    if reduction == "none":
        return losses
    every = Fold(tuple(range(losses.ndim)))
    total = every(mx.sum, losses)
    if reduction == "mean":
        # Of nothing, the mean is 0, and a weighted mean is NaN.
        alike = weight is None and ignore_index is None
        total = total / (max(losses.size, 1) if alike else every(mx.sum, importance))
    return total.reshape(())
