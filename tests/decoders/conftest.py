"""Sessions whose programs a test can look at; what they are compared with is a CPU provider that has the operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnxruntime
import pytest
from generation import serialized
from packaging.version import Version
from recipes import Recipe

import opgraft
from opgraft.engine import Program
from opgraft.host import compute

ORACLE = Version("1.32")

if Version(onnxruntime.__version__) < ORACLE:
    print(f"decoders are not compared with onnxruntime {onnxruntime.__version__}: an oracle older than {ORACLE}")
    collect_ignore_glob = ["test_*.py"]


@dataclass(frozen=True)
class Opened:
    """A session that leaves nothing to the CPU provider, and what it runs."""

    session: onnxruntime.InferenceSession
    programs: list[Program]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Recipe], Opened]]:
    programs: list[Program] = []
    made = compute.FusedNode.__init__

    def noted(self: compute.FusedNode, program: Program, trace: object) -> None:
        programs.append(program)
        made(self, program, trace)

    monkeypatch.setattr(compute.FusedNode, "__init__", noted)

    def open_one(form: str, recipe: Recipe) -> Opened:
        options = opgraft.session_options(device="cpu")
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        before = len(programs)
        session = onnxruntime.InferenceSession(serialized(form, recipe), options)
        return Opened(session, programs[before:])

    yield open_one
