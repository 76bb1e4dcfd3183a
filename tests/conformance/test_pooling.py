"""Pooling, against ONNX Runtime's CPU provider, ONNX's reference or NumPy."""

from __future__ import annotations

from math import floor

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kit import check_refused

from opgraft.errors import TranslationError
from opgraft.testing import check_declined, check_model, check_node, node_model, reference_outputs

RNG = np.random.default_rng(11)

CASES = [
    {"kernel_shape": [2, 2], "strides": [2, 2]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [5, 4], "pads": [2, 0, 1, 3]},
    {"kernel_shape": [3, 2], "strides": [3, 2], "pads": [0, 1, 2, 0], "ceil_mode": 1},
    {"kernel_shape": [4, 5], "strides": [2, 3], "pads": [1, 1, 2, 2], "ceil_mode": 1},
    {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER", "strides": [2, 1]},
    {"kernel_shape": [2, 4], "auto_pad": "SAME_LOWER", "strides": [1, 2]},
    {"kernel_shape": [3, 2], "auto_pad": "VALID", "strides": [2, 2], "ceil_mode": 1},
]
DILATED = [
    {"kernel_shape": [2, 3], "dilations": [3, 2]},
    {"kernel_shape": [3, 2], "dilations": [2, 2], "strides": [2, 1], "pads": [1, 1, 2, 0]},
    {"kernel_shape": [2, 2], "dilations": [2, 3], "strides": [2, 3], "ceil_mode": 1},
]


def normal(*shape, dtype="float32"):
    return RNG.normal(size=shape).astype(dtype)


def check(operator, x, **attributes):
    """`check_node` for known and for symbolic sizes."""
    check_node(operator, x, **attributes)
    check_node(operator, x, dynamic=True, **attributes)


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_no_window_starts_in_the_end_padding(operator):
    attributes = {"kernel_shape": [3, 2], "strides": [3, 2], "pads": [1, 0, 2, 1], "ceil_mode": 1}
    (output,) = check_node(operator, normal(2, 3, 7, 8), dynamic=True, **attributes)
    assert output.shape == (2, 3, 3, 4)


# AveragePool


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("count_include_pad", [0, 1])
@pytest.mark.parametrize("opset", [10, 11, 22])
def test_average_pool(opset, count_include_pad, case):
    check("AveragePool", normal(2, 3, 7, 8), opset=opset, count_include_pad=count_include_pad, **case)


@pytest.mark.parametrize("case", DILATED)
@pytest.mark.parametrize("count_include_pad", [0, 1])
def test_average_pool_dilated(count_include_pad, case):
    check("AveragePool", normal(2, 3, 7, 8), opset=22, count_include_pad=count_include_pad, **case)


def test_average_pool_of_old():
    check("AveragePool", normal(1, 2, 6), opset=7, kernel_shape=[3], strides=[2], pads=[1, 1])
    check("AveragePool", normal(1, 2, 4, 5, 6), opset=7, kernel_shape=[3, 2, 2], count_include_pad=1, pads=[1] * 6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float16", 1e-3)])
def test_average_pool_dtypes(dtype, tolerance):
    x = normal(1, 2, 5, 5, dtype=dtype)
    check_node("AveragePool", x, kernel_shape=[3, 2], pads=[1, 0, 1, 1], reference="onnx", tolerance=tolerance)


@pytest.mark.parametrize("opset", [7, 10, 11, 18, 19, 22])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_average_pool_of_windows_larger_than_the_padded_image(size, rank, opset):
    """Where padding counts, a lone window counts what is beyond the padding too, before version 19."""
    x = normal(1, 2, *[size] * rank)
    for kernel, pad in ((size + 1, 0), (size + 3, 1)):
        attributes = {"kernel_shape": [kernel] * rank, "strides": [2] * rank, "pads": [pad] * 2 * rank}
        for more in ({}, {"ceil_mode": 1}) if opset >= 10 else ({},):
            for counted in (0, 1):
                check("AveragePool", x, opset=opset, count_include_pad=counted, **attributes, **more)
    check("AveragePool", x, opset=opset, count_include_pad=1, kernel_shape=[size + 1] * rank, strides=[2] * rank,
          auto_pad="VALID")  # fmt: skip


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "LpPool"])
def test_windows_that_reach_a_stride_beyond_the_image(operator):
    """As in ONNX Runtime: none where they reach one stride beyond, an error where they reach further."""
    x = normal(1, 1, 2, 2)
    for kernel, stride in ((3, 1), (4, 2), (5, 3), (4, 3)):
        check(operator, x, kernel_shape=[kernel, kernel], strides=[stride, stride])
    for kernel, stride in ((4, 1), (7, 2)):
        attributes = {"kernel_shape": [kernel, kernel], "strides": [stride, stride]}
        check_declined(operator, x, because="too large", **attributes)
        with pytest.raises(TranslationError, match="too large"):
            check_node(operator, x, dynamic=True, reference=[], **attributes)


# MaxPool


@pytest.mark.parametrize("case", CASES + DILATED)
@pytest.mark.parametrize("opset", [10, 12, 22])
def test_max_pool(opset, case):
    check("MaxPool", normal(2, 3, 7, 8), opset=opset, **case)


@pytest.mark.parametrize("case", CASES + DILATED)
@pytest.mark.parametrize("storage_order", [0, 1])
def test_max_pool_indices(storage_order, case):
    x = RNG.integers(-3, 3, size=(2, 3, 7, 8)).astype(np.float32)  # with many equal elements
    check("MaxPool", x, outputs=2, storage_order=storage_order, **case)


@pytest.mark.parametrize("opset", [1, 8])
def test_max_pool_of_old(opset):
    check("MaxPool", normal(1, 2, 7, 8), opset=opset, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])


@pytest.mark.parametrize("sizes", [(9,), (4, 5, 6)])
def test_max_pool_in_one_and_three_dimensions(sizes):
    rank = len(sizes)
    x = normal(2, 2, *sizes)
    attributes = {"kernel_shape": [3, 2, 2][:rank], "strides": [2, 1, 2][:rank], "pads": [1] * 2 * rank}
    check("MaxPool", x, **attributes)
    check("MaxPool", x, outputs=2, **attributes)
    check("MaxPool", x, outputs=2, storage_order=1, **attributes)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float64", "float16"])
def test_max_pool_dtypes(dtype):
    x = RNG.integers(0, 100, size=(1, 2, 6, 6)).astype(dtype)
    x -= np.ones((), dtype) * 50  # below 0 where that is possible; in uint8 around the other end
    reference = "cpu" if dtype != "float16" else "onnx"
    check_node("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], reference=reference)


def test_max_pool_of_the_lowest_values():
    x = np.full((1, 1, 4), -np.inf, np.float32)
    index = np.array([[[0, 0, 1, 2]]])
    check_node("MaxPool", x, kernel_shape=[3], pads=[1, 1], outputs=2, reference=[x, index])
    check_node("MaxPool", np.full((1, 1, 4), -128, np.int8), kernel_shape=[3], pads=[1, 1], outputs=2)


@st.composite
def poolings(draw):
    rank = draw(st.integers(1, 3))
    numbers = lambda low, high: draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))  # noqa: E731
    kernel = numbers(1, 6)
    begins, ends = ([min(pad, size - 1) for pad, size in zip(numbers(0, 2), kernel, strict=True)] for _ in range(2))
    attributes = {
        "kernel_shape": kernel,
        "strides": numbers(1, 3),
        "dilations": numbers(1, 2),
        "pads": begins + ends,
        "ceil_mode": draw(st.integers(0, 1)),
    }
    sizes = numbers(2, 9)
    for axis in range(rank):
        room = sizes[axis] + begins[axis] + ends[axis] - (kernel[axis] - 1) * attributes["dilations"][axis] - 1
        assume(room >= 0)
    return normal(2, 2, *sizes), attributes


@given(poolings(), st.sampled_from(["MaxPool", "AveragePool", "LpPool", "Indices"]))
def test_pooling_anyhow(case, operator):
    x, attributes = case
    if operator == "Indices":
        check_node("MaxPool", x, opset=22, dynamic=True, outputs=2, **attributes)
    else:
        check_node(operator, x, opset=22, dynamic=True, **attributes)


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "LpPool"])
def test_pooling_declines(operator):
    x = normal(1, 1, 6, 6)
    for attributes in ({"dilations": [2, 2]}, {"strides": [5, 1]}):
        attributes = {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER", "opset": 22} | attributes
        check_declined(operator, x, because="ONNX and ONNX Runtime differ", **attributes)
    check_declined(operator, normal(1, 1, 6), kernel_shape=[2, 2], because="X's rank")


# LpPool


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("opset", [9, 11, 18, 22])
def test_lp_pool(opset, p):
    x = normal(2, 3, 7, 8)
    for case in CASES[:3] + (CASES[3:5] + DILATED if opset >= 18 else []):
        check_node("LpPool", x, opset=opset, p=p, **case)


def test_average_pool_of_nothing_but_padding():
    attributes = {"kernel_shape": [2], "dilations": [2], "pads": [1, 1], "opset": 22}
    check_node("AveragePool", normal(1, 1, 1), **attributes)
    check_node("LpPool", normal(1, 1, 1), **attributes)


# over whole images


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("sizes", [(5,), (4, 5), (2, 3, 4)])
@pytest.mark.parametrize("opset", [7, 22])
def test_global_pool(opset, sizes, operator):
    x = normal(2, 3, *sizes)
    norm = np.sqrt((x**2).sum(tuple(range(2, x.ndim)), keepdims=True))
    reference = [norm] if (operator, opset) == ("GlobalLpPool", 22) else "cpu"  # which lacks that one
    check_node(operator, x, opset=opset, reference=reference)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_global_lp_pool_powers(p):
    check_node("GlobalLpPool", normal(2, 3, 4, 5), p=p)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float16", 1e-3)])
def test_global_pool_dtypes(dtype, tolerance):
    x = normal(2, 3, 4, 5, dtype=dtype)
    mean = x.astype(np.float64).mean((2, 3), keepdims=True)
    norm = np.sqrt((x.astype(np.float64) ** 2).sum((2, 3), keepdims=True))
    check_node("GlobalAveragePool", x, reference=[mean.astype(dtype)], tolerance=tolerance)
    check_node("GlobalLpPool", x, reference=[norm.astype(dtype)], tolerance=tolerance)
    check_node("GlobalMaxPool", x, reference=[x.max((2, 3), keepdims=True)])


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pool_nan_and_infinity(operator):
    x = normal(1, 3, 4, 4)
    x[0, 0, 1, 1], x[0, 1, 2, 2] = np.nan, np.inf
    fold = {"GlobalAveragePool": np.mean, "GlobalMaxPool": np.max}[operator]
    check_node(operator, x, reference=[fold(x, axis=(2, 3), keepdims=True)])


# MaxUnpool


@pytest.mark.parametrize("opset", [9, 11, 22])
def test_max_unpool(opset):
    x = normal(2, 3, 6, 9)
    attributes = {"kernel_shape": [2, 3], "strides": [2, 3]}
    pooled = node_model("MaxPool", [x], outputs=2, **attributes)
    y, index = reference_outputs(pooled, {"x0": x})
    check_node("MaxUnpool", y, index, opset=opset, **attributes)
    check_node("MaxUnpool", y, index, np.array(x.shape), opset=opset, constant=(2,), **attributes)
    check_declined("MaxUnpool", y, index, np.array([2, 3, 7, 9]), constant=(2,), because="indices", **attributes)
    check_declined("MaxUnpool", y, index, np.array(x.shape), because="indices", **attributes)


def test_max_unpool_of_overlapping_windows():
    x = RNG.permutation(2 * 25).reshape(1, 2, 5, 5).astype(np.float32)
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 0, 0]}
    y, index = reference_outputs(node_model("MaxPool", [x], outputs=2, **attributes), {"x0": x})
    check_node("MaxUnpool", y, index, **attributes)


@pytest.mark.parametrize("place", [-1, 16, 10**9, -(10**9), 2**62])
def test_max_unpool_out_of_range(place):
    x, index = np.ones((1, 1, 2, 2), np.float32), np.array([[[[place, 1], [2, 3]]]])
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    check_refused("MaxUnpool", x, index, match="indices must lie between 0 and 15", **attributes)


def test_max_unpool_of_other_shapes():
    for shape in ((1, 1, 1, 4), (4,)):
        inputs = np.ones((1, 1, 2, 2), np.float32), np.zeros(shape, np.int64)
        check_refused("MaxUnpool", *inputs, match="I has shape", kernel_shape=[2, 2], strides=[2, 2], dynamic=True)


# MaxRoiPool


def roi_pooled(x, rois, shape, scale):
    """MaxRoiPool, one bin at a time."""
    y = np.zeros((len(rois), x.shape[1], *shape), x.dtype)
    for region, (image, *corners) in enumerate(rois):
        left, top, right, bottom = (floor(abs(c) * scale + 0.5) * (1 if c >= 0 else -1) for c in corners)
        spans = [max(bottom - top + 1, 1), max(right - left + 1, 1)]
        for i, j in np.ndindex(*shape):
            edges = []
            for place, span, count, start, size in zip((i, j), spans, shape, (top, left), x.shape[2:], strict=True):
                width = np.float32(span) / np.float32(count)
                first = int(np.floor(np.float32(place) * width)) + start
                past = int(np.ceil(np.float32(place + 1) * width)) + start
                edges.append(slice(min(max(first, 0), size), min(max(past, 0), size)))
            part = x[int(image)][:, edges[0], edges[1]]
            if part.shape[1] and part.shape[2]:
                y[region, :, i, j] = part.max((1, 2))
    return y


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (5, 4)])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_max_roi_pool(scale, shape):
    x = normal(2, 3, 7, 9)
    starts = RNG.integers(-2, 9, size=(12, 2))
    rois = np.concatenate([RNG.integers(0, 2, (12, 1)), starts, starts + RNG.integers(-1, 8, (12, 2))], 1)
    rois = rois.astype(np.float32)
    expected = [roi_pooled(x, rois, shape, scale)]
    for opset in (7, 22):
        attributes = {"pooled_shape": list(shape), "spatial_scale": scale, "opset": opset}
        check_node("MaxRoiPool", x, rois, reference=expected, **attributes)
    check_node("MaxRoiPool", x, rois, pooled_shape=list(shape), spatial_scale=scale)


def test_max_roi_pool_of_no_region():
    model = node_model("MaxRoiPool", [normal(1, 2, 4, 4), np.zeros((0, 5), np.float32)], pooled_shape=[2, 2])
    inputs = {"x0": normal(1, 2, 4, 4), "x1": np.zeros((0, 5), np.float32)}
    check_model(model, inputs, reference=[np.zeros((0, 2, 2, 2), np.float32)])


@pytest.mark.parametrize("image", [-1, 2, 10**9, 1e20, np.inf, -np.inf, np.nan])
def test_max_roi_pool_of_images_that_are_not_there(image):
    x, rois = np.ones((2, 3, 4, 4), np.float32), np.array([[image, 0, 0, 3, 3]], np.float32)
    check_refused("MaxRoiPool", x, rois, pooled_shape=[2, 2], match="indices must lie between 0 and 1")


@pytest.mark.parametrize("image", [0.7, -0.7, 1.9])
def test_max_roi_pool_of_images_between_whole_numbers(image):
    rois = np.array([[image, 0, 0, 3, 3]], np.float32)
    check_node("MaxRoiPool", normal(2, 3, 4, 4), rois, pooled_shape=[2, 2])


def test_max_roi_pool_of_regions_that_are_none():
    rois = np.zeros((1, 4), np.float32)
    check_refused("MaxRoiPool", normal(1, 1, 2, 2), rois, pooled_shape=[1, 1], dynamic=True, match="rois has shape")


def test_max_roi_pool_without_pixels_or_channels():
    rois = np.array([[0, 0, 0, 3, 3]], np.float32)
    for shape in ((1, 2, 0, 5), (1, 2, 5, 0), (1, 0, 5, 5)):
        check_node("MaxRoiPool", normal(*shape), rois, pooled_shape=[2, 2], dynamic=True)


@pytest.mark.parametrize(
    "attributes",
    [{"pooled_shape": [0, 2]}, {"pooled_shape": [2]}, *({"spatial_scale": scale} for scale in (0.0, -1.0, np.nan))],
)
def test_max_roi_pool_of_regions_without_size(attributes):
    rois = np.array([[0, 0, 0, 3, 3]], np.float32)
    attributes = {"pooled_shape": [2, 2], **attributes}
    check_refused(
        "MaxRoiPool", normal(1, 2, 4, 4), rois, match="pooled_shape|spatial_scale", dynamic=True, **attributes
    )


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_global_pools_need_something_to_pool_over(operator: str, rank: int) -> None:
    check_declined(operator, np.ones((2,) * rank, np.float32), because="to pool over")


POOLS = ["AveragePool", "MaxPool", "LpPool"]


@pytest.mark.parametrize("operator", POOLS)
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [0, 2]},
        {"kernel_shape": [-1, 2]},
        {"kernel_shape": [2]},
        {"strides": [0, 1]},
        {"strides": [-1, 1]},
        {"strides": [1]},
        {"dilations": [0, 1]},
        {"dilations": [-1, 1]},
        {"pads": [0, 0, -1, 0]},
        {"pads": [-1] * 4},
        {"pads": [2] * 4},
        {"pads": [0, 1]},
        {"auto_pad": "SAME"},
    ],
)
def test_windows_that_do_not_fit(operator, attributes):
    refusal = f"{next(iter(attributes))}.* (below|for each of|not one of|of X's rank|nothing but padding)"
    attributes = {"kernel_shape": [2, 2], **attributes}
    check_refused(operator, normal(1, 2, 5, 5), opset=22, index=0, match=refusal, **attributes)


@pytest.mark.parametrize("shape", [(1, 2, 0, 5), (3, 2, 5, 0)])
def test_nothing_to_pool_over(shape):
    for operator in POOLS:
        attributes = {"kernel_shape": [2, 2], "pads": [1] * 4}
        check_refused(operator, normal(*shape), index=0, match="nothing to pool over", dynamic=True, **attributes)


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_images_without_pixels(operator):
    for shape in ((1, 2, 0, 5), (2, 3, 0)):
        check_refused(operator, normal(*shape), index=0, match="nothing to pool over", dynamic=True)


def test_pooling_attributes_that_mean_nothing():
    x = normal(1, 2, 4, 4)
    for p in (0, -1):
        check_declined("LpPool", x, kernel_shape=[2, 2], p=p, opset=18, because=f"p is {p}")
        check_declined("GlobalLpPool", x, p=p, because=f"p is {p}")
    check_declined("MaxPool", x, kernel_shape=[2, 2], storage_order=2, outputs=2, because="storage_order 2")
