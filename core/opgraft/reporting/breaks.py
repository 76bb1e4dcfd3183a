"""Graph breaks: where a subgraph must stop, read what it has computed so far, and go on.

A translator that wants the elements of an input on the host (`Host`) gets them without a break where they are constant,
come in with the subgraph's inputs, or are arithmetic on such values and on shapes, which the engine does in NumPy. What
only the device has computed must be read back first. This follows the engine's own rules (`engine.program`) and runs
nothing but, on stand-in inputs, one node of each kind whose results may be on either side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.claims import Decision, Decisions
from opgraft.engine.lanes import lane
from opgraft.engine.program import LARGE, SMALL
from opgraft.graph import Graph, Node, Value
from opgraft.graph.element_types import HELD_AS, INTEGERS
from opgraft.ops import Handler
from opgraft.ops.arrays import HELD_TYPE, host_from_storage
from opgraft.ops.context import Context
from opgraft.ops.handler import Place
from opgraft.registry import Candidate

CONDITION = "the condition that its body computes"

_MOST_TRIED = 1 << 24
"""Values with more elements are not made to find out where a handler leaves its results."""


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A value that a subgraph must read back from the device before it can go on.

    Attributes:
        node, operator: the node that needs it.
        input: the input that it needs it for, by the name that the handler gives it; or what in a body it is.
        tensor: the value.
        made_by: the node that computes it; None where it comes into a body from outside.
        certain: False where a run with few elements would need no break; their number is not known here.
        subgraph: the number of the subgraph.
    """

    node: str
    operator: str
    input: str
    tensor: str
    made_by: str | None
    certain: bool
    subgraph: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A graph break of some cluster: what `GraphBreak` holds, but for the number of the subgraph."""

    node: Node
    input: str
    value: Value
    made_by: Node | None
    certain: bool

    def in_subgraph(self, number: int) -> GraphBreak:
        made_by = None if self.made_by is None else self.made_by.label
        node, value = self.node, self.value
        return GraphBreak(node.label, node.operator, self.input, value.name, made_by, self.certain, number)


def readings_of(decisions: Decisions) -> tuple[tuple[Reading, ...], ...]:
    """The graph breaks of each cluster, in the order in which it runs into them. The graph's constants are read."""
    finder = _Finder(decisions.graph, decisions.device)
    return tuple(
        tuple(finder.cluster([decisions.decisions[index] for index in cluster])) for cluster in decisions.clusters
    )


class Side(IntEnum):
    """Where a value is. What depends on sizes that only a run brings is on the host where they are small."""

    DEVICE = 0
    EITHER = 1
    HOST = 2


class _Finder:
    def __init__(self, graph: Graph, device: str) -> None:
        self.graph = graph
        self.device = device
        self._sides: dict[tuple[object, tuple[Side, ...]], Side] = {}

    def cluster(self, decisions: Sequence[Decision]) -> list[Reading]:
        """The graph breaks of one cluster."""
        wanted = _wanted(decisions, ())
        if not wanted and not any(decision.inner for decision in decisions):
            return []
        return _Scope(self, decisions, wanted, {}).run()

    def side_of_results(self, node: Node, candidate: Candidate, sides: Sequence[Side]) -> Side:
        """Where a handler that does not run in NumPy leaves its results: Shape gives NumPy arrays all the same, and
        Split what it was given. Nodes of one handler with inputs on the same sides are taken to be alike."""
        places = [candidate.place(index) for index in range(len(node.inputs))]
        if all(place is Place.DEVICE for place in places):
            return Side.DEVICE
        key = (candidate.handler, tuple(sides))
        if key not in self._sides:
            found = _tried(node, candidate, places, sides, self.device)
            if found is None:
                return Side.DEVICE
            self._sides[key] = found
        return self._sides[key]


class _Scope:
    """A cluster or a body, followed in the order in which it runs.

    `sides` says where values around it and a body's formal inputs are. What it does not list comes in from outside the
    cluster, and is on the host, where ONNX Runtime has it.
    """

    def __init__(
        self, finder: _Finder, decisions: Sequence[Decision], wanted: set[str], sides: Mapping[str, Side]
    ) -> None:
        self.finder = finder
        self.decisions = decisions
        self.wanted = wanted
        self.sides = dict(sides)
        self.made_by: dict[str, Node] = {}
        self.found: list[Reading] = []

    def run(self) -> list[Reading]:
        for decision in self.decisions:
            if decision.candidate is not None:
                self._step(decision, decision.candidate)
        return self.found

    def side(self, value: Value | None, graph: Graph) -> Side:
        """Where a value is that is read in `graph`; None stands for one that is absent."""
        if value is None:
            return Side.HOST
        if value.name in self.sides:
            return self.sides[value.name]
        kept = not _is_constant(value, graph) or value.name in self.wanted or _may_have(value, SMALL)
        return Side.HOST if kept and value.dtype != "bfloat16" else Side.DEVICE

    def _step(self, decision: Decision, candidate: Candidate) -> None:
        node = decision.node
        sides = [self.side(value, node.graph) for value in node.inputs]
        made = self._in_numpy(node, candidate, sides)
        if made is not Side.HOST:
            for index, (value, side) in enumerate(zip(node.inputs, sides, strict=True)):
                if value is not None and side is not Side.HOST and candidate.place(index) is Place.HOST:
                    self._read_back(node, _input_name(candidate, index), value, side)
        given = [made] * len(node.outputs)
        if node.bodies:
            given = self._through_bodies(decision)
        elif made is Side.DEVICE:
            sides = [self.side(value, node.graph) for value in node.inputs]
            given = [self.finder.side_of_results(node, candidate, sides)] * len(node.outputs)
        for value, side in zip(node.outputs, given, strict=True):
            if value is not None:
                self.made_by[value.name] = node
                self.sides[value.name] = Side.DEVICE if value.dtype == "bfloat16" else side

    def _read_back(self, node: Node, what: str, value: Value, side: Side) -> None:
        if not _is_constant(value, node.graph):  # what a constant is read from was computed long ago
            self.found.append(Reading(node, what, value, self.made_by.get(value.name), side is Side.DEVICE))
        self.sides[value.name] = Side.DEVICE if value.dtype == "bfloat16" else Side.HOST

    def _in_numpy(self, node: Node, candidate: Candidate, sides: Sequence[Side]) -> Side:
        """Whether a node runs in NumPy, as `Program._stays_on_host` has it with the sizes of a run: the host, if so."""
        form = candidate.host_form
        given = [value for value in node.inputs if value is not None]
        lowest = min(sides, default=Side.DEVICE)
        if form is None or not given or lowest is Side.DEVICE:
            return Side.DEVICE
        if any(value is not None and value.name in self.wanted for value in node.outputs):
            return min(lowest, _has(given, LARGE))
        computed = [value.name in self.made_by for value in given]
        inner = all(made or _is_constant(value, node.graph) for made, value in zip(computed, given, strict=True))
        goes_on = not form.expands and any(computed) and inner and _has(given, SMALL) is Side.HOST
        return lowest if goes_on else Side.DEVICE

    def _through_bodies(self, decision: Decision) -> list[Side]:
        """Follow each body of a node; where the node's outputs are when it is done."""
        node = decision.node
        given = [Side.HOST] * len(node.outputs)
        for body, inner in bodies_of(decision):
            conditions = max(len(body.outputs) - len(node.outputs), 0)  # Loop's body gives one output more than Loop
            formals = self._formals(node, body)
            while True:
                scope = _Scope(self.finder, inner, _wanted(inner, body.outputs), {**self.sides, **formals})
                found = scope.run()
                results = [scope.side(value, body) for value in body.outputs]
                next_turn = {  # what a turn gives, the next turn takes
                    formal.name: min(formals[formal.name], side)
                    for formal, side in zip(body.inputs[2 * conditions :], results[conditions:], strict=False)
                }
                if next_turn.items() <= formals.items():
                    break
                formals.update(next_turn)
            self.found += found
            for value, side in zip(body.outputs[:conditions], results, strict=False):
                if side is not Side.HOST:
                    made_by = scope.made_by.get(value.name)
                    self.found.append(Reading(node, CONDITION, value, made_by, side is Side.DEVICE))
            ends = [*results[conditions:], *given]  # a body that gives too little fails before anything is read
            given = [min(both) for both in zip(given, ends, strict=False)]
        return given

    def _formals(self, node: Node, body: Graph) -> dict[str, Side]:
        """Where a body's formal inputs are: where the node's inputs are, the last of which it takes."""
        taken = list(node.inputs)[max(len(node.inputs) - len(body.inputs), 0) :]
        taken += [None] * (len(body.inputs) - len(taken))
        return {formal.name: self.side(value, node.graph) for formal, value in zip(body.inputs, taken, strict=True)}


def bodies_of(decision: Decision) -> Iterator[tuple[Graph, Sequence[Decision]]]:
    """The bodies of a claimed node, each with what was decided about its nodes."""
    rest = iter(decision.inner)
    for body in decision.node.bodies.values():
        yield body, [next(rest) for _ in body.nodes]


def _wanted(decisions: Sequence[Decision], outputs: Iterable[Value]) -> set[str]:
    """As `Program._wanted_on_host`, by name: what somebody needs on the host, directly or through arithmetic."""
    wanted = {
        value.name for value in outputs if value.dtype in ("bool", "int64", "int32") and value.rank in (0, 1, None)
    }
    for decision in reversed(decisions):
        node, candidate = decision.node, decision.candidate
        if candidate is None:
            continue
        passed_on = candidate.host_form is not None and any(
            value is not None and value.name in wanted for value in node.outputs
        )
        for index, value in enumerate(node.inputs):
            if value is not None and (candidate.place(index) is Place.HOST or (passed_on and _may_have(value, LARGE))):
                wanted.add(value.name)
        for body, inner in bodies_of(decision):
            wanted |= _wanted(inner, body.outputs) - body.own_names
    return wanted


def _tried(
    node: Node, candidate: Candidate, places: Sequence[Place], sides: Sequence[Side], device: str
) -> Side | None:
    """Where a handler leaves its results for inputs on these sides; None where it cannot be tried."""
    try:
        with lane(device):
            inputs = [_stand_in(node, *each) for each in zip(range(len(places)), places, sides, strict=True)]
            constant = [node.is_constant(index) for index in range(len(inputs))]
            context = Context(
                node, inputs, device=device, cache={}, constant=constant, bodies={}, random_key=lambda: mx.random.key(0)
            )
            results = candidate.translate(ctx=context, node=node) or ()
            return Side.DEVICE if any(isinstance(each, mx.array) for each in results) else Side.HOST
    except KeyboardInterrupt:
        raise
    except BaseException:  # whatever a pack raises: a run's own values may suit it
        return None


def _stand_in(node: Node, index: int, place: Place, side: Side) -> Any:
    value = node.inputs[index]
    if value is None:
        return None
    constant = node.constant(index) if place is Place.HOST else None
    if constant is not None:
        return host_from_storage(constant, value.dtype)
    shape = [dim if isinstance(dim, int) else 1 for dim in value.shape or ()]
    if prod(shape) > _MOST_TRIED:
        raise ValueError(f"{value.name!r} is too large to be stood in for")
    dtype = value.dtype or "float32"
    if place is Place.HOST or (side is Side.HOST and place is Place.ANYWHERE):
        return np.ones(shape, HELD_AS[dtype])
    return mx.ones(shape, HELD_TYPE[dtype])


def _is_constant(value: Value, graph: Graph) -> bool:
    initializer = graph.find_initializer(value.name)
    return initializer is not None and initializer.constant


def _input_name(candidate: Candidate, index: int) -> str:
    handler = candidate.handler
    parameter = handler.signature.input(index) if isinstance(handler, Handler) else None
    return f"input {index}" if parameter is None else parameter.name


def _may_have(value: Value, elements: int) -> bool:
    """False for a value that is known to have more elements."""
    return value.static_shape is None or prod(value.static_shape) <= elements


def _has(values: Iterable[Value], elements: int) -> Side:
    """The host where values hold no more elements in all. Integers of unknown size are taken for shapes, and small."""
    total, unknown = 0, False
    for value in values:
        if value.static_shape is not None:
            total += prod(value.static_shape)
        else:
            unknown |= value.dtype not in INTEGERS
    if total > elements:
        return Side.DEVICE
    return Side.EITHER if unknown else Side.HOST
