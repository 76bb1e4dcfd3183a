"""What is known of an operator before its handler is written: the signature that ONNX Runtime's schema gives it."""

from __future__ import annotations

import keyword
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx.helper import get_attribute_value

from opgraft.errors import OptionError
from opgraft.graph import ONNX_DOMAIN
from opgraft.graph import element_types as types
from opgraft.registry.names import close_operators
from opgraft.registry.packs import full_operator
from opgraft.schemas import known_schemas, operators_of

_OPERATOR = re.compile(r"[A-Za-z_][\w.\-]*::[A-Za-z_]\w*", re.ASCII)
_ELEMENT_TYPES = {"float": "float32", "double": "float64"}
SETS = {name: getattr(types, name) for name in ("BOOL", "FLOATS", "INTEGERS", "NUMBERS", "SIGNED", "UNSIGNED")}
"""The sets of element types in opgraft.ops that handlers are written with."""


@dataclass(frozen=True)
class OperatorDraft:
    """A handler to be written.

    Attributes:
        operator: `domain::OpType`.
        since: the first version whose nodes this signature takes; 1 where there is no schema.
        until: the last version, of an operator that ONNX has given up; else None.
        newest: the version whose schema this is.
        function: a Python name for its translator.
        parameters: its signature as Python source, inputs first.
        inputs: an element type, as Python source, for each input that a node must give; None for one among them that it
            may leave out.
        required: the attributes that cannot be left out, with a value each, as Python source.
        dtypes: source of the element types that its inputs take; None for any.
        is_new: True where ONNX Runtime has no schema of it, so that the pack must declare it.
    """

    operator: str
    function: str
    parameters: str
    inputs: tuple[str | None, ...]
    dtypes: str | None
    since: int = 1
    until: int | None = None
    newest: int = 1
    required: tuple[tuple[str, str], ...] = ()
    is_new: bool = False

    @property
    def decorator(self) -> str:
        until = f", until={self.until}" if self.until else ""
        dtypes = f", dtypes={self.dtypes}" if self.dtypes else ""
        return _wrapped("@op(", f'"{self.name}", since={self.since}{until}{dtypes}', ")")

    @property
    def definition(self) -> str:
        return _wrapped(f"def {self.function}(", self.parameters, "):")

    @property
    def op_type(self) -> str:
        return self.operator.rpartition("::")[2]

    @property
    def name(self) -> str:
        """As handlers write it: without ai.onnx."""
        return self.operator.removeprefix(f"{ONNX_DOMAIN}::")


def draft_of(name: str) -> OperatorDraft:
    """What is known of the operator `domain::OpType`, or `OpType` of ai.onnx.

    Raises:
        OptionError: it is no name of an operator, or one that ai.onnx does not have.
    """
    operator = full_operator(name)
    if not _OPERATOR.fullmatch(operator):
        raise OptionError(f"{name!r} is not the name of an operator: write domain::OpType, as in acme::Mish")
    domain, _, op_type = operator.rpartition("::")
    function = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", op_type).lower()
    schemas = known_schemas(operator)
    if not schemas and domain == ONNX_DOMAIN:
        raise OptionError(f"{not_there(operator)}: name a domain of your own, as in acme::{op_type}")
    if not schemas:
        return OperatorDraft(
            operator, _safe(function), "X, *, alpha: float = 1.0", ("np.float32",), "FLOATS", is_new=True
        )
    current = [each for each in schemas if not each.deprecated]
    schema = current[-1]
    _refuse_what_is_not_drafted(operator, schema)
    given_up = next((each.since_version for each in schemas if each.deprecated), None)
    return OperatorDraft(
        operator,
        _safe(function),
        _parameters(schema),
        _inputs(schema),
        _dtypes(schema),
        since=_first_version(current),
        until=None if given_up is None else given_up - 1,
        newest=schema.since_version,
        required=tuple((each.name, _EXAMPLES[each.type.name]) for each in _attributes(schema) if each.required),
    )


def not_there(operator: str) -> str | None:
    """That a domain of ONNX's or of ONNX Runtime's own has no such operator, with the one that may be meant. None where
    it has, or where the domain is another's."""
    domain, _, op_type = operator.rpartition("::")
    known = operators_of(domain)
    if not known or operator in known:
        return None
    (close,) = close_operators(operator, known, 1) or ("",)
    return f"{domain} has no operator {op_type!r}" + (f" (did you mean {close}?)" if close else "")


def _refuse_what_is_not_drafted(operator: str, schema: Any) -> None:
    """Raises:
    OptionError: the operator has bodies, or inputs and outputs other than tensors of numbers.
    """
    bodies = [each.name for each in _attributes(schema) if each.required and each.type.name not in _EXAMPLES]
    if bodies:
        raise OptionError(
            f"{operator} has a body, {bodies[0]!r}: see If and Loop in opgraft's pack builtin for how one is written"
        )
    for each in (*schema.inputs, *schema.outputs):
        if each.option.name != "Optional" and each.types and not _taken(each):
            kinds = ", ".join(sorted(each.types)[:3])
            raise OptionError(f"{operator} has {each.name!r} of {kinds}: {_advice(each)}")


def _advice(parameter: Any) -> str:
    """What to do about a parameter that takes nothing that MLX has."""
    if any(text.startswith("seq(tensor(") for text in parameter.types):
        return "see SequenceAt in opgraft's pack builtin for how a handler takes sequences"
    if _tensors(parameter) & types.NARROW:
        return "see DequantizeLinear in opgraft's pack builtin for how a handler takes types that MLX lacks"
    return "that is not to be had on MLX, and such nodes stay with the CPU"


def _first_version(schemas: Sequence[Any]) -> int:
    """The first version from which on every node is one of the last version too."""
    first = newest = schemas[-1]
    for older in reversed(schemas[:-1]):
        if not _is_part_of(older, newest):
            break
        first = older
    return int(first.since_version)


def _is_part_of(older: Any, newer: Any) -> bool:
    """True where the newer version of an operator only adds to the older what may be left out: inputs, attributes,
    outputs. Element types may differ, as long as they have some in common: a handler says by itself which it takes."""
    attributes = {each.name: each for each in _attributes(newer)}
    return (
        _parameters_go_on(older.inputs, newer.inputs)
        and _parameters_go_on(older.outputs, newer.outputs)
        and all(
            each.name in attributes
            and each.type == attributes[each.name].type
            and (each.required or each._default_value == attributes[each.name]._default_value)
            for each in _attributes(older)
        )
        and all(not each.required or each.name in older.attributes for each in attributes.values())
    )


def _parameters_go_on(older: Sequence[Any], newer: Sequence[Any]) -> bool:
    return (
        len(older) <= len(newer)
        and all(
            now.option.name in (was.option.name, "Optional") and not set(was.types).isdisjoint(now.types)
            for was, now in zip(older, newer, strict=False)
        )
        and all(each.option.name == "Optional" for each in newer[len(older) :])
    )


_TAKEN = frozenset({"check_declined", "check_node", "mx", "np", "onnx", "op"})
"""Names that the files use."""

WIDTH = 100
"""Of the lines that are written."""

_EXAMPLES = {
    "INT": "1",
    "FLOAT": "1.0",
    "STRING": '"text"',
    "TENSOR": "onnx.numpy_helper.from_array(np.ones(1, np.float32))",
    "INTS": "[1]",
    "FLOATS": "[1.0]",
    "STRINGS": '["text"]',
}


def _wrapped(head: str, inner: str, tail: str) -> str:
    """A line of Python, or as many as it takes."""
    if len(head + inner + tail) <= WIDTH:
        return head + inner + tail
    indent = " " * 4
    lines = textwrap.fill(
        inner, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return f"{head}\n{lines}\n{tail}"


def _attributes(schema: Any) -> list[Any]:
    """Those that are required first."""
    return sorted(schema.attributes.values(), key=lambda each: (not each.required, each.name))


def _names(schema: Any) -> list[str]:
    """Names for the inputs, which are the pack's own: an attribute's name stays the attribute's."""
    return [f"{name}_" if name in schema.attributes else name for name in (_safe(each.name) for each in schema.inputs)]


def _parameters(schema: Any) -> str:
    parts: list[str] = []
    for name, each in zip(_names(schema), schema.inputs, strict=True):
        if each.option.name == "Variadic":
            parts.append(f"*{name}")
        else:  # after an optional one, Python lets none be required
            optional = each.option.name == "Optional" or any("=" in part for part in parts)
            parts.append(f"{name}=None" if optional else name)
    attributes = _attributes(schema)
    if attributes and not any(part.startswith("*") for part in parts):
        parts.append("*")
    return ", ".join(parts + [_attribute(each) for each in attributes])


def _inputs(schema: Any) -> tuple[str | None, ...]:
    """See `OperatorDraft.inputs`; of a variadic input, as many as there must be, and one at least."""
    given = [None if each.option.name == "Optional" else _numpy_type(_element_type(each)) for each in schema.inputs]
    if schema.inputs and schema.inputs[-1].option.name == "Variadic":
        given += [given[-1]] * (schema.min_input - len(given))
    while given and given[-1] is None:
        given.pop()
    return tuple(given)


def _attribute(attribute: Any) -> str:
    if attribute.required:
        return str(attribute.name)
    given = onnx.AttributeProto.FromString(attribute._default_value)
    value = get_attribute_value(given) if given.type else None
    return f"{attribute.name}={_source(value)}"


def _source(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, float):
        return f"{value:.9g}" if "." in f"{value:.9g}" or "e" in f"{value:.9g}" else f"{value:.1f}"
    return repr(list(value) if isinstance(value, list | tuple) else value)


def _dtypes(schema: Any) -> str | None:
    """Source of the element types that MLX has of what the inputs take: one set for all, or one for each by name."""
    by_input = {name: _set_source(_taken(each)) for name, each in zip(_names(schema), schema.inputs, strict=True)}
    sources = set(by_input.values())
    if len(sources) <= 1:
        return next(iter(sources), None)
    return "{" + ", ".join(f'"{name}": {source}' for name, source in by_input.items() if source) + "}"


def _set_source(taken: set[str]) -> str | None:
    if taken in (set(), types.ANY):
        return None
    name = next((name for name, members in SETS.items() if members == taken), None)
    return name or "{" + ", ".join(f'"{each}"' for each in sorted(taken)) + "}"


def _taken(parameter: Any) -> set[str]:
    """The element types that the parameter takes and MLX has."""
    return _tensors(parameter) & types.ANY


def _tensors(parameter: Any) -> set[str]:
    """The element types of tensors that the parameter takes."""
    names = {text.removeprefix("tensor(").removesuffix(")") for text in parameter.types}
    return {_ELEMENT_TYPES.get(name, name) for name in names}


def _element_type(parameter: Any) -> str:
    """One that the parameter takes; bfloat16, which NumPy lacks, where there is no other."""
    taken = _taken(parameter)
    return "float32" if "float32" in taken else min(taken - {"bfloat16"} or taken, default="float32")


def _numpy_type(name: str) -> str:
    return f"ml_dtypes.{name}" if name == "bfloat16" else f"np.{name}"


def _safe(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) or name in _TAKEN or not name.isidentifier() else name
