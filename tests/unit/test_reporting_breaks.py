"""Graph breaks as a report predicts them, beside those that a run has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from reporting_models import parsed, surveyed

from opgraft.engine.program import Frame, Program
from opgraft.reporting.breaks import CONDITION
from opgraft.sessions import open_session

CASES = {
    "a condition that data decides": (
        """g (float[300,300] x) => (float[300,300] y) {
            m = ReduceMax <keepdims = 0> (x) z = Cast <to = 9> (m)
            y = If (z) <then_branch = t () => (float[300,300] u) { u = Neg(x) },
                        else_branch = e () => (float[300,300] v) { v = Exp(x) }>
        }""",
        {},
        {("If", "cond", "z")},
    ),
    "a size that data decides": (
        """g (float[300,300] x, float[1] v) => (float[k] y) <int64[1] last = {-1}> {
            s = MatMul(x, x) a = ReduceMax <keepdims = 0> (s) n = Cast <to = 7> (a)
            r = Reshape(n, last) o = Expand(v, r) y = Neg(o)
        }""",
        {},
        {("Expand", "shape", "r")},
    ),
    "sizes from shapes, constants and inputs": (
        """g (float[n,4] x, int64[2] p) => (float[a,b] y, float[c,d] z) <int64[1] four = {4}, int64[1] at = {0}> {
            s = Shape(x) n = Gather(s, at) t = Concat <axis = 0> (four, n) w = Reshape(x, t) y = Neg(w)
            z = Expand(x, p)
        }""",
        {"x": (1, 4)},
        set(),
    ),
    "read back once, used twice": (
        """g (float[300,300] x) => (int64[2,k] y, int64[2,k] z) {
            s = MatMul(x, x) a = NonZero(s) y = Neg(a) b = NonZero(s) z = Abs(b)
        }""",
        {},
        {("NonZero", "X", "s")},
    ),
    "a loop that ends when data says so": (
        """g (float[300,300] x) => (float[300,300] y) <int64 most = {3}, bool on = {1}> {
            y = Loop (most, on, x) <body = b (int64 i, bool go, float[300,300] s) => (bool more, float[300,300] t) {
                t = MatMul(s, s) m = ReduceMax <keepdims = 0> (t) more = Cast <to = 9> (m)
            }>
        }""",
        {},
        {("Loop", CONDITION, "more")},
    ),
    "a loop that only counts": (
        """g (float[300,300] x) => (float[300,300] y) <int64 most = {3}, bool on = {1}> {
            y = Loop (most, on, x) <body = b (int64 i, bool go, float[300,300] s) => (bool more, float[300,300] t) {
                t = Neg(s) more = Identity(go)
            }>
        }""",
        {},
        set(),
    ),
}


def read_back(model: onnx.ModelProto, feeds: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The values that a run reads back from the device for the sake of a `Host` input."""
    found: set[str] = set()
    step = Program._step

    def watched(self: Program, bound: Any, frame: Frame) -> None:
        on_host = bound.host_form is not None and self._stays_on_host(bound, frame)
        for read, slot in bound.readers:
            if not on_host and read is Frame.on_host and frame.host[slot] is None and frame.device[slot] is not None:
                found.add(self.plan.values[slot].name)
        step(self, bound, frame)

    session = open_session(model).session
    monkeypatch.setattr(Program, "_step", watched)
    session.run(None, feeds)
    return found


@pytest.mark.parametrize("case", CASES)
def test_predicted_and_real(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, shapes, expected = CASES[case]
    model = parsed(text)
    report = surveyed(model, tmp_path)
    assert report.percentage == 100
    found = {(each.operator.removeprefix("ai.onnx::"), each.input, each.tensor) for each in report.breaks}
    assert found == expected
    feeds = {}
    for info in model.graph.input:
        tensor = info.type.tensor_type
        shape = shapes.get(info.name) or [dim.dim_value for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feeds[info.name] = np.full(shape, 0.01 if dtype == np.float32 else 4, dtype)
    real = read_back(model, feeds, monkeypatch)
    assert real == {tensor for _, what, tensor in expected if what != CONDITION}


def test_what_is_told_of_a_break(tmp_path: Path) -> None:
    text, _, _ = CASES["a size that data decides"]
    (found,) = surveyed(parsed(text), tmp_path).breaks
    assert (found.operator, found.made_by, found.certain, found.subgraph) == (
        "ai.onnx::Expand",
        "Reshape (-> r)",
        True,
        0,
    )


def test_what_depends_on_the_sizes_of_a_run(tmp_path: Path) -> None:
    """With few elements, arithmetic on the inputs of a subgraph is done in NumPy, and nothing is read back."""
    model = parsed("g (float[n] x) => (int64[1,k] y) { s = Add(x, x) a = NonZero(s) y = Neg(a) }")
    (found,) = surveyed(model, tmp_path).breaks
    assert (found.tensor, found.certain) == ("s", False)
    assert surveyed(model, tmp_path, sizes={"n": 100}).breaks == ()
    (found,) = surveyed(model, tmp_path, sizes={"n": 100_000}).breaks
    assert found.certain


def test_breaks_are_told_by_subgraph(tmp_path: Path) -> None:
    text = """g (float[300,300] x) => (int64[2,k] y, int64[2,k] z) {
        s = MatMul(x, x) y = NonZero(s) e = Sin(s) t = MatMul(e, e) z = NonZero(t) }"""
    report = surveyed(parsed(text), tmp_path, ["Sin"])
    assert sorted((each.subgraph, each.tensor) for each in report.breaks) == [(0, "s"), (1, "t")]
