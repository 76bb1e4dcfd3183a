"""Where the channels of images lie in memory, and operators that do not mind.

MLX convolves images (N, D1...Dn, C), channels last, and ONNX has them first: what a convolution gives is a view of such
an image with its axes moved. An operator that goes through it element by element, axes in ONNX's order, reads memory
all over the place; with the axes in the order in which they lie, it is several times faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import mlx.core as mx


class Layout(Enum):
    """What an operator has to do with the order of its images' axes."""

    ANY = "any"
    """It does the same at each place: it may be given all inputs, and gives its outputs, with the channels as the last
    axis. One that goes by an axis asks `ctx.axis` for it."""

    CHANNELS_LAST = "channels last"
    """Its first output lies in memory with the channels last, whatever its inputs are."""

    KEPT = "kept"
    """Its first output lies as its first input does, which `ctx.channels_last` tells."""


def channels_last(x: mx.array) -> mx.array:
    """(N, C, D1...Dn) as (N, D1...Dn, C): a view."""
    return mx.moveaxis(x, 1, -1)


def channels_first(x: mx.array) -> mx.array:
    """(N, D1...Dn, C) as (N, C, D1...Dn): a view."""
    return mx.moveaxis(x, -1, 1)


def turned(inputs: Sequence[Any]) -> tuple[list[Any], int]:
    """Arrays that broadcast with each other, with the channels as the last axis of each, and their rank. They stay as
    they are where that is less than 3, and so does what is no MLX array."""
    rank = max((each.ndim for each in inputs if isinstance(each, mx.array)), default=0)
    return [_turned(each, rank) if isinstance(each, mx.array) and rank >= 3 else each for each in inputs], rank


def turned_back(outputs: Sequence[Any], rank: int) -> list[Any]:
    """What came of such inputs, in ONNX's order."""
    return [channels_first(each) if rank >= 3 and each is not None else each for each in outputs]


def _turned(x: mx.array, rank: int) -> mx.array:
    if x.size == 1:
        return x
    return channels_last(x if x.ndim == rank else x.reshape((1,) * (rank - x.ndim) + x.shape))
