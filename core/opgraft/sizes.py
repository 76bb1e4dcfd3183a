"""The sizes that a user gives for a model's dimensions, by name or by `input:axis`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from opgraft.errors import OptionError
from opgraft.text import perhaps_meant

ALL_OTHERS = "*"
"""Stands for every dimension that is not named."""


def require_known(given: Mapping[str, int], free: Collection[str], fixed: Mapping[str, int], which: str) -> None:
    """Make sure that each size is for a dimension that can have it.

    Args:
        given: the sizes.
        free: the dimensions that have none in the model.
        fixed: the sizes of those that have one.
        which: what `free` are, as in "those without a size".

    Raises:
        OptionError: a dimension has another size in the model, or there is none of that name.
    """
    for name, size in sorted(given.items()):
        if name in free or name == ALL_OTHERS or fixed.get(name) == size:
            continue
        if name in fixed:
            raise OptionError(f"dimension {name!r} is {fixed[name]} in the model, and cannot be {size}")
        known = ", ".join(free) or "none"
        hint = perhaps_meant(name, [each for each in free if ":" not in each])
        raise OptionError(f"no dimension is named {name!r}{hint}; {which} are {known}")
