"""A program: a plan bound to its handlers and its device, ready to run from any thread."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass, field
from math import prod
from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.engine.lanes import lane
from opgraft.engine.results import outputs_of
from opgraft.engine.watch import told, watchers
from opgraft.errors import ContractError, ModelError, TranslationError, text_of
from opgraft.graph import Array, Initializer, Value
from opgraft.graph.element_types import HELD_AS
from opgraft.ops.arrays import as_held, compute, device_from_storage, element_type, to_device, to_host, unchanging
from opgraft.ops.context import Context
from opgraft.ops.handler import HostForm, Place
from opgraft.ops.tensors import Tensors
from opgraft.plan import ABSENT, Plan, Step
from opgraft.registry import Candidate, Claimer

SMALL = 1024
"""Arithmetic that began on the host goes on there with up to this many elements; constants no larger are kept there."""

LARGE = 65536
"""With more elements than this, arithmetic is the device's even where its result is needed on the host."""

MOST_CHECKS = 256
"""So many checks of a run's data are kept open at most: a loop makes new ones at every turn."""

_random_seeds = itertools.count(int.from_bytes(np.random.default_rng().bytes(7), "little"))


def _random_key() -> mx.array:
    return mx.random.key(next(_random_seeds))


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

    def device(self, initializer: Initializer) -> mx.array:
        """The constant as an evaluated MLX array."""
        array = self._device.get(initializer.identity)
        if array is None:
            array = device_from_storage(initializer.read(), initializer.value.dtype)
            mx.eval(array)
            self._device[initializer.identity] = array
        return array


@dataclass(slots=True)
class Check:
    """What must hold of a run's data, yet to be computed, and the error where it does not."""

    holds: mx.array
    failure: TranslationError


@dataclass(slots=True)
class Frame:
    """The values of one run, by slot: on the device, on the host, or on both.

    bfloat16, which NumPy lacks, is held on the device alone. A sequence has its place on the host, wherever its tensors
    are, and is read as it is. An `eager` frame has each step computed at once, so that what fails is found where it
    fails. What a translator reads is a handle of its own, and host arrays are read-only: `X += 1` in one translator
    changes nothing for the others.
    """

    device: list[Any]
    host: list[Any]
    eager: bool = False
    checks: list[Check] = field(default_factory=list)

    def on_device(self, slot: int) -> Any:
        value = self.device[slot]
        if value is None:
            on_host = self.host[slot]
            if on_host is None or isinstance(on_host, Tensors):
                return on_host
            value = self.device[slot] = to_device(on_host)
        return mx.array(value)

    def on_host(self, slot: int) -> Any:
        value = self.host[slot]
        if value is None and self.device[slot] is not None:
            value = unchanging(to_host(self.device[slot]))
            if self.device[slot].dtype != mx.bfloat16:
                self.host[slot] = value
        return value

    def anywhere(self, slot: int) -> Any:
        return self.on_device(slot) if self.host[slot] is None else self.host[slot]

    def settle(self) -> None:
        """Judge the open checks.

        Raises:
            TranslationError: one of them does not hold; the first that was made.
        """
        checks, self.checks[:] = self.checks.copy(), []
        mx.eval([check.holds for check in checks])
        for check in checks:
            if not check.holds.item():
                raise check.failure

    def put(self, slot: int, value: Any) -> None:
        """Keep a value.

        Raises:
            TypeError: it is neither an array nor a sequence, or of an element type that MLX lacks.
        """
        held = value if isinstance(value, Tensors) else as_held(value)
        (self.device if isinstance(held, mx.array) else self.host)[slot] = held

    def lazy(self, slot: int) -> Sequence[mx.array]:
        """The arrays of a value that MLX may have yet to compute, for the caller to have them computed."""
        on_device, on_host = self.device[slot], self.host[slot]
        if on_device is not None:
            return (on_device,)
        return on_host.take_lazy() if isinstance(on_host, Tensors) else ()

    def drop(self, slot: int) -> None:
        self.device[slot] = None
        self.host[slot] = None


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
    wanted_on_host: bool
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
        steering = {slot for slot in plan.outputs if is_body and _steers(plan.values[slot])}
        wanted = self._wanted_on_host(steering, candidates, bodies)
        self.captures_on_host = tuple(slot in wanted for slot in range(len(plan.inputs), plan.first_constant))
        last_use = self._last_uses()
        first, end = plan.first_constant, plan.first_constant + len(plan.constants)
        self._bound = tuple(
            _Bound(
                step=step,
                candidate=candidate,
                readers=tuple(
                    (_READERS[candidate.place(index)], slot) if slot != ABSENT else (_absent, slot)
                    for index, slot in enumerate(step.inputs)
                ),
                constant=tuple(first <= slot < end for slot in step.inputs),
                bodies={name: (program, step.bodies[name].captured) for name, program in inner.items()},
                dead=last_use[number],
                host_form=candidate.host_form,
                wanted_on_host=any(slot in wanted for slot in step.outputs),
            )
            for number, (step, candidate, inner) in enumerate(zip(plan.steps, candidates, bodies, strict=True))
        )
        with lane(self.device):
            self._template = self._constant_frame(constants, wanted)

    def run(self, inputs: Sequence[Array | mx.array | None]) -> list[mx.array | Array]:
        """Run the plan.

        Args:
            inputs: one array for each of the plan's inputs; NumPy arrays in storage form (bfloat16 as its 16 bits),
                read before this returns.

        Returns:
            The plan's outputs, evaluated: MLX arrays, or NumPy arrays of values that never left the host. Those of a
            type that MLX lacks are of the type that it is held in.

        Raises:
            ModelError: `inputs` are not as many as the plan has, or not arrays.
            TranslationError: a node failed; the message names it and says what to do.
        """
        if len(inputs) != len(self.plan.inputs):
            raise ModelError(f"{self.plan.name!r} takes {len(self.plan.inputs)} inputs, and {len(inputs)} were given")
        with lane(self.device):
            frame = self._first_frame(inputs, eager=bool(watchers))
            try:
                self.execute(frame)
                outputs = [self._result(frame, slot) for slot in self.plan.outputs]
                arrays = [value for value in outputs if isinstance(value, mx.array)]
                mx.eval(arrays, [check.holds for check in frame.checks])
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                found = self._blame(inputs, error)
                raise found from found.__cause__ or error
            frame.settle()
        return outputs

    def _new_frame(self, eager: bool, checks: list[Check]) -> Frame:
        return Frame(self._template.device.copy(), self._template.host.copy(), eager, checks)

    def _first_frame(self, inputs: Sequence[Any], eager: bool = False) -> Frame:
        frame = self._new_frame(eager, [])
        for slot, (value, given) in enumerate(zip(self.plan.inputs, inputs, strict=True)):
            try:
                if value.dtype == "bfloat16" and isinstance(given, np.ndarray):
                    frame.device[slot] = device_from_storage(given, value.dtype)
                elif given is not None:
                    frame.put(slot, given)
            except (TypeError, ValueError) as error:
                raise ModelError(f"input {value.name!r}: {error}") from error
        return frame

    def _result(self, frame: Frame, slot: int) -> Any:
        value = frame.device[slot]
        if value is None:
            value = frame.host[slot]
        if isinstance(value, Tensors):
            raise ContractError(f"output {self.plan.values[slot].name!r} is {value!r}; only tensors leave a subgraph")
        return value

    def execute(self, frame: Frame) -> None:
        """Run every step over a frame whose inputs and captures are in place; results are left in the frame."""
        for bound in self._bound:
            try:
                if frame.eager:
                    self._step_alone(bound, frame)
                else:
                    self._step(bound, frame)
                if frame.checks and (frame.eager or len(frame.checks) > MOST_CHECKS):
                    frame.settle()
            except (TranslationError, KeyboardInterrupt):
                raise
            except BaseException as error:  # one that exits must not end its host
                raise self._failure(bound, frame, error) from error
            for slot in bound.dead:
                frame.drop(slot)

    def _step_alone(self, bound: _Bound, frame: Frame) -> None:
        """One step, computed before the next one is translated, and told to whoever watches."""
        with told(bound.step.node):
            self._step(bound, frame)
            mx.eval([frame.lazy(slot) for slot in bound.step.outputs if slot != ABSENT])

    def _step(self, bound: _Bound, frame: Frame) -> None:
        on_host = bound.host_form is not None and self._stays_on_host(bound, frame)
        if on_host:
            arguments = [None if slot == ABSENT else frame.host[slot] for slot in bound.step.inputs]
        else:
            arguments = [read(frame, slot) for read, slot in bound.readers]
        context = Context(
            bound.step.node,
            arguments,
            device=self.device,
            cache=bound.cache,
            constant=bound.constant,
            bodies={name: _Body(program, captured, frame) for name, (program, captured) in bound.bodies.items()},
            random_key=_random_key,
            on_host=on_host,
        )
        outputs = bound.step.outputs
        results = outputs_of(bound.candidate.translate(ctx=context, node=bound.step.node), len(outputs))
        for slot, result in zip(outputs, results, strict=False):
            if slot != ABSENT:
                frame.put(slot, _as_declared(result, self.plan.values[slot]) if on_host else result)
        for holds, message in context.checks:
            frame.checks.append(Check(mx.all(holds), self._failure(bound, frame, ValueError(message))))

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

    def _last_uses(self) -> list[tuple[int, ...]]:
        """For each step, the slots that no later step and no output reads; captures and constants stay."""
        last: dict[int, int] = {}
        for number, step in enumerate(self.plan.steps):
            captured = [slot for body in step.bodies.values() for slot in body.captured]
            for slot in (*step.inputs, *step.outputs, *captured):
                last[slot] = number
        plan = self.plan
        kept = {ABSENT, *plan.outputs, *range(len(plan.inputs), plan.first_constant + len(plan.constants))}
        dead: list[list[int]] = [[] for _ in plan.steps]
        for slot, number in last.items():
            if slot not in kept:
                dead[number].append(slot)
        return [tuple(slots) for slots in dead]

    def _constant_frame(self, constants: ConstantStore, wanted: set[int]) -> Frame:
        """The frame from which every run starts: constants in place, the rest empty."""
        size = len(self.plan.values)
        frame = Frame([None] * size, [None] * size)
        read_on_device = {
            slot for bound in self._bound for read, slot in bound.readers if read is not Frame.on_host
        } | {slot for bound in self._bound for _, captured in bound.bodies.values() for slot in captured}
        for slot, initializer in enumerate(self.plan.constants, self.plan.first_constant):
            value = initializer.value
            is_bfloat16 = value.dtype == "bfloat16"
            if not is_bfloat16 and (slot in wanted or _may_have(value, SMALL)):
                frame.host[slot] = unchanging(np.array(initializer.read()))
            if is_bfloat16 or slot in read_on_device or slot in self.plan.outputs:
                frame.device[slot] = constants.device(initializer)
        return frame

    def _blame(self, inputs: Sequence[Any], error: BaseException) -> TranslationError:
        """The error that names the node that failed, found by running again and computing one node at a time: MLX is
        lazy, and fails where something is read, which may be far from what could not be computed."""
        try:
            self.execute(self._first_frame(inputs, eager=True))
        except TranslationError as found:
            return found
        if isinstance(error, TranslationError):
            return error
        return TranslationError(f"MLX failed in subgraph {self.plan.name!r}: {text_of(error)}")

    def _failure(self, bound: _Bound, frame: Frame, error: BaseException) -> TranslationError:
        node = bound.step.node
        pack = bound.candidate.culprit(error)
        shapes = ", ".join(_described(frame, slot) for slot in bound.step.inputs)
        return TranslationError(
            f"node {node.label!r} ({node.operator}, version {node.since_version}) failed in pack {pack!r}: "
            f"{text_of(error)}. Its inputs: {shapes or 'none'}. If they are as they should be, turn "
            f'this handler off in registry.yaml:  ops: {{"{node.operator}": {{deny: ["{pack}"]}}}}'
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
        frame = program._new_frame(self.outer.eager, self.outer.checks)
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
            self.outer.device[outer], self.outer.host[outer] = frame.device[slot], frame.host[slot]
        return tuple(frame.anywhere(slot) for slot in plan.outputs)


def _candidate(registry: Claimer, step: Step) -> Candidate:
    claim = registry.claim(step.node)
    if claim.candidate is None:
        reasons = "; ".join(str(reason) for reason in claim.reasons)
        raise TranslationError(f"node {step.node.label!r} ({step.node.operator}) has no handler: {reasons}")
    return claim.candidate


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
