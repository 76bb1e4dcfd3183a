"""Boxes: from the four numbers that a head predicts to their sides in pixels, and which of them overlap."""

from __future__ import annotations

from typing import TypeAlias

import mlx.core as mx

Sides: TypeAlias = tuple[mx.array, mx.array, mx.array, mx.array]
"""Left, top, right and bottom of boxes, each (N, K)."""

CELL_FORMATS = ("yolox", "ltrb")
"""Box formats in cells of the feature map that the anchor belongs to."""

FORMATS = ("cxcywh", "xyxy", *CELL_FORMATS)
"""What the four numbers of a box are:

- "cxcywh": center x, center y, width and height, in pixels;
- "xyxy": left, top, right and bottom, in pixels;
- "yolox": the center's offset from its cell in x and in y, the logarithms of width and height, in cells;
- "ltrb": the distances from the cell to the left, top, right and bottom side, in cells.
"""


def corners(numbers: mx.array, box_format: str, cells: mx.array | None) -> Sides:
    """The sides of boxes.

    Args:
        numbers: (N, 4 bins, K).
        cells: (3, N, K), x, y and stride, with one of the formats in cells.
    """
    if numbers.shape[1] > 4:
        logits = mx.unflatten(numbers, 1, (4, -1))
        bins = mx.arange(logits.shape[2], dtype=mx.float32)
        numbers = mx.sum(mx.softmax(logits, axis=2) * bins[:, None], axis=2)
    first, second, third, fourth = (numbers[:, index] for index in range(4))
    if box_format == "xyxy":
        return first, second, third, fourth
    if cells is not None:
        x, y, stride = cells
        if box_format == "ltrb":
            return (x - first) * stride, (y - second) * stride, (x + third) * stride, (y + fourth) * stride
        first, second = (x + first) * stride, (y + second) * stride
        third, fourth = mx.exp(third) * stride, mx.exp(fourth) * stride
    return first - third / 2, second - fourth / 2, first + third / 2, second + fourth / 2


def overlapping(sides: Sides, threshold: float) -> mx.array:
    """Which boxes overlap which by more than `threshold` of their union: booleans, (N, K, K), symmetric.

    A box that is empty or turned inside out overlaps none.
    """
    left, top, right, bottom = sides
    width = _shared(left, right)
    height = _shared(top, bottom)
    area = (right - left) * (bottom - top)
    shared = width * height
    return shared / (area[:, :, None] + area[:, None] - shared) > threshold


def _shared(low: mx.array, high: mx.array) -> mx.array:
    """The length that intervals (N, K) have in common, each with each: (N, K, K)."""
    least, most = mx.maximum(low[:, :, None], low[:, None]), mx.minimum(high[:, :, None], high[:, None])
    return mx.maximum(most - least, 0)
