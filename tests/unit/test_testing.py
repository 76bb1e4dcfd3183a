"""The kit for authors of packs fails when it should."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

import opgraft.testing.over
from opgraft.errors import ContractError, ModelError, TranslationError
from opgraft.graph.element_types import HELD_AS, NAME_OF_ONNX
from opgraft.ops import FLOATS, Handler, Host, Output, op
from opgraft.registry import Pack, Registry, parse_policy
from opgraft.testing import (
    Tally,
    assert_same,
    check_declined,
    check_model,
    check_node,
    check_over,
    decisions_for,
    node_model,
    reference_outputs,
    run_model,
)

X = np.array([[1.5, -2.0, 3.25]], np.float32)


def registry_of(*handlers: Any) -> Registry:
    return Registry([Pack("pack", plugins=handlers)], parse_policy("", "registry.yaml"))


def relu(function: Callable[..., Any] = lambda X: mx.maximum(X, 0), **options: Any) -> Registry:
    return registry_of(op("Relu", **options)(function))


class TestCheckNode:
    @pytest.mark.parametrize("reference", ["cpu", "onnx", [np.array([[1.5, 0, 3.25]], np.float32)]])
    def test_passes_what_is_right(self, reference: Any) -> None:
        (y,) = check_node("Relu", X, registry=relu(), reference=reference)
        np.testing.assert_array_equal(y, [[1.5, 0, 3.25]])

    @pytest.mark.parametrize("reference", ["cpu", "onnx", [np.array([[1.5, 0, 3.25]], np.float32)]])
    def test_wrong_values(self, reference: Any) -> None:
        with pytest.raises(
            AssertionError, match=r"y0: off by 1, allowed 3\.25e-05; it is 2\.5 at \[0, 0\], expected 1\.5$"
        ):
            check_node("Relu", X, registry=relu(lambda X: mx.maximum(X, 0) + 1), reference=reference)

    def test_a_declined_node(self) -> None:
        with pytest.raises(
            AssertionError, match=r"node \(ai\.onnx::Relu\) is declined: element type float32 of input X"
        ):
            check_node("Relu", X, registry=relu(dtypes={"float16"}))

    def test_no_handler(self) -> None:
        with pytest.raises(AssertionError, match=r"is declined: no installed pack has a handler for ai\.onnx::Neg"):
            check_node("Neg", X, registry=relu())

    def test_a_wrong_element_type_is_declined_by_verification(self) -> None:
        with pytest.raises(AssertionError, match="is declined: its translation gives float16"):
            check_node("Relu", X, registry=relu(lambda X: X.astype(mx.float16)))

    def test_a_wrong_shape_where_sizes_are_dynamic(self) -> None:
        with pytest.raises(AssertionError, match=r"y0: shape \(3, 1\), expected \(1, 3\)"):
            check_node("Relu", X, registry=relu(lambda X: mx.maximum(X.T, 0)), dynamic=True)

    def test_a_translator_that_fails_only_when_run(self) -> None:
        def reshape(data, shape: Host):  # type: ignore[no-untyped-def]
            raise ValueError("not today")

        with pytest.raises(TranslationError, match="not today"):
            check_node("Reshape", X, np.array([3, 1]), registry=registry_of(op("Reshape")(reshape)))

    def test_a_wrong_element_type_that_only_a_run_shows(self) -> None:
        def reshape(data, shape: Host):  # type: ignore[no-untyped-def]
            return mx.reshape(data, shape.tolist()).astype(mx.float32)

        x = np.ones(2, ml_dtypes.bfloat16)
        with pytest.raises(ContractError, match="output 'y0' came out as float32, and the model says bfloat16"):
            check_node("Reshape", x, np.array([2, 1]), registry=registry_of(op("Reshape")(reshape)), reference="onnx")

    def test_attributes_constants_and_absent_inputs(self) -> None:
        def clip(input, min: Host | None = None, max=None):  # type: ignore[no-untyped-def]
            assert min is None
            return mx.minimum(input, max)

        high = np.array(2, np.float32)
        (y,) = check_node("Clip", X, None, high, registry=registry_of(op("Clip")(clip)), constant=[2])
        np.testing.assert_array_equal(y, [[1.5, -2, 2]])

        leaky = op("LeakyRelu")(lambda X, *, alpha=0.01: mx.maximum(X, alpha * X))
        check_node("LeakyRelu", X, registry=registry_of(leaky), alpha=0.5)

    def test_several_outputs(self) -> None:
        split = op("Split")(lambda input, *, num_outputs, axis=0: mx.split(input, num_outputs, axis))
        check_node("Split", X, registry=registry_of(split), outputs=3, num_outputs=3, axis=1)
        backward = op("Split")(lambda input, *, num_outputs, axis=0: mx.split(input, num_outputs, axis)[::-1])
        with pytest.raises(AssertionError, match="y0: off by"):
            check_node("Split", X, registry=registry_of(backward), outputs=3, num_outputs=3, axis=1)

    @pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "bool", "uint8"])
    def test_element_types(self, dtype: str) -> None:
        identity = registry_of(op("Identity")(lambda input: input))
        (y,) = check_node("Identity", X.astype(dtype), registry=identity)
        assert y.dtype == dtype

    def test_bfloat16(self) -> None:
        (y,) = check_node("Relu", X.astype(ml_dtypes.bfloat16), registry=relu(), reference="onnx")
        np.testing.assert_array_equal(y, [[1.5, 0, 3.25]])
        with pytest.raises(AssertionError, match="off by"):
            check_node("Relu", X.astype(ml_dtypes.bfloat16), registry=relu(lambda X: X), reference="onnx")

    @pytest.mark.parametrize("dtype", ["float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn", "int4", "uint2"])
    def test_types_held_in_another(self, dtype: str) -> None:
        x = np.array([[1, 0.5, 2]]).astype(dtype)
        name = NAME_OF_ONNX[helper.np_dtype_to_tensor_dtype(x.dtype)]

        def identity(function: Any) -> Registry:
            return registry_of(op("Identity", dtypes={name})(function))

        for constant in ((), (0,)):
            (y,) = check_node(
                "Identity", x, registry=identity(lambda input: input), opset=25, reference="onnx", constant=constant
            )
            assert y.dtype == HELD_AS[name]
        with pytest.raises(AssertionError, match="y0"):
            check_node("Identity", x, registry=identity(lambda input: input ^ 1), opset=25, reference="onnx")

    def test_types_held_in_another_on_onnx_runtime(self) -> None:
        x = np.array([1, 2.5, -3], ml_dtypes.float8_e5m2)
        decode = op("Cast", dtypes={"float8e5m2"})(lambda input, *, to: (input.astype(mx.uint16) << 8).view(mx.float16))
        check_node("Cast", x, registry=registry_of(decode), to=onnx.TensorProto.FLOAT16, reference="cpu")

    @pytest.mark.parametrize("operator", ["Relu", "ai.onnx::Relu"])
    def test_the_standard_domain_by_both_names(self, operator: str) -> None:
        check_node(operator, X, registry=relu())

    def test_other_domains(self) -> None:
        double = registry_of(op("own.domain::Double")(lambda X: X * 2))
        (y,) = check_node(
            "own.domain::Double", X, registry=double, opset=1, output_types=["float32"], reference=[X * 2]
        )
        np.testing.assert_array_equal(y, X * 2)

    def test_tolerance(self) -> None:
        nearly = relu(lambda X: mx.maximum(X, 0) * 1.001)
        check_node("Relu", X, registry=nearly, tolerance=2e-3)
        with pytest.raises(AssertionError, match="off by"):
            check_node("Relu", X, registry=nearly, tolerance=5e-4)


class TestCheckDeclined:
    def test_passes_on_the_reason(self) -> None:
        check_declined("Relu", X, because="element type float32", registry=relu(dtypes={"float16"}))

    def test_fails_on_a_claim(self) -> None:
        with pytest.raises(AssertionError, match="Relu is claimed, and should be declined because 'element type'"):
            check_declined("Relu", X, because="element type", registry=relu())

    def test_fails_on_another_reason(self) -> None:
        with pytest.raises(AssertionError, match=r"Relu is declined because \['element type .*'\], not 'too wide'"):
            check_declined("Relu", X, because="too wide", registry=relu(dtypes={"float16"}))

    def test_may_ask_for_a_device(self) -> None:
        x = X.astype(np.float64)
        check_declined("Relu", x, because="choose device=cpu", registry=relu(), device="gpu")
        with pytest.raises(AssertionError, match="is claimed"):
            check_declined("Relu", x, because="choose device=cpu", registry=relu())


class TestModels:
    TEXT = """<ir_version: 10, opset_import: ["": 21]>
    g (float[n, 3] x, float[3] b) => (float[n, 3] y) { a = Add(x, b) y = Relu(a) }"""

    @pytest.fixture
    def model(self) -> onnx.ModelProto:
        return onnx.parser.parse_model(self.TEXT)

    @pytest.fixture
    def registry(self) -> Registry:
        return registry_of(op("Add")(lambda A, B: A + B), op("Relu", dtypes=FLOATS)(lambda X: mx.maximum(X, 0)))

    INPUTS = {"x": X, "b": np.array([1, 1, -9], np.float32)}  # noqa: RUF012

    def test_check_model(self, model: onnx.ModelProto, registry: Registry) -> None:
        for reference in ("cpu", "onnx"):
            (y,) = check_model(model, self.INPUTS, registry=registry, reference=reference)
            np.testing.assert_array_equal(y, [[2.5, 0, 0]])

    def test_check_model_names_the_output_that_differs(self, model: onnx.ModelProto) -> None:
        wrong = registry_of(op("Add")(lambda A, B: A - B), op("Relu")(lambda X: mx.maximum(X, 0)))
        with pytest.raises(AssertionError, match="y: off by"):
            check_model(model, self.INPUTS, registry=wrong)

    def test_check_model_counts_expected_outputs(self, model: onnx.ModelProto, registry: Registry) -> None:
        with pytest.raises(AssertionError):
            check_model(model, self.INPUTS, registry=registry, reference=[])

    def test_check_model_wants_every_node_claimed(self, model: onnx.ModelProto) -> None:
        with pytest.raises(AssertionError, match=r"Add \(-> a\) \(ai\.onnx::Add\) is declined"):
            check_model(model, self.INPUTS, registry=relu())

    def test_decisions_for(self, model: onnx.ModelProto) -> None:
        assert [each.claimed for each in decisions_for(model, relu()).decisions] == [False, True]

    def test_a_missing_input(self, model: onnx.ModelProto, registry: Registry) -> None:
        with pytest.raises(ModelError, match="the model's input 'b' is not given"):
            run_model(model, {"x": X}, registry)

    def test_an_input_with_an_initializer_may_be_left_out(self, model: onnx.ModelProto, registry: Registry) -> None:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, 5, 0], np.float32), "b"))
        np.testing.assert_array_equal(run_model(model, {"x": X}, registry)[0], [[1.5, 3, 3.25]])
        np.testing.assert_array_equal(run_model(model, self.INPUTS, registry)[0], [[2.5, 0, 0]])
        check_model(model, {"x": X}, registry=registry)

    def test_references_agree(self, model: onnx.ModelProto) -> None:
        (cpu,), (reference,) = (reference_outputs(model, self.INPUTS, each) for each in ("cpu", "onnx"))
        np.testing.assert_array_equal(cpu, reference)


class TestNodeModel:
    def test_inputs_outputs_and_types(self) -> None:
        model = node_model("Add", [X, X[0]], constant=[1], dynamic=True)
        (x,) = model.graph.input
        assert (x.name, [dim.dim_param for dim in x.type.tensor_type.shape.dim]) == ("x0", ["d0_0", "d0_1"])
        assert [each.name for each in model.graph.initializer] == ["x1"]
        (y,) = model.graph.output
        assert (y.name, y.type.tensor_type.elem_type) == ("y0", TensorProto.FLOAT)

    def test_absent_inputs_have_no_names(self) -> None:
        model = node_model("Clip", [X, None, np.array(2, np.float32)])
        assert list(model.graph.node[0].input) == ["x0", "", "x2"]
        assert [each.name for each in model.graph.input] == ["x0", "x2"]

    def test_opset(self) -> None:
        assert [(each.domain, each.version) for each in node_model("Relu", [X], opset=13).opset_import] == [("", 13)]
        model = node_model("own::Relu", [X], opset=2)
        assert [(each.domain, each.version) for each in model.opset_import] == [("own", 2), ("", 21)]


class TestAssertSame:
    @pytest.mark.parametrize(
        ("output", "expected"),
        [
            ([1.0, 2.0], [1.0, 2.00001]),
            ([1000.0, 0.0], [1000.0, 0.009]),  # small beside the largest
            ([np.nan, np.inf, -np.inf], [np.nan, np.inf, -np.inf]),
            ([], []),
            ([1, 2], [1, 2]),
            ([True], [True]),
            ([1 + 2j], [1 + 2.00001j]),
        ],
    )
    def test_same(self, output: Any, expected: Any) -> None:
        assert_same(np.array(output), np.array(expected), 1e-5)

    @pytest.mark.parametrize(
        ("output", "expected", "message"),
        [
            ([1.0, 2.0], [1.0, 2.0001], "off by"),
            ([0.0], [2e-5], "off by 2e-05, allowed 1e-05"),
            ([np.nan], [1.0], "NaN"),
            ([1.0], [np.nan], "NaN"),
            ([np.inf], [1.0], "off by inf"),
            ([1.0], [np.inf], "infinities"),
            ([np.inf], [-np.inf], "infinities"),
            ([1, 2], [1, 3], "Mismatched"),
            ([True], [False], "Mismatched"),
            ([1 + 2j], [1 + 3j], "off by 1"),
            ([1], [1.0], "int64, expected float64"),
            ([1.0, 2.0], [1.0], r"shape \(2,\), expected \(1,\)"),
            ([[1.0]], [1.0], r"shape \(1, 1\), expected \(1,\)"),
            ([], [[]], "shape"),
        ],
    )
    def test_different(self, output: Any, expected: Any, message: str) -> None:
        with pytest.raises(AssertionError, match=message):
            assert_same(np.array(output), np.array(expected), 1e-5, "some output")

    def test_bfloat16_is_compared_as_float32(self) -> None:
        expected = np.array([1.5], ml_dtypes.bfloat16)
        assert_same(np.array([1.5], np.float32), expected, 1e-5)
        with pytest.raises(AssertionError, match="off by"):
            assert_same(np.array([1.25], np.float32), expected, 1e-5)


class TestCheckOver:
    """Random nodes: what is claimed is right, and what is declined has a reason."""

    @staticmethod
    def scaled(wrong: Any = None) -> Handler:
        @op("own::Scaled", dtypes=FLOATS)
        def scaled(X, Y=None, *, alpha=1.0):  # type: ignore[no-untyped-def]
            if wrong is not None:
                wrong(X)
            return X * mx.array(alpha, X.dtype) if Y is None else X + Y

        return scaled

    @staticmethod
    def reference(X: Any, Y: Any = None, alpha: float = 1.0) -> Any:
        return X * np.asarray(alpha, X.dtype) if Y is None else X + Y

    def check(self, handler: Handler, **rest: Any) -> Tally:
        rest.setdefault("attributes", {"alpha": [..., 0.5, 2.0]})
        return check_over(handler, "... N", "... N?", reference=self.reference, **rest)

    def test_a_right_handler(self) -> None:
        seen: list[Any] = []
        tally = self.check(self.scaled(seen.append), examples=60)
        assert tally.compared == 60
        assert {len(each.shape) for each in seen} >= {1, 2, 3}
        assert {each.dtype for each in seen} == {mx.float16, mx.float32, mx.float64}
        assert any(each.size == 0 for each in seen)

    def test_a_handler_that_is_wrong_for_some_shapes(self) -> None:
        @op("own::Flat", dtypes={"float32"})
        def flat(X):  # type: ignore[no-untyped-def]
            return X * 2 if X.ndim < 3 else X

        with pytest.raises(AssertionError, match="off by"):
            check_over(flat, "... N", reference=lambda X: X * 2)

    def test_a_claim_that_outruns_its_translation(self) -> None:
        def needs_two(X: Any) -> None:
            if X.ndim > 2:
                raise NotImplementedError("only matrices")

        with pytest.raises(AssertionError, match=r"own::Scaled is claimed, and cannot be translated.*only matrices"):
            self.check(self.scaled(needs_two))

    def test_what_is_declined_counts(self) -> None:
        handler = self.scaled()
        handler.condition(lambda node: node.require(len(node.shape(0) or ()) < 4, "three axes at most"))
        tally = self.check(handler)
        assert 0 < tally.declined < 50
        assert tally.compared + tally.declined == 100

    def test_nothing_compared_is_no_success(self) -> None:
        handler = self.scaled()
        handler.condition(lambda node: node.require(False, "never"))
        with pytest.raises(AssertionError, match=r"of 100 nodes, too few were compared"):
            self.check(handler)
        with pytest.raises(AssertionError, match=r"too few were compared.*refused=100"):
            check_over(
                self.scaled(), "N", None, output_types=["float32"], dtypes={"float32"}
            )  # ONNX Runtime's CPU provider has no such operator

    def test_a_reference_that_fails_is_told(self) -> None:
        with pytest.raises(ZeroDivisionError):
            check_over(self.scaled(), "N", None, reference=lambda X: 1 / 0)

    def test_what_a_translator_keeps_of_one_run_shows_in_the_next(self) -> None:
        @op("own::Kept", dtypes={"float32"})
        def kept(ctx, X):  # type: ignore[no-untyped-def]
            return ctx.cached("y", lambda: X * 2)

        with pytest.raises(AssertionError, match="off by"):
            check_over(kept, "N", reference=lambda X: 2 * X, sizes=(2, 5))
        with pytest.raises(AssertionError, match="off by"):
            check_node(kept, np.array([1, 2], np.float32), reference=lambda X: 2 * X, output_types=["float32"])

    def test_a_schema_that_says_another_shape(self) -> None:
        @op("own::Odd", dtypes={"float32"})
        def odd(X):  # type: ignore[no-untyped-def]
            return X * 2

        odd.schema(lambda X: Output(X.dtype, (7,)))
        with pytest.raises(ContractError, match=r"came out as \[2\], and the model says \(7,\)"):
            check_node(odd, np.array([1, 2], np.float32), reference=lambda X: 2 * X, dynamic=True)

    def test_by_name_with_the_cpu_as_the_reference(self) -> None:
        tally = check_over("MatMul", "... N K", "... K M", dtypes={"float32", "int32"}, sizes=(1, 4), examples=40)
        assert tally.compared == 40
        indices = {"x0": ["float32", "bool"], "x1": ["int64"]}
        check_over("Gather", "3 ...", "M", dtypes=indices, values=(-3, 2), attributes={"axis": [..., 0]}, examples=40)

    @pytest.mark.parametrize("text", ["N, M", "....", "-1", "N D??"])
    def test_texts_that_are_no_shape(self, text: str) -> None:
        with pytest.raises(ValueError, match="is no shape"):
            check_over("Relu", text)


class TestWhatAuthorsSee:
    """The author's own error, and a call that shows the failure again."""

    def test_the_error_of_a_claim_that_cannot_be_translated(self) -> None:
        def broken(X: Any) -> Any:
            return X + undefined  # type: ignore[name-defined]  # noqa: F821

        line = broken.__code__.co_firstlineno + 1
        with pytest.raises(AssertionError, match=rf"\(test_testing\.py:{line}\)") as caught:
            check_node(op("Relu")(broken), X)
        assert isinstance(caught.value.__cause__, NameError)
        with pytest.raises(AssertionError) as caught:
            check_declined(op("Relu")(broken), X, because="something else")
        assert isinstance(caught.value.__cause__, NameError)
        with pytest.raises(AssertionError) as caught:
            check_over(op("own::Relu")(broken), "N", reference=lambda X: X)
        assert isinstance(caught.value.__cause__, NameError)

    def test_the_error_of_a_condition(self) -> None:
        handler = op("Relu")(lambda X: X)
        handler.condition(lambda node: node.no_such_thing)
        with pytest.raises(AssertionError, match="its claim failed: AttributeError") as caught:
            check_node(handler, X)
        assert isinstance(caught.value.__cause__, AttributeError)

    def test_the_error_of_a_run(self) -> None:
        def reshape(data, shape: Host):  # type: ignore[no-untyped-def]
            raise ValueError("not today")

        with pytest.raises(TranslationError, match=r"ValueError: not today \(test_testing\.py:\d+\)\. Its") as caught:
            check_node(op("Reshape")(reshape), X, np.array([3, 1]))
        assert str(caught.value.__cause__) == "not today"

    def test_a_missing_return(self) -> None:
        def relu(X: Any) -> None:
            mx.maximum(X, 0)

        with pytest.raises(AssertionError, match="the function relu returned nothing: is a `return` missing"):
            check_node(op("Relu")(relu), X)

    def test_the_call_that_fails_is_one_line_that_fails_again(self) -> None:
        def halved(X: Any, *, alpha: float = 1.0) -> Any:
            return X * 2 if X.ndim < 2 or alpha == 1.0 else X

        def reference(X: Any, alpha: float = 1.0) -> Any:
            return X * 2

        handler = op("own::Halved", dtypes={"float32"})(halved)
        with pytest.raises(AssertionError) as caught:
            check_over(
                handler, "... N", attributes={"alpha": [..., 2.0]}, reference=reference, output_types=["float32"]
            )
        (note,) = caught.value.__notes__
        title, call = note.splitlines()
        assert title == "To see it again:"
        assert call.startswith("check_node(halved, np.") and "reference=reference" in call and "alpha=2.0" in call
        names = {"check_node": check_node, "halved": handler, "np": np, "reference": reference}
        with pytest.raises(AssertionError, match="off by"):
            exec(call, names)

    def test_the_search_for_a_simpler_node_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(opgraft.testing.over, "SHRINK_SECONDS", 0.5)

        def slow(X: Any) -> Any:
            time.sleep(0.05)
            return X + 1

        started = time.monotonic()
        with pytest.raises(AssertionError, match="off by"):
            check_over(op("own::Slow", dtypes={"float32"})(slow), "... N", reference=lambda X: X, sizes=(3, 5))
        assert time.monotonic() - started < 5

    def test_an_input_without_a_shape(self) -> None:
        handler = op("own::Scaled")(lambda X, Y=None: X)
        with pytest.raises(ValueError, match="no shape for input Y: give one, as in 'N D\\?' where it may be left out"):
            check_over(handler, "N", reference=lambda X: X)

    def test_an_optional_input_is_drawn_present_and_absent(self) -> None:
        seen: set[bool] = set()

        def reference(X: Any, Y: Any = None) -> Any:
            seen.add(Y is None)
            return X

        check_over(op("own::Same", dtypes={"float32"})(lambda X, Y=None: X), "N", "N?", reference=reference)
        assert seen == {True, False}


class TestCountsOfOutputs:
    def test_are_those_of_the_schema(self) -> None:
        assert len(node_model("TopK", [X, np.array([1])]).graph.output) == 2
        assert len(node_model("LSTM", [X]).graph.output) == 1
        assert len(node_model("BatchNormalization", [X] * 5).graph.output) == 1
        assert len(node_model("com.microsoft::DynamicQuantizeMatMul", [X, X]).graph.output) == 1
        assert len(node_model("own::Unknown", [X]).graph.output) == 1

    def test_are_those_of_a_pack_s_schema(self) -> None:
        both = op("own::Both", dtypes=FLOATS)(lambda X: (X, -X, X + X))
        both.schema(outputs=("a", "b", "c?"))
        assert len(check_node(both, X, reference=[X, -X])) == 2
        assert len(check_node(both, X, reference=lambda X: (X, -X, X + X))) == 3
        assert len(check_node("own::Both", X, reference=[X, -X], registry=registry_of(both))) == 2
        check_over(both, "N", reference=lambda X: (X, -X), examples=10)

    def test_that_do_not_fit(self) -> None:
        one = op("own::One")(lambda X: X)
        with pytest.raises(AssertionError, match="outputs: 1 of the model, 2 of the reference; outputs=N gives"):
            check_node(one, X, outputs=1, reference=[X, X], output_types=["float32"])


class TestTolerances:
    @pytest.mark.parametrize(
        ("dtype", "good", "bad"),
        [("float64", 5e-11, 1e-9), ("float32", 5e-6, 1e-4), ("float16", 1.5e-3, 1e-2), ("bfloat16", 1e-2, 5e-2)],
    )
    def test_are_those_of_the_element_type(self, dtype: str, good: float, bad: float) -> None:
        x = np.array([0.5, 1], ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        for error, fits in ((good, True), (bad, False)):
            nearly = op("own::Same")(lambda X, error=error: X + mx.array(error, X.dtype))
            with nullcontext() if fits else pytest.raises(AssertionError, match="off by"):
                check_node(nearly, x, reference=[x], output_types=[dtype])

    def test_attributes_whose_names_the_kit_has(self) -> None:
        seen: list[Any] = []

        @op("own::Odd", dtypes={"float32"})
        def odd(X, *, opset=1, outputs="a"):  # type: ignore[no-untyped-def]
            seen.append((opset, outputs))
            return X

        model = {"output_types": ["float32"], "attributes": {"opset": 7, "outputs": "b"}}
        check_node(odd, X, reference=[X], **model)
        check_node(odd, X, reference=lambda X, opset, outputs: X, **model)
        assert set(seen) == {(7, "b")}


class TestHandlersAlone:
    """A handler is tested without its pack being installed."""

    def test_an_opset_that_it_covers(self) -> None:
        @op("Relu", since=6, until=12)
        def old(X):  # type: ignore[no-untyped-def]
            return mx.maximum(X, 0)

        check_node(old, np.array([-1, 2], np.float32))
        check_declined(old, np.array([-1, 2], np.float32), opset=14, because="has no handler")

    def test_a_function_as_reference(self) -> None:
        @op("own::Double")
        def double(X):  # type: ignore[no-untyped-def]
            return X * 2

        x = np.array([1, 2], np.float32)
        check_node(double, x, reference=lambda X: 2 * X, output_types=["float32"])
        with pytest.raises(AssertionError, match="off by"):
            check_node(double, x, reference=lambda X: 3 * X, output_types=["float32"])


class TestWrongArguments:
    """What an author asks for by mistake is an error that says so."""

    def test_no_handler(self) -> None:
        with pytest.raises(TypeError, match=r"name of an operator or a handler, which @op makes, not <lambda>"):
            check_node(lambda X: X, X)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("rest", "error", "message"),
        [
            ({"values": (4, 1)}, ValueError, r"values=\(4, 1\) are no bounds"),
            ({"values": (0, np.inf)}, ValueError, "are no bounds"),
            ({"values": (0.01, 0.02)}, ValueError, "nothing to draw for float32: no multiple of 1/16 lies between"),
            ({"values": (0.1, 0.2), "dtypes": {"int32"}}, ValueError, "for int32: no whole number lies between"),
            ({"sizes": (3, 1)}, ValueError, r"sizes=\(3, 1\) are no sizes"),
            ({"sizes": (-1, 1)}, ValueError, "are no sizes"),
            ({"dtypes": {"float23"}}, ValueError, "'float23' is not an element type to draw"),
            ({"attributes": {"alpha": 2}}, TypeError, "takes a list of values to draw from, not 2"),
            ({"reference": "gpu"}, ValueError, "there is no reference 'gpu'"),
        ],
    )
    def test_what_cannot_be_drawn(self, rest: dict[str, Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            check_over("Relu", "N", **{"dtypes": {"float32"}, **rest})

    def test_no_such_reference(self) -> None:
        with pytest.raises(ValueError, match="there is no reference 'gpu'"):
            check_node("Relu", X, registry=relu(), reference="gpu")

    def test_a_number_is_a_scalar(self) -> None:
        (y,) = check_node("Relu", np.float32(-1), registry=relu())
        assert y.shape == ()


class TestDrawnValues:
    @pytest.mark.parametrize(
        ("dtype", "values", "least", "most"),
        [("float32", (0.1, 4), 0.125, 4), ("float32", (-4.99, -0.07), -4.9375, -0.125), ("int32", (0.1, 4), 1, 4)],
    )
    def test_bounds_go_inward_to_what_is_drawn(
        self, dtype: str, values: tuple[float, float], least: float, most: float
    ) -> None:
        seen: list[float] = []

        def reference(X: Any) -> Any:
            seen.extend(X.tolist())
            return X

        identity = op("own::Same")(lambda X: X)
        check_over(identity, "N", dtypes={dtype}, values=values, reference=reference, output_types=[dtype])
        assert least <= min(seen) <= max(seen) <= most
        assert all(each in seen for each in (least, most)) or len(set(seen)) > 10


class TestSeveralOutputs:
    @staticmethod
    def extremes(wrong: int = 0) -> Handler:
        @op("own::Extremes", dtypes={"float32"})
        def extremes(X):  # type: ignore[no-untyped-def]
            return mx.max(X, axis=-1) + wrong * (X.ndim > 1), mx.argmax(X, axis=-1).astype(mx.int64)

        return extremes

    @staticmethod
    def expected(X: Any) -> Any:
        return X.max(-1), X.argmax(-1)

    def test_their_number_is_that_of_the_reference(self) -> None:
        handler = self.extremes()
        handler.schema(outputs=("largest", "place?"))
        assert len(check_node(handler, X, reference=self.expected)) == 2
        assert check_over(handler, "N D", reference=self.expected, sizes=(1, 4)).compared == 100
        (only,) = check_node(handler, X, reference=lambda X: X.max(-1))
        assert only.shape == (1,)

    def test_a_schema_that_names_too_few(self) -> None:
        handler = self.extremes()
        handler.schema()
        message = r"output 1 is not one of its schema's \(it has 1\); name them: schema\(outputs=\('Y', 'output_1'\)\)"
        with pytest.raises(AssertionError, match=message):
            check_node(handler, X, reference=self.expected)
        with pytest.raises(AssertionError, match="too few were compared"):
            check_over(handler, "N D", reference=self.expected, sizes=(1, 4))

    def test_the_call_that_is_printed_fails_as_well(self) -> None:
        handler = self.extremes(wrong=1)
        handler.schema(outputs=("largest", "place?"))
        expected = self.expected
        with pytest.raises(AssertionError, match="y0: off by 1") as caught:
            check_over(handler, "N D", reference=expected, sizes=(1, 4), tolerance=1e-3)
        call = caught.value.__notes__[0].partition("\n")[2]
        assert "tolerance=0.001" in call
        names = {"np": np, "check_node": check_node, "extremes": handler, "expected": expected}
        with pytest.raises(AssertionError, match="y0: off by 1"):
            eval(call, names)


class TestInferences:
    """A schema's inference that fails leaves a session without what it says, and is an error here."""

    @pytest.mark.parametrize(
        ("inference", "message"),
        [
            (lambda X: 1 / 0, r"the inference failed: ZeroDivisionError: division by zero \(test_testing\.py:"),
            (lambda X: (X.dtype, X.shape), "the inference failed: TypeError: it gave a str"),
            (lambda X: Output("float23", X.shape), "'float23' is not an element type"),
            (lambda X: (), "the inference of its schema gave 0 of 1 outputs"),
        ],
    )
    def test_a_failure_is_told(self, inference: Any, message: str) -> None:
        handler = op("own::Double", dtypes={"float32"})(lambda X: X * 2)
        handler.schema(inference)
        with pytest.raises(ContractError, match=message):
            check_node(handler, X, reference=lambda X: X * 2)
        with pytest.raises(ContractError, match=message):
            check_over(handler, "N", reference=lambda X: X * 2)


class TestReferencesThatCannot:
    @pytest.mark.parametrize("reference", ["cpu", "onnx"])
    def test_an_operator_that_it_does_not_know(self, reference: Any) -> None:
        handler = op("own::Double", dtypes={"float32"})(lambda X: X * 2)
        handler.schema()
        with pytest.raises(ModelError, match=f"'{reference}' does not know own::Double: give reference="):
            check_node(handler, X, reference=reference)
        with pytest.raises(AssertionError, match=r"refused=100.*does not know own::Double: give reference="):
            check_over(handler, "N", reference=reference)

    def test_an_element_type_without_a_kernel(self) -> None:
        relu_of_int16 = op("Relu")(lambda X: mx.maximum(X, 0))
        with pytest.raises(ModelError, match="CPU provider has no kernel for this: try reference='onnx'"):
            check_node(relu_of_int16, np.array([1, -1], np.int16))
        check_node(relu_of_int16, np.array([1, -1], np.int16), reference="onnx")
