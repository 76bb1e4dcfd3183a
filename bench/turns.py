"""Several things timed turn by turn, so that whatever else the machine does falls on all alike."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

PAUSE = 0.002
"""Seconds between two turns: thread pools go on spinning for a while after their work, and would slow the next."""


def medians(
    sides: Mapping[str, Callable[[], Any]], turns: int = 30, warm_ups: int = 8, pause: float = PAUSE
) -> dict[str, float]:
    """The median seconds of each side.

    Args:
        sides: what is timed, by name.
        turns: how often each has its turn.
        warm_ups: how many turns come before, which do not count.
        pause: seconds between two turns.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(turns + warm_ups):
        for name, side in sides.items():
            began = time.perf_counter()
            side()
            taken = time.perf_counter() - began
            if turn >= warm_ups:
                seconds[name].append(taken)
            time.sleep(pause)
    return {name: statistics.median(each) for name, each in seconds.items()}


def tell(rows: list[dict[str, Any]]) -> None:
    """Print rows for `run.py`, one a line."""
    for row in rows:
        print(json.dumps(row), flush=True)
