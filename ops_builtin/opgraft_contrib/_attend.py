"""What the operators of attention share. Heads stand before the sequence: (batch, heads, sequence, head size)."""

from __future__ import annotations

from functools import lru_cache
from math import sqrt

import mlx.core as mx
import numpy as np

from opgraft.ops import FLOATS, Context
from opgraft_ops._folding import widened
from opgraft_ops.reduction import softmax

SMALL_FLOATS = FLOATS - {"float64"}

CAUSAL = "causal"
"""The mask under which the last query sees all keys, and each before it one key fewer."""

NOTHING = float(mx.finfo(mx.float32).min)
"""The score of a key that a query may not attend."""


def attend(
    ctx: Context,
    query: mx.array,
    key: mx.array,
    value: mx.array,
    mask: mx.array | str | None,
    scale: float,
    *,
    softcap: float = 0.0,
    sinks: mx.array | None = None,
) -> mx.array:
    """softmax(query key' * scale, capped, + mask) value, in float32 on the CPU, where 16-bit floats are no faster.

    Args:
        query: (B, heads, Tq, D); key and value: (B, a divisor of heads, Tk, D).
        mask: boolean (True attends) or added, and broadcast to (B, heads, Tq, Tk); or CAUSAL.
        softcap: the scores' largest magnitude, 0 for none.
        sinks: a score for each head that takes part in the softmax and has no value, (heads).
    """
    if ctx.device == "cpu":
        query, key, value = widened(query), widened(key), widened(value)
    if not softcap and all((*query.shape, *key.shape, *value.shape)):
        if sinks is not None:
            sinks = sinks.astype(query.dtype)
        if isinstance(mask, mx.array) and mask.dtype != mx.bool_:
            mask = mask.astype(query.dtype)
        return mx.fast.scaled_dot_product_attention(query, key, value, scale=scale, mask=mask, sinks=sinks)
    _, probabilities = scores(query, key, mask, scale, softcap=softcap, sinks=sinks)
    return probabilities.astype(value.dtype) @ over_groups(value, query.shape[1])


def scores(
    query: mx.array,
    key: mx.array,
    mask: mx.array | str | None,
    scale: float,
    *,
    softcap: float = 0.0,
    sinks: mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """Of what `attend` does, the scores with cap and mask, and their softmax; both in float32."""
    raw = (widened(query) * scale) @ mx.swapaxes(over_groups(widened(key), query.shape[1]), 2, 3)
    if softcap:
        raw = softcap * mx.tanh(raw / softcap)
    if isinstance(mask, str):
        queries, keys = raw.shape[2:]
        mask = mx.arange(keys) <= mx.arange(queries)[:, None] + (keys - queries)
    if mask is not None:
        raw = mx.where(mask, raw, NOTHING) if mask.dtype == mx.bool_ else raw + mask
    if sinks is None:
        return raw, softmax(raw)
    sink = mx.broadcast_to(mx.reshape(sinks.astype(raw.dtype), (1, -1, 1, 1)), (*raw.shape[:3], 1))
    return raw, softmax(mx.concatenate([raw, sink], axis=3))[..., :-1]


def over_groups(array: mx.array, heads: int) -> mx.array:
    """Keys or values with each of their heads repeated for every query head that shares it."""
    groups = heads // array.shape[1]
    return array if groups == 1 else mx.repeat(array, groups, axis=1)


def scale_of(scale: float | None, size: int) -> float:
    """The factor of the scores: 1 / sqrt(head size) where `scale` says none, or 0."""
    return scale or 1 / sqrt(size)


@lru_cache(maxsize=64)
def counting(count: int) -> mx.array:
    """0, 1 ... up to `count`, (count): one array for all who ask. What layers do alike with it, a trace does once."""
    return mx.array(np.arange(count, dtype=np.int32))


def places_from(start: mx.array, count: int) -> mx.array:
    """The numbers from each of `start` (B) on, (B, count)."""
    return start[:, None] if count == 1 else start[:, None] + counting(count)


def places_in(room: int, start: mx.array, count: int) -> mx.array:
    """Where `count` rows go into a buffer of `room` places from `start` (B or 1) on: (1), the first place of them all,
    or (B, count). What would lie beyond the end is written before it: a caller must check that nothing of worth does.
    """
    start = mx.reshape(start, (-1,))
    if start.size == 1 and count <= room:
        return mx.clip(start, 0, room - count)
    return mx.clip(places_from(start, count), 0, room - 1)


def written(buffer: mx.array, rows: mx.array, places: mx.array) -> mx.array:
    """`buffer` (B, heads, C, D) with `rows` (B, heads, T, D) in what `places_in` gives along its third axis."""
    rows = rows.astype(buffer.dtype)
    if places.ndim == 1:
        return mx.slice_update(buffer, rows, places, axes=(2,))
    indices = mx.reshape(places, (places.shape[0], 1, places.shape[1], 1))
    return mx.put_along_axis(buffer, mx.broadcast_to(indices, (rows.shape[0], 1, rows.shape[2], 1)), rows, axis=2)
