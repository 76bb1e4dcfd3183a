"""Lanes: MLX streams of opgraft's own, each lent to one run at a time."""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx

_STREAMS: Final = {"cpu": (mx.cpu,), "gpu": (mx.cpu, mx.gpu)}


class Lane:
    """A stream of each kind that a device needs, as a context: what MLX is asked for while it lasts is done in them."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._contexts: tuple[Any, ...] = tuple(mx.stream(mx.new_thread_unsafe_stream(kind)) for kind in _STREAMS[device])

    def __enter__(self) -> Lane:
        for context in self._contexts:
            context.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*error)
        _free[self.device].append(self)


_free: Final[dict[str, list[Lane]]] = {device: [] for device in _STREAMS}


def lane(device: str) -> Lane:
    """A lane that nobody else uses until its context ends.

    A thread's default streams would do the same work, but each of them holds an operating system's thread, and MLX
    keeps it after the thread that it was made for. Of lanes there are as many as there were ever runs at once. An array
    that is yet to be computed belongs to its lane: it must be evaluated before the context ends.

    Args:
        device: "cpu" or "gpu".
    """
    try:
        return _free[device].pop()
    except IndexError:
        return Lane(device)
