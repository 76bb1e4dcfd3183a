"""What a run tells its recording, where it has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from opgraft.graph import Array, Node
from opgraft.ops.arrays import element_type, to_device, to_host
from opgraft.ops.tensors import Tensors
from opgraft.tracing import Recording


def evaluate(recording: Recording | None, lazy: Sequence[Any], name: str = "evaluate", **told: Any) -> None:
    """Have MLX compute arrays; `told` is said of it."""
    if recording is None:
        mx.eval(lazy)
    elif lazy:
        with recording.span(name, "evaluate", **told):
            mx.eval(lazy)


def brought(recording: Recording, array: Any) -> mx.array:
    """`to_device`, told."""
    with recording.span("bring to the device", "input", bytes=array.nbytes):
        return to_device(array)


def read_back(recording: Recording, array: mx.array) -> Array:
    """`to_host`, told; the array is computed for it, and all that it needs."""
    with recording.span("read back", "evaluate", bytes=array.nbytes):
        return to_host(array)


def told_of(node: Node, pack: str) -> dict[str, Any]:
    """What is said of a node in the arguments of its spans."""
    return {"node": node.label, "operator": node.operator, "pack": pack}


def told_value(value: Any) -> str:
    """Element type and shape, as in "float32[2, 3]"."""
    if value is None or isinstance(value, Tensors):
        return "absent" if value is None else repr(value)
    where = "" if isinstance(value, mx.array) else " on the host"
    return f"{element_type(value)}{list(value.shape)}{where}"
