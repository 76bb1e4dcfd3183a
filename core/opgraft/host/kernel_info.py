"""A node as an OrtKernelInfo shows it to a kernel of an operator that a pack defines.

It shows neither the operator's version nor attributes that the schema does not name. Where the execution provider has
seen the node and left it, it says them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from opgraft.graph import AttributeValue, Graph, Initializer, Node, UnreadableAttribute, Value
from opgraft.host._ep import ffi, lib
from opgraft.host.abi import ADDED_IN
from opgraft.host.ort_graph import value_type
from opgraft.host.status import check
from opgraft.host.tensors import array_of_value
from opgraft.ops.schema import AttributeKind
from opgraft.registry import UNKNOWN_VERSION, Definition
from opgraft.tracing import Session

_Key: TypeAlias = tuple[str, str, tuple[str, ...]]
"""A node: its operator, its name, and those of its outputs."""


@dataclass(slots=True)
class _Left:
    """What an execution provider saw of a node that it left to a kernel, and that the kernel is not shown. `count` is
    that of nodes of one key, which different bodies may have; `attributes` are those that all of them have."""

    version: int
    attributes: frozenset[str]
    count: int = 0


UNSEEN: Final = UnreadableAttribute()
"""Stands for an attribute that the schema does not name."""


class _Here(threading.local):
    """What this thread knows: one thread makes a whole session, one session after another."""

    def __init__(self) -> None:
        self.left: dict[_Key, _Left] = {}
        self.session: Session | None = None

    def take(self, key: _Key) -> _Left | None:
        """What is known of a node whose kernel is being made, which happens once."""
        found = self.left.get(key)
        if found is not None:
            found.count -= 1
            if not found.count:
                del self.left[key]
        return found


_here: Final = _Here()


def leave(nodes: Iterable[Node], definitions: Mapping[str, Definition], session: Session) -> None:
    """Note, of the nodes that an execution provider does not claim, those of operators that packs define; their kernels
    are made next, in this thread, and their runs are those of `session`."""
    _here.left = {}
    _here.session = session
    for node in nodes:
        definition = definitions.get(node.operator)
        if definition is not None:
            unnamed = frozenset(node.attributes) - definition.attribute_kinds.keys()
            key = _key(node.operator, node.name, [value.name if value else "" for value in node.outputs])
            noted = _here.left.setdefault(key, _Left(node.since_version, unnamed))
            noted.attributes &= unnamed
            noted.count += 1


def forget() -> None:
    """The session that this thread makes is made, or given up."""
    _here.left = {}
    _here.session = None


def session_being_made() -> Session:
    """What is recorded of the session that this thread makes; nothing, where no execution provider is in it."""
    return _here.session or Session()


def _key(operator: str, name: str, outputs: Sequence[str]) -> _Key:
    while outputs and not outputs[-1]:
        outputs = outputs[:-1]
    return operator, name, tuple(outputs)


def read_node(info: Any, definition: Definition) -> Node:
    """The node, in a graph of its own. Each value is named by its place, since one may be there twice.

    The elements of constant inputs can be read while the kernel is being made. The version is `UNKNOWN_VERSION` where
    no execution provider has seen the node.
    """
    inputs = tuple(_values(info, "input", _INPUTS))
    name = _text(lib.ort_KernelInfo_GetNodeName, info)
    seen = _here.take(_key(definition.operator, name, _names(info, _OUTPUTS)))
    node = Node(
        name=name,
        op_type=definition.op_type,
        domain=definition.domain,
        since_version=UNKNOWN_VERSION if seen is None else seen.version,
        inputs=inputs,
        outputs=tuple(_values(info, "output", _OUTPUTS)),
        attributes={**dict.fromkeys(seen.attributes if seen else (), UNSEEN), **dict(_attributes(info, definition))},
    )
    constants = {
        value.name: Initializer(value, lambda index=index: _constant(info, index))  # type: ignore[misc]
        for index, value in enumerate(inputs)
        if value is not None and _constant_value(info, index)
    }
    present = tuple(value for value in inputs if value is not None and value.name not in constants)
    results = tuple(value for value in node.outputs if value is not None)
    Graph(node.label, present, results, (node,), constants, {})
    return node


_INPUTS: Final = (
    lib.ort_KernelInfo_GetInputCount,
    lib.ort_KernelInfo_GetInputName,
    lib.ort_KernelInfo_GetInputTypeInfo,
)
_OUTPUTS: Final = (
    lib.ort_KernelInfo_GetOutputCount,
    lib.ort_KernelInfo_GetOutputName,
    lib.ort_KernelInfo_GetOutputTypeInfo,
)


def _names(info: Any, getters: tuple[Any, Any, Any]) -> list[str]:
    counter, namer, _ = getters
    count = ffi.new("size_t *")
    check(counter(info, count))
    return [_text(namer, info, index) for index in range(count[0])]


def _values(info: Any, side: str, getters: tuple[Any, Any, Any]) -> Iterator[Value | None]:
    for index, name in enumerate(_names(info, getters)):
        if not name:
            yield None
            continue
        type_info = ffi.new("OrtTypeInfo **")
        check(getters[2](info, index, type_info))
        try:
            yield Value(f"{side} {index}", *value_type(type_info[0]))
        finally:
            lib.ort_ReleaseTypeInfo(type_info[0])


def _constant_value(info: Any, index: int) -> Any:
    """The OrtValue of a constant input; null where it is none."""
    constant, value = ffi.new("int *"), ffi.new("const OrtValue **")
    check(lib.ort_KernelInfoGetConstantInput_tensor(info, index, constant, value))
    return value[0] if constant[0] else ffi.NULL


def _constant(info: Any, index: int) -> Any:
    return array_of_value(_constant_value(info, index)).copy()


def _attributes(info: Any, definition: Definition) -> Iterator[tuple[str, AttributeValue]]:
    for name, kind in definition.attribute_kinds.items():
        value = _attribute(info, name, kind)
        if value is not None:
            yield name, value


def _attribute(info: Any, name: str, kind: AttributeKind) -> AttributeValue | None:
    """An attribute, of whatever kind it really is; None where the node does not have it."""
    encoded = name.encode()
    if not _ok(lib.ort_KernelInfoGetAttributeArray_int64(info, encoded, ffi.NULL, ffi.new("size_t *"))):
        return None
    for read in _READERS:
        value = read(info, encoded)
        if value is not None:
            return value
    if kind in (AttributeKind.INTS, AttributeKind.FLOATS):
        return ()  # an empty list of either
    return UnreadableAttribute()


def _single(getter: Any, kind: str, convert: Callable[[Any], AttributeValue]) -> Callable[[Any, bytes], Any]:
    def read(info: Any, name: bytes) -> AttributeValue | None:
        place = ffi.new(f"{kind} *")
        return convert(place[0]) if _ok(getter(info, name, place)) else None

    return read


def _several(getter: Any, kind: str) -> Callable[[Any, bytes], Any]:
    """A reader of lists; an attribute of another kind is read as an empty one, and so counts as none."""

    def read(info: Any, name: bytes) -> AttributeValue | None:
        count = ffi.new("size_t *")
        if not _ok(getter(info, name, ffi.NULL, count)) or not count[0]:
            return None
        elements = ffi.new(f"{kind}[]", count[0])
        check(getter(info, name, elements, count))
        return tuple(ffi.unpack(elements, count[0]))

    return read


def _string(info: Any, name: bytes) -> str | None:
    size = ffi.new("size_t *")
    getter = lib.ort_KernelInfoGetAttribute_string
    if not _ok(getter(info, name, ffi.NULL, size)):
        return None
    text = ffi.new("char[]", size[0])
    check(getter(info, name, text, size))
    return bytes(ffi.buffer(text, size[0] - 1)).decode("utf-8", "surrogateescape")


def _strings(info: Any, name: bytes) -> tuple[str, ...] | None:
    if lib.api_version() < ADDED_IN["KernelInfoGetAttributeArray_string"]:
        return None
    texts, count = ffi.new("char ***"), ffi.new("size_t *")
    if not _ok(lib.ort_KernelInfoGetAttributeArray_string(info, name, _allocator(), texts, count)):
        return None
    found = tuple(ffi.string(texts[0][index]).decode("utf-8", "surrogateescape") for index in range(count[0]))
    for index in range(count[0]):
        check(lib.ort_AllocatorFree(_allocator(), texts[0][index]))
    check(lib.ort_AllocatorFree(_allocator(), texts[0]))
    return found


def _tensor(info: Any, name: bytes) -> AttributeValue | None:
    value = ffi.new("OrtValue **")
    if not _ok(lib.ort_KernelInfoGetAttribute_tensor(info, name, _allocator(), value)):
        return None
    try:
        return array_of_value(value[0]).copy()
    finally:
        lib.ort_ReleaseValue(value[0])


_READERS: Final = (
    _single(lib.ort_KernelInfoGetAttribute_int64, "int64_t", int),
    _single(lib.ort_KernelInfoGetAttribute_float, "float", float),
    _string,
    _several(lib.ort_KernelInfoGetAttributeArray_int64, "int64_t"),
    _several(lib.ort_KernelInfoGetAttributeArray_float, "float"),
    _tensor,
    _strings,
)


def _ok(status: Any) -> bool:
    if status:
        lib.ort_ReleaseStatus(status)
    return not status


def _allocator() -> Any:
    found = ffi.new("OrtAllocator **")
    check(lib.ort_GetAllocatorWithDefaultOptions(found))
    return found[0]


def _text(getter: Any, *of: Any) -> str:
    size = ffi.new("size_t *")
    check(getter(*of, ffi.NULL, size))
    text = ffi.new("char[]", size[0])
    check(getter(*of, text, size))
    return bytes(ffi.buffer(text, size[0] - 1)).decode("utf-8", "surrogateescape")
