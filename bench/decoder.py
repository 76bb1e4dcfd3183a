"""Greedy decoding, a token at a time: the decoders of tests/decoders on the EP, beside the same written in MLX, beside
the CPU EP.

Each side runs a prompt, then takes turns for some tokens each, one after the other, those that the CPU EP chooses;
`ep`, `mlx` and `cpu` are seconds for a token, `difference` and `mlx_difference` how far any logits were from the CPU
EP's, in parts of its largest, `chosen` the part of the tokens that the EP would have chosen too. In the rows `shared`
the caches are buffers with room, which on the EP are input and output at once; in the rows `growing` each run of a
session is given the caches that the one before gave. Both are bound, and stay on the device. `decoder.py small` takes
two layers of width 256.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import onnxruntime
from turns import medians, tell

import opgraft  # before MLX, which it gives a faster BLAS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "decoders"))
import mlx.core as mx
import numpy as np
from decoder_graphs import FORMS
from generation import Bound, Shared, along, greedy
from recipes import BASE, BLOCK, EPSILON, Array, Matrix, Recipe, Weights

PLACES = 512
"""Of a shared cache."""

PAUSE = 0.03
"""Seconds between two turns: ONNX Runtime's own threads go on spinning for longer than MLX's."""

TOKENS = 8
"""In a turn."""

WARM_UPS = 5
TURNS = 15

KINDS: tuple[dict[str, Any], ...] = ({}, {"dtype": "float16"}, {"int4": True})


class InMlx:
    """A decoder as MLX has it: its kernels for norms, rotary angles and attention, compiled, caches with room."""

    def __init__(self, weights: Weights, places: int) -> None:
        recipe = self.recipe = weights.recipe
        self.layers = [{name: product(each) for name, each in layer.items()} for layer in weights.layers]
        self.norms = [{name: mx.array(each) for name, each in layer.items()} for layer in weights.vectors]
        self.embedding, self.norm, self.head = (
            mx.array(weights.embedding),
            mx.array(weights.norm),
            product(weights.head),
        )
        shape = (1, recipe.kv_heads, places, recipe.size)
        dtype = self.embedding.dtype
        self.caches = [mx.zeros(shape, dtype) for _ in range(2 * recipe.layers)]
        self.places = places
        self.length = 0
        mx.eval(self.norms, self.embedding, self.norm, self.caches)
        self.run = mx.compile(self.logits)

    def logits(self, tokens: mx.array, start: mx.array, caches: list[mx.array]) -> tuple[mx.array, list[mx.array]]:
        x, new = self.embedding[tokens], tokens.shape[1]
        mask = mx.arange(self.places) <= start + mx.arange(new)[:, None]
        presents: list[mx.array] = []
        for number, (layer, norms) in enumerate(zip(self.layers, self.norms, strict=True)):
            rows = mx.fast.rms_norm(x, norms["input_layernorm"], EPSILON)
            mixed, *found = self.attended(rows, layer, start, mask, caches[2 * number : 2 * number + 2])
            presents += found
            x = x + layer["o_proj"](mixed)
            rows = mx.fast.rms_norm(x, norms["post_attention_layernorm"], EPSILON)
            gate = layer["gate_proj"](rows)
            x = x + layer["down_proj"](gate * mx.sigmoid(gate) * layer["up_proj"](rows))
        return self.head(mx.fast.rms_norm(x, self.norm, EPSILON)), presents

    def attended(
        self, rows: mx.array, layer: dict[str, Any], start: mx.array, mask: mx.array, caches: list[mx.array]
    ) -> tuple[mx.array, mx.array, mx.array]:
        size = self.recipe.size
        query, key, value = (
            layer[name](rows).reshape(1, rows.shape[1], -1, size).transpose(0, 2, 1, 3)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        query, key = (
            mx.fast.rope(each, size, traditional=False, base=BASE, scale=1.0, offset=start) for each in (query, key)
        )
        keys, values = (
            mx.slice_update(cache, each, start.reshape(1), axes=(2,))
            for cache, each in zip(caches, (key, value), strict=True)
        )
        mixed = mx.fast.scaled_dot_product_attention(query, keys, values, scale=size**-0.5, mask=mask)
        return mixed.transpose(0, 2, 1, 3).reshape(1, rows.shape[1], -1), keys, values

    def step(self, tokens: Sequence[int]) -> Array:
        logits, self.caches = self.run(mx.array([tokens]), mx.array(self.length), self.caches)
        mx.eval(logits, self.caches)
        self.length += len(tokens)
        return np.array(logits[0, -1])


def product(matrix: Matrix) -> Callable[[mx.array], mx.array]:
    """The product with a matrix."""
    if matrix.numbers is None or matrix.scales is None:
        elements = mx.array(matrix.elements)
        mx.eval(elements)
        return lambda rows: rows @ elements
    words = mx.array(matrix.numbers.reshape(len(matrix.numbers), -1)).view(mx.uint32)
    scales = mx.array(matrix.scales)
    biases = -8 * scales
    mx.eval(words, scales, biases)
    return partial(quantized_product, words, scales, biases)


def quantized_product(words: mx.array, scales: mx.array, biases: mx.array, rows: mx.array) -> mx.array:
    if rows.dtype == mx.float32 and mx.default_device() == mx.Device(mx.gpu):  # for which MLX has no CUDA kernel
        return rows @ mx.dequantize(words, scales, biases, group_size=BLOCK, bits=4).T
    return mx.quantized_matmul(rows, words, scales, biases, transpose=True, group_size=BLOCK, bits=4)


class Turn:
    """Decoding, some tokens at each call, along given ones.

    Attributes:
        logits: those behind the prompt, and behind each token so far, (vocabulary).
    """

    def __init__(self, generator: Any, tokens: Sequence[int]) -> None:
        self._along = along(generator, tokens)
        self.logits = [next(self._along)]

    def __call__(self) -> None:
        self.logits += islice(self._along, TOKENS)

    def difference(self, expected: Turn) -> float:
        """The largest of the logits' differences, in parts of the largest logit that was expected."""
        ours, others = (np.array(each.logits, np.float32) for each in (self, expected))
        return float((abs(ours - others).max(axis=1) / abs(others).max(axis=1)).max())

    def chosen(self, expected: Turn) -> float:
        """The part of the tokens that both would have chosen."""
        ours, others = (np.argmax(each.logits, axis=1) for each in (self, expected))
        return float(np.mean(ours == others))


def measured(recipe: Recipe, caches: str, turns: int = TURNS) -> dict[str, Any]:
    weights = Weights.of(recipe)
    proto = FORMS["grouped"](weights).SerializeToString()
    cpu = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
    sessions = {"ep": onnxruntime.InferenceSession(proto, opgraft.session_options()), "cpu": cpu}
    make = {"shared": partial(Shared, recipe=recipe, places=PLACES), "growing": partial(Bound, recipe=recipe)}[caches]
    tokens = [token for token, _ in greedy(make(cpu), 1 + (WARM_UPS + turns) * TOKENS)]
    sides = {name: Turn(make(session), tokens) for name, session in sessions.items()}
    sides["mlx"] = Turn(InMlx(weights, PLACES), tokens)
    row = {"model": f"decoder, {recipe}", "caches": caches, "device": str(mx.default_device())}
    found = medians(sides, turns=turns, warm_ups=WARM_UPS, pause=PAUSE)
    row |= {name: seconds / TOKENS for name, seconds in found.items()}
    expected = sides["cpu"]
    row["difference"], row["mlx_difference"] = (sides[name].difference(expected) for name in ("ep", "mlx"))
    return row | {"chosen": sides["ep"].chosen(expected)}


def main() -> None:
    small = sys.argv[1:] == ["small"]
    for width in (256,) if small else (256, 1024):
        for layers in (2,) if small else (2, 12):
            for kind in KINDS:
                for caches in ("shared", "growing"):
                    recipe = Recipe(layers=layers, width=width, **kind)
                    tell([measured(recipe, caches)])


if __name__ == "__main__":
    main()
