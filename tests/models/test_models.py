"""Six real models run wholly on the execution provider, and give what the CPU execution provider gives."""

from __future__ import annotations

import onnxruntime
import pytest
from measure import measure
from packaging.version import Version
from zoo import MODELS, RealModel


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_real_model_runs_wholly_on_the_execution_provider(model: RealModel) -> None:
    found = measure(model, timed_runs=1)
    assert found.worst_difference <= 1e-4
    assert found.subgraphs <= 2
    if model.name == "silero-vad" and Version(onnxruntime.__version__) < Version("1.27"):
        reasons = [reason.reason for operator in found.coverage.operators for reason in operator.reasons]
        assert any("onnxruntime before 1.27" in reason for reason in reasons), reasons
    else:
        assert found.percentage >= 99
