"""Activations with a bias, and those that have a name of their own."""

from __future__ import annotations

import mlx.core as mx

from opgraft.ops import BOOL, FLOATS, Context, Host, Layout, op
from opgraft_ops._folding import widened
from opgraft_ops._functions import in_float32, sigmoid
from opgraft_ops._sizes import check_broadcast, check_shape
from opgraft_ops.activation import dropout, gelu


@op("com.microsoft::Gelu", dtypes=FLOATS, layout=Layout.ANY)
@in_float32
def plain_gelu(X):
    """X times the normal distribution's probability of less than X."""
    return gelu(X)


@op("com.microsoft::BiasGelu", dtypes=FLOATS)
@in_float32
def bias_gelu(A, B):
    """Gelu of A + B. B: (H), the size of A's last axis."""
    check_shape("B", B, A.shape[-1:])
    return gelu(A + B)


@op("com.microsoft::FastGelu", dtypes=FLOATS)
@in_float32
def fast_gelu(X, bias=None):
    """The approximation to Gelu by tanh, of X + bias. bias: (H), the size of X's last axis."""
    check_shape("bias", bias, X.shape[-1:])
    return gelu(X if bias is None else X + bias, approximate="tanh")


@op("com.microsoft::QuickGelu", dtypes=FLOATS, layout=Layout.ANY)
@in_float32
def quick_gelu(X, *, alpha=1.7020000219345093):
    """X sigmoid(alpha X)."""
    return X * sigmoid(alpha * X)


@op("com.microsoft::BiasSplitGelu", dtypes=FLOATS)
@in_float32
def bias_split_gelu(X, bias):
    """The first half of X + bias, along the last axis, times the Gelu of the other. X: (N, S, D), bias: (D)."""
    check_shape("bias", bias, X.shape[-1:])
    if X.shape[-1] % 2:
        raise ValueError(f"X of shape {list(X.shape)} has no two halves along its last axis")
    kept, gate = mx.split(X + bias, 2, axis=-1)
    return kept * gelu(gate)


@op(
    "com.microsoft::BiasDropout",
    dtypes={"data": FLOATS, "bias": FLOATS, "residual": FLOATS, "ratio": FLOATS, "training_mode": BOOL},
)
def bias_dropout(
    ctx: Context, data, bias, residual=None, ratio: Host | None = None, training_mode: Host | None = None, *, seed=None
):
    """Dropout of data + bias, plus residual; and the mask of what was kept. bias: (H), the size of data's last axis, or
    of data's shape."""
    check_broadcast("bias", bias, data.shape)
    check_shape("residual", residual, data.shape)
    kept, mask = dropout(ctx, widened(data) + widened(bias), ratio, training_mode, seed=seed)
    return (kept if residual is None else kept + widened(residual)).astype(data.dtype), mask
