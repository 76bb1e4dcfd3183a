"""An error at some of the lines of opgraft that run in a session's life; `make faults` does it at more of them."""

from __future__ import annotations

import pytest
from lines import WAYS, campaign


@pytest.mark.parametrize("way", WAYS)
def test_an_error_at_a_line(way: str) -> None:
    outcomes, wrong = campaign(way, first=list(WAYS).index(way), every=521)
    assert wrong == []
    assert outcomes.total() >= 15
    assert outcomes["right"] < outcomes.total()
