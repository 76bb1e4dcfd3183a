"""opgraft: an ONNX Runtime execution provider whose operators are Python plugins that run on MLX.

import onnxruntime as ort, opgraft
opgraft.register()
session = ort.InferenceSession("model.onnx", providers=["MLXExecutionProvider", "CPUExecutionProvider"])
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opgraft import blas  # before anything that loads MLX
from opgraft.host import EP_NAME, library_path, register, unregister

if TYPE_CHECKING:
    import onnx

    from opgraft.host.options import OptionValue
    from opgraft.reporting import Report

# On CUDA, MLX multiplies float32 matrices in TF32 unless it is told otherwise before its first use: 1e-3 off.
os.environ.setdefault("MLX_ENABLE_TF32", "0")

try:
    __version__ = version("opgraft")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"


def session_options(**provider_options: OptionValue) -> Any:
    """An `onnxruntime.SessionOptions` with this execution provider in place, and the CPU's behind it.

    They are not to be used after `unregister()`, which takes the device away that they name.

    Args:
        provider_options: as in `device="cpu"`; the README lists them. True and False stand for "on" and "off".

    Raises:
        OptionError: an option is unknown, has no such value, or asks for a GPU that MLX cannot use.
        RegistryError: the registry file cannot be used.
        InstallationError: onnxruntime is missing or too old, or MLX has no backend here.
    """
    from opgraft.sessions import options_with_provider

    return options_with_provider(provider_options)


def report(model: str | Path | bytes | onnx.ModelProto, **provider_options: OptionValue) -> Report:
    """What opgraft claims of a model, what it declines and why, and what claiming more would change.

    Args:
        model: a file, its bytes, or a model in memory.
        provider_options: as for `session_options`.

    Raises:
        ModelError: there is no such file, or it holds no ONNX model.
        OptionError, RegistryError: as for `session_options`.
    """
    from opgraft.sessions import survey

    return survey(model, provider_options)


__all__ = ["EP_NAME", "__version__", "blas", "library_path", "register", "report", "session_options", "unregister"]
