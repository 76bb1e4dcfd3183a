"""Cases of random operators, whose numbers are their own: what holds of them is their type, their shape and their
range, and what a seed means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from properties import Case
from strategies import Draws, cases

from opgraft.graph import Array
from opgraft.graph.element_types import BOOL, FLOATS, INTEGERS, ONNX_OF_NAME


def drawing(case: Case, dtype: str, shape: tuple[int, ...], valid: Callable[[Array], Any]) -> Case:
    """A case whose output must have a type and a shape, valid elements, and be the same in a second session if there
    is a seed."""

    def holds(run: Callable[[], list[Array]]) -> None:
        (first,), (second,) = run(), run()
        assert first.shape == second.shape == shape
        assert first.dtype == ("float32" if dtype == "bfloat16" else dtype)
        assert np.all(valid(first)), f"{first} is not what may be drawn"
        if "seed" in case.attributes:
            np.testing.assert_array_equal(first, second)
        elif first.size >= 16 and dtype in FLOATS and case.operator != "Bernoulli":
            assert (first != second).any()

    return replace(case, oracle=holds, output_types=(dtype,))


def seed(d: Draws) -> dict[str, float]:
    return d.some(seed=float(d.integer(0, 3)))


def typed(d: Draws, dtype: str, default: str) -> dict[str, int]:
    """The attribute that asks for an element type: not needed for the default."""
    return {} if dtype == default and d.flag() else {"dtype": ONNX_OF_NAME[dtype]}


def floats(version: int) -> tuple[str, ...]:
    return ("float32", "float64", "float16", *(["bfloat16"] if version >= 22 else []))


@cases("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike")
def numbers(d: Draws) -> Case:
    like = d.operator.endswith("Like")
    shape = d.shape(0 if like else 1, 3)
    dtype = d.pick(*floats(d.version))
    low, span = d.number(-4, 4), d.number(0.5, 8)
    normal = "Normal" in d.operator
    attributes: dict[str, Any] = seed(d)
    attributes |= {"mean": low, "scale": span} if normal else {"low": low, "high": low + span}
    given = [d.array(d.dtype(among=FLOATS), shape)] if like else []
    default = given[0].dtype.name if like else "float32"
    attributes |= typed(d, dtype, default) if like else typed(d, dtype, default) | {"shape": list(shape)}
    step = {"float16": 2.0**-7, "bfloat16": 2.0**-4}.get(dtype, 1e-5)  # how far a rounding may reach

    def valid(x: Array) -> Any:
        if normal:
            return np.abs(x.astype(np.float64) - low) < 12 * span
        return (x >= low - step) & (x <= low + span + step)

    return drawing(d.case(*given, attributes=attributes), dtype, shape, valid)


@cases("Bernoulli")
def bernoulli(d: Draws) -> Case:
    shape = d.shape()
    x = d.array(d.dtype(), shape, "probability")
    dtype = d.pick(*floats(d.version)[:3], *sorted(INTEGERS | BOOL))
    attributes = seed(d) | typed(d, dtype, x.dtype.name)

    def valid(y: Array) -> Any:
        return np.where(y == 1, x > 0, (y == 0) & (x < 1))

    return drawing(d.case(x, attributes=attributes), dtype, shape, valid)


@cases("Multinomial")
def multinomial(d: Draws) -> Case:
    shape, count = (d.size(0, 3), d.size(1, 4)), d.integer(1, 4)
    x = d.array(d.dtype(), shape)
    impossible = d.integer(0, 2 ** (shape[1] - 1) - 1)  # the last class stays possible
    x[:, [column for column in range(shape[1]) if impossible >> column & 1]] = -np.inf
    dtype = d.pick("int32", "int64")
    attributes = seed(d) | typed(d, dtype, "int32") | d.some(sample_size=count)

    def valid(y: Array) -> Any:
        return (y >= 0) & (y < shape[1]) & np.take_along_axis(np.isfinite(x), y.astype(np.int64), 1)

    case = d.case(x, attributes=attributes)
    return drawing(case, dtype, (shape[0], attributes.get("sample_size", 1)), valid)
