"""Whether MLX fuses kernels in what it traces, and when.

A fused kernel must be compiled once: by nvcc's library on an NVIDIA GPU, by g++ on the CPU, where it takes most of a
second and gains little. So traces are made without fusing first, which costs nothing; on a GPU a trace that stays in
use is made again with it, in the background. MLX can trace without fusing, and has no name for it in Python.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Final

import mlx.core as mx

from opgraft.files import own_folder
from opgraft.mlx_library import mlx_function, mlx_version
from opgraft.switches import chosen

_log = logging.getLogger("opgraft")

SWITCH: Final = "OPGRAFT_COMPILE"
"""The environment variable: 0 for no traces, `fused` for fused ones from the start; otherwise as is good."""

_WITHOUT_FUSING: Final = 2
_WITH_EVERYTHING: Final = 3
_SET_COMPILE_MODE: Final = "_ZN3mlx4core16set_compile_modeENS0_11CompileModeE"

_mode = threading.RLock()
"""Held while something is traced: the mode is the process's. What a translator runs meanwhile may be traced too."""

_modes: list[int] = [_WITH_EVERYTHING]
"""The modes of the traces that are being made, one inside the other; first MLX's own."""


class Fusing(Enum):
    """When the kernels of a trace are fused."""

    NEVER = "never"
    LATER = "later"
    AT_ONCE = "at once"


def fusing_on(device: str) -> Fusing | None:
    """When kernels are fused on a device; None where nothing is to be traced."""
    switch = chosen(SWITCH, {"off": "off", "on": "on", "fused": "fused"}, "on")
    if switch == "off":
        return None
    if switch == "fused" and (device == "gpu" or _keeps_kernels_to_itself()):
        return Fusing.AT_ONCE
    if device == "gpu":
        return Fusing.AT_ONCE if mx.metal.is_available() or mlx_function(_SET_COMPILE_MODE) is None else Fusing.LATER
    return None if mlx_function(_SET_COMPILE_MODE) is None else Fusing.NEVER


@cache
def _keeps_kernels_to_itself() -> bool:
    """Whether nobody else can write where MLX keeps the kernels that it compiles for the CPU, and loads them from: a
    folder of everybody's, by names that can be foreseen."""
    folder = Path(tempfile.gettempdir(), "mlx", mlx_version())
    if own_folder(folder):
        return True
    _log.warning("%s=fused is passed over: %s, where MLX keeps kernels, is not this user's alone", SWITCH, folder)
    return False


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
def tracing(*, fuses: bool) -> Iterator[None]:
    """What is traced while the context lasts has its kernels fused or not; so has what others trace meanwhile.

    Where somebody has turned `mx.compile` off, it stays off.
    """
    set_mode = None if fuses else mlx_function(_SET_COMPILE_MODE)
    with _mode:
        if set_mode is None or not can_trace():
            yield
            return
        _modes.append(_WITHOUT_FUSING)
        set_mode(_WITHOUT_FUSING)
        try:
            yield
        finally:
            _modes.pop()
            set_mode(_modes[-1])
