"""Decoders as exporters write them, token by token: the CPU provider's tokens and logits, and few traces."""

from __future__ import annotations

from collections import Counter

import mlx.core as mx
import numpy as np
import pytest
from generation import MAKERS, along, cpu_session, greedy
from recipes import Recipe

from opgraft import joining
from opgraft.engine import compiled

STEPS = 64
TOLERANCE = {"float32": 1e-3, "float16": 4e-3}
"""Of the largest logit. float16's is four units in its last place: either side rounds after every operator."""

RECIPES = {
    "float32": Recipe(),
    "float32, biased": Recipe(biased=True),
    "float16": Recipe(dtype="float16"),
    "int4": Recipe(int4=True),
}
WAYS = {
    "grouped, growing": ("grouped", "growing"),
    "grouped, growing, bound": ("grouped", "growing, bound"),
    "grouped, shared": ("grouped", "shared"),
    "grouped, shared, whole mask": ("grouped", "shared, whole mask"),
    "spelled out, growing": ("spelled out", "growing"),
}

each_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
each_way = pytest.mark.parametrize(("form", "caches"), WAYS.values(), ids=WAYS)


@each_way
@each_recipe
def test_tokens_and_logits_are_those_of_the_cpu_provider(opened, monkeypatch, recipe, form, caches):
    """At each step of the CPU provider's generation. In float16, its two best tokens may lie closer together than
    rounding tells apart: there, either will do."""
    make, tolerance = MAKERS[caches], TOLERANCE[recipe.dtype]
    steps = list(greedy(make(cpu_session(form, recipe), recipe), STEPS))
    tokens = [token for token, _ in steps]
    assert len(set(tokens)) > STEPS // 8
    found = opened(form, recipe)
    assert len(found.programs) == 1
    ours = list(along(make(found.session, recipe), tokens))
    for logits, (token, expected) in zip(ours, steps, strict=True):
        wide = expected.astype(np.float32)
        near = tolerance * np.abs(wide).max()
        assert np.abs(logits.astype(np.float32) - wide).max() <= near
        assert logits.argmax() == token or (recipe.dtype == "float16" and wide.max() - wide[logits.argmax()] <= near)
    monkeypatch.setenv("OPGRAFT_COMPILE", "0")
    plain = opened(form, recipe)
    assert [program.compiler for program in plain.programs] == [None]
    again = along(make(plain.session, recipe), tokens)
    assert [each.argmax() for each in again] == [each.argmax() for each in ours]


@each_recipe
@pytest.mark.parametrize("caches", ["growing, bound", "shared"])
def test_products_are_joined_as_on_a_gpu(opened, monkeypatch, recipe, caches):
    monkeypatch.setattr(joining, "DEVICES", ("cpu", "gpu"))
    make, tolerance = MAKERS[caches], TOLERANCE[recipe.dtype]
    steps = list(greedy(make(cpu_session("grouped", recipe), recipe), 16))
    found = opened("grouped", recipe)
    products = Counter(step.node.op_type for step in found.programs[0].plan.steps if "MatMul" in step.node.op_type)
    assert sum(products.values()) == 4 * recipe.layers + 1  # query, key, value; out; gate, up; down; and the head
    ours = along(make(found.session, recipe), [token for token, _ in steps])
    for logits, (_, expected) in zip(ours, steps, strict=True):
        wide = expected.astype(np.float32)
        assert np.abs(logits.astype(np.float32) - wide).max() <= tolerance * np.abs(wide).max()


@pytest.mark.parametrize("caches", ["growing, bound", "growing"])
def test_a_mask_that_does_not_fit_what_went_before(opened, caches):
    """It is an error, and leaves the caches as they are."""
    recipe = Recipe()
    tokens = [token for token, _ in greedy(MAKERS["growing"](cpu_session("grouped", recipe), recipe), 12)]
    expected = list(along(MAKERS["growing"](cpu_session("grouped", recipe), recipe), tokens))
    generator = MAKERS[caches](opened("grouped", recipe).session, recipe)
    ours = along(generator, tokens)
    for number, wanted in enumerate(expected):
        if number in (1, 4, 8):
            generator.length += 1  # the mask has one token too many
            with pytest.raises(Exception, match="seqlens_k"):
                generator.step([tokens[number - 1]])
            generator.length -= 1
        assert np.abs(next(ours) - wanted).max() <= 1e-3 * np.abs(wanted).max()


@each_way
def test_a_segment_has_at_most_two_traces(opened, monkeypatch, form, caches):
    monkeypatch.setattr(compiled, "LEAST_BUILDING", 0.0)
    recipe, steps = Recipe(), 256
    found = opened(form, recipe)
    for _ in greedy(MAKERS[caches](found.session, recipe), steps):
        pass
    compiler = found.programs[0].compiler
    traces = Counter(segment for segment, _ in compiler._traces)
    assert traces and max(traces.values()) <= 2
    assert compiler.counts.traced <= 2 * len(traces) + 8  # those from before the program was recorded again
    assert compiler.counts.replayed >= (steps - 16) * len(traces)
    traced = sum(segment.end - segment.first for segment in traces)
    assert traced >= len(found.programs[0].plan.steps) * (0.5 if form == "spelled out" else 0.75)


@pytest.mark.parametrize("caches", ["growing", "shared"])
def test_memory_is_flat(opened, caches):
    recipe, seen = Recipe(), []
    found = opened("grouped", recipe)
    for number, _ in enumerate(greedy(MAKERS[caches](found.session, recipe), 256)):
        if number in (64, 255):
            seen.append(mx.get_active_memory())
    assert seen[1] <= seen[0] + 4096
