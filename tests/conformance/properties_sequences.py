"""Cases of operators on sequences of tensors: chains of nodes that begin and end with tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from onnx import NodeProto, helper
from properties import Case
from properties_control_flow import Body
from strategies import Draws, cases

from opgraft.graph import Array
from opgraft.graph.element_types import FLOATS, NUMBERS, ONNX_OF_NAME

ELEMENTS = NUMBERS - {"bfloat16"} | {"bool"}


class Chain:
    """Nodes that are being drawn, and the tensors x0, x1, ... that they begin with."""

    def __init__(self, d: Draws) -> None:
        self.d = d
        self.inputs: list[Array] = []
        self.nodes: list[NodeProto] = []
        self.outputs = 0

    def tensor(self, array: Any) -> str:
        self.inputs.append(np.asarray(array))
        return f"x{len(self.inputs) - 1}"

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def output(self, name: str) -> None:
        self.nodes.append(helper.make_node("Identity", [name], [f"y{self.outputs}"]))
        self.outputs += 1

    def position(self, low: int, high: int) -> tuple[str, ...]:
        """A position as an input, or none; rarely one that is not there."""
        if self.d.flag():
            return ()
        place = self.d.pick(low - 1, high + 1) if self.d.rarely() or low > high else self.d.integer(low, high)
        return (self.tensor(np.array(place, self.d.pick(np.int64, np.int32))),)

    def case(self) -> Case:
        drawn = self.d.case(*self.inputs)
        opset = max(drawn.opset, 13)
        return replace(drawn, nodes=tuple(self.nodes), outputs=self.outputs, computed=None, opset=opset)


def construct(d: Draws, chain: Chain, among: frozenset[str] = ELEMENTS) -> tuple[str, int, int]:
    """A sequence of tensors of one shape, their number and their rank."""
    dtype, shape, count = d.pick("float32", *sorted(among)), d.shape(0, 3), d.integer(1, 4)
    tensors = [chain.tensor(d.array(dtype, shape)) for _ in range(count)]
    return chain.node("SequenceConstruct", *tensors), count, len(shape)


def tell(chain: Chain, sequence: str) -> Case:
    """A chain that ends with the length of a sequence and all its tensors, of one shape, stacked."""
    chain.output(chain.node("SequenceLength", sequence))
    chain.output(chain.node("ConcatFromSequence", sequence, axis=0, new_axis=1))
    return chain.case()


@cases("SequenceEmpty")
def sequence_empty(d: Draws) -> Case:
    chain, dtype = Chain(d), d.pick("float32", *sorted(ELEMENTS))
    attributes = {} if dtype == "float32" and d.flag() else {"dtype": ONNX_OF_NAME[dtype]}
    sequence = chain.node("SequenceEmpty", **attributes)
    return tell(chain, chain.node("SequenceInsert", sequence, chain.tensor(d.array(dtype, d.shape(0, 3)))))


@cases("SequenceConstruct", "SequenceLength")
def sequence_construct(d: Draws) -> Case:
    chain = Chain(d)
    return tell(chain, construct(d, chain)[0])


@cases("SequenceInsert")
def sequence_insert(d: Draws) -> Case:
    chain = Chain(d)
    sequence, count, _ = construct(d, chain)
    first = chain.inputs[0]
    return tell(chain, chain.node("SequenceInsert", sequence, chain.tensor(first), *chain.position(-count, count)))


@cases("SequenceErase")
def sequence_erase(d: Draws) -> Case:
    chain = Chain(d)
    sequence, count, _ = construct(d, chain)
    sequence = chain.node("SequenceInsert", sequence, "x0")  # lest none be left
    return tell(chain, chain.node("SequenceErase", sequence, *chain.position(-count - 1, count)))


@cases("SequenceAt")
def sequence_at(d: Draws) -> Case:
    chain = Chain(d)
    sequence, count, _ = construct(d, chain)
    position = chain.position(-count, count - 1) or (chain.tensor(np.array(0)),)
    chain.output(chain.node("SequenceAt", sequence, *position))
    return chain.case()


@cases("ConcatFromSequence")
def concat_from_sequence(d: Draws) -> Case:
    chain = Chain(d)
    sequence, _, rank = construct(d, chain)
    stacks = not rank or d.flag()
    attributes = {"axis": d.axis(rank + stacks)} | ({"new_axis": 1} if stacks else d.some(new_axis=0))
    chain.output(chain.node("ConcatFromSequence", sequence, **attributes))
    return chain.case()


@cases("SplitToSequence")
def split_to_sequence(d: Draws) -> Case:
    chain, shape = Chain(d), d.shape(1, 3, 1)
    axis = d.axis(len(shape))
    attributes = {"axis": axis} if d.flag() else {}
    size = shape[attributes.get("axis", 0)]
    x = chain.tensor(d.array(d.pick("float32", *sorted(ELEMENTS)), shape))
    kind = d.pick("ones", "equal", "listed")
    first = d.integer(1, size)
    split = {"ones": [], "equal": [first], "listed": [[first, size - first]]}[kind]
    attributes |= d.some(keepdims=d.integer(0, 1)) if kind == "ones" else {}
    given = [chain.tensor(np.array(each, d.pick(np.int64, np.int32))) for each in split]
    sequence = chain.node("SplitToSequence", x, *given, **attributes)
    chain.output(chain.node("SequenceLength", sequence))
    chain.output(chain.node("SequenceAt", sequence, chain.tensor(np.array(d.pick(0, -1)))))
    return chain.case()


@cases("SequenceMap")
def sequence_map(d: Draws) -> Case:
    chain, dtype, shape = Chain(d), d.pick("float32", *sorted(FLOATS - {"float16", "bfloat16"})), d.shape(0, 2)
    count = d.integer(1, 3)
    sequences = [
        chain.node("SequenceConstruct", *(chain.tensor(d.array(dtype, shape)) for _ in range(count)))
        for _ in range(d.integer(1, 2))
    ]
    tensors = [chain.tensor(d.array(dtype, shape)) for _ in range(d.integer(0, 1))]
    body = Body(d, "b", np.dtype(dtype), shape, [])
    body.names += [body.formal(f"given{index}") for index in range(len(sequences) + len(tensors))]
    body.output(body.whole())
    return tell(chain, chain.node("SequenceMap", *sequences, *tensors, body=body.graph()))
