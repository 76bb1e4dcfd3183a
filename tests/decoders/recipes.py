"""Decoders of the kind of Llama and Qwen2 as recipes: sizes and random weights, the same at every call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray

BLOCK = 32
"""How many weights of 4 bits share a scale."""

EPSILON = 1e-6
BASE = 10000.0
"""The base of the rotary angles."""


@dataclass(frozen=True)
class Recipe:
    """The sizes of a decoder.

    Attributes:
        layers, width, vocabulary: as they say.
        dtype: "float32" or "float16", of everything but the token ids.
        int4: the products' weights are of 4 bits, but for the embedding's.
        biased: query, key and value have biases, as Qwen2's do.
        places: so many tokens the rotary caches are for.
    """

    layers: int = 2
    width: int = 256
    vocabulary: int = 512
    dtype: str = "float32"
    int4: bool = False
    biased: bool = False
    places: int = 1024

    @property
    def size(self) -> int:
        """Of a head."""
        return 32 if self.width < 512 else 64

    @property
    def heads(self) -> int:
        return self.width // self.size

    @property
    def kv_heads(self) -> int:
        return self.heads // 2

    @property
    def hidden(self) -> int:
        """The width of the feed-forward part."""
        return 11 * self.width // 4

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Of a layer's matrices, (inputs, outputs)."""
        own, shared = self.heads * self.size, self.kv_heads * self.size
        return {
            "q_proj": (self.width, own),
            "k_proj": (self.width, shared),
            "v_proj": (self.width, shared),
            "o_proj": (own, self.width),
            "gate_proj": (self.width, self.hidden),
            "up_proj": (self.width, self.hidden),
            "down_proj": (self.hidden, self.width),
        }

    def __str__(self) -> str:
        kind = "int4" if self.int4 else self.dtype
        return f"{self.layers} layers of {self.width}, {kind}"


@dataclass(frozen=True)
class Matrix:
    """A matrix of a product; of 4 bits, it has numbers and scales too.

    Attributes:
        elements: (inputs, outputs), what the numbers stand for.
        numbers: (outputs, blocks, BLOCK / 2), two to a byte, from the lower bits on; 8 stands for zero.
        scales: (outputs, blocks).
    """

    elements: Array
    numbers: Array | None = None
    scales: Array | None = None


@dataclass(frozen=True)
class Weights:
    """The weights of a decoder: of each layer by name, and what stands around the layers."""

    recipe: Recipe
    embedding: Array
    norm: Array
    head: Matrix
    layers: list[dict[str, Matrix]] = field(default_factory=list)
    vectors: list[dict[str, Array]] = field(default_factory=list)

    @classmethod
    def of(cls, recipe: Recipe) -> Weights:
        draw = np.random.default_rng(7)

        def matrix(rows: int, columns: int) -> Matrix:
            elements = (draw.standard_normal((rows, columns), np.float32) / np.sqrt(rows)).astype(recipe.dtype)
            return quantized(elements) if recipe.int4 else Matrix(elements)

        def vector(size: int, around: float) -> Array:
            return (around + 0.1 * draw.standard_normal(size)).astype(recipe.dtype)

        weights = cls(
            recipe,
            draw.standard_normal((recipe.vocabulary, recipe.width), np.float32).astype(recipe.dtype),
            vector(recipe.width, 1),
            matrix(recipe.width, recipe.vocabulary),
        )
        for _ in range(recipe.layers):
            weights.layers.append({name: matrix(*shape) for name, shape in recipe.shapes.items()})
            norms = {name: vector(recipe.width, 1) for name in ("input_layernorm", "post_attention_layernorm")}
            biases = {name: vector(recipe.shapes[name][1], 0) for name in ("q_proj", "k_proj", "v_proj")}
            weights.vectors.append(norms | (biases if recipe.biased else {}))
        return weights


def quantized(elements: Array) -> Matrix:
    """A matrix as blocks of numbers from 0 to 15 along its inputs, each block with a scale."""
    rows, columns = elements.shape
    blocks = elements.T.astype(np.float32).reshape(columns, rows // BLOCK, BLOCK)
    scales = (np.abs(blocks).max(axis=2) / 7).astype(elements.dtype)
    whole = np.clip(np.round(blocks / scales[..., None].astype(np.float32)) + 8, 0, 15).astype(np.uint8)
    meant = (whole.astype(np.float32) - 8) * scales[..., None].astype(np.float32)
    numbers = whole[..., 0::2] | (whole[..., 1::2] << 4)
    return Matrix(meant.reshape(columns, rows).T.astype(elements.dtype), numbers, scales)


def angles(recipe: Recipe) -> Array:
    """The rotary angles of each place, (places, size / 2)."""
    frequencies = BASE ** (-np.arange(0, recipe.size, 2) / recipe.size)
    return np.arange(recipe.places)[:, None] * frequencies
