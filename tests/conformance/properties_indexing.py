"""Cases of operators that pick, place and count elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
from properties import Case
from strategies import Draws, cases

from opgraft.graph import Array
from opgraft.graph.element_types import BOOL, HELD, NUMBERS

PLAIN = ("float32", "int64", "int32", "bool", "float64")
"""Element types that the CPU provider moves: ONNX's reference does not look whether an index is in range."""


def indices(d: Draws, shape: Sequence[int], size: int, data: Array, dtype: str = "int64") -> Array:
    """Indices into a dimension, some counted from the end, and rarely one out of range."""
    found = d.whole(shape, -size, size - 1, dtype)
    if found.size and data.dtype.name in PLAIN and d.rarely():
        found.flat[d.integer(0, found.size - 1)] = d.pick(size, -size - 1, 2**31 - 1)
    return found


@cases("Gather")
def gather(d: Draws) -> Case:
    shape = d.shape(1, 4)
    axis = d.axis(len(shape))
    attributes = {"axis": axis} if d.flag() else {}
    size = shape[attributes.get("axis", 0)]
    data = d.array(d.dtype(among=HELD), shape, "any")
    places = indices(d, d.shape(0, 2) if size else (0,), size, data, d.pick("int64", "int32"))
    if d.version < 11:
        places = np.abs(places) % max(size, 1)
    return d.case(data, places, attributes=attributes, moves=True)


def beside(d: Draws, shape: Sequence[int], axis: int) -> list[int]:
    """Sizes no larger than a shape's, except along an axis, where there may be any number."""
    sizes = [d.integer(0 if d.rarely() else min(1, size), size) for size in shape]
    sizes[axis] = d.size() if shape[axis] else 0
    return sizes


@cases("GatherElements")
def gather_elements(d: Draws) -> Case:
    shape = d.shape(1, 4)
    axis = d.axis(len(shape))
    attributes = {"axis": axis} if d.flag() else {}
    axis = attributes.get("axis", 0)
    data = d.array(d.dtype(among=HELD), shape, "any")
    places = indices(d, beside(d, shape, axis), shape[axis], data, d.pick("int64", "int32"))
    return d.case(data, places, attributes=attributes, moves=True)


@cases("GatherND")
def gather_nd(d: Draws) -> Case:
    shape = d.shape(1, 4)
    batch = d.integer(0, len(shape) - 1) if d.version >= 12 else 0
    depth = d.integer(1, len(shape) - batch)
    where = (*shape[:batch], *d.shape(0, 2), depth)
    sizes = shape[batch : batch + depth]
    if 0 in sizes:
        where = (*shape[:batch], 0, depth)
    data = d.array(d.dtype(among=HELD), shape, "any")
    vectors = np.zeros(where, np.int64)
    for place, size in enumerate(sizes):
        vectors[..., place] = indices(d, where[:-1], size, data)
    attributes = {"batch_dims": batch} if batch or (d.flag() and d.version >= 12) else {}
    return d.case(data, vectors, attributes=attributes, moves=True)


REDUCTIONS = ("none", "add", "mul", "max", "min")


def reduction(d: Draws) -> tuple[dict[str, str], str, tuple[str, str]]:
    """What a scatter does with what is there, as an attribute and as its value, and an element type and a kind of
    values for it."""
    known = 1 if d.operator == "Scatter" or d.version < 16 else 3 if d.version < 18 else 5
    name = d.pick(*REDUCTIONS[:known])
    attributes = {"reduction": name} if name != "none" or (known > 1 and d.flag()) else {}
    kind = {"none": "any", "mul": "unit"}.get(name, "moderate")
    return attributes, name, (d.dtype(among=HELD if name == "none" else NUMBERS), kind)


@cases("Scatter", "ScatterElements")
def scatter_elements(d: Draws) -> Case:
    shape = d.shape(1, 4)
    axis = d.axis(len(shape))
    attributes, name, (dtype, kind) = reduction(d)
    attributes |= {"axis": axis} if d.flag() else {}
    axis = attributes.get("axis", 0) % len(shape)
    sizes = beside(d, shape, axis)
    data = d.array(dtype, shape, kind)
    if name == "none":  # no place is written twice
        sizes[axis] = min(sizes[axis], shape[axis])
        chosen = d.permutation(shape[axis])[: sizes[axis]]
        line = [place - shape[axis] * d.integer(0, 1) for place in chosen]
        along = [-1 if each == axis else 1 for each in range(len(shape))]
        places = np.array(np.broadcast_to(np.array(line, np.int64).reshape(along), sizes))
    else:
        places = indices(d, sizes, shape[axis], data)
    places = places.astype(d.pick(np.int64, np.int32))
    updates = d.array(dtype, sizes, kind)
    return d.case(data, places, updates, attributes=attributes, moves=name == "none", widened=name == "none")


@cases("ScatterND")
def scatter_nd(d: Draws) -> Case:
    shape = d.shape(1, 4)
    depth = d.integer(1, len(shape))
    attributes, name, (dtype, kind) = reduction(d)
    data = d.array(dtype, shape, kind)
    inner = shape[:depth]
    if name == "none":
        chosen = np.array(d.permutation(prod(inner))[: d.integer(0, 5)], np.int64)
        vectors = np.stack([chosen // prod(inner[place + 1 :]) % max(inner[place], 1) for place in range(depth)], -1)
        vectors = vectors - np.array(inner) * d.whole(vectors.shape, 0, 1)
    else:
        where = d.shape(1, 2) if prod(inner) else (0,)
        vectors = np.stack([indices(d, where, size, data) for size in inner], -1)
    updates = d.array(dtype, (*vectors.shape[:-1], *shape[depth:]), kind)
    return d.case(data, vectors, updates, attributes=attributes, moves=name == "none", widened=name == "none")


@cases("TensorScatter")
def tensor_scatter(d: Draws) -> Case:
    shape = d.shape(2, 4, 1)
    axis = d.integer(1, len(shape) - 1) - (len(shape) if d.flag() else 0)
    attributes = {"axis": axis} if d.flag() or len(shape) == 2 else {}
    axis = attributes.get("axis", -2) % len(shape)
    count = d.integer(1, shape[axis])
    mode = d.pick("linear", "circular")
    attributes |= {"mode": mode} if mode != "linear" or d.flag() else {}
    dtype = d.dtype(among=HELD)
    cache = d.array(dtype, shape, "any")
    update = d.array(dtype, [count if place == axis else size for place, size in enumerate(shape)], "any")
    most = shape[axis] - count if mode == "linear" else shape[axis] - 1
    first = d.whole(shape[:1], 0, most) if d.flag() else None
    expected = cache.copy()
    for member in range(shape[0]):
        for step in range(count):
            place = ((0 if first is None else first[member]) + step) % shape[axis]
            np.moveaxis(expected[member], axis - 1, 0)[place] = np.moveaxis(update[member], axis - 1, 0)[step]
    return d.case(cache, update, first, attributes=attributes, moves=True, oracle=[expected])


@cases("Compress")
def compress(d: Draws) -> Case:
    shape = d.shape(1, 4)
    axis = d.axis(len(shape)) if d.flag() else None
    if d.version < 11 and axis is not None:
        axis %= len(shape)
    length = prod(shape) if axis is None else shape[axis]
    condition = d.array("bool", (d.pick(length, d.integer(0, length)),))
    attributes = {} if axis is None else {"axis": axis}
    return d.case(d.array(d.dtype(among=HELD), shape, "any"), condition, attributes=attributes, moves=True)


@cases("NonZero")
def non_zero(d: Draws) -> Case:
    return d.case(d.array(d.dtype(among=NUMBERS | BOOL), d.shape(1), "whole"))


@cases("Unique")
def unique(d: Draws) -> Case:
    shape = d.shape(1, 3, 1)
    axis = d.axis(len(shape)) if d.flag() else None
    attributes = d.some(axis=axis, sorted=d.integer(0, 1))
    x = d.array(d.dtype(among=NUMBERS), shape, "whole")
    case = d.case(x, attributes=attributes, outputs=d.integer(1, 4))
    return replace(case, oracle=replace(case, inputs=(x.astype(np.int64),))) if x.dtype == np.uint64 else case
