"""Where the command line writes: a terminal, or a pipe or file, into which nothing is cut."""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import suppress
from typing import TextIO, cast

from rich.console import Console

WIDTH = 100
"""The most columns of a terminal that are used."""

_UNCUT = 1 << 16


def console(*, stderr: bool = False) -> Console:
    """A console of at most `WIDTH` columns on standard output, or on standard error; into a pipe or a
    file, one whose lines are as long as they need to be.

    What its encoding lacks is shown escaped, and no line ends in spaces.
    """
    file = sys.stderr if stderr else sys.stdout
    if isinstance(file, io.TextIOWrapper):
        file.reconfigure(errors="backslashreplace")
    if not file.isatty():
        return Console(file=cast(TextIO, _Trimmed(file)), highlight=False, width=_UNCUT)
    found = Console(stderr=stderr, highlight=False)
    return found if found.width <= WIDTH else Console(stderr=stderr, highlight=False, width=WIDTH)


def forget_standard_output() -> None:
    """Have what is still to be written to standard output go nowhere, since writing there failed: Python would try
    again when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Trimmed:
    """Writes to another file, without the spaces that fill up the lines of a table.

    No `io.IOBase`, which flushes when it is collected: the file is another's, and may be closed by then.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        self._file.write(re.sub(r" +$", "", text, flags=re.MULTILINE))
        return len(text)

    def flush(self) -> None:
        self._file.flush()

    @property
    def encoding(self) -> str:
        return self._file.encoding
