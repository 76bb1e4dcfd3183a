"""Checks of an operator over random inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

import numpy as np

from opgraft.claims import decide
from opgraft.engine import read_model
from opgraft.engine.verify import failure_of
from opgraft.errors import text_of
from opgraft.graph import Array
from opgraft.graph.element_types import ANY
from opgraft.ops import Handler
from opgraft.registry import Registry, load_registry
from opgraft.testing.checks import assert_outputs, feeds, results_of, under_test
from opgraft.testing.drawing import Draw, Drawing, InputForm, dtypes_by_input
from opgraft.testing.models import Reference, decisions_for, node_model, reference_outputs, run_model

SHRINK_SECONDS = 10.0
"""So long a simpler node is looked for that fails too."""


@dataclass
class Tally:
    """What became of the nodes that `check_over` drew."""

    compared: int = 0
    declined: int = 0
    refused: int = 0
    """The reference has no answer, and opgraft was not asked."""


def check_over(
    operator: str | Handler,
    *shapes: str | None,
    reference: Reference | Callable[..., Any] = "cpu",
    dtypes: Collection[str] | Mapping[str, Collection[str]] | None = None,
    attributes: Mapping[str, Sequence[Any]] | None = None,
    sizes: tuple[int, int] = (0, 5),
    values: tuple[float, float] = (-4, 4),
    examples: int = 100,
    tolerance: float | None = None,
    registry: Registry | None = None,
    device: str = "cpu",
    **model: Any,
) -> Tally:
    """Check an operator over random inputs: what is claimed is translated, and right; what is declined has a reason.

    Each node is drawn by hypothesis, its inputs fixed by the model or not, its sizes known beforehand or not. A failure
    comes down to the simplest node that shows it, as far as one is found in ten seconds; the error's last line is the
    `check_node` that makes it again. The same nodes are drawn each time.

    Args:
        operator: as for `check_node`.
        shapes: a shape for each input, as in `"N D"`: names stand for the same size wherever they are, `...` for any
            number of them, a `?` at the end for an input that is there in some nodes and not in others. None for one
            that never is.
        reference: "cpu", "onnx", or a NumPy function of the operator's signature.
        dtypes: the element types to draw from: one set for all inputs, or one for each by name (x0, x1, ... where the
            operator is given by its name). Default: those that the handler takes and NumPy has, else float32.
        attributes: the values to draw from; `...` among them stands for leaving the attribute out.
        sizes: the least and the largest size of a dimension that has a name.
        values: the least and the largest element; floats between are multiples of 1/16.
        examples: how many nodes are drawn.
        tolerance: as for `check_model`. Default: by element type.
        model: what else `node_model` takes.

    Returns:
        How many nodes were compared, and how many were not.

    Raises:
        AssertionError: an output is wrong; a claim outruns its translation; or fewer than half of the nodes were
            compared, so that shapes or element types should be chosen better.
        ValueError: a shape is none, or a handler's input has none; `sizes` or `values` leave nothing to draw; there is
            no such element type, or no such reference.
        TypeError: `attributes` gives no list of values.
    """
    try:
        from hypothesis import HealthCheck, given, settings
        from hypothesis import strategies as st
    except ImportError as error:
        raise ImportError("check_over draws with hypothesis: pip install hypothesis") from error

    if not callable(reference) and reference not in get_args(Reference):
        raise ValueError(f'there is no reference {reference!r} of random nodes: "cpu", "onnx", or a NumPy function')
    given_otherwise = {"tolerance": tolerance, "registry": registry, "device": None if device == "cpu" else device}
    shown = {**model, **{name: value for name, value in given_otherwise.items() if value is not None}}
    chosen = model.get("outputs")
    name, registry = under_test(operator, registry, model)
    comparison = _Comparison(name, registry or load_registry(), device, reference, tolerance, model, chosen is None)
    drawing = _drawing(operator, shapes, dtypes, attributes or {}, sizes, values)
    search = _Search()

    @st.composite
    def nodes(draw: st.DrawFn) -> _Node:
        return _drawn_node(drawing, lambda low, high: draw(st.integers(low, high)))

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=[*HealthCheck],
    )
    @given(nodes())
    def holds(node: _Node) -> None:
        search.examine(node.call(operator, reference, shown), lambda: comparison.make(node))

    try:
        holds()
    except Exception as error:
        if search.failing:
            error.__notes__ = [f"To see it again:\n{search.failing}"]
        raise
    tally = comparison.tally
    total = tally.compared + tally.declined + tally.refused
    assert 2 * tally.compared >= total, (
        f"{name}: of {total} nodes, too few were compared with the reference ({tally}{comparison.refusal})"
    )
    return tally


class _Search:
    """Looks for the simplest node that fails, and gives up when `SHRINK_SECONDS` have passed since the first one: from
    then on, only what failed before fails.

    Attributes:
        failing: the last call that failed, which is the simplest when the search is over.
    """

    def __init__(self) -> None:
        self.failing = ""
        self._failed: set[str] = set()
        self._end = float("inf")

    def examine(self, call: str, make: Callable[[], None]) -> None:
        if time.monotonic() > self._end and call not in self._failed:
            return
        try:
            make()
        except Exception:
            if not self._failed:
                self._end = time.monotonic() + SHRINK_SECONDS
            self._failed.add(call)
            self.failing = call
            raise


@dataclass(frozen=True)
class _Node:
    """A node that was drawn.

    Attributes:
        inputs: its inputs, None where one is left out.
        attributes: those that it has.
        constant: which of the inputs the model fixes.
        dynamic: whether sizes are known only in a run.
    """

    inputs: list[Array | None]
    attributes: dict[str, Any]
    constant: list[int]
    dynamic: bool

    def call(self, operator: str | Handler, reference: Reference | Callable[..., Any], model: Mapping[str, Any]) -> str:
        """The call of `check_node` that makes it again."""
        given: dict[str, Any] = {}
        if self.constant:
            given["constant"] = self.constant
        if self.dynamic:
            given["dynamic"] = True
        texts = {name: repr(value) for name, value in {**self.attributes, **given, **model}.items()}
        if "registry" in model:
            texts["registry"] = "registry"
        if reference != "cpu":
            texts["reference"] = repr(reference) if isinstance(reference, str) else _name(reference)
        operator_text = repr(operator) if isinstance(operator, str) else operator.__name__
        arguments = [operator_text, *map(_source, self.inputs), *(f"{name}={text}" for name, text in texts.items())]
        return f"check_node({', '.join(arguments)})"


def _name(reference: Callable[..., Any]) -> str:
    name = str(getattr(reference, "__name__", ""))
    return name if name.isidentifier() else "reference"


def _source(array: Array | None) -> str:
    """An array as Python makes it."""
    if array is None:
        return "None"
    dtype = f"ml_dtypes.{array.dtype}" if array.dtype.isbuiltin == 2 else f"np.{array.dtype}"
    dtype = "bool" if dtype == "np.bool" else dtype
    elements = array.reshape(-1)
    if not elements.size or (elements.size > 1 and np.all(elements == elements[0])):
        return f"np.full({array.shape}, {elements[0].item() if elements.size else 0}, {dtype})"
    return f"np.array({array.tolist()}, {dtype})"


def _drawn_node(drawing: Drawing, draw: Draw) -> _Node:
    inputs, attributes = drawing.draw(draw)
    constant = [index for index, each in enumerate(inputs) if each is not None and draw(0, 3) == 3]
    return _Node(inputs, attributes, constant, bool(draw(0, 1)))


class _Comparison:
    """Compares nodes with a reference, and counts them."""

    def __init__(
        self,
        name: str,
        registry: Registry,
        device: str,
        reference: Reference | Callable[..., Any],
        tolerance: float | None,
        model: Mapping[str, Any],
        counts_outputs: bool,
    ) -> None:
        self.name = name
        self.registry = registry
        self.device = device
        self.reference = reference
        self.tolerance = tolerance
        self.model = model
        self.counts_outputs = counts_outputs
        self.tally = Tally()
        self.refusal = ""

    def make(self, node: _Node) -> None:
        """Check one node.

        Raises:
            AssertionError: its claim outruns its translation, or an output is wrong.
        """
        form = {**self.model, "constant": node.constant, "dynamic": node.dynamic, "attributes": node.attributes}
        expected, failure = self._results(node)
        if expected and self.counts_outputs:
            form["outputs"] = len(expected)
        proto = node_model(self.name, node.inputs, **form)
        (decision,) = decide(read_model(proto, self.registry.definitions), self.registry, device=self.device).decisions
        verified = decisions_for(proto, self.registry, self.device).decisions[0]
        reasons = "; ".join(map(str, verified.reasons))
        assert verified.claimed or reasons, f"{self.name} is declined without a reason"
        if decision.claimed and not verified.claimed:
            raise AssertionError(f"{self.name} is claimed, and cannot be translated: {reasons}") from failure_of(
                verified.node, self.registry, self.device
            )
        if not verified.claimed:
            self.tally.declined += 1
            return
        given = feeds(node.inputs, node.constant)
        if failure is not None:
            raise failure
        if expected is None:
            try:
                expected = reference_outputs(proto, given, cast(Reference, self.reference))
            except Exception as error:
                self.tally.refused += 1
                self.refusal = f"; the reference: {text_of(error)}"
                return
        outputs = run_model(proto, given, self.registry, self.device, rehearsed=True)
        assert_outputs(proto, outputs, expected, self.tolerance)
        self.tally.compared += 1

    def _results(self, node: _Node) -> tuple[list[Array] | None, Exception | None]:
        """What a reference that is a function gives for a node, or what it raises: that counts where the node is
        claimed."""
        if not callable(self.reference):
            return None, None
        try:
            return results_of(self.reference, node.inputs, node.attributes), None
        except Exception as error:
            return None, error


def _drawing(
    operator: str | Handler,
    shapes: Sequence[str | None],
    dtypes: Collection[str] | Mapping[str, Collection[str]] | None,
    attributes: Mapping[str, Sequence[Any]],
    sizes: tuple[int, int],
    values: tuple[float, float],
) -> Drawing:
    for attribute, choices in attributes.items():
        if isinstance(choices, str | bytes) or not isinstance(choices, Sequence):
            raise TypeError(f"attributes={{{attribute!r}: ...}} takes a list of values to draw from, not {choices!r}")
    forms = tuple(None if text is None else InputForm.of(text) for text in shapes)
    names = [f"x{index}" for index in range(len(shapes))]
    known: Mapping[str, Collection[str]] = {name: ("float32",) for name in names}
    if isinstance(operator, Handler):
        parameters = [operator.signature.input(index) for index in range(len(shapes))]
        names = [f"x{index}" if each is None else each.name for index, each in enumerate(parameters)]
        known = {each.name: each.dtypes & ANY - {"bfloat16"} for each in parameters if each is not None}
        for parameter in operator.signature.inputs[len(shapes) :]:
            raise ValueError(
                f"no shape for input {parameter.name}: give one, as in 'N D?' where it may be left out, or None"
            )
    if isinstance(dtypes, Mapping):
        known = {**known, **dtypes}
    taken = dtypes_by_input(known if dtypes is None or isinstance(dtypes, Mapping) else dtypes, names)
    return Drawing(forms, tuple(map(tuple, taken)), attributes, sizes, values)
