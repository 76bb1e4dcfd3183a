"""The tensors that cross between ONNX Runtime's memory and the device at every run, and how many bytes they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from opgraft.graph import Graph, Node, Shape, Value
from opgraft.graph.element_types import BITS
from opgraft.reporting.placement import reads

INTO, OUT_OF = "into", "out of"

_OUTSIDE = -1


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tensor that enters or leaves a subgraph. One that several subgraphs read enters each of them.

    Attributes:
        tensor: its name.
        direction: "into" or "out of" the subgraph.
        subgraph: the number of the subgraph.
        of_model: True for an input or an output of the model, which crosses however the graph is split.
        dtype, shape: as far as they are known; a shape holds sizes, names of sizes, and None.
        bytes: None where the shape or the element type is not known.
    """

    tensor: str
    direction: str
    subgraph: int
    of_model: bool
    dtype: str | None
    shape: Shape | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Traffic:
    """So many tensors, the bytes of those whose size is known, and how many of them are of unknown size."""

    tensors: int = 0
    bytes: int = 0
    unknown: int = 0

    @classmethod
    def of(cls, sizes: Sequence[int | None]) -> Traffic:
        known = [size for size in sizes if size is not None]
        return cls(len(sizes), sum(known), len(sizes) - len(known))


class Wiring:
    """Which node makes each value of a graph and which nodes read it: what crosses, however the graph is split.

    Constants never cross: they are brought to the device once.

    Args:
        nodes: the nodes; where each of them is, is told to the methods in this order: the number of a subgraph, or None
            for the CPU.
        graphs: where the initializers of the model are found, and in the last of them its outputs. What only nodes that
            are fused read is in none that is shown later.
    """

    def __init__(self, nodes: Sequence[Node], graphs: Sequence[Graph]) -> None:
        graph = graphs[-1]
        fixed = {name for each in graphs for name, initializer in each.initializers.items() if initializer.constant}
        given_out = {value.name for value in graph.outputs}
        makers = {value.name: place for place, node in enumerate(nodes) for value in node.outputs if value is not None}
        readers: dict[str, list[int]] = {value.name: [] for value in graph.outputs}
        values: dict[str, Value] = {value.name: value for value in graph.outputs}
        for place, node in enumerate(nodes):
            for value in reads(node):
                if value.name not in fixed:
                    readers.setdefault(value.name, []).append(place)
                    values[value.name] = value
        self.nodes = nodes
        self._values = [
            (value, bytes_of(value), makers.get(name, _OUTSIDE), readers[name], name in given_out)
            for name, value in values.items()
        ]

    @property
    def edges(self) -> list[tuple[int, int]]:
        """The edges (producer, consumer) between nodes, by index."""
        found = [(maker, reader) for _, _, maker, readers, _ in self._values if maker >= 0 for reader in readers]
        return list(dict.fromkeys(found))

    def crossings(self, homes: Sequence[int | None]) -> tuple[Crossing, ...]:
        """What enters and what leaves each subgraph at a run."""
        return tuple(
            Crossing(value.name, direction, subgraph, of_model, value.dtype, value.shape, size)
            for value, size, direction, subgraph, of_model in self._crossing(homes)
        )

    def traffic(self, homes: Sequence[int | None]) -> Traffic:
        """All that crosses at a run."""
        return Traffic.of([size for _, size, *_ in self._crossing(homes)])

    def _crossing(self, homes: Sequence[int | None]) -> Iterator[tuple[Value, int | None, str, int, bool]]:
        for value, size, maker, readers, given_out in self._values:
            source = None if maker == _OUTSIDE else homes[maker]
            targets = {homes[reader] for reader in readers}
            targets.discard(source)
            if source is not None and (targets or given_out):
                yield value, size, OUT_OF, source, given_out
            for target in targets:
                if target is not None:
                    yield value, size, INTO, target, maker == _OUTSIDE


def bytes_of(value: Value) -> int | None:
    """The bytes of a tensor; None where its shape or element type is not known, or has no fixed width."""
    sizes, bits = value.static_shape, BITS.get(value.dtype or "")
    return None if sizes is None or bits is None else -(-prod(sizes) * bits // 8)
