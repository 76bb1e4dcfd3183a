"""Many models at once: operators by models, and which operator, if it were added, would help most of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opgraft.reporting.report import Report
from opgraft.reporting.what_if import Split, WhatIf


@dataclass(frozen=True)
class ModelLine:
    """One model: its numbers, or what is wrong with it.

    Attributes:
        model: its path in the folder.
        problem: why there is no report on it; None where there is one.
        note: why ONNX Runtime cannot load it; its numbers are then from the file alone.
        nodes, claimed: its nodes, and those on the execution provider.
        split: how it is split.
        breaks: its graph breaks.
    """

    model: str
    problem: str | None
    note: str | None
    nodes: int
    claimed: int
    split: Split | None
    breaks: int

    @property
    def percentage(self) -> float:
        return 100.0 * self.claimed / self.nodes if self.nodes else 100.0


@dataclass(frozen=True)
class Cell:
    """How many nodes of an operator a model has on the execution provider, and on the CPU."""

    claimed: int
    declined: int


@dataclass(frozen=True)
class OperatorLine:
    """One operator over all models. Each cell stands for the model of the same index; None: it has no such node.

    Attributes:
        operator: `domain::OpType`.
        cells: by model.
        helped: how many models would have fewer subgraphs, or more nodes in no more, if all its nodes were claimed.
        subgraphs_saved: over all models that would have fewer.
        nodes_gained: over all models.
    """

    operator: str
    cells: tuple[Cell | None, ...]
    helped: int
    subgraphs_saved: int
    nodes_gained: int

    @property
    def declined_in(self) -> int:
        """How many models have nodes of it on the CPU."""
        return sum(cell is not None and cell.declined > 0 for cell in self.cells)


@dataclass(frozen=True)
class Matrix:
    """The models of a folder, and the operators in them, those that would help most models first."""

    models: tuple[ModelLine, ...]
    operators: tuple[OperatorLine, ...]


@dataclass(frozen=True)
class Entry:
    """What a matrix keeps of a model while others are read: all but its graph."""

    line: ModelLine
    cells: Mapping[str, Cell]
    changes: Mapping[str, WhatIf]

    @classmethod
    def of(cls, model: str, report: Report) -> Entry:
        line = ModelLine(
            model,
            None,
            report.coverage.note,
            report.coverage.nodes,
            report.coverage.claimed,
            report.split,
            len(report.breaks),
        )
        cells = {each.operator: Cell(each.claimed, each.declined) for each in report.operators}
        return cls(line, cells, _changes(report))

    @classmethod
    def failed(cls, model: str, problem: str) -> Entry:
        return cls(ModelLine(model, problem, None, 0, 0, None, 0), {}, {})


def _changes(report: Report) -> dict[str, WhatIf]:
    """By operator, what claiming all that is declined of it, and could be claimed, would change."""
    groups: dict[str, list[int]] = {}
    for index, group in enumerate(report.declined):
        groups.setdefault(group.operator, []).append(index)
    found: dict[str, WhatIf] = {}
    for operator, indices in groups.items():
        inside = [each for each in report.what_if if set(each.groups) <= set(indices)]
        if inside:
            found[operator] = max(inside, key=lambda each: len(each.groups))
    return found


def matrix_of(entries: Sequence[Entry]) -> Matrix:
    """The matrix of some models."""
    operators = dict.fromkeys(operator for each in entries for operator in (*each.cells, *each.changes))
    lines = [_operator_line(operator, entries) for operator in operators]
    lines.sort(
        key=lambda line: (-line.helped, -line.subgraphs_saved, -line.nodes_gained, -line.declined_in, line.operator)
    )
    return Matrix(tuple(each.line for each in entries), tuple(lines))


def _operator_line(operator: str, entries: Sequence[Entry]) -> OperatorLine:
    changes = [entry.changes[operator] for entry in entries if operator in entry.changes]
    saved = [each.before.subgraphs - each.after.subgraphs for each in changes]
    gained = [each.after.nodes - each.before.nodes for each in changes]
    helped = [fewer > 0 or (fewer == 0 and more > 0) for fewer, more in zip(saved, gained, strict=True)]
    cells = tuple(entry.cells.get(operator) for entry in entries)
    return OperatorLine(operator, cells, sum(helped), sum(max(each, 0) for each in saved), sum(gained))
