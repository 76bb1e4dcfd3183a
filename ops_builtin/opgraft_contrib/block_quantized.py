"""Weights of 2, 4 or 8 bits in blocks, each block with a scale and a zero point: products with them, rows of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import mlx.core as mx

from opgraft.ops import FLOAT8, FLOATS, INTEGERS, Context, op
from opgraft_ops import _narrow
from opgraft_ops._folding import widened
from opgraft_ops._shared import between
from opgraft_ops._sizes import check_shape, counted

SMALL_FLOATS = FLOATS - {"float64"}
WIDTHS = (2, 4, 8)

LARGEST_GROUP = 128
"""MLX has groups of 32, 64 and 128 elements to a scale: a larger block is several of them."""

FEW_ROWS = 4
"""Up to so many rows MLX's CPU multiplies packed weights faster than it unpacks them: 5 ms a row against 17 ms in all,
for 2048 x 2048 weights of 4 bits."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix, or a stack of them, of whole numbers in MLX's packed form.

    Attributes:
        words: (..., N, K * bits / 32), uint32.
        scales, biases: (..., N, K / group): an element is scale * number + bias.
        group: how many elements along K share a scale.
        bits: the width of a number.
    """

    words: mx.array
    scales: mx.array
    biases: mx.array
    group: int
    bits: int

    @property
    def width(self) -> int:
        """K, with what fills the last block."""
        return self.words.shape[-1] * 32 // self.bits

    def unpacked(self) -> mx.array:
        """The elements, (..., N, K)."""
        return mx.dequantize(self.words, self.scales, self.biases, self.group, self.bits)

    def times(self, rows: mx.array, device: str) -> mx.array:
        """rows (..., width) times the transposed matrix."""
        # MLX's CUDA kernels take no float32 rows beside packed numbers.
        if prod(rows.shape[:-1]) > FEW_ROWS if device == "cpu" else rows.dtype == mx.float32:
            return rows @ mx.swapaxes(self.unpacked(), -1, -2)
        return mx.quantized_matmul(rows, self.words, self.scales, self.biases, True, self.group, self.bits)


def packed(blobs: mx.array, scales: mx.array, zero_points: mx.array, block_size: int, bits: int) -> Packed:
    """Bytes (..., N, K * bits / 8) with numbers from the lowest bits on, as MLX packs them: byte for byte the same.

    Args:
        scales, zero_points: (..., N, blocks), of one floating-point type.
        block_size: 32, or a larger power of two.
    """
    group = min(block_size, LARGEST_GROUP)
    scales, zero_points = (mx.repeat(each, block_size // group, axis=-1) for each in (scales, zero_points))
    return Packed(mx.contiguous(blobs).view(mx.uint32), scales, -scales * zero_points, group, bits)


def numbers(blobs: mx.array, bits: int) -> mx.array:
    """Bytes (..., n) as the whole numbers packed into them, from the lowest bits on: (..., n * 8 / bits), uint8."""
    if bits == 8:
        return blobs
    shifts = mx.arange(0, 8, bits, dtype=mx.uint8)
    apart = (blobs[..., None] >> shifts) & (2**bits - 1)
    return mx.reshape(apart, (*blobs.shape[:-1], -1))


def zero_points_of(given: mx.array | None, scales: mx.array, bits: int) -> mx.array:
    """The zero point of each scale, in its element type.

    Args:
        given: packed along the last axis (uint8), one for each scale (a float), or None for the middle of the range.
        scales: (..., blocks).
    """
    if given is None:
        return mx.full(scales.shape, 2 ** (bits - 1), scales.dtype)
    if given.dtype != mx.uint8:
        return mx.reshape(given, scales.shape).astype(scales.dtype)
    blocks = scales.shape[-1]
    rows = mx.reshape(given, (*scales.shape[:-1], -(-blocks * bits // 8)))
    return numbers(rows, bits)[..., :blocks].astype(scales.dtype)


@op(
    "com.microsoft::MatMulNBits",
    dtypes={
        **{name: SMALL_FLOATS for name in ("A", "scales", "bias")},
        "B": {"uint8"},
        "zero_points": SMALL_FLOATS | {"uint8"},
        "g_idx": {"int32"},
    },
)
def mat_mul_n_bits(
    ctx,
    A,
    B,
    scales,
    zero_points=None,
    g_idx=None,
    bias=None,
    *,
    K,
    N,
    block_size,
    bits=4,
    accuracy_level=0,
    weight_prepacked=0,
):
    """A (..., K) times the transpose of (B - zero_points) * scales, plus bias: (..., N).

    B: (N, blocks, block_size * bits / 8), numbers from the lowest bits on; scales: (N, blocks); zero_points: packed
    (N, blocks * bits / 8), or floats like the scales; g_idx: (K), the block of each element. B without elements stands
    for a matrix of zeros. com.microsoft MatMulNBits-1.
    """
    check_shape("A", A[..., None], [*[None] * (A.ndim - 1), K, 1])
    check_shape("bias", bias, [N])
    blocks = -(-K // block_size)
    if B.size and A.size:
        for name, array, size in (("B", B, N * blocks * block_size * bits // 8), ("scales", scales, N * blocks)):
            if array.size != size:
                raise ValueError(f"{name} of shape {list(array.shape)} has {array.size} elements, and must have {size}")
        result = product(ctx, A, B, scales, zero_points, g_idx, (N, K, blocks), block_size, bits)
    else:
        result = mx.zeros((*A.shape[:-1], N), A.dtype)
    result = result if bias is None else result + bias
    return result.astype(A.dtype)


mat_mul_n_bits.joins({"B": 0, "scales": 0, "zero_points": 0, "bias": 0}, rank=3, sums=("N",))


@mat_mul_n_bits.condition
def claim_mat_mul_n_bits(node):
    bits, size = node.attributes.get("bits", 4), node.attributes["block_size"]
    node.require(bits in WIDTHS, f"weights of {bits} bits: they must have 2, 4 or 8")
    node.require(is_block(size), f"block_size {size} is no power of two from 16 on")
    node.require(not node.attributes.get("weight_prepacked", 0), "weight_prepacked: B is in a layout of CUDA kernels")


def is_block(size: int) -> bool:
    """True for a power of two from 16 on."""
    return size >= 16 and not size & (size - 1)


def product(
    ctx: Context,
    A: mx.array,
    B: mx.array,
    scales: mx.array,
    zero_points: mx.array | None,
    g_idx: mx.array | None,
    sizes: tuple[int, int, int],
    block_size: int,
    bits: int,
) -> mx.array:
    """What MatMulNBits computes; in float32 on the CPU, where 16-bit floats are no faster and round more often."""
    N, K, blocks = sizes
    rows = widened(A) if ctx.device == "cpu" else A

    def weights() -> Packed | mx.array:
        scale = mx.reshape(scales, (N, blocks)).astype(rows.dtype)
        zero = zero_points_of(zero_points, scale, bits)
        blobs = mx.reshape(B, (N, -1))
        if g_idx is None and block_size >= 32:
            return packed(blobs, scale, zero, block_size, bits)
        if g_idx is None:
            scale, zero = (mx.repeat(each, block_size, axis=1)[:, :K] for each in (scale, zero))
        else:
            block = between(ctx, g_idx, 0, blocks - 1, "g_idx")
            scale, zero = (mx.take(each, block, axis=1) for each in (scale, zero))
        return (numbers(blobs, bits)[:, :K].astype(rows.dtype) - zero) * scale

    matrix = ctx.cached_of("weights", (1, 2, 3, 4), weights)
    if isinstance(matrix, mx.array):
        return rows @ matrix.T
    missing = matrix.width - K
    return matrix.times(mx.pad(rows, [*[(0, 0)] * (A.ndim - 1), (0, missing)]) if missing else rows, ctx.device)


@op(
    "com.microsoft::GatherBlockQuantized",
    dtypes={
        "data": {"uint8", "int4", "uint4", "float4e2m1"} | (FLOAT8 - {"float8e8m0"}),
        "indices": INTEGERS & {"int32", "int64"},
        "scales": SMALL_FLOATS,
        "zero_points": {"uint8", "int4", "uint4"},
    },
)
def gather_block_quantized(
    ctx, data, indices, scales, zero_points=None, *, bits=4, block_size=128, gather_axis=0, quantize_axis=1
):
    """The slices of (data - zero_points) * scales at `indices` along gather_axis; an index out of range gives zeros.

    data: of rank r, bytes that hold 8 / bits numbers along the last axis, or elements below a byte, or small floats;
    scales: one for each block of block_size along quantize_axis. com.microsoft GatherBlockQuantized-1.
    """
    name = ctx.node.dtype(0)
    gathered, quantized = counted(gather_axis, data.ndim), counted(quantize_axis, data.ndim)
    size = data.shape[gathered]
    places = indices.astype(mx.int64)
    places = mx.where(places < 0, places + size, places)
    inside = (places >= 0) & (places < size)
    places = mx.clip(places, 0, max(size - 1, 0))

    def chosen(array: mx.array) -> mx.array:
        """The slices of an array, with the axes that the indices have put where the gathered one was."""
        return mx.take(array, places if array.shape[gathered] == size else mx.zeros_like(places), axis=gathered)

    parts = data, scales, zero_points
    if gathered == quantized:
        values = chosen(values_of(*parts, name, bits, quantized, block_size))
    else:
        axis = quantized + places.ndim - 1 if quantized > gathered else quantized
        values = values_of(*(None if each is None else chosen(each) for each in parts), name, bits, axis, block_size)
    mask = mx.reshape(inside, (*[1] * gathered, *inside.shape, *[1] * (data.ndim - 1 - gathered)))
    return mx.where(mask, values, 0).astype(scales.dtype)


def values_of(
    data: mx.array,
    scales: mx.array,
    zero_points: mx.array | None,
    name: str,
    bits: int,
    axis: int,
    block_size: int,
) -> mx.array:
    """(data - zero_points) * scales in float32, the parameters one for each block along `axis`; see the operator."""
    values = numbers(data, bits) if name == "uint8" else _narrow.values(data, name)
    values, length = values.astype(mx.float32), values.shape[axis]
    if zero_points is not None:
        zero = numbers(zero_points, bits) if name == "uint8" else zero_points
        values = values - spread(zero.astype(mx.float32), axis, block_size, length)
    elif name == "uint8":
        values = values - 2 ** (bits - 1)
    return values * spread(scales.astype(mx.float32), axis, block_size, length)


def spread(array: mx.array, axis: int, block_size: int, length: int) -> mx.array:
    """An array with one element for each block along `axis`, with one for each of its `length` elements."""
    if array.shape[axis] == 1:
        return array
    kept = [slice(None)] * array.ndim
    kept[axis] = slice(0, length)
    return mx.repeat(array, block_size, axis=axis)[tuple(kept)]


@gather_block_quantized.condition
def claim_gather_block_quantized(node):
    attributes, name = node.attributes, node.dtype(0)
    size, bits = attributes.get("block_size", 128), attributes.get("bits", 4)
    whole = name in FLOAT8 | {"float4e2m1"}
    node.require(is_block(size) or (whole and not size), f"block_size {size} is no power of two from 16 on")
    node.require(name != "uint8" or bits in WIDTHS, f"numbers of {bits} bits: they must have 2, 4 or 8")
    node.require(name != "uint8" or not attributes.get("gather_axis", 0), "packed bytes are gathered along axis 0 only")
    node.require(node.input(3) is None or not whole, "small floats have no zero points")
