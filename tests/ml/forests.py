"""Forests at random, as the attributes of tree ensembles describe them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

Weighed = Literal["all", "one", "tree"] | int
"""The targets that a leaf weighs: all, one at random, the one whose turn it is among the trees, or this one."""

SAME, EVERY = ("BRANCH_LEQ",), ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def forest(
    prefix: str,
    *,
    trees: int = 5,
    depth: int = 3,
    features: int = 4,
    targets: int = 1,
    weighed: Weighed = "all",
    modes: Sequence[str] = SAME,
    positive: bool = False,
    missing: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """The attributes nodes_* and `prefix`_* of trees up to `depth` deep, whose values are whole numbers, so that
    features may be equal to them."""
    rng = np.random.default_rng([seed, trees, depth, targets])
    nodes: dict[str, list[Any]] = {
        f"nodes_{name}": []
        for name in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    }
    if missing:
        nodes["nodes_missing_value_tracks_true"] = []
    weights: dict[str, list[Any]] = {f"{prefix}_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(trees):
        waiting, count = [(0, 0)], 1
        while waiting:
            node, level = waiting.pop(0)
            leaf = level == depth or (level > 0 and rng.random() < 0.2)
            mode = "LEAF" if leaf else modes[rng.integers(len(modes))]
            ways = (0, 0) if leaf else (count, count + 1)
            feature, value = (0, 0.0) if leaf else (int(rng.integers(features)), float(rng.integers(-2, 3)))
            row = (tree, node, feature, value, mode, *ways, *([int(rng.integers(2))] if missing else []))
            for column, each in zip(nodes.values(), row, strict=True):
                column.append(each)
            if not leaf:
                waiting += [(way, level + 1) for way in ways]
                count += 2
                continue
            for target in weighed_targets(weighed, tree, targets, rng):
                weight = float(np.float32(rng.random() if positive else rng.standard_normal()))
                for column, each in zip(weights.values(), (tree, node, target, weight), strict=True):
                    column.append(each)
    return {**nodes, **weights}


def weighed_targets(weighed: Weighed, tree: int, targets: int, rng: np.random.Generator) -> list[int]:
    if weighed == "all":
        return list(range(targets))
    if weighed == "one":
        return [int(rng.integers(targets))]
    return [tree % targets if weighed == "tree" else weighed]


def examples(count: int = 50, features: int = 4, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Features, every other row of which holds whole numbers."""
    values = np.random.default_rng([seed, count]).uniform(-3, 3, (count, features))
    values[::2] = np.round(values[::2])
    return values.astype(dtype)
