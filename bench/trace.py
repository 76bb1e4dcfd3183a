"""What it costs a run that it could be traced, where nobody asks for a trace; and what a trace and a digest cost.

`make bench-trace` runs a tiny model, turn by turn, with the looks at whether somebody listens and without them: in the
same functions, from whose code they are taken out. Exit status 1 where they cost more than the limit, 2 where the clock
is too unsteady to say.
"""

from __future__ import annotations

import ast
import inspect
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib.resources import files
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime

import opgraft
from opgraft.engine import told
from opgraft.engine.compiled import Compiler
from opgraft.engine.frame import Frame
from opgraft.engine.program import Program
from opgraft.host.compute import Computation
from opgraft.sessions import sample_inputs
from opgraft.tracing import Listener, listening

LIMIT_PERCENT = 1.0
TURNS = 60
WARM_UPS = 30
RUNS_A_TURN = 100
ATTEMPTS = 5

TINY = """<ir_version: 10, opset_import: ["":21]> g (float[2,4] x, float[2,4] y) => (float[2,4] z) { z = Add(x, y) }"""

HOOKED: tuple[FunctionType, ...] = (
    Computation.run,
    Program.run,
    Program.execute_steps,
    Frame.on_host,
    Frame._brought,
    Compiler._replay,
    told.evaluate,
)  # type: ignore[assignment]


class _Unhooked(ast.NodeTransformer):
    """Nobody listens: what is asked about it is answered before the function is compiled."""

    def __init__(self) -> None:
        self.found = 0

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        name = node.left.attr if isinstance(node.left, ast.Attribute) else getattr(node.left, "id", "")
        if name != "recording" or ast.unparse(node.comparators[0]) != "None":
            return self.generic_visit(node)
        self.found += 1
        return ast.Constant(isinstance(node.ops[0], ast.Is))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        if ast.unparse(node.values[-1]) != "everywhere":
            return self.generic_visit(node)
        self.found += 1
        return ast.Constant(False)


def without_hooks(function: FunctionType) -> CodeType:
    """The code of a function without its looks at whether somebody listens."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    unhooked = _Unhooked()
    changed = ast.fix_missing_locations(unhooked.visit(tree))
    if not unhooked.found:
        raise RuntimeError(f"{function.__qualname__} looks at nothing: this benchmark must be told of the change")
    names: dict[str, Any] = {}
    future = __import__("__future__").annotations.compiler_flag
    exec(compile(changed, "<unhooked>", "exec", flags=future), function.__globals__, names)
    code: CodeType = names[function.__name__].__code__
    return code


def compared(prepare: Sequence[Callable[[], None]], run: Callable[[], object]) -> list[float]:
    """The seconds of a run on each side, turn by turn: of each turn its fastest run, and the median of those.

    Args:
        prepare: what turns to each side.
        run: a run.
    """
    seconds: list[list[float]] = [[] for _ in prepare]
    for turn in range(TURNS):
        for side in range(len(prepare)) if turn % 2 else reversed(range(len(prepare))):
            prepare[side]()
            for _ in range(WARM_UPS):  # Python compiles what it calls often anew
                run()
            seconds[side].append(min(timed(run) for _ in range(RUNS_A_TURN)))
    return [statistics.median(each) for each in seconds]


def timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> int:
    model = onnx.parser.parse_model(TINY).SerializeToString()
    session = onnxruntime.InferenceSession(model, opgraft.session_options())
    x = np.ones((2, 4), np.float32)

    def run() -> object:
        return session.run(None, {"x": x, "y": x})

    hooked = [function.__code__ for function in HOOKED]
    unhooked = [without_hooks(function) for function in HOOKED]

    def use(codes: list[CodeType]) -> Callable[[], None]:
        def prepare() -> None:
            for function, code in zip(HOOKED, codes, strict=True):
                function.__code__ = code

        return prepare

    for _ in range(ATTEMPTS):
        same, without, with_hooks = compared([use(unhooked), use(unhooked), use(hooked)], run)
        cost, noise = 100 * (with_hooks / without - 1), 100 * (same / without - 1)
        print(
            f"a run of one Add: {1e6 * without:.2f} µs without hooks, {1e6 * with_hooks:.2f} µs with them: {cost:+.2f}%"
        )
        print(f"without hooks once more: {noise:+.2f}%, which is what the clock makes of nothing")
        if abs(noise) < LIMIT_PERCENT / 2:
            break
    else:
        print("this machine is too busy to tell")
        return 2
    use(hooked)()
    for name, seconds, listened in told_costs():
        print(f"{name}: {1e3 * seconds:.2f} ms, and {1e3 * listened:.2f} ms while somebody listens")
    print(f"limit: {LIMIT_PERCENT:.0f}%")
    return 0 if cost <= LIMIT_PERCENT else 1


def told_costs() -> list[tuple[str, float, float]]:
    """What listening costs a real model."""
    session = onnxruntime.InferenceSession(str(files("opgraft") / "demo" / "detector.onnx"), opgraft.session_options())
    feeds = sample_inputs(session, {"batch": 1, "height": 160, "width": 160}).inputs
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(40):
        for side in (0, 1) if turn % 2 else (1, 0):
            with listening(Listener()) if side else nullcontext():
                times[side].append(timed(lambda: session.run(None, feeds)))
    return [("the detector", statistics.median(times[0]), statistics.median(times[1]))]


if __name__ == "__main__":
    sys.exit(main())
