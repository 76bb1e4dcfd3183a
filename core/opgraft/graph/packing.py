"""Elements of 4 or 2 bits: opgraft holds one to a byte, ONNX Runtime stores as many to a byte as fit."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from opgraft.graph.element_types import BITS, HELD_AS, PACKED, STORAGE
from opgraft.graph.model import Array


def from_codes(codes: Any, dtype: str) -> Array:
    """Elements of a packed type in storage form, from bytes whose lowest bits they are; the rest is ignored."""
    unused = 8 - BITS[dtype]
    array: Array = (codes.view(np.uint8) << unused).view(HELD_AS[dtype]) >> unused  # back down, with the sign if any
    return array


def bytes_in(shape: tuple[int, ...], dtype: str) -> int:
    """The number of bytes that a tensor takes in ONNX Runtime's memory."""
    return -(-prod(shape) * BITS[dtype] // 8)


def bytes_of(array: Array, dtype: str) -> Array:
    """The bytes (uint8) of a tensor in storage form as ONNX Runtime has them."""
    elements = packed(array, dtype) if dtype in PACKED else np.ascontiguousarray(array)
    return elements.reshape(-1).view(np.uint8)


def array_of_bytes(data: Array, shape: tuple[int, ...], dtype: str) -> Array:
    """A tensor in storage form from its bytes (uint8) as ONNX Runtime has them."""
    storage = STORAGE[dtype]
    if storage is None or dtype in PACKED:
        return unpacked(data, shape, dtype)
    return data.view(storage).reshape(shape)


def unpacked(data: Any, shape: tuple[int, ...], dtype: str) -> Array:
    """A tensor of a packed type in storage form, from the bytes (uint8) that hold its elements lowest bits first."""
    codes = data[:, None] >> _places(dtype)
    return from_codes(codes.reshape(-1)[: prod(shape)], dtype).reshape(shape)


def packed(array: Any, dtype: str) -> Array:
    """The bytes (uint8) of a tensor of a packed type, from its storage form; bits left over at the end are zero."""
    places = _places(dtype)
    codes = np.zeros((bytes_in(array.shape, dtype), places.size), np.uint8)
    codes.reshape(-1)[: array.size] = array.reshape(-1).view(np.uint8) & (2 ** BITS[dtype] - 1)
    data: Array = np.bitwise_or.reduce(codes << places, axis=1)
    return data


def _places(dtype: str) -> Any:
    """The places in a byte where elements begin."""
    return np.arange(0, 8, BITS[dtype], dtype=np.uint8)
