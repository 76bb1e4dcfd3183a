"""ONNX's own node cases, run through the handlers without ONNX Runtime.

python tests/conformance/onnx_node_cases.py            # a summary of all
python tests/conformance/onnx_node_cases.py Conv Pad   # the cases whose models hold these operators
"""

from __future__ import annotations

import collections
import sys
import warnings
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases

from opgraft.claims import decide
from opgraft.engine import Program
from opgraft.graph.onnx_source import graph_of_model
from opgraft.ops.arrays import to_host
from opgraft.plan import build_plan
from opgraft.registry import load_registry


def operators_of(graph: onnx.GraphProto) -> set[str]:
    """The op types in a graph and its bodies."""
    found: set[str] = set()
    for node in graph.node:
        found.add(node.op_type)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= operators_of(attribute.g)
    return found


def judge(case: Any) -> tuple[str, str]:
    """One case's class (right, wrong, error, declined) and the detail."""
    try:
        graph = graph_of_model(case.model)
        registry = load_registry()
        declined = decide(graph, registry, device="cpu").declined
        if declined:
            node, reasons = declined[0]
            return "declined", f"{node.operator}-{node.since_version}: {'; '.join(map(str, reasons))}"
        plan = build_plan(graph)
        program = Program(plan, registry, "cpu")
        for inputs, expected in case.data_sets:
            given = [np.asarray(each) for each in inputs]
            stored = [each.view(np.uint16) if each.dtype.name == "bfloat16" else each for each in given]
            outputs = [to_host(each) for each in program.run(stored)]
            for value, output, wanted in zip(plan.output_values, outputs, expected, strict=True):
                wanted = np.asarray(wanted)
                if wanted.dtype.name == "bfloat16":
                    wanted = wanted.astype(np.float32)
                if output.dtype != wanted.dtype:
                    return "wrong", f"{value.name}: element type {output.dtype}, expected {wanted.dtype}"
                np.testing.assert_equal(output.shape, wanted.shape)
                np.testing.assert_allclose(output, wanted, rtol=max(case.rtol, 1e-3), atol=max(case.atol, 1e-7))
    except AssertionError as error:
        return "wrong", " ".join(str(error).split())[:300]
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"
    return "right", ""


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    counts: collections.Counter[str] = collections.Counter()
    for case in collect_testcases(None):
        if names and not operators_of(case.model.graph) & set(names):
            continue
        kind, detail = judge(case)
        counts[kind] += 1
        if kind != "right":
            print(f"{kind:9} {case.name}: {detail}")
    print(dict(counts))


if __name__ == "__main__":
    main(sys.argv[1:])
