"""Padding and triangles, as they were before ONNX had them."""

from __future__ import annotations

import numpy as np

from opgraft.ops import ANY, FLOATS, Host, op
from opgraft_ops._sizes import flags
from opgraft_ops.layout import pad, trilu, trilu_on_host


@op("com.microsoft::Pad", dtypes={"data": FLOATS - {"bfloat16"}, "pads": {"int64"}, "value": FLOATS - {"bfloat16"}})
def pad_with_value(data, pads: Host, value=None, *, mode="constant"):
    """data with pads = [before..., after...] elements added, or removed where negative; pads may have a leading axis of
    size 1.
    """
    return pad(data, np.ravel(pads), value, mode=mode)


@pad_with_value.condition
def _(node):
    mode = node.attributes.get("mode", "constant")
    node.require(mode in ("constant", "edge", "reflect"), f"pad mode {mode!r} is not one of constant, edge, reflect")


@op("com.microsoft::Trilu", dtypes={"X": ANY - {"complex64"}, "k": {"int64"}})
def triangle(X, k: Host | None = None, *, upper=1):
    """The upper (or lower) triangle of the last two dimensions from diagonal k on, zeros elsewhere."""
    return trilu(X, k, upper=upper)


triangle.host(trilu_on_host)
triangle.condition(flags("upper"))
