"""Runs every cached graph on the execution provider: `python check.py [--option KEY=VALUE ...] [NAME ...]`.

Run by opgraft's environment, after `export.py`. A line for each graph: nodes on the execution provider by ONNX
Runtime's own record, subgraphs, the largest relative difference to the CPU execution provider, and to the framework
that the graph came from. Each graph runs in a process of its own. Exit status 1 where one is wrong, fails or crashes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from graph_cache import Arrays, CachedGraph, cached_graphs

from opgraft.comparison import TOLERANCE, largest_difference
from opgraft.host import EP_NAME
from opgraft.sessions import assignment, open_cpu_session, open_session

LIMIT_SECONDS = 300
HALF_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Result:
    """What a graph does.

    Attributes:
        nodes_on_ep, nodes, subgraphs: by ONNX Runtime's record.
        difference: to the CPU execution provider, the largest of any output at any size; None where that cannot run it.
        framework_difference: to the framework's outputs; None where no framework ran.
        declined: each declined operator with its reason.
        problem: what went wrong, where anything did.
    """

    nodes_on_ep: int = 0
    nodes: int = 0
    subgraphs: int = 0
    difference: float | None = None
    framework_difference: float | None = None
    declined: Sequence[str] = ()
    problem: str | None = None

    @property
    def whole(self) -> bool:
        return self.nodes > 0 and self.nodes_on_ep == self.nodes

    def right(self, tolerance: float) -> bool:
        """Whether the execution provider takes part, and agrees with one of the two; the other one may be wrong."""
        differences = (self.difference, self.framework_difference)
        return self.nodes_on_ep > 0 and any(each is not None and each <= tolerance for each in differences)


def check(graph: CachedGraph, options: Mapping[str, str]) -> Result:
    """Run a graph at every size that it takes."""
    opened = open_session(graph.model, options)
    cpu_session = open_cpu_session(graph.model)
    names = [output.name for output in cpu_session.get_outputs()]
    differences, framework_differences = [], []
    for case in graph.cases():
        outputs = dict(zip(names, opened.session.run(None, case.inputs), strict=True))
        expected: Arrays = {}
        with contextlib.suppress(Exception):  # the CPU execution provider lacks some forms of Attention
            expected = dict(zip(names, cpu_session.run(None, case.inputs), strict=True))
        if expected:
            differences.append(largest_difference(outputs, expected))
        if case.outputs:
            framework_differences.append(largest_difference(outputs, case.outputs))
    assigned = assignment(opened.session)
    ours = assigned.get(EP_NAME, [])
    declined = [
        f"{operator.operator} x{reason.count}: {reason.reason}"
        for operator in opened.coverage.operators
        for reason in operator.reasons
    ]
    return Result(
        sum(ours),
        sum(map(sum, assigned.values())),
        len(ours),
        max(differences, default=None),
        max(framework_differences, default=None),
        declined,
    )


def check_alone(graph: CachedGraph, options: Mapping[str, str]) -> Result:
    """The same in a process of its own, which may crash or never end."""
    command = [sys.executable, __file__, "--alone", f"{graph.name}.{graph.route}"]
    command += [part for key, value in options.items() for part in ("--option", f"{key}={value}")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return Result(problem=f"not done after {LIMIT_SECONDS} s")
    if done.returncode < 0:
        return Result(problem=f"crashed with {signal.Signals(-done.returncode).name}")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return Result(problem=lines[-1])
    return Result(**json.loads(done.stdout.strip().splitlines()[-1]))


def line(graph: CachedGraph, result: Result, right: bool) -> str:
    """A graph and its result, with the reasons for what is declined on lines of their own."""
    start = f"{graph.name:26} {graph.route:15}"
    if result.problem is not None:
        return f"{start} FAILED: {result.problem}"
    cpu, framework = (
        "-" if each is None else f"{each:.1e}" for each in (result.difference, result.framework_difference)
    )
    nodes = f"{result.nodes_on_ep}/{result.nodes}"
    verdict = "" if right else "  WRONG"
    text = f"{start} {nodes:>9} {result.subgraphs:9} {cpu:>10} {framework:>9}{verdict}"
    return "\n".join([text, *(f"    {reason}" for reason in result.declined)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="architectures to check; default: all of them")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="a provider option")
    parser.add_argument("--alone", metavar="NAME.ROUTE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    options = dict(option.split("=", 1) for option in arguments.option)
    if arguments.alone:
        print(json.dumps(asdict(check(CachedGraph(*arguments.alone.split(".", 1)), options))))
        return 0

    print(f"{'graph':42} {'nodes':>9} {'subgraphs':>9} {'difference':>10} {'framework':>9}")
    results: list[Result] = []
    right = 0
    for graph in cached_graphs():
        export = graph.export()
        if export is None or export.problem or (arguments.names and graph.name not in arguments.names):
            continue
        result = check_alone(graph, options)
        agrees = result.right(HALF_TOLERANCE if export.half else TOLERANCE)
        print(line(graph, result, agrees), flush=True)
        results.append(result)
        right += agrees
    whole = sum(result.whole for result in results)
    single = sum(result.whole and result.subgraphs == 1 for result in results)
    print(
        f"\nOf {len(results)} graphs, {whole} are wholly on the execution provider, {single} in one subgraph, "
        f"{right} agree with a reference."
    )
    return 0 if right == len(results) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
