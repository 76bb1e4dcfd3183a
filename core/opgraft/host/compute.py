"""Runs of programs between ONNX Runtime's memory and MLX's, and OrtNodeComputeInfo, which is that of a fused node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import mlx.core as mx

from opgraft.allocation import give_back_freed_memory
from opgraft.engine.results import Result, check_types
from opgraft.graph import Value
from opgraft.host._ep import ffi, lib
from opgraft.host.device_memory import take, write
from opgraft.host.status import OK, OrtError, callback, check
from opgraft.host.structures import own
from opgraft.ops.arrays import element_type
from opgraft.plan import Plan
from opgraft.tracing import Recording, Session
from opgraft.tracing.session import everywhere


class Runner(Protocol):
    """What runs a plan: a program, or what takes its place where it fails."""

    plan: Plan

    def run(self, inputs: Sequence[Result], recording: Recording | None = None, /) -> Sequence[Result]:
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
        self._inputs = ffi.new("size_t[]", list(inputs))
        self._outputs = tuple(outputs)
        self._declared = program.plan.output_values

    def run(self, context: Any) -> None:
        """One run: inputs are views of ONNX Runtime's tensors, outputs are written into its own."""
        if self.trace.listeners or everywhere:
            self._run_told(context)
        else:
            self._write(context, self.program.run(self._read(context)))

    def _run_told(self, context: Any) -> None:
        plan = self.program.plan
        with self.trace.run(plan.name) as recording:
            told = recording.root.arguments
            with recording.span("read inputs", "input"):
                inputs = self._read(context)
            told["inputs"] = _told(plan.inputs, inputs)
            told["bytes_in"] = sum(each.nbytes for each in inputs)
            _count_memory(recording)
            results = self.program.run(inputs, recording)
            _count_memory(recording)
            told["outputs"] = _told(self._declared, results)
            told["bytes_out"] = sum(each.nbytes for each in results)
            with recording.span("write outputs", "output"):
                self._write(context, results)

    def _read(self, context: Any) -> list[Result]:
        count = len(self._inputs)
        views = ffi.new("TensorView[]", count)
        check(lib.read_inputs(context, self._inputs, views, count))
        return [take(view) for view in views]

    def _write(self, context: Any, results: Sequence[Result]) -> None:
        check_types(results, self._declared)
        view = ffi.new("TensorView *")
        for result, index, declared in zip(results, self._outputs, self._declared, strict=True):
            shape = result.shape
            try:
                check(lib.open_output(context, index, shape, len(shape), view))
            except OrtError as error:
                what = f"{declared.name!r}, {declared.dtype or element_type(result)}{list(shape)}"
                raise OrtError(f"onnxruntime has no place for output {what}: {error}") from error
            write(view, result)


def _told(values: Sequence[Value], arrays: Sequence[Result]) -> list[str]:
    return [
        f"{value.name}: {value.dtype or element_type(array)}{list(array.shape)}"
        for value, array in zip(values, arrays, strict=True)
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
