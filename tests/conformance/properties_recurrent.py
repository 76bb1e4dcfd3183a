"""Cases of operators along time: recurrent ones, attention, and signals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from properties import Case, compare, expected_outputs
from strategies import Draws, by_float32, cases

from opgraft.graph import Array
from opgraft.graph.element_types import ONNX_OF_NAME

ACTIVATIONS = ("Tanh", "Sigmoid", "Relu", "Softsign", "Softplus", "Elu", "HardSigmoid", "LeakyRelu")
ALPHA = {"Elu", "HardSigmoid", "LeakyRelu", "Affine", "ScaledTanh", "ThresholdedRelu"}
BETA = {"HardSigmoid", "Affine", "ScaledTanh"}
"""The activations that take the next of `activation_alpha` and of `activation_beta`."""
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@cases("RNN", "GRU", "LSTM")
def recurrent(d: Draws) -> Case:
    steps, batch, width, hidden = (d.size(1, 3) for _ in range(4))
    direction = d.pick("forward", "reverse", "bidirectional")
    count, gates = 1 + (direction == "bidirectional"), GATES[d.operator]
    dtype = d.dtype()
    layout = d.integer(0, 1) if d.version >= 14 and d.rarely() else 0

    def optional(*shape: int) -> Array | None:
        return d.array(dtype, shape, "unit") if d.flag() else None

    inputs = [
        d.array(dtype, (steps, batch, width)),
        d.array(dtype, (count, gates * hidden, width), "unit"),
        d.array(dtype, (count, gates * hidden, hidden), "unit"),
        optional(count, 2 * gates * hidden),
        d.whole((batch,), 0, steps, "int32") if d.flag() else None,
        optional(count, batch, hidden),
    ]
    if d.operator == "LSTM":
        inputs += [optional(count, batch, hidden), optional(count, 3 * hidden)]
    attributes: dict[str, Any] = {"hidden_size": hidden} | d.some(clip=d.pick(0.5, 0.25, 3.0))
    attributes |= {"direction": direction} if direction != "forward" or d.flag() else {}
    if d.flag():
        functions = {"RNN": 1, "GRU": 2, "LSTM": 3}[d.operator] * count
        given = d.flag()
        names = [d.pick(*ACTIVATIONS, *(["Affine", "ScaledTanh", "ThresholdedRelu"] * given)) for _ in range(functions)]
        attributes["activations"] = names
        if given:
            # No element reaches such an alpha exactly: of one that does, ONNX Runtime and ONNX think differently.
            alphas, betas = (
                [d.number(0.125, 1) + 2**-20 for name in names if name in those] for those in (ALPHA, BETA)
            )
            attributes |= {"activation_alpha": alphas} if alphas else {}
            attributes |= {"activation_beta": betas} if betas else {}
    if d.operator == "GRU":
        attributes |= d.some(linear_before_reset=d.integer(0, 1))
    if d.operator == "LSTM":
        attributes |= d.some(input_forget=d.integer(0, 1))
    outputs = 3 if d.operator == "LSTM" else 2
    case = by_float32(d.case(*inputs, attributes=attributes, outputs=outputs))
    return batch_first(case) if layout else case


def batch_first(case: Case) -> Case:
    """The same with layout 1, which the oracle lacks: judged by its outputs with layout 0."""

    def same(run: Callable[[], list[Array]]) -> None:
        first, *last = expected_outputs(case, case.model)
        turned = [first.transpose(2, 0, 1, 3), *(np.swapaxes(each, 0, 1) for each in last)]
        compare(case, case.model, run(), turned)

    inputs = tuple(
        np.swapaxes(each, 0, 1).copy() if index in (0, 5, 6) and each is not None else each
        for index, each in enumerate(case.inputs)
    )
    return replace(case, inputs=inputs, attributes={**case.attributes, "layout": 1}, oracle=same)


@cases("Attention")
def attention(d: Draws) -> Case:
    batch, groups, queries, keys = d.size(1, 2), d.size(1, 2), d.size(1, 4), d.size(1, 4)
    heads = groups * d.size(1, 2)
    size, value_size = d.pick(1, 2, 4, 8), d.pick(1, 2, 4)
    dtype, flat = d.dtype(), d.flag()
    shapes = [(batch, heads, queries, size), (batch, groups, keys, size), (batch, groups, keys, value_size)]
    if flat:
        shapes = [(first, third, second * fourth) for first, second, third, fourth in shapes]
    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": groups} if flat else {}
    attributes |= d.some(is_causal=d.integer(0, 1), scale=d.number(0.125, 1), softcap=d.number(0.5, 4))
    attributes |= d.some(softmax_precision=1) if dtype in ("float32", "float16") else {}
    cache = d.pick("none", "past", *(["padded"] if d.version >= 24 else []))
    before = d.size(1, 3) if cache == "past" else 0
    mask, past, lengths, oracle = None, [None, None], None, "cpu"
    spread = [d.pick(batch, 1), d.pick(heads, 1), queries, keys + before][d.integer(0, 2) :]
    if before and attributes.get("is_causal"):  # ONNX Runtime counts from the first key; ONNX reads a whole mask only
        spread, oracle = [batch, heads, queries, keys + before], "onnx"
    if d.flag():
        mask = d.array("bool", spread) if d.flag() else d.array(dtype, spread)
    if cache == "past":
        past = [d.array(dtype, (batch, groups, before, each)) for each in (size, value_size)]
    if cache == "padded":
        lengths = d.whole((batch,), min(queries, keys), keys)
    outputs = d.pick(1, 3, 4)
    if cache != "none":
        outputs = max(outputs, 3) if before else 1 if d.version >= 25 else d.pick(1, 4)
    if outputs == 4:
        masks = attributes.get("is_causal") or cache == "padded" or (mask is not None and mask.dtype == bool)
        # In 2, ONNX Runtime has the least float for minus infinity; 0 differs from 1 by the cap in ONNX alone.
        more = [2] * (not masks) + [0] * ("softcap" not in attributes)
        attributes["qk_matmul_output_mode"] = d.pick(1, 3, *more)
    if d.version >= 25 and mask is None and not attributes.get("is_causal") and cache != "padded":
        attributes |= d.some(left_window_size=d.integer(-1, 3), right_window_size=d.integer(-1, 3))
        oracle = "onnx"
    inputs = [*(d.array(dtype, shape) for shape in shapes), mask, *past, lengths]
    types = (dtype,) * outputs  # which ONNX does not infer for all of them
    case = d.case(*inputs, attributes=attributes, outputs=outputs, output_types=types)
    case = replace(case, dynamic=case.dynamic and not flat and outputs < 4)  # ONNX infers a size of 0 there
    return by_float32(case, oracle=oracle)


@cases("RotaryEmbedding")
def rotary_embedding(d: Draws) -> Case:
    batch, heads, steps, size = d.size(1, 2), d.size(1, 3), d.size(1, 4), d.pick(2, 4, 8)
    width = d.pick(0, 2, 4) if size >= 4 else 0
    flat, positions = d.flag(), d.flag()
    dtype = d.dtype()
    half, count = (width or size) // 2, d.size(1, 5)
    x = d.array(dtype, (batch, steps, heads * size) if flat else (batch, heads, steps, size))
    angles = d.array("float32", (count, half) if positions else (batch, steps, half))
    caches = [function(angles).astype(x.dtype) for function in (np.cos, np.sin)]
    places = d.whole((batch, steps), 0, count - 1) if positions else None
    attributes = {"num_heads": heads} if flat else {}
    attributes |= d.some(interleaved=d.integer(0, 1)) | ({"rotary_embedding_dim": width} if width or d.flag() else {})
    return d.case(x, *caches, places, attributes=attributes)


RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}


@cases("LinearAttention")
def linear_attention(d: Draws) -> Case:
    batch, groups, steps = d.size(1, 2), d.size(1, 2), d.size(1, 4)
    heads, size, value_size = groups * d.size(1, 2), d.pick(1, 2, 4), d.pick(1, 3)
    rule = d.pick(*RULES)
    decays, corrects = RULES[rule]
    dtype = d.dtype()
    inputs = [d.array(dtype, (batch, steps, heads * size)), d.array(dtype, (batch, steps, groups * size), "unit")]
    inputs += [d.array(dtype, (batch, steps, groups * value_size))]
    inputs += [d.array(dtype, (batch, groups, size, value_size)) if d.flag() else None]
    inputs += [-d.array(dtype, (batch, steps, groups * d.pick(1, size)), "probability") if decays else None]
    inputs += [d.array(dtype, (batch, steps, d.pick(1, groups)), "probability") if corrects else None]
    attributes = {"q_num_heads": heads, "kv_num_heads": groups, "update_rule": rule}
    attributes |= d.some(scale=d.number(0.25, 1), chunk_size=d.pick(64, 1, 2))
    return d.case(*inputs, attributes=attributes, outputs=2)


@cases("CausalConvWithState")
def causal_convolution(d: Draws) -> Case:
    batch, channels, length, size = (d.size(1, 4) for _ in range(4))
    dtype = d.dtype()
    inputs = [d.array(dtype, (batch, channels, length)), d.array(dtype, (channels, 1, size))]
    inputs += [d.array(dtype, (channels,)) if d.flag() else None]
    inputs += [d.array(dtype, (batch, channels, size - 1)) if d.flag() else None]
    return d.case(*inputs, attributes=d.some(activation=d.pick("none", "silu", "swish")), outputs=2)


@cases("DFT")
def dft(d: Draws) -> Case:
    dtype = d.dtype()
    inverse, onesided = d.integer(0, 1), d.integer(0, 1)
    parts = 1 if onesided and not inverse else 2 if onesided else d.pick(1, 2)
    shape = (*(d.size(1, 5) for _ in range(d.integer(2, 3))), parts)
    if onesided and inverse:
        shape = tuple(size + 1 for size in shape[:-1]) + shape[-1:]
    axis = d.integer(0, len(shape) - 2) - (len(shape) if d.flag() else 0)
    length = np.array(d.integer(1, 7), d.pick(np.int64, np.int32)) if d.flag() else None
    attributes = d.some(inverse=inverse) if not inverse else {"inverse": 1}
    attributes |= d.some(onesided=onesided) if not onesided else {"onesided": 1}
    x = d.array(dtype, shape)
    oracle = "onnx" if inverse and onesided else "cpu"
    if d.version < 20:
        attributes |= {"axis": axis} if axis != 1 or d.flag() else {}
        return d.case(x, length, attributes=attributes, oracle=oracle)
    return d.case(x, length, np.array(axis) if axis != -2 or d.flag() else None, attributes=attributes, oracle=oracle)


@cases("STFT")
def stft(d: Draws) -> Case:
    dtype = d.dtype()
    parts = d.pick(1, 2)
    size, step = d.integer(1, 6), np.array(d.integer(1, 4))
    length = size + d.integer(0, 8)
    attributes = {"onesided": 0} if parts == 2 or d.flag() else d.some(onesided=1)
    window = d.array(dtype, (size,), "probability") if d.flag() else None
    number = np.array(size) if window is None or d.flag() else None
    return d.case(d.array(dtype, (d.size(1, 2), length, parts)), step, window, number, attributes=attributes)


@cases("HannWindow", "HammingWindow", "BlackmanWindow")
def window(d: Draws) -> Case:
    size = np.array(d.integer(1, 12), d.pick(np.int64, np.int32))
    periodic = d.integer(0, 1) if size > 1 else 1
    attributes, tolerance = typed(d)
    return d.case(size, attributes=attributes | d.some(periodic=periodic), tolerance=tolerance)


@cases("MelWeightMatrix")
def mel_weight_matrix(d: Draws) -> Case:
    bins, length, rate = d.integer(1, 6), d.pick(8, 16, 32), d.pick(1000, 8000)
    low, high = float(d.integer(0, 100)), float(d.integer(rate // 4, rate // 2))
    numbers = [np.array(each, np.int64) for each in (bins, length, rate)]
    numbers += [np.array(each, np.float32) for each in (low, high)]
    attributes, tolerance = typed(d)
    return d.case(*numbers, attributes=attributes, tolerance=tolerance)


def typed(d: Draws) -> tuple[dict[str, int], float | None]:
    """An output type, and a tolerance for it: the oracle reckons with constants of float32."""
    dtype = d.pick(None, "float32", "float64", "float16")
    attributes = {} if dtype is None else {"output_datatype": ONNX_OF_NAME[dtype]}
    return attributes, 1e-7 if dtype == "float64" else None
