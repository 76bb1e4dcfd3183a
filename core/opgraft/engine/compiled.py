"""Compiled execution: runs of steps that MLX traces once and replays from then on, without Python.

A program's first runs are recorded. They show its graph breaks: steps that read data on the host, draw random numbers,
or take long to build. The steps between them are its segments. What a segment computes depends on its form alone: the
shapes and element types of what it reads on the device, and what it reads on the host. Each form has a trace of its
own. What cannot be traced runs step by step, with the same results.

Where a segment's form is a new one again and again, as with a mask that grows by a token at every run, the program is
recorded once more: steps that read something else at every run then stay out of the segments, if enough is left.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import mlx.core as mx
import numpy as np

from opgraft.engine.background import later
from opgraft.engine.frame import Check, Frame, GraphBreak, Run
from opgraft.engine.fusing import Fusing, can_trace, tracing
from opgraft.engine.lanes import lane
from opgraft.engine.threads import may_trace, note_tracing_thread, stack_size
from opgraft.errors import TranslationError, text_of
from opgraft.ops.arrays import unchanging
from opgraft.ops.handler import Deciding
from opgraft.ops.tensors import Tensors
from opgraft.plan import Step
from opgraft.tracing import HIT, MISS, RETRACE, Recording, Span

if TYPE_CHECKING:
    from opgraft.engine.program import Program

_log = logging.getLogger("opgraft")

Function: TypeAlias = Callable[[list[mx.array]], list[mx.array]]

RECORDED_RUNS: Final = 2

MOST_BUILDING: Final = 10e-3
"""Seconds of building in a segment, at most."""

STACK_PER_SECOND: Final = 400e6
"""Bytes of stack. MLX goes through a trace by recursion, at most once for each operation of it: no more than so many
for each second of building, and where a thread does not have them, segments are as short as it needs."""

LEAST_BUILDING: Final = 10e-6
"""A segment that builds faster than this is not worth a trace."""

FUSED_AFTER_REPLAYS: Final = 16
FUSED_AFTER_SECONDS: Final = 60.0
"""On a GPU, a trace that was replayed so often, for so long, is worth compiling kernels for: that takes seconds, in
which MLX does little else, and gains a tenth."""

MOST_FORMS: Final = 256
"""With more forms than this, a program forgets those that came but once; or all, and what is in use is traced again."""

PATIENCE: Final = 4
"""So many new forms of a segment, one after the other, and the program is recorded again; each time, twice as many."""

LEAST_STEADY: Final = 0.25
"""Steps stay out of the segments where those that are left take at least this share of the time."""

LARGEST_KNOWN: Final = 1024
"""A value on the host with more elements is no part of a form: it goes to the device."""

TOLD: Final = 8
"""Of a value on the host, a trace tells so many elements."""


@dataclass(eq=False, slots=True)
class Segment:
    """Steps that run one after the other; `traced` where a trace of them repays.

    Attributes:
        first, end: the numbers of the first step and of the one after the last.
        reads: the slots that they read and did not fill, but for constants.
        writes: the slots that they fill and others read.
        dead: the slots of `reads` that nobody reads afterwards.
        followed: the slots of `reads` that segments with traces fill: what is there on the host follows from a form.
        building: seconds.
        decides: for some slots of `reads`, what tells whether more than the shapes counts of a value on the host.
        strange: how many new forms it had, one after the other.
    """

    first: int
    end: int
    traced: bool
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    dead: tuple[int, ...]
    followed: frozenset[int]
    building: float
    decides: dict[int, tuple[tuple[Deciding, Step], ...]]
    strange: int = 0


@dataclass(eq=False, slots=True)
class Trace:
    """A segment in one form: the compiled function, and how its results are laid out.

    Attributes:
        inputs: the slots of its arguments.
        function: None where the segment cannot be traced.
        outputs: the slots of its first results.
        failure: where it has checks, the error of the first of them; one more result tells whether all hold. Which of
            them does not, a run step by step finds.
        on_host: what it leaves on the host, the same at every run.
        appended: the slots of inputs that nothing was written to before their length.
        at: the step that is being traced.
        fuses: its kernels are fused; `asked`: another one, with fused kernels, is on its way.
        replays: how often it was replayed; `since` when for the first time.
    """

    inputs: tuple[int, ...]
    function: Function | None = None
    fuses: bool = False
    asked: bool = False
    replays: int = 0
    since: float = 0.0
    outputs: tuple[int, ...] = ()
    on_host: tuple[tuple[int, Any], ...] = ()
    appended: frozenset[int] = frozenset()
    failure: TranslationError | None = None
    at: int = 0


@dataclass(slots=True)
class Counts:
    """How often a program's segments ran in each way."""

    replayed: int = 0
    traced: int = 0
    by_step: int = 0


class _OfThread(threading.local):
    """What was seen in this thread, and the trace that was made here: MLX keeps them for each thread and stream."""

    def __init__(self) -> None:
        self.may_trace = may_trace()
        self.seen: dict[tuple[int, Segment, int], Trace | None] = {}


class Compiler:
    """The compiled execution of one program, in several threads at once."""

    def __init__(self, program: Program, fusing: Fusing) -> None:
        self.program = program
        self.fusing = fusing
        self.counts = Counts()
        self._numbers = itertools.count()
        self._weights = [inf] * len(program.plan.steps)
        self._breaks: set[int] = set()
        self._unsteady: set[int] = set()
        self._facts: list[Any] = []
        self._patience = PATIENCE
        self._most_building = MOST_BUILDING
        self._recorded = 0
        self._segments: tuple[Segment, ...] | None = None
        self.forget()

    def forget(self) -> None:
        """Drop all traces."""
        self._forms: dict[Any, int] = {}
        self._traces: dict[tuple[Segment, int], Trace] = {}
        self._of_thread = _OfThread()

    def execute(self, frame: Frame) -> None:
        """Run every step over a frame whose inputs and captures are in place."""
        if self._recorded < RECORDED_RUNS:
            self._record(frame)
            return
        segments = self._segments
        if segments is None:
            segments = self._segments = self._cut()
        for segment in segments:
            form = self._form(segment, frame) if segment.traced and self._of_thread.may_trace else None
            if form is None or not self._replay(segment, form, frame):
                self._by_step(segment, frame)

    def _record(self, frame: Frame) -> None:
        for slot in self.program.brought:  # which is no building
            frame.on_device(slot)
        frame.run.compiles = False  # bodies are weighed as they are when they are traced
        facts: list[Any] = []
        try:
            for number, step in enumerate(self.program.plan.steps):
                facts.append(self._read_by(number, step, frame))
                breaks, began = frame.run.breaks, _clock(frame.run)
                self.program.execute_steps(frame, number, number + 1)
                self._weights[number] = min(self._weights[number], _clock(frame.run) - began)
                if frame.run.breaks != breaks:
                    self._breaks.add(number)
        finally:
            frame.run.compiles = True
        before, self._facts = self._facts, facts
        self._recorded += 1
        if self._recorded == RECORDED_RUNS and self._patience > PATIENCE:
            self._judge({number for number, pair in enumerate(zip(before, facts, strict=False)) if pair[0] != pair[1]})

    def _judge(self, unsteady: set[int]) -> None:
        """Leave steps that read something else at every run out of the segments, where that leaves enough."""
        weighed = {number: weight for number, weight in enumerate(self._weights) if number not in self._breaks}
        steady = sum(weight for number, weight in weighed.items() if number not in unsteady)
        if steady >= LEAST_STEADY * sum(weighed.values()) and not unsteady <= self._unsteady:
            self._unsteady = unsteady
            self._segments = None

    def _read_by(self, number: int, step: Step, frame: Frame) -> Any:
        """All that counts of what a step reads: its inputs' facts, and those of what its bodies capture."""
        slots = [slot for slot in self.program.slots_read_by(number) if self.program.is_variable(slot)]
        deciding = self._deciding(step, number)
        return [self._fact(frame, slot, deciding.get(slot, ()), slot in self.program.wanted) for slot in slots]

    def _cut(self) -> tuple[Segment, ...]:
        self.forget()
        segments: list[Segment] = []
        followed: set[int] = set()
        first, total, outside = 0, 0.0, False
        for number, weight in enumerate([*self._weights, inf]):
            alone = number in self._breaks or weight > self._most_building
            out = number in self._unsteady and not alone
            if first < number and (alone or out != outside or total + weight > self._most_building):
                traced = not outside and total >= LEAST_BUILDING
                segments.append(self._segment(first, number, total, followed, traced=traced))
                first, total = number, 0.0
            if alone and number < len(self._weights):
                segments.append(self._segment(number, number + 1, weight, followed, traced=False))
            first, total = (number + 1, 0.0) if alone else (first, total + weight)
            outside = out
        return tuple(segments)

    def _segment(self, first: int, end: int, building: float, followed: set[int], *, traced: bool) -> Segment:
        """A segment; `followed` has the slots that segments with traces fill, and gets its own."""
        program = self.program
        read: dict[int, None] = {}
        filled: set[int] = set()
        deciding: dict[int, list[tuple[tuple[Deciding, Step], ...]]] = {}
        for number, step in enumerate(program.plan.steps[first:end], first):
            slots = [slot for slot in program.slots_read_by(number) if slot not in filled]
            read.update((slot, None) for slot in slots)
            for slot in set(slots):
                deciding.setdefault(slot, []).append(self._deciding(step, number).get(slot, ()))
            filled.update(step.outputs)
        reads = tuple(slot for slot in read if program.is_variable(slot))
        last = program.last_use
        segment = Segment(
            first=first,
            end=end,
            traced=traced,
            reads=reads,
            writes=tuple(slot for slot in sorted(filled) if last.get(slot, -1) >= end),
            dead=tuple(slot for slot in reads if program.is_dropped(slot) and last[slot] < end),
            followed=frozenset(followed.intersection(reads)),
            building=building,
            decides={slot: tuple(itertools.chain(*each)) for slot, each in deciding.items() if all(each)},
        )
        if traced:
            followed.update(segment.writes)
        return segment

    def _deciding(self, step: Step, number: int) -> dict[int, tuple[tuple[Deciding, Step], ...]]:
        """The slots of which a step's handler can tell whether the value counts, each with what tells it."""
        found = {index: self.program.deciding(number, index) for index in range(len(step.inputs))}
        others = {slot for index, slot in enumerate(step.inputs) if found[index] is None}
        others.update(step.captured)
        return {
            step.inputs[index]: ((decides, step),)
            for index, decides in found.items()
            if decides is not None and step.inputs[index] not in others
        }

    def _form(self, segment: Segment, frame: Frame) -> int | None:
        """A number for all that counts of what a segment reads; None where it cannot be told.

        What is on the host and not needed there goes to the device: its values are not to be known.
        """
        host, wanted = frame.host, self.program.wanted
        facts: list[Any] = [segment, frame.in_order]
        for slot in segment.reads:
            value = host[slot]
            if isinstance(value, Tensors):
                return None
            unknown = value is not None and slot not in segment.followed
            if unknown and (slot not in wanted or value.size > LARGEST_KNOWN):
                frame.leave_host(slot)
            facts.append(self._fact(frame, slot, segment.decides.get(slot, ()), True))
        key = tuple(facts)
        found = self._forms.get(key)
        if found is None:
            if len(self._forms) >= MOST_FORMS:
                self._forget_strangers()
            found = self._forms[key] = next(self._numbers)  # none twice: other threads may be at work with old ones
        return found

    def _fact(self, frame: Frame, slot: int, decides: Sequence[tuple[Deciding, Step]], known: bool) -> Any:
        """What counts of a value: where it is known on the host, and the value itself counts, all of it."""
        value, array = frame.host[slot], frame.device[slot]
        if isinstance(value, np.ndarray):
            if not known:
                return value.shape, value.dtype.char
            if not decides or any(_counts(value, decide, step, frame) for decide, step in decides):
                return value.dtype.char, value.shape, value.tobytes()
            return value.dtype.char, value.shape
        return None if array is None else (array.shape, array.dtype)

    def _forget_strangers(self) -> None:
        """Drop the forms that have no traces; and everything, where that leaves too many."""
        traced = {form for _, form in list(self._traces)}  # a list at once: other threads add to it
        self._forms = {key: form for key, form in list(self._forms.items()) if form in traced}
        if len(self._forms) > MOST_FORMS // 2:
            self.forget()

    def _by_step(self, segment: Segment, frame: Frame) -> None:
        """Run a segment step by step. Data that it reads are no part of a form."""
        self.counts.by_step += 1
        breaks = frame.run.breaks
        elsewhere = [slot for slot in segment.reads if frame.host[slot] is None]
        self.program.execute_steps(frame, segment.first, segment.end)
        if frame.run.breaks == breaks:
            return
        for slot in elsewhere:
            if frame.device[slot] is not None:
                frame.host[slot] = None
        if segment.traced:
            self._recorded = RECORDED_RUNS - 1
            self._segments = None

    def _replay(self, segment: Segment, form: int, frame: Frame) -> bool:
        """Run a segment from its trace; False, and nothing done, where there is none to be had."""
        seen, here, key = self._of_thread.seen, (id(frame.run.lane), segment, form), (segment, form)
        trace = self._traces.get(key)
        frame.run.replayed = True
        if trace is not None and seen.get(here) is trace:
            function = trace.function
            if function is None:
                return False
            arguments = frame.arguments(trace.inputs)
            recording = frame.run.recording
            if recording is None:
                results = function(arguments)
            else:
                with self._told(recording, "replay", HIT, segment, frame):
                    results = function(arguments)
            self.counts.replayed += 1
            trace.replays += 1
            segment.strange = 0
            if self.fusing is Fusing.LATER and not trace.replays % FUSED_AFTER_REPLAYS:
                self._fuse_later(key, trace, arguments, frame)
        else:
            if here not in seen:  # what comes but once is not traced
                if len(seen) >= 2 * MOST_FORMS:
                    self._of_thread.seen = seen = {key: each for key, each in seen.items() if each is not None}
                seen[here] = None
                self._wonder(segment)
                if frame.run.recording is not None:
                    frame.run.recording.took(MISS, self._key(segment, frame))
                return False
            most = stack_size() / 2 / STACK_PER_SECOND
            if segment.building > most:
                self._shorten(most)
                return False
            if trace is None:
                trace = self._new_trace(segment, frame, fuses=self.fusing is Fusing.AT_ONCE)
                self._traces[key] = trace
            if trace.function is None:
                return False
            if frame.run.recording is None:
                traced = self._trace(segment, trace, trace.function, frame)
            else:
                path = RETRACE if any(each is segment and other != form for each, other in list(self._traces)) else MISS
                with self._told(frame.run.recording, "trace", path, segment, frame):
                    traced = self._trace(segment, trace, trace.function, frame)
            if traced is None:
                return True
            seen[here] = trace
            results = traced
        for slot, result in zip(trace.outputs, results, strict=False):
            frame.device[slot] = result
        for slot, value in trace.on_host:
            frame.host[slot] = value
        frame.appended |= trace.appended
        if trace.failure is not None:
            frame.run.checks.append(Check(results[-1], trace.failure))
        for slot in segment.dead:
            frame.drop(slot)
        return True

    def _shorten(self, building: float) -> None:
        """From the next run on, segments take no more seconds than these to build."""
        self._most_building = min(self._most_building, building)
        self._segments = None

    def _wonder(self, segment: Segment) -> None:
        """A segment has a new form; after many of them, the program is recorded again."""
        segment.strange += 1
        if segment.strange >= self._patience:
            segment.strange = 0
            self._patience *= 2
            self._recorded = RECORDED_RUNS - 2

    def _told(self, recording: Recording, name: str, path: str, segment: Segment, frame: Frame) -> Span:
        """The span of a segment that goes a way of its own."""
        key = self._key(segment, frame)
        recording.took(path, key)
        return recording.span(
            f"{name} steps {segment.first} to {segment.end - 1}",
            name,
            subgraph=self.program.plan.name,
            path=path,
            key=key,
        )

    def _key(self, segment: Segment, frame: Frame) -> str:
        """What a segment reads, for who reads a trace; what is on the host is a part of the form, and told if short."""
        told: list[str] = []
        for slot, seen in zip(segment.reads, frame.seen(segment.reads), strict=True):
            on_host = frame.host[slot]
            elements = f" {on_host.tolist()}" if isinstance(on_host, np.ndarray) and on_host.size <= TOLD else ""
            told.append(f"{self.program.name_of(slot)}: {seen}{elements}")
        return ", ".join(told)

    def _fuse_later(self, key: tuple[Segment, int], trace: Trace, arguments: list[mx.array], frame: Frame) -> None:
        """Have a trace that has been in use for a while made again with fused kernels, in the background."""
        now = perf_counter()
        trace.since = trace.since or now
        if trace.fuses or trace.asked or now - trace.since < FUSED_AFTER_SECONDS:
            return
        trace.asked = True
        fused = self._new_trace(key[0], frame, fuses=True)
        kinds = [(argument.shape, argument.dtype) for argument in arguments]

        def job() -> None:
            function = fused.function
            if function is None:
                return
            note_tracing_thread()
            try:
                with lane(self.program.device):
                    with tracing(fuses=True):
                        results = function([mx.zeros(shape, dtype) for shape, dtype in kinds])
                    mx.eval(results)  # the kernels are compiled here
            except BaseException:  # whatever a translator raises, it goes on as it was
                return
            if self._traces.get(key) is trace:
                self._traces[key] = fused

        later(job)

    def _new_trace(self, segment: Segment, frame: Frame, *, fuses: bool) -> Trace:
        program = self.program
        known = [(slot, _kept(frame.host[slot])) for slot in segment.reads if frame.host[slot] is not None]
        on_device = [slot for slot in segment.reads if frame.host[slot] is None and frame.device[slot] is not None]
        both = [slot for slot, _ in known if frame.has_room and slot in program.read_as_data]
        trace = Trace((*on_device, *both), fuses=fuses)
        in_order = frame.in_order
        if any(isinstance(value, Tensors) for _, value in known) or not can_trace():
            return trace

        def traced(arguments: list[mx.array]) -> list[mx.array]:
            inner = program.new_frame(Run(tracing=True))
            inner.in_order = in_order
            for slot, value in known:
                inner.host[slot] = value
            for slot, argument in zip(trace.inputs, arguments, strict=True):
                inner.device[slot] = argument
            for number in range(segment.first, segment.end):
                trace.at = number
                program.execute_steps(inner, number, number + 1)
                if any(isinstance(inner.host[slot], Tensors) for slot in program.plan.steps[number].outputs):
                    raise GraphBreak  # a sequence may leave the segment
            trace.at = segment.end
            trace.outputs = tuple(
                slot for slot in segment.writes if inner.host[slot] is None and inner.device[slot] is not None
            )
            trace.on_host = tuple((slot, inner.host[slot]) for slot in segment.writes if inner.host[slot] is not None)
            trace.appended = frozenset(inner.appended)
            results = [inner.device[slot] for slot in trace.outputs]
            checks = inner.run.checks
            if checks:
                trace.failure = checks[0].failure
                results.append(mx.all(mx.stack([check.holds for check in checks])) if checks[1:] else checks[0].holds)
            return results

        trace.function = mx.compile(traced)
        return trace

    def _trace(self, segment: Segment, trace: Trace, function: Function, frame: Frame) -> list[mx.array] | None:
        """The results of a segment's first run in this thread, in which MLX traces it. Where that fails, it has run
        step by step, and the step that failed is a graph break from now on. Where all steps were translated, and MLX
        failed with what came of them (0.32.4 does where much of it is the same), segments are half as long from now on.
        """
        note_tracing_thread()
        try:
            with tracing(fuses=trace.fuses):
                results = function(frame.arguments(trace.inputs))
        except BaseException as error:
            trace.function = None  # of a trace that failed, MLX keeps what is no trace
            if not isinstance(error, Exception):
                self.forget()  # it is no fault of the trace's: there shall be another
                raise
            self._by_step(segment, frame)  # which fails in its own words, if it was the data
            if trace.at < segment.end or segment.end - segment.first == 1:
                self._breaks.add(min(trace.at, segment.end - 1))
            else:
                self._shorten(segment.building / 2)
            self._segments = None
            return None
        self.counts.traced += 1
        return results


def _counts(value: np.ndarray[Any, Any], decide: Deciding, step: Step, frame: Frame) -> bool:
    """Whether a value counts in a step; it does where its handler cannot tell."""
    try:
        return decide(step.node, value, frame.shapes(step.inputs))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the run is right without it
        _warn(f"node {step.node.label!r} ({step.node.operator}): decides() of its handler failed: {text_of(error)}")
        return True


@lru_cache(maxsize=64)
def _warn(text: str) -> None:
    """Say it in the log, once."""
    _log.warning("%s", text)


def _kept(value: Any) -> Any:
    """A value on the host for other threads to trace with, after the run whose memory it lies in."""
    return unchanging(value.copy()) if isinstance(value, np.ndarray) else value


def _clock(run: Run) -> float:
    """Seconds, without those that the telling of steps takes."""
    return perf_counter() - (0 if run.recording is None else run.recording.overhead / 1e9)
