"""How long the partitioner takes, and how that grows: `make bench-partition`, or `python bench/partition.py`.

Graphs of 10,000 and 100,000 nodes with three times as many edges, listed in the order of their consumers, as a model
lists them. Seconds are processor time. Other work on the machine can only add to them, so the least of some runs counts
against the limits and for the growth exponent; the median stands beside it. Exit status 1 where a limit is missed.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from opgraft.partition import partition

SMALL, LARGE = 10_000, 100_000
SECONDS, EXPONENT = 1.0, 1.15
RUNS = {SMALL: 15, LARGE: 7}
SUPPORTED = (1, 0.99, 0.9, 0.5)

Edges = list[tuple[int, int]]


def local(count: int, generator: random.Random, reach: int) -> Edges:
    """Each node reads three of the `reach` nodes before it."""
    return [(max(0, node - 1 - generator.randrange(reach)), node) for node in range(1, count) for _ in range(3)]


def chain(count: int, generator: random.Random, reach: int) -> Edges:
    """Each node reads the one before it, and two that are up to `reach` before it."""
    edges = []
    for node in range(1, count):
        edges.append((node - 1, node))
        edges += [(max(0, node - 1 - generator.randrange(reach)), node) for _ in range(2)]
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
    "three of the 10 nodes before": lambda count, generator: local(count, generator, 10),
    "three of the 100 nodes before": lambda count, generator: local(count, generator, 100),
    "three of the 1,000 nodes before": lambda count, generator: local(count, generator, 1000),
    "chain with skips of up to 100": lambda count, generator: chain(count, generator, 100),
    "chain with skips to anywhere": lambda count, generator: chain(count, generator, count),
    "layers of 10": lambda count, generator: layered(count, generator, 10),
    "layers of 1,000": lambda count, generator: layered(count, generator, 1000),
    "three of all nodes before": lambda count, generator: local(count, generator, count),
}


def measure(shape: str, count: int, supported_share: float) -> tuple[int, int, list[float]]:
    """Edges, clusters, and the seconds of each run."""
    generator = random.Random(7)
    edges = SHAPES[shape](count, generator)
    supported = [node for node in range(count) if generator.random() < supported_share]
    clusters: list[list[int]] = []
    seconds = []
    for _ in range(RUNS[count]):
        started = time.process_time()
        clusters = partition(count, edges, supported)
        seconds.append(time.process_time() - started)
    return len(edges), len(clusters), seconds


def main() -> int:
    table = Table(title=f"Partitioning graphs of {LARGE:,} nodes, and growth from {SMALL:,}")
    headings = ("graph", "supported", "nodes", "edges", "clusters", "least s", "median s", "growth exponent")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "graph" else "right")
    missed = []
    for shape in SHAPES:
        for share in SUPPORTED:
            least_of_small = min(measure(shape, SMALL, share)[2])
            edges, clusters, seconds = measure(shape, LARGE, share)
            least = min(seconds)
            exponent = math.log(least / least_of_small) / math.log(LARGE / SMALL)
            if least > SECONDS or exponent > EXPONENT:
                missed.append(f"{shape}, {share:.0%} supported: {least:.2f} s, exponent {exponent:.2f}")
            counts = (f"{share:.0%}", f"{LARGE:,}", f"{edges:,}", f"{clusters:,}")
            table.add_row(shape, *counts, f"{least:.2f}", f"{statistics.median(seconds):.2f}", f"{exponent:.2f}")
    Console(width=118).print(table)
    print(f"limits: {SECONDS} s and an exponent of {EXPONENT}, {'missed by' if missed else 'kept'}")
    print(*missed, sep="\n", end="\n" if missed else "")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
