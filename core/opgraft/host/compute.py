"""OrtNodeComputeInfo: runs of one fused node, between ONNX Runtime's memory and MLX's."""

from __future__ import annotations

from typing import Any, ClassVar

import mlx.core as mx
import numpy as np

from opgraft.engine import Program, lane
from opgraft.errors import ContractError
from opgraft.graph import Array, Value
from opgraft.graph.element_types import HELD_AS, PACKED
from opgraft.graph.packing import packed
from opgraft.host._ep import ffi, lib
from opgraft.host.status import OK, callback, check
from opgraft.host.tensors import array_at, array_of_view
from opgraft.ops.arrays import element_type


class FusedNode:
    """The Python side of one OrtNodeComputeInfo: a program, whose runs share nothing and may overlap."""

    live: ClassVar[dict[Any, FusedNode]] = {}

    def __init__(self, program: Program) -> None:
        self.program = program
        self.input_count = len(program.plan.inputs)
        self.outputs = program.plan.output_values
        self.pointer = lib.new_OrtNodeComputeInfo()
        FusedNode.live[self.pointer] = self

    def release(self) -> None:
        del FusedNode.live[self.pointer]
        lib.free(self.pointer)

    def compute(self, context: Any) -> None:
        """One run: inputs are views of ONNX Runtime's tensors, outputs are written into its own."""
        views = ffi.new("TensorView[]", self.input_count)
        check(lib.read_inputs(context, views, self.input_count))
        results = self.program.run([array_of_view(view) for view in views])
        for index, (result, declared) in enumerate(zip(results, self.outputs, strict=True)):
            _write(context, index, result, declared)


def _write(context: Any, index: int, result: mx.array | Array, declared: Value) -> None:
    found = element_type(result)
    dtype = declared.dtype or found
    if found != dtype and found != HELD_AS.get(dtype):
        raise ContractError(f"output {declared.name!r} came out as {found}, and the model declares {dtype}")
    if isinstance(result, mx.array) and result.dtype == mx.bfloat16:
        with lane("cpu"):
            result = result.view(mx.uint16)  # NumPy has no bfloat16
            mx.eval(result)
    elements = np.array(result, copy=False)
    data = ffi.new("void **")
    check(lib.open_output(context, index, elements.shape, elements.ndim, data))
    if found != dtype and dtype in PACKED:
        elements = packed(elements, dtype)
    np.copyto(array_at(data[0], elements.shape, elements.dtype), elements)


@callback("OrtNodeComputeInfo_Compute")
def _compute(this: Any, state: Any, context: Any) -> Any:
    FusedNode.live[this].compute(context)
    return OK
