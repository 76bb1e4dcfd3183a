"""Fused kernels: many steps over an array in one loop, which MLX writes in C++ and g++ builds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

import mlx.core as mx

from .lasting import in_lasting_thread

MOST: Final = 1 << 18
"""The most elements of a piece: what is computed of them on the way stays in a processor's cache."""

MOST_SIZES: Final = 128
"""The most sizes of pieces, but for a few: MLX traces a kernel anew for each size, and keeps the trace for good."""

GRAIN: Final = 1 << 10
"""The fewest elements of a piece once there were as many sizes."""

P = ParamSpec("P")
R = TypeVar("R")

_sizes: set[int] = set()


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Make one kernel of a function of contiguous arrays, as a decorator.

    It is one if none of the function's operations is more than ten away from its result, and none is a view. g++ makes
    vector code of it if none chooses or limits: minimum, maximum, where and round cost less outside of a kernel.
    """
    kernel: Callable[P, R] = mx.compile(function)
    return kernel


@in_lasting_thread
def in_pieces(function: Callable[..., mx.array], *arrays: mx.array) -> mx.array:
    """What `function` makes of arrays of one shape, element by element. They are not empty."""
    flat = [mx.contiguous(array).reshape(-1) for array in arrays]
    total, done = flat[0].size, 0
    pieces: list[mx.array] = []
    while done < total:
        size = _size_of_piece(total - done, total)
        first = min(done, total - size)  # the last piece may overlap the one before
        piece = _next(function, [array[first : first + size] for array in flat], pieces)
        pieces.append(piece[done - first :])
        done = first + size
    return _joined(pieces).reshape(arrays[0].shape)


@in_lasting_thread
def in_rows(function: Callable[[mx.array], mx.array], x: mx.array) -> mx.array:
    """What `function` makes of an array's rows, along its last axis. It has one, and is not empty."""
    columns = x.shape[-1]
    rows = x.reshape(-1, columns)
    count = max(1, MOST // columns)
    pieces: list[mx.array] = []
    for first in range(0, len(rows), count):
        pieces.append(_next(function, [rows[first : first + count]], pieces))
    return _joined(pieces).reshape(x.shape)


def _next(function: Callable[..., mx.array], arrays: list[mx.array], pieces: list[mx.array]) -> mx.array:
    """What `function` makes of arrays, computed after `pieces`. By itself, MLX takes a step with all pieces, then the
    next step, and what the one made has left the cache before the other reads it."""
    return function(*(mx.depends(arrays, pieces[-1:]) if pieces else arrays))


def _size_of_piece(left: int, total: int) -> int:
    """As many elements as are left, or as fit; once there were many sizes, fewer, so that few sizes are added."""
    size = min(left, MOST)
    if size not in _sizes and len(_sizes) >= MOST_SIZES:
        size = max(_rounded_down(size, 3), _rounded_down(min(total, GRAIN), 1))
    _sizes.add(size)
    return size


def _rounded_down(number: int, bits: int) -> int:
    """A number with all but its highest bits cleared."""
    spare = max(number.bit_length() - bits, 0)
    return number >> spare << spare


def _joined(pieces: list[mx.array]) -> mx.array:
    return pieces[0] if len(pieces) == 1 else mx.concatenate(pieces)
