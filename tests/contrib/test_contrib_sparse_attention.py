"""SparseAttention against ONNX Runtime's CPU provider, which takes its caches in place; PagedAttention, which that
provider lacks, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from contrib_kit import TOLERANCE, check_error, check_session, floats, int32

from opgraft.testing import check_declined, check_node, node_model

SPARSE = "com.microsoft::SparseAttention"
PAGED = "com.microsoft::PagedAttention"
HEADS, KV_HEADS, SIZE, PLACES, BLOCK = 4, 2, 16, 64, 16

LAYOUTS = {
    "two": ([[0, 1, 3, 5, 8], [0, 1, 3, 6, 9]], [[0, 0, 1, 1, 2, 1, 2, 3, -1], [0, 0, 1, 0, 1, 2, 0, 2, 3]]),
    "one": ([[0, 1, 2, 4, 6]], [[0, 1, 0, 2, 1, 3]]),
    "dense": ([[0, 1, 3, 6, 10]], [[0, 0, 1, 0, 1, 2, 0, 1, 2, 3]]),
}

PHASES = {
    "a prompt": (40, (40, 40)),
    "a prompt that fills the caches": (64, (64, 64)),
    "a step": (1, (41, 41)),
    "a step of two lengths": (1, (20, 60)),
    "the first tokens": (1, (1, 1)),
}

SETTINGS = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "sparse_block_size": BLOCK}

each_phase = pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES)
each_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def inputs_of(phase, layout, as_one=False, rotary=False, dtype="float32"):
    new, totals = phase
    batch = len(totals)
    if as_one:
        query = [floats(batch, new, (HEADS + 2 * KV_HEADS) * SIZE, dtype=dtype), None, None]
    else:
        widths = HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE
        query = [floats(batch, new, width, dtype=dtype, seed=seed) for seed, width in enumerate(widths)]
    caches = [floats(batch, KV_HEADS, PLACES, SIZE, dtype=dtype, seed=seed) for seed in (4, 5)]
    rows, columns = (np.array(each, np.int32) for each in layout)
    angles = [floats(PLACES, SIZE // 2, dtype=dtype, seed=seed) for seed in (6, 7)] if rotary else []
    return [*query, *caches, rows, columns, int32(max(totals)), int32(*totals), *angles]


def in_place(inputs, dtype="float32", **settings):
    """The CPU provider's outputs, whose caches must lie where the past ones do.

    It gets one sequence at a time and one thread: of several, it mixes up those that are shorter than the longest.
    """
    alone = []
    for row, total in enumerate(inputs[8]):
        given = [each[row : row + 1] if each is not None and index < 5 else each for index, each in enumerate(inputs)]
        given[7:9] = int32(total), int32(total)
        alone.append(one_in_place(given, dtype, **settings))
    return [np.concatenate(each) for each in zip(*alone, strict=True)]


def one_in_place(inputs, dtype, **settings):
    model = node_model(SPARSE, inputs, outputs=3, output_types=[dtype] * 3, **settings)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = {
        f"x{index}": onnxruntime.OrtValue.ortvalue_from_numpy(each.copy())
        for index, each in enumerate(inputs)
        if each is not None
    }
    binding = session.io_binding()
    for name, value in given.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y0")
    binding.bind_ortvalue_output("y1", given["x3"])
    binding.bind_ortvalue_output("y2", given["x4"])
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()


@each_phase
@each_layout
@pytest.mark.parametrize("as_one", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
def test_blocks(phase, layout, as_one, rotary):
    inputs = inputs_of(phase, layout, as_one, rotary)
    settings = {**SETTINGS, "do_rotary": int(rotary), "rotary_interleaved": int(as_one)}
    expected = in_place(inputs, **settings)
    for constant in ([], [5, 6]):
        kinds = {"outputs": 3, "output_types": ["float32"] * 3, "constant": constant}
        check_node(SPARSE, *inputs, reference=expected, **kinds, **settings)


@each_phase
def test_blocks_of_halves(phase):
    inputs = inputs_of(phase, LAYOUTS["two"], dtype="float16")
    expected = in_place(inputs, "float16", scale=0.3, **SETTINGS)
    kinds = {"outputs": 3, "output_types": ["float16"] * 3, "tolerance": TOLERANCE["float16"]}
    check_node(SPARSE, *inputs, reference=expected, scale=0.3, **kinds, **SETTINGS)


def test_sparse_attention_in_a_session():
    inputs = inputs_of(PHASES["a step of two lengths"], LAYOUTS["two"], rotary=True)
    settings = {**SETTINGS, "do_rotary": 1}
    check_session(SPARSE, *inputs, expected=in_place(inputs, **settings), outputs=3, **settings)


def test_sparse_attention_declines_and_refuses():
    inputs = inputs_of(PHASES["a step"], LAYOUTS["one"])
    kinds = {"outputs": 3, "output_types": ["float32"] * 3}
    check_declined(SPARSE, *inputs, because="do_rotary needs", do_rotary=1, **kinds, **SETTINGS)
    check_declined(SPARSE, *inputs[:8], because="key_total_sequence_lengths is required", **kinds, **SETTINGS)
    check_declined(SPARSE, *inputs[:2], None, *inputs[3:], because="come only together", **kinds, **SETTINGS)
    beyond = [*inputs[:8], int32(65, 3)]
    check_error(SPARSE, *beyond, match="seqlens_k: the caches have 64 places", outputs=3, **SETTINGS)


class Pages:
    """Sequences with a past in pages, and what attention makes of them in float64.

    Args:
        past, new: how many tokens each sequence has, and gets.
    """

    PAGES, PAGE = 12, 4

    def __init__(self, past, new, dtype="float16", as_one=False):
        self.past, self.new = past, new
        tokens = sum(new)
        widths = HEADS, KV_HEADS, KV_HEADS
        self.heads = [floats(tokens, width, SIZE, dtype=dtype, seed=seed) for seed, width in enumerate(widths)]
        flat = [each.reshape(tokens, -1) for each in self.heads]
        self.query = [np.concatenate(flat, axis=1), None, None] if as_one else flat
        self.caches = [floats(self.PAGES, self.PAGE, KV_HEADS, SIZE, dtype=dtype, seed=seed) for seed in (4, 5)]
        free = iter(np.random.default_rng(0).permutation(self.PAGES))
        lengths = [-(-(before + more) // self.PAGE) for before, more in zip(past, new, strict=True)]
        self.table = np.full((len(past), max(lengths) + 1), -1, np.int32)
        for row, count in enumerate(lengths):
            self.table[row, :count] = [next(free) for _ in range(count)]
        self.starts = int32(0, *np.cumsum(new))

    @property
    def inputs(self):
        return [*self.query, *self.caches, self.starts, int32(*self.past), self.table]

    def slot(self, row, place):
        return self.table[row, place // self.PAGE] * self.PAGE + place % self.PAGE

    def expected(self, window=-1, causal=True, softcap=0.0, sinks=None, turn=None, dropped=()):
        """Output and caches; `turn` rotates (heads, D) to a place, `dropped` are the tokens that no cache takes."""
        query, key, value = (each.astype(np.float64) for each in self.heads)
        caches = [each.astype(np.float64).reshape(-1, KV_HEADS, SIZE) for each in self.caches]
        places = [
            (row, before + offset)
            for row, (before, more) in enumerate(zip(self.past, self.new, strict=True))
            for offset in range(more)
        ]
        for token, (row, place) in enumerate(places):
            if turn is not None:
                query[token], key[token] = turn(query[token], place), turn(key[token], place)
            if token not in dropped:
                caches[0][self.slot(row, place)], caches[1][self.slot(row, place)] = key[token], value[token]
        result = np.zeros((len(places), HEADS, SIZE))
        for token, (row, place) in enumerate(places):
            total = self.past[row] + self.new[row]
            seen = [
                self.slot(row, other)
                for other in range(total)
                if (not causal or other <= place) and (window < 0 or other > place - window)
            ]
            keys, values = (each[seen].repeat(HEADS // KV_HEADS, axis=1) for each in caches)
            scores = np.einsum("hd,thd->ht", query[token], keys) / np.sqrt(SIZE)
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            weights = np.exp(scores)
            total_weight = weights.sum(-1, keepdims=True) + (
                0 if sinks is None else np.exp(sinks.astype(float))[:, None]
            )
            result[token] = np.einsum("ht,thd->hd", weights / total_weight, values)
        kind = self.heads[0].dtype
        stored = [each.reshape(self.caches[0].shape).astype(kind) for each in caches]
        return [result.reshape(len(places), -1).astype(kind), *stored]


LENGTHS = {"prompts": ((0, 0), (5, 3)), "steps": ((9, 2), (1, 1)), "both": ((6, 0, 3), (1, 7, 2)), "one": ((4,), (4,))}
each_length = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
PAGED_HEADS = {"num_heads": HEADS, "kv_num_heads": KV_HEADS}


def check_paged(pages, expected, *more, dtype="float16", **settings):
    kinds = {"outputs": 3, "output_types": [dtype] * 3, "tolerance": TOLERANCE[dtype]}
    check_node(PAGED, *pages.inputs, *more, reference=expected, **kinds, **PAGED_HEADS, **settings)


@each_length
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("as_one", [False, True])
@pytest.mark.parametrize("window", [-1, 3])
@pytest.mark.parametrize("causal", [0, 1])
def test_pages(lengths, dtype, as_one, window, causal):
    pages = Pages(*lengths, dtype, as_one)
    expected = pages.expected(window, bool(causal))
    check_paged(pages, expected, dtype=dtype, local_window_size=window, is_causal=causal)


@each_length
@pytest.mark.parametrize("interleaved", [0, 1])
def test_pages_with_rotary_embeddings(lengths, interleaved):
    pages = Pages(*lengths)
    cosine, sine = (floats(20, SIZE // 2, dtype="float16", seed=seed) for seed in (6, 7))

    def turn(heads, place):
        c, s = cosine[place].astype(np.float64), sine[place].astype(np.float64)
        one, two = (heads[:, 0::2], heads[:, 1::2]) if interleaved else np.split(heads, 2, axis=1)
        halves = c * one - s * two, s * one + c * two
        return np.stack(halves, axis=2).reshape(heads.shape) if interleaved else np.concatenate(halves, axis=1)

    expected = pages.expected(turn=turn)
    check_paged(pages, expected, cosine, sine, do_rotary=1, rotary_interleaved=interleaved)


@each_length
def test_pages_with_sinks_and_a_cap(lengths):
    pages, sinks = Pages(*lengths), floats(HEADS, dtype="float16", seed=8)
    check_paged(pages, pages.expected(sinks=sinks), None, None, None, sinks)
    check_paged(pages, pages.expected(softcap=0.7), softcap=0.7)


def test_slots_that_are_given():
    """A slot of -1 leaves the caches as they are."""
    pages = Pages((6, 3), (1, 2))
    slots = int32(pages.slot(0, 6), -1, pages.slot(1, 4))
    check_paged(pages, pages.expected(dropped=(1,)), None, None, slots)


def test_paged_attention_in_a_session():
    pages = Pages((6, 3), (1, 2))
    settings = {"dtype": "float16", "outputs": 3, **PAGED_HEADS}
    check_session(PAGED, *pages.inputs, expected=pages.expected(), **settings)


def test_paged_attention_declines_and_refuses():
    pages = Pages((6, 3), (1, 2))
    kinds = {"outputs": 3, "output_types": ["float16"] * 3, **PAGED_HEADS}
    for because, more in {
        "one cache for keys and values": {"kv_cache_layout": "LATENT"},
        "a quantized cache": {"k_quant_type": "PER_TENSOR"},
        "a packed cache": {"v_cache_dtype": "int4"},
        "inner elements": {"rotary_offset": 8},
        "do_rotary needs": {"do_rotary": 1},
    }.items():
        check_declined(PAGED, *pages.inputs, because=because, **{**kinds, **more})
    wrong = [*pages.inputs[:6], int32(60, 3), pages.table]
    check_error(PAGED, *wrong, match="the pages of a sequence", dtype="float16", outputs=3, **PAGED_HEADS)
