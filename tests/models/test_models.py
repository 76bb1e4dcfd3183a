"""Six real models run wholly on the execution provider, and give what the CPU execution provider gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from host_models import ONNXRUNTIME
from measure import measure
from packaging.version import Version
from zoo import MODELS, RealModel

from opgraft.comparison import difference
from opgraft.graph.onnx_writer import model_of_graph
from opgraft.host import observed
from opgraft.nested import cpu_session
from opgraft.sessions import open_session


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_real_model_runs_wholly_on_the_execution_provider(
    model: RealModel, record_property: Callable[[str, object], None]
) -> None:
    found = measure(model, timed_runs=1)
    assert found.worst_difference <= 1e-4
    assert found.subgraphs <= 2
    if model.name == "silero-vad" and Version("1.27") > ONNXRUNTIME:
        reasons = [reason.reason for operator in found.coverage.operators for reason in operator.reasons]
        why = next((reason for reason in reasons if "onnxruntime before 1.27" in reason), None)
        assert why is not None, reasons
        record_property("differs", f"{found.percentage:.0f}% of {model.name}'s nodes are on the EP: {why}")
    else:
        assert found.percentage >= 99


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_real_model_written_anew_gives_the_same_on_the_cpu(model: RealModel) -> None:
    """What a session shows of it, after ONNX Runtime's first optimizations, is written as a model."""
    with observed(lambda decisions: model_of_graph(decisions.graph).SerializeToString()) as written:
        open_session(model.path())
    sessions = (cpu_session(written[0]), cpu_session(str(model.path())))
    for _, feeds in model.inputs(1):
        for output, expected in zip(*(session.run(None, feeds) for session in sessions), strict=True):
            assert difference(output, expected) <= 1e-5
