"""Trying a claim before it counts: translate the node on stand-in inputs and compare with what ORT expects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx

from opgraft.engine.lanes import lane
from opgraft.engine.results import outputs_of
from opgraft.errors import text_of
from opgraft.graph import Node, Shape, Value
from opgraft.graph.element_types import HELD_AS
from opgraft.ops.arrays import HELD_TYPE, as_held, element_type, host_from_storage
from opgraft.ops.context import Context
from opgraft.ops.handler import Place
from opgraft.ops.tensors import Tensors
from opgraft.registry import Candidate, Claim, Claimer, Reason, Registry
from opgraft.tracing import SpanMaker, untold

STAND_IN_SIZES = (4, 1, 16)
"""What an unknown dimension is taken to be, in turn, until one makes the translator happy."""

_OF_SIZES = (ValueError, IndexError, ZeroDivisionError)
"""What sizes that do not fit raise, in MLX and in translators; anything else is a fault, whatever the sizes."""


class VerifiedRegistry:
    """A registry whose claims are tried before they count: what fails is asked of the next handler.

    Args:
        registry: the handlers to ask.
        device: "cpu" or "gpu".
        span: is told of each trial.
    """

    def __init__(self, registry: Registry, device: str, span: SpanMaker = untold) -> None:
        self.registry = registry
        self.device = device
        self._span = span
        self._found_problems = False

    @property
    def once_tried(self) -> Claimer:
        """What is asked again of nodes that were tried. Where all were right, the first handler to claim a node is the
        one that was tried, and need not be tried again."""
        return self if self._found_problems else self.registry

    def claim(self, node: Node) -> Claim:
        """As `Registry.claim`, with each claim tried."""
        return self.registry.claim(node, self._problem_with)

    def _problem_with(self, node: Node, candidate: Candidate) -> Reason | None:
        with self._span(f"verify {node.op_type}", "verify", node=node.label, pack=candidate.pack):
            problem = problem_with(node, candidate, self.device)
        self._found_problems = self._found_problems or problem is not None
        return problem


def problem_with(node: Node, candidate: Candidate, device: str) -> Reason | None:
    """What is wrong with a claim, or None where the translation fits or cannot be tried.

    MLX is lazy: the translator runs and builds its arrays, and nothing is computed. Where all sizes are known, element
    types and shapes must be what ORT inferred; with unknown sizes, element types and ranks. A node is not tried where
    it has bodies (their nodes are tried one by one), where an input has no known type or rank or is a sequence, or
    where it needs the elements of an input that only a run will bring. Sizes that do not fit (a ValueError) are no
    problem where other sizes may come, nor in a body, which may be kept from running for just that reason. But an error
    that says the same at every size is not about sizes.
    """
    if node.bodies or not node.needed_outputs:
        return None
    exact = all(value is None or value.static_shape is not None for value in node.inputs)
    failures: dict[str, Reason] = {}
    for size in STAND_IN_SIZES[:1] if exact else STAND_IN_SIZES:
        try:
            with lane(device):
                inputs = stand_ins(node, candidate, size)
                if inputs is None:
                    return None
                outputs = translated(node, candidate, inputs, device)
                mismatch = next(_mismatches(node, outputs, exact), None)
                return None if mismatch is None else Reason(candidate.pack, mismatch, fault=True)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a pack raises is its claim's problem
            text = f"its translation failed on stand-in inputs: {candidate.text_of(error)}"
            reason = failures[text_of(error)] = Reason(candidate.culprit(error), text, fault=True)
            if not isinstance(error, _OF_SIZES):
                return reason
    if node.graph.parent is not None or (not exact and len(failures) > 1):
        return None  # no size fitted; a run's own sizes may
    return next(iter(failures.values()))


def failure_of(node: Node, registry: Registry, device: str) -> BaseException | None:
    """What a handler of a node raises when it is asked, or tried on stand-in inputs: the error itself, with the lines
    that led to it. None where none of them raises."""
    for candidate in registry.candidates(node.operator):
        try:
            if not (candidate.covers(node.since_version) and candidate.claim(node=node)) or node.bodies:
                continue
            for size in STAND_IN_SIZES:
                with lane(device):
                    inputs = stand_ins(node, candidate, size)
                    if inputs is not None:
                        translated(node, candidate, inputs, device)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # one that exits must not end its host
            return error
    return None


def stand_ins(node: Node, candidate: Candidate, size: int) -> list[Any] | None:
    """Arrays of zeros in place of a node's inputs, `size` where a dimension is unknown; of a `Host` input its elements.

    None where an input has no known type or rank, or is `Host` and not constant.
    """
    inputs: list[Any] = []
    for index, value in enumerate(node.inputs):
        if value is None:
            inputs.append(None)
            continue
        if candidate.place(index) is Place.HOST:
            constant = node.constant(index)
            if constant is None:
                return None
            inputs.append(host_from_storage(constant, value.dtype))
            continue
        if value.dtype is None or value.shape is None:
            return None
        inputs.append(mx.zeros([dim if isinstance(dim, int) else size for dim in value.shape], HELD_TYPE[value.dtype]))
    return inputs


def translated(node: Node, candidate: Candidate, inputs: list[Any], device: str) -> Sequence[Any]:
    """What the translator gives for a node, from stand-in inputs: arrays that nobody computes."""
    context = Context(
        node,
        inputs,
        device=device,
        cache={},
        constant=[node.is_constant(index) for index in range(len(inputs))],
        bodies={},
        random_key=lambda: mx.random.key(0),
    )
    return outputs_of(candidate.translate(ctx=context, node=node), node.needed_outputs)


def _mismatches(node: Node, outputs: Sequence[Any], exact: bool) -> Iterator[str]:
    for index, value in enumerate(node.outputs):
        if value is None:
            continue
        kind = "sequence" if isinstance(outputs[index], Tensors) else "tensor"
        if not value.may_be(kind):
            yield f"its translation gives a {kind} for output {value.name!r}, and the model says a {value.kind}"
        if kind == "sequence":
            continue
        output = as_held(outputs[index])
        found, shape = element_type(output), tuple(output.shape)
        if value.dtype is not None and found != HELD_AS.get(value.dtype):
            yield f"its translation gives {found} for output {value.name!r}, and the model says {value.dtype}"
        if not _fits(value, shape, exact):
            declared = _text(value.shape)
            yield f"its translation gives shape {list(shape)} for output {value.name!r}, and the model says {declared}"


def _fits(value: Value, shape: tuple[int, ...], exact: bool) -> bool:
    if value.shape is None:
        return True
    if len(value.shape) != len(shape):
        return False
    return not exact or all(
        not isinstance(dim, int) or dim == size for dim, size in zip(value.shape, shape, strict=True)
    )


def _text(shape: Shape | None) -> str:
    return "unknown" if shape is None else "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"
