"""Clusters are connected, convex, jointly acyclic and maximal, by an oracle that looks at every path."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opgraft.partition import partition

Edges = Sequence[tuple[int, int]]


def reachable(count: int, edges: Iterable[tuple[int, int]]) -> list[set[int]]:
    """For each vertex, all that a path of one edge or more leads to."""
    found: list[set[int]] = [{head for tail, head in edges if tail == vertex} for vertex in range(count)]
    for middle, source in product(range(count), repeat=2):
        if middle in found[source]:
            found[source] |= found[middle]
    return found


def contracted(count: int, edges: Edges, clusters: Sequence[Collection[int]]) -> tuple[int, list[tuple[int, int]]]:
    """The graph in which each cluster is one vertex, without the edges inside clusters."""
    vertex = list(range(count))
    for number, cluster in enumerate(clusters):
        for node in cluster:
            vertex[node] = count + number
    kept = [(vertex[tail], vertex[head]) for tail, head in edges if vertex[tail] != vertex[head]]
    return count + len(clusters), kept


def is_acyclic(count: int, edges: Edges, clusters: Sequence[Collection[int]]) -> bool:
    total, kept = contracted(count, edges, clusters)
    return all(vertex not in found for vertex, found in enumerate(reachable(total, kept)))


def is_connected(edges: Edges, cluster: Collection[int]) -> bool:
    inside = set(cluster)
    seen, waiting = set(), [next(iter(cluster))]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += [other for edge in edges if node in edge for other in edge if other in inside]
    return seen == inside


def check(count: int, edges: Edges, supported: Collection[int]) -> list[list[int]]:
    """Hold a partition against its whole contract."""
    clusters = partition(count, edges, supported)
    assert sorted(node for cluster in clusters for node in cluster) == sorted(set(supported))
    assert clusters == sorted(map(sorted, clusters))
    paths = reachable(count, edges)
    for cluster in clusters:
        assert is_connected(edges, cluster)
        between = {node for tail, head in product(cluster, repeat=2) for node in paths[tail] if head in paths[node]}
        assert between <= set(cluster), "not convex"
    assert is_acyclic(count, edges, clusters)
    for first, second in combinations(clusters, 2):
        if any(
            edge[0] in pair[0] and edge[1] in pair[1] for edge in edges for pair in ((first, second), (second, first))
        ):
            others = [cluster for cluster in clusters if cluster is not first and cluster is not second]
            assert not is_acyclic(count, edges, [*others, [*first, *second]]), "not maximal"
    return clusters


def merged_where_acyclic(count: int, edges: Edges, supported: Collection[int]) -> list[set[int]]:
    """The yardstick: union-find over the edges, two clusters merging wherever no cycle comes of it."""
    clusters = [{node} for node in supported]
    for tail, head in sorted(edges):
        first = next((cluster for cluster in clusters if tail in cluster), None)
        second = next((cluster for cluster in clusters if head in cluster), None)
        if first is None or second is None or first is second:
            continue
        merged = [cluster for cluster in clusters if cluster is not first and cluster is not second] + [first | second]
        if is_acyclic(count, edges, merged):
            clusters = merged
    return clusters


def random_graph(generator: random.Random, most: int = 16) -> tuple[int, list[tuple[int, int]], list[int]]:
    count = generator.randint(1, most)
    density = generator.choice((0.1, 0.2, 0.35, 0.6))
    names = list(range(count))
    if generator.random() < 0.5:
        generator.shuffle(names)
    edges = [(names[tail], names[head]) for tail, head in combinations(range(count), 2) if generator.random() < density]
    share = generator.choice((0.5, 0.7, 0.9, 1.0))
    return count, edges, [node for node in range(count) if generator.random() < share]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]], set[int]]:
    count = draw(st.integers(1, 16))
    names = draw(st.permutations(range(count)))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] != pair[1])
    drawn = draw(st.lists(pairs, max_size=3 * count))
    return count, [(names[min(pair)], names[max(pair)]) for pair in drawn], draw(st.sets(st.integers(0, count - 1)))


@given(graphs())
def test_any_graph(graph: tuple[int, list[tuple[int, int]], set[int]]) -> None:
    check(*graph)


def test_thousands_of_random_graphs() -> None:
    generator = random.Random(0)
    for _ in range(3000):
        check(*random_graph(generator))


def every_small_graph(count: int) -> Iterator[Edges]:
    pairs = list(combinations(range(count), 2))
    for chosen in product((False, True), repeat=len(pairs)):
        yield [pair for pair, taken in zip(pairs, chosen, strict=True) if taken]


def test_every_graph_of_four_nodes() -> None:
    for edges in every_small_graph(4):
        for flags in product((False, True), repeat=4):
            check(4, edges, [node for node in range(4) if flags[node]])


def test_no_more_clusters_on_average_than_the_yardstick() -> None:
    generator = random.Random(1)
    ours = theirs = 0
    for _ in range(2000):
        count, edges, supported = random_graph(generator, most=12)
        ours += len(partition(count, edges, supported))
        theirs += len(merged_where_acyclic(count, edges, supported))
    assert ours <= theirs


def test_two_convex_clusters_that_are_a_cycle_together() -> None:
    a1, a2, b1, b2, x = range(5)
    edges = [(a1, a2), (b2, b1), (b2, a2), (a1, x), (x, b1)]
    clusters = check(5, edges, [a1, a2, b1, b2])
    assert clusters != [[a1, a2], [b1, b2]]
    assert len(clusters) <= 3


@pytest.mark.parametrize(
    ("count", "edges", "supported", "expected"),
    [
        (0, [], [], []),
        (3, [(0, 1), (1, 2)], [], []),
        (3, [(0, 1), (1, 2)], [0, 1, 2], [[0, 1, 2]]),
        (3, [(0, 1), (1, 2)], [0, 2], [[0], [2]]),
        (4, [(0, 1), (0, 2), (1, 3), (2, 3)], [0, 1, 2, 3], [[0, 1, 2, 3]]),
        (4, [(0, 1), (0, 1), (2, 3)], [0, 1, 2, 3], [[0, 1], [2, 3]]),
        (5, [(0, 1), (0, 2), (0, 3), (0, 4)], [0, 1, 2, 3, 4], [[0, 1, 2, 3, 4]]),
        (5, [(0, 4), (1, 4), (2, 4), (3, 4)], [0, 1, 2, 3, 4], [[0, 1, 2, 3, 4]]),
    ],
    ids=["empty", "none supported", "chain", "broken chain", "diamond", "repeated edge", "fan out", "fan in"],
)
def test_plain_graphs(count: int, edges: Edges, supported: Collection[int], expected: list[list[int]]) -> None:
    assert check(count, edges, supported) == expected


def test_a_diamond_with_an_unsupported_side() -> None:
    clusters = check(4, [(0, 1), (0, 2), (1, 3), (2, 3)], [0, 1, 3])
    assert len(clusters) == 2


def test_a_long_skip_connection_over_an_unsupported_node() -> None:
    chain = [(node, node + 1) for node in range(11)]
    clusters = check(12, [*chain, (0, 11)], [node for node in range(12) if node != 5])
    assert clusters == [[0, 1, 2, 3, 4], [6, 7, 8, 9, 10, 11]]


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
        (1, [(0, 0)], [0], "cycle"),
        (2, [(0, 2)], [0], "out of range"),
        (2, [(-1, 1)], [0], "out of range"),
        (2, [(0, 1)], [2], "out of range"),
    ],
)
def test_bad_graphs(count: int, edges: Edges, supported: Collection[int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        partition(count, edges, supported)
