"""Weights in blocks, against ONNX Runtime's CPU provider, or NumPy in float64 where it has no kernel."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from contrib_kit import TOLERANCE, check_error, check_session, floats, packed, whole_numbers

from opgraft.testing import check_declined, check_node

MATMUL = "com.microsoft::MatMulNBits"
GATHER = "com.microsoft::GatherBlockQuantized"
N = 24


def scales(*shape, dtype="float32"):
    return np.random.default_rng(shape).uniform(0.1, 1, shape).astype(floats(1, dtype=dtype).dtype)


class Weights:
    """Random weights (N, K) of `bits` in blocks, as MatMulNBits takes them."""

    def __init__(self, K, bits, block_size, zero, dtype="float32"):
        blocks = -(-K // block_size)
        numbers = whole_numbers(N, blocks * block_size, below=2**bits)
        self.B = packed(numbers, bits).reshape(N, blocks, block_size * bits // 8)
        self.scales = scales(N, blocks, dtype=dtype)
        middle = np.full((N, blocks), 2.0 ** (bits - 1))
        self.zero_points, points = {
            None: (None, middle),
            "packed": (packed(whole_numbers(N, blocks, below=2**bits, seed=1), bits), None),
            "floats": ((scales(N, blocks) * 2**bits).astype(self.scales.dtype), None),
        }[zero]
        if zero == "packed":
            points = whole_numbers(N, blocks, below=2**bits, seed=1)
        elif zero == "floats":
            points = self.zero_points.astype(np.float64)
        self.attributes = {"K": K, "N": N, "bits": bits, "block_size": block_size}
        self.numbers, self.points = numbers[:, :K], points

    def product(self, A, block=None):
        """A times the transposed matrix, in float64; `block` gives the block of each element along K."""
        block = np.arange(self.attributes["K"]) // self.attributes["block_size"] if block is None else block
        matrix = (self.numbers - self.points[:, block]) * self.scales.astype(np.float64)[:, block]
        return A.astype(np.float64) @ matrix.T

    @property
    def inputs(self):
        return self.B, self.scales, self.zero_points


def check(A, weights, *rest, dtype="float32", constant=(1, 2, 3), **settings):
    inputs = (A, *weights.inputs, *rest)
    constant = [index for index in constant if index < len(inputs) and inputs[index] is not None]
    settings = {"tolerance": TOLERANCE[dtype], **weights.attributes, **settings}
    return check_node(MATMUL, *inputs, constant=constant, output_types=[dtype], **settings)


@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 256])
@pytest.mark.parametrize(
    ("bits", "zero"), [(bits, zero) for bits in (2, 4, 8) for zero in (None, "packed", "floats")][:-1]
)
def test_widths_and_blocks(rows, block_size, bits, zero):
    check(floats(rows, 200), Weights(200, bits, block_size, zero))


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("block_size", [16, 32, 256])
@pytest.mark.parametrize("zero", [None, "packed", "floats"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves(rows, block_size, zero, dtype):
    A, weights = floats(rows, 128, dtype=dtype), Weights(128, 4, block_size, zero, dtype)
    expected = [weights.product(A).astype(A.dtype)]
    check(A, weights, dtype=dtype, reference=expected)


@pytest.mark.parametrize("shape", [(64,), (2, 64), (2, 3, 64), (0, 64), (2, 0, 64)])
@pytest.mark.parametrize("block_size", [16, 32])
def test_shapes_of_the_rows(shape, block_size):
    A, weights = floats(*shape), Weights(64, 4, block_size, None)
    check(A, weights, reference=[weights.product(A).astype("float32")])


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_weights_that_are_no_constants(block_size, bits):
    check(floats(3, 64), Weights(64, bits, block_size, "packed"), constant=(), dynamic=True)


@pytest.mark.parametrize("rows", [1, 9])
def test_a_bias(rows):
    check(floats(rows, 64), Weights(64, 4, 32, "packed"), None, floats(N), accuracy_level=1)


@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("zero", [None, "packed"])
def test_blocks_in_another_order(block_size, zero):
    order = np.random.default_rng(0).permutation(np.arange(128) // block_size).astype(np.int32)
    A, weights = floats(3, 128), Weights(128, 4, block_size, zero)
    check(A, weights, order, constant=(1, 2, 3, 4), reference=[weights.product(A, order).astype("float32")])


def test_flat_parameters():
    A, weights = floats(3, 64), Weights(64, 4, 32, "packed")
    flat = (each.reshape(-1) for each in weights.inputs[1:])
    expected = [weights.product(A).astype("float32")]
    check_node(MATMUL, A, weights.B, *flat, reference=expected, output_types=["float32"], **weights.attributes)


@pytest.mark.parametrize("with_bias", [False, True])
def test_no_weights_are_zeros(with_bias):
    bias = floats(N) if with_bias else None
    inputs = floats(3, 64), np.zeros((N, 2, 0), np.uint8), np.zeros((N, 0), np.float32), None, None, bias
    expected = [np.broadcast_to(bias if with_bias else np.float32(0), (3, N))]
    check_node(MATMUL, *inputs, K=64, N=N, block_size=32, reference=expected, output_types=["float32"])


def test_what_is_declined():
    weights = Weights(64, 4, 32, None)
    inputs = floats(3, 64), weights.B, weights.scales
    for because, attributes in {
        "weights of 3 bits": {"bits": 3},
        "block_size 48": {"block_size": 48},
        "layout of CUDA kernels": {"weight_prepacked": 1},
    }.items():
        check_declined(
            MATMUL, *inputs, because=because, output_types=["float32"], **{**weights.attributes, **attributes}
        )


def test_illegal_data():
    weights = Weights(64, 4, 32, None)
    check_error(MATMUL, floats(3, 63), *weights.inputs[:2], match="A", **weights.attributes)
    check_error(MATMUL, floats(3, 64), weights.B[1:], weights.scales, match="B of shape", **weights.attributes)
    order = np.full(64, 2, np.int32)
    check_error(MATMUL, floats(3, 64), *weights.inputs[:2], None, order, match="g_idx", **weights.attributes)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_matmul_in_a_session(dtype):
    weights = Weights(128, 4, 32, "packed", dtype)
    A = floats(2, 3, 128, dtype=dtype)
    expected = [weights.product(A).astype(dtype)]
    check_session(MATMUL, A, *weights.inputs, expected=expected, dtype=dtype, constant=[1, 2, 3], **weights.attributes)


INDICES = {"scalar": np.array(3), "vector": np.array([0, 5, -1]), "matrix": np.array([[0, -6], [2, 2]], np.int32)}


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("indices", INDICES.values(), ids=INDICES)
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_of_bytes(bits, block_size, indices, zero, dtype):
    blocks = 64 // block_size
    data = packed(whole_numbers(6, 3, 64, below=2**bits), bits)
    points = packed(whole_numbers(6, 3, blocks, below=2**bits, seed=1), bits) if zero else None
    check_node(
        GATHER,
        data,
        indices,
        scales(6, 3, blocks, dtype=dtype),
        points,
        bits=bits,
        block_size=block_size,
        quantize_axis=2,
        constant=[0, 2, 3] if zero else [0, 2],
        output_types=[dtype],
        tolerance=TOLERANCE[dtype],
    )


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize(("gathered", "quantized"), [(0, 1), (0, 2), (1, 0), (2, 1), (-1, 0), (1, -1), (1, 1)])
@pytest.mark.parametrize("zero", [False, True])
def test_rows_of_numbers_below_a_byte(kind, gathered, quantized, zero):
    low, high = (-8, 8) if kind == "int4" else (0, 16)
    generator = np.random.default_rng(0)
    data = generator.integers(low, high, (6, 32, 7)).astype(getattr(ml_dtypes, kind))
    shape = [6, 32, 7]
    shape[quantized] = -(-shape[quantized] // 16)
    points = generator.integers(low, high, shape).astype(getattr(ml_dtypes, kind)) if zero else None
    check_node(
        GATHER,
        data,
        np.array([1, 0, 5]),
        scales(*shape),
        points,
        block_size=16,
        gather_axis=gathered,
        quantize_axis=quantized,
        constant=[0, 2, 3] if zero else [0, 2],
        output_types=["float32"],
    )


@pytest.mark.parametrize(
    "kind", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn"]
)
@pytest.mark.parametrize("form", ["blocks", "rows", "one"])
def test_rows_of_small_floats(kind, form):
    data = floats(6, 32).astype(getattr(ml_dtypes, kind))
    shape, size = {"blocks": ((6, 2), 16), "rows": ((6, 1), 0), "one": ((1, 1), 0)}[form]
    check_node(
        GATHER,
        data,
        np.array([[1, 0], [5, 2]]),
        scales(*shape),
        block_size=size,
        constant=[0, 2],
        output_types=["float32"],
    )


def test_an_index_out_of_range_gives_zeros():
    data, points = packed(whole_numbers(6, 32, below=16), 4), packed(whole_numbers(6, 2, below=16), 4)
    indices = np.array([0, 6, -7, 5, 1000])
    found, *_ = check_node(
        GATHER, data, indices, scales(6, 2), points, block_size=16, constant=[0, 2, 3], output_types=["float32"]
    )
    assert not found[[1, 2, 4]].any() and found[[0, 3]].any()


def test_rows_that_are_declined():
    data = packed(whole_numbers(6, 32, below=16), 4)
    inputs = data, np.array([1]), scales(6, 2)
    for because, attributes in {
        "numbers of 3 bits": {"bits": 3},
        "block_size 8": {"block_size": 8},
        "along axis 0 only": {"gather_axis": 1, "quantize_axis": 0},
    }.items():
        check_declined(GATHER, *inputs, because=because, output_types=["float32"], **{"block_size": 16, **attributes})


def test_rows_in_a_session():
    data, points = packed(whole_numbers(6, 32, below=16), 4), packed(whole_numbers(6, 2, below=16), 4)
    check_session(GATHER, data, np.array([[1, 5]]), scales(6, 2), points, block_size=16, constant=[0, 2, 3])
