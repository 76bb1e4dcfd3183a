"""NonMaxSuppression, against ONNX Runtime's CPU provider."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import check_refused

from opgraft.errors import TranslationError
from opgraft.testing import check_node


def limits(most=None, overlap=None, least=None):
    """The optional inputs, each a vector of one."""
    return [
        None if most is None else np.array([most], np.int64),
        None if overlap is None else np.array([overlap], np.float32),
        None if least is None else np.array([least], np.float32),
    ]


def boxes_and_scores(seed, images=1, classes=1, count=20, coarse=False):
    """Random boxes; coarse ones touch and coincide, and have equal scores."""
    random = np.random.default_rng(seed)
    if coarse:
        boxes = random.integers(-3, 4, (images, count, 4))
        scores = random.integers(0, 5, (images, classes, count)) / 4
    else:
        boxes = random.uniform(-1, 1, (images, count, 4))
        scores = random.uniform(0, 1, (images, classes, count))
    return boxes.astype(np.float32), scores.astype(np.float32)


@pytest.mark.parametrize("opset", [10, 11, 21])
@pytest.mark.parametrize("center_point_box", [0, 1])
def test_versions(center_point_box, opset):
    inputs = boxes_and_scores(1, images=2, classes=3)
    check_node("NonMaxSuppression", *inputs, *limits(5, 0.3, 0.2), center_point_box=center_point_box, opset=opset)


@pytest.mark.parametrize(
    "given_limits",
    [limits(), limits(0), limits(-2), limits(3), limits(3, None, 0.5), limits(3, 0.0), limits(99, 1.0, 0.25)],
)
def test_optional_inputs(given_limits):
    while given_limits and given_limits[-1] is None:
        given_limits = given_limits[:-1]
    check_node("NonMaxSuppression", *boxes_and_scores(2, classes=2, coarse=True), *given_limits)


def test_scalar_and_constant_limits():
    inputs = boxes_and_scores(3)
    scalars = [np.asarray(4, np.int64), np.asarray(0.5, np.float32), np.asarray(0.1, np.float32)]
    check_node("NonMaxSuppression", *inputs, *scalars, constant=[2, 3, 4], dynamic=True)


@given(
    st.integers(0, 2**32),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(0, 30),
    st.booleans(),
    st.integers(-1, 12),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    st.sampled_from([None, 0.0, 0.5]),
    st.integers(0, 1),
)
def test_the_boxes_that_onnxruntime_keeps(seed, images, classes, count, coarse, most, overlap, least, center_point_box):
    inputs = [*boxes_and_scores(seed, images, classes, count, coarse), *limits(most, overlap, least)]
    check_node("NonMaxSuppression", *inputs[: 5 - (least is None)], center_point_box=center_point_box)


def test_a_threshold_out_of_range():
    with pytest.raises(TranslationError, match="iou_threshold"):
        check_node("NonMaxSuppression", *boxes_and_scores(4), *limits(1, 1.5)[:2], reference=[])


@pytest.mark.parametrize(
    ("boxes", "scores"),
    [((2, 3, 4), (1, 1, 3)), ((1, 3, 4), (1, 1, 2)), ((1, 3, 5), (1, 1, 3)), ((1, 3, 4), (1, 3)), ((3, 4), (1, 1, 3))],
)
def test_boxes_and_scores_that_do_not_go_together(boxes, scores):
    arrays = np.ones(boxes, np.float32), np.ones(scores, np.float32)
    check_refused("NonMaxSuppression", *arrays, *limits(3), index=0, dynamic=True, match="do not go with scores")
