"""LSTM, GRU and RNN.

All directions run at once, along a leading axis: a reverse direction reads its input reversed beforehand, and its
outputs are reversed afterwards. Inside, D is the number of directions, T the steps, N the batch, H the hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.ops import FLOATS, Anywhere, Context, Node, op
from opgraft_ops._folding import exponential, widened
from opgraft_ops._functions import sigmoid, softplus, tanh
from opgraft_ops._shared import between
from opgraft_ops._sizes import check_shape, flags

TYPES = {name: FLOATS for name in ("X", "W", "R", "B", "initial_h")}

REVERSED = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""For each direction of a node, whether it goes backward through time."""

ACTIVATIONS: dict[str, tuple[Callable[..., mx.array], dict[str, float | None]]] = {
    "affine": (lambda x, alpha, beta: alpha * x + beta, {"alpha": None, "beta": None}),
    "elu": (lambda x, alpha: mx.where(x >= 0, x, alpha * (exponential(x) - 1)), {"alpha": 1.0}),
    "hardsigmoid": (lambda x, alpha, beta: mx.clip(alpha * x + beta, 0, 1), {"alpha": 0.2, "beta": 0.5}),
    "leakyrelu": (lambda x, alpha: mx.where(x >= 0, x, alpha * x), {"alpha": 0.01}),
    "relu": (lambda x: mx.maximum(x, 0), {}),
    "scaledtanh": (lambda x, alpha, beta: alpha * tanh(beta * x), {"alpha": None, "beta": None}),
    "sigmoid": (sigmoid, {}),
    "softplus": (softplus, {}),
    "softsign": (lambda x: x / (1 + mx.abs(x)), {}),
    "tanh": (tanh, {}),
    "thresholdedrelu": (lambda x, alpha: mx.where(x >= alpha, x, 0), {"alpha": None}),
}
"""Each activation by its name in lower case, with what alpha and beta are where the node does not say (None: it must,
since ONNX gives no default, or ONNX Runtime takes another)."""


@op("RNN", since=7, dtypes=TYPES)
def rnn(
    ctx,
    X,
    W,
    R,
    B=None,
    sequence_lens: Anywhere = None,
    initial_h=None,
    *,
    activations=("Tanh",) * 2,
    activation_alpha=(),
    activation_beta=(),
    clip=None,
    direction="forward",
    hidden_size=None,
    layout=0,
):
    """Ht = f(Xt W' + Ht-1 R' + Wb + Rb). X: (T, N, I); Y: (T, D, N, H), Y_h: (D, N, H). ONNX RNN-22."""
    check_sizes(ctx, 1, direction, hidden_size, layout)
    (activate,) = activation_functions(direction, 1, activations, activation_alpha, activation_beta, clip)

    def cell(projected, hidden):
        return (activate(projected + hidden @ recurrence),)

    recurrence = ctx.prepared(2, transposed_weights)
    bias = None if B is None else ctx.prepared(3, lambda given: sum(mx.split(given, 2, axis=1)))
    project = times(ctx.prepared(1, transposed_weights))
    return over_time(ctx, cell, project, R.shape[2], X, bias, sequence_lens, [initial_h], direction, layout)


@op("GRU", since=7, dtypes=TYPES)
def gru(
    ctx,
    X,
    W,
    R,
    B=None,
    sequence_lens: Anywhere = None,
    initial_h=None,
    *,
    activations=None,
    activation_alpha=(),
    activation_beta=(),
    clip=None,
    direction="forward",
    hidden_size=None,
    layout=0,
    linear_before_reset=0,
):
    """Gated recurrent units, gates in the order z, r, h. X: (T, N, I); Y: (T, D, N, H), Y_h: (D, N, H). ONNX GRU-22."""
    check_sizes(ctx, 3, direction, hidden_size, layout)
    activations = activations or ["Sigmoid", "Tanh"] * 2
    gate, squash = activation_functions(direction, 2, activations, activation_alpha, activation_beta, clip)
    size = R.shape[2]
    recurrence = ctx.prepared(2, lambda given: mx.split(transposed_weights(given), [2 * size], axis=2))
    bias, candidate_bias = (None, 0) if B is None else ctx.prepared(3, partial(gru_biases, size, linear_before_reset))

    def cell(projected, hidden):
        for_gates, for_candidate = mx.split(projected, [2 * size], axis=-1)
        update, reset = mx.split(gate(for_gates + hidden @ recurrence[0]), 2, axis=-1)
        if linear_before_reset:
            recurrent = reset * (hidden @ recurrence[1] + candidate_bias)
        else:
            recurrent = (reset * hidden) @ recurrence[1]
        return ((1 - update) * squash(for_candidate + recurrent) + update * hidden,)

    project = times(ctx.prepared(1, transposed_weights))
    return over_time(ctx, cell, project, R.shape[2], X, bias, sequence_lens, [initial_h], direction, layout)


def gru_biases(size: int, linear_before_reset: int, B: mx.array) -> tuple[mx.array, mx.array | int]:
    """What is added to the projected inputs, and what to the recurrent part of the candidate before it is reset."""
    of_input, of_recurrence = mx.split(B, 2, axis=1)
    if not linear_before_reset:
        return of_input + of_recurrence, 0
    of_gates, of_candidate = mx.split(of_recurrence, [2 * size], axis=1)
    return of_input + mx.pad(of_gates, [(0, 0), (0, size)]), widened(of_candidate)[:, None]


@op("LSTM", since=7, dtypes={**TYPES, "initial_c": FLOATS, "P": FLOATS})
def lstm(
    ctx,
    X,
    W,
    R,
    B=None,
    sequence_lens: Anywhere = None,
    initial_h=None,
    initial_c=None,
    P=None,
    *,
    activations=None,
    activation_alpha=(),
    activation_beta=(),
    clip=None,
    direction="forward",
    hidden_size=None,
    input_forget=0,
    layout=0,
):
    """Long short-term memory, gates in the order i, o, f, c. X: (T, N, I); Y: (T, D, N, H), Y_h and Y_c: (D, N, H).
    ONNX LSTM-22.
    """
    check_sizes(ctx, 4, direction, hidden_size, layout)
    functions = {"activations": activations, "activation_alpha": activation_alpha, "activation_beta": activation_beta}
    project, recur = (times(ctx.prepared(index, transposed_weights)) for index in (1, 2))
    settings = {"clip": clip, "direction": direction, "input_forget": input_forget, "layout": layout, **functions}
    states = [initial_h, initial_c]
    return lstm_over_time(ctx, X, R.shape[2], project, recur, B, sequence_lens, states, P, **settings)


def lstm_over_time(
    ctx: Context,
    X: mx.array,
    size: int,
    project: Callable[[mx.array], mx.array],
    recur: Callable[[mx.array], mx.array],
    B: mx.array | None,
    sequence_lens: Any,
    initial: Sequence[mx.array | None],
    P: mx.array | None,
    *,
    activations: Sequence[str] | None,
    activation_alpha: Sequence[float],
    activation_beta: Sequence[float],
    clip: float | None,
    direction: str,
    input_forget: int,
    layout: int,
) -> list[mx.array]:
    """What LSTM computes of inputs that stand where it has them.

    Args:
        size: the hidden size.
        project: the product of all inputs (D, T * N, I) with W'.
        recur: the product of a step's hidden states (D, N, H) with R'.
        initial: the hidden states and the memories before the first step, None for zeros.
    """
    activations = activations or ["Sigmoid", "Tanh", "Tanh"] * 2
    gate, squash, _ = activation_functions(direction, 3, activations, activation_alpha, activation_beta, clip)
    *_, squash_out = activation_functions(direction, 3, activations, activation_alpha, activation_beta, None)
    bias = None if B is None else ctx.prepared(3, lambda given: sum(mx.split(given, 2, axis=1)))
    peepholes = None if P is None else ctx.prepared(7, lambda given: mx.split(widened(given)[:, None], 3, axis=-1))

    def cell(projected, hidden, memory):
        for_gates, for_memory = mx.split(projected + recur(hidden), [3 * size], axis=-1)
        if peepholes is None:
            enter, leave, keep = mx.split(gate(for_gates), 3, axis=-1)
        else:
            for_input, for_output, for_forget = mx.split(for_gates, 3, axis=-1)
            enter, keep = gate(for_input + peepholes[0] * memory), gate(for_forget + peepholes[2] * memory)
        if input_forget:
            keep = 1 - enter
        memory = keep * memory + enter * squash(for_memory)
        if peepholes is not None:
            leave = gate(for_output + peepholes[1] * memory)
        return leave * squash_out(memory), memory

    return over_time(ctx, cell, project, size, X, bias, sequence_lens, initial, direction, layout)


def check_sizes(ctx: Context, gates: int, direction: str, hidden_size: int | None, layout: int) -> None:
    """Check that a node's inputs have the shapes that a cell of so many gates asks for.

    Raises:
        ValueError: one of them has another.
    """
    X, W, R, B, sequence_lens, initial_h, initial_c, P = (*ctx.inputs, *[None] * (8 - len(ctx.inputs)))
    check_shape("X", X, [None] * 3)
    directions, batch, size = len(REVERSED[direction]), X.shape[0 if layout else 1], R.shape[-1]
    check_shape("R", R, [directions, gates * size, size if hidden_size is None else hidden_size])
    check_shape("W", W, [directions, gates * size, X.shape[2]])
    check_shape("B", B, [directions, 2 * gates * size])
    check_shape("sequence_lens", sequence_lens, [batch])
    for name, state in (("initial_h", initial_h), ("initial_c", initial_c)):
        check_shape(name, state, [batch, directions, size] if layout else [directions, batch, size])
    check_shape("P", P, [directions, 3 * size])


def over_time(
    ctx: Context,
    cell: Callable[..., tuple[mx.array, ...]],
    project: Callable[[mx.array], mx.array],
    size: int,
    X: mx.array,
    bias: mx.array | None,
    sequence_lens: Any,
    initial: Sequence[mx.array | None],
    direction: str,
    layout: int,
) -> list[mx.array]:
    """Run `cell` over the steps of X, in float32 at least.

    Args:
        cell: takes one step's projected inputs (D, N, gates * H) and the states, each (D, N, H); returns the new
            states, the hidden one first.
        project: makes (D, T * N, gates * H) of the inputs of all steps (D, T * N, I).
        size: H.
        bias: (D, gates * H), added to the projected inputs.
        initial: the states before the first step, in the node's layout; None for zeros.

    Returns:
        The hidden states of all steps, then each final state, in the node's layout and element type.
    """
    backward = REVERSED[direction]
    if layout:
        X = mx.swapaxes(X, 0, 1)
    steps, batch = X.shape[:2]
    lengths = lengths_or_none(ctx, sequence_lens, steps)
    reversed_order = None if lengths is None else order_of_reversal(lengths, steps)
    each_direction = mx.stack([reverse(X, reversed_order) if back else X for back in backward])
    flat = mx.reshape(widened(each_direction), (len(backward), steps * batch, X.shape[2]))
    projected = project(flat)
    if bias is not None:
        projected = projected + widened(bias)[:, None]
    projected = mx.reshape(projected, (len(backward), steps, batch, projected.shape[2]))

    shape = (len(backward), batch, size)
    states = [
        mx.zeros(shape, projected.dtype) if each is None else widened(mx.swapaxes(each, 0, 1) if layout else each)
        for each in initial
    ]
    last = states[0]  # as it came out: 0 after a sequence's end, where what a cell makes of it counts for nothing
    if lengths is not None or not steps:  # the final state of an empty sequence is zero, as in ONNX Runtime
        states = [mx.where(False if lengths is None else (lengths > 0)[:, None], each, 0) for each in states]
    hidden = []
    for step in range(steps):
        new = cell(projected[:, step], last, *states[1:])
        last = new[0]
        if lengths is not None:
            running = (lengths > step)[:, None]
            last = mx.where(running, last, 0)
            new = [mx.where(running, *each) for each in zip(new, states, strict=True)]
        hidden.append(last)
        states = list(new)
    outputs = mx.stack(hidden, axis=1) if hidden else mx.zeros((shape[0], 0, *shape[1:]), projected.dtype)
    in_order = [reverse(each, reversed_order) if back else each for each, back in zip(outputs, backward, strict=True)]
    sequence = mx.stack(in_order, axis=2 if layout else 1)
    if layout:
        sequence = mx.swapaxes(sequence, 0, 1)
        states = [mx.swapaxes(each, 0, 1) for each in states]
    return [each.astype(X.dtype) for each in (sequence, *states)]


def lengths_or_none(ctx: Context, sequence_lens: Any, steps: int) -> mx.array | None:
    """The lengths (N) of the sequences, None where all are known to go through all steps."""
    if sequence_lens is None or (isinstance(sequence_lens, np.ndarray) and (sequence_lens == steps).all()):
        return None
    return between(ctx, sequence_lens, 0, steps, "sequence_lens")


def order_of_reversal(lengths: mx.array, steps: int) -> mx.array:
    """Where each step (T, N, 1) of a reversed sequence is found: its padding stays at its end."""
    step = mx.arange(steps, dtype=lengths.dtype)[:, None]
    return mx.where(step < lengths, lengths - 1 - step, step)[..., None]


def reverse(array: mx.array, order: mx.array | None) -> mx.array:
    """`array` (T, N, ...) with the steps of each sequence reversed; reversing twice gives it back."""
    return array[::-1] if order is None else mx.take_along_axis(array, order, axis=0)


def transposed_weights(weights: mx.array) -> mx.array:
    """(D, gates * H, I) as (D, I, gates * H)."""
    return mx.contiguous(mx.swapaxes(widened(weights), 1, 2))


def times(weights: mx.array) -> Callable[[mx.array], mx.array]:
    """The product of (D, M, I) with weights (D, I, gates * H)."""
    return lambda x: x @ weights


def activation_functions(
    direction: str,
    count: int,
    names: Sequence[str],
    alphas: Sequence[float],
    betas: Sequence[float],
    clip: float | None,
) -> list[Callable[[mx.array], mx.array]]:
    """The `count` activation functions of a cell, on arrays with one part for each direction along axis 0."""
    chosen = chosen_activations(names[: count * len(REVERSED[direction])], alphas, betas)
    return [partial(activate, chosen[first::count], clip) for first in range(count)]


def chosen_activations(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
) -> list[tuple[str, dict[str, float | None]]]:
    """Each activation's name and parameters; only those that have an alpha or beta take the next of the node's."""
    given = {"alpha": iter(alphas), "beta": iter(betas)}
    return [
        (name.lower(), {key: next(given[key], default) for key, default in ACTIVATIONS[name.lower()][1].items()})
        for name in names
    ]


def activate(chosen: Sequence[tuple[str, dict[str, Any]]], clip: float | None, x: mx.array) -> mx.array:
    """Apply each direction's own activation to its part of `x`, or the one that all share to the whole."""
    if clip is not None:
        x = mx.clip(x, -clip, clip)
    if any(each != chosen[0] for each in chosen):
        parts = mx.split(x, len(chosen))
        return mx.concatenate([activate([each], None, part) for each, part in zip(chosen, parts, strict=True)])
    name, parameters = chosen[0]
    return ACTIVATIONS[name][0](x, **parameters)


def claim_activations(count: int, node: Node) -> None:
    """Decline activations that no formula is known for."""
    direction = node.attributes.get("direction", "forward")
    node.require(direction in REVERSED, f"direction {direction!r} is none that ONNX knows")
    clip = node.attributes.get("clip", 1.0)
    node.require(clip > 0, f"clip is {clip}, and must be positive")
    names = node.attributes.get("activations")
    if names is None:
        return
    for name in names:
        node.require(name.lower() in ACTIVATIONS, f"activation {name} is none that ONNX lists")
    wanted = count * len(REVERSED[direction])
    fits = len(names) == wanted or (count, len(names)) == (1, 2)  # the default of RNN is for two directions
    node.require(fits, f"activations holds {len(names)} names; direction {direction} needs {wanted}")
    alphas, betas = (node.attributes.get(name, ()) for name in ("activation_alpha", "activation_beta"))
    for name, parameters in chosen_activations(names[:wanted], alphas, betas):
        missing = " and ".join(f"activation_{key}" for key, value in parameters.items() if value is None)
        node.require(not missing, f"activation {name} has no default: state {missing}")


for handler, count in ((rnn, 1), (gru, 2), (lstm, 3)):
    handler.condition(partial(claim_activations, count))
    handler.condition(flags("input_forget", "layout", "linear_before_reset"))
del handler, count
