"""Reductions, cumulative sums, and sorting."""

from __future__ import annotations

from math import prod

import mlx.core as mx
import numpy as np

from opgraft.ops import BOOL, FLOATS, NUMBERS, Host, op
from opgraft_ops._folding import Fold, exponential, is_float, is_large_on_cpu, widened
from opgraft_ops._sizes import counted, flags

# Reductions. A row's function takes an array and a `Fold` that keeps the dimensions.


def mean(x, fold):
    if is_float(x):
        return fold.mean(x)
    total = fold(mx.sum, x.astype(mx.int64 if mx.issubdtype(x.dtype, mx.signedinteger) else mx.uint64))
    return truncated_quotient(total, max(x.size // max(total.size, 1), 1))


def truncated_quotient(dividend, divisor):
    """dividend / divisor toward zero, for a positive divisor, whichever way // rounds. MLX or NumPy integers."""
    quotient = dividend // divisor
    return quotient + ((dividend < 0) & (dividend - quotient * divisor > 0))


def euclidean_norm(x, fold):
    if is_float(x):
        return mx.sqrt(fold(mx.sum, mx.square(x)))
    return integer_root(fold(mx.sum, mx.square(x.astype(mx.uint64))))


def integer_root(x):
    """The largest integer whose square is at most x (uint64), exactly."""
    root = mx.maximum(mx.sqrt(x.astype(mx.float32)).astype(mx.uint64), 1)
    root = (root + x // root) // 2  # a step of Newton's: the float32 root is off by up to 256, this one by 1
    root = root + (root + 1 <= x // (root + 1))
    return root - (root > x // mx.maximum(root, 1))


def log_sum_exp(x, fold):
    top = fold(mx.max, x)
    shift = mx.where(mx.isfinite(top), top, mx.zeros_like(top))
    return shift + mx.log(fold(mx.sum, exponential(x - shift)))


def host_mean(x, **where):
    total = np.sum(x, **where, dtype={"i": np.int64, "u": np.uint64}.get(x.dtype.kind, x.dtype))
    count = max(x.size // max(total.size, 1), 1)
    return total / count if x.dtype.kind == "f" else truncated_quotient(total, count)


def host_extreme(function, of_floats, of_integers):
    def reduce(x, **where):
        kind = x.dtype.kind
        nothing = of_floats if kind == "f" else of_floats > 0 if kind == "b" else of_integers(np.iinfo(x.dtype))
        return function(x, **where, initial=nothing)

    return reduce


largest_on_host = host_extreme(np.max, -np.inf, lambda limits: limits.min)
smallest_on_host = host_extreme(np.min, np.inf, lambda limits: limits.max)

# op type: (function, the same in NumPy, element types, first version whose axes are an input, newest version, summary)
REDUCTIONS = {
    "ReduceSum": (lambda x, fold: fold(mx.sum, x), np.sum, NUMBERS, 13, 13, "The sum"),
    "ReduceMean": (mean, host_mean, NUMBERS, 18, 18, "The mean (of integers: rounded toward zero)"),
    "ReduceMax": (lambda x, fold: fold(mx.max, x), largest_on_host, NUMBERS | BOOL, 18, 20, "The largest value"),
    "ReduceMin": (lambda x, fold: fold(mx.min, x), smallest_on_host, NUMBERS | BOOL, 18, 20, "The smallest value"),
    "ReduceProd": (lambda x, fold: fold(mx.prod, x), np.prod, NUMBERS, 18, 18, "The product"),
    "ReduceL1": (lambda x, fold: fold(mx.sum, mx.abs(x)), None, NUMBERS, 18, 18, "The sum of magnitudes"),
    "ReduceL2": (euclidean_norm, None, NUMBERS, 18, 18, "The root of the sum of squares"),
    "ReduceLogSum": (lambda x, fold: mx.log(fold(mx.sum, x)), None, FLOATS, 18, 28, "The logarithm of the sum"),
    "ReduceLogSumExp": (log_sum_exp, None, FLOATS, 18, 28, "The logarithm of the sum of exponentials"),
    "ReduceSumSquare": (lambda x, fold: fold(mx.sum, mx.square(x)), None, NUMBERS, 18, 18, "The sum of squares"),
}


def reduction(op_type, function, host_function, dtypes, input_since, newest, summary):
    """The two handlers of one reduction: axes as an attribute, and from some version on as an input."""

    def reduce(data, axes, keepdims, noop_with_empty_axes):
        fold = Fold(reduced_axes(data, axes, noop_with_empty_axes))
        result = function(widened(data), fold).astype(data.dtype)
        return result if keepdims else mx.squeeze(result, fold.axes)

    def with_attribute(data, *, axes=None, keepdims=1):
        return reduce(data, axes, keepdims, 0)

    def with_input(data, axes: Host = None, *, keepdims=1, noop_with_empty_axes=0):
        return reduce(data, axes, keepdims, noop_with_empty_axes)

    def on_host(data, axes=None, *, keepdims=1, noop_with_empty_axes=0):
        wide = data.astype(np.float32) if data.dtype == np.float16 else data
        where = reduced_axes(data, axes, noop_with_empty_axes)
        return np.asarray(host_function(wide, axis=where, keepdims=bool(keepdims))).astype(data.dtype)

    with_attribute.__doc__ = with_input.__doc__ = f"{summary} over axes of data. ONNX {op_type}-{newest}."
    handlers = (
        op(op_type, until=input_since - 1, dtypes=dtypes)(with_attribute),
        op(op_type, since=input_since, dtypes={"data": dtypes})(with_input),
    )
    for handler in handlers:
        handler.condition(flags("keepdims", "noop_with_empty_axes"))
        if host_function:
            handler.host(on_host)
    return handlers


def reduced_axes(data, axes, noop_with_empty_axes):
    """The axes to reduce, counted from 0, in order. None given means all, or none with the attribute. A lone number has
    none to reduce, whatever is given."""
    if axes is None or not len(axes):
        return () if noop_with_empty_axes else tuple(range(data.ndim))
    return tuple(sorted({counted(axis, data.ndim) for axis in axes})) if data.ndim else ()


reductions = [handler for op_type, row in REDUCTIONS.items() for handler in reduction(op_type, *row)]


# Positions


def reverse(x, axis):
    return x[(slice(None),) * axis + (slice(None, None, -1),)]


def position(module, find, worst, data, axis, keepdims, select_last_index):
    """Where `find` (argmax, argmin) finds the first or last extreme along an axis. As in ONNX Runtime, a NaN is passed
    over like a `worst` value, but nothing beats one that comes first."""
    if not data.ndim:
        return module.zeros([], dtype=module.int64)
    axis = counted(axis, data.ndim)
    size = data.shape[axis]
    places = [*data.shape[:axis], *[1] * keepdims, *data.shape[axis + 1 :]]
    if 0 in places:
        return module.zeros(places, dtype=module.int64)
    if not size:
        raise ValueError(f"axis {axis} of data of shape {list(data.shape)} has no elements to choose from")
    unknown = module.isnan(data) if module.issubdtype(data.dtype, module.floating) else None
    values = data if unknown is None else module.where(unknown, worst, data).astype(data.dtype)
    found = find(reverse(values, axis) if select_last_index else values, axis=axis, keepdims=True)
    found = found.astype(module.int64)
    found = size - 1 - found if select_last_index else found
    if unknown is not None:
        found = module.where(unknown[(slice(None),) * axis + (slice(1),)], 0, found)
    return found.reshape(places)


# MLX's function, NumPy's, the value that loses against all others, and the docstring
POSITIONS = {
    "ArgMax": (
        mx.argmax,
        np.argmax,
        -np.inf,
        "The position of the largest value along an axis, as int64. ONNX ArgMax-13.",
    ),
    "ArgMin": (
        mx.argmin,
        np.argmin,
        np.inf,
        "The position of the smallest value along an axis, as int64. ONNX ArgMin-13.",
    ),
}


def _position_handler(name, find, find_on_host, worst, meaning):
    def translate(data, *, axis=0, keepdims=1, select_last_index=0):
        return position(mx, find, worst, data, axis, keepdims, select_last_index)

    def on_host(data, *, axis=0, keepdims=1, select_last_index=0):
        return position(np, find_on_host, worst, data, axis, keepdims, select_last_index)

    translate.__doc__ = meaning
    handler = op(name, dtypes=NUMBERS)(translate)
    handler.host(on_host)
    handler.condition(flags("keepdims", "select_last_index"))
    return handler


positions = [_position_handler(name, *row) for name, row in POSITIONS.items()]


def leading(module, argsort, X, k, axis, largest):
    """The k largest (or smallest) values along an axis in order, and their positions. `argsort` is stable and puts NaN
    last, so that equal values come in order of position and NaN is larger than all."""
    axis = counted(axis, X.ndim)
    size = X.shape[axis]
    if not 0 <= k <= size:
        raise ValueError(f"K is {k}, and axis {axis} has {size} elements")
    # Sorted from the reversed input and read backwards, equal values come in order of position.
    order = reverse(argsort(reverse(X, axis), axis=axis), axis) if largest else argsort(X, axis=axis)
    order = order[(slice(None),) * axis + (slice(k),)].astype(module.int64)
    order = size - 1 - order if largest else order
    return module.take_along_axis(X, order, axis=axis), order


@op("TopK", until=9, dtypes=FLOATS)
def top_k_1(X, *, axis=-1, k):
    """The k largest values along an axis in order, and their positions. ONNX TopK-1."""
    return leading(mx, mx.argsort, X, k, axis, largest=True)


@op("TopK", since=10, dtypes={"X": NUMBERS})
def top_k(X, K: Host, *, axis=-1, largest=1, sorted=1):
    """The K largest (or smallest) values along an axis and their positions, equal values in order of position; NaN is
    larger than all. They come in order, asked for or not. ONNX TopK-24."""
    return leading(mx, mx.argsort, X, K.item(), axis, largest)


@top_k.host
def _(X, K, *, axis=-1, largest=1, sorted=1):
    return leading(np, lambda x, axis: np.argsort(x, axis, kind="stable"), X, K.item(), axis, largest)


top_k.condition(flags("largest", "sorted"))


# Running sums and products


def running(scan, x, axis, exclusive, reverse):
    axis = counted(axis.item(), x.ndim)
    return scan(widened(x), axis=axis, reverse=bool(reverse), inclusive=not exclusive).astype(x.dtype)


@op("CumSum", dtypes={"x": NUMBERS})
def cum_sum(x, axis: Host, *, exclusive=0, reverse=0):
    """Running sums along an axis: from its end if `reverse`, less the element itself if `exclusive`. ONNX CumSum-14."""
    return running(mx.cumsum, x, axis, exclusive, reverse)


@cum_sum.host
def _(x, axis, *, exclusive=0, reverse=0):
    axis = counted(axis.item(), x.ndim)
    totals = np.cumsum(np.flip(x, axis) if reverse else x, axis, dtype=x.dtype)
    if exclusive:
        totals = np.roll(totals, 1, axis)
        np.moveaxis(totals, axis, 0)[:1] = 0
    return np.flip(totals, axis) if reverse else totals


@op("CumProd", dtypes={"x": NUMBERS})
def cum_prod(x, axis: Host, *, exclusive=0, reverse=0):
    """Running products along an axis, with CumSum's attributes. ONNX CumProd-26."""
    return running(mx.cumprod, x, axis, exclusive, reverse)


for _handler in (cum_sum, cum_prod):
    _handler.condition(flags("exclusive", "reverse"))


# Softmax and its relatives. Before version 13 they see a matrix: all axes from `axis` on are one.


def softmax(x):
    """Along the last axis."""
    if x.dtype != mx.float64 and not is_large_on_cpu(x):
        return mx.softmax(x, axis=-1, precise=True)
    row = Fold((x.ndim - 1,))
    powers = exponential(x - row(mx.max, x))
    return powers / row(mx.sum, powers)


def log_softmax(x):
    """Along the last axis."""
    row = Fold((x.ndim - 1,))
    wide = widened(x)
    wide = wide - row(mx.max, wide)
    return (wide - mx.log(row(mx.sum, exponential(wide)))).astype(x.dtype)


def hardmax(x):
    """Along the last axis."""
    if not x.size:
        return x
    first = mx.argmax(x, axis=-1, keepdims=True)
    return (mx.arange(x.shape[-1], dtype=first.dtype) == first).astype(x.dtype)


SOFTMAXES = {
    "Softmax": (softmax, "The exponentials of the values, divided by their sum"),
    "LogSoftmax": (log_softmax, "The logarithm of Softmax"),
    "Hardmax": (hardmax, "1 at the first largest value, 0 elsewhere"),
}


def of_rows(op_type, function, summary):
    """The two handlers of an operator that works on rows, from its function along a last axis."""

    def of_matrix(input, *, axis=1):
        axis = counted(axis, input.ndim) if input.ndim else 0
        rows, columns = prod(input.shape[:axis]), prod(input.shape[axis:])
        return function(input.reshape(rows, columns)).reshape(input.shape)

    def along_axis(input, *, axis=-1):
        if not input.ndim:
            return function(input[None]).reshape([])
        axis = counted(axis, input.ndim)
        return mx.swapaxes(function(mx.swapaxes(input, axis, -1)), axis, -1)

    of_matrix.__doc__ = f"{summary}, over all axes from `axis` on. ONNX {op_type}-11."
    along_axis.__doc__ = f"{summary}, along one axis. ONNX {op_type}-13."
    return op(op_type, until=12, dtypes=FLOATS)(of_matrix), op(op_type, since=13, dtypes=FLOATS)(along_axis)


softmaxes = [handler for op_type, row in SOFTMAXES.items() for handler in of_rows(op_type, *row)]
