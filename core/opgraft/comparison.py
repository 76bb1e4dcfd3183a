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

NEGLIGIBLE = 1e-6
"""Largest difference of any magnitude that counts as equal: where a whole output is that small, it is rounding."""


@dataclass(frozen=True)
class Outcome:
    """What a session gave for its inputs: the outputs by name, and the median seconds of a run."""

    outputs: dict[str, Array]
    seconds: float


def run_timed(session: Any, feeds: Mapping[str, Array], runs: int, where: str) -> Outcome:
    """Run a session once for its outputs and to warm up, then `runs` times for the time.

    Args:
        session: an `onnxruntime.InferenceSession`.
        feeds: its inputs.
        runs: how often to run it for the time.
        where: what an error says of the session, as in "on the CPU EP".

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
        raise ModelError(f"the run {where} failed: {' '.join(str(error).split())}") from error
    return Outcome(dict(zip(names, results, strict=True)), statistics.median(seconds))


def difference(output: Array, expected: Array) -> float:
    """Largest difference of two arrays, relative to the largest magnitude in `expected`.

    Infinite where element types, shapes, NaN or infinities differ, and for unequal arrays of anything but floats.
    """
    absolute, scale = _difference(output, expected)
    return absolute / (scale or 1.0)


def equal(output: Array, expected: Array) -> bool:
    """True where two arrays differ by no more than `TOLERANCE`, or by nothing worth a name (`NEGLIGIBLE`)."""
    absolute, scale = _difference(output, expected)
    return absolute <= max(TOLERANCE * scale, NEGLIGIBLE)


def _difference(output: Array, expected: Array) -> tuple[float, float]:
    """Largest difference, and largest magnitude expected."""
    if output.shape != expected.shape or output.dtype != expected.dtype:
        return float("inf"), 1.0
    if output.dtype.kind not in "fc":
        return (0.0 if np.array_equal(output, expected) else float("inf")), 1.0
    finite = np.isfinite(expected)
    if not np.array_equal(output[~finite], expected[~finite], equal_nan=True) or not np.isfinite(output[finite]).all():
        return float("inf"), 1.0
    wide = np.complex128 if output.dtype.kind == "c" else np.float64
    good, found = expected[finite].astype(wide), output[finite].astype(wide)
    return float(np.max(np.abs(found - good), initial=0.0)), float(np.max(np.abs(good), initial=0.0))


def largest_difference(outputs: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest `difference` between outputs of the same name."""
    return max((difference(outputs[name], expected[name]) for name in expected), default=0.0)
