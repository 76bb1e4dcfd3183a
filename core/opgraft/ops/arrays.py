"""Element types and arrays between ONNX's names, NumPy on the host, and MLX on the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import mlx.core as mx
import numpy as np

from opgraft.graph.element_types import ANY, HELD_AS

MLX_TYPE: Final[dict[str, mx.Dtype]] = {name: mx.bool_ if name == "bool" else getattr(mx, name) for name in sorted(ANY)}
"""MLX's type for an ONNX element type name."""

HELD_TYPE: Final[dict[str, mx.Dtype]] = {name: MLX_TYPE[held] for name, held in HELD_AS.items()}
"""The MLX type that holds an ONNX element type, those that MLX lacks among them."""

HOST_TYPES: Final = frozenset(np.dtype(name) for name in ANY - {"bfloat16"})
"""The NumPy types of values that may be held on the host."""

_MLX_OF_NUMPY: Final = {dtype: MLX_TYPE[dtype.name] for dtype in HOST_TYPES}

TYPE_NAME: Final[dict[mx.Dtype, str]] = {dtype: name for name, dtype in MLX_TYPE.items()}
"""ONNX's name for an MLX type."""


def to_device(value: Any) -> mx.array:
    """`value` as an MLX array: as it is, or copied from the host with its element type kept."""
    if isinstance(value, mx.array):
        return value
    array = np.asarray(value, order="C")
    if min(array.strides, default=0) < 0:  # MLX refuses them; NumPy leaves them where there is but one element, or none
        array = array.copy()
    return mx.array(array, dtype=_MLX_OF_NUMPY[array.dtype])


def to_host(value: Any) -> np.ndarray[Any, Any]:
    """`value` as a NumPy array: as it is, or read from the device (which evaluates it). bfloat16 is read as float32."""
    if not isinstance(value, mx.array):
        return np.asarray(value)
    readable = value.astype(mx.float32) if value.dtype == mx.bfloat16 else value
    mx.eval(readable)  # before NumPy, which takes no error of evaluation for one: it reads on, or the process ends
    return np.array(readable)


def device_from_storage(array: np.ndarray[Any, Any], dtype: str | None) -> mx.array:
    """An MLX array of ONNX element type `dtype` from its elements in storage form (bfloat16 as its 16 bits)."""
    if dtype == "bfloat16":
        return mx.array(np.asarray(array).view(np.uint16)).view(mx.bfloat16)
    return to_device(array)


def host_from_storage(array: np.ndarray[Any, Any], dtype: str | None) -> np.ndarray[Any, Any]:
    """A NumPy array of values from elements in storage form: bfloat16's bits become float32 values."""
    if dtype == "bfloat16":
        return (np.asarray(array, np.uint32) << 16).view(np.float32)
    return array


def as_held(value: Any) -> Any:
    """An output as it is held: an MLX array, or a read-only NumPy array of a type that MLX has too.

    Raises:
        TypeError: it is neither, nor something that NumPy makes one of.
    """
    if isinstance(value, mx.array):
        return value
    array = np.asarray(value)
    if array.dtype not in HOST_TYPES:
        raise TypeError(f"{described(value)} is not an array that MLX can hold")
    return unchanging(array)


def unchanging(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A view of an array through which nobody can write: what one translator reads, others read too."""
    view = array.view()
    view.flags.writeable = False
    return view


def described(value: Any) -> str:
    """What `value` is, for a message."""
    if isinstance(value, np.ndarray | mx.array):
        return f"an array of {value.dtype}"
    return "nothing" if value is None else f"a {type(value).__name__}"


def element_type(value: Any) -> str:
    """ONNX's name for the element type of an MLX or NumPy array."""
    return TYPE_NAME[value.dtype] if isinstance(value.dtype, mx.Dtype) else str(value.dtype.name)


_LEAVES: Final = (str, bytes, int, float, complex, type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)
_DEEPEST: Final = 5


def compute(value: Any) -> None:
    """Have MLX compute every array that `value` is or holds, in containers and in the attributes of objects.

    An array that is yet to be computed belongs to the thread that made it; what is kept for other threads must be
    computed before they come upon it.
    """
    mx.eval(list(_arrays_in(value, set(), 0)))


def _arrays_in(value: Any, seen: set[int], depth: int) -> Iterator[mx.array]:
    if isinstance(value, mx.array):
        yield value
    elif depth < _DEEPEST and not isinstance(value, _LEAVES) and id(value) not in seen:
        seen.add(id(value))
        for part in _parts(value):
            yield from _arrays_in(part, seen, depth + 1)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, tuple | list | set | frozenset):
        return list(value)
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*vars(value).values()] if hasattr(value, "__dict__") else [getattr(value, name, None) for name in slots]
