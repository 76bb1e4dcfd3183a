"""What is known of an operator before its handler is written: the signature that ONNX Runtime's schema gives it."""

from __future__ import annotations

import keyword
import re
import textwrap
from dataclasses import dataclass
from typing import Any

import onnx
from onnx.helper import get_attribute_value

from opgraft.errors import ModelError
from opgraft.graph import ONNX_DOMAIN, normalized_domain
from opgraft.graph import element_types as types
from opgraft.host.requirements import require_onnxruntime
from opgraft.registry.packs import full_operator

_OPERATOR = re.compile(r"[A-Za-z_][\w.\-]*::[A-Za-z_]\w*", re.ASCII)
_ELEMENT_TYPES = {"float": "float32", "double": "float64"}
SETS = {name: getattr(types, name) for name in ("BOOL", "FLOATS", "INTEGERS", "NUMBERS", "SIGNED", "UNSIGNED")}
"""The sets of element types in opgraft.ops that handlers are written with."""


@dataclass(frozen=True)
class OperatorDraft:
    """A handler to be written.

    Attributes:
        operator: `domain::OpType`.
        since: the newest version of its schema; 1 where there is none.
        function: a Python name for its translator.
        parameters: its signature as Python source, inputs first.
        inputs: an element type for each input that cannot be left out.
        required: the attributes that cannot be left out, with a value each, as Python source.
        dtypes: source of the element types that its inputs take; None for any.
        is_new: True where ONNX Runtime has no schema of it, so that the pack must declare it.
    """

    operator: str
    since: int
    function: str
    parameters: str
    inputs: tuple[str, ...]
    required: tuple[tuple[str, str], ...]
    dtypes: str | None
    is_new: bool

    @property
    def decorator(self) -> str:
        dtypes = f", dtypes={self.dtypes}" if self.dtypes else ""
        return _wrapped("@op(", f'"{self.name}", since={self.since}{dtypes}', ")")

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
        ModelError: it is no name of an operator, or one that ai.onnx does not have.
    """
    operator = full_operator(name)
    if not _OPERATOR.fullmatch(operator):
        raise ModelError(f"{name!r} is not the name of an operator: write domain::OpType, as in acme::Mish")
    domain, _, op_type = operator.rpartition("::")
    function = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", op_type).lower()
    schema = _schema(domain, op_type)
    if schema is None and domain == ONNX_DOMAIN:
        raise ModelError(f"ai.onnx has no operator {op_type!r}: name a domain of your own, as in acme::{op_type}")
    if schema is None:
        return OperatorDraft(operator, 1, _safe(function), "X, *, alpha: float = 1.0", ("float32",), (), "FLOATS", True)
    required = [each for each in schema.attributes.values() if each.required]
    strange = next((each.name for each in required if each.type.name not in _EXAMPLES), None)
    if strange is not None:
        raise ModelError(
            f"{operator} has a body, {strange!r}: see If and Loop in opgraft's own pack for how one is written"
        )
    return OperatorDraft(
        operator,
        schema.since_version,
        _safe(function),
        _parameters(schema),
        tuple(_element_type(each) for each in schema.inputs if each.option.name == "Single"),
        tuple((each.name, _EXAMPLES[each.type.name]) for each in required),
        _dtypes(schema),
        False,
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


def _schema(domain: str, op_type: str) -> Any:
    """The newest schema that ONNX Runtime has, or ONNX."""
    require_onnxruntime()
    from onnxruntime.capi import onnxruntime_pybind11_state

    found = [
        schema
        for schema in onnxruntime_pybind11_state.get_all_operator_schema()
        if schema.name == op_type and normalized_domain(schema.domain) == domain
    ]
    return max(found, key=lambda schema: schema.since_version, default=None)


def _parameters(schema: Any) -> str:
    parts: list[str] = []
    for each in schema.inputs:
        name, option = _safe(each.name), each.option.name
        if option == "Variadic":
            parts.append(f"*{name}")
        else:  # after an optional one, Python lets none be required
            optional = option == "Optional" or any("=" in part for part in parts)
            parts.append(f"{name}=None" if optional else name)
    attributes = sorted(schema.attributes.values(), key=lambda each: (not each.required, each.name))
    if attributes and not any(part.startswith("*") for part in parts):
        parts.append("*")
    return ", ".join(parts + [_attribute(each) for each in attributes])


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
    by_input = {_safe(each.name): _set_source(_taken(each)) for each in schema.inputs}
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
    names = {text.removeprefix("tensor(").removesuffix(")") for text in parameter.types}
    return {_ELEMENT_TYPES.get(name, name) for name in names} & types.ANY


def _element_type(parameter: Any) -> str:
    """One that the parameter takes, and NumPy has."""
    taken = _taken(parameter) - {"bfloat16"}
    return "float32" if "float32" in taken else min(taken, default="float32")


def _safe(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) or name in _TAKEN or not name.isidentifier() else name
