"""Where the command line writes: a terminal, or a pipe or file, into which nothing is cut."""

from __future__ import annotations

import io
import re
import sys
from typing import TextIO, cast

from rich.console import Console

WIDTH = 100
"""The most columns of a terminal that are used."""

_UNCUT = 1 << 16


def console() -> Console:
    """A console of at most `WIDTH` columns; into a pipe or a file, one whose lines are as long as they need to be.

    What its encoding lacks is shown escaped, and no line ends in spaces.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if not sys.stdout.isatty():
        return Console(file=cast(TextIO, _Trimmed(sys.stdout)), highlight=False, width=_UNCUT)
    found = Console(highlight=False)
    return found if found.width <= WIDTH else Console(highlight=False, width=WIDTH)


class _Trimmed(io.TextIOBase):
    """Writes to another file, without the spaces that fill up the lines of a table."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        self._file.write(re.sub(r" +$", "", text, flags=re.MULTILINE))
        return len(text)

    def flush(self) -> None:
        self._file.flush()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._file.encoding
