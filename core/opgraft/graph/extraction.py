"""A graph of its own out of some of a graph's nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence

from opgraft.graph.model import AttributeValue, Graph, Initializer, Node, Value


def extracted(graph: Graph, indices: Collection[int], outputs: Sequence[str] | None = None) -> Graph:
    """The graph of the nodes of `graph` with these indices; `graph` itself stays as it is.

    Its inputs are what the nodes and their bodies read and none of the nodes makes, without the constants, which it
    carries along; what a caller of `graph` may override is an input.

    Args:
        graph: the graph; its initializers are read through it still.
        indices: of its nodes.
        outputs: the names of the outputs. Default: what a node makes and others, or the graph's outputs, read; where
            that is nothing, what nobody reads.
    """
    chosen = frozenset(indices)
    nodes = [node for index, node in enumerate(graph.nodes) if index in chosen]
    others = [node for index, node in enumerate(graph.nodes) if index not in chosen]
    made = {value.name: value for node in nodes for value in node.outputs if value is not None}
    if outputs is None:
        wanted = {value.name for value in (*_reads(others), *graph.outputs)}
        read = {value.name for value in _reads(nodes)}
        outputs = [name for name in made if name in wanted] or [name for name in made if name not in read]
    by_name = {value.name: value for value in (*_reads(nodes), *graph.inputs, *graph.outputs, *made.values())}
    inputs: dict[str, Value] = {}
    constants: dict[str, Initializer] = {}
    for name in dict.fromkeys([*(value.name for value in _reads(nodes)), *outputs]):
        if name in made:
            continue
        initializer = graph.find_initializer(name)
        if initializer is not None and initializer.constant:
            constants[name] = initializer
        else:
            inputs[name] = by_name.get(name, Value(name))
    return Graph(
        name=graph.name,
        inputs=tuple(inputs.values()),
        outputs=tuple(by_name.get(name, Value(name)) for name in outputs),
        nodes=tuple(copied(node) for node in nodes),
        initializers=constants,
        opsets=graph.opsets,
    )


def _reads(nodes: Sequence[Node]) -> Iterator[Value]:
    for node in nodes:
        for value in (*node.inputs, *node.implicit_inputs):
            if value is not None:
                yield value


def copied(node: Node) -> Node:
    """The node once more, with bodies of its own: a node, and a body, knows the graph around it."""
    attributes: dict[str, AttributeValue] = dict(node.attributes)
    for name, body in node.bodies.items():
        attributes[name] = dataclasses.replace(body, nodes=tuple(map(copied, body.nodes)), parent=None)
    return dataclasses.replace(node, attributes=attributes)


def makers(graph: Graph, names: Collection[str]) -> list[int]:
    """The indices of the nodes that must run for these values to be made."""
    needed = set(names)
    found: list[int] = []
    for index in reversed(range(len(graph.nodes))):
        node = graph.nodes[index]
        if any(value is not None and value.name in needed for value in node.outputs):
            found.append(index)
            needed.update(value.name for value in _reads([node]))
    return found[::-1]
