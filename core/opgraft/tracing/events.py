"""Events, and the recording of them: spans that nest, and numbers at a moment."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeAlias

from opgraft.errors import text_of
from opgraft.text import printable

HANDED_OVER: Final = 4096
"""Of a long run, so many events at once go to the listeners: a run itself holds no more."""

EAGER: Final = "eager"
HIT: Final = "compiled hit"
MISS: Final = "compiled miss"
RETRACE: Final = "retrace"

PATHS: Final = (EAGER, HIT, MISS, RETRACE)
"""The ways of a run: step by step; replayed from a trace; not yet, since it came in a form that is new; and traced in a
further form."""

SpanMaker: TypeAlias = Callable[..., AbstractContextManager[Any]]
"""`span(name, category, **arguments)`, as a recording has it: gives a context, which is what is timed."""


class Event(NamedTuple):
    """What took time, or numbers at a moment.

    Attributes:
        name: what happened, as in "build Conv".
        category: its kind. Of a session's making: "session", and in it "load", "read", "claim", "verify", "partition"
            and "compile". Of runs: "session.run", "run", and in it "input", "build", "replay", "trace", "evaluate" and
            "output". "memory" for numbers.
        started: when, in nanoseconds of `time.perf_counter_ns`.
        took: nanoseconds; None for numbers.
        own: those of them that no span inside it took.
        thread: the operating system's number of the thread.
        arguments: whatever else there is to say.
    """

    name: str
    category: str
    started: int
    took: int | None
    own: int
    thread: int
    arguments: Mapping[str, Any]


class Listener:
    """Whoever wants the events of a session."""

    each_alone = False
    """Whether runs are to compute each node before the next is translated: slower, but each by itself."""

    def take(self, events: Sequence[Event], lasting: bool) -> None:
        """Events of one thread, inner ones before outer ones. `lasting` ones, of a session's making, are few."""

    def session_ended(self) -> None:
        """The session is gone, or the interpreter is about to be."""


class Span:
    """A context, which is what is timed. `arguments` may grow while it lasts; an error that ends it is added.

    Once it is over, `took` has its nanoseconds.
    """

    __slots__ = ("_inside", "_recording", "_started", "arguments", "category", "name", "took")

    def __init__(self, recording: Recording, name: str, category: str, arguments: dict[str, Any]) -> None:
        self._recording = recording
        self._inside = 0
        self.took = 0
        self.name = name
        self.category = category
        self.arguments = arguments

    def __enter__(self) -> Span:
        self._recording.open.append(self)
        self._started = time.perf_counter_ns()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        took = self.took = time.perf_counter_ns() - self._started
        recording = self._recording
        recording.open.pop()
        if recording.open:
            recording.open[-1]._inside += took
        if error is not None:
            self.arguments["error"] = text_of(error)
        recording.add(
            Event(self.name, self.category, self._started, took, took - self._inside, recording.thread, self.arguments)
        )


class Recording:
    """A context in one thread, itself a span, and the spans and numbers in it. They go to the listeners when it ends,
    or earlier where they are many.

    Args:
        listeners: who gets them.
        name, category, arguments: those of the span around all others.
        lasting: see `Listener.take`.
    """

    def __init__(
        self,
        listeners: Sequence[Listener],
        name: str,
        category: str,
        arguments: dict[str, Any],
        *,
        lasting: bool = False,
    ) -> None:
        self.listeners = listeners
        self.root = Span(self, name, category, arguments)
        self.thread = threading.get_native_id()
        self.lasting = lasting
        self.open: list[Span] = []
        self.overhead = 0
        """Nanoseconds that the telling of steps took: whoever times steps leaves them out."""
        self._events: list[Event] = []

    @property
    def each_alone(self) -> bool:
        """See `Listener.each_alone`."""
        return any(listener.each_alone for listener in self.listeners)

    def span(self, name: str, category: str, **arguments: Any) -> Span:
        """A context that is timed, inside those that are open."""
        return Span(self, name, category, arguments)

    def count(self, name: str, **numbers: int) -> None:
        """Numbers as they are at this moment."""
        self.add(Event(name, "memory", time.perf_counter_ns(), None, 0, self.thread, numbers))

    def took(self, path: str, key: str | None = None) -> None:
        """Say which way a part of a run went. The run went the last of these ways that any part of it did.

        Args:
            path: one of `PATHS`.
            key: the values that made it go there, as in "x: float32[2, 3]".
        """
        told = self.root.arguments
        if PATHS.index(path) > PATHS.index(told.get("path", EAGER)):
            told["path"] = path
            if key is not None:
                told["key"] = key

    def add(self, event: Event) -> None:
        self._events.append(event)
        if not self.open or len(self._events) >= HANDED_OVER:
            events, self._events = self._events, []
            hand_over(self.listeners, events, self.lasting)

    def __enter__(self) -> Recording:
        self.root.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.root.__exit__(kind, error, at)


def hand_over(listeners: Sequence[Listener], events: Sequence[Event], lasting: bool) -> None:
    """Give events to all listeners; one that fails is no reason for a run to fail."""
    for listener in listeners:
        try:
            listener.take(events, lasting)
        except Exception as error:
            complain(f"{type(listener).__name__} failed: {text_of(error)}")


def untold(name: str, category: str, **arguments: Any) -> AbstractContextManager[None]:
    """A `SpanMaker` for when nobody listens."""
    return nullcontext()


_complaints: set[str] = set()


def complain(text: str) -> None:
    """Say something on stderr, once: tracing goes wrong quietly, and breaks nothing."""
    if text in _complaints:
        return
    _complaints.add(text)
    tell(f"opgraft: tracing: {text}")


def tell(text: str) -> None:
    """A line on stderr, if there is one. Text from a model steers no terminal."""
    with suppress(OSError, ValueError):  # it is closed
        print(printable(text), file=sys.stderr, flush=True)
