"""Cases of If, Loop and Scan, with bodies of a few operators that read what is inside and around them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from properties import Case
from strategies import Draws, Shape, cases

from opgraft.graph import Array

BINARY = ("Add", "Sub", "Mul", "Max", "Min")


class Body:
    """A body that is being drawn. All its values are of one element type, and of one shape or scalars.

    Attributes:
        names: its values so far, and those around it.
    """

    def __init__(self, d: Draws, prefix: str, dtype: np.dtype[Any], shape: Shape, names: list[str]) -> None:
        self.d, self.prefix, self.dtype, self.shape = d, prefix, dtype, shape
        self.names = list(names)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def info(self, name: str, dtype: Any = None, shape: Any = None) -> onnx.ValueInfoProto:
        number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype or self.dtype))
        return helper.make_tensor_value_info(name, number, self.shape if shape is None else shape)

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{self.prefix}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def constant(self, array: Array) -> str:
        return self.node("Constant", value=numpy_helper.from_array(array))

    def formal(self, name: str, dtype: Any = None, shape: Any = None) -> str:
        self.inputs.append(self.info(self.prefix + name, dtype, shape))
        return self.prefix + name

    def whole(self) -> str:
        """A value of the body's shape, from a few nodes."""
        name = self.d.pick(*self.names)
        for _ in range(self.d.integer(0, 2)):
            other = self.d.pick(*self.names, "")
            other = other or self.constant(self.d.array(self.dtype.name, ()))
            name = self.node(self.d.pick(*BINARY), name, other)
            self.names.append(name)
        return name

    def output(self, name: str, dtype: Any = None, shape: Any = None) -> None:
        """Give a value out, under a name of its own."""
        self.outputs.append(self.info(self.node("Identity", name), dtype, shape))

    def graph(self) -> onnx.GraphProto:
        return helper.make_graph(self.nodes, self.prefix + "body", self.inputs, self.outputs)


def case(d: Draws, *inputs: Array | None, **given: Any) -> Case:
    """A case in which the bodies' operators are not of their first versions."""
    drawn = d.case(*inputs, **given)
    return replace(drawn, opset=max(drawn.opset, 10) if d.operator != "Scan" else drawn.opset)


def kind(d: Draws, side: int = 0) -> tuple[np.dtype[Any], Shape]:
    types = ("float32", "float64", "int64", "int32")  # of which Max has the last two from version 12 on
    return np.dtype(d.pick(*types[: 4 if d.version >= 12 else 2])), d.shape(0, 2, side)


@cases("If")
def if_(d: Draws) -> Case:
    dtype, shape = kind(d)
    around = tuple(d.array(dtype.name, shape) for _ in range(d.integer(1, 2)))
    names = [f"c{index}" for index in range(len(around))]
    outputs, branches = d.integer(1, 2), {}
    for name in ("then_branch", "else_branch"):
        body = Body(d, name[:4], dtype, shape, names)
        for _ in range(outputs):
            body.output(body.whole())
        branches[name] = body.graph()
    condition = np.array(d.flag()).reshape(d.pick((), (1,)))
    return case(d, condition, attributes=branches, outputs=outputs, captured=around)


@cases("Loop")
def loop(d: Draws) -> Case:
    dtype, shape = kind(d)
    around = (d.array(dtype.name, shape),)
    states, scans = d.integer(0, 2), d.integer(0, 2)
    states = states or int(d.version < 13 or not scans)
    body = Body(d, "b", dtype, shape, ["c0"])
    lone = d.pick((), (1,))
    number, condition = body.formal("turn", np.int64, ()), body.formal("condition", np.bool_, lone)
    body.names += [body.formal(f"state{index}") for index in range(states)]
    grows = d.flag()
    collected = body.formal("collected", np.int64, (None,)) if grows else ""
    bounded = d.integer(0, 4)
    ends = d.flag()
    go_on = body.node("Less", number, body.constant(np.full(lone, bounded))) if ends else condition
    turn = body.node("Cast", number, to=helper.np_dtype_to_tensor_dtype(dtype))
    results = [body.node("Add", body.whole(), turn) if d.flag() else body.whole() for _ in range(states)]
    body.output(go_on, np.bool_, lone)
    for result in results:
        body.output(result)
    if grows:
        last = body.node("Reshape", number, body.constant(np.array([1])))
        body.output(body.node("Concat", collected, last, axis=0), np.int64, (None,))
    for _ in range(scans):
        body.output(body.whole())
    most = np.array(d.integer(0, 4)).reshape(d.pick((), (1,))) if not ends or d.flag() else None
    given = [d.array(dtype.name, shape) for _ in range(states)] + ([np.zeros(0, np.int64)] if grows else [])
    first = np.full(lone, not d.rarely()) if lone or not given or d.flag() else None
    outputs = states + grows + scans
    return case(d, most, first, *given, attributes={"body": body.graph()}, outputs=outputs, captured=around)


@cases("Scan")
def scan(d: Draws) -> Case:
    dtype, shape = kind(d, 1)
    states, sequences, scans = d.integer(0, 2), d.integer(1, 2), d.integer(0, 2)
    states = states or 1 - min(scans, 1)
    length = d.size(1, 4)
    body = Body(d, "b", dtype, shape, [])
    body.names += [body.formal(f"state{index}") for index in range(states)]
    body.names += [body.formal(f"element{index}") for index in range(sequences)]
    for result in [body.whole() for _ in range(states + scans)]:
        body.output(result)
    attributes: dict[str, Any] = {"body": body.graph(), "num_scan_inputs": sequences}
    if d.version < 9:
        batch = (d.size(1, 2),)
        attributes |= d.some(directions=[d.integer(0, 1) for _ in range(sequences)])
        lengths = d.whole(batch, 1, length) if d.flag() else None
        given = [d.array(dtype.name, (*batch, *shape)) for _ in range(states)]
        given += [d.array(dtype.name, (*batch, length, *shape)) for _ in range(sequences)]
        return case(d, lengths, *given, attributes=attributes, outputs=states + scans)
    given = [d.array(dtype.name, shape) for _ in range(states)]
    low = -len(shape) - 1 if d.version >= 11 else 0
    axes = [d.integer(low, len(shape)) for _ in range(sequences)] if d.flag() else None
    for index in range(sequences):
        sizes = [*shape, length] if axes is None else [*shape]
        if axes is None:
            sizes = [length, *shape]
        else:
            sizes.insert(axes[index] % (len(shape) + 1), length)
        given.append(d.array(dtype.name, sizes))
    attributes |= {} if axes is None else {"scan_input_axes": axes}
    attributes |= d.some(
        scan_input_directions=[d.integer(0, 1) for _ in range(sequences)],
        scan_output_directions=[d.integer(0, 1) for _ in range(scans)] or None,
        scan_output_axes=[d.integer(low, len(shape)) for _ in range(scans)] or None,
    )
    return case(d, *given, attributes=attributes, outputs=states + scans)
