"""Compiled execution: graph breaks, forms, threads; always the same answers as step by step."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import onnx.parser
import pytest

from opgraft.engine import Program, read_model
from opgraft.engine import compiled as engine_compiled
from opgraft.engine.fusing import Fusing
from opgraft.errors import TranslationError
from opgraft.ops import Handler, Host, op
from opgraft.plan import build_plan
from opgraft.registry import Pack, Registry, load_registry, parse_policy

A, B = (", ".join(str(n % 7 - 3) for n in range(size)) for size in (32, 24))
MLP = f"""g (float[N, 4] x) => (float[N, 3] z) <float[4, 8] a = {{{A}}}, float[8, 3] b = {{{B}}}> {{
    h = MatMul (x, a) r = Relu (h) y = MatMul (r, b) z = Sigmoid (y)
}}"""


@pytest.fixture(autouse=True)
def every_segment_is_worth_it(monkeypatch):
    monkeypatch.setattr(engine_compiled, "LEAST_BUILDING", 0.0)


def with_handler(handler: Handler) -> Registry:
    """The built-in pack behind one that has nothing but this handler."""
    builtin = next(pack for pack in load_registry().packs if pack.name == "builtin")
    policy = parse_policy("packs: [own, builtin]", "registry.yaml")
    return Registry([Pack("own", plugins=(handler,)), builtin], policy)


def program_of(text: str, registry: Registry | None = None) -> Program:
    registry = registry or load_registry()
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "acme": 1]>\n{text}')
    return Program(build_plan(read_model(model, registry.definitions)), registry, "cpu")


def outputs(program: Program, *inputs: Any) -> list[np.ndarray]:
    return [np.array(each) for each in program.run(list(inputs))]


def both(text: str, *runs: tuple[Any, ...], registry: Registry | None = None) -> Program:
    """The program after the runs, each of which was compared with one that is not compiled."""
    program, plain = program_of(text, registry), program_of(text, registry)
    plain.compiler = None
    for inputs in runs:
        for found, expected in zip(outputs(program, *inputs), outputs(plain, *inputs), strict=True):
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == expected.dtype
    return program


def rows(count: int) -> np.ndarray:
    return np.arange(4 * count, dtype=np.float32).reshape(count, 4) / 7 - 1


def test_a_form_is_traced_once_and_replayed():
    program = both(MLP, *[(rows(2) * k,) for k in range(8)])
    assert (program.compiler.counts.traced, program.compiler.counts.replayed) == (1, 4)


def test_each_form_has_its_own_trace():
    program = both(MLP, *[(rows(1 + k % 3),) for k in range(15)])
    assert program.compiler.counts.traced == 3


def test_what_comes_once_is_not_traced():
    program = both(MLP, *[(rows(1 + k),) for k in range(12)])
    assert program.compiler.counts.traced == 0


def test_many_forms_are_bounded(monkeypatch):
    monkeypatch.setattr(engine_compiled, "MOST_FORMS", 4)
    program = both(MLP, *[(rows(1 + k % 7),) for k in range(40)])
    assert len(program.compiler._traces) <= 4


def test_it_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("OPGRAFT_COMPILE", "0")
    assert program_of(MLP).compiler is None


def test_data_read_on_the_host_is_a_graph_break():
    text = """g (float[N] x) => (float[M] y) {
        a = Mul (x, x) b = Exp (a) where = NonZero (x) flat = Squeeze (where) picked = Gather (b, flat) y = Log (picked)
    }"""
    runs = [(np.array(values, np.float32),) for values in ([1, 0, 2], [0, 0, 3], [1, 2, 3], [0, 5, 0])] * 4
    program = both(text, *runs)
    assert program.compiler.counts.replayed


def test_a_value_on_the_host_is_part_of_the_form():
    text = """g (float[6] x, int64[2] shape) => (float[A, B] y) { a = Relu (x) b = Reshape (a, shape) y = Neg (b) }"""
    x = np.arange(6, dtype=np.float32)
    program = both(text, *[(x + k, np.array(((2, 3), (3, 2))[k % 2])) for k in range(10)])
    assert program.compiler.counts.traced == 2


def test_what_a_trace_knows_outlives_the_run_it_came_with():
    program = program_of(
        "g (float[8] x, int64[1] start) => (float[M] y) { a = Relu (x) y = Slice (a, start, end) }".replace(
            "a = Relu", "end = Constant <value_ints = [8]> () a = Relu"
        )
    )
    x, found = np.arange(8, dtype=np.float32), []

    def work() -> None:
        for _ in range(4):
            start = np.array([2])
            found.append(outputs(program, x, start)[0].tolist())
            start[:] = 5  # its memory is the caller's again

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [x[2:].tolist()] * 12
    assert program.compiler.counts.traced == 3


def test_no_two_forms_have_one_number_ever():
    program = both(MLP, *[(rows(1 + k % 3),) for k in range(8)])
    before = set(program.compiler._forms.values())
    program.compiler.forget()  # while another thread, perhaps, is at work with an old number
    outputs(program, rows(1))
    assert program.compiler._forms
    assert before.isdisjoint(program.compiler._forms.values())


def test_a_value_on_the_host_that_does_not_count_is_no_part_of_the_form():
    @op("acme::FirstRows")
    def first_rows(X, most: Host):
        return X[: int(most.item())]

    first_rows.decides("most")(lambda node, most, shapes: shapes[0] is None or most.item() < shapes[0][0])
    first_rows.schema(lambda X, most: X)
    registry = with_handler(first_rows)
    text = "g (float[N, 4] x, int64 n) => (float[M, 4] y) { a = acme.FirstRows (x, n) y = Neg (a) }"
    program = both(text, *[(rows(5), np.array(n)) for n in range(5, 17)], registry=registry)
    assert (program.compiler.counts.traced, program.compiler.counts.replayed) == (1, 8)
    for n in (3, 9, 3, 3, 2, 7, 0):
        (found,) = outputs(program, rows(5), np.array(n))
        np.testing.assert_array_equal(found, -rows(5)[:n])


def test_what_differs_at_every_run_stays_out_of_the_segments():
    text = MLP.replace("float[N, 4] x", "float[N, 4] x, float[M] mask").replace(
        "z = Sigmoid (y)", "s = Sigmoid (y) count = ReduceSum <keepdims = 0> (mask) z = Mul (s, count)"
    )
    program = both(text, *[(rows(2), np.ones(3 + k, np.float32)) for k in range(30)])
    counts = program.compiler.counts
    assert counts.traced <= 2 and counts.replayed >= 20
    again = both(text, *[(rows(2 + k), np.ones(3 + k, np.float32)) for k in range(80)])
    assert not again.compiler.counts.traced


def test_forms_that_come_once_do_not_push_out_what_is_in_use(monkeypatch):
    monkeypatch.setattr(engine_compiled, "MOST_FORMS", 8)
    program = both(MLP, *[(rows(2 if k % 2 else 3 + k),) for k in range(80)])
    assert program.compiler.counts.traced == 1
    assert len(program.compiler._forms) <= 8


def test_random_bits_differ_at_every_run():
    program = program_of("g (float[64] x) => (float[64] y) { a = Relu (x) r = RandomNormalLike (a) y = Add (r, a) }")
    drawn = [outputs(program, np.zeros(64, np.float32))[0] for _ in range(6)]
    assert len({each.tobytes() for each in drawn}) == len(drawn)


def test_checks_of_the_data_are_made_in_a_trace_too():
    text = "g (float[4] x, int64[2] i) => (float[2] y) { a = Relu (x) b = Gather (a, i) y = Neg (b) }"
    program = both(text, *[(np.arange(4, dtype=np.float32), np.array([0, k])) for k in (0, 1, 2, 3, 3)])
    assert program.compiler.counts.replayed
    for _ in range(2):
        with pytest.raises(TranslationError, match="Gather"):
            outputs(program, np.ones(4, np.float32), np.array([0, 4]))
    assert outputs(program, np.arange(4, dtype=np.float32), np.array([1, 2]))[0].tolist() == [-1, -2]


@pytest.mark.parametrize("compiled", [True, False])
def test_what_nodes_have_in_common_is_made_and_checked_once_a_run(compiled):
    made: list[tuple[int, ...]] = []

    @op("acme::Scaled")
    def scaled(ctx, x, factor, *, power=1):
        def make():
            made.append((power, *x.shape))
            ctx.check(factor > 0, "the factor is not positive")
            return factor**power

        return x * ctx.shared(power, (1,), make)

    text = """g (float[4] x, float[1] f, float[1] g) => (float[4] y) {
        a = acme.Scaled <power = 2> (x, f) b = acme.Scaled <power = 2> (a, f)
        c = acme.Scaled <power = 3> (b, f) y = acme.Scaled <power = 2> (c, g)
    }"""
    program = program_of(text, with_handler(scaled))
    if not compiled:
        program.compiler = None
    x, two, three = np.ones(4, np.float32), np.float32([2]), np.float32([3])
    for _ in range(6):
        assert outputs(program, x, two, three)[0].tolist() == [4 * 4 * 8 * 9] * 4
    assert len(made) == 3 * (4 if compiled else 6)
    with pytest.raises(TranslationError, match="not positive"):
        outputs(program, x, -two, three)


def test_loops_and_branches():
    text = """g (float[3] x, int64 n, bool c) => (float[3] y, float[K, 3] all) {
        start = Relu (x)
        y, all = Loop <body = b (int64 i, bool going, float[3] v) => (bool on, float[3] next, float[3] seen) {
            next = Add (v, x) seen = Mul (next, start) on = Identity (going)
        }> (n, c, start)
    }"""
    x = np.array([1, -2, 3], np.float32)
    both(text, *[(x * k, np.array(n), np.array(True)) for k in range(1, 4) for n in (1, 3, 0, 7)])
    text = """g (float[3] x) => (float[3] y) {
        total = ReduceSum <keepdims = 0> (x) zero = Constant <value_float = 0.0> () c = Greater (total, zero)
        a = Exp (x)
        y = If <then_branch = t () => (float[3] p) { p = Add (a, x) },
                else_branch = e () => (float[3] q) { q = Sub (a, x) }> (c)
    }"""
    both(text, *[(x * k,) for k in (1, -1, 2, -3, 4, -5, 1, -1)])


def test_a_translator_that_reads_by_itself_becomes_a_break():
    @op("acme::Sum")
    def peeking(X):
        return X * X.sum().item()

    peeking.schema()
    registry = with_handler(peeking)
    text = "g (float[3] x) => (float[3] y) { a = Relu (x) b = acme.Sum (a) y = Neg (b) }"
    program = both(text, *[(np.array([1, 2, k], np.float32),) for k in range(8)], registry=registry)
    assert program.compiler.counts.replayed


def test_threads():
    program = program_of(MLP)
    expected = [outputs(program, rows(2) * k)[0] for k in range(20)]
    wrong: list[int] = []

    def work() -> None:
        for k in range(20):
            if not np.array_equal(outputs(program, rows(2) * k)[0], expected[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


EXIT = """
import threading
import numpy as np
import sys
sys.path.insert(0, {folder!r})
from test_compiled import MLP, outputs, program_of, rows, engine_compiled
engine_compiled.LEAST_BUILDING = 0.0
program = program_of(MLP)

def work():
    for _ in range(6):
        outputs(program, rows(2))

threads = [threading.Thread(target=work) for _ in range({threads})]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(program.compiler.counts.traced > 0)
"""


@pytest.mark.parametrize("threads", [1, 4])
def test_a_process_may_end_right_after_such_a_thread(threads):
    script = EXIT.format(folder=str(Path(__file__).parent), threads=threads)
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr


def test_the_steps_of_a_segment_are_few_enough_for_any_stack():
    text = (
        "g (float[8] x) => (float[8] y) {"
        + " ".join(f"v{n} = Add ({'x' if n == 0 else f'v{n - 1}'}, x)" for n in range(3000))
        + " y = Neg (v2999) }"
    )
    program = program_of(text)
    done: list[np.ndarray] = []
    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(
            target=lambda: done.extend(outputs(program, np.ones(8, np.float32))[0] for _ in range(8))
        )
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert [each.tolist() for each in done] == [[-3001.0] * 8] * 8
    assert program.compiler.counts.replayed


def test_where_mlx_fails_with_a_trace_segments_become_shorter(monkeypatch):
    def failing(compiler, segment, frame, *, fuses):
        trace = new_trace(compiler, segment, frame, fuses=fuses)
        function = trace.function

        def called(arguments):
            results = function(arguments)
            if segment.end - segment.first > 2:
                raise IndexError("_Map_base::at")
            return results

        trace.function = called
        return trace

    new_trace = engine_compiled.Compiler._new_trace
    monkeypatch.setattr(engine_compiled.Compiler, "_new_trace", failing)
    program = both(MLP, *[(rows(2),)] * 20)
    assert [(each.first, each.end, each.traced) for each in program.compiler._segments] in (
        [(0, 1, True), (1, 2, True), (2, 3, True), (3, 4, True)],
        [(0, 2, True), (2, 4, True)],
        [(0, 1, True), (1, 3, True), (3, 4, True)],
        [(0, 1, True), (1, 2, True), (2, 4, True)],
        [(0, 2, True), (2, 3, True), (3, 4, True)],
    )
    assert program.compiler.counts.replayed > 2


def test_a_trace_in_use_is_fused_in_the_background(monkeypatch):
    monkeypatch.setattr(engine_compiled, "FUSED_AFTER_REPLAYS", 2)
    monkeypatch.setattr(engine_compiled, "FUSED_AFTER_SECONDS", 0.0)
    program, plain = program_of(MLP), program_of(MLP)
    program.compiler.fusing, plain.compiler = Fusing.LATER, None
    until = time.monotonic() + 60
    while not any(trace.fuses and trace.replays for trace in program.compiler._traces.values()):
        x = rows(2) * (time.monotonic() % 1)
        np.testing.assert_allclose(outputs(program, x)[0], outputs(plain, x)[0], rtol=1e-6)
        assert time.monotonic() < until
    assert program.compiler.counts.traced == 2


def test_fused_from_the_start(monkeypatch):
    monkeypatch.setenv("OPGRAFT_COMPILE", "fused")
    program = program_of(MLP)
    assert program.compiler.fusing is Fusing.AT_ONCE
    found = [outputs(program, rows(2))[0] for _ in range(4)]
    np.testing.assert_allclose(found[-1], found[0], rtol=1e-6)


def test_an_interrupted_trace_is_made_again():
    interrupts: list[bool] = []

    @op("acme::Slow")
    def slow(X):
        try:
            mx.eval(X)
        except ValueError:  # it is being traced
            if not interrupts:
                interrupts.append(True)
                raise KeyboardInterrupt from None
        return X * 2

    slow.schema()
    registry = with_handler(slow)
    program = program_of("g (float[3] x) => (float[3] y) { a = acme.Slow (x) y = Neg (a) }", registry)
    x, interrupted = np.array([1, 2, 3], np.float32), 0
    for _ in range(10):
        try:
            assert outputs(program, x)[0].tolist() == [-2, -4, -6]
        except KeyboardInterrupt:
            interrupted += 1
    assert interrupted == len(interrupts) == 1
    assert program.compiler.counts.replayed


def test_compilation_that_was_turned_off_stays_off():
    program = program_of(MLP)
    for _ in range(5):
        outputs(program, rows(2))
    assert program.compiler.counts.replayed
    calls: list[int] = []
    mx.disable_compile()
    try:
        with ThreadPoolExecutor(1) as pool:  # which has no trace of its own yet
            for _ in range(4):
                assert pool.submit(outputs, program, rows(2)).result()[0].shape == (2, 3)
        own = mx.compile(lambda x: calls.append(1) or x + 1)
        for _ in range(3):
            own(mx.zeros(2))
    finally:
        mx.enable_compile()
    assert len(calls) == 3


def test_threads_keep_their_lanes():
    program = program_of(MLP)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: outputs(program, rows(2) * k), range(400)))
    assert program.compiler.counts.traced <= 4 * 4
    assert program.compiler.counts.replayed >= 360


def test_a_translator_may_run_a_session_while_it_is_traced():
    inner = program_of("g (float[3] x) => (float[3] y) { y = Exp (x) }")

    @op("acme::Outer")
    def outer(X):
        for _ in range(4):
            (y,) = inner.run([np.zeros(3, np.float32)])
        return X + mx.array(np.array(y))

    outer.schema()
    registry = with_handler(outer)
    text = "g (float[3] x) => (float[3] y) { a = Relu (x) b = acme.Outer (a) y = Neg (b) }"
    both(text, *[(np.array([1, 2, k], np.float32),) for k in range(6)], registry=registry)
