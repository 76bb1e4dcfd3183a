"""Ways to break a pack, each with what its user then sees. docs/broken-packs.md is the same as a table.

Each pack is installed for a Python process of its own. There a model is run whose answer must be right all the same, or
the run must fail with an error that names the pack, and `opgraft packs` or the report must say what is wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "broken-packs.md"

SCRIPT = """
import numpy as np, onnx, onnxruntime, opgraft
from onnx import TensorProto, helper
infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "y")]
nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("LeakyRelu", ["r"], ["y"], alpha=0.5)]
graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
report = opgraft.report(model).coverage
for fault in report.faults:
    print("report:", fault.operator, fault.pack, fault.reason)
for slow in report.slow_claims:
    print("report: slow", slow.operator, slow.pack)
options = opgraft.session_options()
options.log_severity_level = 4
session = onnxruntime.InferenceSession(model.SerializeToString(), options)
try:
    print("answer:", session.run(None, {"x": np.array([[-1, 2, 3], [4, -5, 6]], np.float32)})[0].tolist())
except Exception as error:
    print("error:", error)
"""

RIGHT = "answer: [[0.0, 2.0, 3.0], [4.0, 0.0, 6.0]]"

HANDLER = """
import mlx.core as mx, numpy as np
from opgraft.ops import FLOATS, Host, hookimpl, op

@op("Relu", dtypes=FLOATS)
def relu(X):
"""


@dataclass(frozen=True)
class Way:
    """One way to break a pack.

    Attributes:
        what: in words, as in the page.
        code: the pack's module.
        seen: what the user sees, in the report or in `opgraft packs`; part of it stands in the page.
        answer: how the run ends.
    """

    what: str
    code: str
    seen: str
    answer: str = RIGHT


def in_relu(body: str) -> str:
    return HANDLER + "".join(f"    {line}\n" for line in body.splitlines())


def in_wrapper(hook: str, body: str) -> str:
    return f"""
from opgraft.ops import hookimpl
class Watch:
    operators = ("ai.onnx::Relu",)
    @hookimpl(wrapper=True)
    def {hook}(self, node):
        result = yield
        {body}
watch = Watch()
"""


WAYS = [
    Way(
        "its wrapper of `translate` does not return",
        in_wrapper("translate", "print(end='')"),
        "report: ai.onnx::Relu broken its translation failed on stand-in inputs: WrapperError: the wrapper "
        "Watch.translate returned nothing: is a `return` of what its `yield` gave missing?",
    ),
    Way(
        "its wrapper of `claim` does not return",
        in_wrapper("claim", "print(end='')"),
        "report: ai.onnx::Relu broken its claim failed: WrapperError: the wrapper Watch.claim returned nothing: ",
    ),
    Way(
        "its wrapper raises",
        in_wrapper("translate", "return {}['nothing']"),
        "report: ai.onnx::Relu broken its translation failed on stand-in inputs: KeyError: 'nothing' (broken.py:8)",
    ),
    Way(
        "it cannot be imported",
        "import no_such_module",
        "left out: ModuleNotFoundError: No module named 'no_such_module' (broken.py:1)",
    ),
    Way("it exits when it is imported", "raise SystemExit('bye')", "left out: SystemExit: bye (broken.py:1)"),
    Way("it holds no handler", "x = 1", "left out: ContractError: broken holds no op handler"),
    Way(
        "a hook has a parameter that there is not",
        """
from opgraft.ops import hookimpl
class Wrong:
    operators = ("ai.onnx::Relu",)
    @hookimpl
    def claim(self, graph): return True
wrong = Wrong()
""",
        "left out: ContractError: ",
    ),
    Way(
        "an attribute is marked as an input",
        "from opgraft.ops import Host, op\n@op('Relu')\ndef relu(X, *, k: Host = None): return X",
        "left out: ContractError: relu: k is an attribute; Host and Anywhere mark inputs",
    ),
    Way(
        "its condition raises",
        in_relu("return mx.maximum(X, 0)") + "@relu.condition\ndef _(node): return {}['nothing']",
        "report: ai.onnx::Relu broken its claim failed: KeyError: 'nothing' (broken.py:9)",
    ),
    Way(
        "its condition exits",
        in_relu("return mx.maximum(X, 0)") + "@relu.condition\ndef _(node): raise SystemExit",
        "report: ai.onnx::Relu broken its claim failed: SystemExit (broken.py:9)",
    ),
    Way(
        "its translator raises",
        in_relu("raise RuntimeError('oops')"),
        "report: ai.onnx::Relu broken its translation failed on stand-in inputs: RuntimeError: oops (broken.py:7)",
    ),
    Way(
        "its output has another element type",
        in_relu("return mx.maximum(X, 0).astype(mx.float16)"),
        "report: ai.onnx::Relu broken its translation gives float16 for output 'r', and the model says float32",
    ),
    Way(
        "its output has another shape",
        in_relu("return mx.maximum(X, 0).T"),
        "report: ai.onnx::Relu broken its translation gives shape [3, 2] for output 'r', and the model says [2, 3]",
    ),
    Way(
        "it gives too few outputs",
        in_relu("return ()"),
        "its translation failed on stand-in inputs: TypeError: the translator gave 0 outputs, and the node has 1",
    ),
    Way(
        "it forgets to return",
        in_relu("mx.maximum(X, 0)"),
        "stand-in inputs: TypeError: the function relu returned nothing: is a `return` missing?",
    ),
    Way(
        "it gives no array",
        in_relu("return 'text'"),
        "report: ai.onnx::Relu broken its translation failed on stand-in inputs: TypeError: a str is not an array",
    ),
    Way(
        "it fails when it is run, and not before",
        in_relu("if float(mx.sum(X).item()) != 0: raise ValueError('only zeros')\nreturn mx.maximum(X, 0)"),
        "error: ",
        "node 'Relu (-> r)' (ai.onnx::Relu, version 14) failed in pack 'broken': ValueError: only zeros (broken.py:7). "
        "Its inputs: float32[2, 3]. If they are as they should be, turn this handler off in registry.yaml:  "
        'ops: {"ai.onnx::Relu": {deny: ["broken"]}}',
    ),
    Way(
        "MLX cannot compute what it asks for",
        in_relu("return mx.maximum(X, 0) + 0 * mx.sum(mx.linalg.inv(mx.zeros((2, 2)), stream=mx.cpu))"),
        "error: ",
        "node 'Relu (-> r)' (ai.onnx::Relu, version 14) failed in pack 'broken': RuntimeError: [Inverse::eval_cpu]",
    ),
    Way(
        "it calls MLX with what it does not take",
        in_relu("return mx.sum(X, 'all')"),
        "TypeError: sum(): incompatible function arguments. The following argument types are supported: 1. sum(",
    ),
    Way(
        "it exits when it is run",
        in_relu("if mx.sum(X).item() != 0: raise SystemExit(3)\nreturn mx.maximum(X, 0)"),
        "error: ",
        "failed in pack 'broken': SystemExit: 3",
    ),
    Way(
        "it keeps what it made of its first inputs",
        "KEPT = []\n" + in_relu("if not KEPT: KEPT.append(mx.maximum(X, 0))\nreturn KEPT[0]"),
        "answer: ",
        "answer: [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]",
    ),
    Way(
        "it keeps an array that is yet to be computed",
        "KEPT = []\n" + in_relu("if not KEPT: KEPT.append(mx.sqrt(mx.array(1.0)))\nreturn mx.maximum(X, 0) * KEPT[0]"),
        "answer: ",
    ),
    Way(
        "it computes long to decide",
        in_relu("return mx.maximum(X, 0)")
        + "import time\n@relu.condition\ndef _(node):\n"
        + "    end = time.thread_time() + 0.1\n    while time.thread_time() < end: pass",
        "report: slow ai.onnx::Relu broken",
    ),
    Way(
        "it changes its inputs in place",
        in_relu("X *= 0\nreturn mx.maximum(X, 0) * 0 + mx.maximum(X, 0)"),
        "answer: ",
        "answer: [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]",
    ),
]


def installed(folder: Path, code: str, name: str = "broken", distribution: str = "broken_dist") -> None:
    """A distribution with a pack, as pip leaves it behind."""
    info = folder / f"{distribution}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[opgraft.packs]\n{name} = {name}\n")
    (folder / f"{name}.py").write_text(code)


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("OPGRAFT")}
    path = os.pathsep.join([str(folder), *filter(None, [kept.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**kept, "PYTHONPATH": path, "COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("way", WAYS, ids=[way.what for way in WAYS])
def test_what_the_user_sees(way: Way, tmp_path: Path) -> None:
    installed(tmp_path, way.code)
    done = python(tmp_path, "-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    assert way.answer in done.stdout
    if way.seen.startswith("left out"):
        packs = python(tmp_path, "-m", "opgraft.cli", "packs")
        assert packs.returncode == 0, packs.stderr
        assert way.seen in " ".join(packs.stdout.split())
        assert way.seen.removeprefix("left out: ") in done.stderr  # the log warns of it too
    else:
        assert way.seen in done.stdout


def test_two_distributions_with_one_name(tmp_path: Path) -> None:
    installed(tmp_path, in_relu("return X"))
    installed(tmp_path / "second", in_relu("return X"), distribution="other_dist")
    environment = os.pathsep.join([str(tmp_path), str(tmp_path / "second")])
    done = python(Path(environment), "-c", SCRIPT)
    assert RIGHT in done.stdout
    assert (
        "more than one distribution names a pack 'broken': broken_dist (broken) and other_dist (broken)" in done.stderr
    )


THREADED = SCRIPT.replace('session.run(None, {"x": ', 'ThreadPoolExecutor(1).submit(session.run, None, {"x": ').replace(
    "})[0].tolist()", "}).result()[0].tolist()"
)


def test_arrays_that_a_pack_keeps_are_good_in_every_thread(tmp_path: Path) -> None:
    kept = "import mlx.core as mx\nTWO = [mx.sqrt(mx.array(4.0))]\n"
    installed(tmp_path, kept + in_relu("return mx.maximum(X, 0) * TWO[0]"))
    done = python(tmp_path, "-c", "from concurrent.futures import ThreadPoolExecutor\n" + THREADED)
    assert "answer: [[0.0, 4.0, 6.0], [8.0, 0.0, 12.0]]" in done.stdout, done.stdout + done.stderr


def test_the_traceback_that_a_variable_asks_for(tmp_path: Path) -> None:
    installed(tmp_path, in_relu("if mx.sum(X).item() != 0: raise ValueError('only zeros')\nreturn mx.maximum(X, 0)"))
    logging = SCRIPT.replace("log_severity_level = 4", "log_severity_level = 3")
    debugging = "import os; os.environ['OPGRAFT_DEBUG'] = '1'\n" + logging
    where = 'broken.py", line 7, in relu'
    assert where in python(tmp_path, "-c", debugging).stderr
    assert where not in python(tmp_path, "-c", logging).stderr


def test_the_page_shows_each_of_them() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for way in WAYS:
        assert f"| {way.what} |" in page
