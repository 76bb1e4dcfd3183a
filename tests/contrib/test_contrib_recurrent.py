"""DynamicQuantizeLSTM, against ONNX Runtime's CPU provider with one thread: with more, it quantizes the hidden states
of each thread's sequences by themselves, so that what it computes depends on the machine."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from opgraft.testing import check_declined, check_node, node_model

LSTM = "com.microsoft::DynamicQuantizeLSTM"
TOLERANCE = 1e-5
OUTPUTS = {"outputs": 3, "output_types": ["float32"] * 3}


def floats(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype(np.float32)


def inputs_of(dtype, directions, steps, batch, inputs, hidden, by_channel, lengths=None, **optional):
    rng = np.random.default_rng([directions, steps, batch])
    limits = np.iinfo(dtype)
    columns = (directions, 4 * hidden) if by_channel else (directions,)
    zero_point = np.zeros(columns, dtype) if dtype == "int8" else np.full(columns, 120, dtype)

    def weights(*shape):
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)

    given = {
        "B": floats(directions, 8 * hidden),
        "initial_h": floats(directions, batch, hidden, seed=1),
        "initial_c": floats(directions, batch, hidden, seed=2),
        "P": floats(directions, 3 * hidden, seed=3),
    }
    states = {name: array if optional.get(name) else None for name, array in given.items()}
    return [
        floats(steps, batch, inputs, seed=4),
        weights(directions, inputs, 4 * hidden),
        weights(directions, hidden, 4 * hidden),
        states["B"],
        None if lengths is None else np.array(lengths, np.int32),
        states["initial_h"],
        states["initial_c"],
        states["P"],
        rng.uniform(0.004, 0.01, columns).astype(np.float32),
        zero_point,
        rng.uniform(0.004, 0.01, columns).astype(np.float32),
        zero_point,
    ]


def check(inputs, **attributes):
    model = node_model(LSTM, inputs, **OUTPUTS, **attributes)
    constant = attributes.get("constant", ())
    feeds = {f"x{index}": each for index, each in enumerate(inputs) if each is not None and index not in constant}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    check_node(LSTM, *inputs, reference=session.run(None, feeds), tolerance=TOLERANCE, **OUTPUTS, **attributes)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (5, 1), (4, 3)])
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_directions(dtype, direction, steps, batch, by_channel, constant):
    directions = 2 if direction == "bidirectional" else 1
    inputs = inputs_of(dtype, directions, steps, batch, 6, 8, by_channel, B=True)
    check(inputs, direction=direction, hidden_size=8, constant=(1, 2, 3, 8, 9, 10, 11) if constant else ())


@pytest.mark.parametrize("optional", [(), ("initial_h", "initial_c"), ("P",), ("B", "initial_h", "initial_c", "P")])
@pytest.mark.parametrize("lengths", [None, (4, 4), (4, 2), (2, 3), (0, 1)])
@pytest.mark.parametrize("attributes", [{}, {"clip": 0.4}, {"input_forget": 1}])
def test_optional_inputs(optional, lengths, attributes):
    inputs = inputs_of("int8", 1, 4, 2, 5, 8, False, lengths, **dict.fromkeys(optional, True))
    check(inputs, hidden_size=8, **attributes)


@pytest.mark.parametrize("names", [("Sigmoid", "Relu", "Tanh"), ("HardSigmoid", "Tanh", "Softsign")])
def test_other_activations(names):
    inputs = inputs_of("int8", 1, 4, 2, 5, 8, False, B=True)
    numbers = {"activation_alpha": [0.3], "activation_beta": [0.4]} if "HardSigmoid" in names else {}
    check(inputs, hidden_size=8, activations=names, **numbers)


def test_what_does_not_fit_is_declined():
    inputs = inputs_of("int8", 1, 4, 2, 5, 8, False)
    check_declined(LSTM, *inputs[:8], hidden_size=8, because="input W_scale is required", **OUTPUTS)
    check_declined(LSTM, *inputs, hidden_size=8, clip=-1.0, because="must be positive", **OUTPUTS)
    inputs[8] = np.ones(3, np.float32)
    check_declined(LSTM, *inputs, hidden_size=8, because="a scale or zero point of W or R has shape [3]", **OUTPUTS)
