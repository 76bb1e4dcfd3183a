"""Cases of operators that read images between their pixels."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from properties import Case
from properties_windows import windows
from strategies import Draws, by_float32, cases

from opgraft.graph import Array
from opgraft.graph.element_types import FLOATS, NUMBERS

COORDINATES = ("half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners")


@cases("Resize")
def resize(d: Draws) -> Case:
    if d.version < 11:
        return of_scales(d)
    rank = d.pick(2, 2, 1, 3)
    mode = d.pick("nearest", "linear", "cubic") if rank == 2 else d.pick("nearest", "linear")
    dtype = d.dtype(among=FLOATS if mode != "nearest" else NUMBERS)
    x = d.array(dtype, (d.size(1, 2), d.pick(1, 2, 17), *(d.size(1, 6) for _ in range(rank))))
    newest = ("half_pixel_symmetric",) if d.version >= 19 else ()
    attributes: dict[str, Any] = {"mode": mode} if mode != "nearest" or d.flag() else {}
    attributes |= d.some(coordinate_transformation_mode=d.pick(*COORDINATES, *newest))
    if mode == "nearest":
        attributes |= d.some(nearest_mode=d.pick("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    if mode == "cubic":
        attributes |= d.some(cubic_coeff_a=d.pick(-0.75, -0.5), exclude_outside=d.integer(0, 1))
    if d.version >= 18:
        attributes |= d.some(antialias=0 if mode == "nearest" else d.integer(0, 1))
    targets = [d.integer(1, 9) for _ in range(rank)]
    if d.version >= 18 and d.flag():
        return by_float32(of_axes(d, x, attributes, targets))
    roi = None if d.version >= 13 else np.zeros(0, np.float32)
    if d.flag() and attributes.get("coordinate_transformation_mode") != "align_corners":
        scales = np.array([1, 1, *(d.pick(2, 0.5, 1.5, 3, 0.75, 1, 1.25) for _ in range(rank))], np.float32)
        case = d.case(x, roi, scales, attributes=attributes, fixed=[1, 2])
        same = all(int(scale * np.float32(size)) == size for scale, size in zip(scales, x.shape, strict=True))
        if same and (scales != 1).any() and not attributes.get("antialias"):  # in which ONNX Runtime sees nothing to do
            return by_float32(case, oracle="onnx")
    else:
        nothing = None if d.version >= 13 else np.zeros(0, np.float32)
        sizes = np.array([*x.shape[:2], *targets])
        case = d.case(x, roi, nothing, sizes, attributes=attributes, fixed=[1, 2, 3])
    return by_float32(case)


def of_axes(d: Draws, x: Array, attributes: dict[str, Any], targets: list[int]) -> Case:
    """Some axes resized to sizes, a region of them or with the ratio of their sizes kept."""
    attributes = {**attributes, "axes": list(range(2, x.ndim))}
    sizes = np.array(targets)
    if not attributes.get("antialias") and d.flag():
        attributes |= d.some(extrapolation_value=d.number(-4, 4))
        attributes["coordinate_transformation_mode"] = "tf_crop_and_resize"
        starts, ends = (np.array([d.number(low, low + 0.5) for _ in targets], np.float32) for low in (-0.2, 0.6))
        sizes = np.where(sizes == x.shape[2:], sizes + 1, sizes)  # ONNX Runtime sees nothing to do in the same size
        return d.case(x, np.concatenate([starts, ends]), None, sizes, attributes=attributes, fixed=[1, 3])
    attributes |= d.some(keep_aspect_ratio_policy=d.pick("stretch", "not_larger", "not_smaller"))
    return d.case(x, None, None, sizes, attributes=attributes, fixed=[3])


@cases("Upsample")
def of_scales(d: Draws) -> Case:
    """What is resized by scales alone, by all of them."""
    mode = d.pick("nearest", "linear")
    dtype = d.dtype(among=FLOATS if mode != "nearest" else NUMBERS)
    x = d.array(dtype, (d.size(1, 2), d.pick(1, 2, 17), d.size(1, 5), d.size(1, 5)))
    options = (1, 2, 3, 1.5, 2.5) if d.operator == "Upsample" else (1, 2, 0.5, 1.5, 0.75)
    scales = [1.0, 1.0, float(d.pick(*options)), float(d.pick(*options))]
    attributes = {"mode": mode} if mode != "nearest" or d.flag() else {}
    if d.version < 9:
        return by_float32(d.case(x, attributes=attributes | {"scales": scales}))
    return by_float32(d.case(x, np.array(scales, np.float32), attributes=attributes, fixed=[1]))


@cases("GridSample")
def grid_sample(d: Draws) -> Case:
    rank = d.pick(2, 2, 3) if d.version >= 20 else 2
    mode = d.pick("linear", "nearest", "cubic") if rank == 2 else d.pick("linear", "nearest")
    x = d.array(d.dtype(among=FLOATS), (d.size(1, 2), d.size(1, 2), *(d.size(1, 4) for _ in range(rank))))
    where = (x.shape[0], *(d.size(0, 3) for _ in range(rank)), rank)
    grid = d.array("float32", where, "unit") * np.float32(d.pick(1, 0.5, 1.5))
    grid = (grid + np.float32(0.0137)).astype(x.dtype)  # away from where the rounding of a place decides
    attributes = d.some(
        align_corners=d.integer(0, 1),
        padding_mode=d.pick("zeros", "border", "reflection"),
        mode=mode if d.version >= 20 or mode == "nearest" else f"bi{mode}",
    )
    return by_float32(d.case(x, grid, attributes=attributes))


@cases("AffineGrid")
def affine_grid(d: Draws) -> Case:
    rank = d.pick(2, 3)
    sizes = [d.size(1, 2), d.size(1, 2), *(d.size(1, 4) for _ in range(rank))]
    theta = d.array(d.dtype(), (sizes[0], rank, rank + 1))
    align = 0 if 1 in sizes[2:] else d.integer(0, 1)
    return by_float32(d.case(theta, np.array(sizes), attributes=d.some(align_corners=align)))


@cases("DeformConv")
def deform_conv(d: Draws) -> Case:
    place = windows(d, 2, auto=False)
    group, offsets = d.pick(1, 2), d.pick(1, 2)
    inputs, outputs = d.pick(2, 4), d.pick(1, 2)
    taps, dtype, batch = prod(place.kernel), d.dtype(), d.size(1, 2)
    x = d.array(dtype, (batch, inputs, *place.sizes))
    w = d.array(dtype, (group * outputs, inputs // group, *place.kernel))
    offset = d.array(dtype, (batch, offsets * taps * 2, *place.places()), "unit")
    b = d.array(dtype, (group * outputs,)) if d.flag() else None
    mask = d.array(dtype, (batch, offsets * taps, *place.places()), "probability") if d.flag() else None
    attributes = place.attributes | {"group": group, "offset_group": offsets} | d.some(kernel_shape=place.kernel)
    return by_float32(d.case(x, w, offset, b, mask, attributes=attributes))


@cases("RoiAlign")
def roi_align(d: Draws) -> Case:
    dtype = d.dtype()
    x = d.array(dtype, (d.size(1, 2), d.size(1, 2), d.size(1, 5), d.size(1, 5)))
    count = d.size(0, 3)
    starts = d.array("float32", (count, 2), "moderate")
    spans = d.array("float32", (count, 2), "positive")
    corners = np.concatenate([starts, starts + spans], 1)
    rois = (np.round(corners * 8) / 8).astype(x.dtype)  # so that all element types count the same samples
    attributes = d.some(
        mode=d.pick("avg", "max"),
        output_height=d.integer(1, 3),
        output_width=d.integer(1, 3),
        sampling_ratio=d.integer(0, 3),
        spatial_scale=d.pick(1.0, 0.5, 0.25),
    )
    if d.version >= 16:
        attributes |= d.some(coordinate_transformation_mode=d.pick("half_pixel", "output_half_pixel"))
    images = d.whole((count,), 0, x.shape[0] - 1)
    if count and d.rarely():
        images[0] = d.pick(x.shape[0], -1)
    return by_float32(d.case(x, rois, images, attributes=attributes), opset=min(d.version, 16))
