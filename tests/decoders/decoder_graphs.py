"""Graphs of a decoder: in the form of onnxruntime-genai's model builder, and in that of an export of PyTorch's module.

Both take `input_ids` (batch, new) and `attention_mask` (batch, total), int64, and `past_key_values.N.key` and `.value`
(batch, kv heads, past, size); they give `logits` (batch, new, vocabulary), and `present.N.key` and `.value`. The second
takes `position_ids` (batch, new) too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from recipes import BASE, BLOCK, EPSILON, Array, Matrix, Recipe, Weights, angles

FAR = -1e4
"""What is added to the score of a token that is not attended; float16 has it."""


class Builder:
    """Adds nodes one after the other; what each gives has a name of its own."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.recipe = weights.recipe
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}

    def __call__(self, operator: str, *inputs: str, **attributes: Any) -> str:
        return self.several(operator, [f"v{len(self.nodes)}"], *inputs, **attributes)[0]

    def several(self, operator: str, outputs: list[str], *inputs: str, **attributes: Any) -> list[str]:
        domain, _, name = operator.rpartition("::")
        node = helper.make_node(name, inputs, outputs, name=f"n{len(self.nodes)}", domain=domain, **attributes)
        self.nodes.append(node)
        return outputs

    def constant(self, array: Array, name: str | None = None) -> str:
        name = name or f"c{len(self.initializers)}"
        self.initializers[name] = numpy_helper.from_array(np.asarray(array), name)
        return name

    def numbers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def scalar(self, value: float, dtype: str | None = None) -> str:
        return self.constant(np.array(value, dtype or self.recipe.dtype))

    def product(self, rows: str, matrix: Matrix, name: str) -> str:
        if matrix.numbers is None:
            return self("MatMul", rows, self.constant(matrix.elements, f"{name}.weight"))
        inputs, outputs = matrix.elements.shape
        parts = self.constant(matrix.numbers, f"{name}.numbers"), self.constant(matrix.scales, f"{name}.scales")
        sizes = {"K": inputs, "N": outputs, "bits": 4, "block_size": BLOCK}
        return self("com.microsoft::MatMulNBits", rows, *parts, **sizes)

    def projection(self, rows: str, layer: int, name: str) -> str:
        """A product of a layer, with its bias where there is one."""
        label = f"model.layers.{layer}.{name}"
        result = self.product(rows, self.weights.layers[layer][name], label)
        bias = self.weights.vectors[layer].get(name)
        return result if bias is None else self("Add", result, self.constant(bias, f"{label}.bias"))

    def vector(self, layer: int, name: str) -> str:
        return self.constant(self.weights.vectors[layer][name], f"model.layers.{layer}.{name}.weight")

    def feed_forward(self, rows: str, layer: int) -> str:
        gate, up = (self.projection(rows, layer, name) for name in ("gate_proj", "up_proj"))
        return self.projection(self("Mul", self("Mul", gate, self("Sigmoid", gate)), up), layer, "down_proj")

    def model(self, logits: str, positions: bool) -> onnx.ModelProto:
        recipe, kind = self.recipe, helper.np_dtype_to_tensor_dtype(np.dtype(self.recipe.dtype))
        whole = onnx.TensorProto.INT64
        self.nodes.append(helper.make_node("Identity", [logits], ["logits"]))

        def caches(name: str, length: str) -> list[onnx.ValueInfoProto]:
            shape = ["batch_size", recipe.kv_heads, length, recipe.size]
            names = [f"{name}.{layer}.{part}" for layer in range(recipe.layers) for part in ("key", "value")]
            return [helper.make_tensor_value_info(each, kind, shape) for each in names]

        given = {
            "input_ids": ["batch_size", "sequence_length"],
            "attention_mask": ["batch_size", "total_sequence_length"],
        }
        if positions:
            given["position_ids"] = ["batch_size", "sequence_length"]
        inputs = [helper.make_tensor_value_info(name, whole, shape) for name, shape in given.items()]
        shape = ["batch_size", "sequence_length", recipe.vocabulary]
        graph = helper.make_graph(
            self.nodes,
            "decoder",
            [*inputs, *caches("past_key_values", "past_sequence_length")],
            [helper.make_tensor_value_info("logits", kind, shape), *caches("present", "total_sequence_length")],
            list(self.initializers.values()),
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, ir_version=10, opset_imports=opsets)


def grouped(weights: Weights) -> onnx.ModelProto:
    """As onnxruntime-genai's model builder writes it: attention as GroupQueryAttention, which turns queries and keys
    and keeps the caches, and norms with what they are added to."""
    recipe, b = weights.recipe, Builder(weights)
    cosine, sine = (
        b.constant(each(angles(recipe)).astype(recipe.dtype), f"{name}_cache")
        for name, each in (("cos", np.cos), ("sin", np.sin))
    )
    counts = b("ReduceSum", "attention_mask", b.numbers(1), keepdims=1)
    ends = b("Cast", b("Sub", counts, b.numbers(1)), to=onnx.TensorProto.INT32)
    length = b("Gather", b("Shape", "attention_mask"), b.scalar(1, "int64"), axis=0)
    total = b("Cast", length, to=onnx.TensorProto.INT32)
    settings = {"num_heads": recipe.heads, "kv_num_heads": recipe.kv_heads, "scale": recipe.size**-0.5}
    settings |= {"do_rotary": 1, "rotary_interleaved": 0, "local_window_size": -1, "softcap": 0.0}

    x = b("Gather", b.constant(weights.embedding, "model.embed_tokens.weight"), "input_ids")
    norm = b("SimplifiedLayerNormalization", x, b.vector(0, "input_layernorm"), axis=-1, epsilon=EPSILON, stash_type=1)

    def added(rows: str, weight: str) -> tuple[str, str]:
        outputs = [f"v{len(b.nodes)}", "", "", f"s{len(b.nodes)}"]
        operator = "com.microsoft::SkipSimplifiedLayerNormalization"
        found = b.several(operator, outputs, x, rows, weight, epsilon=EPSILON)
        return found[0], found[3]

    for layer in range(recipe.layers):
        heads = [b.projection(norm, layer, f"{part}_proj") for part in "qkv"]
        parts = ("key", "value")
        past, present = ([f"{name}.{layer}.{part}" for part in parts] for name in ("past_key_values", "present"))
        outputs = [f"v{len(b.nodes)}", *present]
        inputs = [*heads, *past, ends, total, cosine, sine]
        mixed = b.several("com.microsoft::GroupQueryAttention", outputs, *inputs, **settings)[0]
        norm, x = added(b.projection(mixed, layer, "o_proj"), b.vector(layer, "post_attention_layernorm"))
        last = layer + 1 == recipe.layers
        weight = b.constant(weights.norm, "model.norm.weight") if last else b.vector(layer + 1, "input_layernorm")
        norm, x = added(b.feed_forward(norm, layer), weight)
    return b.model(b.product(norm, weights.head, "lm_head"), positions=False)


def spelled_out(weights: Weights) -> onnx.ModelProto:
    """As PyTorch's exporter leaves transformers' module: attention, norms and rotary angles in their parts, shapes and
    the mask from the sizes of the inputs."""
    recipe, b = weights.recipe, Builder(weights)

    def length(value: str, axis: int) -> str:
        return b("Gather", b("Shape", value), b.scalar(axis, "int64"), axis=0)

    def sizes(*parts: str | int) -> str:
        """A shape, of numbers and of scalars."""
        each = [b.numbers(part) if isinstance(part, int) else b("Unsqueeze", part, b.numbers(0)) for part in parts]
        return b("Concat", *each, axis=0)

    def norm(x: str, weight: str) -> str:
        wide = b("Cast", x, to=onnx.TensorProto.FLOAT)
        squares = b("ReduceMean", b("Pow", wide, b.scalar(2, "float32")), b.numbers(-1), keepdims=1)
        root = b("Sqrt", b("Add", squares, b.scalar(EPSILON, "float32")))
        normal = b("Mul", wide, b("Div", b.scalar(1, "float32"), root))
        return b("Mul", weight, b("Cast", normal, to=helper.np_dtype_to_tensor_dtype(np.dtype(recipe.dtype))))

    batch, new = length("input_ids", 0), length("input_ids", 1)
    past = length("past_key_values.0.key", 2)
    total = b("Add", past, new)
    one = b.scalar(1, "int64")
    places = b("Range", past, total, one)
    x = b("Gather", b.constant(weights.embedding, "model.embed_tokens.weight"), "input_ids")
    mask = causal_mask(b, places, total, sizes)
    cosine, sine = rotary_angles(b, sizes(batch, recipe.size // 2, 1))

    def halves(value: str) -> tuple[str, str]:
        middle, zero, axis = b.numbers(recipe.size // 2), b.numbers(0), b.numbers(3)
        return b("Slice", value, zero, middle, axis), b("Slice", value, middle, b.numbers(2**63 - 1), axis)

    def turned(value: str) -> str:
        first, second = halves(value)
        other = b("Concat", b("Neg", second), first, axis=-1)
        return b("Add", b("Mul", value, cosine), b("Mul", other, sine))

    def over_groups(value: str) -> str:
        times = recipe.heads // recipe.kv_heads
        wide = b(
            "Expand", b("Unsqueeze", value, b.numbers(2)), sizes(batch, recipe.kv_heads, times, total, recipe.size)
        )
        return b("Reshape", wide, sizes(batch, recipe.heads, total, recipe.size))

    def joined(name: str, layer: int, rows: str) -> str:
        b.several("Concat", [f"present.{layer}.{name}"], f"past_key_values.{layer}.{name}", rows, axis=2)
        return over_groups(f"present.{layer}.{name}")

    for layer in range(recipe.layers):
        rows = norm(x, b.vector(layer, "input_layernorm"))
        query, key, value = (
            b("Transpose", b("Reshape", b.projection(rows, layer, f"{part}_proj"), shape), perm=[0, 2, 1, 3])
            for part, heads in (("q", recipe.heads), ("k", recipe.kv_heads), ("v", recipe.kv_heads))
            for shape in (sizes(batch, new, heads, recipe.size),)
        )
        keys, values = joined("key", layer, turned(key)), joined("value", layer, value)
        scores = b("MatMul", turned(query), b("Transpose", keys, perm=[0, 1, 3, 2]))
        scores = b("Add", b("Mul", scores, b.scalar(recipe.size**-0.5)), mask)
        mixed = b("Transpose", b("MatMul", b("Softmax", scores, axis=-1), values), perm=[0, 2, 1, 3])
        mixed = b("Reshape", mixed, sizes(batch, new, recipe.heads * recipe.size))
        x = b("Add", x, b.projection(mixed, layer, "o_proj"))
        x = b("Add", x, b.feed_forward(norm(x, b.vector(layer, "post_attention_layernorm")), layer))
    rows = norm(x, b.constant(weights.norm, "model.norm.weight"))
    return b.model(b.product(rows, weights.head, "lm_head"), positions=True)


def causal_mask(b: Builder, places: str, total: str, sizes: Callable[..., str]) -> str:
    """What is added to the scores, (batch, 1, new, total): nothing for a token that came before and is no padding."""
    zero, one = b.scalar(0, "int64"), b.scalar(1, "int64")
    own = b("Unsqueeze", places, b.numbers(1))
    later = b("Unsqueeze", b("Greater", b("Range", zero, total, one), own), b.numbers(0, 1))
    padding = b("Equal", b("Unsqueeze", "attention_mask", b.numbers(1, 2)), zero)
    return b("Where", b("Or", later, padding), b.scalar(FAR), b.scalar(0))


def rotary_angles(b: Builder, shape: str) -> tuple[str, str]:
    """The cosines and sines of the angles of position_ids, (batch, 1, new, size)."""
    recipe = b.recipe
    frequencies = (BASE ** (-np.arange(0, recipe.size, 2) / recipe.size)).astype(np.float32)
    wide = b("Expand", b.constant(frequencies[None, :, None]), shape)
    places = b("Cast", b("Unsqueeze", "position_ids", b.numbers(1)), to=onnx.TensorProto.FLOAT)
    found = b("Transpose", b("MatMul", wide, places), perm=[0, 2, 1])
    both = b("Concat", found, found, axis=-1)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(recipe.dtype))
    cosine, sine = (b("Unsqueeze", b("Cast", b(each, both), to=kind), b.numbers(1)) for each in ("Cos", "Sin"))
    return cosine, sine


FORMS: dict[str, Callable[[Weights], onnx.ModelProto]] = {"grouped": grouped, "spelled out": spelled_out}


def model_of(form: str, recipe: Recipe) -> onnx.ModelProto:
    return FORMS[form](Weights.of(recipe))
