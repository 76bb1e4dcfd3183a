"""Which outputs of a model are drawn at random, so that two runs need not agree on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import onnx
from onnx import numpy_helper

from opgraft.graph import normalized_domain
from opgraft.graph.completion import ONNX_ERRORS
from opgraft.graph.model import ONNX_DOMAIN

_DRAWING: Final = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
_TRAINING_MODE: Final = 2
"""Dropout's input that has it draw."""


def random_outputs(model: onnx.ModelProto) -> dict[str, tuple[str, ...]]:
    """The outputs of a model that depend on what operators draw, each with the op types of these."""
    functions = {(normalized_domain(each.domain), each.name): each for each in model.functions}
    constants = {each.name: each for each in model.graph.initializer}
    drawn: dict[str, dict[str, None]] = {}
    for node in model.graph.node:
        found = dict.fromkeys(_drawing(node, functions, constants))
        for name in _read(node):
            found.update(drawn.get(name, {}))
        if found:
            drawn.update(dict.fromkeys(node.output, found))
    return {each.name: tuple(drawn[each.name]) for each in model.graph.output if each.name in drawn}


def _drawing(
    node: onnx.NodeProto,
    functions: Mapping[tuple[str, str], onnx.FunctionProto],
    constants: Mapping[str, onnx.TensorProto],
) -> Iterator[str]:
    """The op types that draw, of a node, of its bodies and of the function that it calls."""
    domain = normalized_domain(node.domain)
    if domain == ONNX_DOMAIN and (node.op_type in _DRAWING or _is_training(node, constants)):
        yield node.op_type
    inner = [each for body in _bodies(node) for each in body.node]
    called = functions.get((domain, node.op_type))
    for each in (*inner, *(() if called is None else called.node)):
        yield from _drawing(each, functions, constants)


def _is_training(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    if node.op_type != "Dropout" or len(node.input) <= _TRAINING_MODE or not node.input[_TRAINING_MODE]:
        return False
    constant = constants.get(node.input[_TRAINING_MODE])
    if constant is None:
        return True
    try:
        return bool(numpy_helper.to_array(constant).any())
    except (OSError, TypeError, *ONNX_ERRORS):  # its data is elsewhere, or is none
        return True


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads, those that its bodies read included."""
    yield from node.input
    for body in _bodies(node):
        for each in body.node:
            yield from _read(each)
        yield from (output.name for output in body.output)


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g
