"""Axes, sizes and flags that an operator allows, and errors that name those that it does not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from opgraft.ops import Node
from opgraft_ops._shared import Array


def counted(axis: int, rank: int) -> int:
    """`axis` of `rank` dimensions, counted from 0.

    Raises:
        ValueError: there is no such axis.
    """
    if not -rank <= axis < rank:
        raise ValueError(f"there is no axis {axis} among {rank} dimensions")
    return int(axis) % rank


def all_counted(axes: Iterable[int], rank: int) -> list[int]:
    """Each of `axes`, counted from 0.

    Raises:
        ValueError: there is no such axis, or one is named twice.
    """
    axes = [counted(axis, rank) for axis in axes]
    if len(set(axes)) < len(axes):
        raise ValueError(f"axes {axes} of {rank} dimensions name one twice")
    return axes


def check_shape(name: str, array: Array | None, *shapes: Sequence[int | None]) -> None:
    """Check that an input, if there is one, has one of some shapes; None stands for any size.

    Raises:
        ValueError: it has none of them.
    """
    if array is None:
        return
    for shape in shapes:
        if len(shape) == array.ndim and all(
            wanted in (None, size) for wanted, size in zip(shape, array.shape, strict=True)
        ):
            return
    wanted = " or ".join(str(list(shape)).replace("None", "any") for shape in shapes)
    raise ValueError(f"{name} has shape {list(array.shape)}, and must have {wanted}")


def check_broadcast(name: str, array: Array | None, shape: Sequence[int]) -> None:
    """Check that an input, if there is one, broadcasts to a shape, and to none larger.

    Raises:
        ValueError: it does not.
    """
    if array is None:
        return
    try:
        fits = np.broadcast_shapes(array.shape, tuple(shape)) == tuple(shape)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{name} of shape {list(array.shape)} does not broadcast to {list(shape)}")


def flags(*names: str) -> Callable[[Node], None]:
    """A claim condition: the attributes `names` are 0 or 1. ONNX Runtime takes other numbers for one of them or the
    other, by operator."""

    def condition(node: Node) -> None:
        for name in names:
            value = node.attributes.get(name, 0)
            node.require(value in (0, 1), f"{name} is {value}, and must be 0 or 1")

    return condition


def choices(**names: Collection[str]) -> Callable[[Node], None]:
    """A claim condition: each of the attributes, where it is there, is one of these words."""

    def condition(node: Node) -> None:
        for name, words in names.items():
            value = node.attributes.get(name)
            node.require(value is None or value in words, f"{name} {value!r} is not one of {', '.join(words)}")

    return condition
