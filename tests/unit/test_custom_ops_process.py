"""Operators of an installed pack, in processes of their own: sessions by the thousand, and the interpreter's end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from host_models import run_script

from opgraft.host import library_path

PACK = """
import mlx.core as mx
from opgraft.ops import FLOATS, op

@op("acme::Mish", dtypes=FLOATS)
def mish(X, *, alpha: float = 1.0):
    return X * mx.tanh(mx.logaddexp(alpha * X, mx.zeros_like(X)))

mish.schema()

@op("acme::Both", dtypes=FLOATS)
def both(X):
    return X

both.schema()
"""

SETUP = """
import gc, os, sys, threading, time
import numpy as np, onnxruntime, opgraft
from onnx import helper

def model(op_type="Mish"):
    nodes = [helper.make_node(op_type, ["x"], ["y"], domain="acme", name="it")]
    x = helper.make_tensor_value_info("x", 1, ["N", 4096])
    graph = helper.make_graph(nodes, "model", [x], [helper.make_empty_tensor_value_info("y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()

def on_ep(op_type="Mish"):
    return onnxruntime.InferenceSession(model(op_type), quiet(opgraft.session_options()), enable_fallback=0)

def on_cpu(op_type="Mish"):
    settings = quiet(onnxruntime.SessionOptions())
    settings.register_custom_ops_library(opgraft.library_path())
    return onnxruntime.InferenceSession(model(op_type), settings, enable_fallback=0)

def quiet(settings):
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 1
    return settings

x = np.ones((1, 4096), np.float32)

def run(session):
    (y,) = session.run(None, {"x": x})
    assert abs(y[0, 0] - 0.8650984) < 1e-5
"""

WAYS = pytest.mark.parametrize("opened", ["on_ep", "on_cpu"])


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which the pack is installed."""
    install(tmp_path, "acme-pack", "acme_pack", PACK)
    return {"PYTHONPATH": f"{Path(__file__).parent}:{tmp_path}"}


def install(folder: Path, name: str, module: str, source: str) -> None:
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[opgraft.packs]\n{name} = {module}\n")


@WAYS
def test_an_installed_pack(environment: dict[str, str], opened: str) -> None:
    result = run_script(f"{SETUP}\nrun({opened}())\nprint('done')", environment=environment)
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


def test_a_process_that_never_imported_opgraft(environment: dict[str, str]) -> None:
    script = f"""
import numpy as np, onnxruntime
from onnx import helper
node = helper.make_node("Mish", ["x"], ["y"], domain="acme")
x, y = helper.make_tensor_value_info("x", 1, [2]), helper.make_empty_tensor_value_info("y")
opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
model = helper.make_model(helper.make_graph([node], "model", [x], [y]), opset_imports=opsets, ir_version=10)
settings = onnxruntime.SessionOptions()
settings.register_custom_ops_library({library_path()!r})
session = onnxruntime.InferenceSession(model.SerializeToString(), settings)
print(session.run(None, {{"x": np.ones(2, np.float32)}})[0].round(3).tolist())
"""
    result = run_script(script, environment=environment)
    assert (result.returncode, result.stdout) == (0, "[0.8650000095367432, 0.8650000095367432]\n"), result.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@WAYS
def test_a_thousand_sessions_keep_memory_flat(environment: dict[str, str], opened: str) -> None:
    result = run_script(
        f"""
{SETUP}
def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

for number in range(1501):
    session = {opened}()
    run(session)
    if number == 500:
        before = resident()
print(resident() - before)
""",
        environment=environment,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 4 << 20


@WAYS
@pytest.mark.parametrize(
    "ending",
    [
        "",
        "sys.exit(0)",
        "gc.disable(); cycle = [session]; cycle.append(cycle); del session",
        "import atexit; atexit.register(lambda: session)",
        "threading.Thread(target=lambda: [run(session) for _ in range(200)]).start()",
        "opgraft.unregister()",
        "for _ in range(4):\n"
        "    threading.Thread(target=lambda: [run(session) for _ in range(10**9)], daemon=True).start()\n"
        "time.sleep(0.3)",
    ],
    ids=["alive", "exit", "in a cycle", "held by atexit", "running", "unregistered", "daemons"],
)
def test_the_interpreter_ends_quietly(environment: dict[str, str], opened: str, ending: str) -> None:
    result = run_script(f"{SETUP}\nsession = {opened}()\nrun(session)\n{ending}", environment=environment)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_the_interpreter_ends_while_sessions_are_made(environment: dict[str, str]) -> None:
    """With the provider, that is: of CPU sessions alone, onnxruntime's own end of the process is an abort."""
    script = f"""
{SETUP}
def work():
    while True:
        run(on_ep())
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.5)
"""
    result = run_script(script, environment=environment)
    assert result.returncode == 0, result.stderr  # a thread may still say that the interpreter is shutting down


def test_two_packs_that_define_one_operator(environment: dict[str, str], tmp_path: Path) -> None:
    install(
        tmp_path,
        "other-pack",
        "other_pack",
        PACK.replace("acme::Mish", "acme::Other").replace("return X\n", "return X + 1\n"),
    )
    script = f"{SETUP}\nrun(on_ep())\nprint(on_ep('Both').run(None, {{'x': x}})[0][0, 0])"
    result = run_script(script, environment=environment)
    assert result.returncode == 1
    assert "acme:Both(-1) is not a registered function/op" in result.stderr
    for first, printed in (("acme-pack", "1.0\n"), ("other-pack", "2.0\n")):
        others = {"acme-pack", "other-pack"} - {first}
        registry = tmp_path / f"{first}.yaml"
        registry.write_text(f"packs: [{first}, {others.pop()}, builtin]\n")
        result = run_script(script, environment={**environment, "OPGRAFT_REGISTRY": str(registry)})
        assert (result.returncode, result.stdout) == (0, printed), result.stderr
