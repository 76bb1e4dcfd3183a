"""Read-only views of a graph: one set of classes, filled from a live OrtGraph or from an onnx ModelProto."""

from opgraft.graph.model import (
    ONNX_DOMAIN,
    Array,
    AttributeValue,
    Dim,
    Graph,
    Initializer,
    Node,
    Shape,
    UnreadableAttribute,
    Value,
    normalized_domain,
    topologically_sorted,
)

__all__ = [
    "ONNX_DOMAIN",
    "Array",
    "AttributeValue",
    "Dim",
    "Graph",
    "Initializer",
    "Node",
    "Shape",
    "UnreadableAttribute",
    "Value",
    "normalized_domain",
    "topologically_sorted",
]
