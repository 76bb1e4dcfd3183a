"""How long the partitioner takes, and how that grows: `make bench-partition`.

Graphs of 10,000 and 100,000 nodes with three times as many edges. Seconds are processor time, the least of some runs,
since other work on a machine can only add to them. Exit status 1 where a limit is missed.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from opgraft.partition import partition

SMALL, LARGE = 10_000, 100_000
SECONDS, EXPONENT = 1.0, 1.15
RUNS = 5
UNSUPPORTED = (0, 0.01, 0.1, 0.5)

Edges = list[tuple[int, int]]


def local(count: int, generator: random.Random, reach: int) -> Edges:
    """A chain, with edges that skip up to `reach` nodes."""
    edges = [(node, node + 1) for node in range(count - 1)]
    while len(edges) < 3 * count:
        tail = generator.randrange(count - 1)
        edges.append((tail, min(count - 1, tail + 1 + generator.randrange(reach))))
    return edges


def layered(count: int, generator: random.Random, width: int) -> Edges:
    """Layers of `width` nodes, each node reading three of the layer before."""
    return [
        (generator.randrange(layer - width, layer), node)
        for layer in range(width, count, width)
        for node in range(layer, min(count, layer + width))
        for _ in range(3)
    ]


SHAPES: dict[str, Callable[[int, random.Random], Edges]] = {
    "chain with short skips": lambda count, generator: local(count, generator, 10),
    "chain with skips to 100": lambda count, generator: local(count, generator, 100),
    "chain with skips to anywhere": lambda count, generator: local(count, generator, count),
    "layers of 10": lambda count, generator: layered(count, generator, 10),
    "layers of 1,000": lambda count, generator: layered(count, generator, 1000),
}


def measure(shape: str, count: int, unsupported: float) -> tuple[int, int, float]:
    """Edges, clusters, and the least seconds of several runs."""
    generator = random.Random(7)
    edges = SHAPES[shape](count, generator)
    supported = [node for node in range(count) if generator.random() >= unsupported]
    least = math.inf
    clusters: list[list[int]] = []
    for _ in range(RUNS):
        started = time.process_time()
        clusters = partition(count, edges, supported)
        least = min(least, time.process_time() - started)
    return len(edges), len(clusters), least


def main() -> int:
    table = Table(title=f"Partitioning {LARGE:,} nodes, and growth from {SMALL:,}")
    for heading in ("graph", "unsupported", "edges", "clusters", "seconds", "growth exponent"):
        table.add_column(heading, justify="left" if heading == "graph" else "right")
    missed = False
    for shape in SHAPES:
        for unsupported in UNSUPPORTED:
            _, _, before = measure(shape, SMALL, unsupported)
            edges, clusters, seconds = measure(shape, LARGE, unsupported)
            exponent = math.log(seconds / before) / math.log(LARGE / SMALL)
            missed |= seconds > SECONDS or exponent > EXPONENT
            cells = (f"{unsupported:.0%}", f"{edges:,}", f"{clusters:,}", f"{seconds:.2f}", f"{exponent:.2f}")
            table.add_row(shape, *cells)
    Console(width=110).print(table)
    print(f"limits: {SECONDS} s and an exponent of {EXPONENT}: {'missed' if missed else 'kept'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
