"""Operators that pick, place and count by index, against ONNX Runtime's CPU provider or NumPy."""

from __future__ import annotations

import ml_dtypes
import mlx.core as mx
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import PLACES, check_refused, placed, translated

from opgraft.engine import Program
from opgraft.errors import TranslationError
from opgraft.graph.onnx_source import graph_of_model
from opgraft.ops import Context
from opgraft.plan import build_plan
from opgraft.registry import load_registry
from opgraft.testing import check_declined, check_model, check_node, node_model, reference_outputs, run_model
from opgraft_ops import indexing as handlers
from opgraft_ops._shared import between

DTYPES = ("bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64")
REDUCTIONS = ("none", *handlers.REDUCTIONS)


def ints(*values):
    return np.array(values, np.int64)


def counting(*shape, dtype="float32"):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def check_everywhere(operator, handler, *inputs, reference="cpu", opset=21, tolerance=0.0, **attributes):
    """The operator with indices (input 1) known on the host, with indices on the device, and in its NumPy form."""
    model = node_model(operator, inputs, opset=opset, **attributes)
    given_inputs = {f"x{index}": each for index, each in enumerate(inputs)}
    if reference == "cpu":
        reference = reference_outputs(model, given_inputs)
    check_model(model, given_inputs, reference=reference, tolerance=tolerance)
    check_model(placed(model, given_inputs, "x1", "device"), given_inputs, reference=reference, tolerance=tolerance)
    if handler is not None:
        on_host = handler.host_form.function(*inputs, **attributes)
        assert on_host.dtype == reference[0].dtype
        np.testing.assert_array_equal(on_host, reference[0])


# Gather


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [ints(0, -1, 1), ints([1, -2], [0, 0]), np.asarray(-1), np.array([1], np.int32)])
def test_gather(indices, axis, dtype):
    check_everywhere("Gather", handlers.gather, counting(2, 3, 4, dtype=dtype), indices, axis=axis)


@pytest.mark.parametrize("opset", [1, 7, 11, 13])
def test_gather_versions_and_constants(opset):
    data, indices = counting(4, 3), ints(3, 0)
    reference = "cpu" if opset > 6 else [data[indices]]
    check_node("Gather", data, indices, opset=opset, reference=reference)
    check_node("Gather", data, indices, opset=opset, reference=reference, constant=[1], dynamic=True)
    check_node("Gather", data, np.asarray(2), opset=opset, reference=[data[2]], constant=[1])


def test_gather_of_nothing():
    check_everywhere("Gather", handlers.gather, counting(3, 2), np.zeros((0, 2), np.int64))
    check_everywhere("Gather", handlers.gather, counting(0, 3), ints(), axis=0)
    check_everywhere("Gather", handlers.gather, counting(3, 0), ints(2, 1), axis=0)


@pytest.mark.parametrize("index", [3, -4, 2**40, -(2**63)])
@pytest.mark.parametrize("operator", ["Gather", "GatherElements"])
def test_an_index_out_of_range_is_refused(operator, index):
    check_refused(operator, counting(3), ints(2, index, -3), match="indices must lie between -3 and 2")
    check_refused(operator, counting(4, 3), ints([0], [index]), axis=1, match="indices must lie between -3 and 2")


@pytest.mark.parametrize("operator", ["Gather", "GatherElements"])
def test_there_is_no_index_into_nothing(operator):
    check_refused(operator, counting(0), ints(0), match="indices must lie between 0 and -1")


def test_an_index_of_few_bits_is_refused():
    check_refused("Gather", counting(3), np.array([-(2**31)], np.int32), match="indices must lie")
    check_refused("Gather", counting(3), np.array(3, np.int32), match="indices must lie")


def between_0_and_100(values, *, constant=False, cache=None):
    """What `between` gives, and what it would have checked."""
    context = Context(
        *(None, [values]),
        device="cpu",
        cache={} if cache is None else cache,
        constant=[constant],
        bodies={},
        random_key=None,
    )
    return np.array(between(context, values, 0, 100, "places")).tolist(), context.checks


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_values_out_of_range(dtype):
    """They are clamped where only the device knows them, and an error where the host does."""
    most = np.iinfo(dtype).max
    result, ((holds, message),) = between_0_and_100(mx.array(np.array([0, 100, 101, most], dtype)))
    assert (result, message) == ([0, 100, 100, 100], "places must lie between 0 and 100")
    assert np.array(holds).tolist() == [True, True, False, False]
    assert between_0_and_100(np.array([0, 100], dtype)) == ([0, 100], [])
    with pytest.raises(ValueError, match=f"places must lie between 0 and 100, and are from 0 to {most}"):
        between_0_and_100(np.array([0, most], dtype))


@pytest.mark.parametrize("make", [np.array, mx.array])
def test_constants_are_looked_through_once(make):
    cache = {}
    for _ in range(2):
        assert between_0_and_100(make([3, 5]), constant=True, cache=cache) == ([3, 5], [])
    (extremes,) = cache.values()
    assert extremes == (3, 5)
    with pytest.raises(ValueError, match="and are from -1 to 5"):
        between_0_and_100(make([5, -1]), constant=True)


def test_many_constant_indices():
    """So many that they are held on the device."""
    indices = np.arange(4000) % 5
    check_node("Gather", counting(5, 2), indices, constant=[1])
    check_refused("Gather", counting(4, 2), indices, match="between -4 and 3")


def outcome(compute):
    """What is computed, or None where it fails."""
    try:
        return compute()
    except Exception as error:
        assert "ONNXRuntimeError" in str(error) or isinstance(error, TranslationError)
        return None


@given(st.data(), st.sampled_from(["Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"]))
def test_indices_are_refused_where_onnxruntime_refuses_them(data, operator):
    size, count = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    indices = np.array(data.draw(st.lists(st.integers(-size - 1, size), min_size=count, max_size=count)), np.int64)
    indices = indices[:, None] if operator.endswith("ND") else indices
    updates = [-counting(count)] if operator.startswith("Scatter") else []
    attributes = {"reduction": "add", "opset": 18} if updates else {}
    feeds = dict(zip(("x0", "x1", "x2"), [counting(size), indices, *updates], strict=False))
    expected = outcome(lambda: reference_outputs(node_model(operator, list(feeds.values()), **attributes), feeds))
    for place in PLACES:
        model = placed(node_model(operator, list(feeds.values()), **attributes), feeds, "x1", place)
        found = outcome(lambda model=model: run_model(model, feeds))
        assert (found is None) == (expected is None)
        if expected is not None:
            np.testing.assert_array_equal(found[0], expected[0])


# GatherElements and GatherND


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements(axis, opset, dtype):
    indices = np.array([[0, 1, -2], [-1, 0, 1]], np.int64)
    check_everywhere(
        "GatherElements", handlers.gather_elements, counting(2, 3, dtype=dtype), indices, axis=axis, opset=opset
    )


def test_gather_elements_from_a_part():
    check_everywhere("GatherElements", handlers.gather_elements, counting(3, 4), ints([2, -3]), axis=0)
    check_everywhere("GatherElements", handlers.gather_elements, counting(3, 4), ints([3, 0, 1, 1, 2, -4]), axis=1)
    check_everywhere("GatherElements", handlers.gather_elements, counting(3, 4), np.zeros((0, 2), np.int32), axis=1)
    check_refused("GatherElements", counting(1, 4), ints([0], [0]), axis=1, dynamic=True, match="larger than the data")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("indices", "batch_dims"),
    [
        (ints([0, 1], [-1, -3]), 0),
        (ints([[1]], [[-2]]), 0),
        (ints(1, 2, 3), 0),
        (ints([1, 3], [-1, 0]), 1),
        (ints([[2], [0]], [[-1], [1]]), 1),
        (ints([[1], [-4], [0]], [[3], [2], [1]]), 2),
    ],
)
def test_gather_nd(indices, batch_dims, dtype):
    data = counting(2, 3, 4, dtype=dtype)
    check_everywhere("GatherND", handlers.gather_nd, data, indices, batch_dims=batch_dims, opset=13)


def test_gather_nd_edges():
    check_everywhere("GatherND", handlers.gather_nd, counting(2, 3), np.zeros((0, 1), np.int64), opset=11)
    check_everywhere("GatherND", handlers.gather_nd, counting(2, 3), np.zeros((2, 0), np.int64), opset=13)
    check_everywhere("GatherND", handlers.gather_nd, counting(2, 0), ints([1], [0]), opset=13)
    check_everywhere("GatherND", handlers.gather_nd, counting(0, 2, 0), ints([0], [9]), opset=13)


def test_gather_nd_refuses_what_does_not_fit():
    check_refused("GatherND", counting(2, 3), ints([0, -3], [1, 3]), match=r"lie between \(-2, -3\) and \(1, 2\)")
    check_refused("GatherND", counting(2, 3), ints([[0], [3]], [[0], [1]]), batch_dims=1, match="indices must lie")
    check_refused("GatherND", counting(0, 2), ints([0]), match="indices must lie")
    check_refused("GatherND", counting(2, 3), np.zeros((1, 3), np.int64), dynamic=True, match="do not fit data")
    with pytest.raises(TranslationError, match="do not fit data"):
        check_node(
            *("GatherND", counting(2, 3), np.zeros((1, 1), np.int64)),
            batch_dims=1,
            dynamic=True,
            opset=13,
            reference=[],
        )
    check_declined("GatherND", counting(2, 3), ints(0), batch_dims=1, opset=13, because="leaves nothing of indices")


# Scatters


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", ["Scatter", "ScatterElements"])
@pytest.mark.parametrize("axis", [0, 1, -2])
def test_scatter_elements(axis, operator, dtype):
    indices, updates = ints([0, 2, 1], [-1, 0, 2]), np.ones((2, 3), dtype)
    handler, opset = (handlers.scatter, 9) if operator == "Scatter" else (handlers.scatter_elements, 11)
    if axis == 0 or operator == "ScatterElements" or axis > 0:
        check_everywhere(operator, handler, counting(3, 4, dtype=dtype), indices, updates, axis=axis, opset=opset)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("opset", [16, 18])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16", "float32", "float64"])
def test_scatter_elements_at_repeated_places(dtype, opset, reduction):
    if opset == 16 and reduction in ("max", "min"):
        return
    indices, updates = (
        ints([0, 0, -3], [1, 1, 1]),
        np.array([[5, 0, 2], [3, 200 if dtype == "uint8" else -7, 4]], dtype),
    )
    check_everywhere(
        "ScatterElements",
        handlers.scatter_elements,
        *(counting(2, 3, dtype=dtype), indices, updates),
        axis=1,
        reduction=reduction,
        opset=opset,
        reference=[_scattered(counting(2, 3, dtype=dtype), indices, updates, 1, reduction)],
    )


def _scattered(data, indices, updates, axis, reduction):
    result = data.copy()
    for place in np.ndindex(indices.shape):
        target = (*place[:axis], indices[place], *place[axis + 1 :])
        with np.errstate(over="ignore"):
            result[target] = _combined(result[target], updates[place], reduction)
    return result


def _combined(old, new, reduction):
    functions = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    return new if reduction == "none" else functions[reduction](old, new)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("indices", [ints([0], [-1]), ints([1, 2]), ints([[0, 1]], [[-1, -3]]), ints(2)])
@pytest.mark.parametrize("opset", [11, 13, 16])
def test_scatter_nd(opset, indices, dtype):
    data = counting(3, 4, 2, dtype=dtype)
    updates = np.ones((*indices.shape[:-1], *data.shape[indices.shape[-1] :]), dtype)
    check_everywhere("ScatterND", handlers.scatter_nd, data, indices, updates, opset=opset)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "float16", "float32", "float64"])
def test_scatter_nd_at_repeated_places(dtype, reduction):
    data, indices = counting(3, 2, dtype=dtype), ints([0], [2], [0], [-1])
    updates = np.array([[5, 1], [-2, 3], [4, -6], [7, 0]], dtype)
    expected = data.copy()
    for (row,), update in zip(indices, updates, strict=True):
        expected[row] = _combined(expected[row], update, reduction)
    check_everywhere(
        "ScatterND", handlers.scatter_nd, data, indices, updates, reduction=reduction, opset=18, reference=[expected]
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scatters_of_booleans_and_bfloat16(reduction):
    data, updates = np.array([True, False, True]), np.array([False, True, False])
    check_everywhere(
        *("ScatterElements", handlers.scatter_elements, data, ints(0, 1, 0), updates),
        reduction=reduction,
        opset=18,
        reference=[_scattered(data, ints(0, 1, 0), updates, 0, reduction)],
    )
    data, updates = counting(3).astype(ml_dtypes.bfloat16), np.array([2, 3, 4], ml_dtypes.bfloat16)
    expected = _scattered(counting(3), ints(2, 1, 2), np.array([2, 3, 4], "float32"), 0, reduction)
    model = node_model("ScatterElements", [data, ints(2, 1, 2), updates], reduction=reduction, opset=18)
    stored = {"x0": data.view(np.uint16), "x1": ints(2, 1, 2), "x2": updates.view(np.uint16)}
    check_model(model, stored, reference=[expected])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scatters_of_nan_and_infinities(dtype, reduction):
    data = np.array([np.nan, np.inf, 1, -np.inf], dtype)
    updates = np.array([1, -np.inf, np.nan, np.inf], dtype)
    for operator, indices in (("ScatterElements", ints(0, 1, 2, 3)), ("ScatterND", ints([0], [1], [2], [3]))):
        check_node(operator, data, indices, updates, reduction=reduction, opset=18)


def test_scatters_of_nothing():
    nothing = np.zeros((0, 3), np.int64)
    check_everywhere("ScatterElements", handlers.scatter_elements, counting(2, 3), nothing, counting(0, 3))
    check_everywhere("ScatterND", handlers.scatter_nd, counting(2, 3), np.zeros((0, 1), np.int64), counting(0, 3))
    empty = np.zeros((0, 3), np.float32)
    check_everywhere("ScatterElements", handlers.scatter_elements, empty, nothing, counting(0, 3), reference=[empty])


def test_scatters_refuse_what_does_not_fit():
    check_refused("ScatterElements", counting(3), ints(-4), counting(1), match="indices must lie")
    check_refused("ScatterElements", counting(2, 3), ints([3]), counting(1, 1), axis=1, match="indices must lie")
    check_refused("Scatter", counting(3), ints(3), counting(1), opset=9, match="indices must lie")
    check_refused("ScatterND", counting(3, 2), ints([0, 2]), counting(1), match=r"lie between \(-3, -2\)")
    check_refused("ScatterND", counting(3, 0), ints([3]), counting(1, 0), match="indices must lie")
    sizes = {"dynamic": True, "match": "updates are of shape"}
    check_refused("ScatterElements", counting(3), ints(0, 1), counting(1), **sizes)
    check_refused("ScatterND", counting(3, 2), ints([0], [1]), counting(1, 2), **sizes)
    check_refused("ScatterND", counting(3, 2), ints([0]), counting(1, 1), **sizes)
    check_refused(
        *("ScatterElements", counting(1, 3), ints([0], [0]), counting(2, 1)),
        axis=1,
        dynamic=True,
        match="larger than the data",
    )
    check_declined(
        "ScatterND", counting(3), ints([0]), counting(1), reduction="mean", opset=18, because="reduction 'mean'"
    )


@pytest.mark.parametrize("dtype", ["int64", "float32"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scatter_on_a_gpu_falls_back_where_metal_has_no_kernel(reduction, dtype):
    data, indices, updates = counting(3, dtype=dtype), ints([2], [0]), counting(2, dtype=dtype)
    output = translated(handlers.scatter_nd, data, indices, updates, device="gpu", reduction=reduction)
    np.testing.assert_array_equal(
        output, handlers.scatter_nd.host_form.function(data, indices, updates, reduction=reduction)
    )


@given(st.data(), st.sampled_from(["int64", "float32"]), st.sampled_from(REDUCTIONS))
def test_what_is_gathered_can_be_scattered(data, dtype, reduction):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    axis = data.draw(st.integers(0, len(shape) - 1))
    inner = [data.draw(st.integers(0, 5 if each == axis else size)) for each, size in enumerate(shape)]
    draw = st.integers(-shape[axis], shape[axis] - 1)
    indices = np.array(
        data.draw(st.lists(draw, min_size=int(np.prod(inner)), max_size=int(np.prod(inner)))), np.int64
    ).reshape(inner)
    array = counting(*shape, dtype=dtype)
    check_everywhere("GatherElements", handlers.gather_elements, array, indices, axis=axis)
    updates = counting(*inner, dtype=dtype) - np.ones(1, dtype)
    expected = _scattered(array, indices, updates, axis, reduction)
    check_everywhere(
        *("ScatterElements", handlers.scatter_elements, array, indices, updates),
        axis=axis,
        reduction=reduction,
        opset=18,
        reference=[expected],
    )


@given(st.data())
def test_gather_nd_picks_what_numpy_picks(data):
    shape = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    batch_dims = data.draw(st.integers(0, len(shape) - 1))
    depth = data.draw(st.integers(1, len(shape) - batch_dims))
    outer = (*shape[:batch_dims], *data.draw(st.lists(st.integers(0, 3), min_size=0, max_size=2)))
    columns = [
        np.array(
            data.draw(
                st.lists(st.integers(-size, size - 1), min_size=int(np.prod(outer)), max_size=int(np.prod(outer)))
            ),
            np.int64,
        ).reshape(outer)
        for size in shape[batch_dims : batch_dims + depth]
    ]
    if outer:
        check_everywhere(
            "GatherND", handlers.gather_nd, counting(*shape), np.stack(columns, -1), batch_dims=batch_dims, opset=13
        )


# TensorScatter


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 5, 2), -2), ((2, 5, 3), 1), ((2, 3, 5), -1)])
def test_tensor_scatter(shape, axis, dtype, mode):
    new = [3 if size == 5 else size for size in shape]
    cache, update = counting(*shape, dtype=dtype), -counting(*new, dtype=dtype)
    first = ints(4, 1) if mode == "circular" else ints(2, 0)
    expected = [_cached(cache, update, first, axis)]
    attributes = {"axis": axis, "mode": mode, "opset": 24, "reference": expected}
    check_node("TensorScatter", cache, update, first, **attributes)
    check_node(
        "TensorScatter", cache, update, axis=axis, opset=24, reference=[_cached(cache, update, ints(0, 0), axis)]
    )


def _cached(cache, update, first, axis):
    result = np.moveaxis(cache.copy(), axis, 1)
    for entry, step in np.ndindex(len(first), update.shape[axis]):
        result[entry, (first[entry] + step) % result.shape[1]] = np.moveaxis(update, axis, 1)[entry, step]
    return np.moveaxis(result, 1, axis)


def test_tensor_scatter_out_of_range():
    cache, update = counting(1, 3, 1), counting(1, 2, 1)
    check_refused("TensorScatter", cache, update, ints(2), index=2, opset=24, match="must lie between 0 and 1")
    for mode in ("linear", "circular"):
        attributes = {"mode": mode, "opset": 24, "index": 2}
        check_refused("TensorScatter", cache, update, ints(-1), match="write_indices must lie", **attributes)
        attributes |= {"dynamic": True}
        check_refused("TensorScatter", cache, update, ints(0, 0), match="do not fit a batch of 1", **attributes)
        check_refused("TensorScatter", cache, counting(1, 4, 1), ints(0), match="must be of", **attributes)
        check_refused("TensorScatter", counting(1, 3, 2), update, ints(0), match="must be of", **attributes)
    check_node("TensorScatter", cache, update, ints(2**62 + 1), mode="circular", opset=24)
    check_declined("TensorScatter", counting(1, 3, 1), counting(1, 2, 1), mode="ring", opset=24, because="'ring'")


# Results whose size depends on the elements


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("opset", [9, 11])
def test_compress(opset, axis, dtype):
    condition = np.array([False, True, True])[: 2 if axis == 0 else 3]
    attributes = {} if axis is None else {"axis": axis}
    data = counting(2, 3, dtype=dtype)
    (output,) = check_node("Compress", data, condition, opset=opset, **attributes)
    np.testing.assert_array_equal(handlers.compress.host_form.function(data, condition, **attributes), output)


def test_compress_edges():
    check_node("Compress", counting(4), np.array([False, True]))
    too_long = np.array([True, False, True])
    check_node("Compress", counting(2), too_long)
    assert handlers.compress.host_form.function(counting(2), too_long).tolist() == [0]
    check_node("Compress", counting(4), np.zeros(4, bool))
    check_node("Compress", counting(0, 3), np.array([True, False, True]), axis=1)
    check_node("Compress", counting(2, 3), np.array([True, False]), axis=1, constant=[1], dynamic=True)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float32"])
@pytest.mark.parametrize("opset", [9, 13])
def test_non_zero(opset, dtype):
    check_node("NonZero", np.array([[1, 0, 2], [0, 0, 3]], dtype), opset=opset)


def test_non_zero_edges():
    check_node("NonZero", np.array([np.nan, 0.0, -0.0, np.inf, 1e-45], np.float32))
    check_node("NonZero", np.zeros((2, 0), np.float32))
    check_node("NonZero", np.zeros((2, 3), np.int64), dynamic=True)
    check_declined("NonZero", np.asarray(3, np.int64), because="scalar")


def test_non_zero_feeds_a_gather():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        agraph (float[N, M] x, bool[N, M] mask) => (float[K] y) {
            places = NonZero(mask)
            vectors = Transpose(places)
            y = GatherND(x, vectors)
        }""")
    x, mask = counting(3, 4), counting(3, 4) % 3 == 1
    check_model(model, {"x": x, "mask": mask}, reference=[x[mask]])


@pytest.mark.parametrize("sorted", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("dtype", ["int8", "int64", "float32", "float64"])
def test_unique(dtype, axis, sorted):
    array = np.array([[3, 1, 3, 2], [3, 1, 3, 1], [3, 1, 3, 2]], dtype)
    check_node("Unique", array, outputs=4, sorted=sorted, **({} if axis is None else {"axis": axis}))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "uint64", "float16"])
def test_unique_of_other_types(dtype):
    array = np.array([1, 0, 1, 1, 0], dtype)
    expected = [np.array([1, 0], dtype), ints(0, 1), ints(0, 1, 0, 0, 1), ints(3, 2)]
    check_node("Unique", array, outputs=4, sorted=0, reference=expected)


def test_unique_edges():
    check_node("Unique", counting(0), outputs=4, reference=[counting(0), ints(), ints(), ints()])
    check_node("Unique", np.ones((2, 1), np.float32))


@given(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=2), min_size=1, max_size=6), st.integers(0, 1))
def test_unique_counts_as_onnxruntime_does(rows, sorted):
    check_node("Unique", np.array(rows, np.int64), outputs=4, sorted=sorted, axis=0)
    check_node("Unique", np.array(rows, np.float32), outputs=4, sorted=sorted)


def test_index_arithmetic_stays_on_the_host():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        agraph (float[N, 3, H, W] x) => (float[a, b] y, int64 height, int64[2] ends, int64[4] turned, int64[4] filled)
        <int64 two = {2}, int64[2] outer = {0, -1}, int64[4] back = {3, 2, 1, 0}, int64[1] one = {1},
         int64[1, 1] at = {1}, int64[1] left = {-1}> {
            s = Shape(x)
            height = Gather(s, two)
            ends = Gather(s, outer)
            turned = GatherElements(s, back)
            filled = ScatterElements(s, one, left)
            again = ScatterND(filled, at, left)
            kept = Compress <axis = 0>(again, mask)
            y = Reshape(x, kept)
        }""")
    mask = onnx.helper.make_tensor("mask", onnx.TensorProto.BOOL, [4], [1, 1, 0, 0])
    model.graph.initializer.append(mask)
    x = counting(2, 3, 5, 4)
    expected = [x.reshape(2, 60), np.asarray(5), ints(2, 4), ints(4, 5, 3, 2), ints(2, -1, 5, 4)]
    check_model(model, {"x": x}, reference=expected)
    _, *values = Program(build_plan(graph_of_model(model)), load_registry(), "cpu").run([x])
    assert all(isinstance(each, np.ndarray) for each in values), "index arithmetic went to the device"
