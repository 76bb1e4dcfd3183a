"""A report as one HTML file that needs nothing else: the partitioned graph as a picture, and tables.

Names from a model are data in it: they are in a JSON block that no browser runs, and the page's script puts them on the
screen as text. A content security policy lets only that script run, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Hashable
from importlib.resources import files
from typing import Any, TypeVar

import jinja2

from opgraft.reporting.document import summary_of
from opgraft.reporting.layout import CELL, layered
from opgraft.reporting.report import Report
from opgraft.reporting.wording import cause_text, shape_text, traffic_text
from opgraft.text import printable

T = TypeVar("T", bound=Hashable)


def report_as_html(report: Report) -> str:
    """The page."""
    style, script = (_template_text(name) for name in ("report.css", "report.js"))
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("opgraft.reporting"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(traffic=traffic_text, printable=printable)
    return environment.get_template("report.html.j2").render(
        report=report,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        data={"summary": summary_of(report), "graph": _graph(report), "tables": _tables(report)},
    )


def _template_text(name: str) -> str:
    return (files(__package__) / "templates" / name).read_text("utf-8").strip()


def _hash(text: str) -> str:
    """What a content security policy calls an inline script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


class _Names(dict[T, int]):
    """Numbers for names, so that one that many nodes share is written once."""

    def __missing__(self, name: T) -> int:
        self[name] = len(self)
        return self[name]


def _graph(report: Report) -> dict[str, Any]:
    """The picture's data: a column for each property of the nodes, and the edges as one flat list."""
    nodes, edges = report.graph.nodes, report.graph.edges
    points = layered(len(nodes), edges)
    operators, packs, reasons, groups = _Names[str](), _Names[str | None](), _Names[str | None](), _Names[Any]()
    return {
        "cell": CELL,
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "name": [each.name for each in nodes],
        "operator": [operators[each.operator] for each in nodes],
        "subgraph": [-1 if each.subgraph is None else each.subgraph for each in nodes],
        "pack": [packs[each.pack] for each in nodes],
        "reason": [reasons[each.reason] for each in nodes],
        "groups": [groups[each.groups] for each in nodes],
        "inBodies": [each.in_bodies for each in nodes],
        "operators": list(operators),
        "packs": list(packs),
        "reasons": list(reasons),
        "groupSets": list(groups),
        "edges": [end for edge in edges for end in edge],
    }


def _tables(report: Report) -> dict[str, Any]:
    return {
        "whatIf": [
            [
                each.headline,
                each.after.subgraphs,
                each.after.nodes,
                each.tensors_saved,
                each.bytes_saved,
                each.groups,
            ]
            for each in report.what_if
        ],
        "declined": [
            [
                each.title,
                each.nodes,
                "; ".join(each.reasons),
                ", ".join(each.names),
                "; ".join(f"{offer.pack} ({offer.nodes} nodes): {offer.held_back_by}" for offer in each.offers),
                [index],
            ]
            for index, each in enumerate(report.declined)
        ],
        "operators": [[each.operator, each.claimed, each.declined, ", ".join(each.packs)] for each in report.operators],
        "subgraphs": [
            [each.number + 1, each.nodes, each.into.tensors, each.out_of.tensors, each.into.bytes + each.out_of.bytes]
            for each in report.subgraphs
        ],
        "crossings": [
            [
                each.tensor,
                each.direction,
                each.subgraph + 1,
                f"{each.dtype or '?'}{shape_text(each.shape)}",
                each.bytes,
                "model's own" if each.of_model else "",
            ]
            for each in report.crossings
        ],
        "faults": [
            [each.pack, each.operator, each.count, each.reason, ", ".join(each.nodes)]
            for each in report.coverage.faults
        ],
        "breaks": [
            [each.node, each.operator, each.input, cause_text(each), each.subgraph + 1] for each in report.breaks
        ],
    }
