"""Deciding graphs: claims are verified before they count."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from opgraft.claims import Decision, Decisions, decide, decide_node, edges_of
from opgraft.engine import VerifiedRegistry, problem_with
from opgraft.errors import ContractError, Decline
from opgraft.graph import Graph, Initializer, Node, Value
from opgraft.graph.element_types import HELD_AS, NARROW
from opgraft.graph.onnx_source import graph_of_model
from opgraft.ops import Anywhere, Context, Host, Tensors, hookimpl, op
from opgraft.registry import Pack, Registry, parse_policy
from opgraft.registry.dispatch import SLOW_SECONDS


def registry_of(*plugins: Any) -> Registry:
    return Registry([Pack("pack", plugins=plugins)], parse_policy("", "registry.yaml"))


def node(
    inputs: Sequence[Value | None], outputs: Sequence[Value | None], constants: dict[str, Any] | None = None
) -> Node:
    found = Node("n", "Op", "ai.onnx", 1, tuple(inputs), tuple(outputs), {})
    initializers = {
        name: Initializer(Value(name, str(array.dtype), array.shape), lambda array=array: array)  # type: ignore[misc]
        for name, array in (constants or {}).items()
    }
    Graph("g", (), (), (found,), initializers, {})
    return found


def value(name: str, shape: Any = (2, 3), dtype: str | None = "float32") -> Value:
    return Value(name, dtype, shape)


def decision(
    function: Callable[..., Any],
    of: Node,
    *,
    verify: bool = True,
    device: str = "cpu",
    dtypes: Collection[str] | None = None,
) -> Decision:
    registry = registry_of(op("Op", dtypes=dtypes)(function))
    return decide_node(of, VerifiedRegistry(registry, device) if verify else registry, device)


def reason(function: Callable[..., Any], of: Node, device: str = "cpu", dtypes: Collection[str] | None = None) -> str:
    """The one reason why a node is declined."""
    found = decision(function, of, device=device, dtypes=dtypes)
    assert not found.claimed
    (only,) = found.reasons
    return str(only)


def raise_(error: BaseException) -> Any:
    raise error


PLAIN = node([value("x")], [value("y")])
DYNAMIC = node([value("x", ("n", 3))], [value("y", ("n", 3))])


class TestVerification:
    """A wrong handler is a reason in the report, not a session that fails."""

    @pytest.mark.parametrize(
        ("function", "of", "expected"),
        [
            (lambda X: X.astype(mx.float16), PLAIN, "gives float16 for output 'y', and the model says float32"),
            (lambda X: np.zeros((2, 3)), PLAIN, "gives float64 for output 'y', and the model says float32"),
            (lambda X: X.T, PLAIN, "gives shape [3, 2] for output 'y', and the model says [2, 3]"),
            (lambda X: X[0], PLAIN, "gives shape [3] for output 'y', and the model says [2, 3]"),
            (lambda X: X[0], DYNAMIC, "gives shape [3] for output 'y', and the model says [n, 3]"),
            (lambda X: X.astype(mx.int8), DYNAMIC, "gives int8 for output 'y', and the model says float32"),
        ],
    )
    def test_wrong_types_and_shapes(self, function: Callable[..., Any], of: Node, expected: str) -> None:
        assert reason(function, of) == f"its translation {expected} [pack]"

    @pytest.mark.parametrize("of", [PLAIN, DYNAMIC], ids=["static", "dynamic"])
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ((), "TypeError: the translator gave 0 outputs, and the node has 1"),
            (None, "TypeError: the function <lambda> returned nothing: is a `return` missing?"),
            ("text", "TypeError: a str is not an array that MLX can hold"),
        ],
    )
    def test_no_arrays(self, given: Any, expected: str, of: Node) -> None:
        assert reason(lambda X: given, of) == f"its translation failed on stand-in inputs: {expected} [pack]"

    def test_too_few_outputs(self) -> None:
        two = node([value("x")], [value("y"), value("z")])
        assert "the translator gave 1 outputs, and the node has 2" in reason(lambda X: X, two)
        assert decision(lambda X: (X, X, X), two).claimed

    def test_an_absent_output_may_be_anything(self) -> None:
        assert decision(lambda X: (None, X), node([value("x")], [None, value("z")])).claimed

    @pytest.mark.parametrize("of", [PLAIN, DYNAMIC], ids=["static", "dynamic"])
    @pytest.mark.parametrize(
        "error",
        [
            TypeError("t"),
            NameError("n"),
            AttributeError("a"),
            ImportError("i"),
            KeyError("k"),
            NotImplementedError("not yet"),
            RuntimeError("oops"),
            AssertionError("never"),
            Decline("second thoughts"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_errors_that_no_size_explains(self, error: Exception, of: Node) -> None:
        text = f"its translation failed on stand-in inputs: {type(error).__name__}: {error} (test_claims.py:"
        assert reason(lambda X: raise_(error), of).startswith(text)

    @pytest.mark.parametrize("error", [ValueError, IndexError, ZeroDivisionError])
    def test_errors_that_sizes_may_explain(self, error: type[Exception]) -> None:
        assert error.__name__ in reason(lambda X: raise_(error(f"sizes {X.shape}")), PLAIN)
        assert decision(lambda X: raise_(error(f"sizes {X.shape}")), DYNAMIC).claimed

    @pytest.mark.parametrize("error", [ValueError, IndexError, ZeroDivisionError])
    def test_an_error_that_is_the_same_at_every_size_is_not_about_sizes(self, error: type[Exception]) -> None:
        assert "IndexError: tuple index out of range" in reason(lambda X: X.shape[5] * X, DYNAMIC)
        assert error.__name__ in reason(lambda X: raise_(error("always")), DYNAMIC)

    @pytest.mark.parametrize("error", [SystemExit, GeneratorExit, BaseException])
    def test_a_pack_that_wants_out_is_left_out(self, error: type[BaseException]) -> None:
        assert error.__name__ in reason(lambda X: raise_(error("out")), PLAIN)
        handler = op("Op")(lambda X: X)
        handler.condition(lambda node: raise_(error("out")))
        found = decide_node(PLAIN, VerifiedRegistry(registry_of(handler), "cpu"), "cpu")
        assert f"its claim failed: {error.__name__}: out" in str(found.reasons[0])

    def test_the_handlers_own_reason_comes_first(self) -> None:
        handler = op("Op", dtypes={"int8"})(lambda X: raise_(TypeError("not reached")))
        found = decide_node(PLAIN, VerifiedRegistry(registry_of(handler), "cpu"), "cpu")
        assert [str(each) for each in found.reasons] == ["element type float32 of input X is not supported [pack]"]

    def test_can_be_left_out(self) -> None:
        assert decision(lambda X: X.T, PLAIN, verify=False).claimed

    def test_computes_nothing(self) -> None:
        enormous = value("x", (1 << 20, 1 << 20))
        assert decision(lambda X: X + 1, node([enormous], [value("y", enormous.shape)])).claimed

    def test_hooks_written_by_hand(self) -> None:
        class ByHand:
            operators = ("ai.onnx::Op",)

            @hookimpl
            def claim(self, node: Node) -> bool:
                return True

            @hookimpl
            def translate(self, ctx: Context, node: Node) -> Any:
                return ctx.inputs[0]

        found = decide_node(PLAIN, VerifiedRegistry(registry_of(ByHand()), "cpu"), "cpu")
        assert "the translator gave an array of mlx.core.float32, and not a tuple" in str(found.reasons[0])

    def test_what_fails_goes_on_to_the_next_handler(self) -> None:
        broken = op("Op")(lambda X: raise_(RuntimeError("oops")))
        right = op("Op")(lambda X: X + 0)
        registry = VerifiedRegistry(registry_of(broken, right), "cpu")
        found = decide_node(PLAIN, registry, "cpu")
        assert found.candidate is not None
        assert found.candidate.handler is right
        assert registry.claim(PLAIN).candidate is found.candidate
        assert registry.once_tried.claim(PLAIN).candidate is found.candidate

    def test_what_was_right_is_tried_once(self) -> None:
        tried: list[Any] = []
        packs = registry_of(op("Op")(lambda X: tried.append(X) or X))
        registry = VerifiedRegistry(packs, "cpu")
        assert registry.claim(PLAIN).candidate is registry.once_tried.claim(PLAIN).candidate
        assert len(tried) == 1

    def test_does_not_leave_anything_in_the_handlers_cache(self) -> None:
        caches: list[Any] = []

        def function(ctx, X):  # type: ignore[no-untyped-def]
            caches.append(ctx._cache)
            return ctx.prepared(0, lambda given: given)

        of = node([value("w")], [value("y")], {"w": np.ones((2, 3), np.float32)})
        assert decision(function, of).claimed
        assert decision(function, of).claimed
        assert caches[0] is not caches[1]


class TestRightClaims:
    """Unknown sizes must not throw out what is right."""

    @pytest.mark.parametrize(
        ("function", "inputs", "outputs"),
        [
            (lambda A, B: A @ B, [("n", 3), (3, "m")], [("n", "m")]),
            (lambda A, B: A @ B, [("n", "k"), ("k", "m")], [("n", "m")]),
            (lambda A, B: A + B, [("n", 7), (None, 7)], [("n", 7)]),
            (lambda A, B: A + B, [(None, 7), (7,)], [(None, 7)]),
            (lambda A, B: A + B, [(None,), (7,)], [(7,)]),  # must be 1 or 7
            (lambda A: mx.squeeze(A, 0), [(None, 3)], [(3,)]),  # must be 1
            (lambda A: A.reshape(2, 3), [("n",)], [(2, 3)]),  # must be 6
            (lambda A: A[:, :10], [("n", "m")], [("n", 10)]),  # must be more than the stand-in
            (lambda A: mx.topk(A, 50), [("n",)], [(50,)]),
            (lambda A: mx.split(A, 3), [("n",)], [(None,), (None,), (None,)]),
            (lambda A: mx.concatenate([A, A]), [("n",)], [("p",)]),
            (lambda A: A[A.shape[0] - 8], [("n", 2)], [(2,)]),
            (lambda A: A, [("n",)], [None]),
            (lambda A: mx.broadcast_to(A, (2, 3)), [(3,)], [(2, "m")]),
            (lambda A: A.reshape(-1), [(2, 3)], [(6,)]),
            (lambda A: mx.zeros((0, 3)), [(0, 3)], [(0, 3)]),
            (lambda A: mx.sum(A), [()], [()]),
        ],
    )
    def test_shapes(self, function: Callable[..., Any], inputs: list[Any], outputs: list[Any]) -> None:
        given = [value(f"x{place}", shape) for place, shape in enumerate(inputs)]
        made = [value(f"y{place}", shape) for place, shape in enumerate(outputs)]
        found = decision(function, node(given, made))
        assert found.claimed, found.reasons

    @pytest.mark.parametrize(
        "unknown", [value("x", None), value("x", (2, 3), None), value("x", None, None)], ids=["rank", "type", "both"]
    )
    def test_a_node_whose_inputs_are_unknown_is_not_tried(self, unknown: Value) -> None:
        assert decision(lambda X: raise_(KeyError("not reached")), node([unknown], [value("y")])).claimed

    def test_unknown_outputs_are_not_compared(self) -> None:
        assert decision(lambda X: X.astype(mx.int8), node([value("x")], [value("y", None, None)])).claimed

    @pytest.mark.parametrize(
        "dtype", ["float32", "float64", "bfloat16", "float16", "bool", "int64", "uint8", "complex64"]
    )
    def test_element_types(self, dtype: str) -> None:
        of = node([value("x", (2,), dtype)], [value("y", (2,), dtype)])
        assert decision(lambda X: X, of).claimed

    def test_absent_inputs(self) -> None:
        seen: list[Any] = []

        def function(A, B=None, C=None):  # type: ignore[no-untyped-def]
            seen.append(B)
            return A + C

        assert decision(function, node([value("a"), None, value("c")], [value("y")])).claimed
        assert seen == [None]


class TestHostInputs:
    @staticmethod
    def reshape(X: Any, shape: Host) -> Any:
        return X.reshape(shape.tolist())

    def test_constants_arrive_with_their_elements(self) -> None:
        inputs = [value("x"), value("s", (1,), "int64")]
        good = node(inputs, [value("y", (6,))], {"s": np.array([6])})
        assert decision(self.reshape, good).claimed
        bad = node(inputs, [value("y", (6,))], {"s": np.array([5])})
        assert "its translation failed on stand-in inputs: ValueError: " in reason(self.reshape, bad)

    def test_bfloat16_constants_arrive_as_float32(self) -> None:
        seen: list[Any] = []

        def function(X: Any, low: Host) -> Any:
            seen.append(low)
            return X

        of = node([value("x"), value("low", (1,), "bfloat16")], [value("y")], {"low": np.array([0x4000], np.uint16)})
        assert decision(function, of).claimed
        assert (seen[0].dtype, seen[0].tolist()) == (np.float32, [2])

    def test_what_only_a_run_brings_is_not_tried(self) -> None:
        of = node([value("x"), value("s", (1,), "int64")], [value("y", (6,))])
        assert decision(lambda X, shape: raise_(KeyError()), of, verify=False).claimed
        assert decision(self.reshape, of).claimed

    def test_constants_that_cannot_be_read_are_a_reason(self) -> None:
        of = node([value("x"), value("s", (1,), "int64")], [value("y", (6,))], {"s": np.array([6])})
        unreadable = Initializer(value("s", (1,), "int64"), lambda: raise_(OSError("no such file")))
        of.graph.initializers["s"] = unreadable  # type: ignore[index]
        assert "OSError: no such file" in reason(self.reshape, of)

    def test_constants_on_the_device_are_not_read(self) -> None:
        of = node([value("x"), value("w")], [value("y")], {"w": np.ones((2, 3), np.float32)})
        unread = Initializer(value("w"), lambda: pytest.fail("it was read"))
        of.graph.initializers["w"] = unread  # type: ignore[index]
        seen: list[bool] = []

        def function(ctx, X, W):  # type: ignore[no-untyped-def]
            seen.append(ctx.is_constant(1))
            return X + W

        assert decision(function, of).claimed
        assert seen == [True]


class TestSlowClaims:
    """A claim is slow by what it computes: on a busy machine every one may have to wait."""

    @staticmethod
    def told(decide_slowly: Callable[[], object]) -> tuple[tuple[str, float], ...]:
        handler = op("Op")(lambda X: X)
        handler.condition(lambda node: decide_slowly() is None)
        return decide_node(node([value("x")], [value("y")]), registry_of(handler), "cpu").slow

    def test_one_that_waits_is_none(self) -> None:
        assert self.told(lambda: time.sleep(2 * SLOW_SECONDS)) == ()

    def test_one_that_computes_is(self) -> None:
        def compute() -> None:
            end = time.thread_time() + 2 * SLOW_SECONDS
            while time.thread_time() < end:
                pass

        ((pack, seconds),) = self.told(compute)
        assert (pack, seconds > SLOW_SECONDS) == ("pack", True)


class TestElementTypes:
    @pytest.mark.parametrize(
        ("dtype", "cure"),
        [
            ("complex128", ""),
            ("string", "; export the model with numbers in place of strings"),
        ],
    )
    def test_types_that_mlx_lacks(self, dtype: str, cure: str) -> None:
        for of in (node([value("x", (2,), dtype)], [value("y")]), node([value("z")], [value("x", (2,), dtype)])):
            assert reason(lambda X: X, of) == f"element type {dtype} of 'x' is not one that MLX has on the cpu{cure}"

    @pytest.mark.parametrize(("op_type", "told"), [("LinearClassifier", True), ("LabelEncoder", False)])
    def test_the_labels_of_classifiers_alone_may_be_integers(self, op_type: str, told: bool) -> None:
        of = Node("n", op_type, "ai.onnx.ml", 1, (value("x"),), (value("y", (2,), "string"),), {})
        found = decide_node(of, registry_of(), "cpu").reasons
        assert str(found[0]).endswith(" (the labels as integers)") is told
        assert found[0].final

    @pytest.mark.parametrize("dtype", sorted(NARROW))
    def test_types_held_in_another_are_for_handlers_that_name_them(self, dtype: str) -> None:
        narrow, wide = value("x", (2,), dtype), value("y", (2,), HELD_AS[dtype])
        assert reason(lambda X: X, node([narrow], [wide])) == f"element type {dtype} of input X is not supported [pack]"
        assert (
            reason(lambda X: X, node([wide], [narrow])) == f"element type {dtype} of output 'x' is not supported [pack]"
        )

    @pytest.mark.parametrize("dtype", sorted(NARROW))
    def test_types_held_in_another_are_tried_in_that_one(self, dtype: str) -> None:
        of = node([value("x", (2,), dtype)], [value("y", (2,), dtype)])
        assert decision(lambda X: X, of, dtypes={dtype}).claimed
        assert decision(lambda X: X, of, dtypes={dtype}, device="gpu", verify=False).claimed
        told = reason(lambda X: X.astype(mx.float32), of, dtypes={dtype})
        assert f"its translation gives float32 for output 'y', and the model says {dtype}" in told

    def test_float64_is_the_cpus(self) -> None:
        of = node([value("x", (2,), "float64")], [value("y", (2,), "float64")])
        assert decision(lambda X: X, of, device="cpu").claimed
        told = reason(lambda X: X, of, device="gpu")
        assert told.startswith("element type float64 of 'x' is not one that MLX has on the gpu; choose device=cpu, or")

    @pytest.mark.parametrize("kind", ["optional", "map", "sparse_tensor"])
    def test_neither_tensors_nor_sequences(self, kind: str) -> None:
        of = node([value("a")], [Value("s", kind=kind)])
        assert reason(lambda X: X, of) == f"'s' is of type {kind}; only tensors and sequences of tensors are supported"


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]>\n{text}')


ADD = op("Add")(lambda A, B: A + B)
NEG = op("Neg")(lambda X: -X)
RELU = op("Relu")(lambda X: mx.maximum(X, 0))
IF = op("If")(lambda cond, *, then_branch, else_branch: then_branch())


def decided(text: str, *handlers: Any, **options: Any) -> Decisions:
    registry = VerifiedRegistry(registry_of(*handlers), "cpu")
    return decide(graph_of_model(parsed(text)), registry, device="cpu", **options)


class TestBodies:
    TEXT = """g (bool cond, float[2] x) => (float[2] y) {
        y = If (cond) <
            then_branch = t () => (float[2] r) { r = Relu(x) },
            else_branch = e () => (float[2] s) {
                s = If (cond) <
                    then_branch = tt () => (float[2] u) { u = Add(x, x) }, else_branch = ee () => (float[2] x) { }
                >
            }
        >
    }"""

    def test_are_claimed_with_the_node_that_owns_them(self) -> None:
        found = decided(self.TEXT, IF, ADD, RELU)
        assert [each.claimed for each in found.decisions] == [True]
        assert found.clusters == ((0,),)

    def test_one_node_in_them_that_is_not_claimed_declines_all(self) -> None:
        ((node, (only,)),) = decided(self.TEXT, IF, ADD).declined
        assert node.op_type == "If"
        assert str(only) == (
            "in then_branch, node 'Relu (-> r)' (ai.onnx::Relu): no installed pack has a handler for ai.onnx::Relu"
        )

    def test_in_bodies_of_bodies_too(self) -> None:
        ((_, (only,)),) = decided(self.TEXT, IF, RELU).declined
        assert str(only).startswith(
            "in else_branch, node 'If (-> s)' (ai.onnx::If): in then_branch, node 'Add (-> u)' (ai.onnx::Add): no inst"
        )

    def test_nodes_in_them_are_verified(self) -> None:
        wrong = op("Add")(lambda A, B: A.astype(mx.int8))
        ((_, (only,)),) = decided(self.TEXT, IF, wrong, RELU).declined
        assert only.pack == "pack"
        assert "its translation gives int8 for output 'u'" in only.text

    def test_sizes_that_do_not_fit_prove_nothing_in_a_branch_that_may_not_run(self) -> None:
        unfit = op("Add")(lambda A, B: raise_(ValueError("sizes")))
        assert decided(self.TEXT, IF, unfit, RELU).decisions[0].claimed
        ((_, (only,)),) = decided(self.TEXT, IF, op("Add")(lambda A, B: raise_(KeyError("bug"))), RELU).declined
        assert "KeyError" in only.text

    def test_nodes_with_bodies_are_not_tried_themselves(self) -> None:
        broken = op("If")(lambda cond, *, then_branch, else_branch: raise_(TypeError("not reached")))
        assert decided(self.TEXT, broken, ADD, RELU).decisions[0].claimed


class TestGraphs:
    TEXT = "g (float[2] x) => (float[2] z) { a = Relu(x) b = Neg(a) c = Relu(b) z = Add(c, a) }"

    def test_decisions_run_parallel_to_the_nodes(self) -> None:
        found = decided(self.TEXT, RELU, ADD)
        assert [each.node for each in found.decisions] == list(found.graph.nodes)
        assert [each.claimed for each in found.decisions] == [True, False, True, True]
        assert [node.op_type for node, _ in found.declined] == ["Neg"]
        assert sorted(index for cluster in found.clusters for index in cluster) == [0, 2, 3]

    @pytest.mark.parametrize("candidates", [[0, 3], {0, 3}, range(0, 4, 3)])
    def test_only_candidates_are_considered(self, candidates: Any) -> None:
        found = decided(self.TEXT, RELU, ADD, candidates=candidates)
        assert [each.claimed for each in found.decisions] == [True, False, False, True]
        assert found.decisions[2].reasons == ()
        assert found.declined == []

    def test_edges(self) -> None:
        nodes = graph_of_model(parsed(self.TEXT)).nodes
        assert sorted(edges_of(nodes)) == [(0, 1), (0, 3), (1, 2), (2, 3)]

    def test_what_a_body_reads_is_an_edge(self) -> None:
        text = """g (bool cond, float[2] x) => (float[2] y) {
            a = Relu(x)
            y = If (cond) <then_branch = t () => (float[2] r) { r = Relu(a) }, else_branch = e () => (float[2] x) { }>
        }"""
        assert edges_of(graph_of_model(parsed(text)).nodes) == [(0, 1)]


def test_problem_with_a_right_claim_is_none() -> None:
    candidate = registry_of(op("Op")(lambda X: X)).claim(PLAIN).candidate
    assert candidate is not None
    assert problem_with(PLAIN, candidate, "cpu") is None
    wrong = registry_of(op("Op")(lambda X: X.T)).claim(PLAIN).candidate
    assert wrong is not None
    assert problem_with(PLAIN, wrong, "cpu") is not None


def test_verification_takes_well_under_a_millisecond_a_node() -> None:
    """Over 400 nodes: matrix products with weights, additions, and values handed on."""
    nodes, weights = [], [numpy_helper.from_array(np.ones((8, 8), np.float32), f"w{k}") for k in range(100)]
    last = "x"
    for k in range(100):
        for op_type, inputs in (
            ("MatMul", [last, f"w{k}"]),
            ("Add", ["@", f"w{k}"]),
            ("Relu", ["@"]),
            ("Identity", ["@"]),
        ):
            made = f"{op_type}{k}"
            nodes.append(helper.make_node(op_type, [last if name == "@" else name for name in inputs], [made]))
            last = made
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 8]) for name in ("x", last)]
    graph = graph_of_model(helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:], weights)))

    @op("Identity")
    def identity(input: Anywhere):  # type: ignore[no-untyped-def]
        return input

    registry = registry_of(op("MatMul")(lambda A, B: A @ B), ADD, RELU, identity)

    def seconds() -> float:
        start = time.perf_counter()
        assert all(each.claimed for each in decide(graph, registry, device="cpu").decisions)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) / len(nodes) < 300e-6


class TestValuesThatOnlyBodiesRead:
    """ONNX Runtime before 1.27 gives a fused node no value that only the bodies of its nodes read."""

    TEXT = """g (bool cond, float[2] x, float[2] w) => (float[2] y) {
        a = Neg(x)
        y = If (cond) < then_branch = t () => (float[2] r) { r = Add(a, w) }, else_branch = e () => (float[2] a) { } >
    }"""

    def test_are_declined_where_they_cannot_be_had(self) -> None:
        found = decided(self.TEXT, IF, ADD, NEG, feeds_bodies=False)
        assert [each.claimed for each in found.decisions] == [True, False]
        assert "only its bodies read 'w'" in str(found.declined[0][1][0])
        assert found.clusters == ((0,),)

    def test_are_no_obstacle_where_another_node_of_the_cluster_reads_them(self) -> None:
        text = self.TEXT.replace("a = Neg(x)", "a = Add(x, w)")
        assert decided(text, IF, ADD, feeds_bodies=False).clusters == ((0, 1),)

    def test_are_no_obstacle_elsewhere(self) -> None:
        assert decided(self.TEXT, IF, ADD, NEG).clusters == ((0, 1),)


S = Value("s", kind="sequence")
UNKNOWN = Value("u")


def give_tensors(X: Anywhere, *rest: Anywhere) -> Tensors:
    return Tensors([X])


class TestHandlersOfSequences:
    """A handler takes and gives sequences only where its annotations say so."""

    @pytest.mark.parametrize("inputs", [[S], [value("x"), S]])
    def test_inputs_for_tensors(self, inputs: list[Value]) -> None:
        expected = "is a sequence; only tensors are supported [pack]"
        assert reason(give_tensors, node(inputs, [S])).endswith(expected)
        assert reason(lambda *X: X[0], node(inputs, [value("y")])) == f"input X {expected}"

    def test_inputs_for_sequences(self) -> None:
        def length(s: Tensors, t: Tensors | None = None) -> Any:
            return np.array(len(s))

        for inputs in ([S], [S, None], [S, S], [UNKNOWN]):
            assert decision(length, node(inputs, [value("n", (), "int64")])).claimed
        told = reason(length, node([value("x")], [value("n", (), "int64")]))
        assert told == "input s is a tensor; only sequences are supported [pack]"

    @pytest.mark.parametrize("given", [S, value("x"), UNKNOWN])
    def test_inputs_for_either(self, given: Value) -> None:
        def either(X: Anywhere | Tensors) -> Any:
            return mx.zeros((2, 3))

        def either_on_the_device(*X: mx.array | Tensors) -> Any:
            return mx.zeros((2, 3))

        assert decision(either, node([given], [value("y")])).claimed
        assert decision(either_on_the_device, node([given], [value("y")])).claimed

    def test_outputs(self) -> None:
        told = reason(lambda X: Tensors([X]), node([value("x")], [S]))
        assert told == "output 's' is a sequence; only tensors are supported [pack]"
        assert decision(give_tensors, node([value("x")], [S])).claimed

    def test_outputs_of_both_kinds(self) -> None:
        def both(X: Any) -> tuple[Any | Tensors, ...]:
            return X, Tensors()

        assert decision(both, node([value("x")], [value("y"), S])).claimed
        told = reason(both, node([value("x")], [S, value("y")]))
        assert told == "its translation gives a tensor for output 's', and the model says a sequence [pack]"

    def test_are_tried_where_all_inputs_are_tensors(self) -> None:
        told = reason(give_tensors, node([value("x")], [value("y")]))
        assert told == "its translation gives a sequence for output 'y', and the model says a tensor [pack]"
        assert decision(give_tensors, node([value("x")], [UNKNOWN])).claimed

        def broken(X: Any) -> Tensors:
            return Tensors(["text"])

        assert "TypeError: a str is not an array that MLX can hold" in reason(broken, node([value("x")], [S]))

    def test_are_not_tried_where_an_input_is_a_sequence(self) -> None:
        def broken(s: Tensors) -> Tensors:
            raise KeyError("not reached")

        assert decision(broken, node([S], [S])).claimed

    def test_the_mark_is_for_inputs(self) -> None:
        with pytest.raises(ContractError, match="axis is an attribute"):

            @op("Op")
            def handler(X, *, axis: Tensors):  # type: ignore[no-untyped-def]
                return X


def split(X: Any) -> Tensors:
    return Tensors([X])


def at(s: Tensors, p: Anywhere = None) -> Any:
    return s[0]


def insert(s: Tensors, X: Any) -> Tensors:
    return s.inserted(0, X)


SEQUENCES = (
    op("SplitToSequence")(split),
    op("SequenceAt")(at),
    op("SequenceInsert")(insert),
    op("SequenceLength")(lambda s: None),  # which takes tensors only
)
CAST = op("Cast")(lambda input, *, to: input.astype({7: mx.int64, 9: mx.bool_}[to]))


class TestClustersWithSequences:
    """A sequence never crosses the border of a cluster."""

    def declined(self, body: str, *more: Any, outputs: str = "float[A] y") -> dict[str, str]:
        """The reasons by operator, once it is checked that each sequence stays in a cluster or has none to do with."""
        text = f"g (float[2] x, int64 p) => ({outputs}) {{ {body} }}"
        found = decided(text, *SEQUENCES, RELU, ADD, *more)
        home = {index: number for number, cluster in enumerate(found.clusters) for index in cluster}
        for source, target in edges_of(found.graph.nodes):
            made = {each.name for each in found.graph.nodes[source].outputs if each and each.kind == "sequence"}
            reader = found.graph.nodes[target]
            if made & {each.name for each in (*reader.inputs, *reader.implicit_inputs) if each}:
                assert home.get(source) == home.get(target)
        assert sorted(home) == [index for index, each in enumerate(found.decisions) if each.claimed]
        return {node.op_type: str(only) for node, (only,) in found.declined}

    def test_are_whole_where_nothing_is_in_the_way(self) -> None:
        assert self.declined("a = Relu(x) s = SplitToSequence(a) t = SequenceInsert(s, x) y = SequenceAt(t, p)") == {}

    def test_outputs_of_the_graph(self) -> None:
        reasons = self.declined(
            "s = SplitToSequence(x) t = SequenceInsert(s, x) u = SequenceInsert(t, x) y = SequenceAt(u, p) z = Relu(y)",
            outputs="float[A] z, seq(float[2]) t",
        )
        only = "sequence 't' leaves the subgraph as an output of the graph; only tensors can"
        assert reasons == {"SplitToSequence": only, "SequenceInsert": only, "SequenceAt": only}

    def test_inputs_of_the_graph(self) -> None:
        text = "g (seq(float[2]) s, float[2] x) => (float[2] y) { t = SequenceInsert(s, x) y = SequenceAt(t) }"
        only = "sequence 's' enters the subgraph as an input of the graph; only tensors can"
        assert [str(each) for _, (each,) in decided(text, *SEQUENCES).declined] == [only, only]

    def test_a_reader_that_is_declined(self) -> None:
        reasons = self.declined("s = SplitToSequence(x) n = SequenceLength(s) y = SequenceAt(s, p)")
        assert reasons["SequenceLength"] == "input s is a sequence; only tensors are supported [pack]"
        reader = "'SequenceLength (-> n)' (ai.onnx::SequenceLength)"
        only = f"sequence 's' leaves the subgraph for {reader}; only tensors can"
        assert reasons["SplitToSequence"] == reasons["SequenceAt"] == only

    def test_a_maker_that_is_declined(self) -> None:
        maker = "'SequenceConstruct (-> s)' (ai.onnx::SequenceConstruct)"
        reasons = self.declined("s = SequenceConstruct(x) y = SequenceAt(s, p)")
        assert reasons["SequenceAt"] == f"sequence 's' enters the subgraph from {maker}; only tensors can"

    def test_a_maker_that_another_provider_has(self) -> None:
        text = "g (float[2] x, int64 p) => (float[2] y) { s = SplitToSequence(x) y = SequenceAt(s, p) }"
        maker, reader = decided(text, *SEQUENCES, candidates=[1]).decisions
        assert maker.reasons == ()
        assert "enters the subgraph from 'SplitToSequence (-> s)'" in str(reader.reasons[0])

    def test_a_detour(self) -> None:
        body = "s = SplitToSequence(x) a = SequenceAt(s, p) b = Neg(a) c = Cast<to = 7>(b) y = SequenceAt(s, c)"
        assert self.declined(body, CAST, NEG) == {}
        reasons = self.declined(body, CAST)
        only = "sequence 's' leaves the subgraph for nodes beyond 'Neg (-> b)' (ai.onnx::Neg); only tensors can"
        assert reasons["SplitToSequence"] == reasons["SequenceAt"] == only
        assert set(reasons) == {"SplitToSequence", "SequenceAt", "Neg"}

    IN_A_BODY = """c = Cast<to = 9>(p) s = SplitToSequence(x)
        y = If (c) < then_branch = t () => (float[2] r) { r = SequenceAt(s, p) },
                     else_branch = e () => (float[2] q) { q = Relu(x) } >"""

    def test_what_a_body_reads(self) -> None:
        assert self.declined(self.IN_A_BODY, CAST, IF) == {}
        assert "leaves the subgraph for 'If (-> y)'" in self.declined(self.IN_A_BODY, CAST)["SplitToSequence"]

    def test_inside_a_body_there_is_no_border(self) -> None:
        body = self.IN_A_BODY.replace("s = SplitToSequence(x)", "").replace("{ r =", "{ s = SplitToSequence(x) r =")
        assert self.declined(body, CAST, IF) == {}

    def test_those_that_share_one_are_not_torn_apart_for_others(self) -> None:
        """SplitToSequence could also go with Relu, but then not with SequenceInsert, which comes after Neg."""
        body = "a = Relu(x) s = SplitToSequence(a) b = Neg(a) t = SequenceInsert(s, b) y = SequenceAt(t, p)"
        assert set(self.declined(body)) == {"Neg"}

    def test_a_long_list_takes_no_longer_than_its_nodes(self) -> None:
        nodes = [helper.make_node("SplitToSequence", ["x"], ["s0"])]
        nodes += [helper.make_node("SequenceInsert", [f"s{k}", "x"], [f"s{k + 1}"]) for k in range(1500)]
        nodes.append(helper.make_node("SequenceLength", ["s1500"], ["n"]))
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
        n = helper.make_tensor_value_info("n", TensorProto.INT64, [])
        graph = graph_of_model(helper.make_model(helper.make_graph(nodes, "g", [x], [n])))
        start = time.perf_counter()
        found = decide(graph, registry_of(*SEQUENCES), device="cpu")
        assert time.perf_counter() - start < 2
        assert len(found.declined) == len(nodes)
