"""NumPy arrays over the memory of OrtValues."""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np

from opgraft.engine.results import Result, in_storage_type
from opgraft.errors import ModelError
from opgraft.graph import Array
from opgraft.graph.element_types import NAME_OF_ORT, PACKED, STORAGE
from opgraft.graph.packing import bytes_in, packed, unpacked
from opgraft.host._ep import ffi, lib
from opgraft.host.status import check

_STRING: Final = 8

STORAGE_OF_ORT: Final = {
    number: storage
    for number, name in NAME_OF_ORT.items()
    if (storage := STORAGE[name]) is not None and name not in PACKED
}
"""NumPy storage type by ONNX Runtime's number, for the element types that it stores just so."""

_BYTE: Final = np.dtype(np.uint8)


def array_of_view(view: Any) -> Array:
    """The elements that a filled TensorView describes, in storage form: a read-only view of its memory, but for packed
    types.

    Raises:
        ModelError: it describes no tensor, or one of strings.
    """
    storage = STORAGE_OF_ORT.get(view.element_type)
    if storage is None:
        return _unpacked(view)
    array = array_at(view.data, shape_of(view), storage)
    array.flags.writeable = False
    return array


def _unpacked(view: Any) -> Array:
    dtype = NAME_OF_ORT.get(view.element_type, f"number {view.element_type}")
    if dtype not in PACKED:
        raise ModelError(f"element type {dtype} is not supported")
    shape = shape_of(view)
    return unpacked(array_at(view.data, (bytes_in(shape, dtype),), _BYTE), shape, dtype)


def shape_of(view: Any) -> tuple[int, ...]:
    """The shape of the tensor that a TensorView describes."""
    rank = view.rank
    return tuple(ffi.unpack(view.sizes, rank)) if rank else ()


def write_at(view: Any, result: Result) -> None:
    """Write an evaluated array into the memory, on the host, that a TensorView describes."""
    result = in_storage_type(result)
    dtype = NAME_OF_ORT[view.element_type]
    if dtype in PACKED:
        result = packed(np.array(result, copy=False), dtype)
    memory = memoryview(cast(Any, result))
    if memory.c_contiguous:
        ffi.memmove(view.data, memory, memory.nbytes)
    else:
        elements = np.array(result, copy=False)
        np.copyto(array_at(view.data, result.shape, elements.dtype), elements)


def array_at(data: Any, shape: tuple[int, ...], storage: np.dtype[Any]) -> Array:
    """A view of `data`, a pointer to elements of type `storage` in row-major order."""
    size = storage.itemsize
    for each in shape:
        size *= each
    return np.ndarray(shape, storage, ffi.buffer(data, size)) if size else np.empty(shape, storage)


def array_of_value(value: Any) -> Array:
    """The elements of an OrtValue: see `array_of_view`, or an object array of str for a string tensor.

    Raises:
        ModelError: it holds no tensor.
    """
    view = ffi.new("TensorView *")
    check(lib.read_tensor(value, view))
    return _strings(value, view) if view.element_type == _STRING else array_of_view(view)


def element_type_of(value: Any) -> str:
    """The name of the element type of an OrtValue that holds a tensor."""
    view = ffi.new("TensorView *")
    check(lib.read_tensor(value, view))
    return NAME_OF_ORT[view.element_type]


def _strings(value: Any, view: Any) -> Array:
    array = np.empty(shape_of(view), object)
    length = ffi.new("size_t *")
    check(lib.ort_GetStringTensorDataLength(value, length))
    text = ffi.new("char[]", length[0] or 1)
    starts = ffi.new("size_t[]", array.size or 1)
    check(lib.ort_GetStringTensorContent(value, text, length[0], starts, array.size))
    data = bytes(ffi.buffer(text, length[0]))
    ends = [*list(starts)[1 : array.size], length[0]]
    for index, (start, end) in enumerate(zip(starts, ends, strict=False)):
        array.flat[index] = data[start:end].decode("utf-8", "surrogateescape")
    return array
