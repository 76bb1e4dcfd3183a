"""If, Loop and Scan.

Counters, conditions and whatever else a body computes of them are NumPy arrays wherever their values are known on the
host, so that going round a loop reads nothing from the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.ops import HELD, Anywhere, Host, Node, Tensors, Value, op, to_device, to_host
from opgraft.ops.arrays import HELD_TYPE

TRIPS_BETWEEN_EVALUATIONS = 16
"""After so many trips what a loop has made so far is computed, so that MLX's graph stays small over thousands."""


def require_bodies(node: Node, names: Sequence[str], inputs: int, outputs: int) -> None:
    """Decline a node whose bodies do not take so many values each, or give fewer.

    A file may say what it likes; ONNX Runtime looks only once a session is made of it.
    """
    for name in names:
        body = node.bodies.get(name)
        node.require(body is not None, f"{name} is no graph")
        if body is not None:
            taken, given = len(body.inputs), len(body.outputs)
            node.require(taken == inputs, f"{name} takes {taken} inputs, and the node brings {inputs}")
            node.require(given >= outputs, f"{name} gives {given} outputs, and the node needs {outputs}")


@op("If", dtypes=HELD)
def if_(cond: Host, *, then_branch, else_branch) -> tuple[Any | Tensors, ...]:
    """The outputs of one branch. cond: a single boolean. ONNX If-25."""
    return then_branch() if cond.item() else else_branch()


@if_.condition
def _(node: Node):
    require_bodies(node, ("then_branch", "else_branch"), 0, node.needed_outputs)


@op("Loop", dtypes=HELD)
def loop(ctx, M: Host = None, cond: Host = None, *v_initial: Anywhere | Tensors, body) -> tuple[Any | Tensors, ...]:
    """Run the body at most M times and while its first output holds; the final states, then each scan output stacked.

    M: a single int64; cond: a single boolean. A body ends its loop by its first output whether or not `cond` is given,
    as in ONNX Runtime. ONNX Loop-25.
    """
    graph = ctx.node.bodies["body"]
    one_number = [[1] * (value.rank or 0) for value in graph.inputs[:2]]  # some bodies take them as a vector of one
    trips = None if M is None else int(M.item())
    go_on = cond is None or bool(cond.item())
    states = list(v_initial)
    collected = Collected(graph.outputs[1 + len(states) :])
    trip = 0
    while go_on and (trips is None or trip < trips):
        number = np.full(one_number[0], trip, np.int64)
        condition, *results = body(number, np.full(one_number[1], go_on), *states)
        states = results[: len(states)]
        collected.add(results[len(states) :])
        go_on = bool(to_host(condition).item())
        trip += 1
        bound_graph(trip, states, collected)
    return (*states, *collected.stacked())


@loop.condition
def _(node: Node):
    states = max(len(node.inputs) - 2, 0)
    require_bodies(node, ("body",), 2 + states, 1 + max(states, node.needed_outputs))


@op("Scan", since=9, dtypes=HELD)
def scan(
    ctx,
    *initial_state_and_scan_inputs: Anywhere,
    body,
    num_scan_inputs,
    scan_input_axes=None,
    scan_input_directions=None,
    scan_output_axes=None,
    scan_output_directions=None,
):
    """Run the body over the slices of the scan inputs; the final states, then the scan outputs, stacked along their
    axes. A direction of 1 reads slices from the last to the first, or stacks so. ONNX Scan-25.
    """
    first_scan = len(initial_state_and_scan_inputs) - num_scan_inputs
    states, sequences = initial_state_and_scan_inputs[:first_scan], initial_state_and_scan_inputs[first_scan:]
    axes = scan_input_axes or [0] * num_scan_inputs
    sequences = [moved_axis(each, axis, 0) for each, axis in zip(sequences, axes, strict=True)]
    states, collected = scanned(body, ctx.node.bodies["body"].outputs, states, sequences, scan_input_directions)
    stacked = collected.stacked(scan_output_directions)
    axes = scan_output_axes or [0] * len(stacked)
    return (*states, *(moved_axis(each, 0, axis) for each, axis in zip(stacked, axes, strict=True)))


@op("Scan", since=8, until=8)
def scan_of_batch(
    ctx, sequence_lens: Host = None, *initial_state_and_scan_inputs: Anywhere, body, num_scan_inputs, directions=None
):
    """Scan over axis 1 of each member of a batch, padding the scan outputs with zeros. sequence_lens: (N).
    ONNX Scan-8.
    """
    given = initial_state_and_scan_inputs
    first_scan = len(given) - num_scan_inputs
    batch, longest = given[first_scan].shape[:2]
    formal = ctx.node.bodies["body"].outputs
    lengths = [longest] * batch if sequence_lens is None else sequence_lens.tolist()
    members = []
    for member, length in enumerate(lengths):
        own = [each[member] for each in given]
        sequences = [each[:length] for each in own[first_scan:]]
        states, collected = scanned(body, formal, own[:first_scan], sequences, directions)
        members.append([*states, *(padded(each, longest) for each in collected.stacked())])
    if not members:
        return (
            *given[:first_scan],
            *(zeros((0, longest, *known_sizes(value)), value) for value in formal[first_scan:]),
        )
    return [stack(column, value) for column, value in zip(zip(*members, strict=True), formal, strict=True)]


@scan.condition
@scan_of_batch.condition
def _(node: Node):
    inputs, scanned_inputs = len(node.inputs) - (node.since_version < 9), node.attributes["num_scan_inputs"]
    node.require(0 < scanned_inputs <= inputs, f"num_scan_inputs is {scanned_inputs}, and it has {inputs} to scan")
    require_bodies(node, ("body",), inputs, max(inputs - scanned_inputs, node.needed_outputs))
    lists = ("scan_input_axes", "scan_input_directions", "directions")
    for name in lists:
        given = node.attributes.get(name) or [0] * scanned_inputs
        node.require(len(given) == scanned_inputs, f"{name} are {len(given)}, for {scanned_inputs} inputs to scan")


def scanned(body, formal, states, sequences, directions) -> tuple[list[Any], Collected]:
    """Run a Scan's body over axis 0 of `sequences`.

    Returns:
        The final states, and the elements of the scan outputs.
    """
    collected = Collected(formal[len(states) :])
    length = sequences[0].shape[0]
    backward = directions or [0] * len(sequences)
    for trip in range(length):
        places = [length - 1 - trip if back else trip for back in backward]
        results = body(*states, *(each[place] for each, place in zip(sequences, places, strict=True)))
        states = list(results[: len(states)])
        collected.add(results[len(states) :])
        bound_graph(trip + 1, states, collected)
    return states, collected


class Collected:
    """The elements of a loop's scan outputs, gathered trip by trip.

    Args:
        formal: the body's outputs that give them: their types, and their shapes where there is no trip to tell.
    """

    def __init__(self, formal: Sequence[Value]) -> None:
        self.formal = formal
        self.columns: list[list[Any]] = [[] for _ in formal]

    def add(self, elements: Sequence[Any]) -> None:
        for column, element in zip(self.columns, elements, strict=True):
            column.append(element)

    def latest(self, trips: int) -> Iterator[Any]:
        for column in self.columns:
            yield from column[-trips:]

    def stacked(self, directions: Sequence[int] | None = None) -> list[Any]:
        """Each scan output along axis 0, the last element first where its direction is 1."""
        backward = directions or [0] * len(self.columns)
        return [
            stack(column[::-1] if back else column, value)
            for column, back, value in zip(self.columns, backward, self.formal, strict=True)
        ]


def bound_graph(trip: int, states: Sequence[Any], collected: Collected) -> None:
    """Every so many trips, have MLX compute the states and what was collected since."""
    if trip % TRIPS_BETWEEN_EVALUATIONS == 0:
        made = [*states, *collected.latest(TRIPS_BETWEEN_EVALUATIONS)]
        in_sequences = [array for each in made if isinstance(each, Tensors) for array in each.take_lazy()]
        mx.async_eval([each for each in made if isinstance(each, mx.array)] + in_sequences)


def stack(elements: Sequence[Any], value: Value) -> Any:
    """Elements of one shape along a new axis 0, on the host if all are there; none give an empty array."""
    if not elements:
        return zeros((0, *known_sizes(value)), value)
    if any(isinstance(each, mx.array) for each in elements):
        return mx.stack([to_device(each) for each in elements])
    return np.stack(elements)


def known_sizes(value: Value) -> list[int]:
    """The sizes that a body declares for an output, 0 where it declares none, as in ONNX Runtime."""
    return [size if isinstance(size, int) else 0 for size in value.shape or ()]


def zeros(shape: Sequence[int], value: Value) -> mx.array:
    return mx.zeros(shape, HELD_TYPE[value.dtype or "float32"])


def padded(array: Any, length: int) -> Any:
    """`array` with zeros after it along axis 0."""
    missing = [(0, length - array.shape[0]), *[(0, 0)] * (array.ndim - 1)]
    return mx.pad(array, missing) if isinstance(array, mx.array) else np.pad(array, missing)


def moved_axis(array: Any, source: int, target: int) -> Any:
    return mx.moveaxis(array, source, target) if isinstance(array, mx.array) else np.moveaxis(array, source, target)
