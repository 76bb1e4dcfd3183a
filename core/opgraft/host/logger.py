"""Messages through ONNX Runtime's logger, so that they go where its own go."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from opgraft.host._ep import ffi, lib
from opgraft.text import printable_lines

_DEBUG: Final = 0
_INFO: Final = 1
_WARNING: Final = 2
_ERROR: Final = 3


class Logger:
    """One OrtLogger. ONNX Runtime drops what is below its own level."""

    default: ClassVar[Logger | None] = None
    """The environment's logger: for what belongs to no session."""

    def __init__(self, pointer: Any) -> None:
        self._pointer = pointer

    def debug(self, message: str) -> None:
        self._log(_DEBUG, message)

    def info(self, message: str) -> None:
        self._log(_INFO, message)

    def warning(self, message: str) -> None:
        self._log(_WARNING, message)

    def error(self, message: str) -> None:
        self._log(_ERROR, message)

    def _log(self, level: int, message: str) -> None:
        text = printable_lines(message).encode()
        status = lib.ort_Logger_LogMessage(self._pointer, level, text, _FILE, 0, b"opgraft")
        if status:  # a message that cannot be logged is no reason to fail
            lib.ort_ReleaseStatus(status)


_FILE: Final = ffi.new("char[]", b"opgraft")
