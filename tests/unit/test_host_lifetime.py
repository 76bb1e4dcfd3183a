"""Sessions made and dropped in any order and from any thread, and the end of the interpreter with some alive."""

from __future__ import annotations

import gc
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import host_models
import numpy as np
import pytest
from host_models import add_model, open_session, run_script

from opgraft.host.compute import FusedNode
from opgraft.host.ep import ExecutionProvider

ONES = np.ones((2, 4), np.float32)


def run(session: Any) -> None:
    assert (session.run(None, {"x": ONES, "y": ONES})[0] == 2).all()


def counts() -> tuple[int, int]:
    gc.collect()
    return len(ExecutionProvider.live), len(FusedNode.live)


def test_sessions_dropped_in_any_order_leave_nothing() -> None:
    before = counts()
    generator = random.Random(0)
    model = add_model()
    sessions: list[Any] = []
    for _ in range(100):
        sessions.append(open_session(model))
        run(sessions[-1])
        if len(sessions) > 10:
            sessions.pop(generator.randrange(len(sessions)))
    assert counts() == (before[0] + 10, before[1] + 10)
    generator.shuffle(sessions)
    while sessions:
        sessions.pop()
    assert counts() == before


def test_sessions_made_and_dropped_by_eight_threads_leave_nothing() -> None:
    before = counts()
    model = add_model()

    def work(number: int) -> list[Any]:
        kept = []
        for index in range(20):
            session = open_session(model)
            run(session)
            if index % 5 == number % 5:
                kept.append(session)
        return kept

    with ThreadPoolExecutor(8) as pool:
        kept = list(pool.map(work, range(8)))  # and these are dropped by this thread
    assert counts()[0] == before[0] + 32
    del kept
    assert counts() == before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_thousand_sessions_keep_memory_flat() -> None:
    result = run_script(
        """
import gc, os, host_models, numpy as np
model = host_models.model_of(
    [host_models.helper.make_node("Add", ["x", "w"], ["a"]), host_models.helper.make_node("Mul", ["a", "a"], ["z"])],
    {"x": (1, [1, 4096])}, {"z": (1, [1, 4096])}, [host_models.tensor("w", np.ones((1, 4096)))])
x = np.ones((1, 4096), np.float32)

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

kept = []
for number in range(1501):
    session = host_models.open_session(model)
    session.run(None, {"x": x})
    kept.append(session)
    if len(kept) == 8:
        del kept[::2]
    if number == 500:
        before = resident()
print(resident() - before)
"""
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 4 << 20  # the one weight alone, leaked by each session, would be 16 MiB


def test_runs_keep_memory_flat() -> None:
    session = open_session(add_model())
    x = np.ones((1000, 4), np.float32)
    for _ in range(2):
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(500):
            session.run(None, {"x": x, "y": x})
        gc.collect()
        grown = len(gc.get_objects()) - before
    assert grown < 50


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "sys.exit(0)",
        "import gc; gc.disable(); cycle = [session]; cycle.append(cycle); del session",
        "atexit.register(lambda: session)",
        "threading.Thread(target=lambda: [run() for _ in range(200)]).start()",
        "host.unregister()",
    ],
    ids=["alive", "exit", "in a cycle", "held by atexit", "running", "unregistered"],
)
def test_the_interpreter_ends_quietly_with_sessions_alive(ending: str) -> None:
    result = run_script(
        f"""
import atexit, sys, threading, host_models, numpy as np, opgraft.host as host
session = host_models.open_session(host_models.add_model())
other = host_models.open_session(host_models.add_model())
x = np.ones((2, 4), np.float32)
def run(session=session):
    return session.run(None, {{"x": x, "y": x}})
run()
{ending}
"""
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_the_interpreter_ends_quietly_under_daemon_threads() -> None:
    result = run_script(
        """
import threading, time, host_models, numpy as np
session = host_models.open_session(host_models.add_model(shape=(None, 64)))
x = np.ones((500, 64), np.float32)
def forever():
    while True:
        session.run(None, {"x": x, "y": x})
for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.3)
"""
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_run_after_the_end_is_an_error_not_a_crash() -> None:
    """An atexit function registered before opgraft's runs after it."""
    result = run_script(
        """
import atexit
def late():
    try:
        session.run(None, {"x": x, "y": x})
    except Exception as error:
        print(error)
atexit.register(late)
import host_models, numpy as np
session = host_models.open_session(host_models.add_model())
x = np.ones((2, 4), np.float32)
"""
    )
    assert result.returncode == 0, result.stderr
    assert "the Python interpreter is shutting down" in result.stdout


def test_sessions_outlive_the_registration() -> None:
    result = run_script(
        """
import gc, host_models, numpy as np, opgraft.host as host
session = host_models.open_session(host_models.add_model())
host.unregister()
x = np.ones((2, 4), np.float32)
assert (session.run(None, {"x": x, "y": x})[0] == 2).all()
from opgraft.host.factory import Factory
assert len(Factory.live) == 1
del session
gc.collect()
assert not Factory.live
print("done")
"""
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


def test_nothing_is_left_of_this_module() -> None:
    assert host_models.host.observers == []
