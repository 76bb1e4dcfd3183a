"""Six real models that PyPI packages carry, fetched once into a cache outside the tree, and inputs for each.

The cache is `$OPGRAFT_MODEL_CACHE`, or `opgraft-models` in the user's cache folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Feeds = dict[str, Any]


def cache() -> Path:
    """The folder that holds the models."""
    given = os.environ.get("OPGRAFT_MODEL_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else home / "opgraft-models"


@dataclass(frozen=True)
class RealModel:
    """A model file in a wheel.

    Attributes:
        name: what tests and tables call it.
        requirement: the pinned PyPI package that carries it.
        member: the file in the wheel.
        feeds: makes inputs from a random generator and a size.
        sizes: the sizes to run it at; one where the model takes only one.
    """

    name: str
    requirement: str
    member: str
    feeds: Callable[[np.random.Generator, Any], Feeds]
    sizes: Sequence[Any]

    def path(self) -> Path:
        """The model file, fetched where it is not in the cache yet."""
        target = cache() / self.requirement.replace("==", "-") / Path(self.member).name
        if not target.exists():
            self._fetch(target)
        return target

    def _fetch(self, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--dest",
                folder,
                self.requirement,
            ]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
            wheel = next(Path(folder).glob("*.whl"))
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.namelist():
                    if member.endswith(".onnx"):
                        part = Path(folder) / "part"
                        part.write_bytes(archive.read(member))
                        part.replace(target.parent / Path(member).name)

    def inputs(self, count: int = 3) -> list[tuple[Any, Feeds]]:
        """`count` different inputs at each size."""
        return [
            (size, self.feeds(np.random.default_rng(1000 * place + number), size))
            for place, size in enumerate(self.sizes)
            for number in range(count)
        ]


def _image(generator: np.random.Generator, size: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Smooth noise between -1 and 1: a picture rather than static."""
    coarse = generator.normal(size=(*size[:2], size[2] // 8, size[3] // 8))
    return np.tanh(coarse.repeat(8, axis=2).repeat(8, axis=3) + 0.1 * generator.normal(size=size)).astype(np.float32)


def _page(generator: np.random.Generator, size: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Dark random glyphs in lines on a light page, between -1 and 1: what a reader of text takes for text.

    On noise a text detector answers with values so small that they are rounding errors in anybody's sigmoid.
    """
    batch, channels, height, width = size
    page = 1 + 0.05 * generator.normal(size=(batch, 1, height, width))
    for picture in page[:, 0]:
        for top in range(int(generator.integers(6, 14)), height - 16, int(generator.integers(22, 34))):
            for left in range(int(generator.integers(6, 24)), width - 14, 10):
                glyph = generator.random((6, 4)) < 0.55
                picture[top : top + 12, left : left + 8][glyph.repeat(2, axis=0).repeat(2, axis=1)] = -0.9
    return page.repeat(channels, axis=1).astype(np.float32)


def _speech(generator: np.random.Generator, size: tuple[int, int]) -> Feeds:
    """A window of 36 ms and the state before it; the rate chooses between the model's two networks."""
    batch, rate = size
    return {
        "input": (0.1 * generator.normal(size=(batch, 36 * rate // 1000))).astype(np.float32),
        "state": (0.1 * generator.normal(size=(2, batch, 128))).astype(np.float32),
        "sr": np.array(rate, np.int64),
    }


def _text(generator: np.random.Generator, size: tuple[int, ...]) -> Feeds:
    return {"x": _page(generator, size)}


def _photograph(generator: np.random.Generator, size: tuple[int, ...]) -> Feeds:
    return {"images": _image(generator, size)}


def _bytes(generator: np.random.Generator, batch: int) -> Feeds:
    return {"bytes": generator.integers(0, 257, (batch, 2048)).astype(np.int32)}


_OCR = "rapidocr-onnxruntime==1.4.4"
MODELS: tuple[RealModel, ...] = (
    RealModel("silero-vad", "silero-vad==6.2.3", "silero_vad/data/silero_vad.onnx", _speech, ((1, 16000), (2, 8000))),
    RealModel(
        "ocr-detect",
        _OCR,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        _text,
        ((1, 3, 320, 320), (1, 3, 160, 256)),
    ),
    RealModel(
        "ocr-recognize",
        _OCR,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        _text,
        ((1, 3, 48, 320), (2, 3, 48, 160)),
    ),
    RealModel(
        "ocr-classify",
        _OCR,
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        _text,
        ((1, 3, 48, 192), (3, 3, 48, 96)),
    ),
    RealModel("magika", "magika==1.0.3", "magika/models/standard_v3_3/model.onnx", _bytes, (1, 3)),
    RealModel("nudenet", "nudenet==3.4.2", "nudenet/320n.onnx", _photograph, ((1, 3, 320, 320), (2, 3, 192, 256))),
)
