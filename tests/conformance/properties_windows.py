"""Cases of operators on sliding windows: convolutions and pooling."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from properties import Case
from strategies import Draws, by_float32, cases

from opgraft.graph.element_types import FLOATS


@dataclass(frozen=True)
class Windows:
    """Where windows lie: a size for each axis of the image, and the attributes that say the rest."""

    sizes: list[int]
    kernel: list[int]
    attributes: dict[str, Any]

    def places(self) -> list[int]:
        """How many windows there are along each axis, without auto_pad and rounding down."""
        rank = len(self.sizes)
        pads, strides, dilations = (
            self.attributes.get(name, [default] * count * rank)
            for name, default, count in (("pads", 0, 2), ("strides", 1, 1), ("dilations", 1, 1))
        )
        return [
            (self.sizes[a] + pads[a] + pads[a + rank] - (self.kernel[a] - 1) * dilations[a] - 1) // strides[a] + 1
            for a in range(rank)
        ]


def windows(
    d: Draws, rank: int = 0, *, dilates: bool = True, auto: bool = True, within: bool = False, most: int = 2
) -> Windows:
    """Windows that fit the padded image.

    Args:
        rank: of the image; 0 for any.
        dilates, auto: whether there may be dilations and auto_pad.
        within: whether the pads must be smaller than the kernel.
        most: the largest pad.
    """
    rank = rank or d.integer(1, 3)
    largest = (6, 5, 3)[rank - 1]
    kernel = [d.integer(1, 3) for _ in range(rank)]
    strides = [d.integer(1, 3) for _ in range(rank)] if d.flag() else [1] * rank
    automatic = d.pick("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER") if auto and d.flag() else None
    dilates = dilates and "SAME" not in (automatic or "")  # both together ONNX Runtime refuses
    dilations = [d.integer(1, 2) for _ in range(rank)] if dilates and d.flag() else [1] * rank
    pads = [0] * 2 * rank
    if automatic in (None, "NOTSET") and d.flag():
        pads = [d.integer(0, min(most, kernel[place % rank] - 1) if within else most) for place in range(2 * rank)]
    reach = [(kernel[axis] - 1) * dilations[axis] + 1 for axis in range(rank)]
    # A window of nothing but padding has no maximum: ONNX Runtime's is the least float.
    hit = dilations if within else [1] * rank
    least = [max(hit[axis], reach[axis] - pads[axis] - pads[axis + rank]) for axis in range(rank)]
    sizes = [d.integer(low, max(low, largest)) for low in least]
    attributes: dict[str, Any] = {}
    if set(strides) > {1} or d.flag():
        attributes["strides"] = strides
    if set(dilations) > {1}:
        attributes["dilations"] = dilations
    if any(pads):
        attributes["pads"] = pads
    if automatic:
        attributes["auto_pad"] = automatic
    return Windows(sizes, kernel, attributes)


def grouped(d: Draws) -> tuple[int, int, int]:
    """The number of groups, and of channels in and out of each."""
    return d.pick(1, 1, 2, 3), d.pick(1, 2, 3, 9), d.pick(1, 2, 3)


@cases("Conv")
def conv(d: Draws) -> Case:
    place = windows(d)
    group, inputs, outputs = grouped(d)
    dtype = d.dtype()
    x = d.array(dtype, (d.size(0, 2), group * inputs, *place.sizes))
    w = d.array(dtype, (group * outputs, inputs, *place.kernel))
    b = d.array(dtype, (group * outputs,)) if d.flag() else None
    return d.case(x, w, b, attributes=convolving(d, place, group))


def convolving(d: Draws, place: Windows, group: int) -> dict[str, Any]:
    attributes = place.attributes | d.some(kernel_shape=place.kernel)
    return attributes | ({"group": group} if group > 1 or d.flag() else {})


@cases("ConvTranspose")
def conv_transpose(d: Draws) -> Case:
    place = windows(d)
    group, inputs, outputs = grouped(d)
    rank = len(place.sizes)
    attributes = convolving(d, place, group)
    strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    sizes = [d.integer(1, (5, 3, 2)[rank - 1]) for _ in range(rank)]
    whole = [(sizes[a] - 1) * strides[a] + (place.kernel[a] - 1) * dilations[a] + 1 for a in range(rank)]
    pads = attributes.pop("pads", None)
    if pads and all(whole[a] > pads[a] + pads[a + rank] for a in range(rank)):
        attributes["pads"] = pads
    if d.flag() and max(strides) > 1:
        most = [max(stride, dilation) - 1 for stride, dilation in zip(strides, dilations, strict=True)]
        attributes["output_padding"] = [d.integer(0, each) for each in most]
    elif d.rarely() and "pads" not in attributes:
        attributes["output_shape"] = [d.integer(max(1, length - 2), length) for length in whole]
    dtype = d.dtype()
    x = d.array(dtype, (d.size(0, 2), group * inputs, *sizes))
    w = d.array(dtype, (group * inputs, outputs, *place.kernel))
    b = d.array(dtype, (group * outputs,)) if d.flag() else None
    return by_float32(d.case(x, w, b, attributes=attributes))


@cases("ConvInteger")
def conv_integer(d: Draws) -> Case:
    place = windows(d)
    group, inputs, outputs = grouped(d)
    x = d.array(d.dtype(0), (d.size(1, 2), group * inputs, *place.sizes), "any")
    w = d.array(d.dtype(1), (group * outputs, inputs, *place.kernel), "any")
    zero = d.array(x.dtype.name, (), "any") if d.flag() else None
    zeros = d.array(w.dtype.name, d.pick((), w.shape[:1]), "any") if d.flag() else None
    case = d.case(x, w, zero, zeros, attributes=convolving(d, place, group))
    if zeros is None or not zeros.shape:
        return case
    image = x.astype(np.float32) - np.float32(0 if zero is None else zero)
    weight = w.astype(np.float32) - zeros.astype(np.float32).reshape(-1, *[1] * (w.ndim - 2), 1)
    oracle = replace(case, operator="Conv", opset=11, inputs=(image, weight), constant=(), computed=None)
    return replace(case, oracle=oracle)  # one zero point for each output is what ONNX Runtime lacks


@cases("QLinearConv")
def qlinear_conv(d: Draws) -> Case:
    place = windows(d)
    group, inputs, outputs = grouped(d)
    dtype, weight = d.dtype(0), d.dtype(3)
    weight = weight if dtype == "uint8" else "int8"
    x = d.array(dtype, (d.size(1, 2), group * inputs, *place.sizes), "any")
    w = d.array(weight, (group * outputs, inputs, *place.kernel), "any")
    each = d.pick((), (group * outputs,))
    scale = d.array("float32", each, "positive")
    zeros = d.array(weight, each, "any") if weight == "uint8" and not each else np.zeros(each, weight)
    b = d.whole((group * outputs,), -1000, 1000, "int32") if d.flag() else None
    scales = [np.array(d.pick(0.5, 0.25, 1.0, 0.03125), np.float32) for _ in range(2)]
    numbers = d.array(dtype, (), "any"), d.array(dtype, (), "any")
    arrays = x, scales[0], numbers[0], w, scale, zeros, scales[1] * np.float32(64), numbers[1], b
    return d.case(*arrays, attributes=convolving(d, place, group))


@cases("Col2Im")
def col2im(d: Draws) -> Case:
    place = windows(d, auto=False)
    count = d.integer(1, 2)
    shape = d.size(1, 2), count * prod(place.kernel), prod(place.places())
    image, block = (np.array(each, np.int64) for each in (place.sizes, place.kernel))
    oracle = "onnx" if len(block) > 2 else "cpu"  # ONNX Runtime loses what dilated blocks of three dimensions hold
    return d.case(d.array(d.dtype(), shape), image, block, attributes=place.attributes, oracle=oracle)


@cases("AveragePool", "MaxPool", "LpPool")
def pool(d: Draws) -> Case:
    newest = {"AveragePool": 19, "MaxPool": 10, "LpPool": 18}[d.operator]
    place = windows(d, dilates=d.version >= newest, within=True, most=1)
    rank = len(place.sizes)
    attributes = {"kernel_shape": place.kernel, **place.attributes}
    if attributes.get("auto_pad", "").startswith("SAME"):
        attributes.pop("dilations", None)
        strides = attributes.pop("strides", [1] * rank)
        attributes["strides"] = [min(stride, kernel) for stride, kernel in zip(strides, place.kernel, strict=True)]
    if d.version >= {"AveragePool": 10, "MaxPool": 10, "LpPool": 18}[d.operator]:
        attributes |= d.some(ceil_mode=d.integer(0, 1))
    if d.operator == "AveragePool" and d.version >= 7:
        attributes |= d.some(count_include_pad=d.integer(0, 1))
    if d.operator == "LpPool":
        attributes |= d.some(p=d.integer(1, 3))
    outputs = d.integer(1, 2) if d.operator == "MaxPool" and d.version >= 8 else 1
    if outputs == 2:
        attributes |= d.some(storage_order=d.integer(0, 1))
    x = d.array(d.dtype(), (d.size(0, 2), d.size(1, 3), *place.sizes), "whole" if outputs == 2 else "moderate")
    case = d.case(x, attributes=attributes, outputs=outputs)
    return by_float32(case, opset=max(d.version, 7)) if d.operator == "AveragePool" else by_float32(case)


@cases("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(d: Draws) -> Case:
    shape = (d.size(0, 2), d.size(1, 3), *(d.size(1, 4) for _ in range(d.integer(1, 3))))
    attributes = d.some(p=d.integer(1, 3)) if d.operator == "GlobalLpPool" else {}
    return by_float32(d.case(d.array(d.dtype(), shape), attributes=attributes), opset=2)


@cases("MaxUnpool")
def max_unpool(d: Draws) -> Case:
    rank = d.integer(1, 3)
    kernel, strides = ([d.integer(1, 3) for _ in range(rank)] for _ in range(2))
    shape = (d.size(1, 2), d.size(1, 2), *(d.size(1, 3) for _ in range(rank)))
    attributes = {"kernel_shape": kernel} | d.some(strides=strides)
    strides = attributes.get("strides", [1] * rank)
    if d.rarely():
        attributes["pads"] = [0] * 2 * rank
    parts = zip(shape[2:], strides, kernel, strict=True)
    whole = [*shape[:2], *((size - 1) * stride + length for size, stride, length in parts)]
    if prod(whole) < prod(shape):
        attributes["kernel_shape"] = [size + 1 for size in kernel]
        whole = [*shape[:2], *(size + 1 for size in whole[2:])]
    places = np.array(d.permutation(prod(whole))[: prod(shape)], np.int64)
    if d.rarely():
        places[0] = d.pick(prod(whole), -1)
    output_shape = np.array(whole) if d.rarely() else None
    x = d.array(d.dtype(), shape)
    case = d.case(x, places.reshape(shape), output_shape, attributes=attributes, fixed=[2])
    return by_float32(replace(case, dynamic=case.dynamic and output_shape is None), opset=11)


@cases("MaxRoiPool")
def max_roi_pool(d: Draws) -> Case:
    shape = (d.size(1, 2), d.size(1, 2), d.size(1, 5), d.size(1, 5))
    scale = d.pick(1.0, 0.5, 0.25)
    pooled = [d.integer(1, 3), d.integer(1, 3)]
    count = d.integer(1, 3)
    images = d.whole((count, 1), 0, shape[0] - 1)
    corners = d.whole((count, 4), -2, 8)
    rois = np.concatenate([images, corners], 1).astype(np.float32)
    x = d.array(d.dtype(among=FLOATS), shape)
    attributes = {"pooled_shape": pooled} | ({"spatial_scale": scale} if scale != 1 or d.flag() else {})
    return by_float32(d.case(x, rois.astype(x.dtype), attributes=attributes), opset=1)
