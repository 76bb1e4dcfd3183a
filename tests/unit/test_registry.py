"""Packs, the registry file, and dispatch from a node to handlers."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

import opgraft.registry
from opgraft.cli import main
from opgraft.errors import ContractError, RegistryError
from opgraft.graph import Graph, Node, Value
from opgraft.ops import FLOATS, Context, Handler, hookimpl, op
from opgraft.registry import (
    ENVIRONMENT_VARIABLE,
    Pack,
    Registry,
    installed_packs,
    load_policy,
    load_registry,
    parse_policy,
    plugins_of,
)
from opgraft.registry.policy import MOST_BYTES
from opgraft.registry.shipped import shipped_registry_path

OWN = ("builtin", "contrib", "ml")
"""The packs that opgraft ships."""


def node(dtype: str = "float32", op_type: str = "Op", version: int = 1, domain: str = "ai.onnx") -> Node:
    made = (Value("y", dtype, (2,)),)
    found = Node("n", op_type, domain, version, (Value("x", dtype, (2,)),), made, {})
    Graph("g", (), made, (found,), {}, {})
    return found


def identity(name: str = "Op", **options: Any) -> Handler:
    return op(name, **options)(lambda X: X)


def registry_of(policy: str = "", /, **packs: Any) -> Registry:
    """A registry of packs by name; a pack is a plugin or a list of them."""
    found = [Pack(name, plugins=tuple(each if isinstance(each, list) else [each])) for name, each in packs.items()]
    return Registry(found, parse_policy(textwrap.dedent(policy), "registry.yaml"))


def taker(registry: Registry, of: Node) -> str | None:
    """The pack that takes a node."""
    candidate = registry.claim(of).candidate
    return None if candidate is None else candidate.pack


def reasons(registry: Registry, of: Node) -> list[str]:
    claim = registry.claim(of)
    assert claim.candidate is None
    return [str(reason) for reason in claim.reasons]


def translated(registry: Registry, of: Node, *inputs: Any) -> Any:
    candidate = registry.claim(of).candidate
    assert candidate is not None
    ctx = Context(of, inputs, device="cpu", cache={}, constant=[], bodies={}, random_key=lambda: mx.random.key(0))
    return candidate.translate(ctx=ctx, node=of)


class TestOrder:
    def test_unlisted_packs_come_first_by_name_then_listed_ones_in_order(self) -> None:
        packs = {name: identity() for name in ("builtin", "zeta", "alpha", "listed")}
        registry = registry_of("packs: [listed, builtin]", **packs)
        order = [candidate.pack for candidate in registry.candidates("ai.onnx::Op")]
        assert order == ["alpha", "zeta", "listed", "builtin"]

    @pytest.mark.parametrize(
        ("policy", "order"),
        [
            ("", ["other", "builtin", "contrib", "ml"]),
            ("packs: [builtin]", ["other", "builtin", "contrib", "ml"]),
            ("packs: [ml, other]", ["ml", "other", "builtin", "contrib"]),
            ("packs: [contrib, other, builtin, ml]", ["contrib", "other", "builtin", "ml"]),
        ],
    )
    def test_packs_of_opgrafts_own_come_last_unless_they_are_listed(self, policy: str, order: list[str]) -> None:
        packs = {name: identity() for name in ("builtin", "contrib", "ml", "other")}
        registry = registry_of(policy, **packs)
        assert [candidate.pack for candidate in registry.candidates("ai.onnx::Op")] == order

    def test_the_first_that_takes_the_node_is_not_asked_further(self) -> None:
        asked: list[str] = []
        packs = {name: identity() for name in "abc"}
        for name, handler in packs.items():
            handler.condition(lambda given, name=name: asked.append(name))  # type: ignore[misc]
        packs["a"].condition(lambda given: given.require(False, "no"))
        assert taker(registry_of(**packs), node()) == "b"
        assert asked == ["a", "a", "b"]  # a once more for its reason

    def test_takeover_of_some_element_types_leaves_the_rest_to_the_next_pack(self) -> None:
        registry = registry_of("packs: [builtin]", builtin=identity(), fast=identity(dtypes={"float16"}))
        assert taker(registry, node("float16")) == "fast"
        assert taker(registry, node("float32")) == "builtin"

    def test_takeover_of_some_versions(self) -> None:
        registry = registry_of("packs: [builtin]", builtin=identity(), fast=identity(since=13))
        assert [taker(registry, node(version=version)) for version in (1, 12, 13, 21)] == [
            "builtin",
            "builtin",
            "fast",
            "fast",
        ]

    def test_handlers_of_one_pack_are_asked_in_the_order_written(self) -> None:
        first, second = identity(dtypes=FLOATS), identity()
        registry = registry_of(pack=[first, second])
        assert [candidate.handler for candidate in registry.candidates("ai.onnx::Op")] == [first, second]
        candidate = registry.claim(node("int8")).candidate
        assert candidate is not None
        assert candidate.handler is second

    def test_domains_are_kept_apart(self) -> None:
        registry = registry_of(mine=identity("com.mine::Op"), standard=identity("Op"))
        assert taker(registry, node(domain="com.mine")) == "mine"
        assert taker(registry, node()) == "standard"
        assert registry.operators == ["ai.onnx::Op", "com.mine::Op"]

    def test_a_handler_in_two_packs_is_asked_once(self) -> None:
        shared = identity()
        registry = registry_of(a=shared, b=[shared, identity()])
        assert [candidate.pack for candidate in registry.candidates("ai.onnx::Op")] == ["a", "b"]


class TestReasons:
    def test_every_pack_that_was_asked_says_why(self) -> None:
        registry = registry_of(a=identity(dtypes=FLOATS), b=identity(dtypes={"int64"}))
        assert reasons(registry, node("int8")) == [
            "element type int8 of input X is not supported [a]",
            "element type int8 of input X is not supported [b]",
        ]

    def test_handlers_of_other_versions_keep_silent(self) -> None:
        registry = registry_of(a=identity(dtypes=FLOATS, since=7), b=identity(until=6))
        assert reasons(registry, node("int8", version=8)) == ["element type int8 of input X is not supported [a]"]

    def test_no_handler_for_this_version(self) -> None:
        registry = registry_of(a=identity(since=7, until=12), b=identity(since=13))
        assert reasons(registry, node(version=3)) == [
            "version 3 of ai.onnx::Op has no handler (versions 13-, 7-12 have)"
        ]

    def test_handlers_of_other_versions_are_told_of_whoever_takes_the_node(self) -> None:
        newest, old = identity(since=22), identity(since=1)
        registry = registry_of("packs: [a, builtin]", a=[newest, identity(since=15, until=18)], builtin=old)
        assert taker(registry, node(version=11)) == "builtin"
        assert registry.claim(node(version=11)).missed == (("a", "15-18, 22-"),)
        assert registry.claim(node(version=16)).missed == registry.claim(node(version=22)).missed == ()
        last = registry_of("packs: [builtin, a]", a=newest, builtin=old)
        assert last.claim(node(version=11)).missed == ()  # it would not have been asked
        old.condition(lambda given: given.require(False, "no"))
        assert registry.claim(node(version=11)).missed == (("a", "15-18, 22-"),)

    def test_no_handler_at_all(self) -> None:
        assert reasons(registry_of(a=identity()), node(op_type="Other")) == [
            "no installed pack has a handler for ai.onnx::Other"
        ]

    def test_a_claim_that_raises_is_a_reason_and_the_next_pack_is_asked(self) -> None:
        broken = identity()
        broken.condition(lambda given: 1 // 0)
        (reason,) = reasons(registry_of(a=broken), node())
        text = r"its claim failed: ZeroDivisionError: .* by zero \(test_registry\.py:\d+\) \[a\]"
        assert re.fullmatch(text, reason)
        assert taker(registry_of(a=broken, b=identity()), node()) == "b"

    def test_a_plugin_that_declines_without_words(self) -> None:
        class Silent:
            operators = ("ai.onnx::Op",)

            @hookimpl
            def claim(self, node: Node) -> bool | None:
                return None

        assert reasons(registry_of(a=Silent()), node()) == ["declined without a reason [a]"]


class TestRules:
    PACKS = ("builtin", "fast", "odd")

    def order(self, policy: str, operator: str = "ai.onnx::Op") -> list[str]:
        registry = registry_of(policy, **{name: [identity(), identity("Other")] for name in self.PACKS})
        return [candidate.pack for candidate in registry.candidates(operator)]

    @pytest.mark.parametrize(
        ("policy", "order"),
        [
            ("", ["fast", "odd", "builtin"]),
            ("disable: [fast]", ["odd", "builtin"]),
            ("ops: {Op: {prefer: [odd]}}", ["odd", "fast", "builtin"]),
            ("ops: {Op: {prefer: [odd, fast]}}", ["odd", "fast", "builtin"]),
            ("ops: {Op: {allow: [fast]}}", ["fast"]),
            ("ops: {Op: {allow: ['*']}}", ["fast", "odd", "builtin"]),
            ("ops: {Op: {allow: []}}", []),
            ("ops: {Op: {deny: [fast]}}", ["odd", "builtin"]),
            ("ops: {Op: {deny: ['*']}}", []),
            ("ops: {Op: {allow: [fast, odd], deny: [odd]}}", ["fast"]),
            ("ops: {Op: {prefer: [odd], deny: [odd]}}", ["fast", "builtin"]),
            ("ops: {'ai.onnx::Op': {deny: [fast]}}", ["odd", "builtin"]),
            ("ops: {'O*': {deny: [fast]}}", ["odd", "builtin"]),
            ("ops: {'*::Op': {deny: [fast]}}", ["odd", "builtin"]),
            ("ops: {'other.domain::Op': {deny: [fast]}}", ["fast", "odd", "builtin"]),
            ("ops: {'O*': {deny: [fast]}, Op: {deny: [odd]}}", ["builtin"]),
            ("ops: {'O*': {prefer: [fast]}, Op: {prefer: [odd]}}", ["odd", "fast", "builtin"]),
            ("disable: [odd]\nops: {Op: {prefer: [odd]}}", ["fast", "builtin"]),
            ("disable: ['*']", []),
            ("disable: ['*', fast]", []),
            ("disable: ['*']\nops: {Op: {allow: [fast], prefer: [odd]}}", []),
        ],
    )
    def test_order_of_the_packs_of_an_operator(self, policy: str, order: list[str]) -> None:
        assert self.order(policy) == order

    def test_a_rule_leaves_other_operators_alone(self) -> None:
        assert self.order("ops: {Op: {deny: ['*']}}", "ai.onnx::Other") == ["fast", "odd", "builtin"]

    def test_held_back_operators_say_so(self) -> None:
        registry = registry_of("ops: {Op: {deny: ['*']}}", a=identity(), b=identity())
        assert reasons(registry, node()) == [
            "registry.yaml denies it (ops: 'ai.onnx::Op') [a]",
            "registry.yaml denies it (ops: 'ai.onnx::Op') [b]",
        ]
        for disabled in ("a", "'*'"):
            registry = registry_of(f"disable: [{disabled}]", a=identity())
            assert reasons(registry, node()) == ["registry.yaml disables the pack a [a]"]


class Wrapper:
    """A plugin that writes down what the hooks within it give, and may change it."""

    def __init__(self, log: list[str], name: str = "wrapper", operators: tuple[str, ...] = ("ai.onnx::Op",)) -> None:
        self.log, self.name, self.operators = log, name, operators

    @hookimpl(wrapper=True)
    def claim(self, node: Node) -> Any:
        taken = yield
        self.log.append(f"{self.name} claim {taken}")
        return taken

    @hookimpl(wrapper=True)
    def translate(self, ctx: Context, node: Node) -> Any:
        (result,) = yield
        self.log.append(f"{self.name} translate {result}")
        return (f"{self.name}({result})",)


class TestWrappers:
    def test_around_claim_and_translate(self) -> None:
        log: list[str] = []
        registry = registry_of(tracer=Wrapper(log), builtin=identity())
        assert taker(registry, node()) == "builtin"
        assert translated(registry, node(), "x") == ("wrapper(x)",)
        assert log == ["wrapper claim True"] * 2 + ["wrapper translate x"]

    def test_a_wrapper_is_no_candidate_and_keeps_no_place_of_its_own(self) -> None:
        registry = registry_of(tracer=Wrapper([]), builtin=identity(dtypes=FLOATS))
        assert [candidate.pack for candidate in registry.candidates("ai.onnx::Op")] == ["builtin"]
        assert reasons(registry, node("int8")) == ["element type int8 of input X is not supported [builtin]"]
        assert reasons(registry_of(tracer=Wrapper([])), node()) == ["no installed pack has a handler for ai.onnx::Op"]

    def test_each_handler_is_wrapped_on_its_own(self) -> None:
        log: list[str] = []
        registry = registry_of(a=identity(dtypes={"float16"}), b=identity(), tracer=Wrapper(log))
        assert taker(registry, node()) == "b"
        assert log == ["wrapper claim None", "wrapper claim True"]

    @pytest.mark.parametrize("order", ["silent, loud", "loud, silent"])
    @pytest.mark.parametrize("hook", ["claim", "decline_reason"])
    def test_one_that_returns_nothing_is_to_blame(self, hook: str, order: str) -> None:
        class Silent:
            operators = ("ai.onnx::Op",)

        def answer(self: Any, node: Node) -> Any:
            yield

        setattr(Silent, hook, hookimpl(answer, wrapper=True))
        takes = FLOATS if hook == "claim" else {"float16"}
        packs = {"silent": Silent(), "loud": Wrapper([]), "builtin": identity(dtypes=takes)}
        claim = registry_of(f"packs: [{order}, builtin]", **packs).claim(node())
        assert [str(reason) for reason in claim.reasons] == [
            f"its claim failed: WrapperError: the wrapper Silent.{hook} returned nothing: is a `return` of what its "
            "`yield` gave missing? [silent]"
        ]
        assert claim.reasons[0].fault

    def test_one_that_hands_on_that_nobody_takes_a_node_is_not_to_blame(self) -> None:
        registry = registry_of(tracer=Wrapper([]), builtin=identity(dtypes={"float16"}))
        assert reasons(registry, node()) == ["element type float32 of input X is not supported [builtin]"]

    def test_the_pack_asked_first_wraps_outermost(self) -> None:
        packs = {"inner": Wrapper([], "inner"), "outer": Wrapper([], "outer"), "builtin": identity()}
        registry = registry_of("packs: [outer, inner, builtin]", **packs)
        assert translated(registry, node(), "x") == ("outer(inner(x))",)
        registry = registry_of("packs: [inner, outer, builtin]", **packs)
        assert translated(registry, node(), "x") == ("inner(outer(x))",)

    @pytest.mark.parametrize(
        ("pattern", "wrapped"),
        [
            ("ai.onnx::Op", True),
            ("ai.onnx::O*", True),
            ("*::*", True),
            ("ai.onnx::?p", True),
            ("ai.onnx::[NO]p", True),
            ("ai.onnx::op", False),
            ("com.other::*", False),
        ],
    )
    def test_patterns(self, pattern: str, wrapped: bool) -> None:
        registry = registry_of(tracer=Wrapper([], "w", (pattern,)), builtin=identity())
        assert translated(registry, node(), "x") == (("w(x)",) if wrapped else ("x",))

    def test_patterns_that_overlap_wrap_once(self) -> None:
        wrapper = Wrapper([], "w", ("ai.onnx::Op", "ai.onnx::*", "*::Op"))
        registry = registry_of(tracer=wrapper, builtin=identity())
        assert translated(registry, node(), "x") == ("w(x)",)

    def test_equal_plugins_count_once(self) -> None:
        @dataclass
        class Double:
            operators: tuple[str, ...] = ("ai.onnx::Op",)

            @hookimpl(wrapper=True)
            def translate(self, ctx: Context, node: Node) -> Any:
                (result,) = yield
                return (f"d({result})",)

        registry = registry_of(a=[Double(), Double()], builtin=identity())
        assert translated(registry, node(), "x") == ("d(x)",)

    def test_a_denied_pack_does_not_wrap(self) -> None:
        registry = registry_of("ops: {Op: {deny: [tracer]}}", tracer=Wrapper([], "w"), builtin=identity())
        assert translated(registry, node(), "x") == ("x",)

    def test_a_wrapper_may_decline(self) -> None:
        class Picky:
            operators = ("*::*",)

            @hookimpl(wrapper=True)
            def claim(self, node: Node) -> Any:
                taken = yield
                return taken and node.rank(0) == 4

            @hookimpl(wrapper=True)
            def decline_reason(self, node: Node) -> Any:
                texts = yield
                return [*texts, "only rank 4"]

        assert reasons(registry_of(picky=Picky(), builtin=identity()), node()) == ["only rank 4 [builtin]"]

    def test_a_wrapper_that_raises_is_a_reason(self) -> None:
        class Broken:
            operators = ("*::*",)

            @hookimpl(wrapper=True)
            def claim(self, node: Node) -> Any:
                yield
                raise KeyError("gone")

        (reason,) = reasons(registry_of(broken=Broken(), builtin=identity()), node())
        assert re.fullmatch(r"its claim failed: KeyError: 'gone' \(test_registry\.py:\d+\) \[builtin\]", reason)

    def test_hooks_written_by_hand(self) -> None:
        class ByHand:
            operators = ("ai.onnx::*",)

            @hookimpl
            def claim(self, node: Node) -> bool | None:
                return True if node.op_type.startswith("O") else None

            @hookimpl
            def decline_reason(self, node: Node) -> str | None:
                return None if node.op_type.startswith("O") else f"{node.op_type} has no O"

            @hookimpl
            def translate(self, ctx: Context, node: Node) -> Sequence[Any]:
                return (f"by hand {ctx.inputs[0]}",)

        registry = registry_of(hand=ByHand())
        assert translated(registry, node(), "x") == ("by hand x",)
        assert reasons(registry, node(op_type="Add")) == ["Add has no O [hand]"]
        (candidate,) = registry.candidates("ai.onnx::Op")
        assert candidate.covers(99)
        assert candidate.host_form is None


GOOD_PACK = """
    from opgraft.ops import op

    @op("Op")
    def handler(X):
        return X
"""


class Distributions:
    """Distributions written into a folder on sys.path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: list[str] = []

    def add(self, name: str, pack: str, module: str, source: str | dict[str, str] = GOOD_PACK) -> None:
        info = self.folder / f"{name.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[opgraft.packs]\n{pack} = {module}\n")
        top = module.partition(":")[0]
        files = source if isinstance(source, dict) else {f"{top}.py": source}
        for path, text in files.items():
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(textwrap.dedent(text))
        self.modules.append(top.partition(".")[0])


def forget_packs() -> None:
    installed_packs.cache_clear()
    opgraft.registry._load.cache_clear()


@pytest.fixture
def distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Distributions]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    found = Distributions(tmp_path)
    forget_packs()
    yield found
    forget_packs()
    for name in list(sys.modules):
        if name.partition(".")[0] in found.modules:
            del sys.modules[name]


def installed(name: str) -> Pack:
    return {pack.name: pack for pack in installed_packs()}[name]


class TestDiscovery:
    def test_a_good_pack(self, distributions: Distributions) -> None:
        distributions.add("good-dist", "good", "good_module")
        pack = installed("good")
        assert (pack.distribution, pack.version, pack.module, pack.error) == ("good-dist", "1.2", "good_module", None)
        assert [handler.operator for handler in pack.handlers] == ["ai.onnx::Op"]
        assert taker(load_registry(), node()) == "good"

    def test_the_shipped_packs_are_discovered_like_any_other(self, distributions: Distributions) -> None:
        for name in OWN:
            pack = installed(name)
            assert (pack.distribution, pack.error) == ("opgraft", None)
            assert pack.handlers

    def test_packs_come_in_the_order_of_their_names(self, distributions: Distributions) -> None:
        for name in ("zeta", "alpha"):
            distributions.add(f"dist-{name}", name, f"module_{name}")
        assert [pack.name for pack in installed_packs()] == ["alpha", *OWN, "zeta"]

    @pytest.mark.parametrize(
        ("source", "error"),
        [
            ("1 / 0", "ZeroDivisionError: division by zero"),
            ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
            ("import sys; sys.exit('leaving')", "SystemExit: leaving"),
            ("def broken(:", "SyntaxError: "),
            ("raise MemoryError", "MemoryError"),
            ("raise GeneratorExit", "GeneratorExit"),
            ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded"),
            ("class Mute(Exception):\n    def __str__(self): raise self\nraise Mute", "Mute"),
            ("class Odd(BaseException):\n    def __str__(self): return 5\nraise Odd", "Odd"),
            ("x = 1", "ContractError: bad_module holds no op handler; decorate one with @opgraft.ops.op(...)"),
            ("from opgraft.ops import op\nop('Op', dtypes={'Y': {'int8'}})(lambda X: X)", "ContractError: "),
            ("class P:\n    operators = ('NoDomain',)\np = P()", "ContractError: "),
        ],
        ids=[
            *("raises", "import error", "exits", "syntax", "no memory", "generator exit", "recursion"),
            *("no text", "text that is none", "empty", "contract", "operators"),
        ],
    )
    def test_a_bad_pack_is_left_out_with_its_error(
        self, distributions: Distributions, caplog: pytest.LogCaptureFixture, source: str, error: str
    ) -> None:
        distributions.add("bad-dist", "bad", "bad_module", source)
        distributions.add("good-dist", "good", "good_module")
        with caplog.at_level(logging.WARNING, "opgraft"):
            pack = installed("bad")
        assert pack.error is not None
        assert pack.error.startswith(error)
        assert (pack.plugins, pack.distribution) == ((), "bad-dist")
        assert f"op pack bad is left out: {pack.error}" in caplog.text
        registry = load_registry()
        assert [each.name for each in registry.packs] == ["builtin", "contrib", "good", "ml"]

    def test_an_entry_point_without_its_module(self, distributions: Distributions) -> None:
        distributions.add("bad-dist", "bad", "no_such_module", {})
        assert installed("bad").error == "ModuleNotFoundError: No module named 'no_such_module'"

    @pytest.mark.parametrize("count", [2, 3])
    def test_distributions_with_one_pack_name(self, distributions: Distributions, count: int) -> None:
        for number in range(count):
            distributions.add(f"dist{number}", "same", f"module{number}")
        pack = installed("same")
        assert pack.plugins == ()
        assert pack.error is not None
        assert pack.error.startswith("more than one distribution names a pack 'same': dist0 (module0) and dist1 (mod")
        assert not any(f"module{number}" in sys.modules for number in range(count))

    def test_one_distribution_seen_twice(
        self, distributions: Distributions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        distributions.add("good-dist", "good", "good_module")
        again = tmp_path / "again"
        again.mkdir()
        info = next(tmp_path.glob("*.dist-info"))
        (again / info.name).mkdir()
        for file in info.iterdir():
            (again / info.name / file.name).write_text(file.read_text())
        monkeypatch.syspath_prepend(again)
        assert installed("good").error is None

    def test_the_first_of_two_versions_of_a_distribution_counts(
        self, distributions: Distributions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        newer = Distributions(tmp_path / "newer")
        newer.folder.mkdir()
        newer.add("Good.Dist", "good", "newer_module")
        distributions.add("good-dist", "good", "good_module")
        distributions.modules += newer.modules
        monkeypatch.syspath_prepend(newer.folder)
        assert (installed("good").module, installed("good").error) == ("newer_module", None)

    @pytest.mark.parametrize(
        "damage",
        [
            ("entry_points.txt", b"[opgraft.packs]\nno equals sign\n"),
            ("entry_points.txt", b"[other.group]\nno equals sign\n"),
            ("entry_points.txt", b"[opgraft.packs]\n\xff = module\n"),
            ("METADATA", b"Name: \xff\n"),
        ],
    )
    def test_a_damaged_distribution_is_passed_over(
        self,
        distributions: Distributions,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
        damage: tuple[str, bytes],
    ) -> None:
        distributions.add("damaged-dist", "damaged", "damaged_module")
        distributions.add("good-dist", "good", "good_module")
        (tmp_path / "damaged_dist-1.2.dist-info" / damage[0]).write_bytes(damage[1])
        with caplog.at_level(logging.WARNING, "opgraft"):
            assert [pack.name for pack in installed_packs()] == ["builtin", "contrib", "good", "ml"]
        assert f"a distribution in {tmp_path} cannot be read" in caplog.text

    @pytest.mark.parametrize("metadata", [None, "Metadata-Version: 2.1\n"], ids=["no file", "no name"])
    def test_a_distribution_without_metadata(
        self, distributions: Distributions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metadata: str | None
    ) -> None:
        """Its name and version are None, or raise, as in Python 3.15."""

        def strict(key: str) -> property:
            def read(distribution: Distribution) -> str:
                if key not in distribution.metadata:
                    raise KeyError(key)
                return distribution.metadata[key]

            return property(read)

        monkeypatch.setattr(Distribution, "name", strict("Name"))
        monkeypatch.setattr(Distribution, "version", strict("Version"))
        distributions.add("good-dist", "good", "good_module")
        file = tmp_path / "good_dist-1.2.dist-info" / "METADATA"
        file.unlink()
        if metadata is not None:
            file.write_text(metadata)
        pack = installed("good")
        assert (pack.distribution, pack.version, pack.error) == ("", "", None)

    def test_packs_are_loaded_once(self, distributions: Distributions) -> None:
        distributions.add("good-dist", "good", "good_module")
        assert installed("good") is installed("good")
        assert load_registry() is load_registry()

    def test_keyboard_interrupts_are_let_through(self, distributions: Distributions) -> None:
        distributions.add("bad-dist", "bad", "bad_module", "raise KeyboardInterrupt")
        with pytest.raises(KeyboardInterrupt):
            installed_packs()


class TestPluginsOfAPack:
    def operators(self, distributions: Distributions, module: str, files: dict[str, str]) -> list[str]:
        distributions.add("dist", "pack", module, files)
        pack = installed("pack")
        assert pack.error is None
        return [operator for plugin in pack.plugins for operator in plugin.operators]

    HANDLER = "from opgraft.ops import op\nhandler = op({!r})(lambda X: X)\n"

    def test_modules_that_a_package_imports(self, distributions: Distributions) -> None:
        files = {
            "pk/__init__.py": "from pk import first, second\n" + self.HANDLER.format("Own"),
            "pk/first.py": "from pk import second\n" + self.HANDLER.format("First"),
            "pk/second.py": self.HANDLER.format("Second"),
            "pk/third.py": self.HANDLER.format("Third"),
        }
        found = self.operators(distributions, "pk", files)
        assert found == ["ai.onnx::Second", "ai.onnx::First", "ai.onnx::Own"]

    def test_an_entry_point_may_be_a_module_of_a_package(self, distributions: Distributions) -> None:
        files = {
            "pk/__init__.py": "",
            "pk/plugins.py": "from pk import more\n" + self.HANDLER.format("Own"),
            "pk/more.py": self.HANDLER.format("More"),
        }
        assert self.operators(distributions, "pk.plugins", files) == ["ai.onnx::More", "ai.onnx::Own"]

    def test_an_entry_point_may_be_an_object(self, distributions: Distributions) -> None:
        files = {"one.py": self.HANDLER.format("A") + "other = op('B')(lambda X: X)\n"}
        assert self.operators(distributions, "one:other", files) == ["ai.onnx::B"]

    def test_lists_and_tuples(self, distributions: Distributions) -> None:
        source = (
            "from opgraft.ops import op\nHANDLERS = [op(n)(lambda X: X) for n in 'AB']\nMORE = (HANDLERS[0], 3, 'x')\n"
        )
        assert self.operators(distributions, "one", {"one.py": source}) == ["ai.onnx::A", "ai.onnx::B"]

    def test_a_handler_bound_to_two_names_counts_once(self, distributions: Distributions) -> None:
        source = self.HANDLER.format("A") + "alias = handler\n"
        assert self.operators(distributions, "one", {"one.py": source}) == ["ai.onnx::A"]

    def test_handlers_imported_from_another_package_stay_that_packages(self, distributions: Distributions) -> None:
        files = {
            "other.py": self.HANDLER.format("Op"),
            "one.py": "import other\nfrom other import handler\nfrom opgraft.ops import op\n"
            "@op('Op')\ndef mine(X):\n    return handler(X)\n",
        }
        distributions.modules.append("other")
        assert self.operators(distributions, "one", files) == ["ai.onnx::Op"]
        assert [handler.__name__ for handler in installed("pack").handlers] == ["mine"]

    def test_classes_are_no_plugins(self, distributions: Distributions) -> None:
        source = self.HANDLER.format("A") + "class Plugin:\n    operators = ('ai.onnx::B',)\n"
        assert self.operators(distributions, "one", {"one.py": source}) == ["ai.onnx::A"]

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ("operators = ('Add',)", "operators must be 'domain::OpType' names"),
            ("operators = (3,)", "operators must be 'domain::OpType' names"),
            (
                "operators = ('ai.onnx::Add',)\n    @hookimpl\n    def clam(self, node): pass",
                "unknown hook 'clam'",
            ),
            (
                "operators = ('ai.onnx::Add',)\n    @hookimpl\n    def claim(self, ctx): pass",
                "claim",
            ),
        ],
        ids=["no domain", "no name", "no such hook", "no such argument"],
    )
    def test_plugins_that_break_the_contract(self, body: str, message: str) -> None:
        module = ModuleType("some_pack")
        exec(f"from opgraft.ops import hookimpl\nclass P:\n    {body}\nplugin = P()", vars(module))
        with pytest.raises(ContractError, match=message):
            list(plugins_of(module))

    def test_objects_with_other_operators_are_left_alone(self) -> None:
        module = ModuleType("some_pack")
        module.thing = type("Thing", (), {"operators": ["+", "-"]})()  # type: ignore[attr-defined]
        assert list(plugins_of(module)) == []


WORDS = ("packs", "ops", "deny", ": ", "---\n", "!!str ", "\r\n", *"ab*&!|>%'\"#,:-?[]{}<~ \t\n\\7")
LEAVES = st.sampled_from(["a", "*", "<<", "", None, True, 3, 1.5, b"x"]) | st.dates()
KEYS = st.sampled_from(["version", "packs", "disable", "ops", "Op", "allow", "deny", "prefer", "*", 3, None])
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))
TEXTS = st.text() | st.lists(st.sampled_from(WORDS)).map("".join) | TREES.map(yaml.safe_dump)

BAD_FILES = {
    "tab": ("packs:\n\t- a\n", 2, "not valid YAML"),
    "unclosed list": ("packs: [a\n", 2, "not valid YAML"),
    "two documents": ("version: 1\n---\nversion: 1\n", 2, "expected a single document"),
    "control character": ("version: 1\npacks: [\x07]\n", 2, "special characters are not allowed"),
    "alias": ("packs: &x [a]\ndisable: *x\n", 2, "*x is an alias; quote it if it is a name"),
    "unknown alias": ("packs: *x\n", 1, "*x is an alias; quote it if it is a name"),
    "pattern without quotes": ("ops:\n  *Norm: {}\n", 2, "*Norm is an alias; quote it if it is a name"),
    "star without quotes": ("disable: [*]\n", 1, "a name that begins with * takes quotes"),
    "merge key": ("ops:\n  <<: {Op: {}}\n", 2, "ops holds <<, which is not a name"),
    "list that holds itself": ("packs: &x [*x]\n", 1, "*x is an alias"),
    "key that holds itself": ("? &x [*x]\n: 1\n", 1, "*x is an alias"),
    "billion laughs": (
        "packs: &a [x]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghij")),
        2,
        "*a is an alias",
    ),
    "tag": ("version: 1\npacks: [!mine a]\n", 2, "!mine is a tag, which means nothing here; take it out"),
    "tag of another kind": ("ops: !!map [a]\n", 1, "!!map is a tag"),
    "tag on a list": ("packs: [!!str [a]]\n", 1, "!!str is a tag"),
    "tag on a mapping": ("packs: !!seq {a: b}\n", 1, "!!seq is a tag"),
    "deep lists": ("version: 1\npacks: " + "[" * 5000, 2, "the nesting is too deep; see the comments"),
    "deep mappings": ("{a: " * 5000, 1, "the nesting is too deep"),
    "deep blocks": ("- " * 5000, 1, "the nesting is too deep"),
    "deep keys": ("? " * 5000, 1, "the nesting is too deep"),
    "character beyond Unicode": ('version: 1\npacks: ["\\UFFFFFFFF"]', 2, "a number is too large"),
    "endless version of YAML": ("%YAML 1." + "9" * 5000 + "\n---\n", 1, "a number is too large"),
    "later version of YAML": ("%YAML 2.0\n---\n", 1, "incompatible YAML document"),
    "carriage returns": ("version: 1\r\npacks: [3]\r\n", 2, "packs holds 3, which is not a name"),
    "byte order mark within": ("version: 1\n\ufeffpacks: [a]\n", 2, "did you mean 'packs'?"),
    "tab after a list": ("packs: [a]\t\n", 1, "tabs do not indent"),
    "a list": ("- a\n", 1, "the file must be a mapping; its keys are version, packs, disable, ops"),
    "a text": ("hello\n", 1, "the file must be a mapping"),
    "misspelled key": ("version: 1\npack: [a]\n", 2, "the file has no key 'pack'; did you mean 'packs'?"),
    "strange key": ("version: 1\nzzz: [a]\n", 2, "no key 'zzz'; its keys are version, packs, disable, ops"),
    "key that is no text": ("version: 1\n3: [a]\n", 2, "the file holds 3, which is not a name"),
    "key given twice": ("packs: [a]\npacks: [b]\n", 2, "'packs' is given twice; keep one"),
    "endless version": ("version: " + "9" * 5000, 1, "999... is not known to this opgraft; write version: 1"),
    "later version": ("# later\nversion: 2\n", 2, "version 2 is not known to this opgraft; write version: 1"),
    "empty version": ("version:\n", 1, "version nothing is not known"),
    "version list": ("version: [1]\n", 1, "version a list or mapping is not known"),
    "packs text": ("version: 1\npacks: a\n", 2, "packs must be a list of pack names; write packs: [some-pack]"),
    "packs mapping": ("packs: {a: 1}\n", 1, "packs must be a list"),
    "packs number": ("packs:\n  - a\n  - 3\n", 3, "packs holds 3, which is not a name; quote it"),
    "packs no": ("packs:\n  - no\n", 2, "packs holds no, which is not a name; quote it"),
    "packs nested": ("packs:\n  - [a]\n", 2, "packs holds a list or mapping, which is not a name"),
    "packs null": ("packs: [null]\n", 1, "packs holds null, which is not a name; quote it"),
    "packs date": ("packs: [2020-01-01]\n", 1, "packs holds 2020-01-01, which is not a name; quote it"),
    "packs star": ("packs: [a, '*']\n", 1, "packs is an order, in which '*' has no place; name each pack"),
    "packs twice": ("packs: [a,\n a]\n", 2, "packs names 'a' twice; keep one"),
    "disable text": ("disable: a\n", 1, "disable must be a list"),
    "python object": ("packs: !!python/object:os.system [a]\n", 1, "!!python/object:os.system is a tag"),
    "ops list": ("ops:\n  - Op\n", 2, "ops must be a mapping; write a line `domain::OpType: {...}`"),
    "operator number": ("ops:\n  7: {}\n", 2, "ops holds 7, which is not a name"),
    "operator empty": ("ops:\n  '': {}\n", 2, "ops holds nothing, which is not a name"),
    "operator twice": ("ops:\n  Op: {}\n  Op: {}\n", 3, "'Op' is given twice"),
    "operator twice in other words": ("ops:\n  Op: {}\n  ai.onnx::Op: {}\n", 3, "'ai.onnx::Op' has two rules"),
    "rule empty": ("ops:\n  Op:\n", 2, "the rule of Op must be a mapping; its keys are allow, deny, prefer"),
    "rule list": ("ops:\n  Op: [a]\n", 2, "the rule of Op must be a mapping"),
    "rule with a misspelled key": ("ops:\n  Op:\n    perfer: [a]\n", 3, "no key 'perfer'; did you mean 'prefer'?"),
    "rule with a key twice": ("ops:\n  Op:\n    deny: [a]\n    deny: [b]\n", 4, "'deny' is given twice"),
    "rule with a text": ("ops:\n  Op:\n    deny: '*'\n", 3, "deny in the rule of Op must be a list of pack names"),
    "rule with a number": ("ops:\n  Op:\n    deny:\n    - a\n    - 1\n", 5, "deny in the rule of Op holds 1"),
    "rule that prefers all": ("ops:\n  Op: {prefer: ['*']}\n", 2, "prefer in the rule of Op is an order, in which '*'"),
    "rule with an endless name": ("ops:\n  ? " + "O" * 5000 + "\n  : 1\n", 3, "the rule of OOO"),
    "mapping that holds itself": ("ops: &x\n  Op: *x\n", 2, "*x is an alias"),
}


class TestRegistryFile:
    @pytest.mark.parametrize("name", BAD_FILES)
    def test_a_bad_file_is_refused_with_line_and_cure(self, name: str, tmp_path: Path) -> None:
        text, line, message = BAD_FILES[name]
        path = tmp_path / "registry.yaml"
        path.write_bytes(text.encode())
        with pytest.raises(RegistryError) as caught:
            load_policy(path)
        said = str(caught.value).removeprefix(f"{path}, line {line}: ")
        assert said != str(caught.value)
        assert message in said
        assert ";" in said  # after it comes the cure
        assert len(said) < 600

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "# nothing\n",
            "version: 1\n",
            "version: '1'\n",
            "packs:\ndisable:\nops:\n",
            "{version: 1, packs: [], ops: {}}",
            "\ufeffversion: 1\n",
            "version: 1\r\npacks:\r\n",
            "---\n",
            "--- # nothing yet\n...\n",
            "null",
        ],
    )
    def test_files_that_say_nothing(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "registry.yaml"
        path.write_text(text, encoding="utf-8")
        policy = load_policy(path)
        assert (policy.packs, policy.disabled, policy.rules) == (OWN, (), ())

    def test_what_a_file_says(self) -> None:
        text = "packs: [a, b]\ndisable: [c]\nops:\n  Op: {prefer: [b], deny: [c]}\n  other::*: {allow: [a]}\n"
        policy = parse_policy(text, "file")
        assert (policy.packs, policy.disabled) == (("a", "b"), ("c",))
        assert [pattern for pattern, _ in policy.rules] == ["ai.onnx::Op", "other::*"]
        assert policy.rules[0][1].prefer == ("b",)
        assert policy.rules[0][1].allow is None
        assert policy.rules[1][1].allow == ("a",)

    @given(text=TEXTS)
    def test_any_text_is_read_or_refused_with_line_and_cure(self, text: str) -> None:
        try:
            parse_policy(text, "file").order(["a"], "ai.onnx::Op")
        except RegistryError as error:
            assert re.fullmatch(r"file, line \d+: [^\n]+; [^\n]+", str(error))

    @pytest.mark.parametrize(
        ("make", "problem"),
        [
            (lambda path: None, "No such file"),
            (lambda path: path.mkdir(), "it is a folder, a pipe or a device"),
            (os.mkfifo, "it is a folder, a pipe or a device"),
            (lambda path: path.symlink_to("/dev/zero"), "it is a folder, a pipe or a device"),
            (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
            (lambda path: path.write_text("#" * (MOST_BYTES + 1)), f"larger than a registry file may be, {MOST_BYTES}"),
        ],
        ids=["missing", "folder", "pipe", "device", "link to itself", "large"],
    )
    def test_a_file_that_cannot_be_read(self, make: Callable[[Path], Any], problem: str, tmp_path: Path) -> None:
        path = tmp_path / "registry.yaml"
        make(path)
        with pytest.raises(RegistryError, match=rf"cannot be read \(.*{problem}.*\); check OPGRAFT_REGISTRY"):
            load_policy(path)

    def test_a_file_as_large_as_may_be(self, tmp_path: Path) -> None:
        path = tmp_path / "registry.yaml"
        path.write_text("disable: [a]\n" + "#" * (MOST_BYTES - 13))
        assert load_policy(path).disabled == ("a",)

    @pytest.mark.parametrize(
        "name", ["\udcff.yaml", "\ud800.yaml", "nul\0.yaml", "~\0/x.yaml", "a" * 5000, "two\nlines"]
    )
    def test_a_path_that_no_file_has(self, name: str) -> None:
        with pytest.raises(RegistryError, match="cannot be read") as caught:
            load_policy(name)
        str(caught.value).encode()  # onnxruntime and terminals take no surrogates
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(("encoding", "line"), [("utf-16", 1), ("latin-1", 2)])
    def test_a_file_of_another_encoding(self, encoding: str, line: int, tmp_path: Path) -> None:
        path = tmp_path / "registry.yaml"
        path.write_text("version: 1\npacks: [\xe9]\n", encoding=encoding)
        with pytest.raises(RegistryError, match=rf"yaml, line {line}: this is not UTF-8; save the file as UTF-8"):
            load_policy(path)

    def test_a_name_of_any_letters(self, tmp_path: Path) -> None:
        path = tmp_path / "r\xe9gistre.yaml"
        path.write_text("packs: [\xe9t\xe9]\n", encoding="utf-8")
        assert load_policy(path).packs == ("\xe9t\xe9",)
        assert load_policy(path).source == str(path)

    @pytest.mark.parametrize(
        ("text", "line", "hint"),
        [
            ("packs:\n- fats\n", 2, "did you mean 'fast'?"),
            ("disable: [fats]\n", 1, "did you mean 'fast'?"),
            ("ops:\n  Op:\n    prefer: [builtin, fats]\n", 3, "did you mean 'fast'?"),
            ("packs: [quite-other]\n", 1, "install it, or take it out of the file (installed: builtin, fast)"),
        ],
    )
    def test_a_pack_that_is_not_installed(self, text: str, line: int, hint: str) -> None:
        with pytest.raises(RegistryError) as caught:
            parse_policy(text, "file").check_packs(["builtin", "fast"])
        assert str(caught.value).startswith(f"file, line {line}: no pack named ")
        assert hint in str(caught.value)

    def test_packs_that_are_installed_pass(self) -> None:
        parse_policy("packs: [a]\nops: {Op: {deny: ['*'], prefer: [b]}}", "file").check_packs(["a", "b"])


class TestLoadRegistry:
    @pytest.fixture(autouse=True)
    def packs(self, distributions: Distributions) -> None:
        distributions.add("good-dist", "good", "good_module")

    def test_shipped_file_by_default(self) -> None:
        assert load_registry().policy.source == str(shipped_registry_path())

    def test_environment_variable(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "mine.yaml"
        path.write_text("disable: [good]\n")
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(path))
        assert load_registry().policy.source == str(path)
        assert taker(load_registry(), node()) is None

    def test_a_path_comes_before_the_environment_variable(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path / "missing.yaml"))
        with pytest.raises(RegistryError, match=r"missing\.yaml: cannot be read"):
            load_registry()
        path = tmp_path / "mine.yaml"
        path.write_text("packs: [good]\n")
        assert load_registry(path).policy.packs == ("good",)

    def test_a_file_that_changes_is_read_again_whatever_its_times_say(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.yaml"
        for name in ("good", "none", "good"):
            text = f"disable: [{name}]\n".replace("[none]", "[] #..")
            path.write_text(text)
            os.utime(path, ns=(1, 1))
            assert load_registry(path).policy.disabled == (("good",) if name == "good" else ())
        assert load_registry(path) is load_registry(str(path))

    def test_empty_names_are_no_names(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, "")
        assert load_registry("").policy.source == str(shipped_registry_path())

    @pytest.mark.parametrize("by_environment", [False, True])
    def test_a_tilde_is_the_home_folder(
        self, by_environment: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "mine.yaml").write_text("disable: [good]\n")
        monkeypatch.setenv("HOME", str(tmp_path))
        if by_environment:
            monkeypatch.setenv(ENVIRONMENT_VARIABLE, "~/mine.yaml")
        registry = load_registry(None if by_environment else "~/mine.yaml")
        assert (registry.policy.source, registry.policy.disabled) == (str(tmp_path / "mine.yaml"), ("good",))
        with pytest.raises(RegistryError, match=r"~nobody-of-this-name/mine\.yaml: cannot be read \(No such file"):
            load_registry("~nobody-of-this-name/mine.yaml")

    def test_a_path_through_a_link_and_up_again(self, tmp_path: Path) -> None:
        (tmp_path / "deep" / "folder").mkdir(parents=True)
        (tmp_path / "link").symlink_to(tmp_path / "deep" / "folder")
        (tmp_path / "deep" / "mine.yaml").write_text("disable: [good]\n")
        registry = load_registry(tmp_path / "link" / ".." / "mine.yaml")
        assert (registry.policy.source, registry.policy.disabled) == (str(tmp_path / "deep" / "mine.yaml"), ("good",))

    def test_a_relative_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "mine.yaml").write_text("disable: [good]\n")
        monkeypatch.chdir(folder)
        assert load_registry("mine.yaml").policy.source == str(folder / "mine.yaml")
        shutil.rmtree(folder)
        with pytest.raises(RegistryError, match=r"mine\.yaml: cannot be read \(No such file or directory\)"):
            load_registry("mine.yaml")
        assert load_registry().policy.source == str(shipped_registry_path())

    def test_a_file_that_names_a_pack_which_is_not_installed(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.yaml"
        path.write_text("packs: [god]\n")
        with pytest.raises(RegistryError, match=r"line 1: no pack named 'god' is installed; did you mean 'good'\?"):
            load_registry(path)

    def test_a_pack_that_failed_to_load_may_be_named(self, tmp_path: Path, distributions: Distributions) -> None:
        distributions.add("bad-dist", "bad", "bad_module", "1 / 0")
        path = tmp_path / "mine.yaml"
        path.write_text("packs: [bad]\n")
        assert [pack.name for pack in load_registry(path).packs] == ["builtin", "contrib", "good", "ml"]


class TestPacksCommand:
    def invoke(self, *arguments: str) -> Result:
        result = CliRunner().invoke(main, ["packs", *arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    @pytest.mark.parametrize("text", ["packs: [", "disable: [*]", "- " * 5000, "packs: [nobody]"])
    def test_a_bad_file_is_one_line_and_status_1(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        result = self.invoke("--registry", str(path))
        assert result.exit_code == 1
        assert result.output.startswith(f"opgraft: {path}, line ")
        assert len(result.output.splitlines()) == 1

    def test_a_pipe_is_status_2(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        assert self.invoke("--registry", str(tmp_path / "pipe")).exit_code == 2

    def test_an_empty_name_is_the_shipped_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
        assert f"registry: {shipped_registry_path()}" in self.invoke("--registry", "").output

    def test_all_packs_may_be_disabled(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.yaml"
        path.write_text("disable: ['*']")
        result = self.invoke("--registry", str(path))
        assert (result.exit_code, "disabled" in result.output, "asked" in result.output) == (0, True, False)

    def test_names_and_errors_of_packs_are_shown_as_they_are(self, distributions: Distributions) -> None:
        distributions.add("odd-dist", "[/odd]", "odd_module", "raise ValueError('[/x]\x1b[2J')")
        output = self.invoke().output
        assert "[/odd]" in output
        assert "left out: ValueError: [/x]\\x1b[2J" in output


@pytest.mark.parametrize("count", [1, 10, 100])
def test_asking_costs_no_more_with_many_packs(count: int) -> None:
    """Only packs that know the operator are asked, so that a hundred others cost nothing."""
    others = {f"p{number}": [identity(f"Other{number}_{each}") for each in range(20)] for number in range(count)}
    registry = registry_of(**others, **{name: identity(dtypes={"int8"}) for name in ("a", "b")}, c=identity())
    given = node()
    assert taker(registry, given) == "c"
    best = min(_seconds(lambda: registry.claim(given)) for _ in range(5))
    assert best < 100e-6  # twenty times what it takes


def _seconds(call: Callable[[], object], times: int = 100) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times
