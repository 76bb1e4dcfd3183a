"""Mixtures of experts: for each token a few of many small networks, chosen and weighed by a router."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import mlx.core as mx

from opgraft.ops import Context, Node, op
from opgraft_contrib._attend import SMALL_FLOATS
from opgraft_contrib.block_quantized import LARGEST_GROUP, WIDTHS, Packed, is_block, numbers, packed, zero_points_of
from opgraft_ops._folding import widened
from opgraft_ops._sizes import check_shape, flags
from opgraft_ops.reduction import softmax


def gelu(x: mx.array) -> mx.array:
    """x times the normal distribution function of x, nearly: as a tanh, which is how ONNX Runtime's experts have it."""
    return 0.5 * x * (1 + mx.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


ACTIVATIONS = {
    "relu": lambda x: mx.maximum(x, 0),
    "relu2": lambda x: mx.square(mx.maximum(x, 0)),
    "gelu": gelu,
    "silu": lambda x: x * mx.sigmoid(x),
    "identity": lambda x: x,
}

GATED = ("swiglu", "geglu")

APART, BY_TURNS, IN_HALVES = range(3)
"""How swiglu_fusion has gates and what they gate: in two products, or in one, by turns or one half after the other."""

JITTER = 0.02
"""How far, relatively, scores may lie apart that SparseMixer takes for alike."""


@dataclass(frozen=True, slots=True)
class Activation:
    """What stands between the two layers of an expert; see ACTIVATIONS, and swiglu in ONNX Runtime's own words:
    min(g, limit) * sigmoid(alpha * g) * (l + beta), with l between -limit and limit."""

    kind: str
    fusion: int
    alpha: float
    beta: float
    limit: float
    limit_after: int

    def __call__(self, first: mx.array, third: mx.array | None) -> mx.array:
        if self.kind not in GATED:
            result = ACTIVATIONS[self.kind](first)
            return result if third is None else result * third
        gate, linear = first, third
        if self.fusion == BY_TURNS:
            gate, linear = first[..., 0::2], first[..., 1::2]
        elif self.fusion == IN_HALVES:
            gate, linear = mx.split(first, 2, axis=-1)
        if self.kind == "geglu":
            return gelu(gate) * linear
        if self.limit_after:
            gate = mx.minimum(gate * mx.sigmoid(self.alpha * gate), self.limit)
        else:
            gate = mx.minimum(gate, self.limit)
            gate = gate * mx.sigmoid(self.alpha * gate)
        return gate * (mx.clip(linear, -self.limit, self.limit) + self.beta)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of all experts.

    Attributes:
        matrix: (E, N, K).
        bias: (E, N), or None.
    """

    matrix: mx.array | Packed
    bias: mx.array | None

    def __call__(self, rows: mx.array, experts: mx.array) -> mx.array:
        """Rows (T, 1 or k, 1, K) through the layer of each token's experts (T, k): (T, k, 1, N)."""
        if isinstance(self.matrix, Packed):
            found = self.matrix
            parts = found.words, found.scales, found.biases
            result = mx.gather_qmm(rows, *parts, rhs_indices=experts, group_size=found.group, bits=found.bits)
        else:
            result = mx.gather_mm(rows, mx.swapaxes(self.matrix, 1, 2), rhs_indices=experts)
        return result if self.bias is None else result + mx.take(self.bias, experts, axis=0)[:, :, None]


def routed(
    input: mx.array, router: mx.array, weights: mx.array | None, k: int, *, normalized: bool, sparsely: bool
) -> tuple[mx.array, mx.array]:
    """The k experts of each token of `input` (..., K) with the highest scores, and how much each counts: both (T, k).

    Args:
        router: the scores (T, E), whose softmax weighs the experts.
        weights: (T, E), which weigh the experts in its place; or None.
        normalized: the weights of a token's experts add up to 1.
        sparsely: the scores alone choose and weigh two experts, see `routed_sparsely`.
    """
    check_shape("the router's scores", router, [input.size // max(input.shape[-1], 1), None])
    if sparsely:
        return routed_sparsely(router)
    router = widened(router)
    experts = mx.argsort(router, axis=1)[:, router.shape[1] - k :]
    shares = mx.take_along_axis(softmax(router) if weights is None else widened(weights), experts, axis=1)
    return experts, shares / mx.sum(shares, axis=1, keepdims=True) if normalized else shares


def routed_sparsely(router: mx.array) -> tuple[mx.array, mx.array]:
    """Two experts of each token after SparseMixer, and how much each counts: both (T, 2).

    Each is the best of those left, and counts by a softmax over those left that come within JITTER of it.
    """
    router = widened(router)
    left, chosen, shares = router, [], []
    for _ in range(2):
        best = mx.max(left, axis=1, keepdims=True)
        expert = mx.argmax(left, axis=1, keepdims=True)
        near = (best - router) / mx.maximum(mx.abs(router), best) <= JITTER
        chosen.append(expert)
        shares.append(mx.take_along_axis(softmax(mx.where(near, left, -mx.inf)), expert, axis=1))
        left = mx.put_along_axis(left, expert, mx.array(-mx.inf), axis=1)
    return mx.concatenate(chosen, axis=1), mx.concatenate(shares, axis=1)


def mixture(
    ctx: Context,
    input: mx.array,
    experts: mx.array,
    shares: mx.array,
    layers: tuple[Layer, Layer, Layer | None],
    activation: Activation,
) -> mx.array:
    """What the experts make of each token of `input` (..., K), added up as the shares say."""
    first, second, third = layers
    rows = widened(input) if ctx.device == "cpu" else input
    rows = mx.reshape(rows, (-1, 1, 1, input.shape[-1]))
    inner = activation(first(rows, experts), None if third is None else third(rows, experts))
    results = second(inner, experts)[:, :, 0]
    total = mx.sum(results * shares[..., None].astype(results.dtype), axis=1)
    return mx.reshape(total, input.shape).astype(input.dtype)


@op("com.microsoft::MoE", dtypes=SMALL_FLOATS)
def mixture_of_experts(
    ctx,
    input,
    router_probs,
    fc1_experts_weights,
    fc1_experts_bias=None,
    fc2_experts_weights=None,
    fc2_experts_bias=None,
    fc3_experts_weights=None,
    fc3_experts_bias=None,
    *,
    activation_alpha=1.0,
    activation_beta=0.0,
    activation_type="relu",
    k=1,
    normalize_routing_weights=0,
    swiglu_fusion=APART,
    swiglu_limit=inf,
    swiglu_limit_after_activation=0,
    use_sparse_mixer=0,
):
    """The k experts of each token, fc2(activation(fc1(x))), weighed by the softmax of router_probs (tokens, E).

    input: (tokens, H) or (B, T, H); weights: (E, N, K); biases: (E, N). com.microsoft MoE-1.
    """
    rows = (lambda array: widened(array)) if ctx.device == "cpu" else (lambda array: array)

    def layer(index: int, weights: mx.array | None, bias: mx.array | None) -> Layer | None:
        return None if weights is None else Layer(ctx.prepared(index, rows), None if bias is None else rows(bias))

    layers = (
        layer(2, fc1_experts_weights, fc1_experts_bias),
        layer(4, fc2_experts_weights, fc2_experts_bias),
        layer(6, fc3_experts_weights, fc3_experts_bias),
    )
    activation = Activation(
        activation_type,
        swiglu_fusion,
        activation_alpha,
        activation_beta,
        swiglu_limit,
        swiglu_limit_after_activation,
    )
    normalized = bool(normalize_routing_weights)
    routes = routed(input, router_probs, None, k, normalized=normalized, sparsely=bool(use_sparse_mixer))
    return mixture(ctx, input, *routes, layers, activation)


def claim_experts(node: Node, third: int) -> None:
    """What holds of MoE and of QMoE.

    Args:
        third: the index of fc3_experts_weights.
    """
    attributes = node.attributes
    kind, fusion = attributes.get("activation_type", "relu"), attributes.get("swiglu_fusion", APART)
    node.require(kind in (*ACTIVATIONS, *GATED), f"activation_type {kind!r} is none that is known")
    count = attributes.get("k", 1)
    node.require(
        not attributes.get("use_sparse_mixer", 0) or count == 2, f"use_sparse_mixer chooses 2 experts, not {count}"
    )
    node.require(count > 0, f"k is {count}, and must be positive")
    node.require(fusion in (APART, BY_TURNS, IN_HALVES), f"swiglu_fusion {fusion} is none that is known")
    has_third = node.input(third) is not None
    if kind in GATED:
        node.require(has_third == (fusion == APART), f"swiglu_fusion {fusion}, and fc3_experts_weights says otherwise")


for_both = flags("normalize_routing_weights", "swiglu_limit_after_activation", "use_sparse_mixer")
mixture_of_experts.condition(for_both)


@mixture_of_experts.condition
def claim_mixture_of_experts(node):
    node.require(node.input(4) is not None, "input fc2_experts_weights is required, and absent")
    claim_experts(node, 6)


QUANTIZED = {
    f"fc{number}_{name}": types
    for number in (1, 2, 3)
    for name, types in (
        ("experts_weights", {"uint8"}),
        ("scales", SMALL_FLOATS),
        ("experts_bias", SMALL_FLOATS),
        ("zero_points", {"uint8"}),
    )
}


@op(
    "com.microsoft::QMoE",
    dtypes={**QUANTIZED, **{name: SMALL_FLOATS for name in ("input", "router_probs", "router_weights")}},
)
def quantized_mixture_of_experts(
    ctx,
    input,
    router_probs,
    fc1_experts_weights,
    fc1_scales=None,
    fc1_experts_bias=None,
    fc2_experts_weights=None,
    fc2_scales=None,
    fc2_experts_bias=None,
    fc3_experts_weights=None,
    fc3_scales=None,
    fc3_experts_bias=None,
    fc1_zero_points=None,
    fc2_zero_points=None,
    fc3_zero_points=None,
    router_weights=None,
    *,
    accuracy_level=0,
    activation_alpha=1.0,
    activation_beta=0.0,
    activation_type="relu",
    block_size=0,
    expert_weight_bits=4,
    fc1_expert_weight_bits=None,
    fc2_expert_weight_bits=None,
    fc3_expert_weight_bits=None,
    k=1,
    normalize_routing_weights=0,
    quant_type="int",
    swiglu_fusion=APART,
    swiglu_limit=inf,
    swiglu_limit_after_activation=0,
    use_sparse_mixer=0,
    weights_prepacked=-1,
):
    """MoE with weights of 2, 4 or 8 bits: bytes (E, N, K * bits / 8), numbers from the lowest bits on.

    scales: (E, N), or (E, N, K / block_size); zero points: packed like the weights. The shares of a token's experts add
    up to 1, unless router_weights give them. com.microsoft QMoE-1.
    """
    dtype = mx.float32 if ctx.device == "cpu" else input.dtype

    def layer(place, weights, scales, bias, zero_place, zero_points, bits):
        if weights is None:
            return None

        def make():
            return expert_weights(weights, scales.astype(dtype), zero_points, block_size, bits or expert_weight_bits)

        matrix = ctx.cached_of(("weights", place), (place, place + 1, zero_place), make)
        return Layer(matrix, None if bias is None else bias.astype(dtype))

    layers = (
        layer(2, fc1_experts_weights, fc1_scales, fc1_experts_bias, 11, fc1_zero_points, fc1_expert_weight_bits),
        layer(5, fc2_experts_weights, fc2_scales, fc2_experts_bias, 12, fc2_zero_points, fc2_expert_weight_bits),
        layer(8, fc3_experts_weights, fc3_scales, fc3_experts_bias, 13, fc3_zero_points, fc3_expert_weight_bits),
    )
    activation = Activation(
        activation_type,
        swiglu_fusion,
        activation_alpha,
        activation_beta,
        swiglu_limit,
        swiglu_limit_after_activation,
    )
    normalized = router_weights is None or bool(normalize_routing_weights)
    routes = routed(input, router_probs, router_weights, k, normalized=normalized, sparsely=bool(use_sparse_mixer))
    return mixture(ctx, input, *routes, layers, activation)


quantized_mixture_of_experts.condition(for_both)


@quantized_mixture_of_experts.condition
def claim_quantized_mixture_of_experts(node):
    attributes = node.attributes
    kind, packing = attributes.get("quant_type", "int"), attributes.get("weights_prepacked", -1)
    node.require(kind == "int", f"quant_type {kind!r}: weights that are small floats")
    node.require(packing in (-1, 0), "weights_prepacked: weights in a layout of one execution provider")
    size = attributes.get("block_size", 0)
    node.require(size <= 0 or is_block(size), f"block_size {size} is no power of two from 16 on")
    usual = attributes.get("expert_weight_bits", 4)
    for number in (1, 2, 3):
        bits = attributes.get(f"fc{number}_expert_weight_bits", usual)
        node.require(bits in WIDTHS, f"weights of {bits} bits: they must have 2, 4 or 8")
    for index, name in ((3, "fc1_scales"), (5, "fc2_experts_weights"), (6, "fc2_scales")):
        node.require(node.input(index) is not None, f"input {name} is required, and absent")
    node.require((node.input(8) is None) == (node.input(9) is None), "fc3_experts_weights come with fc3_scales only")
    claim_experts(node, 8)


def expert_weights(
    blobs: mx.array, scales: mx.array, zero_points: mx.array | None, block_size: int, bits: int
) -> Packed | mx.array:
    """The weights of all experts, in MLX's packed form where it has one for their blocks, otherwise as they are.

    Args:
        blobs: (E, N, K * bits / 8).
        scales: (E, N, blocks), or (E, N) for one block along all of K.
    """
    width = blobs.shape[2] * 8 // bits
    if scales.ndim == 2:
        zero = None if zero_points is None else numbers(zero_points, bits)[:, : scales.shape[1], None]
        scales = scales[..., None]
        zero = zero_points_of(None, scales, bits) if zero is None else zero.astype(scales.dtype)
        size = width
    else:
        zero = zero_points_of(zero_points, scales, bits)
        size = block_size
    check_shape("the scales", scales, [*blobs.shape[:2], -(-width // size)])
    group = next((each for each in (LARGEST_GROUP, 64, 32) if not size % each and not width % each), None)
    if group is None:
        scales, zero = (mx.repeat(each, size, axis=2)[..., :width] for each in (scales, zero))
        return (numbers(blobs, bits).astype(scales.dtype) - zero) * scales
    scales, zero = (mx.repeat(each, size // group, axis=2) for each in (scales, zero))
    return packed(blobs, scales, zero, group, bits)
