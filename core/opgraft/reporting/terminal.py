"""The coverage report as a terminal shows it, in at most 100 columns."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from opgraft.reporting.coverage import Coverage, OperatorCoverage
from opgraft.text import printable


def render(coverage: Coverage) -> RenderableType:
    """A summary, a table of operators, and the reasons for what is declined."""
    parts: list[RenderableType] = [Text(line) for line in _summary(coverage)]
    parts.append(_operators(coverage.operators))
    declined = [each for each in coverage.operators if each.declined]
    if declined:
        parts.append(_reasons(declined))
    return Group(*parts)


def _summary(coverage: Coverage) -> Iterable[str]:
    share = f"{coverage.claimed} of {coverage.nodes} nodes on the EP ({coverage.percentage:.1f}%)"
    if coverage.note:
        yield f"onnxruntime cannot load this model, and this is read from the file alone: {printable(coverage.note)}"
    yield f"{printable(coverage.model)}: {share}"
    sizes = ", ".join(map(str, coverage.subgraphs[:8])) + (", ..." if len(coverage.subgraphs) > 8 else "")
    yield f"subgraphs: {len(coverage.subgraphs)}" + (f" (nodes in each: {sizes})" if sizes else "")
    yield f"MLX device: {coverage.device}"


def _operators(operators: Iterable[OperatorCoverage]) -> Table:
    table = Table(title="Operators", title_justify="left", pad_edge=False, box=None, header_style="bold")
    table.add_column("operator", no_wrap=True)
    table.add_column("claimed", justify="right")
    table.add_column("declined", justify="right")
    table.add_column("pack")
    for each in operators:
        style = "" if not each.declined else "yellow"
        table.add_row(
            Text(printable(each.operator), style), str(each.claimed), str(each.declined or ""), ", ".join(each.packs)
        )
    return table


def _reasons(operators: Iterable[OperatorCoverage]) -> Table:
    table = Table(title="Declined", title_justify="left", pad_edge=False, box=None, header_style="bold")
    table.add_column("operator", no_wrap=True)
    table.add_column("nodes", justify="right")
    table.add_column("reason", overflow="fold")
    table.add_column("for instance", overflow="fold")
    for each in operators:
        for reason in each.reasons:
            said_by = f" [{reason.pack}]" if reason.pack else ""
            table.add_row(
                Text(printable(each.operator)),
                str(reason.count),
                Text(printable(reason.reason) + said_by),
                Text(printable(", ".join(reason.nodes))),
            )
    return table
