"""Sessions that serve another: they may be made, and run, while ONNX Runtime makes or runs a session of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opgraft.host import CUSTOM_OPS_ENTRY, EP_NAME, library_path

SEVERITY_FATAL = 4
"""The log level at which ONNX Runtime says nothing of what a session finds."""


def offered_devices() -> dict[str, Any]:
    """The devices of this execution provider that ONNX Runtime knows: "cpu", and "gpu" where there is one."""
    import onnxruntime

    return {each.ep_metadata["mlx_device"]: each for each in onnxruntime.get_ep_devices() if each.ep_name == EP_NAME}


def cpu_session(source: str | bytes) -> Any:
    """A session of a model, given as its path or its bytes, on ONNX Runtime's CPU execution provider alone; operators
    that packs define run there too.

    Raises:
        Exception: ONNX Runtime's own, where it cannot load the model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = SEVERITY_FATAL
    options.register_custom_ops_library(library_path())
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"], enable_fallback=0)


def own_session(source: bytes, provider_options: Mapping[str, str]) -> Any:
    """A session of a model with this execution provider first; its options name the device.

    Raises:
        Exception: ONNX Runtime's own, where it cannot load the model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = SEVERITY_FATAL
    offered = offered_devices()
    device = offered.get(provider_options["device"]) or offered["cpu"]
    options.add_provider_for_devices([device], dict(provider_options))
    options.add_session_config_entry(CUSTOM_OPS_ENTRY, "1")
    return onnxruntime.InferenceSession(source, options, enable_fallback=0)
