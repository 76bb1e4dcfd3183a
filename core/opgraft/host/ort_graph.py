"""Graphs from a live OrtGraph: the first source of `opgraft.graph`.

What is read here is ONNX Runtime's only while a callback runs. Names, types and attributes are copied; the elements of
initializers are not, and can be read until the graph is closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, Final

from opgraft.errors import ModelError
from opgraft.graph import (
    Array,
    AttributeValue,
    Graph,
    Initializer,
    Node,
    Shape,
    Value,
    normalized_domain,
    topologically_sorted,
)
from opgraft.graph.element_types import NAME_OF_ORT
from opgraft.host._ep import ffi, lib
from opgraft.host.ort_attributes import read_attribute
from opgraft.host.status import check
from opgraft.host.tensors import array_of_value

_KINDS: Final = {0: "unknown", 1: "tensor", 2: "sequence", 3: "map", 4: "opaque", 5: "sparse_tensor", 6: "optional"}


@dataclass(frozen=True)
class LiveGraph:
    """An OrtGraph that has been read. Closing it ends the reading of its initializers."""

    graph: Graph
    pointers: Sequence[Any]
    """The OrtNode of each node of `graph.nodes`."""
    assigned: frozenset[int]
    """The indices of the nodes that an execution provider has already taken."""
    _source: _Source

    def __enter__(self) -> LiveGraph:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._source.is_open = False


def read_graph(ort_graph: Any) -> LiveGraph:
    """Read an OrtGraph, with the bodies of its nodes.

    Constants that it or its bodies take from graphs around it count as its own initializers. Initializers of one name
    have one identity in all graphs that are read during one callback, except for those of bodies.
    """
    reader = _Reader()
    graph, _, nodes = reader.graph(ort_graph, outermost=True)
    by_node = {id(node): (pointer, taken) for node, pointer, taken in nodes}
    found = [by_node[id(node)] for node in graph.nodes]
    assigned = frozenset(index for index, (_, taken) in enumerate(found) if taken)
    return LiveGraph(graph, [pointer for pointer, _ in found], assigned, reader.source)


def value_names(node: Any) -> tuple[list[str], list[str]]:
    """The names of an OrtNode's inputs and of its outputs, in order."""
    reader = _Reader()
    check(lib.read_node(node, reader.node_view))
    inputs, outputs, _ = reader.values_of(node)
    return [value.name for value in inputs if value], [value.name for value in outputs if value]


def value_type(type_info: Any) -> tuple[str | None, Shape | None, str]:
    """Element type, shape and kind that an OrtTypeInfo means."""
    view = ffi.new("ValueView *")
    check(lib.read_type(type_info, view))
    return type_of_view(view)


class _Source:
    """Whether what was read is still there."""

    is_open = True

    def elements(self, name: str, info: Any) -> Array:
        if not self.is_open:
            raise ModelError(f"initializer {name!r} cannot be read any more: the session has moved on")
        value = ffi.new("const OrtValue **")
        check(lib.ort_ValueInfo_GetInitializerValue(info, value))
        if not value[0]:
            raise ModelError(f"initializer {name!r} has no elements")
        try:
            array = array_of_value(value[0])
        except ModelError as error:
            raise ModelError(f"initializer {name!r}: {error}") from error
        array.flags.writeable = False
        return array


_Constants = dict[str, Initializer]
_Values = tuple[Value | None, ...]


class _Reader:
    """Reads one graph and its bodies. Structures to read into are made once, values are kept by their pointer."""

    def __init__(self) -> None:
        self.source = _Source()
        self.node_view = ffi.new("NodeView *")
        self._value_view = ffi.new("ValueView *")
        self._attribute_view = ffi.new("AttributeView *")
        self._values: dict[int, Value | None] = {0: None}
        self._outer_constants: dict[int, Initializer] = {}
        self._resize(64)

    def graph(
        self, ort_graph: Any, *, outermost: bool = False
    ) -> tuple[Graph, _Constants, list[tuple[Node, Any, bool]]]:
        """The graph, the constants that it takes from around it, and its nodes with their pointers in ORT's order; the
        flag says whether an execution provider has taken the node. The outermost graph takes those constants in."""
        initializers: _Constants = {}
        for address in self._infos(lib.ort_Graph_GetNumInitializers, lib.ort_Graph_GetInitializers, ort_graph):
            initializer = self._initializer(address, shared=outermost)
            initializers[initializer.value.name] = initializer
        outer: _Constants = {}
        nodes = [self._node(pointer, outer) for pointer in self._node_pointers(ort_graph)]
        inputs = self._infos(lib.ort_Graph_GetNumInputs, lib.ort_Graph_GetInputs, ort_graph)
        outputs = self._infos(lib.ort_Graph_GetNumOutputs, lib.ort_Graph_GetOutputs, ort_graph)
        formals, results = self._present(inputs), self._present(outputs)
        self._note_outer_constants(outputs, outer)
        produced = (output.name for node, _, _ in nodes for output in node.outputs if output is not None)
        for own in chain((value.name for value in formals), initializers, produced):
            outer.pop(own, None)
        if outermost:
            initializers.update(outer)
        name = ffi.new("const char **")
        check(lib.ort_Graph_GetName(ort_graph, name))
        graph = Graph(
            name=_text(name[0]),
            inputs=formals,
            outputs=results,
            nodes=topologically_sorted([node for node, _, _ in nodes]),
            initializers=initializers,
            opsets=_opsets(ort_graph),
        )
        return graph, outer, nodes

    def values_of(self, node: Any) -> tuple[_Values, _Values, _Values]:
        """Inputs, outputs and implicit inputs of the node that was last read into `node_view`."""
        addresses = self._addresses_of(node)
        first, second = self.node_view.inputs, self.node_view.inputs + self.node_view.outputs
        values = [self._value(address) for address in addresses]
        return tuple(values[:first]), tuple(values[first:second]), tuple(values[second:])

    def _node(self, pointer: Any, outer: _Constants) -> tuple[Node, Any, bool]:
        view = self.node_view
        check(lib.read_node(pointer, view))
        addresses = self._addresses_of(pointer)
        known = self._values
        values = [known[address] if address in known else self._value(address) for address in addresses]
        if self._outer_constants:
            self._note_outer_constants(addresses, outer)
        first, second = view.inputs, view.inputs + view.outputs
        name, op_type, domain = _text(view.name), _text(view.op_type), _text(view.domain)
        since_version, taken = view.since_version, bool(view.ep_name) and view.ep_name[0] != b"\0"
        bodies = view.bodies
        attributes = self._attributes(pointer, view.attributes) if view.attributes else {}
        if bodies:
            self._bodies(pointer, bodies, attributes, outer)
        node = Node(
            name=name,
            op_type=op_type,
            domain=normalized_domain(domain),
            since_version=since_version,
            inputs=_without_trailing_absent(values[:first]),
            outputs=tuple(values[first:second]),
            attributes=attributes,
            implicit_inputs=tuple(value for value in values[second:] if value is not None),
        )
        return node, pointer, taken

    def _attributes(self, node: Any, count: int) -> dict[str, AttributeValue]:
        pointers = ffi.new("const OrtOpAttr *[]", count)
        check(lib.ort_Node_GetAttributes(node, pointers, count))
        return dict(read_attribute(pointer, self._attribute_view) for pointer in pointers)

    def _bodies(self, node: Any, count: int, attributes: dict[str, AttributeValue], outer: _Constants) -> None:
        graphs = ffi.new("const OrtGraph *[]", count)
        names = ffi.new("const char *[]", count)
        check(lib.ort_Node_GetSubgraphs(node, graphs, count, names))
        for graph, name in zip(graphs, names, strict=True):
            body, constants, _ = self.graph(graph)
            attributes[_text(name)] = body
            outer.update(constants)

    def _value(self, address: int) -> Value | None:
        if address in self._values:
            return self._values[address]
        info = ffi.cast("const OrtValueInfo *", address)
        view = self._value_view
        check(lib.read_value(info, view))
        name = _text(view.name)
        value = Value(name, *type_of_view(view)) if name else None
        self._values[address] = value
        if value is not None and view.outer and view.constant:
            self._outer_constants[address] = self._reading(value, info, constant=True, shared=True)
        return value

    def _initializer(self, address: int, *, shared: bool) -> Initializer:
        info = ffi.cast("const OrtValueInfo *", address)
        check(lib.read_value(info, self._value_view))
        constant = bool(self._value_view.constant)
        value = Value(_text(self._value_view.name), *type_of_view(self._value_view))
        self._values[address] = value
        return self._reading(value, info, constant=constant, shared=shared)

    def _reading(self, value: Value, info: Any, *, constant: bool, shared: bool) -> Initializer:
        read = partial(self.source.elements, value.name, info)
        return Initializer(value, read, constant, identity=value.name if shared else object())

    def _note_outer_constants(self, addresses: Iterable[int], outer: _Constants) -> None:
        for address in addresses:
            initializer = self._outer_constants.get(address)
            if initializer is not None:
                outer[initializer.value.name] = initializer

    def _present(self, addresses: Iterable[int]) -> tuple[Value, ...]:
        values = (self._value(address) for address in addresses)
        return tuple(value for value in values if value is not None)

    def _addresses_of(self, node: Any) -> list[int]:
        view = self.node_view
        count = view.inputs + view.outputs + view.implicit_inputs
        if count > self._capacity:
            self._resize(2 * count)
        check(lib.read_node_values(node, view, self._info_pointers))
        addresses: list[int] = ffi.unpack(self._info_addresses, count)
        return addresses

    def _resize(self, capacity: int) -> None:
        """Make room for pointers, which are read as numbers: those make cheap keys."""
        self._capacity = capacity
        self._info_addresses = ffi.new("uintptr_t[]", capacity)
        self._info_pointers = ffi.cast("const OrtValueInfo **", self._info_addresses)

    def _infos(self, counter: Any, getter: Any, ort_graph: Any) -> list[int]:
        count = _count(counter, ort_graph)
        if count > self._capacity:
            self._resize(2 * count)
        check(getter(ort_graph, self._info_pointers, count))
        addresses: list[int] = ffi.unpack(self._info_addresses, count) if count else []
        return addresses

    def _node_pointers(self, ort_graph: Any) -> list[Any]:
        count = _count(lib.ort_Graph_GetNumNodes, ort_graph)
        pointers = ffi.new("const OrtNode *[]", count)
        check(lib.ort_Graph_GetNodes(ort_graph, pointers, count))
        return list(pointers)


def type_of_view(view: Any) -> tuple[str | None, Shape | None, str]:
    """Element type, shape and kind that a filled ValueView describes."""
    kind = _KINDS.get(view.kind, "unknown")
    if kind != "tensor":
        return None, None, kind
    dtype = NAME_OF_ORT.get(view.element_type)
    if not view.has_shape:
        return dtype, None, kind
    rank = view.rank
    sizes = ffi.unpack(view.sizes, rank) if rank else ()
    if all(size >= 0 for size in sizes):
        return dtype, tuple(sizes), kind
    shape = tuple(size if size >= 0 else (_text(view.symbols[axis]) or None) for axis, size in enumerate(sizes))
    return dtype, shape, kind


def _opsets(ort_graph: Any) -> dict[str, int]:
    count = _count(lib.ort_Graph_GetNumOperatorSets, ort_graph)
    domains = ffi.new("const char *[]", count)
    versions = ffi.new("int64_t[]", count)
    check(lib.ort_Graph_GetOperatorSets(ort_graph, domains, versions, count))
    return {normalized_domain(_text(domains[index])): versions[index] for index in range(count)}


def _count(counter: Any, of: Any) -> int:
    count = ffi.new("size_t *")
    check(counter(of, count))
    return int(count[0])


def _text(pointer: Any) -> str:
    text: str = ffi.string(pointer).decode("utf-8", "surrogateescape") if pointer else ""
    return text


def _without_trailing_absent(values: list[Value | None]) -> _Values:
    while values and values[-1] is None:
        values.pop()
    return tuple(values)
