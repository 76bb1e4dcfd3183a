"""OrtCustomOp: what ONNX Runtime is told of the operators that packs define.

All of this must outlive every session that might use it, so it lives as long as the process: one set of domains for
each registry that was in use.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, Final

from opgraft.engine.inference import output_types
from opgraft.errors import RegistryError
from opgraft.graph import ONNX_DOMAIN
from opgraft.graph.element_types import ORT_OF_NAME
from opgraft.host import CUSTOM_OPS_ENTRY
from opgraft.host._ep import ffi, lib
from opgraft.host.custom_inference import tell_outputs
from opgraft.host.custom_kernel import Kernel
from opgraft.host.key_values import config_entries
from opgraft.host.logger import Logger
from opgraft.host.status import OK, callback, check
from opgraft.registry import Definition, Parameter, Registry, load_registry
from opgraft.schemas import left_out, told

_REQUIRED: Final = 0
_OPTIONAL: Final = 1
_VARIADIC: Final = 2

_ANY_TYPE: Final = 0


class CustomOp:
    """The Python side of one OrtCustomOp."""

    live: ClassVar[dict[Any, CustomOp]] = {}

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        inputs, outputs = definition.inputs, output_types(definition)
        self.pointer = lib.new_OrtCustomOp()
        facts = self.pointer.facts
        self._kept = (
            ffi.new("char[]", definition.op_type.encode()),
            ffi.new("int32_t[]", [_type(each.dtype) for each in inputs]),
            ffi.new("int32_t[]", [_characteristic(each) for each in inputs]),
            ffi.new("int32_t[]", [_type(dtype) for dtype in outputs]),
        )
        facts.name, facts.input_types, facts.characteristics, facts.output_types = self._kept
        facts.inputs, facts.outputs, facts.since = len(inputs), len(outputs), definition.since
        facts.homogeneous = any(each.homogeneous for each in inputs)
        CustomOp.live[self.pointer] = self


def _type(dtype: str | None) -> int:
    return _ANY_TYPE if dtype is None else ORT_OF_NAME[dtype]


def _characteristic(parameter: Parameter) -> int:
    return _VARIADIC if parameter.variadic else _REQUIRED if parameter.required else _OPTIONAL


def domains() -> tuple[Any, ...]:
    """The OrtCustomOpDomains of the operators that the installed packs define, by the default registry file.

    None where that file cannot be used: this is for sessions to raise, which may name another one.
    """
    try:
        return _domains_of(load_registry())
    except RegistryError as error:
        _warn(f"opgraft: the operators that packs define are not known: {error}")
        return ()


@cache
def _domains_of(registry: Registry) -> tuple[Any, ...]:
    by_domain: dict[str, list[Definition]] = {}
    for definition in told(registry).values():
        by_domain.setdefault(definition.domain, []).append(definition)
    for each in left_out(registry).values():
        _warn(f"opgraft leaves out {each.operator} of {', '.join(each.packs)}: {each.reason}")
    return tuple(_domain(name, definitions) for name, definitions in by_domain.items())


def _domain(name: str, definitions: list[Definition]) -> Any:
    made = ffi.new("OrtCustomOpDomain **")
    check(lib.ort_CreateCustomOpDomain(b"" if name == ONNX_DOMAIN else name.encode(), made))
    for definition in definitions:
        check(lib.ort_CustomOpDomain_Add(made[0], CustomOp(definition).pointer))
    return made[0]


def add_domains(options: Any) -> None:
    """Tell session options of the domains; does nothing where they have been told.

    Raises:
        RegistryError: the default registry file cannot be used.
    """
    if CUSTOM_OPS_ENTRY in config_entries(lib.ort_GetSessionOptionsConfigEntries, options):
        return
    for domain in _domains_of(load_registry()):
        check(lib.ort_AddCustomOpDomain(options, domain))
    check(lib.ort_AddSessionConfigEntry(options, CUSTOM_OPS_ENTRY.encode(), b"1"))


def _warn(message: str) -> None:
    if Logger.default is not None:
        Logger.default.warning(message)


@callback("OrtCustomOp_InferOutputShapeFn")
def _infer_output_shape(this: Any, context: Any) -> Any:
    tell_outputs(context, CustomOp.live[this].definition)
    return OK


@callback("OrtCustomOp_CreateKernelV2")
def _create_kernel(this: Any, api: Any, info: Any, kernel: Any) -> Any:
    made = Kernel(info, CustomOp.live[this].definition)
    kernel[0] = ffi.cast("void *", made.number)
    Kernel.live[made.number] = made
    return OK
