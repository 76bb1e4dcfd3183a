"""docs/compatibility.md is what the matrix found, and the matrix covers what pyproject.toml and the README say."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cells import CELLS, OLDEST_PYTHON, ONNXRUNTIMES, PROJECT, ROOT, Cell, lower_bounds
from checks import CHECKS, Outcome, read_report
from compatibility_page import PAGE, page
from packaging.specifiers import SpecifierSet
from results import Result, load

from opgraft.host.requirements import OLDEST_MLX, OLDEST_ONNXRUNTIME

RESULTS = load()


def test_the_page_is_written_from_the_results() -> None:
    assert PAGE.read_text("utf-8") == page(RESULTS), "run tests/matrix/compatibility_page.py"


def test_every_cell_was_tried_and_none_failed() -> None:
    assert list(RESULTS) == [cell.name for cell in CELLS]
    for name, result in RESULTS.items():
        assert result.not_run or result.outcomes.keys() == CHECKS.keys(), name
        assert not result.failed, name


def test_every_onnxruntime_was_run() -> None:
    ran = {result.versions["onnxruntime"].rpartition(".")[0] for result in RESULTS.values() if result.outcomes}
    assert ran == set(ONNXRUNTIMES)


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.oldest], ids=lambda cell: cell.name)
def test_the_lower_bounds_were_run(cell: Cell) -> None:
    for name in cell.oldest:
        tried, bound = RESULTS[cell.name].versions[name], lower_bounds()[name]
        assert tried in SpecifierSet(f"=={bound}.*"), f"{name}>={bound} was tried with {tried}: make matrix"


def test_what_is_supported_is_said_once_and_the_same() -> None:
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    assert project["requires-python"] == f">={OLDEST_PYTHON}"
    bounds = lower_bounds()
    for name, oldest in {"onnxruntime": OLDEST_ONNXRUNTIME, "mlx": OLDEST_MLX}.items():
        assert bounds[name] == ".".join(map(str, oldest))
    assert bounds["onnxruntime"].startswith(f"{ONNXRUNTIMES[0]}.")
    assert RESULTS["all-oldest"].versions["python"].startswith(f"{OLDEST_PYTHON}.")
    said = f"every `onnxruntime` from {bounds['onnxruntime']} on and every Python from {OLDEST_PYTHON} on"
    assert said in (ROOT / "README.md").read_text("utf-8")


TESTS = """
import pytest

def test_passes(record_property):
    record_property("differs", "it has no colours")
    record_property("else", "nothing")

def test_fails():
    assert 1 == 2, "one is not two"

@pytest.fixture
def broken():
    raise OSError("no")

def test_errs(broken):
    pass

@pytest.mark.parametrize("x", [1, 2])
def test_skips(x):
    pytest.skip("there is no sea")

@pytest.mark.xfail
def test_known():
    assert False
"""


def test_a_report_is_read(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={tmp_path / 'it.xml'}"]
    subprocess.run([*command, str(tmp_path)], cwd=tmp_path, capture_output=True, check=False)
    found = read_report((tmp_path / "it.xml").read_text())
    assert found.passed == 1
    assert [line.partition(":: ")[0].partition(": ")[0] for line in found.failed] == [
        "test_it::test_fails",
        "test_it::test_errs",
    ]
    assert "one is not two" in found.failed[0]
    assert found.skipped == {"there is no sea": 2}
    assert found.differs == ["it has no colours"]


def test_the_page_tells_what_failed_what_differs_and_what_was_not_run() -> None:
    def of(**outcome: object) -> Result:
        return Result("2026-01-02", "a machine", {"python": "3.14.1"}, {"unit tests": Outcome(passed=3, **outcome)})  # type: ignore[arg-type]

    text = page(
        {
            "newest": of(skipped={"no GPU": 2}),
            "onnxruntime-1.31": of(skipped={"no GPU": 2, "no sea": 1}, differs=["no colours"], failed=["test_x: no"]),
            "python-3.15": Result("2026-01-02", "a machine", not_run="no wheel"),
        }
    )
    assert "| onnxruntime-1.31 | 3.14.1 |  |  |  |  | 3 of 4 | not run | not run | 2026-01-02 |" in text
    assert "\n- onnxruntime-1.31: test_x: no\n" in text
    assert "\n- no colours: onnxruntime-1.31\n- no sea: onnxruntime-1.31\n" in text
    assert "no GPU" not in text
    assert "| python-3.15 | 3.15 |  |  |  |  | not run | not run | not run | 2026-01-02 |" in text
    assert "\n- python-3.15: no wheel\n" in text
