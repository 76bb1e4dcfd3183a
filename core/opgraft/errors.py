"""What opgraft raises. Each message says what happened, where, and what to do about it."""

from __future__ import annotations


class OpgraftError(Exception):
    """Base of every error that opgraft raises."""


class Decline(OpgraftError):
    """Raised by a claim predicate: this handler will not take the node, and `str(self)` is the reason."""


class InstallationError(OpgraftError):
    """Something that opgraft needs is missing or too old; the message names the command that mends it."""


class OptionError(OpgraftError):
    """An unknown provider option, or a value outside the known ones."""


class RegistryError(OpgraftError):
    """A registry.yaml that cannot be used; the message gives file, line and cure."""


class ModelError(OpgraftError):
    """A model file or an input that cannot be used."""


class TranslationError(OpgraftError):
    """A handler failed while its node was being run; the message names pack, op, node, input shapes and cure."""


class ContractError(OpgraftError):
    """A handler or a pack that breaks the contract of `opgraft.ops`."""


def text_of(error: BaseException) -> str:
    """An error's type and message; the type alone where there is no message, or where asking for it fails."""
    kind = type(error).__name__
    try:
        return f"{kind}: {error}" if str(error) else kind
    except BaseException:  # a pack may raise what it likes
        return kind
