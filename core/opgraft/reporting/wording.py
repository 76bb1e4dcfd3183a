"""Numbers and shapes in the words that every view of a report uses."""

from __future__ import annotations

from collections.abc import Sequence

from opgraft.graph import Shape
from opgraft.reporting.breaks import GraphBreak
from opgraft.reporting.crossings import Traffic
from opgraft.reporting.what_if import WhatIf
from opgraft.text import size_text


def counted(count: int, thing: str) -> str:
    """As in "1 node" and "2 nodes"."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def taken_as_1(dimensions: Sequence[str]) -> str:
    """What to say of dimensions whose sizes were nowhere given."""
    return f"taken as 1, since no -s NAME=SIZE gives another size: {', '.join(dimensions)}"


def traffic_text(traffic: Traffic) -> str:
    """As in "12 tensors, 1.5 MB and 3 of unknown size"."""
    known = [size_text(traffic.bytes)] if traffic.bytes or not traffic.unknown else []
    unknown = [f"{counted(traffic.unknown, 'tensor')} of unknown size"] if traffic.unknown else []
    if traffic.unknown == traffic.tensors:
        return counted(traffic.tensors, "tensor") + (" of unknown size" if traffic.unknown else "")
    return f"{counted(traffic.tensors, 'tensor')}, {' and '.join(known + unknown)}"


def bytes_text(traffic: Traffic) -> str:
    """As in "1.5 MB", "1.5 MB + ?" where there are tensors of unknown size, and "?" where there are only such."""
    if not traffic.unknown:
        return size_text(traffic.bytes)
    return f"{size_text(traffic.bytes)} + ?" if traffic.bytes else "?"


def saving_text(before: Traffic, after: Traffic) -> tuple[str, str]:
    """How many tensors fewer cross, and how many bytes, as far as sizes are known; signed where it is more."""
    tensors, size = before.tensors - after.tensors, before.bytes - after.bytes
    unknown = before.unknown or after.unknown
    return f"{tensors:,}", f"{size_text(size)}{' + ?' if unknown else ''}" if size or not unknown else "?"


MORE_CROSSES = "below zero: so many more cross than now, those that the nodes claimed in addition read and make"
"""What to say where something that is saved is less than nothing."""


def saves_less_than_nothing(what_if: Sequence[WhatIf]) -> bool:
    """Whether `MORE_CROSSES` is to be said of them."""
    return any(each.tensors_saved < 0 or each.bytes_saved < 0 for each in what_if)


def shape_text(shape: Shape | None) -> str:
    """As in "[n, 3, ?]"."""
    return "?" if shape is None else "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"


def cause_text(found: GraphBreak) -> str:
    """Where the value comes from that a subgraph must read back."""
    source = found.made_by or "outside its body"
    return f"{found.tensor} (from {source})" + ("" if found.certain else ", where it has many elements")
