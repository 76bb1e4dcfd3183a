"""Coverage reports can be had again and again, and from several threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import onnx
from onnx import TensorProto, helper

import opgraft


def model(operator: str) -> onnx.ModelProto:
    value, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], operator, [value], [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def operators(name: str) -> list[str]:
    return [each.operator for each in opgraft.report(model(name)).operators]


def test_a_report_can_be_had_twice() -> None:
    assert [operators("Relu") for _ in range(2)] == [["ai.onnx::Relu"]] * 2


def test_reports_of_several_threads_do_not_mix() -> None:
    names = ["Relu", "Neg", "Abs", "Exp"] * 10
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(operators, names)) == [[f"ai.onnx::{name}"] for name in names]
