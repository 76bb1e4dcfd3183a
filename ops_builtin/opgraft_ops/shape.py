"""Operators that read or change shapes."""

from __future__ import annotations

from math import prod

import mlx.core as mx
import numpy as np

from opgraft.ops import Anywhere, Host, op


@op("Shape")
def shape(data: Anywhere, *, start=0, end=None):
    """The sizes data.shape[start:end], as int64. ONNX Shape-25."""
    return np.array(data.shape[slice(start, end)], np.int64)


shape.host(shape.function)


@op("Reshape", since=5)
def reshape(data, shape: Host, *, allowzero=0):
    """data with another shape; 0 keeps a dimension (unless allowzero), -1 takes what is left. ONNX Reshape-25."""
    return mx.reshape(data, target_shape(data.shape, shape, allowzero))


@reshape.host
def reshape_on_host(data, shape, *, allowzero=0):
    return np.reshape(data, target_shape(data.shape, shape, allowzero))


def target_shape(current, shape, allowzero):
    """The shape that Reshape means: 0 is the size at the same place, -1 what is left over."""
    target = [int(size) if size or allowzero else current[axis] for axis, size in enumerate(shape)]
    if -1 in target:
        rest = prod(size for size in target if size != -1)
        target[target.index(-1)] = prod(current) // rest if rest else 0
    return target
