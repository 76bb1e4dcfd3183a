"""Keeps events within bounds, and writes them as a trace that Chrome and Perfetto read."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter_ns, time_ns
from typing import Any, Final

from opgraft.files import write_whole
from opgraft.tracing.events import Event, Listener, complain

MOST_EVENTS: Final = 100_000
"""A trace holds so many events. What is left out are the oldest runs: how a session was made stays."""

LONGEST_TEXT: Final = 300
"""Texts from a model are cut after so many characters."""

_ORIGIN: Final = perf_counter_ns()
_STARTED: Final = datetime.fromtimestamp(time_ns() / 1e9, UTC).isoformat()


class _Chunk:
    """Events that came together, as events or, once they have been written, as text."""

    __slots__ = ("count", "events", "first", "text")

    def __init__(self, events: Sequence[Event]) -> None:
        self.count = len(events)
        self.first = min(event.started for event in events)
        self.events = events
        self.text = ""


class Kept:
    """So many events at most: for what is too much, the oldest runs are left out."""

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self.most = most
        self.left_out = 0
        self._count = 0
        self._lasting: deque[_Chunk] = deque()
        self._passing: deque[_Chunk] = deque()

    def add(self, events: Sequence[Event], lasting: bool) -> None:
        """Keep events; see `Listener.take`."""
        (self._lasting if lasting else self._passing).append(_Chunk(events))
        self._count += len(events)
        while self._count > self.most and len(self._lasting) + len(self._passing) > 1:
            dropped = (self._passing or self._lasting).popleft()
            self._count -= dropped.count
            self.left_out += dropped.count

    @property
    def events(self) -> list[Event]:
        """Those that have not been written."""
        return [event for chunk in self.chunks for event in chunk.events]

    @property
    def chunks(self) -> tuple[_Chunk, ...]:
        return (*self._lasting, *self._passing)

    @property
    def first_run(self) -> int | None:
        """When the oldest run that is kept began."""
        return min((chunk.first for chunk in self._passing), default=None)


class Recorder(Listener):
    """The trace of one file, of however many sessions and threads.

    It is written whenever a session ends, whole: the file is at any time a valid trace or not there yet. What is still
    running then is in the next one.

    Args:
        path: of the file.
        each_alone: see `Listener.each_alone`.
        most: how many events are kept.
    """

    def __init__(self, path: Path, *, each_alone: bool = False, most: int = MOST_EVENTS) -> None:
        self.path = path
        self.each_alone = each_alone
        self.kept = Kept(most)
        self._threads: dict[int, str] = {}
        self._unwritten = False
        self._lock = threading.RLock()  # a session may be collected, and end, at any allocation

    def take(self, events: Sequence[Event], lasting: bool) -> None:
        with self._lock:
            if events[0].thread not in self._threads and events[0].thread == threading.get_native_id():
                self._threads[events[0].thread] = threading.current_thread().name
            self.kept.add(events, lasting)
            self._unwritten = True

    def session_ended(self) -> None:
        with self._lock:
            if self._unwritten:
                self._unwritten = False
                try:
                    write_whole(self.path, self.document(), mode=0o600)  # it tells of the user's data
                except (OSError, ValueError) as error:
                    complain(f"the trace cannot be written to {self.path}: {getattr(error, 'strerror', None) or error}")

    def document(self) -> str:
        """The trace: a JSON object with `traceEvents`, times in microseconds."""
        process = os.getpid()
        descriptions = [json.dumps(event) for event in self._descriptions(process)]
        other = {"producer": "opgraft", "started": _STARTED, "events_left_out": self.kept.left_out}
        body = ",\n".join([*descriptions, *(_text(chunk, process) for chunk in self.kept.chunks)])
        return f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(other)}, "traceEvents": [\n{body}\n]}}\n'

    def _descriptions(self, process: int) -> Iterator[dict[str, Any]]:
        yield _metadata("process_name", process, 0, "opgraft")
        for thread, name in self._threads.items():
            yield _metadata("thread_name", process, thread, name)
        first = self.kept.first_run
        if self.kept.left_out and first is not None:
            name = f"{self.kept.left_out} older events are left out"
            yield {"name": name, "ph": "i", "s": "g", "ts": _microseconds(first - _ORIGIN), "pid": process, "tid": 0}


def _text(chunk: _Chunk, process: int) -> str:
    if chunk.events:
        chunk.text = ",\n".join(json.dumps(chrome_event(event, process)) for event in chunk.events)
        chunk.events = ()
    return chunk.text


def chrome_event(event: Event, process: int) -> dict[str, Any]:
    """An event as the trace has it: a complete one ("X"), or a counter ("C")."""
    shared = {
        "name": clean(event.name),
        "cat": event.category,
        "ts": _microseconds(event.started - _ORIGIN),
        "pid": process,
        "tid": event.thread,
    }
    arguments = {key: clean(value) for key, value in event.arguments.items()}
    if event.took is None:
        return {**shared, "ph": "C", "args": arguments}
    return {**shared, "ph": "X", "dur": _microseconds(event.took), "args": arguments}


def clean(value: Any) -> Any:
    """A value as JSON takes it, in texts of a bearable length."""
    if isinstance(value, Mapping):
        return {clean(str(key)): clean(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [clean(each) for each in value]
    if value is None or isinstance(value, bool | int):
        return value
    text = str(value).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…"


def _metadata(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": clean(name)}}


def _microseconds(nanoseconds: int) -> float:
    return nanoseconds / 1000
