"""NaN and infinities that a node made, as opposed to those that it was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.ops import Node, to_host

from .describe import count_text, inputs_text, is_floating, node_text, number_text, output_text, place_text


def made_non_finite(node: Node, inputs: Sequence[Any], outputs: Mapping[int, Any]) -> str | None:
    """The first output that holds a NaN or an infinity of the node's own making, in words; None where none does.

    A NaN is the node's own where no input holds a NaN: one made of infinities, as a softmax makes of a row that is
    masked throughout, began here. An infinity is its own where no input holds either. What a node's attributes hold,
    as the fill value of ConstantOfShape, counts as given. An output that the model itself asks IsNaN or IsInf about is
    expected to hold them.

    Args:
        node: the node.
        inputs: its inputs in ONNX order, None where absent: MLX or NumPy arrays.
        outputs: its outputs by index: MLX or NumPy arrays.
    """
    for index, array in outputs.items():
        if not is_floating(array) or not _any("isnan", array) | _any("isinf", array) or _is_expected(node, index):
            continue
        given = list(_given(node, inputs))
        no_nan = not any(_any("isnan", each) for each in given)
        no_infinity = no_nan and not any(_any("isinf", each) for each in given)
        elements = to_host(array)
        places = np.flatnonzero((np.isnan(elements) & no_nan) | (np.isinf(elements) & no_infinity))
        if places.size:
            place = int(places[0])
            return (
                f"{node_text(node)}: {output_text(node, index, array)} holds {count_text(elements)}, the first of its "
                f"own at {place_text(place, elements.shape)} ({number_text(elements.reshape(-1)[place])}); no input "
                f"holds a NaN{' or an infinity' if no_infinity else ''}{inputs_text(node, inputs)}"
            )
    return None


def _is_expected(node: Node, index: int) -> bool:
    """True for an output that another node tests for NaN or infinities."""
    output = node.outputs[index]
    return output is not None and any(
        other.op_type in ("IsNaN", "IsInf")
        and any(value is not None and value.name == output.name for value in other.inputs)
        for other in node.graph.nodes
    )


def _given(node: Node, inputs: Sequence[Any]) -> Iterator[Any]:
    """The floating arrays that a node is given, as inputs and as attributes."""
    for each in (*inputs, *node.attributes.values()):
        array = each if isinstance(each, mx.array) else np.asarray(each)
        if is_floating(array):
            yield array


def _any(test: str, array: Any) -> bool:
    """True where `test` (isnan, isinf) holds for some element."""
    library: Any = mx if isinstance(array, mx.array) else np
    return bool(library.any(getattr(library, test)(array)))
