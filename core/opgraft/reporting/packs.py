"""The installed packs and their handlers, as typed objects: who is asked for what, and who is not and why."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from opgraft.errors import text_of
from opgraft.graph.element_types import described
from opgraft.ops import Handler
from opgraft.ops.handler import Input, Place
from opgraft.registry import Candidate, Pack, Registry
from opgraft.registry.dispatch import only_wraps
from opgraft.reporting.wording import counted
from opgraft.schemas import known_schemas


@dataclass(frozen=True)
class PackSummary:
    """One installed pack.

    Attributes:
        name, distribution, version: the pack, and what brought it.
        operators: the operators that it has handlers of.
        overrides: those of them that packs asked later have handlers of too, with the first such pack.
        wraps: the operators, or patterns of them, whose handlers it wraps.
        state: "asked", "off" where it names no operator (see `is_off`) or says what is in its way, or why it is not
            asked.
        held_back: the operators that the registry file, or another pack's schema of them, keeps from it, in words.
    """

    name: str
    distribution: str
    version: str
    operators: tuple[str, ...]
    overrides: tuple[tuple[str, str], ...]
    wraps: tuple[str, ...]
    state: str
    held_back: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class HandlerSummary:
    """One handler of an operator.

    Attributes:
        operator, versions, pack: what it handles, and whose it is.
        doc: the first paragraph of its docstring.
        inputs: each input's name, with ? where it is optional and ... where it is variadic, and its element types.
        attributes: each attribute's name and default; None where it is required.
        on_host: True where shape arithmetic can be done by it in NumPy.
        wrappers: the packs that wrap it, outermost first.
        missed: the versions of the operator that its pack has no handler for.
    """

    operator: str
    versions: str
    pack: str
    doc: str
    inputs: tuple[tuple[str, str], ...]
    attributes: tuple[tuple[str, str | None], ...]
    on_host: bool
    wrappers: tuple[str, ...]
    missed: tuple[int, ...] = ()


def summaries_of_packs(registry: Registry, installed: Sequence[Pack]) -> list[PackSummary]:
    """A summary of each pack, those that are asked first, in the order in which they are."""
    found = {pack.name: pack for pack in installed}
    order = registry.policy.order([pack.name for pack in registry.packs], "")
    return [_summary(found[name], registry, order) for name in [*order, *sorted(found.keys() - set(order))]]


def _summary(pack: Pack, registry: Registry, order: Sequence[str]) -> PackSummary:
    wrapping = [plugin for plugin in pack.plugins if only_wraps(plugin)]
    handled = dict.fromkeys(name for plugin in pack.plugins if plugin not in wrapping for name in plugin.operators)
    overrides: list[tuple[str, str]] = []
    held_back: list[tuple[str, str]] = []
    for operator in handled if pack.name in order else ():
        asked = [candidate.pack for candidate in registry.candidates(operator)]
        held_back_by = _held_back_by(operator, pack.name, registry, asked)
        if held_back_by is not None:
            held_back.append((operator, held_back_by))
            continue
        later = asked[asked.index(pack.name) :] if pack.name in asked else []
        overrides += [(operator, other) for other in later if other != pack.name][:1]
    return PackSummary(
        pack.name,
        pack.distribution,
        pack.version,
        tuple(handled),
        tuple(overrides),
        tuple(dict.fromkeys(name for plugin in wrapping for name in plugin.operators)),
        _state(pack, registry, order),
        tuple(held_back),
    )


def _held_back_by(operator: str, pack: str, registry: Registry, asked: Sequence[str]) -> str | None:
    """What keeps an operator from a pack that is asked for others: the registry file, or another pack's schema of it.
    None where nothing does, or where nobody's schema counts, which is told of the operator."""
    denial = registry.policy.denial(operator, pack)
    if denial is not None or pack in asked or operator not in registry.definitions:
        return denial
    return f"the pack {registry.definitions[operator].pack} defines it too, and is asked first"


def _state(pack: Pack, registry: Registry, order: Sequence[str]) -> str:
    if pack.error:
        return f"left out: {pack.error}"
    if pack.name not in order:
        return f"disabled: {registry.policy.denial('', pack.name)}"
    if is_off(pack):
        return "off"
    obstacle = obstacle_of(pack)
    return f"off: {obstacle}" if obstacle else "asked"


def obstacle_of(pack: Pack) -> str | None:
    """What a pack itself says keeps it from taking any node for now, by the function `obstacle` of its module."""
    obstacle = getattr(sys.modules.get(pack.module.partition(":")[0]), "obstacle", None)
    if not callable(obstacle):
        return None
    try:
        found = obstacle()
    except Exception as error:  # a pack's fault must stay the pack's
        return text_of(error)
    return None if found is None else str(found)


def is_off(pack: Pack) -> bool:
    """True for a pack that loaded and names no operator: it does nothing until its user turns it on."""
    return pack.error is None and not any(plugin.operators for plugin in pack.plugins)


def operators_text(pack: Pack) -> str:
    """As in "194 operators", "wraps *::*" or "off"."""
    wrapping = [plugin for plugin in pack.plugins if only_wraps(plugin)]
    handled = {name for plugin in pack.plugins if plugin not in wrapping for name in plugin.operators}
    wrapped = dict.fromkeys(name for plugin in wrapping for name in plugin.operators)
    parts = [counted(len(handled), "operator")] if handled else []
    parts += [f"wraps {', '.join(wrapped)}"] if wrapped else []
    return "; ".join(parts) or "off"


def summaries_of_handlers(registry: Registry, operator: str, pack: str | None = None) -> list[HandlerSummary]:
    """A summary of each handler of an operator, in the order in which they are asked; of one pack only, if given."""
    candidates = registry.candidates(operator)
    return [
        replace(_handler(operator, each), missed=_missed(operator, each.pack, candidates))
        for each in candidates
        if pack is None or each.pack == pack
    ]


def _missed(operator: str, pack: str, candidates: Sequence[Candidate]) -> tuple[int, ...]:
    """The versions that ONNX Runtime knows of an operator and a pack does not."""
    versions = [int(schema.since_version) for schema in known_schemas(operator)]
    own = [each for each in candidates if each.pack == pack]
    return tuple(version for version in versions if not any(each.covers(version) for each in own))


def _handler(operator: str, candidate: Candidate) -> HandlerSummary:
    handler = candidate.handler
    wrappers = tuple(dict.fromkeys(pack for _, pack in candidate.packages[1:]))
    if not isinstance(handler, Handler):
        doc = inspect.getdoc(handler) or ""
        return HandlerSummary(operator, "", candidate.pack, _paragraph(doc), (), (), False, wrappers)
    signature = handler.signature
    inputs = [(each.name if each.required else f"{each.name}?", _types(each)) for each in signature.inputs]
    if signature.variadic is not None:
        inputs.append((f"{signature.variadic.name}...", _types(signature.variadic)))
    attributes = [(name, _default(default)) for name, default in signature.attributes.items()]
    doc = inspect.cleandoc(handler.__doc__ or "")
    return HandlerSummary(
        operator,
        handler.versions,
        candidate.pack,
        _paragraph(doc),
        tuple(inputs),
        tuple(attributes),
        handler.host_form is not None,
        wrappers,
    )


def _paragraph(doc: str) -> str:
    return " ".join(doc.partition("\n\n")[0].split())


def _types(parameter: Input) -> str:
    mark = " (elements known while translating)" if parameter.place is Place.HOST else ""
    return described(parameter.dtypes) + mark


def _default(value: Any) -> str | None:
    return None if value is inspect.Parameter.empty else repr(value)
