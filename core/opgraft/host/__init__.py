"""The boundary to ONNX Runtime: the only part of opgraft that touches a C pointer.

Importing this package loads neither the extension module nor MLX, so its functions answer on a machine where one of
them is missing.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from opgraft.errors import InstallationError
from opgraft.host.requirements import require_mlx, require_onnxruntime

if TYPE_CHECKING:
    from opgraft.claims import Decisions

__all__ = ["EP_NAME", "library_path", "observed", "observers", "register", "registration_names", "unregister"]

T = TypeVar("T")

EP_NAME = "MLXExecutionProvider"

observers: list[Callable[[Decisions], None]] = []
"""Each is called with what was decided about every graph that a session shows to opgraft.

The call comes from the thread that makes the session. The graph's initializers can be read during the call only.
"""

registration_names: list[str] = []
"""The names under which ONNX Runtime has loaded this library in this process, whoever asked it to."""


@contextmanager
def observed(look: Callable[[Decisions], T]) -> Iterator[list[T]]:
    """What `look` gives for all that is decided in this thread while the context lasts; other threads make sessions of
    their own meanwhile."""
    thread = threading.get_ident()
    seen: list[T] = []

    def observe(decisions: Decisions) -> None:
        if threading.get_ident() == thread:
            seen.append(look(decisions))

    observers.append(observe)
    try:
        yield seen
    finally:
        observers.remove(observe)


_registering = threading.Lock()
_NO_TURNS_SECONDS = 60.0


def library_path() -> str:
    """The path of the shared library that ONNX Runtime loads as the execution provider.

    Raises:
        InstallationError: the extension module was never built.
    """
    found = PathFinder.find_spec("opgraft.host._ep", [str(Path(__file__).parent), *__path__])
    if found is None or found.origin is None:
        raise InstallationError(
            "opgraft's extension module opgraft.host._ep is missing: pip install --force-reinstall opgraft "
            "(or pip install -e . in a source tree)"
        )
    return found.origin


def register(name: str = "opgraft") -> None:
    """Have ONNX Runtime load this library; does nothing where it already has.

    Raises:
        InstallationError: onnxruntime is missing or older than 1.24, or MLX has no backend here.
    """
    with _registering:
        if registration_names:
            return
        onnxruntime = require_onnxruntime()
        require_mlx()
        # ONNX Runtime calls the library with a lock of its own held. Another thread that gets the interpreter meanwhile
        # and asks ONNX Runtime for anything waits for that lock and never gives the interpreter back. Importing and
        # reading files, which let go of the interpreter, come before, and threads take no turns during the call.
        importlib.import_module("opgraft.host.factory")
        interval = sys.getswitchinterval()
        sys.setswitchinterval(_NO_TURNS_SECONDS)
        try:
            onnxruntime.register_execution_provider_library(name, library_path())
        finally:
            sys.setswitchinterval(interval)


def unregister() -> None:
    """Have ONNX Runtime let go of this library; does nothing where it is not loaded.

    Every session that uses it must be gone.
    """
    if not registration_names:
        return
    onnxruntime = require_onnxruntime()
    for name in tuple(registration_names):
        onnxruntime.unregister_execution_provider_library(name)
