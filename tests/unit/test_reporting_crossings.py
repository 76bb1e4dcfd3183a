"""What crosses between ONNX Runtime's memory and the device, as a report says it."""

from __future__ import annotations

from pathlib import Path

import pytest
from reporting_models import parsed, surveyed

from opgraft.errors import ModelError, OptionError
from opgraft.graph import Value
from opgraft.reporting import Report
from opgraft.reporting.crossings import Traffic, bytes_of

SPLIT = """g (float[2,3] x, float[n,3] z) => (float[2,3] y, float[2,3] b) <float[2,3] w = {1,2,3,4,5,6}> {
    a = Add(x, w)
    b = Neg(a)
    c = Sin(b)
    d = Mul(c, w)
    e = Add(d, a)
    f = Exp(z)
    s = ReduceSum(f)
    y = Add(e, s)
}"""
"""Sin is denied: {Add, Neg} -> Sin -> {Mul, Add, Exp, ReduceSum, Add}."""


def crossing(report: Report) -> dict[tuple[str, str], tuple[int | None, bool]]:
    return {(each.tensor, each.direction): (each.bytes, each.of_model) for each in report.crossings}


def test_what_enters_and_what_leaves(tmp_path: Path) -> None:
    report = surveyed(parsed(SPLIT), tmp_path, ["Sin"])
    assert crossing(report) == {
        ("x", "into"): (24, True),
        ("z", "into"): (None, True),
        ("a", "out of"): (24, False),
        ("a", "into"): (24, False),
        ("b", "out of"): (24, True),
        ("c", "into"): (24, False),
        ("y", "out of"): (24, True),
    }
    assert report.traffic == Traffic(7, 6 * 24, 1)
    large, small = report.subgraphs
    assert (large.nodes, large.into, large.out_of) == (5, Traffic(3, 48, 1), Traffic(1, 24, 0))
    assert (small.nodes, small.into, small.out_of) == (2, Traffic(1, 24, 0), Traffic(2, 48, 0))


def test_what_is_on_the_cpu_alone_crosses_nothing(tmp_path: Path) -> None:
    report = surveyed(parsed("g (float[2] x) => (float[2] y) { a = Sin(x) y = Sin(a) }"), tmp_path, ["Sin"])
    assert (report.crossings, report.subgraphs) == ((), ())


def test_sizes_by_name_make_bytes_known(tmp_path: Path) -> None:
    report = surveyed(parsed(SPLIT), tmp_path, ["Sin"], sizes={"n": 10})
    assert crossing(report)["z", "into"] == (120, True)
    assert surveyed(parsed(SPLIT), tmp_path, ["Sin"], sizes={"*": 10}).traffic == report.traffic
    assert surveyed(parsed(SPLIT), tmp_path, ["Sin"], sizes={"z:0": 10}).traffic == report.traffic


def test_sizes_that_the_model_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no dimension is named 'm'; those that have a name and no size are n"):
        surveyed(parsed(SPLIT), tmp_path, sizes={"m": 10})
    assert surveyed(parsed(SPLIT), tmp_path, sizes={"m": 10}, all_sizes_needed=False).traffic.unknown == 1
    contrary = parsed(
        "g (float[n] x, float[m] z) => (float[2] y) <int64[1] two = {2}> { a = Add(x, z) y = Reshape(a, two) }"
    )
    with pytest.raises(ModelError, match="does not take these sizes"):
        surveyed(contrary, tmp_path, sizes={"n": 3, "m": 4})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Value("x", "float32", (2, 3)), 24),
        (Value("x", "int4", (3,)), 2),
        (Value("x", "bool", ()), 1),
        (Value("x", "float32", (0, 3)), 0),
        (Value("x", "float32", ("n", 3)), None),
        (Value("x", "float32", None), None),
        (Value("x", None, (2,)), None),
        (Value("x", "string", (2,)), None),
    ],
)
def test_bytes(value: Value, expected: int | None) -> None:
    assert bytes_of(value) == expected
