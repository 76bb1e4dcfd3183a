"""Where the nodes of a model end up: in which subgraph, or on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from opgraft.claims import Decision, Decisions
from opgraft.graph import Node, Value


@dataclass(frozen=True, slots=True)
class Placement:
    """A node of the outermost graph, and the number of the subgraph that it is in, from 0; None: it is on the CPU."""

    decision: Decision
    subgraph: int | None

    @property
    def node(self) -> Node:
        return self.decision.node


def settled(passes: Sequence[Decisions]) -> tuple[Decisions, ...]:
    """Those of a session's decisions that stand, the last one at the end.

    ONNX Runtime asks again after it has replaced nodes by the functions that define them. What it then shows anew was
    asked about only to see what it would come to; clusters that it no longer shows node by node are fused by then.
    """
    kept: list[Decisions] = list(passes[-1:])
    shown = {identity(node) for each in kept for node in each.graph.nodes}
    for each in reversed(passes[:-1]):
        nodes = each.graph.nodes
        if any(identity(nodes[index]) not in shown for cluster in each.clusters for index in cluster):
            kept.append(each)
        shown.update(identity(node) for node in nodes)
    return tuple(reversed(kept))


def carried(passes: Sequence[Decisions]) -> list[dict[int, tuple[int, int]]]:
    """For each of a session's decisions, the nodes that were not to be decided since they had been declined before, by
    index: the number of the decisions that did, and the index there."""
    found: list[dict[int, tuple[int, int]]] = []
    declined: dict[tuple[str, ...], tuple[int, int]] = {}
    for number, each in enumerate(passes):
        open_ones = {index: identity(one.node) for index, one in enumerate(each.decisions) if _is_undecided(one)}
        found.append({index: declined[key] for index, key in open_ones.items() if key in declined})
        declined.update(
            (identity(one.node), (number, index)) for index, one in enumerate(each.decisions) if one.reasons
        )
    return found


def _is_undecided(decision: Decision) -> bool:
    return not decision.claimed and not decision.reasons


def completed(passes: Sequence[Decisions]) -> list[Decisions]:
    """A session's decisions; what was declined before, and is not asked about again, is declined in the later ones."""
    found: list[Decisions] = []
    for each, before in zip(passes, carried(passes), strict=True):
        decisions = list(each.decisions)
        for index, (number, place) in before.items():
            decisions[index] = replace(passes[number].decisions[place], node=decisions[index].node)
        found.append(replace(each, decisions=tuple(decisions)) if before else each)
    return found


def replaced(passes: Sequence[Decisions]) -> list[Decision]:
    """The decisions about declined nodes that ONNX Runtime replaced by the functions that define them."""
    last = {identity(node) for each in passes[-1:] for node in each.graph.nodes}
    gone: dict[tuple[str, ...], Decision] = {}
    for each in passes[:-1]:
        gone.update((identity(one.node), one) for one in each.decisions if one.reasons)
    return [decision for key, decision in gone.items() if key not in last]


def remaining(standing: Sequence[Decisions]) -> list[list[int]]:
    """For each of the decisions that stand, the indices of the nodes that are run as they are: claimed, or left to the
    CPU. The others are fused nodes, or are replaced afterwards. A node that ONNX Runtime asks about once more, since
    the CPU has no kernel of it either, is listed where it is claimed, or else the first time.
    """
    if len(standing) <= 1:  # none where ONNX Runtime folded all nodes, and asked about nothing
        return [[index for index, each in enumerate(one.decisions) if each.claimed or each.reasons] for one in standing]
    last = {identity(node) for node in standing[-1].graph.nodes}
    listed = {identity(each.node) for one in standing for each in one.decisions if each.claimed}
    found: list[list[int]] = []
    for one in standing:
        indices = []
        for index, each in enumerate(one.decisions):
            key = identity(each.node)
            if each.claimed or (each.reasons and key in last and key not in listed):
                indices.append(index)
                listed.add(key)
        found.append(indices)
    return found


def placed(standing: Sequence[Decisions]) -> list[Placement]:
    """Every node that is run in the end, in topological order within each of the decisions that stand. Subgraphs are
    numbered from the largest to the smallest."""
    found: list[tuple[Decision, int | None]] = []
    sizes: list[int] = []
    for each, indices in zip(standing, remaining(standing), strict=True):
        subgraph_of: dict[int, int] = {}
        for cluster in each.clusters:
            subgraph_of.update(dict.fromkeys(cluster, len(sizes)))
            sizes.append(sum(size_of(each.graph.nodes[index]) for index in cluster))
        found += [(each.decisions[index], subgraph_of.get(index)) for index in indices]
    ranks = {old: new for new, old in enumerate(sorted(range(len(sizes)), key=lambda number: -sizes[number]))}
    return [Placement(decision, None if old is None else ranks[old]) for decision, old in found]


def reads(node: Node) -> Iterator[Value]:
    """The values that a node reads, those that only its bodies read included."""
    for value in node.inputs:
        if value is not None:
            yield value
    yield from node.implicit_inputs


def identity(node: Node) -> tuple[str, ...]:
    """What tells a node from every other of its graph: its operator, and the values that it produces."""
    return (node.operator, *("" if value is None else value.name for value in node.outputs))


def size_of(node: Node) -> int:
    """A node, and all in its bodies."""
    return 1 + sum(len(body.all_nodes()) for body in node.bodies.values())
