"""Runs ONNX's node cases in child processes, so that a crash costs one case: `make conformance`.

python tests/conformance/run.py                  # all; writes docs/coverage.md and raises the floor
python tests/conformance/run.py --check          # all; fails where a case of the floor is no longer right
python tests/conformance/run.py Conv MaxPool     # those that hold an operator; prints what is not right
"""

from __future__ import annotations

import argparse
import collections
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from node_cases import CLASSES, Verdict, cases, operators_of

FLOOR = Path(__file__).with_name("floor.txt")
COVERAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
SECONDS_A_CASE = 60


def run(names: Sequence[str], workers: int = 2) -> dict[str, Verdict]:
    """The verdict of each case."""
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        todo.put(name)
    verdicts: dict[str, Verdict] = {}
    threads = [threading.Thread(target=_work, args=(todo, verdicts)) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: verdicts[name] for name in names}


def _work(todo: queue.SimpleQueue[str], verdicts: dict[str, Verdict]) -> None:
    child: subprocess.Popen[str] | None = None
    while True:
        try:
            name = todo.get_nowait()
        except queue.Empty:
            break
        child = child or _child()
        answer = _ask(child, name)
        if answer is None:
            child.wait()
            operators = tuple(dict.fromkeys(operators_of(cases()[name].model.graph)))
            answer = Verdict(name, "crash", f"the process ended with status {child.returncode}", operators)
            child = None
        verdicts[name] = answer
    if child is not None and child.stdin is not None:
        child.stdin.close()
        child.wait()


def _child() -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).with_name("node_cases.py"))]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
    )


def _ask(child: subprocess.Popen[str], name: str) -> Verdict | None:
    """The child's verdict, or None where it died or took too long (it is killed then)."""
    assert child.stdin is not None
    assert child.stdout is not None
    timer = threading.Timer(SECONDS_A_CASE, child.kill)
    timer.start()
    try:
        child.stdin.write(name + "\n")
        child.stdin.flush()
        for line in child.stdout:
            if line.startswith("{"):
                fields = json.loads(line)
                return Verdict(fields["case"], fields["kind"], fields["detail"], tuple(fields["operators"]))
    except BrokenPipeError:
        pass
    finally:
        timer.cancel()
    return None


def counts(verdicts: Iterable[Verdict]) -> str:
    """How many cases are in each class, as text."""
    found = collections.Counter(verdict.kind for verdict in verdicts)
    return ", ".join(f"{found[kind]} {kind}" for kind in CLASSES if found[kind])


def main() -> int:
    parser = argparse.ArgumentParser(description="Run ONNX's node cases on the execution provider.")
    parser.add_argument("operators", nargs="*", help="only the cases that hold one of these operators")
    parser.add_argument("--check", action="store_true", help="compare with the floor; write nothing")
    arguments = parser.parse_args()
    started = time.perf_counter()
    wanted = {name if "::" in name else f"ai.onnx::{name}" for name in arguments.operators}
    names = [name for name, case in cases().items() if not wanted or wanted & set(operators_of(case.model.graph))]
    verdicts = run(names)
    bad = [verdict for verdict in verdicts.values() if verdict.kind in ("wrong", "error", "crash")]
    shown = verdicts.values() if wanted else bad
    for verdict in shown:
        if verdict.kind != "right":
            print(f"{verdict.kind:9} {verdict.case}: {verdict.detail}")
    print(f"{len(names)} cases: {counts(verdicts.values())} ({time.perf_counter() - started:.0f} s)")
    if wanted:
        return 0
    right = {verdict.case for verdict in verdicts.values() if verdict.kind == "right"}
    floor = set(FLOOR.read_text().split()) if FLOOR.exists() else set()
    lost = sorted(floor - right)
    for name in lost:
        print(f"no longer right: {name}: {verdicts[name].detail if name in verdicts else 'no such case'}")
    if not arguments.check and not lost:
        from coverage_page import page

        FLOOR.write_text("\n".join(sorted(floor | right)) + "\n")
        COVERAGE.parent.mkdir(exist_ok=True)
        COVERAGE.write_text(page(list(verdicts.values())))
    return 1 if lost or bad else 0


if __name__ == "__main__":
    sys.exit(main())
