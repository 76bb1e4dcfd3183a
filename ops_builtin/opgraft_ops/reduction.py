"""Reductions, cumulative sums, and sorting."""

from __future__ import annotations

from math import prod

import mlx.core as mx
import numpy as np

from opgraft.ops import BOOL, FLOATS, NUMBERS, Host, op
from opgraft_ops._folding import Fold, exponential, widened


def mean(x, fold):
    if mx.issubdtype(x.dtype, mx.floating):
        return fold.mean(x)
    total = fold(mx.sum, x.astype(mx.int64 if mx.issubdtype(x.dtype, mx.signedinteger) else mx.uint64))
    return truncated_quotient(total, max(x.size // max(total.size, 1), 1))


def truncated_quotient(dividend, divisor):
    """dividend / divisor toward zero, for a positive divisor, whichever way // rounds. MLX or NumPy integers."""
    quotient = dividend // divisor
    return quotient + ((dividend < 0) & (dividend - quotient * divisor > 0))


def extreme(function, lowest):
    """mx.max or mx.min as a reduction that knows its value over nothing: the lowest or highest of the type."""

    def reduce(x, fold):
        if x.size:
            return fold(function, x)
        if mx.issubdtype(x.dtype, mx.floating):
            identity = -np.inf if lowest else np.inf
        elif x.dtype == mx.bool_:
            identity = not lowest
        else:
            limits = mx.iinfo(x.dtype)
            identity = np.uint64(limits.max) if x.dtype == mx.uint64 and not lowest else limits.min if lowest else limits.max
        return mx.full(fold.shape(x), mx.array(identity).astype(x.dtype))

    return reduce


def norm2(x, fold):
    total = fold(mx.sum, mx.square(x))
    return mx.sqrt(total) if mx.issubdtype(x.dtype, mx.floating) else integer_root(total)


def integer_root(x):
    """The largest integer whose square is at most x (an integer array), exactly."""
    x = x.astype(mx.uint64)
    root = mx.maximum(mx.sqrt(x.astype(mx.float32)).astype(mx.uint64), 1)
    for _ in range(2):  # Newton's steps from above and below; float32 alone is off by hundreds
        root = (root + x // root) // 2
    root = root + ((root + 1) <= x // (root + 1)).astype(mx.uint64)
    return mx.where(root > x // root, root - 1, root)


def log_sum_exp(x, fold):
    top = extreme(mx.max, lowest=True)(x, fold)
    shift = mx.where(mx.isfinite(top), top, mx.zeros_like(top))
    return shift + mx.log(fold(mx.sum, exponential(x - shift)))
