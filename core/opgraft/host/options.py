"""The provider options: each is one field of `Options`, and nothing else knows their names."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opgraft.errors import OptionError
from opgraft.switches import switch_word
from opgraft.text import perhaps_meant

OptionValue = str | bool | os.PathLike[str]
"""What Python code may give for an option: its text, True and False for a switch, a path for a file."""

ProviderOptions = Mapping[str, OptionValue]
"""Provider options by name."""


def _choice(values: Mapping[str, Any], *, default: str, help: str) -> Any:
    """An option with a few known values: what a user writes, and what the field then holds."""
    return dataclasses.field(default=values[default], metadata={"values": values, "default": default, "help": help})


def _one_of(*values: str, default: str, help: str) -> Any:
    return _choice({value: value for value in values}, default=default, help=help)


def _switch(*, default: str, help: str) -> Any:
    return _choice({"on": True, "off": False}, default=default, help=help)


def _text(*, help: str) -> Any:
    """An option that takes any text; the field is None where it is not given."""
    return dataclasses.field(default=None, metadata={"values": None, "default": "", "help": help})


@dataclass(frozen=True, slots=True)
class Options:
    """What a session asks of opgraft."""

    device: str = _one_of(
        "auto",
        "cpu",
        "gpu",
        default="auto",
        help="Where MLX runs. auto: the GPU where the session's devices include one and MLX can use it.",
    )
    registry: str | None = _text(
        help="Path of the registry.yaml to use in place of the shipped one; ~ is the home folder."
    )
    verify: bool = _switch(default="on", help="Translate each node once on stand-in inputs before it is claimed.")
    placement: str = _one_of(
        "all",
        "fastest",
        default="all",
        help="What is claimed. all: whatever can run. fastest: what is faster here than on the CPU EP, by trying both.",
    )
    profile: str | None = _text(
        help="Path of what `opgraft tune` measured, by which placement=fastest decides without trying again."
    )
    on_error: str = _one_of(
        "raise",
        "cpu",
        default="raise",
        help="When a subgraph fails. cpu: it runs on the CPU EP from then on, and a warning says why.",
    )
    log_declined: bool = _switch(default="off", help="Log each node that is not claimed, with its reasons.")
    trace: str | None = _text(
        help="Path of a trace to write, for Perfetto or Chrome; %p in it is the number of the process."
    )
    trace_ops: bool = _switch(
        default="off", help="Where a trace or a digest is made, compute each node by itself, and time it."
    )


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One option as documentation shows it. `values` is None where any text will do."""

    name: str
    values: tuple[str, ...] | None
    default: str
    help: str


def known_options() -> tuple[OptionRow, ...]:
    """Every provider option, in the order of `Options`."""
    return tuple(
        OptionRow(
            field.name,
            None if field.metadata["values"] is None else tuple(field.metadata["values"]),
            field.metadata["default"],
            field.metadata["help"],
        )
        for field in dataclasses.fields(Options)
    )


def option_texts(entries: ProviderOptions) -> dict[str, str]:
    """Provider options as ONNX Runtime takes them, all text.

    Raises:
        OptionError: an unknown option, or a value that its option does not have.
    """
    parse_options(entries)
    return {name: _text_of(value) for name, value in entries.items()}


def parse_options(entries: ProviderOptions) -> Options:
    """The options that a session's provider options ask for.

    Raises:
        OptionError: an unknown option, or a value that its option does not have.
    """
    rows = {row.name: row for row in known_options()}
    fields = {field.name: field for field in dataclasses.fields(Options)}
    chosen: dict[str, Any] = {}
    for name, value in entries.items():
        if name not in rows:
            hint = perhaps_meant(name.lower(), rows)
            raise OptionError(f"unknown option {name!r}{hint}; the options are {', '.join(rows)}")
        values = fields[name].metadata["values"]
        text = _text_of(value)
        if values is not None and text not in values and isinstance(values.get("on"), bool):
            text = switch_word(text)
        if values is None and (isinstance(value, bool) or not isinstance(value, str | os.PathLike)):
            raise OptionError(f"option {name!r} takes a text, not {value!r}")
        if values is not None and text not in values:
            hint = perhaps_meant(text.lower(), values)
            raise OptionError(f"option {name!r} has no value {value!r}{hint}; its values are {', '.join(values)}")
        chosen[name] = (text or None) if values is None else values[text]
    return Options(**chosen)


def _text_of(value: OptionValue) -> str:
    """True and False are "on" and "off"."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return os.fsdecode(value) if isinstance(value, os.PathLike) else str(value)
