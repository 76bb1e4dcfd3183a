"""Writes docs/compatibility.md from the results of the matrix; by itself too, from those that are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from cells import CELLS, OLDEST_PYTHON, ROOT, Cell, lower_bounds
from checks import CHECKS
from results import Result, load

PAGE: Final = ROOT / "docs" / "compatibility.md"

_SHOWN: Final = ("python", "onnxruntime", "mlx", "onnx", "numpy")


def write_page(results: Mapping[str, Result]) -> None:
    PAGE.write_text(page(results), "utf-8")


def page(results: Mapping[str, Result]) -> str:
    """The page as Markdown."""
    tried = [(cell, results[cell.name]) for cell in CELLS if cell.name in results]
    columns = ["cell", *_SHOWN, *CHECKS, "date"]
    lines = [
        "# Compatibility",
        "",
        "What opgraft says that it supports is tried: every minor version of onnxruntime, every Python, and the oldest "
        "of each dependency; one of them at a time while the rest is the newest, and at last everything the oldest. "
        "Each cell is an environment of its own with one and the same wheel in it, where the unit tests, a real model "
        "(silero-vad, compared with the CPU EP) and `opgraft demo` run. `make matrix` writes this page.",
        "",
        f"| {' | '.join(columns)} |",
        f"|---|{'---|' * len(_SHOWN)}{'---:|' * len(CHECKS)}---|",
        *(_row(cell, result) for cell, result in tried),
        "",
        "Tests passed, of those that ran; with a test that is no test suite, one of one. "
        f"{_minutes(result for _, result in tried)} on {_join({result.machine for _, result in tried})}.",
        "",
        "## What failed",
        "",
        *([f"- {cell.name}: {line}" for cell, result in tried for line in result.failed] or ["Nothing."]),
        "",
        "## What was not run",
        "",
        *([f"- {cell.name}: {result.not_run}" for cell, result in tried if result.not_run] or ["Nothing."]),
        "",
        "## What differs",
        "",
        "What tests tell of, or were skipped for, that is not so with the newest of everything:",
        "",
        *([f"- {line}: {', '.join(cells)}" for line, cells in _differences(tried).items()] or ["Nothing."]),
        "",
        "## The oldest of everything",
        "",
        "The lower bounds of pyproject.toml, and the versions with which the cell `all-oldest` tried them:",
        "",
        "| what | at least | tried with |",
        "|---|---|---|",
        *_bounds(results["all-oldest"].versions if "all-oldest" in results else {}),
    ]
    return "\n".join(lines) + "\n"


def _row(cell: Cell, result: Result) -> str:
    versions = [result.versions.get(name, "") for name in _SHOWN]
    if result.not_run:
        versions[0] = cell.python
    return f"| {' | '.join([cell.name, *versions, *(_counts(result, check) for check in CHECKS), result.date])} |"


def _counts(result: Result, check: str) -> str:
    if check not in result.outcomes:
        return "not run"
    outcome = result.outcomes[check]
    return f"{outcome.passed} of {outcome.passed + len(outcome.failed)}"


def _minutes(results: Iterator[Result]) -> str:
    seconds = [sum(outcome.seconds for outcome in result.outcomes.values()) for result in results if result.outcomes]
    return f"{len(seconds)} cells took {sum(seconds) / 60:.0f} minutes, one after another,"


def _differences(tried: list[tuple[Cell, Result]]) -> Mapping[str, list[str]]:
    """The cells of each difference: what tests tell of it, and why tests were skipped that the newest cell runs."""
    usual = set(_told(tried[0][1]))
    found: dict[str, list[str]] = {}
    for cell, result in tried:
        for line in dict.fromkeys(_told(result)):
            if line not in usual:
                found.setdefault(line, []).append(cell.name)
    return found


def _told(result: Result) -> Iterator[str]:
    for outcome in result.outcomes.values():
        yield from (*outcome.differs, *outcome.skipped)


def _bounds(versions: Mapping[str, str]) -> Iterator[str]:
    for name, bound in {"python": OLDEST_PYTHON, **lower_bounds()}.items():
        yield f"| {name} | {bound} | {versions.get(name, '')} |"


def _join(texts: set[str]) -> str:
    return " and ".join(sorted(texts))


if __name__ == "__main__":
    write_page(load())
