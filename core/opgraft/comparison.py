"""Running a session, and comparing what two of them give."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from opgraft.errors import ModelError
from opgraft.graph import Array

TOLERANCE = 1e-4
"""Largest difference, relative to the largest magnitude, that counts as equal."""


@dataclass(frozen=True)
class Outcome:
    """What a session gave for its inputs: the outputs by name, and the median seconds of a run."""

    outputs: dict[str, Array]
    seconds: float


def run_timed(session: Any, feeds: Mapping[str, Array], runs: int) -> Outcome:
    """Run a session once for its outputs and to warm up, then `runs` times for the time.

    Raises:
        ModelError: ONNX Runtime refuses the inputs or the run fails; the message is its own.
    """
    names = [each.name for each in session.get_outputs()]
    seconds: list[float] = []
    try:
        results = session.run(None, dict(feeds))
        for _ in range(runs):
            started = time.perf_counter()
            session.run(None, dict(feeds))
            seconds.append(time.perf_counter() - started)
    except Exception as error:  # ONNX Runtime's own words are what the user needs
        raise ModelError(f"the run failed: {' '.join(str(error).split())}") from error
    return Outcome(dict(zip(names, results, strict=True)), statistics.median(seconds))


def difference(output: Array, expected: Array) -> float:
    """Largest difference of two arrays, relative to the largest magnitude in `expected`.

    Infinite where element types, shapes, NaN or infinities differ, and for unequal arrays of anything but floats.
    """
    if output.shape != expected.shape or output.dtype != expected.dtype:
        return float("inf")
    if output.dtype.kind not in "fc":
        return 0.0 if np.array_equal(output, expected) else float("inf")
    finite = np.isfinite(expected)
    if not np.array_equal(output[~finite], expected[~finite], equal_nan=True) or not np.isfinite(output[finite]).all():
        return float("inf")
    wide = np.complex128 if output.dtype.kind == "c" else np.float64
    good, found = expected[finite].astype(wide), output[finite].astype(wide)
    return float(np.max(np.abs(found - good), initial=0.0)) / (float(np.max(np.abs(good), initial=0.0)) or 1.0)


def largest_difference(outputs: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest `difference` between outputs of the same name."""
    return max((difference(outputs[name], expected[name]) for name in expected), default=0.0)
