"""Deciding a graph: which nodes are claimed, why the others are not, and which clusters the claimed ones form."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Final

from opgraft.bundles import bundles, partition_bundles
from opgraft.graph import Graph, Node
from opgraft.graph.element_types import HELD
from opgraft.profiles import Trial
from opgraft.registry import Candidate, Claim, Claimer, Reason
from opgraft.tracing import SpanMaker, untold

DEVICE_TYPES = {"cpu": HELD, "gpu": HELD - {"float64"}}
"""The element types that MLX has, or that can be held in one that it has, by device."""


@dataclass(frozen=True)
class Decision:
    """What was decided about one node: the handler that takes it, or the reasons why none does.

    Neither stands where the node was not to be decided: an execution provider has it already. `inner` holds what was
    decided about the nodes of its bodies, all of them where it is claimed. `faults`, `slow` and `missed` are as in
    `Claim`.
    """

    node: Node
    candidate: Candidate | None
    reasons: tuple[Reason, ...] = ()
    inner: tuple[Decision, ...] = ()
    faults: tuple[Reason, ...] = ()
    slow: tuple[tuple[str, float], ...] = ()
    missed: tuple[tuple[str, str], ...] = ()

    @property
    def claimed(self) -> bool:
        return self.candidate is not None


@dataclass(frozen=True)
class Decisions:
    """What was decided about a graph for a device. `decisions` runs parallel to the graph's nodes.

    `feeds_bodies` is as it was given to `decide`. `trials` are those of the clusters that were tried, by which some of
    them are declined.
    """

    graph: Graph
    device: str
    decisions: tuple[Decision, ...]
    clusters: tuple[tuple[int, ...], ...]
    feeds_bodies: bool = True
    trials: tuple[Trial, ...] = ()

    @property
    def declined(self) -> list[tuple[Node, tuple[Reason, ...]]]:
        return [(each.node, each.reasons) for each in self.decisions if each.reasons]


def decide(
    graph: Graph,
    registry: Claimer,
    *,
    device: str,
    candidates: Collection[int] | None = None,
    feeds_bodies: bool = True,
    span: SpanMaker = untold,
) -> Decisions:
    """Decide every node of a graph.

    Args:
        graph: the outermost graph; bodies are decided with the node that owns them.
        registry: what is asked of each node; `VerifiedRegistry` tries each claim before it counts.
        device: "cpu" or "gpu".
        candidates: the indices of the nodes to consider. Default: all of them.
        feeds_bodies: False where the caller cannot bring a cluster values that only the bodies of its nodes read.
        span: is told of the steps.
    """
    considered = range(len(graph.nodes)) if candidates is None else frozenset(candidates)
    with span("claim", "claim", nodes=len(considered)):
        decide_one = decide_node if graph.outputs else _unneeded
        decisions = [
            decide_one(node, registry, device) if index in considered else Decision(node, None)
            for index, node in enumerate(graph.nodes)
        ]
    with span("partition", "partition"):
        return clustered(graph, decisions, device=device, feeds_bodies=feeds_bodies)


def _unneeded(node: Node, registry: Claimer, device: str) -> Decision:
    """ONNX Runtime makes no session of a graph without outputs once something of it is fused."""
    return Decision(node, None, (Reason(None, "the graph has no outputs, for which it would be needed"),))


def clustered(
    graph: Graph,
    decided: Sequence[Decision],
    *,
    device: str,
    feeds_bodies: bool = True,
    edges: Sequence[tuple[int, int]] | None = None,
) -> Decisions:
    """The clusters of what was decided about each node of a graph. What no cluster can hold is declined after all.

    `edges` are those of `edges_of`, where the caller has them already.
    """
    decisions = list(decided)
    edges = edges_of(graph.nodes) if edges is None else edges
    sequences = _sequences_of(graph)
    while True:
        supported = {index for index, decision in enumerate(decisions) if decision.claimed}
        bonds = [bond for each in sequences if not supported.isdisjoint(each.users) for bond in each.bonds]
        bundled = bundles(len(graph.nodes), edges, bonds)
        refused = _cut_apart(graph, sequences, bundled, supported)
        clusters = [] if refused else partition_bundles(bundled, edges, supported)
        if not feeds_bodies:
            refused.update(each for cluster in clusters for each in _unfed(graph, cluster))
        if not refused:
            found = tuple(tuple(cluster) for cluster in clusters)
            return Decisions(graph, device, tuple(decisions), found, feeds_bodies)
        for index, text in refused.items():
            decisions[index] = Decision(graph.nodes[index], None, (Reason(None, text),))


@dataclass(frozen=True)
class _Sequence:
    """A sequence of tensors, which never crosses the border of a subgraph: the node that makes it (None: it is an input
    of the graph) and those that read it, by index."""

    name: str
    maker: int | None
    readers: tuple[int, ...]

    @property
    def users(self) -> tuple[int, ...]:
        return self.readers if self.maker is None else (self.maker, *self.readers)

    @property
    def bonds(self) -> list[tuple[int, int]]:
        return [] if self.maker is None else [(self.maker, reader) for reader in self.readers]

    def crossing(self, graph: Graph, supported: Set[int]) -> str | None:
        """How it would cross the border of any subgraph of supported nodes; None where it need not."""
        if self.maker is None:
            return "enters the subgraph as an input of the graph"
        if self.maker not in supported:
            return f"enters the subgraph from {_named(graph.nodes[self.maker])}"
        if any(output.name == self.name for output in graph.outputs):
            return "leaves the subgraph as an output of the graph"
        away = next((reader for reader in self.readers if reader not in supported), None)
        return None if away is None else f"leaves the subgraph for {_named(graph.nodes[away])}"


def _sequences_of(graph: Graph) -> list[_Sequence]:
    makers: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    for index, node in enumerate(graph.nodes):
        for value in (*node.inputs, *node.implicit_inputs):
            if value is not None and value.kind == "sequence":
                readers.setdefault(value.name, []).append(index)
        for value in node.outputs:
            if value is not None and value.kind == "sequence":
                makers[value.name] = index
    names = dict.fromkeys((*makers, *readers))
    return [_Sequence(name, makers.get(name), tuple(dict.fromkeys(readers.get(name, ())))) for name in names]


def _cut_apart(
    graph: Graph, sequences: Sequence[_Sequence], bundled: Sequence[Sequence[int]], supported: Set[int]
) -> dict[int, str]:
    """The supported nodes that use sequences and are in a bundle that no cluster can hold, each with the reason."""
    if not sequences:
        return {}
    bundle_of = {node: number for number, bundle in enumerate(bundled) for node in bundle}
    reasons: dict[int, str] = {}
    for each in sequences:
        crossing = each.crossing(graph, supported)
        if crossing is not None:
            for user in each.users:
                reasons.setdefault(bundle_of[user], f"sequence {each.name!r} {crossing}; only tensors can")
    first = {bundle_of[user]: each.name for each in reversed(sequences) for user in each.users}
    for number in first.keys() - reasons.keys():
        outsider = next((node for node in bundled[number] if node not in supported), None)
        if outsider is not None:
            beyond = _named(graph.nodes[outsider])
            reasons[number] = (
                f"sequence {first[number]!r} leaves the subgraph for nodes beyond {beyond}; only tensors can"
            )
    users = sorted({user for each in sequences for user in each.users} & supported)
    return {user: reasons[bundle_of[user]] for user in users if bundle_of[user] in reasons}


def _named(node: Node) -> str:
    return f"{node.label!r} ({node.operator})"


def _unfed(graph: Graph, cluster: Sequence[int]) -> Iterator[tuple[int, str]]:
    """The nodes of a cluster whose bodies read a value that no node of the cluster makes or reads, with the reason why
    they cannot be in it."""
    nodes = [graph.nodes[index] for index in cluster]
    at_hand = {value.name for node in nodes for value in (*node.inputs, *node.outputs) if value is not None}
    for index, node in zip(cluster, nodes, strict=True):
        for value in node.implicit_inputs:
            initializer = graph.find_initializer(value.name)
            if value.name not in at_hand and (initializer is None or not initializer.constant):
                yield (
                    index,
                    f"only its bodies read {value.name!r}, and onnxruntime before 1.27 gives no such value to an EP; "
                    "upgrade it",
                )
                break


def decide_node(node: Node, registry: Claimer, device: str) -> Decision:
    """Decide one node, and with it every node of its bodies: all of them must be claimable."""
    claim = claim_of(node, registry, device)
    if claim.candidate is None:
        return Decision(node, None, claim.reasons, faults=claim.faults, slow=claim.slow, missed=claim.missed)
    inner: list[Decision] = []
    for name, body in node.bodies.items():
        for each in body.nodes:
            decision = decide_node(each, registry, device)
            if not decision.claimed:
                where = f"in {name}, node {each.label!r} ({each.operator}): "
                return Decision(node, None, tuple(Reason(one.pack, where + one.text) for one in decision.reasons))
            inner.append(decision)
    return Decision(
        node, claim.candidate, inner=tuple(inner), faults=claim.faults, slow=claim.slow, missed=claim.missed
    )


def claim_of(node: Node, registry: Claimer, device: str) -> Claim:
    """Who takes a node, whatever is in its bodies, or the reasons why nobody does."""
    unsupported = next(_unsupported_types(node, device), None)
    return registry.claim(node) if unsupported is None else Claim(None, (Reason(None, unsupported, final=True),))


def edges_of(nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """The edges (producer, consumer) between nodes, by index; what a body reads counts as read by its node."""
    producer = {value.name: index for index, node in enumerate(nodes) for value in node.outputs if value is not None}
    edges: dict[tuple[int, int], None] = {}
    for index, node in enumerate(nodes):
        for value in (*node.inputs, *node.implicit_inputs):
            if value is not None and value.name in producer:
                edges[producer[value.name], index] = None
    return list(edges)


_CURES: Final = {
    "float64": "; choose device=cpu, or convert the model to float32",
    "string": "; export the model with numbers in place of strings",
}
"""What the owner of a model may do about an element type that MLX lacks."""


def _unsupported_types(node: Node, device: str) -> Iterator[str]:
    for value in (*node.inputs, *node.outputs):
        if value is None:
            continue
        if value.kind not in ("tensor", "sequence"):
            yield f"{value.name!r} is of type {value.kind}; only tensors and sequences of tensors are supported"
        elif value.dtype is not None and value.dtype not in DEVICE_TYPES[device]:
            cure = _CURES.get(value.dtype, "")
            if value.dtype == "string" and node.op_type.endswith("Classifier"):
                cure += " (the labels as integers)"
            yield f"element type {value.dtype} of {value.name!r} is not one that MLX has on the {device}{cure}"
