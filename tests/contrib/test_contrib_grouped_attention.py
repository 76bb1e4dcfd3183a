"""GroupQueryAttention, against ONNX Runtime's CPU provider, or NumPy in float64 where it has no kernel."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import onnx
import pytest
from contrib_kit import TOLERANCE, check_error, check_session, floats, int32

from opgraft.engine import read_model
from opgraft.errors import TranslationError
from opgraft.ops import Context, to_device
from opgraft.testing import (
    assert_same,
    check_declined,
    check_model,
    check_node,
    decisions_for,
    node_model,
    reference_outputs,
    run_model,
)
from opgraft_contrib.grouped_attention import group_query_attention

GROUPED = "com.microsoft::GroupQueryAttention"
HEADS, KV_HEADS, SIZE, PLACES = 4, 2, 16, 20
NAMES = (
    *(
        "query",
        "key",
        "value",
        "past_key",
        "past_value",
        "seqlens_k",
        "total_sequence_length",
        "cos_cache",
        "sin_cache",
    ),
    *("position_ids", "attention_bias", "head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight"),
    "query_seqlens",
)

PHASES = {
    "a prompt": (5, None, (5, 5)),
    "a prompt after nothing": (5, 0, (5, 5)),
    "a lone prompt": (5, None, (5,)),
    "a first token": (1, None, (1, 1)),
    "a step of one that grows": (1, 6, (7,)),
    "a step of two that grow": (1, 6, (7, 7)),
    "a step of two that grow to other lengths": (1, 6, (7, 4)),
    "a stretch of one that grows": (3, 6, (9,)),
    "a step in buffers": (1, 12, (7, 4)),
    "the last step in buffers": (1, 12, (12, 1)),
    "a stretch in buffers": (3, 12, (9,)),
    "a prompt in buffers": (5, 12, (5, 5)),
}
"""How many new tokens there are, how long the caches are before, and each sequence with its new tokens."""

each_phase = pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES)
one_or_apart = pytest.mark.parametrize("as_one", [False, True])


def caches(batch, length, totals, new, dtype="float32"):
    """Caches of a past, zeros where it ends: what is there is nobody's business, and the CPU provider clears it."""
    found = [floats(batch, KV_HEADS, length, SIZE, dtype=dtype, seed=seed) for seed in (4, 5)]
    for cache in found:
        for row, total in enumerate(totals):
            cache[row, :, max(total - new, 0) :] = 0
    return found


def inputs_of(phase, as_one=False, dtype="float32", rotary=False, **more):
    """The inputs of a node, in order, None where there is none."""
    new, before, totals = phase
    batch = len(totals)
    given = {"seqlens_k": int32(*totals) - 1, "total_sequence_length": int32(max(totals)), **more}
    if as_one:
        given["query"] = floats(batch, new, (HEADS + 2 * KV_HEADS) * SIZE, dtype=dtype)
    else:
        widths = {"query": HEADS, "key": KV_HEADS, "value": KV_HEADS}
        for seed, (name, heads) in enumerate(widths.items()):
            given[name] = floats(batch, new, heads * SIZE, dtype=dtype, seed=seed)
    if before is not None:
        given["past_key"], given["past_value"] = caches(batch, before, totals, new, dtype)
    if rotary:
        for seed, name in enumerate(("cos_cache", "sin_cache"), 6):
            given[name] = floats(PLACES, SIZE // 2, dtype=dtype, seed=seed)
    used = [given.get(name) for name in NAMES]
    while used[-1] is None:
        used.pop()
    return used


def check(phase, as_one=False, dtype="float32", rotary=False, more=None, outputs=3, **settings):
    settings = {
        "num_heads": HEADS,
        "kv_num_heads": KV_HEADS,
        "do_rotary": int(rotary),
        "tolerance": TOLERANCE[dtype],
        **settings,
    }
    inputs = inputs_of(phase, as_one, dtype, rotary, **(more or {}))
    return check_node(GROUPED, *inputs, outputs=outputs, output_types=[dtype] * outputs, **settings)


@each_phase
@one_or_apart
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("window", [-1, 3])
def test_phases(phase, as_one, rotary, dtype, window):
    check(phase, as_one, dtype, rotary, local_window_size=window)


@each_phase
@one_or_apart
@pytest.mark.parametrize(
    "attributes",
    [{"softcap": 0.7}, {"smooth_softmax": 1}, {"scale": 0.3}, {"rotary_interleaved": 1}, {"causal": 0}],
    ids=lambda attributes: next(iter(attributes)),
)
def test_attributes(phase, as_one, attributes):
    check(phase, as_one, rotary=True, **attributes)


@each_phase
@pytest.mark.parametrize("softcap", [0.0, 0.7])
def test_sinks(phase, softcap):
    check(phase, more={"head_sink": floats(HEADS, seed=8)}, softcap=softcap, local_window_size=3)


@each_phase
@pytest.mark.parametrize("form", [(1, 1), (1, HEADS), (2, 1), (2, HEADS)])
def test_biases(phase, form):
    new, _, totals = phase
    shape = (min(form[0], len(totals)), form[1], new, max(totals))
    check(phase, more={"attention_bias": floats(*shape, seed=9)})


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("half", [8, SIZE // 2])
def test_rotary_embeddings_of_part_of_each_head(interleaved, half):
    more = {name: floats(PLACES, half, seed=half) for name in ("cos_cache", "sin_cache")}
    for phase in PHASES.values():
        check(phase, more=more, do_rotary=1, rotary_interleaved=interleaved)


@pytest.mark.parametrize("phase", ["a prompt", "a step in buffers", "a step of two that grow", "a stretch in buffers"])
def test_positions(phase):
    """Those of a first prompt begin where the first one does; others are taken as they are."""
    new, _, totals = PHASES[phase]
    places = np.random.default_rng(0).integers(0, 9, (len(totals), new))
    check(PHASES[phase], rotary=True, more={"position_ids": places})


@pytest.mark.parametrize("phase", ["a prompt", "a step of one that grows", "a step in buffers", "a stretch in buffers"])
@pytest.mark.parametrize("wanted", [1, 2])
@pytest.mark.parametrize("attributes", [{}, {"softcap": 0.7}, {"local_window_size": 3}, {"smooth_softmax": 1}])
def test_scores_as_an_output(phase, wanted, attributes):
    new, _, totals = PHASES[phase]
    more = {"attention_bias": floats(1, 1, new, max(totals), seed=9)} if not attributes else {}
    check(PHASES[phase], more=more, outputs=4, qk_output=wanted, **attributes)


def compared(inputs, rows, kept, **attributes):
    """Both sides' outputs, each sequence's first `rows` tokens of the first and first `kept` places of the others."""
    settings = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, **attributes}
    model = node_model(GROUPED, inputs, outputs=3, output_types=["float32"] * 3, **settings)
    feeds = {f"x{index}": each for index, each in enumerate(inputs) if each is not None}
    for number, (found, wanted) in enumerate(
        zip(run_model(model, feeds), reference_outputs(model, feeds), strict=True)
    ):
        for row, counts in enumerate(zip(rows, kept, strict=True)):
            chosen = (row, slice(counts[0])) if not number else (row, slice(None), slice(counts[1]))
            assert_same(found[chosen], wanted[chosen], TOLERANCE["float32"])


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("before", [None, 12])
def test_prompts_of_several_lengths(rotary, before):
    """Padding stands on the right; what comes of it is nobody's business."""
    lengths = (5, 3)
    inputs = inputs_of((5, before, lengths), rotary=rotary)
    compared(inputs, lengths, lengths, do_rotary=int(rotary))


@pytest.mark.parametrize("counts", [(3, 3), (2, 3), (3, 1), (1, 0)])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("window", [-1, 3])
def test_stretches_with_padding(counts, rotary, window):
    totals = np.array([6, 4]) + counts
    past = caches(2, 12, np.array([6, 4]), 0)
    more = {"query_seqlens": int32(*counts), "past_key": past[0], "past_value": past[1]}
    inputs = inputs_of((3, 12, tuple(totals)), rotary=rotary, **more)
    compared(inputs, counts, totals, do_rotary=int(rotary), local_window_size=window)


def test_norms_of_heads():
    """The CPU provider has no such weights: they are applied beforehand."""
    phase, weights = PHASES["a step in buffers"], {name: floats(SIZE, seed=len(name)) for name in ("q", "k")}
    more = {f"{name}_norm_weight": each for name, each in weights.items()}
    inputs = inputs_of(phase, rotary=True)
    normalized = list(inputs)
    for index, (name, epsilon) in enumerate((("q", 1e-3), ("k", 1e-5))):
        heads = inputs[index].reshape(2, 1, -1, SIZE)
        mean = np.mean(np.square(heads), axis=-1, keepdims=True)
        normalized[index] = (heads / np.sqrt(mean + epsilon) * weights[name]).reshape(inputs[index].shape)
    attributes = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": 1, "output_types": ["float32"] * 3}
    model = node_model(GROUPED, normalized, outputs=3, **attributes)
    expected = reference_outputs(model, {f"x{i}": each for i, each in enumerate(normalized) if each is not None})
    check(phase, rotary=True, more=more, reference=expected, q_norm_epsilon=1e-3, qk_norm_epsilon=1e-5)


def test_bfloat16():
    phase = (1, 6, (7,))
    query, key, value, *past = (each.astype(np.float64) for each in inputs_of(phase, dtype="bfloat16")[:5])
    heads = [each.reshape(1, 1, -1, SIZE).transpose(0, 2, 1, 3) for each in (query, key, value)]
    keys, values = (np.concatenate(pair, axis=2) for pair in zip(past, heads[1:], strict=True))
    scores = heads[0] @ keys.repeat(2, 1).swapaxes(2, 3) / np.sqrt(SIZE)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    result = (weights @ values.repeat(2, 1)).transpose(0, 2, 1, 3).reshape(1, 1, -1)
    kind = floats(1, dtype="bfloat16").dtype
    expected = [each.astype(kind) for each in (result, keys, values)]
    check(phase, dtype="bfloat16", reference=expected)


def quantized(phase, bits, kind, dtype="float32"):
    """The inputs and settings of a node whose caches are quantized."""
    new, before, totals = phase
    inputs = [*inputs_of((new, None, totals), rotary=True, dtype=dtype), None, None, None]
    stored, size = ("int8", SIZE) if bits == 8 else ("uint8", SIZE // 2)
    generator = np.random.default_rng(0)
    for index in (3, 4):
        inputs[index] = generator.integers(-128 if bits == 8 else 0, 127, (len(totals), KV_HEADS, before, size)).astype(
            stored
        )
        for row, total in enumerate(totals):
            inputs[index][row, :, max(total - new, 0) :] = 0
    shape = (1,) if kind == "PER_TENSOR" else (1, KV_HEADS, 1, SIZE)
    inputs += [generator.uniform(0.01, 0.05, shape).astype(np.float32) for _ in range(2)]
    settings = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": 1, "kv_cache_bit_width": bits}
    types = {"outputs": 3, "output_types": [dtype, stored, stored], "k_quant_type": kind, "v_quant_type": kind}
    return inputs, {**settings, **types}


@pytest.mark.parametrize("phase", [name for name, (_, before, _) in PHASES.items() if before is not None])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
def test_quantized_caches(phase, bits, kind):
    inputs, settings = quantized(PHASES[phase], bits, kind)
    check_node(GROUPED, *inputs, **settings)
    check_node(GROUPED, *inputs, **settings, local_window_size=3, softcap=0.7)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_caches_beside_halves(bits):
    inputs, settings = quantized(PHASES["a step in buffers"], bits, "PER_CHANNEL", "float16")
    check_node(GROUPED, *inputs, **settings, tolerance=TOLERANCE["float16"])


def held(total, capacity, size):
    """How many of `total` tokens a cache of the last ones holds, after ONNX Runtime's description."""
    leaving = capacity - size + 1
    return total if total <= capacity else total - leaving * -(-(total - capacity) // leaving)


@pytest.mark.parametrize(("size", "capacity"), [(4, 4), (4, 6), (3, 9), (1, 1)])
@pytest.mark.parametrize(
    ("new", "totals"),
    [
        *[(1, (total,)) for total in (1, 3, 5, 9, 14)],
        *[(3, (total,)) for total in (3, 7, 15)],
        *[(12, (total,)) for total in (12, 20)],
        *[(1, totals) for totals in ((1, 9), (14, 5))],
    ],
)
@pytest.mark.parametrize("rotary", [False, True])
def test_caches_of_the_last_tokens(size, capacity, new, totals, rotary):
    inputs = inputs_of((new, None, totals), rotary=rotary)
    for index in (3, 4):
        inputs[index] = floats(len(totals), KV_HEADS, capacity, SIZE, seed=index)
    after = [held(total, capacity, size) for total in totals]
    settings = {"do_rotary": int(rotary), "local_window_size": size, "sliding_window_cache": 1}
    compared(inputs, [new] * len(totals), after, **settings)


def named_model(phase, before, after, inputs):
    """A model whose caches have given names or sizes before and after."""
    model = node_model(
        GROUPED, inputs, outputs=3, output_types=["float32"] * 3, num_heads=HEADS, kv_num_heads=KV_HEADS, do_rotary=1
    )
    batch = len(phase[2])
    for value in [*model.graph.input, *model.graph.output[1:]]:
        if value.name in ("x3", "x4", "y1", "y2"):
            size = before if value.name.startswith("x") else after
            shape = [batch, KV_HEADS, size, SIZE]
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, shape))
    return model


@pytest.mark.parametrize(
    ("phase", "before", "after"),
    [
        ("a step in buffers", "room", "room"),
        ("a step in buffers", 12, 12),
        ("a stretch in buffers", 12, 12),
        ("a step of one that grows", 6, 7),
        ("a step of two that grow to other lengths", 6, 7),
        ("a stretch of one that grows", 6, 9),
        ("a step in buffers", "past", "total"),
        ("a step of two that grow", "past", "total"),
    ],
)
def test_what_a_model_says_of_its_caches(phase, before, after):
    """Where it says what becomes of their size, the total length need not be known to anybody but the device."""
    inputs = inputs_of(PHASES[phase], rotary=True)
    feeds = {f"x{index}": each for index, each in enumerate(inputs) if each is not None}
    model = named_model(PHASES[phase], before, after, inputs)
    (decision,) = decisions_for(model).decisions
    assert decision.claimed
    check_model(model, feeds)


def step_of(inputs):
    """One translation whose numbers the device alone knows, as a function for MLX to compile."""
    graph = named_model(PHASES["a step in buffers"], "room", "room", inputs)
    (node,) = read_model(graph, {}).nodes
    arrays = [None if each is None else to_device(each) for each in inputs]
    traces = []

    def step(query, key, value, past_key, past_value, seqlens_k, total):
        traces.append(query.shape)
        given = [query, key, value, past_key, past_value, seqlens_k, total, *arrays[7:]]
        context = Context(
            node, given, device="cpu", cache={}, constant=[False] * 9, bodies={}, random_key=lambda: mx.random.key(0)
        )
        settings = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": 1}
        return group_query_attention(context, *given, **settings)

    return mx.compile(step), traces, arrays


def test_a_step_in_buffers_is_compiled_once():
    """Positions and lengths are the device's: the next steps are other numbers for the same program."""
    phase = PHASES["a step in buffers"]
    inputs = inputs_of(phase, rotary=True)
    with mx.stream(mx.cpu):
        step, traces, arrays = step_of(inputs)
        key, value = arrays[3:5]
        expected = inputs[3:5]
        for turn in range(4):
            lengths = inputs[5] + turn
            total = int32(max(lengths) + 1)
            given = [*inputs[:3], *expected, lengths, total, *inputs[7:]]
            model = named_model(phase, "room", "room", given)
            wanted = reference_outputs(model, {f"x{i}": each for i, each in enumerate(given) if each is not None})
            found = step(*arrays[:3], key, value, mx.array(lengths), mx.array(total))
            for one, other in zip(found, wanted, strict=True):
                assert_same(np.array(one), other, TOLERANCE["float32"])
            key, value = found[1:]
            expected = wanted[1:]
    assert len(traces) == 1


def test_what_is_declined():
    attributes = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "outputs": 3, "output_types": ["float32"] * 3}
    inputs = inputs_of(PHASES["a step in buffers"])
    for because, more in {
        "sliding_window_cache needs local_window_size": {"sliding_window_cache": 1},
        "k_quant_type 'PER_TENSOR', and caches of float32": {"k_quant_type": "PER_TENSOR"},
        "none that is known": {"v_quant_type": "PER_TOKEN"},
        "smooth_softmax is 2": {"smooth_softmax": 2},
        "needs cos_cache": {"do_rotary": 1},
        "local_window_size needs causal=1": {"causal": 0, "local_window_size": 4},
        "local_window_size is 0": {"local_window_size": 0},
        "qk_output is 0": {"outputs": 4, "output_types": ["float32"] * 4},
    }.items():
        check_declined(GROUPED, *inputs, because=because, **{**attributes, **more})
    check_declined(GROUPED, *inputs[:2], None, *inputs[3:], because="key and value come only together", **attributes)
    check_declined(GROUPED, *inputs[:4], None, *inputs[5:], because="come only together", **attributes)
    check_declined(GROUPED, *inputs[:6], because="total_sequence_length is required", **attributes)
    bytes_in_caches = [each.astype(np.int8) for each in inputs[3:5]]
    kinds = {**attributes, "output_types": ["float32", "int8", "int8"]}
    check_declined(GROUPED, *inputs[:3], *bytes_in_caches, *inputs[5:], because="and caches of int8", **kinds)
    inputs, settings = quantized(PHASES["a step in buffers"], 4, "PER_TENSOR")
    check_declined(GROUPED, *inputs, because="kv_cache_bit_width 8", **{**settings, "kv_cache_bit_width": 8})
    biased = inputs_of(PHASES["a step in buffers"], attention_bias=floats(1, 1, 1, 7))
    windowed = {"sliding_window_cache": 1, "local_window_size": 4}
    check_declined(GROUPED, *biased, because="attention_bias goes by places", **attributes, **windowed)


def test_illegal_data():
    settings = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "outputs": 3}
    inputs = inputs_of(PHASES["a step in buffers"], rotary=True)
    too_long = [*inputs[:5], int32(12, 3), *inputs[6:]]
    check_error(GROUPED, *too_long, match="seqlens_k", **settings)
    check_error(GROUPED, *inputs[:5], int32(6, 3, 2), *inputs[6:], match="seqlens_k has shape", **settings)
    short = [each[:6] for each in inputs[7:9]]
    check_error(GROUPED, *inputs[:7], *short, match="positions", do_rotary=1, **settings)
    check_error(GROUPED, *inputs[:3], *(each[:1] for each in inputs[3:5]), *inputs[5:], match="a cache", **settings)
    bias = floats(1, 3, 1, 7)
    more = inputs_of(PHASES["a step in buffers"], attention_bias=bias)
    check_error(GROUPED, *more, match="attention_bias", **settings)
    windowed = {"sliding_window_cache": 1, "local_window_size": 13}
    check_error(GROUPED, *inputs[:7], match="does not hold the 13", **settings, **windowed)
    grown = inputs_of(PHASES["a step of one that grows"])
    grown[5] = int32(7)
    check_error(GROUPED, *grown, match="seqlens_k", **settings)
    grown[6] = int32(8)
    check_error(GROUPED, *grown, match="seqlens_k is not that of the past", **settings)


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("totals", [(5,), (5, 3)])
def test_a_past_that_is_padded(rotary, totals):
    """The new token goes where its sequence ends, though the cache goes on; and it grows all the same."""
    for new in (1, 2)[: 3 - len(totals)]:  # more at once, ONNX Runtime takes of a lone sequence only
        check((new, 6, totals), rotary=rotary, more={"total_sequence_length": int32(6 + new)})


@pytest.mark.parametrize("phase", ["a prompt", "a step of one that grows", "a step in buffers", "a stretch in buffers"])
@pytest.mark.parametrize("constant", [[7, 8], [6, 7, 8]])
def test_in_a_session(phase, constant):
    inputs = inputs_of(PHASES[phase], rotary=True)
    settings = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": 1}
    check_session(GROUPED, *inputs, outputs=3, constant=constant, **settings)


def test_caches_that_fit_nobody():
    inputs = inputs_of(PHASES["a step in buffers"])
    model = node_model(
        GROUPED, inputs, outputs=3, output_types=["float32"] * 3, dynamic=True, num_heads=3, kv_num_heads=KV_HEADS
    )
    feeds = {f"x{index}": each for index, each in enumerate(inputs) if each is not None}
    with pytest.raises(TranslationError, match="3 heads cannot share those of 2 keys"):
        run_model(model, feeds)
