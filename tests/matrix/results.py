"""Results of the matrix, as results.json keeps them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from checks import Outcome

RESULTS: Final = Path(__file__).with_name("results.json")


@dataclass
class Result:
    """What came of a cell.

    Attributes:
        date, machine: when and where it was tried.
        versions: of Python and of every package; none where no environment is to be had.
        outcomes: by the name of the check.
        not_run: why nothing was run.
    """

    date: str
    machine: str
    versions: Mapping[str, str] = field(default_factory=dict)
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    not_run: str = ""

    @property
    def failed(self) -> list[str]:
        return [line for outcome in self.outcomes.values() for line in outcome.failed]


def load() -> dict[str, Result]:
    """The results by cell."""
    if not RESULTS.exists():
        return {}
    return {
        name: Result(
            **{**fields, "outcomes": {check: Outcome(**outcome) for check, outcome in fields["outcomes"].items()}}
        )
        for name, fields in json.loads(RESULTS.read_text("utf-8")).items()
    }


def save(results: Mapping[str, Result]) -> None:
    """Keep the results."""
    text = json.dumps({name: asdict(result) for name, result in results.items()}, indent=1, ensure_ascii=False)
    RESULTS.write_text(text + "\n", "utf-8")
