"""Two reports, or those of a whole folder, as a terminal shows them"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from opgraft.reporting.compare import Comparison
from opgraft.reporting.matrix import Cell, Matrix, ModelLine
from opgraft.reporting.terminal import FoldingTable, spaced
from opgraft.reporting.wording import bytes_text, counted
from opgraft.text import printable, size_text

MODELS_ACROSS = 8
"""So many models have a column of their own in a terminal; JSON and Markdown have all."""

ROWS_SHOWN = 40


def comparison_rows(found: Comparison) -> list[tuple[str, str, str, str]]:
    """What both have in different numbers: what, in the first, in the second, and the difference."""
    first, second = found.splits
    numbers = [
        ("nodes", *found.nodes),
        ("nodes on the EP", *found.claimed),
        ("subgraphs", first.subgraphs, second.subgraphs),
        ("tensors that cross", first.crossings.tensors, second.crossings.tensors),
        ("tensors of unknown size", first.crossings.unknown, second.crossings.unknown),
        ("graph breaks", *found.breaks),
    ]
    rows = [(what, f"{a:,}", f"{b:,}", f"{b - a:+,}" if a != b else "") for what, a, b in numbers]
    a, b = first.crossings.bytes, second.crossings.bytes
    known = bytes_text(first.crossings), bytes_text(second.crossings)
    unknown = bool(first.crossings.unknown or second.crossings.unknown)
    change = "" if a == b else f"{size_text(b - a)}{' + ?' if unknown else ''}"
    rows.insert(4, ("bytes that cross", *known, change))
    low, high = found.percentage
    change = f"{high - low:+.1f}" if low != high else ""
    rows.insert(2, ("percent on the EP", f"{low:.1f}", f"{high:.1f}", change))
    return rows


def render_comparison(found: Comparison) -> RenderableType:
    """What differs between two reports."""
    numbers = FoldingTable()
    numbers.add_column("")
    for name in (*map(printable, found.names), "difference"):
        numbers.add_column(Text(name), justify="right")
    for row in comparison_rows(found):
        numbers.add_row(*row)
    parts: list[RenderableType] = [*(Text(printable(line)) for line in found.legend), numbers]
    if found.operators:
        operators = FoldingTable("Operators that differ")
        operators.add_column("operator")
        for heading in ("claimed in the first", "in the second", "declined in the first", "in the second"):
            operators.add_column(heading, justify="right")
        for each in found.operators:
            operators.add_row(Text(printable(each.operator)), *map(str, (*each.claimed, *each.declined)))
        parts.append(operators)
    if found.groups:
        groups = FoldingTable("Declined nodes that differ")
        groups.add_column("operator")
        groups.add_column("nodes in the first", justify="right")
        groups.add_column("in the second", justify="right")
        groups.add_column("reason")
        for group in found.groups:
            groups.add_row(Text(printable(group.title)), *map(str, group.nodes), Text(printable(group.reason)))
        parts.append(groups)
    if not found.operators and not found.groups:
        parts.append(Text("Every operator is claimed and declined alike."))
    return Group(*spaced(parts))


def render_matrix(matrix: Matrix) -> RenderableType:
    """The models of a folder, and the operators that would help most of them."""
    parts: list[RenderableType] = [_models(matrix.models)]
    missing = [line for line in matrix.operators if line.declined_in]
    if missing:
        across = len(matrix.models) if len(matrix.models) <= MODELS_ACROSS else 0
        title = "Which operator, if it were added, would help most models"
        table = FoldingTable(f"{title}; by model: nodes on the CPU of all" if across else title)
        table.add_column("operator")
        for heading in ("models helped", "declined in", "subgraphs saved", "nodes gained"):
            table.add_column(heading, justify="right")
        for number in range(across):
            table.add_column(f"#{number + 1}", justify="right")
        for line in missing[:ROWS_SHOWN]:
            counts = (line.helped, line.declined_in, line.subgraphs_saved, line.nodes_gained)
            table.add_row(Text(printable(line.operator)), *map(str, counts), *map(cell_text, line.cells[:across]))
        parts.append(table)
        if len(missing) > ROWS_SHOWN:
            parts.append(Text(f"... and {len(missing) - ROWS_SHOWN} more (--json and --markdown have all)"))
    else:
        parts.append(Text("Every node of every model that can be read is on the EP."))
    return Group(*spaced(parts))


def cell_text(cell: Cell | None) -> str:
    """Declined nodes of all; a dot where there are none of the operator."""
    return "." if cell is None else f"{cell.declined}/{cell.claimed + cell.declined}"


def problem_text(line: ModelLine) -> str:
    """What there is to say of a model beside its numbers."""
    if line.problem is not None:
        return line.problem
    return "" if line.note is None else f"from the file alone: {line.note}"


def _models(models: Sequence[ModelLine]) -> RenderableType:
    table = FoldingTable(counted(len(models), "model"))
    table.add_column("#", justify="right")
    table.add_column("model")
    for heading in ("nodes", "on EP", "%", "subgraphs", "breaks"):
        table.add_column(heading, justify="right")
    problems = any(map(problem_text, models))
    if problems:
        table.add_column("problem")
    for number, line in enumerate(models, 1):
        split = line.split
        numbers = (
            ("", "", "", "", "")
            if split is None
            else (str(line.nodes), str(line.claimed), f"{line.percentage:.1f}", str(split.subgraphs), str(line.breaks))
        )
        problem = (Text(printable(problem_text(line)), "" if line.problem is None else "red"),) if problems else ()
        table.add_row(str(number), Text(printable(line.model)), *numbers, *problem)
    return table
