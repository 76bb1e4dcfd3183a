"""A benchmark as a terminal shows it"""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from opgraft.benchmark import Benchmark
from opgraft.reporting.document import plain
from opgraft.reporting.terminal import FoldingTable, spaced
from opgraft.reporting.wording import counted, taken_as_1
from opgraft.text import printable, size_text

OPERATORS_SHOWN = 12


def render_benchmark(found: Benchmark) -> RenderableType:
    """Times side by side, memory, and where the slower one spends its time."""
    times = FoldingTable(f"Milliseconds, {counted(len(found.ep.runs), 'run')} of each in turns")
    times.add_column("")
    for heading in ("median", "fastest", "first run", "making the session"):
        times.add_column(heading, justify="right")
    for name, timing in ((f"EP (MLX on the {found.device})", found.ep), ("CPU EP", found.cpu)):
        seconds = (timing.median, timing.least, timing.first_run, timing.session)
        times.add_row(name, *(f"{1000 * each:.2f}" for each in seconds))
    memory = found.memory
    process = "" if memory.process_peak is None else f"; of the process, all told: {size_text(memory.process_peak)}"
    parts: list[RenderableType] = [
        Text(printable(f"{found.model}: the EP is {_speed(found.ratio)} the CPU EP, by the medians")),
        *([Text(printable(taken_as_1(found.assumed)))] if found.assumed else []),
        times,
        Text(f"peak memory of MLX: {size_text(memory.mlx_peak)} ({size_text(memory.mlx_after)} kept){process}"),
    ]
    whole = sum(each.seconds for each in found.operators)
    if whole:
        side = "EP" if found.ep.median >= found.cpu.median else "CPU EP"
        operators = FoldingTable(f"Where the {side}, the slower of the two, spends its time, each node by itself")
        operators.add_column("operator")
        for heading in ("nodes", "ms a run", "%"):
            operators.add_column(heading, justify="right")
        for each in found.operators[:OPERATORS_SHOWN]:
            numbers = (str(each.nodes), f"{1000 * each.seconds:.3f}", f"{100 * each.seconds / whole:.1f}")
            operators.add_row(Text(printable(each.operator)), *numbers)
        parts.append(operators)
        if len(found.operators) > OPERATORS_SHOWN:
            parts.append(Text(f"... and {len(found.operators) - OPERATORS_SHOWN} more (--json has all)"))
    return Group(*spaced(parts))


def benchmark_document(found: Benchmark) -> dict[str, Any]:
    """A benchmark as what `json.dumps` takes; times are in seconds, memory in bytes."""
    summary = {"ep_median": found.ep.median, "cpu_median": found.cpu.median, "ratio": found.ratio}
    return {"format": "opgraft-benchmark", "version": 1, "summary": summary, **plain(found)}


def _speed(ratio: float) -> str:
    return f"{ratio:.2f} times as fast as" if ratio >= 1 else f"{1 / ratio:.2f} times as slow as"
