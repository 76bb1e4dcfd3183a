"""Where values are found among others."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.ops import to_device

Numpy = np.ndarray[Any, Any]


def sorted_keys(keys: Numpy, places: Numpy | None = None) -> tuple[mx.array, mx.array]:
    """Keys in order, each once, and the place of the first of each: its number, or what `places` says. NaN is the last,
    if it is there."""
    unique, first = np.unique(keys, return_index=True)
    found = first if places is None else places[first]
    return to_device(unique), mx.array(found.astype(np.int32))


def found(x: mx.array, keys: mx.array, places: mx.array) -> tuple[mx.array, mx.array]:
    """The place of each x among the keys that `sorted_keys` put in order, and whether it is there at all."""
    at = mx.zeros(x.shape, mx.int32)
    for bit in reversed(range((keys.size - 1).bit_length())):
        following = at + (1 << bit)
        reached = mx.take(keys, mx.minimum(following, keys.size - 1))
        at = mx.where((following < keys.size) & ((reached <= x) | mx.isnan(x)), following, at)
    key = mx.take(keys, at)
    return mx.take(places, at), (key == x) | (mx.isnan(key) & mx.isnan(x))
