"""Timing two ways to do the same, turn by turn, until it is clear which is faster."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

WARM_UPS: Final = 6
"""The engine records two runs, traces at the fourth, and replays from the fifth on."""

REST: Final = 0.03
"""Seconds between one side and the other. The threads that multiplied for one spin on for a while after their work,
and would take the cores from the other."""

_BURST_SECONDS: Final = 0.006
_MOST_IN_BURST: Final = 20
"""What is short is run several times in a row, and the middle one counts."""

_MOST_ROUNDS: Final = 9
_MOST_SECONDS: Final = 15.0

_LOST: Final = {1: 4.0, 3: 1.5, 5: 1.0}
_WON: Final = {3: 2.0, 5: 1.2}
"""After so many rounds in all of which one side took so many times as long as the other, it is clear. It takes more to
win than to lose."""

_HOPELESS: Final = 10.0
"""What takes so many times as long while it warms up is not waited for."""

Run = Callable[[], None]


@dataclass(frozen=True)
class Race:
    """Seconds of a run on either side: of the first, three quarters of its rounds took no longer; of the second, no
    round took less. Whatever else the machine does counts against the first side alone."""

    first: float
    second: float


def race(first: Run, second: Run) -> Race:
    """Time both after they have warmed up. What either raises goes through.

    Args:
        first: the side that has to win: it may need several runs until it is as fast as it gets.
        second: the other side.
    """
    began = time.perf_counter()
    fastest = min(_seconds(second) for _ in range(3))
    warm: list[float] = []
    for number in range(WARM_UPS):
        warm.append(_seconds(first))
        if number >= 1 and min(warm) > _HOPELESS * fastest:
            return Race(min(warm), fastest)
    counts = (_burst_count(min(warm)), _burst_count(fastest))
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(_MOST_ROUNDS):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            time.sleep(REST)
            times[side].append(statistics.median(_seconds((first, second)[side]) for _ in range(counts[side])))
        if _is_clear(*times) or time.perf_counter() - began > _MOST_SECONDS:
            break
    return Race(sorted(times[0])[3 * len(times[0]) // 4], min(times[1]))


def _seconds(run: Run) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _burst_count(seconds: float) -> int:
    return max(1, min(_MOST_IN_BURST, round(_BURST_SECONDS / max(seconds, 1e-9))))


def _is_clear(first: list[float], second: list[float]) -> bool:
    ratios = [one / other for one, other in zip(first, second, strict=True)]
    return min(ratios) >= _needed(_LOST, len(ratios)) or max(ratios) <= 1 / _needed(_WON, len(ratios))


def _needed(factors: Mapping[int, float], rounds: int) -> float:
    return min((factor for least, factor in factors.items() if rounds >= least), default=inf)
