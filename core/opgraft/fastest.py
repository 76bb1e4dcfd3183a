"""Placement by trial: of the clusters that could be claimed, those that are faster here than on the CPU EP."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

import mlx.core as mx
import numpy as np

from opgraft import ort_values
from opgraft.claims import Decision, Decisions
from opgraft.engine import Program
from opgraft.engine.results import stored
from opgraft.errors import text_of
from opgraft.graph import Array, Graph, Node
from opgraft.graph.extraction import extracted, makers
from opgraft.graph.onnx_source import storage_form
from opgraft.plan import build_plan
from opgraft.profiles import Profile, Trial, milliseconds
from opgraft.race import race
from opgraft.registry import Claimer, Reason
from opgraft.samples import drawn_inputs

T = TypeVar("T")

MOST_SECONDS: Final = 5.0
"""A cluster that takes longer for a run of its steps is left to the CPU EP: making a session must come to an end."""

MOST_SECONDS_OF_ALL: Final = 60.0
"""So long may the CPU EP take for the values that clusters are tried on."""

WINS: Final = 0.9
"""A cluster is claimed where it takes at most this part of the CPU EP's time. A tie goes to the CPU EP."""

_given: ContextVar[Mapping[str, Any] | None] = ContextVar("inputs of trials", default=None)
_settled: ContextVar[Mapping[str, Trial] | None] = ContextVar("trials that settle what is claimed", default=None)


@contextmanager
def _while_it_lasts(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def tried_on(inputs: Mapping[str, Any]) -> AbstractContextManager[None]:
    """The sessions that this thread makes while the context lasts try their clusters on these inputs of the model."""
    return _while_it_lasts(_given, inputs)


def settled_by(trials: Mapping[str, Trial]) -> AbstractContextManager[None]:
    """The sessions that this thread makes while the context lasts try nothing: they claim what these trials say."""
    return _while_it_lasts(_settled, trials)


def is_settled() -> bool:
    """Whether it is settled what is claimed; see `settled_by`."""
    return _settled.get() is not None


class Sessions(Protocol):
    """Makes the sessions that a placer needs."""

    def on_cpu(self, graph: Graph, /) -> Any:
        """A session of a graph on the CPU execution provider."""

    def on_both(self, graph: Graph, /) -> Any:
        """A session of a graph with this execution provider first."""


@dataclass(frozen=True)
class _Values:
    """The values that clusters read, by name, and the sizes that nobody gave, as in "batch=1"."""

    arrays: Mapping[str, Array] = field(default_factory=dict)
    assumed: str = ""


class Placer:
    """Decides, for one session, which of the clusters are claimed.

    Args:
        registry: the handlers.
        device: "cpu" or "gpu".
        sessions: makes sessions of graphs.
        profile: trials that were made before; the other clusters are tried at its sizes.
        warn: tells the user something.
    """

    def __init__(
        self,
        registry: Claimer,
        device: str,
        sessions: Sessions,
        profile: Profile | None,
        warn: Callable[[str], None],
    ) -> None:
        self.registry = registry
        self.device = device
        self.sessions = sessions
        self.warn = warn
        self._told: set[str] = set()
        self._sizes = {} if profile is None else profile.sizes
        self._trials = {} if profile is None else dict(profile.trials)

    def place(self, decisions: Decisions) -> Decisions:
        """The decisions once more, with the clusters declined that are not faster here, and the trials of all."""
        graph, clusters = decisions.graph, decisions.clusters
        keys = [key_of([graph.nodes[index] for index in cluster]) for cluster in clusters]
        settled = _settled.get()
        if settled is None:
            new = {key: each for key, each in zip(keys, clusters, strict=True) if key not in self._trials}
            if new:
                self._try_all(graph, new)
        else:
            self._trials = {key: settled.get(key, Trial(key, 0, (), claimed=False)) for key in keys}
        trials = [self._trials[key] for key in keys]
        decided: list[Decision] = list(decisions.decisions)
        for cluster, trial in zip(clusters, trials, strict=True):
            if not trial.claimed:
                reasons = (Reason(None, trial.reason),)
                for index in cluster:
                    decided[index] = Decision(graph.nodes[index], None, reasons)
        kept = tuple(cluster for cluster, trial in zip(clusters, trials, strict=True) if trial.claimed)
        return replace(decisions, decisions=tuple(decided), clusters=kept, trials=tuple(trials))

    def _try_all(self, graph: Graph, clusters: Mapping[str, tuple[int, ...]]) -> None:
        parts = {key: extracted(graph, cluster) for key, cluster in clusters.items()}
        read = [value.name for part in parts.values() for value in part.inputs]
        values: _Values | None
        try:
            values = self._values_of(graph, list(dict.fromkeys(read)))
        except Exception as error:
            self.warn(f"the model does not run on the CPU EP as a whole ({text_of(error)}); its parts are tried alone")
            values = None
        trials = {key: self._tried(key, part, values) for key, part in parts.items()}
        won = [key for key, trial in trials.items() if trial.claimed and trial.cpu is not None]
        if won and values is not None and len(clusters[won[0]]) < len(graph.nodes):
            trials.update(self._against_the_whole(graph, values, {key: trials[key] for key in won}, trials))
        self._trials.update(trials)
        mx.clear_cache()
        assumed = {trial.assumed for trial in trials.values()} - {""}
        for sizes in assumed - self._told:
            self.warn(f"placement=fastest was decided with {sizes}, sizes that nobody gave; `opgraft tune` takes yours")
        self._told |= assumed

    def _against_the_whole(
        self, graph: Graph, values: _Values, won: Mapping[str, Trial], trials: Mapping[str, Trial]
    ) -> dict[str, Trial]:
        """The trials of the clusters that won, which are declined all the same where the model is no faster with them:
        what the threads of one side do after their work is at the other's cost."""
        whole = extracted(graph, range(len(graph.nodes)), [value.name for value in graph.outputs])
        try:
            with settled_by({**self._trials, **trials}):
                both = self.sessions.on_both(whole)
            cpu = self.sessions.on_cpu(whole)
            found = race(ort_values.bound_run(both, values.arrays), ort_values.bound_run(cpu, values.arrays))
        except Exception as error:
            problem = f"the model could not be tried with it: {text_of(error)}"
            return {key: replace(trial, claimed=False, problem=problem) for key, trial in won.items()}
        if found.first <= found.second:
            return {}
        times = f"{milliseconds(found.first)} against {milliseconds(found.second)}"
        problem = f"faster here by itself, but the model as a whole is not: {times} on the CPU EP"
        return {key: replace(trial, claimed=False, problem=problem) for key, trial in won.items()}

    def _values_of(self, graph: Graph, names: Sequence[str]) -> _Values:
        """The values of these names in one run of the graph on the CPU EP."""
        found, assumed = self._model_inputs(graph)
        for name in names:
            if name not in found and name in graph.initializers:
                found[name] = np.array(graph.initializers[name].read())
        computed = [name for name in names if name not in found]
        if computed:
            part = extracted(graph, makers(graph, computed), computed)
            session = self.sessions.on_cpu(part)
            feeds = {each.name: found[each.name] for each in session.get_inputs()}
            found.update(zip(computed, ort_values.run(session, feeds, MOST_SECONDS_OF_ALL), strict=True))
        return _Values(found, assumed)

    def _model_inputs(self, graph: Graph) -> tuple[dict[str, Array], str]:
        inputs = [value for value in graph.inputs if value.name not in graph.initializers]
        given = _given.get()
        if given is not None:
            known = {value.name: value.dtype for value in inputs}
            return {
                name: storage_form(np.asarray(array), dtype) if (dtype := known.get(name)) else np.asarray(array)
                for name, array in given.items()
            }, ""
        sample = drawn_inputs(inputs, self._sizes)
        return sample.inputs, _named(sample.sizes, sample.assumed)

    def _tried(self, key: str, cluster: Graph, values: _Values | None) -> Trial:
        outputs = tuple(value.name for value in cluster.outputs)
        trial = Trial(key, len(cluster.all_nodes()), outputs, claimed=False)
        try:
            if values is None:
                sample = drawn_inputs(cluster.inputs, self._sizes)
                values = _Values(sample.inputs, _named(sample.sizes, sample.assumed))
            inputs = {value.name: np.asarray(values.arrays[value.name], order="C") for value in cluster.inputs}
            program = Program(build_plan(cluster, list(inputs), outputs), self.registry, self.device)
            program.most_seconds = MOST_SECONDS
            given = list(inputs.values())

            def here() -> None:
                for result in program.run(given):
                    np.array(stored(result))

            here()
            try:
                session = self.sessions.on_cpu(cluster)
            except _not_implemented() as error:
                text = f"the CPU EP cannot run it: {' '.join(str(error).split())}"
                return replace(trial, claimed=True, problem=text)
            found = race(here, ort_values.bound_run(session, inputs))
        except Exception as error:
            return replace(trial, problem=f"it could not be tried against the CPU EP: {text_of(error)}")
        claimed = found.first <= WINS * found.second
        return replace(trial, claimed=claimed, ep=found.first, cpu=found.second, assumed=values.assumed)


def _not_implemented() -> type[Exception]:
    """What ONNX Runtime raises where it has no kernel for a node."""
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

    found: type[Exception] = NoKernel
    return found


def key_of(nodes: Sequence[Node]) -> str:
    """What tells a cluster from every other, in every session of a model: a digest of its operators, their versions and
    the names of what they make."""
    digest = hashlib.sha256()
    for node in nodes:
        for each in (node, *(inner for body in node.bodies.values() for inner in body.all_nodes())):
            names = ("" if value is None else value.name for value in each.outputs)
            facts = "\0".join([each.operator, str(each.since_version), *names, ""])
            digest.update(facts.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()[:20]


def _named(sizes: Mapping[str, int], names: Sequence[str]) -> str:
    return ", ".join(f"{name}={sizes[name]}" for name in names)
