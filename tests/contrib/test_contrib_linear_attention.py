"""Linear attention and its convolution, against ONNX Runtime's CPU provider, or NumPy where it has no kernel."""

from __future__ import annotations

import numpy as np
import pytest
from contrib_kit import TOLERANCE, check_error, check_session, floats

from opgraft.testing import check_declined, check_node, node_model, reference_outputs

LINEAR = "com.microsoft::LinearAttention"
CONVOLUTION = "com.microsoft::CausalConvWithState"
BATCH, KEY_SIZE, VALUE_SIZE, CHANNELS, TAPS = 2, 8, 6, 6, 4

HEADS = {"as many": (4, 4, 4), "more queries": (4, 2, 2), "fewer queries": (2, 2, 4), "fewer keys": (4, 1, 2)}
"""How many heads queries, keys and states have."""

RULES = {
    "linear": ("linear", None, None),
    "gated": ("gated", "heads", None),
    "gated by element": ("gated", "elements", None),
    "delta": ("delta", None, "heads"),
    "delta, one rate": ("delta", None, "one"),
    "gated delta": ("gated_delta", "heads", "one"),
    "gated delta by element": ("gated_delta", "elements", "heads"),
}

each_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
each_heads = pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)


def states(rule, heads, steps, past=True, dtype="float32"):
    """The inputs of LinearAttention; keys are short, so that what the delta rule corrects stays small."""
    queries, keys, kept = heads
    _, decay, beta = rule
    sizes = {"heads": kept, "elements": kept * KEY_SIZE, "one": 1}
    given = [
        floats(BATCH, steps, queries * KEY_SIZE, dtype=dtype),
        floats(BATCH, steps, keys * KEY_SIZE, dtype=dtype, seed=1) / 4,
        floats(BATCH, steps, kept * VALUE_SIZE, dtype=dtype, seed=2),
        floats(BATCH, kept, KEY_SIZE, VALUE_SIZE, dtype=dtype, seed=3) if past else None,
        None if decay is None else -abs(floats(BATCH, steps, sizes[decay], dtype=dtype, seed=4)),
        None if beta is None else abs(floats(BATCH, steps, sizes[beta], dtype=dtype, seed=5)) / 2,
    ]
    while given[-1] is None:
        given.pop()
    settings = {"q_num_heads": queries, "kv_num_heads": kept, "update_rule": rule[0]}
    return [None if each is None else each.astype(given[0].dtype) for each in given], settings


def check(operator, *inputs, dtype="float32", **settings):
    kinds = {"outputs": 2, "output_types": [dtype] * 2, "tolerance": TOLERANCE[dtype]}
    return check_node(operator, *inputs, **kinds, **settings)


@each_rule
@each_heads
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("past", [False, True])
def test_rules(rule, heads, steps, past):
    inputs, settings = states(rule, heads, steps, past)
    check(LINEAR, *inputs, **settings)
    check(LINEAR, *inputs, scale=0.7, chunk_size=2, **settings)


@each_rule
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_computed_in_float32(rule, dtype):
    inputs, settings = states(rule, HEADS["more queries"], 3, dtype=dtype)
    wide = [None if each is None else each.astype(np.float32) for each in inputs]
    model = node_model(LINEAR, wide, outputs=2, output_types=["float32"] * 2, **settings)
    feeds = {f"x{index}": each for index, each in enumerate(wide) if each is not None}
    expected = [each.astype(inputs[0].dtype) for each in reference_outputs(model, feeds)]
    check(LINEAR, *inputs, dtype=dtype, reference=expected, **settings)


@each_heads
@pytest.mark.parametrize("steps", [1, 3, 5])
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("past", [False, True])
def test_the_last_states(heads, steps, window, past):
    """Each is what the operator gives for the tokens up to there; where there were fewer, zeros come first."""
    inputs, settings = states(RULES["gated delta"], heads, steps, past)

    def after(count):
        some = [None if each is None else each[:, :count] if index != 3 else each for index, each in enumerate(inputs)]
        model = node_model(LINEAR, some, outputs=2, output_types=["float32"] * 2, **settings)
        return reference_outputs(model, {f"x{i}": each for i, each in enumerate(some) if each is not None})

    found = [after(count)[1] for count in range(max(steps - window, 0) + 1, steps + 1)]
    missing = [np.zeros_like(found[0])] * (window - len(found))
    expected = [after(steps)[0], np.stack([*missing, *found])]
    if past:
        inputs[3] = np.stack([*[floats(*inputs[3].shape, seed=9)] * (window - 1), inputs[3]])
    check(LINEAR, *inputs, reference=expected, state_window=window, **settings)


def test_no_tokens():
    inputs, settings = states(RULES["gated delta"], HEADS["more queries"], 0)
    expected = [np.zeros((BATCH, 0, 4 * VALUE_SIZE), np.float32), inputs[3]]
    check(LINEAR, *inputs, reference=expected, **settings)


def test_what_linear_attention_declines():
    kinds = {"outputs": 2, "output_types": ["float32"] * 2}
    inputs, settings = states(RULES["gated delta"], HEADS["as many"], 2)
    for because, more in {
        "none that is known": {"update_rule": "other"},
        "state_window is 9": {"state_window": 9},
        "3 heads for 4 states": {"q_num_heads": 3},
    }.items():
        check_declined(LINEAR, *inputs, because=because, **{**kinds, **settings, **more})
    check_declined(LINEAR, *inputs[:4], because="needs input decay", **kinds, **settings)
    check_error(LINEAR, *inputs[:4], inputs[4][..., 1:], inputs[5], match="decay has shape", outputs=2, **settings)


@each_rule
def test_linear_attention_in_a_session(rule):
    inputs, settings = states(rule, HEADS["more queries"], 3)
    check_session(LINEAR, *inputs, outputs=2, **settings)


def convolution(length, last=False, dilation=1, dtype="float32"):
    reach = (TAPS - 1) * dilation
    shapes = [(BATCH, length, CHANNELS), (BATCH, reach, CHANNELS)]
    x, past = (floats(*(each if last else (each[0], each[2], each[1])), dtype=dtype) for each in shapes)
    return x, floats(CHANNELS, 1, TAPS, dtype=dtype, seed=1), floats(CHANNELS, dtype=dtype, seed=2), past


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("activation", ["none", "silu", "swish"])
def test_convolutions(length, last, dilation, activation):
    x, weight, bias, past = convolution(length, bool(last), dilation)
    settings = {"channels_last": last, "dilation": dilation, "activation": activation}
    for inputs in ((x, weight), (x, weight, bias), (x, weight, None, past), (x, weight, bias, past)):
        check(CONVOLUTION, *inputs, **settings)


def test_channels_of_several_axes():
    x, weight, bias, past = convolution(5, last=True)
    apart = [each.reshape(*each.shape[:2], 2, 3) for each in (x, past)]
    check(CONVOLUTION, apart[0], weight, bias, apart[1], channels_last=1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_convolutions_of_halves(dtype, activation):
    inputs = convolution(5, dtype=dtype)
    wide = [each.astype(np.float32) for each in inputs]
    model = node_model(CONVOLUTION, wide, outputs=2, output_types=["float32"] * 2, activation=activation)
    feeds = {f"x{index}": each for index, each in enumerate(wide)}
    expected = [each.astype(inputs[0].dtype) for each in reference_outputs(model, feeds)]
    check(CONVOLUTION, *inputs, dtype=dtype, reference=expected, activation=activation)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("window", [1, 3])
def test_the_last_states_of_a_convolution(last, length, window):
    x, weight, bias, past = convolution(length, bool(last))
    axis = 1 if last else 2
    seen = np.concatenate([past, x], axis=axis)
    found = [
        np.take(seen, np.arange(count, count + TAPS - 1), axis)
        for count in range(max(length - window, 0) + 1, length + 1)
    ]
    states = np.stack([*[np.zeros_like(past)] * (window - len(found)), *found])
    model = node_model(
        CONVOLUTION, (x, weight, bias, past), outputs=2, output_types=["float32"] * 2, channels_last=last
    )
    result, _ = reference_outputs(model, {"x0": x, "x1": weight, "x2": bias, "x3": past})
    pasts = np.stack([*[floats(*past.shape, seed=9)] * (window - 1), past])
    settings = {"channels_last": last, "state_window": window}
    check(CONVOLUTION, x, weight, bias, pasts, reference=[result, states], **settings)


def test_what_a_convolution_declines():
    inputs = convolution(5)
    kinds = {"outputs": 2, "output_types": ["float32"] * 2}
    for because, more in {
        "more than one spatial dimension": {"ndim": 2},
        "none that is known": {"activation": "relu"},
        "just CUDA kernels": {"state_length": 5},
        "state_window is -1": {"state_window": -1},
    }.items():
        check_declined(CONVOLUTION, *inputs, because=because, **kinds, **more)
    check_error(CONVOLUTION, inputs[0], inputs[1][1:], match="input has shape", outputs=2)
    check_error(CONVOLUTION, *inputs[:3], inputs[3][..., 1:], match="past_state has shape", outputs=2)


@pytest.mark.parametrize("last", [0, 1])
def test_a_convolution_in_a_session(last):
    check_session(CONVOLUTION, *convolution(5, bool(last)), outputs=2, channels_last=last, activation="silu")
