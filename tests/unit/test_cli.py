"""The command line: what it shows, and what it says of bad input and bad usage."""

from __future__ import annotations

import gc
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

import opgraft.console
import opgraft.registry
import opgraft.run_command
from opgraft.cli import main
from opgraft.comparison import Outcome, RunError, disagreements, equal, largest_difference, run_timed
from opgraft.graph import Array
from opgraft.host.devices import gpu_backend
from opgraft.ops import op
from opgraft.registry import PACKS_VARIABLE, Pack, installed_packs


@pytest.fixture(autouse=True)
def packs_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--pack` writes into the environment of the process."""
    monkeypatch.setenv(PACKS_VARIABLE, "")


def invoke(*arguments: object) -> Result:
    """Run the command; anything but a clean exit is an error of the test."""
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


def save(
    path: Path, nodes: list[onnx.NodeProto], dtype: int = TensorProto.FLOAT, domains: tuple[str, ...] = ()
) -> Path:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", dtype, ["batch", 3])],
        [helper.make_tensor_value_info("y", dtype, None)],
    )
    opsets = [helper.make_opsetid("", 21), *(helper.make_opsetid(domain, 1) for domain in domains)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = relu(x) + x, over (batch, 3)."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Add", ["r", "x"], ["y"], name="add"),
    ]
    return save(tmp_path / "model.onnx", nodes)


def test_run_compares_with_the_cpu(model: Path) -> None:
    result = invoke("run", model, "-s", "batch=4")
    assert result.exit_code == 0, result.output
    assert "float32[4, 3]" in result.output
    assert "(equal)" in result.output
    assert "2 on MLXExecutionProvider" in result.output


def test_run_takes_inputs_and_writes_outputs(model: Path, tmp_path: Path) -> None:
    x = np.array([[1, -2, 3]], np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    result = invoke("run", model, "--no-compare", "-i", tmp_path / "in.npz", "--output", tmp_path / "out.npz")
    assert result.exit_code == 0, result.output
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["y"], np.maximum(x, 0) + x)


def test_report_shows_what_is_claimed(model: Path) -> None:
    result = invoke("report", model)
    assert result.exit_code == 0, result.output
    assert "2 of 2 nodes on the EP (100.0%)" in result.output
    assert "ai.onnx::Relu" in result.output


def test_nothing_is_cut_where_the_output_goes_into_a_pipe(tmp_path: Path) -> None:
    name, domain = "a_long_name " * 30, "a.long.domain." * 20
    node = helper.make_node("Nothing", ["x"], ["y"], name=name, domain=domain)
    result = invoke("report", save(tmp_path / "m.onnx", [node], domains=(domain,)))
    row = next(line for line in result.stdout.splitlines() if line.endswith(name.rstrip()))
    assert row.startswith(f"{domain}::Nothing  ")
    assert all(line == line.rstrip() for line in result.stdout.splitlines())


def test_a_console_leaves_the_file_to_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is collected after the file was closed, say; Python 3.13 and newer print what is raised there."""
    raised = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)

    class File(io.StringIO):
        flushed = 0

        def flush(self) -> None:
            self.flushed += 1

    with File() as file:
        monkeypatch.setattr(sys, "stdout", file)
        shown = opgraft.console.console()
        shown.print("shown   ")
        assert file.getvalue() == "shown\n"
        flushed = file.flushed
        del shown
        gc.collect()
        assert file.flushed == flushed
    assert not raised


def test_a_terminal_is_kept_to_its_width(model: Path) -> None:
    pty = pytest.importorskip("pty", reason="a system without terminals of this kind")
    shown = bytearray()

    def read(descriptor: int) -> bytes:
        shown.extend(found := os.read(descriptor, 1 << 16))
        return found

    program = "import sys; from opgraft.cli import main; sys.argv[0] = 'opgraft'; main()"
    command = [sys.executable, "-c", program, "report", str(model), "-s", "batch=2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "50")
        patch.setenv("TERM", "dumb")
        assert pty.spawn(command, read) == 0
    lines = shown.decode().splitlines()
    assert max(map(len, lines)) <= 50
    assert "ai.onnx::Relu" in shown.decode()


def test_report_fails_under_a_percentage(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Neg", ["r"], ["y"])]
    path = save(tmp_path / "model.onnx", nodes)
    registry = tmp_path / "registry.yaml"
    registry.write_text('ops: {"Neg": {deny: ["*"]}}')
    assert invoke("report", path, "-o", f"registry={registry}", "--fail-under", 50).exit_code == 0
    failed = invoke("report", path, "-o", f"registry={registry}", "--fail-under", 51)
    assert failed.exit_code == 1
    assert "50.0%" in failed.output


def test_a_model_that_onnxruntime_cannot_load_fails_under_any_percentage(tmp_path: Path) -> None:
    node = helper.make_node("Unknown", ["x"], ["y"], domain="elsewhere")
    failed = invoke("report", save(tmp_path / "m.onnx", [node], domains=("elsewhere",)), "--fail-under", 0)
    assert failed.exit_code == 1
    assert "onnxruntime cannot load this model" in failed.output


def test_report_of_a_model_with_an_unknown_operator_reads_the_file_alone(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx", [helper.make_node("Nothing", ["x"], ["y"], domain="elsewhere")], domains=("elsewhere",)
    )
    result = invoke("report", path)
    assert result.exit_code == 1
    assert result.stderr == "opgraft: onnxruntime cannot load m.onnx, so none of it would run\n"
    assert "read from the file alone" in " ".join(result.output.split())
    assert "no installed pack has a handler for elsewhere::Nothing" in " ".join(result.output.split())


def test_report_names_the_element_type_that_mlx_lacks(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], dtype=TensorProto.STRING)
    result = invoke("report", path)
    assert result.exit_code == 0, result.output
    assert "element type string" in " ".join(result.output.split())


@pytest.mark.parametrize("command", ["run", "report"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such file"),
        (b"", "not an ONNX model"),
        (b"this is no model at all", "not an ONNX model"),
        (b"\x08\x0a\x12\x04", "not an ONNX model"),
    ],
    ids=["missing", "empty", "text", "cut short"],
)
def test_a_bad_file_is_one_line_and_status_1(tmp_path: Path, command: str, content: bytes | None, says: str) -> None:
    path = tmp_path / "bad.onnx"
    if content is not None:
        path.write_bytes(content)
    result = invoke(command, path)
    assert result.exit_code == 1
    assert result.output.startswith("opgraft: ")
    assert says in result.output
    assert len(result.output.splitlines()) == 1


def test_a_truncated_model_is_status_1(model: Path) -> None:
    model.write_bytes(model.read_bytes()[:-20])
    for command in ("run", "report"):
        result = invoke(command, model)
        assert result.exit_code == 1
        assert result.output.startswith("opgraft: ")


def test_a_typo_of_an_operator_is_told_what_it_may_mean(tmp_path: Path) -> None:
    typo = save(tmp_path / "typo.onnx", [helper.make_node("Sofmax", ["x"], ["y"])])
    assert "(did you mean ai.onnx::Softmax?)" in invoke("run", typo).stderr
    shown = invoke("report", typo).stdout
    assert "(did you mean ai.onnx::Softmax?)" in shown
    assert "What claiming more would change" not in shown  # nobody can claim what does not exist
    other = helper.make_node("FastGellu", ["x"], ["y"], domain="com.microsoft")
    path = save(tmp_path / "other.onnx", [other], domains=("com.microsoft",))
    assert "(did you mean com.microsoft::FastGelu?)" in invoke("run", path).stderr
    assert "What claiming more would change" not in invoke("report", path).stdout


@pytest.mark.parametrize("kept", ["folded", "none"])
def test_a_model_of_which_nothing_is_left(tmp_path: Path, kept: str) -> None:
    nodes = [helper.make_node("Relu", ["w"], ["y"])] if kept == "folded" else []
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2], [-1.0, 1.0])
    graph = helper.make_graph(nodes, "g", [] if nodes else [value], [value], [weight] if nodes else [])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    says = "ONNX Runtime folded every node away, or the model has none"
    for command in (["run"], ["report"], ["report", "--markdown"]):
        result = invoke(command[0], path, *command[1:])
        assert result.exit_code == 0, result.output
        assert says in result.stdout
        assert "100.0%" not in result.stdout
        assert "claimed" not in result.stdout  # the heading of an empty table
    assert invoke("bench", path, "--runs", 1).exit_code == 0
    page = tmp_path / "page.html"
    assert invoke("report", path, "--html", page).exit_code == 0
    assert says in page.read_text("utf-8")


@pytest.mark.parametrize("command", ["run", "bench"])
@pytest.mark.parametrize("size", [99_999_999_999_999, 10**30])
def test_an_input_larger_than_memory_is_one_line(model: Path, command: str, size: int) -> None:
    result = invoke(command, model, "-s", f"batch={size}")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"opgraft: batch={size}: input 'x' needs ")
    assert size != 99_999_999_999_999 or "1.2 PB" in line


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no device that is full")
@pytest.mark.parametrize(("to", "says"), [("/dev/full", "No space left on device"), ("&-", "is closed")])
def test_an_output_that_cannot_be_written_is_one_line(model: Path, to: str, says: str) -> None:
    command = f'"{sys.executable}" -m opgraft.cli report "{model}" >{to}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("opgraft: standard output ")
    assert says in line


def test_declined_nodes_are_logged_where_the_option_says_so(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [helper.make_node("Softplus", ["x"], ["y"], name="plus")])
    (tmp_path / "r.yaml").write_text("ops:\n  Softplus: {deny: [builtin]}\n")

    def logged(*options: str) -> str:
        command = [sys.executable, "-m", "opgraft.cli", "run", str(path), "--registry", str(tmp_path / "r.yaml")]
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "opgraft declines ai.onnx::Softplus 'plus'" in logged("-o", "log_declined=on")
    assert logged() == ""


def test_a_view_beside_the_page_is_shown_too(model: Path, tmp_path: Path) -> None:
    result = invoke("report", model, "--html", tmp_path / "r.html", "--json")
    assert json.loads(result.stdout)["format"] == "opgraft-report"
    assert result.stderr == f"report written to {tmp_path / 'r.html'}\n"
    assert (tmp_path / "r.html").stat().st_size > 1000
    alone = invoke("report", model, "--html", tmp_path / "r.html")
    assert (alone.stdout, alone.stderr) == (f"report written to {tmp_path / 'r.html'}\n", "")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("opgraft-matrix", "a report of a folder; only reports of one model can be shown"),
        ("opgraft-comparison", "a comparison of two reports; only reports of one model can be shown"),
        ("else", "not a report; `opgraft report --json` writes one"),
    ],
)
def test_what_is_no_report_of_one_model_is_named(tmp_path: Path, name: str, says: str) -> None:
    path = tmp_path / "it.json"
    path.write_text(json.dumps({"format": name, "version": 1}))
    result = invoke("report", path)
    assert (result.exit_code, result.stderr) == (1, f"opgraft: {path}: {says}\n")


def test_a_pack_that_is_on_already_is_told_so(model: Path) -> None:
    result = invoke("run", model, "--pack", "contrib")
    assert result.exit_code == 0
    assert result.stderr == "opgraft: --pack contrib changes nothing: the pack is on already\n"


def test_what_is_drawn_at_random_is_not_compared(tmp_path: Path) -> None:
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["r"]), helper.make_node("Add", ["r", "x"], ["y"])]
    result = invoke("run", save(tmp_path / "m.onnx", nodes))
    assert result.exit_code == 0, result.output
    assert "y cannot be compared, since it is drawn at random: RandomNormalLike\n" in result.stdout
    assert "(different)" not in result.stdout
    assert "(equal)" not in result.stdout


def test_the_values_of_scalar_inputs_are_shown(tmp_path: Path) -> None:
    scalar = helper.make_tensor_value_info("x", TensorProto.INT64, [])
    out = helper.make_tensor_value_info("y", TensorProto.INT64, [])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [scalar], [out])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    np.savez(tmp_path / "in.npz", x=np.array(7))
    assert "inputs: x int64[] = 7\n" in invoke("run", path, "-i", tmp_path / "in.npz").stdout
    assert "inputs: x int64[] = 1\n" in invoke("run", path).stdout or "x int64[] = 0\n" in invoke("run", path).stdout


def test_a_registry_of_its_own(model: Path, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("ops:\n  Relu: {deny: [builtin]}\n")
    assert "1 of 2 nodes on the EP" in invoke("run", model, "--registry", tmp_path / "r.yaml").stdout
    assert invoke("bench", model, "--runs", 1, "--registry", tmp_path / "r.yaml").exit_code == 0


def test_running_an_unknown_operator_is_status_1_and_names_it(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx", [helper.make_node("Nothing", ["x"], ["y"], domain="elsewhere")], domains=("elsewhere",)
    )
    result = invoke("run", path)
    assert result.exit_code == 1
    assert "Nothing" in result.output


def test_an_input_of_the_wrong_shape_is_status_1(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.zeros((2, 4), np.float32))
    result = invoke("run", model, "-i", tmp_path / "in.npz")
    assert result.exit_code == 1
    assert "the run fails on the CPU EP too, so look at the inputs and the model" in result.output
    assert "Got: 4 Expected: 3" in result.output
    assert ".." not in result.stderr
    result = invoke("run", model, "-i", tmp_path / "in.npz", "--no-compare")
    assert result.exit_code == 1
    assert "the run on the EP failed" in result.output


def test_a_node_that_fails_on_both_is_not_blamed_on_its_handler(tmp_path: Path) -> None:
    target = helper.make_tensor("s", TensorProto.INT64, [2], [4, 5])
    nodes = [
        helper.make_node("Constant", [], ["s"], value=target),
        helper.make_node("Reshape", ["x", "s"], ["y"], name="bad"),
    ]
    result = invoke("run", save(tmp_path / "m.onnx", nodes))
    assert result.exit_code == 1
    assert "node 'bad' (ai.onnx::Reshape, version 21) failed" in result.stderr
    assert "requested shape:{4,5}" in result.stderr
    assert "turn this handler off" not in result.stderr
    assert ".." not in result.stderr


def test_what_the_cpu_ep_alone_runs_is_said_to_run_there(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(session: Any, feeds: Any, runs: int, where: str) -> Outcome:
        if where == "on the EP":
            raise RunError(where, "no luck")
        return run_timed(session, feeds, runs, where)

    monkeypatch.setattr(opgraft.run_command, "run_timed", refuse)
    result = invoke("run", model, "-s", "batch=1")
    assert result.exit_code == 1
    failed = "opgraft: the run on the EP failed: no luck"
    assert result.stderr == f"{failed} (the CPU EP runs it)\n"
    sizes = "; sizes taken as 1: batch; give them, as in -s batch=320"
    assert invoke("run", model).stderr == f"{failed} (the CPU EP runs it){sizes}\n"
    assert invoke("run", model, "--no-compare").stderr == f"{failed}{sizes}\n"


def test_nan_and_infinities_are_told_where_they_are_equal_too(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [helper.make_node("Log", ["x"], ["y"])])
    np.savez(tmp_path / "in.npz", x=np.array([[0, -1, 1], [-1, 2, 3]], np.float32))
    result = invoke("run", path, "-i", tmp_path / "in.npz")
    assert result.exit_code == 0, result.output
    assert "(equal)" in result.output
    counts = "2 NaN and 1 infinity"
    line = f"y holds NaN or infinities: {counts} on the EP, {counts} on the CPU EP (of 6 elements)"
    assert line in result.output
    assert "to find the first node that makes one, add --pack numerics-guard (" in result.output
    alone = invoke("run", path, "-i", tmp_path / "in.npz", "--no-compare").output
    assert f"y holds NaN or infinities: {counts} on the EP (of 6 elements)" in alone


def test_what_differs_is_named_with_a_next_step(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def skewed(session: Any, feeds: Any, runs: int, where: str) -> Outcome:
        found = run_timed(session, feeds, runs, where)
        if where == "on the EP":
            found.outputs["y"][0, 1] += 1
        return found

    monkeypatch.setattr(opgraft.run_command, "run_timed", skewed)
    result = invoke("run", model)
    assert result.exit_code == 1
    assert "y: the largest difference is 1, at [0, 1]: " in result.stdout
    assert "opgraft: the outputs differ from the CPU EP's: y; to find the first node that drifts, set" in result.stderr
    assert "OPGRAFT_NUMERICS_GUARD_DRIFT=0.0001 and add --pack numerics-guard" in result.stderr


@pytest.mark.parametrize(
    ("output", "expected", "text"),
    [
        (np.zeros((1, 4), "f"), np.zeros((1, 5), "f"), "shape [1, 4], the CPU EP gives [1, 5]"),
        (np.zeros(2, "f"), np.zeros(2, "d"), "element type float32, the CPU EP gives float64"),
        (np.array([1, 5, 3]), np.array([1, 2, 4]), "2 of 3 elements differ, the first at [1]: 5, the CPU EP gives 2"),
        (
            np.array([[1, 2.5]], "f"),
            np.array([[1, 2]], "f"),
            "the largest difference is 0.5, at [0, 1]: 2.5, the CPU EP gives 2.0",
        ),
        (
            np.array([np.nan, np.nan, 1], "f"),
            np.array([np.nan, 3, 2], "f"),
            "1 of 3 elements are NaN or infinite on one side, and not so on the other, the first at [1]: nan, "
            "the CPU EP gives 3.0",
        ),
        (
            np.array([np.inf, 1], "f"),
            np.array([-np.inf, 1], "f"),
            "1 of 2 elements are NaN or infinite on one side, and not so on the other, the first at [0]: inf, "
            "the CPU EP gives -inf",
        ),
        (
            np.array([np.inf, 1], "f"),
            np.array([np.inf, 2], "f"),
            "the largest difference is 1, at [1]: 1.0, the CPU EP gives 2.0",
        ),
    ],
)
def test_what_is_different_about_an_output(output: Array, expected: Array, text: str) -> None:
    assert disagreements({"y": output}, {"y": expected}) == {"y": text}
    assert disagreements({"y": output}, {"y": output}) == {}


def test_an_output_that_one_side_lacks() -> None:
    one, none = {"y": np.zeros(2)}, dict[str, Array]()
    assert disagreements(one, none) == {"y": "only the EP gives it"}
    assert disagreements(none, one) == {"y": "only the CPU EP gives it"}
    assert largest_difference(none, one) == float("inf")


def test_outputs_that_are_sequences(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["x", "x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    result = invoke("run", path, "--output", tmp_path / "out.npz")
    assert result.exit_code == 0, result.output
    assert "outputs: y[0] float32[2], y[1] float32[2]" in result.output
    assert sorted(np.load(tmp_path / "out.npz")) == ["y[0]", "y[1]"]


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"z": 1}, "it has no array for input 'x' (it has z)"),
        ({"x": np.array([None])}, "'x' cannot be read: it holds Python objects; save numbers, bool or text"),
        (None, "cannot be read as an .npz file, which numpy.savez writes"),
    ],
)
def test_a_bad_input_file_is_status_1(model: Path, tmp_path: Path, arrays: dict[str, Any] | None, says: str) -> None:
    path = tmp_path / "in.npz"
    if arrays is None:
        path.write_text("no archive")
    else:
        np.savez(path, **arrays)
    result = invoke("run", model, "-i", path)
    assert result.exit_code == 1
    assert says in result.output
    assert "allow_pickle" not in result.output


def test_an_archive_of_something_else_is_status_1(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", "no array")
    result = invoke("run", model, "-i", path)
    assert result.exit_code == 1
    assert "'x' cannot be read: it is no array" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run"], "Missing argument 'MODEL'"),
        (["nonsense"], "No such command"),
        (["run", "m.onnx", "-s", "batch"], "is not NAME=SIZE"),
        (["run", "m.onnx", "-o", "device"], "is not NAME=VALUE"),
        (["report", "m.onnx", "--fail-under", "101"], "101"),
        (["ops", "--pack", "nobody"], "no pack 'nobody'; the packs are builtin"),
        (["ops", "--pack", "buildin"], "no pack 'buildin' (did you mean 'builtin'?)"),
        (["run", "m.onnx", "--pack", "nobody"], "no pack 'nobody'; every installed pack is on already"),
        (["run", "m.onnx", "--pack", "numerics-guard"], "pip install ./plugins_example/numerics_guard"),
        (["run", "m.onnx", "-i", "in.npz", "-s", "batch=2"], "leave out one of them"),
        (["bench", "m.onnx", "-i", "in.npz", "-s", "batch=2"], "leave out one of them"),
        (["run", "m.onnx", "-s", "batch=2", "-s", "batch=3"], "-s gives 'batch' more than one size"),
        (["bench", "m.onnx", "-s", "batch=2", "-s", "batch=2"], "-s gives 'batch' more than one size"),
        (["report", "m.onnx", "-s", "batch=2", "-s", "batch=3"], "-s gives 'batch' more than one size"),
        (["report", "m.onnx", "--json", "--markdown"], "--json and --markdown both print to standard output"),
        (["run", "m.onnx", "--registry", "a.yaml", "-o", "registry=b.yaml"], "say the same; give one of them"),
        (["bench", "m.onnx", "--registry", "a.yaml", "-o", "registry=b.yaml"], "say the same; give one of them"),
        (["new-pack", "My Pack!", "--op", "acme::Mish"], "cannot be the name of a package"),
        (["new-pack", "p", "--op", "acme:Mish"], "is not the name of an operator: write domain::OpType"),
    ],
)
def test_bad_usage_is_status_2(arguments: list[str], says: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert says in result.output


@pytest.mark.parametrize("command", ["run", "report", "bench"])
@pytest.mark.parametrize(
    ("option", "status", "says"),
    [
        ("devise=cpu", 2, "did you mean 'device'"),
        ("device=tpu", 2, "auto, cpu, gpu"),
        ("registry=/nowhere.yaml", 2, "/nowhere.yaml"),
    ],
)
def test_a_bad_provider_option_is_told_as_such(model: Path, command: str, option: str, status: int, says: str) -> None:
    result = invoke(command, model, "-o", option)
    assert result.exit_code == status
    assert says in result.output
    assert len(result.output.splitlines()) == 1
    assert "onnxruntime" not in result.output


@pytest.mark.skipif(gpu_backend() is not None, reason="MLX has a GPU backend here")
@pytest.mark.parametrize("command", ["run", "report", "bench"])
def test_a_gpu_that_is_not_there_is_the_options_fault(model: Path, command: str) -> None:
    result = invoke(command, model, "-o", "device=gpu")
    assert result.exit_code == 2
    assert result.output.startswith("opgraft: option 'device' is 'gpu', but MLX has no GPU backend on this machine: ")
    assert "pip install" in result.output
    assert "cannot load" not in result.output


@pytest.mark.parametrize(
    ("command", "size", "says"),
    [
        ("run", "bach=2", "no dimension is named 'bach' (did you mean 'batch'?); those without a size are batch, x:0"),
        ("report", "bach=2", "no dimension is named 'bach' (did you mean 'batch'?); those that have a name"),
        ("run", "x:7=2", "no dimension is named 'x:7'; those without"),
        ("run", "x:1=5", "dimension 'x:1' is 3 in the model, and cannot be 5"),
        ("report", "x:1=5", "dimension 'x:1' is 3 in the model, and cannot be 5"),
    ],
)
def test_a_size_for_no_dimension_is_bad_usage(model: Path, command: str, size: str, says: str) -> None:
    result = invoke(command, model, "-s", size)
    assert result.exit_code == 2
    assert says in result.output


def test_the_size_that_a_dimension_has_may_be_given(model: Path) -> None:
    for command in ("run", "report"):
        assert invoke(command, model, "-s", "x:1=3", "-s", "batch=2").exit_code == 0


def test_names_from_a_model_do_not_steer_the_terminal(tmp_path: Path) -> None:
    node = helper.make_node("Nothing\x1b[2J", ["x"], ["y"], name="evil\x1b]0;title\x07", domain="elsewhere")
    result = invoke("report", save(tmp_path / "m.onnx", [node], domains=("elsewhere",)))
    assert "evil" in result.output
    assert "\x1b" not in result.output
    assert "\x07" not in result.output


def test_packs_and_ops_show_the_built_in_pack() -> None:
    assert "builtin" in invoke("packs").output
    assert "ai.onnx::Conv " in invoke("ops").output
    shown = invoke("ops", "Conv").output
    assert "ai.onnx::Conv" in shown
    assert "kernel_shape" in shown
    assert invoke("ops", "NoSuchOperator").exit_code == 1


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        (
            "conv",
            "(did you mean ai.onnx::Conv?); to write one: opgraft new-pack my-pack --op ai.onnx::conv",
        ),
        ("acme::Conv", "(did you mean ai.onnx::Conv?)"),
        ("Sofmax", "(did you mean ai.onnx::Softmax"),
        ("com.microsoft::Snpe", "Snpe; to write one: opgraft new-pack my-pack --op com.microsoft::Snpe"),
        ("NoSuchOperator", "for ai.onnx::NoSuchOperator; to write one"),
    ],
)
def test_ops_suggests_near_names_only(operator: str, says: str) -> None:
    result = invoke("ops", operator)
    assert result.exit_code == 1
    assert says in result.output


def test_ops_of_a_pack_that_lacks_the_operator_names_the_pack_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Pack("mine", plugins=(op("acme::Own")(lambda X: X),))
    packs = (mine, *installed_packs())
    monkeypatch.setattr(opgraft.registry, "installed_packs", lambda: packs)
    opgraft.registry._load.cache_clear()
    try:
        result = invoke("ops", "Conv", "--pack", "mine")
    finally:
        opgraft.registry._load.cache_clear()
    assert result.exit_code == 1
    assert result.output == "opgraft: the pack mine has no handler for ai.onnx::Conv; builtin has\n"


def test_ops_says_what_the_registry_holds_back(tmp_path: Path) -> None:
    registry = tmp_path / "registry.yaml"
    registry.write_text('ops: {"Conv": {deny: ["*"]}}')
    result = invoke("ops", "Conv", "--registry", registry)
    assert result.exit_code == 1
    assert "denies it" in result.output
    assert "did you mean" not in result.output
    assert "new-pack" not in result.output


def test_a_rule_that_matches_no_operator_is_a_warning_of_every_command(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, arguments in enumerate((["packs"], ["ops"], ["report", model], ["run", model])):
        registry = tmp_path / f"{number}.yaml"
        registry.write_text('ops:\n  Relu: {prefer: [builtin]}\n  Rellu: {deny: ["*"]}\n')
        option = ["-o", f"registry={registry}"] if model in arguments else ["--registry", registry]
        caplog.clear()
        assert invoke(*arguments, *option).exit_code == 0
        assert caplog.messages == [
            f"{registry}, line 3: the rule 'ai.onnx::Rellu' matches no operator of an installed pack; did you mean "
            "ai.onnx::Relu or ai.onnx::PRelu?"
        ]


def test_the_help_of_no_command_is_cut() -> None:
    text = invoke("--help").output
    assert "..." not in text.partition("Commands:")[2]
    assert all(name in text for name in main.commands)


def test_one_run_is_one_run(model: Path) -> None:
    assert "median of 1 run: " in invoke("run", model, "--runs", 1).output
    assert "Milliseconds, 1 run of each in turns\n" in invoke("bench", model, "--runs", 1, "--warm-up", 0).output


def test_run_says_which_sizes_it_took_to_be_1(model: Path) -> None:
    assert "taken as 1, since no -s NAME=SIZE gives another size: batch" in invoke("run", model).output


def test_without_a_backend_of_mlx_every_command_says_what_to_install() -> None:
    code = """
import sys
sys.modules["mlx.core"] = None
from opgraft.cli import main
main()
"""
    for arguments, status in ((["demo"], 1), (["packs"], 1), (["doctor"], 1), (["library-path"], 0)):
        command = [sys.executable, "-c", code, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert result.returncode == status, result.stderr
        assert "Traceback" not in result.stderr
        assert status == 0 or "pip install" in result.stdout + result.stderr


def test_an_output_of_rounding_errors_counts_as_equal() -> None:
    expected = np.array([3e-8, 1e-9], np.float32)
    assert equal(expected + np.float32(2e-7), expected)
    assert not equal(expected + np.float32(2e-6), expected)
    assert not equal(expected.astype(np.float64), expected)


def test_library_path_names_a_file() -> None:
    result = invoke("library-path")
    assert result.exit_code == 0
    assert Path(result.output.strip()).exists()


def test_doctor_finds_a_good_installation() -> None:
    result = invoke("doctor")
    assert result.exit_code == 0, result.output
    assert "FAIL" not in result.output
    version = opgraft.__version__
    rows = [line.split() for line in invoke("packs").output.splitlines()[1:4]]
    packs = ", ".join(f"{name} {version} ({operators} operators)" for name, _, _, operators, *_ in rows)
    assert [name for name, *_ in rows] == ["builtin", "contrib", "ml"]
    assert f"ok   op packs: {packs}\n" in result.output
    assert "ok   execution provider: MLXExecutionProvider, for cpu" in result.output


def test_demo_is_equal_to_the_cpu() -> None:
    result = invoke("demo")
    assert result.exit_code == 0, result.output
    assert "(equal)" in result.output
    assert "(100.0%)" in result.output
    assert any(Path(line).is_file() for line in result.output.splitlines() if line.endswith("detector.onnx"))
    assert ("expected to be slower" in result.output) == ("MLX device: cpu" in result.output)


@pytest.mark.parametrize("command", ["run", "report", "tune", "bench"])
@pytest.mark.parametrize(("path", "said"), [("", "the path is empty"), ("bad\udcff.onnx", "no path but in UTF-8")])
def test_paths_that_are_none(command: str, path: str, said: str) -> None:
    output = ("-o", "profile.yaml") if command == "tune" else ()
    result = invoke(command, path, *output)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
