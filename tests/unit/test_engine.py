"""Running plans: where values live, what is converted when, and what an error says."""

from __future__ import annotations

import itertools
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from opgraft.engine import ConstantStore, Program
from opgraft.engine.program import MOST_CHECKS, Frame
from opgraft.errors import Decline, ModelError, TranslationError
from opgraft.graph import Initializer, Node, Value
from opgraft.graph.onnx_source import graph_of_model
from opgraft.ops import Anywhere, Context, Handler, Host, Tensors, hookimpl, op, to_device, to_host
from opgraft.plan import build_plan
from opgraft.registry import Pack, Registry, parse_policy


@op("Add")
def add(A, B):  # type: ignore[no-untyped-def]
    return A + B


add.host(lambda A, B: A + B)


@op("Mul")
def mul(A, B):  # type: ignore[no-untyped-def]
    return A * B


mul.host(lambda A, B: A * B)


@op("Shape")
def shape(data: Anywhere):  # type: ignore[no-untyped-def]
    return np.array(data.shape, np.int64)


@op("Gather")
def gather(data, indices):  # type: ignore[no-untyped-def]
    return mx.take(data, indices, axis=0)


gather.host(lambda data, indices: np.take(data, indices, axis=0))


@op("Concat")
def concat(*inputs: Anywhere, axis):  # type: ignore[no-untyped-def]
    return mx.concatenate([mx.array(each) for each in inputs], axis=axis)


concat.host(lambda *inputs, axis: np.concatenate(inputs, axis=axis))


@op("Cast")
def cast(input, *, to):  # type: ignore[no-untyped-def]
    return input.astype({1: mx.float32, 7: mx.int64, 9: mx.bool_, 16: mx.bfloat16}[to])


cast.host(lambda input, *, to: input.astype({1: "float32", 7: "int64", 9: "bool", 16: "float32"}[to]))


@op("Expand")
def expand(input, shape: Host):  # type: ignore[no-untyped-def]
    return mx.broadcast_to(input, np.broadcast_shapes(input.shape, tuple(shape)))


@expand.host(expands=True)
def expand_on_host(input, shape):  # type: ignore[no-untyped-def]
    return np.broadcast_to(input, np.broadcast_shapes(input.shape, tuple(shape)))


@op("Reshape")
def reshape(data, shape: Host):  # type: ignore[no-untyped-def]
    return mx.reshape(data, shape.tolist())


@op("ReduceSum")
def reduce_sum(data):  # type: ignore[no-untyped-def]
    return mx.sum(data, keepdims=True)


@op("Identity")
def identity(input: Anywhere):  # type: ignore[no-untyped-def]
    return input


@op("MatMul")
def matmul(A, B):  # type: ignore[no-untyped-def]
    return A @ B


@op("Split")
def split(input, *, num_outputs):  # type: ignore[no-untyped-def]
    return mx.split(input, num_outputs)


@op("If")
def if_(cond: Host, *, then_branch, else_branch) -> tuple[Any | Tensors, ...]:  # type: ignore[no-untyped-def]
    return then_branch() if cond.item() else else_branch()


@op("Loop")
def loop(  # type: ignore[no-untyped-def]
    M: Host, cond: Host | None = None, *states: Anywhere | Tensors, body
) -> tuple[Any | Tensors, ...]:
    for trip in range(int(M.item())):
        _, *states = body(np.array(trip), np.array(True), *states)
    return tuple(states)


STANDARD = [add, mul, shape, gather, concat, cast, expand, reshape, reduce_sum, identity, matmul, split, if_, loop]


def registry_with(*handlers: Any) -> Registry:
    """The handlers above, and before them `handlers`, as a pack named `own`."""
    packs = [Pack("own", plugins=handlers), Pack("standard", plugins=tuple(STANDARD))]
    return Registry(packs, parse_policy("packs: [own, standard]", "registry.yaml"))


def parsed(text: str, initializers: Mapping[str, Any] | None = None) -> onnx.ModelProto:
    """A model of `g (inputs) => (outputs) { nodes }` in ONNX's textual form."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "own": 1]>\n{text}')
    for name, array in (initializers or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def program_of(
    text: str, initializers: Mapping[str, Any] | None = None, *handlers: Any, constants: ConstantStore | None = None
) -> Program:
    plan = build_plan(graph_of_model(parsed(text, initializers)))
    return Program(plan, registry_with(*handlers), "cpu", constants)


def f32(*elements: float) -> Any:
    return np.array(elements, np.float32)


class Conversions:
    """Shapes of what crosses between host and device inside the engine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.to_device: list[tuple[int, ...]] = []
        self.to_host: list[tuple[int, ...]] = []

        def counted_to_device(value: Any) -> mx.array:
            self.to_device.append(tuple(value.shape))
            return to_device(value)

        def counted_to_host(value: Any) -> Any:
            self.to_host.append(tuple(value.shape))
            return to_host(value)

        monkeypatch.setattr("opgraft.engine.frame.to_device", counted_to_device)
        monkeypatch.setattr("opgraft.engine.frame.to_host", counted_to_host)


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> Conversions:
    return Conversions(monkeypatch)


class TestRun:
    def test_values_and_order_of_outputs(self) -> None:
        found = program_of("g (float[2] x, float[2] y) => (float[2] b, float[2] a) { a = Add(x, y) b = Mul(a, y) }")
        b, a = found.run([f32(1, 2), f32(10, 20)])
        np.testing.assert_array_equal(to_host(a), [11, 22])
        np.testing.assert_array_equal(to_host(b), [110, 440])

    def test_outputs_are_inputs_or_constants_or_given_twice(self) -> None:
        found = program_of(
            "g (float[2] x) => (float[2] x, float[2] w, float[2] y, float[2] y) { y = Add(x, w) }", {"w": f32(5, 6)}
        )
        x, w, y, again = (to_host(each) for each in found.run([f32(1, 2)]))
        for output, expected in ((x, [1, 2]), (w, [5, 6]), (y, [6, 8]), (again, [6, 8])):
            np.testing.assert_array_equal(output, expected)

    def test_inputs_may_be_on_the_device_already(self) -> None:
        (y,) = program_of("g (float[2] x) => (float[2] y) { y = Add(x, x) }").run([mx.array([1.0, 2.0])])
        np.testing.assert_array_equal(to_host(y), [2, 4])

    def test_inputs_are_read_before_run_returns(self) -> None:
        x = f32(1, 2)
        (y,) = program_of("g (float[2] x) => (float[2] y) { y = MatMul(x, x) }").run([x])
        x[:] = 100
        assert to_host(y) == 5

    def test_several_outputs_of_a_node(self) -> None:
        found = program_of("g (float[4] x) => (float[2] b) { a, b = Split <num_outputs = 2> (x) }")
        np.testing.assert_array_equal(to_host(found.run([f32(1, 2, 3, 4)])[0]), [3, 4])

    def test_outputs_that_nobody_wants(self) -> None:
        model = parsed("g (float[4] x) => (float[2] b) { a, b = Split <num_outputs = 2> (x) }")
        model.graph.node[0].output[0] = ""
        found = Program(build_plan(graph_of_model(model)), registry_with(), "cpu")
        np.testing.assert_array_equal(to_host(found.run([f32(1, 2, 3, 4)])[0]), [3, 4])

    def test_absent_inputs_arrive_as_none(self) -> None:
        @op("own::Given")
        def given(a=None, b=None, c: Host | None = None, d: Anywhere = None):  # type: ignore[no-untyped-def]
            return np.array([each is not None for each in (a, b, c, d)])

        found = program_of('g (float[1] x) => (bool[4] y) { y = own.Given("", x) }', None, given)
        assert found.run([f32(1)])[0].tolist() == [False, True, False, False]

    @pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 0), (1,)])
    @pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float16"])
    def test_scalars_and_empty_arrays(self, shape: tuple[int, ...], dtype: str) -> None:
        dims = ", ".join(map(str, shape))
        name = {"float32": "float"}.get(dtype, dtype)
        found = program_of(
            f"g ({name}[{dims}] x) => ({name}[{dims}] y, int64[{len(shape)}] s) {{ y = Mul(x, w) s = Shape(y) }}",
            {"w": np.ones(shape, dtype)},
        )
        y, s = found.run([np.ones(shape, dtype)])
        assert (to_host(y).shape, str(to_host(y).dtype)) == (shape, dtype)
        np.testing.assert_array_equal(to_host(y), np.ones(shape, dtype))
        assert s.tolist() == list(shape)

    def test_float64_on_the_cpu(self) -> None:
        (y,) = program_of("g (double[2] x) => (double[2] y) { y = Add(x, w) }", {"w": np.array([1e-12, 0])}).run(
            [np.array([1.0, 2.0])]
        )
        assert y.dtype == mx.float64
        np.testing.assert_array_equal(to_host(y), np.array([1 + 1e-12, 2]))

    def test_a_wrong_number_of_inputs(self) -> None:
        found = program_of("g (float[2] x, float[2] y) => (float[2] z) { z = Add(x, y) }")
        with pytest.raises(ModelError, match="'g' takes 2 inputs, and 1 were given"):
            found.run([f32(1, 2)])

    def test_an_input_that_is_no_array(self) -> None:
        found = program_of("g (float[2] x) => (float[2] y) { y = Add(x, x) }")
        with pytest.raises(ModelError, match="input 'x': a str is not an array that MLX can hold"):
            found.run(["text"])  # type: ignore[list-item]

    def test_a_step_that_nobody_claims(self) -> None:
        with pytest.raises(
            TranslationError, match=r"\(ai\.onnx::Relu\) has no handler: no installed pack has a handler"
        ):
            program_of("g (float[2] x) => (float[2] y) { y = Relu(x) }")

    def test_the_device_is_mlxs_default_unless_given(self) -> None:
        plan = build_plan(graph_of_model(parsed("g (float[2] x) => (float[2] y) { y = Add(x, x) }")))
        found = Program(plan, registry_with())
        assert found.device == str(mx.default_device().type).rpartition(".")[2]
        np.testing.assert_array_equal(to_host(found.run([f32(1, 2)])[0]), [2, 4])


class TestShapeArithmetic:
    FLATTEN = """g (float[n, 2, 3] x) => (float[n, k] y) {
        s = Shape(x)
        rows = Gather(s, zero)
        pair = Gather(s, rest)
        one = Gather(pair, zero)
        two = Gather(pair, last)
        columns = Mul(one, two)
        target = Concat <axis = 0> (rows, columns)
        y = Reshape(x, target)
    }"""

    def test_stays_on_the_host(self, conversions: Conversions) -> None:
        constants = {"zero": np.array([0]), "rest": np.array([1, 2]), "last": np.array([1])}
        found = program_of(self.FLATTEN, constants)
        (y,) = found.run([np.ones((5, 2, 3), np.float32)])
        assert y.shape == (5, 6)
        assert conversions.to_device == [(5, 2, 3)]
        assert conversions.to_host == []

    def test_runs_on_the_device_where_a_value_is_there(self, conversions: Conversions) -> None:
        found = program_of("g (int64[2] a, int64[2] b) => (int64[2] y) { s = ReduceSum(a) y = Mul(s, b) }")
        (y,) = found.run([np.array([1, 2]), np.array([3, 4])])
        assert isinstance(y, mx.array)
        np.testing.assert_array_equal(to_host(y), [9, 12])
        assert conversions.to_host == []

    def test_plain_arithmetic_of_inputs_is_the_devices(self) -> None:
        (y,) = program_of("g (float[2] a) => (float[2] y) { y = Mul(a, w) }", {"w": f32(2, 3)}).run([f32(1, 2)])
        assert isinstance(y, mx.array)

    def test_inputs_that_become_a_shape_are_computed_with_on_the_host(self, conversions: Conversions) -> None:
        text = """g (float[6] x, int64[1] n) => (float[a, b] y) {
            m = Mul(n, two) s = Concat <axis = 0> (m, k) y = Reshape(x, s)
        }"""
        (y,) = program_of(text, {"two": np.array([2]), "k": np.array([-1])}).run(
            [np.ones(6, np.float32), np.array([1])]
        )
        assert y.shape == (2, 3)
        assert conversions.to_device == [(6,)]
        assert conversions.to_host == []

    def test_a_shape_computed_from_data_is_read_once(self, conversions: Conversions) -> None:
        text = """g (float[4] x, int64[2] n) => (float[a, b] y, float[a, b] z) {
            s = ReduceSum(n) m = Concat <axis = 0> (s, k) y = Reshape(x, m) z = Reshape(x, m)
        }"""
        y, z = program_of(text, {"k": np.array([-1])}).run([f32(1, 2, 3, 4), np.array([1, 1])])
        assert (y.shape, z.shape) == ((2, 2), (2, 2))
        assert conversions.to_host == [(2,)]

    def test_large_values_go_to_the_device(self) -> None:
        text = "g (float[a, 2000] x) => (int64[2000] y) { s = Shape(x) w = Gather(s, i) y = Mul(w, w) }"
        (y,) = program_of(text, {"i": np.zeros(2000, np.int64)}).run([np.ones((3, 2000), np.float32)])
        assert isinstance(y, mx.array)
        assert to_host(y).tolist() == [9] * 2000

    def test_what_expands_runs_on_the_host_only_where_it_is_needed_there(self) -> None:
        text = "g (float[a] x) => (int64[a] e) { s = Shape(x) e = Expand(s, s) }"
        (e,) = program_of(text).run([f32(1, 2, 3)])
        assert isinstance(e, mx.array)

    def test_what_expands_into_a_shape_is_not_read_back(self, conversions: Conversions) -> None:
        text = "g (float[a] x, float[c] d) => (float[b] y) { s = Shape(x) e = Expand(s, s) y = Reshape(d, e) }"
        (y,) = program_of(text).run([f32(1, 2), np.ones(4, np.float32)])
        assert y.shape == (2, 2)
        assert conversions.to_host == []
        assert conversions.to_device == [(4,)]

    def test_results_have_the_declared_element_type(self) -> None:
        @op("own::Half")
        def half(a):  # type: ignore[no-untyped-def]
            return a // 2

        half.host(lambda a: a / 2)  # NumPy gives float64
        text = "g (float[a, b] x) => (int64[2] y) <int64[2] h> { s = Shape(x) h = own.Half(s) y = Mul(h, h) }"
        (y,) = program_of(text, None, half).run([np.ones((4, 6), np.float32)])
        assert isinstance(y, np.ndarray)
        assert y.dtype == np.int64
        assert y.tolist() == [4, 9]

    def test_looking_at_a_shape_does_not_make_a_large_constant_wanted_on_the_host(self) -> None:
        @op("own::HostShape")
        def host_shape(data: Anywhere):  # type: ignore[no-untyped-def]
            return np.array(data.shape, np.int64)

        host_shape.host(host_shape.function)
        text = """g (int64[3] ids, float[c] d) => (float[a, b] y) <float[3, 8] rows, int64[2] s> {
            rows = Gather(table, ids) s = own.HostShape(rows) y = Reshape(d, s)
        }"""
        found = program_of(text, {"table": np.ones((10_000, 8), np.float32)}, host_shape)
        slot = found.plan.first_constant
        assert found._template.host[slot] is None
        assert found.run([np.array([1, 2, 3]), np.ones(24, np.float32)])[0].shape == (3, 8)

    @pytest.mark.parametrize(("size", "kind"), [(100, np.ndarray), (100_000, mx.array)])
    def test_large_inputs_are_the_devices_even_where_the_result_is_needed_on_the_host(
        self, size: int, kind: type
    ) -> None:
        seen: list[type] = []

        @op("own::Look")
        def look(a: Anywhere, b: Host):  # type: ignore[no-untyped-def]
            seen.append(type(a))
            return np.array([b.size])

        found = program_of("g (float[n] x) => (int64[1] y) { a = Add(x, x) y = own.Look(a, a) }", None, look)
        assert found.run([np.ones(size, np.float32)])[0].tolist() == [size]
        assert seen == [kind]

    def test_a_value_taken_anywhere_is_handed_on_as_it_is_held(self, conversions: Conversions) -> None:
        text = "g (float[2] x) => (float[2] a, float[2] c) { a = Identity(x) b = MatMul(x, w) c = Identity(b) }"
        a, c = program_of(text, {"w": np.eye(2, dtype=np.float32)}).run([f32(1, 2)])
        assert isinstance(a, np.ndarray)
        assert isinstance(c, mx.array)
        assert conversions.to_device == [(2,)]
        assert conversions.to_host == []

    def test_a_backward_view_of_a_host_value_goes_to_the_device(self) -> None:
        @op("own::Reverse")
        def reverse(a):  # type: ignore[no-untyped-def]
            return a[::-1]

        reverse.host(lambda a: a[::-1])
        text = "g (float[2, 3] x) => (int64[1] y) <int64[2] r> { s = Shape(x) r = own.Reverse(s) y = ReduceSum(r) }"
        assert to_host(program_of(text, None, reverse).run([np.ones((2, 3), np.float32)])[0]) == 5


class TestConstants:
    def test_are_converted_once_and_never_while_running(self, conversions: Conversions) -> None:
        found = program_of("g (float[2] x) => (float[2] z) { y = Mul(x, w) z = Mul(y, w) }", {"w": f32(2, 3)})
        for _ in range(3):
            np.testing.assert_array_equal(to_host(found.run([f32(1, 1)])[0]), [4, 9])
        assert conversions.to_device == [(2,)] * 3  # the input

    def test_are_shared_between_programs_and_bodies(self) -> None:
        store, reads = ConstantStore(), itertools.count()

        def read() -> Any:
            next(reads)
            return np.ones(5000, np.float32)

        shared = Initializer(Value("w", "float32", (5000,)), read)
        graph = graph_of_model(
            parsed(
                """g (bool cond, float[5000] x) => (float[5000] y) {
                    a = Mul(x, w)
                    y = If (cond) <
                        then_branch = t () => (float[5000] p) { p = Add(a, w) },
                        else_branch = e () => (float[5000] q) { q = Mul(a, w) }
                    >
                }""",
                {"w": np.zeros(5000, np.float32)},
            )
        )
        graph.initializers["w"] = shared  # type: ignore[index]
        programs = [Program(build_plan(graph), registry_with(), "cpu", store) for _ in range(2)]
        assert next(reads) == 1
        for found in programs:
            (y,) = found.run([np.array(True), np.ones(5000, np.float32)])
            np.testing.assert_array_equal(to_host(y), np.full(5000, 2, np.float32))
        assert next(reads) == 2

    def test_their_source_is_not_needed_afterwards(self) -> None:
        source = np.full(2000, 3, np.float32)
        constant = Initializer(Value("w", "float32", (2000,)), lambda: source)
        store = ConstantStore()
        array = store.device(constant)
        source[:] = 0
        assert store.device(constant) is array
        np.testing.assert_array_equal(to_host(array), np.full(2000, 3, np.float32))

    def test_small_ones_copied_for_the_host_too(self) -> None:
        graph = graph_of_model(
            parsed("g (float[6] x) => (float[a, b] y) { y = Reshape(x, s) }", {"s": np.array([2, 3])})
        )
        source = np.array([2, 3])
        graph.initializers["s"] = Initializer(Value("s", "int64", (2,)), lambda: source)  # type: ignore[index]
        found = Program(build_plan(graph), registry_with(), "cpu")
        source[:] = 99
        assert found.run([np.ones(6, np.float32)])[0].shape == (2, 3)

    def test_prepared_weights_are_made_once_per_program(self) -> None:
        made: list[tuple[int, ...]] = []

        @op("own::Linear")
        def linear(ctx, X, W):  # type: ignore[no-untyped-def]
            def transposed(weight: mx.array) -> mx.array:
                made.append(weight.shape)
                return weight.T

            return X @ ctx.prepared(1, transposed)

        text = "g (float[1, 2] x) => (float[1, 3] y) { y = own.Linear(x, w) }"
        found = program_of(text, {"w": np.arange(6, dtype=np.float32).reshape(3, 2)}, linear)
        for _ in range(3):
            np.testing.assert_array_equal(to_host(found.run([np.ones((1, 2), np.float32)])[0]), [[1, 5, 9]])
        assert made == [(3, 2)]


class TestHowLongValuesLive:
    def test_a_value_is_dropped_after_its_last_use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        events: list[str] = []

        @op("own::Step")
        def step(ctx, *inputs: Anywhere):  # type: ignore[no-untyped-def]
            events.append(ctx.node.outputs[0].name)
            return mx.zeros(2)

        def dropped(frame: Frame, slot: int) -> None:
            events.append(f"drop {found.plan.values[slot].name}")
            drop(frame, slot)
            assert frame.anywhere(slot) is None

        text = """g (float[2] x) => (float[2] c) {
            a = own.Step(x) b = own.Step(a) unused = own.Step(x) d = own.Step(b) c = own.Step(a)
        }"""
        found = program_of(text, None, step)
        drop = Frame.drop
        monkeypatch.setattr(Frame, "drop", dropped)
        found.run([f32(1, 2)])
        assert events == ["a", "b", "unused", "drop x", "drop unused", "d", "drop b", "drop d", "c", "drop a"]

    def test_outputs_captures_and_constants_are_kept(self) -> None:
        text = """g (float[2] x, int64 n) => (float[2] a, float[2] y) {
            a = Add(x, w)
            y = Loop (n, "", x) <body = b (int64 i, bool c, float[2] s) => (bool c2, float[2] t) {
                c2 = Identity(c) p = Add(s, a) t = Add(p, w)
            }>
        }"""
        a, y = program_of(text, {"w": f32(1, 1)}).run([f32(0, 0), np.array(3)])
        np.testing.assert_array_equal(to_host(a), [1, 1])
        np.testing.assert_array_equal(to_host(y), [6, 6])


class TestBodies:
    IF = """g (bool cond, float[2] x) => (float[2] y) {
        a = Mul(x, w)
        y = If (cond) <
            then_branch = t () => (float[2] r) { p = Add(a, x) r = Mul(p, w) },
            else_branch = e () => (float[2] r2) { p = Add(x, own_w) r2 = Add(p, a) }
        >
    }"""

    @pytest.mark.parametrize(("cond", "expected"), [(True, [6, 12]), (False, [13, 26])])
    def test_if_with_captures(self, cond: bool, expected: list[float]) -> None:
        model = parsed(self.IF, {"w": f32(2, 2)})
        body = next(each for each in model.graph.node[1].attribute if each.name == "else_branch").g
        body.initializer.append(numpy_helper.from_array(f32(10, 20), "own_w"))
        found = Program(build_plan(graph_of_model(model)), registry_with(), "cpu")
        np.testing.assert_array_equal(to_host(found.run([np.array(cond), f32(1, 2)])[0]), expected)

    @pytest.mark.parametrize("outer", [True, False])
    @pytest.mark.parametrize("inner", [True, False])
    def test_if_inside_if(self, outer: bool, inner: bool) -> None:
        text = """g (bool c1, bool c2, float[1] x) => (float[1] y) {
            a = Add(x, x)
            y = If (c1) <
                then_branch = t () => (float[1] r) {
                    m = Mul(a, x)
                    r = If (c2) <
                        then_branch = tt () => (float[1] u) { u = Add(m, a) },
                        else_branch = te () => (float[1] v) { v = Mul(m, w) }
                    >
                },
                else_branch = e () => (float[1] a) { }
            >
        }"""
        found = program_of(text, {"w": f32(100)})
        (y,) = found.run([np.array(outer), np.array(inner), f32(3)])
        expected = (18 + 6 if inner else 1800) if outer else 6
        assert to_host(y) == expected

    @pytest.mark.parametrize("trips", [0, 1, 5])
    def test_loop(self, trips: int) -> None:
        text = """g (int64 n, float[1] x, float[1] s0) => (float[1] s) {
            s = Loop (n, "", s0) <body = b (int64 i, bool c, float[1] s1) => (bool c2, float[1] s2) {
                c2 = Identity(c) f = Cast <to = 1> (i) p = Add(s1, x) s2 = Add(p, f)
            }>
        }"""
        (s,) = program_of(text).run([np.array(trips), f32(10), f32(0)])
        assert to_host(s) == 10 * trips + sum(range(trips))

    def test_a_captured_input_is_converted_once_for_all_trips(self, conversions: Conversions) -> None:
        text = """g (int64 n, float[50] x, float[50] s0) => (float[50] s) {
            s = Loop (n, "", s0) <body = b (int64 i, bool c, float[50] s1) => (bool c2, float[50] s2) {
                c2 = Identity(c)
                s2 = If (c) <
                    then_branch = t () => (float[50] u) { u = Add(s1, x) }, else_branch = e () => (float[50] s1) { }
                >
            }>
        }"""
        (s,) = program_of(text).run([np.array(6), np.ones(50, np.float32), np.zeros(50, np.float32)])
        assert to_host(s).tolist() == [6] * 50
        assert conversions.to_device == [(50,)] * 2  # x, and the first state

    def test_a_captured_value_is_read_once_for_all_trips(self, conversions: Conversions) -> None:
        text = """g (int64 n, int64[2] d, float[3] s0) => (float[a] s) {
            k = ReduceSum(d)
            s = Loop (n, "", s0) <body = b (int64 i, bool c, float[a] s1) => (bool c2, float[a] s2) {
                c2 = Identity(c) s2 = Reshape(s1, k)
            }>
        }"""
        program_of(text).run([np.array(6), np.array([1, 2]), np.ones(3, np.float32)])
        assert conversions.to_host == [(1,)]

    @pytest.mark.parametrize("captures", [True, False])
    def test_counters_and_conditions_stay_on_the_host(self, captures: bool, conversions: Conversions) -> None:
        conditions: list[type] = []

        @op("Loop")
        def watched(M: Host, cond: Host | None = None, *states: Anywhere, body):  # type: ignore[no-untyped-def]
            for trip in range(int(M.item())):
                condition, *states = body(np.array(trip), np.array(True), *states)
                conditions.append(type(condition))
            return tuple(states)

        other = "x" if captures else "s1"
        text = f"""g (int64 n, float[1, 1] x, float[1, 1] s0) => (float[1, 1] s) {{
            s = Loop (n, "", s0) <body = b (int64 i, bool c, float[1, 1] s1) => (bool c2, float[1, 1] s2) {{
                k = Add(i, i) c2 = Cast <to = 9> (k) s2 = MatMul(s1, {other})
            }}>
        }}"""
        one = np.ones((1, 1), np.float32)
        program_of(text, None, watched).run([np.array(3), one, one])
        assert conditions == [np.ndarray] * 3
        assert conversions.to_host == []

    def test_constants_of_bodies_are_constants_to_translators(self) -> None:
        seen: list[tuple[bool, ...]] = []

        @op("own::Look")
        def look(ctx, a, b):  # type: ignore[no-untyped-def]
            seen.append((ctx.is_constant(0), ctx.is_constant(1)))
            return a

        text = """g (bool cond, float[1] x) => (float[1] y) {
            y = If (cond) <
                then_branch = t () => (float[1] r) { r = own.Look(x, w) }, else_branch = e () => (float[1] x) { }
            >
        }"""
        program_of(text, {"w": f32(1)}, look).run([np.array(True), f32(1)])
        assert seen == [(False, True)]

    def test_a_body_called_with_the_wrong_number_of_inputs(self) -> None:
        @op("If")
        def wrong(cond, *, then_branch, else_branch):  # type: ignore[no-untyped-def]
            return then_branch(cond)

        model = parsed(self.IF.replace("own_w", "w"), {"w": f32(2, 2)})
        found = Program(build_plan(graph_of_model(model)), registry_with(wrong), "cpu")
        with pytest.raises(TranslationError, match="TypeError: body 't' takes 0 inputs, and got 1"):
            found.run([np.array(True), f32(1, 2)])


class TestBfloat16:
    ONE_AND_TWO = np.array([0x3F80, 0x4000], np.uint16)

    def test_inputs_and_outputs(self) -> None:
        found = program_of("g (bfloat16[2] x) => (bfloat16[2] y, bfloat16[2] x) { y = Add(x, x) }")
        for given in (self.ONE_AND_TWO, self.ONE_AND_TWO.view(ml_dtypes.bfloat16)):
            y, x = found.run([given])
            assert (y.dtype, x.dtype) == (mx.bfloat16, mx.bfloat16)
            assert (to_host(y).tolist(), to_host(x).tolist()) == ([2, 4], [1, 2])

    @pytest.mark.parametrize("size", [2, 3000])
    @pytest.mark.parametrize("operator", ["Mul(x, w)", "Identity(w)"])
    def test_constants(self, size: int, operator: str) -> None:
        w = np.full(size, 3, ml_dtypes.bfloat16)
        found = program_of(f"g (bfloat16[{size}] x) => (bfloat16[{size}] y) {{ y = {operator} }}", {"w": w})
        (y,) = found.run([np.full(size, 0x3F80, np.uint16)])
        assert y.dtype == mx.bfloat16
        assert set(to_host(y).tolist()) == {3}

    def test_a_host_input_arrives_as_float32_and_its_value_stays_bfloat16(self) -> None:
        seen: list[Any] = []

        @op("own::Read")
        def read(a: Host, b: Anywhere, c: Host):  # type: ignore[no-untyped-def]
            seen.append((a, c))
            return b

        text = "g (bfloat16[2] x) => (bfloat16[2] y) { y = own.Read(w, w, x) }"
        found = program_of(text, {"w": np.array([5, 6], ml_dtypes.bfloat16)}, read)
        for _ in range(2):
            (y,) = found.run([self.ONE_AND_TWO])
            assert y.dtype == mx.bfloat16
        for w, x in seen:
            assert (w.dtype, w.tolist(), x.dtype, x.tolist()) == (np.float32, [5, 6], np.float32, [1, 2])

    def test_arithmetic_on_the_host_gives_bfloat16_back(self) -> None:
        text = "g (float[2, 3] x) => (bfloat16[2] y) { s = Shape(x) c = Cast <to = 16> (s) y = Mul(c, w) }"
        (y,) = program_of(text, {"w": np.array([2, 2], ml_dtypes.bfloat16)}).run([np.ones((2, 3), np.float32)])
        assert y.dtype == mx.bfloat16
        assert to_host(y).tolist() == [4, 6]


def failing(name: str, fail: Callable[..., Any]) -> Handler:
    """A handler of own::`name` of one input."""
    return op(f"own::{name}")(lambda ctx, a: fail(a))


def raise_(error: Exception) -> Any:
    raise error


def singular(a: Any) -> Any:
    """Fails when MLX computes it, not when it is translated."""
    return mx.linalg.inv(mx.zeros_like(a), stream=mx.cpu)


class TestErrors:
    X = np.ones((2, 2), np.float32)

    def message(self, body: str, *handlers: Any) -> str:
        found = program_of(f"g (float[2, 2] x) => (float[2, 2] y) {{ {body} }}", None, *handlers)
        with pytest.raises(TranslationError) as caught:
            found.run([self.X])
        return str(caught.value)

    def test_of_a_translator_names_all_there_is_to_know(self) -> None:
        fail = failing("Bad", lambda a: raise_(KeyError("gone")))
        model = parsed("g (float[2, 2] x) => (float[2, 2] y) { y = own.Bad(x) }")
        model.graph.node[0].name = "the node"
        found = Program(build_plan(graph_of_model(model)), registry_with(fail), "cpu")
        with pytest.raises(TranslationError) as caught:
            found.run([self.X])
        assert re.sub(r"test_engine\.py:\d+", "the line", str(caught.value)) == (
            "node 'the node' (own::Bad, version 1) failed in pack 'own': KeyError: 'gone' (the line). Its inputs: "
            "float32[2, 2]. If they are as they should be, turn this handler off in registry.yaml:  "
            'ops: {"own::Bad": {deny: ["own"]}}'
        )
        assert isinstance(caught.value.__cause__, KeyError)

    def test_the_line_that_an_error_gives_works(self) -> None:
        message = self.message("y = own.Bad(x)", failing("Bad", lambda a: raise_(KeyError("gone"))))
        policy = parse_policy(message.partition("registry.yaml:  ")[2], "file")
        assert policy.denial("own::Bad", "own") is not None
        assert policy.denial("own::Bad", "standard") is None

    def test_absent_inputs_and_no_inputs(self) -> None:
        @op("own::Bad")
        def bad(a=None, b=None):  # type: ignore[no-untyped-def]
            raise ValueError("no")

        assert "Its inputs: absent, float32[2, 2]. " in self.message('y = own.Bad("", x)', bad)
        assert "Its inputs: none. " in self.message("y = own.Bad()", bad)

    @pytest.mark.parametrize("error", [Decline("not after all"), ModelError("unreadable"), MemoryError("full")])
    def test_errors_of_all_kinds_are_told_of_alike(self, error: Exception) -> None:
        message = self.message("y = own.Bad(x)", failing("Bad", lambda a: raise_(error)))
        assert (
            f"(own::Bad, version 1) failed in pack 'own': {type(error).__name__}: {error} (test_engine.py:" in message
        )

    @pytest.mark.parametrize(
        "body",
        [
            "y = own.Singular(x)",
            "a = own.Singular(x) y = Add(a, x)",
            "a = own.Singular(x) b = Add(a, x) y = MatMul(b, a)",
            "a = own.Singular(x) s = ReduceSum(a) k = Cast <to = 7> (s) r = own.Vector(k) y = Reshape(x, r)",
        ],
        ids=["output", "read", "read twice", "read on the host"],
    )
    def test_of_evaluation_name_the_node_that_could_not_be_computed(self, body: str) -> None:
        vector = op("own::Vector")(lambda a: a.reshape(-1))
        message = self.message(body, failing("Singular", singular), vector)
        assert "(own::Singular, version 1) failed in pack 'own': RuntimeError: [Inverse::eval_cpu]" in message
        assert "Its inputs: float32[2, 2]." in message

    def test_of_evaluation_inside_a_body(self) -> None:
        text = """g (bool cond, float[2, 2] x) => (float[2, 2] z) {
            y = If (cond) <
                then_branch = t () => (float[2, 2] r) { p = own.Singular(x) r = Add(p, x) },
                else_branch = e () => (float[2, 2] x) { }
            >
            z = Add(y, x)
        }"""
        found = program_of(text, None, failing("Singular", singular))
        with pytest.raises(TranslationError, match=r"\(own::Singular, version 1\) failed in pack 'own': RuntimeError"):
            found.run([np.array(True), self.X])
        found.run([np.array(False), self.X])

    def test_of_a_translator_inside_a_body_name_the_inner_node(self) -> None:
        text = """g (bool cond, float[2, 2] x) => (float[2, 2] y) {
            y = If (cond) <
                then_branch = t () => (float[2, 2] r) { r = own.Bad(x) }, else_branch = e () => (float[2, 2] x) { }
            >
        }"""
        found = program_of(text, None, failing("Bad", lambda a: raise_(ValueError("no"))))
        with pytest.raises(TranslationError, match=r"^node 'Bad \(-> r\)' \(own::Bad"):
            found.run([np.array(True), self.X])

    def test_a_program_works_again_after_an_error(self) -> None:
        fails = iter([True, True, False])
        handler = failing("Moody", lambda a: raise_(ValueError("no")) if next(fails) else a)
        found = program_of("g (float[2, 2] x) => (float[2, 2] y) { y = own.Moody(x) }", None, handler)
        with pytest.raises(TranslationError):
            found.run([self.X])
        np.testing.assert_array_equal(to_host(found.run([self.X])[0]), self.X)

    def test_an_error_that_does_not_come_back_is_not_lost(self) -> None:
        fails = iter([True, False])
        message = self.message(
            "y = own.Moody(x)", failing("Moody", lambda a: raise_(ValueError("once")) if next(fails) else a)
        )
        assert "ValueError: once" in message

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (None, "the function <lambda> returned nothing: is a `return` missing?"),
            ("text", "a str is not an array that MLX can hold"),
            (np.array(["text"]), "an array of <U4 is not an array that MLX can hold"),
            (np.zeros(2, np.complex128), "an array of complex128 is not an array that MLX can hold"),
            ((), "the translator gave 0 outputs, and the node has 1"),
            ([], "the translator gave 0 outputs, and the node has 1"),
            ((None,), "nothing is not an array that MLX can hold"),
        ],
    )
    def test_translators_that_give_no_arrays(self, given: Any, message: str) -> None:
        assert f"TypeError: {message}." in self.message("y = own.Bad(x)", failing("Bad", lambda a: given))

    def test_too_few_outputs(self) -> None:
        message = self.message("y, z = own.Bad(x)", failing("Bad", lambda a: (a,)))
        assert "TypeError: the translator gave 1 outputs, and the node has 2." in message

    def test_more_outputs_than_the_node_has(self) -> None:
        found = program_of("g (float[1] x) => (float[1] y) { y = own.Op(x) }", None, failing("Op", lambda a: (a, a, a)))
        assert to_host(found.run([f32(3)])[0]) == 3

    @pytest.mark.parametrize("given", [np.float32(3), 3.0, [3.0], np.array([3], np.float32), mx.array([3.0])])
    def test_numbers_and_numpy_arrays_are_outputs_too(self, given: Any) -> None:
        found = program_of("g (float[1] x) => (float[1] y) { y = own.Op(x) }", None, failing("Op", lambda a: (given,)))
        assert to_host(found.run([f32(0)])[0]) == 3

    def test_hooks_written_by_hand_must_give_a_sequence(self) -> None:
        class ByHand:
            operators = ("own::Op",)

            @hookimpl
            def claim(self, node: Node) -> bool:
                return True

            @hookimpl
            def translate(self, ctx: Context, node: Node) -> Any:
                return ctx.inputs[0]

        message = self.message("y = own.Op(x)", ByHand())
        assert "TypeError: the translator gave an array of mlx.core.float32, and not a tuple of outputs." in message


class TestChecks:
    """Data that an operator does not allow, and that only the device knows."""

    @staticmethod
    def checked() -> Handler:
        @op("own::Positive")
        def positive(ctx, a):  # type: ignore[no-untyped-def]
            ctx.check(a > 0, "an element is not positive")
            return a * 2

        return positive

    def test_what_does_not_hold_is_an_error_that_names_the_node(self) -> None:
        found = program_of("g (float[2] x) => (float[2] y) { a = own.Positive(x) y = Add(a, a) }", None, self.checked())
        assert to_host(found.run([f32(1, 2)])[0]).tolist() == [4, 8]
        with pytest.raises(
            TranslationError, match=r"\(own::Positive, version 1\).*: an element is not positive"
        ) as error:
            found.run([f32(1, -2)])
        assert "Its inputs: float32[2]" in str(error.value)
        assert to_host(found.run([f32(1, 2)])[0]).tolist() == [4, 8]

    def test_even_where_nobody_reads_the_result(self) -> None:
        found = program_of("g (float[2] x) => (float[2] y) { a = own.Positive(x) y = Add(x, x) }", None, self.checked())
        with pytest.raises(TranslationError, match="not positive"):
            found.run([f32(0, 1)])

    def test_known_data_is_judged_at_once(self) -> None:
        @op("own::Few")
        def few(ctx, a, count: Host):  # type: ignore[no-untyped-def]
            ctx.check(count < 3, f"{count} are too many")
            return a

        found = program_of("g (float[2] x, int64 n) => (float[2] y) { y = own.Few(x, n) }", None, few)
        found.run([f32(1, 2), np.array(2)])
        with pytest.raises(TranslationError, match="ValueError: 3 are too many"):
            found.run([f32(1, 2), np.array(3)])

    @pytest.mark.parametrize("trips", [3, MOST_CHECKS + 10])
    def test_inside_a_loop(self, trips: int) -> None:
        text = """g (int64 n, float[1] x) => (float[1] y) {
            y = Loop (n, , x) <
                body = b (int64 i, bool c, float[1] v) => (bool d, float[1] w) {
                    d = Identity(c) p = own.Positive(v) q = Add(v, m) w = Identity(q)
                }
            >
        }"""
        found = program_of(text.replace("(n, ,", '(n, "",'), {"m": f32(-1)}, self.checked())
        assert to_host(found.run([np.array(trips), f32(trips + 1)])[0]).tolist() == [1]
        with pytest.raises(TranslationError, match="not positive"):
            found.run([np.array(trips), f32(trips - 1)])


class TestNothingIsWrittenTo:
    """What one translator reads, others read too."""

    def test_arithmetic_in_place_stays_with_its_translator(self) -> None:
        @op("own::Greedy")
        def greedy(a, b):  # type: ignore[no-untyped-def]
            a += 1
            b[0] = 100
            return a + b

        text = "g (float[2] x) => (float[2] y, float[2] z) { a = own.Greedy(x, w) y = Add(a, x) z = Mul(x, w) }"
        found = program_of(text, {"w": f32(3, 4)}, greedy)
        for _ in range(2):
            y, z = found.run([f32(1, 2)])
            assert to_host(y).tolist() == [103, 9]
            assert to_host(z).tolist() == [3, 8]

    def test_host_values_are_read_only(self) -> None:
        @op("own::Greedy")
        def greedy(a, count: Host):  # type: ignore[no-untyped-def]
            count[0] = 7
            return a

        texts = [
            "g (float[2] x, int64[1] n) => (float[2] y) { y = own.Greedy(x, n) }",
            "g (float[2] x, int64[1] n) => (float[2] y) { s = Shape(x) y = own.Greedy(x, s) }",
            "g (float[2] x, int64[1] n) => (float[2] y) { y = own.Greedy(x, w) }",
        ]
        for text in texts:
            found = program_of(text, {"w": np.array([2])}, greedy)
            with pytest.raises(TranslationError, match="read-only"):
                found.run([f32(1, 2), np.array([2])])


@op("SequenceConstruct")
def construct(*inputs: Anywhere) -> Tensors:
    return Tensors(inputs)


@op("SequenceInsert")
def insert(s: Tensors, X: Anywhere) -> Tensors:
    return s.inserted(len(s), X)


@op("SequenceAt")
def at(s: Tensors, p: Host):  # type: ignore[no-untyped-def]
    return s[int(p)]


@op("SequenceErase")
def erase(s: Tensors, p: Host) -> Tensors:
    return s.erased(int(p))


LISTS = (construct, insert, at, erase)


class TestSequences:
    def test_hold_tensors_where_they_are(self, conversions: Conversions) -> None:
        text = """g (float[2] x, int64 p, int64 q) => (float[2] y, float[2] z) {
            a = MatMul(x, w) s = SequenceConstruct(a, x) y = SequenceAt(s, p) z = SequenceAt(s, q)
        }"""
        y, z = program_of(text, {"w": np.eye(2, dtype=np.float32)}, *LISTS).run([f32(1, 2), np.array(0), np.array(1)])
        assert isinstance(y, mx.array)
        assert isinstance(z, np.ndarray)
        assert (to_host(y).tolist(), z.tolist()) == ([1, 2], [1, 2])
        assert (conversions.to_device, conversions.to_host) == ([(2,)], [])

    def test_never_change(self) -> None:
        text = """g (float[2] x, int64 p) => (float[2] first, float[2] last, float[2] z) {
            s = SequenceConstruct(x) t = SequenceInsert(s, w) u = SequenceErase(t, p) first = SequenceAt(s, p)
            last = SequenceAt(t, m) z = SequenceAt(u, p)
        }"""
        found = program_of(text, {"w": f32(3, 4), "m": np.array(-1)}, *LISTS)
        outputs = [to_host(each).tolist() for each in found.run([f32(1, 2), np.array(0)])]
        assert outputs == [[1, 2], [3, 4], [3, 4]]

    @pytest.mark.parametrize("of", ["a", "x"])
    def test_what_a_translator_does_to_a_tensor_stays_with_it(self, of: str) -> None:
        @op("own::Greedy")
        def greedy(s: Tensors):  # type: ignore[no-untyped-def]
            total = 0
            for tensor in (s[0], *s):
                tensor += 1
                total = total + tensor
            return total

        text = f"""g (float[2] x, int64 p) => (float[2] y, float[2] z) {{
            a = MatMul(x, w) s = SequenceConstruct({of}) y = own.Greedy(s) z = SequenceAt(s, p)
        }}"""
        found = program_of(text, {"w": np.eye(2, dtype=np.float32)}, greedy, *LISTS)
        if of == "x":
            with pytest.raises(TranslationError, match="read-only"):
                found.run([f32(1, 2), np.array(0)])
        else:
            y, z = found.run([f32(1, 2), np.array(0)])
            assert (to_host(y).tolist(), to_host(z).tolist()) == ([4, 6], [1, 2])

    @pytest.mark.parametrize("place", ["mx.array | Tensors", "Anywhere | Tensors"])
    def test_are_handed_on_as_they_are(self, place: str, conversions: Conversions) -> None:
        def handed_on(input: Any) -> Any:
            return input

        either = {"input": mx.array | Tensors if "mx" in place else Anywhere | Tensors}
        handed_on.__annotations__ = {**either, "return": either["input"]}
        handler = op("own::HandOn")(handed_on)
        handler.host(handed_on)
        text = """g (bool c, float[2] x, int64 p) => (float[2] y) {
            s = SequenceConstruct(x)
            t = own.HandOn(s)
            u = If (c) <
                then_branch = a () => (seq(float[2]) v) { v = own.HandOn(t) },
                else_branch = b () => (seq(float[2]) v2) { v2 = SequenceErase(t, p) }
            >
            y = SequenceAt(u, p)
        }"""
        (y,) = program_of(text, None, handler, *LISTS).run([np.array(True), f32(1, 2), np.array(0)])
        assert isinstance(y, np.ndarray)
        assert y.tolist() == [1, 2]
        assert conversions.to_device == []

    def test_as_states_of_a_loop(self) -> None:
        text = """g (int64 n, float[1] x, int64 p) => (float[1] y) {
            s = SequenceConstruct(x)
            t = Loop (n, "", s) <body = b (int64 i, bool c, seq(float[1]) before) => (bool d, seq(float[1]) after) {
                d = Identity(c) f = Cast <to = 1> (i) g = Add(f, x) after = SequenceInsert(before, g)
            }>
            y = SequenceAt(t, p)
        }"""
        found = program_of(text, None, *LISTS)
        for position, expected in ((0, 10), (1, 10), (-1, 14)):
            assert to_host(found.run([np.array(5), f32(10), np.array(position)])[0]) == expected

    def test_go_with_their_last_use(self) -> None:
        alive: list[int] = []

        @op("own::Alive")
        def count(a):  # type: ignore[no-untyped-def]
            alive.append(sum(reference() is not None for reference in references))
            return a

        @op("own::Keep")
        def keep(a: Anywhere) -> Tensors:
            made = Watched([a])
            references.append(weakref.ref(made))
            return made

        class Watched(Tensors):
            __slots__ = ("__weakref__",)

        references: list[weakref.ref[Watched]] = []
        text = """g (float[2] x, int64 p) => (float[2] y) {
            s = own.Keep(x) b = own.Alive(x) a = SequenceAt(s, p) c = Add(a, b) y = own.Alive(c)
        }"""
        program_of(text, None, keep, count, *LISTS).run([f32(1, 2), np.array(0)])
        assert alive == [1, 0]

    def test_no_run_ends_in_one(self) -> None:
        message = "output 's' is a sequence of 2 tensors; only tensors leave a subgraph"
        with pytest.raises(TranslationError, match=message):
            program_of("g (float[2] x) => (seq(float[2]) s) { s = SequenceConstruct(x, x) }", None, *LISTS).run(
                [f32(1)]
            )

    @pytest.mark.parametrize("given", [None, "text", Tensors(), np.zeros(2, np.complex128)])
    def test_hold_arrays_only(self, given: Any) -> None:
        @op("own::Bad")
        def bad(a: Any) -> Tensors:
            return Tensors([a, given])

        found = program_of(
            "g (float[1] x, int64 p) => (float[1] y) { s = own.Bad(x) y = SequenceAt(s, p) }", None, bad, at
        )
        with pytest.raises(
            TranslationError, match=r"\(own::Bad, version 1\).*TypeError: .* not an array that MLX can hold"
        ):
            found.run([f32(1), np.array(0)])
        with pytest.raises(TypeError, match="not an array that MLX can hold"):
            Tensors().inserted(0, given)

    @pytest.mark.parametrize(
        "body", ["s = SequenceConstruct(x, a)", "t = SequenceConstruct(x) s = SequenceInsert(t, a)"]
    )
    def test_what_cannot_be_computed_is_blamed_on_the_node_that_made_it(self, body: str) -> None:
        text = f"g (float[2, 2] x, int64 p) => (float[2, 2] y) {{ a = own.Singular(x) {body} y = SequenceAt(s, p) }}"
        found = program_of(text, None, failing("Singular", singular), *LISTS)
        with pytest.raises(TranslationError, match=r"\(own::Singular, version 1\) failed in pack 'own': RuntimeError"):
            found.run([np.ones((2, 2), np.float32), np.array(1)])

    def test_even_where_one_node_makes_tensor_and_sequence(self) -> None:
        @op("own::Broken")
        def broken(a: Any) -> Tensors:
            return Tensors([a, singular(a)])

        text = "g (float[2, 2] x, int64 p) => (float[2, 2] y) { s = own.Broken(x) a = SequenceAt(s, p) y = Add(a, x) }"
        with pytest.raises(TranslationError, match=r"\(own::Broken, version 1\) failed in pack 'own': RuntimeError"):
            program_of(text, None, broken, *LISTS).run([np.ones((2, 2), np.float32), np.array(1)])

    def test_are_told_of_in_errors(self) -> None:
        @op("own::Bad")
        def bad(s: Tensors) -> Any:
            raise ValueError("no")

        text = "g (float[2] x) => (float[2] y) { s = SequenceConstruct(x, x, x) y = own.Bad(s) }"
        with pytest.raises(
            TranslationError, match=r"ValueError: no \(test_engine\.py:\d+\)\. Its inputs: a sequence of 3 tensors\."
        ):
            program_of(text, None, bad, *LISTS).run([f32(1, 2)])


class TestTensors:
    def test_as_a_python_sequence(self) -> None:
        one, two = f32(1), mx.array([2.0])
        tensors = Tensors([one, two, 3.0])
        assert len(tensors) == 3
        assert [to_host(each).tolist() for each in tensors] == [[1], [2], 3]
        assert to_host(tensors[-2]).tolist() == [2]
        assert bool(tensors)
        assert not Tensors()
        with pytest.raises(IndexError):
            tensors[3]

    @pytest.mark.parametrize("index", range(-3, 4))
    def test_insertion_and_erasure_are_those_of_a_list(self, index: int) -> None:
        numbers = [1.0, 2.0, 3.0]
        tensors = Tensors(map(np.float32, numbers))
        inserted = [*numbers]
        inserted.insert(index, 9.0)
        assert [float(each) for each in tensors.inserted(index, mx.array(9.0))] == inserted
        if index < 3:
            erased = [*numbers]
            del erased[index]
            assert [float(each) for each in tensors.erased(index)] == erased
        else:
            with pytest.raises(IndexError):
                tensors.erased(index)
        assert [float(each) for each in tensors] == numbers

    def test_each_is_given_to_be_computed_once(self) -> None:
        first, second = mx.array([1.0]), mx.array([2.0])
        tensors = Tensors([first, f32(0)])
        longer = tensors.inserted(0, second)
        assert longer.erased(0).take_lazy() == (first,)
        assert [len(each.take_lazy()) for each in (tensors, tensors, longer, longer)] == [1, 0, 2, 0]
        assert longer.inserted(0, f32(3)).take_lazy() == ()


class TestBlame:
    """An error is that of the pack whose code raised it."""

    @pytest.mark.parametrize("culprit", ["wrapper", "handler"])
    def test_of_a_wrapper_and_of_what_it_wraps(self, culprit: str) -> None:
        def source(name: str, text: str) -> dict[str, Any]:
            space: dict[str, Any] = {"__name__": name, "fails": name.startswith(culprit)}
            exec(text, space)
            return space

        handler = source(
            "handler_pack.ops",
            """
from opgraft.ops import op
@op("own::Double")
def double(a):
    if fails: raise KeyError("gone")
    return a * 2
""",
        )["double"]
        wrapper = source(
            "wrapper_pack.wrap",
            """
from opgraft.ops import hookimpl
class Wrapper:
    operators = ("own::*",)
    @hookimpl(wrapper=True)
    def translate(self, ctx, node):
        result = yield
        if fails: raise KeyError("gone")
        return result
""",
        )["Wrapper"]()
        packs = [Pack("inner", plugins=(handler,)), Pack("outer", plugins=(wrapper,))]
        registry = Registry(packs, parse_policy("packs: [outer, inner]", "registry.yaml"))
        plan = build_plan(graph_of_model(parsed("g (float[2] x) => (float[2] y) { y = own.Double(x) }")))
        pack = {"wrapper": "outer", "handler": "inner"}[culprit]
        with pytest.raises(TranslationError, match=rf"failed in pack '{pack}': KeyError.*deny: \[\"{pack}\"\]"):
            Program(plan, registry, "cpu").run([f32(1, 2)])


class TestThreads:
    """MLX's arrays belong to the thread that made them until they are computed."""

    def run_at_once(self, found: Program, inputs: Sequence[Sequence[Any]]) -> list[Any]:
        barrier = threading.Barrier(len(inputs))

        def run(given: Sequence[Any]) -> Any:
            barrier.wait()
            return [to_host(each) for each in found.run(given)]

        with ThreadPoolExecutor(len(inputs)) as threads:
            return list(threads.map(run, inputs))

    def test_runs_at_once_share_nothing(self) -> None:
        text = """g (float[16, 16] x, bool cond) => (float[16, 16] y) {
            a = MatMul(x, w) b = Add(a, x)
            y = If (cond) <
                then_branch = t () => (float[16, 16] r) { r = MatMul(b, w) },
                else_branch = e () => (float[16, 16] q) { q = Add(b, a) }
            >
        }"""
        w = np.eye(16, dtype=np.float32) * 2
        found = program_of(text, {"w": w})
        inputs = [[np.full((16, 16), k, np.float32), np.array(k % 2 == 0)] for k in range(8)]
        for _ in range(5):
            for k, (y,) in enumerate(self.run_at_once(found, inputs)):
                assert np.all(y == (6 * k if k % 2 == 0 else 5 * k))

    def test_prepared_values_are_good_in_every_thread(self) -> None:
        inside = threading.Barrier(4, timeout=10)

        @op("own::Linear")
        def linear(ctx, X, W):  # type: ignore[no-untyped-def]
            weight, bias = ctx.prepared(1, lambda given: (given.T, mx.sum(given, axis=1)))
            inside.wait()  # all have it before any computes its result
            return X @ weight + bias

        text = "g (float[1, 2] x) => (float[1, 3] y) { y = own.Linear(x, w) }"
        found = program_of(text, {"w": np.arange(6, dtype=np.float32).reshape(3, 2)}, linear)
        outputs = self.run_at_once(found, [[np.full((1, 2), k, np.float32)] for k in range(4)])
        for k, (y,) in enumerate(outputs):
            assert y.tolist() == [[k + 1, 5 * k + 5, 9 * k + 9]]

    def test_a_prepared_value_that_the_first_run_never_computes(self) -> None:
        @op("own::Pick")
        def pick(ctx, W, cond: Host):  # type: ignore[no-untyped-def]
            doubled = ctx.prepared(0, lambda weight: weight * 2)
            return doubled if cond.item() else mx.zeros_like(doubled)

        found = program_of("g (bool cond) => (float[2] y) { y = own.Pick(w, cond) }", {"w": f32(1, 2)}, pick)
        assert to_host(found.run([np.array(False)])[0]).tolist() == [0, 0]
        ((y,),) = self.run_at_once(found, [[np.array(True)]])
        assert y.tolist() == [2, 4]

    def test_arrays_inside_of_prepared_objects(self) -> None:
        @op("own::Linear")
        def linear(ctx, X, W):  # type: ignore[no-untyped-def]
            kept = ctx.prepared(1, lambda given: SimpleNamespace(parts={"scale": [mx.sqrt(given)]}))
            return X * kept.parts["scale"][0]

        found = program_of("g (float[2] x) => (float[2] y) { y = own.Linear(x, w) }", {"w": f32(4, 9)}, linear)
        for (y,) in self.run_at_once(found, [[f32(k, k)] for k in range(8)]):
            assert y[0] * 3 == y[1] * 2

    def test_all_runs_get_the_same_cached_object(self) -> None:
        inside = threading.Barrier(4, timeout=10)
        counters: list[Any] = []

        @op("own::Count")
        def count(ctx, a):  # type: ignore[no-untyped-def]
            def make() -> Any:
                inside.wait()
                return itertools.count()

            counters.append(ctx.cached("counter", make))
            return a

        found = program_of("g (float[1] x) => (float[1] y) { y = own.Count(x) }", None, count)
        self.run_at_once(found, [[f32(k)] for k in range(4)])
        assert len(counters) == 4
        assert all(each is counters[0] for each in counters)

    def test_a_program_made_in_one_thread_runs_in_another(self) -> None:
        with ThreadPoolExecutor(1) as threads:
            text = "g (float[2] x) => (float[2] y) { y = Mul(x, w) }"
            found = threads.submit(program_of, text, {"w": np.array([3, 4], np.float32)}).result()
            bfloat16 = threads.submit(
                program_of,
                "g (bfloat16[1] x) => (bfloat16[1] y) { y = Mul(x, w) }",
                {"w": np.ones(1, ml_dtypes.bfloat16)},
            ).result()
        assert to_host(found.run([f32(1, 2)])[0]).tolist() == [3, 8]
        assert to_host(bfloat16.run([np.array([0x4000], np.uint16)])[0]).tolist() == [2]

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
    def test_threads_that_come_and_go_leave_no_threads_behind(self) -> None:
        found = program_of("g (float[2] x) => (float[2] y) { y = Mul(x, w) }", {"w": f32(3, 4)})

        def threads_of_process() -> int:
            return len(os.listdir("/proc/self/task"))

        def run() -> None:
            found.run([f32(1, 2)])

        before = threads_of_process()
        for _ in range(20):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        until = time.monotonic() + 10  # a thread drops its traces when it has ended for Python
        while threads_of_process() > before + 1 and time.monotonic() < until:
            time.sleep(0.01)
        assert threads_of_process() <= before + 1


class TestRandomKeys:
    def test_every_draw_has_its_own(self) -> None:
        @op("own::Random")
        def random(ctx, a: Anywhere):  # type: ignore[no-untyped-def]
            return mx.random.randint(0, 2**31 - 1, (4,), key=ctx.random_key())

        found = program_of(
            "g (float[1] x) => (int32[4] y, int32[4] z) { y = own.Random(x) z = own.Random(x) }", None, random
        )
        draws = [tuple(to_host(each).tolist()) for _ in range(3) for each in found.run([f32(1)])]
        assert len(set(draws)) == 6
