"""The plugin: a wrapper around the translation of every node."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator, Iterable, Sequence
from typing import Any
from weakref import WeakSet

import mlx.core as mx
import numpy as np

from opgraft.engine import problem_with
from opgraft.errors import TranslationError
from opgraft.ops import NARROW, Context, Node, hookimpl

from .drift import DriftCheck
from .finite import made_non_finite
from .settings import MODE_VARIABLE, Mode, Settings

_log = logging.getLogger("opgraft.numerics_guard")
_VERIFYING = problem_with.__code__


class NumericsError(TranslationError):
    """A node made a NaN or an infinity, or drifted from a reference; the message names it."""


class NumericsGuard:
    """Looks at what each node computes, as soon as it is translated.

    Every node is computed by itself, where MLX would compute many together: a guarded run is a slow one. Switched off,
    the guard names no operator: nothing is wrapped, and runs cost what they cost without it.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.operators: tuple[str, ...] = () if settings.mode is Mode.OFF else ("*::*",)
        self._drift = None if settings.drift is None else DriftCheck(settings.drift)
        self._named: WeakSet[Node] = WeakSet()

    @hookimpl(wrapper=True)
    def translate(self, ctx: Context, node: Node) -> Generator[None, Any, Any]:
        """Hand on what the handler gives, once it has been looked at.

        A node with bodies is left alone: theirs are translated, and looked at, one by one. So is a node that reads
        8-bit floats or types below a byte, which arrive as integers that hold their bits, and one that reads or makes a
        sequence, whose tensors were looked at where they were made.

        Raises:
            NumericsError: the mode is `raise`, and there is a finding.
        """
        results = yield
        if (
            not ctx.bodies
            and not _reads_bits(node)
            and not _handles_sequences(node)
            and isinstance(results, tuple | list)
            and not _on_stand_ins()
        ):
            outputs = {
                index: result if isinstance(result, mx.array) else np.asarray(result)
                for index, result in enumerate(results)
                if node.wants(index)
            }
            if _compute(outputs.values()):
                self._look(node, ctx.inputs, outputs)
        return results

    def _look(self, node: Node, inputs: Sequence[Any], outputs: dict[int, Any]) -> None:
        finding = made_non_finite(node, inputs, outputs)
        if finding is None and self._drift is not None:
            finding = self._drift.drifting(node, inputs, outputs)
        if finding is None:
            return
        if self.settings.mode is Mode.RAISE:
            raise NumericsError(f"{finding}\n  ({MODE_VARIABLE}=warn goes on after a finding)")
        if node not in self._named:
            self._named.add(node)
            _log.warning("%s", finding)


def _reads_bits(node: Node) -> bool:
    return any(value is not None and value.dtype in NARROW for value in node.inputs)


def _handles_sequences(node: Node) -> bool:
    return any(value is not None and value.kind == "sequence" for value in (*node.inputs, *node.outputs))


def _compute(arrays: Iterable[Any]) -> bool:
    """Compute arrays now; False where MLX lets nobody, since it is tracing a function to compile it."""
    try:
        mx.eval([array for array in arrays if isinstance(array, mx.array)])
    except ValueError as error:
        if "function transformations" in str(error):
            return False
        raise
    return True


def _on_stand_ins() -> bool:
    """True while a claim is tried on stand-in inputs, which are not to be computed. A context does not say so; who
    asked for the translation does."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _VERIFYING:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
