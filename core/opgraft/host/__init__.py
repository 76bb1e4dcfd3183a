"""The boundary to ONNX Runtime: the only part of opgraft that touches a C pointer.

Importing this package loads neither the extension module nor MLX, so its functions answer on a machine where one of
them is missing.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
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

CUSTOM_OPS_ENTRY = "opgraft.custom_ops"
"""The session configuration entry which says that session options have the operators that packs define already: ONNX
Runtime refuses a session that got them twice."""

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
_TURN_SECONDS = 0.1
"""How long a thread keeps the interpreter during a call that is to have no others beside it, and that takes a
hundredth of that."""


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
        InstallationError: onnxruntime is missing or older than 1.24.4, or MLX has no backend here.
    """
    with _registering:
        if registration_names:
            return
        onnxruntime = require_onnxruntime()
        require_mlx()
        path = library_path()
        with _without_turns():
            onnxruntime.register_execution_provider_library(name, path)


def unregister() -> None:
    """Have ONNX Runtime let go of this library; does nothing where it is not loaded.

    Every session that uses it must be gone.
    """
    with _registering:
        for name in tuple(registration_names):
            with _without_turns():
                require_onnxruntime().unregister_execution_provider_library(name)


@contextmanager
def _without_turns() -> Iterator[None]:
    """Threads take no turns while the context lasts.

    ONNX Runtime calls the library with a lock of its own held. Another thread that gets the interpreter meanwhile and
    asks ONNX Runtime for anything waits for that lock and never gives the interpreter back. So what lets go of the
    interpreter, imports above all, is done before.
    """
    for module in ("library", "factory"):
        importlib.import_module(f"opgraft.host.{module}")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_TURN_SECONDS)
    try:
        time.sleep(min(2 * interval, _TURN_SECONDS))  # those that wait for a turn already ask for it after the old time
        yield
    finally:
        sys.setswitchinterval(interval)
