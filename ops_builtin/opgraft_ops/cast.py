"""Element type conversions."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from opgraft.graph.element_types import BITS, NAME_OF_ONNX
from opgraft.ops import BOOL, HELD, NARROW, NUMBERS, PACKED, Layout, Node, op
from opgraft.ops.arrays import HELD_TYPE, MLX_TYPE, element_type
from opgraft_ops import _narrow
from opgraft_ops._sizes import flags
from opgraft_ops._table import quiet

CASTABLE = NUMBERS | BOOL | NARROW

BY_WAY_OF = {"int8": "int32", "int16": "int32", "uint8": "int32", "uint16": "int32", "uint32": "int64"}
"""What a float becomes first on its way to a short integer: so one that does not fit wraps on every device, as it does
on ONNX Runtime's CPU provider, where a conversion straight from float may also saturate."""


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


def cast_between(x, source: str | None, target: str, saturate=1, round_mode="up"):
    """x, which holds elements of type `source`, as what holds them in type `target`."""
    x = _narrow.values(x, source)
    if target in NARROW:
        return _narrow.holding(x, target, saturate, round_mode)
    return converted(x, target) if isinstance(x, mx.array) else converted_on_host(x, target)


@op("Cast", dtypes=CASTABLE, layout=Layout.ANY)
def cast(ctx, input, *, to, saturate=1, round_mode="up"):
    """input in element type `to`. ONNX Cast-28; saturate and round_mode matter only to 8-bit floats."""
    return cast_between(input, ctx.node.dtype(0), target_of(to), saturate, round_mode)


@op("CastLike", since=15, dtypes=CASTABLE)
def cast_like(ctx, input, target_type, *, saturate=1, round_mode="up"):
    """input in the element type of target_type. ONNX CastLike-25."""
    target = ctx.node.dtype(1) or element_type(target_type)
    return cast_between(input, ctx.node.dtype(0), target, saturate, round_mode)


cast.host(quiet(cast.function))
cast_like.host(quiet(cast_like.function))


cast.condition(flags("saturate"))
cast_like.condition(flags("saturate"))


@cast.condition
@cast_like.condition
def _(node: Node):
    target = target_of(node.attributes["to"]) if "to" in node.attributes else node.dtype(1)
    node.require(target in CASTABLE | {None}, f"MLX has no element type {target}, to which this casts")
    mode = node.attributes.get("round_mode", "up")
    node.require(mode in _narrow.ROUND_MODES, f"round_mode {mode!r} is not one of {', '.join(_narrow.ROUND_MODES)}")


@op("BitCast", since=26, dtypes=HELD)
def bit_cast(input, *, to):
    """The bits of input read as element type `to`, of the same width. ONNX BitCast-26."""
    target = target_of(to)
    if target not in PACKED:
        return input.view(HELD_TYPE[target])
    unused = 8 - BITS[target]
    return (input.view(mx.uint8) << unused).view(HELD_TYPE[target]) >> unused


@bit_cast.condition
def _(node: Node):
    source, target = node.dtype(0), target_of(node.attributes["to"])
    node.require(target in HELD, f"MLX has no element type {target}, as which this reads bits")
    node.require(
        source is None or BITS[source] == BITS[target],
        f"{source} and {target} differ in width, which BitCast rules out",
    )
