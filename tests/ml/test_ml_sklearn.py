"""Models that scikit-learn exports (see `export_sklearn.py`), in sessions: wholly on opgraft, with the results of the
CPU provider and of scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from opgraft.sessions import assignment, open_session
from opgraft.testing import assert_same, reference_outputs

FOLDER = Path(__file__).parent / "sklearn_models"
TOLERANCE = 1e-5
SKLEARN_TOLERANCE = 1e-4
"""scikit-learn reckons in float64."""


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.onnx")))
def test_exported_models(name):
    model = onnx.load(FOLDER / f"{name}.onnx")
    known = np.load(FOLDER / f"{name}.npz")
    session = open_session(model, {"device": "cpu"}).session
    assert assignment(session).keys() == {"MLXExecutionProvider"}
    for X in (known["X"], known["X"][:1], known["X"][:0]):
        outputs = session.run(None, {"X": X})
        for output, expected in zip(outputs, reference_outputs(model, {"X": X}), strict=True):
            assert_same(output, expected, TOLERANCE)
    outputs = session.run(None, {"X": known["X"]})
    if "value" in known:
        assert_same(
            outputs[0].reshape(known["value"].shape), known["value"].astype(outputs[0].dtype), SKLEARN_TOLERANCE
        )
    else:
        np.testing.assert_array_equal(outputs[0], known["label"])
    if "scores" in known:
        assert_same(outputs[1], known["scores"].astype(np.float32), SKLEARN_TOLERANCE)


def test_there_are_models():
    assert len(list(FOLDER.glob("*.onnx"))) > 20
