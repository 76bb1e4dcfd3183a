"""Cases that are tried in a process of their own, so that one that crashes or hangs is known by its number."""

from __future__ import annotations

import faulthandler
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SECONDS = 20
"""A case that takes longer hangs."""


MEMORY = 8 * 2**30
"""What a process may ask for: more is an error that it must bear."""


def limit_memory() -> None:
    """So much and no more for this process, where the system keeps to it, and no file of what is in it when it dies."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Mark:
    """Where a process leaves the number of the case that it is at, and what it does with it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

    def at(self, number: int, doing: str = "", seconds: float = SECONDS) -> None:
        """This case has its turn. It may take so long; then the process ends with the stacks of its threads."""
        text = f"{number} {doing}".ljust(80).encode()
        os.pwrite(self._file, text, 0)
        faulthandler.dump_traceback_later(seconds, exit=True)

    def done(self) -> None:
        """All cases had their turn."""
        faulthandler.cancel_dump_traceback_later()
        os.ftruncate(self._file, 0)
        os.close(self._file)


@dataclass(frozen=True)
class Ended:
    """How a process ended: what it wrote, and, where it died, how, at which case and what it was doing there."""

    output: str
    errors: str
    died: str = ""
    number: int = -1
    doing: str = ""


def run_cases(script: str, arguments: Sequence[str], mark: Path) -> Ended:
    """Run a script that leaves a `Mark`, to its end or its death."""
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, errors="replace")
    left = mark.read_text().split() if mark.exists() else ["-1", "starting"]
    mark.unlink(missing_ok=True)
    if not left and done.returncode in (0, 1):
        return Ended(done.stdout, done.stderr)
    hangs = "Timeout (" in done.stderr
    died = f"took more than {SECONDS} s" if hangs else f"ended its process with {done.returncode}"
    number, doing = (int(left[0]), " ".join(left[1:])) if left else (-1, "ending")
    return Ended(done.stdout, done.stderr, died, number, doing)
