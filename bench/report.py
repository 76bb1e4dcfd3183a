"""How long a report on a large model takes: `make bench-report`, or `python bench/report.py`.

A model of 10,000 nodes, each of which reads the one before it, and two in five of them another one that is near; more
and more operators are denied. The session (ONNX Runtime reads, optimizes, asks and fuses) and the rest stand apart.
Seconds are processor time; other work on the machine can still add to them. Exit status 1 where the report on a model
in fewer than a thousand pieces takes more than 5.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper
from rich.console import Console
from rich.table import Table

from opgraft import sessions
from opgraft.reporting.document import to_json
from opgraft.reporting.html import report_as_html

NODES = 10_000
SECONDS, PIECES = 5.0, 1000
UNARY = ("Relu", "Neg", "Sigmoid", "Tanh", "Exp", "Floor")
BINARY = ("Add", "Mul", "Max", "Min")
DENIED = ((), ("Rare",), ("Rare", "Floor"), ("Rare", "Floor", "Tanh"), ("Rare", "Floor", "Tanh", "Max"))
"""Rare stands for Ceil, of which there is one in a hundred nodes."""


def large_model(count: int) -> onnx.ModelProto:
    """A model of `count` nodes over (n, 64)."""
    generator = random.Random(1)
    names = ["x"]
    nodes = []
    for number in range(count):
        operator = "Ceil" if generator.random() < 0.01 else generator.choice(UNARY + BINARY)
        inputs = [names[-1], generator.choice(names[-12:])] if operator in BINARY else [names[-1]]
        names.append(f"layers.{number // 10}.{operator}_{number}")
        nodes.append(helper.make_node(operator, inputs, [names[-1]], name="/" + names[-1]))
    first, last = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64]) for name in ("x", names[-1]))
    graph = helper.make_graph(nodes, "large", [first], [last])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    started = time.process_time()
    found = function()
    return found, time.process_time() - started


def main() -> int:
    table = Table(title=f"A report on {NODES:,} nodes, in seconds of the processor")
    for heading in ("subgraphs", "what-ifs", "session", "rest", "in all", "JSON", "HTML"):
        table.add_column(heading, justify="right")
    slow = False
    session_seconds = 0.0
    shown = sessions._shown

    def watched(*arguments: Any) -> Any:
        nonlocal session_seconds
        found, session_seconds = timed(lambda: shown(*arguments))
        return found

    sessions._shown = watched
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.onnx"
        registry = Path(folder) / "registry.yaml"
        onnx.save(large_model(NODES), path)
        sessions.survey(path)  # what is imported and registered once
        for denied in DENIED:
            names = ("Ceil" if name == "Rare" else name for name in denied)
            registry.write_text("ops: {" + ", ".join(f'"{name}": {{deny: ["*"]}}' for name in names) + "}")
            report, seconds = timed(lambda: sessions.survey(path, {"registry": str(registry)}))
            _, json_seconds = timed(lambda report=report: to_json(report))
            _, html_seconds = timed(lambda report=report: report_as_html(report))
            pieces = len(report.subgraphs)
            slow |= pieces < PIECES and seconds > SECONDS
            row = (session_seconds, seconds - session_seconds, seconds, json_seconds, html_seconds)
            table.add_row(str(pieces), str(len(report.what_if)), *(f"{each:.2f}" for each in row))
    Console().print(table)
    return int(slow)


if __name__ == "__main__":
    raise SystemExit(main())
