"""Products with several matrices, computed as one: the same answers, and as few products as there can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx.parser
import pytest

from opgraft.engine import Program, read_model
from opgraft.graph import Graph
from opgraft.joining import joined
from opgraft.ops import op
from opgraft.plan import build_plan
from opgraft.registry import Pack, Registry, load_registry, parse_policy


def graph_of(text: str, registry: Registry, arrays: dict[str, Any]) -> Graph:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "acme": 1]>\n{text}')
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return read_model(model, registry.definitions)


def operators(graph: Graph) -> Counter[str]:
    return Counter(node.op_type for node in graph.nodes)


def check(
    text: str, arrays: dict[str, Any], *inputs: Any, registry: Registry | None = None, outputs: Sequence[str] = ()
) -> Graph:
    """The graph with its products joined; it gives what it gave before."""
    registry = registry or load_registry()
    graph = graph_of(text, registry, arrays)
    before = operators(graph)
    found = joined(graph, registry)
    programs = [Program(build_plan(each), registry, "cpu") for each in (found, graph_of(text, registry, arrays))]
    for one, other in zip(*(program.run(list(inputs)) for program in programs), strict=True):
        np.testing.assert_allclose(np.array(one), np.array(other), rtol=1e-5, atol=1e-5)
    assert operators(graph) == before  # it stays as it is
    assert all(node.graph is graph for node in graph.nodes)
    return found


RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def test_products_of_one_value_are_one() -> None:
    text = """g (float[B, 3, 8] x) => (float[B, 3, 6] y, float[B, 3, 2] z) {
        a = MatMul (x, p) b = MatMul (x, q) c = MatMul (x, r) y = Mul (a, b) z = Neg (c)
    }"""
    found = check(text, {"p": normal(8, 6), "q": normal(8, 6), "r": normal(8, 2)}, normal(2, 3, 8))
    assert operators(found) == {"MatMul": 1, "Split": 1, "Mul": 1, "Neg": 1}
    assert found.nodes[0].name == "MatMul (-> a) + MatMul (-> b) + MatMul (-> c)"
    assert found.nodes[0].outputs[0] is not None
    assert found.nodes[0].outputs[0].shape == ("B", 3, 14)


@pytest.mark.parametrize(
    ("text", "arrays"),
    [
        ("a = MatMul (x, p) y = MatMul (a, p)", {"p": normal(8, 8)}),
        ("a = MatMul (x, p) b = MatMul (x, q) y = Add (a, b)", {"p": normal(8, 8), "q": normal(1, 8, 8)}),
        ("t = Neg (p) a = MatMul (x, t) b = MatMul (x, q) y = Add (a, b)", {"p": normal(8, 8), "q": normal(8, 8)}),
        ("a = MatMul (p, x) b = MatMul (q, x) y = Add (a, b)", {"p": normal(8, 8), "q": normal(8, 8)}),
    ],
    ids=["one after the other", "of another rank", "no constant", "from the other side"],
)
def test_others_are_left_as_they_are(text: str, arrays: dict[str, Any]) -> None:
    registry = load_registry()
    graph = graph_of(f"g (float[8, 8] x) => (float[A, B] y) {{ {text} }}", registry, arrays)
    assert joined(graph, registry) is graph


def test_one_that_is_denied_and_others() -> None:
    """Without Split, there is nothing to take them apart with."""
    text = "g (float[2, 8] x) => (float[2, 6] y) { a = MatMul (x, p) b = MatMul (x, q) y = Add (a, b) }"
    packs = load_registry().packs
    denied = Registry(packs, parse_policy('ops: {"ai.onnx::Split": {deny: ["builtin"]}}', "registry.yaml"))
    graph = graph_of(text, denied, {"p": normal(8, 6), "q": normal(8, 6)})
    assert joined(graph, denied) is graph


def test_matrices_of_few_bits() -> None:
    def matrix(rows: int) -> dict[str, Any]:
        return {
            "b": RNG.integers(0, 256, (rows, 2, 16)).astype(np.uint8),
            "s": normal(rows * 2),
            "z": RNG.integers(0, 256, rows).astype(np.uint8),
        }

    arrays = {f"{name}{number}": each for number, rows in enumerate((5, 7)) for name, each in matrix(rows).items()}
    settings = "K = 64, bits = 4, block_size = 32"
    text = f"""g (float[B, 64] x) => (float[B, 5] y, float[B, 7] z) {{
        y = com.microsoft.MatMulNBits <N = 5, {settings}> (x, b0, s0, z0)
        z = com.microsoft.MatMulNBits <N = 7, {settings}> (x, b1, s1, z1)
    }}"""
    found = check(text, arrays, normal(3, 64))
    assert operators(found) == {"MatMulNBits": 1, "Split": 1}
    assert found.nodes[0].attributes["N"] == 12
    other = text.replace("bits = 4, block_size = 32> (x, b1", "bits = 4, block_size = 32, accuracy_level = 4> (x, b1")
    assert operators(check(other, arrays, normal(3, 64))) == {"MatMulNBits": 2}
    lacking = text.replace("b1, s1, z1", "b1, s1")
    assert operators(check(lacking, arrays, normal(3, 64))) == {"MatMulNBits": 2}


@pytest.mark.parametrize("order", ["qkv", "vkq", "kqv"])
@pytest.mark.parametrize("rotary", [0, 1])
def test_queries_keys_and_values_come_as_one(order: str, rotary: int) -> None:
    arrays = {"wq": normal(8, 32), "wk": normal(8, 16), "wv": normal(8, 16), "cos": normal(9, 4), "sin": normal(9, 4)}
    arrays |= {"wo": normal(8, 5)}
    products = " ".join(f"{name} = MatMul (x, w{name})" for name in order)
    text = f"""g (float[1, S, 8] x, float[1, 2, P, 8] pk, float[1, 2, P, 8] pv, int32[1] ends, int32 total)
        => (float[1, S, 32] y, float[1, 2, T, 8] k2, float[1, 2, T, 8] v2, float[1, S, 5] o) {{
        {products} o = MatMul (x, wo)
        y, k2, v2 = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2, do_rotary = {rotary}>
            (q, k, v, pk, pv, ends, total, cos, sin)
    }}"""
    inputs = normal(1, 2, 8), normal(1, 2, 3, 8), normal(1, 2, 3, 8), np.array([4], np.int32), np.array(5, np.int32)
    found = check(text, arrays, *inputs)
    assert operators(found) == {"MatMul": 2, "GroupQueryAttention": 1}
    assert [value is None for value in found.nodes[-1].inputs[:3]] == [False, True, True]
    read_twice = text.replace("o = MatMul (x, wo)", "o = MatMul (k, wo2)")
    found = check(read_twice, {**arrays, "wo2": normal(16, 5)}, *inputs)
    assert operators(found) == {"MatMul": 2, "Split": 1, "GroupQueryAttention": 1}


def test_names_are_nobody_elses() -> None:
    text = """g (float[2, 8] x, float[2, 8] w) => (float[2, 6] y, float[2, 6] z) {
        [mm] a = MatMul (x, p) [mm] b = MatMul (x, q) [mm] c = MatMul (w, p) [mm] d = MatMul (w, q)
        y = Add (a, b) z = Add (c, d)
    }"""
    arrays = {"p": normal(8, 6), "q": normal(8, 6)}
    found = check(text, arrays, normal(2, 8), normal(2, 8))
    assert operators(found) == {"MatMul": 2, "Split": 2, "Add": 2}
    names = [value.name for node in found.nodes for value in node.outputs if value is not None]
    assert len(set(names)) == len(names)
    assert "mm + mm: output" in names


@pytest.mark.parametrize("widths", [(32, 16, 8), (48, 16, 16), (32, 8, 24), (32, 16, 14)])
def test_heads_of_several_sizes_are_not_packed(widths: tuple[int, int, int]) -> None:
    arrays = {f"w{name}": normal(8, width) for name, width in zip("qkv", widths, strict=True)}
    text = """g (float[1, S, 8] x, int32[1] ends, int32 total) => (float[1, S, A] y, float[B, C, D, E] k2) {
        q = MatMul (x, wq) k = MatMul (x, wk) v = MatMul (x, wv)
        y, k2, v2 = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (q, k, v, , , ends, total)
    }"""
    registry = load_registry()
    found = joined(graph_of(text, registry, arrays), registry)
    assert operators(found) == {"MatMul": 1, "Split": 1, "GroupQueryAttention": 1}


def test_a_node_without_any_of_the_constants() -> None:
    @op("acme::Scaled")
    def scaled(x: Any, w: Any = None) -> Any:
        return x if w is None else x @ w

    scaled.joins({"w": 1}, rank=2)
    builtin = next(pack for pack in load_registry().packs if pack.name == "builtin")
    registry = Registry(
        [Pack("own", plugins=(scaled,)), builtin], parse_policy("packs: [own, builtin]", "registry.yaml")
    )
    text = "g (float[2, 8] x) => (float[2, 8] y) { a = acme.Scaled (x) b = acme.Scaled (x) y = Add (a, b) }"
    graph = graph_of(text, registry, {})
    assert joined(graph, registry) is graph


def test_a_handler_of_another_pack() -> None:
    @op("acme::Product")
    def product(x: Any, w: Any) -> Any:
        return x @ w

    product.joins({"w": 1}, rank=2)
    builtin = next(pack for pack in load_registry().packs if pack.name == "builtin")
    text = "g (float[2, 8] x) => (float[2, 6] y) { a = acme.Product (x, p) b = acme.Product (x, q) y = Add (a, b) }"
    arrays = {"p": normal(8, 6), "q": normal(8, 6)}
    policy = parse_policy("packs: [own, builtin]", "registry.yaml")
    registry = Registry([Pack("own", plugins=(product,)), builtin], policy)
    assert operators(check(text, arrays, normal(2, 8), registry=registry)) == {"Product": 1, "Split": 1, "Add": 1}
