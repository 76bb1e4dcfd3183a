"""The library as ONNX Runtime sees it: `CreateEpFactories` and `ReleaseEpFactory` of support.c call in here."""

from __future__ import annotations

import atexit
import os
from typing import Final

from opgraft.host._ep import ffi, lib
from opgraft.host.logger import Logger
from opgraft.host.requirements import api_version_of, require_mlx

_SHUT_DOWN_MILLISECONDS: Final = 2000
"""How long the end of the interpreter waits for runs that are under way in other threads."""


def create_factory(registration_name: bytes, api_base: int, logger: int) -> int:
    """Make the factory for one registration.

    Args:
        registration_name: the name that the application gave.
        api_base: address of the OrtApiBase.
        logger: address of the environment's OrtLogger.

    Returns:
        The address of an OrtEpFactory.

    Raises:
        InstallationError: this onnxruntime is too old, or MLX has no backend here.
    """
    _attach(api_base)
    Logger.default = Logger(ffi.cast("OrtLogger *", logger))

    from opgraft.host.factory import Factory  # imports MLX

    return Factory(registration_name.decode(errors="replace")).address


def _attach(api_base: int) -> None:
    base = ffi.cast("OrtApiBase *", api_base)
    version = api_version_of(ffi.string(lib.ort_version(base)).decode())
    require_mlx()
    if not lib.attach(base, version):
        raise RuntimeError(f"onnxruntime has no C API version {version}")


def register_custom_ops(options: int, api_base: int) -> None:
    """Tell a session's options of the operators that packs define; does nothing where they have been told.

    Args:
        options: address of the OrtSessionOptions.
        api_base: address of the OrtApiBase.

    Raises:
        InstallationError: this onnxruntime is too old, or MLX has no backend here.
    """
    _attach(api_base)
    from opgraft.host.custom_ops import add_domains  # imports MLX

    add_domains(ffi.cast("OrtSessionOptions *", options))


def release_factory(address: int) -> None:
    """ONNX Runtime is done with a factory."""
    from opgraft.host.factory import Factory

    Factory.release(address)


@atexit.register
def _shut_down() -> None:
    lib.shut_down(_SHUT_DOWN_MILLISECONDS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lib.forget_other_threads)
