"""Coverage: what is claimed of a model, what is declined and why, as typed objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opgraft.claims import Decisions
from opgraft.graph import Node
from opgraft.registry import Reason

NAMES_SHOWN = 3
"""How many node names a reason lists."""


@dataclass(frozen=True)
class DeclineCount:
    """One reason, with the number of nodes that it holds back and the names of the first few."""

    reason: str
    pack: str | None
    count: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class OperatorCoverage:
    """One operator of the model."""

    operator: str
    claimed: int
    declined: int
    packs: tuple[str, ...]
    reasons: tuple[DeclineCount, ...]


@dataclass(frozen=True)
class Coverage:
    """What opgraft does with a model. Nodes of control-flow bodies count; they are claimed with the node that owns them.

    Attributes:
        model: its name.
        source: "session": what ONNX Runtime showed the execution provider, after its graph optimizations; "file": the
            file alone, because ONNX Runtime cannot load it, for the reason in `note`.
        note: see `source`.
        device: "cpu" or "gpu".
        operators: every operator, those with declined nodes first.
        subgraphs: the number of nodes of each subgraph that is fused, largest first; bodies count with their owners.
    """

    model: str
    source: str
    note: str | None
    device: str
    operators: tuple[OperatorCoverage, ...]
    subgraphs: tuple[int, ...]

    @property
    def claimed(self) -> int:
        return sum(each.claimed for each in self.operators)

    @property
    def declined(self) -> int:
        return sum(each.declined for each in self.operators)

    @property
    def nodes(self) -> int:
        return self.claimed + self.declined

    @property
    def percentage(self) -> float:
        """Claimed nodes in percent of all; 100 for a model without nodes."""
        return 100.0 * self.claimed / self.nodes if self.nodes else 100.0


def coverage_of(decisions: Decisions, *, model: str, source: str, note: str | None = None) -> Coverage:
    """The coverage that a set of decisions means."""
    claimed: dict[str, int] = {}
    packs: dict[str, dict[str, None]] = {}
    declined: dict[str, dict[Reason, list[str]]] = {}
    for node, reasons, pack in _every_node(decisions):
        operator = node.operator
        if reasons is None:
            claimed[operator] = claimed.get(operator, 0) + 1
            if pack is not None:
                packs.setdefault(operator, {})[pack] = None
        else:
            of_operator = declined.setdefault(operator, {})
            for reason in reasons[:1]:
                of_operator.setdefault(reason, []).append(node.label)
    operators = [
        OperatorCoverage(
            operator,
            claimed.get(operator, 0),
            sum(len(names) for names in declined.get(operator, {}).values()),
            tuple(packs.get(operator, ())),
            tuple(
                DeclineCount(reason.text, reason.pack, len(names), tuple(names[:NAMES_SHOWN]))
                for reason, names in sorted(declined.get(operator, {}).items(), key=lambda entry: -len(entry[1]))
            ),
        )
        for operator in {**claimed, **declined}
    ]
    operators.sort(key=lambda each: (-each.declined, -each.claimed, each.operator))
    sizes = sorted((sum(_size(decisions.graph.nodes[i]) for i in cluster) for cluster in decisions.clusters), reverse=True)
    return Coverage(model, source, note, decisions.device, tuple(operators), tuple(sizes))


def _every_node(decisions: Decisions) -> Iterator[tuple[Node, tuple[Reason, ...] | None, str | None]]:
    """Each node with the reasons why it is declined (None where it is claimed) and the pack that takes it."""
    for decision in decisions.decisions:
        pack = decision.candidate.pack if decision.candidate else None
        yield decision.node, None if decision.claimed else decision.reasons, pack
        outside = (Reason(None, f"its owner, {decision.node.label!r}, is declined"),)
        for body in decision.node.bodies.values():
            for inner in body.all_nodes():
                yield inner, None if decision.claimed else outside, None


def _size(node: Node) -> int:
    """A node, and all in its bodies."""
    return 1 + sum(len(body.all_nodes()) for body in node.bodies.values())
