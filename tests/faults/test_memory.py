"""Memory that is not to be had: the run is an error that names the node, and the next one works."""

from __future__ import annotations

import sys

import pytest
from host_models import run_script

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is Linux's")

SCRIPT = """
import gc, resource
import mlx.core as mx, numpy as np, onnx.parser
from host_models import add_model, open_session
from injection import errors_of, living

def parsed(text):
    return onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> ' + text)

x = np.ones((2, 4), np.float32)
session, other = open_session(parsed(TEXT), optimized=False), open_session(add_model())
def works():
    assert (other.run(None, {"x": x, "y": x})[0] == 2).all()
    session.run(None, FEEDS(16))

for _ in range(3):
    works()
before = living(), mx.get_active_memory()
allowed = MORE + resource.getpagesize() * int(open("/proc/self/statm").read().split()[0])
feeds = FEEDS(SIZE)
resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
for _ in range(3):
    met = errors_of(lambda: session.run(None, feeds))
    assert met, "it had the memory after all"
    print(met[0])
    met.clear()
    works()
print((living(), mx.get_active_memory()) == before, living(), mx.get_active_memory())
"""

SIZES = 'lambda n: {"x": np.ones(1, np.float32), "s": np.array([n, n])}'
COLUMNS = 'lambda n: {"x": np.ones((n, 1), np.float32), "w": np.ones((1, n), np.float32)}'
SQUARE = 'lambda n: {"x": np.ones((1, 1, n, n), np.float32), "w": np.ones((8, 1, 3, 3), np.float32)}'

CASES = {
    "an output": (
        "g (float[1] x, int64[2] s) => (float[n, m] y) { e = Expand(x, s)  y = Neg(e) }",
        SIZES,
        10_000,
        "onnxruntime has no place for output 'y', float32[10000, 10000]",
    ),
    "what is within": (
        "g (float[1] x, int64[2] s) => (float y) <int64 z = {0}>"
        "{ e = Expand(x, s)  c = CumSum(e, z)  y = ReduceMax <keepdims = 0> (c) }",
        SIZES,
        10_000,
        "node 'CumSum (-> c)' (ai.onnx::CumSum, version 14) failed in pack 'builtin': MemoryError",
    ),
    "more than there is of it": (
        "g (float[1] x, int64[2] s) => (float y) <int64 z = {0}>"
        "{ e = Expand(x, s)  c = CumSum(e, z)  y = ReduceMax <keepdims = 0> (c) }",
        SIZES,
        2**20,
        "node 'CumSum (-> c)' (ai.onnx::CumSum, version 14) failed in pack 'builtin': MemoryError",
    ),
    "a product": (
        "g (float[a, b] x, float[b, c] w) => (float y) { m = MatMul(x, w)  y = ReduceMax <keepdims = 0> (m) }",
        COLUMNS,
        10_000,
        "node 'MatMul (-> m)' (ai.onnx::MatMul, version 13) failed in pack 'builtin': MemoryError",
    ),
    "a convolution": (
        "g (float[1, 1, a, b] x, float[8, 1, 3, 3] w) => (float y)"
        "{ m = Conv <pads = [1, 1, 1, 1]> (x, w)  y = ReduceMax <keepdims = 0> (m) }",
        SQUARE,
        4000,
        "node 'Conv (-> m)' (ai.onnx::Conv, version 11) failed in pack 'builtin': MemoryError",
    ),
    "a host value": (
        "g (float[1] x, int64[2] s) => (int64 y) <int64[1] one = {1}, int64 z = {0}, int64 o = {1}>"
        "{ p = ReduceProd <keepdims = 0> (s)  r = Range(z, p, o)  c = CumSum(r, z)  y = ReduceMax <keepdims = 0> (c) }",
        SIZES,
        10_000,
        "node 'Range (-> r)' (ai.onnx::Range, version 11) failed in pack 'builtin': MemoryError",
    ),
}
"""Models, what they are fed at a size, a size that is too large, and what the error says."""


@pytest.mark.parametrize(("case", "switch"), [*((case, "1") for case in CASES), ("what is within", "0")])
def test_a_run_without_memory(case: str, switch: str) -> None:
    text, feeds, size, said = CASES[case]
    more = 2**28 if size < 2**20 else 2**50
    script = f"TEXT, FEEDS, SIZE, MORE = {text!r}, {feeds}, {size}, {more}\n{SCRIPT}"
    result = run_script("import numpy as np\n" + script, environment={"OPGRAFT_COMPILE": switch})
    lines = result.stdout.splitlines()
    assert result.returncode == 0, result.stdout + result.stderr
    assert sum(said in line for line in lines) == 3, result.stdout
    assert lines[-1].startswith("True"), lines[-1]


def test_a_session_without_memory() -> None:
    """It cannot be made, and later it can."""
    result = run_script(
        """
import gc, resource
import numpy as np
from host_models import FOLDERS, add_model, model_of, open_session, tensor
from injection import errors_of, living
from onnx import helper

x = np.ones((2, 4), np.float32)
def works():
    assert (open_session(add_model()).run(None, {"x": x, "y": x})[0] == 2).all()

weights = [tensor("w", np.ones((4, 8_000_000)))]
large = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (1, [2, 4])}, {"y": (1, None)}, weights)
source = large.SerializeToString()
works()
before = living()
import onnxruntime, opgraft
used = resource.getpagesize() * int(open("/proc/self/statm").read().split()[0])
outcomes = set()
for megabytes in range(20, 700, 100):
    resource.setrlimit(resource.RLIMIT_AS, (used + megabytes * 2**20, -1))
    made = []
    met = errors_of(lambda: made.append(onnxruntime.InferenceSession(source, opgraft.session_options())))
    outcomes.add(type(met[0]).__name__ if met else "made")
    made.clear()
    met.clear()
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    works()
print(living() == before, "made" in outcomes, len(outcomes) > 1, outcomes)
"""
    )
    assert (result.returncode, result.stdout[:14]) == (0, "True True True"), result.stdout + result.stderr


def test_the_allocator_is_looked_after_once() -> None:
    """By as many threads as may make the first session."""
    result = run_script(
        """
import numpy as np
from host_models import add_model, open_session
from opgraft.host.allocator import refuse_what_there_is_no_memory_for
x = np.ones((2, 4), np.float32)
for _ in range(3):
    print(refuse_what_there_is_no_memory_for.__wrapped__())
    assert (open_session(add_model()).run(None, {"x": x, "y": x})[0] == 2).all()
"""
    )
    assert (result.returncode, result.stdout) == (0, "True\n" * 3), result.stderr
