"""How far the outputs of a node are from those of a reference that is given the same inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator

from opgraft.ops import Node, to_host

from .describe import element_type, inputs_text, is_floating, node_text, number_text, output_text, place_text

NumPyArray: TypeAlias = np.ndarray[Any, Any]

Run: TypeAlias = Callable[[dict[str, NumPyArray]], Any]
"""Runs a model of one node: from its inputs by name to its outputs in order."""

RANDOM = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Operators whose outputs no reference repeats."""

PRECISION = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The spacing of a narrow type's numbers at 1: no less than this counts as drift, whatever the tolerance."""

_log = logging.getLogger("opgraft.numerics_guard")


@dataclass
class DriftCheck:
    """Compares nodes with ONNX Runtime's CPU execution provider, or with ONNX's reference evaluator for what that
    lacks. Random nodes, and those that neither can run, are not compared.

    Attributes:
        tolerance: the largest difference allowed, relative to the largest finite magnitude of the reference.
    """

    tolerance: float
    _references: MutableMapping[Node, tuple[str, Run] | None] = field(default_factory=WeakKeyDictionary, repr=False)

    def drifting(self, node: Node, inputs: Sequence[Any], outputs: Mapping[int, Any]) -> str | None:
        """The first output that drifts by more than the tolerance, in words; None where none does, and for a node
        that cannot be compared. The arguments are those of `made_non_finite`."""
        if node.op_type in RANDOM or not any(is_floating(array) for array in outputs.values()):
            return None
        given = [None if array is None else to_host(array) for array in inputs]
        expected = self._expected(node, given, outputs)
        if expected is None:
            return None
        reference, arrays = expected
        for (index, output), wanted in zip(outputs.items(), arrays, strict=True):
            if not is_floating(output):
                continue
            declared = node.outputs[index]
            name = element_type(output) if declared is None or declared.dtype is None else declared.dtype
            tolerance = max(self.tolerance, PRECISION.get(name, 0.0))
            found = to_host(output)
            drift, place = difference(found, wanted)
            if drift > tolerance:
                where = "another shape" if place is None else _instead(found, wanted, place)
                return (
                    f"{node_text(node)}: {output_text(node, index, output)} drifts by {drift:.3g} from {reference}, "
                    f"more than {tolerance:.3g}: {where}{inputs_text(node, inputs)}"
                )
        return None

    def _expected(
        self, node: Node, inputs: Sequence[NumPyArray | None], outputs: Mapping[int, Any]
    ) -> tuple[str, list[NumPyArray]] | None:
        """The name of a node's reference, and what it gives for the outputs; None where there is none."""
        if node not in self._references:
            self._references[node] = _reference(node, inputs, outputs)
        reference = self._references[node]
        if reference is None:
            return None
        name, run = reference
        try:
            given = {f"x{index}": array for index, array in enumerate(inputs) if array is not None}
            return name, [np.asarray(each) for each in run(given)]
        except Exception as error:  # what a reference refuses is not compared
            _log.debug("%s: %s cannot run it: %s", node_text(node), name, error)
            return None


def _reference(node: Node, inputs: Sequence[NumPyArray | None], outputs: Mapping[int, Any]) -> tuple[str, Run] | None:
    """The first reference that can load a node, with its name."""
    for name, load in (("ONNX Runtime's CPU", _on_onnx_runtime), ("ONNX's reference evaluator", _on_evaluator)):
        try:
            return name, load(single_node_model(node, inputs, outputs))
        except Exception as error:  # what no reference loads is not compared
            _log.debug("%s: %s cannot load it: %s", node_text(node), name, error)
    return None


def single_node_model(node: Node, inputs: Sequence[NumPyArray | None], outputs: Mapping[int, Any]) -> onnx.ModelProto:
    """A model of one node, whose inputs are x0, x1, ... and whose outputs y0, y1, ..., of any shape.

    bfloat16 is read as float32, which any reference has.

    Raises:
        TypeError, ValueError: an attribute cannot be written.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    proto = helper.make_node(
        node.op_type,
        ["" if array is None else f"x{index}" for index, array in enumerate(inputs)],
        [f"y{index}" if index in outputs else "" for index in range(max(outputs) + 1)],
        domain=domain,
    )
    proto.attribute.extend(_attribute(node, domain, name) for name in node.attributes)
    graph = helper.make_graph(
        [proto],
        "node",
        [_info(f"x{index}", array.dtype) for index, array in enumerate(inputs) if array is not None],
        [_info(f"y{index}", _host_type(array)) for index, array in outputs.items()],
    )
    opsets = [helper.make_opsetid(domain, node.since_version)]
    if domain:
        opsets.append(helper.make_opsetid("", 21))
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _attribute(node: Node, domain: str, name: str) -> onnx.AttributeProto:
    value: Any = node.attributes[name]
    if isinstance(value, np.ndarray):
        return helper.make_attribute(name, onnx.numpy_helper.from_array(value))
    if value == ():  # of which only the operator's schema knows the type
        schema = onnx.defs.get_schema(node.op_type, node.since_version, domain)
        kind: Any = schema.attributes[name].type
        return helper.make_attribute(name, value, attr_type=kind.value)
    return helper.make_attribute(name, value)


def _info(name: str, dtype: np.dtype[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), None)


def _host_type(array: Any) -> np.dtype[Any]:
    name = element_type(array)
    return np.dtype("float32" if name == "bfloat16" else name)


def _on_onnx_runtime(model: onnx.ModelProto) -> Run:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # threads for each of a thousand nodes are too many
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def _on_evaluator(model: onnx.ModelProto) -> Run:
    evaluator = ReferenceEvaluator(model)
    return lambda feeds: evaluator.run(None, feeds)


def difference(found: NumPyArray, expected: NumPyArray) -> tuple[float, int | None]:
    """The largest difference of two arrays, relative to the largest finite magnitude in `expected` (to 1 where that is
    0), and its place in row-major order (None: nowhere); infinite where NaN, infinities or shapes differ."""
    if not found.size and not expected.size:
        return 0.0, None
    if found.shape != expected.shape:
        return np.inf, None
    wide = np.complex128 if "c" in (found.dtype.kind, expected.dtype.kind) else np.float64
    found, expected = found.astype(wide).reshape(-1), expected.astype(wide).reshape(-1)
    both = np.isfinite(found) & np.isfinite(expected)
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    apart = np.where(same, 0.0, np.inf)
    apart[both] = np.abs(found[both] - expected[both])
    scale = np.max(np.abs(expected[np.isfinite(expected)]), initial=0.0) or 1.0
    place = int(np.argmax(apart))
    return float(apart[place] / scale), place


def _instead(found: NumPyArray, expected: NumPyArray, place: int) -> str:
    ours, theirs = (number_text(each.reshape(-1)[place], 9) for each in (found, expected))
    return f"at {place_text(place, found.shape)} {ours} instead of {theirs}"
