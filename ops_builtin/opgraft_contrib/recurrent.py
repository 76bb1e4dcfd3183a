"""LSTM with quantized weights, whose inputs and hidden states are quantized as they come."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import mlx.core as mx

from opgraft.ops import Anywhere, Context, op, to_device
from opgraft_contrib._required import require_inputs
from opgraft_ops._sizes import check_shape, flags
from opgraft_ops.recurrent import REVERSED, claim_activations, lstm_over_time

BYTES = frozenset({"int8", "uint8"})
FLOATING = ("X", "B", "initial_h", "initial_c", "P", "W_scale", "R_scale")


@op(
    "com.microsoft::DynamicQuantizeLSTM",
    dtypes={
        **{name: {"float32"} for name in FLOATING},
        **{name: BYTES for name in ("W", "R", "W_zero_point", "R_zero_point")},
        "sequence_lens": {"int32"},
    },
)
def dynamic_quantize_lstm(
    ctx: Context,
    X,
    W,
    R,
    B=None,
    sequence_lens: Anywhere = None,
    initial_h=None,
    initial_c=None,
    P=None,
    W_scale=None,
    W_zero_point=None,
    R_scale=None,
    R_zero_point=None,
    *,
    activations=None,
    activation_alpha=(),
    activation_beta=(),
    clip=None,
    direction="forward",
    hidden_size=None,
    input_forget=0,
):
    """LSTM with W (D, I, 4 H) and R (D, H, 4 H) in bytes, each with a scale and a zero point by direction: (D) or
    (D, 4 H). For each product, what is multiplied with them becomes bytes of one scale that just hold its range and 0.
    """
    directions, size = len(REVERSED[direction]), R.shape[1]
    check_shape("X", X, [None] * 3)
    check_shape("R", R, [directions, hidden_size or size, 4 * size])
    check_shape("W", W, [directions, X.shape[2], 4 * size])
    check_shape("B", B, [directions, 8 * size])
    check_shape("P", P, [directions, 3 * size])
    check_shape("sequence_lens", sequence_lens, [X.shape[1]])
    for each in (initial_h, initial_c):
        check_shape("an initial state", each, [directions, X.shape[1], size])
    for each in (W_scale, W_zero_point, R_scale, R_zero_point):
        check_shape("a scale or zero point of W or R", each, [directions], [directions, 4 * size])
    if sequence_lens is not None:  # steps that no sequence has do not count for the range
        longest = mx.max(to_device(sequence_lens)) if sequence_lens.size else 0
        X = mx.where(mx.arange(X.shape[0])[:, None, None] < longest, X, 0)
    project = quantized_product(weights(ctx, 1, W_scale, 8, W_zero_point, 9))
    recur = quantized_product(weights(ctx, 2, R_scale, 10, R_zero_point, 11))
    functions = {"activations": activations, "activation_alpha": activation_alpha, "activation_beta": activation_beta}
    settings = {"clip": clip, "direction": direction, "input_forget": input_forget, "layout": 0, **functions}
    return lstm_over_time(ctx, X, size, project, recur, B, sequence_lens, [initial_h, initial_c], P, **settings)


dynamic_quantize_lstm.condition(partial(claim_activations, 3))
dynamic_quantize_lstm.condition(flags("input_forget"))


require_inputs(dynamic_quantize_lstm, "W_scale", "W_zero_point", "R_scale", "R_zero_point")


def weights(
    ctx: Context, index: int, scale: mx.array, scale_index: int, zero_point: mx.array, zero_index: int
) -> mx.array:
    """The values of the quantized weights that are input `index`: made once, where all that they depend on is fixed."""

    def values() -> mx.array:
        quantized, shift, step = (
            each.astype(mx.float32) for each in (ctx.inputs[index], by_direction(zero_point), by_direction(scale))
        )
        return (quantized - shift) * step

    return ctx.cached_of(("values", index), (index, scale_index, zero_index), values)


def by_direction(parameter: mx.array) -> mx.array:
    """(D) or (D, 4 H), so shaped that it broadcasts over (D, I, 4 H)."""
    return parameter.reshape(parameter.shape[0], 1, -1)


def quantized_product(values: mx.array) -> Callable[[mx.array], mx.array]:
    """The product of (D, M, K) with weights (D, K, N), after the former was rounded to bytes for each direction."""

    def product(x: mx.array) -> mx.array:
        return rounded_to_bytes(x, (1, 2)) @ values

    return product


def rounded_to_bytes(x: mx.array, axes: tuple[int, ...]) -> mx.array:
    """x as uint8 with one scale and zero point over `axes` would hold it."""
    if not x.size:
        return x
    lowest, highest = mx.minimum(mx.min(x, axes, keepdims=True), 0), mx.maximum(mx.max(x, axes, keepdims=True), 0)
    scale = mx.where(highest == lowest, 1, (highest - lowest) / 255)
    zero_point = mx.round(mx.clip(-lowest / scale, 0, 255))
    return (mx.clip(mx.round(x / scale) + zero_point, 0, 255) - zero_point) * scale
