"""A model on the execution provider against ONNX Runtime's CPU execution provider, in one process and turn by turn."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from opgraft.comparison import RunError
from opgraft.errors import ModelError
from opgraft.failures import about_sizes, explained
from opgraft.graph import Array
from opgraft.host import EP_NAME, library_path
from opgraft.host.options import ProviderOptions
from opgraft.nested import SEVERITY_FATAL
from opgraft.reporting.declines import short_name
from opgraft.samples import Sample
from opgraft.sessions import Model, model_name, open_cpu_session, open_session, options_with_provider, source_of
from opgraft.tracing import Event, Listener, listening


@dataclass(frozen=True)
class Timing:
    """Seconds: of making the session, of its first run, and of each run that counts."""

    session: float
    first_run: float
    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    @property
    def least(self) -> float:
        return min(self.runs)


@dataclass(frozen=True)
class Memory:
    """Bytes: the most that MLX held during the runs, what it holds after them, and the most the process ever had."""

    mlx_peak: int
    mlx_after: int
    process_peak: int | None


@dataclass(frozen=True)
class OperatorTime:
    """The nodes of one operator, and the seconds of a run that they take, each computed by itself.

    ONNX Runtime's profiler tells no domain; the engine's times leave out ONNX's own.
    """

    operator: str
    nodes: int
    seconds: float


@dataclass(frozen=True)
class Benchmark:
    """What a comparison gave.

    Attributes:
        model, device: the model's name, and the device of MLX.
        ep, cpu: the times on the execution provider, and on the CPU's.
        memory: what both of them needed together.
        slower: the one whose operators are listed.
        operators: those that take longest first.
        assumed: the dimensions whose sizes were nowhere given, and taken as 1.
    """

    model: str
    device: str
    ep: Timing
    cpu: Timing
    memory: Memory
    slower: str
    operators: tuple[OperatorTime, ...]
    assumed: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """The median run on the CPU execution provider, in those on this one: above 1, this one is faster."""
        return self.cpu.median / self.ep.median


def benchmark(
    model: Model,
    sample: Callable[[Any], Sample],
    provider_options: ProviderOptions | None = None,
    *,
    runs: int = 20,
    warm_ups: int = 3,
) -> Benchmark:
    """Run a model on both, turn by turn, so that whatever else the machine does falls on both alike.

    Args:
        model: the model.
        sample: gives the inputs for a session.
        provider_options: as for a session.
        runs: how many runs count, of each.
        warm_ups: how many come before them, of each; the first of them is told apart.

    Raises:
        ModelError: ONNX Runtime cannot load the model, or a run fails.
    """
    opened, ep_session_seconds = _timed(lambda: open_session(model, provider_options))
    cpu_session, cpu_session_seconds = _timed(lambda: open_cpu_session(model))
    drawn = sample(opened.session)
    inputs = drawn.inputs
    sessions = (opened.session, cpu_session)

    def once(side: int) -> float:
        try:
            return _run(sessions[side], inputs, ("on the EP", "on the CPU EP")[side])
        except RunError as error:
            if side == 1:
                raise ModelError(f"{error}{about_sizes(drawn.assumed)}") from error
            raise explained(error, model, inputs, drawn.assumed) from error

    warm = [[once(0), once(1)] for _ in range(warm_ups)]
    mx.reset_peak_memory()
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(runs):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            seconds[side].append(once(side))
    memory = Memory(mx.get_peak_memory(), mx.get_active_memory(), _process_peak())
    ep = Timing(ep_session_seconds, warm[0][0] if warm else seconds[0][0], tuple(seconds[0]))
    cpu = Timing(cpu_session_seconds, warm[0][1] if warm else seconds[1][0], tuple(seconds[1]))
    ep_is_slower = ep.median >= cpu.median
    operators = _operators(
        model, inputs, provider_options if ep_is_slower else None, on_ep=ep_is_slower, runs=min(runs, 5)
    )
    slower = EP_NAME if ep_is_slower else "CPUExecutionProvider"
    return Benchmark(model_name(model), opened.coverage.device, ep, cpu, memory, slower, operators, drawn.assumed)


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    found = function()
    return found, time.perf_counter() - started


def _run(session: Any, inputs: dict[str, Array], where: str) -> float:
    try:
        _, seconds = _timed(lambda: session.run(None, inputs))
    except Exception as error:  # ONNX Runtime's own words are what the user needs
        raise RunError(where, " ".join(str(error).split())) from error
    return seconds


def _process_peak() -> int | None:
    """The most memory that this process ever had; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class _NodeTimes(Listener):
    """Adds up the seconds of each node, without those of the nodes in its bodies."""

    each_alone = True

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], float] = {}

    def take(self, events: Sequence[Event], lasting: bool) -> None:
        for event in events:
            if "node" in event.arguments and not lasting:
                key = (short_name(event.arguments["operator"]), event.arguments["node"])
                self.seconds[key] = self.seconds.get(key, 0.0) + event.own / 1e9


def _operators(
    model: Model,
    inputs: dict[str, Array],
    provider_options: ProviderOptions | None,
    *,
    on_ep: bool,
    runs: int,
) -> tuple[OperatorTime, ...]:
    """The time of each operator on one side: in subgraphs from the engine, elsewhere from ONNX Runtime's profiler."""
    import onnxruntime

    options = options_with_provider(provider_options) if on_ep else onnxruntime.SessionOptions()
    if not on_ep:
        options.register_custom_ops_library(library_path())
    options.log_severity_level = SEVERITY_FATAL
    options.enable_profiling = True
    steps = _NodeTimes()
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        providers = None if on_ep else ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(source_of(model), options, providers=providers)
        session.run(None, inputs)
        with listening(steps):
            for _ in range(runs):
                session.run(None, inputs)
        events = json.loads(Path(session.end_profiling()).read_text("utf-8", errors="replace"))
    seconds = {key: taken / runs for key, taken in steps.seconds.items()}
    for key, taken in _kernel_seconds(events):
        seconds[key] = seconds.get(key, 0.0) + taken / (runs + 1)
    return _by_operator(seconds)


def _kernel_seconds(events: list[dict[str, Any]]) -> Iterator[tuple[tuple[str, str], float]]:
    """Operator, node and seconds of each kernel that ONNX Runtime's profiler saw, fused subgraphs left out."""
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith("_kernel_time"):
            operator = str(event["args"]["op_name"])
            if not operator.startswith(EP_NAME):
                yield (operator, name.removesuffix("_kernel_time")), event["dur"] / 1e6


def _by_operator(seconds: Mapping[tuple[str, str], float]) -> tuple[OperatorTime, ...]:
    found: dict[str, list[float]] = {}
    for (operator, _), taken in seconds.items():
        found.setdefault(operator, []).append(taken)
    times = [OperatorTime(operator, len(nodes), sum(nodes)) for operator, nodes in found.items()]
    return tuple(sorted(times, key=lambda each: -each.seconds))
