"""Resize and Upsample.

Along each axis, an output is a weighted sum of neighbouring inputs: which ones and how much of each is worked out on the
host, in float32 as ONNX Runtime does, since a rounding of a coordinate decides which pixel is the nearest. Where the scale
is a simple ratio p / q, every p-th output reads every q-th input with the same weights: the p families of outputs are then
sums of strided views, which is far faster than gathering.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import mlx.core as mx
import numpy as np

from opgraft.ops import FLOATS, Host, op
from opgraft_ops._folding import widened
from opgraft_ops._shared import along

LONGEST_PERIOD = 8
"""The largest p for which outputs are computed by family."""

PRODUCT_REACH = 90
"""Gathering one input costs the CPU as much as this many terms of a matrix product."""

SLICED_CHANNELS = 16
"""From this number of channels on, images are resized channels-last, as convolutions leave them."""

_ONE, _HALF = np.float32(1), np.float32(0.5)


@dataclass(frozen=True)
class Axis:
    """How one axis is resized.

    Attributes:
        number: which axis.
        size: its length in the input.
        firsts: the first input that each output reads; inputs beyond the ends repeat the outermost one.
        weights: (outputs, taps), one row for each output; None where each is the input itself.
        outside: which outputs take the extrapolation value instead, or None.
    """

    number: int
    size: int
    firsts: np.ndarray
    weights: np.ndarray | None = None
    outside: np.ndarray | None = None


@dataclass(frozen=True)
class Method:
    """The attributes of Resize that say where an output reads, and with what weights."""

    mode: str = "nearest"
    coordinates: str = "asymmetric"
    nearest_mode: str = ""
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation_value: float = 0.0


@op("Resize", since=19)
def resize(
    ctx,
    X,
    roi: Host | None = None,
    scales: Host | None = None,
    sizes: Host | None = None,
    *,
    antialias=0,
    axes=None,
    coordinate_transformation_mode="half_pixel",
    cubic_coeff_a=-0.75,
    exclude_outside=0,
    extrapolation_value=0.0,
    keep_aspect_ratio_policy="stretch",
    mode="nearest",
    nearest_mode="round_prefer_floor",
):
    """X with the given axes resized by scales or to sizes, by the nearest input or by linear or cubic interpolation.
    ONNX Resize-19."""
    method = Method(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(exclude_outside),
        bool(antialias),
        extrapolation_value,
    )
    numbers = [axis % X.ndim for axis in axes] if axes else list(range(X.ndim))
    starts, ends = np.split(roi, 2) if roi is not None and roi.size else ([0.0] * X.ndim, [1.0] * X.ndim)
    lengths = [X.shape[axis] for axis in numbers]
    if scales is not None and scales.size:
        factors = scales.astype(np.float32)
        targets = [int(factor * np.float32(length)) for factor, length in zip(factors, lengths, strict=True)]
    else:
        factors, targets = _sized(sizes.tolist(), lengths, keep_aspect_ratio_policy)

    def tables():
        parts = zip(numbers, lengths, targets, factors, starts, ends, strict=False)
        return [table for part in parts if (table := _axis(method, *map(np.float32, part[3:]), *part[:3])) is not None]

    if targets == lengths and coordinate_transformation_mode != "tf_crop_and_resize":
        return X
    if 0 in (*X.shape, *targets):
        shape = list(X.shape)
        for axis, target in zip(numbers, targets, strict=True):
            shape[axis] = target
        return mx.zeros(shape, X.dtype)
    key = ("tables", tuple(lengths), tuple(targets), tuple(map(float, factors)), tuple(map(float, (*starts, *ends))))
    return _resized(X, ctx.cached(key, tables), method, ctx.device)


@op("Resize", since=18, until=18)
def resize_18(
    ctx,
    X,
    roi: Host | None = None,
    scales: Host | None = None,
    sizes: Host | None = None,
    *,
    antialias=0,
    axes=None,
    coordinate_transformation_mode="half_pixel",
    cubic_coeff_a=-0.75,
    exclude_outside=0,
    extrapolation_value=0.0,
    keep_aspect_ratio_policy="stretch",
    mode="nearest",
    nearest_mode="round_prefer_floor",
):
    pass
