"""What graphs are written by hand with, node by node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Arrays = dict[str, Any]
FLOAT, INT64, INT32, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL


class GraphWriter:
    """Writes a graph node by node; every method gives the names of the values it makes."""

    def __init__(self, producer: str, opset: int, constant_nodes: bool) -> None:
        self.producer, self.opset, self.constant_nodes = producer, opset, constant_nodes
        self.generator = np.random.default_rng(5)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.made = 0

    def input(self, name: str, element_type: int, *shape: int | str) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, element_type, shape))
        return name

    def constant(self, value: Any, dtype: str = "float32") -> str:
        name = self._name("const")
        tensor = numpy_helper.from_array(np.asarray(value, dtype), name)
        if self.constant_nodes:
            self.nodes.append(helper.make_node("Constant", [], [name], name=name, value=tensor))
        else:
            self.initializers.append(tensor)
        return name

    def integers(self, *values: int) -> str:
        return self.constant(values, "int64")

    def weight(self, *shape: int) -> str:
        scale = np.sqrt(2.0 / max(1, int(np.prod(shape[1:])))) if len(shape) > 1 else 0.2
        array = (scale * self.generator.normal(size=shape)).astype(np.float32)
        self.initializers.append(numpy_helper.from_array(array, self._name("weight")))
        return self.initializers[-1].name

    def positive(self, size: int) -> str:
        return self.constant(self.generator.uniform(0.5, 1.5, size))

    def __call__(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        return self.several(op_type, 1, *inputs, **attributes)[0]

    def several(self, op_type: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        name = self._name(op_type)
        made = [f"{name}:{place}" for place in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, made, name=name, **attributes))
        return made

    def cast(self, value: str, element_type: int) -> str:
        return self("Cast", value, to=element_type)

    def squeeze(self, value: str, *axes: int) -> str:
        return self._with_axes("Squeeze", value, axes)

    def unsqueeze(self, value: str, *axes: int) -> str:
        return self._with_axes("Unsqueeze", value, axes)

    def slice(self, value: str, start: int, end: int, axis: int = 0) -> str:
        return self("Slice", value, self.integers(start), self.integers(end), self.integers(axis))

    def model(self, **outputs: tuple[str, int]) -> onnx.ModelProto:
        """The model whose outputs are these values, of these element types."""
        self.nodes += [helper.make_node("Identity", [value], [name]) for name, (value, _) in outputs.items()]
        infos = [helper.make_tensor_value_info(name, kind, None) for name, (_, kind) in outputs.items()]
        graph = helper.make_graph(self.nodes, self.producer, self.inputs, infos, self.initializers)
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8, producer_name=self.producer)

    def _with_axes(self, op_type: str, value: str, axes: tuple[int, ...]) -> str:
        if self.opset < 13:
            return self(op_type, value, axes=axes)
        return self(op_type, value, self.integers(*axes))

    def _name(self, stem: str) -> str:
        self.made += 1
        return f"{stem}__{self.made}"


@dataclass(frozen=True)
class WrittenGraph:
    """A graph, the converter it imitates, and its inputs at every size, twice."""

    name: str
    route: str
    write: Callable[[], onnx.ModelProto]
    inputs: Callable[..., Arrays]
    sizes: Sequence[tuple[int, ...]]

    def cases(self) -> list[Arrays]:
        generator = np.random.default_rng(3)
        return [self.inputs(generator, *size) for _ in range(2) for size in self.sizes]


def pictures(name: str, last: bool, scale: float = 1.0) -> Callable[..., Arrays]:
    def make(generator: np.random.Generator, batch: int, height: int, width: int) -> Arrays:
        shape = (batch, height, width, 3) if last else (batch, 3, height, width)
        return {name: (scale * generator.normal(size=shape)).astype(np.float32)}

    return make


def padded_tokens(generator: np.random.Generator, batch: int, length: int, dtype: str) -> Any:
    tokens = generator.integers(1, 40, (batch, length)).astype(dtype)
    tokens[-1, -2:] = 0
    return tokens
