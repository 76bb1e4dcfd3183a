"""Attention, rotary embeddings, linear attention and causal convolutions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import check_refused

from opgraft.testing import check_declined, check_node, node_model, reference_outputs

BATCH, HEADS, GROUPS, QUERIES, KEYS, SIZE = 2, 4, 2, 3, 5, 8


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def heads(keys=KEYS, queries=QUERIES, value_size=SIZE, kv_heads=GROUPS, dtype=np.float32):
    return [
        normal(BATCH, HEADS, queries, SIZE, seed=1, dtype=dtype),
        normal(BATCH, kv_heads, keys, SIZE, seed=2, dtype=dtype),
        normal(BATCH, kv_heads, keys, value_size, seed=3, dtype=dtype),
    ]


def past(length=4, value_size=SIZE):
    return [normal(BATCH, GROUPS, length, SIZE, seed=4), normal(BATCH, GROUPS, length, value_size, seed=5)]


def check(*inputs, opset=24, outputs=1, **attributes):
    return check_node("Attention", *inputs, opset=opset, outputs=outputs, **attributes)


each_opset = pytest.mark.parametrize("opset", [23, 24])
each_depth = pytest.mark.parametrize("outputs", [1, 3, 4])


@each_opset
@each_depth
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("attributes", [{}, {"is_causal": 1}, {"scale": 0.3}, {"softcap": 0.7}])
def test_heads_that_share_keys(opset, outputs, kv_heads, attributes):
    mode = {"qk_matmul_output_mode": 1} if "softcap" in attributes else {}
    check(*heads(kv_heads=kv_heads, value_size=6), opset=opset, outputs=outputs, **attributes, **mode)


@each_opset
@each_depth
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("keys", [QUERIES, 1, 5])
@pytest.mark.parametrize("length", [0, 4])
def test_past_keys_and_values(opset, outputs, causal, keys, length):
    reference = "cpu" if length else "onnx"
    check(
        *heads(keys), None, *past(length), opset=opset, outputs=max(outputs, 3), is_causal=causal, reference=reference
    )


MASKS = {
    "of all": (BATCH, HEADS, QUERIES, KEYS),
    "of batches": (BATCH, 1, QUERIES, KEYS),
    "of heads": (HEADS, QUERIES, KEYS),
    "of queries": (QUERIES, KEYS),
}


@each_opset
@each_depth
@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("kind", ["bool", "float32"])
@pytest.mark.parametrize("causal", [0, 1])
def test_masks(opset, outputs, shape, kind, causal):
    mask = normal(*shape) > -0.5 if kind == "bool" else (2 * normal(*shape)).astype(kind)
    check(*heads(), mask, opset=opset, outputs=outputs, is_causal=causal)


@each_depth
@pytest.mark.parametrize("shape", [(1, HEADS, 1, KEYS), (KEYS,), (1, KEYS), (BATCH, 1, 1, KEYS)])
@pytest.mark.parametrize("kind", ["bool", "float32"])
def test_masks_that_are_spread_over_queries(outputs, shape, kind):
    mask = normal(*shape) > -0.5 if kind == "bool" else normal(*shape)
    check(*heads(), mask, outputs=outputs, reference="onnx")


@each_depth
@pytest.mark.parametrize("kind", ["bool", "float32"])
@pytest.mark.parametrize("causal", [0, 1])
def test_masks_shorter_than_the_keys(outputs, kind, causal):
    mask = normal(QUERIES, 3) > -0.5 if kind == "bool" else normal(QUERIES, 3)
    check(*heads(), mask, outputs=outputs, reference="onnx", is_causal=causal)


@each_opset
@each_depth
@pytest.mark.parametrize("mode", [1, 3])
@pytest.mark.parametrize("kind", ["bool", "float32"])
def test_a_query_that_may_attend_nothing_gives_zeros(opset, outputs, mode, kind):
    mask = np.ones((QUERIES, KEYS), bool)
    mask[1] = False
    given = mask if kind == "bool" else np.where(mask, 0, -np.inf).astype(np.float32)
    first, *_ = check(*heads(), given, opset=opset, outputs=outputs, qk_matmul_output_mode=mode)
    assert (first[:, :, 1] == 0).all() and (first[:, :, 0] != 0).all()


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
def test_scores_as_an_output(mode, softcap):
    query, key, value = heads(kv_heads=HEADS)
    mask = normal(QUERIES, KEYS)
    raw = query @ key.transpose(0, 1, 3, 2) / np.sqrt(np.float32(SIZE))
    capped = softcap * np.tanh(raw / softcap) if softcap else raw
    masked = capped + mask
    weights = np.exp(masked) / np.exp(masked).sum(-1, keepdims=True)
    expected = [weights @ value, key, value, (raw, capped, masked, weights)[mode]]
    check(query, key, value, mask, outputs=4, qk_matmul_output_mode=mode, softcap=softcap, reference=expected)


@each_opset
@each_depth
@pytest.mark.parametrize("causal", [0, 1])
def test_three_dimensions(opset, outputs, causal):
    query, key, value = normal(BATCH, QUERIES, HEADS * SIZE), normal(BATCH, KEYS, 16), normal(BATCH, KEYS, 12)
    sizes = {"q_num_heads": HEADS, "kv_num_heads": GROUPS}
    check(query, key, value, opset=opset, outputs=outputs, is_causal=causal, **sizes)
    check(query, key, value, None, *past(4, 6), opset=opset, outputs=max(outputs, 3), is_causal=causal, **sizes)


@each_depth
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("valid", [(3, 5), (1, 4), (5, 5)])
@pytest.mark.parametrize("mask", [None, (QUERIES, KEYS), (BATCH, 1, QUERIES, KEYS)])
def test_keys_that_are_padding(outputs, causal, valid, mask):
    check(
        *heads(),
        None if mask is None else normal(*mask),
        None,
        None,
        np.array(valid, np.int64),
        outputs=1 if outputs < 4 else 4,
        is_causal=causal,
        qk_matmul_output_mode=3,
    )


@each_depth
@pytest.mark.parametrize("left", [-1, 0, 2])
@pytest.mark.parametrize("right", [-1, 0, 1])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("cache", ["none", "past", "padded", "mask"])
def test_windows(outputs, left, right, causal, cache):
    extra = {
        "none": [],
        "past": [None, *past()],
        "padded": [None, None, None, np.array([3, 5], np.int64)],
        "mask": [normal(QUERIES, KEYS)],
    }[cache]
    outputs = 1 if cache == "padded" and outputs == 3 else max(outputs, 3) if cache == "past" else outputs
    check(
        *heads(),
        *extra,
        opset=25,
        outputs=outputs,
        left_window_size=left,
        right_window_size=right,
        is_causal=causal,
        reference="onnx",
    )


@each_depth
@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("attributes", [{}, {"is_causal": 1}, {"softcap": 1.5, "qk_matmul_output_mode": 1}])
def test_element_types(outputs, dtype, attributes):
    tolerance = 3e-3 if dtype == "float16" else 1e-9
    check(*heads(dtype=dtype), outputs=outputs, reference="onnx", tolerance=tolerance, **attributes)


@each_depth
@pytest.mark.parametrize(("precision", "tolerance"), [(1, 1e-5), (10, 1e-3), (11, 1e-5)])
def test_precision_of_the_softmax(outputs, precision, tolerance):
    check(
        *heads(),
        outputs=outputs,
        softmax_precision=precision,
        qk_matmul_output_mode=3,
        reference="onnx",
        tolerance=tolerance,
    )


@each_depth
def test_sizes_known_only_at_run_time(outputs):
    check(*heads(), normal(QUERIES, KEYS), outputs=outputs, is_causal=1, dynamic=True)
    check(*heads(1, 1), None, *past(), outputs=max(outputs, 3), is_causal=1, dynamic=True)


@each_depth
@pytest.mark.parametrize("causal", [0, 1])
def test_nobody_attends(outputs, causal):
    query, key, value = heads(5, 0, 6)
    zeros = np.zeros((BATCH, HEADS, 0, 6), np.float32)
    scores = np.zeros((BATCH, HEADS, 0, 5), np.float32)
    check(query, key, value, outputs=outputs, is_causal=causal, reference=[zeros, key, value, scores][:outputs])


@pytest.mark.parametrize("queries", [0, 3])
def test_nothing_to_attend(queries):
    check_refused("Attention", *heads(0, queries, 6), opset=24, match="leave nothing to attend", dynamic=True)


def test_what_attention_declines():
    query, key, value = heads()
    check_declined(
        "Attention", query, key, value.astype(np.float16), opset=24, because="are mixed", output_types=["float32"]
    )
    check_declined(
        "Attention", query, key, value, normal(3, 5).astype(np.float16), opset=24, because="a mask of float16"
    )
    check_declined("Attention", query, key, value, np.ones((3, 5), np.int32), opset=24, because="a mask of int32")
    check_declined("Attention", query, key, value, opset=24, scale=-1.0, because="scale is -1.0")
    check_declined("Attention", query, key, value, opset=24, scale=0.0, because="scale is 0.0")
    check_declined("Attention", query, key, value, opset=24, softcap=-1.0, because="softcap is -1.0")
    check_declined("Attention", query, key, value, opset=24, is_causal=2, because="is_causal")
    check_declined("Attention", query, key, value, opset=24, softmax_precision=7, because="softmax_precision")
    check_declined(
        "Attention", query, key, value, None, past()[0], opset=24, because="only together", output_types=["float32"]
    )
    lengths = np.array([3, 5], np.int64)
    check_declined("Attention", query, key, value, None, *past(), lengths, opset=24, outputs=3, because="given both")


@given(
    st.sampled_from([1, 2, 4]),
    st.integers(1, 4),
    st.integers(1, 6),
    st.sampled_from([None, 0, 3]),
    st.sampled_from([None, "bool", "float32"]),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.8]),
)
def test_any_mixture(kv_heads, queries, keys, length, mask, spread, outputs, mode, softcap):
    query, key, value = heads(keys, queries, 6, kv_heads)
    cache = [] if length is None else [normal(BATCH, kv_heads, length, SIZE), normal(BATCH, kv_heads, length, 6)]
    shape = [1 if one else size for one, size in zip(spread, (BATCH, HEADS, queries), strict=True)] + [
        keys + (length or 0)
    ]
    bias = None if mask is None else normal(*shape) > -1 if mask == "bool" else normal(*shape)
    outputs = max(outputs, 3) if cache else outputs
    if mode == 0 and softcap:
        mode = 1  # the reference gives capped scores for mode 0 too
    attributes = {"qk_matmul_output_mode": mode, "softcap": softcap, "is_causal": int(spread[0])}
    # With is_causal, the reference takes the number of queries from the mask: it gets the whole one.
    whole = None if bias is None else np.broadcast_to(bias, (BATCH, HEADS, queries, shape[-1]))
    inputs = [query, key, value, whole, *cache]
    model = node_model("Attention", inputs, opset=24, outputs=outputs, **attributes)
    expected = reference_outputs(
        model, {f"x{index}": each for index, each in enumerate(inputs) if each is not None}, "onnx"
    )
    check(query, key, value, bias, *cache, outputs=outputs, reference=expected, **attributes)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_rotary_embedding(dtype, interleaved, width, positions, flat):
    half = (width or SIZE) // 2
    angles = normal(9, half) if positions else normal(BATCH, QUERIES, half)
    inputs = [normal(BATCH, QUERIES, HEADS * SIZE) if flat else normal(BATCH, HEADS, QUERIES, SIZE)]
    inputs = [each.astype(dtype) for each in (*inputs, np.cos(angles), np.sin(angles))]
    if positions:
        inputs.append(np.array([[0, 3, 8], [2, 2, 1]], np.int64))
    sizes = {"num_heads": HEADS} if flat else {}
    tolerance = 1e-5 if dtype == "float32" else 2e-3
    check_node(
        "RotaryEmbedding",
        *inputs,
        opset=23,
        interleaved=interleaved,
        rotary_embedding_dim=width,
        reference="onnx",
        tolerance=tolerance,
        **sizes,
    )


def test_rotary_embedding_against_onnxruntime():
    angles = normal(9, SIZE // 2)
    inputs = [normal(BATCH, HEADS, QUERIES, SIZE), np.cos(angles), np.sin(angles), np.array([[0, 3, 8], [2, 2, 1]])]
    check_node("RotaryEmbedding", *inputs, opset=23)
    check_node("RotaryEmbedding", *inputs, opset=23, dynamic=True, constant=(1, 2))


RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("variant", ["plain", "past, wide", "float16"])
def test_linear_attention(rule, steps, kv_heads, variant):
    decays, corrects = RULES[rule]
    wide = variant == "past, wide"
    dtype = np.float16 if variant == "float16" else np.float32
    inputs = [
        normal(BATCH, steps, 4 * 6),
        normal(BATCH, steps, kv_heads * 6) / 3,
        normal(BATCH, steps, kv_heads * 5),
        normal(BATCH, kv_heads, 6, 5) if wide else None,
        -np.abs(normal(BATCH, steps, kv_heads * (6 if wide else 1))) if decays else None,
        np.abs(normal(BATCH, steps, 1 if wide else kv_heads)) / 2 if corrects else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    check_node(
        "LinearAttention",
        *(None if each is None else each.astype(dtype) for each in inputs),
        opset=27,
        outputs=2,
        q_num_heads=4,
        kv_num_heads=kv_heads,
        update_rule=rule,
        scale=0.5 if wide else 0.0,
        reference="onnx",
        tolerance=1e-5 if dtype == np.float32 else 1e-3,
    )


def test_linear_attention_over_no_steps():
    state = normal(BATCH, 2, 6, 5)
    empty = [np.zeros((BATCH, 0, 12), np.float32)] * 2 + [np.zeros((BATCH, 0, 10), np.float32)]
    check_node(
        "LinearAttention",
        *empty,
        state,
        opset=27,
        outputs=2,
        q_num_heads=2,
        kv_num_heads=2,
        update_rule="linear",
        reference=[np.zeros((BATCH, 0, 10), np.float32), state],
    )


def test_what_linear_attention_declines():
    inputs = [normal(BATCH, 3, 12), normal(BATCH, 3, 12), normal(BATCH, 3, 10)]
    sizes = {"opset": 27, "outputs": 2, "q_num_heads": 2, "kv_num_heads": 2, "output_types": ["float32"] * 2}
    check_declined("LinearAttention", *inputs, because="needs input decay", **sizes)
    check_declined("LinearAttention", *inputs, because="none that ONNX knows", update_rule="other", **sizes)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("activation", ["none", "silu", "swish"])
@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_causal_convolution_with_state(size, length, activation, optional, dtype):
    inputs = [normal(BATCH, 3, length), normal(3, 1, size)]
    if optional:
        inputs += [normal(3), normal(BATCH, 3, size - 1)]
    check_node(
        "CausalConvWithState",
        *(each.astype(dtype) for each in inputs),
        opset=27,
        outputs=2,
        activation=activation,
        reference="onnx",
        tolerance=1e-5 if dtype == "float32" else 2e-3,
    )


def test_causal_convolution_goes_on_where_it_stopped():
    weight, sequence = normal(3, 1, 4), normal(BATCH, 3, 6)
    whole, last = check_node("CausalConvWithState", sequence, weight, opset=27, outputs=2, reference="onnx")
    first, state = check_node("CausalConvWithState", sequence[..., :2], weight, opset=27, outputs=2, reference="onnx")
    second, end = check_node(
        "CausalConvWithState", sequence[..., 2:], weight, None, state, opset=27, outputs=2, reference="onnx"
    )
    np.testing.assert_allclose(np.concatenate([first, second], axis=2), whole, atol=1e-6)
    np.testing.assert_array_equal(end, last)


@pytest.mark.parametrize("position", [-1, 5, 10**9, -(10**9), 2**62])
def test_positions_that_are_not_there(position):
    x, cache = np.ones((1, 2, 3, 4), np.float32), np.ones((5, 2), np.float32)
    inputs = x, cache, cache, np.array([[0, 1, position]])
    check_refused("RotaryEmbedding", *inputs, opset=23, index=3, match="position_ids must lie between 0 and 4")


@pytest.mark.parametrize(
    ("x", "cache", "positions", "attributes"),
    [
        ((1, 2, 3, 4), (5, 1), (1, 3), {}),
        ((1, 2, 3, 4), (5, 2), (1, 2), {}),
        ((1, 2, 3, 4), (5, 2), (3,), {}),
        ((2, 2, 3, 4), (5, 2), (1, 3), {}),
        ((1, 2, 3, 4), (5, 3), (1, 3), {"rotary_embedding_dim": 6}),
        ((1, 2, 3, 4), (1, 1, 2), None, {}),
        ((2, 2, 3, 4), (1, 3, 2), None, {}),
        ((1, 2, 3, 4), (5, 2), None, {}),
    ],
)
def test_rotations_that_do_not_fit(x, cache, positions, attributes):
    inputs = [np.ones(x, np.float32), *[np.ones(cache, np.float32)] * 2]
    inputs += [] if positions is None else [np.zeros(positions, np.int64)]
    check_refused("RotaryEmbedding", *inputs, opset=23, match="must have|do not make pairs", dynamic=True, **attributes)


@pytest.mark.parametrize("length", [-1, 4, 10**9])
def test_lengths_of_keys_that_are_not_there(length):
    inputs = [*[normal(1, 2, 3, 4)] * 3, None, None, None, np.array([length])]
    check_refused("Attention", *inputs, opset=24, index=6, match="nonpad_kv_seqlen must lie between 0 and 3")
