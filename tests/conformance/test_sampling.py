"""Reading images between their pixels, against ONNX Runtime's CPU provider, ONNX's reference or NumPy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import check_refused

from opgraft.testing import check_declined, check_node, node_model, run_model
from opgraft_ops import sampling as handlers

RNG = np.random.default_rng(17)


def normal(*shape, dtype="float32"):
    return RNG.normal(size=shape).astype(dtype)


# GridSample


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_grid_sample(align_corners, padding_mode, mode):
    attributes = {"padding_mode": padding_mode, "align_corners": align_corners}
    for sizes in ((4, 5), (1, 6), (3, 1)):
        x, grid = normal(2, 3, *sizes), normal(2, 4, 3, 2) * 1.5
        of_old = mode if mode == "nearest" else f"bi{mode}"
        check_node("GridSample", x, grid.astype(np.float32), mode=of_old, opset=16, **attributes)
        for opset in (20, 22):
            check_node("GridSample", x, grid.astype(np.float32), mode=mode, opset=opset, dynamic=True, **attributes)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_grid_sample_of_volumes(align_corners, padding_mode, mode):
    x, grid = normal(2, 3, 4, 3, 5), (normal(2, 3, 2, 4, 3) * 1.5).astype(np.float32)
    attributes = {"padding_mode": padding_mode, "align_corners": align_corners, "mode": mode}
    check_node("GridSample", x, grid, opset=20, **attributes)


def test_grid_sample_in_other_dimensions():
    x, grid = normal(2, 3, 6), normal(2, 4, 1)
    for mode in ("nearest", "linear", "cubic"):
        check_node("GridSample", x, grid, opset=20, mode=mode, reference="onnx")
    x, grid = normal(1, 2, 3, 4, 3), (normal(1, 2, 2, 2, 3) / 3).astype(np.float32)
    check_node("GridSample", x, grid, opset=20, mode="cubic", reference="onnx")


def test_grid_sample_half_way_goes_to_the_even_pixel():
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 1, 8)
    grid = np.zeros((1, 1, 9, 2), np.float32)
    grid[..., 0] = np.arange(9) / 4 - 1
    check_node("GridSample", x, grid, opset=20, mode="nearest")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16", "float64"])
def test_grid_sample_dtypes(dtype):
    x = RNG.integers(0, 90, size=(1, 2, 4, 5)).astype(dtype)
    check_node("GridSample", x, normal(1, 3, 3, 2), opset=20, mode="nearest", reference="onnx")


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 5e-3), ("float64", 1e-12)])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_grid_sample_interpolation_dtypes(mode, dtype, tolerance):
    x, grid = normal(1, 2, 4, 5, dtype=dtype), (normal(1, 3, 3, 2) / 2).astype(dtype)
    reference = "cpu" if dtype == "float64" else "onnx"
    check_node("GridSample", x, grid, opset=20, mode=mode, reference=reference, tolerance=tolerance)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_grid_sample_anywhere_reads_inside(padding_mode, mode):
    x, grid = normal(1, 1, 4, 4), normal(1, 2, 4, 2) / 2
    grid = grid.astype(np.float32)
    model = node_model("GridSample", [x, grid], opset=20, mode=mode, padding_mode=padding_mode)
    (expected,) = run_model(model, {"x0": x, "x1": grid})
    grid[0, 0] = [[np.nan, 0], [np.inf, 0], [0, -np.inf], [1e30, -1e30]]
    (output,) = run_model(model, {"x0": x, "x1": grid})
    np.testing.assert_array_equal(output[0, 0, 1], expected[0, 0, 1])


def test_grid_sample_declines_and_empties():
    x = np.ones((1, 1, 4, 4), np.int32)
    check_declined("GridSample", x, normal(1, 2, 2, 2), opset=20, because="how they are rounded")
    check_node("GridSample", normal(1, 2, 4, 4), normal(1, 0, 3, 2), opset=20)


@given(
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    mode=st.sampled_from(["nearest", "linear", "cubic"]),
    padding_mode=st.sampled_from(["zeros", "border", "reflection"]),
    align_corners=st.integers(0, 1),
    spread=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_grid_sample_anyhow(sizes, mode, padding_mode, align_corners, spread):
    x, grid = normal(1, 2, *sizes), (normal(1, 5, 4, 2) * spread).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    check_node("GridSample", x, grid, opset=20, tolerance=5e-5, **attributes)


# AffineGrid


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("sizes", [(4, 5), (3, 2, 4)])
def test_affine_grid(sizes, align_corners):
    rank = len(sizes)
    theta, size = normal(2, rank, rank + 1), np.array([2, 3, *sizes])
    for constant in ((), (1,)):
        check_node("AffineGrid", theta, size, align_corners=align_corners, constant=constant, opset=20)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 3e-3), ("float64", 1e-12)])
def test_affine_grid_dtypes(dtype, tolerance):
    theta = normal(2, 2, 3, dtype=dtype)
    y, x = np.meshgrid(np.linspace(-1, 1, 3), np.linspace(-1, 1, 4), indexing="ij")
    base = np.stack([x, y, np.ones_like(x)], -1)
    expected = np.einsum("nij,hwj->nhwi", theta.astype(np.float64), base).astype(dtype)
    arguments = theta, np.array([2, 1, 3, 4])
    check_node("AffineGrid", *arguments, align_corners=1, opset=20, reference=[expected], tolerance=tolerance)


def test_affine_grid_of_lone_pixels():
    theta, size = normal(1, 2, 3), np.array([1, 1, 1, 3])
    check_node("AffineGrid", theta, size, opset=20)
    check_declined("AffineGrid", theta, size, opset=20, align_corners=1, constant=(1,), because="a single pixel")


# RoiAlign


def regions(count):
    starts = RNG.uniform(-3, 9, size=(count, 2))
    return np.concatenate([starts, starts + RNG.uniform(-1, 12, (count, 2))], 1).astype(np.float32)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("sampling_ratio", [0, 1, 2, 3])
def test_roi_align(sampling_ratio, mode):
    x, rois, images = normal(2, 3, 7, 9), regions(8), RNG.integers(0, 2, 8)
    attributes = {"mode": mode, "sampling_ratio": sampling_ratio, "output_height": 3, "output_width": 2}
    for scale in (1.0, 0.4):
        check_node("RoiAlign", x, rois, images, opset=10, spatial_scale=scale, **attributes)
        check_node("RoiAlign", x, rois, images, opset=16, spatial_scale=scale, dynamic=True, **attributes)
        for shift in ("half_pixel", "output_half_pixel"):
            more = {"coordinate_transformation_mode": shift, "spatial_scale": scale}
            check_node("RoiAlign", x, rois, images, opset=16, **attributes, **more)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-6), ("float16", 5e-3)])
@pytest.mark.parametrize("sampling_ratio", [0, 2])
def test_roi_align_dtypes(sampling_ratio, dtype, tolerance):
    x, rois = normal(1, 2, 6, 6, dtype=dtype), np.array([[0.5, 1, 4.5, 5], [1, 0, 3, 2]], dtype)
    attributes = {"sampling_ratio": sampling_ratio, "output_height": 2, "output_width": 2, "opset": 16}
    check_node("RoiAlign", x, rois, np.zeros(2, np.int64), reference="onnx", tolerance=tolerance, **attributes)


@pytest.mark.parametrize("sampling_ratio", [0, 2])
def test_roi_align_of_no_region(sampling_ratio):
    arguments = normal(1, 2, 4, 4), np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
    expected = [np.zeros((0, 2, 1, 1), np.float32)]
    check_node("RoiAlign", *arguments, opset=16, sampling_ratio=sampling_ratio, reference=expected)


@pytest.mark.parametrize("sampling_ratio", [0, 2])
@pytest.mark.parametrize("image", [-1, 2, 10**7, -(10**9), 2**62])
def test_roi_align_of_images_that_are_not_there(image, sampling_ratio):
    x, rois, images = np.ones((2, 3, 6, 6), np.float32), np.array([[0, 0, 3, 3]] * 2, np.float32), np.array([0, image])
    refusal = "batch_indices must lie between 0 and 1"
    check_refused("RoiAlign", x, rois, images, index=2, sampling_ratio=sampling_ratio, match=refusal)


@pytest.mark.parametrize("sampling_ratio", [0, 2])
def test_roi_align_of_regions_that_are_none(sampling_ratio):
    x, attributes = normal(1, 2, 5, 5), {"sampling_ratio": sampling_ratio, "dynamic": True}
    for rois, images in (((1, 5), 1), ((1, 3), 1), ((1, 4), 2), ((2, 4), 1), ((1, 4), 0)):
        inputs = x, np.zeros(rois, np.float32), np.zeros(images, np.int64)
        check_refused("RoiAlign", *inputs, match="(rois|batch_indices) has shape", **attributes)
    for value in (np.nan, np.inf, -np.inf):
        inputs = x, np.array([[0, 0, value, 3]], np.float32), np.array([0])
        check_refused("RoiAlign", *inputs, match="rois must be finite", **attributes)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("opset", [10, 16])
def test_roi_align_of_large_regions(opset, mode):
    """Samples outside the image count, and cost nothing."""
    x = normal(2, 3, 6, 5)
    rois = [[0, 0, 100, 90], [-50, 1, 60, 3], [-9, -9, 9, 9], [0, 0, 5, 400], [2, 2, 3, 3], [-70, -70, 5, 5]]
    images = np.array([0, 1, 0, 1, 0, 1])
    attributes = {"output_height": 3, "output_width": 2, "mode": mode, "opset": opset}
    check_node("RoiAlign", x, np.array(rois, np.float32), images, **attributes)
    for size in (3e4, 1e6, 1e9):  # ONNX Runtime makes a table of all the samples
        large = np.array([[0, 0, size, size], [-size, -size, size, size]], np.float32)
        model = node_model("RoiAlign", [x, large, images[:2]], **attributes)
        (y,) = run_model(model, {"x0": x, "x1": large, "x2": images[:2]})
        if mode == "avg":
            assert 0 < np.abs(y).max() < 1e-6
        else:
            assert (y >= 0).all() and 0 < y.max() <= x.max()


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align_a_part_at_a_time(mode, monkeypatch):
    corners = np.sort(RNG.uniform(-2, 11, size=(7, 2, 2)), axis=1).reshape(7, 4)
    x, rois, images = normal(2, 3, 9, 9), corners.astype(np.float32), RNG.integers(0, 2, 7)
    attributes = {"output_height": 2, "output_width": 3, "mode": mode}
    for most, ratio in product((1, 100, 1000), (0, 3)):
        monkeypatch.setattr(handlers, "MOST_SAMPLES", most)
        check_node("RoiAlign", x, rois, images, sampling_ratio=ratio, **attributes)


@pytest.mark.parametrize(
    "attributes",
    [
        {"sampling_ratio": -1},
        {"output_height": 0},
        {"output_width": -1},
        {"mode": "min"},
        {"coordinate_transformation_mode": "half"},
        {"spatial_scale": np.inf},
    ],
)
def test_roi_align_attributes_that_mean_nothing(attributes):
    inputs = normal(1, 1, 4, 4), np.zeros((1, 4), np.float32), np.zeros(1, np.int64)
    check_declined("RoiAlign", *inputs, because=next(iter(attributes)), **attributes)


def test_points_of_another_number_of_dimensions():
    for grid in ((1, 2, 2, 1), (1, 2, 2, 3), (2, 2, 2, 2), (1, 2, 2)):
        check_refused("GridSample", normal(1, 1, 3, 3), normal(*grid), dynamic=True, match="grid has shape")
    check_refused("GridSample", normal(1, 1, 0, 3), normal(1, 2, 2, 2), dynamic=True, match="has no pixels")
    for theta, size in (((1, 2, 2), (1, 1, 2, 2)), ((2, 2, 3), (1, 1, 2, 2)), ((1, 2, 3), (1, 1, 2, 2, 2))):
        inputs = normal(*theta), np.array(size)
        check_refused("AffineGrid", *inputs, opset=20, dynamic=True, index=0, match="theta has shape")
    for size in ((1, 1, 0, 3), (1, 1, -3, 3)):
        inputs = normal(1, 2, 3), np.array(size)
        check_refused("AffineGrid", *inputs, opset=20, dynamic=True, match="has no pixels")


def test_roi_align_of_regions_without_extent_or_place():
    x = normal(1, 2, 6, 6)
    rois = np.array([[2, 2, 2, 2], [5, 4, 1, 2], [90, 90, 95, 95], [-20, 1, -15, 3]], np.float32)
    for ratio, opset in product((0, 2), (10, 16)):
        attributes = {"sampling_ratio": ratio, "output_height": 2, "output_width": 2, "opset": opset}
        check_node("RoiAlign", x, rois, np.zeros(4, np.int64), **attributes)


@given(
    mode=st.sampled_from(["avg", "max"]),
    sampling_ratio=st.integers(0, 3),
    output=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    shift=st.sampled_from(["half_pixel", "output_half_pixel"]),
)
def test_roi_align_anyhow(mode, sampling_ratio, output, sizes, shift):
    attributes = {"mode": mode, "sampling_ratio": sampling_ratio, "coordinate_transformation_mode": shift}
    attributes |= {"output_height": output[0], "output_width": output[1]}
    arguments = normal(2, 2, *sizes), regions(4), RNG.integers(0, 2, 4)
    check_node("RoiAlign", *arguments, opset=16, tolerance=3e-5, **attributes)


# DeformConv


@pytest.mark.parametrize("opset", [19, 22])
@pytest.mark.parametrize(("group", "offset_group"), [(1, 1), (2, 1), (1, 2), (2, 2), (4, 4)])
def test_deform_conv(group, offset_group, opset):
    for attributes in (
        {},
        {"strides": [2, 1], "pads": [1, 0, 2, 1]},
        {"dilations": [2, 1], "pads": [1, 1, 1, 1]},
    ):
        strides, dilations = (attributes.get(name, [1, 1]) for name in ("strides", "dilations"))
        pads, kernel, sizes = attributes.get("pads", [0] * 4), (2, 3), (6, 5)
        room = [sizes[a] + pads[a] + pads[a + 2] - (kernel[a] - 1) * dilations[a] - 1 for a in (0, 1)]
        places = [each // stride + 1 for each, stride in zip(room, strides, strict=True)]
        x, w, b = normal(2, 4, *sizes), normal(8, 4 // group, *kernel), normal(8)
        offset = (normal(2, offset_group * 12, *places) * 1.5).astype(np.float32)
        mask = RNG.random((2, offset_group * 6, *places)).astype(np.float32)
        groups = {"group": group, "offset_group": offset_group, "opset": opset}
        check_node("DeformConv", x, w, offset, **groups, **attributes)
        check_node("DeformConv", x, w, offset, None, mask, constant=(1,), **groups, **attributes)
        check_node("DeformConv", x, w, offset, b, mask, dynamic=True, **groups, **attributes)


def test_deform_conv_without_offsets_is_a_convolution():
    for sizes in ((6,), (4, 5), (3, 4, 3)):
        rank = len(sizes)
        x, w = normal(1, 4, *sizes), normal(3, 4, *[2] * rank)
        zeros = np.zeros((1, rank * 2**rank, *(size - 1 for size in sizes)), np.float32)
        (expected,) = run_model(node_model("Conv", [x, w]), {"x0": x, "x1": w})
        check_node("DeformConv", x, w, zeros, opset=22, reference=[expected])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float16", 3e-3)])
def test_deform_conv_dtypes(dtype, tolerance):
    x, w, offset = normal(1, 2, 4, 4, dtype=dtype), normal(2, 2, 2, 2, dtype=dtype), normal(1, 8, 3, 3, dtype=dtype)
    reference = "cpu" if dtype == "float64" else "onnx"
    check_node("DeformConv", x, w, offset, opset=22, reference=reference, tolerance=tolerance)


ENDLESS = [np.nan, np.inf, -np.inf, 1e30, -1e30]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_grid_sample_at_places_that_are_none(align_corners, padding_mode, mode):
    x = normal(1, 2, 3, 4)
    grid = np.array([[[[each, 0.3] for each in ENDLESS], [[0.3, each] for each in ENDLESS]]], np.float32)
    check_node("GridSample", x, grid, mode=mode, padding_mode=padding_mode, align_corners=align_corners)


@pytest.mark.parametrize("offset", ENDLESS)
def test_deform_conv_of_places_that_are_none(offset):
    x, w, offsets = normal(1, 2, 5, 5), normal(3, 2, 3, 3), np.zeros((1, 18, 3, 3), np.float32)
    offsets[0, 3, 1, 1] = offsets[0, 8, 0, 0] = offset
    check_node("DeformConv", x, w, offsets, opset=22)


@pytest.mark.parametrize(
    ("offset", "mask", "attributes"),
    [
        ((1, 17, 3, 3), None, {}),
        ((1, 18, 2, 3), None, {}),
        ((2, 18, 3, 3), None, {}),
        ((1, 36, 3, 3), None, {}),
        ((1, 18, 3, 3), (1, 8, 3, 3), {}),
        ((1, 18, 3, 3), (1, 1, 3, 3), {}),
        ((1, 18, 3, 3), (1, 9, 1, 1), {}),
        ((1, 54, 3, 3), None, {"offset_group": 3}),
        ((1, 18, 3, 3), None, {"offset_group": 0}),
        ((1, 18, 3, 3), None, {"group": 2}),
        ((1, 18, 3, 3), None, {"kernel_shape": [2, 2]}),
        ((1, 18, 1, 1), None, {"pads": [-1] * 4}),
        ((1, 18, 3, 3), None, {"strides": [0, 1]}),
    ],
)
def test_deform_conv_of_what_does_not_fit(offset, mask, attributes):
    inputs = [normal(1, 2, 5, 5), normal(3, 2, 3, 3), normal(*offset), None, None if mask is None else normal(*mask)]
    inputs = inputs[:3] if mask is None else inputs
    refusal = "has shape|equal groups|group|kernel_shape|pads|strides"
    check_refused("DeformConv", *inputs, opset=22, index=2, match=refusal, dynamic=True, **attributes)
