"""Arrays at the beginning of a buffer that has room for more."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import mlx.core as mx
import numpy as np

from opgraft.errors import ModelError
from opgraft.graph import Array
from opgraft.ops.arrays import to_device, to_host

LEAST_ROOM: Final = 256
"""The room of a buffer is a multiple of it, or of about an eighth of itself."""


class Room:
    """A buffer of which the first `filled` entries along an axis are taken. Threads may share it.

    A run that adds to what is there lends it to MLX, which writes into it: what is read meanwhile waits.
    """

    def __init__(self, buffer: mx.array, axis: int, filled: int) -> None:
        self.shape = buffer.shape
        self.dtype = buffer.dtype
        self.axis = axis
        self.filled = filled
        self._buffer: mx.array | None = buffer
        self._lock = threading.Lock()

    @property
    def buffer(self) -> mx.array:
        """The buffer.

        Raises:
            ModelError: it was lost to a run that failed.
        """
        with self._lock:
            if self._buffer is None:
                raise ModelError("a cache was lost to a run that failed while it wrote there: begin anew")
            return self._buffer

    def lend(self, filled_before: int, grown: mx.array, filled: int) -> Loan | None:
        """Give the buffer up to a run that makes `grown` of it, of which `filled` entries are taken; None where others
        are doing so, or have added to it. What is lent must be given back."""
        if not self._lock.acquire(blocking=False):
            return None
        if self._buffer is None or (self.filled, self.shape) != (filled_before, grown.shape):
            self._lock.release()
            return None
        loan = Loan(self, self._buffer, self.filled, grown, filled)
        self._buffer = None
        return loan

    def _put_back(self, buffer: mx.array | None, filled: int) -> None:
        self._buffer, self.filled = buffer, filled
        self._lock.release()


@dataclass(slots=True)
class Loan:
    """A buffer that was lent, with what was taken of it, and what it becomes."""

    room: Room
    before: mx.array | None
    filled_before: int
    after: mx.array
    filled_after: int

    def begin(self) -> None:
        """From now on, MLX may write into the buffer."""
        self.before = None

    def end(self) -> None:
        """MLX has written: what was taken before is as it was."""
        self.before = self.after

    def give_back(self, *, computed: bool) -> None:
        """The run has come to its end; what it added counts where it was `computed`, and is as it should be."""
        if computed:
            self.room._put_back(self.after, self.filled_after)
        else:
            self.room._put_back(self.before, self.filled_before)


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """The first entries of an evaluated buffer along an axis. It stands for an array, of which MLX need not know."""

    room: Room
    shape: tuple[int, ...]

    @classmethod
    def of(cls, buffer: mx.array, axis: int, length: int) -> Part:
        """The first `length` entries along `axis`."""
        return cls.in_room(Room(buffer, axis, length), length)

    @classmethod
    def in_room(cls, room: Room, length: int) -> Part:
        """The first `length` entries of a room."""
        return cls(room, (*room.shape[: room.axis], length, *room.shape[room.axis + 1 :]))

    @property
    def dtype(self) -> mx.Dtype:
        return self.room.dtype

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.size

    def array(self) -> mx.array:
        """The array, which has the buffer's memory; to be evaluated."""
        axis = self.room.axis
        return self.room.buffer[(*[slice(None)] * axis, slice(self.shape[axis]))]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(to_host(self.array()), dtype, copy=True if copy is None else copy)


def with_room(array: mx.array | Array | Part, axis: int) -> mx.array:
    """A buffer that begins with `array`, and has room for one entry more at least: its own, where it is part of one."""
    length = array.shape[axis]
    if isinstance(array, Part):
        if array.room.axis == axis and array.room.shape[axis] > length:
            return array.room.buffer
        array = array.array()
    widths = [(0, 0)] * len(array.shape)
    widths[axis] = 0, room_for(length + 1) - length
    return mx.pad(to_device(array), widths)


def room_for(length: int) -> int:
    """How long a buffer is for so many entries."""
    step = max(LEAST_ROOM, 1 << max(length.bit_length() - 4, 0))
    return -(-length // step) * step
