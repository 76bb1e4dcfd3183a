"""Two reports side by side: of two models, of one with two registries, or of two versions."""

from __future__ import annotations

from dataclasses import dataclass

from opgraft.reporting.report import Report
from opgraft.reporting.what_if import DeclinedGroup, Split


@dataclass(frozen=True)
class ComparedOperator:
    """An operator whose nodes are not claimed and declined alike: how many are, in each of the two."""

    operator: str
    claimed: tuple[int, int]
    declined: tuple[int, int]


@dataclass(frozen=True)
class ComparedGroup:
    """A declined group of one, of the other or of both, with the number of its nodes in each of the two."""

    title: str
    reason: str
    nodes: tuple[int, int]


@dataclass(frozen=True)
class Comparison:
    """What differs between two reports.

    Attributes:
        names: what to call the two.
        legend: what these names stand for, a line for each, where they do not say it themselves.
        nodes, claimed, percentage: of each.
        splits: how each is split.
        breaks: the graph breaks of each.
        operators: those that differ, the most different first.
        groups: those that differ in the number of their nodes.
    """

    names: tuple[str, str]
    nodes: tuple[int, int]
    claimed: tuple[int, int]
    percentage: tuple[float, float]
    splits: tuple[Split, Split]
    breaks: tuple[int, int]
    operators: tuple[ComparedOperator, ...]
    groups: tuple[ComparedGroup, ...]
    legend: tuple[str, ...] = ()


def compare(first: Report, second: Report) -> Comparison:
    """What differs between two reports."""
    names, legend = _names(first, second)
    return Comparison(
        names,
        (first.coverage.nodes, second.coverage.nodes),
        (first.coverage.claimed, second.coverage.claimed),
        (first.percentage, second.percentage),
        (first.split, second.split),
        (len(first.breaks), len(second.breaks)),
        _operators(first, second),
        _groups(first, second),
        legend,
    )


def _names(first: Report, second: Report) -> tuple[tuple[str, str], tuple[str, ...]]:
    """What to call the two, and a legend: models by their names, and otherwise A and B."""
    models = first.coverage.model, second.coverage.model
    if models[0] != models[1]:
        return models, ()
    said = _described(first), _described(second)
    apart = [[what for what in one if what not in other] for one, other in (said, said[::-1])]
    if any(apart):
        return ("A", "B"), tuple(f"{name}: {', '.join(what)}" for name, what in zip("AB", apart, strict=True))
    return ("A", "B"), (f"A and B: {models[0]}, {', '.join(said[0])}",)


def _described(report: Report) -> tuple[str, ...]:
    """What a report was made with."""
    setting = report.setting
    return (
        f"registry {setting.registry}",
        f"opgraft {setting.opgraft}",
        f"onnxruntime {setting.onnxruntime}",
        f"MLX {setting.mlx} on the {report.coverage.device}",
    )


def _operators(first: Report, second: Report) -> tuple[ComparedOperator, ...]:
    sides = [{each.operator: each for each in report.operators} for report in (first, second)]
    found = []
    for operator in dict.fromkeys([*sides[0], *sides[1]]):
        a, b = (side.get(operator) for side in sides)
        claimed = (a.claimed if a else 0, b.claimed if b else 0)
        declined = (a.declined if a else 0, b.declined if b else 0)
        if claimed[0] != claimed[1] or declined[0] != declined[1]:
            found.append(ComparedOperator(operator, claimed, declined))
    return tuple(sorted(found, key=lambda each: -abs(each.claimed[1] - each.claimed[0])))


def _groups(first: Report, second: Report) -> tuple[ComparedGroup, ...]:
    counts: dict[tuple[str, str], list[int]] = {}
    for side, report in enumerate((first, second)):
        for group in report.declined:
            counts.setdefault((group.title, _reason(group)), [0, 0])[side] += group.nodes
    return tuple(ComparedGroup(*key, (a, b)) for key, (a, b) in counts.items() if a != b)


def _reason(group: DeclinedGroup) -> str:
    return "; ".join(group.reasons)
