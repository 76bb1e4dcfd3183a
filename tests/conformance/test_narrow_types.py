"""Operators on the element types that MLX lacks: 8-bit floats and types below a byte, against ml_dtypes and ONNX.

What ml_dtypes does not settle (float8e8m0's rounding) is compared with ONNX Runtime's CPU provider.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from opgraft import ort_values
from opgraft.graph.element_types import BITS, FLOAT8, NARROW, ONNX_OF_NAME, PACKED
from opgraft.graph.onnx_source import storage_form
from opgraft.host import EP_NAME
from opgraft.sessions import options_with_provider
from opgraft.testing import check_declined, check_model, check_node
from opgraft_ops.cast import cast_between

FLOATS = ("float16", "bfloat16", "float32", "float64")
ALL = tuple(sorted(NARROW))
POWERS = "float8e8m0"
SIGNED_FLOATS = (*sorted(FLOAT8 - {POWERS}), "float4e2m1")
INTEGERS = tuple(sorted(PACKED - {"float4e2m1"}))
HALVES = np.arange(2**16).astype(np.uint16).view(np.float16)
OPSET = 25


def numpy_type(dtype: str) -> np.dtype[Any]:
    return helper.tensor_dtype_to_np_dtype(ONNX_OF_NAME[dtype])


def codes(dtype: str) -> np.ndarray:
    """Every value of a type."""
    return np.arange(2 ** BITS[dtype], dtype=np.uint8).view(numpy_type(dtype))


def some(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Finite values of a type, in an array of any shape."""
    every = codes(dtype)
    finite = every[np.isfinite(every.astype(np.float32))]
    return np.random.default_rng([seed, *shape]).choice(finite, shape)


@np.errstate(all="ignore")
def rounded(x: np.ndarray, dtype: str, saturate: int = 1) -> np.ndarray:
    """x in a type of signed floats, by ml_dtypes and ONNX's rules of saturation; float4e2m1 has a zero for NaN."""
    target = numpy_type(dtype)
    if dtype == "float4e2m1":
        return np.where(np.isnan(x), np.copysign(0, x), x).astype(target)
    return numpy_helper.saturate_cast(x, target) if saturate else x.astype(target)


@pytest.mark.parametrize("target", [*FLOATS, "int32", "int8", "uint16", "bool"])
@pytest.mark.parametrize("source", ALL)
def test_every_code_has_its_value(source, target):
    x = codes(source)
    values = x.astype(np.float32)
    if target not in (*FLOATS, "bool"):
        x = x[np.isfinite(values) & (np.abs(values) < 128) & ((values > -1) | (target != "uint16"))]
        values = x.astype(np.float32)
    with np.errstate(over="ignore"):
        expected = values.astype(numpy_type(target))
    check_node("Cast", x, opset=OPSET, to=ONNX_OF_NAME[target], reference=[expected], tolerance=0)


def test_signs_of_zeros_and_of_nan_are_kept():
    for source in SIGNED_FLOATS:
        (y,) = check_node("Cast", codes(source), opset=OPSET, to=TensorProto.FLOAT, reference="onnx", tolerance=0)
        np.testing.assert_array_equal(np.signbit(y), np.signbit(codes(source).astype(np.float32)))


@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("target", SIGNED_FLOATS)
def test_every_float16_is_rounded(target, saturate):
    expected = rounded(HALVES, target, saturate)
    number = ONNX_OF_NAME[target]
    check_node("Cast", HALVES, opset=OPSET, to=number, saturate=saturate, reference=[expected])
    check_node("CastLike", HALVES, expected[:1], opset=OPSET, saturate=saturate, reference=[expected])


@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("target", SIGNED_FLOATS)
@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_any_float32_is_rounded(target, saturate, values):
    x = np.array(values, np.float32)
    expected = rounded(x, target, saturate)
    check_node("Cast", x, to=ONNX_OF_NAME[target], saturate=saturate, opset=OPSET, reference=[expected])


@pytest.mark.parametrize("target", SIGNED_FLOATS)
def test_ties_go_to_even(target):
    values = np.unique(codes(target).astype(np.float32))
    values = values[np.isfinite(values)].astype(np.float64)
    between = (values[1:] + values[:-1]) / 2
    step = np.diff(values) / 2**12
    for x in (between, between - step, between + step):
        x = x.astype(np.float32)
        check_node("Cast", x, to=ONNX_OF_NAME[target], opset=OPSET, reference=[rounded(x, target)])


@pytest.mark.parametrize("source", ["float64", "bfloat16", "int8", "uint8", "int32", "uint64", "bool"])
@pytest.mark.parametrize("target", SIGNED_FLOATS)
def test_other_types_are_rounded(source, target):
    values = [0, 1, 2, 3, 5, 7, 9, 17, 19, 100, 127] + ([] if "8" in source else [447, 449, 1000, 57345])
    signs = [1] if source[0] in "ub" else [1, -1]
    x = np.array([sign * value for value in values for sign in signs]).astype(numpy_type(source))
    if source in FLOATS:
        x = np.concatenate([x, np.array([0.3, -1.7, np.inf, -np.inf, np.nan, 1e-5], numpy_type(source))])
    check_node("Cast", x, to=ONNX_OF_NAME[target], opset=OPSET, reference=[rounded(x.astype(np.float32), target)])


@pytest.mark.parametrize("round_mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [1, 0])
def test_powers_of_two(saturate, round_mode):
    edges = np.ldexp(np.array([0.9, 1, 1.1, 1.5, 1.6, 1.99])[:, None], [-149, -128, -127, -126, 0, 126, 127]).ravel()
    special = [0, np.inf, np.nan, np.finfo(np.float32).max]
    attributes = {"opset": OPSET, "to": TensorProto.FLOAT8E8M0, "saturate": saturate, "round_mode": round_mode}
    check_node("Cast", np.array([*edges, *special]).astype(np.float32), **attributes)
    check_node("Cast", np.abs(HALVES), **attributes)


def test_powers_of_two_by_onnx_s_table():
    x = np.array([0, np.nan, np.inf, 3e38, 2**-128, 2**-127, 1, 5], np.float32)
    for saturate, mode, expected in (
        (1, "up", [0, 255, 254, 254, 0, 0, 127, 130]),
        (0, "nearest", [255, 255, 255, 255, 255, 0, 127, 129]),
    ):
        given = {"opset": OPSET, "to": TensorProto.FLOAT8E8M0, "saturate": saturate, "round_mode": mode}
        check_node("Cast", x, **given, reference=[np.array(expected, np.uint8)])


def test_a_round_mode_that_there_is_not():
    given = {"opset": OPSET, "to": TensorProto.FLOAT8E8M0, "round_mode": "odd"}
    check_declined("Cast", np.ones(2, np.float32), **given, because="round_mode 'odd' is not one of")


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", INTEGERS)
def test_floats_are_rounded_to_integers_that_keep_their_lowest_bits(source, target):
    x = np.array([-9, -8.5, -2.5, -1.5, -0.75, -0.5, 0, 0.25, 0.5, 1.5, 2.5, 7, 8, 15.6, 100]).astype(
        numpy_type(source)
    )
    expected = np.rint(x.astype(np.float64)).astype(np.int32).astype(numpy_type(target))
    check_node("Cast", x, to=ONNX_OF_NAME[target], opset=OPSET, reference=[expected])


@pytest.mark.parametrize("source", ["int8", "uint8", "int16", "int32", "int64", "uint64", "bool"])
@pytest.mark.parametrize("target", INTEGERS)
def test_integers_keep_their_lowest_bits(source, target):
    x = np.array([0, 1, 2, 3, 7, 8, 15, 16, 100, 127, *([] if source[0] in "ub" else [-1, -8, -9])]).astype(source)
    check_node("Cast", x, to=ONNX_OF_NAME[target], opset=OPSET)


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(ALL, 2)))
def test_from_one_to_another(source, target):
    x = some(source, (40,))
    values = x.astype(np.float32)
    if target in INTEGERS:
        expected = np.rint(np.clip(values, -1e9, 1e9)).astype(np.int64).astype(numpy_type(target))
        x, expected = x[np.abs(values) < 1e9], expected[np.abs(values) < 1e9]
    elif target == POWERS:
        x, values = x[values > 0], values[values > 0]
        expected = numpy_helper.to_float8e8m0(values)
    else:
        expected = rounded(values, target)
    check_node("Cast", x, to=ONNX_OF_NAME[target], opset=OPSET, reference=[expected])


@pytest.mark.parametrize("target", ALL)
@np.errstate(all="ignore")
def test_on_the_host_it_is_the_same(target):
    x = np.array([0, 0.3, 1, 1.5, 2.5, 6.1, 300, 1e9, np.inf, np.nan], np.float32)
    x = x[:6] if target in INTEGERS else x
    for saturate in (1, 0):
        held = cast_between(x, "float32", target, saturate)
        check_node("Cast", x, to=ONNX_OF_NAME[target], saturate=saturate, opset=OPSET, reference=[held])
        back = cast_between(held, target, "float32")
        check_node("Cast", held.view(np.uint8).view(numpy_type(target)), opset=OPSET, to=1, reference=[back])


@pytest.mark.parametrize("target", ALL)
@pytest.mark.parametrize("shape", [(), (0, 2), (1, 3, 1)])
def test_shapes(target, shape):
    values, held = np.ones(shape, np.float32), np.ones(shape).astype(numpy_type(target))
    check_node("Cast", values, to=ONNX_OF_NAME[target], opset=OPSET, reference=[held])
    check_node("Cast", held, opset=OPSET, to=TensorProto.FLOAT, reference=[values])


@pytest.mark.parametrize(("opset", "types"), [(19, SIGNED_FLOATS[:4]), (21, (*SIGNED_FLOATS[:4], "int4", "uint4"))])
def test_versions(opset, types):
    x = np.array([[1.75, -2.25], [0, 3]], np.float32)
    for target in types:
        expected = np.rint(x).astype(np.int32).astype(numpy_type(target)) if "int" in target else rounded(x, target)
        check_node("Cast", x, to=ONNX_OF_NAME[target], opset=opset, reference=[expected])
        check_node("CastLike", x, expected, opset=opset, reference=[expected])


def along(scale: np.ndarray, axis: int, block_size: int, shape: tuple[int, ...]) -> np.ndarray:
    if block_size:
        return np.repeat(scale, block_size, axis).take(range(shape[axis]), axis)
    return scale.reshape([-1 if place == axis else 1 for place in range(len(shape))]) if scale.ndim else scale


GRAINS = pytest.mark.parametrize(
    ("axis", "block_size", "shape"),
    [(1, 0, ()), (0, 0, (4,)), (1, 0, (6,)), (-1, 3, (4, 2)), (0, 2, (2, 6)), (1, 4, (4, 2))],
)


@GRAINS
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("dtype", (*SIGNED_FLOATS, *INTEGERS))
def test_quantizing(dtype, zero, axis, block_size, shape):
    """The reference's zero points for floats are all zero: it reads no others."""
    x = np.random.default_rng(1).normal(0, 8, (4, 6)).astype(np.float32)
    scale = np.random.default_rng(2).uniform(0.3, 2, shape).astype(np.float32)
    given = {"opset": OPSET, "axis": axis, "block_size": block_size}
    if zero:
        zero_point = (np.zeros(shape) if "float" in dtype else np.resize([0, 1], shape)).astype(numpy_type(dtype))
        check_node("QuantizeLinear", x, scale, zero_point, **given, reference="onnx")
    else:
        check_node("QuantizeLinear", x, scale, **given, output_dtype=ONNX_OF_NAME[dtype], reference="onnx")


@GRAINS
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("dtype", (*SIGNED_FLOATS, *INTEGERS))
def test_dequantizing(dtype, zero, axis, block_size, shape):
    x = some(dtype, (4, 6))
    scale = np.random.default_rng(2).uniform(0.3, 2, shape).astype(np.float32)
    zero_point = (np.zeros(shape) if "float" in dtype else np.resize([0, 1], shape)).astype(numpy_type(dtype))
    given = {"opset": OPSET, "axis": axis, "block_size": block_size, "reference": "onnx"}
    for constant in ((), (0, 1)):
        check_node("DequantizeLinear", x, scale, *([zero_point] if zero else []), **given, constant=constant)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scales_and_results_of_other_types(dtype):
    kind = numpy_type(dtype)
    x = np.random.default_rng(1).normal(0, 8, (4, 6)).astype(kind)
    scale = np.array(0.5, kind)
    for target in ("float8e4m3fn", "float4e2m1", "int4", "uint2"):
        number = ONNX_OF_NAME[target]
        check_node("QuantizeLinear", x, scale, opset=OPSET, output_dtype=number, reference="onnx")
        given = {"opset": OPSET, "output_dtype": ONNX_OF_NAME[dtype], "reference": "onnx", "tolerance": 0}
        check_node("DequantizeLinear", some(target, (4, 6)), np.array(0.5, np.float32), **given)
        check_node("DequantizeLinear", some(target, (4, 6)), scale, opset=OPSET, reference="onnx", tolerance=0)


def test_quantizing_in_a_given_precision():
    x = np.random.default_rng(1).normal(0, 30, 3000).astype(np.float32)
    scale = np.array(0.37, np.float32)
    coarse, fine = (
        check_node("QuantizeLinear", x, scale, opset=OPSET, output_dtype=17, precision=each, reference="onnx")[0]
        for each in (TensorProto.FLOAT16, TensorProto.FLOAT)
    )
    assert (coarse != fine).any()


@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("dtype", SIGNED_FLOATS[:4])
def test_quantizing_what_is_too_large(dtype, saturate):
    x = np.array([np.nan, np.inf, -np.inf, 1e6, -1e6, 1e-9, -1e-9, -0.0, 3], np.float32)
    given = {"opset": OPSET, "saturate": saturate}
    check_node("QuantizeLinear", x, np.array(2, np.float32), np.zeros((), numpy_type(dtype)), **given, reference="onnx")


def test_zero_points_of_floats():
    scale, x = np.array(2, np.float32), np.array([1, 5, -3, 700], np.float32)
    for dtype in ("float8e4m3fn", "float4e2m1"):
        one = np.array(1).astype(numpy_type(dtype))
        quantized = rounded(x / 2 + 1, dtype)
        check_node("QuantizeLinear", x, scale, one, opset=OPSET, reference=[quantized])
        expected = (quantized.astype(np.float32) - 1) * 2
        check_node("DequantizeLinear", quantized, scale, one, opset=OPSET, reference=[expected])


def test_scales_that_are_powers_of_two():
    x = np.random.default_rng(1).normal(0, 8, (2, 64)).astype(np.float32)
    scale = np.ldexp(1.0, np.array([[0, -1], [2, -3]])).astype(numpy_type(POWERS))
    wide = along(scale.astype(np.float32), 1, 32, x.shape)
    quantized = rounded(x / wide, "float4e2m1")
    blocks = {"opset": OPSET, "axis": 1, "block_size": 32}
    check_node("QuantizeLinear", x, scale, **blocks, output_dtype=TensorProto.FLOAT4E2M1, reference=[quantized])
    expected = quantized.astype(np.float32) * wide
    check_node("DequantizeLinear", quantized, scale, **blocks, output_dtype=TensorProto.FLOAT, reference=[expected])


@pytest.mark.parametrize("dtype", ["float8e4m3fn", "float8e5m2", "int4", "uint4", "int2", "uint2"])
def test_quantizing_as_onnx_runtime_does(dtype):
    x = np.random.default_rng(3).normal(0, 8, (5, 7)).astype(np.float32)
    scale, zero_point = np.array(0.75, np.float32), np.zeros((), numpy_type(dtype))
    opset = OPSET if "2" in dtype else 21
    check_node("QuantizeLinear", x, scale, zero_point, opset=opset)
    check_node("DequantizeLinear", some(dtype, (5, 7)), scale, zero_point, opset=opset)


MOVES: dict[str, tuple[list[Any], dict[str, Any], Any]] = {
    "Identity": ([], {}, lambda x: x),
    "Reshape": ([np.array([4, -1])], {}, lambda x: x.reshape(4, 6)),
    "Flatten": ([], {"axis": 2}, lambda x: x.reshape(6, 4)),
    "Squeeze": ([], {}, lambda x: x),
    "Unsqueeze": ([np.array([0, -1])], {}, lambda x: x[None, ..., None]),
    "Transpose": ([], {"perm": [2, 0, 1]}, lambda x: x.transpose(2, 0, 1)),
    "Shape": ([], {}, lambda x: np.array(x.shape)),
    "Size": ([], {}, lambda x: np.array(x.size)),
}


@pytest.mark.parametrize("operator", MOVES)
@pytest.mark.parametrize("dtype", ALL)
def test_operators_that_move_elements(dtype, operator):
    inputs, attributes, moved = MOVES[operator]
    x = some(dtype, (2, 3, 4))
    check_node(operator, x, *inputs, opset=OPSET, **attributes, reference=[moved(x)])


@pytest.mark.parametrize("dtype", sorted(NARROW - {POWERS}))
def test_padding(dtype):
    x, value = some(dtype, (2, 3)), some(dtype, ())
    pads = np.array([1, 0, 0, 2])
    for mode, constant in (("constant", [value]), ("constant", []), ("reflect", [])):
        fill = {"constant_values": constant[0] if constant else 0} if mode == "constant" else {}
        expected = np.pad(x.astype(np.float32), [(1, 0), (0, 2)], mode, **fill).astype(x.dtype)
        check_node("Pad", x, pads, *constant, opset=OPSET, mode=mode, reference=[expected])


def test_padding_with_a_zero_that_there_is_not():
    x = some(POWERS, (2, 3))
    check_declined("Pad", x, np.array([1, 0, 0, 2]), opset=OPSET, because="element type float8e8m0 of input data")


@pytest.mark.parametrize("dtype", ALL)
def test_equal_elements(dtype):
    value = numpy_helper.from_array(some(dtype, (1,)), "value")
    expected = np.full((2, 3), numpy_helper.to_array(value))
    check_node("ConstantOfShape", np.array([2, 3]), opset=OPSET, value=value, reference=[expected])


@pytest.mark.parametrize("dtype", ALL)
def test_equal_elements_of_a_shape_are_numbers_to_what_reads_them(dtype):
    """They are made and converted on the host, as arithmetic on shapes is."""
    value = numpy_helper.from_array(some(dtype, (1,)), "value")
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["full"], value=value),
        helper.make_node("Cast", ["full"], ["y"], to=TensorProto.FLOAT),
    ]
    model = model_of(nodes, {"x": ("float32", ["n"])}, {"y": ("float32", ["n"])})
    expected = np.full(3, numpy_helper.to_array(value)).astype(np.float32)
    check_model(model, {"x": np.zeros(3, np.float32)}, reference=[expected])


@pytest.mark.parametrize("dtype", ["float8e4m3fn", "float8e8m0", "int4", "float4e2m1"])
def test_writing_into_a_cache(dtype):
    cache, update = some(dtype, (2, 5, 3)), some(dtype, (2, 2, 3), 1)
    expected = cache.copy()
    for batch, first in enumerate((1, 3)):
        expected[batch, first : first + 2] = update[batch]
    check_node("TensorScatter", cache, update, np.array([1, 3]), opset=OPSET, axis=1, reference=[expected])


@pytest.mark.parametrize(
    ("source", "target"),
    [(a, b) for a, b in itertools.permutations((*ALL, "uint8", "int8"), 2) if BITS[a] == BITS[b]],
)
def test_bits_read_as_another_type(source, target):
    x = codes(source) if source in NARROW else np.arange(256).astype(np.uint8).view(source)
    for shape in ((-1,), (2, -1)):
        given = x.reshape(shape)
        check_node("BitCast", given, opset=26, to=ONNX_OF_NAME[target], reference=[given.view(numpy_type(target))])


def test_bits_of_another_width():
    check_declined("BitCast", some("int4", (2,)), opset=26, to=TensorProto.INT8, because="differ in width")


def model_of(nodes, inputs, outputs, initializers=(), opset=OPSET) -> onnx.ModelProto:
    """A model; inputs and outputs are (element type, shape) by name."""

    def infos(values):
        return [
            helper.make_tensor_value_info(name, ONNX_OF_NAME[dtype], shape) for name, (dtype, shape) in values.items()
        ]

    graph = helper.make_graph(nodes, "narrow", infos(inputs), infos(outputs), list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)


def body(nodes, inputs, outputs, initializers=()) -> onnx.GraphProto:
    return model_of(nodes, inputs, outputs, initializers).graph


def branches(dtype: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[np.ndarray]]:
    """z = x or, carried by the other branch, a constant."""
    x, other = some(dtype, (3,)), some(dtype, (3,), 1)
    same = body([helper.make_node("Identity", ["x"], ["a"])], {}, {"a": (dtype, [3])})
    constant = helper.make_node("Constant", [], ["b"], value=numpy_helper.from_array(other, "b"))
    model = model_of(
        [helper.make_node("If", ["c"], ["z"], then_branch=same, else_branch=body([constant], {}, {"b": (dtype, [3])}))],
        {"c": ("bool", []), "x": (dtype, [3])},
        {"z": (dtype, [3])},
    )
    return model, {"c": np.array(False), "x": x}, [other]


def loop(dtype: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[np.ndarray]]:
    """A state that turns round at each trip, and what it was."""
    x = some(dtype, (2, 2))
    nodes = [helper.make_node("Transpose", ["s"], ["t"]), helper.make_node("Identity", ["s"], ["u"])]
    nodes.append(helper.make_node("Identity", ["go"], ["on"]))
    formal = {"trip": ("int64", []), "go": ("bool", []), "s": (dtype, [2, 2])}
    turning = body(nodes, formal, {"on": ("bool", []), "t": (dtype, [2, 2]), "u": (dtype, [2, 2])})
    model = model_of(
        [helper.make_node("Loop", ["m", "", "x"], ["last", "all"], body=turning)],
        {"m": ("int64", []), "x": (dtype, [2, 2])},
        {"last": (dtype, [2, 2]), "all": (dtype, ["n", 2, 2])},
    )
    return model, {"m": np.array(3), "x": x}, [x.T, np.stack([x, x.T, x])]


def no_trip(dtype: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[np.ndarray]]:
    model, inputs, _ = loop(dtype)
    return model, {**inputs, "m": np.array(0)}, [inputs["x"], np.zeros((0, 2, 2), inputs["x"].dtype)]


def scan(dtype: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[np.ndarray]]:
    """The rows of x, each with the one before it."""
    x, first = some(dtype, (3, 2)), some(dtype, (2,), 1)
    nodes = [helper.make_node("Identity", [name], [to]) for name, to in (("s", "before"), ("row", "next"))]
    formal = {"s": (dtype, [2]), "row": (dtype, [2])}
    step = body(nodes, formal, {"next": (dtype, [2]), "before": (dtype, [2])})
    model = model_of(
        [helper.make_node("Scan", ["first", "x"], ["last", "all"], body=step, num_scan_inputs=1)],
        {"first": (dtype, [2]), "x": (dtype, [3, 2])},
        {"last": (dtype, [2]), "all": (dtype, [3, 2])},
    )
    return model, {"first": first, "x": x}, [x[-1], np.concatenate([first[None], x[:-1]])]


@pytest.mark.parametrize("make", [branches, loop, no_trip, scan])
@pytest.mark.parametrize("dtype", ALL)
def test_control_flow(dtype, make):
    model, inputs, expected = make(dtype)
    check_model(model, inputs, reference=expected)
    for output, wanted in zip(run_in_session(model, inputs), expected, strict=True):
        np.testing.assert_array_equal(output, storage_form(wanted, dtype))


def run_in_session(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a session, in storage form; every node must be on the execution provider."""
    options = options_with_provider({"device": "cpu"})
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    assert {each.ep_name for each in session.get_provider_graph_assignment_info()} == {EP_NAME}
    return ort_values.run(session, inputs)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (4,), (5,), (3, 3), (2, 0, 3), (1, 7)])
@pytest.mark.parametrize("dtype", ALL)
def test_a_session_reads_and_writes_them(dtype, shape):
    """Inputs, initializers, outputs, and values between nodes."""
    x, w = some(dtype, shape), some(dtype, shape, 1)
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Cast", ["w"], ["values"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["values"], ["back"], to=ONNX_OF_NAME[dtype]),
        helper.make_node("Transpose", ["x"], ["turned"]),
    ]
    outputs = {name: (dtype, None) for name in ("same", "back", "turned")}
    initializers = [numpy_helper.from_array(w, "w")]
    model = model_of(nodes, {"x": (dtype, shape)}, {**outputs, "values": ("float32", shape)}, initializers)
    expected = [*(storage_form(each, dtype) for each in (x, w, x.T)), w.astype(np.float32)]
    for output, wanted in zip(run_in_session(model, {"x": x}), expected, strict=True):
        assert output.dtype == wanted.dtype
        np.testing.assert_array_equal(output, wanted)


def test_weights_of_four_bits():
    """A product with block-quantized int4 weights, as exporters write it."""
    weights, scale = some("int4", (32, 5)), np.random.default_rng(0).random((4, 5)).astype(np.float32)
    x = np.random.default_rng(1).random((3, 32)).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=8),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    carried = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(scale, "s")]
    model = model_of(nodes, {"x": ("float32", ["n", 32])}, {"y": ("float32", ["n", 5])}, carried, opset=21)
    expected = x @ (weights.astype(np.float32) * np.repeat(scale, 8, axis=0))
    (found,) = run_in_session(model, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    check_model(model, {"x": x}, reference=[expected])
