"""Ctrl-C, wherever it comes: KeyboardInterrupt within seconds, nothing left behind, and the next run works."""

from __future__ import annotations

import pytest
from host_models import run_script

SETUP = """
import gc, os, random, signal, threading, time
import host_models, numpy as np
import opgraft
from host_models import model_of, open_session
from injection import errors_of, living
from onnx import helper, parser

x = np.ones((2, 4), np.float32)
small = host_models.add_model()
text = '''<ir_version: 10, opset_import: ["": 21]>
    g (float[n, n] x, int64 turns) => (float[n, n] y) {
        y = Loop(turns, "", x) <body = b (int64 i, bool c, float[n, n] a) => (bool d, float[n, n] e)
            { d = Identity(c)  h = MatMul(a, a)  e = Tanh(h) }> }'''
turning = parser.parse_model(text)
nodes = [helper.make_node("Tanh", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(600)]
long = model_of(nodes, {"v0": (1, ["N", 4])}, {"v600": (1, ["N", 4])})
squares = [helper.make_node("MatMul", [f"v{i}"] * 2, [f"v{i + 1}"], name=f"n{i}") for i in range(40)]
heavy = model_of(squares, {"v0": (1, ["N", "N"])}, {"v40": (1, ["N", "N"])})

def works():
    assert (open_session(small).run(None, {"x": x, "y": x})[0] == 2).all()

def interrupted(seconds, work):
    over = threading.Event()

    def press():
        wait = seconds
        while not over.wait(wait):
            os.kill(os.getpid(), signal.SIGINT)
            wait = 3  # where it comes in a callback of a weak reference, Python loses it, and a user presses again

    def begin():
        sender.start()
        work()

    def end():
        over.set()
        sender.join()
        time.sleep(0.01)

    sender = threading.Thread(target=press)
    began = time.monotonic()
    met = errors_of(begin)
    late = time.monotonic() - began - seconds
    for _ in range(2):
        errors_of(end)
    return any(isinstance(error, KeyboardInterrupt) for error in met), late

def forever(work):
    while True:
        work()

works()
before = living()
"""

CASES = {
    "a loop, step by step": ("looping.run(None, {'x': x[:2, :2], 'turns': np.array(10**7)})", {"OPGRAFT_COMPILE": "0"}),
    "a loop, compiled": ("looping.run(None, {'x': x[:2, :2], 'turns': np.array(10**7)})", {}),
    "runs that compute long": ("forever(lambda: heavily.run(None, {'v0': wide}))", {}),
    "sessions being made": ("forever(lambda: open_session(long))", {}),
    "sessions that try what is faster": ("forever(lambda: open_session(long, {'placement': 'fastest'}))", {}),
    "reports": ("forever(lambda: opgraft.report(long))", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_ctrl_c(case: str) -> None:
    work, environment = CASES[case]
    result = run_script(
        f"""
{SETUP}
looping, heavily, wide = open_session(turning), open_session(heavy), np.zeros((256, 256), np.float32)
held = living()
seen = [interrupted(seconds, lambda: {work}) for seconds in (0.2, 0.35, 0.5)]
print([came for came, _ in seen], max(late for _, late in seen) < 5)
print(living() == held, living())
works()
del looping, heavily
print(living() == before)
""",
        environment=environment,
    )
    lines = result.stdout.splitlines()
    assert lines[:1] == ["[True, True, True] True"], result.stdout + result.stderr
    assert lines[1].startswith("True"), lines
    assert lines[2:] == ["True"], lines


def test_ctrl_c_at_any_moment_leaves_nothing() -> None:
    """A hundred times, while sessions are made, run and dropped."""
    result = run_script(
        f"""
{SETUP}
generator = random.Random(0)
seen = [interrupted(generator.random() / 20, lambda: forever(works))[0] for _ in range(100)]
print(all(seen), living() == before, living())
works()
"""
    )
    assert (result.returncode, result.stdout[:9]) == (0, "True True"), result.stdout + result.stderr
