"""The oracle of these tests is ONNX Runtime's CPU execution provider: one that gets its own operators right."""

from __future__ import annotations

import onnxruntime
from packaging.version import Version

ORACLE = Version("1.32")

if Version(onnxruntime.__version__) < ORACLE:
    print(f"runs are not compared with onnxruntime {onnxruntime.__version__}: an oracle older than {ORACLE}")
    collect_ignore_glob = ["test_*.py"]
