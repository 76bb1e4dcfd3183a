"""Which outputs are drawn at random."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest

from opgraft.randomness import random_outputs


def drawn(body: str, outputs: str = "float[3] y, float[3] z") -> dict[str, tuple[str, ...]]:
    text = f'<ir_version: 10, opset_import: ["" : 21, "own" : 1]> g (float[3] x, bool c) => ({outputs}) {{ {body} }}'
    return random_outputs(onnx.parser.parse_model(text))


def test_what_follows_from_a_draw_is_random_and_nothing_else() -> None:
    assert drawn("r = RandomNormalLike(x) s = Exp(r) y = Add(s, x) z = Neg(x)") == {"y": ("RandomNormalLike",)}


def test_every_operator_that_draws_is_named_once() -> None:
    found = drawn(
        "r = RandomUniformLike(x) s = Bernoulli(x) t = Add(r, s) u = RandomUniformLike(t) y = Add(t, u) z = Neg(y)"
    )
    assert found["y"] == ("RandomUniformLike", "Bernoulli") or set(found["y"]) == {"RandomUniformLike", "Bernoulli"}
    assert found["z"] == found["y"]


@pytest.mark.parametrize("body", ["u = RandomNormalLike(x)", "u = Neg(r)"])
def test_bodies_draw_and_read_what_was_drawn(body: str) -> None:
    text = (
        "r = RandomNormalLike(x) z = Neg(x)"
        f" y = If (c) <then_branch = t () => (float[3] u) {{ {body} }},"
        " else_branch = e () => (float[3] v) { v = Abs(x) }>"
    )
    assert drawn(text) == {"y": ("RandomNormalLike",)}


@pytest.mark.parametrize(("mode", "random"), [("", False), (", no", False), (", yes", True), (", c", True)])
def test_dropout_draws_in_training_only(mode: str, random: bool) -> None:
    text = (
        '<ir_version: 10, opset_import: ["" : 21]> g (float[3] x, bool c) => (float[3] y) '
        f"<float ratio = {{0.5}}, bool no = {{0}}, bool yes = {{1}}> {{ y = Dropout(x, ratio{mode}) }}"
    )
    assert random_outputs(onnx.parser.parse_model(text)) == ({"y": ("Dropout",)} if random else {})


def test_functions_of_the_model_are_looked_into() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
    g (float[3] x) => (float[3] y) { y = own.noisy(x) }
    <domain: "own", opset_import: ["" : 21]> noisy (a) => (b) { r = RandomNormalLike(a) b = Add(a, r) }"""
    assert random_outputs(onnx.parser.parse_model(text)) == {"y": ("RandomNormalLike",)}
