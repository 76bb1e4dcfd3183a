"""Runs ONNX's own node cases through ONNX Runtime with this execution provider first, one at a time.

Each case ends in one class:

right      every node is on the execution provider, by ONNX Runtime's record, and the outputs are ONNX's
partly     right, and some nodes are elsewhere
unclaimed  no node is on the execution provider, whatever came of the case
wrong      some node is on the execution provider, and an output is not ONNX's
error      some node is on the execution provider, and making the session or running it failed
crash      the process died, or did not end within a minute
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.backend.test.case.node import collect_testcases

from opgraft import ort_values
from opgraft.claims import Decisions
from opgraft.host import EP_NAME, observed
from opgraft.sessions import assignment, options_with_provider

RANDOM = frozenset({"ai.onnx::Bernoulli", "ai.onnx::RandomUniformLike"})
"""Operators whose draws are their implementation's own: of their cases, element type and shape are compared."""

CLASSES = ("right", "partly", "unclaimed", "wrong", "error", "crash")


@dataclass(frozen=True)
class Verdict:
    """What came of a case. `operators`: those of its model, as `domain::OpType`; `detail`: why it is not right."""

    case: str
    kind: str
    detail: str
    operators: tuple[str, ...]


@lru_cache(maxsize=1)
def cases() -> dict[str, Any]:
    """ONNX's node cases by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None)}


def operators_of(graph: onnx.GraphProto) -> Iterator[str]:
    """The operators of a graph and of its bodies, as often as they occur."""
    for node in graph.node:
        yield f"{node.domain or 'ai.onnx'}::{node.op_type}"
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from operators_of(body)


def judge(name: str) -> Verdict:
    """Run one case."""
    case = cases()[name]
    operators = tuple(dict.fromkeys(operators_of(case.model.graph)))
    kind, detail = _kind(case)
    return Verdict(name, kind, detail, operators)


def _kind(case: Any) -> tuple[str, str]:
    options = options_with_provider({"device": "cpu"})
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.log_severity_level = 4
    with observed(lambda decisions: decisions) as seen:
        try:
            session = onnxruntime.InferenceSession(case.model.SerializeToString(), options)
        except Exception as error:
            claimed = any(decision.claimed for decisions in seen for decision in decisions.decisions)
            return ("error" if claimed else "unclaimed"), _reasons(seen) or f"not loadable: {_line(error)}"
    providers = assignment(session).keys()
    if EP_NAME not in providers:
        return "unclaimed", _reasons(seen)
    try:
        for inputs, expected in case.data_sets:
            _compare(_run(session, plain(list(inputs))), plain(list(expected)), case)
    except AssertionError as error:
        return "wrong", _line(error)
    except Exception as error:
        return "error", _line(error)
    return ("right", "") if providers == {EP_NAME} else ("partly", _reasons(seen))


def _reasons(seen: Sequence[Decisions]) -> str:
    found = {
        f"{node.operator}-{node.since_version}: {reason}"
        for decisions in seen
        for node, reasons in decisions.declined
        for reason in reasons[:1]
    }
    return "; ".join(sorted(found))


def plain(value: Any) -> Any:
    """A value of a case as ONNX Runtime takes it: some cases hold tensors as protobufs, or NumPy scalars."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    return None if value is None else np.asarray(value)


def _run(session: Any, inputs: Sequence[Any]) -> list[Any]:
    return ort_values.run(session, dict(zip((info.name for info in session.get_inputs()), inputs, strict=True)))


def _compare(outputs: Sequence[Any], expected: Sequence[Any], case: Any) -> None:
    for output, wanted in zip(outputs, expected, strict=True):
        if isinstance(wanted, list):
            assert len(output) == len(wanted), f"{len(output)} elements, expected {len(wanted)}"
            _compare(output, wanted, case)
        elif wanted is None or output is None:
            assert output is wanted, f"{output}, expected {wanted}"
        else:
            _compare_arrays(np.asarray(output), np.asarray(wanted), case)


def _compare_arrays(output: Any, wanted: Any, case: Any) -> None:
    """As ONNX's own runner compares, with its tolerances: two units in the last place for bfloat16."""
    if wanted.dtype.isbuiltin == 2 and output.dtype.itemsize == wanted.dtype.itemsize:  # a type of ml_dtypes
        output = output.view(wanted.dtype)
    assert output.dtype == wanted.dtype, f"element type {output.dtype}, expected {wanted.dtype}"
    assert output.shape == wanted.shape, f"shape {output.shape}, expected {wanted.shape}"
    if not RANDOM.isdisjoint(operators_of(case.model.graph)):
        return
    if wanted.dtype.kind in "OUSbiu":
        np.testing.assert_array_equal(output, wanted)
        return
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    tolerance = max(case.rtol, 2**-6) if wanted.dtype.name == "bfloat16" else case.rtol
    np.testing.assert_allclose(output.astype(wide), wanted.astype(wide), rtol=tolerance, atol=case.atol)


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]


def serve() -> None:
    """Judge the cases named on standard input, one a line, and answer each with a line of JSON."""
    for line in sys.stdin:
        print(json.dumps(asdict(judge(line.strip()))), flush=True)


if __name__ == "__main__":
    serve()
