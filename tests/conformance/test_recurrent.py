"""LSTM, GRU and RNN, against ONNX Runtime's CPU provider."""

from __future__ import annotations

import numpy as np
import pytest
from kit import check_refused

from opgraft.testing import check_declined, check_node, node_model, reference_outputs, run_model

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
OUTPUTS = {"RNN": 2, "GRU": 2, "LSTM": 3}
DIRECTIONS = ("forward", "reverse", "bidirectional")
STEPS, BATCH, INPUT, HIDDEN = 4, 3, 2, 5
OPTIONAL = ("B", "sequence_lens", "initial_h", "initial_c", "P")

each_operator = pytest.mark.parametrize("operator", ["RNN", "GRU", "LSTM"])
each_direction = pytest.mark.parametrize("direction", DIRECTIONS)


def inputs_of(operator, direction, given=("B", "initial_h", "initial_c", "P"), lengths=None, steps=STEPS, batch=BATCH):
    """Inputs in ONNX's order, None for those not `given`."""
    count, gates = (2 if direction == "bidirectional" else 1), GATES[operator]
    shapes = {
        "X": (steps, batch, INPUT),
        "W": (count, gates * HIDDEN, INPUT),
        "R": (count, gates * HIDDEN, HIDDEN),
        "B": (count, 2 * gates * HIDDEN),
        "sequence_lens": None,
        "initial_h": (count, batch, HIDDEN),
        "initial_c": (count, batch, HIDDEN),
        "P": (count, 3 * HIDDEN),
    }
    random = np.random.default_rng(17)
    arrays = [
        None
        if shape is None or (name in OPTIONAL and name not in given)
        else random.normal(scale=0.7, size=shape).astype(np.float32)
        for name, shape in shapes.items()
    ]
    if lengths is not None:
        arrays[4] = np.array(lengths, np.int32)
    arrays = arrays[: 8 if operator == "LSTM" else 6]
    while arrays[-1] is None:
        arrays.pop()
    return arrays


def check(operator, direction="forward", inputs=None, opset=14, **attributes):
    return check_node(
        operator,
        *(inputs_of(operator, direction) if inputs is None else inputs),
        opset=opset,
        outputs=OUTPUTS[operator],
        direction=direction,
        hidden_size=HIDDEN,
        **attributes,
    )


@each_operator
@each_direction
@pytest.mark.parametrize("opset", [7, 14, 22])
@pytest.mark.parametrize("given", [(), ("B",), ("initial_h",), ("B", "initial_h", "initial_c", "P")])
def test_directions_and_optional_inputs(operator, direction, opset, given):
    check(operator, direction, inputs_of(operator, direction, given), opset)


@each_operator
@each_direction
@pytest.mark.parametrize("lengths", [[4, 2, 3], [4, 4, 4], [1, 1, 2], [0, 4, 0]])
@pytest.mark.parametrize("constant", [(), (1, 2, 3, 4)])
def test_lengths_of_sequences(operator, direction, lengths, constant):
    check(operator, direction, inputs_of(operator, direction, OPTIONAL, lengths), constant=constant)


@each_operator
@each_direction
def test_layout_of_batch_first(operator, direction):
    inputs = inputs_of(operator, direction, OPTIONAL, [4, 2, 3])
    first, *last = reference_outputs(
        node_model(operator, inputs, opset=14, outputs=OUTPUTS[operator], direction=direction, hidden_size=HIDDEN),
        {f"x{index}": each for index, each in enumerate(inputs) if each is not None},
    )
    turned = [np.swapaxes(each, 0, 1) if index in (0, 5, 6) else each for index, each in enumerate(inputs)]
    expected = [first.transpose(2, 0, 1, 3), *(np.swapaxes(each, 0, 1) for each in last)]
    check(operator, direction, turned, layout=1, reference=expected)


PARAMETERS = {
    "Affine": {"activation_alpha": 0.5, "activation_beta": 0.3},
    "Elu": {"activation_alpha": 0.4},
    "HardSigmoid": {"activation_alpha": 0.3, "activation_beta": 0.4},
    "LeakyRelu": {"activation_alpha": 0.2},
    "ScaledTanh": {"activation_alpha": 0.8, "activation_beta": 0.6},
    "ThresholdedRelu": {"activation_alpha": 0.3},
}


@each_operator
@pytest.mark.parametrize(
    "name",
    ["Relu", "Tanh", "Sigmoid", "Softsign", "Softplus", "Elu", "HardSigmoid", "LeakyRelu"],
)
def test_activations_with_their_defaults(operator, name):
    inputs = inputs_of(operator, "forward", steps=2)
    check(operator, inputs=inputs, activations=[name] * FUNCTIONS[operator])


@each_operator
@each_direction
@pytest.mark.parametrize("name", list(PARAMETERS))
def test_activations_with_parameters(operator, direction, name):
    count = FUNCTIONS[operator] * (2 if direction == "bidirectional" else 1)
    parameters = {key: [value * 0.9**place for place in range(count)] for key, value in PARAMETERS[name].items()}
    check(operator, direction, inputs_of(operator, direction, steps=2), activations=[name] * count, **parameters)


@each_operator
def test_only_activations_that_have_parameters_take_the_next(operator):
    names = ["Tanh", "LeakyRelu", "Sigmoid", "HardSigmoid", "Affine", "Elu"]
    count = 2 * FUNCTIONS[operator]
    check(
        operator,
        "bidirectional",
        activations=(names[1:3] if operator == "RNN" else names)[:count],
        activation_alpha=[0.1, 0.2, 0.3, 0.4],
        activation_beta=[0.5, 0.6],
    )


@each_operator
@each_direction
@pytest.mark.parametrize("given", [("B",), ("B", "P")])
def test_clip(operator, direction, given):
    check(operator, direction, inputs_of(operator, direction, given), clip=0.25)


@each_direction
@pytest.mark.parametrize("given", [("B",), ("B", "initial_c", "P")])
def test_coupled_gates(direction, given):
    check("LSTM", direction, inputs_of("LSTM", direction, given), input_forget=1)


@each_direction
@pytest.mark.parametrize("given", [(), ("B", "initial_h")])
@pytest.mark.parametrize("clip", [{}, {"clip": 0.3}])
def test_linear_before_reset(direction, given, clip):
    check("GRU", direction, inputs_of("GRU", direction, given), linear_before_reset=1, **clip)


@each_operator
@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 1e-3), ("float64", 1e-6)])
def test_element_types(operator, dtype, tolerance):
    inputs = [None if each is None else each.astype(dtype) for each in inputs_of(operator, "bidirectional")]
    single = [None if each is None else each.astype(np.float32) for each in inputs]
    expected = reference_outputs(
        node_model(operator, single, outputs=OUTPUTS[operator], direction="bidirectional", hidden_size=HIDDEN),
        {f"x{index}": each for index, each in enumerate(single) if each is not None},
    )
    expected = [each.astype(dtype) for each in expected]
    check(operator, "bidirectional", inputs, reference=expected, tolerance=tolerance)


@each_operator
@each_direction
@pytest.mark.parametrize(("steps", "batch"), [(0, 3), (3, 0), (1, 1)])
def test_edge_sizes(operator, direction, steps, batch):
    inputs = inputs_of(operator, direction, ("B",), steps=steps, batch=batch)
    count = 2 if direction == "bidirectional" else 1
    if steps and batch:
        check(operator, direction, inputs)
        return
    nothing = [np.zeros((steps, count, batch, HIDDEN), np.float32)]
    nothing += [np.zeros((count, batch, HIDDEN), np.float32)] * (OUTPUTS[operator] - 1)
    check(operator, direction, inputs, reference=nothing)


@each_operator
def test_sizes_known_only_at_run_time(operator):
    check(operator, "bidirectional", inputs_of(operator, "bidirectional", OPTIONAL, [4, 1, 2]), dynamic=True)


@each_operator
def test_a_constant_weight_gives_the_same(operator):
    inputs = inputs_of(operator, "reverse")
    free, fixed = (
        check(operator, "reverse", inputs, constant=constant) for constant in ((), (1, 2, 3, 7)[: len(inputs)])
    )
    for one, other in zip(free, fixed, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_declined():
    inputs = inputs_of("LSTM", "forward")
    for because, attributes in {
        "none that ONNX lists": {"activations": ["Tanh", "Tanh", "Sine"]},
        "activations holds 2 names": {"activations": ["Tanh", "Tanh"]},
        "no default: state activation_alpha": {"activations": ["Sigmoid", "Tanh", "ThresholdedRelu"]},
        "state activation_alpha and activation_beta": {"activations": ["Sigmoid", "Tanh", "Affine"]},
        "version 1 of ai.onnx::LSTM": {"opset": 1, "output_sequence": 1},
    }.items():
        check_declined(
            "LSTM", *inputs, because=because, **{"opset": 14, "outputs": 3, "hidden_size": HIDDEN, **attributes}
        )


def test_steps_do_not_depend_on_later_ones():
    inputs = inputs_of("LSTM", "forward")
    model = node_model("LSTM", inputs, opset=14, outputs=3, hidden_size=HIDDEN)
    whole, later = (
        {f"x{index}": each.copy() for index, each in enumerate(inputs) if each is not None} for _ in range(2)
    )
    later["x0"][2:] = 9
    first, second = run_model(model, whole)[0], run_model(model, later)[0]
    np.testing.assert_array_equal(first[:2], second[:2])
    assert (first[2:] != second[2:]).any()


@pytest.mark.parametrize(("operator", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("lengths", [(3, 1), (-1, 1), (10**6, -5)])
def test_lengths_beyond_the_steps_are_refused(lengths, operator, gates):
    inputs = [np.ones(shape, np.float32) for shape in ((2, 2, 2), (1, 3 * gates, 2), (1, 3 * gates, 3))]
    inputs += [None, np.array(lengths, np.int32)]
    for direction in ("forward", "reverse"):
        attributes = {"direction": direction, "hidden_size": 3, "outputs": 2}
        check_refused(operator, *inputs, index=4, match="sequence_lens must lie between 0 and 2", **attributes)


@pytest.mark.parametrize(("operator", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_shapes_that_do_not_fit(operator, gates):
    size = 5
    shapes = {
        "X": (3, 2, 4),
        "W": (1, gates * size, 4),
        "R": (1, gates * size, size),
        "B": (1, 2 * gates * size),
        "sequence_lens": (2,),
        "initial_h": (1, 2, size),
        "initial_c": (1, 2, size),
        "P": (1, 3 * size),
    }
    wrong = {
        "X": [(3, 2, 4, 1), (3, 2, 3)],
        "W": [(2, gates * size, 4), (1, gates * size, 1)],
        "R": [(1, gates * size, 6), (1, gates * 4, 4)],
        "B": [(1, 2), (1, 1), (2 * gates * size,)],
        "sequence_lens": [(1,), (3,), (0,)],
        "initial_h": [(1, 1, size), (2, size), (1, 2, 1)],
        "initial_c": [(1, 1, size), (2, size), (1, 2, 1)],
        "P": [(1, 3), (15,)],
    }
    taken = list(shapes) if operator == "LSTM" else list(shapes)[:6]
    for index, name in enumerate(taken):
        for shape in wrong[name]:
            inputs = [np.ones(shape if each == name else shapes[each], np.float32) for each in taken]
            inputs[4] = inputs[4].astype(np.int32)
            attributes = {"hidden_size": size, "outputs": 2, "dynamic": True}
            check_refused(operator, *inputs, index=index, match=f"{name}|X has shape|W has shape", **attributes)


@pytest.mark.parametrize(("operator", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize(
    ("attributes", "refusal"),
    [
        ({"hidden_size": 4}, "R has shape"),
        ({"hidden_size": 5, "direction": "bidirectional"}, "R has shape"),
        ({"hidden_size": 5, "layout": 2}, "layout"),
        ({"hidden_size": 5, "activations": ["Tanh"] * 9}, "activations holds 9"),
    ],
)
def test_attributes_that_do_not_fit(attributes, refusal, operator, gates):
    inputs = [np.ones(shape, np.float32) for shape in ((3, 2, 4), (1, 5 * gates, 4), (1, 5 * gates, 5))]
    check_refused(operator, *inputs, match=refusal, outputs=2, dynamic=True, **attributes)


@pytest.mark.parametrize("clip", [0.0, -1.0])
def test_clips_that_leave_nothing(clip):
    inputs = [np.ones(shape, np.float32) for shape in ((3, 2, 4), (1, 20, 4), (1, 20, 5))]
    check_refused("LSTM", *inputs, match=f"clip is {clip}", clip=clip, hidden_size=5, outputs=2)
