"""Where the nodes of a graph go in a picture: layers from top to bottom, folded into columns. Near linear."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

CELL: Final = (184, 64)
"""Width and height of the room for one node, in pixels at a scale of 1."""

WIDEST_ROW: Final = 32
"""A layer with more nodes than this is laid out in several rows."""

ASPECT: Final = 1.8
"""Width to height of the whole picture, as near as columns allow."""

_GAP: Final = 1.5
"""Between columns, in cells."""

Point = tuple[float, float]


def layered(count: int, edges: Sequence[tuple[int, int]]) -> list[Point]:
    """The centre of each node, in pixels.

    Args:
        count: the number of nodes.
        edges: (producer, consumer), without cycles.
    """
    producers: list[list[int]] = [[] for _ in range(count)]
    consumers: list[list[int]] = [[] for _ in range(count)]
    for producer, consumer in edges:
        producers[consumer].append(producer)
        consumers[producer].append(consumer)
    rows = _rows(_depths(producers, consumers))
    across = _across(rows, producers)
    return _folded(rows, across)


def _depths(producers: Sequence[Sequence[int]], consumers: Sequence[Sequence[int]]) -> list[int]:
    """The length of the longest path to each node; one without producers comes just before its first consumer."""
    waiting = list(map(len, producers))
    depths = [0] * len(producers)
    order = [node for node, missing in enumerate(waiting) if not missing]
    for node in order:
        for consumer in consumers[node]:
            depths[consumer] = max(depths[consumer], depths[node] + 1)
            waiting[consumer] -= 1
            if not waiting[consumer]:
                order.append(consumer)
    for node, given in enumerate(producers):
        if not given and consumers[node]:
            depths[node] = min(depths[consumer] for consumer in consumers[node]) - 1
    return depths


def _rows(depths: Sequence[int]) -> list[list[int]]:
    layers: dict[int, list[int]] = {}
    for node, depth in enumerate(depths):
        layers.setdefault(depth, []).append(node)
    return [
        layers[depth][start : start + WIDEST_ROW]
        for depth in sorted(layers)
        for start in range(0, len(layers[depth]), WIDEST_ROW)
    ]


def _across(rows: Sequence[list[int]], producers: Sequence[Sequence[int]]) -> list[float]:
    """The place of each node in its row, in cells: below its producers, as far as its neighbours leave room."""
    across = [0.0] * len(producers)
    limit = max(map(len, rows), default=0) / 2 + 1
    for row in rows:
        wish = {
            node: sum(across[each] for each in producers[node]) / len(producers[node]) if producers[node] else 0.0
            for node in row
        }
        row.sort(key=lambda node, wish=wish: wish[node])  # type: ignore[misc]
        for node in row:
            across[node] = wish[node]
        for left, right in pairwise(row):
            across[right] = max(across[right], across[left] + 1)
        shift = sum(wish[node] - across[node] for node in row) / len(row)
        shift = min(max(shift, -limit - across[row[0]]), limit - across[row[-1]])
        for node in row:
            across[node] += shift
    return across


def _folded(rows: Sequence[Sequence[int]], across: Sequence[float]) -> list[Point]:
    """The rows in columns, so that a deep graph fills a screen."""
    spans = [(min(across[node] for node in row), max(across[node] for node in row)) for row in rows]
    best = min(_column_counts(len(rows)), key=lambda columns: abs(_aspect(spans, columns) - ASPECT), default=1)
    height = max(-(-len(rows) // best), 1)
    points: list[Point] = [(0.0, 0.0)] * len(across)
    left = 0.0
    for start in range(0, len(rows), height):
        low, high = _span(spans[start : start + height])
        for line, row in enumerate(rows[start : start + height]):
            for node in row:
                points[node] = (round((left + across[node] - low) * CELL[0]), line * CELL[1])
        left += high - low + 1 + _GAP
    return points


def _column_counts(rows: int) -> list[int]:
    """1, 2, 3, ... and then in growing steps, up to `rows`."""
    counts = []
    columns = 1
    while columns <= rows:
        counts.append(columns)
        columns += max(1, columns // 8)
    return counts


def _aspect(spans: Sequence[Point], columns: int) -> float:
    height = -(-len(spans) // columns)
    chunks = [_span(spans[start : start + height]) for start in range(0, len(spans), height)]
    return sum(high - low + 1 + _GAP for low, high in chunks) * CELL[0] / (height * CELL[1])


def _span(spans: Sequence[Point]) -> Point:
    return min(low for low, _ in spans), max(high for _, high in spans)
