"""Whether MLX may fuse kernels while it traces.

On a GPU, fusing is what compiling is for. On the CPU each new fused kernel costs most of a second of C++ compiler, and
gains little: there, traces are replayed without it. MLX has that mode, and no name for it in Python.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import mlx.core as mx

_WITHOUT_FUSING: Final = 2
_WITH_EVERYTHING: Final = 3
_SET_COMPILE_MODE: Final = "_ZN3mlx4core16set_compile_modeENS0_11CompileModeE"


def traces_repay(device: str) -> bool:
    """False where OPGRAFT_COMPILE=0 turns traces off, and on the CPU where this MLX cannot make them without fusing."""
    return os.environ.get("OPGRAFT_COMPILE", "1") != "0" and (device == "gpu" or _set_compile_mode() is not None)


def can_trace() -> bool:
    """False where somebody has turned `mx.compile` off, so that it calls the function each time."""
    calls: list[mx.array] = []

    def function(x: mx.array) -> mx.array:
        calls.append(x)
        return x

    compiled = mx.compile(function)
    for _ in range(2):
        compiled(mx.zeros(()))
    return len(calls) == 1


@contextmanager
def tracing_on(device: str) -> Iterator[None]:
    """What is traced while the context lasts is fused as is good on `device`. The mode is the process's: what other
    threads happen to trace meanwhile is not fused either."""
    set_mode = _set_compile_mode() if device == "cpu" else None
    if set_mode is None:
        yield
        return
    set_mode(_WITHOUT_FUSING)
    try:
        yield
    finally:
        set_mode(_WITH_EVERYTHING)


@cache
def _set_compile_mode() -> Callable[[int], Any] | None:
    """MLX's function of that name; None where this MLX has none, or its library is elsewhere."""
    for library in Path(mx.__file__).parent.glob("lib/libmlx.*"):
        try:
            return ctypes.CDLL(str(library), os.RTLD_NOLOAD | os.RTLD_NOW)[_SET_COMPILE_MODE]
        except (OSError, AttributeError):
            continue
    return None
