"""Work that no run waits for, in one thread that lasts."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from functools import cache
from queue import SimpleQueue
from typing import Final, TypeAlias

Job: TypeAlias = Callable[[], None]

_WAIT_SECONDS: Final = 30.0
"""How long the end of the process waits for the job at hand: MLX must not be taken away from under it."""


class _Worker(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="opgraft-background", daemon=True)
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.stopping = False

    def run(self) -> None:
        while (job := self.jobs.get()) is not None and not self.stopping:
            job()
            del job

    def stop(self) -> None:
        self.stopping = True
        self.jobs.put(None)
        self.join(_WAIT_SECONDS)


@cache
def _worker() -> _Worker:
    worker = _Worker()
    worker.start()
    atexit.register(worker.stop)
    return worker


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_worker.cache_clear)


def later(job: Job) -> None:
    """Do a job, which raises nothing, after those that were asked for before."""
    _worker().jobs.put(job)
