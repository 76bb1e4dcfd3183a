"""Trees that decide, as arrays: all of them are walked at once, one level at a time.

Nodes are numbered from 0 through all trees, leaves first, so that a leaf's number is its row in the table of weights.
From a leaf, every way leads back to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.ops import to_device

Numpy = np.ndarray[Any, Any]

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
"""How a value is compared with a node's; the places are TreeEnsemble's numbers."""

COMPARISONS: tuple[Callable[[mx.array, mx.array], mx.array], ...] = (
    mx.less_equal,
    mx.less,
    mx.greater_equal,
    mx.greater,
    mx.equal,
    mx.not_equal,
)
MEMBER = len(COMPARISONS)
LEAF = -1

HELD_AT_ONCE = 1 << 24
"""How many weights are gathered before they are added up."""

FOLDS: dict[str, tuple[Callable[..., mx.array], float]] = {
    "SUM": (mx.sum, 0.0),
    "AVERAGE": (mx.sum, 0.0),
    "MIN": (mx.min, float("inf")),
    "MAX": (mx.max, -float("inf")),
}
"""How the weights of all trees become one, and what a tree without a weight gives."""


@dataclass(frozen=True)
class Nodes:
    """The nodes of all trees, as columns; the first one of each tree is its root.

    Attributes:
        tree, number: the tree that a node belongs to, and its number there.
        mode: a place in MODES; LEAF for a leaf.
        yes, no: the number of the node to go to where the comparison holds, and where it does not.
        missing: a feature that is NaN goes where the comparison holds.
        members: what each BRANCH_MEMBER looks for, in order.
    """

    tree: Numpy
    number: Numpy
    mode: Numpy
    feature: Numpy
    value: Numpy
    yes: Numpy
    no: Numpy
    missing: Numpy
    members: Sequence[Sequence[float]] = ()

    def chosen(self, which: Numpy) -> Nodes:
        """Some of them, or all in another order, which leaves BRANCH_MEMBER where they are among themselves."""
        columns = (self.tree, self.number, self.mode, self.feature, self.value, self.yes, self.no, self.missing)
        return Nodes(*(column[which] for column in columns), self.members)


@dataclass(frozen=True)
class Weights:
    """What leaves add to targets, as columns: the leaf's tree and number, the target, and how much."""

    tree: Numpy
    number: Numpy
    target: Numpy
    amount: Numpy


@dataclass(frozen=True)
class Forest:
    """A forest on the device, and what is known of it.

    Attributes:
        roots: (T). features, modes, values, missing: for each node. ways: (2 * nodes), for no and for yes.
        members: a row for each BRANCH_MEMBER, whose value is its number; NaN behind the last one.
        weights: (leaves, K). given: (leaves, K), which of them there are.
        depth: how many comparisons a way has at most.
        only_mode: the mode that all branches have; None if there are several.
        sometimes, always: for each target, whether a leaf weighs it, and whether one does for every example.
    """

    roots: mx.array
    features: mx.array
    modes: mx.array
    values: mx.array
    missing: mx.array | None
    ways: mx.array
    members: mx.array | None
    weights: mx.array
    given: mx.array
    depth: int
    only_mode: int | None
    used_modes: tuple[int, ...]
    most_features: int
    sometimes: tuple[bool, ...]
    always: tuple[bool, ...]

    def leaves(self, X: mx.array) -> mx.array:
        """The leaf (N, T) to which each tree takes each row of X (N, features).

        Raises:
            ValueError: X has too few features.
        """
        if X.shape[1] < self.most_features:
            raise ValueError(f"X has {X.shape[1]} features, and the trees ask for {self.most_features}")
        X = X.astype(self.values.dtype)
        place = mx.broadcast_to(self.roots, (X.shape[0], self.roots.size))
        for _ in range(self.depth if place.size else 0):
            value = mx.take_along_axis(X, mx.take(self.features, place), axis=1)
            taken = self._holds(value, place)
            if self.missing is not None:
                taken = taken | (mx.isnan(value) & mx.take(self.missing, place))
            place = mx.take(self.ways, 2 * place + taken.astype(place.dtype))
        return place

    def _holds(self, value: mx.array, place: mx.array) -> mx.array:
        other = mx.take(self.values, place)
        if self.only_mode is not None:
            return self._compared(self.only_mode, value, other)
        modes = mx.take(self.modes, place)
        taken = mx.zeros(place.shape, mx.bool_)
        for mode in self.used_modes:
            taken = mx.where(modes == mode, self._compared(mode, value, other), taken)
        return taken

    def _compared(self, mode: int, value: mx.array, other: mx.array) -> mx.array:
        if mode != MEMBER or self.members is None:
            return COMPARISONS[mode](value, other)
        number = mx.clip(other, 0, self.members.shape[0] - 1).astype(mx.int32)
        return mx.any(mx.take(self.members, number, axis=0) == value[..., None], axis=-1)

    def scores(self, leaves: mx.array, function: str) -> mx.array:
        """The weights of leaves (N, T), folded over the trees as `function` says: (N, K), 0 where there are none."""
        fold, nothing = FOLDS[function]
        table = self.weights if nothing == 0 else mx.where(self.given, self.weights, nothing)
        step = max(HELD_AT_ONCE // max(leaves.shape[0] * table.shape[1], 1), 1)
        parts = [
            fold(mx.take(table, leaves[:, start : start + step], axis=0), axis=1)
            for start in range(0, leaves.shape[1], step)
        ]
        total = fold(mx.stack(parts), axis=0) if len(parts) > 1 else parts[0]
        if function == "AVERAGE":
            total = total / leaves.shape[1]
        return total if nothing == 0 or all(self.always) else mx.where(self.scored(leaves), total, 0)

    def scored(self, leaves: mx.array) -> mx.array:
        """Which targets one of the leaves (N, T) weighs, for each row: (N, K)."""
        if self.always == self.sometimes:
            return mx.broadcast_to(mx.array(self.always), (leaves.shape[0], len(self.always)))
        return mx.any(mx.take(self.given, leaves, axis=0), axis=1)


def forest_of(nodes: Nodes, weights: Weights, targets: int, function: str, dtype: type[np.floating[Any]]) -> Forest:
    """The forest of nodes and weights.

    Raises:
        ValueError: two nodes have one number, one leads to a node that is not there, a way never ends, a leaf has no
            weight, or a weight is for a target that there is not.
    """
    trees, first = np.unique(nodes.tree, return_index=True)
    is_leaf = nodes.mode == LEAF
    order = np.argsort(~is_leaf, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    nodes, leaves, roots = nodes.chosen(order), int(is_leaf.sum()), place[first]
    find = _finder(nodes)
    ways = np.repeat(np.arange(len(order))[:, None], 2, axis=1)
    for side, way in enumerate((nodes.no, nodes.yes)):
        ways[leaves:, side] = find(nodes.tree[leaves:], way[leaves:])
    table, given = _table(find(weights.tree, weights.number), weights, leaves, targets, function, dtype)
    if not given.any(axis=1).all():
        raise ValueError("a leaf has no weight")
    values = nodes.value.astype(dtype)
    values[nodes.mode == MEMBER] = np.arange(len(nodes.members))
    used = tuple(np.unique(nodes.mode[leaves:]).tolist())
    unweighed = np.zeros((len(trees), targets), bool)
    np.logical_or.at(unweighed, np.searchsorted(trees, nodes.tree[:leaves]), ~given)
    return Forest(
        roots=mx.array(roots.astype(np.int32)),
        features=mx.array(nodes.feature.astype(np.int32)),
        modes=mx.array(nodes.mode.astype(np.int8)),
        values=to_device(values),
        missing=mx.array(nodes.missing) if nodes.missing.any() else None,
        ways=mx.array(ways.astype(np.int32).ravel()),
        members=to_device(_padded(nodes.members, dtype)) if nodes.members else None,
        weights=to_device(table),
        given=mx.array(given),
        depth=_depth(ways, roots, leaves),
        only_mode=used[0] if len(used) == 1 else None,
        used_modes=used,
        most_features=1 + int(nodes.feature.max(initial=-1)),
        sometimes=tuple(given.any(axis=0).tolist()),
        always=tuple((~unweighed).any(axis=0).tolist()),
    )


def _finder(nodes: Nodes) -> Callable[[Numpy, Numpy], Numpy]:
    """What gives the places of nodes by their trees and numbers.

    Raises:
        ValueError: two have the same.
    """
    if nodes.tree.min(initial=0) < 0 or nodes.number.min(initial=0) < 0:
        raise ValueError("a tree or a node has a negative number")
    span = int(nodes.number.max(initial=0)) + 1
    keys, places = np.unique(nodes.tree * span + nodes.number, return_index=True)
    if len(keys) < len(nodes.tree):
        raise ValueError("two nodes of one tree have the same number")

    def find(tree: Numpy, number: Numpy) -> Numpy:
        wanted = tree * span + number
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        lost = np.flatnonzero((keys[at] != wanted) | (number < 0) | (number >= span))
        if lost.size:
            raise ValueError(f"there is no node {number[lost[0]]} in tree {tree[lost[0]]}, to which something leads")
        found: Numpy = places[at]
        return found

    return find


def _table(
    leaf: Numpy, weights: Weights, leaves: int, targets: int, function: str, dtype: type[np.floating[Any]]
) -> tuple[Numpy, Numpy]:
    """The weights by leaf and target, and which there are. Those of a branch, which old converters wrote, are left
    out."""
    if weights.target.min(initial=0) < 0 or weights.target.max(initial=-1) >= targets:
        raise ValueError(f"a leaf weighs target {weights.target.max()} of {targets}")
    kept = leaf < leaves
    where = leaf[kept], weights.target[kept]
    given = np.zeros((leaves, targets), bool)
    given[where] = True
    table = np.full((leaves, targets), FOLDS[function][1], dtype)
    combine: Any = {"MIN": np.minimum, "MAX": np.maximum}.get(function, np.add)
    combine.at(table, where, weights.amount[kept].astype(dtype))
    return np.where(given, table, dtype(0)), given


def _depth(ways: Numpy, roots: Numpy, leaves: int) -> int:
    level, depth = roots[roots >= leaves], 0
    while level.size:
        depth += 1
        if depth > len(ways):
            raise ValueError("a way through a tree never ends")
        following = np.unique(ways[level])
        level = following[following >= leaves]
    return depth


def _padded(members: Sequence[Sequence[float]], dtype: type[np.floating[Any]]) -> Numpy:
    padded = np.full((len(members), max(map(len, members))), np.nan, dtype)
    for row, some in zip(padded, members, strict=True):
        row[: len(some)] = some
    return padded
