"""The handlers. They take float32, in arrays large enough to gain; what they decline goes on to the built-in pack."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from inspect import Parameter, Signature
from math import pi, prod, sqrt
from typing import TypeAlias

import mlx.core as mx

from opgraft.ops import Context, Decline, Handler, Node, op

from . import functions
from .building import obstacle
from .kernels import in_pieces, in_rows

Function: TypeAlias = Callable[[mx.array], mx.array]

FLOAT32 = {"float32"}

FEW = 4096
"""With fewer elements than these, MLX's own function is done before several kernels have started."""


def gaining(least: int) -> Callable[[Handler], Handler]:
    """Have a handler decline where it gains nothing, as a decorator: where its kernels are not built, and where its
    input is known to have fewer elements than `least`."""

    def decorate(handler: Handler) -> Handler:
        @handler.condition
        def _(node: Node) -> None:
            reason = obstacle()
            if reason is not None:
                warn(reason)
                raise Decline(reason)
            value = node.input(0)
            shape = None if value is None else value.static_shape
            node.require(shape is None or prod(shape) >= least, f"its input has fewer than {least} elements")

        return handler

    return decorate


@cache
def warn(reason: str) -> None:
    """Say, once, why the pack does nothing: where another pack takes a node, nobody asks for the reason."""
    if mx.default_device() == mx.cpu:
        logging.getLogger("opgraft.cpu_math").warning("the pack cpu-math takes nothing over: %s", reason)


def gains(ctx: Context, x: mx.array, least: int) -> bool:
    """The same at a run, which knows the sizes that the model leaves open, and the device: a GPU gains nothing."""
    return ctx.device == "cpu" and x.size >= least


def unary(op_type: str, name: str, least: int, function: Function, own: Function, meaning: str) -> Handler:
    """The handler of an operator of one input and no attributes."""

    def translate(ctx: Context, x: mx.array) -> mx.array:
        return in_pieces(function, x) if gains(ctx, x, least) else own(x)

    names = [Parameter(each, Parameter.POSITIONAL_OR_KEYWORD) for each in ("ctx", name)]
    translate.__signature__ = Signature(names)  # type: ignore[attr-defined]
    translate.__doc__ = meaning
    return gaining(least)(op(op_type, dtypes=FLOAT32)(translate))


# op type, its input, the least elements, the function, MLX's own, what it computes
UNARY: tuple[tuple[str, str, int, Function, Function, str], ...] = (
    ("Exp", "input", FEW, functions.exponential, mx.exp, "e to the power input. ONNX Exp-13."),
    ("Tanh", "input", FEW, functions.tanh, mx.tanh, "The hyperbolic tangent of input. ONNX Tanh-13."),
    ("Sigmoid", "X", FEW, functions.sigmoid, mx.sigmoid, "1 / (1 + exp(-X)). ONNX Sigmoid-13."),
    ("Erf", "input", 1, functions.erf, mx.erf, "The error function of input. ONNX Erf-13."),
)

unaries = [unary(*row) for row in UNARY]


@gaining(FEW)
@op("Swish", since=24, dtypes=FLOAT32)
def swish(ctx: Context, X: mx.array, *, alpha: float = 1.0) -> mx.array:
    """X sigmoid(alpha X), which is SiLU where alpha is 1. ONNX Swish-24."""
    gate = X if alpha == 1 else alpha * X
    return in_pieces(functions.gated, X, gate) if gains(ctx, X, FEW) else X * mx.sigmoid(gate)


@gaining(1)
@op("Gelu", since=20, dtypes=FLOAT32)
def gelu(ctx: Context, X: mx.array, *, approximate: str = "none") -> mx.array:
    """X times the normal distribution's share below X, or an approximation to it by tanh. ONNX Gelu-20."""
    by_tanh = approximate == "tanh"
    if gains(ctx, X, 1):
        return in_pieces(functions.gelu_by_tanh if by_tanh else functions.gelu, X)
    if by_tanh:
        return 0.5 * X * (1 + mx.tanh(sqrt(2 / pi) * (X + 0.044715 * X * X * X)))
    return 0.5 * X * (1 + mx.erf(X * sqrt(0.5)))


@gelu.condition
def _(node: Node) -> None:
    approximate = node.attributes.get("approximate", "none")
    node.require(approximate in ("none", "tanh"), f"approximate={approximate} is neither none nor tanh")


def by_rows(op_type: str, function: Function, own: Callable[[mx.array, int], mx.array], meaning: str) -> Handler:
    """The handler of an operator that works along one axis."""

    def along_axis(ctx: Context, input: mx.array, *, axis: int = -1) -> mx.array:
        if gains(ctx, input, FEW):
            return mx.swapaxes(in_rows(function, mx.swapaxes(input, axis, -1)), axis, -1)
        return own(input, axis) if input.size else input

    along_axis.__doc__ = meaning
    handler = gaining(FEW)(op(op_type, since=13, dtypes=FLOAT32)(along_axis))

    @handler.condition
    def _(node: Node) -> None:
        node.require(node.rank(0), "its input is not known to have an axis")

    return handler


softmaxes = [
    by_rows(
        "Softmax",
        functions.softmax,
        lambda x, axis: mx.softmax(x, axis=axis, precise=True),
        "The exponentials of the values along an axis, divided by their sum. ONNX Softmax-13.",
    ),
    by_rows(
        "LogSoftmax",
        functions.log_softmax,
        lambda x, axis: x - mx.logsumexp(x, axis=axis, keepdims=True),
        "The logarithm of Softmax. ONNX LogSoftmax-13.",
    ),
]
