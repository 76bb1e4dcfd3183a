"""Each operator in a session of ONNX Runtime's: claimed, and with the CPU provider's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from forests import examples, forest

from opgraft.sessions import assignment, open_session
from opgraft.testing import assert_same, node_model, reference_outputs

X = examples(20)
WHOLE = X.round().astype(np.int64)
TREES = forest("class", targets=3)
VECTORS = {
    "support_vectors": [0.1 * each for each in range(12)],
    "kernel_params": [0.3, 0.5, 3.0],
    "kernel_type": "RBF",
}
LABELS = {"outputs": 2, "output_types": ["int64", "float32"]}

CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "ArrayFeatureExtractor": ([X, np.array([2, 0])], {}),
    "Binarizer": ([X], {"threshold": 0.5}),
    "FeatureVectorizer": ([X, X[:, :2]], {"inputdimensions": [4, 2]}),
    "Imputer": ([X], {"imputed_value_floats": [7.0], "replaced_value_float": 1.0}),
    "LabelEncoder": ([WHOLE], {"keys_int64s": [0, 1], "values_floats": [0.5, 1.5], "opset": 4}),
    "LinearClassifier": (
        [X],
        {"coefficients": [0.1] * 8, "intercepts": [0.1, 0.2], "classlabels_ints": [3, 4], **LABELS},
    ),
    "LinearRegressor": ([X], {"coefficients": [0.1, 0.2, 0.3, 0.4], "intercepts": [0.5]}),
    "Normalizer": ([X], {"norm": "L2"}),
    "OneHotEncoder": ([WHOLE], {"cats_int64s": [-1, 0, 1]}),
    "SVMClassifier": (
        [X],
        {
            **VECTORS,
            **LABELS,
            "vectors_per_class": [2, 1],
            "coefficients": [0.5, 0.25, -1.0],
            "rho": [0.1],
            "prob_a": [-1.0],
            "prob_b": [0.1],
            "classlabels_ints": [3, 4],
        },
    ),
    "SVMRegressor": ([X], {**VECTORS, "n_supports": 3, "coefficients": [0.5, 0.25, -1.0], "rho": [0.1]}),
    "Scaler": ([X], {"offset": [0.5], "scale": [2.0]}),
    "TreeEnsembleClassifier": ([X], {**TREES, "classlabels_int64s": [5, 6, 7], "opset": 3, **LABELS}),
    "TreeEnsembleRegressor": ([X], {**forest("target"), "n_targets": 1, "opset": 3}),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("operator", CASES)
def test_sessions(operator, dynamic):
    inputs, settings = CASES[operator]
    model = node_model(f"ai.onnx.ml::{operator}", inputs, dynamic=dynamic, **{"output_types": ["float32"], **settings})
    check_session(model, {f"x{index}": each for index, each in enumerate(inputs)})


def test_new_ensembles():
    def tensor(values, dtype=np.float32):
        return onnx.numpy_helper.from_array(np.array(values, dtype))

    stump = {"nodes_modes": tensor([0], np.uint8), "nodes_splits": tensor([0.5]), "leaf_weights": tensor([1.0, 2.0])}
    places = {"nodes_truenodeids": [0], "nodes_falsenodeids": [1], "nodes_trueleafs": [1], "nodes_falseleafs": [1]}
    more = {"tree_roots": [0], "nodes_featureids": [1], "leaf_targetids": [0, 0], "n_targets": 1}
    model = node_model("ai.onnx.ml::TreeEnsemble", [X], opset=5, output_types=["float32"], **stump, **places, **more)
    check_session(model, {"x0": X})


def check_session(model: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    """Check that a session runs a model on opgraft alone, and with the CPU provider's results."""
    session = open_session(model, {"device": "cpu"}).session
    assert assignment(session).keys() == {"MLXExecutionProvider"}
    for output, wanted in zip(session.run(None, feeds), reference_outputs(model, feeds), strict=True):
        assert_same(output, wanted, 1e-5)
