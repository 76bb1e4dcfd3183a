"""The HTML report in a real browser: `make browser`. Skipped where Chromium or playwright is missing."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from report import large_model
from reporting_models import DETECTOR, HOSTILE, surveyed

from opgraft.reporting import Report
from opgraft.reporting.html import report_as_html

playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
PICTURES = os.environ.get("OPGRAFT_SCREENSHOTS")
"""A folder for screenshots, where somebody wants to look at them."""

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium: apt-get install chromium, or set CHROMIUM"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens the page of a report from a file, and sees to it that nothing is fetched and nothing goes wrong."""
    context = browser.new_context(viewport={"width": 1300, "height": 950}, offline=True)
    wrong: list[str] = []
    pages: list[Any] = []

    def opened(report: Report) -> Any:
        file = tmp_path / "report.html"
        file.write_text(report_as_html(report), "utf-8", errors="backslashreplace")
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.on("request", lambda asked: asked.url.startswith("file:") or wrong.append(asked.url))
        page.goto(file.as_uri())
        page.wait_for_selector("#table tbody tr")
        pages.append(page)
        return page

    yield opened
    context.close()
    assert wrong == []


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return surveyed(DETECTOR, tmp_path_factory.mktemp("registry"), ["Split", "Resize", "MaxPool", "Softmax"])


def picture(page: Any, name: str) -> None:
    if PICTURES:
        Path(PICTURES).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(PICTURES) / f"{name}.png"))


def scale(page: Any) -> float:
    found: float = page.evaluate("picture.view.scale")
    return found


def settled(page: Any) -> None:
    """Waits until what was asked for is painted."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def place_of(page: Any, node: int) -> tuple[float, float]:
    """Where a node is on the screen."""
    box = page.locator("#graph").bounding_box()
    x, y = page.evaluate(
        "(node) => [picture.view.x + (graph.x[node] + 60) * picture.view.scale,"
        " picture.view.y + (graph.y[node] + 20) * picture.view.scale]",
        node,
    )
    return box["x"] + x, box["y"] + y


def colours(page: Any) -> list[list[int]]:
    """The colour that the canvas has in the middle of each node."""
    found: list[list[int]] = page.evaluate(
        """() => {
            const { width, height } = picture.canvas;
            const pixels = picture.context.getImageData(0, 0, width, height).data;
            return all.map((node) => {
                const x = Math.round((picture.view.x + (graph.x[node] + 85) * picture.view.scale) * picture.ratio);
                const y = Math.round((picture.view.y + (graph.y[node] + 23) * picture.view.scale) * picture.ratio);
                return [...pixels.slice(4 * (y * width + x), 4 * (y * width + x) + 3)];
            });
        }"""
    )
    return found


def test_the_picture_is_coloured_by_subgraph(open_page: Any, detector: Report) -> None:
    page = open_page(detector)
    picture(page, "detector")
    settled(page)
    by_subgraph: dict[int | None, set[tuple[int, ...]]] = {}
    for node, colour in zip(detector.graph.nodes, colours(page), strict=True):
        by_subgraph.setdefault(node.subgraph, set()).add(tuple(colour))
    assert all(len(found) == 1 for found in by_subgraph.values()), by_subgraph
    assert len({next(iter(found)) for found in by_subgraph.values()}) == len(by_subgraph) > 5


def test_hovering_tells_name_operator_and_pack_or_reason(open_page: Any, detector: Report) -> None:
    page = open_page(detector)
    declined = next(index for index, node in enumerate(detector.graph.nodes) if node.subgraph is None)
    claimed = next(index for index, node in enumerate(detector.graph.nodes) if node.subgraph == 0)
    page.mouse.move(*place_of(page, declined))
    told = page.inner_text("#tip")
    node = detector.graph.nodes[declined]
    assert node.name in told
    assert node.operator in told
    assert "on the CPU" in told
    assert "denies it" in told
    page.mouse.move(*place_of(page, claimed))
    assert "subgraph 1, pack builtin" in page.inner_text("#tip")
    page.mouse.move(5, 5)
    assert page.is_hidden("#tip")


def test_zooming_and_panning(open_page: Any, detector: Report) -> None:
    page = open_page(detector)
    whole = scale(page)
    x, y = place_of(page, 100)
    page.mouse.move(x, y)
    for _ in range(8):
        page.mouse.wheel(0, -200)
    page.wait_for_function("(before) => picture.view.scale > 3 * before", arg=whole)
    assert place_of(page, 100) == pytest.approx((x, y), abs=200)
    picture(page, "detector-zoomed")
    before = place_of(page, 100)
    page.mouse.move(600, 500)
    page.mouse.down()
    page.mouse.move(700, 550, steps=5)
    page.mouse.up()
    after = place_of(page, 100)
    assert (after[0] - before[0], after[1] - before[1]) == pytest.approx((100, 50), abs=25)
    page.click("#whole")
    assert scale(page) == pytest.approx(whole)
    page.focus("#graph")
    page.keyboard.press("+")
    assert scale(page) > whole


def test_tables_sort_and_filter(open_page: Any, detector: Report) -> None:
    page = open_page(detector)
    page.click("#tabs button:has-text('Operators')")
    column = page.locator("#table tbody td:nth-child(2)")
    page.click("#table th:nth-child(2) button")
    counts = [int(text.replace(",", "")) for text in column.all_inner_texts()]
    assert counts == sorted(counts, reverse=True)
    page.click("#table th:nth-child(2) button")
    assert [int(text.replace(",", "")) for text in column.all_inner_texts()] == counts[::-1]
    page.fill("#table input", "resize")
    assert page.locator("#table tbody tr").count() == 1
    assert page.inner_text("#table output").startswith("1 of ")


def test_a_row_of_what_if_shows_its_nodes(open_page: Any, detector: Report) -> None:
    page = open_page(detector)
    page.click("#table tbody tr:has-text('Claim Resize:')")
    group = next(index for index, each in enumerate(detector.declined) if each.title == "Resize")
    marked = page.evaluate("all.filter((node) => picture.marked[node])")
    assert marked == [index for index, node in enumerate(detector.graph.nodes) if group in node.groups]
    picture(page, "detector-what-if")


def test_finding_nodes(open_page: Any, detector: Report) -> None:
    page = open_page(detector)
    page.fill("#search", "softmax")
    assert page.inner_text("#found") == "2 nodes"
    page.press("#search", "Enter")
    assert page.inner_text("#found") == "1 of 2 nodes"
    assert "Softmax" in page.inner_text("#tip")


def test_in_the_dark(open_page: Any, detector: Report) -> None:
    page = open_page(detector)
    page.emulate_media(color_scheme="dark")
    settled(page)
    assert page.evaluate("picture.colours.paper") == "#1c2025"
    picture(page, "detector-dark")


def test_names_from_a_model_run_nothing(open_page: Any, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Sin", ["x"], [HOSTILE], name=HOSTILE), helper.make_node("Neg", [HOSTILE], ["y"])],
        HOSTILE,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (tmp_path / "models").mkdir()
    onnx.save(model, tmp_path / "models" / "<img src=x onerror=alert(2)>.onnx")
    page = open_page(surveyed(tmp_path / "models" / "<img src=x onerror=alert(2)>.onnx", tmp_path, ["Sin"]))
    for tab in page.locator("#tabs button").all():
        tab.click()
        assert page.locator("img, #table script").count() == 0
    page.mouse.move(*place_of(page, 0))
    told = page.inner_text("#tip b")
    assert told.startswith("</script><script>")
    assert "\\u202e" in told
    assert "owned" not in page.title()
    assert page.locator("script").count() == 2


def test_a_script_that_is_not_the_pages_own_does_not_run(browser: Any, detector: Report, tmp_path: Path) -> None:
    """Were a name to become markup all the same, the policy would stop it."""
    file = tmp_path / "report.html"
    file.write_text(report_as_html(detector).replace("</body>", "<script>document.title = 'owned'</script></body>"))
    page = browser.new_page()
    page.goto(file.as_uri())
    assert page.title() == "detector.onnx: opgraft report"
    page.close()


def test_ten_thousand_nodes(open_page: Any, tmp_path: Path) -> None:
    report = surveyed(large_model(10_000), tmp_path, ["Floor"])
    assert len(report.graph.nodes) > 9_000
    started = time.perf_counter()
    page = open_page(report)
    opened = time.perf_counter() - started
    picture(page, "large")
    painted = page.evaluate(
        "(() => { const at = performance.now(); picture.paint(); return performance.now() - at; })()"
    )
    x, y = place_of(page, 5000)
    page.mouse.move(x, y)
    assert report.graph.nodes[5000].name in page.inner_text("#tip")
    for _ in range(15):
        page.mouse.wheel(0, -200)
    settled(page)
    picture(page, "large-zoomed")
    page.click("#tabs button:has-text('Nodes')")
    started = time.perf_counter()
    page.fill("#table input", "layers.77. tanh")
    page.wait_for_function("document.querySelector('#table output').textContent.match(/^\\d+ of/)")
    filtered = time.perf_counter() - started
    print(f"opened in {opened:.2f} s, painted in {painted:.0f} ms, filtered in {filtered:.2f} s")
    assert opened < 10
    assert painted < 500
    assert filtered < 3
