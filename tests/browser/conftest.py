"""The tests here share models with the unit tests and the benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "unit"), str(ROOT / "bench")]
