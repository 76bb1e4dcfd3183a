"""Text for people: what came from a model or a pack, made fit for a terminal; numbers of bytes; what may be meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def printable(text: str) -> str:
    """`text` with control characters made visible: names from a model must not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def size_text(count: int) -> str:
    """Bytes as people write them, with a sign where they are negative: "72 bytes", "1.5 kB"."""
    size = float(count)
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" or abs(size) >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} EB"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """As in "did you mean 'builtin'?", for the name that is nearest; empty where none is near."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {close[0]!r}?" if close else ""


def perhaps_meant(name: str, known: Iterable[str]) -> str:
    """What `did_you_mean` asks, in brackets, to follow the name that nobody knows."""
    question = did_you_mean(name, known)
    return f" ({question})" if question else ""
