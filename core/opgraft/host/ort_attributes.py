"""The attributes of an OrtNode, all but GRAPH ones, which are read with the node's bodies."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from opgraft.errors import ModelError
from opgraft.graph import Array, AttributeValue, UnreadableAttribute
from opgraft.graph.element_types import marked
from opgraft.host._ep import ffi, lib
from opgraft.host.status import check
from opgraft.host.tensors import array_of_value, element_type_of

_STRING: Final = 5


def read_attribute(pointer: Any, view: Any) -> tuple[str, AttributeValue]:
    """Name and value of an OrtOpAttr; `view` is an AttributeView to work with."""
    check(lib.read_attribute(pointer, view))
    name = ffi.string(view.name).decode("utf-8", "surrogateescape")
    read = _READERS.get(view.type)
    return name, UnreadableAttribute() if read is None else read(pointer, view)


def _bytes(pointer: Any, view: Any) -> bytes:
    if not view.size:
        return b""
    data = ffi.new("char[]", view.size)
    check(lib.ort_ReadOpAttr(pointer, view.type, data, view.size, ffi.new("size_t *")))
    return bytes(ffi.buffer(data, view.size))


@cache
def _ends_texts() -> bool:
    """Whether this ONNX Runtime ends a text with a NUL that it counts: some versions do, others do not."""
    attribute, size = ffi.new("OrtOpAttr **"), ffi.new("size_t *")
    check(lib.ort_CreateOpAttr(b"name", b"a", 1, _STRING, attribute))
    try:
        status = lib.ort_ReadOpAttr(attribute[0], _STRING, ffi.NULL, 0, size)  # fails, and tells the size
        lib.ort_ReleaseStatus(status)
        return bool(size[0] > 1)
    finally:
        lib.ort_ReleaseOpAttr(attribute[0])


def _string(pointer: Any, view: Any) -> str:
    text = _bytes(pointer, view)
    return (text[:-1] if _ends_texts() else text).decode("utf-8", "surrogateescape")


def _strings(pointer: Any, view: Any) -> tuple[str, ...]:
    """Each of several texts does end with a NUL, and nothing says how many they are: a text that holds a NUL itself is
    read as two. ONNX Runtime gives the same bytes for both."""
    texts = _bytes(pointer, view).split(b"\0")[:-1]
    return tuple(text.decode("utf-8", "surrogateescape") for text in texts)


def _integers(pointer: Any, view: Any) -> tuple[int, ...]:
    return tuple(memoryview(_bytes(pointer, view)).cast("q"))


def _numbers(pointer: Any, view: Any) -> tuple[float, ...]:
    return tuple(memoryview(_bytes(pointer, view)).cast("f"))


def _tensor(pointer: Any, view: Any) -> Array | UnreadableAttribute:
    value = ffi.new("OrtValue **")
    status = lib.ort_OpAttr_GetTensorAttributeAsOrtValue(pointer, value)
    if status:
        lib.ort_ReleaseStatus(status)
        return UnreadableAttribute()
    try:
        return marked(array_of_value(value[0]).copy(), element_type_of(value[0]))
    except ModelError:
        return UnreadableAttribute()
    finally:
        lib.ort_ReleaseValue(value[0])


_READERS: Final[dict[int, Callable[[Any, Any], AttributeValue]]] = {
    1: lambda pointer, view: int(view.integer),
    2: _integers,
    3: lambda pointer, view: float(view.number),
    4: _numbers,
    _STRING: _string,
    6: _strings,
    8: _tensor,
}
