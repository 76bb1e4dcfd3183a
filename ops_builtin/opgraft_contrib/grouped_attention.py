"""Attention whose keys are of fewer heads than its queries, with a cache of the past.

How long each sequence of a batch is only the device knows: places, masks and the writing into the caches follow from
its numbers, and the shapes from those of the inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx
import numpy as np

from opgraft.ops import Context, Host, Node, op
from opgraft_contrib._attend import NOTHING, SMALL_FLOATS, attend, scale_of, scores
from opgraft_contrib._cache import Codec, Growing, Steps, Window
from opgraft_contrib.attention import joined, later
from opgraft_ops._sizes import check_broadcast, check_shape, flags
from opgraft_ops.attention import Rotation, rotation_at, split_heads

INPUTS = {
    **{name: SMALL_FLOATS for name in ("query", "key", "value", "cos_cache", "sin_cache")},
    **{name: SMALL_FLOATS | {"int8", "uint8"} for name in ("past_key", "past_value")},
    **{name: SMALL_FLOATS for name in ("attention_bias", "head_sink", "q_norm_weight", "k_norm_weight")},
    **{name: {"float32"} for name in ("k_scale", "v_scale")},
    **{name: {"int32"} for name in ("seqlens_k", "total_sequence_length", "query_seqlens")},
    "position_ids": {"int64"},
}


INPUT_NAMES = (
    *("query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"),
    *("cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale"),
    *("q_norm_weight", "k_norm_weight", "query_seqlens"),
)

KEPT, GROWN = "kept", "grown"
"""What becomes of caches: they have room for the new rows, or get it."""


def growth(node: Node) -> str | None:
    """Whether the caches of a node are KEPT or GROWN, as far as its shapes tell; without a past they come to be."""
    if node.input(3) is None:
        return GROWN
    if node.attributes.get("sliding_window_cache", 0):
        return KEPT
    before, new = node.shape(3), node.shape(0)
    after = next((each.shape for each in node.outputs[1:3] if each is not None), None)
    if before is None or after is None or new is None or len(before) != 4 or len(after) != 4:
        return None
    if before[2] is not None and before[2] == after[2]:
        return KEPT
    sizes = before[2], new[1], after[2]
    return GROWN if all(isinstance(each, int) for each in sizes) and sizes[0] + sizes[1] == sizes[2] else None


def room_for(node: Node, past: mx.array | None, new: int, total: mx.array | np.ndarray) -> int:
    """How many places the caches of an output have."""
    before = 0 if past is None else past.shape[2]
    if isinstance(total, np.ndarray):
        return max(int(total.item()), before, new)
    return before if before and growth(node) == KEPT else before + new


def heads_of(
    query: mx.array,
    key: mx.array | None,
    value: mx.array | None,
    heads: int,
    kv_heads: int,
    turned: Callable[[mx.array], mx.array] | None = None,
) -> tuple[mx.array, mx.array, mx.array]:
    """Query, key and value with their heads apart; they may come as one.

    Args:
        turned: what is done with each head of queries and keys, where anything is.
    """
    if heads % kv_heads:
        raise ValueError(f"{heads} heads cannot share those of {kv_heads} keys")
    if key is None:
        both, value = mx.split(split_heads(query, heads + 2 * kv_heads), [heads + kv_heads], axis=1)
        query, key = mx.split(both if turned is None else turned(both), [heads], axis=1)
        return query, key, value
    query, key = split_heads(query, heads), split_heads(key, kv_heads)
    if turned is not None:
        query, key = turned(query), turned(key)
    return query, key, split_heads(value, kv_heads)


def biased(mask: mx.array | str | None, bias: mx.array, shape: tuple[int, ...]) -> mx.array:
    """A mask and the input attention_bias (B or 1, heads or 1, S, total), as what is added to scores of `shape`."""
    queries, room = shape[2:]
    if bias.shape[3] < room:
        bias = mx.pad(bias, [*[(0, 0)] * 3, (0, room - bias.shape[3])])
    check_shape("attention_bias", bias, [None, None, queries, room])
    check_broadcast("attention_bias", bias, shape)
    return bias if mask is None else mx.where(as_boolean(mask, queries, room), bias.astype(mx.float32), NOTHING)


def as_boolean(mask: mx.array | str, queries: int, keys: int) -> mx.array:
    """A boolean mask, or CAUSAL as one."""
    return ~later(queries, keys, keys - queries) if isinstance(mask, str) else mask


def on_host(function, name):
    """The same translator with the input `name` marked `Host`."""

    def translate(*arguments, **attributes):
        return function(*arguments, **attributes)

    translate.__signature__ = inspect.signature(function)
    translate.__annotations__ = {name: Host}
    translate.__doc__ = function.__doc__
    translate.__name__ = function.__name__
    return translate


@op("com.microsoft::GroupQueryAttention", dtypes=INPUTS)
def group_query_attention(
    ctx,
    query,
    key=None,
    value=None,
    past_key=None,
    past_value=None,
    seqlens_k=None,
    total_sequence_length=None,
    cos_cache=None,
    sin_cache=None,
    position_ids=None,
    attention_bias=None,
    head_sink=None,
    k_scale=None,
    v_scale=None,
    q_norm_weight=None,
    k_norm_weight=None,
    query_seqlens=None,
    *,
    kv_num_heads,
    num_heads,
    causal=1,
    do_rotary=0,
    k_norm_epsilon=None,
    k_quant_type="NONE",
    kv_cache_bit_width=8,
    local_window_size=-1,
    q_norm_epsilon=None,
    qk_norm_epsilon=1e-6,
    qk_output=0,
    rotary_interleaved=0,
    scale=0.0,
    sliding_window_cache=0,
    smooth_softmax=-1,
    softcap=0.0,
    v_quant_type="NONE",
):
    """Attention of the new tokens to themselves and to those of the caches; and the caches with them.

    query: (B, S, heads * D), or with key and value (B, S, (heads + 2 kv_heads) * D); the caches: (B, kv_heads, C, D).
    The new rows go where each sequence ends: into caches that keep their size, or behind them. Caches of int8, or of
    two numbers to a byte, take k_scale and v_scale; with sliding_window_cache they hold the last rows only.
    com.microsoft GroupQueryAttention-1.
    """
    batch, new = query.shape[:2]
    steps = ctx.shared((Steps, batch, new), (5, 16), lambda: Steps.of(ctx, batch, new, seqlens_k, query_seqlens))

    def rotation() -> Rotation:
        places = steps.places if position_ids is None else steps.places_from(position_ids)
        return rotation_at(ctx, places, cos_cache, sin_cache, rotary_interleaved, "positions")

    turned = None
    if do_rotary:
        turned = ctx.shared((Rotation, new, bool(rotary_interleaved)), (5, 7, 8, 9, 16), rotation)
    normed = q_norm_weight is not None
    query, key, value = heads_of(query, key, value, num_heads, kv_num_heads, None if normed else turned)
    if normed:
        query = mx.fast.rms_norm(query, q_norm_weight, q_norm_epsilon or qk_norm_epsilon)
        key = mx.fast.rms_norm(key, k_norm_weight, k_norm_epsilon or qk_norm_epsilon)
        if turned is not None:
            query, key = turned(query), turned(key)
    size = query.shape[3]
    codecs = Codec.of(k_scale, kv_cache_bit_width, key), Codec.of(v_scale, kv_cache_bit_width, value)
    rows = tuple(
        each if codec is None else codec.stored(each) for codec, each in zip(codecs, (key, value), strict=True)
    )
    pasts = past_key, past_value
    if sliding_window_cache:
        window = Window.of(steps, past_key, local_window_size)
        present = tuple(map(window.kept, pasts, rows))
        read = tuple(mx.concatenate(pair, axis=2) for pair in zip(pasts, rows, strict=True))
        seen = window.mask()
    else:
        if past_key is not None and not past_key.shape[2]:
            past_key, past_value = pasts = None, None
        room = room_for(ctx.node, past_key, new, total_sequence_length)
        growing = growing_caches(ctx, past_key, lone=steps.alone and new == 1)
        present = read = tuple(
            steps.appended(ctx, past, each, room, growing) for past, each in zip(pasts, rows, strict=True)
        )
        seen = steps.mask(room, causal, local_window_size, past_key)
    room = read[0].shape[2]
    read = tuple(each if codec is None else codec.values(each) for codec, each in zip(codecs, read, strict=True))
    mask = seen if attention_bias is None else biased(seen, attention_bias, (batch, num_heads, new, room))
    if smooth_softmax == 1 and head_sink is None:
        head_sink = mx.zeros(num_heads, query.dtype)
    scale = scale_of(scale, size)
    result = joined(attend(ctx, query, *read, mask, scale, softcap=softcap, sinks=head_sink), query.dtype)
    if not ctx.node.wants(3):
        return result, *present
    found = scores(query, read[0], mask, scale, softcap=softcap, sinks=head_sink)[qk_output - 1]
    if seen is not None:
        found = mx.where(as_boolean(seen, new, room), found, 0)
    if isinstance(total_sequence_length, np.ndarray):
        found = found[..., : int(total_sequence_length.item())]
    return result, *present, found.astype(query.dtype)


def growing_caches(ctx: Context, past: mx.array | None, *, lone: bool) -> Growing:
    """What is known of the caches of a GroupQueryAttention; `lone` for one new token of one sequence."""
    length = 0 if past is None else ctx.length(3, 2)
    if not isinstance(length, mx.array):
        return Growing(length, None, behind=False, inputs=(5, 16))
    behind = lone and ctx.in_order
    if behind:
        ctx.appends(3, 4)
    return Growing(length, ctx.on_device(6), behind=behind, inputs=(5, 6, 16))


def claim(node: Node) -> None:
    """What holds of either handler of GroupQueryAttention, whoever knows the total length."""
    attributes = node.attributes
    for index, name in ((5, "seqlens_k"), (6, "total_sequence_length")):
        node.require(node.input(index) is not None, f"input {name} is required, and absent")
    for first, second in (("key", "value"), ("past_key", "past_value"), ("q_norm_weight", "k_norm_weight")):
        both = (node.input(INPUT_NAMES.index(each)) is None for each in (first, second))
        node.require(len(set(both)) == 1, f"{first} and {second} come only together")
    rotary = attributes.get("do_rotary", 0)
    node.require(not rotary or node.input(8) is not None, "do_rotary needs cos_cache and sin_cache")
    claim_codecs(node)
    window = attributes.get("local_window_size", -1)
    node.require(window == -1 or window > 0, f"local_window_size is {window}, and must be positive, or -1")
    node.require(attributes.get("causal", 1) or window == -1, "local_window_size needs causal=1")
    smooth = attributes.get("smooth_softmax", -1)
    node.require(smooth in (-1, 0, 1), f"smooth_softmax is {smooth}, and must be -1, 0 or 1")
    wanted = attributes.get("qk_output", 0)
    node.require(not node.wants(3) or wanted in (1, 2), f"qk_output is {wanted}, and output_qk is there")
    node.require(node.input(16) is None or node.input(3) is not None, "query_seqlens needs past_key")


def claim_codecs(node: Node) -> None:
    """Caches are quantized both or none, and to a type that says how."""
    attributes = node.attributes
    bits = {"int8": 8, "uint8": 4}.get(node.dtype(3) or "", 0)
    for name, scale in (("k_quant_type", 12), ("v_quant_type", 13)):
        kind = attributes.get(name, "NONE")
        node.require(kind in ("NONE", "PER_TENSOR", "PER_CHANNEL"), f"{name} {kind!r} is none that is known")
        node.require((kind != "NONE") == bool(bits), f"{name} {kind!r}, and caches of {node.dtype(3)}")
        node.require((node.input(scale) is not None) == bool(bits), f"{name} {kind!r}, and its scale says otherwise")
    node.require(node.dtype(3) == node.dtype(4), f"caches of {node.dtype(3)} and {node.dtype(4)}")
    width = attributes.get("kv_cache_bit_width", bits)
    node.require(not bits or width == bits, f"kv_cache_bit_width {width}, and caches of {node.dtype(3)}")


def claim_window(node: Node) -> None:
    """A cache that drops old rows keeps its size, and says how many rows count."""
    if node.attributes.get("sliding_window_cache", 0):
        node.require(node.input(3) is not None, "sliding_window_cache needs past_key")
        node.require(node.attributes.get("local_window_size", -1) > 0, "sliding_window_cache needs local_window_size")
        node.require(node.input(10) is None, "sliding_window_cache: attention_bias goes by places in the sequence")
        node.require(not node.wants(3), "sliding_window_cache: output_qk is as long as the sequence")


def claim_settled_by_shapes(node: Node) -> None:
    """The shapes of the node say how much room its caches have: whatever total_sequence_length is, only a run knows."""
    node.require(growth(node) is not None, "whether the caches grow depends on total_sequence_length")
    node.require(not node.wants(3) or growth(node) != KEPT, "output_qk is as long as total_sequence_length says")


group_query_attention_by_length = op("com.microsoft::GroupQueryAttention", dtypes=INPUTS)(
    on_host(group_query_attention.function, "total_sequence_length")
)
"""The same where just the value of total_sequence_length says whether the caches grow."""


@group_query_attention_by_length.decides("total_sequence_length")
def outgrows(node: Node, total: np.ndarray, shapes: Sequence[tuple[int, ...] | None]) -> bool:
    """Caches with room for all tokens keep their size, whatever their number is."""
    past = shapes[3] if len(shapes) > 3 else None
    return node.wants(3) or past is None or len(past) != 4 or not 0 < total.max(initial=0) <= past[2]


@group_query_attention_by_length.grows({"past_key": 1, "past_value": 2}, axis=2)
def places_after(node: Node, host: Mapping[str, np.ndarray], past: int) -> int:
    """How many places the caches have that come out."""
    return max(int(host["total_sequence_length"].item()), past)


def of_one_head_size(node: Node, widths: Sequence[int]) -> bool:
    """Packed, the heads of queries, keys and values are of one size."""
    heads = node.attributes["num_heads"], *[node.attributes["kv_num_heads"]] * 2
    whole = all(count > 0 and width % count == 0 for width, count in zip(widths, heads, strict=True))
    return whole and len({width // count for width, count in zip(widths, heads, strict=True)}) == 1


for handler in (group_query_attention, group_query_attention_by_length):
    handler.packs("query", "key", "value")(of_one_head_size)
    handler.condition(flags("causal", "do_rotary", "rotary_interleaved", "sliding_window_cache"))
    handler.condition(claim)
    handler.condition(claim_window)
group_query_attention.condition(claim_settled_by_shapes)
