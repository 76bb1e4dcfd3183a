"""Processes that end, fork, or lack what a process usually has, while sessions are made and run."""

from __future__ import annotations

import os
import sys

import pytest
from host_models import run_script

SETUP = """
import atexit, gc, os, sys, threading, time
import host_models, numpy as np, onnxruntime
import opgraft, opgraft.host as host
x = np.ones((2, 4), np.float32)
model = host_models.add_model()

def opened():
    return host_models.open_session(model)

def run(session):
    assert (session.run(None, {"x": x, "y": x})[0] == 2).all()

session = opened()
run(session)
"""

BUSY = {
    "runs": "run(session)",
    "sessions": "run(opened())",
    "options": "opgraft.session_options(device='cpu')",
    "registering": "opgraft.register()",
    "runs in parallel": "run(parallel)",
    "runs in the background": "parallel.run_async(None, {'x': x, 'y': x}, lambda *result: done.release(), None); "
    "done.acquire(timeout=1)",
    "errors": "session.run(None, {'x': x, 'y': np.ones((3, 4), np.float32)})",
}
"""What threads may be at when the interpreter ends."""


@pytest.mark.parametrize(
    ("work", "daemon"),
    [*((work, True) for work in BUSY), *((work, False) for work in ("sessions", "runs in parallel"))],
)
def test_the_interpreter_ends_under_threads(work: str, daemon: bool) -> None:
    """The process ends with status 0, soon. A thread may say that the interpreter is shutting down."""
    result = run_script(
        f"""
{SETUP}
settings = opgraft.session_options()
settings.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
settings.inter_op_num_threads = settings.intra_op_num_threads = 2
settings.log_severity_level = 4
parallel = onnxruntime.InferenceSession(model.SerializeToString(), settings)
done = threading.Semaphore(0)

def work():
    while {daemon} or time.monotonic() < until:
        try:
            {BUSY[work]}
        except Exception:
            pass

until = time.monotonic() + 0.5
for _ in range(4):
    threading.Thread(target=work, daemon={daemon}).start()
time.sleep(0.3)
atexit.register(lambda: print(time.monotonic() - until < 3))
"""
    )
    assert (result.returncode, result.stdout) == (0, "True\n"), result.stderr
    assert "Fatal" not in result.stderr


def test_unregistering_under_threads() -> None:
    """Sessions that are there go on, and the library is let go of with the last of them."""
    result = run_script(
        f"""
{SETUP}
from opgraft.host.factory import Factory

def work(session):
    while not done:
        run(session)

done = False
threads = [threading.Thread(target=work, args=(opened(),)) for _ in range(4)]
for thread in threads:
    thread.start()
host.unregister()
time.sleep(0.2)
done = True
for thread in threads:
    thread.join()
del threads, thread, session
gc.collect()
print(len(Factory.live))
run(opened())
"""
    )
    assert (result.returncode, result.stdout) == (0, "0\n"), result.stderr


def test_a_thread_that_the_end_waits_for_gets_an_error() -> None:
    """One that runs on when callbacks have ended already, because an exit function waits for it."""
    result = run_script(
        f"""
import atexit
atexit.register(lambda: (thread.join(60), print(thread.is_alive(), said)))
{SETUP}
said = []

def work():
    try:
        while True:
            run(session)
    except Exception as error:
        said.append("shutting down" in str(error))

thread = threading.Thread(target=work, daemon=True)
thread.start()
time.sleep(0.2)
"""
    )
    assert (result.returncode, result.stdout) == (0, "False [True]\n"), result.stderr


ENDINGS = {"returns": ("pass", 0), "exits": ("sys.exit(7)", 7), "raises": ("raise ValueError", 1)}
"""How a process ends, and with what status."""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the C library does not tell the status")
@pytest.mark.parametrize(("ending", "threads"), [*((ending, 0) for ending in ENDINGS), ("exits", 3)])
def test_a_forked_process_ends(ending: str, threads: int) -> None:
    """After a run, with what it has written; neither runs nor sessions are to be had in it."""
    statement, status = ENDINGS[ending]
    result = run_script(
        f"""
{SETUP}
import ctypes

def work():
    while True:
        run(session)

for _ in range({threads}):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
child = os.fork()
if not child:
    for attempt in (lambda: run(session), lambda: run(opened())):
        try:
            attempt()
        except Exception as error:
            sys.stdout.write(str("spawn" in str(error)) + " ")
    ctypes.CDLL(None).printf(b"in C")
    {statement}
else:
    until = time.monotonic() + 20
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < until:
        time.sleep(0.01)
    if not ended[0]:
        os.kill(child, 9)
    print("", os.waitstatus_to_exitcode(ended[1]) if ended[0] else "hangs", time.monotonic() < until - 15)
    run(session)
"""
    )
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split()) == sorted(f"True True in C {status} True".split()), result.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_of_multiprocessing(method: str, tmp_path: object) -> None:
    script = f"{tmp_path}/main.py"
    with open(script, "w") as file:
        file.write(f"""
import multiprocessing
{SETUP}
def work(number):
    try:
        run(opened())
        return "right"
    except Exception as error:
        return "spawn" in str(error)

if __name__ == "__main__":
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        print(pool.map(work, range(4)))
    run(session)
""")
    result = run_script(f"import runpy, sys; sys.argv = [{script!r}]; runpy.run_path({script!r}, run_name='__main__')")
    expected = [True] * 4 if method == "fork" else ["right"] * 4
    assert (result.returncode, result.stdout) == (0, f"{expected}\n"), result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="file descriptors are another matter there")
@pytest.mark.parametrize("closing", ["os.close({})", "setattr(sys, 'std' + ('in', 'out', 'err')[{}], None)"])
def test_without_standard_streams(closing: str, tmp_path: object) -> None:
    """Whatever is to be said on them, a session works."""
    result = run_script(
        f"""
import os, sys
{"; ".join(closing.format(number) for number in range(3))}
{SETUP}
options = opgraft.session_options(log_declined=True)
options.log_severity_level = 2
run(onnxruntime.InferenceSession(model.SerializeToString(), options))
try:
    session.run(None, {{"x": x, "y": np.ones((3, 4), np.float32)}})
except Exception as error:
    assert "node 'sum'" in str(error)
open({f"{tmp_path}/done"!r}, "w").close()
""",
        environment={"OPGRAFT_VERBOSE": "1", "OPGRAFT_CLAIM_DEBUG": "1", "OPGRAFT_DEBUG": "1"},
    )
    assert os.path.exists(f"{tmp_path}/done"), result.stderr


def test_sessions_in_cycles_are_collected_at_any_moment() -> None:
    """One runs once more as it goes, in whatever thread the collector comes upon it, inside of whatever callback."""
    result = run_script(
        f"""
{SETUP}
from injection import living

class Holder:
    def __init__(self):
        self.me, self.session = self, opened()

    def __del__(self):
        run(self.session)
        gone.append(threading.get_ident())

gone = []
before = living()
gc.set_threshold(50, 2, 2)

def work():
    for _ in range(20):
        Holder()
        run(session)
        opened()

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
gc.collect()
print(len(gone), living() == before, living())
"""
    )
    assert (result.returncode, result.stdout[:7]) == (0, "80 True"), result.stdout + result.stderr
