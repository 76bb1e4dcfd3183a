"""Checks of a model, or of one node, against a reference."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from opgraft.engine.verify import failure_of
from opgraft.graph import ONNX_DOMAIN, Array
from opgraft.graph.element_types import NAME_OF_ONNX
from opgraft.ops import Handler
from opgraft.registry import Pack, Policy, Registry, load_registry
from opgraft.registry.packs import full_operator
from opgraft.testing.models import (
    NEWEST_OPSET,
    Reference,
    decisions_for,
    node_model,
    reference_outputs,
    run_model,
    stored,
)

NodeReference = Reference | Callable[..., Any] | Sequence[Array]
"""The same for one node; or a NumPy function of the operator's signature, or the expected outputs themselves."""

TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 2.0**-9, "bfloat16": 2.0**-6, "complex64": 1e-5}
"""The largest error of an output by its element type, relative to its largest magnitude (1 where that is less); what is
of another type must be equal."""


def check_model(
    model: onnx.ModelProto,
    inputs: Mapping[str, Array],
    *,
    reference: Reference | Sequence[Array] = "cpu",
    tolerance: float | None = None,
    registry: Registry | None = None,
    device: str = "cpu",
) -> list[Array]:
    """Check that every node of a model is claimed, and that its outputs are those of a reference.

    Args:
        reference: which one, or the expected outputs themselves.
        tolerance: largest error allowed, relative to the largest finite magnitude of the expected output (1 where that
            is less). Integers and booleans must be equal. Default: by element type, see `TOLERANCE`.

    Returns:
        The outputs.

    Raises:
        AssertionError: a node is declined, or an output differs in element type, shape or value.
    """
    decisions = decisions_for(model, registry, device)
    for node, reasons in decisions.declined:
        raise AssertionError(
            f"{node.label} ({node.operator}) is declined: {'; '.join(map(str, reasons))}"
        ) from failure_of(node, registry or load_registry(), device)
    expected = reference_outputs(model, inputs, reference) if isinstance(reference, str) else list(reference)
    outputs = run_model(model, inputs, registry, device, rehearsed=True)
    assert_outputs(model, outputs, expected, tolerance)
    return outputs


def assert_outputs(
    model: onnx.ModelProto, outputs: Sequence[Array], expected: Sequence[Array], tolerance: float | None
) -> None:
    """Check the outputs of a model, one by one.

    Raises:
        AssertionError: they are not as many, or one of them differs.
    """
    assert len(outputs) == len(expected), (
        f"outputs: {len(outputs)} of the model, {len(expected)} of the reference; outputs=N gives a node so many"
    )
    for info, output, wanted in zip(model.graph.output, outputs, expected, strict=True):
        dtype = NAME_OF_ONNX.get(info.type.tensor_type.elem_type, np.asarray(wanted).dtype.name)
        assert_same(output, wanted, TOLERANCE.get(dtype, 0.0) if tolerance is None else tolerance, info.name)


def check_node(
    operator: str | Handler,
    *inputs: Array | None,
    reference: NodeReference = "cpu",
    tolerance: float | None = None,
    registry: Registry | None = None,
    device: str = "cpu",
    **model: Any,
) -> list[Array]:
    """`check_model` on a model of one node; `model` holds what `node_model` takes, the node's attributes among it.

    The node has as many outputs as the expected ones or the NumPy function give, unless `outputs` says how many.

    Args:
        operator: an operator's name, whose handlers are those of the registry; or one handler, which is asked alone.
        reference: see `NodeReference`.
    """
    if isinstance(reference, Handler):
        raise TypeError("a handler is no reference: give a NumPy function of the operator's signature")
    chosen = model.get("outputs")
    name, registry = under_test(operator, registry, model)
    if callable(reference):
        reference = results_of(reference, inputs, _attributes(model))
    if not isinstance(reference, str):
        model["outputs"] = chosen or len(reference) or None
    proto = node_model(name, inputs, **model)
    given = feeds(inputs, model.get("constant", ()))
    return check_model(proto, given, reference=reference, tolerance=tolerance, registry=registry, device=device)


def _attributes(model: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes among what `node_model` takes."""
    own = {name: value for name, value in model.items() if name not in _OF_THE_MODEL}
    return {**(model.get("attributes") or {}), **own}


_OF_THE_MODEL = frozenset(inspect.signature(node_model).parameters)


def under_test(
    operator: str | Handler, registry: Registry | None, model: dict[str, Any]
) -> tuple[str, Registry | None]:
    """The operator's name, and the registry to ask: for a handler, one that knows no other. Where `model` says no
    opset, it gets one that the handler covers."""
    model.setdefault("outputs", None)
    if not isinstance(operator, str | Handler):
        given = getattr(operator, "__name__", None) or repr(operator)
        raise TypeError(f"what is checked is the name of an operator or a handler, which @op makes, not {given}")
    if isinstance(operator, str):
        definition = (registry or load_registry()).definitions.get(full_operator(operator))
        if definition is not None:
            model["outputs"] = model["outputs"] or len(definition.output_types)
        return operator, registry
    usual = NEWEST_OPSET if operator.domain == ONNX_DOMAIN else 1
    model.setdefault("opset", max(operator.since, min(usual, operator.until or usual)))
    if operator.definition is not None:
        model["outputs"] = model["outputs"] or operator.definition.required_outputs
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
    name, registry = under_test(operator, registry, model)
    registry = registry or load_registry()
    declined = decisions_for(node_model(name, inputs, **model), registry, device).declined
    assert declined, f"{name} is claimed, and should be declined because {because!r}"
    for node, reasons in declined:
        if not any(because in str(reason) for reason in reasons):
            raise AssertionError(
                f"{name} is declined because {[str(reason) for reason in reasons]}, not {because!r}"
            ) from failure_of(node, registry, device)


def results_of(
    reference: Callable[..., Any], inputs: Sequence[Array | None], attributes: Mapping[str, Any]
) -> list[Array]:
    """The outputs that a NumPy function of an operator's signature gives."""
    results = reference(*inputs, **attributes)
    return [np.asarray(each) for each in (results if isinstance(results, tuple | list) else [results])]


def feeds(inputs: Sequence[Array | None], constant: Sequence[int]) -> dict[str, Array]:
    """What a model of `node_model` is fed with."""
    given = {index: np.asarray(each) for index, each in enumerate(inputs) if each is not None}
    return {f"x{index}": each for index, each in given.items() if index not in constant}


def assert_same(output: Array, expected: Array, tolerance: float, name: str = "output") -> None:
    """Check element type, shape and values; NaN and infinities must stand in the same places.

    Raises:
        AssertionError: they differ.
    """
    expected = np.asarray(expected)
    if expected.dtype.name == "bfloat16":
        expected = expected.astype(np.float32)
    expected = stored(expected)
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
    if not good.size:
        return
    scale = max(1.0, float(np.max(np.abs(good))))
    errors = np.abs(good - found)
    place = int(np.argmax(errors))
    worst = float(errors[place])
    index = [int(each) for each in np.argwhere(finite)[place]]
    assert worst <= tolerance * scale, (
        f"{name}: off by {worst:.3g}, allowed {tolerance * scale:.3g}; it is {found[place]:.9g} at {index}, "
        f"expected {good[place]:.9g}"
    )
