"""What claiming a declined operator, or a few of them, would change: the model is partitioned again with its nodes in.

The answer is exact where the operator's nodes would be claimed as they are: the same graph, the same algorithm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn

from opgraft.claims import Decision, Decisions, clustered, edges_of
from opgraft.graph import Node, topologically_sorted
from opgraft.registry import Candidate, Reason
from opgraft.reporting.crossings import Traffic, Wiring
from opgraft.reporting.declines import Key, key_of, title_of
from opgraft.reporting.observation import Offer, Verdict
from opgraft.reporting.placement import reads, remaining, size_of

NAMES_SHOWN: Final = 3
LARGEST_SET: Final = 4
"""Sets of operators are built up to this size; beside them stands the set of all."""

_WIDTH: Final = 12
"""How many operators are tried as the next of a set."""

_MOST_NODES: Final = 600_000
"""So many nodes are partitioned in all, or a few more: of a large model with very many groups, those with the fewest
nodes are not tried."""

_MOST_NODES_FOR_SETS: Final = 150_000
"""As many of them, at most, to build sets."""

Place = tuple[int, int]
"""The number of a showing, of those that stand, and the index of a node in it."""


@dataclass(frozen=True)
class PackOffer:
    """An installed pack that would take so many of a group's nodes, but for the registry file's words."""

    pack: str
    nodes: int
    held_back_by: str


@dataclass(frozen=True)
class DeclinedGroup:
    """The nodes of one operator that are declined for the same reasons, those in bodies included.

    Attributes:
        operator: `domain::OpType`.
        title: what to call it, as in "Pad (mode=reflect)".
        reasons: the reason of each pack that was asked; names of values are those of the first node.
        nodes, names: how many, and the names of the first few.
        offers: the installed packs that would take some of them.
    """

    operator: str
    title: str
    reasons: tuple[str, ...]
    nodes: int
    names: tuple[str, ...]
    offers: tuple[PackOffer, ...]


@dataclass(frozen=True)
class Split:
    """How a model is split: its subgraphs, the nodes in them (bodies count), and what crosses at every run."""

    subgraphs: int
    nodes: int
    crossings: Traffic


@dataclass(frozen=True)
class WhatIf:
    """What claiming some groups would change.

    Attributes:
        groups: their indices in the report's list of declined groups.
        headline: what would change, in a sentence.
        before, after: how the model is split now, and would be then.
    """

    groups: tuple[int, ...]
    headline: str
    before: Split
    after: Split

    @property
    def tensors_saved(self) -> int:
        return self.before.crossings.tensors - self.after.crossings.tensors

    @property
    def bytes_saved(self) -> int:
        """Of the tensors whose size is known."""
        return self.before.crossings.bytes - self.after.crossings.bytes


@dataclass
class _Members:
    nodes: list[Node] = field(default_factory=list)
    reasons: tuple[Reason, ...] = ()
    offers: Counter[Offer] = field(default_factory=Counter)
    final: bool = False


class Declined:
    """The declined nodes of a model, in groups, and what each node of the outermost graph needs to be claimed.

    Args:
        verdicts: by the number of a showing and the index of a node in it.

    Attributes:
        groups: those with the most nodes first.
        needs: by showing and index, the groups that must be claimed with a declined node, all of them. It has none
            where its handler would take it and its surroundings do not let it.
        claimable: the groups whose nodes some handler could take, as indices.
    """

    def __init__(self, verdicts: Mapping[Place, Verdict]) -> None:
        members: dict[Key, _Members] = {}
        keys = {place: set(_collect(verdict, members)) for place, verdict in verdicts.items()}
        order = sorted(members, key=lambda key: (-len(members[key].nodes), key[0], str(key[1])))
        number = {key: rank for rank, key in enumerate(order)}
        self.groups = tuple(_group(members[key]) for key in order)
        self.claimable = tuple(number[key] for key in order if not members[key].final)
        self.needs = {place: frozenset(number[key] for key in found) for place, found in keys.items()}


def _collect(verdict: Verdict, members: dict[Key, _Members]) -> Iterator[Key]:
    if verdict.candidate is None:
        key = key_of(verdict.node, verdict.reasons)
        group = members.setdefault(key, _Members(reasons=verdict.reasons))
        group.nodes.append(verdict.node)
        group.final |= verdict.final
        if verdict.offer is not None:
            group.offers[verdict.offer] += 1
        yield key
    for inner in verdict.inner:
        yield from _collect(inner, members)


def _group(members: _Members) -> DeclinedGroup:
    return DeclinedGroup(
        members.nodes[0].operator,
        str(title_of(members.nodes, members.reasons)),
        tuple(map(str, members.reasons)),
        len(members.nodes),
        tuple(node.label for node in members.nodes[:NAMES_SHOWN]),
        tuple(PackOffer(offer.pack, count, offer.held_back_by) for offer, count in members.offers.most_common()),
    )


class Simulation:
    """Partitions a model again with some of its declined groups claimed.

    Args:
        standing: the decisions that stand, of which each showing has those before it fused.
        declined: what is declined of it.
    """

    def __init__(self, standing: Sequence[Decisions], declined: Declined) -> None:
        self.standing = standing
        self.declined = declined
        self.places = [(number, index) for number, each in enumerate(remaining(standing)) for index in each]
        nodes = [standing[number].graph.nodes[index] for number, index in self.places]
        self._sizes = list(map(size_of, nodes))
        self._wiring = Wiring(nodes, [each.graph for each in standing])
        self._edges = edges_of(standing[0].graph.nodes)
        self._known: dict[frozenset[int], Split] = {}

    def split(self, claimed: Iterable[int] = ()) -> Split:
        """How the model is split where the groups of these indices are claimed."""
        chosen = frozenset(claimed)
        if chosen not in self._known:
            self._known[chosen] = self._split(chosen)
        return self._known[chosen]

    def _split(self, chosen: Set[int]) -> Split:
        decided = [list(each.decisions) for each in self.standing]
        for (number, index), needs in self.declined.needs.items():
            if needs <= chosen:
                decided[number][index] = Decision(decided[number][index].node, _ANYBODY)
        home_of: dict[Place, int] = {}
        fused: list[list[Place]] = []
        for number, each in enumerate(self.standing):
            first = len(fused)
            fused += self._clusters(number, decided[number], fused, each)
            home_of.update((place, home) for home, cluster in enumerate(fused[first:], first) for place in cluster)
        homes = list(map(home_of.get, self.places))
        inside = (size for size, home in zip(self._sizes, homes, strict=True) if home is not None)
        return Split(len(fused), sum(inside), self._wiring.traffic(homes))

    def _clusters(
        self, number: int, decided: Sequence[Decision], fused: Sequence[Sequence[Place]], shown: Decisions
    ) -> list[list[Place]]:
        if number == 0:
            found = clustered(
                shown.graph, decided, device=shown.device, feeds_bodies=shown.feeds_bodies, edges=self._edges
            )
            return [[(number, index) for index in cluster] for cluster in found.clusters]
        return self._clusters_beside(number, decided, fused, shown)

    def _clusters_beside(
        self, number: int, decided: Sequence[Decision], fused: Sequence[Sequence[Place]], shown: Decisions
    ) -> list[list[Place]]:
        """The clusters of a later showing, in which those of earlier ones are single nodes."""
        own = {place: decided[place[1]] for place in self.places if place[0] == number}
        inside = {place for cluster in fused for place in cluster}
        alone = [place for place in self.places if place[0] < number and place not in inside]
        parts = [
            _as_one([self._node(place) for place in cluster]) for cluster in (*fused, *([place] for place in alone))
        ]
        copies = {place: replace(self._node(place)) for place in own}  # a node belongs to one graph
        nodes = topologically_sorted([*parts, *copies.values()])
        place_of = {id(node): place for place, node in copies.items()}
        places = [place_of.get(id(node)) for node in nodes]
        decisions = [
            Decision(node, None) if place is None else replace(own[place], node=node)
            for node, place in zip(nodes, places, strict=True)
        ]
        graph = replace(shown.graph, nodes=nodes)
        found = clustered(graph, decisions, device=shown.device, feeds_bodies=shown.feeds_bodies)
        return [[place for index in cluster if (place := places[index]) is not None] for cluster in found.clusters]

    def _node(self, place: Place) -> Node:
        number, index = place
        return self.standing[number].graph.nodes[index]


def _as_one(nodes: Sequence[Node]) -> Node:
    """A node that reads and makes what some nodes do together."""
    made = {value.name: value for node in nodes for value in node.outputs if value is not None}
    read = {value.name: value for node in nodes for value in reads(node) if value.name not in made}
    return Node("", "fused", "opgraft", 1, tuple(read.values()), tuple(made.values()), {})


def what_ifs(simulation: Simulation) -> tuple[WhatIf, ...]:
    """What claiming each declined group would change, and sets of them, the most helpful first.

    Groups whose nodes no handler could take are left out.

    The most helpful is what leaves the fewest subgraphs; among equals, what has the most nodes on the execution
    provider, then what lets the fewest tensors cross, then the fewest bytes. A set is all that is declined of one
    operator, or what one node with bodies needs, or is built from the most helpful group by adding the one that helps
    most, as long as that brings anything.
    """
    everything = simulation.declined.claimable
    groups = everything[: max(_WIDTH, _MOST_NODES // max(len(simulation.places), 1))]
    found: dict[tuple[int, ...], Split] = {(group,): simulation.split([group]) for group in groups}
    found.update(_built_sets(simulation, sorted(groups, key=lambda group: _rank(found[group,]))))
    for together in sorted(_belonging_together(simulation.declined))[: len(groups)]:
        found[together] = simulation.split(together)
    if len(everything) > 1:
        found[everything] = simulation.split(everything)
    before = simulation.split()
    ranked = sorted(found, key=lambda chosen: (_rank(found[chosen]), len(chosen)))
    return tuple(
        WhatIf(chosen, _headline(simulation.declined, chosen, before, found[chosen]), before, found[chosen])
        for chosen in ranked
    )


def _belonging_together(declined: Declined) -> set[tuple[int, ...]]:
    """The groups of each operator that has more than one, and those that one node needs."""
    by_operator: dict[str, list[int]] = {}
    for index in declined.claimable:
        by_operator.setdefault(declined.groups[index].operator, []).append(index)
    found = (*by_operator.values(), *map(sorted, declined.needs.values()))
    return {tuple(each) for each in found if len(each) > 1 and set(each) <= set(declined.claimable)}


def _built_sets(simulation: Simulation, ranked: Sequence[int]) -> dict[tuple[int, ...], Split]:
    affordable = _MOST_NODES_FOR_SETS // max(len(simulation.places), 1)
    found: dict[tuple[int, ...], Split] = {}
    chosen = tuple(ranked[:1])
    while len(chosen) < min(LARGEST_SET, len(ranked) - 1):
        others = [group for group in ranked if group not in chosen][: min(_WIDTH, affordable)]
        affordable -= len(others)
        if not others:
            break
        best = min(others, key=lambda group: _rank(simulation.split((*chosen, group))))
        grown = (*chosen, best)
        if not _brings_anything(simulation.split(chosen), simulation.split(grown)):
            break
        chosen = grown
        found[chosen] = simulation.split(chosen)
    return found


def _rank(split: Split) -> tuple[int, int, int, int]:
    return split.subgraphs, -split.nodes, split.crossings.tensors, split.crossings.bytes


def _brings_anything(before: Split, after: Split) -> bool:
    return after.subgraphs < before.subgraphs or after.crossings.tensors < before.crossings.tensors


def _headline(declined: Declined, chosen: Sequence[int], before: Split, after: Split) -> str:
    """As in "Claim Pad (mode=reflect): 14 subgraphs become 1."."""
    if len(chosen) == len(declined.groups) > 2:
        what = f"all {len(chosen)}"
    elif len(chosen) == len(declined.claimable) > 2:
        what = f"all {len(chosen)} that can be"
    else:
        *firsts, last = [declined.groups[index].title for index in chosen]
        what = f"{', '.join(firsts)} and {last}" if firsts else last
    if before == after:
        return f"Claim {what} alone: nothing changes."
    one = before.subgraphs == 1
    now = f"{before.subgraphs or 'no'} subgraph{'' if one else 's'}"
    if before.subgraphs != after.subgraphs:
        return f"Claim {what}: {now} become{'s' if one else ''} {after.subgraphs}."
    return f"Claim {what}: {now} remain{'s' if one else ''}, of {after.nodes} nodes in place of {before.nodes}."


def _nobody(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError("a node that is claimed for the sake of argument cannot be run")


class _Nothing:
    operators: tuple[str, ...] = ()


_never: Callable[..., NoReturn] = _nobody
_ANYBODY: Final = Candidate("", _Nothing(), _never, _never, _never)
"""Takes a node for the sake of argument."""
