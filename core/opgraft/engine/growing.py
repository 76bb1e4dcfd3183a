"""Caches that grow at every run, in buffers with room: so that a shape, and with it a trace, serves many runs.

What one run gave, the next one gets, with some more rows: a cache of keys. Where a handler has said that an input may
come with more room than its elements take, it gets a buffer, and its output is the part of the buffer that counts. That
part, which MLX shares with it, leads back to the buffer when it is given again.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
import numpy as np

from opgraft.ops.arrays import to_device
from opgraft.ops.handler import Growth
from opgraft.plan import ABSENT, Plan, Step
from opgraft.registry import Candidate

LEAST_ROOM: Final = 256
"""The room of a buffer is a multiple of it, and of about an eighth of itself."""


@dataclass(frozen=True, slots=True)
class Growing:
    """A step whose inputs grow.

    Attributes:
        number: the step's.
        pairs: each slot of the plan's inputs that grows, with that of the plan's outputs that it becomes.
        host: the slots of its inputs that are needed on the host, by name.
    """

    number: int
    step: Step
    growth: Growth
    pairs: tuple[tuple[int, int], ...]
    host: Mapping[str, int]


def growing_steps(plan: Plan, candidates: Sequence[Candidate]) -> tuple[Growing, ...]:
    """The steps of a plan that grow what is its input, and read by nobody else, to what is its output alone."""
    uses: dict[int, int] = {}
    for step in plan.steps:
        for slot in (*step.inputs, *step.captured):
            uses[slot] = uses.get(slot, 0) + 1
    found: list[Growing] = []
    for number, (step, candidate) in enumerate(zip(plan.steps, candidates, strict=True)):
        growth = candidate.growth
        if growth is None:
            continue
        pairs = tuple(
            (_slot(step.inputs, growth.inputs[name]), _slot(step.outputs, index))
            for name, index in growth.outputs.items()
        )
        alone = (
            0 <= given < len(plan.inputs)
            and uses[given] == 1
            and given not in plan.outputs
            and made in plan.outputs
            and made not in uses
            for given, made in pairs
        )
        if all(alone):
            host = {name: _slot(step.inputs, index) for name, index in growth.host.items()}
            host = {name: slot for name, slot in host.items() if slot != ABSENT}
            found.append(Growing(number, step, growth, pairs, host))
    return tuple(found)


def _slot(slots: Sequence[int], index: int) -> int:
    return slots[index] if index < len(slots) else ABSENT


class Rooms:
    """The buffers of arrays that are a part of one. Threads may share it."""

    def __init__(self) -> None:
        self._buffers: dict[int, tuple[weakref.ref[Any], mx.array]] = {}

    def __len__(self) -> int:
        """The number of parts that are alive."""
        return len(self._buffers)

    def buffer(self, array: mx.array | np.ndarray[Any, Any], axis: int) -> mx.array:
        """A buffer that begins with `array`, and has room for one row more at least."""
        rows = array.shape[axis]
        kept = self._buffers.get(id(array))
        if kept is not None and kept[0]() is array and kept[1].shape[axis] > rows:
            return kept[1]
        widths = [(0, 0)] * array.ndim
        widths[axis] = 0, room_for(rows + 1) - rows
        return mx.pad(array if isinstance(array, mx.array) else to_device(array), widths)

    def part(self, buffer: mx.array, axis: int, rows: int) -> mx.array:
        """The first rows of a buffer, which will be found by them."""
        index: list[slice] = [slice(None)] * buffer.ndim
        index[axis] = slice(rows)
        part = buffer[tuple(index)]
        key = id(part)
        self._buffers[key] = weakref.ref(part, lambda _: self._buffers.pop(key, None)), buffer
        return part


def room_for(rows: int) -> int:
    """How many rows a buffer has for so many."""
    step = max(LEAST_ROOM, 1 << max(rows.bit_length() - 4, 0))
    return -(-rows // step) * step
