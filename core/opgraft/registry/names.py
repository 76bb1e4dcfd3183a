"""Operators whose names are nearly others: what to suggest for one that nobody knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_CLOSE = 0.8
"""How alike two names are, of 1, that one may be the other written wrong."""


def close_operators(operator: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The operators of other names that are nearly this one, nearest first, in whatever domain.

    Args:
        operator: `domain::OpType`.
        known: the operators to choose from.
        most: how many to name.
    """
    wanted = _plain(operator)
    likeness = {
        other: difflib.SequenceMatcher(None, wanted, _plain(other)).ratio() for other in known if other != operator
    }
    least = 1.0 if 1.0 in likeness.values() else _CLOSE
    close = [other for other, ratio in likeness.items() if ratio >= least]
    return sorted(close, key=lambda other: (-likeness[other], other))[:most]


def _plain(operator: str) -> str:
    """The name without its domain, in small letters."""
    return operator.rpartition("::")[2].lower()
