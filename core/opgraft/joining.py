"""Products of one value with several constant matrices, computed as one product with all of them.

A GPU takes about as long for three small products as for three large ones: what counts is how many there are. Handlers
say which of their constants may lie one behind the other (`Handler.joins`), and which of their inputs may come as one
(`Handler.packs`), as queries, keys and values do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from opgraft.graph import ONNX_DOMAIN, Array, Graph, Initializer, Node, Value
from opgraft.graph.extraction import copied
from opgraft.registry import Candidate, Claimer

DEVICES: Final = ("gpu",)
"""Where it repays. On the CPU, what follows would go through rows that do not lie one behind the other."""

_SPLIT_VERSION: Final = 18


def joined(graph: Graph, registry: Claimer) -> Graph:
    """A graph that computes the same, with fewer products; `graph` itself, which stays as it is, where there are none
    to join.

    Args:
        graph: the graph; its initializers are read through it still.
        registry: names the handler of each node.
    """
    candidates = [registry.claim(node).candidate for node in graph.nodes]
    groups = list(_groups(graph, candidates))
    if not groups:
        return graph
    nodes: dict[int, list[Node]] = {index: [copied(node)] for index, node in enumerate(graph.nodes)}
    initializers = dict(graph.initializers)
    new: list[Node] = []
    bodies = (body for node in graph.all_nodes() for body in node.bodies.values())
    taken = {name for each in (graph, *bodies) for name in each.own_names}
    for group in groups:
        made, constants = group.nodes(graph, taken)
        initializers.update({each.value.name: each for each in constants})
        for index in group.members:
            nodes[index] = []
        nodes[min(group.members)] = made
        new += made
        if group.packed_by is not None:
            place, inputs = group.packed_by
            taker = nodes[place][0]
            values = {inputs[0]: made[0].outputs[0], **dict.fromkeys(inputs[1:])}
            nodes[place] = [replace(taker, inputs=tuple(values.get(at, each) for at, each in enumerate(taker.inputs)))]
            new += nodes[place]
    every = tuple(each for _, made in sorted(nodes.items()) for each in made)
    result = replace(graph, nodes=every, initializers=initializers)
    return result if all(registry.claim(node).candidate is not None for node in new) else graph


@dataclass(frozen=True)
class _Group:
    """Nodes that become one.

    Attributes:
        members: their indices, in the order of their outputs.
        constants: of each input that is joined, its index and the axis.
        sums: the attributes that are added.
        packed_by: the index of a node that takes their outputs as one, and which of its inputs they are.
    """

    members: tuple[int, ...]
    constants: tuple[tuple[int, int], ...]
    sums: tuple[str, ...]
    packed_by: tuple[int, tuple[int, ...]] | None = None

    def widths(self, graph: Graph) -> list[int]:
        """How wide the output of each member is."""
        constant, axis = self.constants[0]
        return [_shape_of(_fixed(graph, graph.nodes[index], constant))[axis] for index in self.members]

    def nodes(self, graph: Graph, taken: set[str]) -> tuple[list[Node], list[Initializer]]:
        """The node in place of the members, with one that splits its output where nobody takes that whole; and their
        constants."""
        members = [graph.nodes[index] for index in self.members]
        first, outputs = members[0], [_only(node.outputs) for node in members]
        label = " + ".join(node.label for node in members)
        sizes = self.widths(graph)
        constants = [
            _concatenated(
                _named(f"{label}: input {index}", taken), [_fixed(graph, node, index) for node in members], axis
            )
            for index, axis in self.constants
        ]
        values = dict(zip((index for index, _ in self.constants), (each.value for each in constants), strict=True))
        shape = outputs[0].shape
        whole = Value(
            _named(f"{label}: output", taken), outputs[0].dtype, None if shape is None else (*shape[:-1], sum(sizes))
        )
        attributes: dict[str, Any] = {name: sum(node.attributes[name] for node in members) for name in self.sums}
        product = replace(
            first,
            name=label,
            inputs=tuple(values.get(index, each) for index, each in enumerate(first.inputs)),
            outputs=(whole,),
            attributes={**first.attributes, **attributes},
        )
        if self.packed_by is not None:
            return [product], constants
        pieces = np.array(sizes, np.int64)
        ends = Initializer(Value(_named(f"{label}: sizes", taken), "int64", pieces.shape), lambda: pieces)
        split = Node(
            name=f"{label}, apart",
            op_type="Split",
            domain=ONNX_DOMAIN,
            since_version=_SPLIT_VERSION,
            inputs=(whole, ends.value),
            outputs=tuple(outputs),
            attributes={"axis": -1},
        )
        return [product, split], [*constants, ends]


def _named(name: str, taken: set[str]) -> str:
    """A name that nothing else has."""
    while name in taken:
        name += "'"
    taken.add(name)
    return name


def _groups(graph: Graph, candidates: Sequence[Candidate | None]) -> Iterator[_Group]:
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for index, candidate in enumerate(candidates):
        key = None if candidate is None else _key(graph, graph.nodes[index], candidate)
        if key is not None:
            alike[key].append(index)
    maker = {_only(graph.nodes[index].outputs).name: (key, index) for key, found in alike.items() for index in found}
    readers = _readers(graph)
    for place, candidate in enumerate(candidates):
        packing = None if candidate is None else candidate.packing
        if packing is None:
            continue
        names = [None if value is None else value.name for value in map(graph.nodes[place].input, packing.inputs)]
        found = [maker[name] for name in names if name is not None and name in maker and readers[name] == [place]]
        members = tuple(index for _, index in found)
        if len(set(members)) != len(names) or len({key for key, _ in found}) != 1:
            continue
        group = _group(found[0][0], members, (place, packing.inputs))
        if packing.fits(graph.nodes[place], group.widths(graph)):
            yield group
            alike[found[0][0]] = [index for index in alike[found[0][0]] if index not in members]
    for key, left in alike.items():
        if len(left) > 1:
            yield _group(key, tuple(left), None)


def _key(graph: Graph, node: Node, candidate: Candidate) -> Hashable:
    """What nodes that can be joined have in common; None for one that cannot be."""
    joining = candidate.joining
    if joining is None or len(node.outputs) != 1 or node.outputs[0] is None:
        return None
    constants = [(index, axis) for index, axis in joining.constants.items() if node.input(index) is not None]
    for index, axis in constants:
        value = node.input(index)
        shape = None if value is None else value.static_shape
        if not node.is_constant(index) or shape is None or not -len(shape) <= axis < len(shape):
            return None
    if not constants or node.rank(constants[0][0]) != joining.rank:
        return None
    fixed = {name: value for name, value in node.attributes.items() if name not in joining.sums}
    if any(isinstance(value, np.ndarray | Graph) for value in fixed.values()):
        return None
    joins = dict(constants)
    inputs = tuple(
        _outline(value, joins[index]) if index in joins else None if value is None else value.name
        for index, value in enumerate(node.inputs)
    )
    return node.operator, node.since_version, inputs, tuple(sorted(fixed.items())), tuple(constants), joining.sums


def _outline(value: Value | None, axis: int) -> Hashable:
    """Of a constant, what is the same in all that lie one behind the other along an axis."""
    if value is None or value.shape is None:
        return None
    axis %= len(value.shape)
    return value.dtype, len(value.shape), value.shape[:axis], value.shape[axis + 1 :]


def _group(key: Any, members: tuple[int, ...], packed_by: tuple[int, tuple[int, ...]] | None) -> _Group:
    *_, constants, sums = key
    return _Group(members, constants, sums, packed_by)


def _readers(graph: Graph) -> Mapping[str, list[int]]:
    """The indices of the nodes that read each value, -1 for the outside of the graph."""
    readers: dict[str, list[int]] = defaultdict(list)
    for index, node in enumerate(graph.nodes):
        for value in (*node.inputs, *node.implicit_inputs):
            if value is not None:
                readers[value.name].append(index)
    for value in graph.outputs:
        readers[value.name].append(-1)
    return readers


def _fixed(graph: Graph, node: Node, index: int) -> Initializer:
    value = node.input(index)
    found = None if value is None else graph.find_initializer(value.name)
    if found is None:
        raise LookupError(f"input {index} of {node.label!r} is no constant")
    return found


def _concatenated(name: str, parts: Sequence[Initializer], axis: int) -> Initializer:
    shape = list(_shape_of(parts[0]))
    shape[axis] = sum(_shape_of(each)[axis] for each in parts)
    value = Value(name, parts[0].value.dtype, tuple(shape))
    return Initializer(
        value, partial(_read, parts, axis), identity=("joined", axis, *(each.identity for each in parts))
    )


def _shape_of(initializer: Initializer) -> tuple[int, ...]:
    return initializer.value.static_shape or ()


def _read(parts: Sequence[Initializer], axis: int) -> Array:
    return np.concatenate([each.read() for each in parts], axis)


def _only(values: Sequence[Value | None]) -> Value:
    (value,) = values
    if value is None:
        raise LookupError("a node without an output")
    return value
