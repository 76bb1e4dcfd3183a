"""Text that came from a model or a pack, made fit for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with control characters made visible: names from a model must not steer a terminal."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
