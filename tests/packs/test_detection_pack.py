"""The example pack detection: equal to plain greedy suppression, and to ONNX's chain of nodes; installed, it extends
real detectors."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import onnx
import onnxruntime
import pytest

from opgraft import demo
from opgraft.ops import Handler
from opgraft.registry import Pack, Policy, Registry
from opgraft.testing import (
    assert_same,
    check_declined,
    check_node,
    check_over,
    node_model,
    reference_outputs,
    run_model,
)

FOLDER = Path(__file__).parents[2] / "plugins_example" / "detection"
OUTPUTS = {"outputs": 4}


@pytest.fixture(scope="module")
def handler() -> Iterator[Handler]:
    """The pack's one handler, imported from its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield importlib.import_module("opgraft_detection").select_detections


def reference(
    predictions: Any,
    class_scores: Any = None,
    cells: Any = None,
    *,
    layout: str = "NCA",
    box_format: str = "cxcywh",
    bins: int = 1,
    objectness: int = 0,
    multi_label: int = 0,
    class_agnostic: int = 0,
    score_threshold: float = 0.25,
    iou_threshold: float = 0.45,
    candidates: int = 1024,
    max_detections: int = 100,
) -> list[Any]:
    """The operator in plain NumPy: one image, one candidate after the other."""
    given = [each.astype(np.float32) for each in (predictions, class_scores) if each is not None]
    if layout == "NCA":
        given = [each.swapaxes(1, 2) for each in given]
    boxes, scores = given if len(given) == 2 else np.split(given[0], [4 * bins], axis=2)
    if objectness:
        scores = scores[..., :1] * scores[..., 1:]
    images = len(boxes)
    shapes = [((images, max_detections, 4), np.float32), ((images, max_detections), np.float32)]
    shapes += [((images, max_detections), np.int64), ((images,), np.int64)]
    outputs = [np.zeros(shape, dtype) for shape, dtype in shapes]
    for image in range(images):
        sides = decoded(boxes[image], box_format, bins, cells)
        pairs = [
            (-score, anchor, label)
            for anchor, row in enumerate(scores[image])
            for label, score in enumerate(row)
            if score > np.float32(score_threshold) and (multi_label or label == np.argmax(row))
        ]
        kept: list[tuple[Any, int, int]] = []
        for score, anchor, label in sorted(pairs)[:candidates]:
            rivals = [other for _, other, its in kept if class_agnostic or its == label]
            if not np.any(overlap(sides[anchor], sides[rivals]) > np.float32(iou_threshold)):
                kept.append((score, anchor, label))
        for place, (score, anchor, label) in enumerate(kept[:max_detections]):
            for output, value in zip(outputs, (sides[anchor], -score, label), strict=False):
                output[image, place] = value
        outputs[3][image] = min(len(kept), max_detections)
    return outputs


def decoded(boxes: Any, box_format: str, bins: int, cells: Any) -> Any:
    """Left, top, right, bottom of boxes (A, 4 bins)."""
    if bins > 1:
        parts = np.exp(boxes.reshape(len(boxes), 4, bins))
        boxes = (parts * np.arange(bins, dtype=np.float32)).sum(axis=2) / parts.sum(axis=2)
    x, y, w, h = boxes.T
    if box_format in ("yolox", "ltrb"):
        cell_x, cell_y, stride = cells.astype(np.float32).T
        if box_format == "ltrb":
            return np.stack([cell_x - x, cell_y - y, cell_x + w, cell_y + h], axis=1) * stride[:, None]
        x, y, w, h = (x + cell_x) * stride, (y + cell_y) * stride, np.exp(w) * stride, np.exp(h) * stride
    if box_format == "xyxy":
        return boxes
    return np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], axis=1)


def overlap(box: Any, others: Any) -> Any:
    """The intersection of a box with others, as a part of the union."""
    size = np.maximum(np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2]), 0)
    area = np.prod(others[:, 2:] - others[:, :2], axis=1) + np.prod(box[2:] - box[:2])
    with np.errstate(all="ignore"):
        shared = size[:, 0] * size[:, 1]
        return shared / (area - shared)


def head(seed: int, images: int = 1, classes: int = 5, anchors: int = 1500, clusters: int = 60) -> Any:
    """What a detector might predict: boxes in clusters, all scores different. (N, 4 + C, A), in pixels."""
    generator = np.random.default_rng(seed)
    centers = generator.uniform(40, 600, (images, 2, clusters))[..., generator.integers(clusters, size=anchors)]
    boxes = [centers + generator.normal(0, 8, centers.shape), generator.uniform(40, 90, centers.shape)]
    scores = generator.permutation(images * classes * anchors).reshape(images, classes, anchors)
    return np.concatenate([*boxes, scores / scores.size], axis=1).astype(np.float32)


def chain(step: int) -> Any:
    """A thousand boxes of 50 pixels in a row, the better ones first."""
    places = np.arange(1000, dtype=np.float32)
    return np.stack([places * step, 0 * places, 0 * places + 50, 0 * places + 50, 1 - places / 2000])[None]


def of_the_readme(name: str) -> Any:
    """A function that the README shows."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    (block,) = [each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if f"def {name}(" in each]
    scope: dict[str, Any] = {"np": np}
    exec(block, scope)
    return scope[name]


CHOICES = {
    "score_threshold": [..., 0.0, 0.5],
    "iou_threshold": [..., 0.0, 0.125, 1.0],
    "class_agnostic": [..., 1],
    "multi_label": [..., 1],
    "max_detections": [..., 1, 3],
    "candidates": [..., 4],
}


ROUNDED = {"iou_threshold": [..., 0.3, 1.0]}
"""Where exp and softmax round, boxes that just touch may overlap a little, or not."""


class TestAgainstPlainSuppression:
    @pytest.mark.parametrize(
        ("shapes", "choices"),
        [
            (("N 6 A", None, None), {}),
            (("N A 7", None, None), {"layout": ["NAC"], "objectness": [0, 1]}),
            (("N 4 A", "N 3 A", None), {"box_format": ["xyxy", "cxcywh"]}),
            (("N 4 A", "N 3 A", "A 3"), {"box_format": ["ltrb"]}),
            (("N 4 A", "N 3 A", "A 3"), {"box_format": ["yolox"], **ROUNDED}),
            (("N 8 A", "N 3 A", "A 3"), {"box_format": ["ltrb"], "bins": [2], **ROUNDED}),
        ],
    )
    def test_drawn(self, handler: Handler, shapes: tuple[str | None, ...], choices: dict[str, Any]) -> None:
        """What is drawn is full of equal scores, of empty boxes and of boxes inside out."""
        tally = check_over(
            handler,
            *shapes,
            reference=reference,
            attributes={**CHOICES, **choices},
            sizes=(0, 4),
            examples=40,
            **OUTPUTS,
        )
        assert tally.compared > 20

    @pytest.mark.parametrize(
        "attributes",
        [
            {},
            {"class_agnostic": 1, "iou_threshold": 0.1},
            {"candidates": 100, "max_detections": 300},
            {"candidates": 2048, "max_detections": 1000, "score_threshold": 0.01, "iou_threshold": 0.9},
            {"multi_label": 1, "score_threshold": 0.6},
        ],
    )
    def test_crowded(self, handler: Handler, attributes: dict[str, Any]) -> None:
        check_node(handler, head(1, images=2), reference=reference, dynamic=True, **attributes, **OUTPUTS)

    @pytest.mark.parametrize("step", [10, 20, 40])
    def test_a_chain(self, handler: Handler, step: int) -> None:
        """Each box overlaps the next ones only: the fate of the last hangs on that of all before it."""
        outputs = check_node(
            handler, chain(step), reference=reference, max_detections=1000, iou_threshold=0.05, **OUTPUTS
        )
        assert outputs[3].tolist() == [len(range(0, 1000, -(-45 // step)))]

    def test_equal_scores_go_by_index(self, handler: Handler) -> None:
        given = np.ones((1, 4 + 3, 200), np.float32)
        given[:, 0] = np.arange(200) * 10
        given[:, 4:] = 0.5
        outputs = check_node(handler, given, reference=reference, max_detections=50, candidates=60, **OUTPUTS)
        assert outputs[0][0, :, 0].tolist() == [10 * place - 0.5 for place in range(50)]
        assert not outputs[2].any()

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_what_is_not_finite(self, handler: Handler, value: float) -> None:
        given = head(2, anchors=200)
        given[:, 2, ::7] = value
        given[:, 5, ::11] = value
        given[:, 4:, 3] = -1
        outputs = run(handler, given)
        kept = outputs[0][0, : outputs[3][0]]
        if np.isnan(value):  # NaN is no score above a threshold; argmax of a row with one is that one
            given[:, 4:, ::11] = 0
        expected = reference(given)
        np.testing.assert_array_equal(outputs[1], expected[1])
        np.testing.assert_array_equal(kept, expected[0][0, : len(kept)])

    @pytest.mark.parametrize("dtype", [np.float16, np.float32])
    def test_half_floats(self, handler: Handler, dtype: Any) -> None:
        check_node(handler, head(3, anchors=300).astype(dtype), reference=reference, **OUTPUTS)

    def test_yolox(self, handler: Handler) -> None:
        """As its authors export it: (N, A, 5 + C), not decoded."""
        cells = of_the_readme("cells_of")(128, 160, 0)
        generator = np.random.default_rng(4)
        boxes = generator.normal(0.5, 0.8, (2, len(cells), 4))
        scores = generator.uniform(0, 1, (2, len(cells), 1 + 20))
        given = np.concatenate([boxes, scores], axis=2).astype(np.float32)
        form = {"layout": "NAC", "box_format": "yolox", "objectness": 1, **OUTPUTS}
        check_node(handler, given, None, cells, reference=reference, constant=[2], tolerance=1e-4, **form)

    def test_distribution_focal_loss(self, handler: Handler) -> None:
        """A head of YOLOv8 before it is decoded: 16 bins a side."""
        cells = of_the_readme("cells_of")(128, 160, 0.5)
        generator = np.random.default_rng(5)
        boxes = generator.normal(0, 2, (1, 64, len(cells))).astype(np.float32)
        scores = generator.uniform(0, 1, (1, 20, len(cells))).astype(np.float32)
        form = {"box_format": "ltrb", "bins": 16, "iou_threshold": 0.3, **OUTPUTS}
        check_node(handler, boxes, scores, cells, reference=reference, constant=[2], tolerance=1e-4, **form)


def run(handler: Handler, given: Any, **attributes: Any) -> list[Any]:
    model = node_model(handler.operator, [given], **OUTPUTS, **attributes)
    return run_model(model, {"x0": given}, Registry([Pack("under test", plugins=(handler,))], Policy()))


@pytest.mark.parametrize(("score_threshold", "iou_threshold"), [(0.25, 0.45), (0.7, 0.7), (0.9, 0.0)])
def test_against_the_chain_of_onnx(handler: Handler, score_threshold: float, iou_threshold: float) -> None:
    given = head(6, images=2, classes=3, anchors=600)
    thresholds = {"score_threshold": score_threshold, "iou_threshold": iou_threshold}
    model = importlib.import_module("opgraft_detection.bench").chain_model(2, 3, 600, **thresholds)
    boxes, scores, images, classes = reference_outputs(model, {"x0": given})
    found = run(handler, given, multi_label=1, candidates=1800, max_detections=1000, **thresholds)
    for image in range(2):
        mine = np.flatnonzero(images == image)
        mine = mine[np.argsort(-scores[mine])]
        assert found[3][image] == len(mine) > 20
        for output, expected in zip(found, (boxes, scores, classes), strict=False):
            np.testing.assert_array_equal(output[image, : len(mine)], expected[mine])
            assert not output[image, len(mine) :].any()


class TestRefusals:
    @pytest.mark.parametrize(
        ("attributes", "because"),
        [
            ({"layout": "NHWC"}, "layout is 'NHWC'; it takes NCA, NAC"),
            ({"box_format": "yxyx"}, "box_format is 'yxyx'; it takes cxcywh, xyxy, yolox, ltrb"),
            ({"box_format": "yolox"}, "cells are needed with yolox and ltrb, only"),
            ({"score_threshold": -0.5}, "score_threshold is -0.5; it must lie between 0 and 1"),
            ({"iou_threshold": 1.5}, "iou_threshold is 1.5; it must lie between 0 and 1"),
            ({"candidates": 0}, "candidates is 0; it must lie between 1 and 8192"),
            ({"bins": 16}, "bins is 16; it must lie between 1 and 1"),
            ({"clip": 1}, "attribute clip is not supported"),
            ({"layout": "NAC"}, "do not hold boxes of 4 channels"),
        ],
    )
    def test_attributes(self, handler: Handler, attributes: dict[str, Any], because: str) -> None:
        check_declined(handler, np.zeros((1, 6, 3), np.float32), because=because, **attributes, **OUTPUTS)

    @pytest.mark.parametrize(
        ("shapes", "because"),
        [
            ([(6, 3)], "three dimensions, NCA, are needed"),
            ([(1, 4, 3)], "leave no class"),
            ([(1, 6, 3), (1, 2, 3)], "do not hold boxes of 4 channels"),
            ([(1, 4, 3), (1, 2, 5)], "do not hold boxes of 4 channels, and their scores"),
        ],
    )
    def test_shapes(self, handler: Handler, shapes: list[Any], because: str) -> None:
        check_declined(handler, *(np.zeros(shape, np.float32) for shape in shapes), because=because, **OUTPUTS)

    def test_cells(self, handler: Handler) -> None:
        given = [np.zeros((1, 6, 3), np.float32), None, np.zeros((2, 3), np.float32)]
        because = "cells of shape [2, 3] are not x, y and stride of 3 anchors"
        check_declined(handler, *given, because=because, box_format="yolox", **OUTPUTS)

    def test_element_types(self, handler: Handler) -> None:
        because = "element type float64 of input predictions is not supported"
        check_declined(handler, np.zeros((1, 6, 3)), because=because, **OUTPUTS)


@pytest.mark.skipif(not mx.metal.is_available() and not mx.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("candidates", [1, 64, 1000, 8192])
def test_on_the_gpu(handler: Handler, candidates: int) -> None:
    form = {"candidates": candidates, "score_threshold": 0.1, "iou_threshold": 0.3, "max_detections": 400}
    crowd = head(7, images=3, classes=3, anchors=9000, clusters=3000)
    check_node(handler, crowd, reference=reference, device="gpu", **form, **OUTPUTS)
    check_node(handler, chain(20), reference=reference, device="gpu", **form, **OUTPUTS)


SESSION = """
import sys
import numpy as np, onnx, onnxruntime
import opgraft
from opgraft.sessions import assignment

model, target = sys.argv[1:]
options = opgraft.session_options(device="cpu")
options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
session = onnxruntime.InferenceSession(model, options)
print([(each.name, each.type, each.shape) for each in session.get_outputs() if each.name.startswith("detected")])
print({name: len(sizes) for name, sizes in assignment(session).items()})
images = np.load(target)["images"]
without = onnxruntime.SessionOptions()
without.register_custom_ops_library(opgraft.library_path())
kernel = onnxruntime.InferenceSession(model, without)
names = [each.name for each in session.get_outputs()]
found = {
    f"{where}/{name}": array
    for where, each in (("claimed", session), ("kernel", kernel))
    for name, array in zip(names, each.run(names, {"images": images}))
}
np.savez(target, **found)
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that pip has installed the pack into."""
    pytest.importorskip("setuptools", "70.1")  # the first that builds a wheel by itself
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(FOLDER, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    arguments = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(folder / "target")]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *arguments, str(folder / "source")], check=True, timeout=240
    )
    return folder / "target"


class TestInstalled:
    def python(self, target: Path, *arguments: str) -> str:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("OPGRAFT")}
        path = os.pathsep.join([str(target), *filter(None, [kept.get("PYTHONPATH")])])
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**kept, "PYTHONPATH": path, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def test_it_is_discovered(self, target: Path) -> None:
        printed = self.python(target, "-m", "opgraft.cli", "packs")
        (line,) = [line.split() for line in printed.splitlines() if line.startswith("detection")]
        assert line[:4] == ["detection", "opgraft-detection", "0.1.0", "1"]
        assert (target / "opgraft_detection" / "py.typed").exists()

    def test_the_readme(self, target: Path) -> None:
        text = (FOLDER / "README.md").read_text(encoding="utf-8")
        self.python(target, "-c", "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))

    @pytest.mark.parametrize(
        ("name", "heads", "attributes"),
        [
            ("demo", ["boxes", "scores"], {"layout": "NAC", "box_format": "xyxy", "multi_label": 1}),
            ("nudenet", ["output0"], {"class_agnostic": 1, "score_threshold": 1e-4}),
        ],
    )
    def test_at_the_end_of_a_detector(
        self, target: Path, tmp_path: Path, name: str, heads: list[str], attributes: dict[str, Any]
    ) -> None:
        """One subgraph, and what it detects is what the reference detects in the CPU's predictions. The same where no
        provider claims the node, by its kernel."""
        path = detector(name)
        images = np.random.default_rng(8).random((2, 3, 160, 192), np.float32)
        cpu = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        expected = cpu.run(heads, {"images": images})

        model = onnx.load(path)
        outputs = list(model.graph.output)
        of_the_readme("append_detections")(model, heads, **attributes)
        model.graph.output.extend(outputs)  # the head's too, to look at
        onnx.save(model, tmp_path / "model.onnx")
        np.savez(tmp_path / "arrays.npz", images=images)
        types, subgraphs = self.python(
            target, "-c", SESSION, str(tmp_path / "model.onnx"), str(tmp_path / "arrays.npz")
        ).splitlines()
        assert "('detected_boxes', 'tensor(float)', ['batch', 100, 4])" in types
        assert "('detected_classes', 'tensor(int64)', ['batch', 100])" in types
        assert subgraphs == "{'MLXExecutionProvider': 1}"

        wanted = reference(*expected, **attributes)
        assert wanted[3].min() > 5
        found = np.load(tmp_path / "arrays.npz")
        for where, tolerance in (("claimed", 1e-4), ("kernel", 1e-6)):
            for head, its in zip(heads, expected, strict=True):
                assert_same(found[f"{where}/{head}"], its, tolerance, head)
            for output, its in zip(("boxes", "scores", "classes", "count"), wanted, strict=True):
                assert_same(found[f"{where}/detected_{output}"], its, tolerance, output)


def detector(name: str) -> str:
    if name == "demo":
        return str(Path(demo.__file__).with_name("detector.onnx"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1] / "models")
        zoo = importlib.import_module("zoo")
    (model,) = [each for each in zoo.MODELS if each.name == name]
    try:
        return str(model.path())
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"{name} cannot be fetched: {error}")
