"""The CPU execution provider in place of a program that failed: the provider option `on_error`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from opgraft import ort_values
from opgraft.engine import ConstantStore, Program
from opgraft.engine.program import Claim
from opgraft.engine.results import Result, brought, check_types, stored
from opgraft.errors import ModelError, text_of
from opgraft.graph import Array, Graph, Initializer
from opgraft.graph.onnx_writer import Elements
from opgraft.tracing import Recording


class Fallback:
    """Runs a program until it fails, and then its graph on the CPU execution provider.

    Where that fails too, as it does when the inputs are at fault, its error is the run's, and the next run tries the
    program again. Of the weights nothing is kept twice before there is need: they are read back from MLX.

    Args:
        program: what is run.
        graph: what the program was made of; its initializers are read now.
        constants: the program's.
        open_cpu: makes a session of a graph on the CPU execution provider, given how its initializers are read.
        warn: tells the user that the program failed, once.
    """

    def __init__(
        self,
        program: Program,
        graph: Graph,
        constants: ConstantStore,
        open_cpu: Callable[[Graph, Elements], Any],
        warn: Callable[[str], None],
    ) -> None:
        self.plan = program.plan
        self._program: Program | None = program
        self._graph = graph
        self._elements: Elements | None = _Kept(graph, constants)
        self._open_cpu = open_cpu
        self._warn = warn
        self._lock = threading.Lock()
        self._session: Any = None

    def run(
        self, inputs: Sequence[Result | None], recording: Recording | None = None, claim: Claim | None = None
    ) -> Sequence[Result]:
        """As `Program.run`; but that no input is given up, which may be needed once more.

        Raises:
            ModelError: the CPU execution provider fails too; the message is its own.
            Exception: the program's own error, with a note, where the graph cannot be run there.
        """
        program = self._program
        if program is None:
            return self._on_cpu(inputs)
        try:
            results = program.run(inputs, recording)
            check_types(results, self.plan.output_values)
            return results
        except Exception as error:
            return self._instead(inputs, error)

    def _instead(self, inputs: Sequence[Result | None], error: Exception) -> Sequence[Result]:
        try:
            with self._lock:
                if self._session is None and self._elements is not None:
                    self._session = self._open_cpu(self._graph, self._elements)
                    self._elements = None
        except Exception as refusal:
            error.add_note(f"on_error=cpu: the CPU EP cannot take over, {text_of(refusal)}")
            raise error from None
        try:
            results = self._on_cpu(inputs)
        except Exception as its_own:
            raise ModelError(str(its_own)) from error
        with self._lock:
            if self._program is not None:
                self._program = None  # its weights are on the CPU now
                self._warn(f"subgraph {self.plan.name!r} failed, and runs on the CPU EP from now on: {text_of(error)}")
        return results

    def _on_cpu(self, inputs: Sequence[Result | None]) -> list[Result]:
        by_name = {
            value.name: stored(array)
            for value, array in zip(self.plan.inputs, inputs, strict=True)
            if array is not None
        }
        feeds = {each.name: by_name[each.name] for each in self._session.get_inputs()}
        results = ort_values.run(self._session, feeds)
        return [
            brought(result, value.dtype) if value.dtype == "bfloat16" else result
            for result, value in zip(results, self.plan.output_values, strict=True)
        ]


class _Kept:
    """Reads initializers whose source is gone: from MLX, or from a copy where MLX has none."""

    def __init__(self, graph: Graph, constants: ConstantStore) -> None:
        self._constants = constants
        self._copies: dict[Hashable, Array] = {
            each.identity: np.array(each.read()) for each in graph.all_initializers() if constants.find(each) is None
        }

    def __call__(self, initializer: Initializer) -> Array:
        found = self._constants.find(initializer)
        return self._copies[initializer.identity] if found is None else stored(found)
