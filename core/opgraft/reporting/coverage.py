"""Coverage: what is claimed of a model, what is declined and why, as typed objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from opgraft.claims import Decision, Decisions
from opgraft.graph import Node
from opgraft.registry import Reason
from opgraft.reporting.declines import Key, key_of
from opgraft.reporting.placement import completed, placed, replaced, settled, size_of

NAMES_SHOWN = 3
"""How many node names a reason lists."""


@dataclass(frozen=True)
class DeclineCount:
    """One reason, with the number of nodes that it holds back and the names of the first few.

    Attributes:
        reason, pack: the words, and the pack whose they are (None: opgraft's own).
        count, nodes: how many nodes, and the names of the first few.
        also: what packs that were asked later said.
    """

    reason: str
    pack: str | None
    count: int
    nodes: tuple[str, ...]
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fault:
    """What a pack got wrong in taking nodes of one operator, so that it was passed over."""

    pack: str
    operator: str
    reason: str
    count: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class SlowClaim:
    """A node about which a pack took long to decide."""

    pack: str
    operator: str
    node: str
    seconds: float


@dataclass(frozen=True)
class MissedVersion:
    """Nodes of a version of their operator that a pack has no handler for, though it has handlers of others.

    Attributes:
        pack, operator: whose handlers, and of what.
        version: of the nodes.
        versions: those that the pack's handlers cover.
        count: how many nodes.
    """

    pack: str
    operator: str
    version: int
    versions: str
    count: int


@dataclass(frozen=True)
class OperatorCoverage:
    """One operator of the model."""

    operator: str
    claimed: int
    declined: int
    packs: tuple[str, ...]
    reasons: tuple[DeclineCount, ...]


@dataclass(frozen=True)
class ReplacedFunction:
    """An operator that was declined so many times, and whose nodes ONNX Runtime replaced by its function's."""

    operator: str
    nodes: int
    reason: str


@dataclass(frozen=True)
class Coverage:
    """What opgraft does with a model. Nodes of bodies count; they are claimed with the node that owns them.

    Attributes:
        model: its name.
        source: "session": what ONNX Runtime showed the execution provider, after its graph optimizations; "file": the
            file alone, because ONNX Runtime cannot load it, for the reason in `note`.
        note: see `source`.
        device: "cpu" or "gpu".
        operators: every operator, those with declined nodes first.
        subgraphs: the number of nodes of each subgraph that is fused, largest first; bodies count with their owners.
        faults: of packs, whether or not another took the nodes.
        slow_claims: the claims that took longer than 50 ms, slowest first.
        missed_versions: of operators, where a pack has handlers of other versions only.
    """

    model: str
    source: str
    note: str | None
    device: str
    operators: tuple[OperatorCoverage, ...]
    subgraphs: tuple[int, ...]
    faults: tuple[Fault, ...] = ()
    slow_claims: tuple[SlowClaim, ...] = ()
    missed_versions: tuple[MissedVersion, ...] = ()

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


def share_text(coverage: Coverage) -> str:
    """As in "3 of 4 nodes on the EP (75.0%)"; why there is nothing to count where there are no nodes."""
    if not coverage.nodes:
        return "nothing is left to run: ONNX Runtime folded every node away, or the model has none"
    return f"{coverage.claimed} of {coverage.nodes} nodes on the EP ({coverage.percentage:.1f}%)"


def coverage_of(
    passes: Sequence[Decisions], *, model: str, source: str, note: str | None = None, device: str = "cpu"
) -> Coverage:
    """The coverage that the decisions about a model mean.

    Args:
        passes: what was decided each time the graph was shown. ONNX Runtime shows it again after it has replaced
            declined nodes by the functions that define them.
        model, source, note: see `Coverage`.
        device: where `passes` is empty.
    """
    placements = placed(settled(completed(passes)))
    sizes: dict[int, int] = {}
    for each in placements:
        if each.subgraph is not None:
            sizes[each.subgraph] = sizes.get(each.subgraph, 0) + size_of(each.node)
    operators = _by_operator(each.decision for each in placements)
    device = passes[-1].device if passes else device
    decisions = [each.decision for each in placements]
    slow = sorted(_slow_claims(decisions), key=lambda claim: -claim.seconds)
    subgraphs = tuple(sorted(sizes.values(), reverse=True))
    missed = tuple(MissedVersion(*key, count) for key, count in Counter(_missed_versions(decisions)).items())
    return Coverage(model, source, note, device, operators, subgraphs, _faults(decisions), tuple(slow), missed)


def replaced_functions(passes: Sequence[Decisions]) -> tuple[ReplacedFunction, ...]:
    """The declined nodes that ONNX Runtime replaced by the functions that define them, by operator and reason."""
    groups: dict[Key, list[Decision]] = {}
    for decision in replaced(passes):
        groups.setdefault(key_of(decision.node, decision.reasons), []).append(decision)
    return tuple(
        ReplacedFunction(group[0].node.operator, len(group), "; ".join(map(str, group[0].reasons)))
        for group in groups.values()
    )


def _faults(decisions: Iterable[Decision]) -> tuple[Fault, ...]:
    found: dict[tuple[str, str, str], list[str]] = {}

    def collect(decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            for fault in decision.faults:
                key = (fault.pack or "opgraft", decision.node.operator, fault.text)
                found.setdefault(key, []).append(decision.node.label)
            collect(decision.inner)

    collect(decisions)
    return tuple(Fault(*key, len(names), tuple(names[:NAMES_SHOWN])) for key, names in found.items())


def _slow_claims(decisions: Iterable[Decision]) -> Iterator[SlowClaim]:
    for decision in decisions:
        for pack, seconds in decision.slow:
            yield SlowClaim(pack, decision.node.operator, decision.node.label, seconds)
        yield from _slow_claims(decision.inner)


def _missed_versions(decisions: Iterable[Decision]) -> Iterator[tuple[str, str, int, str]]:
    """Pack, operator, version and the pack's versions, once for each node."""
    for decision in decisions:
        for pack, versions in decision.missed:
            yield pack, decision.node.operator, decision.node.since_version, versions
        yield from _missed_versions(decision.inner)


def _by_operator(decisions: Iterable[Decision]) -> tuple[OperatorCoverage, ...]:
    claimed: dict[str, int] = {}
    packs: dict[str, dict[str, None]] = {}
    declined: dict[str, dict[Key, list[tuple[Node, tuple[Reason, ...]]]]] = {}
    for node, reasons, pack in _every_node(decisions):
        operator = node.operator
        if reasons:
            declined.setdefault(operator, {}).setdefault(key_of(node, reasons), []).append((node, reasons))
            continue
        claimed[operator] = claimed.get(operator, 0) + 1
        if pack is not None:
            packs.setdefault(operator, {})[pack] = None
    operators = [
        OperatorCoverage(
            operator,
            claimed.get(operator, 0),
            sum(map(len, declined.get(operator, {}).values())),
            tuple(packs.get(operator, ())),
            tuple(map(_count, sorted(declined.get(operator, {}).values(), key=lambda group: -len(group)))),
        )
        for operator in {**claimed, **declined}
    ]
    return tuple(sorted(operators, key=lambda each: (-each.declined, -each.claimed, each.operator)))


def _count(group: Sequence[tuple[Node, tuple[Reason, ...]]]) -> DeclineCount:
    first, *others = group[0][1]
    names = tuple(node.label for node, _ in group[:NAMES_SHOWN])
    return DeclineCount(first.text, first.pack, len(group), names, tuple(map(str, others)))


def _every_node(decisions: Iterable[Decision]) -> Iterator[tuple[Node, tuple[Reason, ...], str | None]]:
    """Each node, bodies included, with the reasons why it is declined (none: claimed) and the pack that takes it."""
    for decision in decisions:
        if decision.candidate is not None:
            yield decision.node, (), decision.candidate.pack
            yield from _every_node(decision.inner)
            continue
        yield decision.node, decision.reasons, None
        outside = (Reason(None, f"its owner, {decision.node.label!r}, is declined"),)
        for body in decision.node.bodies.values():
            for inner in body.all_nodes():
                yield inner, outside, None
