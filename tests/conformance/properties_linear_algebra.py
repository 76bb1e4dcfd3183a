"""Cases of matrix products, determinants, normalizations and losses."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from properties import Case
from strategies import Draws, cases

from opgraft.graph.element_types import FLOATS, INTEGERS


@cases("MatMul")
def mat_mul(d: Draws) -> Case:
    dtype = d.dtype()
    rows, inner, columns = (d.size() for _ in range(3))
    one, other = d.broadcast_shapes(2, 2)
    left, right = (*one, rows, inner), (*other, inner, columns)
    left = (inner,) if d.rarely() else left
    right = (inner,) if d.rarely() else right
    return d.case(d.array(dtype, left), d.array(dtype, right))


@cases("Gemm")
def gemm(d: Draws) -> Case:
    dtype = d.dtype()
    rows, inner, columns = (d.size() for _ in range(3))
    attributes = d.some(transA=d.integer(0, 1), transB=d.integer(0, 1))
    a = (inner, rows) if attributes.get("transA") else (rows, inner)
    b = (columns, inner) if attributes.get("transB") else (inner, columns)
    factors = (1.0, 2.0, 0.0, -1.0) if dtype in INTEGERS else (1.0, 2.0, 0.0, -1.0, 0.25)
    attributes |= d.some(alpha=d.pick(*factors), beta=d.pick(*factors))
    c = d.array(dtype, d.broadcast_part((rows, columns))) if d.version < 11 or d.flag() else None
    return d.case(d.array(dtype, a), d.array(dtype, b), c, attributes=attributes)


EQUATIONS = (
    *("i->i", "ij->ji", "ij->i", "ij->", "ij,jk->ik", "ij,jk", "bij,bjk->bik", "i,i->", "i,j->ij", "ii->i", "ii"),
    *("...ij,...jk->...ik", "...i->...", "b...ij->b...ji", "ij,ij->ij", "ij,kj->ik", "bhqd,bhkd->bhqk", "i,ij,j->"),
    *("abc,cd,de->abe", "...,...->...", "ij , jk -> ik", "iij->j", "a...b->b...a", "ijk,ilk->jl", "ab,cd->abcd"),
)


@cases("Einsum")
def einsum(d: Draws) -> Case:
    equation = d.pick(*EQUATIONS)
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    sizes = {label: d.size(0, 3) for label in sorted(set("".join(terms))) if label.isalpha()}
    covered = d.shape(0, 2)
    dtype = d.dtype()
    arrays = []
    for term in terms:
        before, ellipsis, after = term.partition("...")
        between = d.broadcast_part(covered) if ellipsis else ()
        shape = [*(sizes[label] for label in before), *between, *(sizes[label] for label in after)]
        arrays.append(d.array(dtype, shape))
    case = d.case(*arrays, attributes={"equation": equation})
    if all(each.size for each in arrays):
        return case
    expected = np.einsum(equation, *(each.astype(np.float64) for each in arrays))  # ONNX Runtime dies of it
    return replace(case, oracle=[expected.astype(arrays[0].dtype)])


@cases("Det")
def det(d: Draws) -> Case:
    size = d.size(0, 4)
    return d.case(d.array(d.dtype(), (*d.shape(0, 2), size, size), "unit"))


def channels(d: Draws, low: int = 2, side: int = 0) -> tuple[int, ...]:
    """A shape (N, C, D1 ... Dn)."""
    return (d.size(side, 3), d.size(1, 4), *(d.size(side, 3) for _ in range(d.integer(low, 4) - 2)))


@cases("LayerNormalization", "RMSNormalization")
def layer_normalization(d: Draws) -> Case:
    shape = d.shape(1, 4, 1)
    axis = d.axis(len(shape))
    attributes = {"axis": axis} if d.flag() else {}
    inner = shape[attributes.get("axis", -1) :] if attributes.get("axis", -1) < 0 else shape[axis:]
    attributes |= d.some(epsilon=d.number(0.001, 0.1), stash_type=1)
    dtype = d.dtype()
    x, scale = d.array(dtype, shape), d.array(dtype, inner)
    if d.operator == "RMSNormalization":
        return d.case(x, d.array(dtype, d.broadcast_part(inner)), attributes=attributes)
    bias = d.array(dtype, inner) if d.flag() else None
    return d.case(x, scale, bias, attributes=attributes, outputs=d.integer(1, 3))


@cases("GroupNormalization", "InstanceNormalization")
def group_normalization(d: Draws) -> Case:
    """Judged by what float64 gives: ONNX Runtime's variance and bias are less exact than float32 is."""
    by_group = d.operator == "GroupNormalization"
    groups, each = d.integer(1, 3), d.integer(1, 2) if by_group else 1
    shape = (d.size(by_group, 3), groups * each, *d.shape(1, 2, 1))
    count = groups if by_group and d.version < 21 else groups * each
    attributes = d.some(epsilon=d.number(0.001, 0.1))
    dtype = d.dtype()
    x, scale, bias = d.array(dtype, shape), d.array(dtype, (count,)), d.array(dtype, (count,))
    wide = x.astype(np.float64).reshape(shape[0], groups, prod(shape[1:]) // groups)
    variance = wide.var(2, keepdims=True) + attributes.get("epsilon", float(np.float32(1e-5)))
    normal = ((wide - wide.mean(2, keepdims=True)) / np.sqrt(variance)).reshape(shape)
    factor, offset = (np.repeat(part.astype(np.float64), shape[1] // count) for part in (scale, bias))
    column = (-1, *[1] * (len(shape) - 2))
    expected = (normal * factor.reshape(column) + offset.reshape(column)).astype(x.dtype)
    attributes |= {"num_groups": groups} if by_group else {}
    attributes |= d.some(stash_type=1) if by_group and d.version >= 21 else {}
    tolerance = 1e-6 if by_group and dtype == "float64" else None  # whose statistics may be of float32
    return d.case(x, scale, bias, attributes=attributes, output_types=(dtype,), oracle=[expected], tolerance=tolerance)


@cases("BatchNormalization")
def batch_normalization(d: Draws) -> Case:
    shape = channels(d)
    dtype = d.dtype()
    parameters = shape[1:2]
    attributes = d.some(epsilon=d.number(0.001, 0.1), momentum=d.number(0, 1))
    if d.version < 9 and d.flag():
        attributes["spatial"] = d.integer(0, 1)
        parameters = parameters if attributes["spatial"] else shape[1:]
    if d.version < 7:
        attributes["is_test"] = 1
    outputs = 1
    if d.version >= 14 and 0 not in shape and d.flag():  # nothing has no mean to train with
        attributes["training_mode"] = d.integer(0, 1)
        outputs = d.integer(1, 3) if attributes["training_mode"] else 1
    arrays = [d.array(dtype, parameters) for _ in range(3)]
    variance = d.array(dtype, parameters, "positive")
    given = {"attributes": attributes, "outputs": outputs, "output_types": (dtype,) * outputs}
    case = d.case(d.array(dtype, shape), *arrays, variance, **given)
    if d.version >= 7:
        return case
    attributes = {name: value for name, value in attributes.items() if name != "is_test"}
    return replace(case, oracle=replace(case, opset=7, attributes=attributes))


@cases("LpNormalization")
def lp_normalization(d: Draws) -> Case:
    shape = d.shape(1)
    attributes = d.some(axis=d.axis(len(shape)), p=d.pick(1, 2))
    return d.case(d.array(d.dtype(), shape), attributes=attributes)


@cases("LRN")
def lrn(d: Draws) -> Case:
    shape = (d.size(0, 3), d.size(1, 5), d.size(0, 3), d.size(0, 3))
    attributes = d.some(alpha=d.number(0.0625, 1), beta=d.number(0.125, 1), bias=d.number(0.5, 2))
    dtype = d.dtype(among=FLOATS - {"float64"})  # in which ONNX's reference leaves out a neighbour
    return d.case(d.array(dtype, shape), attributes=attributes | {"size": d.pick(1, 3, 5)})


@cases("MeanVarianceNormalization")
def mean_variance_normalization(d: Draws) -> Case:
    shape = (d.size(1, 3), d.size(1, 4), d.size(1, 3), d.size(1, 3))
    attributes = d.some(axes=d.axes(4, 1))
    x = d.array(d.dtype(), shape)
    axes, wide = tuple(attributes.get("axes", (0, 2, 3))), x.astype(np.float64)
    expected = (wide - wide.mean(axes, keepdims=True)) / (wide.std(axes, keepdims=True) + 1e-9)
    return d.case(x, attributes=attributes, oracle=[expected.astype(x.dtype)])  # ONNX Runtime divides 0 by 0


@cases("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(d: Draws) -> Case:
    batch, classes, *places = d.size(1, 3), d.size(1, 4), *d.shape(0, 2, 1)
    dtype = d.dtype()
    attributes = d.some(reduction=d.pick("mean", "sum", "none"), ignore_index=d.integer(-1, classes - 1))
    scores = d.array(dtype, (batch, classes, *places))
    labels = d.whole((batch, *places), 0, classes - 1, d.pick("int64", "int32"))
    if attributes.get("ignore_index") == -1 and d.flag():
        labels.flat[0] = -1
    weights = d.array(dtype, (classes,), "positive") if d.flag() else None
    outputs = d.integer(1, 2) if d.operator == "SoftmaxCrossEntropyLoss" else 1
    return d.case(scores, labels, weights, attributes=attributes, outputs=outputs)
