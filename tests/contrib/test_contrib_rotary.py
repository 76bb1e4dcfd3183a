"""Rotary embeddings, against ONNX Runtime's CPU provider, or NumPy where it has no kernel."""

from __future__ import annotations

import numpy as np
import pytest
from contrib_kit import TOLERANCE, check_error, check_session, floats

from opgraft.testing import check_declined, check_node

ROTARY = "com.microsoft::RotaryEmbedding"
GEMMA = "com.microsoft::GemmaRotaryEmbedding"
BATCH, LENGTH, HEADS, SIZE, PLACES = 2, 5, 4, 8, 9
POSITIONS = {"first": np.array([3]), "each": np.array([[0, 8, 1, 2, 2], [7, 6, 5, 4, 3]])}

each_position = pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float16"])


def caches(half=SIZE // 2, dtype="float32"):
    return floats(PLACES, half, dtype=dtype, seed=1), floats(PLACES, half, dtype=dtype, seed=2)


def check(*inputs, dtype="float32", **attributes):
    return check_node(ROTARY, *inputs, output_types=[dtype], tolerance=TOLERANCE[dtype], **attributes)


@each_dtype
@each_position
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("heads", [0, HEADS])
def test_three_dimensions(dtype, positions, interleaved, heads):
    x = floats(BATCH, LENGTH, HEADS * SIZE, dtype=dtype)
    check(x, positions, *caches(dtype=dtype), dtype=dtype, interleaved=interleaved, num_heads=heads)


@each_dtype
@each_position
@pytest.mark.parametrize("interleaved", [0, 1])
def test_four_dimensions(dtype, positions, interleaved):
    x = floats(BATCH, HEADS, LENGTH, SIZE, dtype=dtype)
    check(x, positions, *caches(dtype=dtype), dtype=dtype, interleaved=interleaved)


@each_position
@pytest.mark.parametrize("interleaved", [0, 1])
def test_part_of_each_head(positions, interleaved):
    settings = {"interleaved": interleaved, "num_heads": HEADS, "rotary_embedding_dim": 4}
    check(floats(BATCH, LENGTH, HEADS * SIZE), positions, *caches(2), **settings)


def test_bfloat16():
    x, (cosine, sine) = floats(1, 2, SIZE, dtype="bfloat16"), caches(dtype="bfloat16")
    first, second = np.split(x.astype(np.float64), 2, axis=-1)
    c, s = cosine[[4, 5]].astype(np.float64), sine[[4, 5]].astype(np.float64)
    expected = np.concatenate([c * first - s * second, s * first + c * second], axis=-1).astype(x.dtype)
    check(x, np.array([4]), cosine, sine, dtype="bfloat16", reference=[expected])


def test_positions_beyond_the_caches():
    x = floats(BATCH, LENGTH, SIZE)
    check_error(ROTARY, x, np.array([PLACES - LENGTH + 1]), *caches(), match="position_ids")
    check_error(ROTARY, x, np.full((BATCH, LENGTH), -1), *caches(), match="position_ids")
    check_error(ROTARY, x, np.zeros((BATCH, 1), np.int64), *caches(), match="position_ids")


def test_what_is_declined():
    inputs = floats(BATCH, LENGTH, SIZE), np.array([0]), *caches()
    for because, attributes in {
        "without padding": {"is_packed_batching": 1},
        "scale is 2.0": {"scale": 2.0},
        "needs num_heads": {"rotary_embedding_dim": 4},
    }.items():
        check_declined(ROTARY, *inputs, because=because, output_types=["float32"], **attributes)


@each_position
def test_in_a_session(positions):
    check_session(ROTARY, floats(BATCH, LENGTH, HEADS * SIZE), positions, *caches(), num_heads=HEADS)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("size", [4, 32])
def test_gemma(batch, heads, length, size):
    states = [floats(batch, heads, length, size, dtype="float16", seed=seed) for seed in range(4)]
    angles = floats(batch, length, size)

    def reference(emb, q, q_rot, k, k_rot):
        c, s = np.cos(emb)[:, None], np.sin(emb)[:, None]
        return (q * c + q_rot * s).astype(np.float16), (k * c + k_rot * s).astype(np.float16)

    settings = {"outputs": 2, "output_types": ["float16"] * 2, "tolerance": TOLERANCE["float16"]}
    check_node(GEMMA, angles, *states, reference=reference, **settings)


def test_gemma_in_a_session():
    states = [floats(2, 3, 4, 8, dtype="float16", seed=seed) for seed in range(4)]
    angles = floats(2, 4, 8)
    c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
    expected = [(a * c + b * s).astype(np.float16) for a, b in (states[:2], states[2:])]
    check_session(GEMMA, angles, *states, expected=expected, dtype="float16", outputs=2)
