"""A 12-layer transformer encoder (width 768, 12 heads, 197 tokens, batch 8, float16), for a GPU.

`session.run` on the EP beside the same function written and compiled in MLX, and beside PyTorch where it is installed.
`encoder.py small` takes two layers of width 64 instead, to see that the three agree.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from turns import medians, tell

import opgraft

Weights = list[dict[str, np.ndarray]]

EPSILON = 1e-5


def weights_of(layers: int, width: int) -> Weights:
    generator = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (generator.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float16)

    def vector(size: int, around: float) -> np.ndarray:
        return (around + 0.02 * generator.normal(size=size)).astype(np.float16)

    shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    return [
        {f"{name}_w": matrix(*shape) for name, shape in shapes.items()}
        | {f"{name}_b": vector(shape[1], 0) for name, shape in shapes.items()}
        | {name: vector(width, name.endswith("scale")) for name in ("n1_scale", "n1_bias", "n2_scale", "n2_bias")}
        for _ in range(layers)
    ]


class Builder:
    """Adds nodes one after the other; what each gives has a name of its own."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def __call__(self, operator: str, *inputs: str, **attributes: Any) -> str:
        return self.several(operator, 1, *inputs, **attributes)[0]

    def several(self, operator: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        names = [f"v{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, name=f"n{len(self.nodes)}", **attributes))
        return names


def model(weights: Weights, heads: int, tokens: int, batch: int) -> onnx.ModelProto:
    """As exporters write it: attention in parts, Gelu by its definition."""
    width = weights[0]["out_w"].shape[0]
    b = Builder()

    def numbers(*values: int) -> str:
        return b.constant(np.array(values, np.int64))

    def half(value: float) -> str:
        return b.constant(np.array(value, np.float16))

    def dense(value: str, layer: dict[str, np.ndarray], name: str) -> str:
        return b("Add", b("MatMul", value, b.constant(layer[f"{name}_w"])), b.constant(layer[f"{name}_b"]))

    def normal(value: str, layer: dict[str, np.ndarray], name: str) -> str:
        scale, bias = (b.constant(layer[f"{name}_{part}"]) for part in ("scale", "bias"))
        return b("LayerNormalization", value, scale, bias, axis=-1, epsilon=EPSILON)

    value = "x"
    for layer in weights:
        joined = dense(normal(value, layer, "n1"), layer, "qkv")
        parts = b.several("Split", 3, joined, axis=-1, num_outputs=3)
        split = numbers(batch, tokens, heads, width // heads)
        query, key, values = (b("Transpose", b("Reshape", part, split), perm=[0, 2, 1, 3]) for part in parts)
        scores = b("MatMul", b("Mul", query, half((width // heads) ** -0.5)), b("Transpose", key, perm=[0, 1, 3, 2]))
        mixed = b("MatMul", b("Softmax", scores, axis=-1), values)
        mixed = b("Reshape", b("Transpose", mixed, perm=[0, 2, 1, 3]), numbers(batch, tokens, width))
        value = b("Add", value, dense(mixed, layer, "out"))
        raised = dense(normal(value, layer, "n2"), layer, "up")
        bell = b("Mul", b("Add", b("Erf", b("Mul", raised, half(0.5**0.5))), half(1)), half(0.5))
        value = b("Add", value, dense(b("Mul", raised, bell), layer, "down"))
    b.nodes[-1].output[0] = "y"
    info = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT16, [batch, tokens, width]) for name in ("x", "y")
    ]
    graph = helper.make_graph(b.nodes, "encoder", info[:1], info[1:], b.initializers)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def in_mlx(weights: Weights, heads: int) -> Callable[[np.ndarray], np.ndarray]:
    """The same operations, one for one."""
    on_device = [{name: mx.array(array) for name, array in layer.items()} for layer in weights]
    mx.eval(on_device)

    @mx.compile
    def encoder(x: mx.array) -> mx.array:
        batch, tokens, width = x.shape
        for layer in on_device:
            joined = mx.fast.layer_norm(x, layer["n1_scale"], layer["n1_bias"], EPSILON) @ layer["qkv_w"]
            parts = mx.split(joined + layer["qkv_b"], 3, axis=-1)
            query, key, values = (
                part.reshape(batch, tokens, heads, width // heads).transpose(0, 2, 1, 3) for part in parts
            )
            scores = (query * (width // heads) ** -0.5) @ key.transpose(0, 1, 3, 2)
            mixed = (mx.softmax(scores, axis=-1) @ values).transpose(0, 2, 1, 3).reshape(batch, tokens, width)
            x = x + (mixed @ layer["out_w"] + layer["out_b"])
            raised = mx.fast.layer_norm(x, layer["n2_scale"], layer["n2_bias"], EPSILON) @ layer["up_w"] + layer["up_b"]
            bell = (mx.erf(raised * 0.5**0.5) + 1) * 0.5
            x = x + ((raised * bell) @ layer["down_w"] + layer["down_b"])
        return x

    def run(x: np.ndarray) -> np.ndarray:
        result = encoder(mx.array(x))
        mx.eval(result)
        return np.array(result)

    return run


def in_torch(weights: Weights, heads: int) -> Callable[[np.ndarray], np.ndarray] | None:
    """The same in PyTorch, eager, on its GPU; None where there is none."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    functional = torch.nn.functional
    on_device = [{name: torch.from_numpy(array).cuda() for name, array in layer.items()} for layer in weights]

    @torch.inference_mode()
    def run(x: np.ndarray) -> np.ndarray:
        value = torch.from_numpy(x).cuda()
        batch, tokens, width = value.shape
        for layer in on_device:
            normal = functional.layer_norm(value, (width,), layer["n1_scale"], layer["n1_bias"], EPSILON)
            parts = (normal @ layer["qkv_w"] + layer["qkv_b"]).chunk(3, -1)
            query, key, values = (part.reshape(batch, tokens, heads, width // heads).transpose(1, 2) for part in parts)
            scores = (query * (width // heads) ** -0.5) @ key.transpose(-1, -2)
            mixed = (scores.softmax(-1) @ values).transpose(1, 2).reshape(batch, tokens, width)
            value = value + (mixed @ layer["out_w"] + layer["out_b"])
            normal = functional.layer_norm(value, (width,), layer["n2_scale"], layer["n2_bias"], EPSILON)
            raised = normal @ layer["up_w"] + layer["up_b"]
            value = value + (functional.gelu(raised) @ layer["down_w"] + layer["down_b"])
        return value.cpu().numpy()

    return run


def main() -> None:
    small = sys.argv[1:] == ["small"]
    layers, width, heads, tokens, batch = (2, 64, 4, 17, 2) if small else (12, 768, 12, 197, 8)
    weights = weights_of(layers, width)
    x = np.random.default_rng(1).normal(size=(batch, tokens, width)).astype(np.float16)
    proto = model(weights, heads, tokens, batch)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), opgraft.session_options())
    sides: dict[str, Callable[[], Any]] = {"ep": lambda: session.run(None, {"x": x})[0]}
    direct, eager = in_mlx(weights, heads), in_torch(weights, heads)
    sides["mlx"] = lambda: direct(x)
    if eager is not None:
        sides["torch"] = lambda: eager(x)
    outputs = {name: np.asarray(side(), np.float32) for name, side in sides.items()}
    difference = max(float(np.abs(each - outputs["mlx"]).max()) for each in outputs.values())
    row = {
        "model": f"encoder, {layers} layers of {width}",
        "device": str(mx.default_device()),
        "difference": difference,
    }
    tell([row | medians(sides, turns=10 if small else 40)])


if __name__ == "__main__":
    main()
