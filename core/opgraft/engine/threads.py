"""Threads that traced, which must have ended altogether before the process does.

MLX keeps traces for each thread, and drops them when the thread has ended, for which it needs Python. A thread counts
as ended for Python a little earlier: a process that exits in between aborts (mlx 0.32.4, Python 3.11).
"""

from __future__ import annotations

import atexit
import threading
import time
from pathlib import Path
from typing import Final

_WAIT_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.001
_TASKS: Final = Path("/proc/self/task")

_native: set[int] = set()
_here = threading.local()


def may_trace() -> bool:
    """Whether the current thread is one of Python's. Others, like those of ONNX Runtime's pools, may end when Python
    already has."""
    return not isinstance(threading.current_thread(), threading._DummyThread)


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
