"""Comparison, logic and bitwise operators."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.ops import BOOL, INTEGERS, NUMBERS, Node, op
from opgraft_ops._table import legacy_row, row

# name, first version, MLX's function, NumPy's, element types, what it computes
BINARY = (
    ("Equal", 7, mx.equal, np.equal, NUMBERS | BOOL, "A = B, with broadcasting. ONNX Equal-19."),
    ("Less", 7, mx.less, np.less, NUMBERS, "A < B, with broadcasting. ONNX Less-13."),
    ("Greater", 7, mx.greater, np.greater, NUMBERS, "A > B, with broadcasting. ONNX Greater-13."),
    ("LessOrEqual", 12, mx.less_equal, np.less_equal, NUMBERS, "A <= B, with broadcasting. ONNX LessOrEqual-16."),
    (
        "GreaterOrEqual",
        12,
        mx.greater_equal,
        np.greater_equal,
        NUMBERS,
        "A >= B, with broadcasting. ONNX GreaterOrEqual-16.",
    ),
    ("And", 7, mx.logical_and, np.logical_and, BOOL, "A and B, with broadcasting. ONNX And-7."),
    ("Or", 7, mx.logical_or, np.logical_or, BOOL, "A or B, with broadcasting. ONNX Or-7."),
    ("Xor", 7, mx.not_equal, np.not_equal, BOOL, "Either A or B, with broadcasting. ONNX Xor-7."),
    ("BitwiseAnd", 18, mx.bitwise_and, np.bitwise_and, INTEGERS, "The bits set in A and B. ONNX BitwiseAnd-18."),
    ("BitwiseOr", 18, mx.bitwise_or, np.bitwise_or, INTEGERS, "The bits set in A or B. ONNX BitwiseOr-18."),
    ("BitwiseXor", 18, mx.bitwise_xor, np.bitwise_xor, INTEGERS, "The bits set in one of A and B. ONNX BitwiseXor-18."),
)

binary = [
    row(name, "A B", function, on_host, dtypes, meaning, since=since)
    for name, since, function, on_host, dtypes, meaning in BINARY
]
legacy = [legacy_row(name, function, dtypes) for name, since, function, _, dtypes, _ in BINARY if since == 7]

logical_not = row("Not", "X", mx.logical_not, np.logical_not, BOOL, "Not X. ONNX Not-1.")
bitwise_not = row(
    "BitwiseNot",
    "X",
    mx.bitwise_invert,
    np.invert,
    INTEGERS,
    "Each bit of X turned over. ONNX BitwiseNot-18.",
    since=18,
)


@op("BitShift", since=11, dtypes=INTEGERS)
def bit_shift(X, Y, *, direction):
    """The bits of X moved by Y places, with broadcasting; a shift by fewer than 0 or more than all of them
    leaves nothing but, to the right, the sign. ONNX BitShift-28."""
    return shifted(mx, X, Y, direction, X.dtype.size * 8, mx.issubdtype(X.dtype, mx.signedinteger))


@bit_shift.host
def _(X, Y, *, direction):
    return shifted(np, X, Y, direction, X.dtype.itemsize * 8, X.dtype.kind == "i")


def shifted(library: Any, X: Any, Y: Any, direction: str, bits: int, signed: bool) -> Any:
    """BitShift in terms of a library, NumPy or MLX: neither defines a shift by a number outside 0 ... bits - 1."""
    possible = (Y >= 0) & (bits > Y)
    places = library.where(possible, Y, bits - 1).astype(Y.dtype)
    if direction == "LEFT":
        return library.where(possible, library.left_shift(X, places), 0).astype(X.dtype)
    moved = library.right_shift(X, places)
    return moved if signed else library.where(possible, moved, 0).astype(X.dtype)


@bit_shift.condition
def _(node: Node):
    direction = node.attributes["direction"]
    node.require(direction in ("LEFT", "RIGHT"), f"direction {direction} is neither LEFT nor RIGHT")
