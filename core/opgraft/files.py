"""Files that are written as a whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex


def write_whole(path: str | Path, text: str, mode: int = 0o666) -> None:
    """Write a text file, in UTF-8; see `whole`.

    Raises:
        OSError, ValueError: it cannot be written, and is as it was.
    """
    with whole(path, mode) as part:
        part.write_text(text, "utf-8")


@contextmanager
def whole(path: str | Path, mode: int = 0o666) -> Iterator[Path]:
    """A file to write to, which takes the place of the one at `path` when the context ends without an error. Whoever
    reads that meanwhile finds the old one or the new one, never half of one.

    Where `path` is a link, what it leads to is written; what is no plain file, like a pipe, is written to.

    Args:
        path: of the file, in a folder that is there.
        mode: the permissions of the file, less those that the process's mask takes away.

    Raises:
        OSError, ValueError: it cannot be written, and is as it was.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not stat.S_ISREG(target.stat().st_mode):
        yield target
        return
    part = target.with_name(f".{target.name}.{token_hex(4)}")
    part.touch(mode, exist_ok=False)
    try:
        yield part
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
