"""Convolutions with what was fused into them, and those of images whose channels come last."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx

from opgraft.ops import Context, Layout, Node, op
from opgraft.ops.layouts import channels_first, channels_last
from opgraft_contrib._activations import OF_CONVOLUTION, claim_activation
from opgraft_ops._folding import widened
from opgraft_ops._sizes import check_shape, flags
from opgraft_ops._windows import claim_windows
from opgraft_ops.convolution import claim_convolution, convolved
from opgraft_ops.pooling import max_pool

TYPES = frozenset({"float32", "float64", "float16"})

Prepared = Callable[[Callable[[mx.array], Any]], Any]


@op("com.microsoft::FusedConv", dtypes=TYPES, layout=Layout.CHANNELS_LAST)
def fused_conv(
    ctx: Context,
    X,
    W,
    B=None,
    Z=None,
    *,
    activation=None,
    activation_params=(),
    auto_pad="NOTSET",
    dilations=None,
    group=1,
    kernel_shape=None,
    pads=None,
    strides=None,
):
    """An activation of Conv's result plus Z (N, M, O1...On), where there is one; and of nothing else without one."""
    place = {"auto_pad": auto_pad, "dilations": dilations, "kernel_shape": kernel_shape, "pads": pads}
    y = convolved(X, W, B, partial(ctx.prepared, 1), ctx.device, group=group, strides=strides, **place)
    check_shape("Z", Z, y.shape)
    summand = None if Z is None else channels_last(Z)
    return channels_first(activated(channels_last(y), summand, activation, activation_params))


def activated(y: mx.array, summand: mx.array | None, activation: str | None, numbers: tuple[float, ...]) -> mx.array:
    """The activation of y + summand, in y's element type."""
    total = widened(y) if summand is None else widened(y) + widened(summand)
    return (OF_CONVOLUTION[activation](total, numbers) if activation else total).astype(y.dtype)


@op("com.microsoft::NhwcFusedConv", dtypes={"float32", "float16"})
def nhwc_fused_conv(
    ctx: Context,
    X,
    W,
    B=None,
    Z=None,
    *,
    activation=None,
    activation_params=(),
    auto_pad="NOTSET",
    dilations=None,
    group=1,
    kernel_shape=None,
    pads=None,
    strides=None,
):
    """FusedConv of images with channels last: X (N, D1...Dn, C) and Z (N, O1...On, M), with W as there."""
    place = {"auto_pad": auto_pad, "dilations": dilations, "kernel_shape": kernel_shape, "pads": pads}
    image = channels_first(X)
    y = convolved(image, W, B, partial(ctx.prepared, 1), ctx.device, group=group, strides=strides, **place)
    y = channels_last(y)
    check_shape("Z", Z, y.shape)
    return activated(y, Z, activation, activation_params)


@op("com.microsoft::NhwcConv", dtypes=TYPES)
def nhwc_conv(
    ctx: Context,
    X,
    W,
    B=None,
    *,
    auto_pad="NOTSET",
    dilations=None,
    group=1,
    kernel_shape=None,
    pads=None,
    strides=None,
):
    """Conv of images with channels last: X (N, D1...Dn, C), W (M, k1...kn, C / group), B (M) give (N, O1...On, M)."""
    place = {"auto_pad": auto_pad, "dilations": dilations, "kernel_shape": kernel_shape, "pads": pads}

    def prepared(make: Callable[[mx.array], Any]) -> Any:
        return ctx.prepared(1, lambda weight: make(channels_first(weight)))

    settings = {"group": group, "strides": strides, **place}
    return channels_last(convolved(channels_first(X), channels_first(W), B, prepared, ctx.device, **settings))


for _handler in (fused_conv, nhwc_fused_conv, nhwc_conv):
    _handler.condition(claim_convolution)


@fused_conv.condition
@nhwc_fused_conv.condition
def _(node: Node):
    if node.attributes.get("activation"):
        claim_activation(node, OF_CONVOLUTION, len(node.attributes.get("activation_params", ())))


@op("com.microsoft::NhwcMaxPool", dtypes={"int8", "uint8"})
def nhwc_max_pool(
    ctx: Context, x, *, kernel_shape, auto_pad="NOTSET", ceil_mode=0, dilations=None, pads=None, strides=None
):
    """MaxPool of images with channels last: x (N, D1...Dn, C) gives (N, O1...On, C)."""
    place = {"auto_pad": auto_pad, "ceil_mode": ceil_mode, "dilations": dilations, "pads": pads, "strides": strides}
    return channels_last(max_pool(ctx, channels_first(x), kernel_shape=kernel_shape, **place))


nhwc_max_pool.condition(flags("ceil_mode"))


@nhwc_max_pool.condition
def _(node: Node):
    rank = node.rank(0)
    claim_windows(node, None if rank is None else rank - 2)
    node.require(rank is None or rank > 2, "an image has axes beside batch and channels")
