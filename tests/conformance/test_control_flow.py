"""If, Loop and Scan, against ONNX Runtime's CPU provider."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from opgraft.engine import Program
from opgraft.graph.onnx_source import graph_of_model
from opgraft.plan import build_plan
from opgraft.registry import load_registry
from opgraft.testing import check_model, decisions_for, run_model
from opgraft_ops import control_flow

VECTOR = np.array([1.5, -2.0], np.float32)


def model_of(text, opset=21):
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')


def check(text, opset=21, reference="cpu", **inputs):
    return check_model(
        model_of(text, opset), {name: np.asarray(each) for name, each in inputs.items()}, reference=reference
    )


DOUBLING = """
    body (int64 i, bool going, float[N] a) => (bool on, float[N] b, float[N] out, int64 number) {
        on = Identity (going)
        b = Add (a, a)
        out = Neg (a)
        number = Identity (i)
    }
"""


@pytest.mark.parametrize("opset", [7, 11, 13, 16, 19, 21, 23])
@pytest.mark.parametrize("trips", [0, 1, 5])
@pytest.mark.parametrize("going", [True, False])
def test_loop_by_trip_count_and_condition(opset, trips, going):
    check(
        f"""g (int64 M, bool c, float[2] x) => (float[2] y, float[K, 2] outs, int64[K] numbers) {{
            y, outs, numbers = Loop <body = {DOUBLING}> (M, c, x) }}""",
        opset,
        M=np.int64(trips),
        c=np.bool_(going),
        x=VECTOR,
    )


@pytest.mark.parametrize("trips", [0, 3])
def test_loop_with_a_constant_trip_count_and_no_condition(trips):
    check(
        f"""g (float[2] x) => (float[2] y, float[K, 2] outs, int64[K] numbers) <int64 M = {{{trips}}}> {{
            y, outs, numbers = Loop <body = {DOUBLING}> (M, "", x) }}""",
        x=VECTOR,
    )


def test_loop_whose_trip_count_is_a_size():
    check(
        f"""g (float[N, 3] sized, float[2] x) => (float[2] y, float[K, 2] outs, int64[K] numbers) {{
            s = Shape <end: int = 1> (sized)
            M = Squeeze (s)
            y, outs, numbers = Loop <body = {DOUBLING}> (M, "", x) }}""",
        sized=np.zeros((4, 3), np.float32),
        x=VECTOR,
    )


WHILE = """
    body (int64 i, bool going, float a) => (bool on, float b) <float limit = {40.0}> {
        b = Add (a, a)
        on = Less (b, limit)
    }
"""


@pytest.mark.parametrize("start", [3.0, 100.0])
def test_loop_while_its_data_allow(start):
    check(
        f"""g (bool c, float x) => (float y) {{ y = Loop <body = {WHILE}> ("", c, x) }}""",
        c=True,
        x=np.float32(start),
    )


@pytest.mark.parametrize("trips", [2, 50])
def test_a_body_ends_its_loop_with_or_without_a_first_condition(trips):
    check(
        f"""g (int64 M, float x) => (float y) {{ y = Loop <body = {WHILE}> (M, "", x) }}""",
        M=np.int64(trips),
        x=np.float32(1),
    )


def test_loop_without_states_or_limits():
    check(
        """g () => (int64[K] squares) <int64 last = {3}> {
            squares = Loop <body = b (int64 i, bool going) => (bool on, int64 square) {
                square = Mul (i, i)
                on = Less (i, last)
            }> ()
        }""",
        reference=[np.array([0, 1, 4, 9])],
    )


def test_states_may_change_their_shape():
    check(
        """g (int64 M, float[N] x) => (float[L] y) {
            y = Loop <body = b (int64 i, bool going, float[A] a) => (bool on, float[B] b) {
                on = Identity (going)
                b = Concat <axis: int = 0> (a, a)
            }> (M, "", x)
        }""",
        M=np.int64(4),
        x=VECTOR,
    )


def test_states_may_trade_places():
    check(
        """g (int64 M, float[2] x, float[2] y) => (float[2] p, float[2] q) {
            p, q = Loop <body = b (int64 i, bool going, float[2] a, float[2] b) => (bool on, float[2] b, float[2] a) {
                on = Identity (going)
            }> (M, "", x, y)
        }""",
        M=np.int64(3),
        x=VECTOR,
        y=-VECTOR,
    )


@pytest.mark.parametrize("trips", [0, 2])
@pytest.mark.parametrize(
    ("declared", "shape"),
    [("float[2]", [2]), ("float[A]", [2]), ("float", []), ("float[A, 3]", [2, 3]), ("float[]", [2])],
)
def test_a_scan_output_of_no_trips_has_the_shape_that_the_body_declares(declared, shape, trips):
    check(
        f"""g (int64 M, {declared} x) => ({declared} y, float[] S) {{
            y, S = Loop <body = b (int64 i, bool going, {declared} a) => (bool on, {declared} b, {declared} out) {{
                on = Identity (going)
                b = Add (a, a)
                out = Identity (a)
            }}> (M, "", x)
        }}""",
        M=np.int64(trips),
        x=np.ones(shape, np.float32),
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "uint16", "int32", "int64", "bool"])
def test_element_types_of_states_and_scan_outputs(dtype):
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["on"]), helper.make_node("Identity", ["a"], ["out"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("a", getattr(TensorProto, NAMES[dtype]), [2]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("a", getattr(TensorProto, NAMES[dtype]), [2]),
            helper.make_tensor_value_info("out", getattr(TensorProto, NAMES[dtype]), [2]),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["M", "", "x"], ["y", "outs"], body=body)],
        "g",
        [helper.make_tensor_value_info("M", TensorProto.INT64, [])],
        [helper.make_tensor_value_info(name, getattr(TensorProto, NAMES[dtype]), None) for name in ("y", "outs")],
        [helper.make_tensor("x", getattr(TensorProto, NAMES[dtype]), [2], [1, 0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    program = Program(build_plan(graph_of_model(model)), load_registry(), "cpu")
    for trips in (0, 2):
        final, outs = (np.array(each) if dtype != "bfloat16" else each for each in program.run([np.int64(trips)]))
        assert final.dtype == outs.dtype == (mx.bfloat16 if dtype == "bfloat16" else dtype)
        assert final.tolist() == [1, 0] and outs.tolist() == [[1, 0]] * trips and outs.shape == (trips, 2)


NAMES = {
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "float64": "DOUBLE",
    "int8": "INT8",
    "uint16": "UINT16",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOL",
}


def test_counter_and_condition_may_be_vectors_of_one():
    check(
        """g (int64[1] M, bool[1] c, float[2] x) => (float[2] y, int64[K, 1] numbers) {
            y, numbers = Loop <
                body = b (int64[1] i, bool[1] going, float[2] a) => (bool[1] on, float[2] b, int64[1] n) {
                on = Identity (going)
                b = Add (a, a)
                n = Identity (i)
            }> (M, c, x)
        }""",
        M=np.array([3], np.int64),
        c=np.array([True]),
        x=VECTOR,
    )


def test_a_body_captures_values_from_two_levels_up():
    check(
        """g (int64 M, float[2] x, float[2] w) => (float[2] y, float[K, L, 2] all) <float[2] bias = {0.5, -0.25}> {
            scaled = Mul (x, w)
            y, all = Loop <body = outer (int64 i, bool going, float[2] a) => (bool on, float[2] b, float[L, 2] rows) {
                on = Identity (going)
                shifted = Add (a, scaled)
                b, rows = Loop <body = inner (int64 j, bool go, float[2] p) => (bool more, float[2] q, float[2] row) {
                    more = Identity (go)
                    sum = Add (p, scaled)
                    biased = Add (sum, bias)
                    row = Sub (biased, shifted)
                    product = Mul (row, w)
                    q = Add (product, x)
                }> (M, going, a)
            }> (M, "", x)
        }""",
        M=np.int64(3),
        x=VECTOR,
        w=np.array([0.5, 0.75], np.float32),
    )


def test_a_trip_count_and_a_counter_reach_an_inner_loop():
    check(
        """g (int64 M) => (int64 total) <int64 zero = {0}> {
            total = Loop <body = outer (int64 i, bool going, int64 a) => (bool on, int64 b) {
                on = Identity (going)
                b = Loop <body = inner (int64 j, bool go, int64 p) => (bool more, int64 q) {
                    more = Less (j, i)
                    product = Mul (i, j)
                    q = Add (p, product)
                }> (i, "", a)
            }> (M, "", zero)
        }""",
        M=np.int64(5),
    )


def test_an_initializer_of_a_body_hides_an_outer_value():
    check(
        """g (int64 M, float[2] x, float[2] w) => (float[2] y, float[2] plain) {
            plain = Mul (x, w)
            y = Loop <body = outer (int64 i, bool going, float[2] a) => (bool on, float[2] b)
                <float[2] w = {2.0, 3.0}> {
                on = Identity (going)
                b = Loop <body = inner (int64 j, bool go, float[2] p) => (bool more, float[2] q) {
                    more = Identity (go)
                    q = Mul (p, w)
                }> (M, "", a)
            }> (M, "", x)
        }""",
        M=np.int64(2),
        x=VECTOR,
        w=np.array([10, 10], np.float32),
        reference=[VECTOR * np.array([16, 81], np.float32), VECTOR * 10],
    )


def test_a_body_may_hand_out_captures_and_initializers():
    check(
        """g (int64 M, float[2] x) => (float[2] y, float[K, 2] seen, float[K] fixed) {
            y, seen, fixed = Loop <
                body = b (int64 i, bool going, float[2] a) => (bool on, float[2] b, float[2] x, float one)
                <float one = {1.0}> {
                on = Identity (going)
                b = Add (a, one)
            }> (M, "", x)
        }""",
        M=np.int64(3),
        x=VECTOR,
        reference=[VECTOR + 3, np.stack([VECTOR] * 3), np.ones(3, np.float32)],
    )


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("opset", [11, 13, 16, 19, 21, 23])
def test_if(chosen, opset):
    check(
        """g (bool c, float[2] x) => (float[N] y, int64 n) {
            doubled = Add (x, x)
            y, n = If <
                then_branch = t () => (float[A] p, int64 a) <int64 a = {1}> { p = Concat <axis: int = 0> (x, doubled) },
                else_branch = e () => (float[B] q, int64 b) <int64 b = {2}> { q = Neg (doubled) }
            > (c)
        }""",
        opset,
        c=chosen,
        x=VECTOR,
    )


@pytest.mark.parametrize("values", [(1.0, 2.0), (-5.0, 2.0)])
def test_if_by_data_inside_a_loop(values):
    check(
        """g (int64 M, float[2] x) => (float[2] y) <float zero = {0.0}> {
            y = Loop <body = b (int64 i, bool going, float[2] a) => (bool on, float[2] b) {
                on = Identity (going)
                sum = ReduceSum <keepdims: int = 0> (a)
                positive = Greater (sum, zero)
                b = If <
                    then_branch = t () => (float[2] p) { p = Sub (a, x) },
                    else_branch = e () => (float[2] q) { q = Add (x, sum) }
                > (positive)
            }> (M, "", x)
        }""",
        M=np.int64(4),
        x=np.array(values, np.float32),
    )


LONG = """g (int64 M, float[2] x) => (float[2] y, float[K] sums) <float rate = {0.999}, float one = {1.0}> {
    y, sums = Loop <body = b (int64 i, bool going, float[2] a) => (bool on, float[2] b, float sum) {
        on = Identity (going)
        decayed = Mul (a, rate)
        b = Add (decayed, one)
        sum = ReduceSum <keepdims: int = 0> (b)
    }> (M, "", x)
}"""


def test_thousands_of_trips():
    check(LONG, M=np.int64(5000), x=VECTOR)


def test_the_graph_of_a_long_loop_stays_small(monkeypatch):
    evaluated = []
    monkeypatch.setattr(control_flow.mx, "async_eval", lambda arrays: evaluated.append(len(arrays)))
    run_model(model_of(LONG), {"M": np.int64(100), "x": VECTOR})
    every = control_flow.TRIPS_BETWEEN_EVALUATIONS
    assert evaluated == [1 + every] * (100 // every)


def test_counting_reads_nothing_from_the_device(monkeypatch):
    reads = []
    monkeypatch.setattr(
        control_flow, "to_host", lambda value: reads.append(isinstance(value, mx.array)) or np.asarray(value)
    )
    model = model_of(
        """g (int64 M, float[2] x) => (float[2] y) <int64 limit = {7}> {
            y = Loop <body = b (int64 i, bool going, float[2] a) => (bool on, float[2] b) {
                on = Less (i, limit)
                b = Add (a, a)
            }> (M, "", x)
        }"""
    )
    (output,) = run_model(model, {"M": np.int64(50), "x": VECTOR})
    np.testing.assert_array_equal(output, VECTOR * 2**8)
    assert reads == [False] * 8


def test_a_loop_is_declined_for_a_node_in_its_body():
    model = model_of(
        """g (int64 M, float[2] x) => (float[2] y) {
            y = Loop <body = b (int64 i, bool going, float[2] a) => (bool on, float[2] b) {
                on = Identity (going)
                b = some.domain.Unheard (a)
            }> (M, "", x)
        }""".replace("some.domain.Unheard", "Unheard")
    )
    ((node, reasons),) = decisions_for(model).declined
    assert node.op_type == "Loop" and "in body, node" in str(reasons[0]) and "Unheard" in str(reasons[0])


SCANNED = """
    body (float[2] state, float[2] a, float[2] b) => (float[2] next, float[2] low, float[2] sum) {
        sum = Add (a, b)
        next = Sub (sum, state)
        low = Min (next, a)
    }
"""


@pytest.mark.parametrize("opset", [9, 11, 16, 19, 21, 23])
@pytest.mark.parametrize(
    "directions", ["", "scan_input_directions: ints = [1, 0], scan_output_directions: ints = [0, 1],"]
)
@pytest.mark.parametrize("length", [1, 4])
def test_scan(opset, directions, length):
    values = np.arange(2 * length * 2, dtype=np.float32).reshape(2, length, 2)
    check(
        f"""g (float[2] s, float[L, 2] p, float[L, 2] q) => (float[2] y, float[L, 2] lows, float[L, 2] sums) {{
            y, lows, sums = Scan <num_scan_inputs: int = 2, {directions} body = {SCANNED}> (s, p, q) }}""",
        opset,
        s=VECTOR,
        p=values[0],
        q=values[1] ** 2,
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scan_of_nothing(axis):
    outputs = np.moveaxis(np.zeros((0, 2, 3), np.float32), 0, axis)
    check(
        f"""g (float[2, 3] s, float[L, 2, 3] p) => (float[2, 3] y, float[A, B, C] doubles) {{
            y, doubles = Scan <num_scan_inputs: int = 1, scan_output_axes: ints = [{axis}],
                body = b (float[2, 3] state, float[2, 3] a) => (float[2, 3] next, float[2, 3] double) {{
                next = Add (state, a)
                double = Add (a, a)
            }}> (s, p)
        }}""",
        reference=[np.ones((2, 3), np.float32), outputs],
        s=np.ones((2, 3), np.float32),
        p=np.zeros((0, 2, 3), np.float32),
    )


def test_a_member_of_a_batch_may_be_empty():
    sequence = np.arange(8, dtype=np.float32).reshape(2, 4)
    check(
        """g (int64[2] lens, float[2] s, float[2, 4] p) => (float[2] y, float[2, 4] sums) {
            y, sums = Scan <num_scan_inputs: int = 1, directions: ints = [1],
                body = b (float state, float a) => (float next, float sum) {
                next = Add (state, a)
                sum = Identity (next)
            }> (lens, s, p)
        }""",
        8,
        reference=[np.array([1, 16], np.float32), np.array([[0, 0, 0, 0], [7, 12, 16, 0]], np.float32)],
        lens=np.array([0, 3]),
        s=np.ones(2, np.float32),
        p=sequence,
    )


@given(
    st.lists(st.integers(0, 1), min_size=4, max_size=4),
    st.lists(st.integers(-3, 2), min_size=2, max_size=2),
    st.lists(st.integers(-3, 2), min_size=2, max_size=2),
    st.integers(1, 3),
)
def test_scan_axes_and_directions(directions, input_axes, output_axes, length):
    sequences = [
        np.moveaxis(np.random.default_rng(seed).normal(size=(length, 2, 3)).astype(np.float32), 0, axis)
        for seed, axis in enumerate(input_axes)
    ]
    shapes = [", ".join("L" if place == axis % 3 else "A" for place in range(3)) for axis in input_axes]
    check(
        f"""g (float[2, 3] s, float[{shapes[0]}] p, float[{shapes[1]}] q)
            => (float[2, 3] y, float[A, B, C] sums, float[D, E, F] products) {{
            y, sums, products = Scan <
                num_scan_inputs: int = 2,
                scan_input_axes: ints = {input_axes}, scan_input_directions: ints = {directions[:2]},
                scan_output_axes: ints = {output_axes}, scan_output_directions: ints = {directions[2:]},
                body = b (float[2, 3] state, float[2, 3] a, float[2, 3] b)
                    => (float[2, 3] next, float[2, 3] sum, float[2, 3] product) {{
                    sum = Add (a, b)
                    next = Sub (sum, state)
                    product = Mul (next, a)
                }}
            > (s, p, q)
        }}""",
        s=np.ones((2, 3), np.float32),
        p=sequences[0],
        q=sequences[1],
    )


def test_scan_without_states_and_with_captures():
    check(
        """g (float[L, 2] p, float[2] w) => (float[L, 2] sums) {
            shifted = Neg (w)
            sums = Scan <num_scan_inputs: int = 1, body = b (float[2] a) => (float[2] sum) {
                inner = Scan <num_scan_inputs: int = 1, body = c (float e) => (float r) { r = Mul (e, e) }> (a)
                sum = Add (inner, shifted)
            }> (p)
        }""",
        p=np.arange(6, dtype=np.float32).reshape(3, 2),
        w=VECTOR,
    )


@pytest.mark.parametrize("lengths", [None, [3, 1], [4, 4]])
@pytest.mark.parametrize("directions", ["", "directions: ints = [1, 0],", "directions: ints = [1, 1],"])
def test_scan_of_a_batch(lengths, directions):
    values = np.arange(2 * 2 * 4 * 2, dtype=np.float32).reshape(2, 2, 4, 2)
    taken, inputs = ('""', {}) if lengths is None else ("lens", {"lens": np.array(lengths, np.int64)})
    formal = "" if lengths is None else "int64[2] lens, "
    check(
        f"""g ({formal}float[2, 2] s, float[2, 4, 2] p, float[2, 4, 2] q)
            => (float[2, 2] y, float[2, 4, 2] lows, float[2, 4, 2] sums) {{
            y, lows, sums = Scan <num_scan_inputs: int = 2, {directions} body = {SCANNED}> ({taken}, s, p, q) }}""",
        8,
        s=np.stack([VECTOR, -VECTOR]),
        p=values[0],
        q=values[1] ** 2,
        **inputs,
    )


@pytest.mark.parametrize(("batch", "length"), [(0, 3), (2, 0), (0, 0)])
def test_scan_of_an_empty_batch(batch, length):
    empty = np.zeros((batch, length, 2), np.float32)
    states = np.ones((batch, 2), np.float32)
    check(
        f"""g (float[N, 2] s, float[N, L, 2] p, float[N, L, 2] q)
            => (float[N, 2] y, float[N, L, 2] lows, float[N, L, 2] sums) {{
            y, lows, sums = Scan <num_scan_inputs: int = 2, body = {SCANNED}> ("", s, p, q) }}""",
        8,
        reference=[states, empty, empty],
        s=states,
        p=empty,
        q=empty,
    )
