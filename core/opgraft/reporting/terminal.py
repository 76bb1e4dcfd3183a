"""Coverage, packs and handlers as text. Where lines must be folded, nothing is lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from opgraft.reporting.coverage import Coverage, Fault, OperatorCoverage, share_text
from opgraft.reporting.packs import HandlerSummary, PackSummary
from opgraft.text import printable

SLOW_CLAIMS_SHOWN = 5


def render(coverage: Coverage) -> RenderableType:
    """A summary, a table of operators, and the reasons for what is declined."""
    parts: list[RenderableType] = [Text(line) for line in summary(coverage)]
    if coverage.operators:
        parts.append(operators_table(coverage.operators))
    declined = [each for each in coverage.operators if each.declined]
    if declined:
        parts.append(reasons_table(declined))
    if coverage.faults:
        parts.append(faults_table(coverage.faults))
    return Group(*parts)


def summary(coverage: Coverage) -> Iterable[str]:
    """The first lines of every view of a model."""
    if coverage.note:
        yield f"onnxruntime cannot load this model, and this is read from the file alone: {printable(coverage.note)}"
    yield f"{printable(coverage.model)}: {share_text(coverage)}"
    sizes = ", ".join(map(str, coverage.subgraphs[:8])) + (", ..." if len(coverage.subgraphs) > 8 else "")
    yield f"subgraphs: {len(coverage.subgraphs)}" + (f" (nodes in each: {sizes})" if sizes else "")
    yield f"MLX device: {coverage.device}"
    for claim in coverage.slow_claims[:SLOW_CLAIMS_SHOWN]:
        where = f"{claim.operator} {claim.node!r}"
        yield printable(f"the pack {claim.pack} took {1000 * claim.seconds:.0f} ms to decide about {where}")
    for missed in coverage.missed_versions:
        yield printable(
            f"the pack {missed.pack} was not asked for {missed.count} x {missed.operator}: the model has its version "
            f"{missed.version}, the pack handlers of versions {missed.versions}"
        )


def operators_table(operators: Iterable[OperatorCoverage]) -> Table:
    """A line for each operator."""
    table = FoldingTable("Operators")
    table.add_column("operator")
    table.add_column("claimed", justify="right")
    table.add_column("declined", justify="right")
    table.add_column("pack")
    for each in operators:
        style = "" if not each.declined else "yellow"
        table.add_row(
            Text(printable(each.operator), style), str(each.claimed), str(each.declined or ""), ", ".join(each.packs)
        )
    return table


def reasons_table(operators: Iterable[OperatorCoverage]) -> Table:
    """A line for each reason why nodes are declined."""
    table = FoldingTable("Declined")
    table.add_column("operator")
    table.add_column("nodes", justify="right")
    table.add_column("reason")
    table.add_column("for instance")
    for each in operators:
        for reason in each.reasons:
            said_by = f" [{reason.pack}]" if reason.pack else ""
            table.add_row(
                Text(printable(each.operator)),
                str(reason.count),
                Text(printable("; ".join([reason.reason + said_by, *reason.also]))),
                Text(printable(", ".join(reason.nodes))),
            )
    return table


def faults_table(faults: Iterable[Fault]) -> Table:
    """A line for each fault of a pack."""
    table = FoldingTable("Faults of packs, which were passed over")
    for heading in ("pack", "operator", "nodes", "fault", "for instance"):
        table.add_column(heading, justify="right" if heading == "nodes" else "left")
    for each in faults:
        cells = (each.pack, each.operator, str(each.count), each.reason, ", ".join(each.nodes))
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def spaced(parts: Iterable[RenderableType]) -> Iterator[RenderableType]:
    """Parts with an empty line before each table that does not come first."""
    for number, part in enumerate(parts):
        if isinstance(part, Table) and number:
            yield Text()
        yield part


class FoldingTable(Table):
    """A table as all of them look, under a heading that may be wider than it. What is too wide is folded, not cut."""

    def __init__(self, heading: str | None = None) -> None:
        super().__init__(pad_edge=False, box=None, header_style="bold")
        self.heading = heading

    def add_column(self, header: RenderableType = "", **options: Any) -> None:  # type: ignore[override]
        super().add_column(header, **{"overflow": "fold", **options})

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.heading is not None:
            yield Text(self.heading, "italic")
        yield from super().__rich_console__(console, options)


def render_packs(packs: Iterable[PackSummary]) -> RenderableType:
    """A table of packs, and what each overrides, wraps and is kept from."""
    table = FoldingTable()
    for heading in ("pack", "distribution", "version", "operators", "state"):
        table.add_column(heading)
    notes: list[RenderableType] = []
    for pack in packs:
        cells = (pack.name, pack.distribution, pack.version, str(len(pack.operators)), pack.state)
        table.add_row(*(Text(printable(cell)) for cell in cells))
        overrides: dict[str, list[str]] = {}
        for operator, other in pack.overrides:
            overrides.setdefault(other, []).append(operator)
        notes += [_note(f"{pack.name} is asked before {other} for", names) for other, names in overrides.items()]
        notes += [_note(f"{pack.name} wraps", pack.wraps)] if pack.wraps else []
        notes += [_note(f"{pack.name} is not asked for {operator}:", [why]) for operator, why in pack.held_back]
    return Group(table, *notes)


def _note(start: str, names: Sequence[str]) -> Text:
    return Text(printable(f"{start} {', '.join(names)}"))


def render_operators(handlers: Iterable[HandlerSummary]) -> RenderableType:
    """A table with a line for each handler; of a plugin that has no signature to show, what it says of itself."""
    table = FoldingTable()
    table.add_column("operator")
    for heading in ("versions", "pack", "inputs", "attributes"):
        table.add_column(heading)
    for each in dict.fromkeys(handlers):
        inputs = ", ".join(name for name, _ in each.inputs) if each.versions else each.doc
        cells = (each.operator, each.versions, each.pack, inputs, ", ".join(name for name, _ in each.attributes))
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def render_handlers(handlers: Sequence[HandlerSummary]) -> RenderableType:
    """All there is to know of the handlers of one operator, in the order in which they are asked."""
    blocks: list[RenderableType] = []
    for number, each in enumerate(dict.fromkeys(handlers), 1):
        versions = f", versions {each.versions}" if each.versions else ""
        blocks.append(Text(printable(f"{number}. {each.operator}{versions}, in the pack {each.pack}"), "bold"))
        grid = Table.grid(padding=(0, 2))
        grid.add_column()
        grid.add_column(overflow="fold")
        rows = [
            *((f"input {name}", types) for name, types in each.inputs),
            *((f"attribute {name}", default or "required") for name, default in each.attributes),
            ("shape arithmetic", "on the host too" if each.on_host else ""),
            ("wrapped by", ", ".join(each.wrappers)),
            (f"versions without a handler in {each.pack}", ", ".join(map(str, each.missed))),
        ]
        for label, text in rows:
            if text:
                grid.add_row(Text(printable(label)), Text(printable(text)))
        parts = [Text(printable(each.doc))] if each.doc else []
        blocks.append(Padding.indent(Group(*parts, grid), 3))
    return Group(*blocks)
