"""Caches that grow at every run, in buffers with room: so that a shape, and with it a trace, serves many runs.

What one run gave, the next one gets, with some more rows: a cache of keys. Where a handler has said that an input may
come with more room than its elements take, it gets a buffer, and its output is the `Part` of the buffer that counts.
Where that is given again, as by ONNX Runtime with a device's memory, the buffer is at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opgraft.ops.handler import Growth
from opgraft.plan import ABSENT, Plan, Step
from opgraft.registry import Candidate


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
