"""Element types held in another: how they are packed, and how arrays of ml_dtypes and sessions take to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from opgraft import ort_values
from opgraft.graph.element_types import (
    ANY,
    BITS,
    HELD,
    HELD_AS,
    NAME_OF_ONNX,
    NARROW,
    ONNX_OF_NAME,
    PACKED,
    STORAGE,
)
from opgraft.graph.onnx_source import storage_form
from opgraft.graph.packing import bytes_in, from_codes, packed, unpacked
from opgraft.testing import assert_same

SHAPES = [(), (0,), (1,), (2,), (3,), (4,), (5,), (2, 0, 3), (3, 3), (1, 2, 3)]

each_packed_type = pytest.mark.parametrize("dtype", sorted(PACKED))
each_shape = pytest.mark.parametrize("shape", SHAPES)


def numpy_type(dtype: str) -> np.dtype[Any]:
    return helper.tensor_dtype_to_np_dtype(ONNX_OF_NAME[dtype])


def some(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    codes = np.random.default_rng([len(shape), *shape]).integers(0, 2 ** BITS[dtype], shape, np.uint8)
    return np.asarray(codes).view(numpy_type(dtype))


class TestTable:
    def test_each_narrow_type_is_held_in_one_that_is_its_storage(self) -> None:
        assert {dtype: HELD_AS[dtype] for dtype in ANY} == {dtype: dtype for dtype in ANY}
        assert {dtype: np.dtype(HELD_AS[dtype]) for dtype in NARROW} == {dtype: STORAGE[dtype] for dtype in NARROW}
        assert HELD_AS.keys() == HELD == ANY | NARROW

    @pytest.mark.parametrize("dtype", sorted(NARROW - PACKED))
    def test_the_others_fill_a_byte(self, dtype: str) -> None:
        assert BITS[dtype] == 8


class TestPacking:
    @each_packed_type
    @each_shape
    def test_as_onnx_packs(self, dtype: str, shape: tuple[int, ...]) -> None:
        array = some(dtype, shape)
        data = np.frombuffer(numpy_helper.from_array(array).raw_data, np.uint8)
        stored = storage_form(array, dtype)
        assert (stored.dtype, stored.shape) == (STORAGE[dtype], shape)
        assert bytes_in(shape, dtype) == data.size
        np.testing.assert_array_equal(packed(stored, dtype), data)
        np.testing.assert_array_equal(unpacked(data, shape, dtype), stored)

    @each_packed_type
    @given(st.binary(max_size=40))
    def test_there_and_back(self, dtype: str, data: bytes) -> None:
        codes = np.frombuffer(data, np.uint8)
        stored = from_codes(codes, dtype)
        limit = 2 ** BITS[dtype]
        np.testing.assert_array_equal(stored.astype(np.int64) % limit, codes % limit)
        np.testing.assert_array_equal(unpacked(packed(stored, dtype), stored.shape, dtype), stored)

    @each_packed_type
    def test_arrays_in_any_layout(self, dtype: str) -> None:
        stored = storage_form(some(dtype, (3, 5)), dtype)
        for view in (stored.T, stored[:, ::-1], stored[::2]):
            np.testing.assert_array_equal(packed(view, dtype), packed(view.copy(), dtype))

    def test_what_is_left_over_is_zero(self) -> None:
        assert packed(np.array([-1, -1, -1], np.int8), "int4").tolist() == [0xFF, 0x0F]
        assert packed(np.array([3, 3, 3, 3, 3], np.uint8), "uint2").tolist() == [0xFF, 0x03]


class TestStorageForm:
    @pytest.mark.parametrize("dtype", sorted(NARROW))
    @each_shape
    def test_bits_and_values(self, dtype: str, shape: tuple[int, ...]) -> None:
        array = some(dtype, shape)
        stored = storage_form(array, dtype)
        assert (stored.dtype, stored.shape) == (STORAGE[dtype], shape)
        if "int" in dtype:
            np.testing.assert_array_equal(stored, array.astype(np.int64))
        else:
            np.testing.assert_array_equal(stored, array.view(np.uint8))
        np.testing.assert_array_equal(storage_form(stored, dtype), stored)

    def test_comparison_is_by_bits(self) -> None:
        array = some("float8e5m2", (6,))
        assert_same(array.view(np.uint8), array, 0)
        with pytest.raises(AssertionError):
            assert_same(array.view(np.uint8) ^ 1, array, 0)


class TestSessions:
    """ONNX Runtime alone: what goes in comes out."""

    @staticmethod
    def there_and_back(dtype: str) -> Any:
        number = ONNX_OF_NAME[dtype]
        info = [helper.make_tensor_value_info(name, number, None) for name in "xy"]
        wider = helper.make_node("Cast", ["x"], ["values"], to=onnx.TensorProto.DOUBLE)
        nodes = [wider, helper.make_node("Cast", ["values"], ["y"], to=number)]
        graph = helper.make_graph(nodes, "there_and_back", info[:1], info[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    @pytest.mark.parametrize("dtype", ["float8e4m3fn", "float8e5m2fnuz", "int4", "uint4", "bfloat16", "float32"])
    @pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (3, 3)])
    def test_there_and_back(self, dtype: str, shape: tuple[int, ...]) -> None:
        array = np.resize([1, 2, 3, 0, 5], shape).astype(numpy_type(dtype))
        session = self.there_and_back(dtype)
        for form in (array, storage_form(array, dtype)):
            (output,) = ort_values.run(session, {"x": form})
            np.testing.assert_array_equal(output, storage_form(array, dtype))


def test_numbers_of_onnx() -> None:
    for dtype in NARROW:
        assert NAME_OF_ONNX[onnx.TensorProto.DataType.Value(dtype.upper())] == dtype
