"""Cases of reductions, running sums, sorting, and softmax with its relatives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from properties import Case
from strategies import Draws, cases

from opgraft.graph.element_types import FLOATS, INTEGERS

REDUCTIONS = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"),
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
)


@cases(*REDUCTIONS)
def reduction(d: Draws) -> Case:
    dtype = d.dtype()
    shape = d.shape(side=d.operator == "ReduceMean" and dtype in INTEGERS)  # what the mean of none is, nobody says
    kind = "positive" if d.operator == "ReduceLogSum" else "unit" if d.operator == "ReduceProd" else "moderate"
    if d.operator in ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean") and dtype in FLOATS and d.rarely():
        kind = "any"
    data = d.array(dtype, shape, kind)
    if d.operator == "ReduceProd" and dtype in INTEGERS:  # what does not fit, ONNX Runtime cuts off
        most = 1 if data.size > 6 else 2
        data = np.minimum(data, most) if dtype.startswith("u") else np.clip(data, -most, most)
        data = data.astype(dtype)
    if d.operator in ("ReduceMax", "ReduceMin"):  # what is the largest of NaN and others, nobody says
        data = np.where(np.isnan(data), 0, data).astype(data.dtype)
    axes = d.axes(len(shape)) if shape else []
    attributes = d.some(keepdims=d.integer(0, 1))
    if d.version < (13 if d.operator == "ReduceSum" else 18):
        return d.case(data, attributes=attributes | ({"axes": axes} if axes else {}))
    attributes |= d.some(noop_with_empty_axes=d.integer(0, 1))
    return d.case(data, np.array(axes, np.int64) if axes or d.flag() else None, attributes=attributes)


@cases("ArgMax", "ArgMin")
def position(d: Draws) -> Case:
    shape = d.shape(1)
    data = d.array(d.dtype(), shape, d.pick("whole", "moderate", "any"))
    attributes = d.some(axis=d.axis(len(shape)), keepdims=d.integer(0, 1))
    if d.version >= 12:
        attributes |= d.some(select_last_index=d.integer(0, 1))
    return d.case(data, attributes=attributes)


@cases("TopK")
def top_k(d: Draws) -> Case:
    shape = d.shape(1)
    axis = d.axis(len(shape))
    data = d.array(d.dtype(), shape, d.pick("whole", "moderate"))
    attributes = {"axis": axis} if d.flag() else {}
    k = d.integer(0, shape[attributes.get("axis", -1)])
    if d.version < 10:
        return d.case(data, attributes={"k": k, **attributes}, outputs=2)
    if d.version >= 11:
        attributes |= d.some(largest=d.integer(0, 1), sorted=d.integer(0, 1))
    case = d.case(data, np.array([k]), attributes=attributes, outputs=2)
    in_order = replace(case, attributes={**attributes, "sorted": 1}) if d.version >= 11 else case
    return replace(case, oracle=in_order)  # any order would do where not sorted; opgraft gives this one


@cases("CumSum", "CumProd")
def running(d: Draws) -> Case:
    shape = d.shape(1)
    axis = np.array(d.axis(len(shape)), d.pick(np.int64, np.int32))
    attributes = d.some(exclusive=d.integer(0, 1), reverse=d.integer(0, 1))
    kind = "moderate" if d.operator == "CumSum" else "unit"
    return d.case(d.array(d.dtype(), shape, kind), axis.reshape(d.pick((), (1,))), attributes=attributes)


@cases("Softmax", "LogSoftmax", "Hardmax")
def softmax(d: Draws) -> Case:
    shape = d.shape(1 if d.version >= 13 else 2)
    axis = d.axis(len(shape))
    axis = axis if d.version >= 11 else axis % len(shape)
    dtype = d.dtype(among=FLOATS if d.version >= 13 else FLOATS - {"float64"})  # which the old ones lack in the oracle
    return d.case(d.array(dtype, shape), attributes=d.some(axis=axis))
