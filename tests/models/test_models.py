"""Six real models run wholly on the execution provider, and give what the CPU execution provider gives."""

from __future__ import annotations

import pytest
from measure import measure
from zoo import MODELS, RealModel


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_real_model_runs_wholly_on_the_execution_provider(model: RealModel) -> None:
    found = measure(model, timed_runs=1)
    assert found.percentage >= 99
    assert found.subgraphs <= 2
    assert found.worst_difference <= 1e-4
