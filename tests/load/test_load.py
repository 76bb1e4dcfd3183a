"""Sessions under load, for a moment; `make load` does it for long."""

from __future__ import annotations

import pytest
from load import MADE, SUBJECTS, make_and_drop, pound

SHARES = {"small": 0.02, "branching": 0.01, "silero-vad": 0.01, "ocr-classify": 0.02}


@pytest.mark.parametrize("sessions", [1, 8])
@pytest.mark.parametrize("name", SUBJECTS)
def test_threads(name: str, sessions: int) -> None:
    counts = pound(name, sessions, SHARES[name])
    assert counts.runs > 0
    assert (counts.left, counts.handles) == (0, 0)


def test_sessions_made_and_dropped() -> None:
    counts = make_and_drop(*MADE, share=0.01)
    assert counts.sessions == 10
    assert (counts.left, counts.handles) == (0, 0)
