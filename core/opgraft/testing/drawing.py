"""Inputs of an operator at random: arrays drawn from the shapes that its documentation gives, as in "N D" and "M D"."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, prod
from typing import Any

import ml_dtypes
import numpy as np

from opgraft.graph import Array
from opgraft.graph.element_types import ANY, BOOL, COMPLEX, FLOATS, UNSIGNED

Draw = Callable[[int, int], int]
"""Draws a whole number from one number to another, both included."""

_MOST_ELIDED = 3


@dataclass(frozen=True)
class InputForm:
    """The shape of one input: names stand for the same size wherever they are, `...` for the same sizes."""

    dims: tuple[str | int, ...]
    optional: bool = False

    @classmethod
    def of(cls, text: str) -> InputForm:
        """The form that a text gives: dimensions with spaces between, as in `"... N 3"`, none for a scalar, and `?` at
        the end where the input may be left out.

        Raises:
            ValueError: a dimension is neither a name, nor a number, nor `...`.
        """
        optional = text.endswith("?")
        words = text.removesuffix("?").split()
        for word in words:
            if not (word.isidentifier() or word.isdigit() or word == "..."):
                raise ValueError(f"{text!r} is no shape: write names and numbers, as in 'N D', '... 3' or 'N D?'")
        return cls(tuple(int(word) if word.isdigit() else word for word in words), optional)


@dataclass(frozen=True)
class Drawing:
    """How the inputs of one operator are drawn.

    Attributes:
        forms: a form for each input, None for one that is always left out.
        dtypes: for each input, the element types that it may have. Inputs with the same ones always have the same.
        attributes: for each attribute, the values that it may have; `...` among them stands for leaving it out.
        sizes: the least and the largest size of a dimension that has a name.
        values: the least and the largest element.
    """

    forms: tuple[InputForm | None, ...]
    dtypes: tuple[tuple[str, ...], ...]
    attributes: Mapping[str, Sequence[Any]]
    sizes: tuple[int, int]
    values: tuple[float, float]

    def __post_init__(self) -> None:
        """Raises:
        ValueError: there is no such size, or no element of one of the types.
        """
        least, most = self.sizes
        if not (isinstance(least, int) and isinstance(most, int) and 0 <= least <= most):
            raise ValueError(f"sizes={self.sizes} are no sizes: give the least, then the largest, as in (0, 5)")
        if not all(map(isfinite, self.values)) or self.values[0] > self.values[1]:
            raise ValueError(f"values={self.values} are no bounds: give the least, then the largest, as in (-4, 4)")
        for dtype in dict.fromkeys(each for types in self.dtypes for each in types):
            least, most = self._steps(dtype)
            if least > most:
                grid = "multiple of 1/16" if dtype in FLOATS | COMPLEX else "whole number"
                raise ValueError(f"values={self.values} leave nothing to draw for {dtype}: no {grid} lies between")

    def _steps(self, dtype: str) -> tuple[int, int]:
        """The least and the largest element of a type, in units of `_step`."""
        low, high = self.values
        if dtype in BOOL:
            low, high = 0, 1
        elif dtype in UNSIGNED:
            low, high = max(low, 0), max(high, 0)
        return ceil(low * _step(dtype)), floor(high * _step(dtype))

    def draw(self, draw: Draw) -> tuple[list[Array | None], dict[str, Any]]:
        """The inputs and the attributes of one node."""
        sizes: dict[str, tuple[int, ...]] = {}
        chosen = {types: types[draw(0, len(types) - 1)] for types in dict.fromkeys(self.dtypes)}
        inputs = [
            None
            if form is None or (form.optional and draw(0, 1) == 0)
            else self._array(draw, form, chosen[types], sizes)
            for form, types in zip(self.forms, self.dtypes, strict=True)
        ]
        while inputs and inputs[-1] is None:
            inputs.pop()
        picked = {name: values[draw(0, len(values) - 1)] for name, values in self.attributes.items()}
        return inputs, {name: value for name, value in picked.items() if value is not ...}

    def _array(self, draw: Draw, form: InputForm, dtype: str, sizes: dict[str, tuple[int, ...]]) -> Array:
        shape: list[int] = []
        for dim in form.dims:
            if isinstance(dim, int):
                shape.append(dim)
                continue
            if dim not in sizes:
                count = draw(0, _MOST_ELIDED) if dim == "..." else 1
                sizes[dim] = tuple(draw(*self.sizes) for _ in range(count))
            shape += sizes[dim]
        least, most = self._steps(dtype)
        elements = [draw(least, most) / _step(dtype) for _ in range(prod(shape))]
        numpy_type = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
        return np.array(elements, np.float64).astype(numpy_type).reshape(shape)


def _step(dtype: str) -> int:
    """How many elements of a type are drawn from each unit."""
    return 16 if dtype in FLOATS | COMPLEX else 1


def dtypes_by_input(given: Collection[str] | Mapping[str, Collection[str]], names: Sequence[str]) -> list[list[str]]:
    """The element types of each input, of one set for all or of one set for each by name, in a fixed order.

    Raises:
        ValueError: an input has none, or one that there is not.
    """
    found = [sorted(given[name] if isinstance(given, Mapping) else given) for name in names]
    for name, types in zip(names, found, strict=True):
        unknown = [each for each in types if each not in ANY]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not an element type to draw: {', '.join(sorted(ANY))} are")
        if not types:
            raise ValueError(f"there is no element type to draw for input {name}")
    return found
