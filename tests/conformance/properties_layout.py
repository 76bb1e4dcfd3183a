"""Cases of operators that read or change shapes, make arrays, and move, join, cut, repeat and pad elements."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from onnx import numpy_helper
from properties import Case, numpy_type
from strategies import Draws, Shape, cases

from opgraft.graph import Array
from opgraft.graph.element_types import ANY, FLOATS, HELD, NUMBERS, ONNX_OF_NAME


def anything(d: Draws, shape: Shape, index: int = 0) -> Array:
    """An array of any element type that an input takes."""
    return d.array(d.dtype(index, HELD), shape, "any")


def moved(d: Draws, *inputs: Array | None, **given: Any) -> Case:
    return d.case(*inputs, moves=True, **given)


@cases("Shape")
def shape(d: Draws) -> Case:
    data = anything(d, d.shape())
    attributes = d.some(start=d.integer(-6, 6), end=d.integer(-6, 6)) if d.version >= 15 else {}
    expected = data.shape[attributes.get("start") : attributes.get("end")]
    return d.case(data, attributes=attributes, oracle=[np.array(expected, np.int64)])


@cases("Size", "Identity")
def whole(d: Draws) -> Case:
    return moved(d, anything(d, d.shape()))


@cases("Reshape")
def reshape(d: Draws) -> Case:
    old = d.shape(side=d.version < 5)
    data = anything(d, old) if d.version >= 5 else d.array(d.dtype(), old)
    target = regrouped(d, old)
    attributes = d.some(allowzero=d.integer(0, 1)) if d.version >= 14 else {}
    allows = attributes.get("allowzero", 0)
    if prod(target) and target and d.flag():
        target[d.integer(0, len(target) - 1)] = -1
    for place, size in enumerate(target):
        if not allows and place < len(old) and size == old[place] and d.flag():
            target[place] = 0
    if d.version < 5:
        return moved(d, data, attributes={"shape": target}, oracle=[data.reshape(regrouped_as(old, target))])
    return moved(d, data, np.array(target, np.int64), attributes=attributes)


def regrouped(d: Draws, sizes: Shape) -> list[int]:
    """The factors of sizes, multiplied into others."""
    if 0 in sizes:
        return [sizes[axis] for axis in d.permutation(len(sizes))]
    factors = [factor for size in sizes for factor in ((2, 2) if size == 4 else (size,))]
    target = [1] * d.integer(1 if prod(sizes) > 1 or d.version < 5 else 0, 4)
    for factor in factors:
        if target:
            target[d.integer(0, len(target) - 1)] *= factor
    return target


def regrouped_as(old: Shape, target: list[int]) -> list[int]:
    """Reshape-1's target."""
    return [old[place] if size == 0 else size for place, size in enumerate(target)]


@cases("Flatten")
def flatten(d: Draws) -> Case:
    shape = d.shape(0 if d.version >= 9 else 1)
    low = -len(shape) if d.version >= 11 else 0
    if not shape:
        return moved(d, anything(d, shape), attributes={"axis": 0})
    return moved(d, anything(d, shape), attributes=d.some(axis=d.integer(low, len(shape))))


@cases("Squeeze")
def squeeze(d: Draws) -> Case:
    shape = tuple(d.pick(1, size) for size in d.shape(1))
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    axes = [ones[place] for place in d.permutation(len(ones))[: d.integer(0, len(ones))]]
    axes = [axis - len(shape) if d.version >= 11 and d.flag() else axis for axis in axes]
    data = anything(d, shape)
    return of_axes(d, data, axes or None, np.squeeze(data, tuple(axes) or None))


@cases("Unsqueeze")
def unsqueeze(d: Draws) -> Case:
    shape, more = d.shape(0, 3), d.integer(1, 3)
    axes = d.axes(len(shape) + more, more)[:more]
    axes = axes if d.version >= 11 else [axis % (len(shape) + more) for axis in axes]
    data = anything(d, shape)
    return of_axes(d, data, axes, np.expand_dims(data, tuple(axes)))


def of_axes(d: Draws, data: Array, axes: list[int] | None, expected: Array) -> Case:
    if d.version >= 13:
        return moved(d, data, None if axes is None else np.array(axes), oracle=[expected])
    return moved(d, data, attributes={} if axes is None else {"axes": axes}, oracle=[expected])


@cases("Transpose")
def transpose(d: Draws) -> Case:
    shape = d.shape()
    return moved(d, anything(d, shape), attributes=d.some(perm=d.permutation(len(shape)) if shape else None))


@cases("Constant")
def constant(d: Draws) -> Case:
    kinds = {"value": d.array(d.pick(*sorted(ANY)), d.shape(), "any")}
    if d.version >= 12:
        kinds |= {
            "value_int": np.array(d.integer(-(2**63), 2**63 - 1)),
            "value_ints": d.array("int64", (d.integer(1, 4),), "any"),
            "value_float": np.array(d.number(-9, 9), np.float32),
            "value_floats": d.array("float32", (d.integer(1, 4),), "any"),
        }
    name = d.pick(*kinds)
    value = kinds[name]
    given = numpy_helper.from_array(value) if name == "value" else value.tolist()
    return moved(d, attributes={name: given}, oracle=[value])


@cases("ConstantOfShape")
def constant_of_shape(d: Draws) -> Case:
    sizes = d.shape(0, 4)
    dtype = d.pick("float32", "int64", *sorted(ANY - {"complex64"}))
    value = d.array(dtype, (1,), "any") if d.flag() else None
    expected = np.full(sizes, np.float32(0) if value is None else value[0], "float32" if value is None else value.dtype)
    attributes = {} if value is None else {"value": numpy_helper.from_array(value)}
    return moved(d, np.array(sizes, np.int64), attributes=attributes, oracle=[expected])


@cases("Range")
def range_(d: Draws) -> Case:
    dtype = d.dtype(among=NUMBERS)
    step = d.pick(1, 2, 3, -1, -2, 0.5, -0.25) if dtype in FLOATS else d.pick(1, 2, 3, -1, -2)
    start, limit = d.integer(-5, 5), d.integer(-5, 5)
    if dtype.startswith("u"):
        start, limit, step = abs(start), abs(limit), abs(step)
    arrays = [np.array(each).astype(numpy_type(dtype)) for each in (start, limit, step)]
    return d.case(*arrays)


@cases("Concat")
def concat(d: Draws) -> Case:
    shape = d.shape(1, 4)
    axis = d.axis(len(shape)) if d.version >= 11 else d.integer(0, len(shape) - 1)
    axis = 1 if d.version < 4 and len(shape) > 1 and d.flag() else axis
    dtype = d.dtype(among=HELD)
    arrays = []
    for _ in range(d.integer(1, 4)):
        sizes = list(shape)
        sizes[axis] = d.size()
        arrays.append(d.array(dtype, sizes, "any"))
    return moved(d, *arrays, attributes={"axis": axis})


@cases("Split")
def split(d: Draws) -> Case:
    shape = list(d.shape(1, 4))
    axis = d.axis(len(shape)) if d.version >= 11 else d.integer(0, len(shape) - 1)
    attributes = {"axis": axis} if d.flag() else {}
    axis = attributes.get("axis", 0)
    pieces = d.integer(1, 3)
    even = d.flag()
    sizes = [d.size()] * pieces if even else [d.size() for _ in range(pieces)]
    shape[axis] = sum(sizes)
    dtype = d.dtype(among=HELD)
    if d.version < 13:
        attributes |= {} if even and d.flag() else {"split": sizes}
        case = moved(d, d.array(dtype, shape, "any"), attributes=attributes, outputs=pieces)
        return replace(case, oracle=replace(case, opset=2)) if d.version < 2 else case
    if even and d.flag():
        if d.version >= 18:
            attributes["num_outputs"] = pieces
            if sizes[0] and pieces > 1:  # the last one may be smaller
                shape[axis] -= d.integer(0, min(sizes[0] - 1, 1))
        return moved(d, d.array(dtype, shape, "any"), attributes=attributes, outputs=pieces)
    return moved(d, d.array(dtype, shape, "any"), np.array(sizes), attributes=attributes, outputs=pieces)


@cases("Slice")
def slice_(d: Draws) -> Case:
    shape = d.shape(1, 4)
    far = 2**31 - 1
    data = d.array(d.dtype(among=HELD - {"complex64"}), shape, "any")  # of which ONNX Runtime has none
    axes = d.axes(len(shape)) if d.flag() else None
    if d.version < 10 and axes:
        axes = [axis % len(shape) for axis in axes]
    if d.version < 10 and not axes:
        axes = None
    count = d.integer(1 if d.version < 10 else 0, len(shape)) if axes is None else len(axes)
    starts = [d.pick(d.integer(-6, 6), d.integer(-6, 6), far, -far) for _ in range(count)]
    ends = [d.pick(d.integer(-6, 6), d.integer(-6, 6), far, -far) for _ in range(count)]
    if d.version < 10:
        return moved(d, data, attributes={"starts": starts, "ends": ends} | ({} if axes is None else {"axes": axes}))
    steps = [d.pick(1, 2, 3, -1, -2, far, -far) for _ in range(count)] if d.flag() else None
    index = d.pick(np.int64, np.int32)
    given = [None if each is None else np.array(each, index) for each in (starts, ends, axes, steps)]
    return moved(d, data, *given)


@cases("Expand")
def expand(d: Draws) -> Case:
    whole = d.shape()
    data, target = anything(d, d.broadcast_part(whole)), d.broadcast_part(whole)
    expected = np.broadcast_to(data, np.broadcast_shapes(data.shape, target))
    return moved(d, data, np.array(target, np.int64), oracle=[expected])


@cases("Tile")
def tile(d: Draws) -> Case:
    shape = d.shape(1, 3)
    data = anything(d, shape)
    if d.version >= 6:
        return moved(d, data, np.array([d.integer(0, 3) for _ in shape], np.int64))
    times, axis = d.integer(1, 3), d.integer(0, len(shape) - 1)
    numbers = (np.array([each], data.dtype) for each in (times, axis))
    tiles = [times if place == axis else 1 for place in range(len(shape))]
    return moved(d, data, *numbers, oracle=[np.tile(data, tiles)])


@cases("Pad")
def pad(d: Draws) -> Case:
    shape = d.shape(1, 4)
    modes = ("constant", "reflect", "edge", "wrap") if d.version >= 19 else ("constant", "reflect", "edge")
    mode = d.pick(*modes)
    axes = d.axes(len(shape), 1) if d.version >= 18 and d.flag() else list(range(len(shape)))
    befores, afters = [], []
    for axis in axes:
        size = shape[axis]
        most = 3 if mode == "constant" else 0 if not size else size - 1 if mode == "reflect" else size
        befores.append(d.integer(0, most) if d.flag() else -d.integer(0, min(1, size)))
        afters.append(d.integer(0, most) if d.flag() else -d.integer(0, min(1, size)))
        if size + befores[-1] + afters[-1] < 0 or (mode != "constant" and min(befores[-1], afters[-1]) < 0):
            befores[-1], afters[-1] = max(befores[-1], 0), max(afters[-1], 0)
    attributes = {"mode": mode} if mode != "constant" or d.flag() else {}
    if d.version < 11:
        name = "pads" if d.version >= 2 else "paddings"
        attributes |= {name: [*befores, *afters]} | d.some(value=d.number(-4, 4))
        case = d.case(d.array(d.dtype(), shape), attributes=attributes)
        newer = {"pads" if key == "paddings" else key: value for key, value in attributes.items()}
        return replace(case, oracle=replace(case, opset=2, attributes=newer)) if d.version < 2 else case
    dtype = d.dtype(among=HELD)
    value = d.array(dtype, (), "any") if d.flag() else None
    given = np.array(axes) if d.version >= 18 and (len(axes) < len(shape) or axes != list(range(len(shape)))) else None
    return moved(d, d.array(dtype, shape, "any"), np.array([*befores, *afters]), value, given, attributes=attributes)


@cases("CenterCropPad")
def center_crop_pad(d: Draws) -> Case:
    shape = d.shape(1, 4)
    axes = d.axes(len(shape), 1) if d.flag() else None
    count = len(shape) if axes is None else len(axes)
    target = np.array([d.size(0, 7) for _ in range(count)], d.pick(np.int64, np.int32))
    return moved(d, anything(d, shape), target, attributes={} if axes is None else {"axes": axes})


@cases("Trilu")
def trilu(d: Draws) -> Case:
    k = np.array(d.pick(d.integer(-6, 6), d.integer(-6, 6), 2**40, -(2**40))) if d.flag() else None
    data = anything(d, d.shape(2))
    return moved(d, data, None if k is None else k.reshape(d.pick((), (1,))), attributes=d.some(upper=d.integer(0, 1)))


@cases("EyeLike")
def eye_like(d: Draws) -> Case:
    shape = d.size(), d.size()
    dtype = d.pick(None, *sorted(NUMBERS | {"bool"}))
    attributes = d.some(k=d.integer(-6, 6), dtype=None if dtype is None else ONNX_OF_NAME[dtype])
    return d.case(d.array(d.dtype(among=NUMBERS | {"bool"}), shape), attributes=attributes)


@cases("DepthToSpace", "SpaceToDepth")
def blocks(d: Draws) -> Case:
    size = d.integer(1, 3)
    batch, channels, rows, columns = (d.size(0, 3) for _ in range(4))
    attributes = {"blocksize": size}
    if (d.operator == "DepthToSpace" and d.version >= 11) or d.version >= 28:
        attributes |= d.some(mode=d.pick("DCR", "CRD"))
    if d.operator == "DepthToSpace":
        shape = batch, channels * size**2, rows, columns
    else:
        shape = batch, channels, rows * size, columns * size
    return moved(d, anything(d, shape), attributes=attributes)


@cases("OneHot")
def one_hot(d: Draws) -> Case:
    shape, depth = d.shape(1, 3), d.integer(1, 5)
    axis = d.axis(len(shape) + 1)
    attributes = d.some(axis=axis)
    axis = attributes.get("axis", -1) % (len(shape) + 1)
    dtype = d.dtype(among=NUMBERS)
    low = 0 if dtype.startswith("u") or d.version < 11 else -depth - 1
    indices = d.whole(shape, low, depth, dtype)
    values = d.array(d.dtype(2, HELD), (2,), "any")
    number = np.array(depth).astype(numpy_type(d.dtype(1, NUMBERS))).reshape(d.pick((), (1,)))
    places = np.arange(depth).reshape([-1 if each == axis else 1 for each in range(len(shape) + 1)])
    wanted = np.expand_dims(indices.astype(np.int64), axis)
    hot = (places == wanted) | (places == wanted + depth)
    return moved(d, indices, number, values, attributes=attributes, oracle=[np.where(hot, values[1], values[0])])


@cases("ReverseSequence")
def reverse_sequence(d: Draws) -> Case:
    shape = (d.size(), d.size(), *d.shape(0, 2))
    attributes = d.pick({}, {"batch_axis": 0, "time_axis": 1}, {"batch_axis": 1, "time_axis": 0})
    batch, time = attributes.get("batch_axis", 1), attributes.get("time_axis", 0)
    low = 1 if shape[time] and d.version < 28 else 0
    return moved(d, anything(d, shape), d.whole(shape[batch : batch + 1], low, shape[time]), attributes=attributes)
