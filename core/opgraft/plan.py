"""The plan of one fused subgraph: immutable, free of names, and the same whatever source the graph came from.

Every value of a plan has a slot. The slots are, in this order: the inputs, the captures (a body's view of the values
around it), the constants, and what the steps produce. A step reads slots and fills slots; a body is a plan of its own
whose captures are filled from slots of the plan around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from opgraft.errors import ModelError
from opgraft.graph import Graph, Initializer, Node, Value, topologically_sorted

ABSENT = -1
"""The slot of an optional input that is not there, or of an output that nobody wants."""


class Origin(Enum):
    """Where the value in a slot comes from."""

    INPUT = "input"
    CAPTURE = "capture"
    CONSTANT = "constant"
    STEP = "step"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """A control-flow body of a step: its plan, and the slots around it that fill its captures, in order."""

    plan: Plan
    captured: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One node: the slots it reads (ABSENT for a missing input), the slots it fills, and its bodies by attribute."""

    node: Node
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    bodies: Mapping[str, BodyPlan]

    @property
    def captured(self) -> tuple[int, ...]:
        """The slots that its bodies capture."""
        return tuple(slot for body in self.bodies.values() for slot in body.captured)


@dataclass(frozen=True, slots=True)
class Plan:
    """One fused subgraph or body; see the module's docstring for the slots."""

    name: str
    inputs: tuple[Value, ...]
    captures: tuple[Value, ...]
    constants: tuple[Initializer, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    values: tuple[Value, ...]
    """The value in each slot."""

    @property
    def output_values(self) -> tuple[Value, ...]:
        return tuple(self.values[slot] for slot in self.outputs)

    def origin(self, slot: int) -> Origin:
        """Where the value of `slot` comes from."""
        if slot == ABSENT:
            return Origin.ABSENT
        for origin, count in (
            (Origin.INPUT, len(self.inputs)),
            (Origin.CAPTURE, len(self.captures)),
            (Origin.CONSTANT, len(self.constants)),
        ):
            if slot < count:
                return origin
            slot -= count
        return Origin.STEP

    @property
    def first_constant(self) -> int:
        return len(self.inputs) + len(self.captures)

    def all_steps(self) -> Iterator[Step]:
        """The steps of this plan and of its bodies, all the way down."""
        for step in self.steps:
            yield step
            for body in step.bodies.values():
                yield from body.plan.all_steps()


def build_plan(graph: Graph, inputs: Sequence[str] | None = None, outputs: Sequence[str] | None = None) -> Plan:
    """The plan of a whole graph.

    Args:
        graph: the graph; its constant initializers become the plan's constants.
        inputs: names of the plan's inputs in the caller's order. Default: the graph's own inputs that no constant
            initializer fixes.
        outputs: names of its outputs in the caller's order. Default: the graph's own.

    Raises:
        ModelError: a node reads a name that nothing defines, or the nodes form a cycle.
    """
    read = (value for node in graph.nodes for value in node.inputs if value is not None)
    by_name = {value.name: value for value in (*read, *graph.inputs, *graph.outputs)}
    if inputs is None:
        inputs = [value.name for value in graph.inputs if not _is_constant(graph, value.name)]
    formals = [by_name.get(name, Value(name)) for name in inputs]
    scope = _Scope(graph, formals, None)
    return scope.plan([value.name for value in graph.outputs] if outputs is None else outputs)


def _is_constant(graph: Graph, name: str) -> bool:
    initializer = graph.initializers.get(name)
    return initializer is not None and initializer.constant


class _Scope:
    """The names of one graph while its plan is built.

    A name means, in this order: what the graph itself takes in, produces or carries, then what the scope around it
    means by it. Slots are numbered last, since captures and constants are found while steps are read.
    """

    def __init__(self, graph: Graph, formals: Sequence[Value], parent: _Scope | None) -> None:
        self.graph = graph
        self.parent = parent
        self.formals = {value.name: value for value in formals}
        self.captures: dict[str, Value] = {}
        self.constants: dict[str, Initializer] = {}
        self.produced: dict[str, Value] = {}

    def resolve(self, name: str) -> Value | Initializer | None:
        """The runtime value or the constant that `name` means in this scope."""
        if name in self.produced:
            return self.produced[name]
        if name in self.formals:
            return self.formals[name]
        if name in self.graph.initializers:
            return self.graph.initializers[name]
        return None if self.parent is None else self.parent.resolve(name)

    def use(self, name: str) -> str:
        """Note that this scope reads `name`: outer values become captures, and constants are carried along."""
        if name in self.produced or name in self.formals:
            return name
        meaning = self.resolve(name)
        if meaning is None:
            raise ModelError(f"graph {self.graph.name!r} reads {name!r}, which nothing defines")
        if isinstance(meaning, Initializer):
            self.constants[name] = meaning
        else:
            self.captures[name] = meaning
        return name

    def plan(self, outputs: Sequence[str]) -> Plan:
        read: list[tuple[Node, list[str | None], dict[str, _Scope], dict[str, Plan]]] = []
        for node in topologically_sorted(self.graph.nodes):
            names = [None if value is None else self.use(value.name) for value in node.inputs]
            scopes: dict[str, _Scope] = {}
            plans: dict[str, Plan] = {}
            for attribute, body in node.bodies.items():
                inner = _Scope(body, body.inputs, self)
                plans[attribute] = inner.plan([value.name for value in body.outputs])
                scopes[attribute] = inner
                for captured in inner.captures:
                    self.use(captured)
            for value in node.outputs:
                if value is not None:
                    self.produced[value.name] = value
            read.append((node, names, scopes, plans))
        for name in outputs:
            self.use(name)

        values: list[Value] = []
        slots: dict[str, int] = {}
        carried = {name: constant.value for name, constant in self.constants.items()}
        for group in (self.formals, self.captures, carried, self.produced):
            for name, value in group.items():
                slots[name] = len(values)
                values.append(value)

        def slot(name: str | None) -> int:
            return ABSENT if name is None else slots[name]

        steps = tuple(
            Step(
                node,
                tuple(slot(name) for name in names),
                tuple(ABSENT if value is None else slots[value.name] for value in node.outputs[: node.needed_outputs]),
                {
                    attribute: BodyPlan(plans[attribute], tuple(slots[name] for name in scope.captures))
                    for attribute, scope in scopes.items()
                },
            )
            for node, names, scopes, plans in read
        )
        return Plan(
            name=self.graph.name,
            inputs=tuple(self.formals.values()),
            captures=tuple(self.captures.values()),
            constants=tuple(self.constants.values()),
            steps=steps,
            outputs=tuple(slots[name] for name in outputs),
            values=tuple(values),
        )
