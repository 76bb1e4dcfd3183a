"""The example pack numerics_guard: what it names, what it leaves alone, and that an installed one is discovered."""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from opgraft.errors import OptionError, TranslationError
from opgraft.graph.onnx_source import graph_of_model
from opgraft.ops import Context, Handler, Host, Node, hookimpl, op
from opgraft.registry import Pack, Registry, installed_packs, parse_policy, plugins_of
from opgraft.testing import decisions_for, node_model, run_model

FOLDER = Path(__file__).parents[2] / "plugins_example" / "numerics_guard"
NAN, INF = float("nan"), float("inf")
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleType]:
    """The pack, imported from its folder with no variable set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        for variable in ("OPGRAFT_NUMERICS_GUARD", "OPGRAFT_NUMERICS_GUARD_DRIFT"):
            patch.delenv(variable, raising=False)
        yield importlib.import_module("opgraft_numerics_guard")


@pytest.fixture(scope="module")
def guarded(module: ModuleType) -> Any:
    """Makes a registry of the guard, of more handlers if given, and of the built-in pack."""

    def make(mode: str = "raise", drift: float | None = None, handlers: Sequence[Handler] = ()) -> Registry:
        guard = module.NumericsGuard(module.Settings(module.Mode(mode), drift))
        builtin = next(pack for pack in installed_packs() if pack.name == "builtin")
        packs = [
            Pack("numerics-guard", plugins=tuple(plugins_of([guard]))),
            Pack("given", plugins=tuple(handlers)),
            builtin,
        ]
        return Registry(packs, parse_policy("packs: [builtin]", "registry.yaml"))

    return make


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, Sequence[int | str]]],
    outputs: dict[str, int],
    **initializers: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, *info) for name, info in inputs.items()],
        [helper.make_tensor_value_info(name, dtype, None) for name, dtype in outputs.items()],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def chain(*op_types: str) -> onnx.ModelProto:
    """A model of unary nodes n0, n1, ..., from x to y."""
    names = ["x", *(f"v{index}" for index in range(1, len(op_types))), "y"]
    nodes = [
        helper.make_node(op_type, [names[index]], [names[index + 1]], name=f"n{index}")
        for index, op_type in enumerate(op_types)
    ]
    return model_of(nodes, {"x": (FLOAT, ["N"])}, {"y": FLOAT})


def values(*given: float) -> dict[str, Any]:
    return {"x": np.array(given, np.float32)}


def run_node(registry: Registry, operator: str, *inputs: Any, **model: Any) -> list[Any]:
    """Run a model of one node, whose claim has been verified."""
    proto = node_model(operator, inputs, **model)
    declined = decisions_for(proto, registry).declined
    assert not declined, declined
    fixed = model.get("constant", ())
    feeds = {f"x{index}": each for index, each in enumerate(inputs) if each is not None and index not in fixed}
    return run_model(proto, feeds, registry)


def f32(*given: Any) -> Any:
    return np.array(given, np.float32)


class TestSettings:
    @pytest.mark.parametrize(
        ("mode", "drift", "expected"),
        [
            (None, None, ("off", None)),
            ("", "", ("off", None)),
            ("off", None, ("off", None)),
            ("warn", None, ("warn", None)),
            (" RAISE ", None, ("raise", None)),
            (None, "1e-3", ("raise", 1e-3)),
            ("warn", "0", ("warn", 0.0)),
            ("off", "1e-3", ("off", 1e-3)),
        ],
    )
    def test_of_the_environment(self, module: ModuleType, mode: str | None, drift: str | None, expected: Any) -> None:
        given = {"OPGRAFT_NUMERICS_GUARD": mode, "OPGRAFT_NUMERICS_GUARD_DRIFT": drift}
        settings = module.Settings.from_environment({name: text for name, text in given.items() if text is not None})
        assert (settings.mode, settings.drift) == expected

    @pytest.mark.parametrize(
        ("variable", "text"),
        [("", "rise"), ("", "1"), ("_DRIFT", "much"), ("_DRIFT", "-1"), ("_DRIFT", "nan"), ("_DRIFT", "inf")],
    )
    def test_what_is_refused(self, module: ModuleType, variable: str, text: str) -> None:
        with pytest.raises(OptionError, match=f"OPGRAFT_NUMERICS_GUARD{variable} is '{text}'; it takes "):
            module.Settings.from_environment({f"OPGRAFT_NUMERICS_GUARD{variable}": text})


class TestOff:
    def test_the_pack_holds_one_plugin_that_wraps_nothing(self, module: ModuleType) -> None:
        (plugin,) = plugins_of(module)
        assert plugin is module.guard
        assert plugin.operators == ()

    def test_handlers_are_called_directly(self, guarded: Any) -> None:
        (candidate,) = guarded("off").candidates("ai.onnx::Log")
        assert candidate.translate == candidate.handler.translate
        (candidate,) = guarded("raise").candidates("ai.onnx::Log")
        assert candidate.translate != candidate.handler.translate


class TestFindings:
    def test_the_message(self, module: ModuleType, guarded: Any) -> None:
        node = helper.make_node("Div", ["a", "b"], ["y"], name="ratio")
        proto = model_of([node], {"a": (FLOAT, [2, 3]), "b": (FLOAT, [3])}, {"y": FLOAT})
        feeds = {"a": f32([-1, 0, 3], [4, 5, 6]), "b": f32(2, 0, 1)}
        with pytest.raises(module.NumericsError) as caught:
            run_model(proto, feeds, guarded())
        assert str(caught.value).splitlines() == [
            "node 'ratio' (ai.onnx::Div, version 14): output 0 'y' float32[2, 3] holds 1 NaN and 1 infinity, the first "
            "of its own at [0, 1] (nan); no input holds a NaN or an infinity",
            "  input 0 'a' float32[2, 3]: -1 to 6",
            "  input 1 'b' float32[3]: 0 to 2",
            "  (OPGRAFT_NUMERICS_GUARD=warn goes on after a finding)",
        ]

    def test_it_is_the_first_node_that_is_named(self, guarded: Any) -> None:
        with pytest.raises(TranslationError, match=r"^node 'n1' \(ai.onnx::Log.*2 NaN, .* at \[1\] \(nan\)"):
            run_model(chain("Neg", "Log", "Sqrt", "Relu"), values(-1, 2, 3), guarded())

    def test_what_is_finite_passes(self, guarded: Any) -> None:
        (output,) = run_model(chain("Neg", "Log", "Sqrt"), values(-3, -4), guarded())
        np.testing.assert_allclose(output, np.sqrt(np.log(f32(3, 4))), rtol=1e-6)

    @pytest.mark.parametrize(("op_type", "given"), [("Exp", INF), ("Exp", NAN), ("Neg", -INF), ("Sqrt", NAN)])
    def test_what_came_in_is_handed_on(self, guarded: Any, op_type: str, given: float) -> None:
        (output,) = run_model(chain(op_type), values(1, given), guarded())
        assert not np.isfinite(output[1])

    def test_a_nan_made_of_infinities_is_the_nodes_own(self, guarded: Any) -> None:
        masked = f32([1, -INF], [-INF, -INF])
        with pytest.raises(TranslationError, match=r"holds 2 NaN, .* no input holds a NaN\n.*: 1 to 1, 3 infinities"):
            run_node(guarded(), "Softmax", masked)

    def test_what_the_model_itself_tests_for_is_expected(self, guarded: Any) -> None:
        nodes = [
            helper.make_node("Log", ["x"], ["log"]),
            helper.make_node("IsNaN", ["log"], ["bad"]),
            helper.make_node("Where", ["bad", "zero", "log"], ["y"]),
        ]
        proto = model_of(nodes, {"x": (FLOAT, [2])}, {"y": FLOAT}, zero=f32(0))
        np.testing.assert_array_equal(run_model(proto, values(-1, 1), guarded())[0], [0, 0])

    def test_what_an_attribute_holds_is_given(self, guarded: Any) -> None:
        fill = helper.make_tensor("value", FLOAT, [1], [-INF])
        (output,) = run_node(guarded(), "ConstantOfShape", np.array([2], np.int64), value=fill)
        np.testing.assert_array_equal(output, [-INF, -INF])

    def test_a_later_output(self, guarded: Any) -> None:
        @op("com.test::Two")
        def two(X: Any) -> Any:
            return X, mx.log(X), mx.log(X)  # the node has two

        with pytest.raises(TranslationError, match=r"output 1 'y1' float32\[2\] holds 1 infinity"):
            run_node(guarded(handlers=[two]), "com.test::Two", f32(0, 1), outputs=2, output_types=["float32"] * 2)

    def test_a_node_without_inputs(self, guarded: Any) -> None:
        @op("com.test::Source")
        def source() -> Any:
            return mx.array([1.0, INF])

        with pytest.raises(TranslationError, match="it has no inputs"):
            run_node(guarded(handlers=[source]), "com.test::Source", output_types=["float32"])

    @pytest.mark.parametrize("dtype", ["float16", "float64", "complex64"])
    def test_element_types(self, guarded: Any, dtype: str) -> None:
        @op("com.test::Inverse")
        def inverse(X: Any) -> Any:
            return mx.array(1.0).astype(X.dtype) / X

        registry = guarded(handlers=[inverse])
        given = {"output_types": [dtype]}
        assert run_node(registry, "com.test::Inverse", np.array([1, 2], dtype), **given)[0].dtype == dtype
        with pytest.raises(TranslationError, match=rf"{dtype}\[2\] holds .* at \[1\].*\n.*{dtype}\[2\]: 0 to 1"):
            run_node(registry, "com.test::Inverse", np.array([1, 0], dtype), **given)

    def test_bfloat16(self, guarded: Any) -> None:
        proto = node_model("Log", [f32(1, 2)])
        for info in (*proto.graph.input, *proto.graph.output):
            info.type.tensor_type.elem_type = TensorProto.BFLOAT16
        registry = guarded(drift=0.0)
        good, bad = ((f32(*given).view(np.uint32) >> 16).astype(np.uint16) for given in ((1, 2), (1, -2)))
        np.testing.assert_allclose(run_model(proto, {"x0": good}, registry)[0], np.log(f32(1, 2)), rtol=2**-7)
        with pytest.raises(TranslationError, match=r"bfloat16\[2\] holds 1 NaN.*\n.*bfloat16\[2\]: -2 to 1"):
            run_model(proto, {"x0": bad}, registry)

    def test_integers_and_empty_outputs_are_passed_over(self, guarded: Any) -> None:
        registry = guarded(drift=0.0)
        np.testing.assert_array_equal(run_node(registry, "Div", np.array([6]), np.array([4]))[0], [1])
        assert run_node(registry, "Log", np.zeros((0, 3), np.float32))[0].shape == (0, 3)
        assert run_node(registry, "IsInf", f32(INF, 1))[0].tolist() == [True, False]

    def test_empty_inputs(self, guarded: Any) -> None:
        with pytest.raises(TranslationError, match=r"'y0' float32\[2\] holds 2 infinities.*\n.*'x0' .*: empty\n"):
            run_node(guarded(), "ReduceMax", np.zeros((2, 0), np.float32), np.array([1]), constant=[1], keepdims=0)


class TestWarn:
    def test_once_a_node(self, guarded: Any, caplog: pytest.LogCaptureFixture) -> None:
        from opgraft.engine import Program
        from opgraft.plan import build_plan

        proto = chain("Log", "Sqrt", "Neg", "Exp")
        program = Program(build_plan(graph_of_model(proto)), guarded("warn"), "cpu")
        with caplog.at_level(logging.WARNING, "opgraft"):
            for _ in range(2):
                (output,) = program.run([f32(0.5, 1)])
        assert np.isnan(np.array(output)[0])
        (message,) = [record.getMessage() for record in caplog.records]  # Log made no NaN, and Sqrt did
        assert message.startswith("node 'n1' (ai.onnx::Sqrt, version 13): output 0 'v2' float32[2] holds 1 NaN")

    def test_every_node_that_makes_one(self, guarded: Any, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "opgraft"):
            run_model(chain("Log", "Neg", "Exp", "Reciprocal", "Reciprocal"), values(0), guarded("warn"))
        named = [record.getMessage().partition(" (")[0] for record in caplog.records]
        assert named == ["node 'n0'", "node 'n4'"]  # -inf of 0; then inf, inf, 0, and inf once more


class TestWhatItLeavesAlone:
    def test_nothing_is_computed_while_claims_are_verified(
        self, module: ModuleType, guarded: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Stand-in inputs are zeros, of which Log makes infinities."""
        looked: list[str] = []
        look = module.NumericsGuard._look
        monkeypatch.setattr(module.NumericsGuard, "_look", lambda *args: looked.append(args[1].name) or look(*args))
        evaluate = mx.eval
        computed: list[Any] = []
        monkeypatch.setattr(mx, "eval", lambda *args: computed.append(args) or evaluate(*args))
        free, fixed = chain("Log", "Reciprocal"), chain("Log", "Reciprocal")
        fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
        for model in (free, fixed):
            for mode in ("raise", "warn"):
                assert decisions_for(model, guarded(mode, 1e-3)).declined == []
                assert (looked, computed, caplog.records) == ([], [], [])
        run_model(free, values(2, 3, 4), guarded())
        assert looked == ["n0", "n1"]

    def test_tracing(self, guarded: Any) -> None:
        graph = graph_of_model(chain("Log"))
        (node,) = graph.nodes
        candidate = guarded(drift=1e-3).claim(node).candidate

        def translate(X: Any) -> Any:
            ctx = Context(
                node, [X], device="cpu", cache={}, constant=[], bodies={}, random_key=lambda: mx.random.key(0)
            )
            return candidate.translate(ctx=ctx, node=node)[0]

        assert np.isnan(np.array(mx.compile(translate)(mx.array([-1.0]))))
        with pytest.raises(TranslationError, match="holds 1 NaN"):
            translate(mx.array([-1.0]))

    def test_shape_arithmetic_stays_on_the_host(self, guarded: Any) -> None:
        seen: list[tuple[bool, type]] = []

        @op("com.test::Tap")
        def tap(X: Any) -> Any:
            return X

        @tap.host
        def tap_host(ctx: Context, X: Any) -> Any:
            seen.append((ctx.on_host, type(X)))
            return X

        @op("com.test::Reshape")
        def reshape(X: Any, shape: Host) -> Any:
            return mx.reshape(X, shape.tolist())

        nodes = [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Gather", ["shape", "last"], ["size"]),
            helper.make_node("Tap", ["size"], ["tapped"], domain="com.test"),
            helper.make_node("Concat", ["tapped", "rest"], ["wanted"], axis=0),
            helper.make_node("Reshape", ["x", "wanted"], ["y"], domain="com.test"),
        ]
        proto = model_of(nodes, {"x": (FLOAT, [2, "N"])}, {"y": FLOAT}, last=np.array([1]), rest=np.array([-1]))
        proto.opset_import.append(helper.make_opsetid("com.test", 1))
        for drift in (None, 1e-3):
            given = np.arange(6, dtype=np.float32).reshape(2, 3)
            (output,) = run_model(proto, {"x": given}, guarded("raise", drift, [tap, reshape]))
            np.testing.assert_array_equal(output, given.reshape(3, 2))
        assert seen == [(True, np.ndarray)] * 2

    def test_a_finding_on_the_host(self, guarded: Any) -> None:
        nodes = [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Cast", ["shape"], ["float"], to=FLOAT),
            helper.make_node("Div", ["float", "zero"], ["scales"], name="scales"),
            helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest"),
        ]
        proto = model_of(nodes, {"x": (FLOAT, ["N"])}, {"y": FLOAT}, zero=f32(0))
        with pytest.raises(TranslationError, match=r"node 'scales' .* holds 1 infinity"):
            run_model(proto, values(1, 2), guarded())

    def test_results_are_handed_on_as_they_are(self, guarded: Any) -> None:
        made: list[Any] = []

        @op("Op")
        def handler(X: Any) -> Any:
            made.append((X, np.ones(2, np.float32)))
            return made[-1]

        (node,) = graph_of_model(node_model("Op", [f32(1)], outputs=2)).nodes
        candidate = guarded(handlers=[handler]).claim(node).candidate
        given = mx.array([1.0])
        ctx = Context(node, [given], device="cpu", cache={}, constant=[], bodies={}, random_key=lambda: None)
        assert candidate.translate(ctx=ctx, node=node) is made[0]

    @pytest.mark.parametrize(
        ("result", "words"), [(None, "gave"), ([], "0 outputs"), ((object(),), "not an array that MLX can hold")]
    )
    def test_results_that_break_the_contract_are_the_hosts_to_refuse(
        self, guarded: Any, result: Any, words: str
    ) -> None:
        class ByHand:
            operators = ("com.test::Op",)

            @hookimpl
            def claim(self, node: Node) -> bool:
                return True

            @hookimpl
            def translate(self, ctx: Context, node: Node) -> Any:
                return result

        registry = guarded(handlers=[ByHand()])
        proto = node_model("com.test::Op", [f32(1)], output_types=["float32"])
        with pytest.raises(TranslationError, match=words):
            run_model(proto, {"x0": f32(1)}, registry)


class TestBodies:
    def branches(self, then: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
        y = helper.make_tensor_value_info("y", FLOAT, None)
        bodies = {
            "then_branch": helper.make_graph(then, "then", [], [y]),
            "else_branch": helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "else", [], [y]),
        }
        node = helper.make_node("If", ["condition"], ["z"], name="choice", **bodies)
        return model_of([node], {"condition": (TensorProto.BOOL, []), "x": (FLOAT, [2])}, {"z": FLOAT})

    def test_the_node_in_the_body_is_named(self, guarded: Any) -> None:
        proto = self.branches([helper.make_node("Log", ["x"], ["y"], name="inner")])
        registry = guarded(drift=1e-4)
        assert decisions_for(proto, registry).declined == []
        given = {"x": f32(-1, 1)}
        (output,) = run_model(proto, {"condition": np.array(False), **given}, registry)
        np.testing.assert_array_equal(output, [-1, 1])
        with pytest.raises(TranslationError, match=r"^node 'inner' \(ai.onnx::Log, version 13\) in body 'then': "):
            run_model(proto, {"condition": np.array(True), **given}, registry)

    def test_what_a_body_captures_is_not_the_doing_of_its_node(self, guarded: Any) -> None:
        proto = self.branches([helper.make_node("Neg", ["x"], ["y"], name="inner")])
        for condition in (True, False):
            (output,) = run_model(proto, {"condition": np.array(condition), "x": f32(NAN, INF)}, guarded(drift=1e-4))
            assert np.isnan(output[0])

    def test_loop(self, guarded: Any, caplog: pytest.LogCaptureFixture) -> None:
        body = helper.make_graph(
            [
                helper.make_node("Mul", ["carried", "carried"], ["next"], name="square"),
                helper.make_node("Identity", ["going"], ["still"]),
            ],
            "body",
            [
                helper.make_tensor_value_info("count", INT64, []),
                helper.make_tensor_value_info("going", TensorProto.BOOL, []),
                helper.make_tensor_value_info("carried", FLOAT, [1]),
            ],
            [
                helper.make_tensor_value_info("still", TensorProto.BOOL, []),
                helper.make_tensor_value_info("next", FLOAT, [1]),
            ],
        )
        node = helper.make_node("Loop", ["trips", "", "x"], ["y"], name="loop", body=body)
        proto = model_of([node], {"trips": (INT64, []), "x": (FLOAT, [1])}, {"y": FLOAT})
        given = {"x": f32(10)}
        assert run_model(proto, {"trips": np.array(3), **given}, guarded())[0] == [1e8]
        with caplog.at_level(logging.WARNING, "opgraft"):
            assert run_model(proto, {"trips": np.array(8), **given}, guarded("warn"))[0] == [INF]
        (record,) = caplog.records
        assert "node 'square'" in record.getMessage()
        with pytest.raises(
            TranslationError, match=r"node 'square' .* in body 'body': .*\n.*'carried' float32\[1\]: 1e\+"
        ):
            run_model(proto, {"trips": np.array(8), **given}, guarded())

    def test_scan(self, guarded: Any) -> None:
        body = helper.make_graph(
            [
                helper.make_node("Add", ["sum", "each"], ["next"]),
                helper.make_node("Reciprocal", ["next"], ["inverse"], name="invert"),
            ],
            "body",
            [helper.make_tensor_value_info(name, FLOAT, []) for name in ("sum", "each")],
            [helper.make_tensor_value_info(name, FLOAT, []) for name in ("next", "inverse")],
        )
        node = helper.make_node("Scan", ["start", "x"], ["total", "y"], num_scan_inputs=1, body=body)
        proto = model_of([node], {"x": (FLOAT, [3])}, {"y": FLOAT}, start=f32(1).reshape(()))
        np.testing.assert_allclose(run_model(proto, values(1, 2, 4), guarded(drift=1e-4))[0], f32(0.5, 0.25, 0.125))
        with pytest.raises(TranslationError, match=r"node 'invert' .* holds 1 infinity"):
            run_model(proto, values(1, -2, 4), guarded(drift=1e-4))


class TestDrift:
    def test_the_message(self, guarded: Any) -> None:
        @op("Exp")
        def sloppy(X: Any) -> Any:
            return mx.exp(X) * mx.where(X == 1, 1.01, 1.0)

        proto = chain("Neg", "Exp", "Neg")
        with pytest.raises(TranslationError) as caught:
            run_model(proto, values(0, -1, -2), guarded(drift=1e-3, handlers=[sloppy]))
        assert str(caught.value).startswith(
            "node 'n1' (ai.onnx::Exp, version 13): output 0 'v2' float32[3] drifts by 0.00368 from ONNX Runtime's CPU, "
            "more than 0.001: at [1] 2.74546456 instead of 2.71828175\n  input 0 'v1' float32[3]: 0 to 2\n"
        )
        run_model(proto, values(0, -1, -2), guarded(drift=1e-2, handlers=[sloppy]))

    @pytest.mark.parametrize(
        ("wrong", "words"),
        [
            (lambda X: mx.where(X > 2, NAN, X), r"holds 1 NaN"),
            (lambda X: mx.where(X == X, X, 0.0), r"drifts by inf .* at \[2\] 0 instead of nan"),
            (lambda X: mx.reshape(X, (3, 1)), "another shape"),
        ],
    )
    def test_other_ways_to_differ(self, guarded: Any, wrong: Any, words: str) -> None:
        given = values(1, 2, 3) if "holds" in words else values(1, 2, NAN)
        with pytest.raises(TranslationError, match=words):
            run_model(chain("Identity"), given, guarded(drift=1e-3, handlers=[op("Identity")(wrong)]))

    def test_reference_evaluator_where_onnx_runtime_has_no_kernel(self, guarded: Any) -> None:
        sloppy = op("Erf")(lambda input: mx.erf(input) * 1.01)
        with pytest.raises(TranslationError, match=r"drifts by .* from ONNX's reference evaluator"):
            run_node(guarded(drift=1e-3, handlers=[sloppy]), "Erf", np.ones(2, np.float64))

    def test_what_the_reference_refuses_is_not_compared(self, guarded: Any, caplog: pytest.LogCaptureFixture) -> None:
        anything = op("MatMul")(lambda A, B: A)
        with caplog.at_level(logging.DEBUG, "opgraft.numerics_guard"):
            proto = node_model("MatMul", [np.ones((2, 2), np.float32)] * 2, dynamic=True)
            run_model(proto, {"x0": f32([1, 2]), "x1": f32([1, 2])}, guarded(drift=0.0, handlers=[anything]))
        assert "ONNX Runtime's CPU cannot run it" in caplog.text

    def test_what_cannot_be_compared_is_not(self, guarded: Any, caplog: pytest.LogCaptureFixture) -> None:
        handler = op("com.test::Strange")(lambda X, *, note="", sizes=(): X + 1)
        with caplog.at_level(logging.DEBUG, "opgraft.numerics_guard"):
            (output,) = run_node(
                guarded(drift=0.0, handlers=[handler]),
                "com.test::Strange",
                f32(1, 2),
                output_types=["float32"],
                note="x",
            )
        np.testing.assert_array_equal(output, [2, 3])
        assert "ONNX Runtime's CPU cannot load it" in caplog.text

    def test_random_nodes_are_not_compared(self, guarded: Any) -> None:
        run_node(guarded(drift=0.0), "RandomNormalLike", f32(1, 2))

    def test_half_floats_may_round(self, guarded: Any) -> None:
        given = np.linspace(-3, 3, 50).astype(np.float16)
        run_node(guarded(drift=0.0), "Tanh", given)
        with pytest.raises(TranslationError, match=r"float16\[50\] drifts .* more than 0.000977"):
            run_node(guarded(drift=0.0, handlers=[op("Tanh")(lambda X: mx.tanh(X) * 1.01)]), "Tanh", given)

    def test_nodes_that_read_narrow_types_are_left_alone(self, guarded: Any) -> None:
        """What arrives are integers that hold bits: no reference takes those, and they hide a NaN that was given."""
        given = np.array([1.5, np.nan, -3], ml_dtypes.float8_e4m3fn)
        (output,) = run_node(guarded(drift=0.0), "Cast", given, to=TensorProto.FLOAT)
        np.testing.assert_array_equal(output, [1.5, np.nan, -3])

    def test_integer_outputs_are_not_compared(self, guarded: Any) -> None:
        last = op("ArgMax")(lambda X, *, axis=0: mx.array([7], mx.int64))
        assert run_node(guarded(drift=0.0, handlers=[last]), "ArgMax", f32(1, 3, 2), axis=0)[0].tolist() == [7]

    @pytest.mark.parametrize(
        ("operator", "inputs", "model"),
        [
            ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3), (4,)], {"constant": [1, 2], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
            ("Gemm", [(3, 4), (5, 4), (5,)], {"constant": [1, 2], "transB": 1, "alpha": 0.5}),
            ("LayerNormalization", [(2, 3, 4), (4,), (4,)], {"constant": [1, 2], "epsilon": 1e-3}),
            ("ReduceMean", [(2, 3, 4), np.array([-1])], {"constant": [1], "keepdims": 0}),
            ("ReduceMean", [(2, 3), None], {"noop_with_empty_axes": 1}),
            ("Squeeze", [(1, 3)], {"opset": 11, "axes": [0]}),
            ("Split", [(4, 4)], {"outputs": 2, "num_outputs": 2}),
            ("Pad", [(2, 2), np.array([1, 0, 0, 1])], {"constant": [1], "mode": "reflect"}),
            ("Clip", [(3, 4), None, np.array(0.25, np.float32)], {"constant": [2]}),
            ("Concat", [(2, 2), (2, 3), (2, 1)], {"axis": 1}),
            ("LSTM", [(5, 2, 3), (1, 16, 3), (1, 16, 4)], {"constant": [1, 2], "hidden_size": 4, "outputs": 3}),
        ],
    )
    def test_the_built_in_operators_do_not_drift(
        self, guarded: Any, caplog: pytest.LogCaptureFixture, operator: str, inputs: list[Any], model: dict[str, Any]
    ) -> None:
        generator = np.random.default_rng(0)
        arrays = [
            generator.standard_normal(each).astype(np.float32) if isinstance(each, tuple) else each for each in inputs
        ]
        with caplog.at_level(logging.DEBUG, "opgraft.numerics_guard"):
            run_node(guarded(drift=1e-5), operator, *arrays, **model)
        assert caplog.records == []  # each was compared

    def test_a_reference_is_made_once_a_node(
        self, module: ModuleType, guarded: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from opgraft.engine import Program
        from opgraft.plan import build_plan

        drift = importlib.import_module("opgraft_numerics_guard.drift")
        made: list[Any] = []
        real = drift.single_node_model
        monkeypatch.setattr(drift, "single_node_model", lambda *args: made.append(args) or real(*args))
        program = Program(build_plan(graph_of_model(chain("Exp"))), guarded(drift=1e-4), "cpu")
        program.run([f32(1, 2)])
        once = len(made)
        program.run([f32(1, 2, 3)])
        assert len(made) == once > 0


SESSION = """
import numpy as np, onnx
from onnx import helper
import opgraft, onnxruntime
graph = helper.make_graph(
    [helper.make_node(*each, name=name) for *each, name in (
        ("Neg", ["x"], ["a"], "fine"), ("Log", ["a"], ["b"], "guilty"), ("Sqrt", ["b"], ["y"], "late"))],
    "g",
    [helper.make_tensor_value_info("x", 1, ["N"])],
    [helper.make_tensor_value_info("y", 1, ["N"])],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
session = onnxruntime.InferenceSession(model.SerializeToString(), opgraft.session_options(device="cpu"))
assert "MLXExecutionProvider" in session.get_providers()
print("fine", session.run(None, {"x": -np.ones(2, np.float32)})[0].tolist())
try:
    print("done", session.run(None, {"x": np.ones(2, np.float32)})[0].tolist())
except Exception as error:
    print("raised", error)
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that pip has installed the pack into."""
    pytest.importorskip("setuptools", "70.1")  # the first that builds a wheel by itself
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(FOLDER, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    arguments = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(folder / "target")]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *arguments, str(folder / "source")],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return folder / "target"


class TestInstalled:
    def python(self, target: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("OPGRAFT")}
        path = os.pathsep.join([str(target), *filter(None, [kept.get("PYTHONPATH")])])
        return subprocess.run(
            [sys.executable, *arguments],
            env={**kept, "PYTHONPATH": path, "COLUMNS": "200", **environment},
            capture_output=True,
            text=True,
            timeout=240,
        )

    def test_it_is_discovered(self, target: Path) -> None:
        done = self.python(target, "-m", "opgraft.cli", "packs")
        assert done.returncode == 0, done.stderr
        (line,) = [line.split() for line in done.stdout.splitlines() if line.startswith("numerics-guard")]
        assert line == ["numerics-guard", "opgraft-numerics-guard", "0.1.0", "0", "off"]
        assert (target / "opgraft_numerics_guard" / "py.typed").exists()

    def test_it_is_turned_on_for_a_run(self, target: Path, tmp_path: Path) -> None:
        node = helper.make_node("Log", ["x"], ["y"], name="guilty")
        infos = [helper.make_tensor_value_info(name, FLOAT, [2]) for name in ("x", "y")]
        graph = helper.make_graph([node], "g", infos[:1], infos[1:])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
        np.savez(tmp_path / "x.npz", x=np.array([1, -1], np.float32))
        run = ("-m", "opgraft.cli", "run", str(tmp_path / "m.onnx"), "--inputs", str(tmp_path / "x.npz"))
        assert self.python(target, *run).returncode == 0
        done = self.python(target, *run, "--pack", "numerics-guard")
        assert done.returncode == 1
        assert "node 'guilty' (ai.onnx::Log, version 13): output 0 'y' float32[2] holds 1 NaN" in done.stderr
        assert self.python(target, *run, "--pack", "nobody").returncode == 2

    def test_a_variable_that_it_does_not_understand(self, target: Path) -> None:
        done = self.python(target, "-m", "opgraft.cli", "packs", OPGRAFT_NUMERICS_GUARD="rise")
        assert "numerics-guard is left out: OptionError: OPGRAFT_NUMERICS_GUARD is 'rise'; it takes" in done.stderr

    @pytest.mark.parametrize(
        ("environment", "ending", "warned"),
        [
            ({}, "done [nan, nan]", False),
            ({"OPGRAFT_NUMERICS_GUARD": "off"}, "done [nan, nan]", False),
            ({"OPGRAFT_NUMERICS_GUARD": "warn"}, "done [nan, nan]", True),
            ({"OPGRAFT_NUMERICS_GUARD": "raise"}, "raised", False),
            ({"OPGRAFT_NUMERICS_GUARD_DRIFT": "1e-4"}, "raised", False),
            ({"OPGRAFT_PACKS": "other,numerics-guard"}, "raised", False),
            ({"OPGRAFT_PACKS": "numerics-guard", "OPGRAFT_NUMERICS_GUARD": "off"}, "done [nan, nan]", False),
        ],
    )
    def test_in_a_session(self, target: Path, environment: dict[str, str], ending: str, warned: bool) -> None:
        done = self.python(target, "-c", SESSION, **environment)
        assert done.returncode == 0, done.stderr
        assert "fine [0.0, 0.0]" in done.stdout
        assert ending in done.stdout
        finding = "node 'guilty' (ai.onnx::Log, version 13): output 0 'b' float32[2] holds 2 NaN"
        assert (finding in done.stdout) == (ending == "raised")
        assert [line.startswith(finding) for line in done.stderr.splitlines()].count(True) == warned
        assert "'late'" not in done.stdout + done.stderr
