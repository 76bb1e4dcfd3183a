"""What is recorded of sessions: traces, ONNX Runtime's profile, digests, and the nodes that are not claimed."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import host_models
import numpy as np
import onnx
import onnxruntime
import pytest
from host_models import add_model, open_session, run_script
from onnx import TensorProto, helper
from reporting_models import HOSTILE, denying, parsed

from opgraft.engine import compiled
from opgraft.engine.frame import Frame
from opgraft.engine.fusing import fusing_on
from opgraft.host.ep import ExecutionProvider
from opgraft.tracing import Event, Listener, Recorder, Recording, listening
from opgraft.tracing.digest import Digest, Tally, rendered
from opgraft.tracing.events import HANDED_OVER
from opgraft.tracing.session import Session, everywhere

X = np.array([[1, -2, 3, -4]], np.float32)

CHAIN = """g (float[n,4] x) => (float[n,4] y) { a = Exp(x) b = Softplus(a) y = Neg(b) }"""

LOOP = """g (int64 m, float[4] x) => (float[4] y) {
    y = Loop (m, "", x) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t) { d = Identity(c) u = Exp(s) t = Neg(u) }>
}"""  # noqa: E501

CHECKED = "g (float[3,2] x, int64[k] i) => (float[k,2] z) { y = Gather(x, i) z = Neg(y) }"

Events = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is asked for but what a test asks for, and nothing is left of it."""
    for name in [name for name in os.environ if name.startswith("OPGRAFT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OPGRAFT_COMPILE", "0")
    yield
    gc.collect()
    assert everywhere == []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.json"


def read(path: Path) -> dict[str, Any]:
    """The trace in a file, which is whole and in which everything that took time lies well."""
    document: dict[str, Any] = json.loads(path.read_text("ascii"))
    events = document["traceEvents"]
    assert {event["ph"] for event in events} <= {"X", "C", "M", "i"}
    assert {event["pid"] for event in events} == {os.getpid()}
    threads: dict[int, Events] = {}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            threads.setdefault(event["tid"], []).append(event)
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    assert threads.keys() <= named
    for thread in threads.values():
        check_nesting(thread)
    return document


def check_nesting(events: Events) -> None:
    """Any two of a thread's spans are one inside the other, or one after the other."""
    open_until: list[float] = []
    for event in sorted(events, key=lambda each: (each["ts"], -each["dur"])):
        while open_until and open_until[-1] <= event["ts"] + 1e-3:
            open_until.pop()
        end = event["ts"] + event["dur"]
        assert not open_until or end <= open_until[-1] + 1e-3, event
        open_until.append(end)


def spans(path: Path) -> Events:
    return [event for event in read(path)["traceEvents"] if event["ph"] == "X"]


def inside(events: Events, outer: dict[str, Any]) -> Events:
    """The spans of the same thread that lie in another."""
    end = outer["ts"] + outer["dur"]
    return [
        event
        for event in events
        if event is not outer
        and event["tid"] == outer["tid"]
        and outer["ts"] <= event["ts"] + 1e-3
        and event["ts"] + event["dur"] <= end + 1e-3
    ]


def of_category(events: Events, category: str) -> Events:
    return [event for event in events if event["cat"] == category]


def end(*sessions: Any) -> None:
    """The caller keeps none of them: `end(sessions.pop())`."""
    del sessions
    gc.collect()


def run_once(model: onnx.ModelProto, feeds: dict[str, Any], options: dict[str, str], times: int = 1) -> list[Any]:
    session = open_session(model, options)
    for _ in range(times):
        outputs = session.run(None, feeds)
    del session
    gc.collect()
    return outputs


def test_what_is_in_a_trace(path: Path) -> None:
    run_once(parsed(CHAIN), {"x": X}, {"trace": str(path)}, times=3)
    document = read(path)
    assert document["otherData"]["events_left_out"] == 0
    events = spans(path)
    (making,) = [event for event in events if event["name"] == "make the session"]
    within = inside(events, making)
    assert {"create the EP", "claim subgraphs", "compile subgraphs"} <= {event["name"] for event in within}
    assert {"read", "claim", "verify", "partition", "compile"} <= {event["cat"] for event in within}
    assert {event["name"] for event in of_category(within, "verify")} == {"verify Exp", "verify Softplus", "verify Neg"}
    asked = of_category(events, "session.run")
    runs = of_category(events, "run")
    assert len(asked) == len(runs) == 3
    for one, run in zip(asked, runs, strict=True):
        assert run in inside(events, one)
        assert run["args"]["path"] == "eager"
        assert run["args"]["session"] == one["args"]["session"] == making["args"]["session"]
        assert run["args"]["inputs"] == ["x: float32[1, 4]"]
        assert run["args"]["outputs"] == ["y: float32[1, 4]"]
        assert (run["args"]["bytes_in"], run["args"]["bytes_out"]) == (16, 16)
        within = inside(events, run)
        assert [event["name"] for event in of_category(within, "build")] == ["build Exp", "build Softplus", "build Neg"]
        assert {event["name"] for event in of_category(within, "input")} == {"read inputs", "bring to the device"}
        assert len(of_category(within, "evaluate")) == len(of_category(within, "output")) == 1
    for event in of_category(events, "build"):
        assert event["args"]["inputs"] == [
            "float32[1, 4] on the host" if event["name"] == "build Exp" else "float32[1, 4]"
        ]
        assert event["args"]["outputs"] == ["float32[1, 4]"]
        assert event["args"]["operator"] == f"ai.onnx::{event['name'].removeprefix('build ')}"
        assert event["args"]["pack"] == "builtin"
    counters = [event for event in document["traceEvents"] if event["ph"] == "C"]
    assert len(counters) == 6
    assert all(event["args"].keys() == {"active", "peak", "cache"} for event in counters)
    assert all(any(event["ts"] >= run["ts"] for run in runs) for event in counters)
    assert counters[-1]["args"]["peak"] > 0


def test_bodies_are_in_the_node_that_owns_them(path: Path) -> None:
    feeds = {"m": np.array(5), "x": X[0]}
    run_once(parsed(LOOP), feeds, {"trace": str(path)})
    events = spans(path)
    (loop,) = [event for event in events if event["name"] == "build Loop"]
    names = [event["name"] for event in of_category(inside(events, loop), "build")]
    assert sorted(names) == ["build Exp"] * 5 + ["build Identity"] * 5 + ["build Neg"] * 5


def test_each_node_by_itself(path: Path) -> None:
    feeds = {"m": np.array(2), "x": X[0]}
    together = run_once(parsed(LOOP), feeds, {})
    alone = run_once(parsed(LOOP), feeds, {"trace": str(path), "trace_ops": "on"})
    np.testing.assert_array_equal(together[0], alone[0])
    names = [event["name"] for event in of_category(spans(path), "evaluate") if "node" in event["args"]]
    assert names.count("evaluate Exp") == names.count("evaluate Neg") == 2
    assert names.count("evaluate Loop") == 1


def test_what_a_value_read_back_takes_is_told(path: Path) -> None:
    model = parsed(
        "g (float[n] x, float[1] m) => (float[k] y) { r = Softplus(m) c = Cast <to = 7> (r) y = Tile(x, c) }"
    )
    run_once(model, {"x": X[0], "m": np.array([2], np.float32)}, {"trace": str(path)})
    events = spans(path)
    reads = [event for event in events if event["name"] == "read back"]
    tile = next(event for event in events if event["name"] == "build Tile")
    assert [event["args"]["bytes"] for event in reads] == [8]
    assert reads == [event for event in inside(events, tile) if event["name"] == "read back"]


MLP = """g (float[N,4] x) => (float[N,4] z) <float[4,4] a = {1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6}> {
    h = MatMul (x, a) r = Relu (h) y = MatMul (r, a) z = Sigmoid (y)
}"""

SHAPED = "g (float[6] x, int64[2] shape) => (float[A,B] y) { a = Relu (x) b = Reshape (a, shape) y = Neg (b) }"


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be is replayed from traces."""
    monkeypatch.delenv("OPGRAFT_COMPILE")
    monkeypatch.setattr(compiled, "LEAST_BUILDING", 0.0)
    monkeypatch.setattr(compiled, "MOST_BUILDING", 10.0)
    if fusing_on("cpu") is None:
        pytest.skip("this MLX cannot replay traces on the CPU")


def paths_of(path: Path) -> list[str]:
    return [event["args"]["path"] for event in of_category(spans(path), "run")]


@pytest.mark.usefixtures("compiles")
def test_the_path_of_each_run_and_what_made_it_retrace(path: Path) -> None:
    session = open_session(parsed(MLP), {"trace": str(path), "device": "cpu"})
    for rows in (1, 1, 1, 1, 1, 1, 3, 3, 3, 1):
        session.run(None, {"x": np.ones((rows, 4), np.float32)})
    del session
    gc.collect()
    hit, miss = "compiled hit", "compiled miss"
    assert paths_of(path) == ["eager", "eager", miss, miss, hit, hit, miss, "retrace", hit, hit]
    events = spans(path)
    runs = of_category(events, "run")
    assert "key" not in runs[0]["args"]
    for run, rows in zip(runs[2:], (1, 1, 1, 1, 3, 3, 3, 1), strict=True):
        assert run["args"]["key"] == f"x: float32[{rows}, 4]"
    traced, retraced = of_category(events, "trace")
    assert (traced["name"], traced["args"]["path"]) == ("trace steps 0 to 3", miss)
    assert (retraced["args"]["path"], retraced["args"]["key"]) == ("retrace", "x: float32[3, 4]")
    assert retraced in inside(events, runs[7])
    replays = of_category(events, "replay")
    assert all(replay in inside(events, run) for replay, run in zip(replays, (*runs[4:6], *runs[8:]), strict=True))
    assert len(of_category(inside(events, runs[4]), "build")) == 0
    assert len(of_category(inside(events, runs[2]), "build")) == 4


@pytest.mark.usefixtures("compiles")
def test_a_value_that_made_it_retrace_is_told(path: Path) -> None:
    session = open_session(parsed(SHAPED), {"trace": str(path), "device": "cpu"})
    for shape in ([2, 3],) * 5 + ([3, 2],) * 3:
        session.run(None, {"x": np.ones(6, np.float32), "shape": np.array(shape)})
    del session
    gc.collect()
    (retraced,) = [event for event in of_category(spans(path), "trace") if event["args"]["path"] == "retrace"]
    assert retraced["args"]["key"] == "x: float32[6], shape: int64[2] on the host [3, 2]"


@pytest.mark.usefixtures("compiles")
def test_each_node_by_itself_is_not_replayed(path: Path) -> None:
    run_once(parsed(MLP), {"x": np.ones((2, 4), np.float32)}, {"trace": str(path), "trace_ops": "on"}, times=6)
    assert paths_of(path) == ["eager"] * 6
    assert len(of_category(spans(path), "build")) == 24


def test_threads_and_sessions_share_a_trace(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGRAFT_TRACE", str(path))
    sessions = [open_session(parsed(CHAIN)) for _ in range(2)]
    together = threading.Barrier(4)

    def work(session: Any) -> None:
        together.wait()
        for _ in range(25):
            session.run(None, {"x": X})

    threads = [threading.Thread(target=work, args=(sessions[number % 2],), name=f"w{number}") for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    end(sessions.pop(), sessions.pop())
    del work, threads
    gc.collect()
    events = spans(path)
    runs = of_category(events, "run")
    assert len(runs) == len(of_category(events, "session.run")) == 100
    assert len({event["tid"] for event in runs}) == 4
    assert len({event["args"]["session"] for event in runs}) == 2
    assert all(len(of_category(inside(events, run), "build")) == 3 for run in runs)
    names = {event["args"]["name"] for event in read(path)["traceEvents"] if event["name"] == "thread_name"}
    assert {"w0", "w1", "w2", "w3"} <= names


def test_the_option_comes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGRAFT_TRACE", str(tmp_path / "environment-%p.json"))
    run_once(parsed(CHAIN), {"x": X}, {"trace": str(tmp_path / "option.json")})
    assert [each.name for each in tmp_path.iterdir()] == ["option.json"]
    run_once(parsed(CHAIN), {"x": X}, {})
    assert {each.name for each in tmp_path.iterdir()} == {"option.json", f"environment-{os.getpid()}.json"}


def test_a_trace_is_there_once_a_session_is_gone(path: Path) -> None:
    kept, dropped = (open_session(parsed(CHAIN), {"trace": str(path)}) for _ in range(2))
    kept.run(None, {"x": X})
    assert not path.exists()
    del dropped
    gc.collect()
    assert len(of_category(spans(path), "run")) == 1
    kept.run(None, {"x": X})
    del kept
    gc.collect()
    assert len(of_category(spans(path), "run")) == 2
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_run_that_fails(path: Path) -> None:
    session = open_session(parsed(CHECKED), {"trace": str(path)})
    x = np.zeros((3, 2), np.float32)
    session.run(None, {"x": x, "i": np.array([0])})
    with pytest.raises(Exception, match="Gather"):
        session.run(None, {"x": x, "i": np.array([7])})
    session.run(None, {"x": x, "i": np.array([1])})
    del session
    gc.collect()
    events = spans(path)
    errors = [event["args"].get("error") for event in of_category(events, "run")]
    assert [error is None for error in errors] == [True, False, True]
    assert "Gather" in errors[1]
    assert len(of_category(events, "session.run")) == 3


def test_a_session_that_is_never_made(path: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"no-such\.yaml"):
        open_session(parsed(CHAIN), {"trace": str(path), "registry": str(tmp_path / "no-such.yaml")})
    (failed,) = [event for event in spans(path) if event["name"] == "create the EP"]
    assert "no-such.yaml" in failed["args"]["error"]


def test_the_end_of_the_interpreter(path: Path) -> None:
    result = run_script(
        "import host_models, numpy as np\n"
        "session = host_models.open_session(host_models.add_model())\n"
        "x = np.ones((2, 4), np.float32)\n"
        "session.run(None, {'x': x, 'y': x})",
        environment={"OPGRAFT_TRACE": str(path), "OPGRAFT_VERBOSE": "1"},
    )
    assert (result.returncode, result.stdout) == (0, "")
    assert "1 of 1 nodes on the EP (100.0%)" in result.stderr
    assert result.stderr.count("opgraft: session 1 (model)") == 1
    events = json.loads(path.read_text())["traceEvents"]
    assert [event["name"] for event in events if event.get("cat") == "build"] == ["build Add"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_leaves_the_trace_to_its_parent(path: Path) -> None:
    result = run_script(
        "import os, sys, host_models, pathlib, numpy as np\n"
        "session = host_models.open_session(host_models.add_model())\n"
        "if not os.fork():\n"
        "    from opgraft.tracing import settings\n"
        "    settings._end()\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "print(pathlib.Path(os.environ['OPGRAFT_TRACE']).exists())",
        environment={"OPGRAFT_TRACE": str(path)},
    )
    assert (result.returncode, result.stdout) == (0, "False\n"), result.stderr
    assert path.exists()


@pytest.mark.parametrize("place", ["no-such-folder/out.json", "a\0b", "."])
def test_a_place_where_nothing_can_be_written(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recorder = Recorder(Path(os.path.abspath(place)))
    for _ in range(2):
        with Session([recorder]).run("g"):
            pass
        recorder.session_ended()
    assert capsys.readouterr().err.count("the trace cannot be written to") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_once_and_breaks_nothing(path: Path) -> None:
    pytest.importorskip("resource")
    path.write_text("[]")
    result = run_script(
        "import gc, resource, signal, host_models, numpy as np\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "x = np.ones((2, 4), np.float32)\n"
        "for _ in range(3):\n"
        "    session = host_models.open_session(host_models.add_model())\n"
        "    assert (session.run(None, {'x': x, 'y': x})[0] == 2).all()\n"
        "    del session\n"
        "    gc.collect()",
        environment={"OPGRAFT_TRACE": str(path)},
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("cannot be written") == 1
    assert path.read_text() == "[]"
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_what_is_no_plain_file_stays_what_it_is(path: Path) -> None:
    os.mkfifo(path)
    read_from: list[str] = []
    reader = threading.Thread(target=lambda: read_from.append(path.read_text()))
    reader.start()
    run_once(parsed(CHAIN), {"x": X}, {"trace": str(path)})
    reader.join(timeout=30)
    assert json.loads(read_from[0])["traceEvents"]
    assert path.is_fifo()


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right of their own there")
def test_a_link_leads_to_the_trace(path: Path) -> None:
    target = path.with_name("target.json")
    target.write_text("")
    path.symlink_to(target)
    run_once(parsed(CHAIN), {"x": X}, {"trace": str(path)})
    assert path.is_symlink()
    assert spans(target)


def test_the_newest_runs_are_kept_and_the_making_too(path: Path) -> None:
    recorder = Recorder(path, most=20)
    session = Session([recorder])
    with session.making("claim subgraphs"), session.span("claim", "claim"):
        pass
    for number in range(30):
        with session.run(f"{number}") as recording:
            recording.count("MLX memory", active=1, peak=2, cache=3)
    recorder.session_ended()
    document = read(path)
    names = [event["name"] for event in document["traceEvents"] if event["ph"] in "XC"]
    assert names[:3] == ["claim", "claim subgraphs", "make the session"]
    assert len(names) == 19
    assert [name for name in names if name.startswith("run")] == [f"run {number}" for number in range(22, 30)]
    assert document["otherData"]["events_left_out"] == 44
    assert "44 older events are left out" in {event["name"] for event in document["traceEvents"]}


def test_a_run_of_very_many_steps_is_handed_over_in_parts() -> None:
    class Parts(Listener):
        sizes: list[int] = []  # noqa: RUF012
        names: list[str] = []  # noqa: RUF012

        def take(self, events: Any, lasting: bool) -> None:
            self.sizes.append(len(events))
            self.names.extend(event.name for event in events)

    parts = Parts()
    with Recording([parts], "run", "run", {}) as recording:
        for number in range(2 * HANDED_OVER + 5):
            with recording.span(str(number), "build"):
                pass
    assert parts.sizes == [HANDED_OVER, HANDED_OVER, 6]
    assert parts.names == [*map(str, range(2 * HANDED_OVER + 5)), "run"]


def test_own_time_leaves_out_what_is_inside() -> None:
    class All(Listener):
        def take(self, events: Any, lasting: bool) -> None:
            self.events: list[Event] = list(events)

    got = All()
    with Recording([got], "run", "run", {}) as recording, recording.span("outer", "build"):
        for _ in range(3):
            with recording.span("inner", "build"):
                pass
    *inner, outer, run = got.events
    assert outer.own == (outer.took or 0) - sum(each.took or 0 for each in inner)
    assert sum(each.own for each in got.events) == run.took


def test_a_listener_that_fails_breaks_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(Listener):
        def take(self, events: Any, lasting: bool) -> None:
            raise OSError("what it is given it cannot take")

    session = open_session(add_model())
    with listening(Broken()):
        for _ in range(2):
            assert (session.run(None, {"x": X, "y": X})[0] == 2 * X).all()
    assert capsys.readouterr().err.count("Broken failed: OSError: what it is given") == 1


def hostile_model() -> onnx.ModelProto:
    return host_models.model_of(
        [
            helper.make_node("Neg", ["x"], ["a"], name=HOSTILE + "\n\\u0000\\"),
            helper.make_node("Sin", ["a"], ["z"], name="\x1b]0;owned\x07" + "long" * 1000),
        ],
        {"x": (TensorProto.FLOAT, [1, 4])},
        {"z": (TensorProto.FLOAT, [1, 4])},
    )


def test_names_from_a_model_are_data(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPGRAFT_VERBOSE", "1")
    monkeypatch.setenv("OPGRAFT_CLAIM_DEBUG", "1")
    options = {"trace": str(path), "registry": denying(tmp_path, ["Sin"])}
    session = open_session(hostile_model(), options, optimized=False)
    session.run(None, {"x": X})
    del session
    gc.collect()
    assert HOSTILE + "\n\\u0000\\" in {event["args"].get("node") for event in spans(path)}
    assert max(len(str(value)) for event in spans(path) for value in event["args"].values()) < 400
    shown = capfd.readouterr().err
    assert "not claimed: ai.onnx::Sin" in shown
    assert "title='owned'" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


@pytest.fixture
def profiled(tmp_path: Path) -> Callable[..., Events]:
    """The events of ONNX Runtime's profile of a session and some runs."""

    def profile(model: onnx.ModelProto, feeds: dict[str, Any], runs: int, *, optimized: bool = True) -> Events:
        host_models.host.register()
        settings = onnxruntime.SessionOptions()
        settings.enable_profiling = True
        settings.profile_file_prefix = str(tmp_path / "profile")
        if not optimized:
            settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        devices = [each for each in onnxruntime.get_ep_devices() if each.ep_name == host_models.host.EP_NAME]
        settings.add_provider_for_devices(devices[:1], {})
        session = onnxruntime.InferenceSession(model.SerializeToString(), settings)
        for _ in range(runs):
            session.run(None, feeds)
        profile = Path(session.end_profiling())
        (provider,) = [each for each in ExecutionProvider.live.values() if each.trace.number == newest()]
        assert not provider.trace.watched
        session.run(None, feeds)  # goes on, and nobody listens
        events: Events = json.loads(profile.read_text("utf-8"))
        return events

    def newest() -> int:
        return max(each.trace.number for each in ExecutionProvider.live.values())

    return profile


@host_models.in_profiles
def test_the_profile_of_onnx_runtime_has_the_events(profiled: Callable[..., Events]) -> None:
    events = profiled(parsed(CHAIN), {"x": X}, 4)
    ours = [event for event in events if event["name"].startswith("opgraft ")]
    fused = [event for event in events if event["cat"] == "Node" and "MLXExecutionProvider" in event["name"]]
    runs = [event for event in ours if event["name"].startswith("opgraft run ")]
    assert len(fused) == len(runs) == 4
    for node, run in zip(fused, runs, strict=True):
        assert node["ts"] - 50 <= run["ts"]
        assert run["ts"] + run["dur"] <= node["ts"] + node["dur"] + 50
        assert (run["pid"], run["tid"]) == (node["pid"], node["tid"])
        assert run["args"]["path"] == "eager"
        assert run["args"]["bytes_in"] == "16"
    builds = [event for event in ours if event["name"] == "opgraft build Softplus"]
    assert [event["args"]["outputs"] for event in builds] == ["float32[1, 4]"] * 4
    for build, run in zip(builds, runs, strict=True):
        assert run["ts"] <= build["ts"] + 1
        assert build["ts"] + build["dur"] <= run["ts"] + run["dur"] + 1
    assert {"opgraft claim", "opgraft verify Exp"} <= {event["name"] for event in ours}


@host_models.in_profiles
def test_names_from_a_model_leave_the_profile_whole(profiled: Callable[..., Events]) -> None:
    model = hostile_model()
    model.graph.node[0].name = "a"  # ONNX Runtime itself writes the names of nodes as they are
    model.graph.name = 'in "quotes" \\ and \n lines'
    ours = [event for event in profiled(model, {"x": X}, 1, optimized=False) if event["name"].startswith("opgraft ")]
    assert any("owned" in event["args"].get("node", "") for event in ours)


def digests() -> list[Digest]:
    return [digest for provider in ExecutionProvider.live.values() for digest in provider.trace.digests]


def test_the_digest_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OPGRAFT_VERBOSE", "1")
    session = open_session(parsed(CHAIN), {"registry": denying(tmp_path, ["Softplus"])})
    for _ in range(7):
        session.run(None, {"x": X})
    (digest,) = digests()
    tally = digest.tally
    assert (tally.nodes, tally.claimed, tally.subgraphs) == (3, 2, 2)
    assert tally.session_runs == 7
    assert tally.paths == {"eager": 14}
    assert (tally.bytes_in, tally.bytes_out) == (14 * 16, 14 * 16)
    assert {key[1]: times.times for key, times in tally.by_node.items()} == {"ai.onnx::Exp": 7, "ai.onnx::Neg": 7}
    assert all(times.build > 0 == times.evaluate for times in tally.by_node.values())
    assert tally.phases.keys() == {"run", "input", "build", "evaluate", "output"}
    assert min(tally.phases.values()) > 0
    assert tally.made >= tally.making.total() > 0
    del session
    gc.collect()
    shown = capfd.readouterr().err
    assert "2 of 3 nodes on the EP (66.7%), subgraphs: 2, device: " in shown
    assert "runs of subgraphs: 14 eager in 7 runs of the session" in shown
    assert "bytes: 224 bytes in, 224 bytes out; MLX held " in shown
    (made,) = [line for line in shown.splitlines() if line.startswith("session made in ")]
    assert re.fullmatch(r"session made in .* ms: loading packs, MLX .*, the rest .*, ONNX Runtime [\d.]+", made)
    assert "\x1b" not in shown


def test_the_digest_with_each_node_by_itself(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPGRAFT_VERBOSE", "yes")
    monkeypatch.setenv("OPGRAFT_TRACE_OPS", "1")
    session = open_session(parsed(CHAIN))
    session.run(None, {"x": X})
    (digest,) = digests()
    assert all(times.evaluate > 0 for times in digest.tally.by_node.values())
    del session
    gc.collect()
    assert "build and evaluation, each computed by itself" in capfd.readouterr().err


def test_the_digest_tells_paths_and_the_ten_slowest(capsys: pytest.CaptureFixture[str]) -> None:
    digest = Digest()
    session = Session([digest])
    session.call("net")
    digest.place(session.name, "gpu", 12, 12, 1)
    for path, key in (("compiled miss", "x: float32[2]"), ("compiled hit", None), ("compiled hit", None)):
        with session.run("g") as recording:
            recording.took(path, key)
    with pytest.raises(ValueError), session.run("g"):
        raise ValueError
    for number in range(12):
        event = Event("build Op", "build", 0, number, 1000 * number, 0, named(f"node{number}"))
        digest.take([event], False)
    digest.session_ended()
    shown = capsys.readouterr().err
    assert "2 compiled hit, 1 compiled miss, 1 eager, of which 1 failed" in shown
    listed = [line.split()[0] for line in shown.splitlines() if line.startswith("node") and "acme::Op" in line]
    assert listed == [f"node{number}" for number in range(11, 1, -1)]
    digest.session_ended()
    assert capsys.readouterr().err == ""


def named(node: str) -> dict[str, str]:
    return {"node": node, "operator": "acme::Op", "pack": "acme"}


def test_a_digest_of_a_session_without_nodes() -> None:
    from rich.console import Console

    console = Console(width=100)
    with console.capture() as captured:
        console.print(rendered(Tally(session="session 4"), alone=False))
    assert captured.get() == "opgraft: session 4: no node was shown to the EP\n"


def test_nodes_that_are_not_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPGRAFT_CLAIM_DEBUG", "1")
    open_session(parsed(CHAIN), {"registry": denying(tmp_path, ["Exp", "Neg"])})
    lines = [line for line in capfd.readouterr().err.splitlines() if "not claimed" in line]
    assert len(lines) == 2
    for line, operator in zip(lines, ("Exp", "Neg"), strict=True):
        assert line.startswith("opgraft: session ")
        assert f"not claimed: ai.onnx::{operator} " in line
        assert "denies it" in line
    open_session(parsed(LOOP), {"registry": denying(tmp_path, ["Exp"])})
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "not claimed" in line]
    assert "ai.onnx::Loop" in line
    assert "ai.onnx::Exp" in line
    assert line.endswith("(and with it 3 nodes in its bodies)")
    monkeypatch.setenv("OPGRAFT_CLAIM_DEBUG", "0")
    open_session(parsed(CHAIN), {"registry": denying(tmp_path, ["Exp", "Neg"])})
    assert capfd.readouterr().err == ""


def test_nobody_is_told_anything_unasked() -> None:
    session = open_session(parsed(CHAIN))
    session.run(None, {"x": X})
    assert not any(provider.trace.watched for provider in ExecutionProvider.live.values())


@pytest.mark.usefixtures("compiles")
def test_what_the_telling_takes_is_not_weighed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace must not make steps look so slow that they are compiled otherwise."""
    seen = Frame.seen

    def slowly(frame: Frame, slots: Any) -> list[str]:
        time.sleep(0.01)
        return seen(frame, slots)

    monkeypatch.setattr(Frame, "seen", slowly)
    monkeypatch.setattr(compiled, "MOST_BUILDING", 0.035)  # the four steps together; told, they take 0.08 s
    run_once(parsed(MLP), {"x": X}, {"trace": str(path), "device": "cpu"}, times=4)
    assert [event["name"] for event in of_category(spans(path), "trace")] == ["trace steps 0 to 3"]
