"""The most memory that a process needs for a model with 200 MB of weights.

`memory.py write PATH` writes the model; `memory.py ep PATH` and `memory.py cpu PATH` run it.
"""

from __future__ import annotations

import resource
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from turns import tell

import opgraft

WIDTH, LAYERS = 2048, 12


def model() -> onnx.ModelProto:
    generator = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array((generator.normal(size=(WIDTH, WIDTH)) / 45).astype(np.float32), f"w{layer}")
        for layer in range(LAYERS)
    ]
    nodes = [helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"x{layer + 1}"]) for layer in range(LAYERS)]
    shape = ["n", WIDTH]
    first, last = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in ("x0", f"x{LAYERS}"))
    graph = helper.make_graph(nodes, "heavy", [first], [last], weights)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def main() -> None:
    side, path = sys.argv[1:]
    if side == "write":
        onnx.save(model(), path)
        return
    options = opgraft.session_options() if side == "ep" else onnxruntime.SessionOptions()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    providers = None if side == "ep" else ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(path, options, providers=providers)
    for _ in range(5):
        session.run(None, {"x0": np.ones((4, WIDTH), np.float32)})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tell([{"model": "200 MB of weights", side: peak * 1024, "before": before * 1024}])


if __name__ == "__main__":
    main()
