"""Arrays at the beginning of a buffer that has room for more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
import numpy as np

from opgraft.graph import Array
from opgraft.ops.arrays import to_device, to_host

LEAST_ROOM: Final = 256
"""The room of a buffer is a multiple of it, or of about an eighth of itself."""


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """The first entries of an evaluated buffer along an axis. It stands for an array, of which MLX need not know."""

    buffer: mx.array
    axis: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, buffer: mx.array, axis: int, length: int) -> Part:
        """The first `length` entries along `axis`."""
        shape = buffer.shape
        return cls(buffer, axis, (*shape[:axis], length, *shape[axis + 1 :]))

    @property
    def dtype(self) -> mx.Dtype:
        return self.buffer.dtype

    @property
    def size(self) -> int:
        return self.buffer.size // self.buffer.shape[self.axis] * self.shape[self.axis]

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.size

    def array(self) -> mx.array:
        """The array, which has the buffer's memory; to be evaluated."""
        return self.buffer[(*[slice(None)] * self.axis, slice(self.shape[self.axis]))]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(to_host(self.array()), dtype, copy=True if copy is None else copy)


def with_room(array: mx.array | Array | Part, axis: int) -> mx.array:
    """A buffer that begins with `array`, and has room for one entry more at least: its own, where it is part of one."""
    length = array.shape[axis]
    if isinstance(array, Part):
        if array.axis == axis and array.buffer.shape[axis] > length:
            return array.buffer
        array = array.array()
    widths = [(0, 0)] * len(array.shape)
    widths[axis] = 0, room_for(length + 1) - length
    return mx.pad(to_device(array) if isinstance(array, np.ndarray) else array, widths)


def room_for(length: int) -> int:
    """How long a buffer is for so many entries."""
    step = max(LEAST_ROOM, 1 << max(length.bit_length() - 4, 0))
    return -(-length // step) * step
