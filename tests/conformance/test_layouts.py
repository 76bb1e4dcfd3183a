"""Operators that may be given images with their channels last: as with every input in ONNX's order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from properties import OPERATORS, Case, judge, load_families, registry

from opgraft.engine import Program
from opgraft.ops import Layout

load_families()

LAYOUTS = {
    plugin.op_type: plugin.layout
    for pack in registry().packs
    if pack.name == "builtin"
    for plugin in pack.plugins
    if plugin.layout in (Layout.ANY, Layout.KEPT)
}


@pytest.mark.parametrize("operator", sorted(LAYOUTS))
def test_answers_are_the_same(operator, monkeypatch):
    """Every input is taken for an image with its channels last."""
    found = Program._channels_last

    def with_inputs(self, candidates):
        inputs = set(range(len(self.plan.inputs)))
        return found(self, candidates) | inputs

    monkeypatch.setattr(Program, "_channels_last", with_inputs)

    @settings(database=None, max_examples=60)
    @given(OPERATORS[operator])
    def holds(case: Case) -> None:
        judge(case)

    holds()


def test_some_are_known():
    assert {"Add", "Relu", "Concat", "Split", "Where", "Clip", "Cast"} <= LAYOUTS.keys()
