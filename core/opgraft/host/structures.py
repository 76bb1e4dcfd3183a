"""Structures of the C API that Python makes and ONNX Runtime gets."""

from __future__ import annotations

from typing import Any

from opgraft.errors import OpgraftError
from opgraft.host._ep import ffi, lib


def own(structure: Any) -> Any:
    """A new structure, which is freed with its Python object until it is given away.

    Raises:
        OpgraftError: there is no memory for it.
    """
    if not structure:
        raise OpgraftError("there is no memory left")
    return ffi.gc(structure, lib.free)


def give_away(structure: Any) -> Any:
    """The structure, for ONNX Runtime: it is freed when ONNX Runtime releases it."""
    ffi.gc(structure, None)
    return structure
