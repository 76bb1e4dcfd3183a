"""The tests here share models and scripts with the unit tests."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))


@pytest.fixture(scope="module", autouse=True)
def quick_collection() -> Iterator[None]:
    """What is there already is left out when a test has garbage collected, which it does often."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
