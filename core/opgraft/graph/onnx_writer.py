"""An onnx ModelProto from a graph: the reverse of `opgraft.graph.onnx_source`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from opgraft.errors import ModelError
from opgraft.graph.element_types import BITS, ONNX_OF_NAME, PACKED, marked_type
from opgraft.graph.model import ONNX_DOMAIN, Array, AttributeValue, Graph, Initializer, Node, Value
from opgraft.graph.packing import packed

MOST_BYTES: Final = (1 << 31) - (1 << 24)
"""Of constants in one model. Protobuf writes nothing of 2 GB; room is left for what is no constant."""

LEAST_IR_VERSION: Final = 10
"""The first one with the integers of 4 bits; every ONNX Runtime that opgraft works with knows it."""

_IR_VERSION_OF: Final = {"float4e2m1": 11, "float8e8m0": 12, "uint2": 13, "int2": 13}

Elements: TypeAlias = Callable[[Initializer], Array]
"""Gives the elements of an initializer in storage form."""


def own_elements(initializer: Initializer) -> Array:
    """What the initializer itself says that its elements are."""
    return initializer.read()


def model_of_graph(graph: Graph, elements: Elements = own_elements) -> ModelProto:
    """A model of an outermost graph: its nodes with their bodies, its constants, its inputs and outputs.

    Sizes that have a name keep it, and what else is unknown of a shape is left open. Types of what lies between are
    written, shapes are not: ONNX Runtime infers them anew.

    Args:
        graph: the graph. Every name that its nodes read must be an input, an initializer, or made by a node.
        elements: how initializers are read.

    Raises:
        ModelError: an input's type is unknown, an attribute is of a kind that no view holds, or the constants take
            2 GB or more.
    """
    nodes = graph.all_nodes()
    initializers = graph.all_initializers()
    size = sum(_bytes(each.value) for each in initializers)
    if size > MOST_BYTES:
        raise ModelError(f"the constants take {size / 1e9:.1f} GB, and a model in memory holds less than 2")
    for value in graph.inputs:
        if value.kind != "tensor" or value.dtype is None:
            raise ModelError(f"input {value.name!r} is not known to be a tensor of one element type")
    opsets = [
        onnx.helper.make_opsetid("" if domain == ONNX_DOMAIN else domain, version)
        for domain, version in _opsets(graph, nodes).items()
    ]
    dtypes = {value.dtype for value in (*_values(nodes), *graph.inputs, *(each.value for each in initializers))}
    try:
        return ModelProto(
            ir_version=max(
                LEAST_IR_VERSION,
                onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True),
                *(version for dtype, version in _IR_VERSION_OF.items() if dtype in dtypes),
            ),
            producer_name="opgraft",
            opset_import=opsets,
            graph=_graph(graph, elements),
        )
    except UnicodeEncodeError as error:
        raise ModelError(f"a name that is no text cannot be written ({error})") from error


def _opsets(graph: Graph, nodes: list[Node]) -> dict[str, int]:
    """The opset of each domain that the nodes are of, and of ONNX's own."""
    found = {ONNX_DOMAIN: graph.opsets.get(ONNX_DOMAIN, 1)}
    for node in nodes:
        least = max(found.get(node.domain, 1), node.since_version)
        found[node.domain] = graph.opsets.get(node.domain, least)
    return found


def _bytes(value: Value) -> int:
    return prod(value.static_shape or (0,)) * BITS.get(value.dtype or "", 8) // 8


def _values(nodes: list[Node]) -> Iterator[Value]:
    for node in nodes:
        for value in (*node.inputs, *node.outputs):
            if value is not None:
                yield value


def _graph(graph: Graph, elements: Elements) -> GraphProto:
    typed = {value.name for value in (*graph.inputs, *graph.outputs)} | graph.initializers.keys()
    made = (value for node in graph.nodes for value in node.outputs if value is not None)
    between = [Value(value.name, value.dtype) for value in made if value.name not in typed and value.dtype is not None]
    return GraphProto(
        name=graph.name or "graph",
        node=[_node(node, elements) for node in graph.nodes],
        input=[_info(value) for value in graph.inputs],
        output=[_info(value) for value in graph.outputs],
        initializer=[
            _tensor(elements(each), _known(each.value.dtype), name) for name, each in graph.initializers.items()
        ],
        value_info=[_info(value) for value in between],
    )


def _info(value: Value) -> ValueInfoProto:
    """Name, element type and shape of a value, as far as they are known; the name alone of what is no tensor."""
    info = ValueInfoProto(name=value.name)
    if value.kind == "tensor" and value.dtype is not None:
        info.type.CopyFrom(onnx.helper.make_tensor_type_proto(ONNX_OF_NAME[value.dtype], value.shape))
    return info


def _node(node: Node, elements: Elements) -> NodeProto:
    return NodeProto(
        name=node.name,
        op_type=node.op_type,
        domain="" if node.domain == ONNX_DOMAIN else node.domain,
        input=["" if value is None else value.name for value in node.inputs],
        output=["" if value is None else value.name for value in node.outputs],
        attribute=[_attribute(node, name, value, elements) for name, value in node.attributes.items()],
    )


def _attribute(node: Node, name: str, value: AttributeValue, elements: Elements) -> AttributeProto:
    proto = AttributeProto(name=name)
    if isinstance(value, Graph):
        proto.type = AttributeProto.GRAPH
        proto.g.CopyFrom(_graph(value, elements))
    elif isinstance(value, np.ndarray):
        proto.type = AttributeProto.TENSOR
        proto.t.CopyFrom(_tensor(value, marked_type(value)))
    elif isinstance(value, tuple):
        kind: Any = _LISTS[type(value[0])] if value else _declared_kind(node, name)
        proto.type = kind
        if value:
            getattr(proto, _FIELDS[kind]).extend(_encoded(each) for each in value)
    elif type(value) in _SINGLES:
        single: Any = _SINGLES[type(value)]
        proto.type = single
        setattr(proto, _FIELDS[single], _encoded(value))
    else:
        raise ModelError(f"attribute {name!r} of node {node.label!r} ({node.operator}) is of a kind that is not read")
    return proto


_SINGLES: Final[Mapping[type, int]] = {int: AttributeProto.INT, float: AttributeProto.FLOAT, str: AttributeProto.STRING}
_LISTS: Final[Mapping[type, int]] = {
    int: AttributeProto.INTS,
    float: AttributeProto.FLOATS,
    str: AttributeProto.STRINGS,
}
_FIELDS: Final[Mapping[int, str]] = {
    AttributeProto.INT: "i",
    AttributeProto.FLOAT: "f",
    AttributeProto.STRING: "s",
    AttributeProto.INTS: "ints",
    AttributeProto.FLOATS: "floats",
    AttributeProto.STRINGS: "strings",
}


def _declared_kind(node: Node, name: str) -> Any:
    """What a list of nothing is a list of: what ONNX says of the attribute, or integers where it says nothing."""
    domain = "" if node.domain == ONNX_DOMAIN else node.domain
    if not onnx.defs.has(node.op_type, node.since_version, domain):
        return AttributeProto.INTS
    attributes = onnx.defs.get_schema(node.op_type, node.since_version, domain).attributes
    declared: Any = attributes[name].type if name in attributes else AttributeProto.INTS
    return getattr(declared, "value", declared)


def _encoded(value: Any) -> Any:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _known(dtype: str | None) -> str:
    if dtype is None:
        raise ModelError("an initializer is of an element type that is not read")
    return dtype


def _tensor(array: Array, dtype: str, name: str = "") -> TensorProto:
    """A tensor from its elements in storage form."""
    proto = TensorProto(name=name, data_type=ONNX_OF_NAME[dtype], dims=array.shape)
    if dtype == "string":
        proto.string_data.extend(_encoded(each) for each in array.reshape(-1).tolist())
    else:
        proto.raw_data = (packed(array, dtype) if dtype in PACKED else array).tobytes()
    return proto
