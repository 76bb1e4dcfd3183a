"""What opgraft raises. Each message says what happened, where, and what to do about it."""

from __future__ import annotations

import traceback
from collections.abc import Collection
from pathlib import Path

from opgraft.text import printable_lines


class OpgraftError(Exception):
    """Base of every error that opgraft raises. A message may hold names from a model, and ends in many a terminal."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(printable_lines(each) if isinstance(each, str) else each for each in arguments))


class Decline(OpgraftError):
    """Raised by a claim predicate: this handler will not take the node, and `str(self)` is the reason."""


class InstallationError(OpgraftError):
    """Something that opgraft needs is missing or too old; the message names the command that mends it."""


class OptionError(OpgraftError):
    """An unknown provider option, or a value outside the known ones."""


class RegistryError(OpgraftError):
    """A registry.yaml that cannot be used; the message gives file, line and cure."""


class MissingRegistryError(RegistryError, OptionError):
    """A registry.yaml that cannot be read where an option or the environment says that it is."""


class ModelError(OpgraftError):
    """A model file or an input that cannot be used."""


class TranslationError(OpgraftError):
    """A handler failed while its node was being run; the message names pack, op, node, input shapes and cure."""


class ProcessError(OpgraftError):
    """MLX cannot work in this process."""


class ContractError(OpgraftError):
    """A handler or a pack that breaks the contract of `opgraft.ops`."""


def text_of(error: BaseException) -> str:
    """An error's type and message in one line; its type alone where there is no message, or asking for it fails."""
    kind = type(error).__name__
    try:
        message = " ".join(filter(None, map(str.strip, str(error).splitlines())))
    except BaseException:  # a pack may raise what it likes
        return kind
    return f"{kind}: {message}" if message else kind


def place_of(error: BaseException, packages: Collection[str]) -> tuple[str, str] | None:
    """Where in the code of some Python packages an error came from: the package, and the last line of all that ran, as
    in "my_pack/filters.py:12". None where it came from elsewhere.

    Args:
        packages: top-level packages or modules, by name.
    """
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in packages:
            parts = Path(frame.f_code.co_filename).parts
            own = parts[len(parts) - parts[::-1].index(package) - 1 :] if package in parts else parts[-1:]
            return package, f"{'/'.join(own)}:{line}"
    return None


def text_with_place(error: BaseException, packages: Collection[str]) -> str:
    """`text_of`, and `place_of` where it is known."""
    found = place_of(error, packages)
    return text_of(error) if found is None else f"{text_of(error)} ({found[1]})"
