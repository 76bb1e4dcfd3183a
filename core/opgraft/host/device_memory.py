"""A device's memory as ONNX Runtime knows it: addresses that stand for MLX's arrays.

MLX lends no memory that others could own. But ONNX Runtime never looks at what lies in a device's memory: it allocates,
frees and passes on addresses, and has tensors copied from and to the host. So nothing need lie there: of each tensor
that was written, its address leads to the array. A value that goes from one subgraph to the next, or is bound as an
output and given as an input again, is the same array all the while.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from typing import Any, Final

import numpy as np

from opgraft.engine.results import Result, brought, stored
from opgraft.errors import ModelError
from opgraft.graph import Array
from opgraft.graph.element_types import HELD, NAME_OF_ORT, STORAGE
from opgraft.graph.packing import array_of_bytes, bytes_in, bytes_of
from opgraft.host._ep import ffi, lib
from opgraft.host.devices import default_device
from opgraft.host.status import OK, callback, check
from opgraft.host.structures import own
from opgraft.host.tensors import array_of_view, shape_of, write_at
from opgraft.ops.arrays import unchanging
from opgraft.switches import switched

SWITCH: Final = "OPGRAFT_DEVICE_MEMORY"
"""The environment variable that has values stay on the device between subgraphs, or not."""

_GPU: Final = 1
_NO_VENDOR: Final = 0
_DEFAULT_MEMORY: Final = 0
_DEVICE_ALLOCATOR: Final = 0

_LEAST_BITS: Final = 12
_MOST_BITS: Final = 63

SMALL: Final = 1024
"""What came from the host with so many elements at most is given to programs as it came: shapes are read there."""


class DeviceMemory:
    """The addresses that ONNX Runtime has taken, and the arrays that they stand for. Threads may share it.

    Addresses are taken by powers of two, and used again.
    """

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}
        self._free: dict[int, list[int]] = defaultdict(list)
        self._starts: list[int] = []
        self._arrays: dict[int, tuple[Result, str]] = {}
        self._inner: dict[int, list[int]] = {}
        self._given_up: set[int] = set()

    def __len__(self) -> int:
        """The number of arrays."""
        return len(self._arrays)

    def allocate(self, size: int) -> int:
        """The first of so many addresses; 0 where there are none left."""
        bits = max(_LEAST_BITS, (size - 1).bit_length())
        try:
            address = self._free[bits].pop()
        except IndexError:
            address = int(lib.reserve_addresses(1 << bits)) if bits < _MOST_BITS else 0
            if not address:
                return 0
            insort(self._starts, address)
        self._bits[address] = bits
        return address

    def free(self, address: int) -> None:
        """Have what `allocate` gave back; 0 is nothing."""
        for each in (address, *self._inner.pop(address, ())):
            self._arrays.pop(each, None)
            self._given_up.discard(each)
        bits = self._bits.pop(address, None)
        if bits is not None:
            self._free[bits].append(address)

    def leave(self, address: int) -> None:
        """Give up the array at an address to a run that will write there. Until it does, there is nothing to read."""
        if self._arrays.pop(address, None) is not None:
            self._given_up.add(address)

    def write(self, view: Any, array: Result) -> None:
        """Have the tensor that a TensorView describes be an evaluated array, or a copy of one on the host: on the
        device, where it is large.

        Raises:
            ModelError: the tensor is in another device's memory.
        """
        if not array.size:
            return
        address = view.address
        block = self._block(address)
        if address != block:
            self._inner.setdefault(block, []).append(address)
        dtype = NAME_OF_ORT[view.element_type]
        if isinstance(array, np.ndarray):
            on_device = array.size > SMALL and dtype in HELD
            array = brought(array, dtype) if on_device else unchanging(np.array(array))
        self._arrays[address] = array, dtype
        self._given_up.discard(address)

    def read(self, view: Any) -> Result:
        """The tensor that a TensorView describes: MLX's array, or in storage form as it came from the host. Where
        nothing was written, it is of zeros.

        Raises:
            ModelError: it is in another device's memory, or something else lies there, or it was lost.
        """
        dtype, shape = NAME_OF_ORT[view.element_type], shape_of(view)
        storage = STORAGE[dtype]
        if 0 in shape:
            return np.empty(shape, storage)
        address = view.address
        array, written = self._arrays.get(address, (None, dtype))
        if array is None:
            if address != self._block(address):
                raise ModelError("part of a tensor was to be read on the device, where opgraft has only whole ones")
            if address in self._given_up:
                raise ModelError(
                    "a value was lost to a run that failed, whose output was to take its place: write it anew"
                )
            return np.zeros(shape, storage)
        return array if array.shape == shape and written == dtype else _seen_as(array, written, shape, dtype)

    def take(self, view: Any) -> Result:
        """As `read`, for a program's input: what is large is on the device."""
        array = self.read(view)
        if not isinstance(array, np.ndarray) or array.size <= SMALL:
            return array
        self.write(view, array)
        return self.read(view)

    def _block(self, address: int) -> int:
        """The first of the addresses that were taken at once, `address` among them.

        Raises:
            ModelError: it was never taken.
        """
        if address in self._bits:
            return address
        place = bisect_right(self._starts, address) - 1
        start = self._starts[place] if place >= 0 else 0
        if start not in self._bits or address >= start + (1 << self._bits[start]):
            where = "in the memory of a device that is not opgraft's" if address else "one that no memory is left for"
            raise ModelError(f"a tensor is {where}")
        return start


MEMORY: Final = DeviceMemory()
"""This process's."""


def is_offered() -> bool:
    """Whether values stay on the device: where MLX's own device is a GPU, or the environment says so."""
    return switched(SWITCH, default=default_device() == "gpu")


def new_memory_info() -> Any:
    """An OrtMemoryInfo of the device's memory, for its owner to release.

    Its device is a GPU of no vendor, which `bind_output(name, "gpu")` asks for.
    """
    made = ffi.new("OrtMemoryInfo **")
    check(lib.ort_CreateMemoryInfo_V2(b"MLX", _GPU, _NO_VENDOR, 0, _DEFAULT_MEMORY, 0, _DEVICE_ALLOCATOR, made))
    return made[0]


def new_allocator(info: Any) -> Any:
    """An OrtAllocator of the memory that an OrtMemoryInfo is of, to be given away."""
    allocator = own(lib.new_OrtAllocator())
    allocator.info = int(ffi.cast("uintptr_t", info))
    return allocator


def take(view: Any) -> Result:
    """The tensor that a TensorView describes, as a program's input; one on the host is a read-only view of it."""
    return MEMORY.take(view) if view.on_device else array_of_view(view)


def write(view: Any, result: Result) -> None:
    """Write an evaluated array to where a TensorView is."""
    (MEMORY.write if view.on_device else write_at)(view, result)


def _seen_as(array: Result, written: str, shape: tuple[int, ...], dtype: str) -> Array:
    """What was written as one type, in its own shape, and is read as another: Python copies tensors as bytes.

    Raises:
        ModelError: they do not take as many bytes.
    """
    data = bytes_of(stored(array), written)
    if data.size != bytes_in(shape, dtype):
        was = f"{written}{list(array.shape)}"
        raise ModelError(f"{dtype}{list(shape)} was to be read on the device, where {was} was written")
    return array_of_bytes(data, shape, dtype)


@callback("OrtAllocator_Alloc")
def _alloc(this: Any, size: int) -> int:
    return MEMORY.allocate(size)


@callback("OrtAllocator_Free")
def _free(this: Any, address: int) -> None:
    MEMORY.free(address)


@callback("OrtDataTransferImpl_CopyTensors")
def _copy_tensors(this: Any, sources: Any, targets: Any, streams: Any, count: int) -> Any:
    source, target = ffi.new("TensorView *"), ffi.new("TensorView *")
    for index in range(count):
        check(lib.read_tensor(sources[index], source))
        check(lib.read_tensor(targets[index], target))
        write(target, MEMORY.read(source) if source.on_device else array_of_view(source))
    return OK
