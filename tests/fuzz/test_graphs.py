"""Random whole graphs give the same answers step by step, compiled, on the execution provider, and on the CPU's."""

from __future__ import annotations

import pytest
from graph_maker import random_model
from graphs import Invalid, check, everything_traced, in_session, most_forms

MODELS = 500
GROUP = 50


@pytest.mark.parametrize("first", range(0, MODELS, GROUP))
def test_graphs(first: int) -> None:
    right = replayed = 0
    for seed in range(first, first + GROUP):
        with everything_traced(most_forms(seed)):
            try:
                replayed += check(random_model(seed), seed, session=in_session(seed))[0]
            except Invalid:
                continue
            except Exception as error:
                error.add_note(f"model {seed}, which fuzz/graphs.py makes smaller with --first {seed} --models 1")
                raise
        right += 1
    assert right > 0.9 * GROUP
    assert replayed > GROUP
