"""Cases of operators that choose boxes."""

from __future__ import annotations

import numpy as np
from properties import Case
from strategies import Draws, cases


@cases("NonMaxSuppression")
def non_max_suppression(d: Draws) -> Case:
    batch, classes, count = d.size(1, 2), d.size(1, 2), d.size(0, 6)
    starts = d.whole((batch, count, 2), 0, 6).astype(np.float32)
    spans = d.whole((batch, count, 2), 1, 4).astype(np.float32)
    center = d.flag()
    boxes = np.concatenate([starts, spans] if center else [starts, starts + spans], -1)
    if not center and d.flag():
        boxes = boxes[..., [2, 3, 0, 1]]
    lines = [d.permutation(count) for _ in range(batch * classes)]
    scores = (np.array(lines, np.float32) / 8).reshape(batch, classes, count)
    limit = np.array(d.integer(0, 4)) if d.flag() else None
    overlap = np.array(d.pick(0.0, 0.25, 0.5, 0.75, 1.0), np.float32) if d.flag() else None
    least = np.array(d.pick(0.0, 0.3, 0.5, -1.0), np.float32) if d.flag() else None
    numbers = [None if each is None else each.reshape(d.pick((), (1,))) for each in (limit, overlap, least)]
    attributes = {"center_point_box": 1} if center else d.some(center_point_box=0)
    return d.case(boxes, scores, *numbers, attributes=attributes)
