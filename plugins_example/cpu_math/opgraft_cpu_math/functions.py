"""Functions of float32 arrays, element by element, each as a few fused kernels and cheap steps between them.

Two forms carry them. e to the power x is 4 to the power n times e to the power r, with n whole and |r| <= ln 2, where a
polynomial is close to it; Sigmoid, Swish, Gelu and the softmaxes are made of that. tanh and erf are odd quotients of
polynomials up to where they are 1 to float32's precision. The coefficients are least-maximum fits of relative error.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import e, log2, pi, sqrt

import mlx.core as mx

from .kernels import fused, in_pieces

ROUNDING = 1.5 * 2.0**23 + 127
"""Added to a number n, it leaves round(n) + 127 in the lowest bits of the sum: the exponent of 2 to the power n."""

LN_4 = (1.38629150390625, 2.857213530660374e-06)
"""ln 4 in two parts; the first is short enough for its product with a whole number below 128 to be exact."""

LOWEST = -105.0
"""From here down, e to the power x is 0 to float32's precision."""

EXPONENTIAL = (1.0, 1.0, 0.500000347, 0.16666614, 0.0416612582, 0.00833610884, 0.00141046771, 0.00019611345)
"""e to the power r for |r| <= ln 2: 1.4e-8 off."""

TANH = (
    (1.0, 0.13382687, 0.00349745783, 2.06358236e-05, 1.33842937e-08),
    (1.0, 0.467160076, 0.0258843619, 0.000328851747, 7.79025015e-07),
)
"""tanh(x) / x of x², for |x| <= 9.02: 2.2e-8 off. Further out it is above 1 / x, and cut off there."""

ERF = (
    (1.12837911, 0.190784082, 0.0527903214, 0.00377962017, 0.000284808892, 2.04196931e-06),
    (1.0, 0.50241071, 0.114257626, 0.0149974591, 0.00116521539, 3.80040729e-05),
)
"""erf(x) / x of x², for |x| <= 3.93: 1.9e-8 off, and further out above 1 / x."""

NORMAL_TAIL = (
    (0.5, 0.439283043, 0.183968857, 0.0408810377, 0.00415321672),
    (1.0, 1.6764511, 1.20554709, 0.47140798, 0.102479681, 0.0104104588),
)
"""The normal distribution's share beyond x, times e to the power x² / 2, for 0 <= x <= 15: 6e-9 off."""

LONGEST_RUN = 48
"""Numbers that are added one after the other at most."""


def exponential(x: mx.array) -> mx.array:
    """e to the power x."""
    return _power(*_split(mx.clip(x, LOWEST, 89)))


def sigmoid(x: mx.array) -> mx.array:
    """1 / (1 + e to the power -x)."""
    return _share(*_split(mx.clip(x, LOWEST, 80)))


def gated(x: mx.array, gate: mx.array) -> mx.array:
    """x sigmoid(gate)."""
    return _share_of(x, *_split(mx.clip(gate, LOWEST, 80)))


def tanh(x: mx.array) -> mx.array:
    """The hyperbolic tangent."""
    return mx.clip(_tanh(mx.clip(x, -9.75, 9.75)), -1, 1)


def erf(x: mx.array) -> mx.array:
    """The error function."""
    return mx.clip(_erf(mx.clip(x, -4, 4)), -1, 1)


def gelu(x: mx.array) -> mx.array:
    """x times the normal distribution's share below x."""
    distance = mx.minimum(mx.abs(x), 15)
    return _gelu(x, distance, *_with_root(*_density_in_parts(distance)))


def gelu_by_tanh(x: mx.array) -> mx.array:
    """x (1 + tanh(√(2 / π) (x + 0.044715 x³))) / 2, which is x times a sigmoid."""
    return gated(x, _gelu_gate(x))


def softmax(rows: mx.array) -> mx.array:
    """The exponentials of each row, divided by their sum."""
    powers = in_pieces(exponential, rows - mx.max(rows, axis=-1, keepdims=True))
    return powers / _sums(powers)


def log_softmax(rows: mx.array) -> mx.array:
    """The logarithm of softmax."""
    shifted = rows - mx.max(rows, axis=-1, keepdims=True)
    return shifted - mx.log(_sums(in_pieces(exponential, shifted)))


def _polynomial(x: mx.array, coefficients: Sequence[float | mx.array]) -> mx.array:
    """coefficients[0] + coefficients[1] x + coefficients[2] x² + ..., of two or more, by pairs and pairs of pairs."""
    pairs = [low + high * x for low, high in zip(coefficients[::2], coefficients[1::2], strict=False)]
    left = coefficients[2 * len(pairs) :]
    return _polynomial(x * x, [*pairs, *left]) if len(pairs) + len(left) > 1 else pairs[0]


def _quotient(x: mx.array, polynomials: tuple[Sequence[float], Sequence[float]]) -> mx.array:
    above, below = polynomials
    return _polynomial(x, above) / _polynomial(x, below)


# e to the power x takes two kernels, with a view between them. x is split into n ln 4 and the rest, and of n's bits the
# root is made, 2 to the power n.


def _split(x: mx.array) -> tuple[mx.array, mx.array]:
    """The rest and the root of x, from LOWEST to 89."""
    return _with_root(*_parts(x))


def _with_root(counted: mx.array, rest: mx.array) -> tuple[mx.array, mx.array]:
    return rest, (counted.view(mx.int32) << 23).view(mx.float32)


@fused
def _parts(x: mx.array) -> tuple[mx.array, mx.array]:
    """n + ROUNDING, and the rest."""
    counted = x * (log2(e) / 2) + ROUNDING
    n = counted - ROUNDING
    return counted, (x - n * LN_4[0]) - n * LN_4[1]


@fused
def _density_in_parts(x: mx.array) -> tuple[mx.array, mx.array]:
    """The parts of -x² / 2."""
    return _parts(-0.5 * (x * x))


@fused
def _power(rest: mx.array, root: mx.array) -> mx.array:
    return _polynomial(rest, EXPONENTIAL) * root * root


def _odds(rest: mx.array, root: mx.array) -> mx.array:
    """What _power gives, a step less deep, up to e to the power 88: then the square of the root is infinite."""
    return _polynomial(rest, EXPONENTIAL) * (root * root)


@fused
def _share(rest: mx.array, root: mx.array) -> mx.array:
    odds = _odds(rest, root)
    return odds / (1 + odds)


@fused
def _share_of(x: mx.array, rest: mx.array, root: mx.array) -> mx.array:
    odds = _odds(rest, root)
    return x * (odds / (1 + odds))


@fused
def _gelu(x: mx.array, distance: mx.array, rest: mx.array, root: mx.array) -> mx.array:
    """x where it is positive, less |x| times the share that is further out on one side."""
    return 0.5 * x + 0.5 * mx.abs(x) - _odds(rest, root) * (distance * _quotient(distance, NORMAL_TAIL))


@fused
def _gelu_gate(x: mx.array) -> mx.array:
    return x * (sqrt(8 / pi) + sqrt(8 / pi) * 0.044715 * (x * x))


@fused
def _tanh(x: mx.array) -> mx.array:
    return x * _quotient(x * x, TANH)


@fused
def _erf(x: mx.array) -> mx.array:
    return x * _quotient(x * x, ERF)


def _sums(rows: mx.array) -> mx.array:
    """The sum of each row, by runs and runs of runs: MLX adds one by one, and rounding errors pile up in a long row."""
    columns = rows.shape[-1]
    if columns <= LONGEST_RUN:
        return mx.sum(rows, axis=-1, keepdims=True)
    run = next((run for run in range(LONGEST_RUN, 15, -1) if columns % run == 0), 32)
    whole = columns - columns % run
    runs = mx.sum(rows[:, :whole].reshape(len(rows), -1, run), axis=-1)
    return _sums(mx.concatenate([runs, rows[:, whole:]], axis=-1) if whole < columns else runs)


EVERY = (exponential, sigmoid, tanh, erf, gelu, gelu_by_tanh)
"""Functions that use every kernel."""
