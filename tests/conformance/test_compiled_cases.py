"""ONNX's own node cases, replayed from traces: the answers are those that each case gives step by step."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from node_cases import RANDOM, cases, operators_of, plain
from properties import registry

from opgraft.engine import Program, compiled, read_model
from opgraft.errors import ModelError, TranslationError
from opgraft.plan import build_plan

NEARLY_ALL = 1600


def program_of(case: Any) -> Program | None:
    """A case's model; None where not all of it is claimed."""
    try:
        return Program(build_plan(read_model(case.model, registry().definitions)), registry(), "cpu")
    except (ModelError, TranslationError):
        return None


def answers(program: Program, inputs: list[Any]) -> list[np.ndarray] | None:
    """What a run gives; None where these inputs cannot be run without ONNX Runtime."""
    try:
        outputs = program.run(inputs)
    except (ModelError, TranslationError):
        return None
    wide = (each.astype(mx.float32) if each.dtype == mx.bfloat16 else each for each in outputs)
    return [np.array(each) for each in wide]


def test_replayed_is_as_step_by_step(monkeypatch):
    monkeypatch.setattr(compiled, "LEAST_BUILDING", 0.0)
    replayed, different = 0, []
    for name, case in cases().items():
        program = program_of(case) if RANDOM.isdisjoint(operators_of(case.model.graph)) else None
        inputs = plain(list(case.data_sets[0][0]))
        if program is None or program.compiler is None or (expected := answers(program, inputs)) is None:
            continue
        for _ in range(4):
            found = answers(program, inputs)
        if found is None or not all(map(same, found, expected)):
            different.append(name)
        replayed += program.compiler.counts.replayed > 0
    assert not different
    assert replayed > NEARLY_ALL


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Equal but for what MLX's simplification rounds otherwise."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    return bool(np.allclose(found, expected, rtol=1e-6, atol=1e-6, equal_nan=True))
