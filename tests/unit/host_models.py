"""What the tests of the host share: small models, sessions of them, and scripts run in a fresh Python process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from packaging.version import Version

import opgraft.host as host

OPSET = 17
ONNXRUNTIME = Version(onnxruntime.__version__)


def since_onnxruntime(version: str, before: str) -> pytest.MarkDecorator:
    """Marks a test of what `version` is the first to bring; `before` says how it is before."""
    return pytest.mark.skipif(Version(version) > ONNXRUNTIME, reason=f"before onnxruntime {version}, {before}")


in_profiles = since_onnxruntime("1.25", "a profile of onnxruntime shows nothing of what the EP does")
providers_by_name = since_onnxruntime("1.25", "providers=[...] knows no plugin execution provider")

FOLDERS = [Path(__file__).parent, Path(__file__).parents[1] / "faults"]
"""Those whose modules a script may import."""


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int | str | None] | None]],
    outputs: Mapping[str, tuple[int, Sequence[int | str | None] | None]],
    initializers: Sequence[onnx.TensorProto] = (),
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model; inputs and outputs are (element type, shape) by name."""
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, *info) for name, info in inputs.items()],
        [helper.make_tensor_value_info(name, *info) for name, info in outputs.items()],
        list(initializers),
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in {"": OPSET, **(domains or {})}.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def add_model(dtype: int = TensorProto.FLOAT, shape: Sequence[int | str | None] | None = ("N", 4)) -> onnx.ModelProto:
    """z = x + y."""
    node = helper.make_node("Add", ["x", "y"], ["z"], name="sum")
    return model_of([node], {"x": (dtype, shape), "y": (dtype, shape)}, {"z": (dtype, shape)})


def tensor(name: str, values: Any, dtype: Any = np.float32) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.asarray(values, dtype), name)


def open_session(
    model: onnx.ModelProto | str | Path,
    options: Mapping[str, str] | None = None,
    *,
    optimized: bool = True,
    quiet: bool = True,
) -> Any:
    """A session with this execution provider first; an error in making it is raised, never fallen back from."""
    host.register()
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4 if quiet else 2
    settings.intra_op_num_threads = 1
    if not optimized:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == host.EP_NAME]
    settings.add_provider_for_devices(devices, dict(options or {}))
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return onnxruntime.InferenceSession(source, settings, enable_fallback=0)


def bound_on_device(session: Any, given: Any) -> Any:
    """A binding of a session of `add_model`: one value is both inputs, and the output stays on the device."""
    binding = session.io_binding()
    for name in ("x", "y"):
        binding.bind_ortvalue_input(name, given)
    binding.bind_output("z", "gpu")
    return binding


def run_script(script: str, *, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python code in a fresh process, with what tests share on its path."""
    path = os.pathsep.join([*map(str, FOLDERS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
    )
