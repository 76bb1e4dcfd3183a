"""An 8-layer MLP, batch 1, width 256: `session.run` beside the same function compiled and evaluated by MLX itself."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from turns import medians, tell

import opgraft

LAYERS, WIDTH = 8, 256


def model(weights: list[np.ndarray], biases: list[np.ndarray]) -> onnx.ModelProto:
    nodes, initializers, value = [], [], "x"
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        initializers += [numpy_helper.from_array(weight, f"w{layer}"), numpy_helper.from_array(bias, f"b{layer}")]
        nodes.append(helper.make_node("Gemm", [value, f"w{layer}", f"b{layer}"], [f"h{layer}"]))
        nodes.append(helper.make_node("Relu", [f"h{layer}"], [f"r{layer}"]))
        value = f"r{layer}"
    first, last = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, WIDTH]) for name in ("x", value))
    graph = helper.make_graph(nodes, "mlp", [first], [last], initializers)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def main() -> None:
    generator = np.random.default_rng(0)
    weights = [(generator.normal(size=(WIDTH, WIDTH)) / 16).astype(np.float32) for _ in range(LAYERS)]
    biases = [generator.normal(size=WIDTH).astype(np.float32) for _ in range(LAYERS)]
    x = generator.normal(size=(1, WIDTH)).astype(np.float32)
    proto = model(weights, biases).SerializeToString()
    session = onnxruntime.InferenceSession(proto, opgraft.session_options())
    cpu = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
    on_device = [(mx.array(weight), mx.array(bias)) for weight, bias in zip(weights, biases, strict=True)]
    mx.eval(on_device)

    @mx.compile
    def function(value: mx.array) -> mx.array:
        for weight, bias in on_device:
            value = mx.maximum(mx.addmm(bias, value, weight), 0)
        return value

    def direct() -> np.ndarray:
        result = function(mx.array(x))
        mx.eval(result)
        return np.array(result)

    np.testing.assert_allclose(session.run(None, {"x": x})[0], direct(), rtol=1e-4, atol=1e-4)
    sides = {"ep": lambda: session.run(None, {"x": x}), "mlx": direct, "cpu": lambda: cpu.run(None, {"x": x})}
    found = medians(sides, turns=1000, warm_ups=100, pause=0)
    tell([{"model": "MLP, 8 layers of 256, batch 1", **found}])


if __name__ == "__main__":
    main()
