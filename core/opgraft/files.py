"""Files that are written as a whole or not at all, and folders that nobody else writes into."""

from __future__ import annotations

import errno
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

    Where `path` is a link, what it leads to is written, unless somebody else put the link there; what is no plain file,
    like a pipe, is written to.

    Args:
        path: of the file, in a folder that is there.
        mode: the permissions of the file, less those that the process's mask takes away.

    Raises:
        OSError, ValueError: it cannot be written, and is as it was.
    """
    if os.path.islink(path) and not _is_trusted(os.lstat(path).st_uid, os.stat(Path(path).parent).st_uid):
        raise PermissionError(errno.EACCES, "a link that another user made is in its place", str(path))
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


def own_folder(path: Path) -> bool:
    """Whether a folder, and the one around it, are the user's and nobody else's to write into; they are made where they
    are not there. The one around both may be everybody's, as /tmp is."""
    try:
        for folder in (path.parent, path):
            folder.mkdir(0o700, exist_ok=True)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_mode & stat.S_IWOTH or found.st_uid != os.geteuid():
                return False
    except OSError:
        return False
    return True


def _is_trusted(owner: int, of_folder: int) -> bool:
    """Whether a link may be followed: as Linux has it in folders like /tmp, where it must be the user's, or that of the
    folder's owner."""
    return owner in (os.geteuid(), of_folder)
