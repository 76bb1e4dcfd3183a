"""`opgraft bench`: both run in turns, and the slower one's time is told by operator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from reporting_models import DETECTOR, denying, parsed

from opgraft import benchmark as module
from opgraft.benchmark import Benchmark, benchmark
from opgraft.cli import main
from opgraft.errors import ModelError
from opgraft.samples import Sample
from opgraft.sessions import sample_inputs
from opgraft.tracing.session import everywhere

MODEL = """g (float[n,4] x, bool c) => (float[n,4] y) {
    a = Exp(x)
    b = If (c) <then_branch = t () => (float[n,4] u) { p = Sin(a) u = Tanh(p) },
                else_branch = e () => (float[n,4] v) { v = Neg(a) }>
    y = Softplus(b)
}"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(parsed(MODEL), path)
    return path


def feeds(session: Any) -> Sample:
    return Sample({"x": np.ones((2, 4), np.float32), "c": np.array(True)}, {}, ())


def pretend(monkeypatch: pytest.MonkeyPatch, ep: float, cpu: float) -> list[int]:
    """Has runs take so many seconds, by the clock of the benchmark; gives the order in which the two come."""
    order: list[int] = []
    sessions: list[int] = []

    def run(session: Any, inputs: Any, where: str) -> float:
        if id(session) not in sessions:
            sessions.append(id(session))
        order.append(sessions.index(id(session)))
        return (ep, cpu)[order[-1]]

    monkeypatch.setattr(module, "_run", run)
    return order


def test_they_take_turns(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = pretend(monkeypatch, 2.0, 1.0)
    found = benchmark(model, feeds, runs=4, warm_ups=2)
    assert order == [0, 1, 0, 1, 0, 1, 1, 0, 0, 1, 1, 0]
    assert (found.ep.median, found.cpu.median, found.ratio) == (2, 1, 0.5)
    assert (found.ep.first_run, len(found.ep.runs), found.ep.least) == (2, 4, 2)
    assert found.ep.session > 0
    assert found.memory.process_peak is None or found.memory.process_peak > 10_000_000


def times(found: Benchmark) -> dict[str, int]:
    assert all(each.seconds > 0 for each in found.operators)
    assert [each.seconds for each in found.operators] == sorted(
        (each.seconds for each in found.operators), reverse=True
    )
    return {each.operator: each.nodes for each in found.operators}


def test_operators_of_the_ep_with_bodies_and_what_is_on_the_cpu(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, 2.0, 1.0)
    whole = benchmark(model, feeds)
    assert whole.slower == "MLXExecutionProvider"
    assert times(whole) == {"Exp": 1, "If": 1, "Sin": 1, "Tanh": 1, "Softplus": 1}
    pretend(monkeypatch, 2.0, 1.0)
    split = benchmark(model, feeds, {"registry": denying(tmp_path, ["Softplus"])})
    assert times(split) == times(whole)
    assert everywhere == []


def test_operators_of_the_cpu(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 1.0, 2.0)
    found = benchmark(model, feeds)
    assert found.slower == "CPUExecutionProvider"
    assert {"Exp", "Softplus"} <= times(found).keys()


def test_a_run_that_fails(model: Path) -> None:
    wrong = Sample({**feeds(None).inputs, "x": np.ones((2, 5), np.float32)}, {}, ("height",))
    with pytest.raises(ModelError, match="the run fails on the CPU EP too, so look at the inputs") as refusal:
        benchmark(model, lambda session: wrong)
    assert str(refusal.value).endswith("; sizes taken as 1: height; give them, as in -s height=320")
    assert "deny" not in str(refusal.value)


def invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["bench", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_what_is_shown() -> None:
    result = invoke(DETECTOR, "--runs", 2, "--warm-up", 1, "-s", "batch=1", "-s", "height=64", "-s", "width=64")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 100
    assert "taken as 1" not in result.output
    for each in ("detector.onnx: the EP is ", "2 runs of each in turns", "peak memory of MLX: ", "ms a run"):
        assert each in result.output


def test_as_json_and_with_inputs_from_a_file(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", **feeds(None).inputs)
    result = invoke(model, "-i", tmp_path / "in.npz", "--runs", 3, "--warm-up", 0, "--json")
    document = json.loads(result.stdout)
    assert (document["format"], document["version"], document["model"]) == ("opgraft-benchmark", 1, "model.onnx")
    assert len(document["ep"]["runs"]) == len(document["cpu"]["runs"]) == 3
    assert document["summary"]["ratio"] == document["summary"]["cpu_median"] / document["summary"]["ep_median"]


def test_sizes_that_are_taken_as_1_are_told(model: Path) -> None:
    assert "taken as 1, since no -s NAME=SIZE gives another size: n\n" in invoke(model, "--runs", 1).output
    assert json.loads(invoke(model, "--runs", 1, "--json").stdout)["assumed"] == ["n"]


def test_bad_models_and_inputs(model: Path, tmp_path: Path) -> None:
    assert "no such file" in invoke(tmp_path / "nothing.onnx").output
    assert "no dimension is named 'm'" in invoke(model, "-s", "m=2").output
    assert invoke(model, "--runs", 0).exit_code == 2


def test_random_inputs_fit(model: Path) -> None:
    found = benchmark(model, lambda session: sample_inputs(session, {"n": 3}), runs=1, warm_ups=0)
    assert found.ep.first_run == found.ep.runs[0]
