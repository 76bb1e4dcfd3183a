"""Models, registries and reports for the tests of reporting."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

import onnx
import onnx.parser

from opgraft.claims import Decisions, decide
from opgraft.engine import VerifiedRegistry
from opgraft.graph.onnx_source import graph_of_model
from opgraft.registry import Pack, Registry, parse_policy
from opgraft.reporting import Report, coverage_of, report_of
from opgraft.reporting.observation import Observer
from opgraft.reporting.report import Setting
from opgraft.sessions import survey

DETECTOR = str(files("opgraft") / "demo" / "detector.onnx")
"""A real model: some 300 nodes, as PyTorch exports it."""

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>|`\x1b[2J\u202e\""
"""A node's name that would like to be more than a name."""


def parsed(text: str) -> onnx.ModelProto:
    """A model from the text of its graph (and functions), with ai.onnx 21 and the domain `local` imported."""
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["":21, "local":1]> {text}')


def denying(folder: Path, operators: Iterable[str]) -> str:
    """The path of a registry file that denies operators."""
    rules = ", ".join(f'"{operator}": {{deny: ["*"]}}' for operator in operators)
    path = folder / "registry.yaml"
    path.write_text(f"ops: {{{rules}}}")
    return str(path)


def surveyed(model: Any, folder: Path, denied: Iterable[str] = (), **arguments: Any) -> Report:
    """The report on a model with some operators denied."""
    return survey(model, {"registry": denying(folder, denied)}, **arguments)


def registry_of(policy: str = "", **packs: Iterable[Any]) -> tuple[Registry, tuple[Pack, ...]]:
    """A registry of packs given by name, and those packs."""
    made = tuple(Pack(name, plugins=tuple(handlers)) for name, handlers in packs.items())
    return Registry(made, parse_policy(policy, "my.yaml")), made


def reported(model: onnx.ModelProto, registry: tuple[Registry, tuple[Pack, ...]], device: str = "cpu") -> Report:
    """The report on a model without a session, with packs of one's own."""
    chosen, packs = registry
    decisions: Decisions = decide(graph_of_model(model), VerifiedRegistry(chosen, device), device=device)
    seen = [Observer(chosen, packs).observe(decisions)]
    coverage = coverage_of([decisions], model="model", source="file")
    return report_of(seen, coverage, Setting("0", "0", "0", "my.yaml"))
