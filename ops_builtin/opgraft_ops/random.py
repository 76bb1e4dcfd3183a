"""Random operators.

A node without a seed draws anew at every run. A node with one draws from a stream of its own, as ONNX Runtime's do: its
runs differ from each other, and a new session repeats them. The numbers are MLX's, not those of ONNX Runtime.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from opgraft.graph.element_types import NAME_OF_ONNX
from opgraft.ops import BOOL, FLOATS, INTEGERS, Anywhere, Context, Node, op
from opgraft.ops.arrays import MLX_TYPE, element_type
from opgraft_ops._sizes import check_shape


@op("RandomNormal")
def random_normal(ctx, *, shape, dtype=1, mean=0.0, scale=1.0, seed=None):
    """Numbers of the normal distribution with a mean and a standard deviation. ONNX RandomNormal-22."""
    return normal(random_key(ctx, seed), shape, NAME_OF_ONNX[dtype], mean, scale)


@op("RandomNormalLike")
def random_normal_like(ctx, input: Anywhere, *, dtype=None, mean=0.0, scale=1.0, seed=None):
    """RandomNormal in the shape of `input`, and in its element type unless dtype says another.
    ONNX RandomNormalLike-22.
    """
    return normal(random_key(ctx, seed), input.shape, output_type(input, dtype), mean, scale)


@op("RandomUniform")
def random_uniform(ctx, *, shape, dtype=1, high=1.0, low=0.0, seed=None):
    """Numbers spread evenly over [low, high). ONNX RandomUniform-22."""
    return low + (high - low) * uniform(random_key(ctx, seed), shape, NAME_OF_ONNX[dtype])


@op("RandomUniformLike")
def random_uniform_like(ctx, input: Anywhere, *, dtype=None, high=1.0, low=0.0, seed=None):
    """RandomUniform in the shape of `input`, and in its element type unless dtype says another.
    ONNX RandomUniformLike-22.
    """
    return low + (high - low) * uniform(random_key(ctx, seed), input.shape, output_type(input, dtype))


@op("Bernoulli", dtypes=FLOATS)
def bernoulli(ctx, input, *, dtype=None, seed=None):
    """1 with the probability that stands in `input`, otherwise 0. ONNX Bernoulli-22."""
    draws = uniform(random_key(ctx, seed), input.shape, "float32")
    return (draws < input).astype(MLX_TYPE[output_type(input, dtype)])


@op("Multinomial", dtypes=FLOATS)
def multinomial(ctx, input, *, dtype=6, sample_size=1, seed=None):
    """Class numbers (N, sample_size), drawn by unnormalized log-probabilities (N, classes). ONNX Multinomial-22."""
    check_shape("input", input, [None, None])
    result_type = MLX_TYPE[NAME_OF_ONNX[dtype]]
    if not input.shape[0]:
        return mx.zeros((0, sample_size), result_type)
    draws = mx.random.categorical(input.astype(mx.float32), num_samples=sample_size, key=random_key(ctx, seed))
    return draws.astype(result_type)


def random_key(ctx: Context, seed: float | None) -> mx.array:
    """A key for one draw: a new one, or the next of the stream that `seed` begins."""
    if seed is None:
        return ctx.random_key()
    draws = ctx.cached("draws", itertools.count)
    return mx.random.key(int(np.float32(seed).view(np.uint32)) << 32 | next(draws))


def normal(key: mx.array, shape: Sequence[int], dtype: str, mean: float, scale: float) -> mx.array:
    return mx.random.normal(shape, MLX_TYPE[dtype], loc=mean, scale=scale, key=key)


def uniform(key: mx.array, shape: Sequence[int], dtype: str) -> mx.array:
    """Numbers in [0, 1). MLX makes none of 64 bits: these are put together from digits that its float32 ones hold."""
    if dtype != "float64":
        return mx.random.uniform(shape=shape, dtype=MLX_TYPE[dtype], key=key)
    first, second, third = (
        mx.random.randint(0, 2**bits, shape, key=each).astype(mx.float64)
        for bits, each in zip((18, 18, 17), mx.random.split(key, 3), strict=True)
    )
    return ((third / 2**17 + second) / 2**18 + first) / 2**18


def output_type(like: mx.array, dtype: int | None) -> str:
    """The element type that `dtype` names by ONNX's number, or that of `like`."""
    return element_type(like) if dtype is None else NAME_OF_ONNX[dtype]


def claim_type(allowed: frozenset[str], node: Node) -> None:
    """Decline an output type that the operator, or MLX, does not have."""
    number = node.attributes.get("dtype")
    dtype = node.dtype(0) if number is None else NAME_OF_ONNX.get(number, f"number {number}")
    node.require(dtype is None or dtype in allowed, f"no random numbers of element type {dtype} are made")


for handler in (random_normal, random_normal_like, random_uniform, random_uniform_like):
    handler.condition(lambda node: claim_type(FLOATS, node))
bernoulli.condition(lambda node: claim_type(FLOATS | INTEGERS | BOOL, node))
multinomial.condition(lambda node: claim_type(INTEGERS | FLOATS, node))
del handler
