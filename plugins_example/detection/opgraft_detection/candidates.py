"""The candidates: those of an image's boxes and classes that score best."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class Candidates:
    """The best of each image, best first: arrays of (N, K). Those that are not `valid` come last, and are fillers."""

    anchors: mx.array
    classes: mx.array
    scores: mx.array
    valid: mx.array


def best_candidates(scores: mx.array, limit: int, threshold: float, multi_label: bool, multiple_of: int) -> Candidates:
    """The `limit` best of those that score more than `threshold`.

    Of equal scores, that of the lower anchor comes first, then that of the lower class.

    Args:
        scores: (N, C, A), neither N, C nor A being 0.
        multi_label: whether each class of an anchor is a candidate, or its best class alone.
        multiple_of: K is `limit`, or the number of all there are where that is less, rounded up to a multiple of this.
    """
    classes = scores.shape[1]
    each = mx.flatten(mx.swapaxes(scores, 1, 2), 1) if multi_label else mx.max(scores, axis=1)
    keys = _in_order(each, threshold)
    limit = min(limit, keys.shape[1])
    if limit < keys.shape[1]:
        keys = mx.partition(keys, limit - 1, axis=1)[:, :limit]
    keys = mx.pad(mx.sort(keys, axis=1), [(0, 0), (0, -limit % multiple_of)])
    index = (keys & 0xFFFFFFFF).astype(mx.uint32)
    bits = (-(keys >> 32)).astype(mx.uint32)
    if multi_label:
        anchors, labels = index // classes, index % classes
    else:
        anchors = index
        labels = mx.argmax(mx.take_along_axis(scores, anchors[:, None], axis=2), axis=1)
    return Candidates(anchors, labels, mx.view(bits, mx.float32), bits > 0)


def _in_order(scores: mx.array, threshold: float) -> mx.array:
    """Numbers that sort as candidates do, no two of them equal: the place, minus 2**32 times the score's bits, which
    for positive floats sort as these do; minus 0 where it is no candidate."""
    bits = mx.where(scores > threshold, mx.view(scores, mx.uint32), 0)
    return mx.arange(scores.shape[1], dtype=mx.int64) - (bits.astype(mx.int64) << 32)
