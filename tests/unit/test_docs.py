"""What the pages in docs/ show runs as shown, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx.parser
import pytest

from opgraft.engine import Program, compiled, read_model
from opgraft.errors import TranslationError
from opgraft.ops import Handler
from opgraft.plan import build_plan
from opgraft.registry import Pack, Registry, load_registry, parse_policy
from opgraft.registry.packs import plugins_of
from opgraft.testing import check_node, check_over

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("plugins_example/*/README.md"))]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("text", blocks("registry.md", "yaml"))
def test_every_registry_file_can_be_used(text: str) -> None:
    parse_policy(text, "registry.md").check_packs(["builtin", "contrib", "ml"])


def test_the_rules_say_what_the_page_says() -> None:
    rules = parse_policy(blocks("registry.md", "yaml")[1], "registry.md")
    assert rules.order(["builtin", "other"], "ai.onnx::Relu") == ["other", "builtin"]
    assert rules.order(["builtin", "other"], "ai.onnx::Conv") == []
    assert rules.order(["builtin", "other"], "ai.onnx::RandomNormal") == []
    assert rules.order(["builtin", "contrib", "other"], "com.microsoft::Gelu") == ["contrib"]
    assert rules.order(["builtin", "ml", "other"], "ai.onnx.ml::Scaler") == ["other", "builtin", "ml"]


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    """What the blocks of writing-a-pack.md define, one after another; the checks among them have been made."""
    names: dict[str, Any] = {}
    for code in blocks("writing-a-pack.md", "python"):
        exec(compile(code, "writing-a-pack.md", "exec"), names)
    return names


def test_the_handlers_are_found_as_in_a_pack(written: dict[str, Any]) -> None:
    found = {
        plugin.operators[0] for plugin in plugins_of([each for each in written.values() if hasattr(each, "operators")])
    }
    assert found >= {
        "com.microsoft::FastGelu",
        "ai.onnx::LpNormalization",
        "ai.onnx::Tile",
        "ai.onnx::Gather",
        "acme::Mish",
    }
    assert "*::*" in found


def test_more_of_the_handlers(written: dict[str, Any]) -> None:
    np, x = written["np"], written["x"]
    check_node(written["gather"], x, np.array([[2, -1]]), axis=0)
    distances = written["pair_distances"]

    def reference(points: Any, others: Any = None) -> Any:
        others = points if others is None else others
        return np.sqrt(np.square(points[:, None] - others[None]).sum(-1))

    check_over(distances, "N D", "M D?", reference=reference, dtypes={"float32"}, sizes=(1, 4))


def test_the_cache_that_grows(written: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    np = written["np"]
    monkeypatch.setattr(compiled, "LEAST_BUILDING", 0.0)
    builtin = next(pack for pack in load_registry().packs if pack.name == "builtin")
    registry = Registry(
        [Pack("own", plugins=(written["cached"],)), builtin], parse_policy("packs: [own, builtin]", "registry.yaml")
    )
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21, "acme": 1]>
        g (float[P, 4] past, float[M, 4] rows, int64[1] total) => (float[T, 4] y) {
            turned = Neg (rows) y = acme.Cached (past, turned, total)
        }"""
    )
    program = Program(build_plan(read_model(model, registry.definitions)), registry, "cpu")
    past: Any = np.zeros((0, 4), np.float32)
    expected = past
    for number in range(100):
        rows = np.full((7 if number % 50 == 0 else 1, 4), number, np.float32)
        expected = np.concatenate([expected, -rows])
        (past,) = program.run([past, rows, np.array([len(expected)])])
        np.testing.assert_array_equal(np.array(past), expected)
    assert program.compiler is not None
    assert program.compiler.counts.traced <= 2
    with pytest.raises(TranslationError, match="total is not how many there are"):
        program.run([past, rows, np.array([len(expected) + 5])])


def test_the_stopwatch(written: dict[str, Any]) -> None:
    watch, fast_gelu = written["stopwatch"], written["fast_gelu"]
    assert isinstance(fast_gelu, Handler)
    packs = [Pack("one", plugins=(fast_gelu,)), Pack("two", plugins=(watch,))]
    check_node("com.microsoft::FastGelu", written["x"], registry=Registry(packs, parse_policy("", "registry.yaml")))
    assert watch.seconds.keys() == {"com.microsoft::FastGelu"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for page_name, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", text):
        headings = re.findall(r"^#+ (.*)$", (page.parent / (page_name or page.name)).read_text(), re.MULTILINE)
        slugs = {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
        assert anchor in slugs, f"{page.name} links to {page_name}#{anchor}"
