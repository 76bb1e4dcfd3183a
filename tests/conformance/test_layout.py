"""Operators that join, cut, repeat, pad and mask, against ONNX Runtime's CPU provider or NumPy."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kit import check_refused

from opgraft.engine import Program
from opgraft.errors import TranslationError
from opgraft.graph.onnx_source import graph_of_model
from opgraft.plan import build_plan
from opgraft.registry import load_registry
from opgraft.testing import check_declined, check_model, check_node
from opgraft_ops import layout as handlers

DTYPES = ("bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64")
LARGEST, SMALLEST = 2**63 - 1, -(2**63)


def ints(*values):
    return np.array(values, np.int64)


def counting(*shape, dtype="float32"):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def check_both_forms(operator, handler, *inputs, opset=21, reference="cpu", host_inputs=None, **attributes):
    """`check_node`, and the same of the handler's NumPy form."""
    (output,) = check_node(operator, *inputs, opset=opset, reference=reference, **attributes)
    on_host = handler.host_form.function(*inputs, **attributes)
    assert on_host.dtype == output.dtype
    np.testing.assert_array_equal(on_host, output)


# Concat


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(axis, dtype):
    parts = [counting(2, 3, dtype=dtype), counting(2, 3, dtype=dtype) + np.ones(1, dtype)]
    check_both_forms("Concat", handlers.concat, *parts, axis=axis)


@pytest.mark.parametrize("opset", [4, 11, 13])
def test_concat_versions_and_sizes(opset):
    parts = [counting(2, 1), counting(2, 0), counting(2, 4)]
    reference = "cpu" if opset > 6 else [np.concatenate(parts, 1)]
    check_node("Concat", *parts, axis=1, opset=opset, reference=reference)


def test_concat_edges():
    check_node("Concat", counting(3), axis=0)
    check_node("Concat", counting(2, 3), counting(2, 3), opset=1, reference=[np.concatenate([counting(2, 3)] * 2, 1)])
    check_node("Concat", counting(0, 2), counting(0, 3), axis=1)
    check_node("Concat", counting(0, 3), counting(2, 4), axis=0, dynamic=True)


# Split


@pytest.mark.parametrize("dtype", DTYPES)
def test_split_into_equal_parts(dtype):
    check_node("Split", counting(4, 6, dtype=dtype), outputs=3, axis=1, opset=13)
    check_node("Split", counting(4, 6, dtype=dtype), outputs=2, num_outputs=2)


@pytest.mark.parametrize("sizes", [(2, 4), (0, 6), (1, 2, 3), (6,)])
@pytest.mark.parametrize("opset", [2, 7, 11, 13, 18])
def test_split_into_sizes(sizes, opset):
    array = counting(2, 6)
    reference = "cpu" if opset > 6 else list(np.split(array, np.cumsum(sizes)[:-1], 1))
    if opset < 13:
        check_node("Split", array, axis=1, split=sizes, outputs=len(sizes), opset=opset, reference=reference)
    else:
        check_node("Split", array, ints(*sizes), axis=-1, outputs=len(sizes), opset=opset)
        check_node("Split", array, ints(*sizes), axis=-1, outputs=len(sizes), opset=opset, constant=[1], dynamic=True)


@pytest.mark.parametrize(("size", "count"), [(7, 3), (9, 5), (4, 4), (3, 1), (0, 2)])
def test_split_into_a_number_of_parts(size, count):
    check_node("Split", counting(size, 2), num_outputs=count, outputs=count)


def test_split_refuses_sizes_that_do_not_fit():
    with pytest.raises(TranslationError, match="cannot split"):
        check_node("Split", counting(7), ints(2, 2), outputs=2, reference=[], dynamic=True)
    with pytest.raises(TranslationError, match="cannot split"):
        check_node("Split", counting(7), outputs=2, reference=[], dynamic=True, opset=13)
    with pytest.raises(TranslationError, match="cannot split"):
        check_node("Split", counting(5), outputs=4, num_outputs=4, reference=[], dynamic=True)


# Slice


@pytest.mark.parametrize("dtype", DTYPES)
def test_slice(dtype):
    array = counting(3, 4, 5, dtype=dtype)
    arguments = ints(2, 1, -1), ints(SMALLEST, LARGEST, 0), ints(0, 1, 2), ints(-1, 2, -2)
    check_both_forms("Slice", handlers.slice_, array, *arguments)


@pytest.mark.parametrize("opset", [7, 9, 10, 11, 13])
@pytest.mark.parametrize(
    ("starts", "ends", "axes"), [((1,), (3,), None), ((0, -2), (-1, LARGEST), (1, 0)), ((3, 9), (1, 99), (0, 1))]
)
def test_slice_versions(starts, ends, axes, opset):
    array = counting(4, 5)
    if opset < 10:
        check_node("Slice", array, starts=starts, ends=ends, **({"axes": axes} if axes else {}), opset=opset)
    else:
        check_node("Slice", array, ints(*starts), ints(*ends), *([ints(*axes)] if axes else []), opset=opset)


def test_slice_with_negative_axes_and_int32():
    narrow = [np.array(each, np.int32) for each in ([-3, 1], [2**31 - 1, -1], [-1, -3], [1, 1])]
    check_node("Slice", counting(3, 4, 5), *narrow)


@given(
    st.integers(0, 6),
    st.one_of(st.integers(-9, 9), st.sampled_from([LARGEST, SMALLEST])),
    st.one_of(st.integers(-9, 9), st.sampled_from([LARGEST, SMALLEST])),
    st.one_of(st.integers(-4, 4), st.sampled_from([LARGEST, SMALLEST])),
)
def test_slice_clamps_as_onnxruntime_does(size, start, end, step):
    assume(step != 0)
    check_both_forms("Slice", handlers.slice_, counting(size, 2), ints(start), ints(end), ints(0), ints(step))


def test_slice_refuses_a_repeated_axis():
    with pytest.raises(ValueError, match="twice"):
        handlers.slice_(counting(3, 3), ints(0, 0), ints(1, 1), ints(0, -2))


# Expand and Tile


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("opset", [8, 13])
@pytest.mark.parametrize("shape", [(3, 1, 4), (1,), (2, 3, 2, 4), (), (1, 3, 0, 4)])
def test_expand(shape, opset, dtype):
    array = counting(3, 1, 4, dtype=dtype)
    check_both_forms("Expand", handlers.expand, array, ints(*shape), opset=opset)


def test_expand_edges():
    check_node("Expand", np.asarray(2, np.int64), ints(2, 3))
    check_node("Expand", np.asarray(2, np.int64), ints(), constant=[1])
    check_node("Expand", counting(0, 1), ints(1, 4), dynamic=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("repeats", [(1, 1), (2, 3), (0, 2)])
def test_tile(repeats, dtype):
    check_both_forms("Tile", handlers.tile, counting(2, 3, dtype=dtype), ints(*repeats))


def test_tile_versions_and_edges():
    check_node("Tile", counting(2, 3), ints(2, 2), opset=6, reference=[np.tile(counting(2, 3), (2, 2))])
    along_one = [np.tile(counting(2, 3), (1, 2))]
    check_node("Tile", counting(2, 3), np.asarray(2), np.asarray(1), opset=1, reference=along_one)
    check_node("Tile", np.asarray(2, np.float32), ints())
    check_node("Tile", counting(0, 3), ints(2, 2))


# Pad


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("mode", handlers.PAD_MODES)
@pytest.mark.parametrize("opset", [18, 19, 23])
def test_pad(mode, dtype, opset):
    if dtype == "float16" or (mode == "wrap" and opset < 19):
        opset, mode = 19, mode  # where ONNX Runtime knows them
    reference = [np.pad(counting(3, 4, dtype=dtype), [(1, 2), (0, 3)], mode)] if dtype == "float16" else "cpu"
    array = counting(3, 4, dtype=dtype)
    check_both_forms("Pad", handlers.pad, array, ints(1, 0, 2, 3), opset=opset, mode=mode, reference=reference)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("opset", [2, 7, 11, 13])
def test_pad_versions(mode, opset):
    array, pads, value = counting(3, 4), (1, -1, 0, 2), 1.5
    widths, extra = [(1, 0), (0, 2)], {"constant_values": value} if mode == "constant" else {}
    reference = [np.pad(array[:, 1:], widths, mode, **extra)]
    if opset < 11:
        check_node("Pad", array, pads=pads, mode=mode, value=value, opset=opset, reference=reference)
    else:
        check_node("Pad", array, ints(*pads), np.array(value, np.float32), mode=mode, opset=opset, reference="cpu")


def test_oldest_pad():
    reference = [np.pad(counting(2, 2), [(0, 1), (2, 0)], constant_values=3)]
    check_node("Pad", counting(2, 2), paddings=[0, 2, 1, 0], value=3.0, opset=1, reference=reference)


def test_pad_along_some_axes():
    value = np.array(9, np.float32)
    check_both_forms("Pad", handlers.pad, counting(2, 3, 4), ints(1, 2, 0, -1), value, ints(-1, 0))
    check_both_forms("Pad", handlers.pad, counting(2, 3, 4), ints(1, 2), None, ints(1), mode="reflect")
    check_both_forms("Pad", handlers.pad, counting(2, 3), ints(0, 0, 0, 0), value)


@pytest.mark.parametrize(
    ("size", "pads"), [(1, (1, 0)), (1, (0, 1)), (2, (2, 0)), (3, (5, 7)), (0, (1, 0)), (3, (-1, 2)), (4, (2, -2))]
)
def test_reflected_pads_as_long_as_the_dimension_are_refused(size, pads):
    with pytest.raises(Exception, match=r"(?i)reflect"):
        check_node("Pad", counting(size), ints(*pads), mode="reflect", dynamic=True)
    refusal = "reflect more than" if size else "leave nothing of"
    with pytest.raises(TranslationError, match=refusal):
        check_node("Pad", counting(size), ints(*pads), mode="reflect", dynamic=True, reference=[])
    with pytest.raises(ValueError, match=refusal):
        handlers.pad_on_host(counting(size), ints(*pads), mode="reflect")
    check_declined("Pad", counting(size), pads=pads, mode="reflect", opset=10, because=refusal)


@pytest.mark.parametrize("mode", ["edge", "wrap"])
def test_nothing_cannot_be_continued(mode):
    for size, pads in ((0, (1, 0)), (3, (-3, 1)), (3, (-2, -1)), (2, (3, -5))):
        check_refused("Pad", counting(size), ints(*pads), mode=mode, match=f"leave nothing of {size} elements")


@pytest.mark.parametrize("mode", ["edge", "wrap"])
def test_pads_longer_than_the_dimension(mode):
    expected = np.pad(counting(3), (7, 8), mode)
    check_both_forms("Pad", handlers.pad, counting(3), ints(7, 8), mode=mode, reference=[expected])


@given(
    st.sampled_from(handlers.PAD_MODES),
    st.lists(st.tuples(st.integers(2, 5), st.integers(-3, 1), st.integers(-3, 1)), min_size=1, max_size=3),
)
def test_pad_removes_first_and_adds_then(mode, dimensions):
    kept = [size + min(before, 0) + min(after, 0) for size, before, after in dimensions]
    assume(all(size >= (1 if mode == "constant" else 2) for size in kept))
    pads = ints(*(before for _, before, _ in dimensions), *(after for _, _, after in dimensions))
    array = counting(*(size for size, _, _ in dimensions))
    check_both_forms("Pad", handlers.pad, array, pads, mode=mode)


def test_pad_edges():
    check_node("Pad", counting(0, 2), ints(1, 0, 2, 0), np.array([7], np.float32), dynamic=True)
    with pytest.raises(ValueError, match="remove more"):
        handlers.padded(np.zeros(3), [-2], [-2])
    check_declined("Pad", counting(3), ints(1, 1), mode="mirror", because="mirror")


# Triangles and diagonals


@pytest.mark.parametrize("dtype", ["bool", "int64", "float32", "float64"])
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 0, 1, -2, 9, -9, SMALLEST, LARGEST])
def test_trilu(k, upper, dtype):
    array = counting(2, 3, 4, dtype=dtype) + np.ones(1, dtype)
    inputs = [array] if k is None else [array, np.asarray(k)]
    if k in (SMALLEST, LARGEST):  # ONNX Runtime overflows
        function = np.triu if upper else np.tril
        check_both_forms("Trilu", handlers.trilu, *inputs, upper=upper, reference=[function(array, int(k / 2**60))])
    else:
        check_both_forms("Trilu", handlers.trilu, *inputs, upper=upper)


def test_trilu_edges():
    unclean = np.array([[np.nan, np.inf], [np.nan, -np.inf]], np.float32)
    check_node("Trilu", unclean, ints(1), upper=1, reference=[np.triu(np.where(np.eye(2) == 1, 0, unclean), 1)])
    check_node("Trilu", np.zeros((2, 0), np.float32), reference=[np.zeros((2, 0), np.float32)])
    check_node("Trilu", np.ones((3, 2), np.uint8), upper=0, reference=[np.tril(np.ones((3, 2), np.uint8))])


@pytest.mark.parametrize("k", [0, 1, -1, 7, -7, LARGEST, SMALLEST])
@pytest.mark.parametrize("shape", [(3, 4), (4, 2), (0, 3)])
def test_eye_like(shape, k):
    reference = [np.eye(*shape, int(np.clip(k, -8, 8)), dtype=np.float32)]
    check_node("EyeLike", counting(*shape), k=k, reference=reference)


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8", "float16", "float64", "bfloat16"])
@pytest.mark.parametrize("opset", [9, 22])
def test_eye_like_of_a_type(dtype, opset):
    number = onnx.TensorProto.DataType.Value({"float16": "FLOAT16", "float64": "DOUBLE"}.get(dtype, dtype.upper()))
    expected = np.eye(2, 3, dtype="float32" if dtype == "bfloat16" else dtype)
    if dtype != "bfloat16" or opset == 22:
        check_node("EyeLike", counting(2, 3, dtype="int32"), dtype=number, opset=opset, reference=[expected])
    check_node("EyeLike", np.ones((2, 3), "float64"), opset=opset)


# Blocks


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("blocksize", [1, 2, 3])
def test_depth_to_space(blocksize, opset, mode):
    array = counting(2, 2 * blocksize**2, 3, 2)
    check_node("DepthToSpace", array, blocksize=blocksize, mode=mode, opset=opset)


@pytest.mark.parametrize("dtype", ["int8", "bool", "float16", "int64"])
def test_blocks_of_any_type(dtype):
    deep, wide = counting(1, 4, 2, 3, dtype=dtype), counting(1, 1, 4, 6, dtype=dtype)
    check_node("DepthToSpace", deep, blocksize=2, opset=13, reference="onnx")
    check_node("SpaceToDepth", wide, blocksize=2, opset=13, reference="onnx")


@pytest.mark.parametrize("opset", [7, 13])
@pytest.mark.parametrize("blocksize", [1, 2, 3])
def test_space_to_depth(blocksize, opset):
    check_node("SpaceToDepth", counting(2, 3, 2 * blocksize, 3 * blocksize), blocksize=blocksize, opset=opset)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth_undoes_depth_to_space(mode):
    array = counting(2, 8, 3, 2)
    (wide,) = check_node("DepthToSpace", array, blocksize=2, mode=mode, opset=13)
    check_node("SpaceToDepth", wide, blocksize=2, mode=mode, opset=28, reference=[array])


def test_blocks_of_an_unknown_order():
    check_declined("DepthToSpace", counting(1, 4, 1, 1), blocksize=2, mode="RCD", opset=13, because="RCD")


# CenterCropPad, OneHot, ReverseSequence


@pytest.mark.parametrize("shape", [(4, 9), (5, 6), (8, 3), (5, 5)])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_center_crop_pad(shape, dtype):
    check_node("CenterCropPad", counting(5, 6, dtype=dtype), ints(*shape))
    check_node("CenterCropPad", counting(2, 6, 5, dtype=dtype), ints(*shape), axes=[-1, 1])


@pytest.mark.parametrize(
    "types", [("int64", "float32"), ("float32", "float32"), ("int64", "int64"), ("int32", "float32")]
)
@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("opset", [9, 11])
def test_one_hot(types, axis, opset):
    index_type, value_type = types
    indices = np.array([[0, 2, -1], [-3, 3, -4]], index_type)
    depth = np.array(3, "float32" if index_type == "float32" else "int64")
    values = np.array([5, 7], value_type)
    reference = [_one_hot(indices, 3, values, axis)] if index_type == "int32" else "cpu"
    check_both_forms("OneHot", handlers.one_hot, indices, depth, values, axis=axis, opset=opset, reference=reference)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64", "complex64"])
def test_one_hot_of_any_value(dtype):
    indices, values = np.array([1, 300, -299], np.int64), np.array([0, 1], dtype)
    check_both_forms(
        "OneHot", handlers.one_hot, indices, ints(301), values, reference=[_one_hot(indices, 301, values, -1)]
    )


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint64", "int16"])
def test_one_hot_at_any_index(dtype):
    indices, values = np.array([1, 0, 100, np.iinfo(dtype).max], dtype), np.array([0, 1], np.float32)
    expected = [_one_hot(indices, 400, values, -1)]
    check_both_forms("OneHot", handlers.one_hot, indices, np.array(400, np.int32), values, reference=expected)


def test_one_hot_of_fractions_and_of_nothing():
    values = np.array([5, 7], np.float32)
    check_both_forms("OneHot", handlers.one_hot, np.array([0.9, -0.9, -1.5, 2.9], "f"), np.array([3], "f"), values)
    check_both_forms("OneHot", handlers.one_hot, np.zeros((0, 2), np.int64), ints(3), values)


def _one_hot(indices, depth, values, axis):
    flat = [[values[int(index in (place, place - depth))] for place in range(depth)] for index in indices.reshape(-1)]
    return np.moveaxis(np.array(flat, values.dtype).reshape(*indices.shape, depth), -1, axis)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float32", "float64"])
@pytest.mark.parametrize("axes", [(0, 1), (1, 0)])
def test_reverse_sequence(axes, dtype):
    time_axis, batch_axis = axes
    array = counting(*((4, 3, 2) if time_axis == 0 else (3, 4, 2)), dtype=dtype)
    check_node("ReverseSequence", array, ints(0, 4, 3), time_axis=time_axis, batch_axis=batch_axis)


def test_reverse_sequence_edges():
    check_node("ReverseSequence", counting(3, 2), ints(1, 2))
    check_node("ReverseSequence", counting(3, 0), ints(), reference=[counting(3, 0)])


@pytest.mark.parametrize("length", [-1, 4, 10**9, -(10**9)])
def test_reverse_sequence_out_of_range(length):
    refusal = "sequence_lens must lie between 0 and 3"
    check_refused("ReverseSequence", counting(3, 2), ints(1, length), match=refusal)


def test_reverse_sequence_of_other_shapes():
    check_refused("ReverseSequence", counting(3, 2), ints(1), match="sequence_lens has shape", dynamic=True)
    check_refused("ReverseSequence", counting(3, 2), ints(1, 1), match="batch_axis", batch_axis=0, time_axis=0)


def test_one_hot_of_other_values_than_two():
    with pytest.raises(TranslationError, match="off and on"):
        check_node("OneHot", ints(0, 1), np.array(2), np.ones(1, np.float32), dynamic=True, reference=[])


def test_shape_arithmetic_stays_on_the_host():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        agraph (float[N, 3, H, W] x) => (float[a, b, c, d] y, int64[4] turned, int64[2] joined, int64[2] target)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] last = {-1}, int64[1] before = {-9}, int64[1] back = {-1},
         int64[2] pads = {1, 0}, int64 two = {2}> {
            s = Shape(x)
            turned = Slice(s, last, before, zero, back)
            width = Slice(turned, zero, one)
            count = Slice(s, zero, one)
            joined = Concat <axis = 0>(count, width)
            target = Pad(width, pads, two)
            wide = Expand(x, target)
            y = Tile(wide, turned)
        }""")
    x = counting(2, 3, 2, 4)
    expected = [np.tile(x, (4, 2, 3, 2)), ints(4, 2, 3, 2), ints(2, 4), ints(2, 4)]
    check_model(model, {"x": x}, reference=expected)
    _, *shapes = Program(build_plan(graph_of_model(model)), load_registry(), "cpu").run([x])
    assert all(isinstance(each, np.ndarray) for each in shapes), "shape arithmetic went to the device"


def test_split_counts_a_last_output_that_nobody_wants() -> None:
    x = np.arange(6, dtype=np.float32)
    nodes = [onnx.helper.make_node("Split", ["x"], ["a", "b", ""], axis=0)]
    graph = onnx.helper.make_graph(
        nodes,
        "split",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n"])],
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("a", "b")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    check_model(model, {"x": x}, reference=[x[:2], x[2:4]])


@pytest.mark.parametrize("pads", [(left, right) for left in range(-5, 6) for right in range(-5, 6)])
@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_pads_of_either_sign(mode, pads):
    """One end may take away what the other one adds."""
    for size in range(4):
        x = counting(size)
        if size + sum(pads) < 0:
            check_refused("Pad", x, ints(*pads), mode=mode, match=f"remove more than the {size} elements")
        elif mode == "constant" or size > max(0, -pads[0]) + max(0, -pads[1]):
            check_node("Pad", x, ints(*pads), mode=mode)
            check_both_forms("Pad", handlers.pad, x, ints(*pads), mode=mode)
        elif size or sum(pads):
            check_refused("Pad", x, ints(*pads), mode=mode, match=f"leave nothing of {size} elements")


@pytest.mark.parametrize("target", [-3, -1, 0, 1, 2, 3, 4, 5, 6])
def test_center_crop_pad_to_any_size(target):
    for size in range(5):
        check_node("CenterCropPad", counting(size), ints(target), dynamic=True)
        check_node("CenterCropPad", counting(2, size), ints(target, 3), axes=[1, 0], dynamic=True)
    check_node("CenterCropPad", counting(3, 4), ints(target), dynamic=True)
    check_refused("CenterCropPad", counting(3, 4), ints(target), axes=[2], match="no axis 2 among 2")


@pytest.mark.parametrize("opset", [13, 18])
def test_splits_that_do_not_fit(opset):
    x = counting(3, 4)
    check_node("Split", x, ints(), axis=1, outputs=2, opset=opset)
    check_node("Split", x.astype(np.int64), ints(), axis=1, outputs=2, opset=opset)
    for sizes in ((1, 2), (5, -1), (4,), (1, 1, 2), (2**62, 4 - 2**62), (2**63 - 1, 5 - 2**63)):
        refusal = f"cannot split a dimension of 4 into 2 pieces of sizes {list(sizes)}".translate({91: ".", 93: "."})
        check_refused("Split", x, ints(*sizes), axis=1, outputs=2, opset=opset, match=refusal)
    check_refused("Split", x, axis=1, outputs=3, opset=13, match="cannot split a dimension of 4 into 3", index=0)
    check_refused("Split", x, axis=1, outputs=2, num_outputs=3, opset=18, match="num_outputs is 3", index=0)
    check_refused("Split", x, ints(2, 2), axis=1, outputs=2, num_outputs=2, opset=18, match="are given both")


@pytest.mark.parametrize("repeats", [(2,), (1, 2, 3), (), (-1, 1)])
def test_repeats_that_do_not_fit(repeats):
    check_refused("Tile", counting(2, 3), ints(*repeats), match="do not say how often each of 2 dimensions repeats")
    with pytest.raises(ValueError, match="do not say how often"):
        handlers.tile_on_host(counting(2, 3), ints(*repeats))


@pytest.mark.parametrize("depth", [0, -1, -5])
def test_one_hot_without_places(depth):
    on_and_off = np.array([0, 1], np.float32)
    check_refused("OneHot", ints(0, 1, -1), np.array(depth), on_and_off, match="has no place for anything")


@pytest.mark.parametrize(("operator", "shape"), [("DepthToSpace", (2, 6, 3, 2)), ("SpaceToDepth", (2, 4, 3, 2))])
def test_blocks_that_do_not_fit(operator, shape):
    for each in (shape, (0, *shape[1:])):
        check_refused(operator, counting(*each), blocksize=2, match="do not make", index=0)
    check_refused(operator, counting(*shape), blocksize=-1, match="blocksize -1", index=0)


def test_axes_that_are_not_there():
    x = counting(3, 4)
    for axis in (2, -3, 2**40, -(2**63)):
        check_refused("Slice", x, ints(0), ints(1), ints(axis), index=3, match=f"no axis {axis} among 2")
        check_refused("Pad", x, ints(1, 1), None, ints(axis), index=3, match=f"no axis {axis} among 2")
        check_refused("Split", x, axis=axis, outputs=2, opset=13, index=0, match=f"no axis {axis} among 2")
    check_refused("Slice", x, ints(0, 0), ints(1, 1), ints(0, -2), index=3, match="name one twice")
    check_refused("Slice", x, ints(0), ints(1, 1), ints(0), match="1 starts, 2 ends")
    check_refused("Slice", x, ints(0), ints(1), ints(0), ints(1, 1), match="and 2 steps")
    check_node("Pad", x, ints(1, 2, 3, 4), None, ints(1, -1), reference="cpu")
    check_refused("Pad", x, ints(1, 1, 1), match="are not two for each of 2 dimensions")


def test_joining_what_is_empty():
    x = counting(2, 3)
    check_node("Concat", x, np.zeros((2, 0), np.float32), axis=1, dynamic=True)
    check_node("Concat", x, np.zeros((5, 0), np.float32), axis=1, dynamic=True)
    with pytest.raises(TranslationError, match="cannot be joined"):  # ONNX Runtime leaves memory as it was
        check_node("Concat", x, np.zeros((0, 2), np.float32), axis=1, dynamic=True, reference=[])
