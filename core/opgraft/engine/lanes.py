"""Lanes: MLX streams of opgraft's own, each lent to one run at a time."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any, ClassVar, Final

import mlx.core as mx

from opgraft.errors import ProcessError

_STREAMS: Final = {"cpu": (mx.cpu,), "gpu": (mx.cpu, mx.gpu)}


class Lane:
    """A stream of each kind that a device needs, as a context: what MLX is asked for while it lasts is done in them."""

    made: ClassVar[bool] = False
    """True once there is one in this process."""

    def __init__(self, device: str) -> None:
        Lane.made = True
        self.device = device
        self._contexts: tuple[Any, ...] = tuple(
            mx.stream(mx.new_thread_unsafe_stream(kind)) for kind in _STREAMS[device]
        )

    def __enter__(self) -> Lane:
        for context in self._contexts:
            context.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*error)
        _free[self.device].append(self)


_free: Final[dict[str, list[Lane]]] = {device: [] for device in _STREAMS}
_here = threading.local()
_forked = False


def _after_fork() -> None:
    global _forked
    _forked = Lane.made
    if _forked:
        _exit_at_once()


def _exit_at_once() -> None:
    """Have this process end with its status as soon as Python has ended and what is written has been flushed. What the
    libraries would do then, MLX's above all, is wait for threads that did not come along."""
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "on_exit"):  # glibc's, which tells the status
        library.on_exit(library._exit, None)
        library.__cxa_atexit(library.fflush, None, None)  # the last one goes first


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def require_threads() -> None:
    """Make sure that MLX's threads are there.

    Raises:
        ProcessError: this process was forked from one in which there were lanes: MLX's threads did not come along, and
            whatever were asked of it would never be done.
    """
    if _forked:
        raise ProcessError(
            "MLX does not work in a process forked from one that has used it: start it with multiprocessing's 'spawn' "
            "or 'forkserver', or make the first session after the fork"
        )


def lane(device: str) -> Lane:
    """A lane that nobody else uses until its context ends.

    A thread's default streams would do the same work, but each of them holds an operating system's thread, and MLX
    keeps it after the thread that it was made for. Of lanes there are as many as there were ever runs at once. An array
    that is yet to be computed belongs to its lane: it must be evaluated before the context ends.

    Args:
        device: "cpu" or "gpu".

    Raises:
        ProcessError: see `require_threads`.
    """
    require_threads()
    free: list[Lane] = _free[device]
    last: Lane = getattr(_here, device, None)  # type: ignore[assignment]
    try:
        free.remove(last)  # MLX's traces are of a thread and a stream: the one that it had has them
    except ValueError:
        try:
            last = free.pop()
        except IndexError:
            last = Lane(device)
        setattr(_here, device, last)
    return last
