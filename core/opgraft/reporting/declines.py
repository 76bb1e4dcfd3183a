"""Declined nodes, grouped: those of one operator that are declined for the same reason are one thing to mend."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opgraft.graph import Node, Value
from opgraft.graph.model import ONNX_DOMAIN
from opgraft.registry import Reason

Key = tuple[str, tuple[tuple[str | None, str], ...]]
"""Tells a group from every other: the operator, and each reason with the pack that gave it."""


def key_of(node: Node, reasons: Sequence[Reason]) -> Key:
    """The group of a node that is declined. Names of its own values in a reason do not make it another."""
    return node.operator, tuple((reason.pack, _without_names(reason.text, node)) for reason in reasons)


def _without_names(text: str, node: Node) -> str:
    if "'" not in text and '"' not in text:
        return text
    for place, values in (("input", node.inputs), ("output", node.outputs), ("value", node.implicit_inputs)):
        for index, value in enumerate(values):
            if value is not None:
                text = text.replace(repr(value.name), f"{place} {index}")
    return text


def short_name(operator: str) -> str:
    """An operator as people write it: without the domain where it is ONNX's own."""
    return operator.removeprefix(f"{ONNX_DOMAIN}::")


@dataclass(frozen=True)
class Title:
    """What a group is called: the operator, and what its nodes have in common that the reason speaks of."""

    operator: str
    detail: str

    def __str__(self) -> str:
        return short_name(self.operator) + (f" ({self.detail})" if self.detail else "")


def title_of(nodes: Sequence[Node], reasons: Iterable[Reason]) -> Title:
    """The title of a group, as in "Pad (mode=reflect)"."""
    words = {word for reason in reasons for word in re.findall(r"\w+", reason.text)}
    first = nodes[0]
    details = [
        f"{name}={_value(value)}"
        for name, value in first.attributes.items()
        if name in words
        and isinstance(value, int | float | str | tuple)
        and all(_same(node.attributes.get(name), value) for node in nodes)
    ]
    types = [value.dtype for value in _values(first) if value.dtype is not None and value.dtype in words]
    return Title(first.operator, ", ".join([*details, *dict.fromkeys(types)]))


def _values(node: Node) -> list[Value]:
    return [value for value in (*node.inputs, *node.outputs) if value is not None]


def _same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other


def _value(value: object) -> str:
    text = "[" + ", ".join(map(str, value)) + "]" if isinstance(value, tuple) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
