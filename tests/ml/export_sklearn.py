"""Exports models of scikit-learn into `sklearn_models/`: `python export_sklearn.py`, or `make sklearn`.

Run by the Python of an environment that has `requirements.txt`. A model is `NAME.onnx`, and `NAME.npz` its input `X`
and what scikit-learn makes of it: `label`, `scores`, or `value`. They are small, and kept in the repository.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from skl2onnx import to_onnx
from sklearn.compose import ColumnTransformer
from sklearn.datasets import make_classification, make_regression
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer, MinMaxScaler, Normalizer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC, OneClassSVM
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

FOLDER = Path(__file__).parent / "sklearn_models"
OPSETS = {"": 17, "ai.onnx.ml": 3}
EXAMPLES = 40

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Data:
    """What models are fitted to."""

    X: np.ndarray
    y: np.ndarray


def classes(count: int, seed: int = 0) -> Data:
    X, y = make_classification(120, 6, n_informative=4, n_classes=count, random_state=seed)
    return Data(X.astype(np.float32), y)


def values(targets: int = 1) -> Data:
    X, y = make_regression(120, 6, n_targets=targets, noise=5.0, random_state=0)
    return Data(X.astype(np.float32), y / 100)


def with_holes(data: Data) -> Data:
    X = data.X.copy()
    X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    return Data(X, data.y)


def with_categories(data: Data) -> Data:
    X = data.X.copy()
    X[:, 0] = np.random.default_rng(0).integers(0, 4, len(X))
    return Data(X, data.y)


SMALL: dict[str, Any] = {"n_estimators": 8, "max_depth": 4, "random_state": 0}
BOOSTED: dict[str, Any] = {"max_iter": 8, "max_depth": 4, "random_state": 0, "min_samples_leaf": 5}


def models() -> Iterator[tuple[str, Any, Data]]:
    """Each model that is exported, by name, with its data."""
    two, three, numbers = classes(2), classes(3), values()
    yield "decision_tree_2", DecisionTreeClassifier(max_depth=5, random_state=0), two
    yield "decision_tree_targets", DecisionTreeRegressor(max_depth=4, random_state=0), values(3)
    yield "random_forest_2", RandomForestClassifier(**SMALL), two
    yield "random_forest_3", RandomForestClassifier(**SMALL), three
    yield "random_forest_regressor", RandomForestRegressor(**SMALL), numbers
    yield "extra_trees_3", ExtraTreesClassifier(**SMALL), three
    yield "gradient_boosting_2", GradientBoostingClassifier(**SMALL), two
    yield "gradient_boosting_3", GradientBoostingClassifier(**SMALL), three
    yield "gradient_boosting_regressor", GradientBoostingRegressor(**SMALL), numbers
    yield "hist_gradient_boosting_2", HistGradientBoostingClassifier(**BOOSTED), with_holes(two)
    yield "hist_gradient_boosting_3", HistGradientBoostingClassifier(**BOOSTED), three
    yield "hist_gradient_boosting_regressor", HistGradientBoostingRegressor(**BOOSTED), with_holes(numbers)
    yield "logistic_regression_2", LogisticRegression(), two
    yield "logistic_regression_3", LogisticRegression(), three
    yield "linear_regression", LinearRegression(), numbers
    yield "ridge_targets", Ridge(), values(2)
    yield "linear_svc_2", LinearSVC(random_state=0), two
    yield "linear_svc_3", LinearSVC(random_state=0), three
    for kernel in ("linear", "poly", "rbf", "sigmoid"):
        yield f"svc_{kernel}_2", SVC(kernel=kernel), two
    yield "svc_rbf_3", SVC(), three
    yield "svc_probabilities_2", SVC(probability=True, random_state=0), two
    yield "svc_probabilities_3", SVC(probability=True, random_state=0), three
    yield "svr", SVR(), numbers
    yield "one_class_svm", OneClassSVM(), numbers
    scaled = make_pipeline(StandardScaler(), LogisticRegression())
    yield "scaled_logistic_regression", scaled, three
    filled = make_pipeline(SimpleImputer(), MinMaxScaler(), Normalizer(), RandomForestClassifier(**SMALL))
    yield "filled_random_forest", filled, with_holes(three)
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    columns = ColumnTransformer([("categories", encoder, [0]), ("signs", Binarizer(), [1, 2])], remainder="passthrough")
    yield "encoded_logistic_regression", make_pipeline(columns, LogisticRegression()), with_categories(three)


def results(model: Any, X: np.ndarray) -> Arrays:
    """What scikit-learn makes of X."""
    if not hasattr(model, "classes_"):
        return {"value": np.asarray(model.predict(X))}
    scores = model.predict_proba(X) if hasattr(model, "predict_proba") else None
    return {"label": model.predict(X), **({} if scores is None else {"scores": scores})}


def export(name: str, model: Any, data: Data) -> None:
    model.fit(data.X, data.y)
    scored = hasattr(model, "classes_") and not isinstance(model, LinearSVC)  # which never has its scores in maps
    options = {id(model): {"zipmap": False}} if scored else None
    proto = to_onnx(model, data.X[:1], options=options, target_opset=OPSETS)
    (FOLDER / f"{name}.onnx").write_bytes(proto.SerializeToString())
    X = data.X[:EXAMPLES]
    np.savez_compressed(FOLDER / f"{name}.npz", X=X, **results(model, X))
    print(f"{name}: {len(proto.graph.node)} nodes, {proto.ByteSize()} bytes")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, model, data in models():
        export(name, model, data)


if __name__ == "__main__":
    main()
