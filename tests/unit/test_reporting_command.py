"""`opgraft report`: views, comparisons, folders, and what it says of bad usage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner, Result
from reporting_models import DETECTOR, HOSTILE, denying, parsed

from opgraft.cli import main
from opgraft.reporting.compare import compare
from opgraft.reporting.document import from_json
from opgraft.reporting.terminal_many import comparison_rows

RELU = "g (float[n,3] x) => (float[n,3] y) { a = Neg(x) b = Sin(a) y = Relu(b) }"
TAN = "g (float[n,3] x) => (float[n,3] y) { a = Neg(x) b = Tan(a) c = Sin(b) d = Neg(c) e = Tan(d) y = Relu(e) }"


def invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["report", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def shown(*arguments: object) -> str:
    """What is printed, with runs of white space as one space."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(parsed(RELU), path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two models, one of them in a folder within, a broken one, and a file that is none."""
    root = tmp_path / "models"
    (root / "within").mkdir(parents=True)
    onnx.save(parsed(RELU), root / "relu.onnx")
    onnx.save(parsed(TAN), root / "within" / "tan.onnx")
    (root / "broken.onnx").write_bytes(b"no model")
    (root / "readme.txt").write_text("no model either")
    return root


class TestOneModel:
    def test_what_if_is_shown(self, model: Path, tmp_path: Path) -> None:
        text = shown(model, "--registry", denying(tmp_path, ["Sin"]))
        assert "Claim Sin: 2 subgraphs become 1." in text
        assert "4 tensors of unknown size (2 of them the model's own inputs and outputs)" in text

    def test_sizes(self, model: Path, tmp_path: Path) -> None:
        text = shown(model, "--registry", denying(tmp_path, ["Sin"]), "-s", "n=100")
        assert "4 tensors, 4.8 kB (2 of them" in text
        assert invoke(model, "-s", "m=100").exit_code == 2

    def test_json_is_json_alone(self, model: Path, tmp_path: Path) -> None:
        result = invoke(model, "--registry", denying(tmp_path, ["Sin"]), "--json")
        assert json.loads(result.stdout)["what_if"][0]["headline"] == "Claim Sin: 2 subgraphs become 1."

    def test_a_saved_report_is_shown_in_any_view(self, model: Path, tmp_path: Path) -> None:
        saved = tmp_path / "saved.json"
        saved.write_text(invoke(model, "--registry", denying(tmp_path, ["Sin"]), "--json").stdout)
        assert "Claim Sin: 2 subgraphs become 1." in shown(saved)
        assert "`Claim Sin: 2 subgraphs become 1.`" in shown(saved, "--markdown")
        assert json.loads(invoke(saved, "--json").stdout) == json.loads(saved.read_text())
        refused = invoke(saved, "-s", "n=100")
        assert refused.exit_code == 2
        assert "a saved report is shown as it is" in refused.output

    def test_html(self, model: Path, tmp_path: Path) -> None:
        page = tmp_path / "page.html"
        assert f"report written to {page}" in invoke(model, "--html", page).output.replace("\n", "")
        assert page.read_text().startswith("<!DOCTYPE html>")
        failed = invoke(model, "--html", tmp_path / "no" / "page.html")
        assert failed.exit_code == 1
        assert "cannot be written (No such file or directory)" in failed.output

    def test_html_with_names_that_are_no_text(self, tmp_path: Path) -> None:
        proto = parsed(RELU)
        proto.graph.node[0].name = HOSTILE
        onnx.save(proto, tmp_path / "m.onnx")
        raw = (tmp_path / "m.onnx").read_bytes().replace(b"owned", b"\xff\xfe\x80\xffd")
        (tmp_path / "m.onnx").write_bytes(raw)
        for view in (["--html", tmp_path / "page.html"], ["--json"], ["--markdown"], []):
            assert invoke(tmp_path / "m.onnx", *view).exit_code in (0, 1)

    def test_fail_under_goes_with_every_view(self, model: Path, tmp_path: Path) -> None:
        registry = denying(tmp_path, ["Sin"])
        for view in (["--json"], ["--markdown"], ["--html", tmp_path / "page.html"]):
            failed = invoke(model, "--registry", registry, "--fail-under", 95, *view)
            assert failed.exit_code == 1
            assert "66.7% of the nodes are on the EP, under 95" in failed.stderr


class TestComparison:
    def test_of_two_models(self, folder: Path) -> None:
        text = shown("--compare", folder / "relu.onnx", folder / "within" / "tan.onnx")
        assert "relu.onnx tan.onnx difference" in text
        assert "nodes 3 6 +3" in text
        assert "ai.onnx::Tan 0 2 0 0" in text
        headings = "operator claimed in the first in the second declined in the first in the second"
        assert headings in text
        assert " then " not in text

    def test_of_a_model_that_cannot_be_loaded(self, folder: Path, tmp_path: Path) -> None:
        proto = parsed(RELU)
        proto.graph.node[0].op_type = "Nothing"
        onnx.save(proto, tmp_path / "unknown.onnx")
        for view in ([], ["--markdown"], ["--json"]):
            result = invoke("--compare", folder / "relu.onnx", tmp_path / "unknown.onnx", *view)
            assert result.exit_code == 1
            assert "Nothing" in result.stdout
            assert result.stderr == "opgraft: onnxruntime cannot load unknown.onnx, so none of it would run\n"

    def test_of_two_registries(self, model: Path, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        first, second = denying(tmp_path, ["Sin"]), denying(tmp_path / "other", [])
        text = shown("--compare", model, "--registry", first, "--registry", second, "--markdown")
        assert "| nodes on the EP | 2 | 3 | +1 |" in text
        assert text.startswith(f"- `A: registry {first}` - `B: registry {second}` | | `A` | `B` | difference |")
        assert "| `Sin` | 1 | 0 | " in text
        document = json.loads(invoke("--compare", model, "--registry", first, "--registry", second, "--json").stdout)
        assert (document["format"], document["version"]) == ("opgraft-comparison", 1)
        assert [each["subgraphs"] for each in document["splits"]] == [2, 1]

    def test_of_a_saved_report_with_today(self, model: Path, tmp_path: Path) -> None:
        saved = tmp_path / "saved.json"
        saved.write_text(invoke(model, "--json").stdout.replace('"opgraft": "0', '"opgraft": "9'))
        text = shown("--compare", saved, model)
        assert "Every operator is claimed and declined alike." in text
        assert "opgraft 9" in text

    def test_of_a_report_with_itself(self, model: Path) -> None:
        report = from_json(invoke(model, "--json").stdout, "it")
        found = compare(report, report)
        assert (found.names, found.operators, found.groups) == (("A", "B"), (), ())
        (line,) = found.legend
        assert line.startswith(f"A and B: {model.name}, registry ")
        assert "onnxruntime " in line

    def test_bytes_of_unknown_size_are_no_zero(self, tmp_path: Path) -> None:
        onnx.save(parsed(RELU), tmp_path / "open.onnx")
        report = from_json(invoke(tmp_path / "open.onnx", "--json").stdout, "it")
        assert report.traffic.unknown == report.traffic.tensors
        rows = {row[0]: row[1:] for row in comparison_rows(compare(report, report))}
        assert rows["bytes that cross"] == ("?", "?", "")


class TestFolder:
    def test_which_operator_would_help_most_models(self, folder: Path, tmp_path: Path) -> None:
        text = shown(folder, "--registry", denying(tmp_path, ["Sin", "Tan"]))
        assert "3 models" in text
        assert "1 broken.onnx" in text
        assert "not an ONNX model" in text
        assert "2 relu.onnx 3 2 66.7 2 0" in text
        assert "3 within/tan.onnx 6 3 50.0 3 0" in text
        assert "ai.onnx::Sin 2 2 1 2 . 1/1 1/1" in text
        assert text.index("ai.onnx::Sin") < text.index("ai.onnx::Tan")

    def test_as_json_and_markdown(self, folder: Path, tmp_path: Path) -> None:
        registry = denying(tmp_path, ["Sin", "Tan"])
        document = json.loads(invoke(folder, "--registry", registry, "--json").stdout)
        assert (document["format"], document["version"]) == ("opgraft-matrix", 1)
        assert [each["model"] for each in document["models"]] == ["broken.onnx", "relu.onnx", "within/tan.onnx"]
        first = document["operators"][0]
        assert (first["operator"], first["helped"]) == ("ai.onnx::Sin", 2)
        assert first["cells"] == [None, {"claimed": 0, "declined": 1}, {"claimed": 0, "declined": 1}]
        text = invoke(folder, "--registry", registry, "--markdown").stdout
        assert "| `ai.onnx::Sin` | 2 | 2 | 1 | 2 | . | 1/1 | 1/1 |" in text
        tables = [line for line in text.splitlines() if line.startswith("|")]
        assert {line.count("|") for line in tables} == {9}

    def test_sizes_are_for_the_models_that_have_them(self, folder: Path) -> None:
        assert "relu.onnx 3 3 100.0 1 0" in shown(folder, "-s", "n=4", "-s", "elsewhere=3")

    def test_fail_under(self, folder: Path, tmp_path: Path) -> None:
        failed = invoke(folder, "--fail-under", 50)
        assert failed.exit_code == 1
        assert "1 of 3 models are under 50.0%: broken.onnx" in failed.output
        (folder / "broken.onnx").unlink()
        assert invoke(folder, "--fail-under", 100).exit_code == 0

    def test_many_models_have_no_columns_of_their_own(self, folder: Path, tmp_path: Path) -> None:
        for number in range(10):
            shutil.copy(folder / "relu.onnx", folder / f"copy{number}.onnx")
        assert "ai.onnx::Sin 12 12 11 12" in shown(folder, "--registry", denying(tmp_path, ["Sin", "Tan"]))

    def test_of_no_models(self, tmp_path: Path) -> None:
        result = invoke(tmp_path)
        assert result.exit_code == 1
        assert "there is no .onnx file in it" in result.output

    def test_a_registry_that_cannot_be_used_ends_it(self, folder: Path) -> None:
        result = invoke(folder, "--registry", "/nowhere.yaml")
        assert result.exit_code == 2
        assert result.output.startswith("opgraft: /nowhere.yaml")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Missing argument"),
        (["a.onnx", "b.onnx"], "one model or folder, or --compare and two of them"),
        (["a.onnx", "--registry", "a", "--registry", "b"], "one --registry, or --compare"),
        (["--compare", "a.onnx"], "--compare takes two models, or one with two --registry"),
        (["--compare", "a", "b", "c"], "--compare takes two models"),
        (["--compare", "a", "b", "--registry", "a", "--registry", "b", "--registry", "c"], "at most two --registry"),
        (["--compare", "a", "b", "--html", "x"], "--html shows one model"),
        (["--compare", "a", "b", "--fail-under", "5"], "--fail-under judges one model or a folder"),
        (["--compare", ".", "b"], "not folders"),
        ([".", "--html", "x"], "--html shows one model"),
        (["a.onnx", "--registry", "a", "-o", "registry=b"], "say the same"),
    ],
)
def test_bad_usage(arguments: list[str], says: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert says in result.output


def test_the_detector_in_every_view(tmp_path: Path) -> None:
    registry = denying(tmp_path, ["Split", "Resize"])
    assert "Claim Split and Resize: " in shown(DETECTOR, "--registry", registry)
    assert "Claim Split and Resize: " in shown(DETECTOR, "--registry", registry, "--markdown")
