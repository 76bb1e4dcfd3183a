"""A fast BLAS for MLX's CPU device on Linux, whose wheels are linked with the reference BLAS.

`scipy-openblas32` carries OpenBLAS with names of its own, `scipy_cblas_sgemm` and so on; `_blas.c` hands MLX's calls on
to it. A product of two float32 matrices of 1024 x 1024 is then 30 times faster. It must be done before MLX is loaded.
"""

from __future__ import annotations

import ctypes
import os
import sys
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from opgraft.switches import chosen

SWITCH = "OPGRAFT_BLAS"
"""The environment variable that says which BLAS MLX is to use: `openblas` or `mlx`, its own."""


_SPINNING: Final = "OPENBLAS_THREAD_TIMEOUT"
_SHORT: Final = "14"
"""The power of two of processor cycles that a thread spins for."""


class Blas(Enum):
    """Which BLAS MLX's CPU device uses, and why."""

    OPENBLAS = "OpenBLAS"
    SWITCHED_OFF = f"MLX's own, since {SWITCH} says so"
    NOT_INSTALLED = 'MLX\'s own, which may be slow: pip install "opgraft[cpu]" brings OpenBLAS'
    TOO_LATE = "MLX's own, since MLX was imported before opgraft, which may be slow: import opgraft first"
    ANOTHER_SYSTEM = "MLX's own"


def prefer_openblas() -> Blas:
    """Have MLX multiply matrices with OpenBLAS, where that can be had."""
    if not sys.platform.startswith("linux"):
        return Blas.ANOTHER_SYSTEM
    if not chosen(SWITCH, {"openblas": True, "mlx": False}, True):
        return Blas.SWITCHED_OFF
    library, forwarder = _openblas(), find_spec("opgraft._blas")
    if library is None or forwarder is None or forwarder.origin is None:
        return Blas.NOT_INSTALLED
    if "mlx.core" in sys.modules:
        return Blas.TOO_LATE
    openblas = _loaded(library)
    names = ("sgemm", "dgemm", "cgemm", "sgemv", "dgemv")
    ctypes.CDLL(forwarder.origin, ctypes.RTLD_GLOBAL).forward_to(*(openblas[f"scipy_cblas_{name}"] for name in names))
    return Blas.OPENBLAS


def _loaded(library: Path) -> ctypes.CDLL:
    """OpenBLAS, whose threads read these settings of the environment when it is loaded. Left alone, they go on spinning
    for 20 ms after each product, and take processors from what comes next."""
    given = os.environ.get(_SPINNING)
    os.environ.setdefault(_SPINNING, _SHORT)
    try:
        return ctypes.CDLL(str(library))
    finally:
        if given is None:
            del os.environ[_SPINNING]


def _openblas() -> Path | None:
    """The library in the package scipy-openblas32, which is found without being imported."""
    package = find_spec("scipy_openblas32")
    if package is None or package.origin is None:
        return None
    return next(iter(sorted(Path(package.origin).parent.glob("lib/libscipy_openblas*.so*"))), None)


in_use = prefer_openblas()
"""What came of it in this process."""
