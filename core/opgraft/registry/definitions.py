"""Operators that packs define: whose schema counts, and which of its handlers speaks for which node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from opgraft.graph import Graph, Node
from opgraft.graph.element_types import ANY, COMPLEX
from opgraft.ops.handler import Handler
from opgraft.ops.schema import AttributeKind, Schema
from opgraft.registry.packs import Pack
from opgraft.registry.policy import WHERE_TO_WRITE, Policy

_TOLD_TYPES: Final = ANY - COMPLEX
"""The element types that every ONNX Runtime takes in a schema. It refuses a set of schemas that has others."""

UNKNOWN_VERSION: Final = 0
"""The version of a node that only shows its form: ONNX Runtime tells no kernel which opset a model imports."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One input of a defined operator as ONNX Runtime is told of it.

    Attributes:
        dtype: its element type, where there is but one.
        homogeneous: of a variadic one, whether all that it stands for are of the same type.
    """

    name: str
    required: bool
    variadic: bool = False
    dtype: str | None = None
    homogeneous: bool = False


@dataclass(frozen=True, eq=False)
class Definition:
    """An operator that a pack defines. ONNX Runtime keeps one schema of an operator, so several versions, and several
    forms of one, are told to it as one that takes them all."""

    operator: str
    pack: str
    handlers: tuple[Handler, ...]
    """Those that define it, in the order in which they are asked."""

    @property
    def domain(self) -> str:
        return self.handlers[0].domain

    @property
    def op_type(self) -> str:
        return self.handlers[0].op_type

    @cached_property
    def since(self) -> int:
        return min(handler.since for handler in self.handlers)

    @cached_property
    def inputs(self) -> tuple[Parameter, ...]:
        """What every handler takes is required; what only some take is optional.

        Of the inputs after the first, ONNX Runtime is told the element type where there is but one (and every version
        knows it): it supposes that an output of unknown shape is of the type of the last input that may be of several.
        """
        count = max(len(handler.signature.inputs) for handler in self.handlers)
        fixed = tuple(self._parameter(index) for index in range(count))
        variadic = [handler.signature.variadic for handler in self.handlers]
        names = [each.name for each in variadic if each is not None]
        # An output can be declared to be of the type of a variadic input only where that is one type.
        homogeneous = any(output.dtype in names for schema in self._schemas for output in schema.outputs)
        return fixed + tuple(
            Parameter(name, required=False, variadic=True, homogeneous=homogeneous) for name in names[:1]
        )

    def _parameter(self, index: int) -> Parameter:
        given = [handler.signature.input(index) for handler in self.handlers]
        known = [each for each in given if each is not None]
        required = all(each is not None and each.required for each in given)
        dtypes = frozenset[str]().union(*(each.dtypes for each in known))
        return Parameter(known[0].name, required, dtype=only(dtypes) if index else None)

    @cached_property
    def output_types(self) -> tuple[str | None, ...]:
        """For each output that every node has, the element type, where that is declared."""
        count = min(schema.required_outputs for schema in self._schemas)
        return tuple(only({schema.outputs[index].dtype for schema in self._schemas}) for index in range(count))

    @cached_property
    def attribute_kinds(self) -> dict[str, AttributeKind]:
        """The attributes that some handler has."""
        return {name: kind for schema in reversed(self._schemas) for name, kind in schema.kinds.items()}

    @property
    def _schemas(self) -> list[Schema]:
        return [handler.definition for handler in self.handlers if handler.definition is not None]

    def version(self, opset: int) -> int:
        """The operator's version that an opset of its domain means; the opset itself where it has none."""
        covered = [each.since for each in self.handlers if each.covers(opset)]
        return max(covered, default=opset)

    def handlers_for(self, node: Node) -> dict[int, Handler]:
        """The handlers that may speak for a node, each with a version of the operator at which it does.

        There is more than one only for a node of unknown version. At each version, of the handlers that know the node's
        inputs and attributes, it is the first that takes its element types too, else the first.
        """
        known = node.since_version != UNKNOWN_VERSION
        found: dict[int, Handler] = {}
        for version in [node.since_version] if known else sorted({each.since for each in self.handlers}):
            handler = self._handler_at(version, node)
            if handler is not None and handler not in found.values():
                found[version] = handler
        return found

    def _handler_at(self, version: int, node: Node) -> Handler | None:
        covering = [each for each in self.handlers if each.covers(version)]
        for declines in (Handler.declines, Handler.form_declines):
            for handler in covering:
                if next(declines(handler, node), None) is None:
                    return handler
        return None


def only(dtypes: Collection[str | None]) -> str | None:
    """The one element type of several mentions, if every ONNX Runtime knows it."""
    (dtype, *others) = dtypes
    return None if others or dtype not in _TOLD_TYPES else dtype


@dataclass(frozen=True)
class Undefined:
    """An operator that packs define, and that ONNX Runtime is not told of."""

    operator: str
    packs: tuple[str, ...]
    reason: str


def definitions_of(packs: Sequence[Pack], policy: Policy) -> tuple[dict[str, Definition], dict[str, Undefined]]:
    """The operators that packs define, by name, and those that are left out.

    Where several packs define one operator, the schema of the pack that is asked first counts, if the registry file
    says which that is: no order stands behind the names of packs that it does not list.
    """
    defining: dict[str, dict[str, list[Handler]]] = {}
    for pack in packs:
        for handler in pack.handlers:
            if handler.definition is not None:
                defining.setdefault(handler.operator, {}).setdefault(pack.name, []).append(handler)
    definitions: dict[str, Definition] = {}
    undefined: dict[str, Undefined] = {}
    for operator, by_pack in defining.items():
        names = [name for name in policy.order([pack.name for pack in packs], operator) if name in by_pack]
        problem = _problem(operator, tuple(by_pack), names, policy)
        if problem is None:
            definitions[operator] = Definition(operator, names[0], tuple(by_pack[names[0]]))
        else:
            undefined[operator] = Undefined(operator, tuple(by_pack), problem)
    return definitions, undefined


def _problem(operator: str, packs: tuple[str, ...], names: Sequence[str], policy: Policy) -> str | None:
    if not names:
        return "; ".join(policy.denial(operator, pack) or f"{pack} is not asked" for pack in packs)
    unordered = [name for name in names if not policy.places(name, operator)]
    if len(unordered) > 1 and names[0] in unordered:
        listed = " and ".join(unordered)
        return (
            f"the packs {listed} define it, and nothing says whose counts; in {WHERE_TO_WRITE}, name them in order "
            f'under `packs`, or write  ops: {{"{operator}": {{prefer: [{unordered[0]}]}}}}'
        )
    return None


def set_versions(graph: Graph, definitions: Mapping[str, Definition]) -> None:
    """Give the nodes of defined operators, in a graph and its bodies, the version that the graph's opset means.

    ONNX Runtime, which keeps one schema of an operator, says the first version of all.
    """
    for node in graph.all_nodes() if definitions else ():
        definition = definitions.get(node.operator)
        opset = graph.opsets.get(node.domain)
        if definition is not None and opset is not None:
            node.since_version = definition.version(opset)
