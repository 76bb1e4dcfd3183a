"""Coverage, packs and handlers as a terminal shows them, in at most 100 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from opgraft.reporting.coverage import Coverage, Fault, OperatorCoverage
from opgraft.reporting.packs import HandlerSummary, PackSummary
from opgraft.text import printable

SLOW_CLAIMS_SHOWN = 5


def render(coverage: Coverage) -> RenderableType:
    """A summary, a table of operators, and the reasons for what is declined."""
    parts: list[RenderableType] = [Text(line) for line in _summary(coverage)]
    parts.append(_operators(coverage.operators))
    declined = [each for each in coverage.operators if each.declined]
    if declined:
        parts.append(_reasons(declined))
    if coverage.faults:
        parts.append(_faults(coverage.faults))
    return Group(*parts)


def _summary(coverage: Coverage) -> Iterable[str]:
    share = f"{coverage.claimed} of {coverage.nodes} nodes on the EP ({coverage.percentage:.1f}%)"
    if coverage.note:
        yield f"onnxruntime cannot load this model, and this is read from the file alone: {printable(coverage.note)}"
    yield f"{printable(coverage.model)}: {share}"
    sizes = ", ".join(map(str, coverage.subgraphs[:8])) + (", ..." if len(coverage.subgraphs) > 8 else "")
    yield f"subgraphs: {len(coverage.subgraphs)}" + (f" (nodes in each: {sizes})" if sizes else "")
    yield f"MLX device: {coverage.device}"
    for claim in coverage.slow_claims[:SLOW_CLAIMS_SHOWN]:
        where = f"{claim.operator} {claim.node!r}"
        yield printable(f"the pack {claim.pack} took {1000 * claim.seconds:.0f} ms to decide about {where}")


def _operators(operators: Iterable[OperatorCoverage]) -> Table:
    table = _table("Operators")
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
    table = _table("Declined")
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


def _faults(faults: Iterable[Fault]) -> Table:
    table = _table("Faults of packs, which were passed over")
    for heading in ("pack", "operator", "nodes", "fault", "for instance"):
        table.add_column(heading, overflow="fold", justify="right" if heading == "nodes" else "left")
    for each in faults:
        cells = (each.pack, each.operator, str(each.count), each.reason, ", ".join(each.nodes))
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _table(title: str | None = None) -> Table:
    return Table(title=title, title_justify="left", pad_edge=False, box=None, header_style="bold")


def render_packs(packs: Iterable[PackSummary]) -> RenderableType:
    """A table of packs, and what each overrides, wraps and is kept from."""
    table = _table()
    for heading in ("pack", "distribution", "version", "operators", "state"):
        table.add_column(heading, overflow="fold")
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
    """A table with a line for each handler."""
    table = _table()
    table.add_column("operator", no_wrap=True)
    for heading in ("versions", "pack", "inputs", "attributes"):
        table.add_column(heading, overflow="fold")
    for each in dict.fromkeys(handlers):
        inputs = ", ".join(name for name, _ in each.inputs)
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
        ]
        for label, text in rows:
            if text:
                grid.add_row(Text(printable(label)), Text(printable(text)))
        parts = [Text(printable(each.doc))] if each.doc else []
        blocks.append(Padding(Group(*parts, grid), (0, 0, 0, 3)))
    return Group(*blocks)
