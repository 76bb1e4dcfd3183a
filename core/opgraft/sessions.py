"""Sessions of ONNX Runtime with this execution provider in them: opened, observed and fed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import onnx

from opgraft.claims import Decisions, decide
from opgraft.engine import VerifiedRegistry, read_model
from opgraft.errors import ModelError
from opgraft.graph import Graph, Value
from opgraft.graph.completion import completed_apart
from opgraft.graph.element_types import has_numpy_type
from opgraft.graph.onnx_source import load_model
from opgraft.host import CUSTOM_OPS_ENTRY, observed, register
from opgraft.host.devices import chosen_device, default_device
from opgraft.host.options import Options, ProviderOptions, option_texts, parse_options
from opgraft.nested import SEVERITY_FATAL, cpu_session, offered_devices
from opgraft.ort_values import DTYPE_OF_TEXT
from opgraft.profiles import load_profile, require_device
from opgraft.registry import Registry, installed_packs, load_registry
from opgraft.reporting import Coverage, Report, coverage_of, report_of
from opgraft.reporting.observation import Observation, Observer, completed_observations
from opgraft.reporting.report import Setting
from opgraft.samples import Sample, drawn_inputs, places_of
from opgraft.schemas import told, unknown_operators
from opgraft.sizes import ALL_OTHERS, require_known

T = TypeVar("T")

Model = str | Path | bytes | onnx.ModelProto

_SEVERITY_WARNING = 2
_ASSIGNMENT_RECORD = "session.record_ep_graph_assignment_info"


@dataclass(frozen=True)
class OpenedSession:
    """A session, and what opgraft decided about its model while it was made."""

    session: Any
    coverage: Coverage


def assignment(session: Any) -> dict[str, list[int]]:
    """The number of nodes of each subgraph, by execution provider, by ONNX Runtime's own record.

    The record is made where the session option `session.record_ep_graph_assignment_info` is 1.
    """
    sizes: dict[str, list[int]] = {}
    for subgraph in session.get_provider_graph_assignment_info():
        sizes.setdefault(subgraph.ep_name, []).append(len(subgraph.get_nodes()))
    return sizes


def options_with_provider(provider_options: ProviderOptions | None = None) -> Any:
    """`onnxruntime.SessionOptions` with this execution provider in place; see `opgraft.session_options`."""
    given = option_texts(provider_options or {})
    register()
    import onnxruntime

    asked = parse_options(given)
    load_registry(asked.registry)
    profile = None if asked.profile is None else load_profile(asked.profile)
    options = onnxruntime.SessionOptions()
    offered = offered_devices()
    device = offered.get(asked.device) or offered.get("gpu") or offered["cpu"]
    chosen = chosen_device(asked.device, gpu_chosen=device is offered.get("gpu"), gpu_offered="gpu" in offered)
    if profile is not None and asked.profile is not None:
        require_device(profile, asked.profile, chosen)
    options.add_provider_for_devices([device], given)
    options.add_session_config_entry(CUSTOM_OPS_ENTRY, "1")
    return options


def open_session(model: Model, provider_options: ProviderOptions | None = None) -> OpenedSession:
    """A session of a model with this execution provider first and the CPU's second.

    Raises:
        ModelError: ONNX Runtime cannot load the model; the message is its own.
        OptionError, RegistryError: an option or a registry file cannot be used.
    """
    session, seen = _observed_session(model, _observed_options(provider_options), lambda decisions: decisions)
    return OpenedSession(session, coverage_of(seen, model=model_name(model), source="session"))


def decided_session(model: Model, provider_options: ProviderOptions | None = None) -> list[Decisions]:
    """What is decided about a model while a session of it is made.

    Raises:
        ModelError: ONNX Runtime cannot load the model; the message is its own.
        OptionError, RegistryError: an option or a registry file cannot be used.
    """
    return _observed_session(model, _observed_options(provider_options), lambda decisions: decisions)[1]


def survey(
    model: Model,
    provider_options: ProviderOptions | None = None,
    sizes: Mapping[str, int] | None = None,
    *,
    all_sizes_needed: bool = True,
) -> Report:
    """The report on a model: from a real session, or from the file alone where ONNX Runtime cannot load it.

    Args:
        model: the model.
        provider_options: as for a session.
        sizes: numbers for symbolic dimensions, by name, so that more shapes and bytes are known. A session that is
            made with them (ONNX Runtime calls them free dimension overrides) may be optimized further.
        all_sizes_needed: whether it is an error where the model has no dimension of a name in `sizes`.

    Raises:
        ModelError: there is no such file, it holds no ONNX model, or none of these sizes.
        OptionError, RegistryError: an option or a registry file cannot be used.
    """
    if isinstance(model, str | Path):
        load_model(model)
    asked = parse_options(provider_options or {})
    registry = load_registry(asked.registry)
    observer = Observer(registry, installed_packs(), verify=asked.verify)
    overrides = _overrides(model, sizes or {}, strict=all_sizes_needed)
    source, note = "session", None
    try:
        seen = _shown(model, provider_options, observer, overrides)
    except ModelError as refusal:
        if overrides and _loads(model):
            raise ModelError(f"the model does not take these sizes: {refusal}") from refusal
        source, note = "file", str(refusal)
        seen = [observer.observe(_decided_from_file(model, asked, registry))]
    seen = seen or [observer.observe(Decisions(_EMPTY, _device(asked), (), ()))]
    seen = completed_observations(seen)
    passes = [each.decisions for each in seen]
    coverage = coverage_of(passes, model=model_name(model), source=source, note=note)
    return report_of(seen, coverage, Setting.of(registry))


def _shown(
    model: Model, provider_options: ProviderOptions | None, observer: Observer, overrides: Mapping[str, int]
) -> list[Observation]:
    """What a session shows of a model. What ONNX Runtime optimizes after it has asked changes no claim, and takes long
    on a large model: it is left out."""
    import onnxruntime

    options = _observed_options(provider_options)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    for name, size in overrides.items():
        options.add_free_dimension_override_by_name(name, size)
    return _observed_session(model, options, observer.observe)[1]


def _loads(model: Model) -> bool:
    try:
        open_cpu_session(model)
    except ModelError:
        return False
    return True


def _overrides(model: Model, sizes: Mapping[str, int], *, strict: bool) -> dict[str, int]:
    """The sizes that are given for symbolic dimensions of a model, by name; `*` stands for all others."""
    if not sizes:
        return {}
    proto = _proto(model)
    dims = {
        f"{value.name}:{axis}": dim
        for value in proto.graph.input
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
    }
    places = {place: dim.dim_param for place, dim in dims.items() if dim.dim_param}
    fixed = {place: dim.dim_value for place, dim in dims.items() if dim.HasField("dim_value")}
    names = set(places.values())
    given = {places.get(name, name): size for name, size in sizes.items()}
    if strict:
        require_known(given, sorted(names), fixed, "those that have a name and no size")
    every = given.get(ALL_OTHERS)
    return {name: size for name in names if (size := given.get(name, every)) is not None}


def _observed_options(provider_options: ProviderOptions | None) -> Any:
    """`onnxruntime.SessionOptions` of a session that is looked at: nothing is logged but what the options ask for."""
    options = options_with_provider(provider_options)
    options.add_session_config_entry(_ASSIGNMENT_RECORD, "1")
    asked = parse_options(provider_options or {})
    options.log_severity_level = _SEVERITY_WARNING if asked.log_declined else SEVERITY_FATAL
    return options


def _observed_session(model: Model, options: Any, look: Callable[[Decisions], T]) -> tuple[Any, list[T]]:
    import onnxruntime

    try:
        with observed(look) as seen:
            return onnxruntime.InferenceSession(source_of(model), options, enable_fallback=0), seen
    except Exception as error:
        raise _refusal(model, error, load_registry()) from error


def _decided_from_file(model: Model, asked: Options, registry: Registry) -> Decisions:
    folder = Path(model).parent if isinstance(model, str | Path) else Path()
    device = _device(asked)
    graph = read_model(_proto(model), told(registry), folder, completed_apart)
    return decide(graph, VerifiedRegistry(registry, device), device=device)


def _device(asked: Options) -> str:
    return default_device() if asked.device == "auto" else asked.device


_EMPTY = Graph("", (), (), (), {}, {})
"""What is left of a model all of whose nodes are constant."""


def open_cpu_session(model: Model) -> Any:
    """A session of a model on ONNX Runtime's CPU execution provider alone; operators that packs define run there too.

    Raises:
        ModelError: ONNX Runtime cannot load the model.
    """
    try:
        return cpu_session(source_of(model))
    except Exception as error:
        raise _refusal(model, error, load_registry()) from error


def model_name(model: Model) -> str:
    """What a report calls a model."""
    if isinstance(model, str | Path):
        return Path(model).name
    return "model" if isinstance(model, bytes) else (model.graph.name or "model")


def sample_inputs(session: Any, sizes: Mapping[str, int] | None = None, seed: int = 0) -> Sample:
    """Random inputs that fit a session's signature.

    Args:
        session: an `onnxruntime.InferenceSession`.
        sizes: numbers for symbolic dimensions, by their name or by `input:axis`; `*` stands for all others.
        seed: of the random generator.

    Raises:
        ModelError: an input is no tensor of numbers that NumPy has.
        OptionError: `sizes` names no dimension of the model, or gives another size to one that has one.
    """
    values = signature(session)
    for value, each in zip(values, session.get_inputs(), strict=True):
        if value.dtype is None or not has_numpy_type(value.dtype):
            raise ModelError(f"input {each.name!r} is of type {each.type}; give it in a file (--inputs)")
    places = list(places_of(values))
    known = dict.fromkeys(name for place in places if place.size is None for name in place.names)
    fixed = {place.position: place.size for place in places if place.size is not None}
    require_known(sizes or {}, known, fixed, "those without a size")
    return drawn_inputs(values, sizes, seed)


def signature(session: Any) -> list[Value]:
    """The inputs of a session: their element types, and their sizes as far as the model gives them."""
    return [
        Value(
            each.name,
            DTYPE_OF_TEXT.get(each.type),
            tuple(dim if isinstance(dim, int) or dim != "?" else None for dim in each.shape),
        )
        for each in session.get_inputs()
    ]


def source_of(model: Model) -> str | bytes:
    """A model as `onnxruntime.InferenceSession` takes it."""
    if isinstance(model, onnx.ModelProto):
        return bytes(model.SerializeToString())
    return model if isinstance(model, bytes) else str(model)


def _refusal(model: Model, error: Exception, registry: Registry) -> ModelError:
    """What ONNX Runtime says, and what it does not know: which packs would have to define which operators."""
    said = " ".join(str(error).split())
    advice = unknown_operators(_proto(model), registry)
    return ModelError("; ".join([f"{model_name(model)}: onnxruntime cannot load it: {said}", *advice]))


def _proto(model: Model) -> onnx.ModelProto:
    """A model as a file gives it.

    Raises:
        ModelError: it is no ONNX model.
    """
    if isinstance(model, str | Path):
        return load_model(model)
    if isinstance(model, onnx.ModelProto):
        return model
    try:
        return onnx.load_model_from_string(model)
    except Exception as error:
        raise ModelError(f"not an ONNX model, or cut short ({error})") from error
