"""What is run in each cell, and what came of it."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from cells import ROOT

LIMIT_SECONDS: Final = 1800

_PYTEST: Final = ("{bin}/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml={report}")

CHECKS: Final[Mapping[str, tuple[str, ...]]] = {
    "unit tests": (*_PYTEST, "tests/unit"),
    "silero-vad": (*_PYTEST, "tests/models/test_models.py", "-k", "silero-vad"),
    "opgraft demo": ("{bin}/opgraft", "demo"),
}
"""Command lines, by what the page calls them."""


@dataclass
class Outcome:
    """What came of a check.

    Attributes:
        passed, seconds: a check that is no test suite passes once or fails once.
        failed: a line for each test that failed.
        skipped: why tests were skipped, and how many.
        differs: what tests that passed say is different with these versions.
    """

    passed: int = 0
    seconds: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    differs: list[str] = field(default_factory=list)


def run(name: str, programs: Path) -> Outcome:
    """Run a check with the programs of an environment; what it prints goes into a log beside them."""
    folder = programs.parent
    report, log = folder / "report.xml", folder / f"{name}.log"
    report.unlink(missing_ok=True)
    command = [part.format(bin=programs, report=report) for part in CHECKS[name]]
    # Neither the tree nor the caller's packages: what is imported is the wheel.
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    started = time.monotonic()
    with log.open("wb") as file:
        try:
            status = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=file, stderr=file, timeout=LIMIT_SECONDS, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
    outcome = read_report(report.read_text("utf-8")) if report.exists() else Outcome(passed=int(status == 0))
    if status != 0 and not outcome.failed:
        ending = f"the process ended with {status}" if status is not None else f"no end within {LIMIT_SECONDS} s"
        outcome.failed.append(f"{ending}: {log}")
    outcome.seconds = round(time.monotonic() - started)
    return outcome


def read_report(text: str) -> Outcome:
    """What pytest's XML report tells."""
    outcome, skipped = Outcome(), Counter[str]()
    for case in ElementTree.fromstring(text).iter("testcase"):
        bad = [*case.findall("failure"), *case.findall("error")]
        skip = case.find("skipped")
        for each in bad:
            message = str(each.get("message")).partition("\n")[0]
            outcome.failed.append(f"{case.get('classname')}::{case.get('name')}: {message}")
        if skip is not None and skip.get("type") != "pytest.xfail":
            skipped[str(skip.get("message"))] += 1
        elif skip is None and not bad:
            outcome.passed += 1
        outcome.differs += [str(each.get("value")) for each in case.iter("property") if each.get("name") == "differs"]
    outcome.skipped = dict(skipped)
    return outcome
