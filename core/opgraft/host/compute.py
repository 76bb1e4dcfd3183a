"""Runs of programs between ONNX Runtime's memory and MLX's, and OrtNodeComputeInfo, which is that of a fused node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import mlx.core as mx

from opgraft.allocation import give_back_freed_memory
from opgraft.engine.program import Claim
from opgraft.engine.results import Result, check_types
from opgraft.graph import Value
from opgraft.host._ep import ffi, lib
from opgraft.host.device_memory import MEMORY, take, write
from opgraft.host.status import OK, OrtError, callback, check
from opgraft.host.structures import own
from opgraft.ops.arrays import element_type
from opgraft.plan import Plan
from opgraft.tracing import Recording, Session
from opgraft.tracing.session import everywhere


class Runner(Protocol):
    """What runs a plan: a program, or what takes its place where it fails."""

    plan: Plan

    def run(
        self, inputs: Sequence[Result | None], recording: Recording | None = None, claim: Claim | None = None, /
    ) -> Sequence[Result]:
        """See `Program.run`."""
        ...


class Computation:
    """A program between ONNX Runtime's memory and MLX's. Its runs share nothing and may overlap.

    Args:
        program: what is run.
        inputs: where the program's inputs are among the kernel's.
        outputs: where its outputs are.
        trace: the session whose runs they are.
    """

    def __init__(self, program: Runner, inputs: Sequence[int], outputs: Sequence[int], trace: Session) -> None:
        self.program = program
        self.trace = trace
        self.outputs = tuple(outputs)
        self.declared = program.plan.output_values
        self._inputs = ffi.new("size_t[]", list(inputs))

    def run(self, context: Any) -> None:
        """One run: inputs are views of ONNX Runtime's tensors, outputs are written into its own."""
        if self.trace.listeners or everywhere:
            self._run_told(context)
            return
        views = self._views(context)
        outputs = _Outputs(self, context, views)
        outputs.write(self.program.run([take(view) for view in views], None, outputs.claim))

    def _run_told(self, context: Any) -> None:
        plan = self.program.plan
        with self.trace.run(plan.name) as recording:
            told = recording.root.arguments
            with recording.span("read inputs", "input"):
                views = self._views(context)
                inputs: list[Result | None] = [take(view) for view in views]
            told["inputs"] = _told(plan.inputs, inputs)
            told["bytes_in"] = sum(each.nbytes for each in inputs if each is not None)
            _count_memory(recording)
            outputs = _Outputs(self, context, views)
            results = self.program.run(inputs, recording, outputs.claim)
            _count_memory(recording)
            told["outputs"] = _told(self.declared, results)
            told["bytes_out"] = sum(each.nbytes for each in results)
            with recording.span("write outputs", "output"):
                outputs.write(results)

    def _views(self, context: Any) -> Any:
        count = len(self._inputs)
        views = ffi.new("TensorView[]", count)
        check(lib.read_inputs(context, self._inputs, views, count))
        return views


class _Outputs:
    """The outputs of one run.

    One that lies at the address of an input takes its place, as a cache does that is bound to be both. MLX writes into
    the memory of an array that nobody else has: so that of such an input can become the output's.
    """

    def __init__(self, computation: Computation, context: Any, inputs: Any) -> None:
        self._computation = computation
        self._context = context
        self._inputs = {view.address: number for number, view in enumerate(inputs) if view.on_device}
        self._views: Any = None
        self._shapes: list[tuple[int, ...]] = []

    def claim(self, results: Sequence[Result]) -> list[int]:
        """Open the outputs for results that are yet to be computed. Gives the inputs that make room for them: they are
        the program's alone from now on."""
        if not self._inputs:
            return []
        self._open(results)
        addresses = {view.address for view in self._views if view.on_device}
        found = [address for address in self._inputs if address in addresses]
        for address in found:
            MEMORY.leave(address)
        return [self._inputs[address] for address in found]

    def write(self, results: Sequence[Result]) -> None:
        """Write what was computed."""
        if self._views is None or [each.shape for each in results] != self._shapes:
            self._open(results)
        for view, result in zip(self._views, results, strict=True):
            write(view, result)

    def _open(self, results: Sequence[Result]) -> None:
        declared = self._computation.declared
        check_types(results, declared)
        views = ffi.new("TensorView[]", len(results))
        for result, index, value, view in zip(results, self._computation.outputs, declared, views, strict=True):
            shape = result.shape
            try:
                check(lib.open_output(self._context, index, shape, len(shape), ffi.addressof(view)))
            except OrtError as error:
                what = f"{value.name!r}, {value.dtype or element_type(result)}{list(shape)}"
                raise OrtError(f"onnxruntime has no place for output {what}: {error}") from error
        self._views = views
        self._shapes = [each.shape for each in results]


def _told(values: Sequence[Value], arrays: Sequence[Result | None]) -> list[str]:
    return [
        f"{value.name}: {value.dtype or element_type(array)}{list(array.shape)}"
        for value, array in zip(values, arrays, strict=True)
        if array is not None
    ]


def _count_memory(recording: Recording) -> None:
    recording.count("MLX memory", active=mx.get_active_memory(), peak=mx.get_peak_memory(), cache=mx.get_cache_memory())


class FusedNode:
    """The Python side of one OrtNodeComputeInfo.

    Attributes:
        gives_back_memory: the next run begins by having the C library give back what is free.
    """

    live: ClassVar[dict[Any, FusedNode]] = {}

    def __init__(self, program: Runner, trace: Session) -> None:
        plan = program.plan
        self.computation = Computation(program, range(len(plan.inputs)), range(len(plan.outputs)), trace)
        self.gives_back_memory = False
        self.pointer = own(lib.new_OrtNodeComputeInfo())


@callback("OrtNodeComputeInfo_Compute")
def _compute(this: Any, state: Any, context: Any) -> Any:
    node = FusedNode.live[this]
    if node.gives_back_memory:
        node.gives_back_memory = False
        give_back_freed_memory()
    node.computation.run(context)
    return OK
