"""The example pack cpu_math: how far off its functions are, what it declines, and that an installed one is used."""

from __future__ import annotations

import importlib
import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import mlx.core as mx
import numpy as np
import pytest

from opgraft.graph.onnx_source import graph_of_model
from opgraft.ops import Context
from opgraft.registry import Pack, Policy, Registry, installed_packs, plugins_of
from opgraft.testing import decisions_for, node_model, reference_outputs, run_model

FOLDER = Path(__file__).parents[2] / "plugins_example" / "cpu_math"
NAN, INF = float("nan"), float("inf")
FEW = 4096

Array: TypeAlias = np.ndarray[Any, Any]

Part: TypeAlias = Callable[[str], ModuleType]
"""Gives a module of the pack."""

Python: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]
"""Runs Python with arguments, and variables of the environment as keywords, where the pack is installed."""


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for temporary files, in which MLX keeps kernels."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("temporary")
        patch.setenv("TMPDIR", str(folder))
        patch.delenv("MLX_DISABLE_COMPILE", raising=False)
        yield folder


@pytest.fixture(scope="module")
def part(temporary: Path) -> Iterator[Part]:
    """Gives the modules of the pack, whose kernels are built."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)

        def part(name: str) -> ModuleType:
            return importlib.import_module(f"opgraft_cpu_math.{name}")

        part("building").build()
        yield part


@pytest.fixture(scope="module")
def registry(part: Part) -> Registry:
    """The pack, asked before the built-in one."""
    builtin = next(pack for pack in installed_packs() if pack.name == "builtin")
    return Registry([Pack("cpu-math", plugins=tuple(plugins_of(part("operators")))), builtin], Policy())


def claimed_by(registry: Registry, operator: str, x: Array, **model: Any) -> tuple[str, list[str]]:
    """The pack that takes a node, and the reasons that this one has against it."""
    (node,) = graph_of_model(node_model(operator, [x], **model)).nodes
    candidate = registry.claim(node).candidate
    assert candidate is not None
    own, *_ = [each for each in registry.candidates(node.operator) if each.pack == "cpu-math"]
    return candidate.pack, own.decline_reason(node=node)


def run_node(registry: Registry, operator: str, x: Array, **model: Any) -> Array:
    """What a node of the pack makes of x."""
    assert claimed_by(registry, operator, x, **model) == ("cpu-math", [])
    proto = node_model(operator, [x], **model)
    assert decisions_for(proto, registry).declined == []
    (y,) = run_model(proto, {"x0": x}, registry)
    assert (y.dtype, y.shape) == (np.float32, x.shape)
    return y


# The functions in float64.

erf = np.vectorize(math.erf, otypes=[np.float64])
erfc = np.vectorize(math.erfc, otypes=[np.float64])


def sigmoid(x: Array) -> Array:
    return np.where(x < 0, np.exp(np.minimum(x, 0)), 1) / (1 + np.exp(-np.abs(x)))


def swish(x: Array, alpha: float = 1) -> Array:
    return x * sigmoid(alpha * x)


def gelu(x: Array) -> Array:
    return x * erfc(-x / np.sqrt(2)) / 2


def gelu_by_tanh(x: Array) -> Array:
    return x * sigmoid(np.sqrt(8 / np.pi) * (x + 0.044715 * x**3))


def steep(x: Array) -> Array:
    """Of a normal distribution's tail: x² / 2 is what e is raised to the power of, and rounded."""
    return 1 + x * x / 2


class Function(NamedTuple):
    """An operator, what it computes, and how far off it may be, relatively: `bound`, times `growth` of x."""

    operator: str
    attributes: dict[str, Any]
    exact: Callable[[Array], Array]
    bound: float
    growth: Callable[[Array], Array] = np.ones_like


FUNCTIONS = [
    Function("Exp", {}, np.exp, 2.5e-7),
    Function("Tanh", {}, np.tanh, 4.5e-7),
    Function("Sigmoid", {}, sigmoid, 3.5e-7),
    Function("Erf", {}, erf, 4.5e-7),
    Function("Swish", {"opset": 24}, swish, 4e-7),
    Function("Gelu", {}, gelu, 5e-7, steep),
    Function("Gelu", {"approximate": "tanh"}, gelu_by_tanh, 3.5e-7, steep),
]

by_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.operator)

TINY = 1e-36
"""Below, float32 comes to lack digits, for results or for what they are made of: errors are absolute there."""


@pytest.fixture(scope="module")
def sweep() -> Array:
    """All binades of both signs, subnormal numbers among them; and closely from -110 to 110."""
    mantissas = np.unique([0, 1, 2**22, 2**23 - 1, *np.random.default_rng(0).integers(0, 2**23, 252)])
    positive = (np.arange(255)[:, None] << 23 | mantissas).astype(np.uint32).view(np.float32).reshape(-1)
    return np.concatenate([positive, -positive, np.linspace(-110, 110, 150_001, dtype=np.float32)])


class TestErrors:
    @by_function
    def test_over_all_binades(self, registry: Registry, sweep: Array, function: Function) -> None:
        found = run_node(registry, function.operator, sweep, **function.attributes).astype(np.float64)
        x = sweep.astype(np.float64)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            expected = function.exact(x)
            error = np.abs(found - expected)
        infinite = np.abs(expected) > np.finfo(np.float32).max
        tiny = np.abs(expected) < TINY
        rest = ~infinite & ~tiny
        np.testing.assert_array_equal(found[infinite], np.sign(expected[infinite]) * INF)
        assert error[tiny].max(initial=0) < 1e-41
        relative = error[rest] / np.abs(expected[rest])
        assert 0.5 * function.bound < (relative / function.growth(x[rest])).max() < function.bound

    @by_function
    def test_special_values(self, registry: Registry, function: Function) -> None:
        """As ONNX Runtime has them, NaN for minus infinity times 0 among them."""
        given = np.array([0.0, -0.0, INF, -INF, NAN, 3e38, -3e38, 1], np.float32)
        found = run_node(registry, function.operator, np.tile(given, FEW // 8), **function.attributes)
        proto = node_model(function.operator, [given], **function.attributes)
        (expected,) = reference_outputs(proto, {"x0": given})
        np.testing.assert_allclose(found, np.tile(expected, FEW // 8), rtol=1e-6)

    @pytest.mark.parametrize(("operator", "least"), [("Tanh", -1), ("Erf", -1), ("Sigmoid", 0)])
    def test_limits_are_kept(self, registry: Registry, sweep: Array, operator: str, least: float) -> None:
        found = run_node(registry, operator, sweep)
        assert (found.min(), found.max()) == (least, 1)

    def test_swish_with_alpha(self, registry: Registry) -> None:
        x = np.linspace(-30, 30, 5001, dtype=np.float32)
        found = run_node(registry, "Swish", x, opset=24, alpha=-1.5)
        np.testing.assert_allclose(found, swish(x.astype(np.float64), -1.5), rtol=3e-6)


class TestSoftmax:
    @pytest.mark.parametrize(
        ("shape", "axis"),
        [((512, 8), 1), ((40, 197), -1), ((3, 5003), -1), ((2, 300_000), 1), ((70, 100), 0), ((2, 3, 50, 50), 1)],
    )
    @pytest.mark.parametrize("scale", [0.1, 3, 30])
    def test_errors(self, registry: Registry, shape: tuple[int, ...], axis: int, scale: float) -> None:
        x = (np.random.default_rng(0).standard_normal(shape) * scale).astype(np.float32)
        below = x.astype(np.float64) - x.max(axis, keepdims=True)
        sums = np.exp(below).sum(axis, keepdims=True)
        shares, logarithms = np.exp(below) / sums, below - np.log(sums)
        error = np.abs(run_node(registry, "Softmax", x, axis=axis) - shares)
        assert error[shares < TINY].max(initial=0) < 1e-41
        rest = shares >= TINY
        assert (error[rest] / shares[rest] / (1e-6 - 1e-7 * below[rest])).max() < 1
        error = np.abs(run_node(registry, "LogSoftmax", x, axis=axis) - logarithms)
        assert (error / np.maximum(1, np.abs(logarithms))).max() < 1e-6

    @pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
    def test_special_values(self, registry: Registry, operator: str) -> None:
        rows = np.array([[1, -INF, 2, -INF], [-INF] * 4, [NAN, 1, 2, 3], [3e38, -3e38, 0, 1]], np.float32)
        (expected,) = reference_outputs(node_model(operator, [rows]), {"x0": rows})
        found = run_node(registry, operator, np.tile(rows, (FEW // 16, 1)))
        np.testing.assert_allclose(found, np.tile(expected, (FEW // 16, 1)), rtol=1e-6)


class TestPieces:
    @pytest.fixture(autouse=True)
    def forget_sizes(self, part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(part("kernels"), "_sizes", set())

    @pytest.mark.parametrize("total", [1, 2, 1023, 4097, 2**18, 2**18 + 1, 700_001])
    @pytest.mark.parametrize("many", [False, True])
    def test_every_element_is_computed_once(
        self, part: Part, monkeypatch: pytest.MonkeyPatch, total: int, many: bool
    ) -> None:
        kernels = part("kernels")
        if many:
            monkeypatch.setattr(kernels, "MOST_SIZES", 0)
        x = mx.arange(total, dtype=mx.float32)
        np.testing.assert_array_equal(np.array(kernels.in_pieces(lambda a, b: a + b, x, x)), 2 * np.arange(total))

    def test_of_many_sizes_few_are_traced(self, part: Part) -> None:
        kernels = part("kernels")
        traced = set()

        def function(x: mx.array) -> mx.array:
            traced.add(x.size)
            return x

        for total in range(5000, 60_000, 37):
            assert kernels.in_pieces(function, mx.zeros(total)).size == total
        assert kernels.MOST_SIZES < len(traced) < kernels.MOST_SIZES + 32

    def test_arrays_that_are_not_contiguous(self, part: Part) -> None:
        x = mx.random.normal((90, 70, 3), key=mx.random.key(0))
        for given in (mx.transpose(x), x[::2, 1:], mx.broadcast_to(x[:1], x.shape)):
            found = part("kernels").in_pieces(part("functions").exponential, given)
            np.testing.assert_allclose(np.array(found), np.exp(np.array(given)), rtol=1e-6)

    def test_rows(self, part: Part) -> None:
        x = mx.random.normal((3, 500, 700), key=mx.random.key(0))
        seen = []

        def function(rows: mx.array) -> mx.array:
            seen.append(rows.shape)
            return rows + 1

        np.testing.assert_array_equal(np.array(part("kernels").in_rows(function, x)), np.array(x) + 1)
        assert seen == [(374, 700)] * 4 + [(4, 700)]


class TestThreads:
    def test_results_and_errors_come_back(self, part: Part) -> None:
        """Of a thread that ends, and in which MLX is to keep nothing."""
        kernels, functions = part("kernels"), part("functions")
        x = mx.array(np.linspace(-3, 3, FEW, dtype=np.float32))
        came: list[Any] = []
        seen: list[threading.Thread] = []

        def exponential(piece: mx.array) -> mx.array:
            seen.append(threading.current_thread())
            assert mx.default_stream(mx.cpu) == stream
            return functions.exponential(piece)

        def work() -> None:
            with mx.stream(stream):
                came.append(np.array(kernels.in_pieces(exponential, x)))
                with pytest.raises(ValueError, match="no such shape"):
                    kernels.in_rows(refuse, x)

        def refuse(rows: mx.array) -> mx.array:
            raise ValueError("no such shape")

        stream = mx.new_thread_unsafe_stream(mx.cpu)
        workers = [threading.Thread(target=work) for _ in range(2)]
        for worker in workers:
            worker.start()
            worker.join()
        for each in came:
            np.testing.assert_allclose(each, np.exp(np.array(x)), rtol=1e-6)
        assert len(came) == 2
        assert seen[0] is seen[1] and seen[0] not in workers

    def test_the_main_thread_lasts(self, part: Part) -> None:
        seen: list[threading.Thread] = []
        part("kernels").in_rows(lambda rows: seen.append(threading.current_thread()) or rows, mx.ones((2, 3)))
        assert seen == [threading.main_thread()]


class TestDeclined:
    x = np.linspace(-2, 2, 2 * FEW, dtype=np.float32).reshape(2, FEW)

    @pytest.mark.parametrize("dtype", ["float16", "float64"])
    @pytest.mark.parametrize(
        ("operator", "model"),
        [
            *[(each, {}) for each in ("Exp", "Tanh", "Sigmoid", "Erf", "Gelu", "Softmax", "LogSoftmax")],
            ("Swish", {"opset": 24}),
        ],
    )
    def test_other_element_types(self, registry: Registry, operator: str, model: dict[str, Any], dtype: str) -> None:
        pack, reasons = claimed_by(registry, operator, self.x.astype(dtype), **model)
        assert pack == "builtin"
        assert reasons[0].startswith(f"element type {dtype} of input")

    @pytest.mark.parametrize("operator", ["Exp", "Tanh", "Sigmoid", "Softmax", "LogSoftmax"])
    def test_few_elements(self, registry: Registry, operator: str) -> None:
        assert claimed_by(registry, operator, self.x[:1])[0] == "cpu-math"
        few = self.x[:1, 1:]
        assert claimed_by(registry, operator, few) == ("builtin", ["its input has fewer than 4096 elements"])
        proto = node_model(operator, [few])
        (expected,) = reference_outputs(proto, {"x0": few})
        np.testing.assert_allclose(run_model(proto, {"x0": few}, registry)[0], expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
    def test_softmax_of_matrices(self, registry: Registry, operator: str) -> None:
        assert claimed_by(registry, operator, self.x, opset=12)[0] == "builtin"

    def test_an_unknown_approximation(self, registry: Registry) -> None:
        (node,) = graph_of_model(node_model("Gelu", [self.x], approximate="quick")).nodes
        reasons = [str(reason) for reason in registry.claim(node).reasons]
        assert "approximate=quick is neither none nor tanh [cpu-math]" in reasons

    def test_kernels_that_are_not_built(
        self,
        part: Part,
        registry: Registry,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        tmp_path: Path,
    ) -> None:
        monkeypatch.setattr(part("building"), "_mark", lambda: tmp_path / "none")
        part("operators").warn.cache_clear()
        reason = "its kernels are not built on this machine: python -m opgraft_cpu_math build"
        for _ in range(2):
            assert claimed_by(registry, "Exp", self.x) == ("builtin", [reason])
        assert [record.getMessage() for record in caplog.records] == [f"the pack cpu-math takes nothing over: {reason}"]

    def test_what_mlx_cannot_fuse(self, part: Part, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        building = part("building")
        with monkeypatch.context() as patch:
            patch.setenv("MLX_DISABLE_COMPILE", "1")
            assert claimed_by(registry, "Exp", self.x)[0] == "builtin"
            with pytest.raises(RuntimeError, match="MLX_DISABLE_COMPILE is set"):
                building.build()
        monkeypatch.setattr(building, "_has_compiler", lambda: False)
        pack, reasons = claimed_by(registry, "Exp", self.x)
        assert (pack, reasons) == ("builtin", ["MLX fuses kernels with g++, which is not installed"])


class TestRuns:
    """What is known only when a model runs."""

    @pytest.mark.parametrize("columns", [0, 1, 5, 3000])
    @pytest.mark.parametrize(
        ("operator", "model"),
        [
            *[(each, {}) for each in ("Exp", "Tanh", "Sigmoid", "Erf", "Gelu", "Softmax", "LogSoftmax")],
            ("Gelu", {"approximate": "tanh"}),
            ("Swish", {"opset": 24, "alpha": 0.5}),
        ],
    )
    def test_sizes(self, registry: Registry, operator: str, model: dict[str, Any], columns: int) -> None:
        x = np.random.default_rng(0).standard_normal((2, columns)).astype(np.float32)
        proto = node_model(operator, [x], dynamic=True, **model)
        assert claimed_by(registry, operator, x, dynamic=True, **model) == ("cpu-math", [])
        (expected,) = reference_outputs(proto, {"x0": x})
        np.testing.assert_allclose(run_model(proto, {"x0": x}, registry)[0], expected, rtol=2e-5, atol=1e-6)

    @pytest.mark.parametrize(
        ("operator", "model"),
        [
            *[(each, {}) for each in ("Exp", "Tanh", "Sigmoid", "Erf", "Gelu", "Softmax", "LogSoftmax")],
            ("Gelu", {"approximate": "tanh"}),
            ("Swish", {"opset": 24}),
        ],
    )
    def test_a_gpu_uses_what_mlx_has(
        self,
        part: Part,
        registry: Registry,
        monkeypatch: pytest.MonkeyPatch,
        operator: str,
        model: dict[str, Any],
    ) -> None:
        for name in ("in_pieces", "in_rows"):
            monkeypatch.delattr(part("operators"), name)
        x = np.linspace(-3, 3, 2 * FEW, dtype=np.float32).reshape(2, FEW)
        proto = node_model(operator, [x], **model)
        (node,) = graph_of_model(proto).nodes
        ctx = Context(
            node,
            [mx.array(x)],
            device="gpu",
            cache={},
            constant=[False],
            bodies={},
            random_key=lambda: mx.random.key(0),
        )
        candidate = registry.claim(node).candidate
        assert candidate is not None and candidate.pack == "cpu-math"
        (found,) = candidate.translate(ctx=ctx, node=node) or ()
        np.testing.assert_allclose(np.array(found), reference_outputs(proto, {"x0": x})[0], rtol=2e-5, atol=1e-5)

    def test_nothing_is_computed_while_claims_are_verified(
        self, registry: Registry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        computed: list[Any] = []
        monkeypatch.setattr(mx, "eval", lambda *args: computed.append(args))
        for operator, model in (("Exp", {}), ("Gelu", {}), ("Softmax", {}), ("Swish", {"opset": 24})):
            proto = node_model(operator, [np.zeros((100, 7001), np.float32)], **model)
            assert decisions_for(proto, registry).declined == []
        assert computed == []

    def test_no_kernel_is_built_by_a_run(self, registry: Registry, temporary: Path) -> None:
        before = set(temporary.rglob("*.so"))
        assert len(before) == 9
        x = np.random.default_rng(0).standard_normal((3, 5, 41, 31)).astype(np.float32)
        for function in FUNCTIONS:
            run_node(registry, function.operator, x, **function.attributes)
        run_node(registry, "Softmax", x, axis=1)
        run_node(registry, "LogSoftmax", x)
        assert set(temporary.rglob("*.so")) == before


SESSION = """
import threading
import numpy as np, onnx
from onnx import helper
import opgraft, onnxruntime
from opgraft_cpu_math import operators

used = []
in_pieces = operators.in_pieces
operators.in_pieces = lambda *arguments: used.append(arguments) or in_pieces(*arguments)
graph = helper.make_graph(
    [
        helper.make_node("Sigmoid", ["x"], ["a"]),
        helper.make_node("Mul", ["x", "a"], ["b"]),
        helper.make_node("Softmax", ["b"], ["y"]),
    ],
    "g",
    [helper.make_tensor_value_info("x", 1, ["N", 1000])],
    [helper.make_tensor_value_info("a", 1, ["N", 1000]), helper.make_tensor_value_info("y", 1, ["N", 1000])],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
session = onnxruntime.InferenceSession(model.SerializeToString(), opgraft.session_options(device="cpu"))
assert "MLXExecutionProvider" in session.get_providers()
def run(rows):
    a, y = session.run(None, {"x": np.full((rows, 1000), -3, np.float32)})
    assert np.abs(a - 0.04742587317756678).max() < 1e-7 and np.abs(y - 1e-3).max() < 1e-8
    done.append(rows)
done = []
for turn in range(5):
    threads = [threading.Thread(target=run, args=[50 + turn + each]) for each in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
print(len(done), "runs,", "used" if used else "not used")
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that pip has installed the pack into."""
    pytest.importorskip("setuptools", "70.1")  # the first that builds a wheel by itself
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(FOLDER, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    arguments = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(folder / "target")]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *arguments, str(folder / "source")],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return folder / "target"


class TestInstalled:
    @pytest.fixture
    def python(self, target: Path, part: Part) -> Python:
        def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
            kept = {name: text for name, text in os.environ.items() if not name.startswith("OPGRAFT")}
            path = os.pathsep.join([str(target), *filter(None, [kept.get("PYTHONPATH")])])
            return subprocess.run(
                [sys.executable, *arguments],
                env={**kept, "PYTHONPATH": path, "COLUMNS": "200", **environment},
                capture_output=True,
                text=True,
                timeout=240,
            )

        return run

    def test_it_is_discovered(self, python: Python, target: Path) -> None:
        done = python("-m", "opgraft.cli", "packs")
        assert done.returncode == 0, done.stderr
        assert "cpu-math" in done.stdout
        assert (target / "opgraft_cpu_math" / "py.typed").exists()

    def test_in_a_session(self, python: Python) -> None:
        assert python("-m", "opgraft_cpu_math", "build").returncode == 0
        done = python("-c", SESSION)
        assert (done.returncode, done.stdout, done.stderr) == (0, "20 runs, used\n", "")

    def test_in_a_session_before_kernels_are_built(self, python: Python, tmp_path: Path) -> None:
        done = python("-c", SESSION, TMPDIR=str(tmp_path))
        assert (done.returncode, done.stdout) == (0, "20 runs, not used\n")
        assert done.stderr.count("python -m opgraft_cpu_math build") == 1

    def test_packs_says_that_kernels_are_not_built(self, python: Python, tmp_path: Path) -> None:
        done = python("-m", "opgraft.cli", "packs", TMPDIR=str(tmp_path))
        (line,) = [each for each in done.stdout.splitlines() if each.split()[:2] == ["cpu-math", "opgraft-cpu-math"]]
        assert line.endswith("off: its kernels are not built on this machine: python -m opgraft_cpu_math build")

    def test_turned_off(self, python: Python, tmp_path: Path) -> None:
        (tmp_path / "registry.yaml").write_text("ops: {ai.onnx::Sigmoid: {deny: [cpu-math]}}")
        done = python("-c", SESSION, OPGRAFT_REGISTRY=str(tmp_path / "registry.yaml"))
        assert (done.returncode, done.stdout, done.stderr) == (0, "20 runs, not used\n", "")
