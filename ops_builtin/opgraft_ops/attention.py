"""Attention and what surrounds it. Heads stand before the sequence inside: (batch, heads, sequence, head size)."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import mlx.core as mx

from opgraft.graph.element_types import NAME_OF_ONNX
from opgraft.ops import BOOL, FLOATS, Anywhere, Context, op
from opgraft.ops.arrays import MLX_TYPE
from opgraft_ops._folding import widened
from opgraft_ops._shared import between
from opgraft_ops._sizes import check_shape, flags
from opgraft_ops.reduction import softmax

RAW, CAPPED, BIASED, SOFTMAX = range(4)
"""What Attention's qk_matmul_output_mode asks for."""

SMALL_FLOATS = FLOATS - {"float64"}

UPDATE_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
"""Of each rule of LinearAttention, whether it decays its state, and whether it corrects what it writes."""


@op("Attention", since=23, dtypes={name: FLOATS for name in ("Q", "K", "V", "past_key", "past_value")})
def attention(
    ctx,
    Q,
    K,
    V,
    attn_mask=None,
    past_key=None,
    past_value=None,
    nonpad_kv_seqlen: Anywhere = None,
    *,
    is_causal=0,
    kv_num_heads=None,
    left_window_size=-1,
    q_num_heads=None,
    qk_matmul_output_mode=RAW,
    right_window_size=-1,
    scale=None,
    softcap=0.0,
    softmax_precision=None,
):
    """softmax(Q K' * scale + mask) V, and the key and value with their past before them.

    Q: (B, heads, Tq, D) or (B, Tq, heads * D); K and V likewise, with as many heads or a divisor of it. A query that
    may attend nothing gives zeros. ONNX Attention-25.
    """
    query, key, value = split_heads(Q, q_num_heads), split_heads(K, kv_num_heads), split_heads(V, kv_num_heads)
    if past_key is not None:
        key, value = mx.concatenate([past_key, key], axis=2), mx.concatenate([past_value, value], axis=2)
    if not key.shape[2]:
        raise ValueError(f"a key of shape {list(K.shape)}, and no past, leave nothing to attend")
    present = key, value
    if ctx.device == "cpu":  # where 16-bit floats are no faster, and round at every step
        query, key, value = widened(query), widened(key), widened(value)
    queries, keys = query.shape[2], key.shape[2]
    offset = 0 if past_key is None else past_key.shape[2]
    if nonpad_kv_seqlen is not None:
        nonpad_kv_seqlen = between(ctx, nonpad_kv_seqlen, 0, keys, "nonpad_kv_seqlen").reshape(-1, 1, 1, 1)
        offset = nonpad_kv_seqlen - queries
    left = left_window_size if left_window_size >= 0 else None
    right = min([0] * is_causal + [right_window_size] * (right_window_size >= 0), default=None)
    bias = bias_of(attn_mask, reachable(queries, keys, offset, left, right, nonpad_kv_seqlen), keys)
    scale = 1 / sqrt(query.shape[3]) if scale is None else scale
    if (
        ctx.node.wants(3)
        or softcap
        or softmax_precision not in (None, 1)
        or query.dtype == mx.float64
        or not all((*query.shape, *key.shape, *value.shape))
    ):
        precision = softmax_type(ctx, softmax_precision, query.dtype)
        result, *scores = attended(query, key, value, bias, scale, softcap, precision)
        return join_heads(result, Q), *present, scores[qk_matmul_output_mode].astype(Q.dtype)
    only_causal = is_causal and attn_mask is nonpad_kv_seqlen is left is None
    if only_causal and right == 0 and offset == keys - queries:  # MLX's own causal mask starts at that offset
        result = mx.fast.scaled_dot_product_attention(query, key, value, scale=scale, mask="causal")
    else:
        result = mx.fast.scaled_dot_product_attention(query, key, value, scale=scale, mask=bias)
        result = without_masked_rows(result, bias)
    return join_heads(result, Q), *present


def attended(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    bias: mx.array | None,
    scale: float,
    softcap: float,
    precision: mx.Dtype,
) -> tuple[mx.array, ...]:
    """Attention step by step: its result, then the scores RAW, CAPPED, BIASED and after the SOFTMAX."""
    key, value = (mx.repeat(each, query.shape[1] // each.shape[1], axis=1) for each in (key, value))
    raw = (query * sqrt(scale)) @ (mx.swapaxes(key, 2, 3) * sqrt(scale))
    capped = softcap * mx.tanh(raw / softcap) if softcap else raw
    biased = capped
    if bias is not None:
        biased = mx.where(bias, capped, -mx.inf) if bias.dtype == mx.bool_ else capped + bias
    probabilities = without_masked_rows(softmax(biased.astype(precision)).astype(query.dtype), bias)
    return probabilities @ value, raw, capped, biased, probabilities


@attention.condition
def claim_attention(node):
    attributes = node.attributes
    known = {node.dtype(index) for index in (0, 1, 2, 4, 5)} - {None}
    node.require(len(known) < 2, f"element types {sorted(known)} are mixed: cast query, key and value to one")
    mask = node.dtype(3)
    node.require(mask is None or mask in known | BOOL, f"a mask of {mask}: cast it to bool, or to the query's type")
    node.require((node.input(4) is None) == (node.input(5) is None), "past_key and past_value come only together")
    node.require(node.input(4) is None or node.input(6) is None, "past_key and nonpad_kv_seqlen are given both")
    scale, softcap = attributes.get("scale", 1.0), attributes.get("softcap", 0.0)
    node.require(scale > 0, f"scale is {scale}, and must be positive")
    node.require(softcap >= 0, f"softcap is {softcap}, and must not be negative")
    node.require(attributes.get("qk_matmul_output_mode", RAW) in range(4), "an unknown qk_matmul_output_mode")
    node.require(
        attributes.get("softmax_precision", 1) in (1, 10, 11, 16), "softmax_precision names no floating-point type"
    )
    for index, heads in enumerate(("q_num_heads", "kv_num_heads", "kv_num_heads")):
        node.require(node.rank(index) in (None, 4) or attributes.get(heads), f"3-D inputs need {heads}")


attention.condition(flags("is_causal"))


def split_heads(array: mx.array, heads: int | None) -> mx.array:
    """(B, T, heads * D) as (B, heads, T, D); four dimensions stay as they are."""
    if array.ndim == 4:
        return array
    batch, length, width = array.shape
    return mx.swapaxes(mx.reshape(array, (batch, length, heads, width // heads)), 1, 2)


def join_heads(array: mx.array, like: mx.array) -> mx.array:
    """(B, heads, T, D) as (B, T, heads * D) where `like` has a rank of 3; in the element type of `like`."""
    array = array.astype(like.dtype)
    if like.ndim == 4:
        return array
    batch, heads, length, size = array.shape
    return mx.reshape(mx.swapaxes(array, 1, 2), (batch, length, heads * size))


def reachable(
    queries: int, keys: int, offset: int | mx.array, left: int | None, right: int | None, valid: mx.array | None
) -> mx.array | None:
    """Which keys each query may attend by its place, (Tq, Tk) or (B, 1, Tq, Tk); None where all.

    Args:
        offset: the place of the first query among the keys; for each member of the batch where it is an array.
        left, right: how many keys before and after its own place a query sees; None for all.
        valid: how many keys each member of the batch has, (B, 1, 1, 1).
    """
    place = mx.arange(queries)[:, None] + offset
    key = mx.arange(keys)
    allowed = None if valid is None else key < valid
    if left is not None:
        allowed = both(allowed, key >= place - left)
    if right is not None:
        allowed = both(allowed, key <= place + right)
    return allowed


def both(first: mx.array | None, second: mx.array) -> mx.array:
    return second if first is None else first & second


def bias_of(mask: mx.array | None, allowed: mx.array | None, keys: int) -> mx.array | None:
    """The mask input and the reachable keys as one: boolean (True attends), or added to the scores."""
    if mask is None:
        return allowed
    boolean = mask.dtype == mx.bool_
    if mask.shape[-1] < keys:
        missing = [*[(0, 0)] * (mask.ndim - 1), (0, keys - mask.shape[-1])]
        mask = mx.pad(mask, missing, constant_values=False if boolean else -mx.inf)
    mask = mx.atleast_2d(mask)
    if allowed is None:
        return mask
    return mask & allowed if boolean else mx.where(allowed, mask, -mx.inf)


def without_masked_rows(array: mx.array, bias: mx.array | None) -> mx.array:
    """`array` (B, heads, Tq, ...) with zeros in the rows of queries that may attend nothing."""
    if bias is None:
        return array
    boolean = bias.dtype == mx.bool_
    attends = mx.any(bias if boolean else bias != -mx.inf, axis=-1, keepdims=True)
    return mx.where(attends, array, 0)


def softmax_type(ctx: Context, precision: int | None, dtype: mx.Dtype) -> mx.Dtype:
    """The type that a softmax is asked to compute in; the nearest that a GPU has."""
    if precision is None:
        return dtype
    name = NAME_OF_ONNX[precision]
    return mx.float32 if name == "float64" and ctx.device == "gpu" else MLX_TYPE[name]


@op("RotaryEmbedding", since=23, dtypes={name: SMALL_FLOATS for name in ("X", "cos_cache", "sin_cache")})
def rotary_embedding(
    ctx,
    X,
    cos_cache,
    sin_cache,
    position_ids: Anywhere = None,
    *,
    interleaved=0,
    num_heads=None,
    rotary_embedding_dim=0,
):
    """Each position's pairs of elements, rotated by its angles. X: (B, heads, T, D) or (B, T, heads * D); the caches:
    (B, T, D / 2), or (positions, D / 2) with position_ids (B, T). ONNX RotaryEmbedding-23.
    """
    heads = split_heads(X, num_heads)
    batch, _, length, size = heads.shape
    width = rotary_embedding_dim or size
    if width % 2 or width > size:
        raise ValueError(f"of {size} elements, {width} do not make pairs")
    check_shape("position_ids", position_ids, [batch, length])
    check_shape("sin_cache", sin_cache, cos_cache.shape)
    caches = cos_cache, sin_cache
    for each in caches:
        check_shape("a cache", each, [batch, length, width // 2] if position_ids is None else [None, width // 2])

    def rotation() -> Rotation:
        if position_ids is None:
            return Rotation.of(*(each[:, None] for each in caches), interleaved)
        return rotation_at(ctx, position_ids, *caches, interleaved)

    return join_heads(ctx.shared((Rotation, bool(interleaved)), (1, 2, 3), rotation)(heads), X)


@dataclass(frozen=True, slots=True)
class Rotation:
    """The angles by which pairs of elements are turned.

    A pair is an element and its neighbour where `interleaved`, otherwise one of the first half of all that turn and one
    of the second.

    Attributes:
        cosine: (..., 1, R / 2), or with the axes swapped where `interleaved`.
        sine: (..., 2, R / 2), those of the first of each pair negated; or with the axes swapped.
    """

    cosine: mx.array
    sine: mx.array
    interleaved: bool

    @classmethod
    def of(cls, cosine: mx.array, sine: mx.array, interleaved: object) -> Rotation:
        """By angles of these cosines and sines (..., R / 2)."""
        axis = -1 if interleaved else -2
        return cls(mx.expand_dims(cosine, axis), mx.stack([-sine, sine], axis), bool(interleaved))

    def __call__(self, array: mx.array) -> mx.array:
        """`array` (..., D) with its first R elements turned, R <= D."""
        shape = self.sine.shape[-2:]
        width = shape[0] * shape[1]
        rotating, still = array[..., :width], array[..., width:]
        pairs = mx.unflatten(rotating, -1, shape)
        others = pairs[..., ::-1] if self.interleaved else pairs[..., ::-1, :]
        turned = mx.flatten(self.cosine * pairs + self.sine * others, -2)
        return mx.concatenate([turned, still], axis=-1) if still.size else turned


def rotation_at(
    ctx: Context,
    positions: mx.array,
    cosine: mx.array,
    sine: mx.array,
    interleaved: object,
    what: str = "position_ids",
) -> Rotation:
    """The rotation of heads (B, heads, T, D) by the angles of `positions` (B, T), rows of two caches (places, R / 2).

    Args:
        what: what the positions are, for the error where a cache has no such row.
    """
    places = between(ctx, positions, 0, min(cosine.shape[0], sine.shape[0]) - 1, what)
    return Rotation.of(*(mx.take(each, places, axis=0)[:, None] for each in (cosine, sine)), interleaved)


rotary_embedding.condition(flags("interleaved"))


@rotary_embedding.condition
def claim_rotary_embedding(node):
    width = node.attributes.get("rotary_embedding_dim", 0)
    node.require(width >= 0, f"rotary_embedding_dim is {width}, and must not be negative")
    node.require(node.rank(0) in (None, 4) or node.attributes.get("num_heads"), "a 3-D input needs num_heads")


@op(
    "LinearAttention",
    since=27,
    dtypes={name: SMALL_FLOATS for name in ("query", "key", "value", "past_state", "decay", "beta")},
)
def linear_attention(
    query,
    key,
    value,
    past_state=None,
    decay=None,
    beta=None,
    *,
    kv_num_heads,
    q_num_heads,
    chunk_size=64,
    scale=0.0,
    update_rule="gated_delta",
):
    """Attention by a state (B, Hkv, Dk, Dv) that every step decays, corrects and writes to; computed in float32.

    query: (B, T, Hq * Dk); key: (B, T, Hkv * Dk); value: (B, T, Hkv * Dv). ONNX LinearAttention-27.
    """
    decays, corrects = UPDATE_RULES[update_rule]
    batch, steps = query.shape[:2]
    queries = split_heads(query.astype(mx.float32), q_num_heads)
    keys, values = (split_heads(each.astype(mx.float32), kv_num_heads) for each in (key, value))
    key_size, value_size = keys.shape[3], values.shape[3]
    groups = q_num_heads // kv_num_heads
    queries = mx.reshape(queries * (scale or 1 / sqrt(key_size)), (batch, kv_num_heads, groups, steps, key_size))
    if decays:
        kept = mx.exp(split_heads(decay.astype(mx.float32), kv_num_heads))[..., None]
    if corrects:
        rate = mx.swapaxes(beta.astype(mx.float32), 1, 2)[..., None, None]
    if past_state is None:
        state = mx.zeros((batch, kv_num_heads, key_size, value_size), mx.float32)
    else:
        state = past_state.astype(mx.float32)
    outputs, states = recurrence(queries, keys, values, state, kept if decays else None, rate if corrects else None)
    output = mx.reshape(outputs, (batch, steps, q_num_heads * value_size))
    return output.astype(query.dtype), states[-1].astype((query if past_state is None else past_state).dtype)


def recurrence(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    state: mx.array,
    kept: mx.array | None,
    rate: mx.array | None,
) -> tuple[mx.array, list[mx.array]]:
    """Linear attention step by step: the outputs (B, T, H, G, Dv), and the state before the first and after each step.

    Args:
        queries: (B, H, G, T, Dk), G of them to a key.
        keys: (B, H, T, Dk).
        values: (B, H, T, Dv).
        state: (B, H, Dk, Dv).
        kept: what a step keeps of the state it finds, (B, H, T, Dk or 1, 1); None for all.
        rate: how far it replaces what the state has of its key, (B, H, T, 1, 1); None to add to it.
    """
    batch, heads, groups, steps, _ = queries.shape
    results, states = [], [state]
    for step in range(steps):
        written, row = keys[:, :, step, :, None], values[:, :, step, None]
        if kept is not None:
            state = state * kept[:, :, step]
        if rate is not None:
            row = rate[:, :, step] * (row - mx.sum(written * state, axis=2, keepdims=True))
        state = state + written * row
        states.append(state)
        results.append(queries[:, :, :, step] @ state)
    if not results:
        return mx.zeros((batch, 0, heads, groups, values.shape[-1]), state.dtype), states
    return mx.stack(results, axis=1), states


@linear_attention.condition
def claim_linear_attention(node):
    rule = node.attributes.get("update_rule", "gated_delta")
    node.require(rule in UPDATE_RULES, f"update_rule {rule!r} is none that ONNX knows")
    for index, (name, wanted) in enumerate(zip(("decay", "beta"), UPDATE_RULES[rule], strict=True), 4):
        present = "needs" if wanted else "takes no"
        node.require((node.input(index) is not None) == wanted, f"update_rule {rule!r} {present} input {name}")


@op("CausalConvWithState", since=27, dtypes=SMALL_FLOATS)
def causal_convolution_with_state(input, weight, bias=None, past_state=None, *, activation="none"):
    """A depthwise convolution that looks back only, and the last k - 1 inputs for the next call.

    input: (B, C, T); weight: (C, 1, k); the states: (B, C, k - 1). ONNX CausalConvWithState-27.
    """
    batch, channels, length = input.shape
    size = weight.shape[2]
    past = mx.zeros((batch, channels, size - 1), input.dtype) if past_state is None else past_state
    seen = mx.concatenate([past, input], axis=2)
    wide, kernel = seen.astype(mx.float32), weight.astype(mx.float32)
    result = sum(wide[:, :, place : place + length] * kernel[:, :, place] for place in range(size))
    if bias is not None:
        result = result + bias.astype(mx.float32)[:, None]
    if activation != "none":
        result = result * mx.sigmoid(result)
    return result.astype(input.dtype), seen[:, :, length:]


@causal_convolution_with_state.condition
def claim_causal_convolution(node):
    activation = node.attributes.get("activation", "none")
    node.require(activation in ("none", "silu", "swish"), f"activation {activation!r} is none that ONNX knows")
