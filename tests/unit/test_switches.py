"""Variables of the environment: one way to read all of them, and a table of all."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from opgraft import switches
from opgraft.allocation import SWITCH as KEEP_MEMORY
from opgraft.blas import SWITCH as BLAS
from opgraft.engine.fusing import SWITCH as COMPILE
from opgraft.engine.fusing import Fusing, fusing_on
from opgraft.switches import chosen, switched

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"OPGRAFT_[A-Z_]*[A-Z]")


@pytest.fixture(autouse=True)
def not_warned() -> None:
    switches._warn.cache_clear()


@pytest.mark.parametrize("word", ["1", "on", "true", "yes", "ON", "True", " yes "])
def test_words_that_turn_on(word: str) -> None:
    assert switched("V", environment={"V": word})


@pytest.mark.parametrize("word", ["0", "off", "false", "no", "OFF", "False", " no "])
def test_words_that_turn_off(word: str) -> None:
    assert not switched("V", default=True, environment={"V": word})


@pytest.mark.parametrize("environment", [{}, {"V": ""}, {"V": "  "}])
@pytest.mark.parametrize("default", [True, False])
def test_empty_is_unset(environment: dict[str, str], default: bool) -> None:
    assert switched("V", default=default, environment=environment) is default


def test_any_other_word_is_one_warning_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "opgraft"):
        for _ in range(3):
            assert switched("V", default=True, environment={"V": "nope"})
        assert chosen("W", {"openblas": 1, "mlx": 2}, 1, {"W": "mkl\x1b"}) == 1
    assert caplog.messages == [
        "V=nope means nothing, and is passed over: it takes 1, 0",
        "W=mkl\\x1b means nothing, and is passed over: it takes openblas, mlx",
    ]


@pytest.mark.parametrize("word", ["0", "off", "False"])
def test_compilation_is_turned_off_by_every_such_word(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv(COMPILE, word)
    assert fusing_on("cpu") is None


def test_a_typo_leaves_compilation_as_it_is(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(COMPILE, "1")
    usual = fusing_on("cpu")
    monkeypatch.setenv(COMPILE, "fusde")
    assert fusing_on("cpu") is usual
    assert caplog.messages == ["OPGRAFT_COMPILE=fusde means nothing, and is passed over: it takes 0, 1, fused"]
    monkeypatch.setenv(COMPILE, "FUSED")
    assert fusing_on("cpu") is Fusing.AT_ONCE


def test_every_variable_is_in_the_table_and_no_other() -> None:
    sources = [
        *(ROOT / "core").rglob("*.py"),
        *(ROOT / "ops_builtin").rglob("*.py"),
        *(ROOT / "plugins_example").glob("*/*/*.py"),
    ]
    used = {name for path in sources for name in NAME.findall(path.read_text("utf-8"))}
    assert {KEEP_MEMORY, BLAS, COMPILE} <= used
    page = (ROOT / "docs" / "environment.md").read_text("utf-8")
    table = re.findall(r"^\| `(OPGRAFT_[A-Z_]+)` \|", page, re.MULTILINE)
    assert sorted(table) == sorted(used)
