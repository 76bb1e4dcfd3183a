"""Runs of fused nodes: element types, shapes, errors, and threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mlx.core as mx
import numpy as np
import onnxruntime
import pytest
from host_models import add_model, model_of, open_session, run_script, tensor
from onnx import TensorProto, helper

from opgraft import ort_values
from opgraft.errors import TranslationError
from opgraft.graph.element_types import BITS, NARROW, ONNX_OF_NAME, STORAGE
from opgraft.host import ep, status
from opgraft.host.compute import FusedNode

FLOAT = TensorProto.FLOAT


def stand_in(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    """Claim every node, and let `run(inputs)` stand for the fused node."""

    class Program:
        def __init__(self, plan: Any, *rest: Any) -> None:
            self.plan = plan

        def run(self, inputs: Any, *others: Any) -> Any:
            return run(inputs)

    def decide(graph: Any, *arguments: Any, **options: Any) -> Any:
        clusters = [list(range(len(graph.nodes)))]
        return type("Decisions", (), {"clusters": clusters, "declined": [], "decisions": []})

    monkeypatch.setattr(ep, "decide", decide)
    monkeypatch.setattr(ep, "Program", Program)


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "int8", "uint8", "int32", "int64", "uint64", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4)])
def test_elements_come_in_and_go_out(monkeypatch: pytest.MonkeyPatch, name: str, shape: tuple[int, ...]) -> None:
    given: list[Any] = []

    def run(inputs: list[Any]) -> list[Any]:
        given.extend(array.copy() for array in inputs)
        return [mx.array(inputs[0], dtype=getattr(mx, name if name != "bool" else "bool_"))]

    stand_in(monkeypatch, run)
    dtype = ONNX_OF_NAME[name]
    model = model_of([helper.make_node("Identity", ["x"], ["z"])], {"x": (dtype, None)}, {"z": (dtype, None)})
    session = open_session(model, {"device": "cpu"}, optimized=False)
    array = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2, np.dtype(name))
    result = session.run(None, {"x": array})[0]
    assert result.dtype == array.dtype
    assert given[0].dtype == array.dtype
    assert given[0].shape == result.shape == shape
    np.testing.assert_array_equal(result, array)
    np.testing.assert_array_equal(given[0], array)


def test_bfloat16_travels_as_its_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def run(inputs: list[Any]) -> list[Any]:
        given.append(inputs[0].copy())
        return [mx.array(inputs[0]).view(mx.bfloat16) * 2]

    stand_in(monkeypatch, run)
    value = helper.make_tensor("w", TensorProto.BFLOAT16, [3], [1.0, -2.0, 0.5])
    nodes = [helper.make_node("Add", ["x", "w"], ["z"])]
    model = model_of(nodes, {"x": (TensorProto.BFLOAT16, [3])}, {"z": (TensorProto.BFLOAT16, [3])}, [value])
    session = open_session(model)
    bits = np.array([0x3F80, 0xC000, 0x3F00], np.uint16)  # 1, -2, 0.5
    source = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", source)
    target = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(3, np.uint16), TensorProto.BFLOAT16)
    binding.bind_ortvalue_output("z", target)
    session.run_with_iobinding(binding)
    assert given[0].dtype == np.uint16
    np.testing.assert_array_equal(given[0], bits)
    memory = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint16 * 3).from_address(target.data_ptr()))
    np.testing.assert_array_equal(memory, [0x4000, 0xC080, 0x3F80])


@pytest.mark.parametrize("name", sorted(NARROW - {"float8e8m0"}))  # which older versions of ONNX Runtime lack
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (5,), (2, 0, 4), (3, 3), (2, 3, 4)])
def test_types_held_in_another_come_in_and_go_out(
    monkeypatch: pytest.MonkeyPatch, name: str, shape: tuple[int, ...]
) -> None:
    given: list[Any] = []

    def run(inputs: list[Any]) -> list[Any]:
        given.extend(array.copy() for array in inputs)
        return [mx.array(each) for each in inputs]

    stand_in(monkeypatch, run)
    storage = STORAGE[name]
    assert storage is not None
    every = np.arange(2 ** BITS[name]) - (2 ** BITS[name] // 2 if storage.kind == "i" else 0)
    array = np.random.default_rng(0).choice(every, shape).astype(storage)
    info = {"x": (ONNX_OF_NAME[name], None)}
    model = model_of([helper.make_node("Identity", ["x"], ["z"])], info, {"z": info["x"]})
    model.opset_import[0].version = 25
    session = open_session(model, {"device": "cpu"}, optimized=False)
    for found in (ort_values.run(session, {"x": array})[0], given[0]):
        assert (found.dtype, found.shape) == (storage, shape)
        np.testing.assert_array_equal(found, array)


def test_nothing_is_written_past_a_packed_output(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda inputs: [mx.array(inputs[0])])
    info = {"x": (TensorProto.INT4, [3])}
    model = model_of([helper.make_node("Identity", ["x"], ["z"])], info, {"z": info["x"]})
    model.opset_import[0].version = 21
    memory = np.full(3, 0x55, np.uint8)
    target = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(memory, TensorProto.INT4)
    packed = np.array([0x2F, 0xF8, 0], np.uint8)  # -1, 2, -8, and what does not count
    source = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(packed, TensorProto.INT4)
    session = open_session(model)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", source)
    binding.bind_ortvalue_output("z", target)
    session.run_with_iobinding(binding)
    assert memory.tolist() == [0x2F, 0x08, 0x55]


@pytest.mark.parametrize(
    "result",
    [
        mx.arange(12, dtype=mx.float32).reshape(3, 4).T,
        mx.broadcast_to(mx.array([1.0, 2.0]), (3, 2)),
        np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1],
    ],
    ids=["transposed", "broadcast", "numpy"],
)
def test_results_in_any_layout(monkeypatch: pytest.MonkeyPatch, result: Any) -> None:
    stand_in(monkeypatch, lambda inputs: [result])
    session = open_session(
        model_of([helper.make_node("Neg", ["x"], ["z"])], {"x": (FLOAT, None)}, {"z": (FLOAT, None)})
    )
    np.testing.assert_array_equal(session.run(None, {"x": np.zeros(1, np.float32)})[0], np.array(result))


def test_inputs_are_not_copied_on_the_way_in(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[int] = []

    def run(inputs: list[Any]) -> list[Any]:
        addresses.append(inputs[0].ctypes.data)
        return [mx.array(inputs[0])]

    stand_in(monkeypatch, run)
    session = open_session(model_of([helper.make_node("Neg", ["x"], ["z"])], {"x": (FLOAT, [4])}, {"z": (FLOAT, [4])}))
    array = np.zeros(4, np.float32)
    value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
    session.run_with_ort_values(["z"], {"x": value})
    assert addresses == [value.data_ptr()]


def test_a_result_of_another_type_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda inputs: [mx.array([1, 2])])
    session = open_session(model_of([helper.make_node("Neg", ["x"], ["z"])], {"x": (FLOAT, [2])}, {"z": (FLOAT, [2])}))
    with pytest.raises(Exception, match="output 'z' came out as int32, and the model declares float32"):
        session.run(None, {"x": np.zeros(2, np.float32)})


def test_a_result_of_another_type_than_the_one_that_holds_the_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda inputs: [mx.array([1, 2], dtype=mx.uint8)])
    info = {"x": (TensorProto.INT4, [2])}
    model = model_of([helper.make_node("Identity", ["x"], ["z"])], info, {"z": info["x"]})
    model.opset_import[0].version = 21
    with pytest.raises(Exception, match="output 'z' came out as uint8, and the model declares int4"):
        ort_values.run(open_session(model), {"x": np.zeros(2, np.int8)})


def raising(error: BaseException) -> Any:
    def run(inputs: Any) -> Any:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (TranslationError("pack p, op o: shapes do not fit"), "opgraft: pack p, op o: shapes do not fit"),
        (
            KeyError("gone"),
            r"opgraft: internal error in OrtNodeComputeInfo_Compute: KeyError: 'gone' \(set OPGRAFT_DEBUG=1 for the tr",
        ),
        (SystemExit(3), "opgraft: internal error in OrtNodeComputeInfo_Compute: SystemExit: 3"),
        (ValueError("ends \0 early"), "ends .* early"),
    ],
)
def test_what_a_run_raises_is_the_message(monkeypatch: pytest.MonkeyPatch, error: BaseException, message: str) -> None:
    stand_in(monkeypatch, raising(error))
    session = open_session(add_model())
    ones = np.ones((2, 4), np.float32)
    for _ in range(2):  # and the session stays usable
        with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match=message):
            session.run(None, {"x": ones, "y": ones})


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_an_error_whose_text_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, raising(Unspeakable()))
    session = open_session(add_model())
    with pytest.raises(Exception, match=r"OrtNodeComputeInfo_Compute: Unspeakable \(set OPGRAFT"):
        session.run(None, {"x": np.ones((2, 4), np.float32), "y": np.ones((2, 4), np.float32)})


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_error_while_telling_of_an_error_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, raising(KeyError("gone")))
    session = open_session(add_model())
    monkeypatch.setattr(status, "Logger", None)
    with pytest.raises(Exception, match="opgraft: a callback failed, and so did the telling of why"):
        session.run(None, {"x": np.ones((2, 4), np.float32), "y": np.ones((2, 4), np.float32)})


@pytest.mark.parametrize("hook", ["opgraft.host.ep.decide", "opgraft.host.ep.build_plan", "opgraft.engine.Program.run"])
def test_ctrl_c_inside_a_callback_reaches_the_user(hook: str) -> None:
    """Whatever ONNX Runtime makes of the callback's error, the main thread is interrupted."""
    result = run_script(
        f"""
import signal, time, unittest.mock, host_models, numpy as np
ones = np.ones((2, 4), np.float32)
def interrupt(*arguments, **options):
    signal.raise_signal(signal.SIGINT)
try:
    with unittest.mock.patch("{hook}", interrupt):
        try:
            session = host_models.open_session(host_models.add_model())
            session.run(None, {{"x": ones, "y": ones}})
        except Exception as error:
            assert "interrupted in Ort" in str(error), error
        time.sleep(10)
except KeyboardInterrupt:
    print("interrupted")
session = host_models.open_session(host_models.add_model())
print(session.run(None, {{"x": ones, "y": ones}})[0].sum())
"""
    )
    assert result.stdout == "interrupted\n16.0\n", result.stderr


def test_inputs_cannot_be_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's memory is behind them."""

    def run(inputs: Any) -> Any:
        inputs[0][0] = 7

    stand_in(monkeypatch, run)
    session = open_session(model_of([helper.make_node("Neg", ["x"], ["z"])], {"x": (FLOAT, [4])}, {"z": (FLOAT, [4])}))
    given = np.zeros(4, np.float32)
    with pytest.raises(Exception, match="read-only"):
        session.run(None, {"x": given})
    assert given.tolist() == [0, 0, 0, 0]


def test_what_compiling_raises_is_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(FusedNode.live), len(ep.ExecutionProvider.live)
    stand_in(monkeypatch, None)
    monkeypatch.setattr(ep, "build_plan", lambda *arguments: {}["nothing"])
    with pytest.raises(Exception, match="internal error in OrtEp_Compile: KeyError: 'nothing'"):
        open_session(add_model())
    assert (len(FusedNode.live), len(ep.ExecutionProvider.live)) == before


def test_a_failure_in_claiming_leaves_the_model_to_others(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime logs a failed GetCapability, and goes on without what it would have claimed."""
    monkeypatch.setattr(ep, "decide", lambda *arguments, **options: {}["nothing"])
    session = open_session(add_model(), quiet=False)
    assert "internal error in OrtEp_GetCapability: KeyError: 'nothing'" in capfd.readouterr().err
    ones = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": ones, "y": ones})[0], 2 * ones)


def test_the_traceback_is_logged_on_request(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OPGRAFT_DEBUG", "1")
    stand_in(monkeypatch, raising(KeyError("gone")))
    session = open_session(add_model())
    ones = np.ones((2, 4), np.float32)
    with pytest.raises(Exception, match="KeyError"):
        session.run(None, {"x": ones, "y": ones})
    log = capfd.readouterr().err
    assert "Traceback (most recent call last)" in log
    assert "test_host_compute.py" in log


def test_runs_from_eight_threads_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lock is held across a run: eight runs must all be inside at once before any may leave."""
    barrier = threading.Barrier(8, timeout=30)

    def run(inputs: list[Any]) -> list[Any]:
        barrier.wait()
        return [mx.array(inputs[0]) * 3]

    stand_in(monkeypatch, run)
    session = open_session(add_model())

    def work(number: int) -> None:
        array = np.full((2, 4), number, np.float32)
        for _ in range(20):
            np.testing.assert_array_equal(session.run(None, {"x": array, "y": array})[0], 3 * array)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_threads_with_the_real_engine() -> None:
    weights = np.random.default_rng(0).random((4, 4)).astype(np.float32)
    nodes = [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Mul", ["a", "x"], ["z"])]
    model = model_of(nodes, {"x": (FLOAT, ["N", 4])}, {"z": (FLOAT, ["N", 4])}, [tensor("w", weights[0])])

    def work(number: int) -> None:
        session = open_session(model) if number % 2 else shared
        for size in range(1, 30):
            x = np.full((size, 4), number, np.float32)
            np.testing.assert_allclose(session.run(None, {"x": x})[0], (x + weights[0]) * x, rtol=1e-6)

    before = len(FusedNode.live)
    shared = open_session(model)
    assert len(FusedNode.live) == before + 1
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_constants_do_not_arrive_at_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    def run(inputs: list[Any]) -> list[Any]:
        given.append(len(inputs))
        return [mx.array(inputs[0])]

    stand_in(monkeypatch, run)
    node = helper.make_node("Add", ["x", "w"], ["z"])
    session = open_session(model_of([node], {"x": (FLOAT, [2])}, {"z": (FLOAT, [2])}, [tensor("w", [1, 2])]))
    session.run(None, {"x": np.zeros(2, np.float32)})
    assert given == [1]
