"""Random inputs for a model, with a stand-in for each size that is nowhere given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from opgraft.errors import ModelError
from opgraft.graph import Array, Value
from opgraft.graph.element_types import BITS, COMPLEX, FLOATS, NARROW, STORAGE
from opgraft.sizes import ALL_OTHERS
from opgraft.text import size_text

STAND_IN_SIZE: Final = 1
"""What a dimension is taken to be whose size is nowhere given."""


@dataclass(frozen=True)
class Place:
    """A dimension of an input: its size where the model gives it, otherwise the names by which it can be given."""

    value: str
    axis: int
    size: int | None
    names: tuple[str, ...]

    @property
    def position(self) -> str:
        """`input:axis`."""
        return f"{self.value}:{self.axis}"


@dataclass(frozen=True)
class Sample:
    """Random inputs for a model.

    Attributes:
        inputs: an array for each input, in storage form.
        sizes: those of the dimensions that the model leaves open, by name, or by `input:axis` where they have none.
        assumed: the dimensions among them whose size was nowhere given.
    """

    inputs: dict[str, Array]
    sizes: Mapping[str, int]
    assumed: tuple[str, ...]


def places_of(values: Iterable[Value]) -> Iterator[Place]:
    """The dimensions of a model's inputs."""
    for value in values:
        for axis, dim in enumerate(value.shape or ()):
            position = f"{value.name}:{axis}"
            if isinstance(dim, int):
                yield Place(value.name, axis, dim, (position,))
            else:
                yield Place(value.name, axis, None, (dim, position) if dim else (position,))


def drawn_inputs(values: Iterable[Value], sizes: Mapping[str, int] | None = None, seed: int = 0) -> Sample:
    """Random inputs of the element types and shapes of `values`.

    Args:
        values: the inputs.
        sizes: numbers for open dimensions, by their name or by `input:axis`; `*` stands for all others.
        seed: of the random generator.

    Raises:
        ModelError: an input is no tensor of numbers, nothing is known of its shape, or it is larger than memory.
    """
    generator = np.random.default_rng(seed)
    given = dict(sizes or {})
    assumed: dict[str, None] = {}
    chosen: dict[str, int] = {}
    inputs: dict[str, Array] = {}
    for value in values:
        if value.dtype is None or value.shape is None or STORAGE[value.dtype] is None:
            raise ModelError(f"input {value.name!r} is not known to be a tensor of numbers")
        shape: list[int] = []
        for place in places_of([value]):
            size = place.size
            if size is None:
                size = next((given[name] for name in (place.position, *place.names, ALL_OTHERS) if name in given), None)
                if size is None:
                    assumed[place.names[0]] = None
                    size = STAND_IN_SIZE
                chosen.setdefault(place.names[0], size)
            shape.append(size)
        inputs[value.name] = _drawn(generator, value, shape)
    return Sample(inputs, chosen, tuple(assumed))


def sizes_of(values: Iterable[Value], inputs: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that arrays give to the open dimensions of a model's inputs, as in `Sample.sizes`."""
    shapes = {name: np.shape(array) for name, array in inputs.items()}
    return {
        place.names[0]: shapes[place.value][place.axis]
        for place in places_of(values)
        if place.size is None and place.axis < len(shapes.get(place.value, ()))
    }


def _drawn(generator: np.random.Generator, value: Value, shape: list[int]) -> Array:
    assert value.dtype is not None
    try:
        return _random_array(generator, value.dtype, shape)
    except (MemoryError, ValueError, OverflowError) as error:  # NumPy says so in three ways
        sizes = ", ".join(
            f"{place.names[0]}={size}"
            for place, size in zip(places_of([value]), shape, strict=True)
            if place.size is None
        )
        bytes_needed = size_text(prod(shape) * BITS[value.dtype] // 8)
        raise ModelError(
            f"{sizes or 'its shape'}: input {value.name!r} needs {bytes_needed}, too much for here"
        ) from error


def _random_array(generator: np.random.Generator, dtype: str, shape: list[int]) -> Array:
    """Zeros and ones of an integer type, numbers between them of a float; zeros of a type that MLX lacks."""
    storage = STORAGE[dtype]
    if dtype in NARROW:
        return np.zeros(shape, storage)
    if dtype == "bfloat16":
        return np.asarray(np.asarray(generator.random(shape), np.float32).view(np.uint32) >> 16, storage)
    if dtype in FLOATS | COMPLEX:
        return np.asarray(generator.random(shape), storage)
    return np.asarray(generator.integers(0, 2, shape), storage)
