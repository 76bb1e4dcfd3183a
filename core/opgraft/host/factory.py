"""OrtEpFactory: which devices there are, and an execution provider for each session."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any, ClassVar, Final

from opgraft.engine import require_threads
from opgraft.host import registration_names
from opgraft.host._ep import ffi, lib
from opgraft.host.custom_ops import domains
from opgraft.host.device_memory import is_offered as device_memory_offered
from opgraft.host.device_memory import new_allocator, new_memory_info
from opgraft.host.devices import chosen_device, drives, gpu_backend
from opgraft.host.ep import ExecutionProvider
from opgraft.host.key_values import config_entries, provider_options
from opgraft.host.logger import Logger
from opgraft.host.options import parse_options
from opgraft.host.status import OK, callback, check
from opgraft.host.structures import give_away, own

_CPU: Final = 0
_GPU: Final = 1

_VERSIONS: Final = {name: version(name) for name in ("opgraft", "mlx")}


class Factory:
    """The Python side of one OrtEpFactory.

    The C structure outlives its release where sessions or values still hold it, for ONNX Runtime reads it to release
    their execution providers and allocators.
    """

    live: ClassVar[dict[Any, Factory]] = {}

    def __init__(self, registration_name: str) -> None:
        self.registration_name = registration_name
        self.pointer = lib.new_OrtEpFactory()
        self.gpu_offered = False
        self.memory_info = new_memory_info() if device_memory_offered() else ffi.NULL
        self.allocators: set[Any] = set()
        self.released = False
        _set_version(_VERSIONS["opgraft"])
        Factory.live[self.pointer] = self
        registration_names.append(registration_name)

    @property
    def address(self) -> int:
        return int(ffi.cast("uintptr_t", self.pointer))

    @staticmethod
    def release(address: int) -> None:
        """ONNX Runtime has unregistered the library. What Ctrl-C ends is done again."""
        factory = Factory.live.get(ffi.cast("OrtEpFactory *", address))
        if factory is not None:
            if not factory.released:
                factory.released = True
                registration_names.remove(factory.registration_name)
            factory._free_if_unused()

    def supported_devices(self, hardware: list[Any]) -> list[Any]:
        """An OrtEpDevice for the CPU, and one for the first GPU that MLX can drive."""
        backend = gpu_backend()
        cpus = [each for each in hardware if lib.ort_HardwareDevice_Type(each) == _CPU]
        gpus = [
            each
            for each in hardware
            if lib.ort_HardwareDevice_Type(each) == _GPU and drives(backend, lib.ort_HardwareDevice_VendorId(each))
        ]
        self.gpu_offered = bool(gpus)
        made = [self._device(each, "cpu", "cpu") for each in cpus[:1]]
        return made + [self._device(each, "gpu", backend or "") for each in gpus[:1]]

    def _device(self, hardware: Any, device: str, backend: str) -> Any:
        metadata = {
            "opgraft_version": _VERSIONS["opgraft"],
            "mlx_version": _VERSIONS["mlx"],
            "mlx_device": device,
            "mlx_backend": backend,
        }
        pairs = ffi.new("OrtKeyValuePairs **")
        lib.ort_CreateKeyValuePairs(pairs)
        try:
            for key, value in metadata.items():
                lib.ort_AddKeyValuePair(pairs[0], key.encode(), value.encode())
            made = ffi.new("OrtEpDevice **")
            check(lib.ep_CreateEpDevice(self.pointer, hardware, pairs[0], ffi.NULL, made))
            if self.memory_info:  # the same for each device: a session may be given several
                check(lib.ep_EpDevice_AddAllocatorInfo(made[0], self.memory_info))
        finally:
            lib.ort_ReleaseKeyValuePairs(pairs[0])
        return made[0]

    def create_provider(self, hardware: list[Any], session_options: Any, logger: Logger) -> ExecutionProvider:
        """An execution provider for a session.

        Raises:
            OptionError: a provider option is unknown or has an unknown value.
            ProcessError: MLX cannot work in this process.
        """
        require_threads()
        options = parse_options(
            provider_options(config_entries(lib.ort_GetSessionOptionsConfigEntries, session_options))
        )
        device = chosen_device(
            options.device,
            gpu_chosen=any(lib.ort_HardwareDevice_Type(each) == _GPU for each in hardware),
            gpu_offered=self.gpu_offered,
        )
        return ExecutionProvider(self, options, device, logger)

    def release_provider(self, pointer: Any) -> None:
        try:
            if pointer in ExecutionProvider.live:
                ExecutionProvider.live[pointer].release()
        finally:
            self._free_if_unused()

    def release_allocator(self, pointer: Any) -> None:
        self.allocators.discard(pointer)
        self._free_if_unused()

    def _free_if_unused(self) -> None:
        providers = tuple(ExecutionProvider.live.values())
        if self.released and not self.allocators and all(each.factory is not self for each in providers):
            del Factory.live[self.pointer]
            if self.memory_info:
                lib.ort_ReleaseMemoryInfo(self.memory_info)
            lib.free(self.pointer)


def _set_version(text: str) -> None:
    """ONNX Runtime takes nothing but a semantic version: development and local suffixes are left out."""
    match = re.match(r"\d+\.\d+\.\d+", text)
    encoded = (match[0] if match else "0.0.0").encode()
    ffi.memmove(lib.ep_version, encoded + b"\0", len(encoded) + 1)


@callback("OrtEpFactory_GetSupportedDevices")
def _get_supported_devices(
    this: Any, hardware: Any, hardware_count: int, devices: Any, capacity: int, count: Any
) -> Any:
    made = Factory.live[this].supported_devices(ffi.unpack(hardware, hardware_count))
    for index, device in enumerate(made[:capacity]):
        devices[index] = device
    count[0] = min(len(made), capacity)
    return OK


@callback("OrtEpFactory_CreateEp")
def _create_ep(
    this: Any, hardware: Any, metadata: Any, count: int, session_options: Any, logger: Any, created: Any
) -> Any:
    chosen = ffi.unpack(hardware, count)
    provider = Factory.live[this].create_provider(chosen, session_options, Logger(logger))
    created[0] = give_away(provider.pointer)
    ExecutionProvider.live[provider.pointer] = provider
    return OK


@callback("OrtEpFactory_ReleaseEp")
def _release_ep(this: Any, ep: Any) -> None:
    Factory.live[this].release_provider(ep)


@callback("OrtEpFactory_CreateAllocator")
def _create_allocator(this: Any, info: Any, options: Any, allocator: Any) -> Any:
    made = new_allocator(info)
    allocator[0] = give_away(made)
    Factory.live[this].allocators.add(made)
    return OK


@callback("OrtEpFactory_ReleaseAllocator")
def _release_allocator(this: Any, allocator: Any) -> None:
    if this in Factory.live:
        Factory.live[this].release_allocator(allocator)


@callback("OrtEpFactory_CreateDataTransfer")
def _create_data_transfer(this: Any, transfer: Any) -> Any:
    offered = Factory.live[this].memory_info
    transfer[0] = give_away(own(lib.new_OrtDataTransferImpl())) if offered else ffi.NULL
    return OK


@callback("OrtEpFactory_GetNumCustomOpDomains")
def _get_num_custom_op_domains(this: Any, count: Any) -> Any:
    count[0] = len(domains())
    return OK


@callback("OrtEpFactory_GetCustomOpDomains")
def _get_custom_op_domains(this: Any, found: Any, count: int) -> Any:
    for index, domain in enumerate(domains()[:count]):
        found[index] = domain
    return OK
