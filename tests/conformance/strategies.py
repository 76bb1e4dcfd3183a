"""What the properties of operators draw: versions, shapes, axes, arrays, and how a node gets its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from math import inf, nan, prod
from typing import Any, TypeVar

import numpy as np
import onnx
from hypothesis import strategies as st
from properties import OPERATORS, Case, numpy_type, registry

from opgraft.graph import Array
from opgraft.graph.element_types import ANY, BITS, FLOATS, INTEGERS, PACKED
from opgraft.ops import Handler

Option = TypeVar("Option")

Shape = tuple[int, ...]

MOST_ELEMENTS = 128

ORDER = ("float32", "int64", "bool", "float16", "int32", "uint8", "bfloat16", "float64", "int8")
"""Element types, simplest first: what a failing case comes down to."""


def cases(*operators: str) -> Callable[[Callable[[Draws], Case]], Callable[[Draws], Case]]:
    """Make a function that draws a case the strategy of operators, as a decorator."""

    def register(function: Callable[[Draws], Case]) -> Callable[[Draws], Case]:
        for operator in operators:
            assert operator not in OPERATORS, operator
            drawn = np.errstate(all="ignore")(lambda draw, operator=operator: function(Draws(draw, operator)))
            OPERATORS[operator] = st.composite(drawn)()
        return function

    return register


def by_float32(case: Case, **changes: Any) -> Case:
    """A case whose first input, and whatever is of float64, the oracle sees as float32.

    Args:
        changes: what else is otherwise for the oracle, which may be the version.
    """
    wide = any(each is not None and each.dtype == np.float64 for each in case.inputs)
    seen = case.in_types({"float64": "float32"})
    first, *others = seen.inputs
    if first is not None and first.dtype.name not in FLOATS:
        seen = replace(seen, inputs=(first.astype(np.float32), *others))
    return replace(case, oracle=replace(seen, **changes), tolerance=1e-5 if wide else case.tolerance)


class Draws:
    """What one case of an operator is drawn with. Whatever is drawn shrinks toward what is named first.

    Attributes:
        version: the operator's version, drawn from those that opgraft covers and that differ.
    """

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], operator: str) -> None:
        self._draw = draw
        self.operator = operator
        self.version = self.pick(*versions(operator))

    def integer(self, low: int, high: int) -> int:
        return self._draw(integers(low, high))

    def flag(self) -> bool:
        return bool(self.integer(0, 1))

    def rarely(self) -> bool:
        return self.integer(0, 9) == 9

    def pick(self, *options: Option) -> Option:
        return options[self.integer(0, len(options) - 1)]

    def number(self, low: float, high: float) -> float:
        """A float that float32 holds."""
        return float(np.float32(low + (high - low) * self.integer(0, 64) / 64))

    def size(self, low: int = 0, high: int = 5) -> int:
        """One of a dimension, 1 first; 0 is rarer than others."""
        return 0 if not low and self.rarely() else self.integer(max(low, 1), max(high, 1))

    def shape(self, low: int = 0, high: int = 5, side: int = 0) -> Shape:
        """Sizes of at least `side`, of a rank from low to high."""
        sizes: list[int] = []
        for _ in range(self.integer(low, high)):
            room = MOST_ELEMENTS // max(prod(sizes), 1)
            sizes.append(self.size(side, max(1, min(5, room))))
        return tuple(sizes)

    def broadcast_shapes(self, count: int, high: int = 4) -> list[Shape]:
        """Shapes that broadcast against each other."""
        whole = self.shape(0, high)
        return [self.broadcast_part(whole) for _ in range(count)]

    def broadcast_part(self, whole: Sequence[int]) -> Shape:
        """A shape that broadcasts to `whole`."""
        first = self.pick(0, 0, *range(len(whole) + 1))
        ones = self.integer(0, 2 ** len(whole) - 1) & self.integer(0, 2 ** len(whole) - 1)
        return tuple(1 if ones >> axis & 1 else size for axis, size in enumerate(whole))[first:]

    def axis(self, rank: int) -> int:
        return self.integer(0, 2 * rank - 1) - rank if self.flag() else self.integer(0, rank - 1)

    def axes(self, rank: int, low: int = 0) -> list[int]:
        """Different axes in any order, some counted from the end."""
        some = self.permutation(rank)[: self.integer(low, rank)]
        return [axis - rank if self.flag() else axis for axis in some]

    def permutation(self, count: int) -> list[int]:
        rest = list(range(count))
        return [rest.pop(self.integer(0, len(rest) - 1)) for _ in range(count)]

    def dtype(self, index: int = 0, among: Iterable[str] = ANY) -> str:
        """An element type that input `index` may have in this version, and that opgraft takes."""
        return self.pick(*element_types(self.operator, self.version, index, frozenset(among)))

    def array(self, dtype: str, shape: Sequence[int] = (), values: str = "moderate") -> Array:
        """An array of values of a kind, see `FLOAT_VALUES`."""
        choice, count = pool(dtype, values), prod(shape)
        if count <= MOST_ELEMENTS // 2:
            places = np.frombuffer(self._draw(some_bytes(count)), np.uint8)
        else:
            places = np.random.default_rng(self.integer(0, 2**32)).integers(0, 256, count)
        return choice[places % len(choice)].reshape(tuple(shape))

    def whole(self, shape: Sequence[int], low: int, high: int, dtype: str = "int64") -> Array:
        """An array of integers from low to high."""
        elements = [self.integer(low, high) for _ in range(prod(shape))]
        return np.array(elements, np.int64).astype(numpy_type(dtype)).reshape(tuple(shape))

    def some(self, **attributes: Any) -> dict[str, Any]:
        """Some of attributes. None stands for none."""
        chosen = self.integer(0, 2 ** len(attributes) - 1)
        return {
            name: value
            for place, (name, value) in enumerate(attributes.items())
            if chosen >> place & 1 and value is not None
        }

    def case(
        self,
        *inputs: Array | None,
        fixed: Iterable[int] = (),
        attributes: dict[str, Any] | None = None,
        **given: Any,
    ) -> Case:
        """The case of a node with these inputs, each of them constant, fed, or (integers) computed on the device.

        Args:
            fixed: the inputs that must be constant.
            given: as `Case` takes it.
        """
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        inputs = tuple(each if each is None else np.asarray(each) for each in inputs)
        present = [index for index, each in enumerate(inputs) if each is not None]
        mask = self.integer(0, 2 ** len(present) - 1)
        chosen = {index for place, index in enumerate(present) if mask >> place & 1} | set(fixed)
        whole = [index for index in present if index not in chosen and inputs[index].dtype.kind in "iu"]
        computed = self.pick(None, None, *whole) if self.version >= 7 else None
        return Case(
            self.operator,
            inputs,
            self.version,
            attributes or {},
            constant=tuple(sorted(chosen & set(present))),
            computed=computed,
            on_host=self.version >= 11 and computed is None and self.flag(),
            dynamic=self.flag(),
            **given,
        )


@cache
def integers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


@cache
def some_bytes(count: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=count, max_size=count)


@cache
def handlers(operator: str) -> tuple[Handler, ...]:
    """opgraft's own handlers of an operator."""
    known = registry().known_to(f"ai.onnx::{operator}")
    return tuple(each for pack, each in known if pack == "builtin" and isinstance(each, Handler))


@cache
def versions(operator: str) -> tuple[int, ...]:
    """The versions of an operator that opgraft covers, newest first."""
    known = (schema.since_version for schema in all_schemas() if schema.name == operator)
    return tuple(sorted((each for each in known if handlers_of(operator, each)), reverse=True))


@cache
def all_schemas() -> tuple[onnx.defs.OpSchema, ...]:
    return tuple(each for each in onnx.defs.get_all_schemas_with_history() if not each.domain and not each.deprecated)


def handlers_of(operator: str, version: int) -> list[Handler]:
    return [each for each in handlers(operator) if each.since <= version and (each.until or version) >= version]


@cache
def element_types(operator: str, version: int, index: int, among: frozenset[str]) -> tuple[str, ...]:
    """The element types that ONNX allows an input of a version, and that one of opgraft's handlers takes there."""
    schema = onnx.defs.get_schema(operator, version, "")
    formal = schema.inputs[min(index, len(schema.inputs) - 1)]
    texts = {"float": "float32", "double": "float64"}
    allowed = {text.removeprefix("tensor(").removesuffix(")") for text in formal.types}
    taken = {name for each in handlers_of(operator, version) for name in each.signature.input(index).dtypes}
    found = {texts.get(name, name) for name in allowed} & taken & among
    return tuple(sorted(found, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name)))


FLOAT_VALUES = {
    "moderate": [0, 1, -1, 2, 0.5, -2, -0.5, 3, 1.5, -3, 0.25, -0.25, 4, -1.5, 2.5, -2.5, -4, 5, 0.125, -0.75, 7, -7.5],
    "positive": [1, 2, 0.5, 3, 1.5, 0.25, 4, 2.5, 0.125, 5, 7, 0.0625],
    "unit": [0, 1, 0.5, 0.25, -1, -0.5, 0.75, -0.25, 0.125, -0.125, 0.0625, -0.75],
    "probability": [0, 1, 0.5, 0.25, 0.75, 0.125, 0.0625, 0.9375],
    "whole": [0, 1, -1, 2, -2, 3, -3, 4],
    "finite": [0, 1, -1, 2, 0.5, -2, -0.0, 100, -1000.5, 3e4, -3e4, 1e-3, -1e-4, 6e-8],
    "any": [0, 1, -1, 2, 0.5, -0.5, -0.0, inf, -inf, nan, 100, -1000.5, 3e4, -6e4, 1e-3, -6e-8, -2.5, 1.5],
}
"""Values of floats by kind: simple ones first, some of them special, and as many others drawn once and for all."""

OTHERS = {
    "moderate": lambda rng: rng.normal(0, 2, 64),
    "positive": lambda rng: rng.uniform(0.01, 8, 64),
    "unit": lambda rng: rng.uniform(-1, 1, 64),
    "probability": lambda rng: rng.uniform(0, 1, 64),
    "whole": lambda rng: rng.integers(-8, 9, 16),
    "finite": lambda rng: rng.normal(0, 100, 32),
    "any": lambda rng: rng.normal(0, 10, 32),
}


@cache
def pool(dtype: str, kind: str) -> Array:
    """Values of an element type and of a kind."""
    if dtype == "bool":
        return np.array([False, True])
    rng = np.random.default_rng(7)
    if dtype in INTEGERS or (dtype in PACKED and dtype != "float4e2m1"):
        return integer_pool(dtype, kind, rng)
    numbers = np.array([*FLOAT_VALUES[kind], *OTHERS[kind](rng)])
    if dtype == "complex64":
        return np.stack([numbers, np.roll(numbers, 5)], axis=1).astype(np.float32).view(np.complex64)[:, 0]
    if dtype not in FLOATS:  # 8 and 4 bits
        numbers = numbers[np.isfinite(numbers) & (np.abs(numbers) <= 448)]
        numbers = np.abs(numbers[numbers != 0]) if dtype == "float8e8m0" else numbers
    if dtype == "float32" and kind == "any":
        numbers = np.append(numbers, [3e38, -1e30, 1e-30])
    return numbers.astype(numpy_type(dtype))


def integer_pool(dtype: str, kind: str, rng: np.random.Generator) -> Array:
    bits, signed = BITS[dtype], not dtype.startswith("u")
    least = -(2 ** (bits - 1)) if signed else 0
    most = least + 2**bits - 1
    numbers = [0, 1, 2, -1, 3, -2, 4, 5, -3, 7, -5]
    if kind in ("any", "finite"):
        others = [least + int.from_bytes(rng.bytes(8)) % 2**bits for _ in range(32)]
        numbers += [most, least, most - 1, least + 1, 100, -100, *others]
    low = 1 if kind in ("positive", "probability") else least
    wide = np.array([each for each in numbers if low <= each <= most], np.int64 if signed else np.uint64)
    return wide.astype(numpy_type(dtype))
