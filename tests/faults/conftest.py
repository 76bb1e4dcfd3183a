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
    """What is there already is left out when a test has garbage collected, which it does often. What others have called
    then is left out too: a Ctrl-C that comes in it would be lost."""
    called = gc.callbacks.copy()
    gc.callbacks.clear()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.callbacks[:] = called
