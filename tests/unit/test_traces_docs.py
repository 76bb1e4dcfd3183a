"""What docs/traces.md shows runs as shown."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_models import in_profiles
from reporting_models import DETECTOR

from opgraft.tracing import MOST_EVENTS
from opgraft.tracing.settings import CLAIM_DEBUG, TRACE, TRACE_OPS, VERBOSE

PAGE = (Path(__file__).parents[2] / "docs" / "traces.md").read_text("utf-8")
COMMANDS = re.findall(r"^    (OPGRAFT_.*)$", PAGE, re.MULTILINE)
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHOWN = re.findall(r"^```\n(opgraft.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(DETECTOR, tmp_path / "model.onnx")
    (tmp_path / "mine.yaml").write_text("ops:\n  Split: {deny: [builtin]}\n")
    return tmp_path


def stderr_of(holding: str) -> str:
    (command,) = [each for each in COMMANDS if holding in each]
    words = command.split()
    settings = dict(word.split("=", 1) for word in words if word.startswith("OPGRAFT_"))
    arguments = words[len(settings) + 1 :]
    result = subprocess.run(
        [sys.executable, "-m", "opgraft.cli", *arguments],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stderr


RUNS = re.compile(r"runs of subgraphs: (.*) in 11 runs of the session")


def whatever_the_clock_says(text: str) -> str:
    """A digest without times and sizes; on the clock depends, too, whether a part of a subgraph is worth a trace."""
    joined = " ".join(text.split("node  ")[0].split())
    assert sum(map(int, re.findall(r"\d+", RUNS.search(joined)[1]))) == 88  # type: ignore[index]
    return re.sub(r"\d+\.\d+( [kM]B)?|\(\d+%\)|device: \w+", "", RUNS.sub("", joined))


def test_the_digest(folder: Path) -> None:
    assert whatever_the_clock_says(stderr_of("OPGRAFT_VERBOSE")) == whatever_the_clock_says(SHOWN[0])


def test_the_trace(folder: Path) -> None:
    assert stderr_of("OPGRAFT_TRACE=") == ""
    events = json.loads((folder / "out.json").read_text())["traceEvents"]
    spans = {event["name"] for event in events if event["ph"] == "X"}
    rows = re.findall(r"^\| (`.*?) \|", PAGE[PAGE.index("| span |") : PAGE.index("The counter")], re.MULTILINE)
    for name in re.findall(r"`(.*?)`", " ".join(rows)):
        if name not in ("evaluate Conv", "read back"):  # where they are computed alone; where data decides
            assert any(each.startswith(name.removesuffix("…")) for each in spans), name


def test_the_nodes_that_are_not_claimed(folder: Path) -> None:
    lines = [line.replace(f"{folder}/", "") for line in stderr_of("OPGRAFT_CLAIM_DEBUG").splitlines()]
    assert SHOWN[1].strip() in lines


def printed(code: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    names: dict[str, Any] = {"images": np.zeros((1, 3, 160, 160), np.float32)}
    for each in code:
        exec(compile(each, "traces.md", "exec"), names)
    return capsys.readouterr().out


def test_the_code_that_reads_a_trace(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'ai.onnx::Conv'" in printed(CODE[:2], capsys)


@in_profiles
def test_the_code_that_reads_a_profile(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(CODE, capsys).splitlines()[-1] == "eager 307200"


def test_the_variables_and_the_bound() -> None:
    rows = re.findall(r"^\| `(OPGRAFT_\w+)=", PAGE, re.MULTILINE)
    assert set(rows) == {VERBOSE, TRACE, TRACE_OPS, CLAIM_DEBUG}
    assert f"keeps {MOST_EVENTS:,} events" in PAGE
