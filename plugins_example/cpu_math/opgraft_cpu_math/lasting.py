"""A thread that lasts as long as the process, for what MLX keeps for each thread.

MLX keeps the traces of kernels for the thread that made them, and drops them when that has ended, for which it needs
Python. A process that exits at that moment, right after one of its threads, aborts (mlx 0.32.4, Python 3.11).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, wraps
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeAlias, TypeVar

import mlx.core as mx

P = ParamSpec("P")
R = TypeVar("R")

Calls: TypeAlias = SimpleQueue[tuple[Callable[[], Any], Future[Any]]]


def in_lasting_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Have a function called in a thread that lasts, as a decorator: in the caller's where that is the main thread,
    otherwise in one of this module's, on the caller's MLX stream, while the caller waits."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        current = threading.current_thread()
        if current is threading.main_thread() or isinstance(current, _Lasting):
            return function(*args, **kwargs)
        stream = mx.default_stream(mx.default_device())

        def on_stream() -> R:
            with mx.stream(stream):
                return function(*args, **kwargs)

        future: Future[R] = Future()
        _calls().put((on_stream, future))
        return future.result()

    return call


@cache
def _calls() -> Calls:
    thread = _Lasting()
    thread.start()
    return thread.calls


os.register_at_fork(after_in_child=_calls.cache_clear)


class _Lasting(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="opgraft-cpu-math", daemon=True)
        self.calls: Calls = SimpleQueue()

    def run(self) -> None:
        while True:
            call, future = self.calls.get()
            try:
                future.set_result(call())
            except BaseException as error:  # it is the caller's
                future.set_exception(error)
            del call, future  # and so are the arrays
