"""Element type conversions."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from opgraft.graph.element_types import NAME_OF_ONNX
from opgraft.ops import ANY, BOOL, NUMBERS, Node, op
from opgraft.ops.arrays import MLX_TYPE, TYPE_NAME
from opgraft_ops._table import quiet

CASTABLE = NUMBERS | BOOL

BY_WAY_OF = {"int8": "int32", "int16": "int32", "uint8": "int32", "uint16": "int32", "uint32": "int64"}
"""What a float becomes first on its way to a short integer: so one that does not fit wraps on every device, as it does
on ONNX Runtime's CPU provider, where a conversion straight from float may also saturate."""

BITS = {"bool": 8, "bfloat16": 16, "complex64": 64} | {
    name: np.dtype(name).itemsize * 8 for name in ANY - {"bool", "bfloat16", "complex64"}
}


def converted(x: mx.array, target: str) -> mx.array:
    """x in ONNX element type `target`: floats truncated, integers wrapped, floats rounded to nearest even."""
    if target in BY_WAY_OF and mx.issubdtype(x.dtype, mx.floating):
        x = x.astype(MLX_TYPE[BY_WAY_OF[target]])
    return x.astype(MLX_TYPE[target])


@quiet
def converted_on_host(x: np.ndarray, target: str) -> np.ndarray:
    """The same for NumPy arrays; bfloat16, which NumPy lacks, as float32: the host rounds it."""
    if target in ("float16", "bfloat16"):
        x = x.astype(np.float32)
    elif x.dtype.kind == "f":
        x = x.astype(BY_WAY_OF.get(target, target))
    return x if target == "bfloat16" else x.astype(target)


def target_of(to: int | str) -> str:
    """The element type that an attribute `to` names, by its number or (in Cast-1) by its name in capitals."""
    if isinstance(to, int):
        return NAME_OF_ONNX.get(to, f"number {to}")
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(to, to.lower())


@op("Cast", dtypes=CASTABLE)
def cast(input, *, to, saturate=1, round_mode="up"):
    """input in element type `to`. ONNX Cast-28; saturate and round_mode matter only to 8-bit floats."""
    return converted(input, target_of(to))


@cast.host
def _(input, *, to, saturate=1, round_mode="up"):
    return converted_on_host(input, target_of(to))


@cast.condition
def _(node: Node):
    target = target_of(node.attributes["to"])
    node.require(target in CASTABLE, f"MLX has no element type {target}, to which this casts")


@op("CastLike", since=15, dtypes=CASTABLE)
def cast_like(input, target_type, *, saturate=1, round_mode="up"):
    """input in the element type of target_type. ONNX CastLike-25."""
    return converted(input, TYPE_NAME[target_type.dtype])


@cast_like.host
def _(input, target_type, *, saturate=1, round_mode="up"):
    return converted_on_host(input, target_type.dtype.name)


@op("BitCast", since=26)
def bit_cast(input, *, to):
    """The bits of input read as element type `to`, of the same width. ONNX BitCast-26."""
    return input.view(MLX_TYPE[target_of(to)])


@bit_cast.condition
def _(node: Node):
    source, target = node.dtype(0), target_of(node.attributes["to"])
    node.require(target in ANY, f"MLX has no element type {target}, as which this reads bits")
    node.require(
        source is None or BITS[source] == BITS[target],
        f"{source} and {target} differ in width, which BitCast rules out",
    )
