"""What a translator gives back, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.graph import Array
from opgraft.ops.arrays import HOST_TYPES


def outputs_of(results: Any, count: int) -> Sequence[Any]:
    """The outputs that a translator gave for a node that has `count` of them.

    Raises:
        TypeError: they are not a tuple or list, or too few.
    """
    if not isinstance(results, tuple | list):
        raise TypeError(f"the translator gave {_described(results)}, and not a tuple of outputs")
    if len(results) < count:
        raise TypeError(f"the translator gave {len(results)} outputs, and the node has {count}")
    return results


def as_held(value: Any) -> Any:
    """An output as a frame holds it: an MLX array, or a NumPy array of a type that MLX has too.

    Raises:
        TypeError: it is neither, nor something that NumPy makes one of.
    """
    if isinstance(value, mx.array):
        return value
    array = np.asarray(value)
    if array.dtype not in HOST_TYPES:
        raise TypeError(f"{_described(value)} is not an array that MLX can hold")
    return unchanging(array)


def unchanging(array: Array) -> Array:
    """A view of an array through which nobody can write: what one translator reads, others read too."""
    view = array.view()
    view.flags.writeable = False
    return view


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray | mx.array):
        return f"an array of {value.dtype}"
    return "nothing" if value is None else f"a {type(value).__name__}"
