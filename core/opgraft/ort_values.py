"""Running sessions whose inputs or outputs are of element types that NumPy lacks."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from opgraft.errors import ModelError
from opgraft.graph import Array
from opgraft.graph.element_types import ONNX_OF_NAME, PACKED, STORAGE
from opgraft.graph.onnx_source import storage_form
from opgraft.graph.packing import bytes_in, packed, unpacked

_ORT_NAMES: Final = {"float32": "float", "float64": "double"}

DTYPE_OF_TEXT: Final = {f"tensor({_ORT_NAMES.get(name, name)})": name for name in STORAGE}
"""The element type that a session means by its text for a tensor type."""

_FOREIGN: Final = {name: storage for name, storage in STORAGE.items() if storage is not None and storage.name != name}
"""The storage types of the element types that NumPy lacks."""


def run(session: Any, feeds: Mapping[str, Any], seconds: float | None = None) -> list[Any]:
    """What `session.run` gives for `feeds`, and for element types that NumPy lacks.

    Those go in as arrays of ml_dtypes or in storage form (bfloat16 as its 16 bits, int4 as int8), and come out in
    storage form.

    Args:
        seconds: after so many, ONNX Runtime gives the run up before the next node, and raises.

    Raises:
        ModelError: there are strings beside them, or strings that Python cannot read.
    """
    dtypes = {info.name: DTYPE_OF_TEXT.get(info.type, "") for info in (*session.get_inputs(), *session.get_outputs())}
    if not _FOREIGN.keys() & dtypes.values():
        try:
            with _ended_after(seconds) as options:
                return list(session.run(None, dict(feeds), options))
        except UnicodeDecodeError as error:
            raise ModelError(f"an output holds text that is no UTF-8: Python gets none of it ({error})") from error
    given = {name: _ort_value(value, dtypes[name]) for name, value in feeds.items()}
    with _ended_after(seconds) as options:
        return [_array(value) for value in session.run_with_ort_values(None, given, options)]


@contextmanager
def _ended_after(seconds: float | None) -> Iterator[Any]:
    """The options of a run that ends after so many seconds."""
    if seconds is None:
        yield None
        return
    from onnxruntime import RunOptions

    options = RunOptions()
    timer = threading.Timer(seconds, lambda: setattr(options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        yield options
    finally:
        timer.cancel()


def bound_run(session: Any, feeds: Mapping[str, Any]) -> Callable[[], None]:
    """A function that runs a session on the same `feeds` each time, as ONNX Runtime runs a part of a graph: nothing is
    copied on the way. `feeds` are as for `run`."""
    dtypes = {info.name: DTYPE_OF_TEXT.get(info.type, "") for info in session.get_inputs()}
    binding = session.io_binding()
    given = {name: _ort_value(feeds[name], dtype) for name, dtype in dtypes.items()}
    for name, value in given.items():
        binding.bind_ortvalue_input(name, value)
    for info in session.get_outputs():
        binding.bind_output(info.name)

    def run_once() -> None:
        session.run_with_iobinding(binding)

    return run_once


def _ort_value(array: Any, dtype: str) -> Any:
    from onnxruntime import OrtValue

    if dtype not in _FOREIGN:
        if np.asarray(array).dtype.kind not in "biufc":
            raise ModelError("ONNX Runtime takes no strings from Python beside element types that NumPy lacks")
        return OrtValue.ortvalue_from_numpy(np.asarray(array))
    stored = storage_form(np.asarray(array), dtype)
    if dtype in PACKED:  # an OrtValue has the shape of the array, and reads its first bytes
        memory = np.zeros(stored.shape, np.uint8)
        memory.reshape(-1)[: bytes_in(stored.shape, dtype)] = packed(stored, dtype)
        stored = memory
    return OrtValue.ortvalue_from_numpy_with_onnx_type(np.asarray(stored, order="C"), ONNX_OF_NAME[dtype])


def _array(value: Any) -> Array:
    dtype = DTYPE_OF_TEXT.get(value.data_type(), "")
    if dtype not in _FOREIGN:
        array: Array = value.numpy()
        return array
    shape = tuple(value.shape())
    count = bytes_in(shape, dtype) if dtype in PACKED else int(np.prod(shape)) * _FOREIGN[dtype].itemsize
    data = np.frombuffer(ctypes.string_at(value.data_ptr(), count), np.uint8)
    return unpacked(data, shape, dtype) if dtype in PACKED else data.view(_FOREIGN[dtype]).reshape(shape)
