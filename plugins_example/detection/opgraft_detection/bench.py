"""`python -m opgraft_detection.bench [cpu|gpu]`: this operator against ONNX's chain of nodes, on the same predictions.

Both run in sessions of ONNX Runtime, in turn, and the medians of their times are compared. The predictions are those
of a head of 640 x 640 pixels and 80 classes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime

import opgraft
from opgraft.testing import node_model

CLASSES, ANCHORS = 80, 8400
SCORE_THRESHOLD, IOU_THRESHOLD = 0.25, 0.45


def predictions(objects: int) -> Any:
    """A head's predictions, (1, 84, 8400): about ten anchors at each object score more than the threshold."""
    generator = np.random.default_rng(0)
    places = generator.integers(objects, size=ANCHORS)
    centers = generator.uniform(40, 600, (2, objects))[:, places] + generator.normal(0, 5, (2, ANCHORS))
    sizes = generator.uniform(30, 120, (2, objects))[:, places] * generator.uniform(0.9, 1.1, (2, ANCHORS))
    scores = generator.uniform(0, 0.2, (CLASSES, ANCHORS))
    lucky = generator.permutation(ANCHORS)[: 10 * objects]
    scores[(places % CLASSES)[lucky], lucky] = generator.uniform(0.26, 0.95, len(lucky))
    return np.concatenate([centers, sizes, scores])[None].astype(np.float32)


def chain_model(
    images: int, classes: int, anchors: int, *, score_threshold: float, iou_threshold: float
) -> onnx.ModelProto:
    """What exporters append: boxes decoded, NonMaxSuppression of each class, what it selects gathered.

    Its input is x0; its outputs are boxes, scores, images and classes, as many as there are detections in all.
    """
    return onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 21]>
        chain (float[{images}, {4 + classes}, {anchors}] x0)
            => (float[K, 4] boxes, float[K] scores, int64[K] images, int64[K] classes)
        <int64[3] sizes = {{2, 2, {classes}}}, float half = {{0.5}}, int64[1] most = {{{anchors}}},
         int64 first = {{0}}, int64 second = {{1}}, int64[2] of_boxes = {{0, 2}},
         float[1] overlap = {{{iou_threshold}}}, float[1] least = {{{score_threshold}}}>
        {{
            centers, extents, per_class = Split <axis = 1> (x0, sizes)
            halves = Mul (extents, half)
            low = Sub (centers, halves)
            high = Add (centers, halves)
            sides = Concat <axis = 1> (low, high)
            rows = Transpose <perm = [0, 2, 1]> (sides)
            selected = NonMaxSuppression (rows, per_class, most, overlap, least)
            scores = GatherND (per_class, selected)
            places = Gather <axis = 1> (selected, of_boxes)
            boxes = GatherND (rows, places)
            images = Gather <axis = 1> (selected, first)
            classes = Gather <axis = 1> (selected, second)
        }}""")


def medians(calls: Mapping[str, Callable[[], Any]], turns: int) -> dict[str, float]:
    """The median time of each call in milliseconds, when they take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + 3):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            if turn >= 3:
                times[name].append(time.perf_counter() - started)
    return {name: 1000 * statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m opgraft_detection.bench", description=__doc__)
    parser.add_argument("device", choices=["cpu", "gpu"], nargs="?", default="cpu")
    parser.add_argument("--turns", type=int, default=31)
    arguments = parser.parse_args()

    form: dict[str, Any] = {"score_threshold": SCORE_THRESHOLD, "iou_threshold": IOU_THRESHOLD}
    chain = chain_model(1, CLASSES, ANCHORS, **form)
    example = predictions(1)
    types = ["float32", "float32", "int64", "int64"]
    forms: dict[str, dict[str, Any]] = {
        "every class": {"multi_label": 1},
        "best class": {},
        "best class, 256 candidates": {"candidates": 256},
    }
    operators = {
        name: node_model(
            "ai.opgraft.detection::SelectDetections", [example], outputs=4, output_types=types, **form, **attributes
        )
        for name, attributes in forms.items()
    }
    on_device = opgraft.session_options(device=arguments.device)
    sessions = {
        name: onnxruntime.InferenceSession(model.SerializeToString(), options)
        for name, model, options in (
            ("chain, CPU EP", chain, onnxruntime.SessionOptions()),
            ("chain, MLX EP", chain, on_device),
            *((f"operator, {name}", model, on_device) for name, model in operators.items()),
        )
    }
    for objects in (5, 100):
        feeds = {"x0": predictions(objects)}
        found = len(sessions["chain, CPU EP"].run(["scores"], feeds)[0])
        print(f"{10 * objects} candidates, {found} detections")
        calls = {name: partial(session.run, None, feeds) for name, session in sessions.items()}
        for name, taken in medians(calls, arguments.turns).items():
            print(f"  {name:40}{taken:8.2f} ms")


if __name__ == "__main__":
    main()
