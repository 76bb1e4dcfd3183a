"""`opgraft new-pack`: what it writes imports, and its tests pass."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

import opgraft.scaffold
from opgraft.cli import main
from opgraft.errors import ModelError, OptionError
from opgraft.scaffold import draft_pack, write_pack
from opgraft.scaffold.operators import draft_of


def run_tests(*folders: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "--tb=short"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *map(str, folders)],
        cwd=folders[0],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
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


def known_operators() -> dict[str, set[str]]:
    """The operators that ONNX Runtime knows, by domain."""
    found: dict[str, set[str]] = {}
    for schema in get_all_operator_schema():
        found.setdefault(schema.domain or "ai.onnx", set()).add(f"{schema.domain or 'ai.onnx'}::{schema.name}")
    return found


def test_what_is_written_for_every_operator_that_onnxruntime_knows_passes_its_own_tests(tmp_path: Path) -> None:
    packs: dict[str, list[str]] = {}
    refused: list[str] = []
    for domain, operators in known_operators().items():
        for operator in sorted(operators):
            try:
                assert not draft_of(operator).is_new
                packs.setdefault(domain, []).append(operator)
            except OptionError as error:
                refused.append(str(error))
    assert all("opgraft's pack builtin for how" in each or "such nodes stay with the CPU" in each for each in refused)
    assert len(refused) < 40
    for domain, drafted in packs.items():
        name = f"pack-of-{domain}"
        write_pack(draft_pack(name, drafted), tmp_path / name)
    count = sum(map(len, packs.values()))
    assert count > 340  # 347 in onnxruntime 1.24
    done = run_tests(*tmp_path.iterdir())
    assert done.stdout.splitlines()[-1].startswith(f"{count} passed in"), done.stdout


@pytest.mark.parametrize(
    ("operator", "since", "until"),
    [
        ("Conv", 1, None),  # only element types were added
        ("Erf", 9, None),  # and here taken away
        ("Relu", 6, None),  # 1 had consumed_inputs
        ("Add", 7, None),  # 6 had axis and broadcast
        ("Softmax", 13, None),  # 11 had another default of axis
        ("Clip", 11, None),  # 6 had attributes in place of inputs
        ("TopK", 10, None),  # 11 added attributes, with what 10 did for defaults
        ("Dropout", 12, None),
        ("Upsample", 9, 9),  # 10 was given up
        ("Scatter", 9, 10),
        ("com.microsoft::Gelu", 1, None),
    ],
)
def test_versions_begin_where_the_signature_does(operator: str, since: int, until: int | None) -> None:
    draft = draft_of(operator)
    assert (draft.since, draft.until) == (since, until)
    assert ("until" in draft.decorator) == (until is not None)


def test_an_input_and_an_attribute_of_one_name() -> None:
    draft = draft_of("GivenTensorFill")
    assert draft.parameters.startswith("shape_=None, *,")
    assert ", shape=None" in draft.parameters


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        (None, "opgraft[cpu]"),
        ({"url": "file:///home/me/opgraft", "dir_info": {"editable": True}}, "opgraft[cpu] @ file:///home/me/opgraft"),
        ({"url": "https://x.org/o.git", "vcs_info": {"vcs": "git"}}, "opgraft[cpu] @ git+https://x.org/o.git"),
        ({"url": "https://x.org/o.whl", "archive_info": {}}, "opgraft[cpu] @ https://x.org/o.whl"),
    ],
)
def test_where_opgraft_came_from_is_said_once(
    origin: dict[str, Any] | None, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(read_text=lambda name: json.dumps(origin) if origin else None)
    monkeypatch.setattr(opgraft.scaffold, "distributions", lambda name: [found])
    files = write_pack(draft_pack("my-pack", ["acme::Mish"]), tmp_path / "my-pack")
    assert sum(source in each.read_text() for each in files) >= 1
    assert [each.name for each in files if "OPGRAFT: " in each.read_text()] == ["test.yml"]
    workflow = (tmp_path / "my-pack/.github/workflows/test.yml").read_text()
    assert yaml.safe_load(workflow)["env"] == {"OPGRAFT": source}


def test_what_the_tests_of_a_pack_need(tmp_path: Path) -> None:
    write_pack(draft_pack("my-pack", ["acme::Mish"]), tmp_path / "my-pack")
    project = tomllib.loads((tmp_path / "my-pack/pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"] == {"test": ["pytest", "hypothesis"]}


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
        (
            "my-pack",
            "Mishh",
            "ai.onnx has no operator 'Mishh' (did you mean ai.onnx::Mish?): name a domain of your own",
        ),
        ("my-pack", "Zzzz", "ai.onnx has no operator 'Zzzz': name a domain of your own, as in acme::Zzzz"),
        ("my-pack", "acme:Mish", "is not the name of an operator"),
        ("my-pack", "acme::", "is not the name of an operator"),
        ("my-pack", 'acme::x")', "is not the name of an operator"),
        ("my-pack", "Loop", "has a body, 'body'"),
        ("my-pack", "SequenceAt", "has 'input_sequence' of seq"),
        ("my-pack", "StringConcat", "has 'X' of tensor(string): that is not to be had on MLX"),
    ],
)
def test_names_that_cannot_be(name: str, operator: str, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        draft_pack(name, [operator])


def test_a_new_operator_in_a_domain_of_onnxruntime_is_doubted(tmp_path: Path) -> None:
    arguments = ["new-pack", "my-pack", "--op", "com.microsoft::CDsit", "--op", "acme::CDsit2", "--into", str(tmp_path)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0
    assert (
        "Warning: com.microsoft has no operator 'CDsit' (did you mean com.microsoft::CDist?); for an operator of your "
        "own, name a domain of your own\n"
    ) in result.stderr
    assert "acme" not in result.stderr
    assert draft_pack("my-pack", ["com.microsoft::CDist", "acme::CDsit", "Relu"]).warnings == []


def test_two_operators_of_one_function_name() -> None:
    with pytest.raises(OptionError, match="two of the operators would be the function 'mish'"):
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
