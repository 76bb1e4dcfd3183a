"""Activation functions."""

from __future__ import annotations

from math import isfinite, pi, sqrt

import mlx.core as mx
import numpy as np

from opgraft.ops import BOOL, FLOATS, NUMBERS, SIGNED, Context, Host, Layout, Node, op
from opgraft.ops.arrays import element_type
from opgraft_ops._folding import exponential, widened
from opgraft_ops._functions import erf, in_float32, sigmoid, softplus, tanh
from opgraft_ops._table import row
from opgraft_ops.cast import converted


def joined(x: mx.array, negative: mx.array) -> mx.array:
    """x where it is positive, otherwise `negative`, which must be 0 there: cheaper on the CPU than a choice."""
    return mx.maximum(x, 0) + negative


def below_zero(x: mx.array) -> mx.array:
    """x where it is negative, otherwise 0."""
    return mx.minimum(x, 0)


@in_float32
def mish(x):
    grown = exponential(mx.minimum(x, 40))
    doubled = grown * (grown + 2)
    return x * (doubled / (doubled + 2))


# name, input, MLX's function, NumPy's, element types, what it computes
UNARY = (
    ("Relu", "X", lambda x: mx.maximum(x, 0), lambda x: np.maximum(x, 0), FLOATS | SIGNED, "max(X, 0). ONNX Relu-14."),
    ("Sigmoid", "X", in_float32(sigmoid), None, FLOATS, "1 / (1 + exp(-X)). ONNX Sigmoid-13."),
    ("Softplus", "X", in_float32(softplus), None, FLOATS, "log(exp(X) + 1). ONNX Softplus-22."),
    ("Softsign", "input", in_float32(lambda x: x / (1 + mx.abs(x))), None, FLOATS, "X / (1 + |X|). ONNX Softsign-22."),
    ("Mish", "X", mish, None, FLOATS, "X tanh(softplus(X)). ONNX Mish-22."),
)

unary = [row(*each) for each in UNARY]


@op("LeakyRelu", dtypes=FLOATS, layout=Layout.ANY)
@in_float32
def leaky_relu(X, *, alpha=0.01):
    """X where it is positive, otherwise alpha X. ONNX LeakyRelu-16."""
    return joined(X, alpha * below_zero(X))


@op("PRelu", since=7, dtypes=NUMBERS, layout=Layout.ANY)
def prelu(ctx, X, slope):
    """X where it is positive, otherwise slope X; slope is broadcast to X. ONNX PRelu-16."""
    finite = ctx.is_constant(1) and ctx.prepared(1, lambda given: mx.all(mx.isfinite(given)).item())
    return joined(X, slope * below_zero(X)) if finite else mx.where(X < 0, slope * X, X)


@op("PRelu", until=6, dtypes=FLOATS)
def prelu_by_channel(ctx, X, slope, *, consumed_inputs=None):
    """PRelu with a slope for each channel, or one for all. X: (N, C, D1 ... Dn). ONNX PRelu-6."""
    return prelu(ctx, X, slope.reshape(-1, *[1] * (X.ndim - 2)))


@op("ThresholdedRelu", since=10, dtypes=FLOATS, layout=Layout.ANY)
def thresholded_relu(X, *, alpha=1.0):
    """X where it is above alpha, otherwise 0. ONNX ThresholdedRelu-22."""
    return mx.where(widened(X) > alpha, X, 0)


@op("HardSigmoid", dtypes=FLOATS, layout=Layout.ANY)
@in_float32
def hard_sigmoid(X, *, alpha=0.2, beta=0.5):
    """alpha X + beta, clipped to [0, 1]. ONNX HardSigmoid-22."""
    return mx.clip(alpha * X + beta, 0, 1)


@op("HardSwish", since=14, dtypes=FLOATS, layout=Layout.ANY)
@in_float32
def hard_swish(X):
    """X times X / 6 + 1/2 clipped to [0, 1]. ONNX HardSwish-22."""
    return X * mx.clip(X / 6 + 0.5, 0, 1)


@op("Elu", dtypes=FLOATS, layout=Layout.ANY)
@in_float32
def elu(X, *, alpha=1.0):
    """X where it is positive, otherwise alpha (exp(X) - 1). ONNX Elu-22."""
    return joined(X, alpha * mx.expm1(below_zero(X)))


@op("Selu", dtypes=FLOATS, layout=Layout.ANY)
@in_float32
def selu(X, *, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875):
    """gamma X where X is positive, otherwise gamma alpha (exp(X) - 1). ONNX Selu-22."""
    return gamma * elu(X, alpha=alpha)


@leaky_relu.condition
@elu.condition
@selu.condition
def _(node: Node):
    alpha = node.attributes.get("alpha", 1.0)
    node.require(isfinite(alpha), f"alpha is {alpha}, and must be finite")


@op("Celu", since=12, dtypes=FLOATS, layout=Layout.ANY)
@in_float32
def celu(X, *, alpha=1.0):
    """X where it is positive, otherwise alpha (exp(X / alpha) - 1). ONNX Celu-28."""
    return joined(X, alpha * mx.expm1(below_zero(X) / alpha))


@celu.condition
def _(node, *, alpha):
    node.require(alpha and isfinite(alpha), f"alpha is {alpha}, and must be finite, and not 0")


@op("Gelu", since=20, dtypes=FLOATS, layout=Layout.ANY)
@in_float32
def gelu(X, *, approximate="none"):
    """X times the normal distribution's probability of less than X, or an approximation to it by tanh. ONNX Gelu-20."""
    if approximate == "tanh":
        return 0.5 * X * (1 + tanh(sqrt(2 / pi) * (X + 0.044715 * X * X * X)))
    return 0.5 * X * (1 + erf(X * sqrt(0.5)))


@gelu.condition
def _(node: Node):
    approximate = node.attributes.get("approximate", "none")
    node.require(approximate in ("none", "tanh"), f"approximate={approximate} is neither none nor tanh")


@op("Swish", since=24, dtypes=FLOATS, layout=Layout.ANY)
@in_float32
def swish(X, *, alpha=1.0):
    """X sigmoid(alpha X). ONNX Swish-24."""
    return X * sigmoid(X if alpha == 1 else alpha * X)


@op("SwiGLU", since=28, dtypes=FLOATS)
@in_float32
def swiglu(A, B, *, alpha=1.0):
    """A sigmoid(alpha A) B, of equal shapes. ONNX SwiGLU-28."""
    return swish(A, alpha=alpha) * B


@op("Shrink", since=9, dtypes=NUMBERS, layout=Layout.ANY)
def shrink(input, *, bias=0.0, lambd=0.5):
    """input moved by bias toward 0 where its magnitude is above lambd, otherwise 0. ONNX Shrink-9. Integers are
    reckoned with in float32, as in ONNX Runtime, and truncated."""
    x = input if input.dtype == mx.float64 else input.astype(mx.float32)
    moved = mx.where(x < -lambd, x + bias, mx.where(x > lambd, x - bias, 0))
    return converted(moved, element_type(input))


@op("Dropout", since=7, until=9, dtypes=FLOATS)
def dropout_7(data, *, ratio=0.5):
    """data itself, and a mask of ones in its element type. ONNX Dropout-7, which knows inference only."""
    return data, mx.ones_like(data)


@op("Dropout", since=10, until=11, dtypes=FLOATS)
def dropout_10(data, *, ratio=0.5):
    """data itself, and a mask that keeps everything. ONNX Dropout-10, which knows inference only."""
    return data, mx.ones(data.shape, mx.bool_)


@op("Dropout", since=12, dtypes={"data": FLOATS, "ratio": FLOATS, "training_mode": BOOL})
def dropout(ctx: Context, data, ratio: Host | None = None, training_mode: Host | None = None, *, seed=None):
    """data itself; in training, data with each element dropped with probability `ratio` and the others scaled to keep
    the mean. Second, the mask of those kept. ONNX Dropout-22; a seed draws as ONNX's reference does."""
    share = 0.5 if ratio is None else ratio.item()
    if not 0 <= share < 1:
        raise ValueError(f"a ratio of {share} is not at least 0 and less than 1")
    if training_mode is None or not training_mode or share == 0:
        return data, mx.ones(data.shape, mx.bool_)
    if seed is None:
        kept = mx.random.uniform(shape=data.shape, key=ctx.random_key()) >= share
    else:
        kept = mx.array(np.random.RandomState(seed % 2**32).uniform(size=data.shape) >= share)
    return (mx.where(kept, widened(data), 0) * (1 / (1 - share))).astype(data.dtype), kept
