"""An error at every line of opgraft that runs while a session is made, run and dropped.

    python tests/faults/lines.py [--every 1]

Wherever it strikes, the user gets an exception or the right answer, nothing is left behind, and the next session works.
"""

from __future__ import annotations

import faulthandler
import gc
import itertools
import linecache
import os
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "unit")]

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402
import pytest  # noqa: E402
from injection import KINDS, X, Y, errors_of, installed, living, model  # noqa: E402

import opgraft  # noqa: E402
from opgraft.engine import compiled  # noqa: E402
from opgraft.ops import FLOATS, op  # noqa: E402

ROOTS = tuple(str(Path(module.__file__).parent) + os.sep for module in (opgraft, __import__("opgraft_ops")))
RUNS = 5
"""So many runs are recorded, traced and replayed."""
CLOSING = "struck"
SECONDS = 60
"""A life that takes longer hangs."""

RELEASES = {"_release_ep", "release_provider", "_release_node_compute_infos", "_release", "_destroy", "release"}
"""Functions that let go of something: nothing but Ctrl-C can end them early, and then they are called again."""

Line: TypeAlias = tuple[CodeType, int]


@op("acme::Twice", dtypes=FLOATS)
def twice(X: Any) -> Any:
    return X + X


twice.schema()
MODEL = model().SerializeToString()

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "traced": {"trace": os.devnull, "log_declined": True},
    "on_error=cpu": {"on_error": "cpu"},
    "unverified": {"verify": False},
}


def life(options: dict[str, Any]) -> None:
    """A session from its options to its end.

    Raises:
        AssertionError: an answer is wrong.
    """
    settings = opgraft.session_options(device="cpu", **options)
    settings.log_severity_level, settings.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(MODEL, settings, enable_fallback=0)
    for _ in range(RUNS):
        np.testing.assert_allclose(session.run(None, {"x": X})[0], Y, rtol=1e-5)
    del session
    gc.collect()


def lines_of(function: Callable[[], None]) -> list[Line]:
    """The lines of opgraft that run in a call, each once, in the order in which they first do."""
    seen: dict[Line, None] = {}

    def note(frame: FrameType) -> None:
        seen[frame.f_code, frame.f_lineno] = None

    with_lines(note, function)
    return list(seen)


def with_lines(look: Callable[[FrameType], None], function: Callable[[], None]) -> None:
    """Call a function, and `look` at each line of opgraft before it runs; once that raises, at no more."""

    def at(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            look(frame)
        return at

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return at if frame.f_code.co_filename.startswith(ROOTS) else None

    sys.settrace(enter)
    try:
        function()
    finally:
        sys.settrace(None)


def strike(line: Line, kind: str, options: dict[str, Any]) -> str:
    """What comes of an error at a line: "right", or the name of the exception that the user meets.

    Raises:
        AssertionError: something is wrong afterwards.
    """
    before = living()
    struck: list[BaseException] = []

    def look(frame: FrameType) -> None:
        if (frame.f_code, frame.f_lineno) == line and not struck:
            struck.append(KINDS[kind]())
            raise struck[0]

    met = errors_of(lambda: with_lines(look, lambda: life(options)))
    gc.enable()  # a strike at the very line that does it leaves it undone
    outcome = type(met[0]).__name__ if met else "right"
    assert outcome != "AssertionError", str(met[0])
    assert struck, "the line did not run"
    met.clear()
    struck.clear()
    left = living()
    assert left == before, f"{outcome}, and left behind: {left} in place of {before}"
    life(options)
    return outcome


def told(line: Line) -> str:
    code, number = line
    return f"{'/'.join(Path(code.co_filename).parts[-3:])}:{number} ({code.co_name})"


def can_fail(kind: str, line: Line) -> bool:
    """False where such an error cannot come: in releases, and once a callback has done all that it does."""
    code, number = line
    if linecache.getline(code.co_filename, number).strip() == "return OK":
        return False
    return kind == "KeyboardInterrupt" or code.co_name not in RELEASES


def attempts(way: str) -> list[tuple[str, Line]]:
    """Every kind of error at every line where it can come."""
    opgraft.register()
    for _ in range(2):
        life(WAYS[way])
    lines = lines_of(lambda: life(WAYS[way]))
    return [attempt for attempt in itertools.product(KINDS, lines) if can_fail(*attempt)]


def campaign(way: str, first: int, every: int, last: Path | None = None) -> tuple[Counter[str], list[str]]:
    """Strike at each of a way's attempts: how many came out how, and what is wrong.

    Args:
        way: one of `WAYS`.
        first, every: the first attempt, and how many to go on from one to the next.
        last: a file that gets the number of the attempt at hand.
    """
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    with installed(twice), pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "LEAST_BUILDING", 0.0)
        tried = attempts(way)
        gc.collect()
        gc.freeze()  # what is there already need not be looked through each time
        for number in range(first, len(tried), every):
            kind, line = tried[number]
            if last is not None:
                last.write_text(f"{number} {kind} at {told(line)}")
                faulthandler.dump_traceback_later(SECONDS, exit=True)
            try:
                outcomes[strike(line, kind, WAYS[way])] += 1
            except Exception as error:
                wrong.append(f"{way}: {kind} at {told(line)}: {error}")
        gc.unfreeze()
    faulthandler.cancel_dump_traceback_later()
    return outcomes, wrong


def work(way: str, first: int, every: int, last: str) -> int:
    """A campaign in this process."""
    onnxruntime.set_default_logger_severity(4)
    outcomes, wrong = campaign(way, first, every, Path(last))
    print("\n".join([*wrong, f"{way}: {CLOSING} {outcomes.total()}: {dict(outcomes)}, {len(wrong)} wrong"]), flush=True)
    return min(len(wrong), 1)


def in_processes(way: str, every: int) -> Iterator[str]:
    """What a campaign says, in as many processes as it ends with."""
    first = 0
    with tempfile.TemporaryDirectory() as folder:
        while True:
            last = Path(folder, "last")
            command = [sys.executable, __file__, "--every", str(every), "--work", way, str(first), str(last)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            yield done.stdout
            if done.returncode in (0, 1) and CLOSING in done.stdout:
                return
            number, at = last.read_text().split(" ", 1)
            yield f"{way}: {at}: the process ended with {done.returncode}\n{done.stderr[-1500:]}\n"
            first = int(number) + every


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=13, help="strike at each so many-th line and kind")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--work", nargs=3, help="used by the command itself")
    asked = parser.parse_args()
    if asked.work:
        way, first, last = asked.work
        return work(way, int(first), asked.every, last)
    began, wrong = time.monotonic(), 0
    for way in asked.ways.split(","):
        for text in in_processes(way, asked.every):
            print(text, end="", flush=True)
            wrong += sum(" at " in line for line in text.splitlines())
    print(f"{wrong} wrong, {time.monotonic() - began:.0f} s")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
