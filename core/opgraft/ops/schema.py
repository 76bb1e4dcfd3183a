"""The schema of an operator that is a pack's own, beyond what the translator's signature says: the names of its
outputs, the kinds of its attributes, and the inference of element types and shapes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, TypeAlias, Union, get_args, get_origin, get_type_hints

import numpy as np

from opgraft.errors import ContractError
from opgraft.graph import AttributeValue, Node, Shape
from opgraft.graph.element_types import HELD


class AttributeKind(Enum):
    """The kinds of attributes that a schema may have; the values are ONNX Runtime's numbers."""

    INT = 1
    INTS = 2
    FLOAT = 3
    FLOATS = 4
    STRING = 5
    STRINGS = 6
    TENSOR = 8


_LARGEST_FLOAT: Final = float(np.finfo(np.float32).max)

_SINGLE: Final[dict[Any, AttributeKind]] = {
    bool: AttributeKind.INT,
    int: AttributeKind.INT,
    float: AttributeKind.FLOAT,
    str: AttributeKind.STRING,
    np.ndarray: AttributeKind.TENSOR,
}

_SEVERAL: Final[dict[Any, AttributeKind]] = {
    bool: AttributeKind.INTS,
    int: AttributeKind.INTS,
    float: AttributeKind.FLOATS,
    str: AttributeKind.STRINGS,
}


@dataclass(frozen=True, slots=True)
class Output:
    """What is known of an output: its element type and shape, each None where nothing is."""

    dtype: str | None
    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class OutputParameter:
    """One output of a schema. `dtype`, if declared, is an element type or the name of the input that has the same."""

    name: str
    required: bool = True
    variadic: bool = False
    dtype: str | None = None


Outputs: TypeAlias = Sequence[str] | Mapping[str, str]
"""How an author declares outputs: their names, or for each of them its element type or the input that has the same."""


@dataclass(frozen=True, slots=True)
class Schema:
    """What makes an operator a pack's own.

    Attributes:
        outputs: in order; the last one may be variadic.
        kinds: the kind of each attribute.
        inference: element types and shapes of the outputs from those of the inputs; None: found by the translator.
    """

    outputs: tuple[OutputParameter, ...]
    kinds: Mapping[str, AttributeKind]
    inference: Callable[..., Any] | None = None

    @property
    def required_outputs(self) -> int:
        """How many outputs a node has at least: one, even where all are optional."""
        return max(1, sum(each.required for each in self.outputs))

    def output(self, index: int) -> OutputParameter | None:
        """The parameter that output `index` belongs to, or None where the operator has no such output."""
        if index < len(self.outputs):
            return self.outputs[index]
        last = self.outputs[-1]
        return last if last.variadic else None

    def _names_with(self, index: int) -> tuple[str, ...]:
        """Names for outputs up to `index`: those that the schema has, and others."""
        own = [each.name for each in self.outputs]
        return (*own, *(f"output_{place}" for place in range(len(own), index + 1)))

    def declines(self, node: Node) -> Iterator[str]:
        """Each way in which `node` is not what the schema says."""
        for name, kind in self.kinds.items():
            if name in node.attributes and not _is_of(kind, node.attributes[name]):
                yield f"attribute {name} is not of the kind {kind.name}, which its schema says"
        for index in range(len(node.outputs)):
            if node.wants(index) and self.output(index) is None:
                yield (
                    f"output {index} is not one of its schema's (it has {len(self.outputs)}); name them: "
                    f"schema(outputs={self._names_with(index)})"
                )


_TYPES: Final[dict[AttributeKind, tuple[type, ...]]] = {
    AttributeKind.INT: (int,),
    AttributeKind.FLOAT: (int, float),
    AttributeKind.STRING: (str,),
    AttributeKind.TENSOR: (np.ndarray,),
}
_LISTED: Final[dict[AttributeKind, tuple[type, ...]]] = {
    AttributeKind.INTS: (int,),
    AttributeKind.FLOATS: (int, float),
    AttributeKind.STRINGS: (str,),
}


def _is_of(kind: AttributeKind, value: AttributeValue) -> bool:
    """Whether a value is of a kind; a whole number is a float too."""
    if kind in _TYPES:
        return isinstance(value, _TYPES[kind])
    return isinstance(value, tuple) and all(isinstance(each, _LISTED[kind]) for each in value)


def outputs_of_declaration(declared: Outputs, inputs: Collection[str]) -> tuple[OutputParameter, ...]:
    """The outputs that an author declares: `"Y"`, optional as `"mask?"`, variadic as `"parts..."`.

    Args:
        declared: names, or a mapping from names to element types or names of inputs.
        inputs: the names of the operator's inputs.

    Raises:
        ContractError: it declares none, one twice, a variadic one before others, a required one after an optional one,
            or an element type that there is not.
    """
    if isinstance(declared, str) or not isinstance(declared, Sequence | Mapping) or not declared:
        raise ContractError(f"outputs= takes names of outputs, as in ('Y', 'mask?', 'rest...'), not {declared!r}")
    types = declared if isinstance(declared, Mapping) else {}
    found = tuple(_output(text, types.get(text), inputs) for text in declared)
    names = [each.name for each in found]
    if len(set(names)) != len(names):
        raise ContractError(f"outputs= names one output twice: {names}")
    if any(each.variadic for each in found[:-1]):
        raise ContractError("outputs=: only the last output can be variadic")
    required = [each.required for each in found]
    if sorted(required, reverse=True) != required:
        raise ContractError("outputs=: a required output stands after an optional one")
    return found


def _output(text: Any, dtype: str | None, inputs: Collection[str]) -> OutputParameter:
    mark = next((each for each in ("...", "?") if isinstance(text, str) and text.endswith(each)), "")
    if not isinstance(text, str) or not text.removesuffix(mark).isidentifier():
        raise ContractError(f"outputs= takes names, as in 'Y', 'mask?' or 'rest...', not {text!r}")
    if dtype is not None and dtype not in HELD and dtype not in inputs:
        raise ContractError(f"outputs=: {dtype!r} is neither an element type nor an input ({', '.join(inputs)})")
    return OutputParameter(text.removesuffix(mark), not mark, mark == "...", dtype)


def kinds_of(function: Callable[..., Any], defaults: Mapping[str, Any]) -> dict[str, AttributeKind]:
    """The kinds of a translator's attributes, from their annotations, else from their defaults.

    Raises:
        ContractError: a kind cannot be told.
    """
    hints = get_type_hints(function)
    kinds: dict[str, AttributeKind] = {}
    for name, default in defaults.items():
        kind = _kind_of_hint(hints[name]) if name in hints else _kind_of_default(default)
        if kind is not None and default is not None and not _is_of(kind, _as_read(default)):
            raise ContractError(
                f"{function.__qualname__}: attribute {name} is of the kind {kind.name}, and its default, {default!r}, "
                "is not"
            )
        if kind is None:
            raise ContractError(
                f"{function.__qualname__}: the kind of attribute {name} cannot be told; annotate it with int, float, "
                "str, tuple[int, ...], tuple[float, ...], tuple[str, ...] or np.ndarray (or one of them `| None`)"
            )
        kinds[name] = kind
    return kinds


def check_default(attribute: str, default: Any) -> None:
    """Make sure that an attribute can have the default that a translator gives it.

    Raises:
        ContractError: it is, or holds, a number beyond ONNX's: whole ones have 64 bits, others are float32.
    """
    for each in default if isinstance(default, list | tuple) else (default,):
        whole = isinstance(each, int) and not -(2**63) <= each < 2**63
        if whole or (isinstance(each, float) and _LARGEST_FLOAT < abs(each) < math.inf):
            raise ContractError(
                f"{attribute}: its default {each!r} is beyond what an attribute holds, which is an int64 or a float32"
            )


def _as_read(value: Any) -> Any:
    """A value as a model's attribute would be read."""
    return tuple(value) if isinstance(value, list) else value


def _kind_of_hint(hint: Any) -> AttributeKind | None:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        kinds = {_kind_of_hint(each) for each in get_args(hint) if each is not NoneType}
        return kinds.pop() if len(kinds) == 1 else None
    if origin is np.ndarray:
        return AttributeKind.TENSOR
    if isinstance(origin, type) and issubclass(origin, Iterable):
        elements = {_SEVERAL.get(each) for each in get_args(hint) if each is not Ellipsis}
        return elements.pop() if len(elements) == 1 else None
    return _SINGLE.get(hint)


def _kind_of_default(default: Any) -> AttributeKind | None:
    if isinstance(default, list | tuple):
        kinds = {_SEVERAL.get(type(each)) for each in default}
        if kinds == {AttributeKind.INTS, AttributeKind.FLOATS}:
            return AttributeKind.FLOATS
        return kinds.pop() if len(kinds) == 1 else None
    return _SINGLE.get(type(default))


def check_inference(inference: Callable[..., Any], inputs: int, variadic: bool) -> None:
    """Make sure that an inference function can be called with an operator's inputs.

    Raises:
        ContractError: it takes fewer, or more.
    """
    try:
        inspect.signature(inference).bind_partial(*[None] * (inputs + (2 if variadic else 0)))
    except ValueError:  # a function of C, which does not tell
        return
    except TypeError as error:
        raise ContractError(
            f"{inference.__qualname__}: a schema's inference takes the inputs that the operator has ({error})"
        ) from error


def parameters_of(function: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    """A function's parameters; none of one of C that does not tell them, as NumPy's did not before 2.4."""
    try:
        return tuple(inspect.signature(function).parameters.values())
    except ValueError:
        return ()


def keywords_taken(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the keyword arguments `given` that a function takes."""
    parameters = parameters_of(function)
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return dict(given)
    taken = {each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}
    return {name: value for name, value in given.items() if name in taken}
