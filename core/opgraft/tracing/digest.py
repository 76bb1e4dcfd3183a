"""What a session did, in a few lines for stderr."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from opgraft.console import console
from opgraft.text import printable, size_text
from opgraft.tracing.events import Event, Listener, complain

SLOWEST: Final = 10
"""So many nodes are listed."""

_PHASES: Final = {
    "input": "reading inputs",
    "build": "build",
    "replay": "replaying",
    "trace": "tracing",
    "evaluate": "evaluation",
    "output": "writing outputs",
    "run": "the rest",
}
"""Where the time of a run goes, by the category of what took it."""

_STEPS: Final = {
    "load": "loading packs, MLX",
    "read": "reading graphs",
    "claim": "claims",
    "verify": "verifying them",
    "partition": "partitioning",
    "compile": "compiling",
    "session": "the rest",
}
"""The same for the making of a session."""

MAKING: Final = "make the session"
"""The name of the span over all of a session's making."""


@dataclass(slots=True)
class NodeTimes:
    """Nanoseconds of one node in all runs, without those of the nodes in its bodies."""

    times: int = 0
    build: int = 0
    evaluate: int = 0

    @property
    def total(self) -> int:
        return self.build + self.evaluate


@dataclass
class Tally:
    """What a digest counts. Times are in nanoseconds.

    Attributes:
        session, device: the session's name, and where it runs.
        nodes, claimed, subgraphs: of its model, those of bodies included.
        made: the time of the session's making, and in `making` where of it opgraft's went, by category.
        session_runs: how often the whole session ran.
        paths: runs of subgraphs by the way they went.
        failed: those that an error ended.
        phases: time of the runs by what took it.
        bytes_in, bytes_out: what the runs read and wrote in ONNX Runtime's memory.
        peak: the most bytes that MLX held.
        by_node: by node, operator and pack.
    """

    session: str = "session"
    device: str = ""
    nodes: int = 0
    claimed: int = 0
    subgraphs: int = 0
    made: int = 0
    making: Counter[str] = field(default_factory=Counter)
    session_runs: int = 0
    paths: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    bytes_in: int = 0
    bytes_out: int = 0
    peak: int = 0
    by_node: dict[tuple[str, str, str], NodeTimes] = field(default_factory=dict)


class Digest(Listener):
    """Adds up what a session does, and says it on stderr when the session ends.

    Args:
        each_alone: see `Listener.each_alone`.
    """

    def __init__(self, *, each_alone: bool = False) -> None:
        self.each_alone = each_alone
        self.tally = Tally()
        self._lock = threading.RLock()
        self._told = False

    def place(self, session: str, device: str, nodes: int, claimed: int, subgraphs: int) -> None:
        """Say what was claimed, all told."""
        tally = self.tally
        tally.session, tally.device = session, device
        tally.nodes, tally.claimed, tally.subgraphs = nodes, claimed, subgraphs

    def take(self, events: Sequence[Event], lasting: bool) -> None:
        with self._lock:
            for event in events:
                if lasting:
                    self._take_making(event)
                elif event.category == "session.run":
                    self.tally.session_runs += 1
                elif event.took is None:
                    self.tally.peak = max(self.tally.peak, event.arguments["peak"])
                else:
                    self._take_span(event)

    def _take_making(self, event: Event) -> None:
        if event.name == MAKING:
            self.tally.made = event.took or 0
        else:
            self.tally.making[event.category] += event.own

    def _take_span(self, event: Event) -> None:
        tally, arguments = self.tally, event.arguments
        tally.phases[event.category] += event.own
        if event.category == "run":
            tally.paths[arguments["path"]] += 1
            tally.failed += "error" in arguments
            tally.bytes_in += arguments.get("bytes_in", 0)
            tally.bytes_out += arguments.get("bytes_out", 0)
        elif "node" in arguments:
            key = (arguments["node"], arguments["operator"], arguments["pack"])
            times = tally.by_node.setdefault(key, NodeTimes())
            if event.category == "build":
                times.times += 1
                times.build += event.own
            else:
                times.evaluate += event.own

    def session_ended(self) -> None:
        if self._told or sys.stderr is None:
            return
        self._told = True
        try:
            console(stderr=True).print(rendered(self.tally, alone=self.each_alone))
        except Exception as error:  # a closed stderr, or an encoding that lacks a character
            complain(f"the digest cannot be shown: {error}")


def rendered(tally: Tally, *, alone: bool) -> RenderableType:
    """A digest.

    Args:
        tally: what was counted.
        alone: whether each node was computed by itself, so that its evaluation is known.
    """
    parts: list[RenderableType] = [Text(printable(line)) for line in _lines(tally)]
    if tally.by_node:
        measured = "build and evaluation, each computed by itself" if alone else "build"
        parts += [Text(f"the slowest nodes by {measured}, in ms of all runs:"), _slowest(tally, alone)]
    return Group(*parts)


def _lines(tally: Tally) -> Iterator[str]:
    if not tally.nodes:
        yield f"opgraft: {tally.session}: no node was shown to the EP"
        return
    yield (
        f"opgraft: {tally.session}: {tally.claimed} of {tally.nodes} nodes on the EP "
        f"({100 * tally.claimed / tally.nodes:.1f}%), subgraphs: {tally.subgraphs}, device: {tally.device}"
    )
    steps = ", ".join(f"{words} {_ms(tally.making[category])}" for category, words in _STEPS.items())
    yield f"session made in {_ms(tally.made)} ms: {steps}, ONNX Runtime {_ms(tally.made - tally.making.total())}"
    runs = sum(tally.paths.values())
    if not runs:
        yield "no subgraph ran"
        return
    paths = ", ".join(f"{count} {path}" for path, count in tally.paths.most_common())
    failed = f", of which {tally.failed} failed" if tally.failed else ""
    asked = f" in {tally.session_runs} runs of the session" if tally.session_runs else ""
    yield f"runs of subgraphs: {paths}{failed}{asked}"
    whole = sum(tally.phases.values())
    where = ", ".join(
        f"{words} {_ms(tally.phases[category])} ({100 * tally.phases[category] / whole:.0f}%)"
        for category, words in _PHASES.items()
    )
    yield f"time in them: {_ms(whole)} ms: {where}"
    crossed = f"{size_text(tally.bytes_in)} in, {size_text(tally.bytes_out)} out"
    yield f"bytes: {crossed}; MLX held {size_text(tally.peak)} at most"


def _slowest(tally: Tally, alone: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("node", overflow="fold", max_width=40)
    table.add_column("operator", overflow="fold")
    table.add_column("pack", overflow="fold")
    for heading in ("times", "build", *(("evaluation",) if alone else ())):
        table.add_column(heading, justify="right")
    slowest = sorted(tally.by_node.items(), key=lambda each: -each[1].total)[:SLOWEST]
    for names, times in slowest:
        numbers = [str(times.times), _ms(times.build), *([_ms(times.evaluate)] if alone else [])]
        table.add_row(*(Text(printable(name)) for name in names), *numbers)
    return table


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.2f}"
