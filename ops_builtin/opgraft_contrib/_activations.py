"""The activations that ONNX Runtime's optimizers fuse into convolutions and matrix products, by their names in ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx

from opgraft.ops import Node
from opgraft_ops._functions import sigmoid, softplus, tanh
from opgraft_ops.activation import celu, elu, hard_sigmoid, hard_swish, leaky_relu, selu


@dataclass(frozen=True, slots=True)
class Activation:
    """A function of an array, and of numbers that a node gives by these names."""

    function: Callable[..., mx.array]
    parameters: tuple[str, ...] = ()

    def __call__(self, x: mx.array, numbers: Sequence[float]) -> mx.array:
        return self.function(x, **dict(zip(self.parameters, numbers, strict=True)))


def relu(x: mx.array) -> mx.array:
    return mx.maximum(x, 0)


OF_BOTH = {
    "HardSigmoid": Activation(hard_sigmoid, ("alpha", "beta")),
    "LeakyRelu": Activation(leaky_relu, ("alpha",)),
    "Relu": Activation(relu),
    "Sigmoid": Activation(sigmoid),
    "Tanh": Activation(tanh),
}

OF_CONVOLUTION = {
    **OF_BOTH,
    "Clip": Activation(lambda x, low, high: mx.clip(x, low, high), ("low", "high")),
    "HardSwish": Activation(hard_swish),
}

OF_PRODUCT = {
    **OF_BOTH,
    "Celu": Activation(celu, ("alpha",)),
    "Elu": Activation(elu, ("alpha",)),
    "ParametricSoftplus": Activation(lambda x, alpha, beta: alpha * softplus(beta * x), ("alpha", "beta")),
    "ScaledTanh": Activation(lambda x, alpha, beta: alpha * tanh(beta * x), ("alpha", "beta")),
    "Selu": Activation(selu, ("alpha", "gamma")),
    "Softplus": Activation(softplus),
    "Softsign": Activation(lambda x: x / (1 + mx.abs(x))),
    "ThresholdedRelu": Activation(lambda x, alpha: mx.where(x > alpha, x, 0), ("alpha",)),
}


def claim_activation(node: Node, known: Mapping[str, Activation], given: int | None) -> None:
    """Decline an activation that is not `known`, or one without the numbers it needs, of which there are `given` (None:
    those that it needs)."""
    name = node.attributes.get("activation")
    node.require(name in known, f"activation {name} is not one of {', '.join(sorted(known))}")
    if name in known and given is not None:
        wanted = len(known[str(name)].parameters)
        node.require(given == wanted, f"activation {name} takes {wanted} numbers, and {given} are given")
