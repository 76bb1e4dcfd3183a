"""Damaged model files end in an answer, the CPU execution provider's, or in an ordinary error."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from files import OWN_CRASH, WRONG, Wrong, checked, chunk, damaged
from processes import run_cases

from opgraft.graph.model import topologically_sorted

FILES = 300

SCRIPT = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {folder!r})
from processes import Mark
mark = Mark(Path(sys.argv[1]))
for number in range(3):
    mark.at(number, "at work", 0.5)
    if number == 1:
        {end}
mark.done()
"""


def test_files(tmp_path: Path) -> None:
    found = list(chunk(0, FILES, tmp_path))
    wrong = [f"{each['number']} ({each['about']}): {each['text']}" for each in found if each["kind"] == WRONG]
    assert not wrong, "\n".join(wrong)
    kinds = Counter(each["kind"] for each in found)
    assert sum(kinds.values()) == FILES
    assert kinds["refused"] < 0.8 * FILES
    assert kinds["equal"] > 0.1 * FILES
    assert kinds[OWN_CRASH] < 3


def test_a_file_is_the_same_for_a_number(tmp_path: Path) -> None:
    for number in range(20):
        files = []
        for folder in ("one", "other"):
            (tmp_path / folder / str(number)).mkdir(parents=True)
            files.append(damaged(number, tmp_path / folder / str(number)))
        assert files[0].about == files[1].about
        if "external" not in files[0].about:  # which may name the folder
            assert files[0].path.read_bytes() == files[1].path.read_bytes()


@pytest.mark.parametrize("end", ["os.abort()", "time.sleep(10)"])
def test_the_case_is_known_that_a_process_dies_of(end: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent), end=end))
    ended = run_cases(str(script), [str(tmp_path / "mark")], tmp_path / "mark")
    assert (ended.number, ended.doing) == (1, "at work")
    assert ended.died


def test_a_process_that_lives_died_of_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent), end="pass"))
    assert run_cases(str(script), [str(tmp_path / "mark")], tmp_path / "mark").died == ""


def test_an_error_of_python_from_our_code_is_no_ordinary_one() -> None:
    with pytest.raises(Wrong, match="AttributeError"):
        checked("sorting", lambda: topologically_sorted([None]))  # type: ignore[list-item]
