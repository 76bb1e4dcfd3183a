"""Mathematical functions in every floating element type, to that type's precision, where MLX's own fall short.

MLX computes exp, sin, cos, erf and sigmoid of float64 in float32. On the CPU its float32 erf is 0 near 0, and its
erf, tanh and sigmoid take 13 to 21 ns an element: a quotient of polynomials takes 2 to 3.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import pi, sqrt

import mlx.core as mx

from opgraft_ops._folding import exponential, is_large_on_cpu, on_cpu, widened

ERF_TERMS = 120
"""The terms of the series for erf in float64: what is left out is below its precision up to |x| = 6."""


def in_float32(function: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """A translator of floats that computes in float32 where its inputs are 16-bit floats, and so rounds once."""

    @functools.wraps(function)
    def translate(*inputs, **attributes):
        result = function(*(each if each is None else widened(each) for each in inputs), **attributes)
        return result.astype(inputs[0].dtype)

    return translate


def sin(x: mx.array) -> mx.array:
    if x.dtype != mx.float64:
        return mx.sin(x)
    half = mx.tan(x / 2)
    return 2 * half / (1 + half * half)


def cos(x: mx.array) -> mx.array:
    if x.dtype != mx.float64:
        return mx.cos(x)
    half = mx.tan(x / 2)
    return (1 - half) * (1 + half) / (1 + half * half)


def tanh(x: mx.array) -> mx.array:
    return _tanh_quotient(x) if is_large_on_cpu(x) else mx.tanh(x)


def sigmoid(x: mx.array) -> mx.array:
    if x.dtype == mx.float64:
        return 1 / (1 + exponential(-x))
    return 0.5 + 0.5 * _tanh_quotient(0.5 * x) if is_large_on_cpu(x) else mx.sigmoid(x)


def erf(x: mx.array) -> mx.array:
    if x.dtype == mx.float64:
        return _erf_series(x)
    return _erf_quotient(x) if x.dtype == mx.float32 and on_cpu() else mx.erf(x)


def softplus(x: mx.array) -> mx.array:
    """log(1 + e to the power x), without overflow."""
    return mx.maximum(x, 0) + mx.log1p(exponential(-mx.abs(x)))


def _polynomial(x: mx.array, coefficients: Sequence[float]) -> mx.array:
    """coefficients[0] + coefficients[1] x + coefficients[2] x² + ..."""
    *lower, result = coefficients
    for coefficient in reversed(lower):
        result = result * x + coefficient
    return result


def _odd_quotient(x: mx.array, end: float, above: Sequence[float], below: Sequence[float]) -> mx.array:
    """x P(x²) / Q(x²), for a function that rises from -1 to 1 and has reached both, to float32's precision, at ±end."""
    x = mx.clip(x, -end, end)
    square = x * x
    return mx.clip(x * _polynomial(square, above) / _polynomial(square, below), -1, 1)


def _tanh_quotient(x: mx.array) -> mx.array:
    """tanh of float32: within 4e-7 of it, relatively. The coefficients are a least-maximum fit over [-9.02, 9.02]."""
    return _odd_quotient(
        x,
        9.02,
        (9.99999979e-01, 1.33796729e-01, 3.49398026e-03, 2.05825723e-05, 1.33178099e-08),
        (1.0, 4.67129882e-01, 2.58708684e-02, 3.28300318e-04, 7.76150218e-07),
    )


def _erf_quotient(x: mx.array) -> mx.array:
    """erf of float32: within 4e-7 of it, relatively. The coefficients are a least-maximum fit over [-3.93, 3.93]."""
    return _odd_quotient(
        x,
        3.93,
        (1.12837915e00, 1.90773374e-01, 5.27887058e-02, 3.77910810e-03, 2.84788805e-04, 2.04194006e-06),
        (1.0, 5.02401223e-01, 1.14253022e-01, 1.49964384e-02, 1.16507536e-03, 3.80027184e-05),
    )


def _erf_series(x: mx.array) -> mx.array:
    """erf of float64: 2x exp(-x²) / √π times the sum of (2x²)ⁿ / (1·3·5 ... (2n + 1)), whose terms are all positive."""
    near = mx.clip(x, -6, 6)
    square = near * near
    total = mx.ones_like(x)
    for n in range(ERF_TERMS, 0, -1):
        total = 1 + total * square * (2 / (2 * n + 1))
    return mx.where(mx.abs(x) >= 6, mx.sign(x), 2 / sqrt(pi) * near * exponential(-square) * total)
