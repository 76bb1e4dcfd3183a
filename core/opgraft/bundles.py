"""Pure graph algorithm: nodes that share a cluster or are in none, since a value between them cannot leave one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain

from opgraft.partition import partition

Edge = tuple[int, int]
"""Producer and consumer, by number."""


def bundles(node_count: int, edges: Sequence[Edge], bonds: Sequence[Edge]) -> list[list[int]]:
    """Every node once, in bundles: nodes with a bond between them, and all that lie on a path between nodes of one.

    Contracting the bundles leaves a graph without cycles. Each is in ascending order, and they are sorted.

    Args:
        node_count: how many nodes there are, numbered from 0.
        edges: those of the graph, without cycles.
        bonds: the edges that no cluster may cut.
    """
    if not bonds:
        return [[node] for node in range(node_count)]
    # They are the strong components of the graph where bonds lead back as well, found by Gabow's algorithm: `path`
    # holds the visited nodes that are in no component yet, `starts` those of them where a component may start.
    ahead: list[list[int]] = [[] for _ in range(node_count)]
    for source, target in chain(edges, ((consumer, producer) for producer, consumer in bonds)):
        ahead[source].append(target)
    found: list[list[int]] = []
    rank: dict[int, int] = {}
    finished: set[int] = set()
    path: list[int] = []
    starts: list[int] = []
    for root in range(node_count):
        visits = [] if root in rank else [root]
        while visits:
            node = visits[-1]
            if node not in rank:
                rank[node] = len(rank)
                path.append(node)
                starts.append(node)
            if ahead[node]:
                target = ahead[node].pop()
                if target not in rank:
                    visits.append(target)
                elif target not in finished:
                    while rank[starts[-1]] > rank[target]:
                        starts.pop()
                continue
            visits.pop()
            if starts[-1] == node:
                starts.pop()
                component = [path.pop()]
                while component[-1] != node:
                    component.append(path.pop())
                finished.update(component)
                found.append(sorted(component))
    return sorted(found)


def partition_bundles(
    bundled: Sequence[Sequence[int]], edges: Sequence[Edge], supported: Collection[int]
) -> list[list[int]]:
    """As `partition`, with each bundle in one cluster; of each, all nodes are supported, or none."""
    place = {node: number for number, bundle in enumerate(bundled) for node in bundle}
    between = [(place[source], place[target]) for source, target in edges if place[source] != place[target]]
    clusters = partition(len(bundled), between, {place[node] for node in supported})
    return sorted(sorted(chain.from_iterable(bundled[number] for number in cluster)) for cluster in clusters)
