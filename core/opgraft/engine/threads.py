"""Threads that trace: how deep they may go, and that they must have ended altogether before the process does.

MLX keeps traces for each thread, and drops them when the thread has ended, for which it needs Python. A thread counts
as ended for Python a little earlier: a process that exits in between aborts (mlx 0.32.4, Python 3.11).
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import time
from pathlib import Path
from typing import Final

_WAIT_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.001
_TASKS: Final = Path("/proc/self/task")
_USUAL_STACK: Final = 2**20
_LARGE_ATTRIBUTES: Final = 1024

_native: set[int] = set()
_here = threading.local()


def may_trace() -> bool:
    """Whether the current thread is one of Python's. Others, like those of ONNX Runtime's pools, may end when Python
    already has."""
    return not isinstance(threading.current_thread(), threading._DummyThread)


def stack_size() -> int:
    """The bytes of the current thread's stack; as many as are usual where the system does not tell."""
    found: int | None = getattr(_here, "stack_size", None)
    if found is None:
        found = _here.stack_size = _read_stack_size() or _USUAL_STACK
    return found


def _read_stack_size() -> int:
    library = ctypes.CDLL(None)
    size, start, attributes = ctypes.c_size_t(), ctypes.c_void_p(), ctypes.create_string_buffer(_LARGE_ATTRIBUTES)
    library.pthread_self.restype = ctypes.c_void_p
    own = ctypes.c_void_p(library.pthread_self())
    if hasattr(library, "pthread_get_stacksize_np"):  # macOS
        library.pthread_get_stacksize_np.restype = ctypes.c_size_t
        return int(library.pthread_get_stacksize_np(own))
    if not hasattr(library, "pthread_getattr_np") or library.pthread_getattr_np(own, attributes):
        return 0
    library.pthread_attr_getstack(attributes, ctypes.byref(start), ctypes.byref(size))
    library.pthread_attr_destroy(attributes)
    return size.value


def note_tracing_thread() -> None:
    """The current thread has traces from now on."""
    if not hasattr(_here, "noted"):
        _here.noted = True
        _native.add(threading.get_native_id())


@atexit.register
def _wait_for_ended_threads() -> None:
    alive = {thread.native_id for thread in threading.enumerate()}
    ended = _native - alive
    if not _TASKS.exists():  # another system, which does not tell: a moment is enough
        time.sleep(10 * _PAUSE_SECONDS if ended else 0)
        return
    until = time.monotonic() + _WAIT_SECONDS
    while any(Path(_TASKS, str(native)).exists() for native in ended) and time.monotonic() < until:
        time.sleep(_PAUSE_SECONDS)
