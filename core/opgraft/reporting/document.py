"""Reports as JSON, and back. `report.schema.json`, beside this file, says what is in it.

The document is the report's dataclasses as they are, with a head that names the format and its version, and a summary
that repeats a few numbers for whoever wants nothing else. Versions only go up where a reader of an older one would
misread what is written; what is new is added, and readers pass over what they do not know.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from opgraft.errors import ModelError
from opgraft.reporting.report import Report

FORMAT: Final = "opgraft-report"
VERSION: Final = 1

_OTHERS: Final = {
    "opgraft-matrix": "a report of a folder",
    "opgraft-comparison": "a comparison of two reports",
    "opgraft-benchmark": "a benchmark",
}
"""What else `--json` writes, which no command reads."""

T = TypeVar("T")


def document_of(report: Report) -> dict[str, Any]:
    """A report as what `json.dumps` takes."""
    return {"format": FORMAT, "version": VERSION, "summary": summary_of(report), **plain(report)}


def summary_of(report: Report) -> dict[str, Any]:
    """A report in a few numbers."""
    return {
        "nodes": report.coverage.nodes,
        "claimed": report.coverage.claimed,
        "percentage": round(report.percentage, 2),
        "subgraphs": len(report.subgraphs),
        "crossings": plain(report.traffic),
        "breaks": len(report.breaks),
    }


def plain(value: Any) -> Any:
    """Dataclasses as dictionaries and tuples as lists, all the way down."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in _fields(type(value))}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value


def to_json(report: Report) -> str:
    """The text of a report. Names that are no Unicode text are escaped, as Python does it."""
    return json.dumps(document_of(report), indent=1, ensure_ascii=True)


def from_json(text: str | bytes, source: str) -> Report:
    """The report that `to_json` gave a text for.

    Args:
        text: the text.
        source: what an error calls it.

    Raises:
        ModelError: it holds no report, or one of a version that is not known here.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{source}: not JSON, or cut short ({error})") from error
    kind = document.get("format") if isinstance(document, Mapping) else None
    if kind in _OTHERS:
        raise ModelError(f"{source}: {_OTHERS[kind]}; only reports of one model can be shown")
    if kind != FORMAT:
        raise ModelError(f"{source}: not a report; `opgraft report --json` writes one")
    if document.get("version") != VERSION:
        raise ModelError(
            f"{source}: a report of version {document.get('version')}, and this opgraft reads version {VERSION}; "
            "write it anew"
        )
    try:
        report: Report = _built(Report, document)
        places = range(len(report.graph.nodes))
        if not all(end in places for edge in report.graph.edges for end in edge):
            raise ValueError("an edge that leads to no node")
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ModelError(f"{source}: a damaged report ({error})") from error
    return report


def schema() -> dict[str, Any]:
    """The JSON Schema of a report."""
    found: dict[str, Any] = json.loads((files(__package__) / "report.schema.json").read_text("utf-8"))
    return found


@lru_cache(maxsize=64)
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


@cache
def _has_default(kind: type, name: str) -> bool:
    """True for what a document may lack that an older opgraft wrote."""
    field = next(field for field in dataclasses.fields(kind) if field.name == name)
    return field.default is not dataclasses.MISSING


@lru_cache(maxsize=64)
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _built(hint: Any, value: Any) -> Any:
    """A value of the type that an annotation names, from what JSON gives."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise TypeError(f"{hint.__name__} is {value!r}")
        hints = _hints(hint)
        given = (name for name in _fields(hint) if name in value or not _has_default(hint, name))
        return hint(**{name: _built(hints[name], value[name]) for name in given})
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is no list")
        each = [arguments[0]] * len(value) if arguments[1:] == (...,) else arguments
        return tuple(_built(one, item) for one, item in zip(each, value, strict=True))
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        inner = [each for each in arguments if each is not NoneType]
        return _built(inner[0], value) if len(inner) == 1 else _one_of(inner, value)
    return _one_of([hint], value)


def _one_of(kinds: list[Any], value: Any) -> Any:
    accepted = [(int, float) if kind is float else kind for kind in kinds]
    if not any(isinstance(value, kind) and (kind is not int or not isinstance(value, bool)) for kind in accepted):
        raise TypeError(f"{value!r} is not {' or '.join(kind.__name__ for kind in kinds)}")
    return value
