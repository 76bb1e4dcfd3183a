"""Pad and Trilu of com.microsoft, against ONNX Runtime's CPU provider."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from opgraft.testing import check_declined, check_node

PAD, TRILU = "com.microsoft::Pad", "com.microsoft::Trilu"


def floats(*shape, dtype="float32"):
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("pads", [[1, 0, 0, 2], [0, 0, 0, 0], [2, 1, 2, 1], [-1, 0, 0, 1], [0, -1, -1, 0]])
@pytest.mark.parametrize("value", [None, 3.0])
@pytest.mark.parametrize("two_axes", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pad(mode, pads, value, two_axes, dtype):
    pads = np.array([pads] if two_axes else pads, np.int64)
    given = [] if value is None or mode != "constant" else [np.array([value], dtype)]
    x = floats(4, 5, dtype=dtype)
    settings = {"mode": mode, "output_types": [dtype]}
    if dtype == "float16":
        widths = [each.reshape(-1) for each in pads.reshape(2, 2).T]
        expected = padded(x, widths, mode, *given)
        check_node(PAD, x, pads, *given, reference=[expected], **settings)
    else:
        check_node(PAD, x, pads, *given, **settings)
        check_node(PAD, x, pads, *given, constant=(1,), **settings)


def padded(x, widths, mode, value=0):
    kept = tuple(
        slice(max(0, -before), size - max(0, -after)) for size, (before, after) in zip(x.shape, widths, strict=True)
    )
    grown = [(max(0, before), max(0, after)) for before, after in widths]
    extra = {"constant_values": np.asarray(value).item()} if mode == "constant" else {}
    return np.pad(x[kept], grown, mode, **extra)


def test_what_pad_declines():
    inputs = floats(3, 4), np.array([1, 0, 0, 1])
    check_declined(PAD, *inputs, mode="wrap", because="pad mode 'wrap'", output_types=["float32"])
    check_declined(
        PAD, floats(3, 4), np.array([1, 0, 1]), constant=(1,), because="two for each", output_types=["float32"]
    )


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 0, 1, -2, 9, -9])
@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3), (2, 3, 4, 4), (0, 3, 3)])
def test_trilu(upper, k, shape):
    given = [] if k is None else [np.array(k, np.int64)]
    for dtype in ("float32", "float64", "int64"):
        x = floats(*shape).astype(dtype)
        check_node(TRILU, x, *given, upper=upper, output_types=[dtype])


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64"]
)
def test_trilu_of_other_element_types(dtype):
    x = np.arange(1, 13).reshape(3, 4).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    expected = np.triu(x.astype(np.float64), 1).astype(x.dtype)
    check_node(TRILU, x, np.array([1], np.int64), reference=[expected], output_types=[dtype])
