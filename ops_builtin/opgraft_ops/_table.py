"""Handlers from the rows of a table, for operators that differ by one function."""

from __future__ import annotations

from collections.abc import Callable, Collection
from inspect import Parameter, Signature
from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.ops import Handler, Layout, op
from opgraft_ops._sizes import flags


def row(
    name: str,
    inputs: str,
    function: Callable[..., Any],
    on_host: Callable[..., Any] | None,
    dtypes: Collection[str],
    meaning: str,
    *,
    since: int = 1,
) -> Handler:
    """The handler of an operator without attributes that does the same at each place.

    Args:
        name: the op type.
        inputs: ONNX's names of its inputs, with blanks between.
        function: takes MLX arrays.
        on_host: the same on NumPy arrays, if there is one.
        dtypes: the element types taken.
        meaning: the docstring.
        since: the first operator version covered.
    """

    def translate(*arrays):
        return function(*arrays)

    names = [Parameter(each, Parameter.POSITIONAL_OR_KEYWORD) for each in inputs.split()]
    translate.__signature__ = Signature(names)  # type: ignore[attr-defined]
    translate.__doc__ = meaning
    handler = op(name, since=since, dtypes=dtypes, layout=Layout.ANY)(translate)
    if on_host is not None:
        handler.host(quiet(on_host))
    return handler


def legacy_row(name: str, function: Callable[..., Any], dtypes: Collection[str]) -> Handler:
    """The handler of a binary operator's versions before 7, which broadcast B alone, and only where told to."""

    def translate(A, B, *, broadcast=0, axis=None, consumed_inputs=None):
        return function(A, laid_over(A, B, broadcast, axis))

    translate.__doc__ = f"{name} with B laid over the dimensions of A from `axis` on. ONNX {name}-1 to {name}-6."
    handler = op(name, until=6, dtypes=dtypes)(translate)
    handler.condition(flags("broadcast"))
    return handler


def laid_over(A: mx.array, B: mx.array, broadcast: int, axis: int | None) -> mx.array:
    """B with dimensions of size 1 behind its own, so that it broadcasts over those of A from `axis` on.

    Raises:
        ValueError: it does not fit there, or is of another shape than A where `broadcast` is 0.
    """
    if broadcast and axis is not None:
        B = B.reshape(*B.shape, *[1] * (A.ndim - axis % A.ndim - B.ndim))
    if B.shape != A.shape and (not broadcast or mx.broadcast_shapes(A.shape, B.shape) != A.shape):
        raise ValueError(f"B of shape {list(B.shape)} does not lie over A of shape {list(A.shape)}")
    return B


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """A NumPy function that warns of nothing: overflow, NaN and division by zero are results here."""
    return np.errstate(all="ignore")(function)
