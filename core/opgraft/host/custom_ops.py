"""OrtCustomOp: the operators that packs define, with their inference and a kernel for nodes that nobody claims.

What ONNX Runtime is told of an operator must outlive every session that might use it, so it lives as long as the
process: one set of domains for each registry that was in use.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any, ClassVar, Final

from opgraft.claims import DEVICE_TYPES
from opgraft.engine import Program, VerifiedRegistry
from opgraft.engine.inference import infer_outputs
from opgraft.errors import ContractError, RegistryError, TranslationError
from opgraft.graph import ONNX_DOMAIN, AttributeValue, Graph, Node, Value
from opgraft.graph.element_types import ORT_OF_NAME
from opgraft.host import CUSTOM_OPS_ENTRY
from opgraft.host._ep import ffi, lib
from opgraft.host.compute import Computation
from opgraft.host.devices import default_device
from opgraft.host.kernel_info import read_node
from opgraft.host.key_values import config_entries, provider_options
from opgraft.host.logger import Logger
from opgraft.host.options import Options, parse_options
from opgraft.host.ort_attributes import read_attribute
from opgraft.host.ort_graph import type_of_view
from opgraft.host.status import OK, OrtError, callback, check
from opgraft.ops import Output
from opgraft.plan import build_plan
from opgraft.registry import UNKNOWN_VERSION, Definition, Registry, load_registry
from opgraft.schemas import left_out, told

_REQUIRED: Final = 0
_OPTIONAL: Final = 1
_VARIADIC: Final = 2

_COUNTS_OUTPUTS_SINCE: Final = 28
"""Before ONNX Runtime 1.28, the process dies of telling the type of an output that a node does not have, and how many
it has is not to be learned."""

_fresh: Final = itertools.count()


class CustomOp:
    """The Python side of one OrtCustomOp."""

    live: ClassVar[dict[Any, CustomOp]] = {}

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        characteristics = [
            _VARIADIC if each.variadic else _REQUIRED if each.required else _OPTIONAL for each in definition.inputs
        ]
        self.pointer = lib.new_OrtCustomOp()
        facts = self.pointer.facts
        self._kept = (ffi.new("char[]", definition.op_type.encode()), ffi.new("int32_t[]", characteristics))
        facts.name, facts.characteristics = self._kept
        facts.inputs = len(characteristics)
        facts.required_outputs = definition.required_outputs
        facts.since = definition.since
        CustomOp.live[self.pointer] = self

    def infer(self, context: Any) -> None:
        """Tell ONNX Runtime what is known of the outputs of a node."""
        required = self.definition.required_outputs
        node = _node_of_inference(context, self.definition)
        for index, output in enumerate(infer_outputs(node, self.definition)):
            if output.dtype is None or (index >= required and lib.api_version() < _COUNTS_OUTPUTS_SINCE):
                continue
            try:
                _set_output(context, index, output)
            except OrtError:
                if index < required:
                    raise  # otherwise the node does not have this output


class Kernel:
    """A kernel for one node that nobody claims: a program of that node alone."""

    live: ClassVar[dict[int, Kernel]] = {}
    _numbers: ClassVar[itertools.count[int]] = itertools.count(1)

    def __init__(self, info: Any, definition: Definition) -> None:
        node = read_node(info, definition)
        node.since_version = _version(node, definition)
        options = parse_options(provider_options(config_entries(lib.ort_KernelInfo_GetConfigEntries, info)))
        device = _device(node, options)
        registry = VerifiedRegistry(load_registry(options.registry), device)
        plan = build_plan(node.graph)
        places = {value.name: index for index, value in enumerate((*node.inputs, *node.outputs)) if value is not None}
        first_output = len(node.inputs)
        self.computation = Computation(
            Program(plan, registry, device),
            [places[value.name] for value in plan.inputs],
            [places[value.name] - first_output for value in plan.output_values],
        )
        self.number = next(Kernel._numbers)
        Kernel.live[self.number] = self


def _version(node: Node, definition: Definition) -> int:
    """The operator's version that a kernel's node is of.

    Raises:
        TranslationError: it could be of several.
    """
    versions = sorted(handler.since for handler in definition.handlers_for(node))
    if len(versions) > 1:
        numbers = " or ".join(map(str, versions))
        raise TranslationError(
            f"node {node.label!r} ({node.operator}, pack {definition.pack!r}) is of version {numbers}, which ONNX "
            "Runtime does not tell a kernel: such a node runs only where the execution provider claims it, so add "
            "MLXExecutionProvider to the session's providers, or see `opgraft report` for why it is declined"
        )
    return versions[0] if versions else definition.since


def _device(node: Node, options: Options) -> str:
    """The device that the session asks for, unless it lacks an element type of the node."""
    device = default_device() if options.device == "auto" else options.device
    dtypes = {value.dtype for value in (*node.inputs, *node.outputs) if value is not None}
    return device if dtypes <= DEVICE_TYPES[device] else "cpu"


def _node_of_inference(context: Any, definition: Definition) -> Node:
    """The node as its inference sees it: an input of rank 0 is one of unknown rank, since ONNX Runtime shows both
    alike. Of its outputs, those that it must have."""
    inputs: list[Value | None] = []
    count = ffi.new("size_t *")
    check(lib.ort_ShapeInferContext_GetInputCount(context, count))
    view = ffi.new("ValueView *")
    for index in range(count[0]):
        check(lib.read_inferred_input(context, index, view))
        dtype, shape, _ = type_of_view(view)
        inputs.append(Value(f"input {index}", dtype, shape or None) if view.element_type else None)
    while inputs and inputs[-1] is None:
        inputs.pop()
    node = Node(
        name="",
        op_type=definition.op_type,
        domain=definition.domain,
        since_version=UNKNOWN_VERSION,
        inputs=tuple(inputs),
        outputs=tuple(Value(f"output {index}") for index in range(definition.required_outputs)),
        attributes=_attributes_of_inference(context, definition),
    )
    Graph("", tuple(value for value in inputs if value), (), (node,), {}, {})
    return node


def _attributes_of_inference(context: Any, definition: Definition) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    view = ffi.new("AttributeView *")
    for name in dict.fromkeys(name for handler in definition.handlers for name in handler.signature.attributes):
        pointer = ffi.new("const OrtOpAttr **")
        status = lib.ort_ShapeInferContext_GetAttribute(context, name.encode(), pointer)
        if status:  # the node does not have it
            lib.ort_ReleaseStatus(status)
            continue
        attributes[name] = read_attribute(pointer[0], view)[1]
    return attributes


def _set_output(context: Any, index: int, output: Output) -> None:
    """Tell what is known of an output. ONNX Runtime takes no size that is unknown: such a dimension gets a name that
    no other has."""
    view = ffi.new("ValueView *")
    view.element_type = ORT_OF_NAME[output.dtype or ""]
    view.has_shape = output.shape is not None
    view.rank = len(output.shape or ())
    names = [dim if isinstance(dim, str) else f"opgraft_{next(_fresh)}" for dim in output.shape or ()]
    kept = [ffi.new("char[]", name.encode()) for name in names]
    none = ffi.new("char[]", b"")
    for axis, dim in enumerate(output.shape or ()):
        view.sizes[axis] = dim if isinstance(dim, int) else -1
        view.symbols[axis] = none if isinstance(dim, int) else kept[axis]
    check(lib.set_inferred_output(context, index, view))


@cache
def _domains_of(registry: Registry) -> tuple[Any, ...]:
    """An OrtCustomOpDomain for each domain that the operators of a registry's packs are in."""
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


def domains() -> tuple[Any, ...]:
    """The domains of the operators that the installed packs define, by the registry file that is the default."""
    try:
        return _domains_of(load_registry())
    except RegistryError as error:  # which each session will raise too
        _warn(f"opgraft: the operators that packs define are not known: {error}")
        return ()


def _warn(message: str) -> None:
    if Logger.default is not None:
        Logger.default.warning(message)


def add_domains(options: Any) -> None:
    """Tell session options of the domains; does nothing where they have been told."""
    if CUSTOM_OPS_ENTRY in config_entries(lib.ort_GetSessionOptionsConfigEntries, options):
        return
    for domain in domains():
        check(lib.ort_AddCustomOpDomain(options, domain))
    check(lib.ort_AddSessionConfigEntry(options, CUSTOM_OPS_ENTRY.encode(), b"1"))


@callback("OrtCustomOp_InferOutputShapeFn")
def _infer_output_shape(this: Any, context: Any) -> Any:
    try:
        CustomOp.live[this].infer(context)
    except (ContractError, OrtError) as error:  # ONNX Runtime takes no notice of an error here
        _warn(f"opgraft: {error}")
    return OK


@callback("OrtCustomOp_CreateKernelV2")
def _create_kernel(this: Any, api: Any, info: Any, kernel: Any) -> Any:
    made = Kernel(info, CustomOp.live[this].definition)
    kernel[0] = ffi.cast("void *", made.number)
    return OK


@callback("OrtCustomOp_KernelComputeV2")
def _compute(kernel: Any, context: Any) -> Any:
    Kernel.live[int(ffi.cast("uintptr_t", kernel))].computation.run(context)
    return OK


@callback("OrtCustomOp_KernelDestroy")
def _destroy_kernel(kernel: Any) -> None:
    Kernel.live.pop(int(ffi.cast("uintptr_t", kernel)), None)
