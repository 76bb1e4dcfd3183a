"""A test kit for authors of op packs: build small models, run them through a pack's handlers, compare with a reference.

Needs `onnx`, which opgraft installs. Nothing here goes through a session of ONNX Runtime, except the comparison with
its CPU execution provider.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from opgraft import ort_values
from opgraft.claims import Decisions, decide
from opgraft.drawing import Drawing, InputForm, dtypes_by_input
from opgraft.engine import Program, VerifiedRegistry, read_model
from opgraft.errors import ContractError, ModelError, TranslationError
from opgraft.graph import ONNX_DOMAIN, Array, Graph, Shape, Value
from opgraft.graph.element_types import ANY, HELD_AS, NAME_OF_ONNX, ONNX_OF_NAME
from opgraft.graph.onnx_source import storage_form
from opgraft.ops import Handler
from opgraft.ops.arrays import element_type, host_from_storage, to_host
from opgraft.plan import build_plan
from opgraft.registry import Pack, Policy, Registry, load_registry

Reference = Literal["cpu", "onnx"]
"""What to compare with: ONNX Runtime's CPU execution provider, or ONNX's own reference evaluator."""

NodeReference = Reference | Callable[..., Any] | Sequence[Array]
"""The same for one node; or a NumPy function of the operator's signature, or the expected outputs themselves."""

NEWEST_OPSET = 21
"""Of ai.onnx, where a test does not say which."""


def node_model(
    operator: str,
    inputs: Sequence[Array | None],
    *,
    opset: int | None = None,
    outputs: int = 1,
    output_types: Sequence[str | None] = (),
    constant: Sequence[int] = (),
    dynamic: bool = False,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node.

    Args:
        operator: `OpType` or `domain::OpType`.
        inputs: example arrays for its inputs, None for an absent one. Inputs are named x0, x1, ...; outputs y0, ...
        opset: the opset of the operator's domain. Default: 21 for ai.onnx, 1 for others.
        outputs: the number of outputs.
        output_types: element type names of the outputs where ONNX's inference does not find them.
        constant: which inputs become initializers.
        dynamic: give the inputs symbolic sizes instead of those of the examples.
        attributes: the node's attributes.
    """
    domain, _, op_type = operator.rpartition("::")
    domain = "" if domain == ONNX_DOMAIN else domain
    opset = opset or (1 if domain else NEWEST_OPSET)
    names = ["" if array is None else f"x{index}" for index, array in enumerate(inputs)]
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op_type, names, results, domain=domain, name="node", **attributes)
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
            an operator that a pack defines.
    """
    registry = registry or load_registry()
    graph = read_model(model, registry.definitions)
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


def _fits(shape: Sequence[int], declared: Shape) -> bool:
    return len(shape) == len(declared) and all(
        size == dim for size, dim in zip(shape, declared, strict=True) if isinstance(dim, int)
    )


def _given(graph: Graph, inputs: Mapping[str, Array], value: Value) -> Array:
    if value.name in inputs:
        return _stored(np.asarray(inputs[value.name]))
    if value.name in graph.initializers:
        return graph.initializers[value.name].read()
    raise ModelError(f"the model's input {value.name!r} is not given")


def _stored(array: Array) -> Array:
    """An array in storage form, if it is of a type of ml_dtypes."""
    registered = array.dtype.isbuiltin == 2
    return storage_form(array, NAME_OF_ONNX[helper.np_dtype_to_tensor_dtype(array.dtype)]) if registered else array


def reference_outputs(model: onnx.ModelProto, inputs: Mapping[str, Array], reference: Reference = "cpu") -> list[Array]:
    """The same model's outputs from a reference."""
    if reference == "onnx":
        return list(ReferenceEvaluator(model).run(None, dict(inputs)))
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [NAME_OF_ONNX.get(info.type.tensor_type.elem_type) for info in model.graph.output]
    return [host_from_storage(each, name) for each, name in zip(ort_values.run(session, inputs), names, strict=True)]


def check_model(
    model: onnx.ModelProto,
    inputs: Mapping[str, Array],
    *,
    reference: Reference | Sequence[Array] = "cpu",
    tolerance: float = 1e-5,
    registry: Registry | None = None,
    device: str = "cpu",
) -> list[Array]:
    """Check that every node of a model is claimed, and that its outputs are those of a reference.

    Args:
        reference: which one, or the expected outputs themselves.
        tolerance: largest error allowed, relative to the largest finite magnitude of the expected output (1 where that
            is less). Integers and booleans must be equal.

    Returns:
        The outputs.

    Raises:
        AssertionError: a node is declined, or an output differs in element type, shape or value.
    """
    decisions = decisions_for(model, registry, device)
    for node, reasons in decisions.declined:
        raise AssertionError(f"{node.label} ({node.operator}) is declined: {'; '.join(map(str, reasons))}")
    expected = reference_outputs(model, inputs, reference) if isinstance(reference, str) else list(reference)
    outputs = run_model(model, inputs, registry, device, rehearsed=True)
    assert len(outputs) == len(expected)
    for info, output, wanted in zip(model.graph.output, outputs, expected, strict=True):
        assert_same(output, wanted, tolerance, info.name)
    return outputs


def check_node(
    operator: str | Handler,
    *inputs: Array | None,
    reference: NodeReference = "cpu",
    tolerance: float = 1e-5,
    registry: Registry | None = None,
    device: str = "cpu",
    **model: Any,
) -> list[Array]:
    """`check_model` on a model of one node; `model` holds what `node_model` takes, the node's attributes among it.

    Args:
        operator: an operator's name, whose handlers are those of the registry; or one handler, which is asked alone.
        reference: see `NodeReference`.
    """
    name, registry = _under_test(operator, registry, model)
    proto = node_model(name, inputs, **model)
    given = _feeds(inputs, model.get("constant", ()))
    if callable(reference):
        attributes = {key: value for key, value in model.items() if key not in _OF_THE_MODEL}
        reference = _expected(reference, proto, inputs, attributes, ())
    return check_model(proto, given, reference=reference, tolerance=tolerance, registry=registry, device=device)


_OF_THE_MODEL = frozenset(inspect.signature(node_model).parameters)


def _under_test(
    operator: str | Handler, registry: Registry | None, model: dict[str, Any]
) -> tuple[str, Registry | None]:
    """The operator's name, and the registry to ask: for a handler, one that knows no other. Where `model` says no
    opset, it gets one that the handler covers."""
    if isinstance(operator, str):
        return operator, registry
    usual = NEWEST_OPSET if operator.domain == ONNX_DOMAIN else 1
    model.setdefault("opset", max(operator.since, min(usual, operator.until or usual)))
    return operator.operator, registry or Registry([Pack("under test", plugins=(operator,))], Policy())


def check_declined(
    operator: str | Handler,
    *inputs: Array | None,
    because: str,
    registry: Registry | None = None,
    device: str = "cpu",
    **model: Any,
) -> None:
    """Check that a one-node model is declined, with a reason that holds the text `because`.

    Args:
        operator: as for `check_node`.

    Raises:
        AssertionError: it is claimed, or declined for another reason.
    """
    name, registry = _under_test(operator, registry, model)
    declined = decisions_for(node_model(name, inputs, **model), registry, device).declined
    assert declined, f"{name} is claimed, and should be declined because {because!r}"
    reasons = [str(reason) for _, each in declined for reason in each]
    assert any(because in reason for reason in reasons), f"{name} is declined because {reasons}, not {because!r}"


@dataclass
class Tally:
    """What became of the nodes that `check_over` drew."""

    compared: int = 0
    declined: int = 0
    refused: int = 0
    """The reference has no answer, and opgraft was not asked."""


def check_over(
    operator: str | Handler,
    *shapes: str,
    reference: Reference | Callable[..., Any] = "cpu",
    dtypes: Collection[str] | Mapping[str, Collection[str]] | None = None,
    attributes: Mapping[str, Sequence[Any]] | None = None,
    sizes: tuple[int, int] = (0, 5),
    values: tuple[int, int] = (-4, 4),
    examples: int = 100,
    tolerance: float | None = None,
    registry: Registry | None = None,
    device: str = "cpu",
    **model: Any,
) -> Tally:
    """Check an operator over random inputs: what is claimed is translated, and right; what is declined has a reason.

    Each node is drawn by hypothesis, its inputs fixed by the model or not, its sizes known beforehand or not. A failure
    comes down to the simplest node that shows it. The same nodes are drawn each time.

    Args:
        operator: as for `check_node`.
        shapes: a shape for each input, as in `"N D"`: names stand for the same size wherever they are, `...` for any
            number of them, a `?` at the end for an input that may be left out.
        reference: "cpu", "onnx", or a NumPy function of the operator's signature.
        dtypes: the element types to draw from: one set for all inputs, or one for each by name (x0, x1, ... where the
            operator is given by its name). Default: those that the handler takes and NumPy has, else float32.
        attributes: the values to draw from; `...` among them stands for leaving the attribute out.
        sizes: the least and the largest size of a dimension that has a name.
        values: the least and the largest element.
        examples: how many nodes are drawn.
        tolerance: as for `check_model`. Default: by element type.
        model: what else `node_model` takes.

    Returns:
        How many nodes were compared, and how many were not.

    Raises:
        AssertionError: an output is wrong; a claim outruns its translation; or fewer than half of the nodes were
            compared, so that shapes or element types should be chosen better.
    """
    try:
        from hypothesis import HealthCheck, given, note, settings
        from hypothesis import strategies as st
    except ImportError as error:
        raise ImportError("check_over draws with hypothesis: pip install hypothesis") from error

    name, registry = _under_test(operator, registry, model)
    registry = registry or load_registry()
    drawing = _drawing(operator, shapes, dtypes, attributes or {}, sizes, values)
    tally = Tally()

    @settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck]
    )
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        def draw(low: int, high: int) -> int:
            return int(data.draw(st.integers(low, high)))

        inputs, drawn = drawing.draw(draw)
        constant = [index for index, each in enumerate(inputs) if each is not None and draw(0, 3) == 3]
        form = {**model, "constant": constant, "dynamic": bool(draw(0, 1)), **drawn}
        note(
            f"check_node({name!r}, {', '.join(map(repr, inputs))}, {', '.join(f'{k}={v!r}' for k, v in form.items())})"
        )
        proto = node_model(name, inputs, **form)
        (decision,) = decide(read_model(proto, registry.definitions), registry, device=device).decisions
        verified = decisions_for(proto, registry, device).decisions[0]
        reasons = "; ".join(map(str, verified.reasons))
        assert verified.claimed or reasons, f"{name} is declined without a reason"
        assert verified.claimed or not decision.claimed, f"{name} is claimed, and cannot be translated: {reasons}"
        if not verified.claimed:
            tally.declined += 1
            return
        try:
            expected = _expected(reference, proto, inputs, drawn, constant)
        except Exception:
            if callable(reference):
                raise
            tally.refused += 1
            return
        for output, wanted in zip(_run_node(proto, inputs, constant, registry, device), expected, strict=True):
            allowed = _TOLERANCE.get(wanted.dtype.name, 0.0) if tolerance is None else tolerance
            assert_same(output, wanted, allowed, name)
        tally.compared += 1

    holds()
    total = tally.compared + tally.declined + tally.refused
    assert 2 * tally.compared >= total, f"{name}: of {total} nodes, too few were compared with the reference ({tally})"
    return tally


_TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 2.0**-9, "bfloat16": 2.0**-6, "complex64": 1e-5}


def _drawing(
    operator: str | Handler,
    shapes: Sequence[str],
    dtypes: Collection[str] | Mapping[str, Collection[str]] | None,
    attributes: Mapping[str, Sequence[Any]],
    sizes: tuple[int, int],
    values: tuple[int, int],
) -> Drawing:
    names = [f"x{index}" for index in range(len(shapes))]
    known: Mapping[str, Collection[str]] = {name: ("float32",) for name in names}
    if isinstance(operator, Handler):
        parameters = [operator.signature.input(index) for index in range(len(shapes))]
        names = [f"x{index}" if each is None else each.name for index, each in enumerate(parameters)]
        known = {each.name: each.dtypes & ANY - {"bfloat16"} for each in parameters if each is not None}
    if isinstance(dtypes, Mapping):
        known = {**known, **dtypes}
    taken = dtypes_by_input(known if dtypes is None or isinstance(dtypes, Mapping) else dtypes, names)
    return Drawing(tuple(map(InputForm.of, shapes)), tuple(map(tuple, taken)), attributes, sizes, values)


def _expected(
    reference: Reference | Callable[..., Any],
    proto: onnx.ModelProto,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any],
    constant: Sequence[int],
) -> list[Array]:
    if not callable(reference):
        return reference_outputs(proto, _feeds(inputs, constant), reference)
    results = reference(*inputs, **attributes)
    return [np.asarray(each) for each in (results if isinstance(results, tuple | list) else [results])]


def _run_node(
    proto: onnx.ModelProto, inputs: Sequence[Array | None], constant: Sequence[int], registry: Registry, device: str
) -> list[Array]:
    return run_model(proto, _feeds(inputs, constant), registry, device, rehearsed=True)


def _feeds(inputs: Sequence[Array | None], constant: Sequence[int]) -> dict[str, Array]:
    """What a model of `node_model` is fed with."""
    return {f"x{index}": each for index, each in enumerate(inputs) if each is not None and index not in constant}


def assert_same(output: Array, expected: Array, tolerance: float, name: str = "output") -> None:
    """Check element type, shape and values; NaN and infinities must stand in the same places.

    Raises:
        AssertionError: they differ.
    """
    expected = np.asarray(expected)
    if expected.dtype.name == "bfloat16":
        expected = expected.astype(np.float32)
    expected = _stored(expected)
    assert output.shape == expected.shape, f"{name}: shape {output.shape}, expected {expected.shape}"
    assert output.dtype == expected.dtype, f"{name}: {output.dtype}, expected {expected.dtype}"
    if output.dtype.kind not in "fc":
        np.testing.assert_array_equal(output, expected, err_msg=name)
        return
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isnan(output), np.isnan(expected), err_msg=f"{name}: NaN")
    infinite = np.isinf(expected)
    np.testing.assert_array_equal(output[infinite], expected[infinite], err_msg=f"{name}: infinities")
    wide = np.complex128 if output.dtype.kind == "c" else np.float64
    good, found = expected[finite].astype(wide), output[finite].astype(wide)
    scale = max(1.0, float(np.max(np.abs(good), initial=0.0)))
    worst = float(np.max(np.abs(good - found), initial=0.0))
    assert worst <= tolerance * scale, f"{name}: off by {worst:.3g}, allowed {tolerance * scale:.3g}"


__all__ = [
    "Graph",
    "NodeReference",
    "Reference",
    "Tally",
    "assert_same",
    "check_declined",
    "check_model",
    "check_node",
    "check_over",
    "decisions_for",
    "node_model",
    "reference_outputs",
    "run_model",
    "with_output_types",
]
