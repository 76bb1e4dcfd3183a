"""What the report predicts for real models, some of their operators denied, is what happens once they are allowed."""

from __future__ import annotations

import re
from pathlib import Path

import onnxruntime
import pytest
from packaging.version import Version
from reporting_models import surveyed
from zoo import MODELS, RealModel

DOCS = Path(__file__).parents[2] / "docs"

DENIED = {
    "silero-vad": ("Pad", "Conv", "LSTM"),
    "ocr-detect": ("HardSigmoid", "ConvTranspose", "Resize", "Clip"),
    "ocr-recognize": ("Softmax", "Transpose", "Slice", "Squeeze"),
    "ocr-classify": ("GlobalAveragePool", "Div", "MaxPool"),
    "magika": ("Gemm", "Reshape", "Tanh"),
    "nudenet": ("MaxPool", "Resize", "Split", "Softmax"),
}


def test_docs_show_a_picture_of_each() -> None:
    page = (DOCS / "report.md").read_text("utf-8")
    assert set(re.findall(r"!\[(.*?)\]\(images/\1\.png\)", page)) == {model.name for model in MODELS}
    for model in MODELS:
        picture = (DOCS / "images" / f"{model.name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) < 200_000


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_what_if(model: RealModel, tmp_path: Path) -> None:
    denied = DENIED[model.name]
    report = surveyed(model.path(), tmp_path, denied)
    assert report.coverage.declined >= len(report.declined) > 1
    if model.name != "silero-vad" or Version(onnxruntime.__version__) >= Version("1.27"):
        assert len(report.what_if[0].groups) == len(report.declined)
    for each in report.what_if:
        claimed = {report.declined[group].title for group in each.groups}
        assert each.after == surveyed(model.path(), tmp_path, set(denied) - claimed).split, each.headline
