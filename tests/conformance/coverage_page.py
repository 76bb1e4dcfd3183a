"""Writes docs/coverage.md from the verdicts of ONNX's node cases."""

from __future__ import annotations

import collections
import re
from collections.abc import Sequence
from importlib.metadata import version

from node_cases import CLASSES, Verdict

from opgraft.graph.element_types import described
from opgraft.ops import Handler
from opgraft.registry import Registry, load_registry

BAD = ("wrong", "error", "crash")

_REASON = re.compile(r"(?:^|; )([\w.]+::\w+)-\d+: ([^;]*)")
"""An operator of a verdict's detail, and the first clause of what is said of it."""

OTHER_DOMAINS = {"com.microsoft": "tests/contrib", "ai.onnx.ml": "tests/ml"}

_MEANING = {
    "right": "every node on the execution provider, and ONNX's outputs",
    "partly": "right, with some nodes elsewhere",
    "unclaimed": "no node on the execution provider",
    "wrong": "an output is not ONNX's",
    "error": "making the session or running it failed",
    "crash": "the process died",
}


def page(verdicts: Sequence[Verdict]) -> str:
    """The page as Markdown."""
    counts = collections.Counter(verdict.kind for verdict in verdicts)
    lines = [
        "# Coverage of operators",
        "",
        f"ONNX's {len(verdicts)} node cases (onnx {version('onnx')}), each run through onnxruntime "
        f"{version('onnxruntime')} with this execution provider first and the CPU's second, graph optimizations off, "
        f"on mlx {version('mlx')}'s CPU device. `make conformance` writes this page.",
        "",
        "| class | cases | meaning |",
        "|---|---:|---|",
        *(f"| {kind} | {counts[kind]} | {_MEANING[kind]} |" for kind in CLASSES),
        "",
        *(
            f"- {verdict.kind}: `{verdict.case}`: {_cell(verdict.detail)}"
            for verdict in verdicts
            if verdict.kind in BAD
        ),
        "",
        "For each operator: the versions that handlers cover, the element types of its first input, and the cases "
        "whose models hold it. The rest is held back for the reasons in the last column, or by another operator in the "
        "same model.",
        "",
        "| operator | versions | element types | right | partly | all | the rest |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    registry = load_registry()
    by_operator: dict[str, list[Verdict]] = collections.defaultdict(list)
    for verdict in verdicts:
        for operator in verdict.operators:
            by_operator[operator].append(verdict)
    for operator in sorted(set(by_operator) | {name for name in registry.operators if name.startswith("ai.onnx::")}):
        if operator.startswith("ai.onnx::"):
            lines.append(_row(operator, by_operator[operator], registry))
    for domain, tests in OTHER_DOMAINS.items():
        lines += [
            "",
            f"## {domain}",
            "",
            f"Compared with ONNX Runtime's CPU provider, or with NumPy where it has no kernel, in `{tests}`.",
            "",
            "| operator | versions | element types |",
            "|---|---|---|",
        ]
        for operator in sorted(name for name in registry.operators if name.startswith(f"{domain}::")):
            versions, types = _taken(operator, registry)
            lines.append(f"| {operator.removeprefix(f'{domain}::')} | {versions or 'declined'} | {types} |")
    return "\n".join(lines) + "\n"


def _taken(operator: str, registry: Registry) -> tuple[str, str]:
    """The versions that handlers cover, and the element types of their first input, as text."""
    handlers = [each.handler for each in registry.candidates(operator) if isinstance(each.handler, Handler)]
    versions = ", ".join(dict.fromkeys(handler.versions for handler in handlers))
    return versions, "; ".join(dict.fromkeys(_types(handler) for handler in handlers))


def _row(operator: str, verdicts: Sequence[Verdict], registry: Registry) -> str:
    versions, types = _taken(operator, registry)
    right = sum(verdict.kind == "right" for verdict in verdicts)
    partly = sum(verdict.kind == "partly" for verdict in verdicts)
    reasons = collections.Counter(
        reason for verdict in verdicts if verdict.kind != "right" for reason in why_not_right(operator, verdict)
    )
    rest = _cell("; ".join(f"{reason} ({count})" for reason, count in reasons.most_common(3)))
    name = operator.removeprefix("ai.onnx::")
    return f"| {name} | {versions or 'none'} | {types} | {right} | {partly} | {len(verdicts)} | {rest} |"


def why_not_right(operator: str, verdict: Verdict) -> list[str]:
    """Why a case that holds an operator is not right: what is said of the operator; the case, where its outputs or its
    run are at fault; otherwise the operators that held it back."""
    if verdict.kind in BAD:
        return [f"{verdict.kind}: {verdict.case}"]
    reasons = _REASON.findall(verdict.detail)
    own = [text for name, text in reasons if name == operator]
    others = dict.fromkeys(name.removeprefix("ai.onnx::") for name, _ in reasons)
    return own or [f"held back by {name}" for name in others] or [verdict.detail]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _types(handler: Handler) -> str:
    first = handler.signature.input(0)
    return "" if first is None else described(first.dtypes)
