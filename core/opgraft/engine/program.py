"""A program: a plan bound to its handlers and its device, ready to run from any thread."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass, field
from math import inf, prod
from time import perf_counter, perf_counter_ns
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np

from opgraft.engine.compiled import Compiler
from opgraft.engine.frame import Check, Frame, GraphBreak, Overdue, Run
from opgraft.engine.fusing import fusing_on
from opgraft.engine.growing import growing_steps
from opgraft.engine.lanes import lane
from opgraft.engine.parts import Part, with_room
from opgraft.engine.results import Result, about_sizes, outputs_of
from opgraft.engine.told import evaluate, told_of
from opgraft.errors import ContractError, ModelError, TranslationError, text_of
from opgraft.graph import Initializer, Value
from opgraft.graph.element_types import HELD_AS
from opgraft.ops.arrays import compute, device_from_storage, element_type, to_device, unchanging
from opgraft.ops.context import Context
from opgraft.ops.handler import Deciding, HostForm, Place
from opgraft.ops.layouts import Layout, turned, turned_back
from opgraft.ops.tensors import Tensors
from opgraft.plan import ABSENT, Plan, Step
from opgraft.registry import Candidate, Claimer
from opgraft.tracing import Recording

SMALL = 1024
"""Arithmetic that began on the host goes on there with up to this many elements; constants no larger are kept there."""

LARGE = 65536
"""With more elements than this, arithmetic is the device's even where its result is needed on the host."""

MOST_CHECKS = 256
"""So many checks of a run's data are kept open at most: a loop makes new ones at every turn."""


Claim: TypeAlias = Callable[[Sequence[Result]], Sequence[int]]
"""Tells, of results that are yet to be computed, the indices of the inputs whose memory may become theirs."""


class _Prepared(dict[Hashable, Any]):
    """What translators keep between runs. An MLX array that is yet to be computed belongs to the thread that made it:
    it is computed before another thread can come upon it."""

    def setdefault(self, key: Hashable, default: Any = None) -> Any:
        compute(default)
        return super().setdefault(key, default)


class ConstantStore:
    """The constants of one session, each converted once whatever number of plans and bodies read it."""

    def __init__(self) -> None:
        self._device: dict[Hashable, mx.array] = {}

    @property
    def nbytes(self) -> int:
        """The size of all that was converted."""
        return sum(array.nbytes for array in self._device.values())

    def find(self, initializer: Initializer) -> mx.array | None:
        """The constant where it has been converted."""
        return self._device.get(initializer.identity)

    def device(self, initializer: Initializer) -> mx.array:
        """The constant as an evaluated MLX array."""
        array = self._device.get(initializer.identity)
        if array is None:
            array = device_from_storage(initializer.read(), initializer.value.dtype)
            mx.eval(array)
            self._device[initializer.identity] = array
        return array


@dataclass(slots=True)
class _Bound:
    """One step with what a run needs of it, so that nothing is looked up by name while running."""

    step: Step
    candidate: Candidate
    readers: tuple[tuple[Callable[[Frame, int], Any], int], ...]
    constant: tuple[bool, ...]
    bodies: dict[str, tuple[Program, tuple[int, ...]]]
    dead: tuple[int, ...]
    host_form: HostForm | None
    channels_last: bool
    turned: bool
    wanted_on_host: bool
    grows: bool
    cache: _Prepared = field(default_factory=_Prepared)


_READERS: dict[Place, Callable[[Frame, int], Any]] = {
    Place.DEVICE: Frame.on_device,
    Place.HOST: Frame.on_host,
    Place.ANYWHERE: Frame.anywhere,
}


class Program:
    """A plan bound to handlers. `run` may be called from any thread, and from several at once.

    Args:
        plan: the plan; its constants are read now, and its source is not needed afterwards.
        registry: names the handler of each step; every step must be claimed by one.
        device: "cpu", "gpu", or None for MLX's default device.
        constants: where converted constants are shared between programs of one session.
        is_body: True for a control-flow body, whose outputs may decide what runs next.

    Attributes:
        most_seconds: a run that is not done with its steps after so many is given up.

    Raises:
        TranslationError: a step that no handler claims.
    """

    def __init__(
        self,
        plan: Plan,
        registry: Claimer,
        device: str | None = None,
        constants: ConstantStore | None = None,
        *,
        is_body: bool = False,
    ) -> None:
        self.plan = plan
        self.device = device or str(mx.default_device().type).rpartition(".")[2]
        constants = constants if constants is not None else ConstantStore()
        candidates = [_candidate(registry, step) for step in plan.steps]
        bodies = [
            {name: Program(body.plan, registry, device, constants, is_body=True) for name, body in step.bodies.items()}
            for step in plan.steps
        ]
        self.growing = () if is_body else growing_steps(plan, candidates)
        grown = {each.number for each in self.growing}
        self._axes = {slot: each.growth.axis for each in self.growing for slot, _ in each.pairs}
        self.read_as_data = frozenset(slot for each in self.growing for slot in each.host.values())
        self.length_slot = len(plan.values)
        self._grows = False
        self._in_order = True
        self.most_seconds = inf
        steering = {slot for slot in plan.outputs if is_body and _steers(plan.values[slot])}
        self.wanted = wanted = self._wanted_on_host(steering, candidates, bodies)
        self.captures_on_host = tuple(slot in wanted for slot in range(len(plan.inputs), plan.first_constant))
        first, end = plan.first_constant, plan.first_constant + len(plan.constants)
        self.first_computed = end
        self.last_use = self._last_uses()
        dead = self._dead()
        lying = self._channels_last(candidates)
        self._bound = tuple(
            _Bound(
                step=step,
                candidate=candidate,
                readers=_readers(candidate, step, turns),
                constant=tuple(first <= slot < end for slot in step.inputs),
                bodies={name: (program, step.bodies[name].captured) for name, program in inner.items()},
                dead=dead[number],
                host_form=candidate.host_form,
                channels_last=not lying.isdisjoint(step.inputs[:1]),
                turned=turns,
                wanted_on_host=any(slot in wanted for slot in step.outputs),
                grows=number in grown,
            )
            for number, (step, candidate, inner) in enumerate(zip(plan.steps, candidates, bodies, strict=True))
            for turns in (candidate.layout is Layout.ANY and not lying.isdisjoint(step.inputs),)
        )
        read_on_device = {slot for bound in self._bound for read, slot in bound.readers if read is Frame.on_device}
        self.brought = tuple(slot for slot in range(first) if slot in read_on_device - wanted)
        with lane(self.device):
            self._template = self._constant_frame(constants, wanted)
        fusing = fusing_on(self.device)
        self.compiler = None if fusing is None else Compiler(self, fusing)

    def run(
        self, inputs: Sequence[Result | None], recording: Recording | None = None, claim: Claim | None = None
    ) -> list[Result]:
        """Run the plan.

        Args:
            inputs: one array for each of the plan's inputs; NumPy arrays in storage form (bfloat16 as its 16 bits),
                read before this returns; parts as a run before gave them.
            recording: gets what happens meanwhile, where somebody wants to know.
            claim: is asked, with the outputs that are yet to be computed, which of the inputs nobody else has any more.
                Those are taken from `inputs`, a list, and their memory becomes that of outputs, where MLX finds use for
                it. Should the run fail then, they are lost.

        Returns:
            The plan's outputs, evaluated: MLX arrays, or NumPy arrays of values that never left the host, or parts of
            buffers. Those of a type that MLX lacks are of the type that it is held in.

        Raises:
            ModelError: `inputs` are not as many as the plan has, or not arrays.
            TranslationError: a node failed; the message names it and says what to do.
            Overdue: it took longer than `most_seconds`.
        """
        if len(inputs) != len(self.plan.inputs):
            raise ModelError(f"{self.plan.name!r} takes {len(self.plan.inputs)} inputs, and {len(inputs)} were given")
        with lane(self.device) as streams:
            alone = recording is not None and recording.each_alone
            run = Run(streams, eager=alone, compiles=not alone, recording=recording)
            run.until = perf_counter() + self.most_seconds
            try:
                results, lazy = self._build(inputs, run)
            except BaseException as error:
                run.give_back(computed=False)
                if isinstance(error, KeyboardInterrupt | ModelError | Overdue):
                    raise
                return self._again(inputs, error, run)
            try:
                if claim is not None and isinstance(inputs, list) and not run.in_order:
                    for index in claim(results):
                        inputs[index] = None
                        run.gave_up = True
            except BaseException:
                run.give_back(computed=False)
                raise
            try:
                self._compute(lazy, run)
            except BaseException as error:
                run.give_back(computed=False)
                if isinstance(error, KeyboardInterrupt):
                    raise
                return self._again(inputs, error, run)
            run.give_back(computed=True)
            return results

    def _build(self, inputs: Sequence[Result | None], run: Run) -> tuple[list[Result], list[mx.array]]:
        """The outputs, and the arrays that are yet to be computed for them."""
        length = self._length_to_grow(inputs)
        has_room = bool(length) and self._grows and run.compiles and self.compiler is not None
        frame = self._first_frame(inputs, run, length if has_room else None)
        self.execute(frame)
        outputs = [self._result(frame, slot) for slot in self.plan.outputs]
        parts = {} if length is None else self._parts(frame, inputs, length)
        results = [parts.get(slot, output) for slot, output in zip(self.plan.outputs, outputs, strict=True)]
        return results, [each for each in outputs if isinstance(each, mx.array)]

    def _compute(self, lazy: Sequence[mx.array], run: Run) -> None:
        """Compute what was built, and judge the run's data."""
        for loan in run.loans:
            loan.begin()
        evaluate(run.recording, [*lazy, *(check.holds for check in run.checks)])
        for loan in run.loans:
            loan.end()
        run.settle()

    def _again(self, inputs: Sequence[Result | None], error: BaseException, failed: Run) -> list[Result]:
        """The outputs after all, where a trace was to blame for `error`; or the error that names the node that failed.

        The plan is run again, one node computed after the other: MLX is lazy, and fails where something is read, which
        may be far from what could not be computed.

        Raises:
            TranslationError: it fails again, or was one to begin with.
        """
        try:
            outputs: list[Result] = []
            if not failed.gave_up:
                run = Run(eager=True)
                outputs, lazy = self._build(inputs, run)
                self._compute(lazy, run)
            if failed.in_order and outputs:
                self._in_order = False  # the run counted on it in vain, and the next ones shall not
                return outputs
            if failed.replayed and self.compiler is not None:
                self.compiler.forget()
                if outputs:
                    return outputs
        except TranslationError as found:
            raise found from found.__cause__ or error
        except Exception:  # it is the first that counts
            pass
        if isinstance(error, TranslationError):
            raise error
        raise TranslationError(f"MLX failed in subgraph {self.plan.name!r}: {text_of(error)}") from error

    def new_frame(self, run: Run) -> Frame:
        """A frame with nothing but the constants in it."""
        return Frame(self._template.device.copy(), self._template.host.copy(), run)

    def _first_frame(self, inputs: Sequence[Any], run: Run, length: int | None) -> Frame:
        """A frame with the inputs in it; those that grow, all of one `length`, in buffers, where it is given."""
        frame = self.new_frame(run)
        for slot, (value, given) in enumerate(zip(self.plan.inputs, inputs, strict=True)):
            try:
                if value.dtype == "bfloat16" and isinstance(given, np.ndarray):
                    given = device_from_storage(given, value.dtype)
                if length is not None and slot in self._axes:
                    frame.device[slot] = with_room(given, self._axes[slot])
                elif given is not None:
                    frame.put(slot, given.array() if isinstance(given, Part) else given)
            except (TypeError, ValueError) as error:
                raise ModelError(f"input {value.name!r}: {error}") from error
        if length is not None:
            frame.has_room = True
            frame.in_order = run.in_order = self._in_order
            frame.device[self.length_slot] = mx.array(length, mx.int32)
        return frame

    def _length_to_grow(self, inputs: Sequence[Any]) -> int | None:
        """How long the inputs are that grow; None where there are none, or not all of one length."""
        lengths = {None if inputs[slot] is None else inputs[slot].shape[axis] for slot, axis in self._axes.items()}
        return lengths.pop() if len(lengths) == 1 else None

    def _parts(self, frame: Frame, inputs: Sequence[Result | None], length: int) -> dict[int, Part]:
        """What counts of the outputs that came out of buffers; whether there was something new in them decides whether
        the next ones get room.

        A buffer that nobody else has added to is lent to the run, where it only adds to it.
        """
        parts: dict[int, Part] = {}
        grew = False
        for each in self.growing:
            growth, axis = each.growth, each.growth.axis
            host = {name: frame.on_host(slot) for name, slot in each.host.items()} if frame.has_room else {}
            for given, slot in each.pairs:
                array, before = frame.anything(slot), inputs[given]
                size = growth.length(each.step.node, host, length) if frame.has_room else array.shape[axis]
                grew |= size > length
                if array.shape[axis] <= size:
                    continue
                loan = None
                if isinstance(before, Part) and given in frame.appended:
                    loan = before.room.lend(length, array, size)
                if loan is not None:
                    frame.run.loans.append(loan)
                parts[slot] = Part.of(array, axis, size) if loan is None else Part.in_room(loan.room, size)
        self._grows = grew
        return parts

    def _result(self, frame: Frame, slot: int) -> Any:
        value = frame.device[slot]
        if value is None:
            value = frame.host[slot]
        if isinstance(value, Tensors):
            raise ContractError(f"output {self.plan.values[slot].name!r} is {value!r}; only tensors leave a subgraph")
        return value

    def execute(self, frame: Frame) -> None:
        """Run every step over a frame whose inputs and captures are in place; results are left in the frame."""
        if self.compiler is not None and frame.run.compiles:
            self.compiler.execute(frame)
        else:
            self.execute_steps(frame, 0, len(self._bound))

    def execute_steps(self, frame: Frame, first: int, end: int) -> None:
        """Run the steps from number `first` on, up to `end`."""
        run = frame.run
        for bound in self._bound[first:end]:
            if run.until < inf and perf_counter() > run.until:
                raise Overdue("it takes too long")
            try:
                if run.recording is None:
                    self._step(bound, frame)
                else:
                    self._step_told(bound, frame, run.recording)
                if run.eager:
                    self._compute_step(bound, frame)
                if run.checks and (run.eager or len(run.checks) > MOST_CHECKS) and not run.tracing:
                    run.settle()
            except (TranslationError, KeyboardInterrupt, GraphBreak, Overdue):
                raise
            except BaseException as error:  # one that exits must not end its host
                raise self._failure(bound, frame, error) from error
            for slot in bound.dead:
                frame.drop(slot)

    def _step_told(self, bound: _Bound, frame: Frame, recording: Recording) -> None:
        """One step, told to the run's recording."""
        began, step, node = perf_counter_ns(), bound.step, bound.step.node
        span = recording.span(f"build {node.op_type}", "build", **told_of(node, bound.candidate.pack))
        span.arguments["inputs"] = frame.seen(step.inputs)
        with span:
            self._step(bound, frame)
        span.arguments["outputs"] = frame.seen(step.outputs)
        recording.overhead += perf_counter_ns() - began - span.took

    def _compute_step(self, bound: _Bound, frame: Frame) -> None:
        """Compute what a step gave before the next one is translated."""
        node = bound.step.node
        lazy = [frame.lazy(slot) for slot in bound.step.outputs if slot != ABSENT]
        evaluate(frame.run.recording, lazy, f"evaluate {node.op_type}", **told_of(node, bound.candidate.pack))

    def _step(self, bound: _Bound, frame: Frame) -> None:
        on_host = bound.host_form is not None and self._stays_on_host(bound, frame)
        if on_host:
            arguments = [None if slot == ABSENT else frame.host[slot] for slot in bound.step.inputs]
        else:
            arguments = [read(frame, slot) for read, slot in bound.readers]
        turns = bound.turned and not on_host
        if turns:
            arguments, rank = turned(arguments)
        context = Context(
            bound.step.node,
            arguments,
            device=self.device,
            cache=bound.cache,
            constant=bound.constant,
            bodies={name: _Body(program, captured, frame) for name, (program, captured) in bound.bodies.items()},
            random_key=frame.run.random_key,
            on_host=on_host,
            channels_last=bound.channels_last,
            turned=turns,
            shared=frame.shared,
            slots=bound.step.inputs,
            length=frame.device[self.length_slot] if bound.grows else None,
            read=frame.on_device,
            in_order=frame.in_order,
        )
        outputs = bound.step.outputs
        results = outputs_of(bound.candidate.translate(ctx=context, node=bound.step.node), len(outputs))
        if turns:
            results = turned_back(results, rank)
        for slot, result in zip(outputs, results, strict=False):
            if slot != ABSENT:
                frame.put(slot, _as_declared(result, self.plan.values[slot]) if on_host else result)
        frame.appended.update(bound.step.inputs[index] for index in context.appended)
        for holds, message in context.checks:
            frame.run.checks.append(Check(mx.all(holds), self._failure(bound, frame, ValueError(message))))

    def _stays_on_host(self, bound: _Bound, frame: Frame) -> bool:
        """True where a step runs in NumPy: it can, all it reads is on the host, and either somebody needs its result
        there or it continues arithmetic that began there (on shapes)."""
        slots = [slot for slot in bound.step.inputs if slot != ABSENT]
        if not slots or not all(isinstance(frame.host[slot], np.ndarray) for slot in slots):
            return False
        size: int = sum(frame.host[slot].size for slot in slots)
        if bound.wanted_on_host:
            return size <= LARGE
        form = bound.host_form
        if form is None or form.expands:
            return False
        computed = self.plan.first_constant + len(self.plan.constants)
        return (
            size <= SMALL
            and any(slot >= computed for slot in slots)
            and all(slot >= self.plan.first_constant for slot in slots)
        )

    def _wanted_on_host(
        self, steering: Set[int], candidates: Sequence[Candidate], bodies: Sequence[dict[str, Program]]
    ) -> set[int]:
        """The slots whose elements somebody needs on the host, directly or through arithmetic that can run there."""
        plan = self.plan
        wanted = set(steering)
        for step, candidate, inner in zip(reversed(plan.steps), reversed(candidates), reversed(bodies), strict=True):
            passed_on = candidate.host_form is not None and any(slot in wanted for slot in step.outputs)
            for index, slot in enumerate(step.inputs):
                if slot != ABSENT and (
                    candidate.place(index) is Place.HOST or (passed_on and _may_have(plan.values[slot], LARGE))
                ):
                    wanted.add(slot)
            for name, program in inner.items():
                captured = step.bodies[name].captured
                wanted.update(slot for slot, on_host in zip(captured, program.captures_on_host, strict=True) if on_host)
        return wanted

    def _channels_last(self, candidates: Sequence[Candidate]) -> set[int]:
        """The slots of images that lie in memory with their channels last."""
        lying: set[int] = set()
        for step, candidate in zip(self.plan.steps, candidates, strict=True):
            layout = candidate.layout
            if layout is Layout.ANY and not lying.isdisjoint(step.inputs):
                lying.update(step.outputs)
            elif layout is Layout.CHANNELS_LAST or (layout is Layout.KEPT and step.inputs[0] in lying):
                lying.update(step.outputs[:1])
        return lying - {ABSENT}

    def _last_uses(self) -> dict[int, int]:
        """For each slot the last step that touches it; one past the last step for an output of the plan."""
        last: dict[int, int] = {}
        for number, step in enumerate(self.plan.steps):
            touched = (*step.inputs, *step.outputs, *step.captured)
            last.update((slot, number) for slot in touched if slot != ABSENT)
        for each in self.growing:
            last[self.length_slot] = each.number
            last.update(dict.fromkeys(each.host.values(), len(self.plan.steps)))
        return last | dict.fromkeys(self.plan.outputs, len(self.plan.steps))

    def slots_read_by(self, number: int) -> tuple[int, ...]:
        """The slots that a step reads, with those that its bodies capture, and that of the length of what grows."""
        bound = self._bound[number]
        return (*bound.step.inputs, *bound.step.captured, *[self.length_slot] * bound.grows)

    def name_of(self, slot: int) -> str:
        """The name of the value in a slot."""
        return self.plan.values[slot].name if slot < self.length_slot else "length"

    def _dead(self) -> list[tuple[int, ...]]:
        """For each step, what nobody reads after it; captures and constants stay."""
        dead: list[list[int]] = [[] for _ in self.plan.steps]
        for slot, number in self.last_use.items():
            if self.is_dropped(slot) and number < len(dead):
                dead[number].append(slot)
        return [tuple(slots) for slots in dead]

    def deciding(self, number: int, index: int) -> Deciding | None:
        """What tells whether the value of a step's input counts, where its handler has it."""
        return self._bound[number].candidate.deciding(index)

    def is_variable(self, slot: int) -> bool:
        """True for a slot whose value differs from run to run; False for ABSENT, and for a constant."""
        return slot >= self.first_computed or 0 <= slot < self.plan.first_constant

    def is_dropped(self, slot: int) -> bool:
        """True for a slot that is emptied after its last use."""
        return slot >= self.first_computed or 0 <= slot < len(self.plan.inputs)

    def _constant_frame(self, constants: ConstantStore, wanted: set[int]) -> Frame:
        """The frame from which every run starts: constants in place, the rest empty."""
        size = self.length_slot + 1
        frame = Frame([None] * size, [None] * size, Run())
        read_on_device = {
            slot for bound in self._bound for read, slot in bound.readers if read is not Frame.on_host
        }.union(*(step.captured for step in self.plan.steps))
        for slot, initializer in enumerate(self.plan.constants, self.plan.first_constant):
            value = initializer.value
            is_bfloat16 = value.dtype == "bfloat16"
            if not is_bfloat16 and (slot in wanted or _may_have(value, SMALL)):
                frame.host[slot] = unchanging(np.array(initializer.read()))
            if is_bfloat16 or slot in read_on_device or slot in self.plan.outputs:
                frame.device[slot] = constants.device(initializer)
        return frame

    def _failure(self, bound: _Bound, frame: Frame, error: BaseException) -> TranslationError:
        node = bound.step.node
        pack = bound.candidate.culprit(error)
        shapes = ", ".join(_described(frame, slot) for slot in bound.step.inputs)
        sizes = about_sizes(error, (frame.host[slot] for slot in bound.step.inputs if slot != ABSENT))
        return TranslationError(
            f"node {node.label!r} ({node.operator}, version {node.since_version}) failed in pack {pack!r}: "
            f"{bound.candidate.text_of(error)}{sizes}. Its inputs: {shapes or 'none'}. If they are as they should be, "
            f'turn this handler off in registry.yaml:  ops: {{"{node.operator}": {{deny: ["{pack}"]}}}}'
        )


class _Body:
    """A control-flow body bound to the frame around it."""

    __slots__ = ("captured", "outer", "program")

    def __init__(self, program: Program, captured: tuple[int, ...], outer: Frame) -> None:
        self.program = program
        self.captured = captured
        self.outer = outer

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        program = self.program
        frame = program.new_frame(self.outer.run)
        plan = program.plan
        if len(inputs) != len(plan.inputs):
            raise TypeError(f"body {plan.name!r} takes {len(plan.inputs)} inputs, and got {len(inputs)}")
        for slot, value in enumerate(inputs):
            frame.put(slot, value)
        captured = list(enumerate(self.captured, len(plan.inputs)))
        for slot, outer in captured:
            frame.device[slot], frame.host[slot] = self.outer.device[outer], self.outer.host[outer]
        program.execute(frame)
        for slot, outer in captured:  # what was brought to the other side need not be brought there at every call
            if self.outer.device[outer] is None:
                self.outer.device[outer] = frame.device[slot]
            if self.outer.host[outer] is None:
                self.outer.host[outer] = frame.host[slot]
        return tuple(frame.anywhere(slot) for slot in plan.outputs)


def _candidate(registry: Claimer, step: Step) -> Candidate:
    claim = registry.claim(step.node)
    if claim.candidate is None:
        reasons = "; ".join(str(reason) for reason in claim.reasons)
        raise TranslationError(f"node {step.node.label!r} ({step.node.operator}) has no handler: {reasons}")
    return claim.candidate


def _readers(candidate: Candidate, step: Step, turns: bool) -> tuple[tuple[Callable[[Frame, int], Any], int], ...]:
    """How each input is read; what has its axes turned is on the device."""
    places = (candidate.place(index) for index in range(len(step.inputs)))
    return tuple(
        (_absent if slot == ABSENT else Frame.on_device if turns and place is not Place.HOST else _READERS[place], slot)
        for place, slot in zip(places, step.inputs, strict=True)
    )


def _absent(_frame: Frame, _slot: int) -> None:
    return None


def _steers(value: Value) -> bool:
    """True for a value of the kind that decides what runs next: a lone boolean or integer."""
    return value.dtype in ("bool", "int64", "int32") and value.rank in (0, 1, None)


def _may_have(value: Value, elements: int) -> bool:
    """False for a value that is known to have more elements."""
    return value.static_shape is None or prod(value.static_shape) <= elements


def _as_declared(result: Any, value: Value) -> Any:
    """A host result in the element type that the graph declares, which NumPy's promotions may have left."""
    if result is None or value.dtype is None:
        return result
    if value.dtype == "bfloat16":
        return to_device(result).astype(mx.bfloat16)
    return np.asarray(result).astype(HELD_AS[value.dtype], copy=False)


def _described(frame: Frame, slot: int) -> str:
    value = None if slot == ABSENT else frame.anywhere(slot)
    if isinstance(value, Tensors):
        return repr(value)
    return "absent" if value is None else f"{element_type(value)}{list(value.shape)}"
