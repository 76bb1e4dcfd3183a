"""The operator: its signature, what it declines, the types and shapes of its outputs."""

from __future__ import annotations

import mlx.core as mx

from opgraft.ops import Context, Node, Output, Value, op

from .boxes import CELL_FORMATS, FORMATS, corners, overlapping
from .candidates import best_candidates
from .suppression import BLOCK, not_suppressed

LAYOUTS = ("NCA", "NAC")
MOST_CANDIDATES = 8192
"""Candidates are compared each with each: so many are 64 million comparisons."""

TAKEN = {"float32", "float16", "bfloat16"}


@op("ai.opgraft.detection::SelectDetections", dtypes=TAKEN)
def select_detections(
    ctx: Context,
    predictions: mx.array,
    class_scores: mx.array | None = None,
    cells: mx.array | None = None,
    *,
    layout: str = "NCA",
    box_format: str = "cxcywh",
    bins: int = 1,
    objectness: bool = False,
    multi_label: bool = False,
    class_agnostic: bool = False,
    score_threshold: float = 0.25,
    iou_threshold: float = 0.45,
    candidates: int = 1024,
    max_detections: int = 100,
) -> tuple[mx.array, ...]:
    """The detections of each image, best first: boxes decoded, scores thresholded, overlapping boxes suppressed.

    The shapes of the outputs are fixed, K = max_detections: behind the `count` detections of an image there are zeros.

    Args:
        predictions: (N, 4 bins + objectness + C, A), boxes and scores of A anchors and C classes; only the boxes,
            (N, 4 bins, A), where `class_scores` is given. Scores are probabilities, not logits.
        class_scores: (N, objectness + C, A).
        cells: (A, 3), the x and y and the stride in pixels of each anchor's cell, for the box formats in cells.
        layout: "NCA" as above, "NAC" with the last two dimensions exchanged.
        box_format: how four numbers are a box, see `boxes.FORMATS`.
        bins: with the format "ltrb", each number is the mean of a distribution over 0, 1, ..., bins - 1, given by its
            logits (distribution focal loss).
        objectness: the first score is that of the anchor, and is multiplied with those of the classes.
        multi_label: each class of an anchor is a candidate, instead of the best class alone.
        class_agnostic: boxes of different classes suppress each other too.
        score_threshold: what does not score more is no candidate; at least 0.
        iou_threshold: of two candidates whose intersection is more than this part of their union, the better one stays.
        candidates: how many candidates of an image, the best ones, are looked at.

    Returns:
        boxes, float32 (N, K, 4), as left, top, right, bottom; scores, float32 (N, K); classes, int64 (N, K); count,
        int64 (N).

    Raises:
        ValueError: the sizes do not fit each other.
    """
    boxes, scores = _boxes_and_scores(predictions, class_scores, layout, 4 * bins)
    if objectness:
        scores = scores[:, :1] * scores[:, 1:]
    if scores.shape[1] == 0:
        raise ValueError(f"predictions of shape {list(predictions.shape)} leave no class")
    images, _, anchors = boxes.shape
    if cells is not None and cells.shape != (anchors, 3):
        raise ValueError(f"cells of shape {list(cells.shape)} are not x, y and stride of {anchors} anchors")
    if images * anchors == 0:
        return _padded(mx.zeros((images, 0, 4)), mx.zeros((images, 0)), mx.zeros((images, 0)), max_detections)

    found = best_candidates(scores, candidates, score_threshold, multi_label, multiple_of=BLOCK)
    chosen = mx.take_along_axis(boxes, found.anchors[:, None], axis=2)
    chosen_cells = None if cells is None else mx.moveaxis(cells.astype(mx.float32)[found.anchors], 2, 0)
    sides = corners(chosen, box_format, chosen_cells)
    suppress = overlapping(sides, iou_threshold)
    if not class_agnostic:
        suppress &= found.classes[:, :, None] == found.classes[:, None]
    kept = not_suppressed(found.valid, suppress, ctx.device)

    size = kept.shape[1]
    places = mx.arange(size, dtype=mx.uint32)
    places = mx.sort(mx.where(kept, places, size), axis=1)[:, :max_detections]
    real = places < size
    places = mx.minimum(places, size - 1)
    return _padded(
        mx.where(real[..., None], mx.take_along_axis(mx.stack([*sides], axis=-1), places[..., None], axis=1), 0),
        mx.where(real, mx.take_along_axis(found.scores, places, axis=1), 0),
        mx.where(real, mx.take_along_axis(found.classes, places, axis=1), 0),
        max_detections,
        mx.sum(real, axis=1),
    )


@select_detections.condition
def _(node: Node) -> None:
    layout, box_format = node.attributes.get("layout", "NCA"), node.attributes.get("box_format", "cxcywh")
    node.require(layout in LAYOUTS, f"layout is {layout!r}; it takes {', '.join(LAYOUTS)}")
    node.require(box_format in FORMATS, f"box_format is {box_format!r}; it takes {', '.join(FORMATS)}")
    has_cells = node.input(2) is not None
    node.require(has_cells == (box_format in CELL_FORMATS), f"cells are needed with {' and '.join(CELL_FORMATS)}, only")
    for name, least, most in (
        ("score_threshold", 0, 1),
        ("iou_threshold", 0, 1),
        ("bins", 1, 256 if box_format == "ltrb" else 1),
        ("candidates", 1, MOST_CANDIDATES),
        ("max_detections", 1, MOST_CANDIDATES),
    ):
        value = node.attributes.get(name, least)
        within = isinstance(value, int | float) and least <= value <= most
        node.require(within, f"{name} is {value}; it must lie between {least} and {most}")


def _outputs(
    predictions: Value, class_scores: Value | None = None, cells: Value | None = None, *, max_detections: int = 100
) -> tuple[Output, ...]:
    images = predictions.shape[0] if predictions.shape else None
    return (
        Output("float32", (images, max_detections, 4)),
        Output("float32", (images, max_detections)),
        Output("int64", (images, max_detections)),
        Output("int64", (images,)),
    )


select_detections.schema(_outputs, outputs=("boxes", "scores", "classes", "count"))


def _boxes_and_scores(
    predictions: mx.array, class_scores: mx.array | None, layout: str, channels: int
) -> tuple[mx.array, mx.array]:
    """Boxes (N, channels, A) and scores (N, objectness + C, A), float32.

    Raises:
        ValueError: the inputs have other ranks or sizes.
    """
    given = [predictions] if class_scores is None else [predictions, class_scores]
    shapes = " and ".join(str(list(each.shape)) for each in given)
    if any(each.ndim != 3 for each in given):
        raise ValueError(f"predictions of shape {shapes}: three dimensions, {layout}, are needed")
    given = [each.astype(mx.float32) if layout == "NCA" else each.astype(mx.float32).swapaxes(1, 2) for each in given]
    boxes, scores = given if class_scores is not None else (given[0][:, :channels], given[0][:, channels:])
    if boxes.shape[1] != channels or scores.shape[::2] != boxes.shape[::2]:
        raise ValueError(f"predictions of shape {shapes} do not hold boxes of {channels} channels, and their scores")
    return boxes, scores


def _padded(
    boxes: mx.array, scores: mx.array, classes: mx.array, size: int, count: mx.array | None = None
) -> tuple[mx.array, ...]:
    """The outputs, with zeros up to `size`."""
    images, missing = boxes.shape[0], size - boxes.shape[1]
    count = mx.zeros(images) if count is None else count
    return (
        mx.pad(boxes, [(0, 0), (0, missing), (0, 0)]),
        mx.pad(scores, [(0, 0), (0, missing)]),
        mx.pad(classes.astype(mx.int64), [(0, 0), (0, missing)]),
        count.astype(mx.int64),
    )
