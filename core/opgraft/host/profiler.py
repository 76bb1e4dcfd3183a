"""OrtEpProfilerImpl: what a session records, in ONNX Runtime's own profile (from 1.25 on)."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, ClassVar, Final

from opgraft.host._ep import ffi, lib
from opgraft.host.status import OK, callback, check
from opgraft.host.structures import own
from opgraft.tracing import Event, Kept, Listener, Session, clean

_KERNEL: Final = 2
"""The category of the events; "Node" is what ONNX Runtime calls those that span one of its nodes."""

_UNSAFE: Final = str.maketrans({'"': "'", "\\": "/"})
"""ONNX Runtime writes texts into its JSON as they are."""


class Profiler(Listener):
    """The Python side of one OrtEpProfilerImpl. It listens from the start of a profile to its end."""

    live: ClassVar[dict[Any, Profiler]] = {}

    def __init__(self, session: Session) -> None:
        self.session = session
        self._kept = Kept()
        self._zero = 0
        self._lock = threading.RLock()
        self.pointer = own(lib.new_OrtEpProfilerImpl())

    def release(self) -> None:
        try:
            self._stop()
        finally:
            Profiler.live.pop(self.pointer, None)

    def start(self, offset: int) -> None:
        """A profile began `offset` nanoseconds ago."""
        self._zero = perf_counter_ns() - offset
        self._stop()
        self.session.listeners.append(self)

    def take(self, events: Sequence[Event], lasting: bool) -> None:
        with self._lock:
            self._kept.add(events, lasting)

    def end(self, container: Any) -> None:
        """Put all events into ONNX Runtime's container, the earliest first."""
        self._stop()
        with self._lock:
            kept, self._kept = self._kept, Kept()
        made: list[Any] = []
        try:
            for event in sorted(kept.events, key=lambda event: event.started):
                if event.took is not None and event.started >= self._zero:
                    made.append(self._event(event, event.took))
            if made:  # ONNX Runtime takes no empty list
                events = ffi.new("const OrtProfilingEvent *[]", made)
                check(lib.ep_ProfilingEventsContainer_AddEvents(container, events, len(made)))
        finally:
            for each in made:
                lib.ep_ReleaseProfilingEvent(each)

    def _event(self, event: Event, took: int) -> Any:
        texts = {"category": event.category, **event.arguments}
        keys = [ffi.new("char[]", _bytes(key)) for key in texts]
        values = [ffi.new("char[]", _bytes(_text(value))) for value in texts.values()]
        made = ffi.new("OrtProfilingEvent **")
        check(
            lib.ep_CreateProfilingEvent(
                _KERNEL,
                os.getpid(),
                event.thread,
                _bytes(f"opgraft {event.name}"),
                (event.started - self._zero) // 1000,
                took // 1000,
                ffi.new("const char *[]", keys),
                ffi.new("const char *[]", values),
                len(texts),
                made,
            )
        )
        return made[0]

    def _stop(self) -> None:
        if self in self.session.listeners:
            self.session.listeners.remove(self)


def _text(value: Any) -> str:
    return "; ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _bytes(text: str) -> bytes:
    """Text that ends no string of JSON, whether or not ONNX Runtime sees to that itself."""
    safe = "".join(sign if sign.isprintable() else "?" for sign in clean(text).translate(_UNSAFE))
    return safe.encode("utf-8", "replace")


@callback("OrtEpProfilerImpl_StartProfiling")
def _start_profiling(this: Any, offset: int) -> Any:
    Profiler.live[this].start(offset)
    return OK


@callback("OrtEpProfilerImpl_EndProfiling")
def _end_profiling(this: Any, container: Any) -> Any:
    Profiler.live[this].end(container)
    return OK


@callback("OrtEpProfilerImpl_Release")
def _release(this: Any) -> None:
    if this in Profiler.live:
        Profiler.live[this].release()
