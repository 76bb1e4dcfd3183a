"""Attention by a state that each token changes, and the convolution that goes before it."""

from __future__ import annotations

from math import prod, sqrt

import mlx.core as mx

from opgraft.ops import op
from opgraft_contrib._attend import SMALL_FLOATS
from opgraft_ops._sizes import check_shape, flags
from opgraft_ops.attention import UPDATE_RULES, recurrence, split_heads

LARGEST_WINDOW = 8
"""So many of the last states are kept at most."""

EXTENDED = {
    **dict.fromkeys(("input_channel_offset", "input_channels", "state_length", "state_update_capacity"), 0),
    "state_channels_last": -1,
}
"""Attributes of CausalConvWithState that ONNX Runtime has for CUDA alone, and their values where nobody wants more."""

STATES = {name: SMALL_FLOATS for name in ("query", "key", "value", "past_state", "decay", "beta")}


@op("com.microsoft::LinearAttention", dtypes=STATES)
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
    state_window=0,
    update_rule="gated_delta",
):
    """Attention by a state (B, Hkv, Dk, Dv) that every step decays, corrects and writes to; computed in float32.

    query: (B, T, Hq * Dk); key: (B, T, Hk * Dk) with Hk a divisor of Hkv; value: (B, T, Hkv * Dv); decay:
    (B, T, Hkv * Dk) or (B, T, Hkv); beta: (B, T, Hkv) or (B, T, 1). Hq is a multiple of Hkv, or a divisor. With
    state_window W the states are the last W of them, (W, B, Hkv, Dk, Dv). com.microsoft LinearAttention-1.
    """
    decays, corrects = UPDATE_RULES[update_rule]
    batch, steps, width = query.shape
    size, heads = width // q_num_heads, kv_num_heads
    check_shape("key", key, [batch, steps, None])
    check_shape("value", value, [batch, steps, None])
    queries, keys, values = (
        split_heads(each.astype(mx.float32), count)
        for each, count in ((query, q_num_heads), (key, key.shape[2] // size), (value, heads))
    )
    keys = mx.repeat(keys, heads // keys.shape[1], axis=1)
    if q_num_heads < heads:
        queries = mx.repeat(queries, heads // q_num_heads, axis=1)
    groups = queries.shape[1] // heads
    queries = mx.reshape(queries * (scale or 1 / sqrt(size)), (batch, heads, groups, steps, size))
    kept = rate = None
    if decays:
        check_shape("decay", decay, [batch, steps, heads * size], [batch, steps, heads])
        kept = mx.exp(split_heads(decay.astype(mx.float32), heads))[..., None]
    if corrects:
        check_shape("beta", beta, [batch, steps, heads], [batch, steps, 1])
        rate = mx.swapaxes(beta.astype(mx.float32), 1, 2)[..., None, None]
        rate = mx.broadcast_to(rate, (batch, heads, *rate.shape[2:]))
    before = past_state[state_window - 1] if past_state is not None and state_window else past_state
    shape = (batch, heads, size, values.shape[3])
    check_shape("past_state", before, shape)
    state = mx.zeros(shape, mx.float32) if before is None else before.astype(mx.float32)
    outputs, states = recurrence(queries, keys, values, state, kept, rate)
    present = windowed(states[1:], states[0], state_window) if state_window else states[-1]
    output = mx.reshape(outputs, (batch, steps, heads * groups * shape[3]))
    return output.astype(query.dtype), present.astype((query if past_state is None else past_state).dtype)


def windowed(states: list[mx.array], like: mx.array, window: int) -> mx.array:
    """The last `window` states, zeros before them where there are fewer: (window, ...)."""
    missing = [mx.zeros_like(like)] * max(window - len(states), 0)
    return mx.stack([*missing, *states[-window:]])


@linear_attention.condition
def claim_linear_attention(node):
    rule = node.attributes.get("update_rule", "gated_delta")
    node.require(rule in UPDATE_RULES, f"update_rule {rule!r} is none that is known")
    for index, name, wanted in zip((4, 5), ("decay", "beta"), UPDATE_RULES[rule], strict=True):
        node.require(node.input(index) is not None or not wanted, f"update_rule {rule!r} needs input {name}")
    claim_window(node)
    heads, kv_heads = node.attributes["q_num_heads"], node.attributes["kv_num_heads"]
    node.require(not max(heads, kv_heads) % min(heads, kv_heads), f"{heads} heads for {kv_heads} states")


def claim_window(node):
    window = node.attributes.get("state_window", 0)
    node.require(0 <= window <= LARGEST_WINDOW, f"state_window is {window}, and must lie from 0 to {LARGEST_WINDOW}")


@op("com.microsoft::CausalConvWithState", dtypes=SMALL_FLOATS)
def causal_convolution_with_state(
    input,
    weight,
    bias=None,
    past_state=None,
    *,
    activation="none",
    channels_last=0,
    dilation=1,
    input_channel_offset=0,
    input_channels=0,
    ndim=1,
    state_channels_last=-1,
    state_length=0,
    state_update_capacity=0,
    state_window=0,
):
    """A depthwise convolution that looks back only, and the last (k - 1) * dilation inputs for the next call.

    input: (B, C, T), or channels_last (B, T, d1...dn) with C their product; weight: (C, 1, k); bias: (C); the states
    like the input, with state_window W the last W of them, (W, ...). com.microsoft CausalConvWithState-1.
    """
    channels, _, size = weight.shape
    reach = (size - 1) * dilation

    def rows(array):
        """(B, L, C) of an input or a state."""
        if not channels_last:
            return mx.swapaxes(array, 1, 2)
        return mx.reshape(array, (*array.shape[:2], prod(array.shape[2:])))

    def like_input(array):
        return mx.reshape(array, (*array.shape[:2], *input.shape[2:])) if channels_last else mx.swapaxes(array, 1, 2)

    new = rows(input)
    batch, length, _ = new.shape
    check_shape("input", new, [None, None, channels])
    past = past_state[state_window - 1] if past_state is not None and state_window else past_state
    past = mx.zeros((batch, reach, channels), new.dtype) if past is None else rows(past)
    check_shape("past_state", past, [batch, reach, channels])
    seen = mx.concatenate([past, new], axis=1)
    wide, kernel = seen.astype(mx.float32), weight.astype(mx.float32)
    result = sum(wide[:, tap * dilation : tap * dilation + length] * kernel[:, 0, tap] for tap in range(size))
    if bias is not None:
        result = result + bias.astype(mx.float32)
    if activation != "none":
        result = result * mx.sigmoid(result)

    def after(count):
        """The state when `count` inputs have been seen."""
        return like_input(seen[:, count : count + reach])

    if not state_window:
        return like_input(result.astype(input.dtype)), after(length)
    first = max(length - state_window, 0)
    states = [after(count) for count in range(first + 1, length + 1)]
    return like_input(result.astype(input.dtype)), windowed(states, after(0), state_window)


causal_convolution_with_state.condition(flags("channels_last"))
causal_convolution_with_state.condition(claim_window)


@causal_convolution_with_state.condition
def claim_causal_convolution(node):
    attributes = node.attributes
    activation = attributes.get("activation", "none")
    node.require(activation in ("none", "silu", "swish"), f"activation {activation!r} is none that is known")
    node.require(attributes.get("ndim", 1) == 1, "ndim: more than one spatial dimension")
    node.require(attributes.get("dilation", 1) >= 1, "dilation must be positive")
    for name, usual in EXTENDED.items():
        node.require(attributes.get(name, usual) == usual, f"{name}: states and inputs as just CUDA kernels have them")
