"""How much faster than the built-in pack this one is, node by node.

The two run in turn, and the medians of their times are compared: of processor time, in which other work on the machine
counts for little.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.engine import Program
from opgraft.graph.onnx_source import graph_of_model
from opgraft.plan import build_plan
from opgraft.registry import Pack, Policy, Registry, installed_packs, plugins_of
from opgraft.testing import node_model

from . import operators

SIZES = (1_000, 100_000, 1_000_000, 10_000_000)

# heading, op type, attributes, columns
CASES: tuple[tuple[str, str, dict[str, Any], int], ...] = (
    ("Exp", "Exp", {}, 1),
    ("Tanh", "Tanh", {}, 1),
    ("Sigmoid", "Sigmoid", {}, 1),
    ("Erf", "Erf", {}, 1),
    ("Gelu", "Gelu", {}, 1),
    ("Gelu by tanh", "Gelu", {"approximate": "tanh"}, 1),
    ("Swish", "Swish", {"opset": 24}, 1),
    ("Softmax, rows of 1000", "Softmax", {}, 1000),
    ("LogSoftmax, rows of 1000", "LogSoftmax", {}, 1000),
)


def table(sizes: Sequence[int] = SIZES) -> Iterator[str]:
    """The lines of a Markdown table: for each case and size, nanoseconds an element of both packs, and their ratio."""
    yield "| | " + " | ".join(f"{size:.0e}".replace("e+0", "e") for size in sizes) + " |"
    yield "|---|" + "---|" * len(sizes)
    for heading, op_type, attributes, columns in CASES:
        cells = []
        for size in sizes:
            theirs, ours = (seconds / size * 1e9 for seconds in times(op_type, attributes, size, columns))
            cells.append(f"{theirs:.1f} / {ours:.1f} = {theirs / ours:.1f}")
        yield f"| {heading} | " + " | ".join(cells) + " |"


def times(op_type: str, attributes: dict[str, Any], size: int, columns: int) -> tuple[float, float]:
    """The seconds that a node takes with the built-in pack alone, and with this one asked first."""
    x = np.random.default_rng(0).normal(0, 3, (size // columns, columns)).astype(np.float32)
    plan = build_plan(graph_of_model(node_model(op_type, [x], **attributes)))
    builtin = next(pack for pack in installed_packs() if pack.name == "builtin")
    own = Pack("cpu-math", plugins=tuple(plugins_of(operators)))
    programs = [Program(plan, Registry(packs, Policy()), "cpu") for packs in ([builtin], [own, builtin])]
    given = [mx.array(x)]
    mx.eval(given)
    taken: list[list[float]] = [[], []]
    for turn in range(max(5, min(300, 20_000_000 // size)) + 1):
        for program, each in zip(programs, taken, strict=True):
            start = time.process_time()
            program.run(given)
            if turn:  # the first one warms up
                each.append(time.process_time() - start)
    return median(taken[0]), median(taken[1])
