"""Graph breaks: where a subgraph must stop, read what it has computed so far, and go on.

A translator that wants the elements of an input on the host (`Host`) gets them without a break where they are constant,
come in with the subgraph's inputs, or are arithmetic on such values and on shapes, which the engine does in NumPy. What
only the device has computed must be read back first. This follows the engine's own rules (`engine.program`) and runs
nothing but, on stand-in inputs, one node of each kind whose results may be on either side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A value that a subgraph must read back from the device before it can go on.

    Attributes:
        node, operator: the node that needs it.
        input: the input that it needs it for, by the name that the handler gives it; or what in a body it is.
        tensor: the value.
        made_by: the node that computes it; None where it comes into a body from outside.
        subgraph: the number of the subgraph.
    """

    node: str
    operator: str
    input: str
    tensor: str
    made_by: str | None
    subgraph: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A graph break of some cluster: what `GraphBreak` holds, but for the number of the subgraph."""

    node: Node
    input: str
    value: Value
    made_by: Node | None

    def in_subgraph(self, number: int) -> GraphBreak:
        made_by = None if self.made_by is None else self.made_by.label
        return GraphBreak(self.node.label, self.node.operator, self.input, self.value.name, made_by, number)


def readings_of(decisions: Decisions) -> tuple[tuple[Reading, ...], ...]:
    """The graph breaks of each cluster, in the order in which it runs into them. The graph's constants are read."""
    finder = _Finder(decisions.graph, decisions.device)
    return tuple(
        tuple(finder.cluster([decisions.decisions[index] for index in cluster])) for cluster in decisions.clusters
    )


class _Finder:
    def __init__(self, graph: Graph, device: str) -> None:
        self.graph = graph
        self.device = device
        self._gives_host: dict[tuple[object, tuple[bool, ...]], bool] = {}

    def cluster(self, decisions: Sequence[Decision]) -> list[Reading]:
        """The graph breaks of one cluster. What comes in from outside is on the host, where ONNX Runtime has it."""
        wanted = _wanted(decisions, ())
        if not wanted and not any(decision.inner for decision in decisions):
            return []
        return _Scope(self, decisions, wanted, {}, outside=True).run()

    def gives_host_arrays(self, node: Node, candidate: Candidate, on_host: tuple[bool, ...]) -> bool:
        """True where a handler that does not run in NumPy gives its results in NumPy arrays all the same, as Shape
        does. Nodes of one handler with inputs on the same sides are taken to be alike."""
        places = [candidate.place(index) for index in range(len(node.inputs))]
        if all(place is Place.DEVICE for place in places):
            return False
        key = (candidate.handler, on_host)
        if key not in self._gives_host:
            found = _tried(node, candidate, places, on_host, self.device)
            if found is None:
                return False
            self._gives_host[key] = found
        return self._gives_host[key]


class _Scope:
    """A cluster or a body, followed in the order in which it runs.

    `on_host` says of values around it, and of a body's formal inputs, whether they are on the host; `outside` holds for
    all that is not listed.
    """

    def __init__(
        self,
        finder: _Finder,
        decisions: Sequence[Decision],
        wanted: set[str],
        on_host: Mapping[str, bool],
        *,
        outside: bool,
    ) -> None:
        self.finder = finder
        self.decisions = decisions
        self.wanted = wanted
        self.on_host = dict(on_host)
        self.outside = outside
        self.made_by: dict[str, Node] = {}
        self.found: list[Reading] = []

    def run(self) -> list[Reading]:
        for decision in self.decisions:
            if decision.candidate is not None:
                self._step(decision, decision.candidate)
        return self.found

    def is_on_host(self, value: Value, graph: Graph) -> bool:
        if value.name in self.on_host:
            return self.on_host[value.name]
        if value.dtype == "bfloat16":
            return False
        if _is_constant(value, graph):
            return value.name in self.wanted or _may_have(value, SMALL)
        return self.outside

    def _step(self, decision: Decision, candidate: Candidate) -> None:
        node = decision.node
        sides = tuple(value is None or self.is_on_host(value, node.graph) for value in node.inputs)
        if self._stays_on_host(node, candidate, sides):
            given = [True] * len(node.outputs)
        else:
            for index, (value, side) in enumerate(zip(node.inputs, sides, strict=True)):
                if value is not None and not side and candidate.place(index) is Place.HOST:
                    self._read_back(node, _input_name(candidate, index), value)
            if node.bodies:
                given = self._through_bodies(decision)
            else:
                sides = tuple(value is None or self.is_on_host(value, node.graph) for value in node.inputs)
                given = [self.finder.gives_host_arrays(node, candidate, sides)] * len(node.outputs)
        for value, side in zip(node.outputs, given, strict=True):
            if value is not None:
                self.made_by[value.name] = node
                self.on_host[value.name] = side and value.dtype != "bfloat16"

    def _read_back(self, node: Node, what: str, value: Value) -> None:
        if not _is_constant(value, node.graph):  # a constant is read from the device too, but has no wait in it
            self.found.append(Reading(node, what, value, self.made_by.get(value.name)))
        self.on_host[value.name] = value.dtype != "bfloat16"

    def _stays_on_host(self, node: Node, candidate: Candidate, sides: Sequence[bool]) -> bool:
        """As `Program._stays_on_host`, with sizes as far as they are known."""
        form = candidate.host_form
        given = [value for value in node.inputs if value is not None]
        if form is None or not given or not all(sides):
            return False
        if any(value is not None and value.name in self.wanted for value in node.outputs):
            return _all_have(given, LARGE)
        computed = [value.name in self.made_by for value in given]
        inner = all(made or _is_constant(value, node.graph) for made, value in zip(computed, given, strict=True))
        return not form.expands and any(computed) and inner and _all_have(given, SMALL)

    def _through_bodies(self, decision: Decision) -> list[bool]:
        """Follow each body of a node; which of the node's outputs are on the host when it is done."""
        node = decision.node
        given = [True] * len(node.outputs)
        for body, inner in bodies_of(decision):
            conditions = max(len(body.outputs) - len(node.outputs), 0)  # Loop's body gives one output more than Loop
            formals = self._formals(node, body)
            while True:
                around = {**self.on_host, **formals}
                scope = _Scope(self.finder, inner, _wanted(inner, body.outputs), around, outside=self.outside)
                found = scope.run()
                results = [scope.is_on_host(value, body) for value in body.outputs]
                changed = {  # what a turn gives, the next turn takes
                    formal.name
                    for formal, side in zip(body.inputs[2 * conditions :], results[conditions:], strict=False)
                    if formals.get(formal.name) and not side
                }
                if not changed:
                    break
                formals.update(dict.fromkeys(changed, False))
            self.found += found
            for value, side in zip(body.outputs[:conditions], results, strict=False):
                if not side:
                    self.found.append(Reading(node, CONDITION, value, scope.made_by.get(value.name)))
            given = [mine and theirs for mine, theirs in zip(given, results[conditions:], strict=False)]
        return given + [False] * (len(node.outputs) - len(given))

    def _formals(self, node: Node, body: Graph) -> dict[str, bool]:
        """The sides of a body's formal inputs: those of the node's inputs, the last of which it takes."""
        taken = list(node.inputs)[max(len(node.inputs) - len(body.inputs), 0) :]
        taken += [None] * (len(body.inputs) - len(taken))
        return {
            formal.name: value is None or self.is_on_host(value, node.graph)
            for formal, value in zip(body.inputs, taken, strict=True)
        }


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
    node: Node, candidate: Candidate, places: Sequence[Place], on_host: Sequence[bool], device: str
) -> bool | None:
    """Whether a handler gives NumPy arrays for inputs on these sides; None where it cannot be tried."""
    try:
        with lane(device):
            inputs = [_stand_in(node, *each) for each in zip(range(len(places)), places, on_host, strict=True)]
            constant = [node.is_constant(index) for index in range(len(inputs))]
            context = Context(
                node, inputs, device=device, cache={}, constant=constant, bodies={}, random_key=lambda: mx.random.key(0)
            )
            results = candidate.translate(ctx=context, node=node) or ()
            return bool(results) and not any(isinstance(each, mx.array) for each in results)
    except KeyboardInterrupt:
        raise
    except BaseException:  # whatever a pack raises: a run's own values may suit it
        return None


def _stand_in(node: Node, index: int, place: Place, on_host: bool) -> Any:
    value = node.inputs[index]
    if value is None:
        return None
    constant = node.constant(index) if place is Place.HOST else None
    if constant is not None:
        return host_from_storage(constant, value.dtype)
    shape = [dim if isinstance(dim, int) else 1 for dim in value.shape or ()]
    dtype = value.dtype or "float32"
    if place is Place.HOST or (on_host and place is Place.ANYWHERE):
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


def _all_have(values: Iterable[Value], elements: int) -> bool:
    """True where values hold no more elements in all. Of unknown size, integers are taken for shapes, others not."""
    total = 0
    for value in values:
        if value.static_shape is not None:
            total += prod(value.static_shape)
        elif value.dtype not in INTEGERS:
            return False
    return total <= elements
