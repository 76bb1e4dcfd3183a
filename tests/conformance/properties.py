"""The property of every operator: on whatever case is drawn, opgraft gives what an oracle gives, or says why not.

`properties_*.py` draw the cases: each operator has a strategy in `OPERATORS`. The oracle is ONNX Runtime's CPU
provider; where it has no kernel for an element type, the same provider on a wider type; where it has none at all,
ONNX's own reference evaluator. A case may bring outputs, or a check of its own, instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx.printer
import onnxruntime
from hypothesis import strategies as st
from kit import placed
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi import onnxruntime_pybind11_state as runtime_errors

from opgraft import ort_values
from opgraft.errors import TranslationError
from opgraft.graph import Array
from opgraft.graph.element_types import ANY, INTEGERS, NAME_OF_ONNX, NUMBERS, ONNX_OF_NAME
from opgraft.ops.arrays import host_from_storage
from opgraft.registry import Registry, load_registry
from opgraft.testing import assert_same, decisions_for, node_model, run_model, with_output_types

Outputs = Sequence[Array]

TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 2.0**-10, "bfloat16": 2.0**-7, "complex64": 1e-5}
"""The largest error allowed by element type, relative to the largest magnitude of an output."""

HALVES = {"float16": "float32", "bfloat16": "float32"}
WIDER = {**HALVES, **dict.fromkeys(INTEGERS - {"uint64"}, "int64")}
"""The types in which the oracle reckons instead: always for 16-bit floats, so that only one rounding separates it from
the exact result, and for integers where it has no kernel."""


@dataclass(frozen=True)
class Case:
    """One node with its inputs, and what it is judged by.

    Attributes:
        operator, inputs, attributes, opset, outputs, output_types, constant, dynamic: as `node_model` takes them.
        computed: an input that reaches the node from the device, if there is one.
        on_host: True where the outputs are read on the host, so that an operator that can runs there, in NumPy.
        captured: values c0, c1, ... that the node's bodies read from around it.
        nodes: those of the model in place of the one node, if `x0` ... do not go straight into it.
        oracle: "cpu"; "onnx"; the outputs themselves; another case, whose outputs are the same, element types aside;
            or a function that is given a function that runs the node.
        widened: False where the oracle must see 16-bit floats as they are.
        elementwise: True where each element has to be right relative to its own magnitude.
        moves: True where elements are only moved: each bit counts, the sign of zero too.
        tolerance: instead of that of the element type.
    """

    operator: str
    inputs: tuple[Array | None, ...]
    opset: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    output_types: tuple[str | None, ...] = ()
    constant: tuple[int, ...] = ()
    dynamic: bool = False
    computed: int | None = None
    on_host: bool = False
    captured: tuple[Array, ...] = ()
    nodes: tuple[onnx.NodeProto, ...] = ()
    oracle: str | Outputs | Case | Callable[[Callable[[], list[Array]]], None] = "cpu"
    widened: bool = True
    elementwise: bool = False
    moves: bool = False
    tolerance: float | None = None

    def __repr__(self) -> str:
        """As a call of `opgraft.testing.check_node`."""
        parts = [repr(self.operator), *(described(each) for each in self.inputs), f"opset={self.opset}"]
        for name in ("outputs", "output_types", "constant", "dynamic", "computed", "on_host", "captured"):
            if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                parts.append(f"{name}={getattr(self, name)!r}")
        for name, value in self.attributes.items():
            text = onnx.printer.to_text(value) if isinstance(value, onnx.GraphProto) else repr(value)
            parts.append(f"{name}={text}")
        text = f"check_node({', '.join(parts)})"
        return "\n".join([text, *(onnx.printer.to_text(each) for each in self.nodes)])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    @property
    def feeds(self) -> dict[str, Array]:
        given = enumerate(self.inputs)
        feeds = {f"x{index}": each for index, each in given if each is not None and index not in self.constant}
        return feeds | {f"c{index}": each for index, each in enumerate(self.captured)}

    @property
    def model(self) -> onnx.ModelProto:
        model = node_model(
            "Identity" if self.nodes else self.operator,
            self.inputs,
            opset=self.opset,
            outputs=self.outputs,
            output_types=self.output_types,
            constant=self.constant,
            dynamic=self.dynamic,
            **self.attributes,
        )
        if self.nodes:
            del model.graph.node[:]
            model.graph.node.extend(self.nodes)
            for info in model.graph.output:
                info.CopyFrom(helper.make_empty_tensor_value_info(info.name))
            model = with_output_types(model)
        for index, array in enumerate(self.captured):
            shape = [f"c{index}_{axis}" for axis in range(array.ndim)] if self.dynamic else array.shape
            number = helper.np_dtype_to_tensor_dtype(array.dtype)
            model.graph.input.append(helper.make_tensor_value_info(f"c{index}", number, shape))
        return model

    def in_types(self, types: Mapping[str, str]) -> Case:
        """The same case with its inputs in other element types."""
        inputs = [each if each is None else each.astype(types.get(each.dtype.name, each.dtype)) for each in self.inputs]
        wide = tuple(types.get(name, name) if name else name for name in self.output_types)
        return replace(self, inputs=tuple(inputs), output_types=wide)


OPERATORS: dict[str, st.SearchStrategy[Case]] = {}
"""A strategy of cases for each operator, once `load_families` was called."""


def load_families() -> None:
    """Import every `properties_*.py`, which puts its rows into `OPERATORS`."""
    for family in Path(__file__).parent.glob("properties_*.py"):
        import_module(family.stem)


class Refusal(Exception):
    """An oracle does not take a case."""


class Verdict(Enum):
    """What became of a case; one that is wrong raises instead."""

    COMPARED = "compared"
    DECLINED = "declined, with a reason"
    REFUSED = "refused, by the oracle too"
    UNJUDGED = "answered, and no oracle takes it"


@cache
def registry() -> Registry:
    return load_registry()


def judge(case: Case) -> tuple[Verdict, str]:
    """Hold a case against its oracle.

    Returns:
        What became of it, and why where it was not compared.

    Raises:
        AssertionError: opgraft answers something else, or refuses what the oracle takes.
    """
    model, mine = case.model, case.model
    if case.computed is not None:
        mine = placed(mine, case.feeds, f"x{case.computed}", "device")
    if case.on_host:
        mine = read_on_host(mine)
    declined = decisions_for(mine, registry()).declined
    if declined:
        reasons = [str(reason) for _, each in declined for reason in each]
        assert reasons and all(map(str.strip, reasons)), f"declined without a reason: {reasons}"
        return Verdict.DECLINED, reasons[0]

    def run() -> list[Array]:
        return run_model(mine, case.feeds, registry())[: case.outputs]

    if callable(case.oracle):
        case.oracle(run)
        return Verdict.COMPARED, ""
    try:
        outputs: list[Array] | TranslationError = run()
    except TranslationError as error:
        outputs = error
    try:
        expected = expected_outputs(case, model)
    except Refusal as refusal:
        if isinstance(outputs, TranslationError):
            return Verdict.REFUSED, str(refusal)
        try:
            expected = outputs_of(onnx_outputs, case, model, HALVES)
        except Refusal as other:
            raise AssertionError(f"opgraft gives {outputs}; the oracles say: {refusal}; {other}") from other
    except NotImplementedError as error:
        return Verdict.REFUSED if isinstance(outputs, TranslationError) else Verdict.UNJUDGED, str(error)
    if isinstance(outputs, TranslationError):
        raise AssertionError(f"opgraft refuses what the oracle answers with {expected}") from outputs
    compare(case, model, outputs, expected)
    return Verdict.COMPARED, ""


HOST = ANY - {"bfloat16", "complex64"}
"""The element types that Unique takes, of those that NumPy has."""


def read_on_host(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model whose outputs another operator needs on the host too, where there is one for their element type."""
    for index, info in enumerate(list(model.graph.output)):
        number = info.type.tensor_type.elem_type
        if NAME_OF_ONNX.get(number) in HOST:
            model.graph.node.append(helper.make_node("Unique", [info.name], [f"z{index}"], name=f"read{index}"))
            model.graph.output.append(helper.make_tensor_value_info(f"z{index}", number, None))
    return model


def compare(case: Case, model: onnx.ModelProto, outputs: Outputs, expected: Outputs) -> None:
    for info, output, wanted in zip(model.graph.output, outputs, expected, strict=True):
        name = NAME_OF_ONNX.get(info.type.tensor_type.elem_type, output.dtype.name)
        tolerance = TOLERANCE.get(name, 0.0) if case.tolerance is None else case.tolerance
        assert_same(output, wanted, 0.0 if case.moves else tolerance, info.name)
        if output.dtype.kind != "f":
            continue
        good, found = np.asarray(wanted).astype(np.float64), output.astype(np.float64)
        if case.moves:
            np.testing.assert_array_equal(np.signbit(found), np.signbit(good), err_msg="sign")
        if case.elementwise:
            finite = np.isfinite(good)
            error = np.abs(found[finite] - good[finite])
            allowed = tolerance * np.maximum(1.0, np.abs(good[finite]))
            assert (error <= allowed).all(), f"off by {error.max()}: {output} instead of {wanted}"


def expected_outputs(case: Case, model: onnx.ModelProto) -> Outputs:
    """What the oracle says.

    Raises:
        Refusal: it does not take the case.
        NotImplementedError: there is none.
    """
    if isinstance(case.oracle, Case):
        return narrowed(expected_outputs(case.oracle, case.oracle.model), model, case.inputs[0].dtype.name)
    if not isinstance(case.oracle, str):
        return case.oracle
    if case.oracle == "cpu":
        for types in (HALVES, WIDER):
            try:
                return outputs_of(cpu_outputs, case, model, types)
            except NotImplementedError:
                continue
    try:
        return outputs_of(onnx_outputs, case, model, HALVES)
    except Refusal as refusal:
        raise NotImplementedError(str(refusal)) from refusal


def outputs_of(
    oracle: Callable[[Case, onnx.ModelProto], Outputs], case: Case, model: onnx.ModelProto, types: Mapping[str, str]
) -> Outputs:
    """What an oracle gives for a case in other element types, in those that the model declares."""
    if not case.widened or not any(each is not None and each.dtype.name in types for each in case.inputs):
        return oracle(case, model)
    other = case.in_types(types)
    undeclared = next(each.dtype.name for each in case.inputs if each is not None)
    return narrowed(oracle(other, other.model), model, undeclared)


def narrowed(outputs: Outputs, model: onnx.ModelProto, undeclared: str = "") -> Outputs:
    """Numbers in the element types that a model declares; floats in another one where it declares none."""

    def cast(output: Array, number: int) -> Array:
        name = NAME_OF_ONNX.get(number, undeclared if output.dtype.kind == "f" else "")
        return output.astype(numpy_type(name)) if name in NUMBERS and output.dtype.kind in "fiu" else output

    with np.errstate(all="ignore"):
        types = (info.type.tensor_type.elem_type for info in model.graph.output)
        return [cast(output, number) for output, number in zip(outputs, types, strict=True)]


def numpy_type(name: str) -> np.dtype[Any]:
    """NumPy's type for an element type, one of ml_dtypes where it has none of its own."""
    return helper.tensor_dtype_to_np_dtype(ONNX_OF_NAME[name])


@cache
def cpu_options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def cpu_outputs(case: Case, model: onnx.ModelProto) -> Outputs:
    """What ONNX Runtime's CPU provider gives.

    Raises:
        Refusal: it does not take the case.
        NotImplementedError: it has no kernel.
    """
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), cpu_options(), providers=["CPUExecutionProvider"]
        )
        outputs = ort_values.run(session, case.feeds)
    except runtime_errors.NotImplemented as error:
        raise NotImplementedError(str(error)) from error
    except Exception as error:
        if "ONNXRuntimeError" not in str(error):
            raise
        if "MLDataType" in str(error) or ("Type 'tensor(" in str(error) and "is invalid" in str(error)):
            raise NotImplementedError(str(error)) from error
        raise Refusal(str(error)) from error
    names = [ort_values.DTYPE_OF_TEXT.get(info.type) for info in session.get_outputs()]
    return [host_from_storage(each, name) for each, name in zip(outputs, names, strict=True)]


def onnx_outputs(case: Case, model: onnx.ModelProto) -> Outputs:
    """What ONNX's reference evaluator gives.

    Raises:
        Refusal: it does not take the case.
    """
    try:
        with np.errstate(all="ignore"):
            outputs = ReferenceEvaluator(model).run(None, case.feeds)
    except Exception as error:  # it raises anything
        raise Refusal(f"{type(error).__name__}: {error}") from error
    return [np.asarray(each) for each in outputs]


def described(array: Array | None) -> str:
    if array is None:
        return "None"
    name = array.dtype.name
    return f"np.array({array.tolist()}, {name!r})" if array.size else f"np.zeros({array.shape}, {name!r})"


class Tally(Counter[tuple[Verdict, str]]):
    """How often each verdict was reached on the cases of one operator, and why."""

    @property
    def compared(self) -> int:
        return self[Verdict.COMPARED, ""]

    @contextmanager
    def proves_something(self) -> Iterator[Tally]:
        """Afterwards, check that at least half of the cases were compared.

        Raises:
            AssertionError: they were not.
        """
        yield self
        told = "\n".join(f"{count} {verdict.value}: {why}" for (verdict, why), count in self.most_common(5))
        assert 2 * self.compared >= self.total(), f"of {self.total()} cases:\n{told}"
