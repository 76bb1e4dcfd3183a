"""The command line: what it shows, and what it says of bad input and bad usage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

from opgraft.cli import main
from opgraft.comparison import equal


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
    assert max(map(len, result.output.splitlines())) <= 100


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
    assert result.exit_code == 0, result.output
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
    assert "the run on the EP failed" in result.output


@pytest.mark.parametrize(
    ("arrays", "says"), [({"z": 1}, "it has no array for input 'x'"), (None, "cannot be read as an .npz")]
)
def test_a_bad_input_file_is_status_1(model: Path, tmp_path: Path, arrays: dict[str, int] | None, says: str) -> None:
    path = tmp_path / "in.npz"
    if arrays is None:
        path.write_text("no archive")
    else:
        np.savez(path, **arrays)
    result = invoke("run", model, "-i", path)
    assert result.exit_code == 1
    assert says in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run"], "Missing argument 'MODEL'"),
        (["nonsense"], "No such command"),
        (["run", "m.onnx", "-s", "batch"], "is not NAME=SIZE"),
        (["run", "m.onnx", "-o", "device"], "is not NAME=VALUE"),
        (["report", "m.onnx", "--fail-under", "101"], "101"),
        (["ops", "--pack", "nobody"], "no pack 'nobody'"),
    ],
)
def test_bad_usage_is_status_2(arguments: list[str], says: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert says in result.output


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("devise=cpu", "did you mean 'device'"),
        ("device=tpu", "auto, cpu, gpu"),
        ("registry=/nowhere.yaml", "/nowhere.yaml"),
    ],
)
def test_a_bad_provider_option_is_status_1_and_lists_the_known_ones(model: Path, option: str, says: str) -> None:
    result = invoke("report", model, "-o", option)
    assert result.exit_code == 1
    assert says in result.output


def test_an_unknown_dimension_is_refused(model: Path) -> None:
    result = invoke("run", model, "-s", "bach=2")
    assert result.exit_code == 1
    assert "those without a size are batch, x:0" in result.output


def test_names_from_a_model_do_not_steer_the_terminal(tmp_path: Path) -> None:
    node = helper.make_node("Nothing\x1b[2J", ["x"], ["y"], name="evil\x1b]0;title\x07", domain="elsewhere")
    result = invoke("report", save(tmp_path / "m.onnx", [node], domains=("elsewhere",)))
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert "\x07" not in result.output


def test_packs_and_ops_show_the_built_in_pack() -> None:
    assert "builtin" in invoke("packs").output
    assert "ai.onnx::Conv " in invoke("ops").output
    shown = invoke("ops", "Conv").output
    assert "ai.onnx::Conv" in shown
    assert "kernel_shape" in shown
    assert invoke("ops", "NoSuchOperator").exit_code == 1
    assert "did you mean ai.onnx::Conv?" in invoke("ops", "conv").output


def test_ops_says_what_the_registry_holds_back(tmp_path: Path) -> None:
    registry = tmp_path / "registry.yaml"
    registry.write_text('ops: {"Conv": {deny: ["*"]}}')
    result = invoke("ops", "Conv", "--registry", registry)
    assert result.exit_code == 1
    assert "denies it" in result.output


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


def test_demo_is_equal_to_the_cpu() -> None:
    result = invoke("demo")
    assert result.exit_code == 0, result.output
    assert "(equal)" in result.output
    assert "(100.0%)" in result.output
