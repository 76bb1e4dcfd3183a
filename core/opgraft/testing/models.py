"""Small models, what opgraft decides about them, and their outputs: through handlers, and from a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, get_args

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from opgraft import ort_values
from opgraft.claims import Decisions, decide
from opgraft.engine import Program, VerifiedRegistry, read_model
from opgraft.engine.inference import infer_outputs
from opgraft.errors import ContractError, ModelError, TranslationError, text_of
from opgraft.graph import ONNX_DOMAIN, Array, Graph, Shape, Value
from opgraft.graph.element_types import HELD_AS, NAME_OF_ONNX, ONNX_OF_NAME
from opgraft.graph.onnx_source import storage_form
from opgraft.ops.arrays import element_type, host_from_storage, to_host
from opgraft.plan import build_plan
from opgraft.registry import Registry, load_registry
from opgraft.registry.packs import full_operator
from opgraft.schemas import known_schemas

Reference = Literal["cpu", "onnx"]
"""What to compare with: ONNX Runtime's CPU execution provider, or ONNX's own reference evaluator."""

NEWEST_OPSET = 21
"""Of ai.onnx, where a test does not say which."""


def node_model(
    operator: str,
    inputs: Sequence[Array | None],
    *,
    opset: int | None = None,
    outputs: int | None = None,
    output_types: Sequence[str | None] = (),
    constant: Sequence[int] = (),
    dynamic: bool = False,
    attributes: Mapping[str, Any] | None = None,
    **more_attributes: Any,
) -> onnx.ModelProto:
    """A model of one node.

    Args:
        operator: `OpType` or `domain::OpType`.
        inputs: example arrays for its inputs, None for an absent one. Inputs are named x0, x1, ...; outputs y0, ...
        opset: the opset of the operator's domain. Default: 21 for ai.onnx, 1 for others.
        outputs: the number of outputs. Default: those that every node of the operator has, where ONNX Runtime knows it,
            else 1.
        output_types: element type names of the outputs where ONNX's inference does not find them.
        constant: which inputs become initializers.
        dynamic: give the inputs symbolic sizes instead of those of the examples.
        attributes, more_attributes: the node's attributes; the mapping is for names that mean something else here.
    """
    domain, _, op_type = operator.rpartition("::")
    domain = "" if domain == ONNX_DOMAIN else domain
    opset = opset or (1 if domain else NEWEST_OPSET)
    names = ["" if array is None else f"x{index}" for index, array in enumerate(inputs)]
    outputs = required_outputs(operator, opset) if outputs is None else outputs
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op_type, names, results, domain=domain)
    node.name = "node"
    given_attributes = {**(attributes or {}), **more_attributes}
    node.attribute.extend(
        helper.make_attribute(name, value) for name, value in sorted(given_attributes.items()) if value is not None
    )
    opsets = [helper.make_opsetid(domain, opset)]
    if domain:
        opsets.append(helper.make_opsetid("", NEWEST_OPSET))
    given = [(index, names[index], np.asarray(array)) for index, array in enumerate(inputs) if array is not None]
    formals = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            [f"d{index}_{axis}" for axis in range(array.ndim)] if dynamic else array.shape,
        )
        for index, name, array in given
        if index not in constant
    ]
    carried = [onnx.numpy_helper.from_array(array, name) for index, name, array in given if index in constant]
    types = [*output_types, *[None] * (outputs - len(output_types))]
    infos = [
        helper.make_tensor_value_info(name, ONNX_OF_NAME[dtype], None)
        if dtype
        else helper.make_empty_tensor_value_info(name)
        for name, dtype in zip(results, types, strict=True)
    ]
    graph = helper.make_graph([node], "one_node", formals, infos, carried)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return with_output_types(model)


def required_outputs(operator: str, opset: int) -> int:
    """How many outputs every node of an operator has at an opset, as far as ONNX Runtime knows; 1 where it does not."""
    known = [each for each in known_schemas(full_operator(operator)) if each.since_version <= opset]
    return max(1, known[-1].min_output) if known else 1


def with_output_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the types that ONNX's inference finds for graph outputs that have none."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for mine, found in zip(model.graph.output, inferred.graph.output, strict=True):
        if not mine.type.HasField("tensor_type") or mine.type.tensor_type.elem_type == TensorProto.UNDEFINED:
            mine.CopyFrom(found)
    return model


def decisions_for(model: onnx.ModelProto, registry: Registry | None = None, device: str = "cpu") -> Decisions:
    """What opgraft decides about each node of a model, every claim verified."""
    registry = registry or load_registry()
    graph = read_model(model, registry.definitions)
    return decide(graph, VerifiedRegistry(registry, device), device=device)


def run_model(
    model: onnx.ModelProto,
    inputs: Mapping[str, Array],
    registry: Registry | None = None,
    device: str = "cpu",
    *,
    rehearsed: bool = False,
) -> list[Array]:
    """Run a whole model through the handlers, without ONNX Runtime. An input that has an initializer may be left out.

    Arrays of ml_dtypes go in; bfloat16 comes out as float32, and a type that MLX lacks as the one that it is held in.

    Args:
        rehearsed: run it on other inputs before, those given backwards: whatever a translator keeps of them shows.

    Raises:
        ModelError: `inputs` lacks one of the model's.
        ContractError: an output is of another element type than the model says, or of another shape than the schema of
            an operator that a pack defines; or the inference of such a schema fails, or says too little.
    """
    registry = registry or load_registry()
    graph = read_model(model, registry.definitions)
    _check_inferences(graph, registry)
    plan = build_plan(graph)
    program = Program(plan, registry, device)
    given = [_given(graph, inputs, value) for value in plan.inputs]
    if rehearsed:
        with suppress(TranslationError):  # they may be inputs that it cannot take
            program.run([np.flip(each).copy() for each in given])
    outputs = program.run(given)
    nodes = [node for node in graph.nodes if node.operator in registry.definitions]
    told = {value.name for node in nodes for value in node.outputs if value is not None}
    for value, output in zip(plan.output_values, outputs, strict=True):
        found = element_type(output)
        if value.dtype is not None and found != HELD_AS.get(value.dtype):
            raise ContractError(f"output {value.name!r} came out as {found}, and the model says {value.dtype}")
        if value.name in told and value.shape is not None and not _fits(output.shape, value.shape):
            raise ContractError(
                f"output {value.name!r} came out as {list(output.shape)}, and the model says {value.shape}"
            )
    return [to_host(each) for each in outputs]


def _check_inferences(graph: Graph, registry: Registry) -> None:
    """Call the inference functions of the schemas of a graph's nodes.

    A session, and `read_model`, go on without what they do not learn.
    """
    for node in graph.nodes:
        definition = registry.definitions.get(node.operator)
        handlers = definition.handlers_for(node).values() if definition else ()
        if definition is None or not any(each.definition and each.definition.inference for each in handlers):
            continue
        found = infer_outputs(node, definition)
        if len(found) < node.needed_outputs:
            raise ContractError(
                f"{node.operator} [{definition.pack}]: the inference of its schema gave {len(found)} of "
                f"{node.needed_outputs} outputs"
            )


def _fits(shape: Sequence[int], declared: Shape) -> bool:
    return len(shape) == len(declared) and all(
        size == dim for size, dim in zip(shape, declared, strict=True) if isinstance(dim, int)
    )


def _given(graph: Graph, inputs: Mapping[str, Array], value: Value) -> Array:
    if value.name in inputs:
        return stored(np.asarray(inputs[value.name]))
    if value.name in graph.initializers:
        return graph.initializers[value.name].read()
    raise ModelError(f"the model's input {value.name!r} is not given")


def stored(array: Array) -> Array:
    """An array in storage form, if it is of a type of ml_dtypes."""
    registered = array.dtype.isbuiltin == 2
    return storage_form(array, NAME_OF_ONNX[helper.np_dtype_to_tensor_dtype(array.dtype)]) if registered else array


def reference_outputs(model: onnx.ModelProto, inputs: Mapping[str, Array], reference: Reference = "cpu") -> list[Array]:
    """The same model's outputs from a reference.

    Raises:
        ValueError: there is no such reference.
        ModelError: it does not know an operator of the model, or has no kernel for one.
    """
    if reference not in get_args(Reference):
        raise ValueError(f"there is no reference {reference!r}: {_REFERENCES}")
    try:
        return _onnx_outputs(model, inputs) if reference == "onnx" else _cpu_outputs(model, inputs)
    except Exception as error:
        advice = _advice(model, reference, error)
        if advice is None:
            raise
        raise ModelError(f"{advice} ({text_of(error)})") from error


_REFERENCES = (
    '"cpu", "onnx", a NumPy function of the operator\'s signature (to check_node and check_over), or the outputs'
)


def _advice(model: onnx.ModelProto, reference: Reference, error: Exception) -> str | None:
    """What to do where a reference cannot run a model because of an operator; None where that is not the reason."""
    operators = dict.fromkeys(full_operator(f"{node.domain}::{node.op_type}") for node in model.graph.node)
    unknown = [operator for operator in operators if not known_schemas(operator)]
    if unknown:
        return (
            f"the reference {reference!r} does not know {unknown[0]}: give reference=, a NumPy function of the "
            "operator's signature, or the expected outputs"
        )
    if type(error).__name__ == "NotImplemented" and reference == "cpu":  # of onnxruntime
        return (
            "ONNX Runtime's CPU provider has no kernel for this: try reference='onnx', a NumPy function of the "
            "operator's signature, or the expected outputs"
        )
    return None


def _onnx_outputs(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    return list(ReferenceEvaluator(model).run(None, dict(inputs)))


def _cpu_outputs(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [NAME_OF_ONNX.get(info.type.tensor_type.elem_type) for info in model.graph.output]
    return [host_from_storage(each, name) for each, name in zip(ort_values.run(session, inputs), names, strict=True)]
