"""What MLX does on Linux where there is no memory left.

Where it has the CPU alone, MLX takes what the C library gives it, and where that is nothing, the process ends with the
first element that is written there. MLX's allocator is an object of C++ with a table of its functions: it gets a copy
of the table whose first function raises where it has nothing to give. Which the first one is, is known of some versions
of MLX only.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Final

from opgraft.host._ep import ffi, lib
from opgraft.host.devices import gpu_backend
from opgraft.mlx_library import mlx_function, mlx_version

KNOWN: Final = "0.32."
"""The versions of MLX whose allocator is known."""


@cache
def refuse_what_there_is_no_memory_for() -> bool:
    """Have MLX raise a MemoryError where it cannot have the memory that it needs; False where that is left to MLX.

    It holds for the whole process.
    """
    allocator = mlx_function("_ZN3mlx4core9allocator9allocatorEv")
    is_known = sys.platform.startswith("linux") and mlx_version().startswith(KNOWN) and gpu_backend() is None
    if allocator is None or not is_known:
        return False
    try:
        library = ctypes.CDLL("libstdc++.so.6", os.RTLD_NOLOAD | os.RTLD_NOW)
        raising = ctypes.cast(library["_ZSt17__throw_bad_allocv"], ctypes.c_void_p).value
    except (OSError, AttributeError):  # another C++ library
        return False
    allocator.restype = ctypes.c_void_p
    lib.check_allocations(ffi.cast("void *", allocator()), ffi.cast("void *", raising))
    return True
