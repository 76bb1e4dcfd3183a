"""Detection post-processing."""

from __future__ import annotations

import numpy as np

from opgraft.ops import Host, op
from opgraft_ops._shared import Numpy
from opgraft_ops._sizes import flags


@op("NonMaxSuppression", since=10)
def non_max_suppression(
    boxes: Host,
    scores: Host,
    max_output_boxes_per_class: Host | None = None,
    iou_threshold: Host | None = None,
    score_threshold: Host | None = None,
    *,
    center_point_box=0,
):
    """The rows (image, class, box) of the boxes that are kept, best first in each class: int64, (count, 3).

    A box goes where one with a higher score overlaps it. boxes: (N, B, 4), scores: (N, C, B).
    ONNX NonMaxSuppression-11.
    """
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape != (scores.shape[0], scores.shape[2], 4):
        raise ValueError(f"boxes of shape {list(boxes.shape)} do not go with scores of shape {list(scores.shape)}")
    limit = 0 if max_output_boxes_per_class is None else max_output_boxes_per_class.item()
    overlap = np.float32(0 if iou_threshold is None else iou_threshold.item())
    if not 0 <= overlap <= 1:
        raise ValueError(f"iou_threshold is {overlap}; it must lie in [0, 1]")
    sides = _sides(np.moveaxis(boxes, -1, 0), center_point_box)
    rows = [np.empty((0, 3), np.int64)]
    for image, label in np.ndindex(scores.shape[:2]) if limit > 0 else ():
        score = scores[image, label]
        order = np.arange(len(score)) if score_threshold is None else np.flatnonzero(score > score_threshold.item())
        order = order[np.argsort(-score[order], kind="stable")]
        kept = _kept(sides[:, image], order, overlap, limit)
        rows.append(np.stack([np.full_like(kept, image), np.full_like(kept, label), kept], axis=1))
    return np.concatenate(rows)


non_max_suppression.condition(flags("center_point_box"))


def _sides(boxes: Numpy, center_point_box: int) -> Numpy:
    """Lower and upper x, lower and upper y and the area of boxes given as opposite corners, or as center and size."""
    if center_point_box:
        x, y, width, height = boxes
        left, right, bottom, top = x - width / 2, x + width / 2, y - height / 2, y + height / 2
    else:
        y, x, other_y, other_x = boxes
        left, right, bottom, top = *_ordered(x, other_x), *_ordered(y, other_y)
    return np.stack([left, right, bottom, top, (right - left) * (top - bottom)])


def _ordered(one: Numpy, other: Numpy) -> tuple[Numpy, Numpy]:
    return np.minimum(one, other), np.maximum(one, other)


BLOCK = 128
"""So many boxes are compared with each other at once: few NumPy calls, and few comparisons that turn out to be idle."""


def _kept(sides: Numpy, order: Numpy, overlap: np.float32, limit: int) -> Numpy:
    """At most `limit` boxes of `order`, each overlapped by none kept before it by more than `overlap` of the union."""
    kept = order[:0]
    for start in range(0, len(order), BLOCK):
        block = order[start : start + BLOCK]
        block = block[~_overlapping(sides, kept, block, overlap).any(axis=0)]
        among = _overlapping(sides, block, block, overlap)
        stays = np.ones(len(block), np.bool_)
        for place in range(len(block)):
            if stays[place]:
                stays[place + 1 :] &= ~among[place, place + 1 :]
        kept = np.concatenate([kept, block[stays]])
        if len(kept) >= limit:
            break
    return kept[:limit]


def _overlapping(sides: Numpy, ones: Numpy, others: Numpy, overlap: np.float32) -> Numpy:
    """Which of the boxes `ones` overlap which `others`: a matrix of booleans. Boxes turned inside out overlap none."""
    left, right, bottom, top, area = sides[:, ones, None]
    other_left, other_right, other_bottom, other_top, other_area = sides[:, others]
    width = np.minimum(right, other_right) - np.maximum(left, other_left)
    height = np.minimum(top, other_top) - np.maximum(bottom, other_bottom)
    shared = np.maximum(width, 0) * np.maximum(height, 0)
    with np.errstate(all="ignore"):
        return shared / (area + other_area - shared) > overlap
