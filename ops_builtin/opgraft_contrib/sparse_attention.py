"""Attention to some blocks of a cache only, and attention to a cache that lies in pages."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from opgraft.ops import FLOATS, Context, op
from opgraft_contrib._attend import SMALL_FLOATS, attend, scale_of
from opgraft_contrib._cache import Growing, Steps
from opgraft_contrib.attention import joined
from opgraft_contrib.grouped_attention import heads_of
from opgraft_ops._shared import between
from opgraft_ops._sizes import check_shape, flags
from opgraft_ops.attention import Rotation, rotation_at


@op(
    "com.microsoft::SparseAttention",
    dtypes={
        **{name: SMALL_FLOATS for name in ("query", "key", "value", "past_key", "past_value")},
        **{name: SMALL_FLOATS for name in ("cos_cache", "sin_cache")},
        **{name: {"int32"} for name in ("block_row_indices", "block_col_indices")},
        **{name: {"int32"} for name in ("total_sequence_length", "key_total_sequence_lengths")},
    },
)
def sparse_attention(
    ctx,
    query,
    key=None,
    value=None,
    past_key=None,
    past_value=None,
    block_row_indices=None,
    block_col_indices=None,
    total_sequence_length=None,
    key_total_sequence_lengths=None,
    cos_cache=None,
    sin_cache=None,
    *,
    kv_num_heads,
    num_heads,
    sparse_block_size,
    do_rotary=0,
    rotary_interleaved=0,
    scale=0.0,
):
    """GroupQueryAttention of blocks of queries to the blocks of keys that a layout names; heads take turns at layouts.

    query: (B, S, heads * D), or with key and value (B, S, (heads + 2 kv_heads) * D); the caches: (B, kv_heads, C, D);
    block_row_indices: (layouts, blocks + 1), block_col_indices: (layouts, entries). com.microsoft SparseAttention-1.
    """
    query, key, value = heads_of(query, key, value, num_heads, kv_num_heads)
    batch, _, new, size = query.shape
    steps = ctx.shared(
        (Steps, batch, new), (8,), lambda: Steps.of(ctx, batch, new, key_total_sequence_lengths - 1, None)
    )
    if do_rotary:
        turned = ctx.shared(
            (Rotation, new, bool(rotary_interleaved)),
            (8, 9, 10),
            lambda: rotation_at(ctx, steps.places, cos_cache, sin_cache, rotary_interleaved, "positions"),
        )
        query, key = turned(query), turned(key)
    room = past_key.shape[2]
    whole = Growing(room, None, behind=False, inputs=(8,))
    present = tuple(
        steps.appended(ctx, past, rows, room, whole) for past, rows in ((past_key, key), (past_value, value))
    )
    blocks = ctx.cached_of("blocks", (5, 6), lambda: block_mask(block_row_indices, block_col_indices))
    mask = steps.mask(room, 1, -1, past_key) & sparse_mask(blocks, steps.places, room, sparse_block_size, num_heads)
    return joined(attend(ctx, query, *present, mask, scale_of(scale, size)), query.dtype), *present


def block_mask(rows: mx.array, columns: mx.array) -> mx.array:
    """Which blocks of keys each block of queries attends: (layouts, blocks, blocks).

    Args:
        rows: (layouts, blocks + 1), where the entries of each row begin, and where the last one's end.
        columns: (layouts, entries), the columns of the entries.
    """
    check_shape("block_col_indices", columns, [rows.shape[0], None])
    entry, block = mx.arange(columns.shape[1]), mx.arange(rows.shape[1] - 1)
    of_row = (entry >= rows[:, :-1, None]) & (entry < rows[:, 1:, None])
    of_column = columns[:, :, None] == block
    return of_row.astype(mx.float32) @ of_column.astype(mx.float32) > 0


def sparse_mask(blocks: mx.array, places: mx.array, keys: int, size: int, heads: int) -> mx.array:
    """Which keys the queries at `places` (B, S) attend: (B, heads, S, keys)."""
    layouts, last = blocks.shape[0], blocks.shape[1] - 1
    by_query = mx.take(blocks, mx.minimum(places // size, last), axis=1)
    by_key = mx.take(by_query, mx.minimum(mx.arange(keys) // size, last), axis=3)
    return mx.tile(mx.swapaxes(by_key, 0, 1), (1, heads // layouts, 1, 1))


sparse_attention.condition(flags("do_rotary", "rotary_interleaved"))


@sparse_attention.condition
def claim_sparse_attention(node):
    names = ("past_key", "past_value", "block_row_indices", "block_col_indices", "total_sequence_length")
    for index, name in enumerate((*names, "key_total_sequence_lengths"), 3):
        node.require(node.input(index) is not None, f"input {name} is required, and absent")
    node.require((node.input(1) is None) == (node.input(2) is None), "key and value come only together")
    rotary = node.attributes.get("do_rotary", 0)
    node.require(not rotary or node.input(10) is not None, "do_rotary needs cos_cache and sin_cache")


PAGED = FLOATS & {"float16", "bfloat16"}


@op(
    "com.microsoft::PagedAttention",
    dtypes={
        **{name: PAGED for name in ("query", "key", "value", "key_cache", "value_cache", "cos_cache", "sin_cache")},
        **{name: PAGED for name in ("head_sink", "q_norm_weight", "k_norm_weight")},
        **{name: {"int32"} for name in ("cumulative_sequence_length", "past_seqlens", "block_table")},
        **{name: {"int32"} for name in ("slot_mapping", "attention_metadata")},
        **{name: {"float32"} for name in ("k_scale", "v_scale")},
    },
)
def paged_attention(
    ctx,
    query,
    key=None,
    value=None,
    key_cache=None,
    value_cache=None,
    cumulative_sequence_length=None,
    past_seqlens=None,
    block_table=None,
    cos_cache=None,
    sin_cache=None,
    slot_mapping=None,
    head_sink=None,
    q_norm_weight=None,
    k_norm_weight=None,
    k_scale=None,
    v_scale=None,
    attention_metadata=None,
    *,
    kv_num_heads,
    num_heads,
    do_rotary=0,
    is_causal=1,
    k_cache_dtype="",
    k_quant_type="NONE",
    kv_cache_layout="SEPARATE",
    local_window_size=-1,
    qk_norm_epsilon=1e-6,
    rotary_interleaved=0,
    rotary_offset=0,
    scale=0.0,
    softcap=0.0,
    v_cache_dtype="",
    v_head_size=0,
    v_quant_type="NONE",
):
    """Attention of the new tokens of several sequences, one behind the other, to caches that lie in pages.

    query: (tokens, heads * D), or with key and value (tokens, (heads + 2 kv_heads) * D); the caches:
    (pages, page size, kv_heads, D); block_table: (B, pages of a sequence), the page of each of its stretches, or -1.
    com.microsoft PagedAttention-1.
    """
    given = (None if each is None else each[None] for each in (query, key, value))
    queries, keys, values = heads_of(*given, num_heads, kv_num_heads)
    if q_norm_weight is not None:
        queries = mx.fast.rms_norm(queries, q_norm_weight, qk_norm_epsilon)
        keys = mx.fast.rms_norm(keys, k_norm_weight, qk_norm_epsilon)
    tokens = Tokens.of(ctx, query.shape[0], cumulative_sequence_length, past_seqlens)
    if do_rotary:
        turned = rotation_at(ctx, tokens.place[None], cos_cache, sin_cache, rotary_interleaved, "positions")
        queries, keys = turned(queries), turned(keys)
    page_size = key_cache.shape[1]
    if slot_mapping is None:
        slot_mapping = tokens.slots(ctx, block_table, page_size)
    stored = in_pages(ctx, key_cache, keys, slot_mapping), in_pages(ctx, value_cache, values, slot_mapping)
    read = (pages_of(cache, block_table) for cache in stored)
    mask = tokens.mask(block_table, page_size, bool(is_causal), local_window_size)
    scale = scale_of(scale, queries.shape[3])
    result = attend(ctx, queries, *read, mask, scale, softcap=softcap, sinks=head_sink)
    return joined(result, query.dtype)[0], *stored


@dataclass(frozen=True, slots=True)
class Tokens:
    """The new tokens of several sequences, one behind the other, as only the device knows them.

    Attributes:
        sequence: which sequence each belongs to, (tokens).
        place: its place there, (tokens).
        valid: False for what stands behind the last sequence, (tokens).
        totals: how long each sequence is with them, (B).
    """

    sequence: mx.array
    place: mx.array
    valid: mx.array
    totals: mx.array

    @classmethod
    def of(cls, ctx: Context, count: int, ends: mx.array, past: mx.array) -> Tokens:
        """Of `count` tokens, those of sequence b from ends[b] on, with past[b] before them."""
        check_shape("past_seqlens", past, [ends.shape[0] - 1])
        ctx.check((past >= 0) & (ends[1:] >= ends[:-1]), "past_seqlens or cumulative_sequence_length is negative")
        token = mx.arange(count)
        valid = token < ends[-1]
        sequence = mx.minimum(mx.sum(ends[1:] <= token[:, None], axis=1), past.shape[0] - 1)
        place = mx.where(valid, token - ends[sequence] + past[sequence], 0)
        return cls(sequence, place, valid, past + ends[1:] - ends[:-1])

    def slots(self, ctx: Context, table: mx.array, page_size: int) -> mx.array:
        """Where in the pages each token is kept, or -1: (tokens)."""
        stretch = between(ctx, self.place // page_size, 0, table.shape[1] - 1, "the pages of a sequence")
        page = table[self.sequence, stretch]
        return mx.where(self.valid & (page >= 0), page * page_size + self.place % page_size, -1)

    def mask(self, table: mx.array, page_size: int, causal: bool, window: int) -> mx.array:
        """Which rows of `pages_of` each token attends: (tokens, B * places)."""
        batch, pages = table.shape
        place = mx.arange(pages * page_size)
        there = (place < self.totals[:, None]) & mx.repeat(table >= 0, page_size, axis=1)
        own = self.sequence[:, None] == mx.arange(batch)
        allowed = own[:, :, None] & there
        if causal:
            allowed = allowed & (place <= self.place[:, None, None])
        if window > 0:
            allowed = allowed & (place > self.place[:, None, None] - window)
        return mx.reshape(allowed, (-1, batch * pages * page_size))


def in_pages(ctx: Context, cache: mx.array, rows: mx.array, slots: mx.array) -> mx.array:
    """A cache (pages, page size, heads, D) with rows (1, heads, tokens, D) in `slots` (tokens); -1 drops a row."""
    pages, page_size, heads, size = cache.shape
    count = pages * page_size
    slots = between(ctx, slots, -1, count - 1, "slot_mapping")
    flat = mx.reshape(cache, (count, heads * size))
    flat = mx.concatenate([flat, mx.zeros((1, heads * size), cache.dtype)])
    new = mx.reshape(mx.swapaxes(rows[0], 0, 1), (-1, heads * size)).astype(cache.dtype)
    flat = mx.put_along_axis(flat, mx.where(slots < 0, count, slots)[:, None], new, axis=0)
    return mx.reshape(flat[:count], cache.shape)


def pages_of(cache: mx.array, table: mx.array) -> mx.array:
    """The pages of all sequences, one behind the other: (1, heads, B * pages * page size, D)."""
    pages = mx.take(cache, mx.clip(table, 0, cache.shape[0] - 1), axis=0)
    return mx.swapaxes(mx.reshape(pages, (1, -1, *cache.shape[2:])), 1, 2)


paged_attention.condition(flags("do_rotary", "is_causal", "rotary_interleaved"))


@paged_attention.condition
def claim_paged_attention(node):
    attributes = node.attributes
    layout = attributes.get("kv_cache_layout", "SEPARATE")
    node.require(layout == "SEPARATE", f"kv_cache_layout {layout!r}: one cache for keys and values")
    for index, name in (
        *((3, "key_cache"), (4, "value_cache"), (5, "cumulative_sequence_length")),
        *((6, "past_seqlens"), (7, "block_table")),
    ):
        node.require(node.input(index) is not None, f"input {name} is required, and absent")
    for name in ("k_quant_type", "v_quant_type"):
        node.require(attributes.get(name, "NONE") == "NONE", f"{name} {attributes.get(name)}: a quantized cache")
    for index, name in ((3, "k_cache_dtype"), (4, "v_cache_dtype")):
        node.require(attributes.get(name, "") in ("", node.dtype(index)), f"{name}: a packed cache")
    node.require(not attributes.get("rotary_offset", 0), "rotary_offset: rotary embeddings of inner elements")
    node.require(not attributes.get("v_head_size", 0), "v_head_size: values narrower than keys")
    for first, second, name in ((1, 2, "key and value"), (12, 13, "q_norm_weight and k_norm_weight")):
        node.require((node.input(first) is None) == (node.input(second) is None), f"{name} come only together")
    rotary = attributes.get("do_rotary", 0)
    node.require(not rotary or node.input(9) is not None, "do_rotary needs cos_cache and sin_cache")
