"""Normalizations that follow an addition, an embedding, or channels that come last."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from opgraft.ops import FLOATS, Context, Node, op
from opgraft_contrib._required import require_inputs
from opgraft_ops._folding import widened
from opgraft_ops._functions import sigmoid
from opgraft_ops._shared import indices_within
from opgraft_ops._sizes import check_broadcast, check_shape, flags
from opgraft_ops.normalization import STASH, group_normalization, layer_normalization, rms_normalization

WORKING = FLOATS - {"float64"}


@op("SimplifiedLayerNormalization", dtypes=FLOATS)
def simplified_layer_normalization(ctx: Context, X, scale, *, axis=-1, epsilon=1e-5, stash_type=1):
    """X divided by the root of its mean square over the axes from `axis` on, times scale; the inverse of that root.
    ONNX Runtime has it in ai.onnx.
    """
    wide = widened(X)
    inverse = inverse_root(wide, axis, epsilon).astype(STASH[stash_type]) if ctx.node.wants(1) else None
    return rms_normalization(X, scale, axis=axis, epsilon=epsilon), inverse


@simplified_layer_normalization.condition
def _(node: Node):
    node.require(node.attributes.get("stash_type", 1) in STASH, "stash_type must be 1 (float32) or 16 (bfloat16)")


@op("com.microsoft::SkipLayerNormalization", dtypes=WORKING)
def skip_layer_normalization(input, skip, gamma, beta=None, bias=None, *, epsilon=1e-12):
    """input + skip + bias, standardized over its last axis, times gamma plus beta. input: (B, S, H) or (T, H); skip:
    the same, (1, S, H) or (S, H); gamma, beta, bias: (H). Then the means and the inverse deviations, both float32, and
    the sum.
    """
    total = skipped(input, skip, bias, gamma=gamma, beta=beta)
    normal, mean, inverse = layer_normalization(total, gamma, beta, epsilon=epsilon)
    return normal, mean, inverse, total


@op("com.microsoft::SkipSimplifiedLayerNormalization", dtypes=WORKING)
def skip_simplified_layer_normalization(ctx: Context, input, skip, gamma, bias=None, *, epsilon=1e-12):
    """input + skip + bias, divided by the root of its mean square over its last axis, times gamma. Then nothing, the
    inverse of that root (float32), the sum. Shapes as in SkipLayerNormalization.
    """
    total = skipped(input, skip, bias, gamma=gamma)
    inverse = inverse_root(widened(total), -1, epsilon) if ctx.node.wants(2) else None
    return rms_normalization(total, gamma, epsilon=epsilon), None, inverse, total


@skip_simplified_layer_normalization.condition
def _(node: Node):
    node.require(not node.wants(1), "its second output, a mean, is nothing that this normalization computes")


def inverse_root(x: mx.array, axis: int, epsilon: float) -> mx.array:
    """1 / the root of the mean square over the axes from `axis` on."""
    axes = list(range(axis % x.ndim, x.ndim))
    return mx.rsqrt(mx.mean(mx.square(x), axes, keepdims=True) + epsilon)


def skipped(input: mx.array, skip: mx.array, bias: mx.array | None, **vectors: mx.array | None) -> mx.array:
    """input + skip + bias, rounded once.

    Raises:
        ValueError: skip does not broadcast to the input, or the bias or one of the vectors has another size than the
            last axis.
    """
    check_broadcast("skip", skip, input.shape)
    for name, each in {"bias": bias, **vectors}.items():
        check_shape(name, each, input.shape[-1:])
    total = widened(input) + widened(skip)
    return (total if bias is None else total + widened(bias)).astype(input.dtype)


@op(
    "com.microsoft::EmbedLayerNormalization",
    dtypes={
        **{name: {"int32"} for name in ("input_ids", "segment_ids", "mask", "position_ids")},
        **{name: WORKING for name in ("word_embedding", "position_embedding", "segment_embedding", "gamma", "beta")},
    },
)
def embed_layer_normalization(
    ctx: Context,
    input_ids,
    segment_ids=None,
    word_embedding=None,
    position_embedding=None,
    segment_embedding=None,
    gamma=None,
    beta=None,
    mask=None,
    position_ids=None,
    *,
    epsilon=1e-12,
    mask_index_type=None,
):
    """The sum of the embeddings of words, positions and segments, standardized over its last axis, times gamma plus
    beta: (B, S, H). Then how many elements of each row of the mask are 1: (B), 0 without a mask. Then the sum.

    Args:
        input_ids, segment_ids, mask: (B, S). position_ids: (B, S) or (1, S); without it, each place is its position.
        word_embedding, position_embedding, segment_embedding: a row of H for each word, position, segment.
    """
    batch, length = input_ids.shape
    check_shape("segment_ids", segment_ids, [batch, length])
    check_shape("mask", mask, [batch, length])
    check_shape("position_ids", position_ids, [batch, length], [1, length])
    size = word_embedding.shape[1]
    check_shape("position_embedding", position_embedding, [None, size])
    check_shape("segment_embedding", segment_embedding, [None, size])
    total = embedded(ctx, word_embedding, input_ids)
    if position_ids is not None:
        total = total + embedded(ctx, position_embedding, position_ids)
    elif length > position_embedding.shape[0]:
        raise ValueError(f"a sequence of {length} has more places than the {position_embedding.shape[0]} positions")
    else:
        total = total + widened(position_embedding[:length])
    if segment_ids is not None:
        total = total + embedded(ctx, segment_embedding, segment_ids)
    total = total.astype(word_embedding.dtype)
    counts = mx.zeros((batch,), mx.int32) if mask is None else mx.sum(mask == 1, axis=1).astype(mx.int32)
    return layer_normalization(total, gamma, beta, epsilon=epsilon)[0], counts, total


require_inputs(embed_layer_normalization, "word_embedding", "position_embedding", "gamma", "beta")


@embed_layer_normalization.condition
def _(node: Node):
    alike = (node.input(1) is None) == (node.input(4) is None)
    node.require(alike, "of segment_ids and segment_embedding only one is there")


def embedded(ctx: Context, table: mx.array, ids: mx.array) -> mx.array:
    return widened(mx.take(table, indices_within(ctx, ids, table.shape[0], from_end=False), axis=0))


GROUP_TYPES = {name: {"float32", "float16"} for name in ("X", "gamma", "beta")}


@op("com.microsoft::GroupNorm", dtypes=GROUP_TYPES)
def group_norm(X, gamma, beta, *, activation, groups, channels_last=1, epsilon=1e-5):
    """X standardized over each group of channels, times gamma plus beta; with activation=1, times the sigmoid of itself
    after that. X: (N, D1...Dn, C), or with channels_last=0 (N, C, D1...Dn); gamma, beta: (C).
    """
    image = mx.moveaxis(widened(X), -1, 1) if channels_last else widened(X)
    normal = group_normalization(image, gamma, beta, num_groups=groups, epsilon=epsilon)
    normal = normal * sigmoid(normal) if activation else normal
    return (mx.moveaxis(normal, 1, -1) if channels_last else normal).astype(X.dtype)


@op("com.microsoft::SkipGroupNorm", dtypes={**GROUP_TYPES, "skip": WORKING, "bias": WORKING})
def skip_group_norm(X, gamma, beta, skip, bias=None, *, activation, groups, channels_last=1, epsilon=1e-5):
    """GroupNorm of X + skip + bias, and that sum. skip: as X, or (N, C) with or without axes of size 1 between; bias:
    (C).
    """
    axis = X.ndim - 1 if channels_last else 1
    channels = X.shape[axis]
    check_shape("bias", bias, [channels])
    total = widened(X) + widened(over_image(skip, X.shape, axis))
    if bias is not None:
        total = total + widened(over_image(bias[None], X.shape, axis))
    settings = {"activation": activation, "groups": groups, "channels_last": channels_last, "epsilon": epsilon}
    total = total.astype(X.dtype)
    return group_norm(total, gamma, beta, **settings), total


def over_image(array: mx.array, shape: Sequence[int], axis: int) -> mx.array:
    """(N, C), or what has as many elements, so shaped that it broadcasts over an image with its channels along `axis`;
    what has the image's rank as it is.
    """
    if array.ndim == 2:
        array = array.reshape(array.shape[0], *[array.shape[1] if each == axis else 1 for each in range(1, len(shape))])
    check_broadcast("skip", array, shape)
    return array


@group_norm.condition
@skip_group_norm.condition
def _(node: Node):
    node.require(node.attributes["groups"] > 0, f"groups is {node.attributes['groups']}, and must be positive")
    node.require(node.attributes["activation"] in (0, 1), "activation must be 0 (none) or 1 (SiLU)")


group_norm.condition(flags("channels_last"))
skip_group_norm.condition(flags("channels_last"))
