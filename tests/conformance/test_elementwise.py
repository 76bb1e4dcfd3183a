"""Arithmetic and other element-by-element operators, against NumPy, exact integer arithmetic and ONNX Runtime."""

from __future__ import annotations

import math

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kit import check_refused, translated
from onnx import TensorProto, helper

from opgraft.errors import TranslationError
from opgraft.ops import INTEGERS, SIGNED, Handler, to_host
from opgraft.testing import check_declined, check_model, check_node, with_output_types
from opgraft_ops import activation, elementwise, logic

FLOAT_TOLERANCE = {"float32": 5e-7, "float64": 5e-15, "float16": 1e-3, "bfloat16": 8e-3}
SPECIAL = [0.0, -0.0, math.nan, math.inf, -math.inf, 0.5, 1.5, 2.5, -0.5, -2.5, 1.0, -1.0, 1e-3, -1e-3, 0.99, -7.3, 9.1]


def numpy_type(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def erf(x):
    return np.vectorize(math.erf, otypes=[np.float64])(x)


UNARY = {
    "Abs": np.abs,
    "Neg": np.negative,
    "Sign": np.sign,
    "Reciprocal": np.reciprocal,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Sqrt": np.sqrt,
    "Exp": np.exp,
    "Log": np.log,
    "Sin": np.sin,
    "Cos": np.cos,
    "Tan": np.tan,
    "Asin": np.arcsin,
    "Acos": np.arccos,
    "Atan": np.arctan,
    "Sinh": np.sinh,
    "Cosh": np.cosh,
    "Tanh": np.tanh,
    "Asinh": np.arcsinh,
    "Acosh": np.arccosh,
    "Atanh": np.arctanh,
    "Erf": erf,
}


@pytest.mark.parametrize("dtype", FLOAT_TOLERANCE)
@pytest.mark.parametrize("operator", UNARY)
def test_unary_floats(operator, dtype):
    values = np.concatenate([SPECIAL, np.random.default_rng(1).normal(size=40) * 3]).astype(numpy_type(dtype))
    with np.errstate(all="ignore"):
        expected = UNARY[operator](values.astype(np.float64)).astype(values.dtype)
    check_node(operator, values, opset=22, reference=[expected], tolerance=FLOAT_TOLERANCE[dtype])


@pytest.mark.parametrize("operator", UNARY)
def test_unary_as_onnx_runtime(operator):
    check_node(operator, np.array(SPECIAL, np.float32), tolerance=1e-6)


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 1, 3)])
@pytest.mark.parametrize("operator", ["Sqrt", "Sin", "Erf", "Tanh"])
def test_unary_shapes(operator, shape):
    values = np.full(shape, 0.25, np.float32)
    check_node(operator, values)
    check_node(operator, values, dynamic=True)


@pytest.mark.parametrize("function", ["Tanh", "Erf", "Sigmoid"])
def test_large_arrays_take_another_way(function):
    """From some size on, the CPU evaluates a quotient of polynomials."""
    values = np.concatenate([np.linspace(-30, 30, 40_000), np.geomspace(1e-30, 1, 1000), SPECIAL]).astype(np.float32)
    exact = {"Tanh": np.tanh, "Erf": erf, "Sigmoid": lambda x: 0.5 + 0.5 * np.tanh(x / 2)}[function]
    expected = exact(values.astype(np.float64)).astype(np.float32)
    (output,) = check_node(function, values, reference=[expected], tolerance=5e-7)
    assert np.nanmin(output) >= (0 if function == "Sigmoid" else -1)
    assert np.nanmax(output) <= 1
    if function != "Sigmoid":
        small = np.abs(values) < 1e-3
        np.testing.assert_allclose(output[small], expected[small], rtol=1e-6)


@pytest.mark.parametrize("operator", ["Abs", "Neg", "Sign"])
@pytest.mark.parametrize("dtype", sorted(INTEGERS))
def test_unary_integers(operator, dtype):
    if operator == "Neg" and dtype not in SIGNED:
        check_declined("Neg", np.ones(2, dtype), because="element type")
        return
    limits = np.iinfo(dtype)
    values = np.array([0, 1, 5, limits.max, limits.min], dtype)
    with np.errstate(over="ignore"):
        expected = UNARY[operator](values)
    check_node(operator, values, reference=[expected])


def wrapped(value: int, dtype: np.dtype) -> int:
    bits = dtype.itemsize * 8
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind == "i" and value >> (bits - 1) else value


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


INTEGER_ARITHMETIC = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": truncated,
    "Mod": lambda a, b: a % b,
    "FMod": lambda a, b: a - truncated(a, b) * b,
    "Max": max,
    "Min": min,
}


@st.composite
def integer_pairs(draw):
    """Two arrays that broadcast against each other, with the limits of their type among their elements."""
    dtype = np.dtype(draw(st.sampled_from(sorted(INTEGERS))))
    limits = np.iinfo(dtype)
    edges = st.sampled_from([limits.min, limits.max, limits.max - 1, 1, 2, *([-1, -2] if limits.min else [])])
    elements = st.one_of(edges, hnp.from_dtype(dtype))
    shapes = draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3)).input_shapes
    return [draw(hnp.arrays(dtype, shape, elements=elements)) for shape in shapes]


@given(st.sampled_from(sorted(INTEGER_ARITHMETIC)), integer_pairs())
def test_integer_arithmetic_is_exact_and_wraps(operator, arrays):
    a, b = arrays
    if operator in ("Div", "Mod", "FMod"):
        b = np.where(b == 0, b.dtype.type(3), b)
    grid = np.broadcast(a, b)
    exact = [wrapped(INTEGER_ARITHMETIC[operator](int(x), int(y)), a.dtype) for x, y in grid]
    expected = np.array(exact, a.dtype).reshape(grid.shape)
    attributes = {"fmod": 1} if operator == "FMod" else {}
    operator = operator.removeprefix("F") if attributes else operator
    check_node(operator, a, b, reference=[expected], **attributes)
    on_host = host_forms()[operator](a, b, **attributes)
    np.testing.assert_array_equal(on_host, expected)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
@pytest.mark.parametrize(("operator", "attributes"), [("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1})])
def test_integer_division_by_zero(operator, attributes, dtype):
    a, b = np.array([5, 7], dtype), np.array([2, 0], dtype)
    check_refused(operator, a, b, match="integer division by zero", **attributes)
    check_refused(operator, a[:0], np.zeros((), dtype), match="integer division by zero", **attributes)
    handler = elementwise.divide_integers if operator == "Div" else elementwise.mod
    with pytest.raises(ZeroDivisionError):
        handler.host_form.function(a, b, **attributes)


def test_legacy_integer_division():
    a, b = np.array([[7, -7], [8, 9]]), np.array([2, 0])
    attributes = {"broadcast": 1, "axis": 0, "opset": 6, "output_types": ["int64"]}
    check_node("Div", a, b + 1, reference=[np.array([[2, -2], [8, 9]])], **attributes)
    with pytest.raises(TranslationError, match="integer division by zero"):
        check_node("Div", a, b, reference=[], **attributes)


@pytest.mark.parametrize("opset", [7, 13, 14])
@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div"])
def test_float_arithmetic(operator, opset):
    a = np.array([[1, -2, math.inf, math.nan], [0, 6e4, -0.0, 5]], np.float32)
    b = np.array([3, 0, math.inf, 7e3], np.float32)
    check_node(operator, a, b, opset=opset)
    check_node(operator, a.astype(np.float64), b.astype(np.float64), opset=opset, tolerance=1e-15)
    check_node(operator, a.astype(np.float16), b.astype(np.float16), opset=opset, tolerance=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("fmod", [0, 1])
def test_float_mod(fmod, dtype):
    a = np.array([7.5, -7.5, 7, -7, math.nan, math.inf, 3, -3, -4, 1e4, 0.1], dtype)
    b = np.array([2, 2, -2, -2, 1, 1, math.inf, -math.inf, 2, 0.3, 0], dtype)
    with np.errstate(invalid="ignore"):
        expected = (np.fmod if fmod else np.remainder)(a, b)
    check_node("Mod", a, b, fmod=fmod, opset=28, reference=[expected], tolerance=1e-6)
    if fmod:
        check_node("Mod", a, b, fmod=1, opset=13, tolerance=1e-6)
        far = np.array([1e4, 6e4, -6e4], dtype)
        check_node("Mod", far, np.array([7, 0.1, 3], dtype), fmod=1, opset=13, tolerance=0)
    else:
        check_declined("Mod", a, b, opset=13, because="fmod=0")


FLOAT_BASES = np.array([2, -2, 0, -0.0, math.inf, -math.inf, math.nan, 1, 10, 0.5], np.float32)


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -1.0, 0.0, math.inf, math.nan])
@pytest.mark.parametrize("constant", [(), (1,)])
@pytest.mark.parametrize("opset", [7, 12, 15])
def test_power_of_floats(exponent, constant, opset):
    check_node("Pow", FLOAT_BASES, np.array(exponent, np.float32), constant=constant, opset=opset)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float64"])
@pytest.mark.parametrize("constant", [(), (1,)])
def test_power_with_an_exponent_of_another_type(dtype, constant):
    exponents = np.array([3, -2, 0, 1, 2, 3, 4, 5, 7, 30], dtype)
    check_node("Pow", FLOAT_BASES, exponents, constant=constant)
    check_node("Pow", FLOAT_BASES, np.array([2], dtype), constant=constant)
    check_node("Pow", FLOAT_BASES, np.array([[2]], dtype), constant=constant)


@pytest.mark.parametrize("constant", [(), (1,)])
def test_power_with_an_exponent_too_large_for_float32(constant):
    bases = np.array([-1, -1, 1.0000001], np.float32)
    check_node("Pow", bases, np.array([2**24 + 1, 2**31 + 1, 2**24 + 1], np.int64), constant=constant)


@pytest.mark.parametrize("base", ["int32", "int64"])
@pytest.mark.parametrize("exponent", sorted(INTEGERS))
def test_power_of_integers(base, exponent):
    bases = np.array([2, -2, 1, -1, 0, 7, -3, 10], base)
    exponents = np.array([1, 2, 3, 7, 0, 5, 9, 9], exponent)
    expected = np.array([int(x) ** int(y) for x, y in zip(bases, exponents, strict=True)], base)
    check_node("Pow", bases, exponents, reference=[expected])
    np.testing.assert_array_equal(host_forms()["Pow"](bases, exponents), expected)


def test_power_of_integers_beyond_a_double():
    check_node("Pow", np.array([3, -3]), np.array([39, 39]), reference=[np.array([3**39, -(3**39)])])


@pytest.mark.parametrize("base", ["int32", "int64"])
@pytest.mark.parametrize("exponent", ["int32", "int64", "float32", "float64"])
def test_power_of_integers_at_its_edges(base, exponent):
    """Of what is too large, and of 0 to a negative power, the least integer; squares and cubes by one number wrap."""
    bases = np.array([2, -2, 1, -1, -1, 10, 0, 3, -3, 2, 2, 0, -1, 7], base)
    exponents = np.array([-1, -2, -3, -3, -4, -1, -1, 100, 41, 63, 31, 0, 2**24, 0], exponent)
    floats = [np.nan, np.inf, -np.inf] if np.dtype(exponent).kind == "f" else []
    for x, y in [
        (bases, exponents),
        *((np.array([2**31 - 1, -9000, 3, 0], base), np.array(power, exponent)) for power in (2, 3, 4, 1, 0, -1)),
        (np.array([94906265, 65537], base), np.array([2, 3], exponent)),
        *((np.array([3, 1, 0, -1, -3], base), np.array(power, exponent)) for power in floats),
    ]:
        (result,) = check_node("Pow", x, y)
        check_node("Pow", x, y, constant=[1])
        np.testing.assert_array_equal(host_forms()["Pow"](x, y), result)


def test_power_of_integers_with_huge_unsigned_exponents():
    """MLX's own would go on forever."""
    expected = [np.array([1, 0, 1, -(2**63)])]
    check_node("Pow", np.array([-1, 0, 1, 2]), np.full(4, 2**64 - 2, np.uint64), reference=expected)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_power_of_integers_with_float_exponents(dtype):
    bases, exponents = np.array([2, 10, 7, 9, -3], dtype), np.array([3, 2, 0.5, 0.5, 3], np.float32)
    check_node("Pow", bases, exponents)
    np.testing.assert_array_equal(host_forms()["Pow"](bases, exponents), [8, 100, 2, 3, -27])


def test_power_in_half_precision_rounds_once():
    bases = np.array([1.001, 3.7, 0.3, 30], np.float16)
    expected = (bases.astype(np.float64) ** 3).astype(np.float16)
    check_node("Pow", bases, np.array(3, np.float16), constant=(1,), reference=[expected], tolerance=0)


LOWER, UPPER = {"none": None, "some": -1, "high": 3}, {"none": None, "some": 2}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int32", "int64", "uint8", "uint64"])
@pytest.mark.parametrize("low", LOWER)
@pytest.mark.parametrize("high", UPPER)
@pytest.mark.parametrize("opset", [12, 13])
def test_clip(dtype, low, high, opset):
    floats = [math.nan, 1, 5, -5, math.inf, -math.inf, 1e4]
    values = np.array(floats if np.dtype(dtype).kind == "f" else [1, 5, 100, 0], dtype)
    unsigned = np.dtype(dtype).kind == "u"
    bounds = [None if bound is None else np.array(abs(bound) if unsigned else bound, dtype)
              for bound in (LOWER[low], UPPER[high])]  # fmt: skip
    if (dtype, opset) == ("float16", 12):  # ONNX Runtime has it from 13 on
        limits = np.finfo(dtype)
        low_bound, high_bound = (
            (limits.min if low == "none" else bounds[0]),
            (limits.max if high == "none" else bounds[1]),
        )
        expected = np.minimum(np.maximum(values, low_bound), high_bound)
        check_node("Clip", values, *bounds, opset=opset, reference=[expected])
    else:
        check_node("Clip", values, *bounds, opset=opset)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("low", [None, -1, math.nan, math.inf])
@pytest.mark.parametrize("high", [None, 2, math.nan, -math.inf])
def test_clip_with_odd_bounds(low, high, dtype):
    """A bound that is NaN bounds nothing; max wins over min; each may be a vector of one element."""
    values = np.array([math.nan, 1, 5, -5, math.inf, -math.inf, 1e4], dtype)
    for shape in ((), (1,)):
        bounds = [None if bound is None else np.full(shape, bound, dtype) for bound in (low, high)]
        constant = [index for index, bound in enumerate(bounds, 1) if bound is not None]
        (result,) = check_node("Clip", values, *bounds)
        check_node("Clip", values, *bounds, constant=constant)
        np.testing.assert_array_equal(host_forms()["Clip"](values, *bounds).astype(dtype), result)


@pytest.mark.parametrize("shape", [(2,), (0,), (1, 1)])
def test_a_bound_is_one_number(shape):
    check_refused("Clip", np.zeros(2, np.float32), np.zeros(shape, np.float32), dynamic=True, match="is not one number")


def test_clip_to_attributes_that_leave_nothing():
    for low, high in ((5.0, 2.0), (math.nan, 2.0), (1.0, math.nan)):
        check_declined("Clip", np.zeros(2, np.float32), min=low, max=high, opset=6, because="is not less than max")


@pytest.mark.parametrize("bounds", [{}, {"min": -1.0}, {"max": 2.0}, {"min": -1.0, "max": 2.0}])
def test_clip_to_attributes(bounds):
    check_node("Clip", np.array([math.nan, 1, 5, -5, math.inf, -math.inf], np.float32), opset=6, **bounds)


@pytest.mark.parametrize("operator", ["Max", "Min", "Sum", "Mean"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_variadic(operator, count):
    arrays = [
        np.array([[math.nan, 1, math.inf], [2, -3, 1e30]], np.float32),
        np.array([1, math.nan, -math.inf], np.float32),
        np.array([[2], [5]], np.float32),
    ][:count]
    check_node(operator, *arrays)
    check_node(operator, *arrays, opset=8)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("operator", ["Sum", "Mean"])
def test_sums_of_halves_round_once(operator, dtype):
    small = np.array([2.0**-9, 2.0**-12], numpy_type(dtype))
    arrays = [np.ones(2, numpy_type(dtype)), small, small]
    expected = sum(each.astype(np.float32) for each in arrays) / (3 if operator == "Mean" else 1)
    check_node(operator, *arrays, reference=[expected.astype(numpy_type(dtype))], tolerance=0)


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("negative", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_infinity(positive, negative, dtype):
    values = np.array([math.inf, -math.inf, math.nan, 0, 1], dtype)
    check_node("IsInf", values, opset=20, detect_positive=positive, detect_negative=negative)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_nan(dtype):
    check_node("IsNaN", np.array([math.inf, -math.inf, math.nan, 0, 1], dtype))


@pytest.mark.parametrize("dtype", sorted({*INTEGERS, "bool", "float16", "float32", "float64", "complex64"}))
def test_where(dtype):
    condition = np.array([[True], [False]])
    x, y = np.array([1, 0, 3]).astype(dtype), np.array(1).astype(dtype)
    check_node("Where", condition, x, y, reference=[np.where(condition, x, y)])


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div", "Pow"])
@pytest.mark.parametrize("axis", [None, 1, -3, 0])
def test_legacy_broadcasting(operator, axis):
    a = np.arange(1, 121, dtype=np.float32).reshape(2, 3, 4, 5) / 50
    b = np.linspace(0.5, 2, {None: 20, 1: 12, -3: 12, 0: 2}[axis], dtype=np.float32)
    b = b.reshape({None: (4, 5), 1: (3, 4), -3: (3, 4), 0: (2,)}[axis])
    aligned = b if axis is None else b.reshape({0: (2, 1, 1, 1)}.get(axis, (3, 4, 1)))
    function = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power}[operator]
    attributes = {"broadcast": 1} | ({} if axis is None else {"axis": axis})
    check_node(operator, a, b, opset=6, reference=[function(a, aligned)], output_types=["float32"], **attributes)


def test_legacy_sizes_that_do_not_fit():
    a = np.zeros((2, 3, 4), np.float32)
    for shape, attributes in (((4,), {}), ((2, 3, 1), {}), ((2, 1, 1, 1), {"broadcast": 1}), ((3,), {"broadcast": 1})):
        with pytest.raises(TranslationError, match=r"does not lie over|cannot be broadcast"):
            check_node(
                *("Add", a, np.zeros(shape, np.float32)),
                opset=6,
                dynamic=True,
                output_types=["float32"],
                reference=[],
                **attributes,
            )


def handlers() -> list[Handler]:
    found: list[Handler] = []
    for module in (elementwise, logic, activation):
        for each in vars(module).values():
            found.extend(each if isinstance(each, list) else [each])
    return [each for each in found if isinstance(each, Handler)]


def host_forms():
    return {each.op_type: each.host_form.function for each in handlers() if each.host_form is not None}


EXAMPLES = {"b": [0, 1, 1, 0, 1], "u": [1, 2, 3, 7, 100], "i": [1, -2, 3, 7, -100], "f": [1, -2, 3, 0.75, -30]}
REQUIRED = {"BitShift": {"direction": "LEFT"}, "Mod": {"fmod": 1}}


@pytest.mark.parametrize("handler", [each for each in handlers() if each.host_form], ids=repr)
def test_host_form_is_the_translator_on_numpy(handler):
    """On every element type that the last input takes, and whatever the others need."""
    parameters = list(handler.signature.inputs) or [handler.signature.variadic] * 3
    keywords = REQUIRED.get(handler.op_type, {})
    for name in sorted(parameters[-1].dtypes - {"bfloat16", "complex64"}):
        dtypes = [np.dtype(name if name in each.dtypes else "bool") for each in parameters]
        if handler.op_type == "Pow":
            dtypes[0] = np.dtype("int64") if dtypes[1].kind in "iu" else dtypes[0]
        arrays = [np.roll(EXAMPLES[dtype.kind], index).astype(dtype) for index, dtype in enumerate(dtypes)]
        if handler.op_type == "Clip":
            arrays[1:] = [bound[:1] for bound in arrays[1:]]
        with mx.stream(mx.cpu):
            expected = to_host(translated(handler, *arrays, **keywords))
        result = np.asarray(handler.host_form.function(*arrays, **keywords)).astype(expected.dtype)
        np.testing.assert_allclose(result, expected, rtol=2e-3 if name == "float16" else 1e-5)


def test_shape_arithmetic_keeps_to_the_host():
    """A Reshape whose target goes through most of the arithmetic that exporters write for shapes."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Mul", ["shape", "two"], ["doubled"]),
        helper.make_node("Add", ["doubled", "one"], ["odd"]),
        helper.make_node("Div", ["odd", "two"], ["same"]),
        helper.make_node("Sub", ["same", "one"], ["less"]),
        helper.make_node("Max", ["less", "one"], ["positive"]),
        helper.make_node("Min", ["positive", "same"], ["least"]),
        helper.make_node("Cast", ["least"], ["least_float"], to=TensorProto.FLOAT),
        helper.make_node("Sqrt", ["least_float"], ["root"]),
        helper.make_node("Pow", ["root", "two_float"], ["power"]),
        helper.make_node("Round", ["power"], ["rounded"]),
        helper.make_node("Cast", ["rounded"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Equal", ["whole", "less"], ["equal"]),
        helper.make_node("Where", ["equal", "same", "minus"], ["target"]),
        helper.make_node("Mod", ["target", "many"], ["within"]),
        helper.make_node("Reshape", ["x", "within"], ["y"]),
    ]
    constants = {"one": [1], "two": [2], "two_float": [2.0], "minus": [-1], "many": [1000]}
    carried = [
        helper.make_tensor(name, TensorProto.FLOAT if "float" in name else TensorProto.INT64, [1], values)
        for name, values in constants.items()
    ]
    graph = helper.make_graph(
        nodes,
        "shapes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        carried,
    )
    model = with_output_types(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))
    check_model(model, {"x": np.arange(12, dtype=np.float32).reshape(3, 4)})


@pytest.mark.parametrize("opset", [6, 14])
@pytest.mark.parametrize("operator", ["Div", "Mod"])
def test_nothing_is_divided_by_nothing(operator, opset):
    if operator == "Mod" and opset < 10:
        opset = 10
    for shape in ((0,), (0, 3), (1, 1, 2, 0)):
        nothing = np.zeros(shape, np.int64)
        check_node(operator, nothing, nothing, opset=opset, reference=[nothing])
