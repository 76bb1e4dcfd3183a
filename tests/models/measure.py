"""What a real model does on the execution provider, beside ONNX Runtime's CPU execution provider."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from zoo import RealModel

from opgraft.comparison import difference
from opgraft.host import EP_NAME
from opgraft.reporting import Coverage
from opgraft.sessions import assignment, open_cpu_session, open_session


@dataclass(frozen=True)
class Measurement:
    """Nodes by ONNX Runtime's own record; the largest difference of any output, relative to the largest magnitude of
    the CPU's; median seconds of a run at the first size."""

    model: str
    coverage: Coverage
    nodes_on_ep: int
    nodes: int
    subgraphs: int
    worst_difference: float
    creation_seconds: float
    cpu_creation_seconds: float
    run_seconds: float
    cpu_run_seconds: float

    @property
    def percentage(self) -> float:
        return 100 * self.nodes_on_ep / self.nodes


def measure(model: RealModel, *, inputs: int = 3, timed_runs: int = 5) -> Measurement:
    """Run a model on both, at every size it is listed with, over `inputs` inputs each."""
    path = model.path()
    started = time.perf_counter()
    opened = open_session(path)
    created = time.perf_counter()
    cpu_session = open_cpu_session(path)
    cpu_created = time.perf_counter()
    cases = model.inputs(inputs)
    worst = max(
        difference(output, expected)
        for _, feeds in cases
        for output, expected in zip(opened.session.run(None, feeds), cpu_session.run(None, feeds), strict=True)
    )
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(timed_runs):
        for session, taken in zip((opened.session, cpu_session), seconds, strict=True):
            at = time.perf_counter()
            session.run(None, cases[0][1])
            taken.append(time.perf_counter() - at)
    assigned = assignment(opened.session)
    ours = assigned.get(EP_NAME, [])
    return Measurement(
        model.name,
        opened.coverage,
        sum(ours),
        sum(map(sum, assigned.values())),
        len(ours),
        worst,
        created - started,
        cpu_created - created,
        statistics.median(seconds[0]),
        statistics.median(seconds[1]),
    )
