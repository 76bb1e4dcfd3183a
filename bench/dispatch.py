"""What asking the packs costs with 1, 10 and 100 of them installed, per node: when a session is made, and in a run.

`make bench-dispatch` prints a table. Exit status 1 where a node costs more than the limit.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import mlx.core as mx
from rich.console import Console
from rich.table import Table

from opgraft.graph import Graph, Node, Value
from opgraft.ops import Context, Handler, hookimpl, op
from opgraft.registry import Pack, Registry, parse_policy

LIMIT_MICROSECONDS = 20.0
PACKS = (1, 10, 100)
REPEATS = 2000
ROUNDS = 7


def handler(name: str, *, declines: bool = False) -> Handler:
    made = op(name, dtypes={"int8"} if declines else None)(lambda X, *, alpha=1.0: X)
    return made


class Wrapper:
    """A wrapper of every operator."""

    operators = ("*::*",)

    @hookimpl(wrapper=True)
    def translate(self, ctx: Context, node: Node) -> object:
        return (yield)


def others(count: int) -> Registry:
    """Packs with operators of their own: nobody but one knows the node's."""
    packs = [Pack(f"pack{index}", plugins=(handler(f"own{index}::Op"),)) for index in range(count - 1)]
    return registry([Pack("target", plugins=(handler("Op"),)), *packs])


def rivals(count: int) -> Registry:
    """Packs that all know the node's operator, and decline its element type, but for the last."""
    packs = [Pack(f"pack{index:03}", plugins=(handler("Op", declines=True),)) for index in range(count - 1)]
    return registry([*packs, Pack("target", plugins=(handler("Op"),))])


def wrappers(count: int) -> Registry:
    """The same as `others`, and one more that wraps every operator."""
    return registry([*others(count).packs, Pack("wrapper", plugins=(Wrapper(),))])


def registry(packs: list[Pack]) -> Registry:
    return Registry(packs, parse_policy("packs: [target]", "registry.yaml"))


def node() -> Node:
    x, y = Value("x", "float32", (2, 3)), Value("y", "float32", (2, 3))
    made = Node("n", "Op", "ai.onnx", 1, (x,), (y,), {"alpha": 2.0})
    Graph("g", (x,), (y,), (made,), {}, {"ai.onnx": 21})
    return made


def microseconds(call: Callable[[], object]) -> float:
    """The median of several rounds, each the mean of many calls."""
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(REPEATS):
            call()
        rounds.append((time.perf_counter() - started) / REPEATS * 1e6)
    return statistics.median(rounds)


def claim_cost(known: Registry) -> float:
    return microseconds(partial(known.claim, node()))


def translate_cost(known: Registry) -> float:
    asked, x = node(), mx.zeros((2, 3))
    candidate = known.claim(asked).candidate
    assert candidate is not None
    context = Context(
        asked, [x], device="cpu", cache={}, constant=[False], bodies={}, random_key=lambda: mx.random.key(0)
    )
    return microseconds(partial(candidate.translate, ctx=context, node=asked))


def main() -> int:
    table = Table(title="Microseconds a node", title_justify="left")
    for heading in ("packs installed", "claim", "claim, all know the operator", "translate", "translate, one wraps it"):
        table.add_column(heading, justify="right")
    worst = 0.0
    for count in PACKS:
        costs = [claim_cost(others(count)), claim_cost(rivals(count))]
        costs += [translate_cost(others(count)), translate_cost(wrappers(count))]
        worst = max(worst, costs[0], costs[2])
        table.add_row(str(count), *(f"{cost:.1f}" for cost in costs))
    Console(width=100).print(table)
    print(f"limit: {LIMIT_MICROSECONDS:.0f} µs a node; the worst of claim and translate is {worst:.1f} µs")
    return 0 if worst <= LIMIT_MICROSECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
