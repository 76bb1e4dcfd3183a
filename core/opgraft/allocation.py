"""Memory that the C library keeps for MLX's CPU device on Linux.

MLX takes memory for each array from the C library, and gives it back. By default glibc hands large pieces back to the
system at once, and takes them again for the next array, page by page: half of the time of some models.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Final

from opgraft.switches import switched

SWITCH: Final = "OPGRAFT_KEEP_MEMORY"
"""The environment variable that leaves the C library as it is, where it is 0."""

_TRIM_THRESHOLD: Final = (-1, 512 * 2**20)
_MMAP_THRESHOLD: Final = (-3, 32 * 2**20)
"""glibc's numbers for its parameters, and bytes: up to so many are kept when they are free, and pieces up to so large
come from what is kept, which is glibc's own limit."""


@cache
def keep_freed_memory() -> bool:
    """Have the C library keep memory that is given back for what is asked for next; False where it does not.

    It holds for the whole process.
    """
    if not sys.platform.startswith("linux") or not switched(SWITCH, default=True):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return all([mallopt(*_TRIM_THRESHOLD), mallopt(*_MMAP_THRESHOLD)])


def give_back_freed_memory() -> None:
    """Have the C library give back to the system what is free now; elsewhere than with glibc, nothing is done."""
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
