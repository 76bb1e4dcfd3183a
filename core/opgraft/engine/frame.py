"""The values of one run, and what its frames share."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.engine.lanes import Lane
from opgraft.engine.parts import Loan
from opgraft.engine.told import brought, evaluate, read_back, told_value
from opgraft.errors import TranslationError
from opgraft.ops.arrays import as_held, to_device, to_host, unchanging
from opgraft.ops.tensors import Tensors
from opgraft.plan import ABSENT
from opgraft.tracing import Recording

_random_seeds = itertools.count(int.from_bytes(np.random.default_rng().bytes(7), "little"))


class GraphBreak(Exception):
    """What only a run can know was asked for while its steps were traced."""


class Overdue(Exception):
    """A run took longer than it may."""


@dataclass(slots=True)
class Check:
    """What must hold of a run's data, yet to be computed, and the error where it does not."""

    holds: mx.array
    failure: TranslationError


@dataclass(slots=True)
class Run:
    """What the frames of one run share, those of its control-flow bodies included.

    Attributes:
        lane: where MLX works for it.
        eager: each step is computed at once, so that what fails is found where it fails.
        compiles: runs of steps may be replayed from a trace.
        replayed: some have been.
        tracing: the steps are being traced: there is no data to read.
        breaks: how often something was asked that differs from run to run: data, or random bits.
        until: when it is overdue, by `perf_counter`.
        in_order: it counts on it that what is new goes right behind what there is.
        gave_up: some of the inputs are lost, so that there is no trying again.
        loans: the buffers that it adds to.
        checks: those that are open.
        recording: gets what happens, where somebody wants to know.
    """

    lane: Lane | None = None
    eager: bool = False
    compiles: bool = False
    replayed: bool = False
    tracing: bool = False
    breaks: int = 0
    until: float = inf
    in_order: bool = False
    gave_up: bool = False
    loans: list[Loan] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    recording: Recording | None = None

    def note_break(self) -> None:
        """Something differs from run to run.

        Raises:
            GraphBreak: the steps are being traced.
        """
        self.breaks += 1
        if self.tracing:
            raise GraphBreak

    def give_back(self, *, computed: bool) -> None:
        """The buffers that were lent are there again, or what became of them."""
        for loan in self.loans:
            loan.give_back(computed=computed)
        self.loans.clear()

    def random_key(self) -> mx.array:
        """A key that no other call gave."""
        self.note_break()
        return mx.random.key(next(_random_seeds))

    def settle(self) -> None:
        """Judge the open checks.

        Raises:
            TranslationError: one of them does not hold; the first that was made.
        """
        if not self.checks:
            return
        checks, self.checks[:] = self.checks.copy(), []
        evaluate(self.recording, [check.holds for check in checks], "evaluate checks")
        for check in checks:
            if not check.holds.item():
                raise TranslationError(*check.failure.args)


@dataclass(slots=True)
class Frame:
    """The values of one plan in one run, by slot: on the device, on the host, or on both.

    bfloat16, which NumPy lacks, is held on the device alone. A sequence has its place on the host, wherever its tensors
    are, and is read as it is. What a translator reads is a handle of its own, and host arrays are read-only: `X += 1`
    in one translator changes nothing for the others. `shared` is what nodes have in common beside values,
    `has_room` is true where inputs that grow came in buffers, `in_order` where the run counts on it that what is new
    goes right behind them, and `appended` has the slots of those that nothing else was written to.
    """

    device: list[Any]
    host: list[Any]
    run: Run
    shared: dict[Hashable, Any] = field(default_factory=dict)
    has_room: bool = False
    in_order: bool = False
    appended: set[int] = field(default_factory=set)

    def on_device(self, slot: int) -> Any:
        value = self.device[slot]
        if value is None:
            on_host = self.host[slot]
            if on_host is None or isinstance(on_host, Tensors):
                return on_host
            value = self.device[slot] = self._brought(on_host)
        return value.__copy__()

    def arguments(self, slots: Iterable[int]) -> list[Any]:
        """The values of some slots on the device, for a trace."""
        return [self.on_device(slot) if self.device[slot] is None else self.device[slot] for slot in slots]

    def _brought(self, on_host: Any) -> mx.array:
        recording = self.run.recording
        return to_device(on_host) if recording is None else brought(recording, on_host)

    def leave_host(self, slot: int) -> None:
        """Keep an array on the device alone."""
        if self.device[slot] is None:
            self.device[slot] = self._brought(self.host[slot])
        self.host[slot] = None

    def on_host(self, slot: int) -> Any:
        value = self.host[slot]
        if value is None and self.device[slot] is not None:
            self.run.note_break()
            on_device, recording = self.device[slot], self.run.recording
            value = unchanging(to_host(on_device) if recording is None else read_back(recording, on_device))
            if on_device.dtype != mx.bfloat16:
                self.host[slot] = value
        return value

    def anywhere(self, slot: int) -> Any:
        return self.on_device(slot) if self.host[slot] is None else self.host[slot]

    def put(self, slot: int, value: Any) -> None:
        """Keep a value.

        Raises:
            TypeError: it is neither an array nor a sequence, or of an element type that MLX lacks.
        """
        held = value if isinstance(value, Tensors) else as_held(value)
        (self.device if isinstance(held, mx.array) else self.host)[slot] = held

    def seen(self, slots: Iterable[int]) -> list[str]:
        """Element types and shapes, for who reads a trace; nothing is computed to find out."""
        return [told_value(None if slot == ABSENT else self.anything(slot)) for slot in slots]

    def shapes(self, slots: Iterable[int]) -> list[tuple[int, ...] | None]:
        """The shapes of arrays; None for what is absent, or not there yet."""
        values = (None if slot == ABSENT else self.anything(slot) for slot in slots)
        return [None if value is None or isinstance(value, Tensors) else value.shape for value in values]

    def anything(self, slot: int) -> Any:
        """A value wherever it is, for who only looks at it."""
        return self.device[slot] if self.host[slot] is None else self.host[slot]

    def lazy(self, slot: int) -> Sequence[mx.array]:
        """The arrays of a value that MLX may have yet to compute, for the caller to have them computed."""
        on_device, on_host = self.device[slot], self.host[slot]
        if on_device is not None:
            return (on_device,)
        return on_host.take_lazy() if isinstance(on_host, Tensors) else ()

    def drop(self, slot: int) -> None:
        self.device[slot] = None
        self.host[slot] = None
