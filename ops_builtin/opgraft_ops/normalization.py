"""Normalizations: over the batch, over channels, over the last axes, over a neighbourhood."""

from __future__ import annotations

from math import prod

import mlx.core as mx
import numpy as np

from opgraft.ops import FLOATS, Layout, op
from opgraft.ops.layouts import channels_first, channels_last
from opgraft_ops._folding import Fold, on_cpu, widened
from opgraft_ops._shared import along
from opgraft_ops._sizes import check_broadcast, check_shape, counted, flags

MOMENTUM = float(np.float32(0.9))
"""The default as ONNX has it, a number of 32 bits: what the running statistics of float64 leave of it counts."""

STASH = {1: mx.float32, 16: mx.bfloat16}
"""Element types of saved statistics, by their numbers in ONNX."""


def standardized(x, fold, epsilon):
    """(x - mean) / deviation with deviation = sqrt(variance + epsilon); the mean; 1 / deviation."""
    mean = fold.mean(x)
    centered = x - mean
    inverse = mx.rsqrt(fold.mean(mx.square(centered)) + epsilon)
    normal = mx.fast.layer_norm(x, None, None, epsilon) if has_kernel(x, fold) else centered * inverse
    return normal, mean, inverse


def last_axes(x, axis):
    """A fold over the axes of x from `axis` on."""
    axis = counted(axis, x.ndim)
    if 0 in x.shape[axis:]:
        raise ValueError(f"from axis {axis} on, {list(x.shape)} has no elements to normalize")
    return Fold(tuple(range(axis, x.ndim)))


def has_kernel(x, fold, *parameters):
    """True where MLX has one GPU kernel for a normalization over the last axis with these scales and offsets."""
    return (
        not on_cpu()
        and fold.axes == (x.ndim - 1,)
        and x.size
        and all(each is None or (each.shape == x.shape[-1:] and each.dtype == x.dtype) for each in parameters)
    )


@op("LayerNormalization", dtypes=FLOATS)
def layer_normalization(X, Scale, B=None, *, axis=-1, epsilon=1e-5, stash_type=1):
    """X standardized over the axes from `axis` on, times Scale plus B; its means; its inverse deviations.
    ONNX LayerNormalization-17."""
    fold = last_axes(X, axis)
    check_broadcast("Scale", Scale, X.shape)
    check_broadcast("B", B, X.shape)
    normal, mean, inverse = standardized(widened(X), fold, epsilon)
    if has_kernel(X, fold, Scale, B):
        Y = mx.fast.layer_norm(X, Scale, B, epsilon)
    else:
        Y = normal * Scale if B is None else normal * Scale + B
    return Y.astype(X.dtype), mean.astype(STASH[stash_type]), inverse.astype(STASH[stash_type])


@op("RMSNormalization", dtypes=FLOATS)
def rms_normalization(X, scale, *, axis=-1, epsilon=1e-5, stash_type=1):
    """X divided by the root of its mean square over the axes from `axis` on, times scale. ONNX RMSNormalization-23."""
    fold = last_axes(X, axis)
    check_broadcast("scale", scale, X.shape)
    if has_kernel(X, fold, scale):
        return mx.fast.rms_norm(X, scale, epsilon)
    wide = widened(X)
    return (wide * mx.rsqrt(fold.mean(mx.square(wide)) + epsilon) * scale).astype(scale.dtype)


@op("GroupNormalization", since=18, until=20, dtypes=FLOATS)
def group_normalization_18(X, scale, bias, *, num_groups, epsilon=1e-5):
    """GroupNormalization with one scale and bias for each group. ONNX GroupNormalization-18."""
    channels = channels_in_group(X, num_groups)
    scale, bias = mx.repeat(scale, channels), mx.repeat(bias, channels)
    return group_normalization(X, scale, bias, num_groups=num_groups, epsilon=epsilon)


@op("GroupNormalization", since=21, dtypes=FLOATS)
def group_normalization(X, scale, bias, *, num_groups, epsilon=1e-5, stash_type=1):
    """X (N, C, ...) standardized over each group of channels, then scaled and shifted by channel.
    ONNX GroupNormalization-21."""
    channels = channels_in_group(X, num_groups)
    if {scale.size, bias.size} - {1, X.shape[1]}:
        raise ValueError(f"scale {list(scale.shape)} and bias {list(bias.shape)} are not for {X.shape[1]} channels")
    groups = widened(X).reshape(X.shape[0], num_groups, channels * prod(X.shape[2:]))
    normal = standardized(groups, Fold((2,)), epsilon)[0].reshape(X.shape)
    by_channel = along(X.ndim, 1)
    return (normal * scale.reshape(by_channel) + bias.reshape(by_channel)).astype(X.dtype)


def channels_in_group(x, groups):
    if x.ndim < 2 or x.shape[1] % groups:
        raise ValueError(f"the channels of {list(x.shape)} do not make {groups} equal groups")
    return x.shape[1] // groups


@group_normalization_18.condition
@group_normalization.condition
def _(node):
    groups = node.attributes["num_groups"]
    node.require(groups > 0, f"num_groups is {groups}, and must be positive")


@layer_normalization.condition
@rms_normalization.condition
@group_normalization.condition
def _(node):
    node.require(node.attributes.get("stash_type", 1) in STASH, "stash_type must be 1 (float32) or 16 (bfloat16)")


@op("InstanceNormalization", dtypes=FLOATS)
def instance_normalization(input, scale, B, *, epsilon=1e-5, consumed_inputs=None):
    """input (N, C, ...) standardized over each instance and channel, then scaled and shifted by channel.
    ONNX InstanceNormalization-22."""
    if input.ndim < 3:
        raise ValueError(f"instances of shape {list(input.shape[2:])} have nothing to normalize over")
    channels = input.shape[1]
    check_shape("scale", scale, [channels])
    check_shape("B", B, [channels])
    return group_normalization(input, scale, B, num_groups=max(channels, 1), epsilon=epsilon)


@op("BatchNormalization", until=13, dtypes=FLOATS, layout=Layout.KEPT)
def batch_normalization_9(
    ctx, X, scale, B, mean, var, *, epsilon=1e-5, momentum=0.9, spatial=1, is_test=0, consumed_inputs=None
):
    """BatchNormalization of an inference. Up to version 8, `spatial` = 0 keeps statistics for each place of a channel.
    ONNX BatchNormalization-9."""
    return normalized_by(ctx, X, scale, B, mean, var, epsilon, X.shape[1:2] if spatial else X.shape[1:])


@batch_normalization_9.condition
def _(node):
    node.require(
        node.needed_outputs == 1 and (node.since_version >= 7 or node.attributes.get("is_test", 0)),
        f"BatchNormalization-{node.since_version} for training is not supported; version 14 with training_mode is",
    )


@op("BatchNormalization", since=14, dtypes=FLOATS, layout=Layout.KEPT)
def batch_normalization(ctx, X, scale, B, input_mean, input_var, *, epsilon=1e-5, momentum=MOMENTUM, training_mode=0):
    """X (N, C, ...) less the mean, over the deviation, scaled and shifted, all by channel. The statistics are given, or
    those of X in training, which also returns running ones. ONNX BatchNormalization-15."""
    if not training_mode:
        return normalized_by(ctx, X, scale, B, input_mean, input_var, epsilon, X.shape[1:2])
    check_statistics(X.shape[1:2], scale, B, input_mean, input_var)
    if X.ndim < 2 or not X.size:
        raise ValueError(f"X of shape {list(X.shape)} has no channels with statistics of their own")
    fold = Fold(tuple(axis for axis in range(X.ndim) if axis != 1))
    wide = widened(X)
    normal, mean, _ = standardized(wide, fold, epsilon)
    variance = fold.mean(mx.square(wide - mean))
    by_channel = along(X.ndim, 1)
    running = [
        (widened(old) * momentum + new.reshape(-1) * (1 - momentum)).astype(old.dtype)
        for old, new in ((input_mean, mean), (input_var, variance))
    ]
    return (normal * scale.reshape(by_channel) + B.reshape(by_channel)).astype(X.dtype), *running


batch_normalization.condition(flags("training_mode"))


def check_statistics(shape, scale, B, mean, var):
    for name, each in (("scale", scale), ("B", B), ("the mean", mean), ("the variance", var)):
        check_shape(name, each, shape or [1])


def normalized_by(ctx, X, scale, B, mean, var, epsilon, statistics):
    """(X - mean) / sqrt(var + epsilon) * scale + B, as one factor and one offset: once, where they are constant. The
    parameters have the shape `statistics`; those of a lone axis are single numbers."""
    check_statistics(statistics, scale, B, mean, var)

    def affine():
        factor = widened(scale) * mx.rsqrt(widened(var) + epsilon)
        offset = widened(B) - widened(mean) * factor
        return factor, offset

    factor, offset = ctx.cached_of("affine", range(1, 5), affine)
    if ctx.channels_last and factor.ndim == 1:
        return channels_first((channels_last(X) * factor + offset).astype(X.dtype))
    shape = (1, *scale.shape, *[1] * (X.ndim - 1 - scale.ndim)) if statistics else [1]
    return (X * factor.reshape(shape) + offset.reshape(shape)).astype(X.dtype)


@op("LpNormalization", dtypes=FLOATS)
def lp_normalization(input, *, axis=-1, p=2):
    """input divided by its p-norm along an axis (p is 1 or 2); 0 where that is 0. ONNX LpNormalization-22."""
    wide = widened(input)
    fold = Fold((counted(axis, input.ndim),))
    norm = fold(mx.sum, mx.abs(wide)) if p == 1 else mx.sqrt(fold(mx.sum, mx.square(wide)))
    return mx.where(norm == 0, mx.zeros_like(wide), wide / norm).astype(input.dtype)


@lp_normalization.condition
def _(node):
    p = node.attributes.get("p", 2)
    node.require(p in (1, 2), f"p is {p}, and must be 1 or 2")


@op("LRN", dtypes=FLOATS)
def lrn(X, *, size, alpha=1e-4, beta=0.75, bias=1.0):
    """X (N, C, ...) divided by (bias + alpha / size * s) ** beta, s being the sum of squares over the `size` channels
    around each. ONNX LRN-13."""
    wide = widened(X)
    before = (size - 1) // 2
    padding = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (X.ndim - 2)]
    squares = mx.pad(mx.square(wide), padding)
    neighbourhood = sum(squares[:, start : start + X.shape[1]] for start in range(size))
    return (wide / mx.power(bias + alpha / size * neighbourhood, beta)).astype(X.dtype)


@op("MeanVarianceNormalization", since=9, dtypes=FLOATS)
def mean_variance_normalization(X, *, axes=(0, 2, 3)):
    """X less its mean, over its deviation plus 1e-9, along those of `axes` that X has. ONNX
    MeanVarianceNormalization-13; that axes may be missing is as in ONNX Runtime."""
    wide = widened(X)
    fold = Fold(tuple({axis % X.ndim for axis in axes if -X.ndim <= axis < X.ndim}))
    if not fold.axes:
        raise ValueError(f"X has {X.ndim} dimensions, and none of axes {list(axes)}")
    centered = wide - fold.mean(wide)
    return (centered / (mx.sqrt(fold.mean(mx.square(centered))) + 1e-9)).astype(X.dtype)
