"""Which of the operators that packs define ONNX Runtime is told of, and what is wrong with the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final

import onnx

from opgraft.engine.inference import cannot_infer
from opgraft.graph import ONNX_DOMAIN, normalized_domain
from opgraft.registry import Definition, Registry, Undefined
from opgraft.registry.dispatch import only_wraps
from opgraft.registry.names import close_operators

_INTERNAL_DOMAINS: Final = frozenset({"com.ms.internal.nhwc", "com.microsoft.nchwc"})


def told(registry: Registry) -> dict[str, Definition]:
    """The definitions that ONNX Runtime is told of, by operator."""
    out = left_out(registry)
    return {operator: definition for operator, definition in registry.definitions.items() if operator not in out}


@cache
def left_out(registry: Registry) -> dict[str, Undefined]:
    """The operators that packs define and that ONNX Runtime is not told of, each with the reason.

    It takes a set of schemas as a whole: one that it refused would cost all of them, and every session.
    """
    found = dict(registry.undefined)
    for operator, definition in registry.definitions.items():
        problem = _problem_with(definition)
        if problem is not None:
            found[operator] = Undefined(operator, (definition.pack,), problem)
    return found


def _problem_with(definition: Definition) -> str | None:
    if "\0" in definition.operator or not definition.operator.isprintable():
        return "its name holds a NUL, or something else that no name can"
    if definition.operator in _operators_of_onnxruntime():
        return "onnxruntime has a schema of it already; take the handler's .schema away"
    reasons = (cannot_infer(handler) for handler in definition.handlers)
    return next((reason for reason in reasons if reason is not None), None)


def _operators_of_onnxruntime() -> frozenset[str]:
    """The operators that ONNX Runtime has schemas of."""
    return frozenset(_schemas_of_onnxruntime())


@lru_cache(maxsize=1)
def _schemas_of_onnxruntime() -> Mapping[str, Sequence[Any]]:
    """ONNX Runtime's schemas by operator, old versions first; none where its Python module is not there to say."""
    try:
        from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
    except ImportError:
        return {}
    found: dict[str, list[Any]] = {}
    for schema in sorted(get_all_operator_schema(), key=lambda schema: int(schema.since_version)):
        found.setdefault(_operator(schema.domain, schema.name), []).append(schema)
    return found


def known_schemas(operator: str) -> Sequence[Any]:
    """The schemas of `domain::OpType` that ONNX Runtime has, old versions first; none of an operator that it does not
    know."""
    return _schemas_of_onnxruntime().get(operator, ())


def is_no_operator(operator: str, registry: Registry) -> bool:
    """True for what has a domain of ONNX Runtime's own, in which it knows no such operator, nor does any pack."""
    domains = {known.rpartition("::")[0] for known in _operators_of_onnxruntime()}
    return (
        operator.rpartition("::")[0] in domains
        and operator not in _operators_of_onnxruntime()
        and not any(not only_wraps(plugin) for _, plugin in registry.known_to(operator))
    )


def operators_of(domain: str) -> list[str]:
    """The operators of a domain that ONNX Runtime has schemas of, as `domain::OpType`."""
    return [operator for operator in _schemas_of_onnxruntime() if operator.rpartition("::")[0] == domain]


def unknown_operators(model: onnx.ModelProto, registry: Registry) -> list[str]:
    """A line for each operator of a model that ONNX Runtime does not know, with what to do about it."""
    defined = told(registry)
    opsets = {normalized_domain(each.domain): each.version for each in model.opset_import}
    functions = {_operator(function.domain, function.name) for function in model.functions}
    lines: list[str] = []
    for operator in dict.fromkeys(_operators(model.graph.node)):
        if operator in defined:
            definition = defined[operator]
            version = opsets.get(definition.domain, definition.since)
            if version < definition.since:
                lines.append(
                    f"{operator} is there from version {definition.since} on (pack {definition.pack}), and the model "
                    f"imports version {version} of {definition.domain}"
                )
        elif operator not in functions and operator not in _operators_of_onnxruntime():
            lines.append(_advice(operator, registry))
    return lines


def defined_by_packs(model: onnx.ModelProto, registry: Registry) -> list[str]:
    """The operators of a model whose schemas ONNX Runtime has from packs, and which it runs through their handlers on
    every execution provider."""
    defined = told(registry)
    bodies = (node for function in model.functions for node in function.node)
    return [each for each in dict.fromkeys(_operators((*model.graph.node, *bodies))) if each in defined]


def _operators(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield _operator(node.domain, node.op_type)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _operators(body.node)


def _operator(domain: str, name: str) -> str:
    return f"{normalized_domain(domain)}::{name}"


def _advice(operator: str, registry: Registry) -> str:
    if operator in left_out(registry):
        out = left_out(registry)[operator]
        return f"{operator}, which {_packs(out.packs)}, is left out: {out.reason}"
    handling = [pack for pack, _ in registry.known_to(operator)]
    if handling:
        return (
            f"{operator} has a handler in the pack {handling[0]}, and nobody defines it; if it is that pack's own "
            "operator, its handler needs `.schema`"
        )
    similar = close_operators(operator, {*registry.definitions, *_public_operators()}, 1)
    hint = f"did you mean {similar[0]}?" if similar else "`opgraft packs` lists them"
    if operator.startswith(f"{ONNX_DOMAIN}::"):
        hint = f" ({hint})" if similar else ""
        return f"{operator} is not in this onnxruntime, and no installed pack defines it{hint}"
    return f"{operator}: no installed pack defines it ({hint})"


def _public_operators() -> Iterator[str]:
    """The operators of ONNX Runtime that a model may hold: others it puts there itself."""
    return (each for each in _operators_of_onnxruntime() if each.rpartition("::")[0] not in _INTERNAL_DOMAINS)


def _packs(names: Sequence[str]) -> str:
    return f"the pack {names[0]} defines" if len(names) == 1 else f"the packs {' and '.join(names)} define"
