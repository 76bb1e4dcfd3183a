"""A graph is the same whether it is read from a live OrtGraph or from an onnx ModelProto, and so is its plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from opgraft.graph import Graph
from opgraft.graph.onnx_source import graph_of_model
from opgraft.host import observed
from opgraft.plan import Plan, build_plan
from opgraft.sessions import options_with_provider


def described_plan(plan: Plan) -> dict[str, Any]:
    """A plan as plain data, slots replaced by the names of their values: what must not depend on the source."""

    def name(slot: int) -> str:
        return "" if slot < 0 else plan.values[slot].name

    return {
        "inputs": [value.name for value in plan.inputs],
        "captures": sorted(value.name for value in plan.captures),
        "constants": {each.value.name: np.array(each.read()).tolist() for each in plan.constants},
        "outputs": [(value.name, value.dtype) for value in plan.output_values],
        "steps": sorted(
            (
                [name(slot) for slot in step.outputs],
                step.node.operator,
                step.node.since_version,
                [name(slot) for slot in step.inputs],
                sorted(
                    (key, repr(value)) for key, value in step.node.attributes.items() if not isinstance(value, Graph)
                ),
                [
                    (attribute, [name(slot) for slot in sorted(body.captured)], described_plan(body.plan))
                    for attribute, body in sorted(step.bodies.items())
                ],
            )
            for step in plan.steps
        ),
    }


def live_plan(model: onnx.ModelProto, folder: Path) -> dict[str, Any]:
    """The plan of the graph that a session shows before any optimization."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    options = options_with_provider()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with observed(lambda decisions: described_plan(build_plan(decisions.graph))) as plans:
        onnxruntime.InferenceSession(str(path), options)
    return plans[0]


def float_value(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def model_of(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto], **tensors: Any
) -> onnx.ModelProto:
    carried = [numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "main", inputs, outputs, carried)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def straight() -> onnx.ModelProto:
    """Absent optional inputs, constants, attributes of several kinds, an unused output.

    Attributes with defaults are given, since ONNX Runtime adds those that a file leaves out.
    """
    nodes = [
        helper.make_node("Clip", ["x", "", "high"], ["clipped"], name="clip"),
        helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.array([2], np.int64))),
        helper.make_node("TopK", ["clipped", "k"], ["best", "unused"], axis=1, largest=0, sorted=1),
        helper.make_node("Concat", ["best", "best"], ["y"], axis=-1),
    ]
    return model_of(nodes, [float_value("x", "batch", 4)], [float_value("y", "batch", 4)], high=np.float32(1))


def nested() -> onnx.ModelProto:
    """An If in an If, capturing from two levels up; a body's initializer shadows an outer name; names repeat."""
    inner_then = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["r"])], "inner_then", [], [float_value("r", 2)]
    )
    inner_else = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["r"])],
        "inner_else",
        [],
        [float_value("r", 2)],
        [numpy_helper.from_array(np.array([5, 6], np.float32), "w")],
    )
    outer_then = helper.make_graph(
        [helper.make_node("If", ["deeper"], ["o"], then_branch=inner_then, else_branch=inner_else)],
        "outer_then",
        [],
        [float_value("o", 2)],
    )
    outer_else = helper.make_graph([helper.make_node("Relu", ["s"], ["o"])], "outer_else", [], [float_value("o", 2)])
    nodes = [
        helper.make_node("Sub", ["x", "w"], ["s"]),
        helper.make_node("If", ["c"], ["y"], then_branch=outer_then, else_branch=outer_else),
    ]
    flags = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("c", "deeper")]
    return model_of(nodes, [float_value("x", 2), *flags], [float_value("y", 2)], w=np.array([1, 2], np.float32))


def loop() -> onnx.ModelProto:
    """A Loop with a carried value, a scan output and a captured constant."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["before", "step"], ["after"]),
            helper.make_node("Identity", ["after"], ["scanned"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            float_value("before", 2),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            float_value("after", 2),
            float_value("scanned", 2),
        ],
    )
    nodes = [helper.make_node("Loop", ["trips", "", "x"], ["last", "all"], body=body)]
    return model_of(
        nodes,
        [float_value("x", 2)],
        [float_value("last", 2), float_value("all", "n", 2)],
        trips=np.int64(3),
        step=np.array([1, 2], np.float32),
    )


@pytest.mark.parametrize("make", [straight, nested, loop])
def test_both_sources_give_the_same_plan(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    model = make()
    onnx.checker.check_model(model)
    assert live_plan(model, tmp_path) == described_plan(build_plan(graph_of_model(model)))


def test_external_data_is_the_same_from_both_sources(tmp_path: Path) -> None:
    weight = np.arange(64, dtype=np.float32).reshape(8, 8)
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], [float_value("x", 2, 8)], [float_value("y", 2, 8)], w=weight
    )
    onnx.external_data_helper.convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    live = live_plan(model, tmp_path)
    read = described_plan(
        build_plan(graph_of_model(onnx.load(tmp_path / "model.onnx", load_external_data=False), tmp_path))
    )
    assert live == read
    assert live["constants"]["w"] == weight.tolist()
