"""Nodes that share a cluster or are in none."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from opgraft.bundles import bundles, partition_bundles
from opgraft.partition import partition

Edge = tuple[int, int]


def reachable(count: int, edges: list[Edge]) -> list[set[int]]:
    """What each node leads to, itself included, by the plainest means."""
    found = [{node} for node in range(count)]
    for _ in range(count):
        for source, target in edges:
            found[source] |= found[target]
    return found


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[Edge], list[Edge]]:
    """A number of nodes, edges without cycles whose numbers say nothing, and those of them that are bonds."""
    count = draw(st.integers(1, 9))
    numbers = draw(st.permutations(range(count)))
    pairs = [(numbers[low], numbers[high]) for low in range(count) for high in range(low + 1, count)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=14)) if pairs else []
    return count, edges, [edge for edge in edges if draw(st.integers(0, 2)) == 0]


@given(graphs())
def test_nodes_are_in_one_bundle_where_bonds_and_paths_between_them_tie_them(
    graph: tuple[int, list[Edge], list[Edge]],
) -> None:
    count, edges, bonds = graph
    found = bundles(count, edges, bonds)
    assert sorted(node for bundle in found for node in bundle) == list(range(count))
    assert found == sorted(map(sorted, found))
    leads_to = reachable(count, [*edges, *((target, source) for source, target in bonds)])
    home = {node: bundle for bundle in found for node in bundle}
    for one in range(count):
        for other in range(count):
            assert (home[one] is home[other]) == (one in leads_to[other] and other in leads_to[one])


@given(graphs(), st.data())
def test_clusters_hold_whole_bundles_and_leave_no_cycle(
    graph: tuple[int, list[Edge], list[Edge]], data: st.DataObject
) -> None:
    count, edges, bonds = graph
    bundled = bundles(count, edges, bonds)
    supported = [node for bundle in bundled if data.draw(st.booleans()) for node in bundle]
    clusters = partition_bundles(bundled, edges, supported)
    assert sorted(node for cluster in clusters for node in cluster) == sorted(supported)
    home = {node: tuple(cluster) for cluster in clusters for node in cluster}
    for source, target in bonds:
        assert home.get(source) == home.get(target)
    name = {node: index for index, cluster in enumerate(clusters) for node in cluster}
    name.update({node: len(clusters) + node for node in range(count) if node not in name})
    between = [(name[source], name[target]) for source, target in edges if name[source] != name[target]]
    leads_to = reachable(len(clusters) + count, between)
    assert not any(source in leads_to[target] for source, target in between)


def test_without_bonds_each_node_is_its_own_and_clusters_are_those_of_the_partition() -> None:
    edges = [(0, 1), (1, 2), (0, 3), (3, 4), (2, 4)]
    bundled = bundles(5, edges, [])
    assert bundled == [[0], [1], [2], [3], [4]]
    assert partition_bundles(bundled, edges, [0, 1, 3, 4]) == partition(5, edges, [0, 1, 3, 4])


def test_a_path_between_two_ends_of_a_bond_belongs_to_their_bundle() -> None:
    assert bundles(5, [(0, 1), (1, 2), (0, 2), (2, 3), (4, 1)], [(0, 2)]) == [[0, 1, 2], [3], [4]]


def test_takes_time_in_proportion_to_the_graph() -> None:
    """Also where all of it is one long chain, which must not be gone down by recursion."""
    count = 100_000
    edges = [(node, node + 1) for node in range(count - 1)]
    start = time.perf_counter()
    assert len(bundles(count, edges, edges[::2])) == count // 2
    assert len(bundles(count, edges, [*edges[:1], *edges[-1:]])) == count - 2
    assert time.perf_counter() - start < 5
