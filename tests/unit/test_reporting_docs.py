"""The commands that docs/report.md shows run as shown."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner
from reporting_models import DETECTOR, parsed

from opgraft.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "report.md").read_text("utf-8")
COMMANDS = re.findall(r"^    (opgraft [^#\n]*)", PAGE, re.MULTILINE)


def run(command: str) -> str:
    line, _, target = command.partition(">")
    result = CliRunner().invoke(main, shlex.split(line)[1:])
    assert result.exit_code == 0, (command, result.output)
    if target:
        Path(target.strip()).write_text(result.stdout)
    return result.stdout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(DETECTOR, tmp_path / "model.onnx")
    onnx.save(parsed("g (float[n] x) => (float[n] y) { y = Neg(x) }"), tmp_path / "other.onnx")
    (tmp_path / "models").mkdir()
    for name in ("model", "other"):
        shutil.copy(tmp_path / f"{name}.onnx", tmp_path / "models")
    (tmp_path / "mine.yaml").write_text("ops:\n  Split: {deny: [builtin]}\n  Resize: {deny: [builtin]}\n")
    (tmp_path / "yours.yaml").write_text("ops: {}\n")
    return tmp_path


def test_every_command_runs(folder: Path) -> None:
    assert len(COMMANDS) > 10
    for command in COMMANDS:
        run(command)
    assert (folder / "report.html").exists()


def test_what_is_shown_is_what_comes(folder: Path) -> None:
    (shown,) = re.findall(r"```\n(.*?)```", PAGE, re.DOTALL)
    came = [line.rstrip() for line in run("opgraft report model.onnx --registry mine.yaml").splitlines()]
    for line in shown.splitlines():
        assert line == "..." or line.rstrip() in came, line
