"""Resize and Upsample, against ONNX Runtime's CPU provider, or ONNX's reference where that is asked for."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kit import check_refused

from opgraft.testing import check_declined, check_node, node_model, reference_outputs
from opgraft_ops.resize import LONGEST_PERIOD, Method, table

RNG = np.random.default_rng(13)

COORDINATES = ["half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners", "half_pixel_symmetric"]
NEAREST = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
SIZES = [(10, 14), (3, 4), (7, 1), (5, 21), (1, 1)]


def normal(*shape, dtype="float32"):
    return RNG.normal(size=shape).astype(dtype)


def to_sizes(x, *sizes, opset=19, roi=None, **attributes):
    target = np.array([*x.shape[: x.ndim - len(sizes)], *sizes])
    check_node("Resize", x, roi, None, target, constant=(1, 3), opset=opset, **attributes)


def by_scales(x, *scales, opset=19, **attributes):
    factors = np.array([1.0] * (x.ndim - len(scales)) + list(scales), np.float32)
    check_node("Resize", x, None, factors, constant=(2,), opset=opset, **attributes)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("channels", [3, 20])
def test_nearest(channels, coordinates):
    x = normal(2, channels, 5, 7)
    for nearest_mode, sizes in product(NEAREST, SIZES):
        to_sizes(x, *sizes, coordinate_transformation_mode=coordinates, nearest_mode=nearest_mode)
    to_sizes(normal(2, channels, 4, 3, 5), 6, 7, 4, coordinate_transformation_mode=coordinates)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("channels", [3, 20])
def test_interpolation(channels, coordinates, mode):
    x = normal(2, channels, 5, 7)
    for sizes in SIZES:
        to_sizes(x, *sizes, coordinate_transformation_mode=coordinates, mode=mode)
        to_sizes(x, *sizes, coordinate_transformation_mode=coordinates, mode=mode, antialias=1)
        exclusive = {"antialias": 1, "exclude_outside": 1}
        to_sizes(x, *sizes, coordinate_transformation_mode=coordinates, mode=mode, **exclusive)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_scales(mode):
    x = normal(1, 3, 6, 5)
    for scales in ((2, 2), (0.5, 3), (1.5, 0.6), (1, 2), (1.3, 4), (0.3, 0.3)):
        for coordinates in ("half_pixel", "asymmetric", "half_pixel_symmetric"):
            by_scales(x, *scales, mode=mode, coordinate_transformation_mode=coordinates)
    by_scales(x, 3, 1.5, mode=mode, coordinate_transformation_mode="pytorch_half_pixel", opset=13)


@pytest.mark.parametrize("coefficient", [-0.5, -0.75])
@pytest.mark.parametrize("exclude_outside", [0, 1])
def test_cubic_coefficient(exclude_outside, coefficient):
    attributes = {"cubic_coeff_a": coefficient, "exclude_outside": exclude_outside}
    to_sizes(normal(1, 2, 6, 5), 9, 13, mode="cubic", **attributes)
    to_sizes(normal(1, 2, 6, 5), 4, 3, mode="cubic", antialias=1, **attributes)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crop_and_resize(mode):
    x = normal(1, 3, 6, 5)
    attributes = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": mode, "extrapolation_value": 3.5}
    for top, left, bottom, right in ((0.1, 0.2, 0.8, 0.9), (-0.3, 0.5, 0.6, 1.4), (0.4, 0.3, 0.4, 0.9)):
        roi = np.array([0, 0, top, left, 1, 1, bottom, right], np.float32)
        for sizes in ((4, 7), (1, 3), (9, 1)):
            to_sizes(x, *sizes, roi=roi, **attributes)
    roi = np.array([0.9, 0.2, 0.1, 0.6], np.float32)  # backwards along one axis
    arguments = roi, None, np.array([5, 8])
    check_node("Resize", x, *arguments, constant=(1, 3), axes=[2, 3], opset=18, **attributes)


def test_crop_at_the_same_size():
    x = normal(1, 2, 6, 5)
    roi = np.array([0, 0, 0.2, 0.1, 1, 1, 0.7, 0.9], np.float32)
    attributes = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}
    to_sizes(x, 6, 5, roi=roi, reference="onnx", **attributes)


def test_tf_half_pixel_for_nn():
    nothing = np.zeros(0, np.float32)
    for scales in ((2, 3), (0.5, 0.6)):
        arguments = normal(1, 3, 6, 5), nothing, np.array([1, 1, *scales], np.float32)
        attributes = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "constant": (1, 2)}
        check_node("Resize", *arguments, opset=11, **attributes)


def test_places_half_way_but_for_rounding():
    x = np.arange(20, dtype=np.float32).reshape(1, 1, 1, 20)
    for size, target, mode in product((7, 10, 13, 14, 18, 20), (1, 2, 4, 6, 12, 19, 21), NEAREST):
        for coordinates in ("asymmetric", "half_pixel"):
            attributes = {"nearest_mode": mode, "coordinate_transformation_mode": coordinates}
            to_sizes(x[..., :size], 1, target, **attributes)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("rank", [2, 3, 5])
def test_ranks(rank, mode):
    sizes, targets = [4, 3, 5, 4, 3][-rank:], [6, 5, 3, 8, 7][-rank:]
    if rank == 5:
        targets[:2] = sizes[:2]
    x = normal(*sizes)
    to_sizes(x, *targets, mode=mode)


def test_ranks_that_onnx_runtime_lacks():
    to_sizes(normal(7), 10, mode="linear", reference="onnx")
    to_sizes(normal(3, 4, 5, 6), 6, 5, 4, 9, mode="linear", reference="onnx")
    to_sizes(normal(2, 3, 4), 4, 7, 6, mode="cubic", reference="onnx")
    to_sizes(normal(1, 2, 4, 3, 5), 5, 6, 4, mode="cubic", reference="onnx")


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_keep_aspect_ratio_policy(mode, policy):
    x = normal(1, 3, 6, 5)
    for sizes in ((9, 9), (3, 8), (13, 4)):
        attributes = {"axes": [2, 3], "keep_aspect_ratio_policy": policy, "mode": mode}
        check_node("Resize", x, None, None, np.array(sizes), constant=(3,), opset=19, **attributes)


def test_axes():
    x = normal(2, 3, 6, 5)
    for axes in ([2, 3], [3, 2], [3]):
        for mode in ("nearest", "linear"):
            scales = np.array([1.5, 0.5][: len(axes)], np.float32)
            check_node("Resize", x, None, scales, constant=(2,), axes=axes, mode=mode, opset=18)
    expected = np.repeat(np.repeat(x, 2, 2), 3, 3)
    arguments = {"axes": [-1, -2], "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    check_node("Resize", x, None, np.array([3, 2], np.float32), constant=(2,), reference=[expected], **arguments)


def test_sizes_known_only_at_run_time():
    x, scales, sizes = normal(1, 3, 4, 5), np.array([1, 1, 2, 1.6], np.float32), np.array([1, 3, 9, 2])
    expected = reference_outputs(node_model("Resize", [x, None, scales], constant=(2,), mode="linear"), {"x0": x})
    check_node("Resize", x, None, scales, mode="linear", reference=expected)
    expected = reference_outputs(node_model("Resize", [x, None, None, sizes], constant=(3,)), {"x0": x})
    check_node("Resize", x, None, None, sizes, reference=expected)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "uint16", "int32", "int64", "uint64", "float16", "float64"])
def test_nearest_dtypes(dtype):
    x = RNG.integers(0, 100, size=(1, 3, 4, 5)).astype(dtype)
    rows, columns = np.arange(8) // 2, np.floor(np.arange(7) / 7 * 5 + 1e-9).astype(int)
    expected = x[:, :, rows][..., columns]
    attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    to_sizes(x, 8, 7, reference=[expected], **attributes)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("float64", 1e-6)])
def test_interpolation_dtypes(dtype, tolerance, mode):
    x = normal(1, 3, 4, 5, dtype=dtype)
    to_sizes(x, 7, 9, mode=mode, reference="onnx", tolerance=tolerance)
    to_sizes(x, 3, 2, mode=mode, antialias=1, reference="onnx", tolerance=tolerance)


def test_nothing_to_do_and_nothing_to_resize():
    x = normal(1, 3, 4, 5)
    to_sizes(x, 4, 5, mode="linear", reference=[x])
    by_scales(normal(0, 3, 4, 5), 2, 2, reference=[np.zeros((0, 3, 8, 10), np.float32)])


def test_infinity_stays_where_it_reaches():
    x = normal(1, 1, 6, 6)
    x[0, 0, 2, 3] = np.inf
    for sizes in ((12, 12), (9, 8), (3, 3)):
        to_sizes(x, *sizes, mode="linear")


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("opset", [7, 9, 10])
def test_of_old(opset, mode):
    x = normal(2, 3, 5, 4)
    for scales in ((2, 2), (1.5, 3), (1, 2.6)) + (((0.5, 0.6), (0.3, 1.7)) if opset == 10 else ()):
        factors = np.array([1, 1, *scales], np.float32)
        operator = "Resize" if opset == 10 else "Upsample"
        if opset == 7:
            check_node(operator, x, opset=opset, mode=mode, scales=factors.tolist())
        else:
            check_node(operator, x, factors, opset=opset, mode=mode, constant=(1,))


@pytest.mark.parametrize("opset", [11, 13])
def test_versions_11_and_13(opset):
    x, nothing = normal(1, 3, 4, 5), np.zeros(0, np.float32)
    for mode in ("nearest", "linear", "cubic"):
        check_node("Resize", x, nothing, np.array([1, 1, 2, 3], np.float32), opset=opset, mode=mode, constant=(1, 2))
        sizes = np.array([1, 3, 7, 4])
        check_node("Resize", x, nothing, nothing, sizes, opset=opset, mode=mode, constant=(1, 2, 3))


@pytest.mark.parametrize(
    "attribute", ["coordinate_transformation_mode", "nearest_mode", "keep_aspect_ratio_policy", "mode"]
)
@pytest.mark.parametrize("word", ["", "simple", "Floor"])
def test_words_that_onnx_does_not_know(attribute, word):
    scales = np.array([1, 1, 2, 2], np.float32)
    because = f"{attribute} {word!r} is not one of"
    check_declined("Resize", normal(1, 1, 4, 4), None, scales, constant=(2,), because=because, **{attribute: word})


def test_declines():
    x, scales = np.ones((1, 3, 4, 4), np.uint8), np.array([1, 1, 2, 2], np.float32)
    check_declined("Resize", x, None, scales, mode="linear", constant=(2,), because="how they are rounded")
    aligned = {"coordinate_transformation_mode": "align_corners", "constant": (2,), "because": "a fraction of a pixel"}
    check_declined("Resize", normal(1, 1, 4, 4), None, np.array([1, 1, 0.6, 2], np.float32), **aligned)


def test_a_simple_ratio_needs_few_pieces():
    for size, target in ((80, 160), (160, 80), (60, 90), (79, 158), (20, 80)):
        axis = table(Method("linear", "half_pixel"), 2, size, target, np.float32(target / size))
        assert [each.length for each in axis.segments] == [target]
        assert axis.segments[0].period <= 4
    for size, target in ((80, 123), (123, 80), (1000, 333)):
        axis = table(Method("linear", "half_pixel"), 2, size, target, np.float32(target / size))
        assert sum(min(each.period, each.length) for each in axis.segments) < target / 3
        assert all(each.period <= LONGEST_PERIOD for each in axis.segments)


@given(
    mode=st.sampled_from(["nearest", "linear", "cubic"]),
    coordinates=st.sampled_from(COORDINATES),
    nearest_mode=st.sampled_from(NEAREST),
    antialias=st.booleans(),
    channels=st.sampled_from([2, 17]),
    sizes=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    targets=st.tuples(st.integers(1, 70), st.integers(1, 70)),
)
def test_anyhow(mode, coordinates, nearest_mode, antialias, channels, sizes, targets):
    assume(sizes != targets)
    attributes = {"antialias": 1} if antialias and mode != "nearest" else {}
    attributes |= {"nearest_mode": nearest_mode} if mode == "nearest" else {}
    x = normal(1, channels, *sizes)
    to_sizes(x, *targets, mode=mode, coordinate_transformation_mode=coordinates, tolerance=2e-5, **attributes)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_sizes_and_scales_that_do_not_fit(mode):
    x = normal(1, 1, 4, 4)
    for sizes in ((1, 1, 0, 4), (1, 1, -1, 4), (0, 1, 4, 4), (1, 1, 4, 4, 4)):
        for policy in ("stretch", "not_larger"):
            attributes = {"mode": mode, "keep_aspect_ratio_policy": policy, "opset": 19, "dynamic": True}
            check_refused("Resize", x, None, None, np.array(sizes), index=3, match="sizes", **attributes)
    for scales in ((1, 1, 0, 1), (1, 1, -1, 1), (1, 1, np.nan, 1), (1, 1, 2)):
        given = np.array(scales, np.float32)
        check_refused("Resize", x, None, given, index=2, match="scales", mode=mode, opset=19, dynamic=True)
    twice = np.array([2, 2], np.float32)
    for axes, refusal in (([2, -2], "name one twice"), ([2, 4], "no axis 4 among 4"), ([-5, 2], "no axis -5 among 4")):
        check_refused("Resize", x, None, twice, index=2, match=refusal, mode=mode, axes=axes, opset=19)


def test_sizes_from_nothing():
    x, sizes = np.zeros((1, 1, 0, 4), np.float32), np.array([1, 1, 2, 2])
    check_refused("Resize", x, None, None, sizes, index=3, match="cannot be made from axes of", opset=19, dynamic=True)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_an_axis_that_keeping_the_aspect_ratio_leaves_nothing_of(mode):
    check_node(
        "Resize",
        normal(1, 1, 1, 3),
        None,
        None,
        np.array([1, 1]),
        opset=19,
        constant=(3,),
        axes=[2, 3],
        keep_aspect_ratio_policy="not_larger",
        mode=mode,
    )


def test_regions_of_other_axes():
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "opset": 19, "dynamic": True}
    for roi in ((0, 0, 1, 1), ()):
        inputs = normal(1, 1, 4, 4), np.array(roi, np.float32), None, np.array([1, 1, 3, 3])
        check_refused("Resize", *inputs, match="does not hold a start and an end of each of 4", **crop)


@pytest.mark.parametrize("scales", [(1, 1, 0.5, 2), (1, 1, 1e-9, 1)])
def test_upsample_only_enlarges(scales):
    x = normal(1, 1, 4, 4)
    check_refused("Upsample", x, np.array(scales, np.float32), opset=9, match="do not enlarge")
    check_refused("Upsample", x, scales=list(scales), opset=7, index=0, match="do not enlarge")
