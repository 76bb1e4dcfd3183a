"""What a translator gives back, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opgraft.ops.arrays import described


def outputs_of(results: Any, count: int) -> Sequence[Any]:
    """The outputs that a translator gave for a node that has `count` of them.

    Raises:
        TypeError: they are not a tuple or list, or too few.
    """
    if not isinstance(results, tuple | list):
        raise TypeError(f"the translator gave {described(results)}, and not a tuple of outputs")
    if len(results) < count:
        raise TypeError(f"the translator gave {len(results)} outputs, and the node has {count}")
    return results
