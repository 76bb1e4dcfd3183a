"""The graph as opgraft sees it: values, nodes and graphs, read once from a source and never changed.

Two sources build these objects: a live OrtGraph (`opgraft.host.ort_graph`) and an onnx ModelProto
(`opgraft.graph.onnx_source`). Everything above reads only what is here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TypeAlias

import numpy as np

from opgraft.errors import Decline, ModelError

Dim: TypeAlias = int | str | None
"""A dimension: its size, the name of a symbolic size, or None where nothing is known."""

Shape: TypeAlias = tuple[Dim, ...]

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


class UnreadableAttribute:
    """Stands for an attribute of a kind that no handler can take: a sparse tensor, a type, several tensors."""

    def __repr__(self) -> str:
        return "an attribute that cannot be read"


AttributeValue: TypeAlias = (
    "int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | Array | Graph | UnreadableAttribute"
)

ONNX_DOMAIN = "ai.onnx"


def normalized_domain(domain: str) -> str:
    """The domain's one name: ONNX writes its own both as '' and as 'ai.onnx'."""
    return domain or ONNX_DOMAIN


@dataclass(frozen=True, slots=True)
class Value:
    """A named value. `dtype` is None where it is unknown or the value is no tensor (`kind` then says what it is). A
    value of which nothing is known counts as a tensor."""

    name: str
    dtype: str | None = None
    shape: Shape | None = None
    kind: str = "tensor"

    def may_be(self, kind: str) -> bool:
        """True for a value of that kind, and for one of which nothing is known."""
        return self.kind == kind or (self.kind == "tensor" and self.dtype is None and self.shape is None)

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape where every dimension is a known number, otherwise None."""
        if self.shape is None:
            return None
        sizes = tuple(dim for dim in self.shape if isinstance(dim, int))
        return sizes if len(sizes) == len(self.shape) else None


@dataclass(frozen=True, slots=True)
class Initializer:
    """A value that the model carries.

    `read` gives its elements in the storage type of `element_types.STORAGE`; the array may view memory of the
    source, so whoever keeps it past the source's life copies it. `constant` is False where a caller of the model may
    override it with an input. Two initializers with the same `identity` hold the same elements.
    """

    value: Value
    read: Callable[[], Array]
    constant: bool = True
    identity: Hashable = field(default_factory=object)


@dataclass(eq=False)
class Node:
    """One operator call. Absent optional inputs and outputs are None; trailing absent inputs are dropped."""

    name: str
    op_type: str
    domain: str
    since_version: int
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value | None, ...]
    attributes: Mapping[str, AttributeValue]
    implicit_inputs: tuple[Value, ...] = ()
    """What the bodies in GRAPH attributes take from around this node."""
    graph: Graph = field(init=False, repr=False)
    """The graph that holds this node; set by that graph."""

    @property
    def operator(self) -> str:
        """`domain::OpType`, the key of a handler."""
        return f"{self.domain}::{self.op_type}"

    @property
    def label(self) -> str:
        """What a message calls this node: its name, or its operator and first output where it has none."""
        if self.name:
            return self.name
        first = next((output.name for output in self.outputs if output is not None), "?")
        return f"{self.op_type} (-> {first})"

    @property
    def bodies(self) -> dict[str, Graph]:
        """The control-flow bodies by attribute name."""
        return {name: value for name, value in self.attributes.items() if isinstance(value, Graph)}

    @property
    def needed_outputs(self) -> int:
        """How many outputs a translator must give: all up to the last one that is there."""
        return max((index for index, value in enumerate(self.outputs, 1) if value is not None), default=0)

    def wants(self, index: int) -> bool:
        """True where output `index` is there."""
        return index < len(self.outputs) and self.outputs[index] is not None

    def input(self, index: int) -> Value | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def dtype(self, index: int) -> str | None:
        """Element type of input `index`; None where it is absent or unknown."""
        value = self.input(index)
        return None if value is None else value.dtype

    def shape(self, index: int) -> Shape | None:
        """Shape of input `index`; None where it is absent or of unknown rank."""
        value = self.input(index)
        return None if value is None else value.shape

    def rank(self, index: int) -> int | None:
        """Rank of input `index`; None where it is absent or unknown."""
        value = self.input(index)
        return None if value is None else value.rank

    def is_constant(self, index: int) -> bool:
        """True where the model fixes the elements of input `index`; nothing is read to find out."""
        return self._fixed(index) is not None

    def constant(self, index: int) -> Array | None:
        """The elements of input `index` where the model fixes them, otherwise None."""
        initializer = self._fixed(index)
        return None if initializer is None else initializer.read()

    def _fixed(self, index: int) -> Initializer | None:
        value = self.input(index)
        initializer = None if value is None else self.graph.find_initializer(value.name)
        return initializer if initializer is not None and initializer.constant else None

    def require(self, condition: object, reason: str) -> None:
        """Decline this node with `reason` unless `condition` holds. For claim predicates.

        Raises:
            Decline: the condition does not hold.
        """
        if not condition:
            raise Decline(reason)


@dataclass(eq=False)
class Graph:
    """Nodes in topological order, with the values that come in, go out, and are carried along."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    initializers: Mapping[str, Initializer]
    opsets: Mapping[str, int]
    parent: Graph | None = None
    """The enclosing graph, for a control-flow body."""

    def __post_init__(self) -> None:
        for node in self.nodes:
            node.graph = self
            for body in node.bodies.values():
                body.parent = self

    @cached_property
    def own_names(self) -> frozenset[str]:
        """Every name that this graph defines: formal inputs, initializers, node outputs."""
        produced = (output.name for node in self.nodes for output in node.outputs if output is not None)
        return frozenset([*(value.name for value in self.inputs), *self.initializers, *produced])

    def find_initializer(self, name: str) -> Initializer | None:
        """The initializer that `name` means here, looking outward through enclosing graphs; None for other values."""
        graph: Graph | None = self
        while graph is not None:
            if name in graph.initializers:
                return graph.initializers[name]
            if name in graph.own_names:
                return None
            graph = graph.parent
        return None

    def all_nodes(self) -> list[Node]:
        """The nodes of this graph and, after each, those of its bodies, all the way down."""
        found: list[Node] = []
        for node in self.nodes:
            found.append(node)
            for body in node.bodies.values():
                found.extend(body.all_nodes())
        return found

    def all_initializers(self) -> list[Initializer]:
        """The initializers of this graph, then those of its bodies, all the way down."""
        inner = (body.all_initializers() for node in self.nodes for body in node.bodies.values())
        return [*self.initializers.values(), *chain.from_iterable(inner)]


def topologically_sorted(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """`nodes` so that each follows the producers of its inputs, otherwise in the order given.

    Raises:
        ModelError: the nodes form a cycle, or two of them have an output of one name.
    """
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for output in node.outputs:
            if output is not None and producer.setdefault(output.name, index) != index:
                first = nodes[producer[output.name]]
                raise ModelError(f"nodes {first.label!r} and {node.label!r} both have an output named {output.name!r}")
    consumers: list[list[int]] = [[] for _ in nodes]
    missing = [0] * len(nodes)
    for index, node in enumerate(nodes):
        needed = {value.name for value in (*node.inputs, *node.implicit_inputs) if value is not None}
        for source in {producer[name] for name in needed if name in producer}:
            consumers[source].append(index)
            missing[index] += 1
    if all(source < consumer for source, found in enumerate(consumers) for consumer in found):
        return tuple(nodes)
    ready = [index for index, count in enumerate(missing) if count == 0]
    order: list[Node] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(nodes[index])
        for consumer in consumers[index]:
            missing[consumer] -= 1
            if missing[consumer] == 0:
                heapq.heappush(ready, consumer)
    if len(order) != len(nodes):
        stuck = next(node for node, count in zip(nodes, missing, strict=True) if count)
        raise ModelError(f"the graph's nodes form a cycle, at or before node {stuck.label!r}")
    return tuple(order)
