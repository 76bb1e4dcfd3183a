"""Sequences of tensors, against ONNX Runtime's CPU provider."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opgraft.errors import TranslationError
from opgraft.host import EP_NAME
from opgraft.sessions import assignment, open_session
from opgraft.testing import assert_same, check_model, decisions_for, reference_outputs, run_model
from opgraft_ops import control_flow

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)
PLACES = ("constant", "host", "device")
DTYPES = {"float": "float32", "double": "float64"} | {
    name: name for name in ("float16", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}


def model_of(text, opset=21):
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')


def arrays(inputs):
    return {name: np.asarray(each) for name, each in inputs.items()}


def check(text, opset=21, reference="cpu", **inputs):
    return check_model(model_of(text, opset), arrays(inputs), reference=reference)


def check_refused(text, match, **inputs):
    """Check that a run fails with an error that says why, and that ONNX Runtime's CPU provider refuses it too."""
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        reference_outputs(model_of(text), arrays(inputs))
    with pytest.raises(TranslationError, match=match):
        run_model(model_of(text), arrays(inputs))


def check_session(text, *claimed, **inputs):
    """Check what a session gives, and how many nodes each of its subgraphs has.

    Returns:
        The reasons for what is declined, by operator.
    """
    opened = open_session(model_of(text))
    assert assignment(opened.session).get(EP_NAME, []) == list(claimed)
    outputs = opened.session.run(None, arrays(inputs))
    for output, expected in zip(outputs, reference_outputs(model_of(text), arrays(inputs)), strict=True):
        assert_same(np.asarray(output), np.asarray(expected), 1e-5)
    return {
        each.operator.removeprefix("ai.onnx::"): each.reasons[0].reason
        for each in opened.coverage.operators
        if each.reasons
    }


def placed(place, value):
    """A formal input, a constant and nodes that bring the int64 value `p`, and what to feed."""
    dims = f"[{np.size(value)}]" if np.ndim(value) else ""
    elements = ", ".join(map(str, np.ravel(value)))
    if place == "constant":
        return "", f"<int64{dims} p = {{{elements}}}>", "", {}
    if place == "host":
        return f", int64{dims} p", "", "", {"p": value}
    return f", int64{dims} p0", "", "zero = Sub (p0, p0) p = Sub (p0, zero)", {"p0": value}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("position", [-3, -1, 0, 2, 3])
def test_insert_at_a_position(place, position):
    formal, constant, nodes, feeds = placed(place, position)
    check(
        f"""g (float[3, 2] x, float[1, 2] t{formal}) => (float[A, 2] y, int64 n) {constant} {{
            {nodes} s = SplitToSequence (x) u = SequenceInsert (s, t, p)
            y = ConcatFromSequence <axis = 0> (u) n = SequenceLength (u)
        }}""",
        x=ROWS,
        t=-ROWS[:1],
        **feeds,
    )


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("position", [-3, -1, 0, 2])
def test_read_and_erase_at_a_position(place, position):
    formal, constant, nodes, feeds = placed(place, position)
    check(
        f"""g (float[3, 2] x{formal}) => (float[1, 2] y, float[A, 2] rest) {constant} {{
            {nodes} s = SplitToSequence (x) y = SequenceAt (s, p) u = SequenceErase (s, p)
            rest = ConcatFromSequence <axis = 0> (u)
        }}""",
        x=ROWS,
        **feeds,
    )


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("nodes", "positions"),
    [
        ("u = SequenceInsert (s, x, p) y = SequenceLength (u)", (-4, 4)),
        ("u = SequenceErase (s, p) y = SequenceLength (u)", (-4, 3)),
        ("u = SequenceAt (s, p) y = Size (u)", (-4, 3)),
    ],
)
def test_positions_out_of_range(nodes, positions, place):
    for position in positions:
        formal, constant, before, feeds = placed(place, position)
        check_refused(
            f"g (float[3, 2] x{formal}) => (int64 y) {constant} {{ {before} s = SplitToSequence (x) {nodes} }}",
            rf"\(-> u\)'.*position {position} is not in a sequence of 3 tensors \(\S+\)\. Its inputs: a sequence of 3 ",
            x=ROWS,
            **feeds,
        )


def test_positions_of_int32_and_none():
    check(
        """g (float[3, 2] x, int32 p) => (float[1, 2] one, float[3, 2] last, float[A, 2] rest) <int64 end = {-1}> {
            s = SplitToSequence (x) one = SequenceAt (s, p)
            u = SequenceInsert (s, x) last = SequenceAt (u, end)
            e = SequenceErase (u) rest = ConcatFromSequence <axis = 0> (e)
        }""",
        x=ROWS,
        p=np.int32(1),
    )


def test_nothing_in_a_sequence():
    check("g () => (int64 n) { s = SequenceEmpty <dtype = 7> () n = SequenceLength (s) }")
    text = "g (float[2] x) => (float[A] y) {{ s = SequenceEmpty () {nodes} }}"
    check_refused(
        text.format(nodes="y = ConcatFromSequence <axis = 0> (s)"), "0 tensors has nothing to concatenate", x=ROWS[0]
    )
    check_refused(
        text.format(nodes="e = SequenceErase (s) y = ConcatFromSequence <axis = 0> (e)"),
        "position -1 is not in a sequence of 0 tensors",
        x=ROWS[0],
    )


@pytest.mark.parametrize("name", DTYPES)
def test_element_types(name):
    values = ROWS.astype(DTYPES[name])
    number = onnx.helper.np_dtype_to_tensor_dtype(values.dtype)
    check(
        f"""g ({name}[3, 2] x) => ({name}[A, 2] y, {name}[3, 2] z) <int64 zero = {{0}}> {{
            e = SequenceEmpty <dtype = {number}> () s = SequenceConstruct (x, x) i = SequenceInsert (e, x)
            y = ConcatFromSequence <axis = 0> (s) z = SequenceAt (i, zero)
        }}""",
        x=values,
    )


@pytest.mark.parametrize(("axis", "new_axis"), [(0, 0), (1, 0), (-1, 0), (-2, 0), (0, 1), (2, 1), (-1, 1), (-3, 1)])
@pytest.mark.parametrize("on_host", [True, False])
def test_concatenation(axis, new_axis, on_host):
    check(
        f"""g (float[3, 2] x) => (float[A, B] y) {{
            t = {"Identity" if on_host else "Neg"} (x) s = SequenceConstruct (x, t, x)
            y = ConcatFromSequence <axis = {axis}, new_axis = {new_axis}> (s)
        }}""".replace("[A, B] y", "[A, B, C] y" if new_axis else "[A, B] y"),
        x=ROWS,
    )


@pytest.mark.parametrize(
    ("axis", "new_axis", "other"),
    [(2, 0, ROWS), (-3, 0, ROWS), (3, 1, ROWS), (-4, 1, ROWS), (1, 0, ROWS[:2]), (0, 1, ROWS[:2])],
)
@pytest.mark.parametrize("function", ["Identity", "Neg"])
def test_concatenation_refused(axis, new_axis, other, function):
    check_refused(
        f"""g (float[A, B] x, float[C, D] t) => (int64 n) {{
            u = {function} (t) s = SequenceConstruct (x, u)
            y = ConcatFromSequence <axis = {axis}, new_axis = {new_axis}> (s) n = Size (y)
        }}""",
        r"ConcatFromSequence \(-> y\)",
        x=ROWS,
        t=other,
    )


def test_concatenation_of_scalars():
    text = """g (float a, float b) => (float[N] y) {{
        s = SequenceConstruct (a, b) y = ConcatFromSequence <axis = 0, new_axis = {new_axis}> (s) }}"""
    check(text.format(new_axis=1), a=np.float32(3), b=np.float32(4))
    check_refused(text.format(new_axis=0), "ConcatFromSequence", a=np.float32(3), b=np.float32(4))


SPLIT = """g (float[A, B] x{formal}) => (int64 n, float[C, D] y, float[E, F] last) {constant} {{
    {nodes} s = SplitToSequence <axis = {axis}, keepdims = {keepdims}> (x{taken}) n = SequenceLength (s)
    y = ConcatFromSequence <axis = {join}> (s) end = Constant <value_int = -1> () last = SequenceAt (s, end)
}}"""


def split_model(place, split, axis=0, keepdims=1):
    formal, constant, nodes, feeds = ("", "", "", {}) if split is None else placed(place, np.array(split, np.int64))
    rank = 2 if keepdims or split is not None else 1
    text = SPLIT.format(
        formal=formal,
        constant=constant,
        nodes=nodes,
        axis=axis,
        keepdims=keepdims,
        taken="" if split is None else ", p",
        join=axis if rank == 2 else 0,
    )
    return (text if rank == 2 else text.replace("[C, D]", "[C]").replace("[E, F]", "[E]")), feeds


@pytest.mark.parametrize("opset", [11, 21, 24])
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_split_into_single_slices(opset, axis, keepdims):
    text, feeds = split_model("host", None, axis, keepdims)
    check(text, opset, x=ROWS, **feeds)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("split", [1, 2, 3, 5, [3], [1, 2], [2, 0, 1]])
def test_split_into_pieces(place, split):
    text, feeds = split_model(place, split)
    check(text, x=ROWS, **feeds)
    text, feeds = split_model(place, split, axis=-1)
    check(text, x=ROWS.T, **feeds)


def test_a_vector_of_sizes_keeps_the_axis():
    text, feeds = split_model("host", [1, 1, 1], keepdims=0)
    check(text, x=ROWS, **feeds)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("split", [0, -1, [1, 1], [2, 2], [4, -1]])
def test_split_refused(place, split):
    text, feeds = split_model(place, split)
    check_refused(text, "a dimension of 3", x=ROWS, **feeds)


@pytest.mark.parametrize("split", [None, 2, [0]])
def test_split_of_nothing(split):
    formal, constant, nodes, feeds = ("", "", "", {}) if split is None else placed("host", np.array(split, np.int64))
    check(
        f"""g (float[A, 2] x{formal}) => (int64 n) {constant} {{
            {nodes} s = SplitToSequence (x{", p" if feeds else ""}) n = SequenceLength (s)
        }}""",
        x=ROWS[:0],
        **feeds,
    )


@pytest.mark.parametrize("rank", ["", "[K]", "[1]"])
def test_a_scalar_split_without_keepdims_is_declined(rank):
    """ONNX ignores keepdims where there is a split, and ONNX Runtime squeezes pieces of size 1."""
    model = model_of(
        f"""g (float[3, 2] x, int64{rank} p) => (int64 n) {{
            s = SplitToSequence <keepdims = 0> (x, p) n = SequenceLength (s)
        }}"""
    )
    reasons = [str(reason) for _, each in decisions_for(model).declined for reason in each]
    assert any("keepdims is 0, and split is a scalar" in reason for reason in reasons) == (not rank)


GROWING = """g (int64 M, float[2] x) => (float[2] y, float[K, 2] rows) <float one = {{1.0}}, int64 zero = {{0}}> {{
    empty = SequenceEmpty ()
    y, list = Loop <body = b (int64 i, bool going, float[2] a, seq(float[2]) before)
        => (bool on, float[2] next, seq(float[2]) after) {{
        on = Identity (going)
        next = Add (a, one)
        after = SequenceInsert (before, next{position})
    }}> (M, "", x, empty)
    rows = ConcatFromSequence <axis = 0, new_axis = 1> (list)
}}"""


@pytest.mark.parametrize("position", ["", ", zero", ", i"])
@pytest.mark.parametrize("trips", [1, 3, 40])
def test_a_list_that_a_loop_appends_to(position, trips):
    check(GROWING.format(position=position), M=trips, x=ROWS[1])


def test_each_tensor_of_a_growing_list_is_computed_once(monkeypatch):
    asked = []
    monkeypatch.setattr(control_flow.mx, "async_eval", lambda arrays: asked.append(len(arrays)))
    run_model(model_of(GROWING.format(position="")), {"M": np.array(100), "x": ROWS[0]})
    every = control_flow.TRIPS_BETWEEN_EVALUATIONS
    assert asked == [1 + every] * (100 // every)


def test_thousands_of_insertions():
    check(GROWING.format(position=""), M=3000, x=ROWS[0])


def test_a_list_that_a_loop_takes_from():
    check(
        """g (float[3, 2] x, int64 limit) => (float[2] sum, int64 left) <float[2] start = {0.0, 0.0}> {
            all = SplitToSequence <keepdims = 0> (x)
            M = SequenceLength (all)
            sum, rest = Loop <body = b (int64 i, bool going, float[2] a, seq(float[2]) before)
                => (bool on, float[2] next, seq(float[2]) after) {
                on = Less (i, limit)
                last = Constant <value_int = -1> ()
                row = SequenceAt (before, last)
                next = Add (a, row)
                after = SequenceErase (before)
            }> (M, "", start, all)
            left = SequenceLength (rest)
        }""",
        x=ROWS,
        limit=1,
    )


@pytest.mark.parametrize("cond", [True, False])
def test_sequences_that_bodies_capture_and_give(cond):
    check(
        """g (float[3, 2] x, bool c, int64 M) => (float[A, 2] y, int64 n, float[K, 2] rows) {
            pieces = SplitToSequence <keepdims = 0> (x)
            fewer = SequenceErase (pieces)
            chosen = If (c) <
                then_branch = t () => (seq(float[2]) p) { p = Identity (pieces) },
                else_branch = e () => (seq(float[2]) q) {
                    k = SequenceLength (fewer)
                    q = Loop <body = b (int64 i, bool going, seq(float[2]) before) => (bool on, seq(float[2]) after) {
                        on = Identity (going)
                        row = SequenceAt (pieces, i)
                        after = SequenceInsert (before, row, i)
                    }> (k, "", fewer)
                }
            >
            n = SequenceLength (chosen)
            y = ConcatFromSequence <axis = 0, new_axis = 1> (chosen)
            rows = Loop <body = b (int64 i, bool going) => (bool on, float[2] row) {
                on = Identity (going)
                row = SequenceAt (chosen, i)
            }> (M, "")
        }""",
        x=ROWS,
        c=cond,
        M=2,
    )


def test_no_trips_leave_a_sequence_as_it_was():
    check(
        """g (int64 M, float[3, 2] x) => (float[3, 2] y) {
            s = SequenceConstruct (x)
            t = Loop <body = b (int64 i, bool going, seq(float[3, 2]) before) => (bool on, seq(float[3, 2]) after) {
                on = Identity (going) after = SequenceErase (before)
            }> (M, "", s)
            y = ConcatFromSequence <axis = 0> (t)
        }""",
        M=0,
        x=ROWS,
    )


MAPPED = """g (float[3, 2] x, float[2] w) => (float[A, 2] sums, float[B, 2] products, int64 n) {
    s = SplitToSequence <keepdims = 0> (x)
    u, v = SequenceMap <body = b (float[2] a, float[2] b, float[2] c) => (float[2] d, float[2] e) {
        f = Add (a, b) d = Add (f, c) e = Mul (a, w)
    }> (s, s, w)
    sums = ConcatFromSequence <axis = 0, new_axis = 1> (u)
    products = ConcatFromSequence <axis = 0, new_axis = 1> (v)
    empty = SequenceEmpty ()
    none = SequenceMap <body = b (float[2] a) => (float[2] d) { d = Neg (a) }> (empty)
    n = SequenceLength (none)
}"""


def test_map():
    check(MAPPED, x=ROWS, w=ROWS[1])
    assert check_session(MAPPED, 3, 4, x=ROWS, w=ROWS[1]) == {}


def test_a_map_that_is_declined_is_expanded_and_declined_with_what_shares_its_sequences():
    reasons = check_session(
        """g (float[3, 2] x) => (float[3, 2] y, float[3, 2] z) {
            s = SplitToSequence <keepdims = 0> (x)
            u = SequenceMap <body = b (float[2] a) => (float[2] d) { t = Cast <to = 8> (a) d = Cast <to = 1> (t) }> (s)
            y = ConcatFromSequence <axis = 0, new_axis = 1> (u)
            z = Neg (x)
        }""",
        1,
        x=ROWS,
    )
    assert reasons["SplitToSequence"].startswith("sequence 's' leaves the subgraph for 'SequenceMap (-> u)'")
    assert "in body, node" in reasons["Loop"] and "element type string" in reasons["Loop"]


def test_sizes_in_a_sequence_stay_on_the_host(monkeypatch):
    """As scripts take shapes apart and put them together."""
    reads = []
    monkeypatch.setattr("opgraft.engine.frame.to_host", lambda value: reads.append(value) or np.asarray(value))
    model = model_of(
        """g (float[A, B, C] x) => (float[D, E] y) <int64 zero = {0}, int64[1] rest = {-1}> {
            shape = Shape (x)
            sizes = SplitToSequence (shape)
            rows = SequenceAt (sizes, zero)
            list = SequenceConstruct (rows, rest)
            target = ConcatFromSequence <axis = 0> (list)
            y = Reshape (x, target)
        }"""
    )
    x = np.ones((3, 4, 5), np.float32)
    (output,) = run_model(model, {"x": x})
    assert output.shape == (3, 20)
    assert reads == []


def test_a_large_tensor_goes_to_the_device_once(monkeypatch):
    """However often it is read."""
    copies = []
    to_device = control_flow.to_device

    def counted(value):
        copies.extend([value.size] * isinstance(value, np.ndarray))
        return to_device(value)

    for module in ("opgraft.engine.frame", "opgraft_ops.sequences"):
        monkeypatch.setattr(f"{module}.to_device", counted)
    model = model_of(
        """g (float[2000] x, int64 M) => (float[2000] y) <int64 zero = {0}> {
            s = SequenceConstruct (x)
            start = SequenceAt (s, zero)
            y = Loop <body = b (int64 i, bool going, float[2000] a) => (bool on, float[2000] next) {
                on = Identity (going) row = SequenceAt (s, zero) next = Add (a, row)
            }> (M, "", start)
        }"""
    )
    (output,) = run_model(model, {"x": np.ones(2000, np.float32), "M": np.array(9)})
    assert set(output) == {10}
    assert copies.count(2000) == 1


STEPS = st.lists(
    st.tuples(st.sampled_from(["insert", "erase", "at", "identity"]), st.integers(-4, 4), st.booleans()), max_size=8
)


@given(STEPS)
def test_any_program_of_insertions_and_erasures(steps):
    expected, nodes, name, numbers = [0.0], ["s0 = SequenceConstruct (zero)"], "s0", {}
    for step, (kind, position, given_position) in enumerate(steps, 1):
        length = len(expected)
        if kind == "insert":
            position = max(-length, min(position, length))
            value, place = f"v{step}", f", p{step}" if given_position else ""
            expected.insert(position if given_position else length, float(step))
            nodes.append(f"{value} = Add (zero, n{step}) s{step} = SequenceInsert ({name}, {value}{place})")
        elif kind == "erase" and length > 1:
            position = max(-length, min(position, length - 1))
            del expected[position if given_position else -1]
            nodes.append(f"s{step} = SequenceErase ({name}{f', p{step}' if given_position else ''})")
        elif kind == "at":
            position = max(-length, min(position, length - 1))
            expected.append(expected[position])
            nodes.append(f"v{step} = SequenceAt ({name}, p{step}) s{step} = SequenceInsert ({name}, v{step})")
        else:
            nodes.append(f"s{step} = Identity ({name})")
        name, numbers[step] = f"s{step}", position
    constants = "".join(f", float n{step} = {{{step}}}, int64 p{step} = {{{at}}}" for step, at in numbers.items())
    check(
        f"""g (float x) => (float[N] y) <float one = {{1}}{constants}> {{
            zero = Sub (x, x) {" ".join(nodes)} y = ConcatFromSequence <axis = 0, new_axis = 1> ({name})
        }}""",
        reference=[np.array(expected, np.float32)],
        x=np.float32(7),
    )


SCRIPTED = """g (float[T, B, 8] frames) => (float[T, B, 4] states)
    <float[12, 4] weight, float[4] bias, int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}, int64[1] width = {4},
     bool yes = {1}> {
    shape = Shape (frames) batch = Gather (shape, one) rows = Unsqueeze (batch, axis)
    size = Concat <axis = 0> (rows, width) start = ConstantOfShape (size)
    list = SequenceEmpty <dtype = 1> () length = Gather (shape, zero)
    last, all = Loop <body = b (int64 step, bool c, float[B, 4] state, seq(float[B, 4]) before)
        => (bool on, float[B, 4] next, seq(float[B, 4]) after) {
        frame = Gather (frames, step) joined = Concat <axis = 1> (frame, state)
        cell = Gemm (joined, weight, bias) next = Tanh (cell)
        after = SequenceInsert (before, next) on = Identity (yes)
    }> (length, yes, start, list)
    states = ConcatFromSequence <axis = 0, new_axis = 1> (all)
}"""


def scripted():
    """A loop that collects its states in a list, as TorchScript's exporter writes it."""
    model = model_of(SCRIPTED.replace("float[12, 4] weight, float[4] bias,", ""))
    random = np.random.default_rng(0)
    for name, shape in (("weight", (12, 4)), ("bias", (4,))):
        array = random.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model, {"frames": random.normal(size=(5, 2, 8)).astype(np.float32)}


def test_a_scripted_loop_is_one_subgraph():
    model, feeds = scripted()
    check_model(model, feeds)
    opened = open_session(model)
    assert list(assignment(opened.session)) == [EP_NAME]
    assert len(assignment(opened.session)[EP_NAME]) == 1
    (output,) = opened.session.run(None, feeds)
    assert_same(output, reference_outputs(model, feeds)[0], 1e-5)


class TestBorders:
    """No sequence goes in or out of a subgraph."""

    def test_an_output_of_the_graph(self):
        reasons = check_session(
            """g (float[3, 2] x, int64 p) => (float[1, 2] y, seq(float[1, 2]) s, float[3, 2] z) {
                s = SplitToSequence (x) y = SequenceAt (s, p) z = Neg (x)
            }""",
            1,
            x=ROWS,
            p=1,
        )
        assert set(reasons) == {"SplitToSequence", "SequenceAt"}
        assert set(reasons.values()) == {"sequence 's' leaves the subgraph as an output of the graph; only tensors can"}

    def test_an_input_of_the_graph(self):
        text = "g (seq(float[2]) s, float[2] x) => (int64 n, float[2] z) { n = SequenceLength (s) z = Neg (x) }"
        opened = open_session(model_of(text))
        assert assignment(opened.session)[EP_NAME] == [1]
        assert opened.session.run(None, {"s": [ROWS[0], ROWS[1]], "x": ROWS[0]})[0] == 2
        ((reason,),) = (each.reasons for each in opened.coverage.operators if each.reasons)
        assert reason.reason == "sequence 's' enters the subgraph as an input of the graph; only tensors can"

    def test_a_node_that_is_declined(self):
        reasons = check_session(
            """g (string[2] t, float[3, 2] x) => (int64 n, string[2] u, float[3, 2] z) <int64 p = {0}> {
                s = SequenceConstruct (t) n = SequenceLength (s) u = SequenceAt (s, p) z = Neg (x)
            }""",
            1,
            t=np.array(["a", "b"], object),
            x=ROWS,
        )
        assert "element type string of 't'" in reasons["SequenceConstruct"]
        maker = "'SequenceConstruct (-> s)' (ai.onnx::SequenceConstruct)"
        assert reasons["SequenceLength"] == f"sequence 's' enters the subgraph from {maker}; only tensors can"

    def test_a_detour_over_a_node_that_is_declined(self):
        reasons = check_session(
            """g (float[3, 2] x, int64 k) => (float[1, 2] y, float[3, 2] z) {
                s = SplitToSequence (x) n = SequenceLength (s) t = Cast <to = 8> (n) m = Cast <to = 7> (t)
                p = Sub (m, k) y = SequenceAt (s, p) z = Neg (x)
            }""",
            1,
            1,
            x=ROWS,
            k=1,
        )
        for operator in ("SplitToSequence", "SequenceLength", "SequenceAt"):
            assert reasons[operator] == (
                "sequence 's' leaves the subgraph for nodes beyond 'Cast (-> t)' (ai.onnx::Cast); only tensors can"
            )

    def test_nodes_that_share_a_sequence_are_kept_together(self):
        """Here the node that makes it could go with those before the declined one, and would be alone there."""
        reasons = check_session(
            """g (float[3, 2] x) => (float[A, 2] y) {
                a = Neg (x) s = SplitToSequence <keepdims = 0> (a)
                t = Cast <to = 8> (a) b = Cast <to = 1> (t) c = ReduceSum <keepdims = 0> (b)
                two = Constant <value_int = 2> ()
                u = Loop <body = b (int64 i, bool going, seq(float[2]) before) => (bool on, seq(float[2]) after) {
                    on = Identity (going) row = SequenceAt (before, i) new = Add (row, c)
                    after = SequenceInsert (before, new)
                }> (two, "", s)
                y = ConcatFromSequence <axis = 0, new_axis = 1> (u)
            }""",
            1,
            4,
            x=ROWS,
        )
        assert set(reasons) == {"Cast"}

    def test_strings(self):
        model = model_of("g () => (int64 n) { s = SequenceEmpty <dtype = 8> () n = SequenceLength (s) }")
        reasons = [str(reason) for _, each in decisions_for(model).declined for reason in each]
        assert reasons[0] == "a sequence of element type string, which MLX lacks [builtin]"

    def test_optionals(self):
        model = model_of("g (optional(float[2]) x) => (bool y) { y = OptionalHasElement (x) }")
        ((_, (reason,)),) = decisions_for(model).declined
        assert str(reason) == "'x' is of type optional; only tensors and sequences of tensors are supported"
