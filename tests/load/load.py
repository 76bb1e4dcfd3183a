"""Sessions under load: eight threads, runs by the ten thousand, sessions by the thousand.

    python tests/load/load.py [--share 0.1]

Each campaign has a process of its own. Results must be right all the time, no thread may wait for ever, and memory,
file handles and the tables of what ONNX Runtime holds must be at the end what they were when it was warm.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import onnx.parser
import onnxruntime

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "models")]

from zoo import MODELS  # noqa: E402

import opgraft  # noqa: E402
from opgraft import ort_values  # noqa: E402
from opgraft.allocation import give_back_freed_memory  # noqa: E402
from opgraft.comparison import difference  # noqa: E402
from opgraft.engine.fusing import SWITCH  # noqa: E402
from opgraft.host.compute import FusedNode  # noqa: E402
from opgraft.host.ep import ExecutionProvider  # noqa: E402
from opgraft.sessions import open_cpu_session, source_of  # noqa: E402

THREADS = 8
WARM = 0.5
"""Memory is first looked at after this share of the runs."""
FAR = 1e-4
"""How far a result may be from the CPU execution provider's, relative to its largest magnitude."""
MOST_GROWTH = 16 * 2**20
"""Bytes. What each run or session left behind would be far more by the end, however little it is."""
SECONDS = 3000
"""A campaign that takes longer hangs, and shows where."""

Feeds = dict[str, Any]


class Subject(NamedTuple):
    """A model to load.

    Attributes:
        model: a file or a model in memory.
        feeds: inputs in changing shapes.
        runs: how often each thread runs it.
    """

    model: Callable[[], Any]
    feeds: Callable[[], Sequence[Feeds]]
    runs: int


def _parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')


def small() -> onnx.ModelProto:
    """A gate over rows of any number, reshaped by their own shape."""
    return _parsed(
        """g (float[n, 8] x, float[8, 4] w) => (float[m, 2] y) <int64[2] two = {-1, 2}>
        { h = MatMul(x, w)  r = Relu(h)  s = Sigmoid(h)  p = Mul(r, s)  f = Softmax <axis = 1> (p)
          y = Reshape(f, two) }"""
    )


def branching() -> onnx.ModelProto:
    """As many turns as the input says, each by one of two ways."""
    return _parsed(
        """g (float[n] x, int64 turns, bool grows) => (float[n] y) <float one = {1}>
        { z = Mul(x, one)
          y = Loop(turns, "", z) <body = b (int64 i, bool c, float[n] a) => (bool d, float[n] e)
          { d = Identity(c)
            e = If(grows) <then_branch = t () => (float[n] p) { p = Add(a, one) },
                           else_branch = f () => (float[n] q) { h = Mul(a, a)  q = Tanh(h) }> }> }"""
    )


def small_feeds() -> Iterator[Feeds]:
    generator = np.random.default_rng(0)
    for rows in range(1, 18):
        shapes = {"x": (rows, 8), "w": (8, 4)}
        yield {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def branching_feeds() -> Iterator[Feeds]:
    generator = np.random.default_rng(0)
    for number in range(12):
        x = generator.normal(size=number // 2 + 1).astype(np.float32)
        yield {"x": x, "turns": np.array(number % 5), "grows": np.array(number % 2 == 0)}


def _real(name: str, runs: int) -> Subject:
    model = next(each for each in MODELS if each.name == name)
    return Subject(model.path, lambda: [feeds for _, feeds in model.inputs()], runs)


SUBJECTS = {
    "small": Subject(small, lambda: list(small_feeds()), 10_000),
    "branching": Subject(branching, lambda: list(branching_feeds()), 10_000),
    "silero-vad": _real("silero-vad", 500),
    "ocr-classify": _real("ocr-classify", 100),
}
MADE = ("silero-vad", 1000)
"""The model whose sessions are made and dropped, and how many."""


@dataclass
class Counts:
    """What a campaign came to; bytes that the process and MLX had more at the end than when it was warm."""

    runs: int = 0
    sessions: int = 0
    seconds: float = 0.0
    resident: int = 0
    grown: int = 0
    grown_in_mlx: int = 0
    handles: int = 0
    left: int = 0

    @property
    def faults(self) -> list[str]:
        """What is wrong with it."""
        limits = {"grown": MOST_GROWTH, "grown_in_mlx": MOST_GROWTH, "handles": 2, "left": 0}
        return [f"{name} {found} > {most}" for name, most in limits.items() if (found := getattr(self, name)) > most]


class State(NamedTuple):
    """What the process holds."""

    resident: int
    in_mlx: int
    handles: int
    live: int

    @classmethod
    def now(cls) -> State:
        gc.collect()
        give_back_freed_memory()  # which each thread's part of the C library's heap keeps some of
        live = len(FusedNode.live) + len(ExecutionProvider.live)
        if not sys.platform.startswith("linux"):
            return cls(0, mx.get_active_memory(), 0, live)
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return cls(resident, mx.get_active_memory(), len(os.listdir("/proc/self/fd")), live)


def counted(counts: Counts, warm: State, began: float) -> Counts:
    """The counts, with what has changed since it was warm."""
    end = State.now()
    counts.seconds = round(time.monotonic() - began, 1)
    counts.resident, counts.grown = end.resident, end.resident - warm.resident
    counts.grown_in_mlx, counts.handles = end.in_mlx - warm.in_mlx, end.handles - warm.handles
    return counts


class Run(NamedTuple):
    """Inputs and the outputs that they must give."""

    feeds: Feeds
    expected: list[Any]

    def check(self, session: Any) -> None:
        """Run it.

        Raises:
            AssertionError: an output is wrong.
        """
        for output, expected in zip(ort_values.run(session, self.feeds), self.expected, strict=True):
            far = difference(output, expected)
            assert output.shape == expected.shape and far <= FAR, f"{far} off"


def opened_of(subject: Subject) -> Any:
    options = opgraft.session_options()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(source_of(subject.model()), options)


def expected_of(subject: Subject) -> list[Run]:
    cpu = open_cpu_session(subject.model())
    return [Run(feeds, ort_values.run(cpu, feeds)) for feeds in subject.feeds()]


def pound(name: str, sessions: int, share: float = 1.0) -> Counts:
    """Run a model in threads, all on one session or each on its own."""
    began = time.monotonic()
    subject = SUBJECTS[name]
    runs = expected_of(subject)
    before = State.now().live
    opened = [opened_of(subject) for _ in range(sessions)]
    each = max(int(share * subject.runs), 1)
    counts, warm_runs = Counts(sessions=sessions), max(int(WARM * each), 1)

    def work(number: int, first: int, end: int) -> None:
        session = opened[number % sessions]
        for index in range(first, end):
            runs[(index * (number + 1) + number) % len(runs)].check(session)

    in_threads(work, 0, warm_runs)
    warm = State.now()
    in_threads(work, warm_runs, each)
    counts.runs = THREADS * each
    counts = counted(counts, warm, began)
    opened.clear()
    gc.collect()
    counts.left = State.now().live - before
    return counts


def in_threads(work: Callable[[int, int, int], None], first: int, end: int) -> None:
    """Do work in threads, all at once.

    Raises:
        Exception: the first that one of them raised.
    """
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number, first, end)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def make_and_drop(name: str, number: int, share: float = 1.0) -> Counts:
    """Make sessions one after the other, with up to four alive, and run each once."""
    began = time.monotonic()
    subject, number = SUBJECTS[name], max(int(share * number), 1)
    runs, before = expected_of(subject), State.now().live
    kept: list[Any] = []
    warm = State.now()
    for index in range(number):
        session = opened_of(subject)
        runs[index % len(runs)].check(session)
        kept.append(session)
        if len(kept) == 4:
            del kept[index % 4], kept[0]
        if index == int(WARM * number):
            warm = State.now()
    del session
    counts = counted(Counts(runs=number, sessions=number), warm, began)
    kept.clear()
    counts.left = State.now().live - before
    return counts


KINDS: dict[str, Callable[[str, int, float], Counts]] = {"pound": pound, "make_and_drop": make_and_drop}


def campaigns() -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """Each campaign: what it is called, its environment, and its arguments."""
    for switch, way in (("0", "eager"), ("1", "compiled")):
        for name in SUBJECTS:
            for sessions in (1, THREADS):
                yield f"{name}, {way}, {sessions} sessions", {SWITCH: switch}, ["pound", name, str(sessions)]
    yield "made and dropped", {}, ["make_and_drop", *map(str, MADE)]


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the runs")
    parser.add_argument("--only", default="", help="campaigns whose names contain this")
    parser.add_argument("--work", nargs=3, help="used by the command itself")
    asked = parser.parse_args()
    if asked.work:
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        onnxruntime.set_default_logger_severity(4)
        what, name, number = asked.work
        print(
            json.dumps(asdict({"pound": pound, "make_and_drop": make_and_drop}[what](name, int(number), asked.share)))
        )
        return 0
    tried = failed = runs = 0
    began = time.monotonic()
    for title, environment, arguments in campaigns():
        if asked.only not in title:
            continue
        command = [sys.executable, __file__, "--share", str(asked.share), "--work", *arguments]
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
        counts = Counts(**json.loads(done.stdout)) if done.returncode == 0 else None
        wrong = [f"ended with {done.returncode}: {done.stderr[-2000:]}"] if counts is None else counts.faults
        tried, failed, runs = tried + 1, failed + bool(wrong), runs + (counts.runs if counts else 0)
        print(f"{title}: {counts or ''} {'; '.join(wrong) or 'right'}", flush=True)
    print(f"{tried} campaigns, {runs} runs, {failed} failed, {time.monotonic() - began:.0f} s")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
