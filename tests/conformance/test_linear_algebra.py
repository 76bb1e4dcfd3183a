"""Matrix products, einsum and determinants, against ONNX Runtime's CPU provider, NumPy, or exact integers."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kit import check_refused

from opgraft.testing import check_declined, check_node
from opgraft_ops import linear_algebra

TOLERANCE = {"float32": 1e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}


def numpy_type(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def floats(*shape, dtype="float32", seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(numpy_type(dtype))


def integers(*shape, dtype="int64", seed=0):
    limits = np.iinfo(dtype)
    return np.random.default_rng([seed, *shape]).integers(limits.min, limits.max, shape, dtype, endpoint=True)


# MatMul

SHAPES = [
    ((2, 3), (3, 4)),
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 4)),
    ((5, 1, 2, 3), (6, 3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((2, 0), (0, 4)),
    ((0, 3), (3, 4)),
    ((0, 2, 3), (3, 0)),
    ((1, 1), (1, 1)),
]


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint32", "uint64"])
def test_mat_mul(shapes, dtype):
    make = floats if dtype.startswith("float") else integers
    a, b = make(*shapes[0], dtype=dtype), make(*shapes[1], dtype=dtype, seed=1)
    for opset in (9, 13):
        check_node("MatMul", a, b, opset=opset, reference=[np.asarray(a @ b)], tolerance=TOLERANCE.get(dtype, 0))
    check_node("MatMul", a, b, dynamic=True, reference=[np.asarray(a @ b)], tolerance=TOLERANCE.get(dtype, 0))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_mat_mul_sums_in_a_wide_type(dtype):
    a, b = floats(3, 4, 700, dtype=dtype), floats(700, 5, dtype=dtype)
    expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype)
    check_node("MatMul", a, b, reference=[expected], tolerance=TOLERANCE[dtype])


def test_mat_mul_of_strange_values():
    a = np.array([[math.inf, 1], [math.nan, 1], [-math.inf, math.inf]], np.float32)
    check_node("MatMul", a, np.eye(2, dtype=np.float32) + 1)


def test_large_integer_products_come_in_parts(monkeypatch):
    monkeypatch.setattr(linear_algebra, "LARGEST_PRODUCT", 50)
    a, b = integers(2, 4, 7), integers(7, 5)
    check_node("MatMul", a, b, reference=[a @ b])


# Gemm


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_gemm(dtype, trans_a, trans_b):
    a, b = floats(3, 4, dtype=dtype), floats(4, 5, dtype=dtype)
    given = [a.T.copy() if trans_a else a, b.T.copy() if trans_b else b]
    product = a.astype(np.float64) @ b.astype(np.float64)
    attributes = {"transA": trans_a, "transB": trans_b}
    for shape in ((3, 5), (1, 5), (5,), (3, 1), (1,), ()):
        c = floats(*shape, dtype=dtype)
        for alpha, beta in ((1.0, 1.0), (0.5, 2.0), (-1.0, 0.0)):
            for opset in (7, 9, 11, 13):
                expected = (alpha * product + beta * c.astype(np.float64)).astype(dtype)
                factors = {"alpha": alpha, "beta": beta, **attributes}
                check_node("Gemm", *given, c, opset=opset, reference=[expected], tolerance=TOLERANCE[dtype], **factors)
    expected = [(0.25 * product).astype(dtype)]
    check_node("Gemm", *given, alpha=0.25, reference=expected, tolerance=TOLERANCE[dtype], **attributes)


def test_gemm_of_bfloat16():
    a, b, c = (floats(*shape, dtype="bfloat16") for shape in ((3, 4), (4, 5), (5,)))
    expected = a.astype(np.float32) @ b.astype(np.float32) + c.astype(np.float32)
    check_node("Gemm", a, b, c, reference=[expected.astype(a.dtype)], tolerance=TOLERANCE["bfloat16"])


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_gemm_of_integers(dtype):
    a, b, c = (integers(*shape, dtype=dtype) for shape in ((3, 4), (5, 4), (3, 1)))
    check_node("Gemm", a, b, c, transB=1, reference=[a @ b.T + c])
    check_node("Gemm", a, b, transB=1, alpha=3.0, reference=[a @ b.T * np.array(3, dtype)])
    expected = a @ b.T * np.array(3, dtype) + c * np.array(2, dtype)
    check_node("Gemm", a, b, c, transB=1, alpha=3.0, beta=2.0, reference=[expected])
    check_declined("Gemm", a, b, c, transB=1, alpha=0.5, because="must be whole numbers")


def test_gemm_without_elements():
    c = floats(5)
    check_node("Gemm", floats(3, 0), floats(0, 5), c, alpha=2.0, beta=3.0, reference=[np.tile(3 * c, (3, 1))])
    check_node("Gemm", floats(3, 0), floats(0, 5), reference=[np.zeros((3, 5), np.float32)])
    check_node("Gemm", floats(0, 4), floats(4, 5), c)


# Einsum

EQUATIONS = {
    "ij->": [(3, 4)],
    "ij->ji": [(3, 4)],
    "ii->i": [(3, 3)],
    "ii": [(3, 3)],
    "iii->i": [(3, 3, 3)],
    "iij->j": [(3, 3, 2)],
    "iij,jk->k": [(3, 3, 2), (2, 5)],
    "...ii->...i": [(2, 3, 3)],
    "i...i->...i": [(3, 2, 3)],
    "...ij,...jk->...ik": [(2, 1, 3, 4), (5, 4, 2)],
    "i...->...": [(3, 4, 2)],
    "b...a": [(2, 3, 4)],
    "...i,...i": [(2, 3), (2, 3)],
    "...,...": [(2, 3), (3,)],
    "i...,...->i...": [(2, 3), (3,)],
    "ba": [(2, 3)],
    "zA": [(2, 3)],
    "Ab,bA": [(2, 3), (3, 2)],
    "i,j,k->kij": [(2,), (3,), (4,)],
    ",ij->ij": [(), (2, 3)],
    "ij,jk,kl->il": [(2, 3), (3, 4), (4, 5)],
    "bhqd,bhkd->bhqk": [(2, 3, 4, 5), (2, 3, 6, 5)],
    "bik,bjk,bk->bij": [(2, 3, 4), (2, 5, 4), (2, 4)],
    "ij,kl->": [(2, 3), (4, 5)],
    " i j , j k -> i k ": [(2, 3), (3, 4)],
    "ij, jk": [(2, 3), (3, 4)],
    "i,i->": [(0,), (0,)],
    "bij,bjk->bik": [(2, 3, 0), (2, 0, 3)],
    "ijk->ik": [(2, 0, 4)],
}


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "int16", "int32", "int64", "uint64"])
def test_einsum(equation, dtype):
    make = floats if dtype.startswith("float") else integers
    arrays = [make(*shape, dtype=dtype, seed=index) for index, shape in enumerate(EQUATIONS[equation])]
    expected = [np.einsum(equation, *arrays)]
    check_node("Einsum", *arrays, equation=equation, opset=12, reference=expected, tolerance=TOLERANCE.get(dtype, 0))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_einsum_broadcasts_dimensions_of_size_1(dtype):
    arrays = [np.ones((1, 3), dtype), np.arange(6, dtype=dtype).reshape(2, 3)]
    check_node("Einsum", *arrays, equation="ij,ij->ij", dynamic=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_einsum_sums_in_a_wide_type(dtype):
    arrays = [floats(3, 700, dtype=dtype), floats(700, 4, dtype=dtype), np.ones(700, numpy_type(dtype))]
    for equation, count in {"ij,jk": 2, "ij->i": 1, "ij,jk,j->ik": 3}.items():
        expected = np.einsum(equation, *(each.astype(np.float64) for each in arrays[:count])).astype(numpy_type(dtype))
        given = arrays[:count]
        check_node("Einsum", *given, equation=equation, opset=28, reference=[expected], tolerance=TOLERANCE[dtype])


@given(data=st.data())
def test_einsum_of_any_equation(data):
    sizes = {"a": 1, "b": 2, "C": 3, "d": 4}
    labels = st.lists(st.sampled_from(sorted(sizes)), max_size=3)
    terms = data.draw(st.lists(labels, min_size=1, max_size=3))
    dtype = data.draw(st.sampled_from(["int32", "float64"]))
    arrays = [
        data.draw(hnp.arrays(dtype, [sizes[label] for label in term], elements=st.integers(-9, 9))) for term in terms
    ]
    equation = ",".join("".join(term) for term in terms)
    if data.draw(st.booleans()):
        used = sorted({label for term in terms for label in term})
        kept = data.draw(st.permutations(used)) if used else []
        equation += "->" + "".join(kept[: data.draw(st.integers(0, len(kept)))])
    check_node("Einsum", *arrays, equation=equation, reference=[np.asarray(np.einsum(equation, *arrays))])


# Det


@pytest.mark.parametrize(
    "shape", [(1, 1), (2, 2), (3, 3), (4, 2, 2), (2, 3, 5, 5), (9, 9), (0, 3, 3), (2, 0, 0), (0, 0)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_det(shape, dtype):
    x = floats(*shape, dtype=dtype)
    expected = np.linalg.det(x.astype(np.float64)).astype(x.dtype)
    check_node("Det", x, opset=22, reference=[expected], tolerance=2 * TOLERANCE[dtype])


def test_det_of_special_matrices():
    swapped = np.eye(4, dtype=np.float32)[[1, 0, 2, 3]]
    cycled = np.eye(4, dtype=np.float32)[[1, 2, 0, 3]]
    singular = np.ones((4, 4), np.float32)
    check_node("Det", np.stack([swapped, cycled, singular, 2 * np.eye(4, dtype=np.float32)]), opset=11)
    check_node("Det", np.array([[math.nan, 2], [3, 4]], np.float32), opset=11)


# Sizes that do not fit


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize(
    ("a", "b"),
    [((2, 1), (3, 4)), ((2, 3), (1, 4)), ((3,), (1, 4)), ((2, 1), (3,)), ((1,), (3,)), ((2, 1, 3), (2, 1, 4))],
)
def test_inner_sizes_do_not_broadcast(a, b, dtype):
    match = "inner sizes differ" if dtype == "int64" else ""
    check_refused("MatMul", np.ones(a, dtype), np.ones(b, dtype), dynamic=True, match=match)


@pytest.mark.parametrize("shape", [(2, 1, 4), (3, 4), (2, 3), (2,), (1, 2, 4), (0,)])
def test_gemm_does_not_broadcast_to_its_addend(shape):
    inputs = floats(2, 3), floats(3, 4), np.ones(shape, np.float32)
    check_refused("Gemm", *inputs, index=2, dynamic=True, match="Shapes|C of shape")


def test_gemm_of_one_row_stays_one_row():
    check_refused("Gemm", floats(1, 3), floats(3, 4), floats(5, 4), index=2, dynamic=True, match="does not fit")


@pytest.mark.parametrize("alpha", [0.0, math.nan, 1.0])
@pytest.mark.parametrize("beta", [0.0, math.inf, 1.0])
@pytest.mark.parametrize("inner", [0, 2])
def test_gemm_factors_multiply_what_is_not_finite(alpha, beta, inner):
    """Except where beta is 0: then there is no addend."""
    a, b = np.full((2, inner), math.inf, np.float32), floats(inner, 3)
    check_node("Gemm", a, b, alpha=alpha)
    check_node("Gemm", a, b, np.array([1, math.nan, math.inf], np.float32), alpha=alpha, beta=beta)


def test_the_sizes_of_a_repeated_label_are_equal():
    check_refused("Einsum", np.ones((1, 3), np.int32), index=0, equation="ii", dynamic=True, match="label i stands for")
    check_refused("Einsum", floats(1, 3), index=0, equation="ii", dynamic=True, match="")


@pytest.mark.parametrize("shape", [(2, 3), (4, 3, 2), (0, 2), (1, 2)])
def test_determinants_of_squares_only(shape):
    check_refused("Det", floats(*shape), index=0, dynamic=True, match="are not square")


def test_gemm_of_unsigned_integers_wraps_by_a_negative_factor():
    a, b, c = (np.array([[value]], np.uint32) for value in (2, 3, 5))
    check_node("Gemm", a, b, c, opset=9, alpha=-1.0, beta=-2.0, reference=[np.array([[2**32 - 16]], np.uint32)])
