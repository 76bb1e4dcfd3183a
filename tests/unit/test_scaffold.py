"""`opgraft new-pack`: what it writes imports, and its tests pass."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from opgraft.cli import main
from opgraft.errors import ModelError
from opgraft.scaffold import draft_pack, write_pack
from opgraft.scaffold.operators import draft_of


def run_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    "operators",
    [
        ["acme::Mish"],
        ["com.microsoft::MatMulNBits", "Conv", "com.microsoft::SkipLayerNormalization", "ai.onnx.ml::TreeEnsemble"],
        ["acme::Lambda", "acme::Conv", "Relu"],
        ["acme::Mx", "acme::Np", "acme::Op", "acme::CheckNode"],
    ],
    ids=["new", "known", "both", "hiding"],
)
def test_what_is_written_passes_its_own_tests(operators: list[str], tmp_path: Path) -> None:
    arguments = [part for each in operators for part in ("--op", each)]
    result = CliRunner().invoke(main, ["new-pack", "my-pack", *arguments, "--into", str(tmp_path)])
    assert result.exit_code == 0, result.output
    written = {
        str(path.relative_to(tmp_path / "my-pack")) for path in (tmp_path / "my-pack").rglob("*") if path.is_file()
    }
    assert written == {
        ".github/workflows/test.yml",
        ".gitignore",
        "README.md",
        "my_pack/__init__.py",
        "pyproject.toml",
        "tests/test_my_pack.py",
    }
    done = run_tests(tmp_path / "my-pack")
    assert f"{len(operators)} passed" in done.stdout, done.stdout
    assert all(len(line) <= 130 for line in (tmp_path / "my-pack/my_pack/__init__.py").read_text().splitlines())


def test_every_operator_that_onnxruntime_knows_has_a_signature() -> None:
    names = sorted({f"{schema.domain or 'ai.onnx'}::{schema.name}" for schema in get_all_operator_schema()})
    assert len(names) > 300
    bodies = 0
    for name in names:
        try:
            draft = draft_of(name)
        except ModelError as error:
            assert "has a body" in str(error)
            bodies += 1
            continue
        assert not draft.is_new
        ast.parse(f"{draft.decorator}\n{draft.definition}\n    pass")
    assert bodies < 10


@pytest.mark.parametrize(
    ("name", "operator", "message"),
    [
        ("1x", "acme::Mish", "cannot be the name of a package"),
        ("a b", "acme::Mish", "cannot be the name of a package"),
        ("../up", "acme::Mish", "cannot be the name of a package"),
        ("json", "acme::Mish", "would hide the Python package 'json'"),
        ("numpy", "acme::Mish", "would hide the Python package 'numpy'"),
        ("builtin", "acme::Mish", "a pack named 'builtin' is installed already"),
        ("opgraft-ops", "acme::Mish", "would hide the Python package 'opgraft_ops'"),
        ("n" * 300, "acme::Mish", "cannot be the name of a package"),
        ("my-pack", "acme::a²", "is not the name of an operator"),
        ("class", "acme::Mish", "cannot be the name of a package"),
        ("my-pack", "Mishh", "ai.onnx has no operator 'Mishh': name a domain of your own, as in acme::Mishh"),
        ("my-pack", "acme:Mish", "is not the name of an operator"),
        ("my-pack", "acme::", "is not the name of an operator"),
        ("my-pack", 'acme::x")', "is not the name of an operator"),
        ("my-pack", "Loop", "has a body, 'body'"),
    ],
)
def test_names_that_cannot_be(name: str, operator: str, message: str) -> None:
    with pytest.raises(ModelError, match=message.replace("(", r"\(").replace(")", r"\)")):
        draft_pack(name, [operator])


def test_two_operators_of_one_function_name() -> None:
    with pytest.raises(ModelError, match="two of the operators would be the function 'mish'"):
        draft_pack("my-pack", ["acme::Mish", "other::Mish"])
    assert len(draft_pack("my-pack", ["acme::Mish", "acme::Mish"]).operators) == 1


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    pack = draft_pack("my-pack", ["acme::Mish"])
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(ModelError, match="is there already"):
        write_pack(pack, tmp_path)
    with pytest.raises(ModelError, match="is there already"):
        write_pack(pack, tmp_path / "kept")
    assert (tmp_path / "kept").read_text() == "mine"
    assert write_pack(pack, tmp_path / "new")
