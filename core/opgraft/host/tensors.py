"""NumPy arrays over the memory of OrtValues."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from opgraft.errors import ModelError
from opgraft.graph import Array
from opgraft.graph.element_types import NAME_OF_ORT, PACKED, STORAGE
from opgraft.graph.packing import packed_size, unpacked
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
    rank = view.rank
    shape = tuple(ffi.unpack(view.sizes, rank)) if rank else ()
    array = array_at(view.data, shape, storage)
    array.flags.writeable = False
    return array


def _unpacked(view: Any) -> Array:
    dtype = NAME_OF_ORT.get(view.element_type, f"number {view.element_type}")
    if dtype not in PACKED:
        raise ModelError(f"element type {dtype} is not supported")
    shape = tuple(ffi.unpack(view.sizes, view.rank)) if view.rank else ()
    return unpacked(array_at(view.data, (packed_size(shape, dtype),), _BYTE), shape, dtype)


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
    shape = tuple(view.sizes[axis] for axis in range(view.rank))
    array = np.empty(shape, object)
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
