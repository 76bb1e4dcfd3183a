"""ONNX's node cases, read and written again, give on the CPU execution provider what they gave before."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from node_cases import cases, plain

from opgraft import ort_values
from opgraft.errors import ModelError
from opgraft.graph.onnx_source import graph_of_model
from opgraft.graph.onnx_writer import model_of_graph
from opgraft.nested import cpu_session


def run(model: Any, case: Any) -> list[Any]:
    session = cpu_session(model.SerializeToString())
    names = [each.name for each in session.get_inputs()]
    return [ort_values.run(session, dict(zip(names, plain(list(data[0])), strict=True))) for data in case.data_sets]


def equal(output: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return len(output) == len(expected) and all(map(equal, output, expected))
    if output is None or expected is None:
        return output is expected
    output, expected = np.asarray(output), np.asarray(expected)
    if output.dtype != expected.dtype or output.shape != expected.shape:
        return False
    if expected.dtype.kind in "fc":
        return np.allclose(output, expected, rtol=1e-6, equal_nan=True)
    return bool(np.array_equal(output, expected))


def test_every_case_that_the_cpu_runs_is_the_same_once_it_is_written() -> None:
    """Those that cannot be written have inputs that no subgraph has, sequences and optionals, or make one."""
    wrong: list[str] = []
    counts: Counter[str] = Counter()
    for name, case in cases().items():
        try:
            expected = run(case.model, case)
        except Exception:
            counts["not on the CPU"] += 1
            continue
        try:
            written = model_of_graph(graph_of_model(case.model))
        except ModelError as error:
            counts["refused"] += 1
            assert "is not known to be a tensor" in str(error) or "attribute 'type'" in str(error), (name, error)
            continue
        counts["written"] += 1
        try:
            found = run(written, case)
        except Exception as error:
            wrong.append(f"{name}: {error}")
            continue
        if not equal(found, expected):
            wrong.append(name)
    assert not wrong, wrong
    assert counts["refused"] < 30 and counts["written"] > 1200, counts
