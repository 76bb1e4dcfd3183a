"""Coverage reports can be had again and again, and from several threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import onnx
from onnx import TensorProto, helper

import opgraft


def model(operator: str, result_type: int = TensorProto.FLOAT) -> onnx.ModelProto:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    result = helper.make_tensor_value_info("y", result_type, None)
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], operator, [value], [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def operators(name: str, result_type: int = TensorProto.FLOAT) -> list[str]:
    return [each.operator for each in opgraft.report(model(name, result_type)).operators]


def test_a_report_can_be_had_twice() -> None:
    assert [operators("Relu") for _ in range(2)] == [["ai.onnx::Relu"]] * 2


def test_reports_of_several_threads_do_not_mix() -> None:
    names = ["Relu", "Neg", "Abs", "Exp"] * 10
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(operators, names)) == [[f"ai.onnx::{name}"] for name in names]


def test_a_model_of_which_nothing_is_asked_has_an_empty_report() -> None:
    assert operators("Shape", TensorProto.INT64) == []  # ONNX Runtime folds it
