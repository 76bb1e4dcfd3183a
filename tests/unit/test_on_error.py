"""The provider option `on_error`: a subgraph that fails runs on the CPU execution provider from then on."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import ref

import mlx.core as mx
import numpy as np
import onnx
import pytest
from host_models import model_of, open_session, run_script, tensor
from onnx import TensorProto, helper
from reporting_models import parsed

from opgraft import ort_values
from opgraft.engine import Program
from opgraft.errors import TranslationError
from opgraft.host import ep, fallback
from opgraft.host.logger import Logger

FLOAT = TensorProto.FLOAT


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(Logger, "warning", lambda self, message: said.append(message))
    return said


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """Each run of a program first takes an error from this list, and raises it; None, or none left: it runs."""
    errors: list[BaseException | None] = []
    run = Program.run

    def run_or_fail(self: Program, *arguments: Any) -> Any:
        error = errors.pop(0) if errors else None
        if error is not None:
            raise error
        return run(self, *arguments)

    monkeypatch.setattr(Program, "run", run_or_fail)
    return errors


def mlp(rows: int = 300) -> onnx.ModelProto:
    """y = relu(x @ w) + b, whose weights are too large to be kept on the host."""
    generator = np.random.default_rng(0)
    weights = [tensor("w", generator.random((4, rows))), tensor("b", generator.random(rows))]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Add", ["r", "b"], ["y"]),
    ]
    return model_of(nodes, {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, ["n", rows])}, weights)


X = {"x": np.random.default_rng(1).random((3, 4)).astype(np.float32)}
BROKEN = "MLX is out of memory"


def test_a_failure_is_raised_by_default(failing: list[Any]) -> None:
    session = open_session(mlp())
    failing.append(TranslationError(BROKEN))
    with pytest.raises(Exception, match=BROKEN):
        session.run(None, X)
    session.run(None, X)


@pytest.mark.parametrize("error", [TranslationError(BROKEN), RuntimeError(BROKEN), MemoryError(BROKEN)])
def test_the_cpu_takes_over_for_good_and_says_so_once(
    failing: list[Any], warnings: list[str], error: BaseException
) -> None:
    session = open_session(mlp(), {"on_error": "cpu"})
    expected = session.run(None, X)[0]
    assert warnings == []
    failing += [error, AssertionError("never run again")]
    for _ in range(3):
        np.testing.assert_allclose(session.run(None, X)[0], expected, rtol=1e-6)
    assert len(failing) == 1
    (warning,) = warnings
    assert "runs on the CPU EP from now on" in warning
    assert BROKEN in warning


def test_weights_are_kept_once(failing: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What MLX holds is read back when it is needed; only what it does not hold is copied before."""
    kept: list[Any] = []
    make = fallback._Kept.__init__

    def note(self: Any, *arguments: Any) -> None:
        make(self, *arguments)
        kept.append(self)

    monkeypatch.setattr(fallback._Kept, "__init__", note)
    session = open_session(mlp(), {"on_error": "cpu"})
    assert kept[0]._copies == {}
    failing.append(RuntimeError(BROKEN))
    assert session.run(None, X)[0].shape == (3, 300)


def test_the_program_is_let_go_once_the_cpu_has_taken_over(failing: list[Any]) -> None:
    programs: list[Any] = []
    make = Program.__init__

    def note(self: Program, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        programs.append(ref(self))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "__init__", note)
        session = open_session(mlp(), {"on_error": "cpu"})
    (program,) = programs
    failing.append(RuntimeError(BROKEN))
    session.run(None, X)
    failing.clear()
    gc.collect()
    assert program() is None


def test_what_the_cpu_refuses_too_is_its_own_error(warnings: list[str]) -> None:
    model = parsed("g (float[4] x, int64[n] i) => (float[n] y) { a = Neg(x)  y = Gather(a, i) }")
    session = open_session(model, {"on_error": "cpu"})
    x = np.arange(4, dtype=np.float32)
    with pytest.raises(Exception, match="indices element out of data bounds, idx=9"):
        session.run(None, {"x": x, "i": np.array([9])})
    assert warnings == []
    np.testing.assert_array_equal(session.run(None, {"x": x, "i": np.array([1, 3])})[0], [-1, -3])


def test_the_program_is_tried_again_after_the_cpu_refused(failing: list[Any], warnings: list[str]) -> None:
    model = parsed("g (float[4] x, int64[n] i) => (float[n] y) { a = Neg(x)  y = Gather(a, i) }")
    session = open_session(model, {"on_error": "cpu"})
    x = np.arange(4, dtype=np.float32)
    with pytest.raises(Exception, match="out of data bounds"):
        session.run(None, {"x": x, "i": np.array([9])})
    failing.append(RuntimeError(BROKEN))
    np.testing.assert_array_equal(session.run(None, {"x": x, "i": np.array([2])})[0], [-2])
    assert failing == []
    assert len(warnings) == 1


def test_where_the_graph_cannot_be_run_there_the_first_error_comes_with_a_note(
    failing: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_session(mlp(), {"on_error": "cpu"})
    failing += [TranslationError(BROKEN), RuntimeError(BROKEN)]

    def refuse(*arguments: Any) -> None:
        raise ValueError("no room")

    monkeypatch.setattr(ep, "cpu_session", refuse)
    for _ in range(2):
        with pytest.raises(
            Exception, match=rf"{BROKEN}.*on_error=cpu: the CPU EP cannot take over, ValueError: no room"
        ):
            session.run(None, X)


def test_outputs_of_another_type_than_the_model_says_are_a_failure_too(
    monkeypatch: pytest.MonkeyPatch, warnings: list[str]
) -> None:
    session = open_session(mlp(), {"on_error": "cpu"})
    expected = session.run(None, X)[0]
    monkeypatch.setattr(Program, "run", lambda self, *arguments: [mx.zeros((3, 300), mx.int32)])
    np.testing.assert_allclose(session.run(None, X)[0], expected, rtol=1e-6)
    assert "came out as int32, and the model declares float32" in warnings[0]


def test_bodies_and_what_they_capture(failing: list[Any], warnings: list[str]) -> None:
    model = parsed(
        """g (bool c, float[n] x) => (float[n] y) <float[1] w = {2}> { z = Neg(x)  y = If(c)
        <then_branch = a () => (float[n] p) <float[1] v = {5}> { s = Mul(z, w)  p = Add(s, v) },
         else_branch = b () => (float[n] q) { q = Relu(z) }> }"""
    )
    session = open_session(model, {"on_error": "cpu"})
    x = np.array([-1, 2], np.float32)
    failing.append(RuntimeError(BROKEN))
    for condition, expected in ((True, [7, 1]), (False, [1, 0])):
        np.testing.assert_array_equal(session.run(None, {"c": np.array(condition), "x": x})[0], expected)
    assert warnings == [] or len(warnings) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "int4", "float8e4m3fn"])
def test_element_types_that_numpy_lacks(failing: list[Any], warnings: list[str], dtype: str) -> None:
    number = getattr(TensorProto, dtype.upper())
    if dtype == "bfloat16":
        weight = helper.make_tensor("w", number, [2], [1.0, 2.0])
        nodes = [helper.make_node("Concat", ["x", "w"], ["y"], axis=0)]
    else:
        weight = tensor("w", 0.5)
        zero = helper.make_node("Constant", [], ["z"], value=helper.make_tensor("z", number, [], [0.0]))
        nodes = [
            zero,
            helper.make_node("DequantizeLinear", ["x", "w"], ["d"]),
            helper.make_node("QuantizeLinear", ["d", "w", "z"], ["y"]),
        ]
    model = model_of(nodes, {"x": (number, [2])}, {"y": (number, [None])}, [weight])
    model.opset_import[0].version = 23
    session = open_session(model, {"on_error": "cpu"}, optimized=False)
    given = {"x": onnx.numpy_helper.to_array(helper.make_tensor("x", number, [2], [2.0, 3.0]))}
    expected = ort_values.run(session, given)[0]
    failing += [RuntimeError(BROKEN)]
    np.testing.assert_array_equal(ort_values.run(session, given)[0], expected)
    assert len(warnings) == 1, "it ran on the CPU execution provider"


def test_several_threads_fail_at_once(failing: list[Any], warnings: list[str]) -> None:
    session = open_session(mlp(), {"on_error": "cpu"})
    expected = session.run(None, X)[0]
    failing += [RuntimeError(BROKEN)] * 4
    gate = threading.Barrier(4)

    def run(_: int) -> Any:
        gate.wait()
        return session.run(None, X)[0]

    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(run, range(4)):
            np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert len(warnings) == 1


def test_ctrl_c_is_not_a_failure() -> None:
    """In a process of its own: it ends the run, and the next run is on the execution provider still."""
    script = """
import numpy as np, signal
from host_models import open_session, add_model
from opgraft.engine import Program
signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is sent once more after the callback
session = open_session(add_model(), {"on_error": "cpu"})
feeds = {name: np.ones((2, 4), np.float32) for name in "xy"}
run, calls = Program.run, []
def interrupted(self, *arguments):
    calls.append(1)
    if len(calls) == 1:
        raise KeyboardInterrupt
    return run(self, *arguments)
Program.run = interrupted
try:
    session.run(None, feeds)
except Exception as error:
    print(error)
print(session.run(None, feeds)[0].sum(), len(calls))
"""
    result = run_script(script)
    assert result.returncode == 0, result.stderr
    assert "interrupted" in result.stdout
    assert "16.0 2" in result.stdout, result.stdout
