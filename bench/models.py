"""The six real models of tests/models: session creation and runs, on the EP and on the CPU EP.

`models.py all` claims whatever can run, `models.py fastest` what wins.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from turns import medians, tell

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "models"))
from zoo import MODELS, RealModel

from opgraft.sessions import open_cpu_session, open_session


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    found = function()
    return found, time.perf_counter() - began


def measured(model: RealModel, options: dict[str, str]) -> dict[str, Any]:
    path = model.path()
    open_session(path, options)  # whatever a process does but once
    opened, ep_session = timed(lambda: open_session(path, options))
    cpu, cpu_session = timed(lambda: open_cpu_session(path))
    _, feeds = model.inputs(1)[0]
    pairs = zip(opened.session.run(None, feeds), cpu.run(None, feeds), strict=True)
    difference = max(float(np.abs(found - expected).max() / np.abs(expected).max()) for found, expected in pairs)
    sides = {"ep": lambda: opened.session.run(None, feeds), "cpu": lambda: cpu.run(None, feeds)}
    row = {"model": model.name, **medians(sides), "difference": difference}
    return row | {"ep_session": ep_session, "cpu_session": cpu_session, "device": opened.coverage.device}


def main() -> None:
    placement = sys.argv[1] if sys.argv[1:] else "all"
    options = {} if placement == "all" else {"placement": placement}
    tell([measured(model, options) for model in MODELS])


if __name__ == "__main__":
    main()
