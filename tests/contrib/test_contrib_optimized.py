"""What ONNX Runtime's own optimizers write of plain graphs: every fused operator is claimed, and right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from opgraft.sessions import assignment, open_session
from opgraft.testing import reference_outputs

RNG = np.random.default_rng(0)
TOLERANCE = 1e-5
STEP = 0.05
"""Between two bytes, in the quantized graphs."""

Node = tuple[str, Sequence[str], str] | tuple[str, Sequence[str], str, dict[str, Any]]


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def model_of(nodes: Sequence[Node], x: np.ndarray, constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    """A graph of nodes (operator, inputs, outputs with blanks between, attributes) from `x` to `y`."""
    made = [
        helper.make_node(operator, list(inputs), outputs.split(), name=outputs, **(attributes[0] if attributes else {}))
        for operator, inputs, outputs, *attributes in nodes
    ]
    graph = helper.make_graph(
        made,
        "plain",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.asarray(each), name) for name, each in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


HALF, ROOT = np.float32(0.5), np.float32(np.sqrt(2))


def layer_normalization(source: str, target: str) -> list[Node]:
    return [("LayerNormalization", [source, "scale", "bias"], target, {"epsilon": 1e-5})]


def gelu(source: str, target: str) -> list[Node]:
    return [
        ("Div", [source, "root"], "g1"),
        ("Erf", ["g1"], "g2"),
        ("Add", ["g2", "one"], "g3"),
        ("Mul", [source, "g3"], "g4"),
        ("Mul", ["g4", "half"], target),
    ]


def rooted(source: str, target: str) -> list[Node]:
    return [
        ("Pow", [source, "two"], "r1"),
        ("ReduceMean", ["r1"], "r2", {"axes": [-1], "keepdims": 1}),
        ("Add", ["r2", "tiny"], "r3"),
        ("Sqrt", ["r3"], "r4"),
        ("Div", [source, "r4"], "r5"),
        ("Mul", ["r5", "scale"], target),
    ]


def quantized(nodes: Sequence[Node], source: str, weight: str, target: str) -> list[Node]:
    """Nodes from `q_source` to `q_target` between quantizations."""
    return [
        ("QuantizeLinear", [source, "step", "point"], "q1"),
        ("DequantizeLinear", ["q1", "step", "point"], f"q_{source}"),
        ("DequantizeLinear", [weight, "step", "weight_point"], f"q_{weight}"),
        *nodes,
        ("QuantizeLinear", [f"q_{target}", "step", "point"], "q2"),
        ("DequantizeLinear", ["q2", "step", "point"], target),
    ]


SIZE = 16
X = floats(2, 5, SIZE)
IMAGE = floats(1, 3, 8, 8)
CONSTANTS: dict[str, Any] = {
    "scale": floats(SIZE),
    "bias": floats(SIZE),
    "other": floats(2, 5, SIZE),
    "half": HALF,
    "root": ROOT,
    "one": np.float32(1),
    "two": np.float32(2),
    "tiny": np.float32(1e-6),
    "eighth": np.float32(0.125),
    "weights": floats(SIZE, SIZE),
    "kernel": floats(4, 3, 3, 3),
    "kernel_bias": floats(4),
    "step": np.float32(STEP),
    "point": np.uint8(120),
    "weight_point": np.int8(0),
    "codes": RNG.integers(-100, 100, (4, 3, 3, 3)).astype(np.int8),
    "weight_codes": RNG.integers(0, 255, (SIZE, SIZE)).astype(np.uint8),
    "more_codes": RNG.integers(-100, 100, (2, 5, SIZE)).astype(np.int8),
}

GRAPHS: dict[str, tuple[Sequence[Node], np.ndarray, set[str]]] = {
    "skip layer normalization": (
        [("Add", ["x", "other"], "s"), *layer_normalization("s", "y")],
        X,
        {"com.microsoft::SkipLayerNormalization"},
    ),
    "simplified layer normalization": (rooted("x", "y"), X, {"::SimplifiedLayerNormalization"}),
    "gelu": (gelu("x", "y"), X, {"com.microsoft::Gelu"}),
    "gelu with a bias": ([("Add", ["x", "bias"], "s"), *gelu("s", "y")], X, {"com.microsoft::BiasGelu"}),
    "quick gelu": (
        [("Mul", ["x", "two"], "a"), ("Sigmoid", ["a"], "b"), ("Mul", ["x", "b"], "y")],
        X,
        {"com.microsoft::QuickGelu"},
    ),
    "scaled product with a transpose": (
        [
            ("Transpose", ["x"], "t", {"perm": [0, 2, 1]}),
            ("MatMul", ["x", "t"], "p"),
            ("Mul", ["p", "eighth"], "y"),
        ],
        X,
        {"com.microsoft::FusedMatMul"},
    ),
    "gemm and activation": (
        [("Gemm", ["x", "weights", "bias"], "p"), ("LeakyRelu", ["p"], "y", {"alpha": 0.2})],
        floats(5, SIZE),
        {"com.microsoft::FusedGemm"},
    ),
    "convolution and activation": (
        [("Conv", ["x", "kernel", "kernel_bias"], "c"), ("Relu", ["c"], "y")],
        IMAGE,
        {"com.microsoft::FusedConv"},
    ),
    "quantized convolution and pooling": (
        quantized(
            [
                ("Conv", ["q_x", "q_codes"], "c1", {"pads": [1, 1, 1, 1]}),
                ("QuantizeLinear", ["c1", "step", "point"], "c2"),
                ("DequantizeLinear", ["c2", "step", "point"], "c3"),
                ("AveragePool", ["c3"], "q_y", {"kernel_shape": [2, 2]}),
            ],
            "x",
            "codes",
            "y",
        ),
        IMAGE,
        {"com.microsoft::QLinearConv|::QLinearConv", "com.microsoft::QLinearAveragePool"},
    ),
    "quantized sum": (
        quantized([("Add", ["q_x", "q_x"], "q_y")], "x", "more_codes", "y"),
        X,
        {"com.microsoft::QLinearAdd"},
    ),
    "quantized sigmoid": (
        quantized([("Sigmoid", ["q_x"], "q_y")], "x", "more_codes", "y"),
        X,
        {"com.microsoft::QLinearSigmoid"},
    ),
    "quantized softmax": (
        quantized([("Softmax", ["q_x"], "q_y")], "x", "more_codes", "y"),
        X,
        {"com.microsoft::QLinearSoftmax"},
    ),
    "dynamically quantized product": (
        [
            ("DynamicQuantizeLinear", ["x"], "bytes codes_step codes_point"),
            ("MatMulInteger", ["bytes", "weight_codes", "codes_point", "point"], "whole"),
            ("Cast", ["whole"], "wide", {"to": TensorProto.FLOAT}),
            ("Mul", ["codes_step", "step"], "steps"),
            ("Mul", ["wide", "steps"], "y"),
        ],
        X,
        {"com.microsoft::DynamicQuantizeMatMul"},
    ),
}


def optimized(model: onnx.ModelProto, path: Any) -> onnx.ModelProto:
    """The graph that ONNX Runtime makes of a model for its CPU provider, before it goes by the machine."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


@pytest.mark.parametrize("name", GRAPHS)
def test_what_optimizers_write(name, tmp_path):
    nodes, x, fused = GRAPHS[name]
    read = {each for node in nodes for each in node[1]}
    plain = model_of(nodes, x, {key: each for key, each in CONSTANTS.items() if key in read})
    model = optimized(plain, tmp_path / "optimized.onnx")
    written = {f"{node.domain}::{node.op_type}" for node in model.graph.node}
    for operator in fused:
        assert written & set(operator.split("|")), f"{operator} is not among {written}"
    session = open_session(model, {"device": "cpu"}).session
    assert assignment(session).keys() == {"MLXExecutionProvider"}, written
    (output,) = session.run(None, {"x": x})
    (expected,) = reference_outputs(model, {"x": x})
    close = TOLERANCE * max(1, np.abs(expected).max())
    difference = np.abs(output - expected)
    if name.startswith("quantized"):  # where a sum lies just between two bytes, one step more or less
        assert difference.max() <= STEP + close and (difference > close).mean() <= 0.01
    else:
        assert difference.max() <= close
