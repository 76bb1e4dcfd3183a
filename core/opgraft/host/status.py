"""OrtStatus both ways: one that ORT returned becomes an exception, an exception in a callback becomes one."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, TypeVar

from opgraft.errors import OpgraftError, OptionError, RegistryError, text_of
from opgraft.host._ep import ffi, lib
from opgraft.host.logger import Logger
from opgraft.switches import switched
from opgraft.text import printable_lines

DEBUG: Final = "OPGRAFT_DEBUG"
"""The environment variable that has tracebacks logged."""

UNHEARD: Final = {"OrtCustomOp_InferOutputShapeFn"}
"""Callbacks whose status ONNX Runtime does not pass on: what went wrong is logged here."""

OK: Final = lib.done
"""What a callback returns that did its work."""

# Not EP_FAIL: onnxruntime's Python binding meets that by printing the message and moving the session to the CPU.
_FAIL: Final = 1
_INVALID_ARGUMENT: Final = 2

_Callback = TypeVar("_Callback", bound=Callable[..., Any])


class OrtError(OpgraftError):
    """ONNX Runtime refused a call."""


def check(status: Any) -> None:
    """Release `status`, and raise if it is one.

    Raises:
        OrtError: with ONNX Runtime's message.
    """
    if status:
        message = ffi.string(lib.ort_GetErrorMessage(status)).decode(errors="replace")
        lib.ort_ReleaseStatus(status)
        raise OrtError(message)


def callback(name: str) -> Callable[[_Callback], _Callback]:
    """Installs a function as the Python side of the C callback `name`, as `OrtEp_Compile`.

    Whatever the function raises becomes the callback's status, or a line in the log where the callback returns none.
    """

    def install(function: _Callback) -> _Callback:
        ffi.def_extern(name=f"py_{name}", onerror=partial(_on_error, name))(function)
        return function

    return install


def _on_error(name: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
    """cffi calls this with what a callback raised; the result is returned to ONNX Runtime. Where this raises too, the
    C side says so."""
    if kind is KeyboardInterrupt:
        lib.interrupt_again()
    code, message = _described(name, error)
    message = "; ".join([message, *getattr(error, "__notes__", ())])
    logger = Logger.default
    if switched(DEBUG) and logger is not None:
        logger.error("".join(traceback.format_exception(kind, error, trace)))
    has_status = ffi.typeof(getattr(lib, f"py_{name}")).result.kind == "pointer"
    if logger is not None and (name in UNHEARD or not has_status):
        logger.error(message)
    if not has_status:
        return None
    return lib.ort_CreateStatus(code, printable_lines(message).encode())


def _described(name: str, error: BaseException) -> tuple[int, str]:
    if isinstance(error, OpgraftError):
        code = _INVALID_ARGUMENT if isinstance(error, OptionError | RegistryError) else _FAIL
        return code, f"opgraft: {error}"
    if isinstance(error, KeyboardInterrupt):
        return _FAIL, f"opgraft: interrupted in {name} (KeyboardInterrupt)"
    if isinstance(error, MemoryError):
        return _FAIL, f"opgraft: there is no memory left for {name} ({text_of(error)})"
    return _FAIL, f"opgraft: internal error in {name}: {text_of(error)} (set {DEBUG}=1 for the traceback)"
