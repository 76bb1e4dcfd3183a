"""Attention with as many heads of keys as of queries, against ONNX Runtime's CPU provider, or NumPy in float64 where it
has no kernel."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from contrib_kit import TOLERANCE, check_error, check_session, floats, int32

from opgraft.testing import check_declined, check_node

MULTI_HEAD = "com.microsoft::MultiHeadAttention"
ATTENTION = "com.microsoft::Attention"
PACKED = "com.microsoft::PackedMultiHeadAttention"
BATCH, QUERIES, KEYS, HEADS, SIZE, PAST = 2, 3, 5, 4, 8, 4
WIDTH = HEADS * SIZE


def mask_of(*shape, seed=0):
    """A mask that leaves each query something to attend."""
    mask = np.random.default_rng([seed, *shape]).random(shape) > 0.4
    mask[..., 0] = True
    return mask.astype(np.int32)


def check(operator, *inputs, dtype="float32", outputs=1, **settings):
    settings = {"tolerance": TOLERANCE[dtype], **settings}
    return check_node(operator, *inputs, outputs=outputs, output_types=[dtype] * outputs, **settings)


def query_key_value(keys=KEYS, value_size=SIZE, dtype="float32"):
    return (
        floats(BATCH, QUERIES, WIDTH, dtype=dtype, seed=1),
        floats(BATCH, keys, WIDTH, dtype=dtype, seed=2),
        floats(BATCH, keys, HEADS * value_size, dtype=dtype, seed=3),
    )


def past(length=PAST, value_size=SIZE, dtype="float32"):
    return (
        floats(BATCH, HEADS, length, SIZE, dtype=dtype, seed=4),
        floats(BATCH, HEADS, length, value_size, dtype=dtype, seed=5),
    )


def in_heads(array):
    batch, length, width = array.shape
    return array.reshape(batch, length, HEADS, width // HEADS).transpose(0, 2, 1, 3)


def attended(query, key, value, added=0.0):
    """softmax(Q K' / sqrt(D) + added) V in float64, heads put together: (B, T, heads * D)."""
    query, key, value = (each.astype(np.float64) for each in (query, key, value))
    scores = query @ key.swapaxes(2, 3) / np.sqrt(query.shape[3]) + added
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result = (weights / weights.sum(-1, keepdims=True)) @ value
    return result.transpose(0, 2, 1, 3).reshape(query.shape[0], query.shape[2], -1)


MASKS = {
    "none": lambda keys: None,
    "lengths": lambda keys: int32(2, keys),
    "keys": lambda keys: mask_of(BATCH, keys),
    "queries and keys": lambda keys: mask_of(BATCH, QUERIES, keys),
}
each_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
each_bias = pytest.mark.parametrize("bias", [None, (1, 1), (1, HEADS), (BATCH, 1), (BATCH, HEADS)])
causal_or_not = pytest.mark.parametrize("causal", [0, 1])


@each_mask
@each_bias
@pytest.mark.parametrize("projected", [False, True])
def test_masks_and_biases(mask, bias, projected):
    added = None if bias is None else floats(*bias, QUERIES, KEYS, seed=6)
    inputs = *query_key_value(), floats(3 * WIDTH) if projected else None, mask(KEYS), added
    check(MULTI_HEAD, *inputs, num_heads=HEADS)
    check(MULTI_HEAD, *inputs, num_heads=HEADS, outputs=3, scale=0.3)


@each_mask
@causal_or_not
@pytest.mark.parametrize("outputs", [1, 3, 4])
def test_a_past(mask, causal, outputs):
    total = PAST + QUERIES
    inputs = *query_key_value(QUERIES), None, mask(total), floats(1, HEADS, QUERIES, total, seed=6), *past()
    check(MULTI_HEAD, *inputs, num_heads=HEADS, unidirectional=causal, outputs=max(outputs, 3))
    inputs = *query_key_value(QUERIES), floats(3 * WIDTH), mask(QUERIES)
    check(MULTI_HEAD, *inputs, num_heads=HEADS, unidirectional=causal, outputs=outputs)


@causal_or_not
def test_a_query_whose_keys_are_all_masked(causal):
    mask = np.zeros((BATCH, QUERIES), np.int32)
    check(MULTI_HEAD, *query_key_value(QUERIES), None, mask, num_heads=HEADS, unidirectional=causal)
    settings = {"num_heads": HEADS, "unidirectional": causal, "mask_filter_value": -3.0}
    check(MULTI_HEAD, *query_key_value(QUERIES), None, mask_of(BATCH, QUERIES), **settings)


def test_values_of_another_size():
    inputs = *query_key_value(value_size=6), floats(2 * WIDTH + HEADS * 6)
    check(MULTI_HEAD, *inputs, num_heads=HEADS, outputs=3)


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("outputs", [1, 3])
def test_keys_and_values_with_their_heads_apart(projected, outputs):
    query = floats(BATCH, QUERIES, WIDTH, seed=1)
    keys, values = past(KEYS)
    bias = floats(3 * WIDTH) if projected else None
    check(MULTI_HEAD, query, keys, values, bias, num_heads=HEADS, outputs=outputs)


@pytest.mark.parametrize("projected", [False, True])
def test_query_key_and_value_as_one(projected):
    one = floats(BATCH, QUERIES, HEADS, 3, SIZE)
    bias = floats(3 * WIDTH) if projected else np.zeros(3 * WIDTH, np.float32)
    parts = [one[:, :, :, part].transpose(0, 2, 1, 3) for part in range(3)]
    query, key, value = (
        part + each.reshape(HEADS, 1, SIZE) for part, each in zip(parts, np.split(bias, 3), strict=True)
    )
    expected = [attended(query, key, value).astype(np.float32), key, value]
    inputs = one, None, None, bias if projected else None
    check(MULTI_HEAD, *inputs, num_heads=HEADS, outputs=3, reference=expected)


def test_key_and_value_as_one():
    query, one = floats(BATCH, QUERIES, WIDTH), floats(BATCH, KEYS, HEADS, 2, SIZE)
    key, value = (one[:, :, :, part].transpose(0, 2, 1, 3) for part in range(2))
    expected = [attended(in_heads(query), key, value).astype(np.float32)]
    check(MULTI_HEAD, query, one, num_heads=HEADS, reference=expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@each_mask
def test_halves(dtype, mask):
    query, key, value = query_key_value(dtype=dtype)
    given = mask(KEYS)
    added = 0.0
    if given is not None:
        seen = np.arange(KEYS) < given[:, None] if given.ndim == 1 else given > 0
        added = np.where(seen[:, None] if seen.ndim == 3 else seen[:, None, None], 0, -10000.0)
    expected = [attended(*map(in_heads, (query, key, value)), added).astype(query.dtype)]
    check(MULTI_HEAD, query, key, value, None, given, num_heads=HEADS, dtype=dtype, reference=expected)


@pytest.mark.parametrize("length", [0, 4, 8])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_past_in_a_buffer(length, batch):
    """The new row goes to its place among 9; what lies beyond it counts for nothing."""
    query, key, value = (floats(batch, 1, WIDTH, seed=seed) for seed in range(3))
    buffers = floats(batch, HEADS, 9, SIZE, seed=4), floats(batch, HEADS, 9, SIZE, seed=5)
    present = [each.copy() for each in buffers]
    for buffer, new in zip(present, (key, value), strict=True):
        buffer[:, :, length] = in_heads(new)[:, :, 0]
    seen = [each[:, :, : length + 1] for each in present]
    expected = [attended(in_heads(query), *seen).astype(np.float32), *present]
    inputs = query, key, value, None, None, None, *buffers, int32(length)
    check(MULTI_HEAD, *inputs, num_heads=HEADS, outputs=3, reference=expected)


def test_lengths_among_starts():
    """The form (3 B + 2): the lengths of the keys stand first."""
    inputs = query_key_value()
    added = np.where(np.arange(KEYS) < np.array([2, 4])[:, None, None, None], 0, -10000.0)
    expected = [attended(*map(in_heads, inputs), added).astype(np.float32)]
    mask = int32(2, 4, 0, 3, 6, 0, 5, 10)
    check(MULTI_HEAD, *inputs, None, mask, num_heads=HEADS, reference=expected)


def test_what_multi_head_attention_declines():
    query, key, value = query_key_value(QUERIES)
    types = {"output_types": ["float32"], "num_heads": HEADS}
    rest = [None] * 3, past()
    inputs = query, key, value, *rest[0], *rest[1], int32(1), np.zeros((BATCH, 1, 9), np.int32)
    check_declined(MULTI_HEAD, *inputs, because="input 9 is not supported", **types)
    check_declined(MULTI_HEAD, query, key, because="a key needs a value", **types)
    check_declined(MULTI_HEAD, query, because="needs a key", **types)
    check_declined(MULTI_HEAD, query, key, value, *rest[0], rest[1][0], because="come only together", **types)


def test_illegal_data_of_multi_head_attention():
    query, key, value = query_key_value()
    for wrong in (mask_of(BATCH, KEYS + 1), int32(1, 2, 3), mask_of(BATCH, QUERIES, KEYS + 1)):
        check_error(MULTI_HEAD, query, key, value, None, wrong, num_heads=HEADS, match="the mask has shape")
    added = floats(BATCH, 3, QUERIES, KEYS)
    check_error(MULTI_HEAD, query, key, value, None, None, added, num_heads=HEADS, match="attention_bias")
    check_error(MULTI_HEAD, query, key, value, floats(7), num_heads=HEADS, match="bias has shape")
    inputs = query, *query_key_value(QUERIES)[1:], None, None, None, *past(9), int32(7)
    check_error(MULTI_HEAD, *inputs, num_heads=HEADS, match="past_sequence_length", outputs=3)


@pytest.mark.parametrize("outputs", [1, 3])
def test_multi_head_attention_in_a_session(outputs):
    inputs = *query_key_value(QUERIES), floats(3 * WIDTH), mask_of(BATCH, PAST + QUERIES), None, *past()
    check_session(MULTI_HEAD, *inputs, num_heads=HEADS, outputs=max(outputs, 3))


def projection(value_size=SIZE):
    width = 2 * WIDTH + HEADS * value_size
    return floats(BATCH, QUERIES, 10, seed=1), floats(10, width, seed=2), floats(width, seed=3)


WITH_STARTS = {**MASKS, "lengths and starts": lambda keys: int32(2, keys, 0, 1)}


@pytest.mark.parametrize("mask", WITH_STARTS.values(), ids=WITH_STARTS)
@causal_or_not
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("outputs", [1, 2])
def test_attention_with_its_projection(mask, causal, with_bias, outputs):
    x, weights, bias = projection()
    inputs = x, weights, bias if with_bias else None, mask(QUERIES)
    check(ATTENTION, *inputs, num_heads=HEADS, unidirectional=causal, outputs=outputs)
    added = floats(1, HEADS, QUERIES, QUERIES, seed=4)
    check(ATTENTION, *inputs, None, added, num_heads=HEADS, unidirectional=causal, outputs=outputs)


@pytest.mark.parametrize("mask", WITH_STARTS.values(), ids=WITH_STARTS)
@causal_or_not
def test_attention_with_a_past(mask, causal):
    inputs = *projection(), mask(PAST + QUERIES), np.stack(past())
    check(ATTENTION, *inputs, num_heads=HEADS, unidirectional=causal, outputs=2)


@causal_or_not
def test_attention_with_values_of_another_size(causal):
    sizes = [WIDTH, WIDTH, HEADS * 6]
    check(ATTENTION, *projection(6), num_heads=HEADS, unidirectional=causal, qkv_hidden_sizes=sizes)


def test_attention_with_a_square_mask():
    """The form (B, 1, M, M), of which the first rows and columns count."""
    x, weights, bias = projection()
    mask = mask_of(BATCH, 1, 7, 7)
    parts = map(in_heads, np.split(x.astype(np.float64) @ weights + bias, 3, axis=2))
    added = np.where(mask[..., :QUERIES, :QUERIES] > 0, 0, -10000.0)
    expected = [attended(*parts, added).astype(np.float32)]
    check(ATTENTION, x, weights, bias, mask, num_heads=HEADS, reference=expected)


@pytest.mark.parametrize("length", [0, 5])
def test_attention_with_a_past_in_a_buffer(length):
    x, weights, bias = floats(BATCH, 1, 10, seed=1), *projection()[1:]
    buffer = np.stack(past(9))
    query, key, value = map(in_heads, np.split(x.astype(np.float64) @ weights + bias, 3, axis=2))
    present = buffer.astype(np.float64)
    present[:, :, :, length] = np.stack([key, value])[:, :, :, 0]
    expected = [attended(query, *present[:, :, :, : length + 1]).astype(np.float32), present.astype(np.float32)]
    inputs = x, weights, bias, None, buffer, None, int32(length)
    settings = {"num_heads": HEADS, "past_present_share_buffer": 1, "unidirectional": 1}
    check(ATTENTION, *inputs, outputs=2, reference=expected, **settings)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_of_halves(dtype):
    x, weights, bias = (each.astype(floats(1, dtype=dtype).dtype) for each in projection())
    parts = np.split(x.astype(np.float64) @ weights.astype(np.float64) + bias.astype(np.float64), 3, axis=2)
    expected = [attended(*map(in_heads, parts)).astype(x.dtype)]
    settings = {"tolerance": 2 * TOLERANCE[dtype]} if dtype == "float16" else {}
    check(ATTENTION, x, weights, bias, num_heads=HEADS, dtype=dtype, reference=expected, **settings)


def test_what_attention_declines():
    types = {"output_types": ["float32"], "num_heads": HEADS}
    check_declined(ATTENTION, *projection(), because="do_rotary", do_rotary=1, **types)
    check_declined(ATTENTION, *projection(), because="qkv_hidden_sizes", qkv_hidden_sizes=[32, 16, 48], **types)
    inputs = *projection(), None, np.stack(past())
    check_declined(ATTENTION, *inputs, because="past_sequence_length", past_present_share_buffer=1, **types)


def test_attention_in_a_session():
    inputs = *projection(), mask_of(BATCH, PAST + QUERIES), np.stack(past())
    check_session(ATTENTION, *inputs, num_heads=HEADS, outputs=2, unidirectional=1, constant=[1, 2])


LENGTHS = {"whole": (4, 4), "ragged": (1, 4), "with an empty one": (0, 3)}


def without_padding(lengths, length=4):
    """The offsets of tokens and of padding, and where each sequence begins."""
    real = [row * length + column for row, count in enumerate(lengths) for column in range(count)]
    padding = [place for place in range(len(lengths) * length) if place not in real]
    return np.array([*real, *padding], np.int32).reshape(len(lengths), length), int32(0, *np.cumsum(lengths))


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("form", ["apart", "as one", "of two sizes"])
@each_bias
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sequences_without_padding(lengths, form, bias, dtype):
    offsets, starts = without_padding(lengths)
    tokens, value_size = sum(lengths), 6 if form == "of two sizes" else SIZE
    parts = [floats(tokens, HEADS, size, dtype=dtype, seed=size) for size in (SIZE, SIZE + 1, value_size)]
    parts[1] = floats(tokens, HEADS, SIZE, dtype=dtype, seed=9)
    inputs = [each.reshape(tokens, -1) for each in parts]
    if form == "as one":
        inputs = [np.stack(parts, axis=2), None, None]
    projected = floats(HEADS * (2 * SIZE + value_size), dtype=dtype)
    added = None if bias is None else floats(*bias, 4, 4, dtype=dtype)
    moved = [
        each.astype(np.float64) + part.astype(np.float64).reshape(HEADS, -1)
        for each, part in zip(parts, np.split(projected, [WIDTH, 2 * WIDTH]), strict=True)
    ]
    rows = []
    for number, (start, end) in enumerate(pairwise(starts)):
        if start == end:
            continue
        own = [each[start:end].transpose(1, 0, 2)[None] for each in moved]
        extra = 0.0
        if added is not None:
            extra = added[min(number, bias[0] - 1)][None, :, : end - start, : end - start].astype(np.float64)
        rows.append(attended(*own, extra)[0])
    expected = [np.concatenate(rows).astype(dtype)]
    check(PACKED, *inputs, projected, offsets, starts, added, num_heads=HEADS, dtype=dtype, reference=expected)


def test_packed_attention_in_a_session():
    offsets, starts = without_padding((2, 4))
    parts = [floats(6, HEADS, SIZE, seed=seed) for seed in range(3)]
    own = [[each[start:end].transpose(1, 0, 2)[None] for each in parts] for start, end in ((0, 2), (2, 6))]
    expected = [np.concatenate([attended(*each)[0] for each in own]).astype(np.float32)]
    inputs = *(each.reshape(6, -1) for each in parts), None, offsets, starts
    check_session(PACKED, *inputs, expected=expected, num_heads=HEADS)
    check_declined(PACKED, inputs[0], because="is required", output_types=["float32"], num_heads=HEADS)
