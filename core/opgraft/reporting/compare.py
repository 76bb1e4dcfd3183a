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


def compare(first: Report, second: Report) -> Comparison:
    """What differs between two reports."""
    return Comparison(
        _names(first, second),
        (first.coverage.nodes, second.coverage.nodes),
        (first.coverage.claimed, second.coverage.claimed),
        (first.percentage, second.percentage),
        (first.split, second.split),
        (len(first.breaks), len(second.breaks)),
        _operators(first, second),
        _groups(first, second),
    )


def _names(first: Report, second: Report) -> tuple[str, str]:
    """What tells the two apart; models of one name with one registry and of one version are just A and B."""
    for of in (
        lambda report: report.coverage.model,
        lambda report: report.setting.registry,
        lambda report: f"opgraft {report.setting.opgraft}",
        lambda report: f"onnxruntime {report.setting.onnxruntime}",
        lambda report: report.coverage.device,
    ):
        if of(first) != of(second):
            return of(first), of(second)
    return "A", "B"


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
