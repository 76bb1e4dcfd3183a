"""Element types and shapes of nodes of operators that packs define, as ONNX Runtime asks for them."""

from __future__ import annotations

import itertools
from typing import Any, Final

from opgraft.engine.inference import infer_outputs, output_types
from opgraft.errors import ContractError
from opgraft.graph import AttributeValue, Graph, Node, Value
from opgraft.graph.element_types import ORT_OF_NAME
from opgraft.host._ep import ffi, lib
from opgraft.host.ort_attributes import read_attribute
from opgraft.host.ort_graph import type_of_view
from opgraft.host.status import OrtError, check
from opgraft.ops import Output
from opgraft.registry import UNKNOWN_VERSION, Definition

_COUNTS_OUTPUTS_SINCE: Final = 28
"""Before ONNX Runtime 1.28, the process dies of telling the type of an output that a node does not have, and how many
it has is not to be learned."""

_fresh: Final = itertools.count()


def tell_outputs(context: Any, definition: Definition) -> None:
    """Tell ONNX Runtime what is known of the outputs of the node of an OrtShapeInferContext.

    Raises:
        ContractError: the handler's inference failed.
        OrtError: ONNX Runtime does not agree.
    """
    node = _node_of(context, definition)
    required = len(output_types(definition))
    for index, output in enumerate(_to_tell(node, definition)):
        if output is None or (index >= required and lib.api_version() < _COUNTS_OUTPUTS_SINCE):
            continue
        try:
            _tell(context, index, output)
        except OrtError:
            if index < required:
                raise  # otherwise the node does not have this output


def _to_tell(node: Node, definition: Definition) -> list[Output | None]:
    """What to tell of each output; None where nothing is to be told.

    ONNX Runtime takes no element type without a shape, and takes a shape for a fact. Of an output of unknown shape it
    is left with the type that it supposes. Where that is wrong, the node's run is an error that says so.
    """
    try:
        outputs = infer_outputs(node, definition)
    except ContractError:
        if all(value is None or value.shape is not None for value in node.inputs):
            raise
        return []  # perhaps because of an unknown rank
    return [None if output.dtype is None or output.shape is None else output for output in outputs]


def _node_of(context: Any, definition: Definition) -> Node:
    """The node as its inference sees it; of its outputs, those that it must have."""
    inputs: list[Value | None] = []
    count = ffi.new("size_t *")
    check(lib.ort_ShapeInferContext_GetInputCount(context, count))
    view = ffi.new("ValueView *")
    for index in range(count[0]):
        check(lib.read_inferred_input(context, index, view))
        dtype, shape, _ = type_of_view(view)
        inputs.append(Value(f"input {index}", dtype, shape or None) if view.element_type else None)
    while inputs and inputs[-1] is None:
        inputs.pop()
    node = Node(
        name="",
        op_type=definition.op_type,
        domain=definition.domain,
        since_version=UNKNOWN_VERSION,
        inputs=tuple(inputs),
        outputs=tuple(Value(f"output {index}") for index in range(len(definition.output_types))),
        attributes=_attributes(context, definition),
    )
    Graph("", tuple(value for value in inputs if value), (), (node,), {}, {})
    return node


def _attributes(context: Any, definition: Definition) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    view = ffi.new("AttributeView *")
    for name in definition.attribute_kinds:
        pointer = ffi.new("const OrtOpAttr **")
        status = lib.ort_ShapeInferContext_GetAttribute(context, name.encode(), pointer)
        if status:  # the node does not have it
            lib.ort_ReleaseStatus(status)
            continue
        attributes[name] = read_attribute(pointer[0], view)[1]
    return attributes


def _tell(context: Any, index: int, output: Output) -> None:
    """Tell of an output whose element type and rank are known. ONNX Runtime takes no size that is unknown: such a
    dimension gets a name that no other has."""
    shape = output.shape or ()
    view = ffi.new("ValueView *")
    view.element_type = ORT_OF_NAME[output.dtype or ""]
    view.has_shape = True
    view.rank = len(shape)
    names = ["" if isinstance(dim, int) else dim or f"opgraft_{next(_fresh)}" for dim in shape]
    kept = [ffi.new("char[]", name.encode("utf-8", "surrogateescape")) for name in names]
    for axis, dim in enumerate(shape):
        view.sizes[axis] = dim if isinstance(dim, int) else -1
        view.symbols[axis] = kept[axis]
    check(lib.set_inferred_output(context, index, view))
