"""A report as a terminal shows it"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from opgraft.reporting.breaks import GraphBreak
from opgraft.reporting.report import Report
from opgraft.reporting.terminal import (
    FoldingTable,
    faults_table,
    operators_table,
    reasons_table,
    spaced,
    summary,
)
from opgraft.reporting.what_if import DeclinedGroup, WhatIf
from opgraft.reporting.wording import (
    MORE_CROSSES,
    cause_text,
    counted,
    saves_less_than_nothing,
    saving_text,
    traffic_text,
)
from opgraft.text import printable

ROWS_SHOWN = 20
"""Longer tables are cut; JSON and HTML have all."""


def render_report(report: Report) -> RenderableType:
    """Everything that a report says, in tables."""
    parts: list[RenderableType] = [Text(line) for line in (*summary(report.coverage), *_more(report))]
    if report.operators:
        parts.append(operators_table(report.operators))
    if report.coverage.declined:
        parts.append(reasons_table([each for each in report.operators if each.declined]))
    if report.coverage.faults:
        parts.append(faults_table(report.coverage.faults))
    if report.what_if:
        parts += _what_if(report.what_if)
    parts += _offers(report.declined)
    if report.breaks:
        parts += _breaks(report.breaks)
    return Group(*spaced(parts))


def _more(report: Report) -> Iterable[str]:
    model_own = sum(each.of_model for each in report.crossings)
    yield (
        f"crossing between ONNX Runtime and the device at every run: {traffic_text(report.traffic)}"
        f" ({model_own} of them the model's own inputs and outputs)"
    )
    yield f"graph breaks: {len(report.breaks)}"
    yield f"registry: {printable(report.setting.registry)}"
    for each in report.replaced:
        yield printable(
            f"onnxruntime replaced {counted(each.nodes, 'node')} of {each.operator} by what defines it: {each.reason}"
        )


def _what_if(what_if: tuple[WhatIf, ...]) -> list[RenderableType]:
    table = FoldingTable("What claiming more would change, the most helpful first")
    table.add_column("")
    table.add_column("nodes on EP", justify="right")
    table.add_column("tensors saved", justify="right")
    table.add_column("bytes saved", justify="right")
    for each in what_if[:ROWS_SHOWN]:
        tensors, size = saving_text(each.before.crossings, each.after.crossings)
        table.add_row(Text(printable(each.headline)), f"{each.after.nodes:,}", tensors, size)
    note = [Text(f"({MORE_CROSSES})")] if saves_less_than_nothing(what_if[:ROWS_SHOWN]) else []
    return [table, *_rest(len(what_if)), *note]


def _offers(declined: tuple[DeclinedGroup, ...]) -> list[RenderableType]:
    return [
        Text(
            printable(
                f"The installed pack {offer.pack} would take {offer.nodes} of {counted(group.nodes, 'node')} of "
                f"{group.title}: {offer.held_back_by}"
            )
        )
        for group in declined
        for offer in group.offers
    ]


def _breaks(breaks: tuple[GraphBreak, ...]) -> list[RenderableType]:
    table = FoldingTable("Graph breaks: the subgraph stops, reads a value back, and goes on")
    table.add_column("subgraph", justify="right")
    for heading in ("node", "operator", "input", "value"):
        table.add_column(heading)
    for each in breaks[:ROWS_SHOWN]:
        cells = (str(each.subgraph + 1), each.node, each.operator, each.input, cause_text(each))
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return [table, *_rest(len(breaks))]


def _rest(count: int) -> list[RenderableType]:
    return [Text(f"... and {count - ROWS_SHOWN} more (--json and --html have all)")] if count > ROWS_SHOWN else []
