"""Kernels of operators that packs define: they run the nodes that no execution provider claims."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

from opgraft.claims import DEVICE_TYPES
from opgraft.engine import Program, VerifiedRegistry
from opgraft.errors import TranslationError
from opgraft.graph import Node
from opgraft.host._ep import ffi, lib
from opgraft.host.compute import Computation
from opgraft.host.devices import default_device
from opgraft.host.kernel_info import read_node, session_being_made
from opgraft.host.key_values import config_entries, provider_options
from opgraft.host.options import Options, parse_options
from opgraft.host.status import OK, callback
from opgraft.plan import build_plan
from opgraft.registry import UNKNOWN_VERSION, Definition, load_registry


class Kernel:
    """A kernel for one node: a program of that node alone, by the handler that would have claimed it.

    Args:
        info: the OrtKernelInfo.
        definition: of the node's operator.

    Raises:
        TranslationError: no handler takes the node, or it may be of several versions.
        OptionError, RegistryError: the session's options for this provider cannot be used.
    """

    live: ClassVar[dict[int, Kernel]] = {}
    _numbers: ClassVar[itertools.count[int]] = itertools.count(1)

    def __init__(self, info: Any, definition: Definition) -> None:
        node = read_node(info, definition)
        if node.since_version == UNKNOWN_VERSION:
            node.since_version = _version(node, definition)
        options = parse_options(provider_options(config_entries(lib.ort_KernelInfo_GetConfigEntries, info)))
        device = _device(node, options)
        packs = load_registry(options.registry)
        registry = VerifiedRegistry(packs, device) if options.verify else packs
        program = Program(build_plan(node.graph), registry, device)
        self.computation = Computation(
            program,
            _places(program.plan.inputs, node.inputs),
            _places(program.plan.output_values, node.outputs),
            session_being_made(),
        )
        self.number = next(Kernel._numbers)


def _places(values: Any, among: Any) -> list[int]:
    places = {value.name: index for index, value in enumerate(among) if value is not None}
    return [places[value.name] for value in values]


def _version(node: Node, definition: Definition) -> int:
    """The operator's version that a kernel's node is of.

    Raises:
        TranslationError: it could be of several.
    """
    versions = list(definition.handlers_for(node))
    if len(versions) > 1:
        numbers = " or ".join(map(str, versions))
        raise TranslationError(
            f"node {node.label!r} ({node.operator}, pack {definition.pack!r}) is of version {numbers}, and ONNX "
            "Runtime does not tell a kernel which; the execution provider knows, so add MLXExecutionProvider to the "
            "session's providers"
        )
    return versions[0] if versions else definition.since


def _device(node: Node, options: Options) -> str:
    """The device that the session asks for, unless it lacks an element type of the node."""
    device = default_device() if options.device == "auto" else options.device
    dtypes = {value.dtype for value in (*node.inputs, *node.outputs) if value is not None}
    return device if dtypes <= DEVICE_TYPES[device] else "cpu"


@callback("OrtCustomOp_KernelComputeV2")
def _compute(kernel: Any, context: Any) -> Any:
    Kernel.live[int(ffi.cast("uintptr_t", kernel))].computation.run(context)
    return OK


@callback("OrtCustomOp_KernelDestroy")
def _destroy(kernel: Any) -> None:
    Kernel.live.pop(int(ffi.cast("uintptr_t", kernel)), None)
