"""Clusters are connected, convex, jointly acyclic and maximal, by an oracle that looks at every path."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgraft.partition import partition

Edges = Sequence[tuple[int, int]]
Graph = tuple[int, Edges, Collection[int]]


def bits(nodes: Iterable[int]) -> int:
    return sum(1 << node for node in set(nodes))


def reachable(successors: Mapping[int, Collection[int]]) -> dict[int, int]:
    """For each vertex, all that a path of one edge or more leads to, as bits. A cycle raises CycleError."""
    found: dict[int, int] = {}
    for vertex in TopologicalSorter(successors).static_order():
        found[vertex] = 0
        for successor in successors[vertex]:
            found[vertex] |= found[successor] | 1 << successor
    return found


def contracted(count: int, edges: Edges, clusters: Iterable[Collection[int]]) -> dict[int, set[int]]:
    """The successors in the graph in which each cluster is one vertex, which has the name of its least node."""
    name = list(range(count))
    for cluster in clusters:
        for node in cluster:
            name[node] = min(cluster)
    successors: dict[int, set[int]] = {vertex: set() for vertex in name}
    for tail, head in edges:
        if name[tail] != name[head]:
            successors[name[tail]].add(name[head])
    return successors


def is_connected(edges: Edges, cluster: Collection[int]) -> bool:
    joined: dict[int, set[int]] = {node: set() for node in cluster}
    for tail, head in edges:
        if tail in joined and head in joined:
            joined[tail].add(head)
            joined[head].add(tail)
    seen: set[int] = set()
    waiting = {min(cluster)}
    while waiting:
        node = waiting.pop()
        seen.add(node)
        waiting |= joined[node] - seen
    return seen == set(cluster)


def is_convex(count: int, paths: Mapping[int, int], cluster: Collection[int]) -> bool:
    inside, after = bits(cluster), 0
    for node in cluster:
        after |= paths[node]
    return not any(after >> node & 1 and paths[node] & inside for node in range(count) if not inside >> node & 1)


def mergeable(count: int, edges: Edges, clusters: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The pairs of adjacent clusters that nothing but their edges joins, so that merging them closes no cycle."""
    successors = contracted(count, edges, clusters)
    paths = reachable(successors)
    names = {min(cluster) for cluster in clusters}
    return [
        (tail, head)
        for tail in names
        for head in successors[tail] & names
        if not any(paths[middle] >> head & 1 for middle in successors[tail])
    ]


def check(count: int, edges: Edges, supported: Collection[int]) -> list[list[int]]:
    """Hold a partition against its whole contract."""
    clusters = partition(count, edges, supported)
    assert sorted(node for cluster in clusters for node in cluster) == sorted(set(supported))
    assert clusters == sorted(map(sorted, clusters))
    paths = reachable(contracted(count, edges, []))
    for cluster in clusters:
        assert is_connected(edges, cluster)
        assert is_convex(count, paths, cluster)
    assert not mergeable(count, edges, clusters), "not maximal"  # and CycleError where they are not jointly acyclic
    return clusters


def union_find(count: int, edges: Edges, supported: Collection[int]) -> list[set[int]]:
    """The yardstick: over the edges in topological order, merge two clusters wherever that closes no cycle."""
    cluster_of = {node: {node} for node in supported}
    order = [*TopologicalSorter(contracted(count, edges, [])).static_order()][::-1]
    rank = {node: place for place, node in enumerate(order)}
    for tail, head in sorted(edges, key=lambda edge: (rank[edge[0]], rank[edge[1]])):
        if tail in cluster_of and head in cluster_of and cluster_of[tail] is not cluster_of[head]:
            merged = cluster_of[tail] | cluster_of[head]
            others = [cluster for cluster in cluster_of.values() if cluster.isdisjoint(merged)]
            try:
                reachable(contracted(count, edges, [merged, *others]))
            except CycleError:
                continue
            cluster_of.update(dict.fromkeys(merged, merged))
    return list({id(cluster): cluster for cluster in cluster_of.values()}.values())


def random_graph(generator: random.Random, most: int = 16) -> Graph:
    count = generator.randint(1, most)
    density = generator.choice((0.1, 0.2, 0.35, 0.6))
    names = list(range(count))
    if generator.random() < 0.5:
        generator.shuffle(names)
    edges = [(names[tail], names[head]) for tail, head in combinations(range(count), 2) if generator.random() < density]
    share = generator.choice((0.5, 0.7, 0.9, 1.0))
    return count, edges, [node for node in range(count) if generator.random() < share]


def sparse_graph(generator: random.Random, count: int) -> Graph:
    """A graph with about as many edges as a model has: local ones, and some that skip far."""
    reach = generator.choice((2, 10, count // 4))
    edges = []
    for _ in range(int(count * generator.choice((1.2, 2, 3)))):
        tail = generator.randrange(count - 1)
        span = generator.randint(1, count if generator.random() < 0.05 else reach)
        edges.append((tail, min(count - 1, tail + span)))
    share = generator.choice((0.5, 0.7, 0.9, 0.99))
    return count, edges, [node for node in range(count) if generator.random() < share]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 16))
    names = draw(st.permutations(range(count)))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] != pair[1])
    drawn = draw(st.lists(pairs, max_size=3 * count))
    return count, [(names[min(pair)], names[max(pair)]) for pair in drawn], draw(st.sets(st.integers(0, count - 1)))


@given(graphs())
@settings(deadline=None, max_examples=300)
def test_any_graph(graph: Graph) -> None:
    check(*graph)


def test_thousands_of_random_graphs() -> None:
    generator = random.Random(0)
    for _ in range(4000):
        check(*random_graph(generator))


@pytest.mark.parametrize("count", [60, 400])
def test_larger_graphs(count: int) -> None:
    generator = random.Random(count)
    for _ in range(6000 // count):
        check(*sparse_graph(generator, count))


def test_a_graph_too_large_to_be_tried_both_ways() -> None:
    check(*sparse_graph(random.Random(5), 6000))


def every_small_graph(count: int) -> Iterator[Edges]:
    pairs = list(combinations(range(count), 2))
    for chosen in product((False, True), repeat=len(pairs)):
        yield [pair for pair, taken in zip(pairs, chosen, strict=True) if taken]


def test_every_graph_of_five_nodes() -> None:
    for edges in every_small_graph(5):
        for flags in product((False, True), repeat=5):
            check(5, edges, [node for node in range(5) if flags[node]])


@pytest.mark.parametrize("shape", ["dense", "sparse"])
def test_no_more_clusters_on_average_than_the_yardstick(shape: str) -> None:
    generator = random.Random(1)
    ours = theirs = 0
    for _ in range(2000):
        graph = random_graph(generator) if shape == "dense" else sparse_graph(generator, generator.randint(8, 20))
        ours += len(partition(*graph))
        theirs += len(union_find(*graph))
    assert ours <= theirs


def test_two_convex_clusters_that_are_a_cycle_together() -> None:
    a1, a2, b1, b2, x = range(5)
    edges = [(a1, a2), (b2, b1), (b2, a2), (a1, x), (x, b1)]
    with pytest.raises(CycleError):
        mergeable(5, edges, [[a1, a2], [b1, b2]])
    assert len(check(5, edges, [a1, a2, b1, b2])) == 2


@pytest.mark.parametrize(
    ("count", "edges", "supported", "expected"),
    [
        (0, [], [], []),
        (3, [(0, 1), (1, 2)], [], []),
        (3, [], [0, 1, 2], [[0], [1], [2]]),
        (3, [(0, 1), (1, 2)], [0, 1, 2], [[0, 1, 2]]),
        (3, [(0, 1), (1, 2)], [0, 2], [[0], [2]]),
        (4, [(0, 1), (0, 2), (1, 3), (2, 3)], [0, 1, 2, 3], [[0, 1, 2, 3]]),
        (4, [(0, 1), (0, 1), (2, 3)], [0, 1, 2, 3], [[0, 1], [2, 3]]),
        (5, [(0, 1), (0, 2), (0, 3), (0, 4)], [0, 1, 2, 3, 4], [[0, 1, 2, 3, 4]]),
        (5, [(0, 4), (1, 4), (2, 4), (3, 4)], [0, 1, 2, 3, 4], [[0, 1, 2, 3, 4]]),
        (5, [(0, 1), (0, 2), (0, 3), (0, 4)], [1, 2, 3, 4], [[1], [2], [3], [4]]),
    ],
    ids=[
        *("empty", "none supported", "no edges", "chain", "broken chain", "diamond", "repeated edge"),
        *("fan out", "fan in", "fan out of an unsupported node"),
    ],
)
def test_plain_graphs(count: int, edges: Edges, supported: Collection[int], expected: list[list[int]]) -> None:
    assert check(count, edges, supported) == expected


def test_a_diamond_with_an_unsupported_side() -> None:
    clusters = check(4, [(0, 1), (0, 2), (1, 3), (2, 3)], [0, 1, 3])
    assert len(clusters) == 2


def test_a_row_of_diamonds_with_an_unsupported_side_each() -> None:
    edges = [edge for top in range(0, 30, 3) for edge in combinations((top, top + 1, top + 3), 2)]
    edges += [edge for top in range(0, 30, 3) for edge in ((top, top + 2), (top + 2, top + 3))]
    assert len(check(31, edges, [node for node in range(31) if node % 3 != 2])) == 11


def test_a_long_skip_connection_over_an_unsupported_node() -> None:
    chain = [(node, node + 1) for node in range(11)]
    clusters = check(12, [*chain, (0, 11)], [node for node in range(12) if node != 5])
    assert clusters == [[0, 1, 2, 3, 4], [6, 7, 8, 9, 10, 11]]


def test_nested_skip_connections_as_between_an_encoder_and_a_decoder() -> None:
    chain = [(node, node + 1) for node in range(40)]
    skips = [(node, 40 - node) for node in range(20)]
    assert check(41, chain + skips, [node for node in range(41) if node != 20]) == [[*range(20)], [*range(21, 41)]]


def test_long_skip_connections_break_nothing_where_all_is_supported() -> None:
    edges = [(tail, head) for tail, head in combinations(range(12), 2) if head - tail in (1, 5, 9)]
    assert check(12, edges, range(12)) == [list(range(12))]


def test_all_supported_gives_the_connected_components() -> None:
    generator = random.Random(2)
    for _ in range(300):
        count, edges, _ = random_graph(generator)
        for cluster in check(count, edges, range(count)):
            outside = set(range(count)) - set(cluster)
            assert not any((tail in outside) != (head in outside) for tail, head in edges)


def test_equal_arguments_give_equal_results() -> None:
    count, edges, supported = random_graph(random.Random(3))
    assert partition(count, edges, supported) == partition(count, edges, set(supported))


@pytest.mark.parametrize(
    ("count", "edges", "supported", "says"),
    [
        (2, [(0, 1), (1, 0)], [0, 1], "cycle"),
        (4, [(0, 1), (1, 2), (2, 3), (3, 1)], [], "cycle"),
        (1, [(0, 0)], [0], "cycle"),
        (2, [(0, 2)], [0], "out of range"),
        (2, [(-1, 1)], [0], "out of range"),
        (2, [(0, 1)], [2], "out of range"),
        (2, [(0, 1)], [-1], "out of range"),
        (0, [], [0], "out of range"),
    ],
)
def test_bad_graphs(count: int, edges: Edges, supported: Collection[int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        partition(count, edges, supported)
