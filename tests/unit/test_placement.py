"""placement=fastest, profiles, and `opgraft tune`."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import yaml
from click.testing import CliRunner
from onnx import TensorProto, helper
from reporting_models import DETECTOR, denying, parsed

import opgraft
from opgraft import fastest, ort_values, race
from opgraft.claims import Decisions
from opgraft.cli import main
from opgraft.engine import Program
from opgraft.errors import ModelError, OptionError
from opgraft.host import EP_NAME, ep, observed
from opgraft.host.logger import Logger
from opgraft.host.options import known_options
from opgraft.ops import op
from opgraft.profiles import FORMAT, Profile, Trial, load_profile, save_profile
from opgraft.race import Race
from opgraft.registry import Pack, installed_packs
from opgraft.sessions import (
    assignment,
    decided_session,
    open_cpu_session,
    options_with_provider,
    sample_inputs,
    survey,
)
from opgraft.tracing import end_session

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "placement.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")

TWO_PIECES = "g (float[n] x) => (float[n] y) { a = Neg(x)  b = Abs(a)  c = Sin(b)  d = Relu(c)  y = Neg(d) }"
"""With Sin denied, two clusters: Neg and Abs before it, Relu and Neg after it."""

X = {"x": np.array([-1, 0.5, 2], np.float32)}


def session_of(model: Any, options: dict[str, str]) -> Any:
    """A session that records which provider has which nodes."""
    chosen = options_with_provider({"device": "cpu", "placement": "fastest", **options})
    chosen.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    chosen.log_severity_level = 4
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return onnxruntime.InferenceSession(source, chosen)


def trials_of(model: Any, options: dict[str, str] | None = None) -> tuple[Trial, ...]:
    seen = decided_session(model, {"device": "cpu", "placement": "fastest", **(options or {})})
    return tuple(trial for decisions in seen for trial in decisions.trials)


def racing(monkeypatch: pytest.MonkeyPatch, *results: tuple[float, float] | BaseException) -> list[int]:
    """Each race runs both sides once, and then has the next of these results; the list that is returned grows by one
    with each race."""
    left = list(results)
    races: list[int] = []

    def raced(first: Callable[[], None], second: Callable[[], None]) -> Race:
        first()
        second()
        races.append(1)
        result = left.pop(0)
        if isinstance(result, BaseException):
            raise result
        return Race(*result)

    monkeypatch.setattr(fastest, "race", raced)
    return races


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(Logger, "warning", lambda self, message: said.append(message))
    return said


def test_what_wins_is_claimed_and_what_loses_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    registry = denying(tmp_path, ["ai.onnx::Sin"])
    racing(monkeypatch, (0.0007, 0.0041), (0.0041, 0.0007), (1, 1))
    session = session_of(parsed(TWO_PIECES), {"registry": registry})
    assert assignment(session) == {EP_NAME: [2], "CPUExecutionProvider": [1, 1, 1]}
    np.testing.assert_allclose(session.run(None, X)[0], -np.maximum(np.sin(np.abs(X["x"])), 0), rtol=1e-6)


def test_the_report_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    racing(monkeypatch, (0.0007, 0.0041), (0.0041, 0.0007), (1, 1))
    options = {"registry": denying(tmp_path, ["ai.onnx::Sin"]), "placement": "fastest", "device": "cpu"}
    report = survey(parsed(TWO_PIECES), options)
    reasons = {each.operator: each.reasons[0].reason for each in report.coverage.operators if each.reasons}
    assert reasons["ai.onnx::Relu"] == "slower here than on the CPU EP: 4.1 ms against 0.7 ms, tried with n=1"
    assert report.coverage.subgraphs == (2,)


@pytest.mark.parametrize(
    ("seconds", "claimed", "words"),
    [
        ((0.0010, 0.0010), False, "not clearly faster"),
        ((0.00095, 0.0010), False, "not clearly faster"),
        ((0.00089, 0.0010), True, "faster"),
        ((0.0021, 0.0010), False, "slower"),
    ],
)
def test_a_tie_goes_to_the_cpu(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, float], claimed: bool, words: str
) -> None:
    racing(monkeypatch, seconds)
    (trial,) = trials_of(parsed("g (float[3] x) => (float[3] y) { a = Neg(x)  y = Abs(a) }"))
    assert trial.claimed is claimed
    assert trial.reason.startswith(f"{words} here than on the CPU EP")
    assert trial.assumed == ""


def test_a_cluster_that_fails_is_left_to_the_cpu_with_that_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, inputs: Any) -> Any:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(Program, "run", fail)
    model = parsed("g (float[3] x) => (float[3] y) { y = Neg(x) }")
    (trial,) = trials_of(model)
    assert not trial.claimed
    assert trial.reason == "it could not be tried against the CPU EP: RuntimeError: no such kernel"
    assert assignment(session_of(model, {})) == {"CPUExecutionProvider": [1]}


@pytest.mark.parametrize("behind", ["", "z = Relu (y)"], ids=["the cluster itself", "the one before it"])
def test_a_session_is_made_though_the_model_runs_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, behind: str
) -> None:
    registry = {"registry": denying(tmp_path, ["Loop"])} if behind else {}
    monkeypatch.setattr(fastest, "MOST_SECONDS", 0.3)
    monkeypatch.setattr(fastest, "MOST_SECONDS_OF_ALL", 0.3)
    output = "z" if behind else "y"
    model = parsed(
        f"""g (float[2] x) => (float[2] {output}) <int64 n = {{2000000000}}, bool on = {{1}}> {{
            y = Loop (n, on, x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) {{
                d = Identity (c) w = Sin (v)
            }}> {behind}
        }}"""
    )
    began = time.monotonic()
    for decisions in decided_session(model, {"placement": "fastest", "device": "cpu", **registry}):
        assert not any(decision.claimed and decision.node.op_type == "Loop" for decision in decisions.decisions)
    assert time.monotonic() - began < 30


def test_what_the_cpu_has_no_kernel_for_is_claimed() -> None:
    """Otherwise no session could be made."""
    node = helper.make_node("Sin", ["x"], ["y"])
    info = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [2]) for name in "xy"]
    graph = helper.make_graph([node], "g", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    (trial,) = trials_of(model)
    assert trial.claimed
    assert trial.reason.startswith("the CPU EP cannot run it: ")
    given = {"x": np.array([0, 0x3F80], np.uint16)}
    (result,) = ort_values.run(session_of(model, {}), given)
    np.testing.assert_allclose((result.astype(np.uint32) << 16).view(np.float32), [0, np.sin(1)], rtol=0.01)


def test_the_model_as_a_whole_has_the_last_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each piece is faster, and both together with the CPU's are not."""
    races = racing(monkeypatch, (0.001, 0.002), (0.001, 0.002), (0.012, 0.010))
    model, options = parsed(TWO_PIECES), {"registry": denying(tmp_path, ["ai.onnx::Sin"])}
    found = trials_of(model, options)
    assert len(races) == 3
    assert [trial.claimed for trial in found] == [False, False]
    assert found[0].reason == (
        "faster here by itself, but the model as a whole is not: 12 ms against 10 ms on the CPU EP"
    )
    racing(monkeypatch, (0.001, 0.002), (0.001, 0.002), (0.009, 0.010))
    assert [trial.claimed for trial in trials_of(model, options)] == [True, True]


def test_the_whole_is_not_tried_where_it_is_one_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    races = racing(monkeypatch, (0.001, 0.002))
    (trial,) = trials_of(parsed("g (float[3] x) => (float[3] y) { a = Neg(x)  y = Abs(a) }"))
    assert trial.claimed
    assert len(races) == 1


def test_trials_of_the_whole_are_nobody_elses_business(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The session that they need shows nothing to observers, and tries nothing in its turn."""
    races = racing(monkeypatch, (0.001, 0.002), (0.001, 0.002), (0.009, 0.010))
    with observed(lambda decisions: decisions) as seen:
        session_of(parsed(TWO_PIECES), {"registry": denying(tmp_path, ["ai.onnx::Sin"])})
    assert len(seen) == 1
    assert len(races) == 3


def test_nothing_of_them_is_traced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    racing(monkeypatch, (0.001, 0.002), (0.001, 0.002), (0.009, 0.010))
    ended: list[Any] = []
    monkeypatch.setattr(ep, "end_session", ended.append)
    monkeypatch.setenv("OPGRAFT_TRACE", str(tmp_path / "trace.json"))
    session = session_of(parsed(TWO_PIECES), {"registry": denying(tmp_path, ["ai.onnx::Sin"])})
    (whole,) = ended
    assert whole.listeners == []
    del session
    assert len(ended) == 2
    end_session(ended[1])


def test_operators_that_packs_define(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU EP a kernel runs them, which knows their version here as it does in a session."""

    @op("acme::Scale", since=1, until=1)
    def scale(X: Any, *, by: float = 2.0) -> Any:
        return X * by

    @op("acme::Scale", since=2)
    def scale_and_add(X: Any, *, by: float = 2.0) -> Any:
        return X * by + 1

    scale.schema()
    scale_and_add.schema()
    packs = (*installed_packs(), Pack("acme", plugins=(scale, scale_and_add)))
    monkeypatch.setattr(opgraft.registry, "installed_packs", lambda: packs)
    opgraft.registry._load.cache_clear()
    try:
        nodes = [
            helper.make_node("Neg", ["x"], ["a"]),
            helper.make_node("Scale", ["a"], ["y"], domain="acme", by=3.0),
        ]
        info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("acme", 2)]
        graph = helper.make_graph(nodes, "g", info[:1], info[1:])
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        results: list[tuple[float, float]] = [(1, 2), (2, 1)]
        for result in results:
            racing(monkeypatch, result)
            (trial,) = trials_of(model)
            assert trial.problem is None
            racing(monkeypatch, result)
            session = session_of(model, {"on_error": "cpu"})
            np.testing.assert_allclose(session.run(None, X)[0], -3 * X["x"] + 1, rtol=1e-6)

        def fail(self: Any, inputs: Any, *rest: Any) -> Any:
            if len(self.plan.steps) == 2:
                raise RuntimeError("broken")
            return run(self, inputs, *rest)

        run = Program.run
        racing(monkeypatch, (1, 2))
        session = session_of(model, {"on_error": "cpu"})
        monkeypatch.setattr(Program, "run", fail)
        np.testing.assert_allclose(session.run(None, X)[0], -3 * X["x"] + 1, rtol=1e-6)
    finally:
        opgraft.registry._load.cache_clear()


def test_clusters_are_tried_on_the_values_that_they_get(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second cluster reads indices and a shape that another value would not do for."""
    model = parsed(
        """g (float[n] x) => (float[k] y) <int64[1] minus = {-1}> {
        a = Abs(x)  s = Sin(a)  t = Shape(s)  i = Range(zero, nine, one)  g = Gather(s, last)  r = Concat<axis=0>(s, s)
        y = Reshape(r, minus) }"""
    )
    for name, value in (("zero", 0), ("nine", 9), ("one", 1), ("last", 1)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value, np.int64), name))
    given: list[list[Any]] = []
    run = Program.run

    def note(self: Any, inputs: Any) -> Any:
        given.append([np.array(each) for each in inputs])
        return run(self, inputs)

    monkeypatch.setattr(Program, "run", note)
    racing(monkeypatch, *[(2.0, 1.0)] * 9)
    x = np.array([-1, 2, 3], np.float32)
    with fastest.tried_on({"x": x}):
        found = trials_of(model, {"registry": denying(tmp_path, ["ai.onnx::Sin"])})
    assert all(trial.problem is None for trial in found), found
    assert all(trial.assumed == "" for trial in found)
    arrays = list(itertools.chain.from_iterable(given))
    assert any(np.array_equal(each, x) for each in arrays)
    assert any(each.shape == (3,) and np.allclose(each, np.sin(np.abs(x))) for each in arrays)


def test_stand_in_sizes_are_told(monkeypatch: pytest.MonkeyPatch, warnings: list[str]) -> None:
    racing(monkeypatch, (2, 1))
    session_of(parsed("g (float[n, 3] x) => (float[n, 3] y) { y = Neg(x) }"), {})
    assert warnings == [
        "opgraft: placement=fastest was decided with n=1, sizes that nobody gave; `opgraft tune` takes yours"
    ]


def test_control_flow_is_tried_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parsed(
        """g (bool c, float[n] x) => (float[n] y) <float[1] w = {2}> { z = Neg(x)  y = If(c)
        <then_branch = a () => (float[n] p) { p = Mul(z, w) }, else_branch = b () => (float[n] q) { q = Relu(z) }> }"""
    )
    racing(monkeypatch, (1, 2))
    (trial,) = trials_of(model)
    assert (trial.claimed, trial.nodes, trial.problem) == (True, 4, None)


def test_a_model_that_loses_is_onnx_runtimes_own() -> None:
    """Nothing stands in for the clock here: hundreds of nodes on tensors of a few elements, each a call into MLX."""
    nodes = [helper.make_node("Sin" if place % 2 else "Cos", [f"v{place}"], [f"v{place + 1}"]) for place in range(200)]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("v0", "v200")]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (trial,) = trials_of(model)
    assert not trial.claimed
    assert trial.ep is not None and trial.cpu is not None and trial.ep > trial.cpu
    assert assignment(session_of(model, {})) == {"CPUExecutionProvider": [1] * 200}


def test_several_threads_make_such_sessions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sessions inside the making of sessions, in four threads: none waits for another for ever."""
    registry = denying(tmp_path, ["ai.onnx::Sin"])
    racing(monkeypatch, *[(0.001, 0.002)] * 12)
    with ThreadPoolExecutor(4) as pool:
        sessions = list(pool.map(lambda _: session_of(parsed(TWO_PIECES), {"registry": registry}), range(4)))
    for session in sessions:
        assert EP_NAME in assignment(session)


def test_functions_that_onnx_runtime_replaces_are_asked_about_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """HardSwish is declined, is replaced by what defines it, and the rest keeps its reason in the report."""
    racing(monkeypatch, *[(2, 1)] * 9)
    model = parsed("g (float[3] x) => (float[3] y) { a = Neg(x)  h = HardSwish(a)  y = Abs(h) }")
    report = survey(model, {"placement": "fastest", "device": "cpu"})
    assert report.coverage.claimed == 0
    declined = {each.operator: each.declined for each in report.coverage.operators}
    assert declined["ai.onnx::Neg"] == declined["ai.onnx::Abs"] == 1
    reasons = [reason.reason for each in report.coverage.operators for reason in each.reasons]
    assert reasons and all(reason.startswith("slower here") for reason in reasons)


# races


class Clock:
    """Stands for `time`: runs take what they are said to take, and resting is told apart."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rests = 0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.rests += 1

    def run(self, *seconds: float) -> Callable[[], None]:
        """A side whose runs take these seconds, the last of them over and over."""
        left = list(seconds)

        def run() -> None:
            self.now += left[0] if len(left) == 1 else left.pop(0)

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(race, "time", made)
    return made


def test_a_clear_loss_ends_a_race_early(clock: Clock) -> None:
    assert race.race(clock.run(1.0), clock.run(0.01)) == Race(pytest.approx(1.0), pytest.approx(0.01))
    assert clock.rests == 0
    assert race.race(clock.run(0.05), clock.run(0.01)).first == pytest.approx(0.05)
    assert clock.rests == 2


def test_a_slow_first_run_is_warming_up(clock: Clock) -> None:
    found = race.race(clock.run(30.0, 1.0, 1.0, 2.0, 0.001), clock.run(0.2, 0.15))
    assert found == Race(pytest.approx(0.001), pytest.approx(0.15))


def test_it_takes_more_rounds_to_win_than_to_lose(clock: Clock) -> None:
    race.race(clock.run(0.01), clock.run(0.1))
    assert clock.rests == 6


def test_what_is_close_is_run_longest_and_counts_for_the_second_side(clock: Clock) -> None:
    noisy = itertools.cycle([0.02, 0.02, 0.03])

    def second() -> None:
        clock.now += next(noisy)

    found = race.race(clock.run(0.02), second)
    assert clock.rests == 18
    assert found.second == pytest.approx(0.02)


def test_a_race_ends(clock: Clock) -> None:
    race.race(clock.run(3.0), clock.run(3.1))
    assert clock.now < 60


def test_what_a_side_raises_goes_through() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        race.race(fail, lambda: None)


def test_the_sides_rest_between_their_turns() -> None:
    """For as long as OpenBLAS's threads spin after their work, so that they take no core from the other side."""
    began = time.perf_counter()
    race.race(lambda: None, lambda: time.sleep(0.001))
    assert time.perf_counter() - began > 6 * race.REST


# profiles

TRIALS = (
    Trial("aa", 3, ("y", "é"), claimed=True, ep=0.00123456, cpu=0.002),
    Trial("bb", 1, ("z",), claimed=False, problem="it could not be tried against the CPU EP: ValueError: no"),
    Trial("cc", 1, (), claimed=False, ep=4.0, cpu=0.5),
)


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    profile = Profile.of("model.onnx", "cpu", {"batch": 2, "x:1": 3}, TRIALS)
    save_profile(profile, path)
    found = load_profile(path)
    assert found.trials["aa"].ep == pytest.approx(TRIALS[0].ep, rel=1e-3)
    assert (found.model, found.device, found.sizes, list(found.trials)) == (
        "model.onnx",
        "cpu",
        {"batch": 2, "x:1": 3},
        ["aa", "bb", "cc"],
    )
    assert [trial.claimed for trial in found.trials.values()] == [True, False, False]
    assert found.trials["bb"].reason == TRIALS[1].problem
    assert [path.name for path in tmp_path.iterdir()] == ["profile.yaml"]
    assert yaml.safe_load(path.read_text("utf-8"))["format"] == FORMAT


def test_a_profile_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text("old")

    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("opgraft.files.os.replace", fail)
    with pytest.raises(ModelError, match="No space left on device"):
        save_profile(Profile("m", "cpu"), path)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["profile.yaml"]
    with pytest.raises(ModelError, match="cannot be written"):
        save_profile(Profile("m", "cpu"), tmp_path / "no" / "such" / "folder.yaml")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_profile_for_a_pipe_goes_into_it(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    texts: list[str] = []
    reader = threading.Thread(target=lambda: texts.append(path.read_text("utf-8")), daemon=True)
    reader.start()
    save_profile(Profile("m", "cpu"), path)
    reader.join(timeout=30)
    assert [yaml.safe_load(text)["format"] for text in texts] == [FORMAT]
    assert path.is_fifo()


@pytest.mark.skipif(os.name == "nt", reason="files have no such permissions there")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o002, 0o644), (0o077, 0o600)])
def test_the_permissions_of_a_profile(tmp_path: Path, mask: int, mode: int) -> None:
    path = tmp_path / "profile.yaml"
    before = os.umask(mask)
    try:
        save_profile(Profile("m", "cpu"), path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode


GOOD = {"key": "aa", "nodes": 1, "outputs": ["y"], "claimed": True}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("[", "this is no YAML"),
        ("!!python/object/apply:os.system ['true']", "this is no YAML"),
        ("!!timestamp x", "this is no YAML"),
        ("!!int ''", "this is no YAML"),
        ("[" * 5000, "this is no YAML|this is no profile"),
        ("\0", "this is no YAML"),
        ("", "this is no profile"),
        ([], "this is no profile"),
        ({"format": 2, "device": "cpu"}, "its format is 2, and this opgraft reads format 1"),
        ({"format": 1, "device": "tpu"}, "its device is 'tpu'"),
        ({"format": 1, "device": "cpu", "extra": 1}, "an unknown part 'extra'"),
        ({"format": 1, "device": "cpu", "sizes": {"n": "2"}}, "its sizes are not names with whole numbers"),
        ({"format": 1, "device": "cpu", "sizes": {"n": True}}, "its sizes are not names with whole numbers"),
        ({"format": 1, "device": "cpu", "clusters": {}}, "its clusters are no list"),
        ({"format": 1, "device": "cpu", "clusters": [3]}, "cluster 1 is no mapping"),
        ({"format": 1, "device": "cpu", "clusters": [GOOD, {"key": "b"}]}, "cluster 2 has no 'nodes'"),
        ({"format": 1, "device": "cpu", "clusters": [{**GOOD, "claimed": 1}]}, "'claimed' of cluster 1 is 1"),
        ({"format": 1, "device": "cpu", "clusters": [{**GOOD, "speed": 1}]}, "cluster 1 has an unknown part 'speed'"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, document: Any, message: str) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    with pytest.raises(OptionError, match=rf"profile .*profile.yaml: .*({message})"):
        load_profile(path)
    with pytest.raises(OptionError, match=message):
        options_with_provider({"profile": path})


def test_a_profile_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"cannot be read .*`opgraft tune` writes one"):
        load_profile(tmp_path / "none.yaml")
    with pytest.raises(OptionError, match="cannot be read"):
        load_profile(tmp_path)


def test_a_profile_of_another_device_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    save_profile(Profile("m", "gpu"), path)
    with pytest.raises(OptionError, match="measured on the gpu, and this session runs on the cpu"):
        options_with_provider({"profile": path, "device": "cpu"})


def tuned(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> tuple[str, Path, Path]:
    """What `opgraft tune` says of a model of two clusters, of which the first wins; the profile, and the model."""
    path, profile = folder / "model.onnx", folder / "profile.yaml"
    onnx.save(parsed(TWO_PIECES), path)
    registry = denying(folder, ["ai.onnx::Sin"])
    racing(monkeypatch, (0.0007, 0.0041), (0.0041, 0.0007), (1, 1))
    line = ["tune", str(path), "-o", str(profile), "--option", "device=cpu", "--option", f"registry={registry}"]
    result = CliRunner().invoke(main, [*line, *arguments])
    assert result.exit_code == 0, result.output
    return result.output, profile, path


def test_tune_writes_a_profile_by_which_sessions_decide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said, profile, path = tuned(monkeypatch, tmp_path, "-s", "n=3")
    assert "1 of 2 clusters claimed, on the cpu" in said
    assert load_profile(profile).sizes == {"n": 3}
    races = racing(monkeypatch)
    options = {"profile": str(profile), "registry": str(tmp_path / "registry.yaml"), "placement": "all"}
    session = session_of(path, options)
    assert races == []
    assert assignment(session) == {EP_NAME: [2], "CPUExecutionProvider": [1, 1, 1]}


def test_tune_takes_inputs_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", x=np.zeros(7, np.float32))
    _, profile, _ = tuned(monkeypatch, tmp_path, "-i", str(tmp_path / "inputs.npz"))
    assert load_profile(profile).sizes == {"n": 7}


def test_tune_says_which_sizes_it_made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said, profile, _ = tuned(monkeypatch, tmp_path)
    assert "taken as 1, since no -s NAME=SIZE gives another size: n" in said
    assert load_profile(profile).sizes == {"n": 1}


def test_tune_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(parsed(TWO_PIECES), path)
    runner = CliRunner()
    for arguments, status, message in (
        ([str(path)], 2, "--output"),
        ([str(tmp_path / "none.onnx"), "-o", "p.yaml"], 1, "no such file"),
        ([str(path), "-o", str(tmp_path / "p.yaml"), "-s", "m=3"], 2, "no dimension is named 'm'"),
        ([str(path), "-o", str(tmp_path / "no" / "p.yaml")], 1, "cannot be written"),
    ):
        result = runner.invoke(main, ["tune", *arguments])
        assert result.exit_code == status, result.output
        assert message in result.output


def test_a_cluster_that_a_profile_lacks_is_tried_at_its_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, profile, path = tuned(monkeypatch, tmp_path, "-s", "n=3")
    document = yaml.safe_load(profile.read_text())
    document["clusters"] = document["clusters"][:1]
    profile.write_text(yaml.safe_dump(document))
    sizes: list[int] = []
    run = Program.run

    def note(self: Any, inputs: Any) -> Any:
        sizes.append(len(inputs[0]))
        return run(self, inputs)

    monkeypatch.setattr(Program, "run", note)
    races = racing(monkeypatch, (2.0, 1.0))
    registry = str(tmp_path / "registry.yaml")
    first, second = trials_of(path, {"profile": str(profile), "registry": registry})
    assert (first.claimed, second.claimed, len(races)) == (True, False, 1)
    assert set(sizes) == {3}
    assert second.assumed == ""


def test_a_profile_may_be_edited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, profile, path = tuned(monkeypatch, tmp_path)
    profile.write_text(profile.read_text().replace("claimed: false", "claimed: true"))
    session = session_of(path, {"profile": str(profile), "registry": str(tmp_path / "registry.yaml")})
    assert assignment(session)[EP_NAME] == [2, 2]


def test_the_key_of_a_cluster_stays_the_same() -> None:
    def keys(decisions: Decisions) -> list[str]:
        graph = decisions.graph
        return [fastest.key_of([graph.nodes[index] for index in cluster]) for cluster in decisions.clusters]

    found = []
    for _ in range(2):
        with observed(keys) as seen:
            decided_session(DETECTOR, {"device": "cpu"})
        found.append(seen)
    assert found[0] == found[1]
    assert len(set(found[0][0])) == len(found[0][0]) > 0


def test_a_real_model_is_decided_by_its_own_sizes() -> None:
    """Nothing stands in for the clock: whatever is claimed, the outputs are the model's."""
    feeds = sample_inputs(open_cpu_session(DETECTOR), {"batch": 1, "height": 64, "width": 64}).inputs
    with fastest.tried_on(feeds):
        session = session_of(DETECTOR, {})
    expected = open_cpu_session(DETECTOR).run(None, feeds)
    for output, wanted in zip(session.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(output, wanted, rtol=1e-3, atol=1e-4)


# documentation


def test_the_page_runs_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(DETECTOR, "model.onnx")
    np.savez("inputs.npz", **sample_inputs(open_cpu_session(DETECTOR), {"*": 32}).inputs)
    commands = re.findall(r"^    (opgraft [^#\n]*)", PAGE, re.MULTILINE)
    assert len(commands) == 2
    racing(monkeypatch, *[(2, 1)] * 99)
    for command in commands:
        result = CliRunner().invoke(main, shlex.split(command)[1:])
        assert result.exit_code == 0, (command, result.output)
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    Path("example.yaml").write_text(example)
    assert load_profile("example.yaml").trials["6c7815dceb1dcc5a335f"].claimed
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for code in blocks:
        names: dict[str, Any] = {"ort": onnxruntime, "opgraft": opgraft}
        exec(compile(code, "placement.md", "exec"), names)
        assert names["session"].get_providers()[0] == EP_NAME


def test_the_readme_lists_every_option() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", README, re.MULTILINE))
    for option in known_options():
        values = ("a path",) if option.values is None else tuple(f"`{value}`" for value in option.values)
        assert all(value in rows[option.name] for value in values), option.name
