"""What is recorded of one session, from its making to its end."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

from opgraft.tracing.digest import MAKING, Digest
from opgraft.tracing.events import EAGER, Event, Listener, Recording, hand_over, untold

everywhere: list[Listener] = []
"""These listen to every session."""


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """`listener` gets what happens in any session, in whatever thread, while the context lasts."""
    everywhere.append(listener)
    try:
        yield
    finally:
        everywhere.remove(listener)


class Session:
    """Where the events of one session go. Without listeners it costs next to nothing.

    Args:
        listeners: those of this session alone.
    """

    _numbers: ClassVar[itertools.count[int]] = itertools.count(1)

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self.listeners = list(listeners)
        self.number = next(Session._numbers)
        self.name = f"session {self.number}"
        self._making: Recording | None = None
        self._thread = threading.get_native_id()
        self._began = self._last = time.perf_counter_ns()
        self._made = False
        self._user_runs: dict[int, int] = {}

    def call(self, name: str) -> None:
        """Give the session the name of its graph."""
        if name:
            self.name = f"session {self.number} ({name})"

    @property
    def digests(self) -> list[Digest]:
        """The digests among the listeners."""
        return [each for each in self.listeners if isinstance(each, Digest)]

    @property
    def watched(self) -> bool:
        """Whether anybody listens."""
        return bool(self.listeners or everywhere)

    @contextmanager
    def making(self, name: str) -> Iterator[None]:
        """One step of the session's making; what `span` gives while it lasts is inside it."""
        if not self.watched:
            yield
            return
        recording = Recording(self._everybody(), name, "session", {"session": self.name}, lasting=True)
        try:
            with recording:
                self._making = recording
                yield
                recording.root.arguments["session"] = self.name
        finally:
            self._making = None
            self._last = time.perf_counter_ns()

    def span(self, name: str, category: str, **arguments: Any) -> AbstractContextManager[Any]:
        """A context that is timed as a part of the step of the session's making that is under way, if there is one."""
        return (untold if self._making is None else self._making.span)(name, category, **arguments)

    def made(self) -> None:
        """The session is made: a span of its own over all steps of that."""
        self._last = time.perf_counter_ns()
        self._tell_making()

    def run(self, name: str) -> Recording:
        """The recording of one run of a subgraph, in this thread."""
        self._tell_making()
        return Recording(self._everybody(), f"run {name}", "run", {"session": self.name, "path": EAGER})

    def user_run_began(self) -> None:
        """A run of the whole session begins in this thread."""
        self._user_runs[threading.get_native_id()] = time.perf_counter_ns()

    def user_run_ended(self) -> None:
        """The run of the whole session that began in this thread is over."""
        thread = threading.get_native_id()
        began = self._user_runs.pop(thread, None)
        if began is not None:
            self._tell("session.run", "session.run", began, time.perf_counter_ns(), thread, lasting=False)

    def end(self) -> None:
        """The session is gone, or the interpreter is about to be."""
        self._tell_making()
        for listener in self.listeners:
            listener.session_ended()

    def _everybody(self) -> Sequence[Listener]:
        return (*self.listeners, *everywhere)

    def _tell_making(self) -> None:
        if not self._made:
            self._made = True
            self._tell(MAKING, "session", self._began, self._last, self._thread, lasting=True)

    def _tell(self, name: str, category: str, began: int, ended: int, thread: int, *, lasting: bool) -> None:
        event = Event(name, category, began, ended - began, 0, thread, {"session": self.name})
        hand_over(self._everybody(), [event], lasting)
