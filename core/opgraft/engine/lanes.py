"""Lanes: MLX streams of opgraft's own, each lent to one run at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

import mlx.core as mx

_STREAMS: Final = {"cpu": (mx.cpu,), "gpu": (mx.cpu, mx.gpu)}

Lane: TypeAlias = tuple[mx.Stream, ...]
"""A stream of each kind that a device needs; the last is the device's own."""

_free: dict[str, list[Lane]] = {device: [] for device in _STREAMS}


@contextmanager
def lane(device: str) -> Iterator[Lane]:
    """What MLX is asked for while the context lasts is done on `device`, in streams that nobody else uses meanwhile.

    A thread's default streams would do the same work, but each of them holds an operating system's thread, and MLX
    keeps it after the thread that it was made for. Of lanes there are as many as there were ever runs at once. An array
    that is yet to be computed belongs to its lane: it must be evaluated before the context ends.

    Args:
        device: "cpu" or "gpu".
    """
    free = _free[device]
    try:
        streams = free.pop()
    except IndexError:
        streams = tuple(mx.new_thread_unsafe_stream(kind) for kind in _STREAMS[device])
    try:
        with mx.stream(streams[0]):
            if len(streams) == 1:
                yield streams
            else:
                with mx.stream(streams[1]):
                    yield streams
    finally:
        free.append(streams)
