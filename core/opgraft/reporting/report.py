"""The report on one model: everything that its views show, as typed objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from opgraft.claims import Decisions
from opgraft.registry import Registry
from opgraft.reporting.breaks import GraphBreak
from opgraft.reporting.coverage import Coverage, OperatorCoverage, ReplacedFunction, replaced_functions
from opgraft.reporting.crossings import INTO, OUT_OF, Crossing, Traffic, Wiring
from opgraft.reporting.observation import Observation, Verdict
from opgraft.reporting.placement import Placement, placed, remaining, settled, size_of
from opgraft.reporting.what_if import Declined, DeclinedGroup, Simulation, Split, WhatIf, what_ifs


@dataclass(frozen=True)
class Setting:
    """What a report was made with: versions, and the registry file."""

    opgraft: str
    onnxruntime: str
    mlx: str
    registry: str

    @classmethod
    def of(cls, registry: Registry) -> Setting:
        """What is installed here, and the file that a registry was made by."""
        return cls(version("opgraft"), version("onnxruntime"), version("mlx"), registry.policy.source)


@dataclass(frozen=True)
class Subgraph:
    """One fused subgraph: its number, its nodes (bodies count), and what enters and leaves it at every run."""

    number: int
    nodes: int
    into: Traffic
    out_of: Traffic


@dataclass(frozen=True, slots=True)
class ReportedNode:
    """A node of the outermost graph.

    Attributes:
        name, operator: the node.
        subgraph: the number of its subgraph; None: it is on the CPU.
        pack: the pack that takes it; None where none does.
        reason: why it is not claimed; None where it is.
        groups: the declined groups that must be claimed for it to be claimed, as indices.
        in_bodies: the nodes in its bodies.
    """

    name: str
    operator: str
    subgraph: int | None
    pack: str | None
    reason: str | None
    groups: tuple[int, ...]
    in_bodies: int


@dataclass(frozen=True)
class PartitionedGraph:
    """The outermost graph: nodes, and edges (producer, consumer) by their indices."""

    nodes: tuple[ReportedNode, ...]
    edges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Report:
    """What opgraft does with a model.

    Attributes:
        coverage: nodes on the execution provider and on the CPU, operators, and reasons.
        setting: what it was made with.
        replaced: declined nodes that ONNX Runtime replaced by the functions that define them.
        subgraphs: the fused subgraphs, largest first.
        crossings: the tensors that enter or leave them at every run.
        breaks: where they must read back what they have computed before they can go on.
        declined: the groups of nodes to mend, those with the most nodes first.
        what_if: what claiming groups would change, the most helpful first.
        graph: the partitioned graph.
    """

    coverage: Coverage
    setting: Setting
    replaced: tuple[ReplacedFunction, ...]
    subgraphs: tuple[Subgraph, ...]
    crossings: tuple[Crossing, ...]
    breaks: tuple[GraphBreak, ...]
    declined: tuple[DeclinedGroup, ...]
    what_if: tuple[WhatIf, ...]
    graph: PartitionedGraph

    @property
    def operators(self) -> tuple[OperatorCoverage, ...]:
        return self.coverage.operators

    @property
    def nodes(self) -> int:
        return self.coverage.nodes

    @property
    def claimed(self) -> int:
        return self.coverage.claimed

    @property
    def percentage(self) -> float:
        """Claimed nodes in percent of all."""
        return self.coverage.percentage

    @property
    def traffic(self) -> Traffic:
        """All that crosses at a run."""
        return Traffic.of([each.bytes for each in self.crossings])

    @property
    def split(self) -> Split:
        """How the model is split."""
        return Split(len(self.subgraphs), sum(each.nodes for each in self.subgraphs), self.traffic)


def report_of(observations: Sequence[Observation], coverage: Coverage, setting: Setting) -> Report:
    """The report on a model.

    Args:
        observations: what was observed each time ONNX Runtime showed its graph.
        coverage: the coverage that this means.
        setting: what it was made with.
    """
    passes = [each.decisions for each in observations]
    standing = settled(passes)
    declined = Declined(_verdicts(observations, standing))
    placements = placed(standing)
    wiring = Wiring([each.node for each in placements], [each.graph for each in standing])
    crossings = wiring.crossings([each.subgraph for each in placements])
    simulation = Simulation(standing, declined)
    needs = [tuple(sorted(declined.needs.get(place, ()))) for place in simulation.places]
    return Report(
        coverage,
        setting,
        replaced_functions(passes),
        _subgraphs(placements, crossings),
        crossings,
        _breaks(observations, placements),
        declined.groups,
        what_ifs(simulation),
        PartitionedGraph(tuple(map(_node, placements, needs)), tuple(wiring.edges)),
    )


def _verdicts(observations: Sequence[Observation], standing: Sequence[Decisions]) -> dict[tuple[int, int], Verdict]:
    """The verdicts on the nodes that are left to the CPU."""
    verdicts = {id(each.decisions): each.verdicts for each in observations}
    return {
        (number, index): verdicts[id(decisions)][index]
        for number, (decisions, indices) in enumerate(zip(standing, remaining(standing), strict=True))
        for index in indices
        if index in verdicts[id(decisions)]
    }


def _subgraphs(placements: Sequence[Placement], crossings: Sequence[Crossing]) -> tuple[Subgraph, ...]:
    sizes: dict[int, int] = {}
    for each in placements:
        if each.subgraph is not None:
            sizes[each.subgraph] = sizes.get(each.subgraph, 0) + size_of(each.node)
    borders: dict[tuple[int, str], list[int | None]] = {}
    for crossing in crossings:
        borders.setdefault((crossing.subgraph, crossing.direction), []).append(crossing.bytes)
    return tuple(
        Subgraph(
            number,
            sizes[number],
            Traffic.of(borders.get((number, INTO), ())),
            Traffic.of(borders.get((number, OUT_OF), ())),
        )
        for number in sorted(sizes)
    )


def _breaks(observations: Sequence[Observation], placements: Sequence[Placement]) -> tuple[GraphBreak, ...]:
    number_of = {id(each.decision): each.subgraph for each in placements}
    found: list[GraphBreak] = []
    for each in observations:
        for cluster, readings in zip(each.decisions.clusters, each.readings, strict=True):
            number = number_of.get(id(each.decisions.decisions[cluster[0]]))
            if number is not None:  # otherwise this showing does not stand
                found += [reading.in_subgraph(number) for reading in readings]
    return tuple(sorted(found, key=lambda each: each.subgraph))


def _node(placement: Placement, groups: tuple[int, ...]) -> ReportedNode:
    node, decision = placement.node, placement.decision
    return ReportedNode(
        node.label,
        node.operator,
        placement.subgraph,
        None if decision.candidate is None else decision.candidate.pack,
        "; ".join(map(str, decision.reasons)) or None,
        groups,
        size_of(node) - 1,
    )
