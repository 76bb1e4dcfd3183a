"""Running a session, and comparing what two of them give."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from opgraft.errors import ModelError
from opgraft.graph import Array
from opgraft.race import WARM_UPS

WARM_UP_SECONDS = 2.0
"""Warming up ends after this time, if not before."""

TOLERANCE = 1e-4
"""Largest difference, relative to the largest magnitude, that counts as equal."""

NEGLIGIBLE = 1e-6
"""Largest difference of any magnitude that counts as equal: where a whole output is that small, it is rounding."""


@dataclass(frozen=True)
class Outcome:
    """What a session gave for its inputs: the outputs by name, and the median seconds of a run.

    An output that is a sequence or a map is an array for each of its elements, as in "y[0]"; one that is sparse, its
    values and their places; an absent one is none.
    """

    outputs: dict[str, Array]
    seconds: float


def run_timed(session: Any, feeds: Mapping[str, Array], runs: int, where: str) -> Outcome:
    """Run a session once for its outputs, some more times until it is warm, then `runs` times for the time.

    Args:
        session: an `onnxruntime.InferenceSession`.
        feeds: its inputs.
        runs: how often to run it for the time; 0 is for its outputs alone.
        where: what an error says of the session, as in "on the CPU EP".

    Raises:
        RunError: ONNX Runtime refuses the inputs or the run fails.
    """
    names = [each.name for each in session.get_outputs()]
    seconds: list[float] = []
    try:
        results = session.run(None, dict(feeds))
        warm = time.perf_counter() + WARM_UP_SECONDS
        for _ in range(WARM_UPS - 1 if runs else 0):
            if time.perf_counter() < warm:
                session.run(None, dict(feeds))
        for _ in range(runs):
            started = time.perf_counter()
            session.run(None, dict(feeds))
            seconds.append(time.perf_counter() - started)
    except Exception as error:  # ONNX Runtime's own words are what the user needs
        raise RunError(where, " ".join(str(error).split())) from error
    outputs = dict(array for named in zip(names, results, strict=True) for array in _arrays(*named))
    return Outcome(outputs, statistics.median(seconds or [0.0]))


class RunError(ModelError):
    """A run that failed: where, and ONNX Runtime's own words."""

    def __init__(self, where: str, words: str) -> None:
        super().__init__(f"the run {where} failed: {words}")
        self.words = words


def _arrays(name: str, result: Any) -> Iterator[tuple[str, Array]]:
    """The arrays of one output, with names."""
    if isinstance(result, list | dict):
        for key, element in result.items() if isinstance(result, dict) else enumerate(result):
            yield from _arrays(f"{name}[{key}]", element)
    elif hasattr(result, "get_coo_data"):  # a sparse tensor, of the one format that a model can hold
        yield f"{name}.values", np.asarray(result.values())
        yield f"{name}.indices", np.asarray(result.get_coo_data().indices())
    elif result is not None:
        yield name, np.asarray(result)


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
    """The largest `difference` between outputs of the same name; infinite where one has an output that the other
    lacks."""
    if outputs.keys() != expected.keys():
        return float("inf")
    return max((difference(outputs[name], expected[name]) for name in expected), default=0.0)


def disagreements(outputs: Mapping[str, Array], expected: Mapping[str, Array]) -> dict[str, str]:
    """What is different about each output that is not `equal`, as in "shape [1, 4], the CPU EP gives [1, 5]"."""
    found: dict[str, str] = {}
    for name in dict.fromkeys((*expected, *outputs)):
        if name not in outputs or name not in expected:
            found[name] = f"only the {'EP' if name in outputs else 'CPU EP'} gives it"
        elif not equal(outputs[name], expected[name]):
            found[name] = _disagreement(outputs[name], expected[name])
    return found


def _disagreement(output: Array, expected: Array) -> str:
    if output.shape != expected.shape:
        return f"shape {list(output.shape)}, the CPU EP gives {list(expected.shape)}"
    if output.dtype != expected.dtype:
        return f"element type {output.dtype}, the CPU EP gives {expected.dtype}"
    if output.dtype.kind not in "fc":
        return _first_of(output != expected, output, expected, "differ")
    same = (output == expected) | (np.isnan(output) & np.isnan(expected))
    apart = ~same & ~(np.isfinite(output) & np.isfinite(expected))
    if apart.any():
        return _first_of(apart, output, expected, "are NaN or infinite on one side, and not so on the other")
    wide = np.complex128 if output.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):  # of two infinities
        distances = np.nan_to_num(np.abs(output.astype(wide) - expected.astype(wide)), nan=0.0)
    place = int(distances.argmax())
    return f"the largest difference is {distances.flat[place]:.3g}, {_at(place, output, expected)}"


def _first_of(apart: Array, output: Array, expected: Array, what: str) -> str:
    place = int(np.asarray(apart).argmax())
    return f"{np.count_nonzero(apart)} of {output.size} elements {what}, the first {_at(place, output, expected)}"


def _at(place: int, output: Array, expected: Array) -> str:
    """The element that is the `place`th in row-major order, on both sides."""
    index = [int(each) for each in np.unravel_index(place, output.shape)]
    return f"at {index}: {output.flat[place]}, the CPU EP gives {expected.flat[place]}"


def non_finite(array: Array) -> str:
    """How many NaN and infinities there are, as in "2 NaN and 1 infinity"; empty where there are none."""
    if array.dtype.kind not in "fc":
        return ""
    nans, infinities = np.count_nonzero(np.isnan(array)), np.count_nonzero(np.isinf(array))
    parts = [f"{nans} NaN"] if nans else []
    parts += [f"{infinities} infinit{'y' if infinities == 1 else 'ies'}"] if infinities else []
    return " and ".join(parts)
