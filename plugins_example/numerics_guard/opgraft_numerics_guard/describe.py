"""Nodes and arrays in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.ops import Node, Value, to_host


def is_floating(array: Any) -> bool:
    """True for an MLX or NumPy array whose element type has NaN and infinities."""
    if isinstance(array, mx.array):
        return bool(mx.issubdtype(array.dtype, mx.inexact))
    return array.dtype.kind in "fc"


def element_type(array: Any) -> str:
    """ONNX's name for the element type of an MLX or NumPy array."""
    return str(array.dtype).removeprefix("mlx.core.").rstrip("_")


def node_text(node: Node) -> str:
    """The node, its operator, and the body that it is in."""
    body = f" in body {node.graph.name!r}" if node.graph.parent is not None else ""
    return f"node {node.label!r} ({node.operator}, version {node.since_version}){body}"


def output_text(node: Node, index: int, array: Any) -> str:
    """One output, with its element type and shape."""
    return _value_text("output", index, node.outputs[index], array)


def inputs_text(node: Node, inputs: Sequence[Any]) -> str:
    """A line for each input of a node: its element type, its shape, and the range of its elements."""
    lines = [
        f"\n  {_value_text('input', index, value, array)}: {range_text(array)}"
        for index, (value, array) in enumerate(zip(node.inputs, inputs, strict=False))
        if array is not None
    ]
    return "".join(lines) or "\n  it has no inputs"


def _value_text(role: str, index: int, value: Value | None, array: Any) -> str:
    name = "" if value is None else f" {value.name!r}"
    return f"{role} {index}{name} {element_type(array)}{list(array.shape)}"


def range_text(array: Any) -> str:
    """From the least to the largest finite element (of complex ones, their magnitudes), and how many others."""
    elements = to_host(array)
    if not elements.size:
        return "empty"
    counts = count_text(elements)
    if is_floating(elements):
        elements = elements[np.isfinite(elements)]
    if not elements.size:
        return counts
    elements = np.abs(elements) if elements.dtype.kind == "c" else elements
    span = f"{number_text(elements.min())} to {number_text(elements.max())}"
    return f"{span}, {counts}" if counts else span


def count_text(elements: np.ndarray[Any, Any]) -> str:
    """How many NaN and infinities there are; empty for none."""
    if not is_floating(elements):
        return ""
    nans, infinities = np.count_nonzero(np.isnan(elements)), np.count_nonzero(np.isinf(elements))
    texts = [f"{nans} NaN"] if nans else []
    if infinities:
        texts.append(f"{infinities} infinit{'y' if infinities == 1 else 'ies'}")
    return " and ".join(texts)


def number_text(element: Any, digits: int = 6) -> str:
    """An element; a float to so many significant digits."""
    return f"{element + 0.0:.{digits}g}" if np.asarray(element).dtype.kind in "fc" else str(element)


def place_text(place: int, shape: Sequence[int]) -> str:
    """The index of the element that is the `place`th in row-major order."""
    return str([int(each) for each in np.unravel_index(place, tuple(shape))])
