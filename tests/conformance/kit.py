"""What several of these tests share: inputs known in one place or another, and data that ends in an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from opgraft.errors import TranslationError
from opgraft.graph import Array
from opgraft.ops import Context, Handler, to_device
from opgraft.testing import node_model, reference_outputs, run_model

PLACES = ("constant", "host", "device")
"""Where the elements of an input may be known: from the model, from the feeds, or from what the device computes."""


def check_refused(operator: str, *inputs: Array | None, match: str, index: int = 1, **model: Any) -> None:
    """Check that a node fails with an error that names it, wherever its input `index` is known, and that ONNX Runtime's
    CPU provider refuses the same. `model` holds what `node_model` takes."""
    feeds = {f"x{number}": each for number, each in enumerate(inputs) if each is not None}
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        reference_outputs(node_model(operator, inputs, **model), feeds)
    for place in PLACES:
        with pytest.raises(TranslationError, match=f"node 'node'.*{match}"):
            run_model(placed(node_model(operator, inputs, **model), feeds, f"x{index}", place), feeds)


def placed(model: onnx.ModelProto, feeds: Mapping[str, Array], name: str, place: str) -> onnx.ModelProto:
    """A model of one node with the input `name` known in another place: for the device, as a sum of it and 0."""
    graph, value = model.graph, np.asarray(feeds[name])
    if place == "constant":
        graph.input.remove(next(each for each in graph.input if each.name == name))
        graph.initializer.append(numpy_helper.from_array(value, name))
    elif place == "device":
        graph.initializer.append(numpy_helper.from_array(np.zeros((), value.dtype), "zero"))
        graph.node[0].input[list(graph.node[0].input).index(name)] = "computed"
        graph.node.insert(0, helper.make_node("Add", [name, "zero"], ["computed"], name="add"))
    return model


def translated(handler: Handler, *inputs: Array, device: str = "cpu", **attributes: Any) -> mx.array:
    """What a handler makes of inputs on the device, none of them constant; its checks are left alone."""
    arrays = [to_device(each) for each in inputs]
    node: Any = None
    context = Context(
        node, arrays, device=device, cache={}, constant=[], bodies={}, random_key=lambda: mx.random.key(0)
    )
    with mx.stream(mx.cpu):
        return handler(*[context] * handler.signature.takes_context, *arrays, **attributes)
