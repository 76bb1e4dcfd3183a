"""What comes from a model, or from a file that a user was given, is data: it steers no terminal and no page, names no
file, imports and runs nothing. And what opgraft writes for itself is the user's alone."""

from __future__ import annotations

import builtins
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from host_models import model_of, open_session, run_script
from onnx import TensorProto, helper
from reporting_models import HOSTILE, denying
from test_reporting_views import Page

import opgraft.files
import opgraft.sessions
from opgraft.benchmark import benchmark
from opgraft.cli import main
from opgraft.engine import fusing
from opgraft.errors import ModelError, OpgraftError, OptionError, RegistryError
from opgraft.files import own_folder, write_whole
from opgraft.profiles import load_profile
from opgraft.registry import load_registry
from opgraft.reporting.html import report_as_html
from opgraft.reporting.markdown import code, report_as_markdown
from opgraft.sessions import sample_inputs, survey

STEERING = "\x1b]0;owned\x07\x1b[2J\r\u202e\u2028\x9b31m"
"""What a terminal obeys: a title, a cleared screen, a line written over, text turned around, and an 8-bit escape."""

TRAP = "opgraft_test_trap"
"""A module that must not be imported."""

HELD = {"x": np.arange(4, dtype=np.float32).reshape(1, 4)}


def steers(text: str) -> set[str]:
    """The characters of a text that a terminal may obey."""
    return {sign for sign in text if not sign.isprintable() and sign != "\n"}


def named(name: str) -> onnx.ModelProto:
    """A model of two nodes and a body that says `name` wherever a name can stand."""
    inner = helper.make_graph(
        [helper.make_node("Neg", [f"{name} a"], [f"{name} inner"], name=f"{name} in a body")],
        name,
        [],
        [helper.make_tensor_value_info(f"{name} inner", TensorProto.FLOAT, None)],
    )
    model = model_of(
        [
            helper.make_node("Sin", ["x"], [f"{name} a"], name=f"{name} 1", doc_string=name),
            helper.make_node("If", ["c"], [f"{name} b"], name=f"{name} 2", then_branch=inner, else_branch=inner),
            helper.make_node("Cos", [f"{name} b"], [f"{name} z"], name=f"{name} 3"),
        ],
        {"x": (TensorProto.FLOAT, [f"{name} n", 4]), "c": (TensorProto.BOOL, [])},
        {f"{name} z": (TensorProto.FLOAT, [f"{name} n", 4])},
    )
    model.graph.name = model.graph.doc_string = model.producer_name = model.domain = name
    helper.set_model_props(model, {name: name, "module": name})
    return model


def unknown(name: str) -> onnx.ModelProto:
    """A model of an operator and a domain of this name, which nobody has."""
    node = helper.make_node(name, ["x"], ["y"], name=name, domain=name, attribute=name)
    value = (TensorProto.FLOAT, [1, 4])
    return model_of([node], {"x": value}, {"y": value}, domains={name: 1})


def command(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(named(STEERING), path)
    return path


COMMANDS: dict[str, Sequence[object]] = {
    "report": ("report",),
    "report without sin": ("report", "-o", "registry=registry.yaml"),
    "report in Markdown": ("report", "--markdown", "-o", "registry=registry.yaml"),
    "report in JSON": ("report", "--json"),
    "run": ("run", "--runs", 1),
    "bench": ("bench", "--runs", 1),
    "tune": ("tune", "-o", "profile.yaml"),
    "a size that is wrong": ("run", "-s", "size=3"),
}


class TestTerminal:
    @pytest.mark.parametrize("what", COMMANDS)
    def test_no_command_obeys_names(self, what: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(model.parent)
        denying(model.parent, ["ai.onnx::Sin"])
        result = command(*COMMANDS[what], model)
        assert not steers(result.output)
        assert ("owned" in result.output) is (what != "report")  # which names no node where all are claimed

    @pytest.mark.parametrize("what", ["report", "report in Markdown", "run", "bench"])
    def test_nor_names_of_operators(self, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        denying(tmp_path, [])
        onnx.save(unknown(STEERING), tmp_path / "m.onnx")
        result = command(*COMMANDS[what], "m.onnx")
        assert result.exit_code == 1
        assert not steers(result.output)
        assert "owned" in result.output

    def test_nor_the_name_of_a_file(self, tmp_path: Path) -> None:
        for what in ("report", "run", "bench"):
            result = command(what, tmp_path / f"{STEERING}.onnx")
            assert result.exit_code == 1
            assert not steers(result.output)

    def test_nor_does_an_error_tell_it_to(self) -> None:
        with pytest.raises(ModelError) as caught:
            opgraft.sessions.open_session(unknown(STEERING))
        assert "owned" in str(caught.value)
        assert not steers(str(caught.value))

    def test_errors_keep_their_lines(self) -> None:
        assert str(OpgraftError("one\x1b\ntwo\r")) == "one\\x1b\ntwo\\r"

    def test_nor_a_session_that_fails_in_a_run(self, tmp_path: Path) -> None:
        node = helper.make_node("Gather", ["x", "at"], ["y"], name=STEERING)
        model = model_of(
            [node],
            {"x": (TensorProto.FLOAT, [4]), "at": (TensorProto.INT64, ["n"])},
            {"y": (TensorProto.FLOAT, ["n"])},
        )
        session = open_session(model)
        with pytest.raises(Exception, match="failed in pack") as caught:
            session.run(None, {"x": np.zeros(4, np.float32), "at": np.array([9])})
        assert not steers(str(caught.value).partition("opgraft: ")[2])

    def test_nor_the_log(self, tmp_path: Path) -> None:
        """In a process of its own: ONNX Runtime logs to the real stderr."""
        path = tmp_path / "model.onnx"
        onnx.save(declined_of_a_function(), path)
        done = run_script(
            "import host_models\n"
            f"host_models.open_session({str(path)!r}, {{'log_declined': 'on', 'trace': {str(tmp_path / 't')!r}}}, "
            "quiet=False)\n",
            environment={"OPGRAFT_CLAIM_DEBUG": "1", "OPGRAFT_VERBOSE": "1"},
        )
        ours = [line for line in done.stderr.split("\n") if "opgraft" in line]
        assert len(ours) > 2, done.stderr
        assert any("opgraft declines" in line and "owned" in line for line in ours)
        colours = r"\x1b\[[\d;]*m"  # ONNX Runtime's own
        assert not [line for line in ours if steers(re.sub(colours, "", line))]


def declined_of_a_function() -> onnx.ModelProto:
    """A model of a function, which ONNX Runtime makes a node of, with a name that is one of an operator."""
    call = helper.make_node(STEERING, ["x"], ["y"], name=STEERING, domain=STEERING)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(STEERING, 1)]
    body = [helper.make_node("StringNormalizer", ["a"], ["b"], name=STEERING)]
    value = (TensorProto.STRING, [4])
    model = model_of([call], {"x": value}, {"y": value}, domains={STEERING: 1})
    model.functions.append(helper.make_function(STEERING, STEERING, ["a"], ["b"], body, opsets))
    return model


class TestPages:
    NAMES = (HOSTILE, '"><img src=x onerror=alert(1)>', "]]><!--<script>", "{{7*7}}{% for %}", "\u2028</ScRiPt\n>")

    @pytest.mark.parametrize("name", NAMES)
    def test_html_holds_names_as_text(self, name: str) -> None:
        page = Page(report_as_html(survey(named(name))))
        assert [each.get("type") for tag, each in page.tags if tag == "script"] == ["application/json", None]
        assert not {tag for tag, _ in page.tags} & {"img", "iframe", "object", "svg", "a"}
        assert not [key for _, each in page.tags for key in each if key.startswith("on")]
        data = json.loads(page.texts["script"][0])
        assert f"{name} 1" in data["graph"]["name"]

    @pytest.mark.parametrize("name", NAMES)
    def test_html_of_what_cannot_be_loaded(self, name: str) -> None:
        page = Page(report_as_html(survey(unknown(name))))
        assert [each.get("type") for tag, each in page.tags if tag == "script"] == ["application/json", None]
        assert not {tag for tag, _ in page.tags} & {"img", "iframe", "object", "svg", "a"}

    @pytest.mark.parametrize("name", [*NAMES, "a\\|<b>", "\\\\|<b>", "``|`<b>", "a\n| b |\n# c", "|---|"])
    def test_markdown_holds_names_as_code(self, name: str, tmp_path: Path) -> None:
        options = {"registry": denying(tmp_path, ["ai.onnx::Sin", "ai.onnx::Cos"])}
        for model in (named(name), unknown(name)):
            width = 0
            for line in report_as_markdown(survey(model, options)).split("\n"):
                found = list(cells(line)) if line.startswith("|") else []
                assert not width or len(found) in (0, width), line
                width = len(found)
                for cell in found or [line]:
                    outside = re.sub(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", cell)
                    assert not re.search("<(?!/?(details|summary)>)", outside), line

    @pytest.mark.parametrize("text", ["|", "\\|", "\\\\|", "a\\", "`|`", "\\`|"])
    def test_a_cell_stays_one(self, text: str) -> None:
        assert list(cells(f"| {code(text)} | b |")) == [f" {code(text)} ", " b "]


def cells(line: str) -> Iterator[str]:
    """The cells of a table's line, by the grammar of GitHub's own parser: a backslash takes along the sign after it."""
    yield from re.findall(r"((?:\\[!-/:-@[-`{-~]|[^|])+)\|", line[1:])


class TestFiles:
    @pytest.mark.parametrize("name", ["../../x", "/x", "a\0b", "n" * 5000, "CON", ".", "*", "~/x", "$HOME"])
    def test_no_file_has_its_name_from_a_model(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is written is what was asked for, and the names are in it."""
        place = tmp_path / "a" / "b" / "c"
        place.mkdir(parents=True)
        monkeypatch.chdir(place)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        onnx.save(named(name), "model.onnx")
        session = open_session("model.onnx", {"trace": "trace.json", "on_error": "cpu"})
        session.run(None, {**HELD, "c": np.array(True)})
        del session
        for arguments in (
            ("report", "--html", "page.html"),
            ("run", "--runs", 1, "--output", "out.npz"),
            ("bench", "--runs", 1),
            ("tune", "-o", "profile.yaml"),
        ):
            assert command(*arguments, "model.onnx").exit_code == 0
        load_profile("profile.yaml")
        written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
        names = ("model.onnx", "out.npz", "page.html", "profile.yaml", "trace.json")
        assert written == {f"a/b/c/{each}" for each in names}

    def test_a_trace_is_the_users_alone(self, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            session = open_session(named("n"), {"trace": str(tmp_path / "trace.json")})
            session.run(None, {**HELD, "c": np.array(True)})
            del session
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "trace.json").stat().st_mode) == 0o600

    def test_nobody_can_foresee_what_is_written_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        parts: list[str] = []
        replace = os.replace
        monkeypatch.setattr(os, "replace", lambda part, target: (parts.append(Path(part).name), replace(part, target)))
        for _ in range(3):
            write_whole(tmp_path / "a", "text")
        assert len(set(parts)) == 3

    def test_a_link_of_somebody_else_is_not_followed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        mine, link = tmp_path / "mine", tmp_path / "trace.json"
        mine.write_text("kept")
        link.symlink_to(mine)
        write_whole(link, "written")
        assert mine.read_text() == "written"
        owned = os.lstat

        def elsewhere(path: Any) -> os.stat_result:
            found = list(owned(path))
            found[stat.ST_UID] += 1
            return os.stat_result(found)

        monkeypatch.setattr(opgraft.files.os, "lstat", elsewhere)
        with pytest.raises(PermissionError, match="a link that another user made"):
            write_whole(link, "no")
        assert mine.read_text() == "written"

    def test_a_folder_is_the_users_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = tmp_path / "mlx" / "1.0"
        assert own_folder(folder)
        assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, folder.parent)] == [0o700, 0o700]
        assert own_folder(folder)
        folder.parent.chmod(0o777)
        assert not own_folder(folder)
        folder.parent.chmod(0o755)
        assert own_folder(folder)
        monkeypatch.setattr(opgraft.files.os, "geteuid", lambda: folder.stat().st_uid + 1)
        assert not own_folder(folder)
        (tmp_path / "file").touch()
        assert not own_folder(tmp_path / "file" / "1.0")
        (tmp_path / "link").symlink_to(folder.parent)
        monkeypatch.undo()
        assert not own_folder(tmp_path / "link" / "1.0")

    def test_kernels_are_not_loaded_from_a_folder_of_others(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setenv(fusing.SWITCH, "fused")
        fusing._keeps_kernels_to_itself.cache_clear()
        try:
            (tmp_path / "mlx").mkdir(0o777)
            (tmp_path / "mlx").chmod(0o777)
            assert fusing.fusing_on("cpu") is not fusing.Fusing.AT_ONCE
            assert "OPGRAFT_COMPILE=fused is passed over" in caplog.text
            fusing._keeps_kernels_to_itself.cache_clear()
            (tmp_path / "mlx").chmod(0o755)
            assert fusing.fusing_on("cpu") is fusing.Fusing.AT_ONCE
        finally:
            fusing._keeps_kernels_to_itself.cache_clear()

    def test_what_is_temporary_is_the_users_alone_and_goes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        modes: list[int] = []
        read = Path.read_text

        def noted(path: Path, *arguments: Any, **keywords: Any) -> str:
            modes.extend(stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir())
            return read(path, *arguments, **keywords)

        monkeypatch.setattr(Path, "read_text", noted)
        before = os.umask(0)
        try:
            benchmark(named("n"), sample_inputs_of, {"device": "cpu"}, runs=1, warm_ups=0)
        finally:
            os.umask(before)
        assert set(modes) == {0o700}
        assert not list(tmp_path.iterdir())


def sample_inputs_of(session: Any) -> Any:
    return sample_inputs(session)


class TestFilesThatOneIsGiven:
    TAGS = ("!!python/object/apply:os.system", "!!python/object/new:os.system", "!!python/name:os.system")

    @pytest.mark.parametrize("tag", TAGS)
    def test_yaml_runs_nothing(self, tag: str, tmp_path: Path) -> None:
        mark, file = tmp_path / "ran", tmp_path / "file.yaml"
        for text in (f"{tag} ['touch {mark}']", f"packs: {tag} ['touch {mark}']", f"? {tag} ['touch {mark}']\n: 1"):
            file.write_text(text)
            with pytest.raises(RegistryError):
                load_registry(str(file))
            with pytest.raises(OptionError):
                load_profile(file)
            assert not mark.exists()

    def test_an_array_of_objects_is_not_unpickled(self, tmp_path: Path) -> None:
        onnx.save(named("n"), tmp_path / "model.onnx")
        mark = tmp_path / "ran"

        class Runs:
            def __reduce__(self) -> Any:
                return Path.touch, (mark,)

        np.savez(tmp_path / "in.npz", x=np.array([Runs()], object), c=np.array(True))
        result = command("run", tmp_path / "model.onnx", "--inputs", tmp_path / "in.npz")
        assert result.exit_code == 1
        assert "Python objects" in result.output
        assert not mark.exists()


class TestNothingIsImported:
    @pytest.fixture
    def asked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
        """What is imported by a name in which the trap's is; the trap is there to be imported."""
        (tmp_path / "path").mkdir()
        (tmp_path / "path" / f"{TRAP}.py").write_text("def operator(*a, **k): raise SystemExit('sprung')\n")
        monkeypatch.syspath_prepend(str(tmp_path / "path"))
        found: list[str] = []
        real = builtins.__import__

        def noted(name: str, *arguments: Any, **keywords: Any) -> Any:
            if TRAP in name:
                found.append(name)
            return real(name, *arguments, **keywords)

        monkeypatch.setattr(builtins, "__import__", noted)
        yield found
        sys.modules.pop(TRAP, None)

    @pytest.mark.parametrize("name", [TRAP, f"{TRAP}.operator", f"{TRAP}:operator"])
    def test_because_a_model_says_so(self, name: str, asked: list[str], tmp_path: Path) -> None:
        model = named(name)
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        assert command("report", path).exit_code == 0
        assert command("run", "--runs", 1, path).exit_code == 0
        for made in (unknown(name), unknown(f"{name}::{name}")):
            onnx.save(made, path)
            assert command("report", path).exit_code == 1
            assert command("run", path).exit_code == 1
        assert command("ops", f"{name}::operator").exit_code == 1
        assert TRAP not in sys.modules
        assert not asked
