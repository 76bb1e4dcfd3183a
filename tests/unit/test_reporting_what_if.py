"""What-if: what the report says that claiming an operator would change is what happens when it is claimed."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from reporting_models import DETECTOR, denying, parsed, registry_of, reported, surveyed
from rich.console import Console

from opgraft.ops import FLOATS, Decline, op
from opgraft.reporting import Report
from opgraft.reporting.markdown import report_as_markdown
from opgraft.reporting.terminal_report import render_report
from opgraft.reporting.what_if import Split, WhatIf
from opgraft.reporting.wording import MORE_CROSSES

TEN = (
    "Split",
    "MaxPool",
    "Resize",
    "Softmax",
    "Concat",
    "Transpose",
    "Sigmoid",
    "LayerNormalization",
    "Reshape",
    "Div",
)


def of(report: Report, *titles: str) -> WhatIf:
    """What claiming the groups of these titles would change."""
    wanted = {index for index, group in enumerate(report.declined) if group.title in titles}
    return next(each for each in report.what_if if set(each.groups) == wanted)


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return surveyed(DETECTOR, tmp_path_factory.mktemp("all"), TEN)


class TestTruth:
    """Denied by a registry file, predicted, then allowed in a session of its own: the same subgraphs and crossings."""

    @pytest.mark.parametrize("claimed", TEN)
    def test_of_one_operator(self, claimed: str, predicted: Report, tmp_path: Path) -> None:
        then = surveyed(DETECTOR, tmp_path, [each for each in TEN if each != claimed])
        assert of(predicted, claimed).before == predicted.split
        assert of(predicted, claimed).after == then.split
        assert then.split.subgraphs > 1

    def test_of_every_set(self, predicted: Report, tmp_path: Path) -> None:
        sets = [each for each in predicted.what_if if len(each.groups) > 1]
        assert len(sets) >= 3
        for each in sets:
            claimed = {predicted.declined[group].title for group in each.groups}
            assert each.after == surveyed(DETECTOR, tmp_path, set(TEN) - claimed).split

    def test_all_of_them_leave_one_subgraph(self, predicted: Report) -> None:
        best = predicted.what_if[0]
        assert (len(best.groups), best.after.subgraphs, best.after.nodes) == (10, 1, predicted.coverage.nodes)
        assert best.headline == f"Claim all 10: {best.before.subgraphs} subgraphs become 1."
        assert best.tensors_saved == best.before.crossings.tensors - best.after.crossings.tensors > 0

    def test_the_most_helpful_comes_first(self, predicted: Report) -> None:
        after = [(each.after.subgraphs, -each.after.nodes) for each in predicted.what_if]
        assert after == sorted(after)


def split(report: Report) -> tuple[int, int]:
    return report.split.subgraphs, report.split.nodes


BODIES = """g (float[2] x, bool c) => (float[2] y) {
    a = Neg(x)
    b = If (c) <then_branch = t () => (float[2] u) { p = Sin(a) u = Cos(p) },
                else_branch = e () => (float[2] v) { v = Tan(a) }>
    y = Exp(b)
}"""


class TestBodies:
    def test_what_a_body_needs_is_claimed_together(self, tmp_path: Path) -> None:
        report = surveyed(parsed(BODIES), tmp_path, ["Cos", "Tan"])
        assert split(report) == (2, 2)
        assert {group.title: group.nodes for group in report.declined} == {"Cos": 1, "Tan": 1}
        assert of(report, "Cos").headline == "Claim Cos alone: nothing changes."
        together = of(report, "Cos", "Tan")
        assert together.headline == "Claim Cos and Tan: 2 subgraphs become 1."
        assert together.after == surveyed(parsed(BODIES), tmp_path, []).split
        owner = next(node for node in report.graph.nodes if node.operator == "ai.onnx::If")
        assert (owner.groups, owner.in_bodies, owner.subgraph) == ((0, 1), 3, None)

    def test_an_owner_and_what_is_in_it(self, tmp_path: Path) -> None:
        report = surveyed(parsed(BODIES), tmp_path, ["If", "Tan"])
        assert of(report, "If", "Tan").after == surveyed(parsed(BODIES), tmp_path, []).split


class TestFunctions:
    """ONNX Runtime asks again after it has replaced declined nodes by the functions that define them."""

    MODEL = """g (float[2,3] x) => (float[2,3] y) { a = Relu(x) b = local.F(a) c = HardSwish(b) y = Exp(c) }
        <domain: "local", opset_import: ["":21]> F (u) => (v) { t = Sin(u) v = Tanh(t) }"""

    def test_are_counted_once_as_what_replaced_them(self, tmp_path: Path) -> None:
        report = surveyed(parsed(self.MODEL), tmp_path, ["Tanh", "HardSwish"])
        assert split(report) == (2, 5)
        assert report.coverage.subgraphs == (3, 2)
        assert (report.coverage.claimed, report.coverage.declined) == (5, 1)
        assert [(each.operator, each.nodes) for each in report.replaced] == [
            ("local::F", 1),
            ("ai.onnx::HardSwish", 1),
        ]
        assert "no installed pack has a handler for local::F" in report.replaced[0].reason
        assert of(report, "Tanh").after == surveyed(parsed(self.MODEL), tmp_path, ["HardSwish"]).split

    @pytest.mark.parametrize("claimed", ["Split", "Resize", "MaxPool", "Mul"])
    def test_nodes_that_come_after_others_are_fused(self, claimed: str, tmp_path: Path) -> None:
        """HardSwish is replaced once the rest is partitioned: what replaces it finds fused subgraphs beside it."""
        denied = ["HardSwish", "HardSigmoid", "Split", "Resize", "MaxPool", "Mul"]
        report = surveyed(DETECTOR, tmp_path, denied)
        assert [each.operator for each in report.replaced] == ["ai.onnx::HardSwish"]
        assert of(report, claimed).before == report.split
        then = surveyed(DETECTOR, tmp_path, [each for each in denied if each != claimed])
        assert of(report, claimed).after == then.split
        assert then.coverage.nodes == report.coverage.nodes == len(report.graph.nodes)

    @pytest.mark.parametrize("claimed", ["Add", "Sin"])
    def test_nodes_that_are_asked_about_twice(self, claimed: str, tmp_path: Path) -> None:
        """The CPU has no kernel of Add for float16 either, so that it is nobody's when Softmax has been replaced."""
        model = parsed(
            """g (float16[2,3] x) => (float16[2,3] y) {
                a = Neg(x) b = Add(a, a) c = Softmax(b) d = Add(c, c) e = Neg(d) f = Sin(e) y = Neg(f)
            }"""
        )
        denied = ["Add", "Softmax", "Sin"]
        report = surveyed(model, tmp_path, denied)
        assert [each.operator for each in report.replaced] == ["ai.onnx::Softmax"]
        assert {group.title: group.nodes for group in report.declined} == {"Add": 2, "Sin": 1}
        assert report.coverage.declined == 3
        then = surveyed(model, tmp_path, [each for each in denied if each != claimed])
        assert of(report, claimed).after == then.split


def plain(X):  # type: ignore[no-untyped-def]
    return mx.array(X)


PADDED = """g (float[2,3] x) => (float[2,3] y) {
    a = Neg(x) b = Elu <alpha = 2.0> (a) c = Neg(b) d = Elu <alpha = 3.0> (c) e = Neg(d)
    f = Elu <alpha = 2.0> (e) y = Neg(f)
}"""


def elu(X, *, alpha=1.0):  # type: ignore[no-untyped-def]
    return plain(X)


def picky() -> object:
    """Elu with alpha up to 1, which says what is wrong with another."""
    handler = op("Elu")(elu)

    @handler.condition
    def _(node) -> None:  # type: ignore[no-untyped-def]
        alpha = node.attributes["alpha"]
        if alpha > 1:
            raise Decline(f"alpha {alpha:.0f} of input {node.inputs[0].name!r} is more than 1")

    return handler


class TestGroups:
    def test_a_reason_with_other_details_is_another_group(self) -> None:
        report = reported(parsed(PADDED), registry_of(pack=[picky(), op("Neg")(plain)]))
        assert [(each.title, each.nodes) for each in report.declined] == [
            ("Elu (alpha=2.0)", 2),
            ("Elu (alpha=3.0)", 1),
        ]
        assert of(report, "Elu (alpha=2.0)").headline == "Claim Elu (alpha=2.0): 4 subgraphs become 2."
        assert of(report, "Elu (alpha=2.0)", "Elu (alpha=3.0)").after == Split(
            1, 7, of(report, "Elu (alpha=2.0)", "Elu (alpha=3.0)").after.crossings
        )

    def test_names_of_values_do_not_part_a_group(self) -> None:
        report = reported(parsed(PADDED), registry_of(pack=[picky(), op("Neg")(plain)]))
        assert report.declined[0].reasons == ("alpha 2 of input 'a' is more than 1 [pack]",)
        assert report.declined[0].names == ("Elu (-> b)", "Elu (-> f)")

    def test_the_element_type_is_a_detail(self) -> None:
        model = parsed("g (float16[2] x) => (float16[2] y) { a = Neg(x) y = Elu(a) }")
        registry = registry_of(pack=[op("Elu", dtypes={"float32"})(elu), op("Neg")(plain)])
        assert reported(model, registry).declined[0].title == "Elu (float16)"

    def test_every_pack_that_was_asked_is_quoted(self) -> None:
        registry = registry_of("packs: [a, b]", a=[picky()], b=[op("Elu", dtypes={"int8"})(elu), op("Neg")(plain)])
        report = reported(parsed(PADDED), registry)
        assert report.declined[0].reasons == (
            "alpha 2 of input 'a' is more than 1 [a]",
            "element type float32 of input X is not supported [b]",
        )
        reasons = {each.operator: each.reasons for each in report.operators}["ai.onnx::Elu"]
        assert (reasons[0].pack, reasons[0].count, reasons[0].also) == (
            "a",
            2,
            ("element type float32 of input X is not supported [b]",),
        )


def test_of_very_many_groups_those_with_the_most_nodes_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = " ".join(f"x{place + 1} = Elu <alpha = {place // 2 + 2}.0> (x{place})" for place in range(40))
    model = parsed(f"g (float[2] x0) => (float[2] x40) {{ {nodes} }}")
    monkeypatch.setattr("opgraft.reporting.what_if._MOST_NODES", 40 * 15)
    report = reported(model, registry_of(pack=[picky()]))
    assert len(report.declined) == 20
    assert sum(len(each.groups) == 1 for each in report.what_if) == 15
    assert any(len(each.groups) == 20 for each in report.what_if)


class TestWhatNobodyCouldClaim:
    def test_other_nodes_are_told_of_without_it(self, tmp_path: Path) -> None:
        """Strings are for the CPU, whoever has a handler of Cast."""
        text = """g (float[2] x, string[2] s) => (float[2] y, string[2] t) {
            a = Neg(x)
            b = Sin(a)
            y = Neg(b)
            c = Cast<to = 1>(s)
            d = Add(b, c)
            t = Cast<to = 8>(d)
        }"""
        found = surveyed(parsed(text), tmp_path, ["Sin"])
        assert {group.operator for group in found.declined} == {"ai.onnx::Sin", "ai.onnx::Cast"}
        claimed = {found.declined[index].operator for each in found.what_if for index in each.groups}
        assert claimed == {"ai.onnx::Sin"}
        assert len(found.what_if) == 1

    def test_what_saves_less_than_nothing_is_explained(self, tmp_path: Path) -> None:
        text = "g (float[2] x) => (float[2] y) { y = Sin(x) }"
        found = surveyed(parsed(text), tmp_path, ["Sin"])
        assert found.what_if[0].tensors_saved == -2
        assert MORE_CROSSES in report_as_markdown(found)
        console = Console(width=200)
        with console.capture() as captured:
            console.print(render_report(found))
        assert f"({MORE_CROSSES})" in captured.get()


class TestOffers:
    def test_an_installed_pack_that_is_held_back(self) -> None:
        packs = {"careful": [picky(), op("Neg")(plain)], "bold": [op("Elu", dtypes=FLOATS)(elu)]}
        report = reported(parsed(PADDED), registry_of('ops: {"Elu": {deny: [bold]}}', **packs))
        (offer,) = report.declined[0].offers
        assert (offer.pack, offer.nodes) == ("bold", 2)
        assert offer.held_back_by == "my.yaml denies it (ops: 'ai.onnx::Elu')"
        assert not reported(parsed(PADDED), registry_of("", careful=packs["careful"])).declined[0].offers

    def test_a_pack_that_is_left_out_altogether(self) -> None:
        registry = registry_of("disable: [bold]", careful=[op("Neg")(plain)], bold=[op("Elu", dtypes=FLOATS)(elu)])
        (offer,) = reported(parsed(PADDED), registry).declined[0].offers
        assert offer.held_back_by == "my.yaml disables the pack bold"

    def test_a_pack_that_would_decline_too_is_no_help(self) -> None:
        registry = registry_of("disable: [picky]", careful=[op("Neg")(plain)], picky=[picky()])
        assert reported(parsed(PADDED), registry).declined[0].offers == ()


def test_a_model_that_is_wholly_claimed_has_no_what_if(tmp_path: Path) -> None:
    report = surveyed(DETECTOR, tmp_path)
    assert (report.declined, report.what_if, report.percentage) == ((), (), 100)


def test_a_model_of_constants_has_an_empty_report(tmp_path: Path) -> None:
    model = parsed("g () => (float[1] y) <float[1] w = {1}> { y = Neg(w) }")
    report = surveyed(model, tmp_path)
    assert (report.coverage.nodes, report.subgraphs, report.crossings, report.graph.nodes) == (0, (), (), ())


def test_the_registry_of_the_session_is_named(tmp_path: Path) -> None:
    assert surveyed(DETECTOR, tmp_path).setting.registry == denying(tmp_path, [])
