"""What a translator gives back, checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np

from opgraft.engine.lanes import lane
from opgraft.engine.parts import Part
from opgraft.errors import ContractError
from opgraft.graph import Array, Value
from opgraft.graph.element_types import HELD_AS
from opgraft.ops.arrays import described, device_from_storage, element_type

Result: TypeAlias = mx.array | Array | Part
"""What a program gives."""


def outputs_of(results: Any, count: int) -> Sequence[Any]:
    """The outputs that a translator gave for a node that has `count` of them.

    Raises:
        TypeError: they are not a tuple or list, or too few.
    """
    if not isinstance(results, tuple | list):
        raise TypeError(f"the translator gave {described(results)}, and not a tuple of outputs")
    if len(results) < count:
        raise TypeError(f"the translator gave {len(results)} outputs, and the node has {count}")
    return results


def about_sizes(error: BaseException, values: Iterable[Any]) -> str:
    """The end of an error that MLX raised of a whole number that it cannot take, without words for that; empty for any
    other error.

    Args:
        error: the error.
        values: what the node read, as far as it is on the host.
    """
    if not isinstance(error, TypeError | OverflowError):
        return ""
    whole = (each for each in values if isinstance(each, np.ndarray) and each.dtype.kind in "iu" and each.size)
    largest = max((max(int(each.max()), -int(each.min())) for each in whole), default=0)
    return f" (MLX counts in 32 bits, and an input holds {largest})" if largest >= 2**31 else ""


def in_storage_type(result: Result) -> mx.array | Array:
    """An evaluated output, whole, in the storage type of its element type, which NumPy has: bfloat16 as its 16 bits."""
    if isinstance(result, np.ndarray) or (isinstance(result, mx.array) and result.dtype != mx.bfloat16):
        return result
    with lane("cpu"):
        array = result.array() if isinstance(result, Part) else result
        if array.dtype == mx.bfloat16:
            array = array.view(mx.uint16)
        mx.eval(array)
    return array


def stored(result: Result) -> Array:
    """An evaluated output as a NumPy array in storage form: a view of its memory where it can be."""
    return np.array(in_storage_type(result), copy=False)


def brought(array: Array, dtype: str | None) -> mx.array:
    """An array in storage form as an evaluated MLX array, which is no thread's own."""
    with lane("cpu"):
        made = device_from_storage(array, dtype)
        mx.eval(made)
    return made


def check_types(results: Iterable[Result], declared: Iterable[Value]) -> None:
    """Make sure that outputs are of the element types that a model declares.

    Raises:
        ContractError: one is of another.
    """
    for result, value in zip(results, declared, strict=True):
        found = element_type(result)
        if value.dtype is not None and found not in (value.dtype, HELD_AS.get(value.dtype)):
            raise ContractError(f"output {value.name!r} came out as {found}, and the model declares {value.dtype}")
