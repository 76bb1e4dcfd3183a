"""What the README shows runs as shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import onnx
import onnxruntime
import pytest
from host_models import ONNXRUNTIME, providers_by_name
from onnx import TensorProto, helper
from packaging.version import Version

import opgraft.registry
from opgraft.ops import Handler
from opgraft.registry import Pack, Registry, installed_packs, parse_policy
from opgraft.testing import check_node

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def block(holding: str) -> str:
    (found,) = [each for each in BLOCKS if holding in each]
    return found


def handlers(code: str) -> tuple[Handler, ...]:
    names: dict[str, Any] = {"mx": mx, "np": np}
    exec(compile(code, "README.md", "exec"), names)
    return tuple(each for each in names.values() if isinstance(each, Handler))


def registry_of(code: str) -> Registry:
    return Registry([Pack("readme", plugins=handlers(code))], parse_policy("", "registry.yaml"))


def test_the_ten_lines() -> None:
    x = np.array([-3, 0, 2.5], np.float32)
    check_node("Softplus", x, registry=registry_of(block('@op("Softplus"')))


def test_the_longer_handlers() -> None:
    registry = registry_of(block('@op("Gather"'))
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    check_node("Gather", data, np.array([2, 0]), axis=1, registry=registry)
    check_node("Expand", data, np.array([2, 1, 4]), registry=registry)


def test_operators_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packs = (*installed_packs(), Pack("acme", plugins=handlers(block('@op("acme::Mish"'))))
    monkeypatch.setattr(opgraft.registry, "installed_packs", lambda: packs)
    opgraft.registry._load.cache_clear()
    try:
        x = np.array([[-1, 0, 2], [3, 4, 5]], np.float32)
        model = helper.make_model(
            helper.make_graph(
                [
                    helper.make_node("Mish", ["x"], ["a"], domain="acme", alpha=2.0),
                    helper.make_node("Neg", ["a"], ["y"]),
                ],
                "g",
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])],
                [helper.make_empty_tensor_value_info("y")],
            ),
            opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("acme", 1)],
            ir_version=10,
        )
        session = onnxruntime.InferenceSession(model.SerializeToString(), opgraft.session_options())
        expected = -x * np.tanh(np.log1p(np.exp(2 * x)))
        np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5)
        assert opgraft.report(model).percentage == 100
        if Version("1.25") <= ONNXRUNTIME:  # which is the first to know a plugin EP by name
            onnx.save(model, tmp_path / "model.onnx")
            monkeypatch.chdir(tmp_path)
            names: dict[str, Any] = {"ort": onnxruntime, "opgraft": opgraft}
            exec(compile(block("register_custom_ops_library("), "README.md", "exec"), names)
            np.testing.assert_allclose(names["session"].run(None, {"x": x})[0], expected, rtol=1e-5)
    finally:
        opgraft.registry._load.cache_clear()


@providers_by_name
def test_the_ways_to_open_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])
    graph = helper.make_graph([helper.make_node("Relu", ["images"], ["y"])], "g", [value], [result])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "model.onnx"
    )
    monkeypatch.chdir(tmp_path)
    images = np.array([[-1, 0, 2]], np.float32)
    names: dict[str, Any] = {"images": images}
    for code in (block("opgraft.register()"), block("opgraft.session_options(")):
        exec(compile(code, "README.md", "exec"), names)
        assert names["session"].get_providers()[0] == "MLXExecutionProvider"
    np.testing.assert_array_equal(names["outputs"][0], np.maximum(images, 0))
