"""Building the kernels, which takes a few seconds, once: MLX keeps them among the machine's temporary files.

Nobody's first run is to wait for that. So it is done when asked for, and the pack declines everything until then.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from functools import cache
from pathlib import Path
from typing import Final

import mlx.core as mx

from . import functions
from .kernels import in_pieces

VERSION: Final[str] = mx.__version__  # type: ignore[attr-defined]

TEMPORARY: Final = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")
"""The variables that MLX looks at, in this order, for where temporary files are."""

COMMAND: Final = "python -m opgraft_cpu_math build"


def obstacle() -> str | None:
    """What keeps the kernels from being used, and what to do about it; None where nothing does."""
    if not _mark().exists():
        return f"its kernels are not built on this machine: {COMMAND}"
    return _missing()


def build() -> None:
    """Have all kernels built that are not.

    Raises:
        RuntimeError: they cannot be, with the reason.
    """
    reason = _missing()
    if reason is not None:
        raise RuntimeError(reason)
    with mx.stream(mx.cpu):
        mx.eval([in_pieces(function, mx.ones(64)) for function in functions.EVERY])
    _mark().touch()


def _missing() -> str | None:
    if "MLX_DISABLE_COMPILE" in os.environ:
        return "MLX_DISABLE_COMPILE is set, and MLX fuses no kernels"
    return None if _has_compiler() else "MLX fuses kernels with g++, which is not installed"


@cache
def _has_compiler() -> bool:
    return shutil.which("g++") is not None


def _mark() -> Path:
    """An empty file that stands for the kernels. It lies beside them, so that it goes when they go."""
    temporary = next(filter(None, map(os.environ.get, TEMPORARY)), "/tmp")
    return Path(temporary, "mlx", VERSION, "cpu", f"opgraft_cpu_math_{_fingerprint()}")


@cache
def _fingerprint() -> str:
    """What tells the kernels of this version of the pack from those of others."""
    return hashlib.sha256(Path(functions.__file__).read_bytes()).hexdigest()[:16]
