"""A property test for every operator of the built-in pack, see `properties`.

`OPGRAFT_EXAMPLES` says on how many cases each is tried; `fuzz.py` tries many, and outlives a process that dies.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnxruntime
import pytest
from hypothesis import given, settings
from properties import OPERATORS, Case, Tally, judge, load_families, registry

load_families()

LAST_CASE = os.environ.get("OPGRAFT_LAST_CASE")
"""Where to write each case before it is tried, so that one that ends the process is known."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Without what ONNX Runtime has to say about each of so many models."""
    onnxruntime.set_default_logger_severity(4)
    yield
    onnxruntime.set_default_logger_severity(2)


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_operator(operator: str) -> None:
    tally = Tally()

    @settings(database=None)
    @given(OPERATORS[operator])
    def holds(case: Case) -> None:
        if LAST_CASE:
            Path(LAST_CASE).write_text(repr(case))
        tally[judge(case)] += 1

    with tally.proves_something():
        holds()


def test_every_operator_has_a_row() -> None:
    (builtin,) = (pack for pack in registry().packs if pack.name == "builtin")
    claimed = {operator.removeprefix("ai.onnx::") for plugin in builtin.plugins for operator in plugin.operators}
    assert claimed == set(OPERATORS)
