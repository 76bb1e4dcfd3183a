"""Attention whose keys are of as many heads as its queries."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from opgraft.ops import Context, op
from opgraft.ops.arrays import MLX_TYPE
from opgraft_contrib._attend import CAUSAL, NOTHING, SMALL_FLOATS, attend, places_in, scale_of, scores, written
from opgraft_ops._shared import between
from opgraft_ops._sizes import check_broadcast, check_shape, flags
from opgraft_ops.attention import split_heads

MASKED = -10000.0
"""What is added to the scores that a mask forbids, unless an attribute says otherwise."""


@op(
    "com.microsoft::MultiHeadAttention",
    dtypes={
        **{name: SMALL_FLOATS for name in ("query", "key", "value", "bias", "attention_bias")},
        **{name: SMALL_FLOATS for name in ("past_key", "past_value")},
        **{name: {"int32"} for name in ("key_padding_mask", "past_sequence_length")},
    },
)
def multi_head_attention(
    ctx,
    query,
    key=None,
    value=None,
    bias=None,
    key_padding_mask=None,
    attention_bias=None,
    past_key=None,
    past_value=None,
    past_sequence_length=None,
    *,
    num_heads,
    mask_filter_value=MASKED,
    scale=0.0,
    unidirectional=0,
):
    """softmax(Q K' * scale + masks) V; the keys and values with their past before them; and the scores.

    query: (B, S, heads * D), or with key and value (B, S, heads, 3, D); key, value: (B, L, heads * D) or
    (B, heads, L, D), or together (B, L, heads, 2, D); the past: (B, heads, P, D), or with past_sequence_length a buffer
    that takes the new rows. com.microsoft MultiHeadAttention-1.
    """
    kept_apart = key is not None and key.ndim == 4
    query, key, value = with_bias(*projections(query, key, value, num_heads), bias, of_query_alone=kept_apart)
    key, value, length, present = with_past(ctx, key, value, past_key, past_value, past_sequence_length)
    causal = bool(unidirectional)
    mask = mask_of(key_padding_mask, query, key, length, causal, mask_filter_value)
    mask = with_attention_bias(mask, attention_bias, query, key)
    scale = scale_of(scale, query.shape[3])
    result = joined(attend(ctx, query, key, value, mask, scale), query.dtype)
    if not ctx.node.wants(3):
        return result, *present
    raw, _ = scores(query, key, mask, scale)
    return result, *present, raw.astype(MLX_TYPE[ctx.node.outputs[3].dtype or "float32"])


multi_head_attention.condition(flags("unidirectional"))


@multi_head_attention.condition
def claim_multi_head_attention(node):
    node.require(node.input(9) is None, "cache_indirection: the caches of a beam search")
    node.require((node.input(6) is None) == (node.input(7) is None), "past_key and past_value come only together")
    node.require(node.input(8) is None or node.input(6) is not None, "past_sequence_length needs past_key")
    node.require(node.rank(0) in (None, 3, 5), f"a query of rank {node.rank(0)}")
    node.require(node.input(1) is not None or node.rank(0) != 3, "a query of rank 3 needs a key")
    node.require(node.rank(1) in (None, 3, 4, 5), f"a key of rank {node.rank(1)}")
    node.require(node.input(2) is not None or node.rank(1) in (None, 5), "a key needs a value")


def projections(
    query: mx.array, key: mx.array | None, value: mx.array | None, heads: int
) -> tuple[mx.array, mx.array, mx.array]:
    """Query, key and value with their heads apart, from any of the forms in which they come."""
    if query.ndim == 5:
        return tuple(mx.swapaxes(query[:, :, :, part], 1, 2) for part in range(3))
    if key.ndim == 5:
        key, value = (mx.swapaxes(key[:, :, :, part], 1, 2) for part in range(2))
    return tuple(split_heads(each, heads) for each in (query, key, value))


def with_bias(
    query: mx.array, key: mx.array, value: mx.array, bias: mx.array | None, of_query_alone: bool
) -> tuple[mx.array, mx.array, mx.array]:
    """Query, key and value plus their parts of one bias (heads * (D + D + Dv)); or just the query, where keys and
    values were projected before, with a bias of their own.
    """
    if bias is None:
        return query, key, value
    heads, size, value_size = query.shape[1], query.shape[3], value.shape[3]
    check_shape("bias", bias, [heads * (2 * size + value_size)])
    parts = mx.split(bias, [heads * size, 2 * heads * size])
    query, *rest = (
        array + mx.reshape(part, (heads, 1, -1)) for array, part in zip((query, key, value), parts, strict=True)
    )
    return (query, key, value) if of_query_alone else (query, *rest)


def with_past(
    ctx: Context,
    key: mx.array,
    value: mx.array,
    past_key: mx.array | None,
    past_value: mx.array | None,
    past_length: mx.array | None,
) -> tuple[mx.array, mx.array, int | mx.array, tuple[mx.array, mx.array]]:
    """Key and value with their past, the length of the past, and both once more for the outputs.

    Args:
        past_length: how many rows of the past count, where its buffers take the new rows; None to put them behind.
    """
    if past_key is None:
        return key, value, 0, (key, value)
    for name, past, new in (("past_key", past_key, key), ("past_value", past_value, value)):
        check_shape(name, past, [new.shape[0], new.shape[1], past_key.shape[2], new.shape[3]])
    if past_length is None:
        key, value = mx.concatenate([past_key, key], axis=2), mx.concatenate([past_value, value], axis=2)
        return key, value, past_key.shape[2], (key, value)
    room = past_key.shape[2] - key.shape[2]
    start = between(ctx, mx.reshape(past_length, (-1,)), 0, room, "past_sequence_length")
    places = places_in(past_key.shape[2], start, key.shape[2])
    key, value = written(past_key, key, places), written(past_value, value, places)
    return key, value, start, (key, value)


def mask_of(
    mask: mx.array | None, query: mx.array, key: mx.array, past: int | mx.array, causal: bool, masked: float
) -> mx.array | str | None:
    """A mask input, which keys there are and which come later, as what is added to the scores.

    Args:
        mask: for each key whether it counts, (B, Tk) or (B, Tq, Tk) or (B, 1, M, M) with M at least Tk; or how many do,
            (B); or after these the first that does, (2 B); or (3 B + 2), the first B of which are the numbers.
        past: how many keys come before the first query's own, a number or (1).
        masked: what is added where a mask forbids.
    """
    batch, _, queries, _ = query.shape
    keys = key.shape[2]
    whole = isinstance(past, int)
    if mask is None and causal and whole and queries == keys - past:
        return CAUSAL
    added = None
    if mask is not None:
        added = mx.where(allowed_by(mask, batch, queries, keys, past), 0, mx.array(masked, mx.float32))
    if causal:
        beyond = later(queries, keys, past)
    elif not whole:
        beyond = mx.arange(keys) >= past + queries
    else:
        return added
    return mx.where(beyond, NOTHING, mx.array(0, mx.float32) if added is None else added)


def later(queries: int, keys: int, first: int | mx.array) -> mx.array:
    """Which keys come after each query, the first of which has place `first` among them: (Tq, Tk)."""
    return mx.arange(keys) > mx.arange(queries)[:, None] + first


def allowed_by(mask: mx.array, batch: int, queries: int, keys: int, past: int | mx.array) -> mx.array:
    """Which keys a mask input lets each query see, so shaped that it broadcasts over (B, heads, Tq, Tk).

    Raises:
        ValueError: it has none of the shapes that `mask_of` names.
    """
    place = mx.arange(keys)
    if mask.ndim == 1:
        check_shape("the mask", mask, [batch], [2 * batch], [3 * batch + 2])
        allowed = place < mask[:batch, None]
        if mask.size == 2 * batch:
            allowed = allowed & (place >= mask[batch:, None])
        return allowed[:, None, None]
    if mask.ndim == 4:
        check_shape("the mask", mask, [batch, 1, mask.shape[2], mask.shape[2]])
        rows = mx.arange(queries) + past
        return mx.take(mask[..., :keys], rows, axis=2) > 0
    check_shape("the mask", mask, [batch, keys], [batch, queries, keys])
    return (mask[:, None, None] if mask.ndim == 2 else mask[:, None]) > 0


def with_attention_bias(
    mask: mx.array | str | None, bias: mx.array | None, query: mx.array, key: mx.array
) -> mx.array | str | None:
    """A mask as `mask_of` gives it, and the input attention_bias (B or 1, heads or 1, Tq, Tk)."""
    if bias is None:
        return mask
    queries, keys = query.shape[2], key.shape[2]
    if bias.shape[-1] < keys:
        bias = mx.pad(bias, [*[(0, 0)] * 3, (0, keys - bias.shape[-1])])
    check_shape("attention_bias", bias, [None, None, queries, keys])
    check_broadcast("attention_bias", bias, (*query.shape[:3], keys))
    if mask is None:
        return bias
    if isinstance(mask, str):
        mask = mx.where(later(queries, keys, keys - queries), NOTHING, mx.array(0, mx.float32))
    return mask + bias


def joined(array: mx.array, dtype: mx.Dtype) -> mx.array:
    """(B, heads, T, D) as (B, T, heads * D), in element type `dtype`."""
    batch, heads, length, size = array.shape
    return mx.reshape(mx.swapaxes(array.astype(dtype), 1, 2), (batch, length, heads * size))


@op(
    "com.microsoft::Attention",
    dtypes={
        **{name: SMALL_FLOATS for name in ("input", "weights", "bias", "past", "attention_bias")},
        **{name: {"int32"} for name in ("mask_index", "past_sequence_length")},
    },
)
def attention(
    ctx,
    input,
    weights,
    bias=None,
    mask_index=None,
    past=None,
    attention_bias=None,
    past_sequence_length=None,
    *,
    num_heads,
    do_rotary=0,
    mask_filter_value=MASKED,
    past_present_share_buffer=0,
    qkv_hidden_sizes=None,
    rotary_embedding_dim=0,
    scale=0.0,
    unidirectional=0,
):
    """MultiHeadAttention of input weights + bias, a projection to query, key and value; and keys and values as one.

    input: (B, S, W); weights: (W, heads * (D + D + Dv)); past: (2, B, heads, P, D), or with past_present_share_buffer a
    buffer that takes the new rows. com.microsoft Attention-1.
    """
    sizes = qkv_hidden_sizes or [weights.shape[1] // 3] * 3
    check_shape("weights", weights, [input.shape[2], sum(sizes)])
    check_shape("bias", bias, weights.shape[1:])
    projected = input @ weights
    if bias is not None:
        projected = projected + bias
    query, key, value = (split_heads(each, num_heads) for each in parts_of(projected, sizes))
    check_shape("past", past, [2, None, None, None, None])
    pasts = (None, None) if past is None else (past[0], past[1])
    length = past_sequence_length if past_present_share_buffer else None
    key, value, length, present = with_past(ctx, key, value, *pasts, length)
    mask = mask_of(mask_index, query, key, length, bool(unidirectional), mask_filter_value)
    mask = with_attention_bias(mask, attention_bias, query, key)
    result = joined(attend(ctx, query, key, value, mask, scale_of(scale, query.shape[3])), input.dtype)
    return (result, mx.stack(present)) if ctx.node.wants(1) else (result,)


attention.condition(flags("unidirectional", "past_present_share_buffer"))


@attention.condition
def claim_attention(node):
    attributes = node.attributes
    node.require(not attributes.get("do_rotary", 0), "do_rotary: a rotary embedding of its own")
    sizes = attributes.get("qkv_hidden_sizes") or (0, 0, 0)
    node.require(len(sizes) == 3 and sizes[0] == sizes[1], f"qkv_hidden_sizes {list(sizes)}")
    node.require(sizes[1] == sizes[2] or not node.wants(1), "keys and values of two sizes have no present in common")
    shared = attributes.get("past_present_share_buffer", 0)
    node.require(not shared or node.input(6) is not None, "past_present_share_buffer needs past_sequence_length")


def parts_of(array: mx.array, sizes: Sequence[int]) -> list[mx.array]:
    """An array in parts of `sizes` along its last axis."""
    return mx.split(array, [sizes[0], sizes[0] + sizes[1]], axis=-1)


@op(
    "com.microsoft::PackedMultiHeadAttention",
    dtypes={
        **{name: SMALL_FLOATS for name in ("query", "key", "value", "bias", "attention_bias")},
        **{name: {"int32"} for name in ("token_offset", "cumulative_sequence_length")},
    },
)
def packed_multi_head_attention(
    ctx,
    query,
    key=None,
    value=None,
    bias=None,
    token_offset=None,
    cumulative_sequence_length=None,
    attention_bias=None,
    *,
    num_heads,
    mask_filter_value=MASKED,
    scale=0.0,
):
    """MultiHeadAttention of sequences of several lengths, without the padding between them.

    query: (tokens, heads * D), or with key and value (tokens, heads, 3, D); token_offset: (B, S), the place of each
    token among the padded ones, then the places of the padding; cumulative_sequence_length: (B + 1).
    com.microsoft PackedMultiHeadAttention-1.
    """
    batch, length = token_offset.shape
    tokens = query.shape[0]
    check_shape("cumulative_sequence_length", cumulative_sequence_length, [batch + 1])
    if tokens > token_offset.size:
        raise ValueError(f"{tokens} tokens have no places in {batch} sequences of {length}")
    places = between(ctx, mx.reshape(token_offset, (-1,))[:tokens], 0, batch * length - 1, "token_offset")

    def padded(array: mx.array) -> mx.array:
        """(tokens, ...) as (B, S, ...), zeros between them."""
        width = array[0:1].size
        rows = mx.zeros((batch * length, width), array.dtype)
        rows = mx.put_along_axis(rows, places[:, None], mx.reshape(array, (tokens, width)), axis=0)
        return mx.reshape(rows, (batch, length, *array.shape[1:]))

    given = (None if each is None else padded(each) for each in (query, key, value))
    query, key, value = with_bias(*projections(*given, num_heads), bias, of_query_alone=False)
    lengths = cumulative_sequence_length[1:] - cumulative_sequence_length[:-1]
    mask = mask_of(lengths, query, key, 0, False, mask_filter_value)
    mask = with_attention_bias(mask, attention_bias, query, key)
    result = joined(attend(ctx, query, key, value, mask, scale_of(scale, query.shape[3])), query.dtype)
    return mx.take(mx.reshape(result, (batch * length, result.shape[2])), places, axis=0)


@packed_multi_head_attention.condition
def claim_packed_multi_head_attention(node):
    for index, name in ((4, "token_offset"), (5, "cumulative_sequence_length")):
        node.require(node.input(index) is not None, f"input {name} is required, and absent")
    node.require(node.rank(0) in (None, 2, 4), f"a query of rank {node.rank(0)}")
    node.require(node.input(1) is not None or node.rank(0) != 2, "a query of rank 2 needs a key")
    node.require((node.input(1) is None) == (node.input(2) is None), "key and value come only together")
