"""What docs/coverage.md says of cases that are not right."""

from __future__ import annotations

import pytest
from coverage_page import page, why_not_right
from node_cases import Verdict


@pytest.mark.parametrize(
    ("verdict", "reasons"),
    [
        (Verdict("test_x", "wrong", "AssertionError: Mismatch", ("ai.onnx::Add",)), ["wrong: test_x"]),
        (
            Verdict("test_x", "unclaimed", "ai.onnx::Add-14: it is too large; mend it", ("ai.onnx::Add",)),
            ["it is too large"],
        ),
        (
            Verdict("test_x", "unclaimed", "ai.onnx::If-1: a body; ai.onnx.ml::ZipMap-1: a map: no", ()),
            ["held back by If", "held back by ai.onnx.ml::ZipMap"],
        ),
        (Verdict("test_x", "unclaimed", "not loadable: who knows", ()), ["not loadable: who knows"]),
    ],
)
def test_why_a_case_is_not_right(verdict: Verdict, reasons: list[str]) -> None:
    assert why_not_right("ai.onnx::Add", verdict) == reasons


def test_the_page_names_what_is_wrong_and_what_held_back() -> None:
    text = page(
        [
            Verdict("test_bad", "wrong", "AssertionError: 1 | 2", ("ai.onnx::Abs",)),
            Verdict("test_late", "unclaimed", "ai.onnx::Loop-1: a sequence", ("ai.onnx::Loop", "ai.onnx::Abs")),
        ]
    )
    assert "\n- wrong: `test_bad`: AssertionError: 1 \\| 2\n" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| Abs |")]
    assert row.endswith("| 0 | 0 | 2 | wrong: test_bad (1); held back by Loop (1) |")
