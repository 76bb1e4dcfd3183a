"""Caches that grow, in buffers with room: the same answers as without, and few forms."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mlx.core as mx
import numpy as np
import onnx.parser
import pytest

from opgraft.engine import Program, parts, read_model
from opgraft.engine.parts import Part, Room, room_for, with_room
from opgraft.errors import ContractError, ModelError, TranslationError
from opgraft.ops import Handler, Host, op
from opgraft.plan import build_plan
from opgraft.registry import Pack, Registry, load_registry, parse_policy

Arrays = Sequence[Any]
GRAPH = """g (float[B, P] past, float[B, S] rows, int64[1] total) => (float[B, T] present, float[B] sum) {
    twice = Add (rows, rows)
    present, sum = acme.Appended (past, twice, total)
}"""


@op("acme::Appended")
def appended(ctx, past, rows, total: Host):
    """The past with the rows so that they end at `total`; and the sum of all that is before it."""
    end, new = int(total.item()), rows.shape[1]
    length = ctx.length(0, 1)
    if past.shape[1] < end:
        if isinstance(length, mx.array):
            past = mx.slice_update(mx.zeros((past.shape[0], end), past.dtype), past[:, :end], mx.array([0]), axes=(1,))
        else:
            past = mx.pad(past, [(0, 0), (0, end - past.shape[1])])
    last = ctx.on_device(2)
    start = last - new
    ctx.check((start >= 0) & (start <= length), "a gap")
    if ctx.in_order and new == 1 and len(past) > 1:
        ctx.check(start == length, "not in order")
        ctx.appends(0)
        start = mx.reshape(length, (1,))
    start = mx.clip(start, 0, past.shape[1] - new)
    present = mx.slice_update(past, rows, start, axes=(1,))
    return present, mx.sum(mx.where(mx.arange(present.shape[1]) < last, present, 0), axis=1)


@appended.decides("total")
def _(node, total, shapes):
    return total.item() > shapes[0][1]


@appended.grows({"past": 0}, axis=1)
def _(node, host, past):
    return max(int(host["total"].item()), past)


def program_of(text: str = GRAPH, *handlers: Handler) -> Program:
    builtin = next(pack for pack in load_registry().packs if pack.name == "builtin")
    registry = Registry(
        [Pack("own", plugins=(*handlers, appended)), builtin], parse_policy("packs: [own, builtin]", "registry.yaml")
    )
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "acme": 1]>\n{text}')
    return Program(build_plan(read_model(model, registry.definitions)), registry, "cpu")


class Cache:
    """What a program with a cache was given, and what it ought to give; each run is compared."""

    def __init__(self, program: Program, *, on_device: bool, many: int = 2) -> None:
        self.program = program
        self.on_device = on_device
        self.past: Any = np.zeros((many, 0), np.float32)
        self.rows = np.zeros((many, 0), np.float32)

    def run(self, new: int) -> None:
        size = len(self.rows), new
        rows = np.random.default_rng(self.rows.shape[1]).integers(-9, 9, size=size).astype(np.float32)
        total = np.array([self.rows.shape[1] + new])
        present, total_sum = self.program.run([self.past, rows, total])
        self.rows = np.concatenate([self.rows, 2 * rows], axis=1)
        np.testing.assert_array_equal(np.array(present), self.rows)
        np.testing.assert_array_equal(np.array(total_sum), self.rows.sum(axis=1))
        self.past = present if self.on_device else np.array(present)


@pytest.fixture(autouse=True)
def small_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opgraft.engine.compiled.LEAST_BUILDING", 0.0)
    monkeypatch.setattr(parts, "LEAST_ROOM", 16)


@pytest.mark.parametrize("on_device", [True, False])
def test_one_trace_serves_as_long_as_there_is_room(on_device: bool) -> None:
    cache = Cache(program_of(), on_device=on_device)
    for new in (3, *[1] * 60):
        cache.run(new)
    compiler = cache.program.compiler
    assert compiler is not None
    assert compiler.counts.traced <= 4  # one for each room: 16, 32, 48, 64
    assert compiler.counts.replayed >= 45


@pytest.mark.parametrize("on_device", [True, False])
def test_rows_that_do_not_fit_into_the_room(on_device: bool) -> None:
    cache = Cache(program_of(), on_device=on_device)
    for new in (3, 1, 1, 1, 40, 1, 1, 16, 1, 17, 1, 1, 1):
        cache.run(new)


def test_a_part_leads_back_to_its_buffer() -> None:
    cache = Cache(program_of(), on_device=True)
    for new in (3, 1, 1):
        cache.run(new)
    part = cache.past
    assert isinstance(part, Part)
    assert (part.shape, part.dtype, part.size, part.nbytes) == ((2, 5), mx.float32, 10, 40)
    assert with_room(part, 1) is part.room.buffer
    assert part.room.buffer.shape == (2, 16)
    assert with_room(part.array(), 1) is not part.room.buffer
    for taken, least in ((part, 0), (Part.of(part.room.buffer, 1, 16), 1)):
        padded = np.array(with_room(taken, least))
        assert padded.shape == ((16, 5), (2, 32))[least]
        np.testing.assert_array_equal(padded[: taken.shape[0], : taken.shape[1]], np.array(taken))


def test_two_sequences_go_on_from_one_past() -> None:
    program = program_of()
    first = Cache(program, on_device=True)
    for new in (3, 1, 1, 1):
        first.run(new)
    second = Cache(program, on_device=True)
    second.past, second.rows = first.past, first.rows
    third = Cache(program, on_device=True)
    third.past, third.rows = first.past, first.rows
    for new in (1, 2, 1, 1, 20, 1):
        second.run(new)
        third.run(1)
        first.run(2)


def test_rows_are_added_where_the_others_are() -> None:
    cache = Cache(program_of(), on_device=True)
    for new in (3, 1, 1, 1):
        cache.run(new)
    first = cache.past
    room, before = first.room, np.array(first)
    for _ in range(5):
        cache.run(1)
        assert cache.past.room is room
        np.testing.assert_array_equal(np.array(first), before)
    other = Cache(cache.program, on_device=True)
    other.past, other.rows = first, before
    other.run(1)
    assert other.past.room is not room  # whose next row is another sequence's
    cache.run(1)
    assert cache.past.room is room


def test_one_that_writes_elsewhere_too_gets_a_copy() -> None:
    cache = Cache(program_of(), on_device=True, many=1)
    rooms = []
    for new in (3, 1, 1, 1, 1):
        cache.run(new)
        rooms.append(getattr(cache.past, "room", None))
    assert None not in rooms[2:] and len(set(rooms[2:])) == 3


def test_memory_that_is_added_to_is_not_copied() -> None:
    program = program_of()
    past: Any = np.zeros((2**16, 1), np.float32)
    rows = np.ones((2**16, 1), np.float32)
    for number in range(2, 12):
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        past, _ = program.run([past, rows, np.array([number])])
        if number > 8:
            assert mx.get_peak_memory() - before < 1.5 * past.room.buffer.nbytes
    np.testing.assert_array_equal(np.array(past)[:, 1:], 2)


@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_fails_with_what_it_was_lent(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(program_of(), on_device=True)
    for new in (3, 1, 1, 1):
        cache.run(new)

    def fail(program: Program, lazy: Any, run: Any) -> None:
        if begun:
            for loan in run.loans:
                loan.begin()
        raise RuntimeError("out of everything")

    compute = Program._compute
    monkeypatch.setattr(Program, "_compute", fail)
    with pytest.raises(TranslationError, match="out of everything"):
        cache.run(1)
    monkeypatch.setattr(Program, "_compute", compute)
    if begun:
        with pytest.raises(ModelError, match="lost to a run that failed"):
            cache.run(1)
    else:
        cache.run(1)


def test_no_input_is_given_up_that_a_run_may_need_again() -> None:
    cache = Cache(program_of(), on_device=True)
    for new in (3, 1, 1, 1):
        cache.run(new)

    def claim(results: Any) -> list[int]:
        raise AssertionError("nobody was to ask")

    inputs = [cache.past, np.ones((2, 1), np.float32), np.array([6])]  # in the place of the last row
    present, _ = cache.program.run(inputs, None, claim)
    np.testing.assert_array_equal(np.array(present), np.concatenate([cache.rows[:, :-1], np.full((2, 1), 2)], axis=1))
    assert all(each is not None for each in inputs)
    cache.run(1)


def test_threads_go_on_from_one_past() -> None:
    program = program_of()
    first = Cache(program, on_device=True)
    for new in (3, 1, 1, 1):
        first.run(new)

    def work(_: int) -> None:
        own = Cache(program, on_device=True)
        own.past, own.rows = first.past, first.rows
        for new in (1, 1, 2, 1, 9, 1, 1):
            own.run(new)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(64)))


@pytest.mark.parametrize("on_device", [True, False])
def test_rows_that_go_elsewhere_than_behind(on_device: bool) -> None:
    cache = Cache(program_of(), on_device=on_device)
    for new in (3, 1, 1, 1, 1):
        cache.run(new)
    kept, before = cache.past, cache.rows
    for turn in range(8):  # three rows take the places of the last two
        rows = np.full((2, 3), turn, np.float32)
        present, _ = cache.program.run([cache.past, rows, np.array([cache.rows.shape[1] + 1])])
        cache.rows = np.concatenate([cache.rows[:, :-2], 2 * rows], axis=1)
        np.testing.assert_array_equal(np.array(present), cache.rows)
        cache.past = present if on_device else np.array(present)
        one = np.full((2, 1), turn, np.float32)  # and one that of the last
        present, _ = cache.program.run([cache.past, one, np.array([cache.rows.shape[1]])])
        expected = np.concatenate([cache.rows[:, :-1], 2 * one], axis=1)
        np.testing.assert_array_equal(np.array(present), expected)
        np.testing.assert_array_equal(np.array(kept), before)
        np.testing.assert_array_equal(np.array(cache.past), cache.rows)
    cache.run(1)


def test_an_error_between_two_loans_leaves_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """g (float[B, P] past, float[B, S] rows, int64[1] total, float[B, P] other)
        => (float[B, T] present, float[B] sum, float[B, T] y, float[B] z) {
        present, sum = acme.Appended (past, rows, total)
        y, z = acme.Appended (other, rows, total)
    }"""
    program = program_of(text)
    pasts: list[Any] = [np.zeros((2, 0), np.float32)] * 2

    def run(total: int) -> None:
        found = program.run([pasts[0], np.ones((2, 1), np.float32), np.array([total]), pasts[1]])
        pasts[:] = found[0], found[2]

    for total in range(1, 5):
        run(total)
    lend, calls = Room.lend, []

    def failing(room: Room, *arguments: Any) -> Any:
        calls.append(room)
        if len(calls) == 2:
            raise MemoryError("no more")
        return lend(room, *arguments)

    monkeypatch.setattr(Room, "lend", failing)
    run(5)
    assert len(calls) == 2
    for total in range(6, 9):
        run(total)
    np.testing.assert_array_equal(np.array(pasts[1]), np.ones((2, 8)))


def test_a_buffer_that_does_not_grow_is_taken_as_it_is() -> None:
    """As many rows as before, of which `total` says fewer: nothing is copied into a larger one."""
    program = program_of()
    past, rows = np.zeros((2, 8), np.float32), np.ones((2, 0), np.float32)
    for _ in range(6):
        present, _ = program.run([past, rows, np.array([5])])
        assert present.shape == (2, 8)
        assert not isinstance(present, Part)


def test_an_error_of_the_data_is_one_with_room_too() -> None:
    cache = Cache(program_of(), on_device=True)
    for new in (3, 1, 1, 1):
        cache.run(new)
    with pytest.raises(TranslationError, match="a gap"):
        cache.program.run([cache.past, np.ones((2, 1), np.float32), np.array([cache.rows.shape[1] + 3])])
    cache.run(1)


@pytest.mark.parametrize(
    "graph",
    [
        "g (float[B, P] past, float[B, S] rows, int64[1] total) => (float[B, T] y, float[B] sum) {"
        " present, sum = acme.Appended (past, rows, total) y = Neg (present) }",
        "g (float[B, P] past, float[B, S] rows, int64[1] total) => (float[B, T] present, float[B] sum, float[B, P] y) {"
        " present, sum = acme.Appended (past, rows, total) y = Neg (past) }",
        "g (float[B, P] a, float[B, S] rows, int64[1] total) => (float[B, T] present, float[B] sum) {"
        " past = Neg (a) present, sum = acme.Appended (past, rows, total) }",
    ],
    ids=["the output is read", "the input is read", "the input is computed"],
)
def test_what_others_see_gets_no_room(graph: str) -> None:
    assert program_of(graph).growing == ()


def test_caches_of_several_lengths() -> None:
    text = """g (float[B, P] past, float[B, S] rows, int64[1] total, float[B, Q] other, int64[1] many)
        => (float[B, T] present, float[B] sum, float[B, U] y, float[B] z) {
        present, sum = acme.Appended (past, rows, total)
        y, z = acme.Appended (other, rows, many)
    }"""
    program = program_of(text)
    assert len(program.growing) == 2
    for lengths in [(3, 3), (4, 4), (5, 5), (5, 7), (6, 6), (0, 0), (6, 9), (7, 7)]:
        rows = np.ones((2, 1), np.float32)
        pasts = [np.full((2, length), 2, np.float32) for length in lengths]
        totals = [np.array([length + 1]) for length in lengths]
        found = program.run([pasts[0], rows, totals[0], pasts[1], totals[1]])
        for past, present, total_sum in ((pasts[0], *found[:2]), (pasts[1], *found[2:])):
            np.testing.assert_array_equal(np.array(present), np.concatenate([past, rows], axis=1))
            np.testing.assert_array_equal(np.array(total_sum), past.sum(axis=1) + 1)


def test_rooms_are_multiples() -> None:
    assert [room_for(rows) for rows in (1, 16, 17, 200)] == [16, 16, 32, 208]
    assert room_for(5000) == 5120
    assert all(rows <= room_for(rows) <= max(16, rows * 1.13) + 16 for rows in range(1, 10_000, 7))


def test_grows_names_inputs() -> None:
    with pytest.raises(ContractError, match=r"names no input of the function: \['lost'\]"):
        appended.grows({"lost": 0}, axis=1)
