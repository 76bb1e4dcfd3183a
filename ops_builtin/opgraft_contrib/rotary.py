"""Rotary embeddings."""

from __future__ import annotations

import mlx.core as mx

from opgraft.ops import FLOATS, op
from opgraft_ops._shared import between
from opgraft_ops._sizes import check_shape, flags
from opgraft_ops.attention import Rotation, join_heads, rotation_at, split_heads

SMALL_FLOATS = FLOATS - {"float64"}


@op(
    "com.microsoft::RotaryEmbedding",
    dtypes={**{name: SMALL_FLOATS for name in ("input", "cos_cache", "sin_cache")}, "position_ids": {"int64"}},
)
def rotary_embedding(
    ctx,
    input,
    position_ids,
    cos_cache,
    sin_cache,
    *,
    interleaved=0,
    is_packed_batching=0,
    num_heads=0,
    rotary_embedding_dim=0,
    scale=1.0,
):
    """Each position's pairs of elements, rotated by its angles.

    input: (B, T, heads * D) or (B, heads, T, D); position_ids: (B, T), or (1) with the first position of all; the
    caches: (positions, R / 2), where R is rotary_embedding_dim, or D. com.microsoft RotaryEmbedding-1.
    """
    half = cos_cache.shape[1]
    if input.ndim == 3 and not num_heads:
        num_heads = max(input.shape[2] // (2 * half), 1)
    heads = split_heads(input, num_heads)
    batch, _, length, size = heads.shape
    width = rotary_embedding_dim or size
    check_shape("position_ids", position_ids, [1], [batch, length])
    for name, cache in (("cos_cache", cos_cache), ("sin_cache", sin_cache)):
        check_shape(name, cache, [cos_cache.shape[0], width // 2])

    def rotation() -> Rotation:
        positions = position_ids
        if positions.ndim == 1:
            first = between(ctx, positions, 0, cos_cache.shape[0] - length, "position_ids")
            positions = mx.broadcast_to(first[:, None] + mx.arange(length), (batch, length))
        return rotation_at(ctx, positions, cos_cache, sin_cache, interleaved)

    turned = ctx.shared((Rotation, batch, length, bool(interleaved)), (1, 2, 3), rotation)
    return join_heads(turned(heads), input)


rotary_embedding.condition(flags("interleaved"))


@rotary_embedding.condition
def claim_rotary_embedding(node):
    attributes = node.attributes
    node.require(not attributes.get("is_packed_batching", 0), "is_packed_batching: a batch without padding")
    node.require(attributes.get("scale", 1.0) == 1.0, f"scale is {attributes.get('scale')}, and must be 1")
    width, heads = attributes.get("rotary_embedding_dim", 0), attributes.get("num_heads", 0)
    node.require(not width or heads or node.rank(0) == 4, "rotary_embedding_dim needs num_heads")


@op(
    "com.microsoft::GemmaRotaryEmbedding",
    dtypes={"emb": {"float32"}, **{name: {"float16"} for name in ("q", "q_rot", "k", "k_rot")}},
)
def gemma_rotary_embedding(emb, q, q_rot, k, k_rot):
    """q cos(emb) + q_rot sin(emb), and k likewise, the angles in float32 and rounded to float16.

    emb: (B, T, D); the others: (B, heads, T, D). com.microsoft GemmaRotaryEmbedding-1.
    """
    cosine, sine = (function(emb)[:, None].astype(q.dtype) for function in (mx.cos, mx.sin))
    return q * cosine + q_rot * sine, k * cosine + k_rot * sine
