"""What `opgraft packs` and `opgraft ops` show of packs that override, wrap, are held back or are broken."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from reporting_models import parsed, reported
from reporting_models import registry_of as packs_of
from rich.console import Console

from opgraft.ops import FLOATS, Handler, Host, hookimpl, op
from opgraft.registry import Pack, Registry, load_registry, parse_policy
from opgraft.reporting.coverage import MissedVersion
from opgraft.reporting.packs import operators_text, summaries_of_handlers, summaries_of_packs
from opgraft.reporting.terminal import render_handlers, render_operators, render_packs, summary


@op("Exp", dtypes=FLOATS)
def exp(input):  # type: ignore[no-untyped-def]
    """e to each element.

    More than anybody wants to know.
    """
    return input


@op("Exp", since=13)
def fast_exp(input):  # type: ignore[no-untyped-def]
    return input


@op("Tile", since=6)
def tile(input, repeats: Host, *others, mode="edge", size):  # type: ignore[no-untyped-def]
    return input


tile.host(lambda input, repeats, *others, mode, size: input)


class Wrapper:
    operators = ("ai.onnx::E*",)

    @hookimpl(wrapper=True)
    def claim(self, node: Any) -> Any:
        return (yield)


PACKS = [
    Pack("plain", "plain-dist", "1.0", plugins=(exp, tile)),
    Pack("fast", "fast-dist", "2.0", plugins=(fast_exp,)),
    Pack("watcher", "watcher-dist", "3.0", plugins=(Wrapper(),)),
    Pack("broken", "broken-dist", "4.0", error="ImportError: no"),
]


def registry_of(policy: str) -> Registry:
    return Registry([pack for pack in PACKS if not pack.error], parse_policy(policy, "my.yaml"))


def shown(renderable: Any) -> str:
    console = Console(width=100, highlight=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_what_a_pack_overrides_and_wraps() -> None:
    fast, plain, broken, watcher = summaries_of_packs(registry_of("{packs: [fast, plain], disable: [watcher]}"), PACKS)
    assert (fast.name, fast.operators, fast.overrides, fast.state) == (
        "fast",
        ("ai.onnx::Exp",),
        (("ai.onnx::Exp", "plain"),),
        "asked",
    )
    assert (plain.operators, plain.overrides, plain.wraps) == (("ai.onnx::Exp", "ai.onnx::Tile"), (), ())
    assert (broken.name, broken.state) == ("broken", "left out: ImportError: no")
    assert (watcher.state, watcher.wraps) == ("disabled: my.yaml disables the pack watcher", ("ai.onnx::E*",))


def test_what_the_registry_file_holds_back() -> None:
    registry = registry_of("{packs: [fast, plain], ops: {Exp: {deny: [fast]}}}")
    text = shown(render_packs(summaries_of_packs(registry, PACKS)))
    assert "fast is not asked for ai.onnx::Exp: my.yaml denies it (ops: 'ai.onnx::Exp')" in text
    assert "watcher wraps ai.onnx::E*" in text
    assert "before" not in text
    text = shown(render_packs(summaries_of_packs(registry_of("packs: [fast, plain]"), PACKS)))
    assert "fast is asked before plain for ai.onnx::Exp" in text


def test_a_pack_without_an_operator_is_off() -> None:
    class Nothing(Wrapper):
        operators = ()  # type: ignore[assignment]

    quiet = Pack("quiet", "quiet-dist", "5.0", plugins=(Nothing(),))
    registry = Registry([quiet, *PACKS[:3]], parse_policy("packs: [plain]", "my.yaml"))
    states = {each.name: each.state for each in summaries_of_packs(registry, [quiet, *PACKS])}
    assert states == {
        "quiet": "off",
        "plain": "asked",
        "fast": "asked",
        "watcher": "asked",
        "broken": "left out: ImportError: no",
    }
    assert list(map(operators_text, [quiet, *PACKS[:3]])) == ["off", "2 operators", "1 operator", "wraps ai.onnx::E*"]


@pytest.mark.parametrize(
    ("obstacle", "state"),
    [
        (lambda: None, "asked"),
        (lambda: "no kernels yet", "off: no kernels yet"),
        (lambda: 1 / 0, "off: ZeroDivisionError: division by zero"),
        ("no function", "asked"),
    ],
)
def test_what_a_pack_says_is_in_its_way(monkeypatch: pytest.MonkeyPatch, obstacle: Any, state: str) -> None:
    module = ModuleType("slow_pack")
    module.obstacle = obstacle  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "slow_pack", module)
    pack = Pack("slow", module="slow_pack:handlers", plugins=(exp,))
    (found,) = summaries_of_packs(Registry([pack], parse_policy("", "it")), [pack])
    assert found.state == state


def test_an_operator_that_nobody_can_take_says_so_in_the_list() -> None:
    registry = load_registry()
    console = Console(width=300)
    with console.capture() as captured:
        console.print(render_operators(summaries_of_handlers(registry, "ai.onnx.ml::ZipMap")))
    assert "Declined: it makes maps of scores" in captured.get()


def test_a_rule_is_idle_only_where_no_handler_can_meet_it() -> None:
    class ByHand:
        operators = ("com.acme::*",)

        @hookimpl
        def claim(self, node: Any) -> Any:
            return None

    rules = "ops: {Exp: {}, Expp: {}, com.acme::Own: {}, com.*::*: {}, E*: {}, org.else::*: {}, other::Tile: {}}"
    registry = Registry([*PACKS[:3], Pack("hand", plugins=(ByHand(),))], parse_policy(rules, "my.yaml"))
    assert list(registry.idle_rules()) == [
        "my.yaml, line 1: the rule 'ai.onnx::Expp' matches no operator of an installed pack; did you mean "
        "ai.onnx::Exp?",
        "my.yaml, line 1: the rule 'org.else::*' matches no operator of an installed pack; `opgraft ops` lists those "
        "that there are",
        "my.yaml, line 1: the rule 'other::Tile' matches no operator of an installed pack; did you mean ai.onnx::Tile?",
    ]


def test_all_about_a_handler() -> None:
    (found,) = summaries_of_handlers(registry_of(""), "ai.onnx::Tile")
    assert found.inputs == (
        ("input", "any"),
        ("repeats", "any (elements known while translating)"),
        ("others...", "any"),
    )
    assert found.attributes == (("mode", "'edge'"), ("size", None))
    assert found.on_host
    text = shown(render_handlers(summaries_of_handlers(registry_of("packs: [watcher, plain, fast]"), "ai.onnx::Exp")))
    assert "1. ai.onnx::Exp, versions 1-, in the pack plain" in text
    assert "2. ai.onnx::Exp, versions 13-, in the pack fast" in text
    assert "e to each element." in text
    assert "More than" not in text
    assert "input input" in text
    assert "floats" in text
    assert text.count("wrapped by") == 2


def test_of_one_pack_only() -> None:
    (found,) = summaries_of_handlers(registry_of(""), "ai.onnx::Exp", "fast")
    assert (found.pack, found.versions, found.wrappers) == ("fast", "13-", ("watcher",))


def test_versions_that_a_pack_has_no_handler_of() -> None:
    conv = op("Conv", since=22)(lambda X, W, B=None: X)
    old = op("Conv", since=1, until=10)(lambda X, W, B=None: X)
    registry = Registry([Pack("mine", plugins=(conv,))], parse_policy("", "registry.yaml"))
    (found,) = summaries_of_handlers(registry, "ai.onnx::Conv")
    assert found.missed == (1, 11)
    assert "versions without a handler in mine  1, 11" in shown(render_handlers([found]))
    both = Registry([Pack("mine", plugins=(conv, old))], parse_policy("", "registry.yaml"))
    assert [each.missed for each in summaries_of_handlers(both, "ai.onnx::Conv")] == [(11,), (11,)]


def test_a_report_tells_of_nodes_that_a_pack_missed_for_their_version() -> None:
    newest, old = op("Relu", since=22)(lambda X: X), op("Relu")(lambda X: X)
    model = parsed("g (float[2] x) => (float[2] z) { y = Relu(x) z = Relu(y) }")
    coverage = reported(model, packs_of("packs: [mine, other]", mine=[newest], other=[old])).coverage
    assert coverage.missed_versions == (MissedVersion("mine", "ai.onnx::Relu", 14, "22-", 2),)
    expected = "the pack mine was not asked for 2 x ai.onnx::Relu: the model has its version 14, the pack handlers of "
    assert any(line.startswith(expected + "versions 22-") for line in summary(coverage))


def own_operator() -> Handler:
    @op("acme::RowStats", dtypes=FLOATS)
    def row_stats(X):  # type: ignore[no-untyped-def]
        return X

    row_stats.schema()
    return row_stats


DEFINING = [Pack("one", plugins=(own_operator(),)), Pack("two", plugins=(own_operator(),))]


def test_two_packs_that_define_one_operator() -> None:
    undecided = Registry(DEFINING, parse_policy("", "my.yaml"))
    assert "acme::RowStats" in undecided.undefined
    one, two = summaries_of_packs(undecided, DEFINING)
    assert (one.operators, one.overrides, one.held_back) == (("acme::RowStats",), (), ())
    assert (two.operators, two.overrides, two.held_back) == (("acme::RowStats",), (), ())


def test_two_packs_that_define_one_operator_where_the_registry_file_decides() -> None:
    decided = Registry(DEFINING, parse_policy('ops: {"acme::RowStats": {prefer: [two]}}', "my.yaml"))
    one, two = summaries_of_packs(decided, DEFINING)
    assert one.held_back == (("acme::RowStats", "the pack two defines it too, and is asked first"),)
    assert (one.overrides, two.overrides, two.held_back) == ((), (), ())
    text = shown(render_packs([one, two]))
    assert "one is not asked for acme::RowStats: the pack two defines it too, and is asked first" in text
