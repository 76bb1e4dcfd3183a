"""What the modules that sum, average and exponentiate share: folds over axes, in a wide enough element type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import e, isqrt, prod

import mlx.core as mx
import numpy as np

LONG = 256
"""From this length on, a fold over the last axes goes in two stages on the CPU."""


def is_float(x: mx.array) -> bool:
    return bool(mx.issubdtype(x.dtype, mx.floating))


def widened(x: mx.array) -> mx.array:
    """x in the element type that sums over it are kept in: float32 for the 16-bit floats, its own otherwise."""
    return x.astype(mx.float32) if x.dtype in (mx.float16, mx.bfloat16) else x


def exponential(x: mx.array) -> mx.array:
    """e to the power x. MLX's exp of float64 is right to 7 digits only; its power is right to 15."""
    return mx.power(mx.array(e, mx.float64), x) if x.dtype == mx.float64 else mx.exp(x)


@dataclass(frozen=True, slots=True)
class Fold:
    """Folds (mx.sum, mx.max, ...) over `axes`, which count from 0; they stay as dimensions of size 1."""

    axes: tuple[int, ...]
    device: str

    def shape(self, x: mx.array) -> list[int]:
        """The shape of a fold of x."""
        return [1 if axis in self.axes else size for axis, size in enumerate(x.shape)]

    def __call__(self, function: Callable[..., mx.array], x: mx.array) -> mx.array:
        """function over the axes of x.

        On the CPU, MLX walks a long run of neighbours one by one, so that each addition waits for the last and rounding
        errors pile up: such a run is folded as a matrix, down its columns first.
        """
        first = x.ndim
        while first - 1 in self.axes:
            first -= 1
        length = prod(x.shape[first:])
        if x.size == 0:
            return mx.full(self.shape(x), mx.array(np.array(of_nothing(function, x))).astype(x.dtype))
        if self.device != "cpu" or length < LONG:
            return function(x, axis=self.axes, keepdims=True)
        width = isqrt(length)
        whole = length - length % width
        runs = x.reshape(*x.shape[:first], length)
        columns = function(runs[..., :whole].reshape(*x.shape[:first], whole // width, width), axis=-2)
        folded = mx.concatenate([columns, runs[..., whole:]], axis=-1) if whole < length else columns
        return function(folded, axis=(*(axis for axis in self.axes if axis < first), first)).reshape(self.shape(x))

    def mean(self, x: mx.array) -> mx.array:
        """The mean of floats; 0 over nothing."""
        return self(mx.sum, x) / max(prod(x.shape[axis] for axis in self.axes), 1)


def of_nothing(function: Callable[..., mx.array], x: mx.array) -> float:
    """What a fold gives for no elements of x's type."""
    if function is mx.sum:
        return 0
    if function is mx.prod:
        return 1
    if is_float(x):
        return -np.inf if function is mx.max else np.inf
    if x.dtype == mx.bool_:
        return function is mx.min
    return mx.iinfo(x.dtype).min if function is mx.max else mx.iinfo(x.dtype).max
