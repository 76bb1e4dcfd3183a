"""Mixtures of experts, against ONNX Runtime's CPU provider, or NumPy in float64 where that has no kernel or rounds its
inputs to 8 bits."""

from __future__ import annotations

import numpy as np
import pytest
from contrib_kit import TOLERANCE, check_error, check_session, floats, packed, whole_numbers

from opgraft.testing import check_declined, check_node

MOE = "com.microsoft::MoE"
QUANTIZED = "com.microsoft::QMoE"
EXPERTS, HIDDEN, INNER = 4, 32, 64
SWIGLU = {"activation_type": "swiglu", "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 1.5}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


PLAIN = {
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "gelu": gelu,
    "silu": lambda x: x * sigmoid(x),
    "identity": lambda x: x,
}


def activated(first, third, kind, fusion=0, alpha=1.0, beta=0.0, limit=np.inf, after=0):
    if kind in PLAIN:
        return PLAIN[kind](first) * (1 if third is None else third)
    gate, linear = {0: (first, third), 1: (first[0::2], first[1::2]), 2: (first[:INNER], first[INNER:])}[fusion]
    if kind == "geglu":
        return gelu(gate) * linear
    gate = np.minimum(gate * sigmoid(alpha * gate), limit) if after else np.minimum(gate, limit)
    gate = gate if after else gate * sigmoid(alpha * gate)
    return gate * (np.clip(linear, -limit, limit) + beta)


def mixture(x, router, weights, biases, k, normalized, kind, shares=None, **more):
    """Each token through its experts, one at a time, in float64."""
    rows, weights = (
        x.reshape(-1, x.shape[-1]).astype(np.float64),
        [None if w is None else w.astype(float) for w in weights],
    )
    probabilities = np.exp(router.astype(float) - router.max(1, keepdims=True).astype(float))
    probabilities /= probabilities.sum(1, keepdims=True)
    total = np.zeros_like(rows)
    for token, row in enumerate(rows):
        chosen = np.argsort(router[token].astype(float))[-k:]
        share = (probabilities if shares is None else shares.astype(float))[token, chosen]
        share = share / share.sum() if normalized else share
        for expert, part in zip(chosen, share, strict=True):
            inner, outer, third = (
                None if weight is None else (weight[expert], 0 if bias is None else bias[expert].astype(np.float64))
                for weight, bias in zip(weights, biases, strict=True)
            )
            beside = None if third is None else third[0] @ row + third[1]
            total[token] += part * (outer[0] @ activated(inner[0] @ row + inner[1], beside, kind, **more) + outer[1])
    return [total.reshape(x.shape).astype(x.dtype)]


def networks(kind, shape=(5,), third=False, fused=False, dtype="float32"):
    """The inputs of MoE."""
    width = 2 * INNER if fused else INNER
    given = [
        floats(*shape, HIDDEN, dtype=dtype),
        floats(int(np.prod(shape)), EXPERTS, dtype=dtype, seed=1),
        floats(EXPERTS, width, HIDDEN, dtype=dtype, seed=2) / 5,
        floats(EXPERTS, width, dtype=dtype, seed=3),
        floats(EXPERTS, HIDDEN, INNER, dtype=dtype, seed=4) / 5,
        floats(EXPERTS, HIDDEN, dtype=dtype, seed=5),
    ]
    if third:
        given += [floats(EXPERTS, INNER, HIDDEN, dtype=dtype, seed=6) / 5, floats(EXPERTS, INNER, dtype=dtype, seed=7)]
    return [each.astype(given[0].dtype) for each in given]


def check(operator, *inputs, dtype="float32", **settings):
    settings = {"tolerance": TOLERANCE[dtype], **settings}
    return check_node(operator, *inputs, output_types=[dtype], **settings)


each_k = pytest.mark.parametrize("k", [1, 2, EXPERTS])
normalized_or_not = pytest.mark.parametrize("normalized", [0, 1])


@each_k
@normalized_or_not
@pytest.mark.parametrize("kind", ["relu", "gelu", "silu", "identity"])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (1, 1)])
def test_experts(k, normalized, kind, shape):
    inputs = networks(kind, shape)
    settings = {"k": k, "normalize_routing_weights": normalized, "activation_type": kind}
    check(MOE, *inputs, **settings)
    check(MOE, *inputs[:3], None, inputs[4], constant=[2, 4], **settings)


@each_k
@normalized_or_not
@pytest.mark.parametrize("settings", [SWIGLU, {"activation_type": "swiglu"}], ids=["limited", "as usual"])
def test_gated_experts(k, normalized, settings):
    inputs = networks("swiglu", fused=True)
    check(MOE, *inputs, k=k, normalize_routing_weights=normalized, swiglu_fusion=1, **settings)


@pytest.mark.parametrize("kind", [*PLAIN, "swiglu", "geglu"])
@pytest.mark.parametrize("form", ["apart", "by turns", "in halves"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_forms_that_the_cpu_provider_lacks(kind, form, dtype):
    fusion = ["apart", "by turns", "in halves"].index(form)
    if kind in PLAIN:
        fusion = 0
    elif kind == "geglu":
        fusion = max(fusion, 1)
    inputs = networks(kind, third=not fusion, fused=bool(fusion), dtype=dtype)
    biases = [*inputs[3::2], None][:3]
    more = {"alpha": 1.702, "beta": 1.0, "limit": 1.5, "after": 1} if kind == "swiglu" else {}
    expected = mixture(*inputs[:2], [*inputs[2::2], None][:3], biases, 2, True, kind, fusion=fusion, **more)
    settings = {**SWIGLU, "swiglu_limit_after_activation": 1} if kind == "swiglu" else {"activation_type": kind}
    check(
        MOE,
        *inputs,
        dtype=dtype,
        reference=expected,
        k=2,
        normalize_routing_weights=1,
        swiglu_fusion=fusion,
        **settings,
    )


@pytest.mark.parametrize("quantized_or_not", [False, True])
def test_a_sparse_mixer(quantized_or_not):
    """A token takes the best two; each counts alone unless another comes within 2 % of it."""
    router = np.array(
        [[3, 1, 2, 0], [1, 3, 2.99, 0], [2, -1, 1.99, 1.98], [-1, -2, -1.01, -5], [9, 8, 8, 8]], np.float32
    )

    def share(scores, near):
        return np.exp(scores[0]) / np.exp(scores[: near + 1]).sum()

    expected = [
        [(0, 1.0), (2, 1.0)],
        [(1, share([3, 2.99], 1)), (2, 1.0)],
        [(0, share([2, 1.99, 1.98], 2)), (2, share([1.99, 1.98], 1))],
        [(0, share([-1, -1.01], 1)), (2, 1.0)],
        [(0, 1.0), (1, 1 / 3)],
    ]
    if quantized_or_not:
        inputs, weights, biases = quantized(4, 32, False)
        settings = {"block_size": 32}
    else:
        inputs, settings = networks("relu"), {}
        weights, biases = [*inputs[2::2], None], [*inputs[3::2], None]
    inputs[1] = router
    rows = []
    for row, experts in zip(inputs[0].astype(np.float64), expected, strict=True):
        layers = [
            weights[1][expert] @ np.maximum(weights[0][expert] @ row + biases[0][expert], 0) + biases[1][expert]
            for expert, _ in experts
        ]
        rows.append(sum(part * layer for (_, part), layer in zip(experts, layers, strict=True)))
    operator = QUANTIZED if quantized_or_not else MOE
    reference = [np.array(rows, np.float32)]
    check(operator, *inputs, reference=reference, k=2, use_sparse_mixer=1, **settings)


def test_what_is_declined():
    inputs = networks("relu")
    for because, more in {
        "none that is known": {"activation_type": "tanh"},
        "chooses 2 experts, not 1": {"use_sparse_mixer": 1},
        "swiglu_fusion 3": {"swiglu_fusion": 3},
        "fc3_experts_weights says otherwise": {"activation_type": "swiglu"},
    }.items():
        check_declined(MOE, *inputs, because=because, output_types=["float32"], **more)
    check_declined(MOE, *inputs[:4], because="fc2_experts_weights is required", output_types=["float32"])
    check_error(MOE, inputs[0], inputs[1][1:], *inputs[2:], match="the router's scores")


@pytest.mark.parametrize("shape", [(5,), (2, 3)])
def test_experts_in_a_session(shape):
    settings = {"k": 2, "normalize_routing_weights": 1, "activation_type": "silu"}
    check_session(MOE, *networks("silu", shape), constant=[2, 3, 4, 5], **settings)


class Quantized:
    """Weights (E, N, K) of `bits`, in blocks of `size` along K (0: in one), as QMoE takes them."""

    def __init__(self, N, K, bits, size, zero, seed, dtype="float32"):
        numbers = whole_numbers(EXPERTS, N, K, below=2**bits, seed=seed)
        shape = (EXPERTS, N, K // size) if size else (EXPERTS, N)
        self.scales = (np.random.default_rng(seed).uniform(0.5, 1, shape) / 2**bits).astype(
            floats(1, dtype=dtype).dtype
        )
        points = whole_numbers(*shape, below=2**bits, seed=seed) if zero else np.full(shape, 2 ** (bits - 1))
        self.packed, self.zero_points = packed(numbers, bits), packed(points, bits) if zero else None
        spread = [np.repeat(each.reshape(EXPERTS, N, -1), size or K, axis=2) for each in (self.scales, points)]
        self.values = (numbers - spread[1]) * spread[0].astype(float)


def quantized(bits, size, zero, fused=False, third=False, dtype="float32"):
    """The inputs of QMoE, and the weights and biases that they stand for."""
    width = 2 * INNER if fused else INNER
    shapes = [(width, HIDDEN), (HIDDEN, INNER), (INNER, HIDDEN)]
    layers = [Quantized(*shape, bits, size, zero, seed, dtype) for seed, shape in enumerate(shapes[: 2 + third])]
    biases = [floats(EXPERTS, shape[0], dtype=dtype, seed=seed) for seed, shape in enumerate(shapes[: 2 + third])]
    given = [floats(5, HIDDEN, dtype=dtype), floats(5, EXPERTS, dtype=dtype, seed=1)]
    for layer, bias in zip(layers, biases, strict=True):
        given += [layer.packed, layer.scales, bias]
    given += [None] * (11 - len(given)) + [layer.zero_points for layer in layers]
    while given[-1] is None:
        given.pop()
    padding = [None] * (3 - len(layers))
    return given, [each.values for each in layers] + padding, biases + padding


def constants(inputs):
    return [index for index, each in enumerate(inputs) if index > 1 and each is not None and index != 14]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("size", [0, 16, 32])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("form", ["silu", "swiglu by turns", "swiglu in halves", "swiglu apart"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_quantized_experts(bits, size, zero, form, dtype):
    fusion = {"silu": 0, "swiglu by turns": 1, "swiglu in halves": 2, "swiglu apart": 0}[form]
    kind = form.split()[0]
    inputs, weights, biases = quantized(bits, size, zero, bool(fusion), form == "swiglu apart", dtype)
    more = {"alpha": 1.702, "beta": 1.0, "limit": 1.5} if kind == "swiglu" else {}
    expected = mixture(*inputs[:2], weights, biases, 2, True, kind, fusion=fusion, **more)
    settings = SWIGLU if kind == "swiglu" else {"activation_type": kind}
    if size:
        settings = {**settings, "block_size": size}
    for constant in ([], constants(inputs)):
        check(
            QUANTIZED,
            *inputs,
            dtype=dtype,
            reference=expected,
            constant=constant,
            k=2,
            expert_weight_bits=bits,
            swiglu_fusion=fusion,
            **settings,
        )


@pytest.mark.parametrize("size", [0, 16, 32])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("kind", ["silu", "swiglu"])
@normalized_or_not
@pytest.mark.parametrize("routed", [False, True])
def test_quantized_experts_as_the_cpu_provider_has_them(size, zero, kind, normalized, routed):
    inputs, *_ = quantized(4, size, zero, fused=kind == "swiglu")
    if routed:
        inputs = [*inputs, *[None] * (14 - len(inputs)), abs(floats(5, EXPERTS, seed=9))]
    settings = {**SWIGLU, "swiglu_fusion": 1} if kind == "swiglu" else {"activation_type": kind}
    settings |= {"block_size": size} if size else {}
    check(QUANTIZED, *inputs, constant=constants(inputs), k=2, normalize_routing_weights=normalized, **settings)


def test_layers_of_several_widths():
    inputs, weights, biases = quantized(4, 32, False)
    other = Quantized(HIDDEN, INNER, 8, 32, False, 7)
    inputs[5:7], weights[1] = [other.packed, other.scales], other.values
    expected = mixture(*inputs[:2], weights, biases, 1, True, "relu")
    check(QUANTIZED, *inputs, reference=expected, block_size=32, fc2_expert_weight_bits=8)


def test_what_is_declined_of_quantized_experts():
    inputs, *_ = quantized(4, 32, False)
    for because, more in {
        "weights that are small floats": {"quant_type": "fp4"},
        "a layout of one execution provider": {"weights_prepacked": 1},
        "block_size 24": {"block_size": 24},
        "weights of 3 bits": {"fc2_expert_weight_bits": 3},
        "chooses 2 experts, not 1": {"use_sparse_mixer": 1},
    }.items():
        settings = {"block_size": 32, "output_types": ["float32"], **more}
        check_declined(QUANTIZED, *inputs, because=because, **settings)
    without = [*inputs[:3], None, *inputs[4:]]
    check_declined(QUANTIZED, *without, because="fc1_scales is required", block_size=32, output_types=["float32"])
    wrong = [*inputs[:3], inputs[3][..., :1], *inputs[4:]]
    check_error(QUANTIZED, *wrong, match="the scales", block_size=16)


def test_quantized_experts_in_a_session():
    inputs, weights, biases = quantized(4, 32, True)
    expected = mixture(*inputs[:2], weights, biases, 2, True, "silu")
    settings = {"k": 2, "block_size": 32, "activation_type": "silu", "constant": constants(inputs)}
    check_session(QUANTIZED, *inputs, expected=expected, **settings)
