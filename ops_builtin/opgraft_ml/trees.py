"""Ensembles of trees, old and new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.ops import Context, Node, op
from opgraft_ml._forest import FOLDS, LEAF, MEMBER, MODES, Forest, Nodes, Weights, forest_of
from opgraft_ml._scores import (
    TRANSFORMS,
    best,
    claim_transform,
    labelled,
    of_one_score,
    of_two_classes,
    rows,
)
from opgraft_ml._types import NUMBERS

OLD_MODES = {"LEAF": LEAF, **{mode: place for place, mode in enumerate(MODES[:MEMBER])}}
"""The modes that the old operators have, by their names."""


def working_type(X: mx.array) -> type[np.floating[Any]]:
    return np.float64 if X.dtype == mx.float64 else np.float32


def numbers(attributes: Mapping[str, Any], name: str) -> list[float]:
    """An attribute that may be given as a tensor."""
    tensor = attributes.get(f"{name}_as_tensor")
    return np.ravel(tensor).tolist() if tensor is not None and np.size(tensor) else list(attributes.get(name) or ())


def listed_nodes(attributes: Mapping[str, Any]) -> Nodes:
    """The nodes that nodes_treeids and its like describe.

    Raises:
        ValueError: there are not as many of each.
    """
    names = ("treeids", "nodeids", "modes", "featureids", "truenodeids", "falsenodeids")
    columns = [attributes.get(f"nodes_{name}") or () for name in names]
    missing = attributes.get("nodes_missing_value_tracks_true") or (0,) * len(columns[0])
    values = numbers(attributes, "nodes_values")
    if {len(each) for each in (*columns, missing, values)} != {len(columns[0])}:
        raise ValueError("the attributes that describe the nodes are of different lengths")
    columns[2] = [OLD_MODES[mode] for mode in columns[2]]
    tree, number, mode, feature, yes, no = (np.array(each, np.int64) for each in columns)
    return Nodes(tree, number, mode, feature, np.array(values), yes, no, np.array(missing) == 1)


def listed_weights(attributes: Mapping[str, Any], prefix: str) -> Weights:
    """The weights that `prefix`_treeids and its like describe.

    Raises:
        ValueError: there are not as many of each.
    """
    columns = [np.array(attributes.get(f"{prefix}_{name}") or (), np.int64) for name in ("treeids", "nodeids", "ids")]
    amounts = np.array(numbers(attributes, f"{prefix}_weights"))
    if {len(each) for each in columns} != {len(amounts)}:
        raise ValueError("the attributes that describe the weights are of different lengths")
    return Weights(*columns, amounts)


def forest(ctx: Context, X: mx.array, prefix: str, targets: int, function: str = "SUM") -> Forest:
    """The forest of a node of the old operators, made once."""
    attributes, dtype = ctx.node.attributes, working_type(X)

    def make() -> Forest:
        nodes, weights = listed_nodes(attributes), listed_weights(attributes, prefix)
        return forest_of(nodes, weights, targets, function, dtype)

    return ctx.cached(("forest", dtype), make)


def regressed(forest: Forest, X: mx.array, function: str, base: Sequence[float], transform: str) -> mx.array:
    """The targets (N, K). A base value counts where a tree has a weight for its target, as in ONNX Runtime."""
    leaves = forest.leaves(X)
    scores = forest.scores(leaves, function)
    if base:
        scores = scores + mx.array(base, scores.dtype)
        scores = scores if all(forest.always) else mx.where(forest.scored(leaves), scores, 0)
    return of_one_score(scores, transform) if scores.shape[1] == 1 else TRANSFORMS[transform](scores)


@op("ai.onnx.ml::TreeEnsembleRegressor", dtypes=NUMBERS)
def tree_ensemble_regressor(
    ctx: Context,
    X,
    *,
    n_targets,
    aggregate_function="SUM",
    base_values=None,
    base_values_as_tensor=None,
    nodes_falsenodeids=None,
    nodes_featureids=None,
    nodes_hitrates=None,
    nodes_hitrates_as_tensor=None,
    nodes_missing_value_tracks_true=None,
    nodes_modes=None,
    nodes_nodeids=None,
    nodes_treeids=None,
    nodes_truenodeids=None,
    nodes_values=None,
    nodes_values_as_tensor=None,
    post_transform="NONE",
    target_ids=None,
    target_nodeids=None,
    target_treeids=None,
    target_weights=None,
    target_weights_as_tensor=None,
):
    """The weights of the leaves to which X (N, features) leads, over all trees: (N, n_targets), float32. Of a lone
    target, post_transform counts only if it is PROBIT. ONNX TreeEnsembleRegressor-5.
    """
    base = numbers(ctx.node.attributes, "base_values")
    if len(base) not in (0, n_targets):
        raise ValueError(f"there are {len(base)} base values for {n_targets} targets")
    made = forest(ctx, X, "target", n_targets, aggregate_function)
    return regressed(made, rows(X), aggregate_function, base, post_transform).astype(mx.float32)


@tree_ensemble_regressor.condition
def _(node: Node):
    function = node.attributes.get("aggregate_function", "SUM")
    node.require(function in FOLDS, f"aggregate_function {function} is not one of {', '.join(FOLDS)}")
    node.require(node.attributes["n_targets"] > 0, "n_targets must be positive")


@op("ai.onnx.ml::TreeEnsembleClassifier", dtypes=NUMBERS)
def tree_ensemble_classifier(
    ctx: Context,
    X,
    *,
    base_values=None,
    base_values_as_tensor=None,
    class_ids=None,
    class_nodeids=None,
    class_treeids=None,
    class_weights=None,
    class_weights_as_tensor=None,
    classlabels_int64s,
    nodes_falsenodeids=None,
    nodes_featureids=None,
    nodes_hitrates=None,
    nodes_hitrates_as_tensor=None,
    nodes_missing_value_tracks_true=None,
    nodes_modes=None,
    nodes_nodeids=None,
    nodes_treeids=None,
    nodes_truenodeids=None,
    nodes_values=None,
    nodes_values_as_tensor=None,
    post_transform="NONE",
):
    """The label (N) of the best class, and the scores (N, K) of all, float32: the sums of the weights of the leaves to
    which X (N, features) leads. ONNX TreeEnsembleClassifier-5.

    Of one class or two, what the scores mean depends on which classes have weights, and of what sign; ONNX does not say
    how, and this follows ONNX Runtime.
    """
    made = forest(ctx, X, "class", len(classlabels_int64s))
    base = numbers(ctx.node.attributes, "base_values")
    leaves = made.leaves(rows(X))
    scores = made.scores(leaves, "SUM")
    if len(classlabels_int64s) > 2:
        label, shown = best_of_many(made, leaves, scores, base, classlabels_int64s, post_transform)
    else:
        positive = min(numbers(ctx.node.attributes, "class_weights"), default=0) >= 0
        label, shown = one_of_two(made, scores, base, classlabels_int64s, post_transform, positive)
    return label, shown.astype(mx.float32)


def best_of_many(
    forest: Forest, leaves: mx.array, scores: mx.array, base: Sequence[float], labels: tuple[int, ...], transform: str
) -> tuple[mx.array, mx.array]:
    """The labels and scores of three classes or more. One that no leaf weighs is not chosen."""
    if base:
        scores = scores + mx.array(base, scores.dtype)
        candidates = scores
    else:
        candidates = mx.where(forest.scored(leaves), scores, -mx.array(float("inf"), scores.dtype))
    return labelled(best(candidates), labels), TRANSFORMS[transform](scores)


def one_of_two(
    forest: Forest, scores: mx.array, base: Sequence[float], labels: tuple[int, ...], transform: str, positive: bool
) -> tuple[mx.array, mx.array]:
    """The labels and scores of two classes, or one. `positive`: no weight is negative.

    Where both have weights, or there is but one, the label is not one of `labels`: it is 1 for a positive score of the
    last class, and 0 otherwise.
    """
    first, last = scores[:, :1], scores[:, -1:]
    decisive = last if forest.sometimes[-1] else first + (base[0] if base else 0)
    if len(labels) == 1:
        decisive = last + sum(base)
        return (decisive[:, 0] > 0).astype(mx.int64), of_one_score(decisive, transform)
    if all(forest.sometimes):
        label = (decisive[:, 0] > 0).astype(mx.int64)
    else:
        label = labelled((decisive[:, 0] > (0.5 if positive else 0)).astype(mx.int32), labels)
    if forest.sometimes[1]:
        first = first + base[0] if base and forest.sometimes[0] else first
        return label, TRANSFORMS[transform](mx.concatenate([first, last], axis=-1))
    if len(base) == 2:
        # No leaf weighs the second class, whose base value ONNX Runtime does not show.
        return label, TRANSFORMS[transform](mx.concatenate([decisive, mx.zeros_like(last)], axis=-1))
    return label, of_two_classes(decisive, transform, positive)


@tree_ensemble_classifier.condition
def _(node: Node):
    attributes = node.attributes
    classes, base = len(attributes["classlabels_int64s"]), len(numbers(attributes, "base_values"))
    allowed = (0, classes) if classes > 2 else range(classes + 1)
    node.require(base in allowed, f"there are {base} base values for {classes} classes")
    weighed = set(attributes.get("class_ids") or ())
    if classes == 2:
        node.require(
            base < 2 or 1 not in weighed,
            "base values for two classes, of which the second has weights: ONNX Runtime leaves some of them out",
        )
        node.require(
            1 in weighed or base == 2 or attributes.get("post_transform") != "PROBIT",
            "PROBIT for two classes, of which one has weights: ONNX Runtime leaves a score unset",
        )
        if weighed == {0, 1}:
            every = _trees_that_always_weigh(attributes, 1)
            node.require(every, "no tree weighs the second class in each leaf: ONNX Runtime leaves a score unset")


def _trees_that_always_weigh(attributes: Mapping[str, Any], target: int) -> set[int]:
    """The trees whose leaves all weigh a class."""
    names = ("nodes_treeids", "nodes_nodeids", "nodes_modes", "class_treeids", "class_nodeids", "class_ids")
    trees, nodes, modes, weighed_trees, weighed_nodes, ids = (attributes.get(name) or () for name in names)
    leaves = {(tree, node) for tree, node, mode in zip(trees, nodes, modes, strict=False) if mode == "LEAF"}
    weights = zip(weighed_trees, weighed_nodes, ids, strict=False)
    unweighed = leaves - {(tree, node) for tree, node, weighed in weights if weighed == target}
    return {tree for tree, _ in leaves} - {tree for tree, _ in unweighed}


@tree_ensemble_classifier.condition
@tree_ensemble_regressor.condition
def _(node: Node):
    claim_transform(node)
    for mode in sorted(set(node.attributes.get("nodes_modes") or ())):
        node.require(mode in OLD_MODES, f"nodes_modes has {mode}, which is none that ONNX lists")


NEW_FUNCTIONS = ("AVERAGE", "SUM", "MIN", "MAX")
NEW_TRANSFORMS = {0: "NONE", 3: "SOFTMAX_ZERO", 4: "PROBIT"}
"""1 and 2 are SOFTMAX and LOGISTIC to ONNX, and the other way round to ONNX Runtime."""


@op("ai.onnx.ml::TreeEnsemble", since=5, dtypes={"float32", "float64", "float16"})
def tree_ensemble(
    ctx: Context,
    X,
    *,
    leaf_targetids,
    leaf_weights,
    nodes_falseleafs,
    nodes_falsenodeids,
    nodes_featureids,
    nodes_modes,
    nodes_splits,
    nodes_trueleafs,
    nodes_truenodeids,
    tree_roots,
    n_targets,
    aggregate_function=1,
    membership_values=None,
    nodes_hitrates=None,
    nodes_missing_value_tracks_true=None,
    post_transform=0,
):
    """The weights of the leaves to which X (N, features) leads, over all trees: (N, n_targets). ONNX TreeEnsemble-5."""
    function, dtype = NEW_FUNCTIONS[aggregate_function], working_type(X)

    def make() -> Forest:
        nodes, weights = unfolded(ctx.node.attributes)
        return forest_of(nodes, weights, n_targets, function, dtype)

    made = ctx.cached("forest", make)
    return regressed(made, rows(X), function, (), NEW_TRANSFORMS[post_transform]).astype(X.dtype)


@tree_ensemble.condition
def _(node: Node):
    function, transform = node.attributes.get("aggregate_function", 1), node.attributes.get("post_transform", 0)
    node.require(0 <= function < len(NEW_FUNCTIONS), f"aggregate_function {function} is not one of 0 to 3")
    node.require(transform not in (1, 2), f"post_transform {transform}: ONNX and ONNX Runtime read it differently")
    node.require(transform in {*NEW_TRANSFORMS, 1, 2}, f"post_transform {transform} is not one of 0 to 4")
    node.require(node.attributes["n_targets"] > 0, "n_targets must be positive")


def unfolded(attributes: Mapping[str, Any]) -> tuple[Nodes, Weights]:
    """The nodes and weights of a TreeEnsemble, in which trees may share nodes, each tree with its own.

    Raises:
        ValueError: a way never ends.
    """
    modes, splits = (np.ravel(attributes[name]).tolist() for name in ("nodes_modes", "nodes_splits"))
    missing = attributes.get("nodes_missing_value_tracks_true") or (0,) * len(modes)
    members = members_of(modes, np.ravel(attributes.get("membership_values", ())).tolist())
    leaf_weights = np.ravel(attributes["leaf_weights"]).tolist()
    yes, no = attributes["nodes_truenodeids"], attributes["nodes_falsenodeids"]
    to_leaf = attributes["nodes_trueleafs"], attributes["nodes_falseleafs"]
    nodes: list[tuple[int, int, int, int, float, int, int, bool]] = []
    weights: list[tuple[int, int, int, float]] = []
    looked_for: list[Sequence[float]] = []
    for tree, root in enumerate(attributes["tree_roots"]):
        # A tree of one leaf is a branch whose two ways are that leaf.
        alone = yes[root] == no[root] and to_leaf[0][root] and to_leaf[1][root]
        waiting = [(0, yes[root] if alone else root, bool(alone))]
        count = 1
        while waiting:
            number, place, leaf = waiting.pop()
            if count > 2 * len(modes) + 2:
                raise ValueError("a way through a tree never ends")
            if leaf:
                nodes.append((tree, number, LEAF, 0, 0.0, 0, 0, False))
                weights.append((tree, number, attributes["leaf_targetids"][place], leaf_weights[place]))
                continue
            feature, track = attributes["nodes_featureids"][place], missing[place] == 1
            nodes.append((tree, number, modes[place], feature, splits[place], count, count + 1, track))
            looked_for += [members[place]] if modes[place] == MEMBER else []
            waiting += [(count + 1, no[place], bool(to_leaf[1][place])), (count, yes[place], bool(to_leaf[0][place]))]
            count += 2
    columns = [np.array(column) for column in zip(*nodes, strict=True)]
    return Nodes(*columns, looked_for), Weights(*(np.array(column) for column in zip(*weights, strict=True)))


def members_of(modes: Sequence[int], values: Sequence[float]) -> list[tuple[float, ...]]:
    """What each node of mode BRANCH_MEMBER looks for: the next of the runs that NaN ends; nothing for the others."""
    runs: list[list[float]] = [[]]
    for value in values:
        if np.isnan(value):
            runs.append([])
        else:
            runs[-1].append(value)
    following = iter(runs)
    return [tuple(next(following)) if mode == MEMBER else () for mode in modes]
