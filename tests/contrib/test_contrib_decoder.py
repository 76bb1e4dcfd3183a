"""A decoder's layer as exporters of generative models write it, run token by token through a session."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from contrib_kit import TOLERANCE, floats, packed, whole_numbers
from onnx import TensorProto, helper, numpy_helper

import opgraft
from opgraft.testing import assert_same

WIDTH, HEADS, KV_HEADS, SIZE, PLACES, WORDS, BLOCK = 64, 4, 2, 16, 32, 20, 32
ROUNDINGS = 4
"""How many operators with floats stand one behind the other, each with the tolerance of one."""
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


def decoder(dtype):
    """Embedding, projection, attention and projection back, all weights of 4 bits; masks become lengths as in
    onnxruntime-genai's models."""
    kind = TYPES[dtype]
    initializers = {
        "cosine": floats(PLACES, SIZE // 2, dtype=dtype, seed=1),
        "sine": floats(PLACES, SIZE // 2, dtype=dtype, seed=2),
        "axes": np.array([1]),
        "one": np.array([1]),
        "last": np.array(1),
        "words": packed(whole_numbers(WORDS, WIDTH, below=16), 4),
        "word scales": (abs(floats(WORDS, WIDTH // BLOCK, seed=3)) / 8).astype(dtype),
    }
    nodes = [
        helper.make_node("ReduceSum", ["mask", "axes"], ["counts"], keepdims=0),
        helper.make_node("Sub", ["counts", "one"], ["ends"]),
        helper.make_node("Cast", ["ends"], ["seqlens_k"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "last"], ["length"]),
        helper.make_node("Cast", ["length"], ["total"], to=TensorProto.INT32),
    ]

    def contrib(operator, inputs, outputs, **attributes):
        nodes.append(helper.make_node(operator, inputs, outputs, domain="com.microsoft", **attributes))

    def product(x, name, K, N):
        initializers[f"{name} weights"] = packed(whole_numbers(N, K, below=16, seed=N), 4).reshape(N, K // BLOCK, -1)
        initializers[f"{name} scales"] = (abs(floats(N, K // BLOCK, seed=N)) / 16).astype(dtype)
        inputs = [x, f"{name} weights", f"{name} scales"]
        contrib("MatMulNBits", inputs, [name], K=K, N=N, bits=4, block_size=BLOCK, accuracy_level=1)

    contrib("GatherBlockQuantized", ["words", "tokens", "word scales"], ["embedded"], block_size=BLOCK)
    product("embedded", "projected", WIDTH, (HEADS + 2 * KV_HEADS) * SIZE)
    caches = ["past_key", "past_value"], ["present_key", "present_value"]
    inputs = ["projected", "", "", *caches[0], "seqlens_k", "total", "cosine", "sine"]
    settings = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": 1, "local_window_size": -1}
    contrib("GroupQueryAttention", inputs, ["attended", *caches[1]], **settings)
    product("attended", "logits", HEADS * SIZE, WORDS)
    values = [
        helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "new"]),
        helper.make_tensor_value_info("mask", TensorProto.INT64, ["batch", "total"]),
        *(helper.make_tensor_value_info(name, kind, ["batch", KV_HEADS, "past", SIZE]) for name in caches[0]),
    ]
    results = [
        helper.make_tensor_value_info("logits", kind, ["batch", "new", WORDS]),
        *(helper.make_tensor_value_info(name, kind, ["batch", KV_HEADS, "after", SIZE]) for name in caches[1]),
    ]
    carried = [numpy_helper.from_array(each, name) for name, each in initializers.items()]
    graph = helper.make_graph(nodes, "decoder", values, results, carried)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def sessions(model: onnx.ModelProto):
    """One on the EP, which may leave nothing to the CPU, and one on the CPU provider."""
    options = opgraft.session_options(device="cpu")
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    text = model.SerializeToString()
    return (
        onnxruntime.InferenceSession(text, options),
        onnxruntime.InferenceSession(text, providers=["CPUExecutionProvider"]),
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("room", [0, 12], ids=["caches that grow", "caches of 12 places"])
@pytest.mark.parametrize("batch", [1, 2])
def test_tokens_one_by_one(dtype, room, batch):
    both = sessions(decoder(dtype))
    caches = [[np.zeros((batch, KV_HEADS, room, SIZE), dtype)] * 2 for _ in both]
    tokens = whole_numbers(batch, 5, below=WORDS)
    total = 0
    for _ in range(4):
        total += tokens.shape[1]
        feeds = {"tokens": tokens, "mask": np.ones((batch, total), np.int64)}
        results = [
            session.run(None, {**feeds, "past_key": key, "past_value": value})
            for session, (key, value) in zip(both, caches, strict=True)
        ]
        for found, wanted in zip(*results, strict=True):
            assert_same(found, wanted, ROUNDINGS * TOLERANCE[dtype])
        caches = [rest for _, *rest in results]
        tokens = results[1][0][:, -1:].argmax(-1)
    assert caches[0][0].shape[2] == (room or total)
