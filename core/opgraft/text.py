"""Text for people: what came from a model or a pack, made fit for a terminal, and numbers of bytes."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with control characters made visible: names from a model must not steer a terminal."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def size_text(count: int) -> str:
    """Bytes as people write them, with a sign where they are negative: "72 bytes", "1.5 kB"."""
    size = float(count)
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" or abs(size) >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} EB"
