"""A report as JSON, Markdown, HTML and in the terminal; hostile names are data in all of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import jsonschema
import onnx
import pytest
from onnx import TensorProto, helper
from reporting_models import DETECTOR, HOSTILE, parsed, surveyed
from rich.console import Console

from opgraft.errors import ModelError
from opgraft.reporting import Report
from opgraft.reporting.document import FORMAT, VERSION, document_of, from_json, schema, to_json
from opgraft.reporting.html import report_as_html
from opgraft.reporting.layout import CELL, layered
from opgraft.reporting.markdown import code, report_as_markdown
from opgraft.reporting.terminal_report import render_report
from opgraft.text import size_text

DENIED = ("Split", "Resize", "MaxPool", "HardSwish")


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return surveyed(DETECTOR, tmp_path_factory.mktemp("registry"), DENIED)


@pytest.fixture(scope="module")
def breaking(tmp_path_factory: pytest.TempPathFactory) -> Report:
    model = parsed("g (float[300,300] x) => (int64[2,k] y) { s = MatMul(x, x) y = NonZero(s) }")
    return surveyed(model, tmp_path_factory.mktemp("registry"))


def hostile_model() -> onnx.ModelProto:
    """y = Sin(x) + x, every name of which is `HOSTILE`, with an operator of that name before it."""
    names = [f"{HOSTILE}{number}" for number in range(4)]
    nodes = [
        helper.make_node("Neg", [names[0]], [names[1]], name=HOSTILE),
        helper.make_node("Sin", [names[1]], [names[2]], name=HOSTILE + "sin"),
        helper.make_node(HOSTILE, [names[2]], [names[3]], name=HOSTILE + "own", domain="elsewhere"),
    ]
    graph = helper.make_graph(
        nodes,
        HOSTILE,
        [helper.make_tensor_value_info(names[0], TensorProto.FLOAT, [HOSTILE, 3])],
        [helper.make_tensor_value_info(names[3], TensorProto.FLOAT, [2, 3])],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("elsewhere", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return surveyed(hostile_model(), tmp_path_factory.mktemp("registry"), ["Sin"])


@pytest.fixture(params=["detector", "breaking", "hostile"])
def report(request: pytest.FixtureRequest) -> Report:
    found: Report = request.getfixturevalue(request.param)
    return found


def strict(part: Any) -> Any:
    """A schema in which nothing may be that it does not name."""
    if isinstance(part, dict):
        closed = {"additionalProperties": False} if part.get("type") == "object" else {}
        return {**{key: strict(value) for key, value in part.items()}, **closed}
    return [strict(each) for each in part] if isinstance(part, list) else part


class TestJson:
    def test_is_what_the_schema_says_and_nothing_else(self, report: Report) -> None:
        jsonschema.Draft202012Validator.check_schema(schema())
        jsonschema.validate(json.loads(to_json(report)), strict(schema()))

    def test_the_schema_describes_everything(self) -> None:
        def check(part: Any, place: str) -> None:
            for name, each in part.get("properties", {}).items():
                assert "description" in each or "$ref" in each, f"{place}.{name}"
                check(each, f"{place}.{name}")
                check(each.get("items", {}), f"{place}.{name}[]")

        check(schema(), "report")
        for name, each in schema()["$defs"].items():
            check(each, name)

    def test_comes_back_as_it_was(self, report: Report) -> None:
        assert from_json(to_json(report), "it") == report

    def test_begins_with_what_matters(self, detector: Report) -> None:
        document = document_of(detector)
        assert list(document)[:3] == ["format", "version", "summary"]
        assert (document["format"], document["version"]) == (FORMAT, VERSION)
        assert document["summary"]["subgraphs"] == len(detector.subgraphs) > 1
        assert document["what_if"][0]["headline"].startswith("Claim all ")

    def test_readers_pass_over_what_is_new(self, detector: Report) -> None:
        document = {**document_of(detector), "of_tomorrow": 1}
        document["setting"] = {**document["setting"], "of_tomorrow": 1}
        assert from_json(json.dumps(document), "it") == detector

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "not JSON, or cut short"),
            ("[" * 100_000, "not JSON, or cut short"),
            ("[]", "not a report; `opgraft report --json` writes one"),
            ('{"format": "opgraft-report", "version": 99}', "a report of version 99, and this opgraft reads version 1"),
            ('{"format": "opgraft-report", "version": 1}', "a damaged report"),
        ],
    )
    def test_what_is_no_report(self, text: str, says: str) -> None:
        with pytest.raises(ModelError, match=re.escape(says)):
            from_json(text, "it")

    @pytest.mark.parametrize("wrong", [None, "x", 1.5, True, {}, [1], -0.0])
    @pytest.mark.parametrize("place", ["coverage", "subgraphs", "what_if", "setting"])
    def test_what_is_damaged(self, place: str, wrong: Any, detector: Report) -> None:
        document = document_of(detector)
        with pytest.raises(ModelError, match="a damaged report"):
            from_json(json.dumps({**document, place: wrong}), "it")

    @pytest.mark.parametrize("end", [-1, 10**6, 2**70])
    def test_an_edge_leads_to_a_node(self, detector: Report, end: int) -> None:
        document = document_of(detector)
        document["graph"]["edges"].append([0, end])
        with pytest.raises(ModelError, match=r"a damaged report \(an edge that leads to no node\)"):
            from_json(json.dumps(document), "it")


def in_terminal(report: Report) -> str:
    console = Console(width=100, highlight=False)
    with console.capture() as capture:
        console.print(render_report(report))
    return capture.get()


class TestTerminal:
    def test_fits_100_columns(self, report: Report) -> None:
        assert max(map(len, in_terminal(report).splitlines())) <= 100

    def test_shows_everything(self, detector: Report) -> None:
        text = in_terminal(detector)
        for each in (
            "subgraphs: ",
            "crossing between ONNX Runtime and the device at every run: ",
            "onnxruntime replaced 2 nodes of ai.onnx::HardSwish by what defines it",
            "Claim all 3: ",
            "Claim Resize: ",
            "The installed pack builtin would take ",
        ):
            assert each in text, each

    def test_shows_graph_breaks(self, breaking: Report) -> None:
        assert re.search(
            r"1 +NonZero \(-> y\) +ai\.onnx::NonZero +X +s \(from MatMul \(-> s\)\)", in_terminal(breaking)
        )

    def test_long_tables_are_cut(self, detector: Report) -> None:
        assert "... and 30 more (--json and --html have all)" in in_terminal(
            replace(detector, what_if=detector.what_if[:1] * 50)
        )

    def test_names_do_not_steer_it(self, hostile: Report) -> None:
        assert not {"\x1b", "\u202e"} & set(in_terminal(hostile))


class TestMarkdown:
    def test_shows_everything(self, detector: Report) -> None:
        text = report_as_markdown(detector)
        assert text.startswith("### `detector.onnx`: ")
        assert "| `Claim all 3: " in text
        assert "| `Resize` | 2 | " in text
        assert "the installed pack `builtin` would take 2, but " in text
        assert "| `ai.onnx::Conv` | 45 | 0 | `builtin` |" in text

    def test_tables_are_tables(self, report: Report) -> None:
        """Each line of a table has as many cells as its heading, whatever is in the names."""
        cells = 0
        for line in report_as_markdown(report).splitlines():
            bars = len(re.findall(r"(?<!\\)\|", line))
            if line.startswith("|"):
                assert cells in (0, bars), line
            cells = bars if line.startswith("|") else 0

    def test_names_are_code(self, hostile: Report) -> None:
        text = report_as_markdown(hostile)
        spans = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
        assert "<script" in text
        assert not re.search("<(?!/?(details|summary)>)", spans.sub("", text))

    @pytest.mark.parametrize(
        ("text", "expected"),
        [("a", "`a`"), ("a`b", "``a`b``"), ("`a", "`` `a ``"), ("a|b", r"`a\|b`"), ("", "` `"), ("a\nb", r"`a\nb`")],
    )
    def test_code(self, text: str, expected: str) -> None:
        assert code(text) == expected


class Page(HTMLParser):
    """The elements of a page, and the text in them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)


class TestHtml:
    def test_needs_nothing_else(self, report: Report) -> None:
        page = Page(report_as_html(report))
        assert not [attributes for _, attributes in page.tags if {"src", "href", "style"} & attributes.keys()]
        assert {tag for tag, _ in page.tags}.isdisjoint({"link", "img", "iframe", "base", "object"})
        policy = next(each["content"] for _, each in page.tags if each.get("http-equiv") == "Content-Security-Policy")
        assert policy is not None
        assert policy.startswith("default-src 'none'; base-uri 'none'; form-action 'none'; script-src 'sha256-")
        assert "unsafe" not in policy

    def test_has_two_scripts_whatever_is_in_the_names(self, report: Report) -> None:
        page = Page(report_as_html(report))
        assert [each.get("type") for tag, each in page.tags if tag == "script"] == ["application/json", None]
        assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]

    def test_holds_every_node(self, hostile: Report) -> None:
        page = Page(report_as_html(hostile))
        data = json.loads(page.texts["script"][0])
        assert HOSTILE in data["graph"]["name"]
        assert data["graph"]["subgraph"] == [0, -1, -1]
        assert data["summary"]["nodes"] == 3

    def test_the_policys_hash_is_the_scripts(self, detector: Report) -> None:
        import base64
        import hashlib

        text = report_as_html(detector)
        for tag in ("script", "style"):
            (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
            assert f"{tag}-src &#39;sha256-{digest}&#39;" in text or f"{tag}-src 'sha256-{digest}'" in text

    def test_says_where_it_comes_from(self, hostile: Report, detector: Report) -> None:
        page = Page(report_as_html(hostile))
        told = [text for text in page.texts["p"] if text.startswith("onnxruntime cannot load this model")]
        assert len(told) == 1
        assert "\x1b" not in told[0]
        assert "<title>detector.onnx: opgraft report</title>" in report_as_html(detector)


class TestLayout:
    def test_no_two_nodes_meet(self, detector: Report) -> None:
        points = sorted(
            layered(len(detector.graph.nodes), detector.graph.edges), key=lambda point: (point[1], point[0])
        )
        for (x, y), (next_x, next_y) in pairwise(points):
            assert next_y > y or next_x - x >= CELL[0] - 1

    def test_a_consumer_is_below_its_producer_or_in_a_later_column(self) -> None:
        edges = [(node, node + 1) for node in range(199)] + [(0, 150)]
        points = layered(200, edges)
        assert all(points[b][1] > points[a][1] or points[b][0] > points[a][0] for a, b in edges)
        width, height = (max(point[axis] for point in points) for axis in (0, 1))
        assert 0.5 < width / height < 4

    @pytest.mark.parametrize("count", [0, 1, 1000])
    def test_nodes_without_edges(self, count: int) -> None:
        assert len(set(layered(count, []))) == count


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1500, "1.5 kB"),
        (-1500, "-1.5 kB"),
        (2_345_678_901, "2.3 GB"),
        (10**16, "10.0 PB"),
    ],
)
def test_sizes_in_words(count: int, expected: str) -> None:
    assert size_text(count) == expected
