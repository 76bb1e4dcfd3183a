"""The attributes of an OrtNode, all but GRAPH ones, which are read with the node's bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from opgraft.errors import ModelError
from opgraft.graph import Array, AttributeValue
from opgraft.host._ep import ffi, lib
from opgraft.host.status import check
from opgraft.host.tensors import array_of_value


class UnreadableAttribute:
    """Stands for an attribute that ONNX Runtime's C API cannot give, a sparse tensor for one."""

    def __repr__(self) -> str:
        return "an attribute that ONNX Runtime does not hand over"


def read_attribute(pointer: Any, view: Any) -> tuple[str, AttributeValue]:
    """Name and value of an OrtOpAttr; `view` is an AttributeView to work with."""
    check(lib.read_attribute(pointer, view))
    name = ffi.string(view.name).decode("utf-8", "surrogateescape")
    read = _READERS.get(view.type)
    return name, cast(AttributeValue, UnreadableAttribute() if read is None else read(pointer, view))


def _bytes(pointer: Any, view: Any) -> bytes:
    if not view.size:
        return b""
    data = ffi.new("char[]", view.size)
    check(lib.ort_ReadOpAttr(pointer, view.type, data, view.size, ffi.new("size_t *")))
    return bytes(ffi.buffer(data, view.size))


def _string(pointer: Any, view: Any) -> str:
    return _bytes(pointer, view)[:-1].decode("utf-8", "surrogateescape")  # a NUL is put after the text


def _strings(pointer: Any, view: Any) -> tuple[str, ...]:
    texts = _bytes(pointer, view).split(b"\0")[:-1]  # and after each of several
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
        return array_of_value(value[0]).copy()
    except ModelError:
        return UnreadableAttribute()
    finally:
        lib.ort_ReleaseValue(value[0])


_READERS: Final[dict[int, Callable[[Any, Any], Any]]] = {
    1: lambda pointer, view: view.integer,
    2: _integers,
    3: lambda pointer, view: view.number,
    4: _numbers,
    5: _string,
    6: _strings,
    8: _tensor,
}
