"""What the environment says of opgraft: variables that turn something on or off, all read alike.

1, on, true and yes are one word, and 0, off, false and no another, in small or capital letters; an empty variable is
one that is not set. Any other word is a warning, once, and changes nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import cache
from typing import Final, TypeVar

T = TypeVar("T")

_log = logging.getLogger("opgraft")

_WORDS: Final = {
    **dict.fromkeys(("1", "on", "true", "yes"), "on"),
    **dict.fromkeys(("0", "off", "false", "no"), "off"),
}


def switch_word(text: str) -> str:
    """ "on" or "off" for each word that means it; any other text in small letters, without spaces around it."""
    word = text.strip().lower()
    return _WORDS.get(word, word)


def switched(variable: str, *, default: bool = False, environment: Mapping[str, str] | None = None) -> bool:
    """Whether a variable of the environment turns something on."""
    return chosen(variable, {"on": True, "off": False}, default, environment)


def chosen(variable: str, values: Mapping[str, T], default: T, environment: Mapping[str, str] | None = None) -> T:
    """What a variable of the environment stands for.

    Args:
        variable: its name.
        values: by the words that it takes; "on" and "off" stand for all that mean them.
        default: what holds where it is not set, or is no such word.
        environment: where to look. Default: the process's.
    """
    text = (os.environ if environment is None else environment).get(variable, "")
    word = switch_word(text)
    if not word:
        return default
    if word not in values:
        _warn(variable, text, ", ".join({"on": "1", "off": "0"}.get(each, each) for each in values))
        return default
    return values[word]


@cache
def _warn(variable: str, text: str, known: str) -> None:
    _log.warning("%s=%s means nothing, and is passed over: it takes %s", variable, ascii(text)[1:-1], known)
