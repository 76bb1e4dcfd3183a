"""The element types of ONNX tensors: one table for their numbers, names, NumPy storage and width."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, TypeAlias

import numpy as np

# (number in ONNX's TensorProto.DataType, number in ONNX Runtime's ONNXTensorElementDataType, name, NumPy type of the
# stored elements). The two numberings part ways after float4e2m1. bfloat16 and the floats of 8 and 4 bits are stored as
# their bits. Types below a byte, whose elements share bytes in a model and in ONNX Runtime's memory, are stored with
# one element to a byte. Strings have no storage type.
_TABLE: Final[tuple[tuple[int, int, str, type[np.generic] | None], ...]] = (
    (1, 1, "float32", np.float32),
    (2, 2, "uint8", np.uint8),
    (3, 3, "int8", np.int8),
    (4, 4, "uint16", np.uint16),
    (5, 5, "int16", np.int16),
    (6, 6, "int32", np.int32),
    (7, 7, "int64", np.int64),
    (8, 8, "string", None),
    (9, 9, "bool", np.bool_),
    (10, 10, "float16", np.float16),
    (11, 11, "float64", np.float64),
    (12, 12, "uint32", np.uint32),
    (13, 13, "uint64", np.uint64),
    (14, 14, "complex64", np.complex64),
    (15, 15, "complex128", np.complex128),
    (16, 16, "bfloat16", np.uint16),
    (17, 17, "float8e4m3fn", np.uint8),
    (18, 18, "float8e4m3fnuz", np.uint8),
    (19, 19, "float8e5m2", np.uint8),
    (20, 20, "float8e5m2fnuz", np.uint8),
    (21, 21, "uint4", np.uint8),
    (22, 22, "int4", np.int8),
    (23, 23, "float4e2m1", np.uint8),
    (24, 26, "float8e8m0", np.uint8),
    (25, 24, "uint2", np.uint8),
    (26, 25, "int2", np.int8),
)

_BITS_OF_PACKED: Final = {"uint4": 4, "int4": 4, "float4e2m1": 4, "uint2": 2, "int2": 2}

NAME_OF_ONNX: Final[dict[int, str]] = {onnx: name for onnx, _, name, _ in _TABLE}
NAME_OF_ORT: Final[dict[int, str]] = {ort: name for _, ort, name, _ in _TABLE}
ORT_OF_NAME: Final[dict[str, int]] = {name: ort for _, ort, name, _ in _TABLE}
ONNX_OF_NAME: Final[dict[str, int]] = {name: onnx for onnx, _, name, _ in _TABLE}
STORAGE: Final[dict[str, np.dtype[np.generic] | None]] = {
    name: None if storage is None else np.dtype(storage) for _, _, name, storage in _TABLE
}
BITS: Final[dict[str, int]] = {
    name: _BITS_OF_PACKED.get(name, 8 * storage.itemsize) for name, storage in STORAGE.items() if storage is not None
}
"""The width of an element."""

FLOATS: Final = frozenset({"float16", "bfloat16", "float32", "float64"})
SIGNED: Final = frozenset({"int8", "int16", "int32", "int64"})
UNSIGNED: Final = frozenset({"uint8", "uint16", "uint32", "uint64"})
INTEGERS: Final = SIGNED | UNSIGNED
NUMBERS: Final = FLOATS | INTEGERS
BOOL: Final = frozenset({"bool"})
COMPLEX: Final = frozenset({"complex64"})
ANY: Final = NUMBERS | BOOL | COMPLEX
"""The element types that MLX has."""

PACKED: Final = frozenset(_BITS_OF_PACKED)
FLOAT8: Final = frozenset({"float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0"})
NARROW: Final = FLOAT8 | PACKED
"""The element types that MLX lacks, and that are held in another: in their storage type."""

HELD: Final = ANY | NARROW
"""Every element type that an MLX array holds, as itself or in another: for operators that only move elements."""

HELD_AS: Final[dict[str, str]] = {name: str(STORAGE[name]) if name in NARROW else name for name in sorted(HELD)}
"""The element type, one of MLX's, that holds each."""

_NAMED_SETS: Final = {
    "any": ANY,
    "numbers, bool": NUMBERS | BOOL,
    "numbers": NUMBERS,
    "floats, complex64": FLOATS | COMPLEX,
    "floats": FLOATS,
    "integers, bool": INTEGERS | BOOL,
    "integers": INTEGERS,
    "signed integers": SIGNED,
    "unsigned integers": UNSIGNED,
    "bool": BOOL,
}


def has_numpy_type(dtype: str) -> bool:
    """True for an element type that NumPy has too: its storage type is the type itself."""
    storage = STORAGE[dtype]
    return storage is not None and storage.name == dtype


def marked(array: _Array, dtype: str) -> _Array:
    """`array`, elements of type `dtype` in storage form, with the type noted where the storage does not tell it."""
    storage = STORAGE[dtype]
    if storage is None or has_numpy_type(dtype):
        return array
    return array.view(np.dtype(storage.type, metadata={_ELEMENT_TYPE: dtype}))


def marked_type(array: _Array) -> str:
    """The element type of what `marked` gave."""
    if array.dtype.metadata and _ELEMENT_TYPE in array.dtype.metadata:
        return str(array.dtype.metadata[_ELEMENT_TYPE])
    return "string" if array.dtype == object else str(array.dtype.name)


_ELEMENT_TYPE: Final = "element_type"
_Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


def described(dtypes: Collection[str]) -> str:
    """A set of element types in few words."""
    wide = set(dtypes) - NARROW
    names = [next((name for name, types in _NAMED_SETS.items() if types == wide), ", ".join(sorted(wide)))]
    for name, types in (("8-bit floats", FLOAT8), ("types below a byte", PACKED)):
        found = types & set(dtypes)
        names += [name] if found == types else sorted(found)
    return ", ".join(name for name in names if name)
