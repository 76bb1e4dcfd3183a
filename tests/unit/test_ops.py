"""The contract of an op handler: what a signature says, and what the host declines by itself."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, get_type_hints

import mlx.core as mx
import numpy as np
import pytest

from opgraft.errors import ContractError, Decline
from opgraft.graph import Graph, Initializer, Node, UnreadableAttribute, Value
from opgraft.ops import ANY, BOOL, FLOATS, INTEGERS, Anywhere, Context, Handler, Host, op, to_device, to_host
from opgraft.ops.arrays import MLX_TYPE, device_from_storage, element_type, host_from_storage
from opgraft.ops.handler import Place


def node(
    *inputs: str | Value | None,
    op_type: str = "Op",
    version: int = 1,
    outputs: int = 1,
    constants: Mapping[str, Any] | None = None,
    **attributes: Any,
) -> Node:
    """A node with inputs of the given element types."""
    given = [Value(f"x{place}", each, (2,)) if isinstance(each, str) else each for place, each in enumerate(inputs)]
    made = tuple(Value(f"y{place}", "float32", (2,)) for place in range(outputs))
    found = Node("n", op_type, "ai.onnx", version, tuple(given), made, attributes)
    initializers = {
        name: Initializer(Value(name), lambda array=array: array)  # type: ignore[misc]
        for name, array in (constants or {}).items()
    }
    Graph("g", (), made, (found,), initializers, {"ai.onnx": 21})
    return found


def context(of: Node, inputs: Sequence[Any], **given: Any) -> Context:
    defaults: dict[str, Any] = {
        "device": "cpu",
        "cache": {},
        "constant": [False] * len(inputs),
        "bodies": {},
        "random_key": lambda: mx.random.key(0),
    }
    return Context(of, inputs, **(defaults | given))


class TestSignature:
    def test_positional_parameters_are_inputs(self) -> None:
        @op("Op")
        def handler(X, shape: Host, scales: Host | None = None, B=None, C: Anywhere = None):  # type: ignore[no-untyped-def]
            return X

        inputs = handler.signature.inputs
        assert [each.name for each in inputs] == ["X", "shape", "scales", "B", "C"]
        assert [each.required for each in inputs] == [True, True, False, False, False]
        assert [each.place for each in inputs] == [
            Place.DEVICE,
            Place.HOST,
            Place.HOST,
            Place.DEVICE,
            Place.ANYWHERE,
        ]
        assert handler.signature.variadic is None
        assert handler.signature.input(5) is None

    def test_star_parameter_takes_all_further_inputs(self) -> None:
        @op("Op")
        def handler(first: Host, *others: Anywhere):  # type: ignore[no-untyped-def]
            return first

        assert [each.name for each in handler.signature.inputs] == ["first"]
        for index in (1, 2, 50):
            found = handler.signature.input(index)
            assert found is not None
            assert (found.name, found.place, found.required) == ("others", Place.ANYWHERE, False)

    def test_keyword_only_parameters_are_attributes(self) -> None:
        @op("Op")
        def handler(X, *, axis, keepdims=1, mode="a"):  # type: ignore[no-untyped-def]
            return X

        assert list(handler.signature.attributes) == ["axis", "keepdims", "mode"]
        assert handler.signature.required_attributes == ("axis",)

    def test_ctx_is_no_input(self) -> None:
        @op("Op")
        def handler(ctx, X):  # type: ignore[no-untyped-def]
            return X

        assert handler.signature.takes_context
        assert [each.name for each in handler.signature.inputs] == ["X"]

    @pytest.mark.parametrize("future", [True, False], ids=["postponed annotations", "evaluated annotations"])
    @pytest.mark.parametrize(
        ("annotation", "place"),
        [
            ("Host", Place.HOST),
            ("Host | None", Place.HOST),
            ("None | Host", Place.HOST),
            ("Optional[Host]", Place.HOST),
            ("Anywhere", Place.ANYWHERE),
            ("Anywhere | None", Place.ANYWHERE),
            ("Annotated[Host, 'a note']", Place.HOST),
            ("mx.array", Place.DEVICE),
            ("mx.array | None", Place.DEVICE),
            ("Annotated[mx.array, 'a note']", Place.DEVICE),
            ("Any", Place.DEVICE),
        ],
    )
    def test_marks_in_annotations(self, annotation: str, place: Place, future: bool) -> None:
        source = f"""
            from typing import Annotated, Any, Optional
            import mlx.core as mx
            from opgraft.ops import Anywhere, Host, op

            @op("Op")
            def handler(X: {annotation} = None):
                return X
        """
        lead = "from __future__ import annotations\n" if future else ""
        names: dict[str, Any] = {"__name__": "some_pack"}
        exec(compile(lead + textwrap.dedent(source), "some_pack.py", "exec", dont_inherit=True), names)
        (found,) = names["handler"].signature.inputs
        assert found.place is place

    def test_marks_are_annotations_that_type_checkers_can_read(self) -> None:
        def function(a: Host, b: Anywhere) -> None: ...

        assert get_type_hints(function)["a"] == np.ndarray[Any, Any]
        assert get_type_hints(function)["b"] is Any

    def test_element_types_for_all_inputs(self) -> None:
        handler = op("Op", dtypes=FLOATS)(lambda a, b: a)
        assert [each.dtypes for each in handler.signature.inputs] == [FLOATS, FLOATS]

    def test_element_types_by_input(self) -> None:
        handler = op("Op", dtypes={"b": INTEGERS, "others": BOOL})(lambda a, b, *others: a)
        assert [each.dtypes for each in handler.signature.inputs] == [ANY, INTEGERS]
        assert handler.signature.variadic is not None
        assert handler.signature.variadic.dtypes == BOOL


class TestHandler:
    @pytest.mark.parametrize(
        ("name", "operator"),
        [("Op", "ai.onnx::Op"), ("ai.onnx::Op", "ai.onnx::Op"), ("::Op", "ai.onnx::Op"), ("a.b::Op", "a.b::Op")],
    )
    def test_operator(self, name: str, operator: str) -> None:
        handler = op(name)(lambda X: X)
        assert handler.operator == operator
        assert handler.operators == (operator,)

    def test_is_still_the_function(self) -> None:
        @op("Op")
        def double(X, *, times=2):  # type: ignore[no-untyped-def]
            """X times two."""
            return X * times

        assert isinstance(double, Handler)
        assert double(3) == 6
        assert double(3, times=3) == 9
        assert (double.__name__, double.__doc__) == ("double", "X times two.")
        assert repr(double) == "<handler ai.onnx::Op 1->"

    @pytest.mark.parametrize(
        ("since", "until", "taken"),
        [(1, None, [1, 6, 7, 12, 13]), (7, None, [7, 12, 13]), (7, 12, [7, 12]), (7, 7, [7]), (1, 1, [1])],
    )
    def test_versions(self, since: int, until: int | None, taken: list[int]) -> None:
        handler = op("Op", since=since, until=until)(lambda X: X)
        versions = (1, 6, 7, 12, 13)
        assert [each for each in versions if handler.reason(node("float32", version=each)) is None] == taken

    def test_other_versions_are_declined(self) -> None:
        handler = op("Op", since=7, until=12)(lambda X: X)
        for version in (6, 13):
            reason = handler.reason(node("float32", version=version))
            assert reason == f"version {version} of the operator is not supported (versions 7-12 are)"

    def test_hooks_answer_alike(self) -> None:
        handler = op("Op", dtypes=FLOATS)(lambda X: X)
        good, bad = node("float32"), node("int32")
        assert (handler.claim(good), handler.decline_reason(good), handler.decline_reasons(good)) == (True, None, [])
        assert handler.claim(bad) is None
        assert handler.decline_reasons(bad) == [handler.decline_reason(bad)]


def _two(a: Any, b: Any = None, *, axis: int, mode: str = "x") -> Any:
    return a


def _variadic(*inputs: Any) -> Any:
    return inputs


def _free(a: Any, **attributes: Any) -> Any:
    return a


class TestStructuralDeclines:
    @pytest.mark.parametrize(
        ("function", "dtypes", "given", "reason"),
        [
            (_two, None, node(axis=1), "input a is required, and absent"),
            (_two, None, node(None, "float32", axis=1), "input a is required, and absent"),
            (_two, None, node("int8", "int8", "int8", axis=1), "input 2 is not supported (at most 2 inputs are)"),
            (_two, None, node("int8", "int8", None, "int8", axis=1), "input 2 is not supported (at most 2 inputs are)"),
            (_two, FLOATS, node("int8", axis=1), "element type int8 of input a is not supported"),
            (_two, {"b": FLOATS}, node("int8", "int8", axis=1), "element type int8 of input b is not supported"),
            (_two, None, node("string", axis=1), "element type string of input a is not supported"),
            (
                _two,
                None,
                node(Value("x", kind="sequence"), axis=1),
                "input a is a sequence; only tensors are supported",
            ),
            (_two, None, node("int8"), "attribute axis is required, and absent"),
            (_two, None, node("int8", axis=1, other=2), "attribute other is not supported"),
            (
                _two,
                None,
                node("int8", axis=UnreadableAttribute()),
                "attribute axis is of a kind that is not supported",
            ),
            (
                _free,
                None,
                node("int8", any=UnreadableAttribute()),
                "attribute any is of a kind that is not supported",
            ),
            (_variadic, FLOATS, node("float32", "bool"), "element type bool of input inputs is not supported"),
        ],
    )
    def test_reason(self, function: Callable[..., Any], dtypes: Any, given: Node, reason: str) -> None:
        assert op("Op", dtypes=dtypes)(function).reason(given) == reason

    @pytest.mark.parametrize(
        ("function", "dtypes", "given"),
        [
            (_two, FLOATS, node("float32", axis=1)),
            (_two, FLOATS, node("bfloat16", "float64", axis=1, mode="y")),
            (_two, {"a": INTEGERS}, node("int8", "float32", axis=1)),
            (_two, FLOATS, node(Value("x"), axis=1)),  # an unknown element type may be a right one
            (_variadic, None, node()),
            (_variadic, None, node(*["int8"] * 40)),
            (_variadic, None, node(None, "int8")),
            (_free, None, node("int8", any=1, other="text")),
        ],
    )
    def test_taken(self, function: Callable[..., Any], dtypes: Any, given: Node) -> None:
        assert op("Op", dtypes=dtypes)(function).reason(given) is None

    def test_absent_optional_input(self) -> None:
        handler = op("Op", dtypes=FLOATS)(lambda a, b=None, c=None: a)
        assert handler.reason(node("float32", None, "float32")) is None


class TestConditions:
    def test_decline_with_words(self) -> None:
        handler = op("Op")(lambda X, axis=None: X)

        @handler.condition
        def constant_axis(given: Node) -> None:
            given.require(given.is_constant(1), "the axis is not constant")

        assert handler.reason(node("float32", "int64")) == "the axis is not constant"
        assert handler.reason(node("float32", "int64", constants={"x1": np.array(1)})) is None
        assert isinstance(constant_axis, FunctionType)  # to be used for other handlers too

    def test_attributes_by_keyword_with_their_defaults(self) -> None:
        handler = op("Op")(lambda X, *, axis=-1, mode, k=None: X)
        seen: list[tuple[int, str]] = []

        @handler.condition
        def of_mode(given: Node, *, axis: int, mode: str) -> None:
            seen.append((axis, mode))
            given.require(axis < 2, f"axis {axis}")

        assert handler.reason(node("float32", mode="a")) is None
        assert handler.reason(node("float32", mode="b", axis=3)) == "axis 3"
        assert handler.reason(node("float32")) == "attribute mode is required, and absent"
        assert seen == [(-1, "a"), (3, "b")]

    def test_an_attribute_that_the_function_does_not_have(self) -> None:
        handler = op("Op")(lambda X, *, axis=-1: X)
        with pytest.raises(ContractError, match="a condition asks for the attribute axes, which the function does not"):
            handler.condition(lambda given, *, axes: None)
        others = op("Op")(lambda X, **attributes: X)
        others.condition(lambda given, *, axes=2: given.require(axes == 1, f"axes {axes}"))
        assert others.reason(node("float32", axes=1)) is None
        assert others.reason(node("float32")) == "axes 2"

    def test_decline_by_raising(self) -> None:
        handler = op("Op")(lambda X: X)

        @handler.condition
        def never(given: Node) -> None:
            raise Decline(f"no {given.op_type} today")

        assert handler.reason(node("float32")) == "no Op today"

    def test_decline_by_returning_false(self) -> None:
        handler = op("Op")(lambda X: X)

        @handler.condition
        def is_wide(given: Node) -> bool:
            return given.rank(0) == 2

        assert handler.reason(node("float32")) == (
            "the condition TestConditions.test_decline_by_returning_false.<locals>.is_wide does not hold"
        )
        assert handler.reason(node(Value("x", "float32", (1, 1)))) is None

    def test_all_are_asked_in_order_after_the_signature(self) -> None:
        asked: list[str] = []
        handler = op("Op", dtypes=FLOATS)(lambda X: X)
        handler.condition(lambda given: asked.append("first"))
        handler.condition(lambda given: asked.append("second"))
        assert handler.reason(node("float32")) is None
        assert asked == ["first", "second"]
        assert handler.reason(node("int8")) == "element type int8 of input X is not supported"
        assert asked == ["first", "second"]

    def test_other_errors_are_not_swallowed(self) -> None:
        handler = op("Op")(lambda X: X)
        handler.condition(lambda given: given.nothing)  # type: ignore[attr-defined]
        with pytest.raises(AttributeError):
            handler.reason(node("float32"))


class TestBrokenContracts:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: op("Op", dtypes={"Y": FLOATS})(_two), r"_two: dtypes= names no input of the function: \['Y'\]"),
            (lambda: op("Op", dtypes={"axis": FLOATS})(_two), r"names no input of the function: \['axis'\]"),
            (lambda: op("Op", dtypes={"float"})(_two), "_two: dtypes= takes sets of element types, not 'float'"),
            (lambda: op("Op", dtypes={"a": {"fp16"}})(_two), "not 'fp16'"),
            (lambda: op("Op", dtypes="float32")(_two), "not 'float32'"),
            (lambda: op("Op", dtypes={"a": "float32"})(_two), "not 'float32'"),
            (lambda: op("")(_two), "there is no operator ''"),
            (lambda: op("acme:Op")(_two), "_two: 'acme:Op' is not the name of an operator: write domain::OpType"),
            (lambda: op("acme:::Op")(_two), "is not the name of an operator: write domain::OpType, with two colons"),
            (lambda: op("domain::")(_two), "there is no operator 'domain::'"),
            (lambda: op("Op", since=5, until=4)(_two), "there is no operator 'Op' of versions 5 to 4"),
            (lambda: op("Op")(lambda X, ctx: X), "ctx must be the first parameter"),
            (lambda: op("Op")(lambda X, *, ctx: X), "ctx must be the first parameter"),
        ],
    )
    def test_is_said_when_the_handler_is_made(self, make: Callable[[], Handler], message: str) -> None:
        with pytest.raises(ContractError, match=message):
            make()

    def test_what_decides_is_of_a_host_input(self) -> None:
        def rows(X, most: Host, *, axis=0):
            return X[: most.item()]

        handler = op("acme::Rows")(rows)
        for name in ("X", "axis", "least"):
            with pytest.raises(ContractError, match=f"decides\\(\\) names a Host input, and '{name}' is none"):
                handler.decides(name)
        decide = handler.decides("most")(lambda node, most, shapes: True)
        assert handler.deciding == {"most": decide}

    def test_mark_on_an_attribute(self) -> None:
        with pytest.raises(ContractError, match="axis is an attribute; Host and Anywhere mark inputs"):

            @op("Op")
            def handler(X, *, axis: Host):  # type: ignore[no-untyped-def]
                return X

    def test_annotation_that_cannot_be_read(self) -> None:
        def handler(X: NotImported) -> Any:  # type: ignore[name-defined]  # noqa: F821
            return X

        with pytest.raises(
            ContractError, match=r"handler: its annotations cannot be read .*NotImported.*TYPE_CHECKING"
        ):
            op("Op")(handler)


class TestTranslate:
    def call(self, handler: Handler, of: Node, *inputs: Any, **given: Any) -> Any:
        ctx = context(of, inputs, **given)
        return handler.translate(ctx, of)

    def test_one_output_becomes_a_tuple(self) -> None:
        assert self.call(op("Op")(lambda X: X), node("float32"), "value") == ("value",)

    @pytest.mark.parametrize("outputs", [("a", "b"), ["a", "b"]])
    def test_several_outputs_stay_as_they_are(self, outputs: Any) -> None:
        assert self.call(op("Op")(lambda X: outputs), node("float32"), 1) is outputs

    def test_inputs_are_positional_and_attributes_are_keywords(self) -> None:
        @op("Op")
        def handler(a, b=None, c=None, *rest, axis, mode="default"):  # type: ignore[no-untyped-def]
            return a, b, c, rest, axis, mode

        assert self.call(handler, node(axis=3), 1) == (1, None, None, (), 3, "default")
        assert self.call(handler, node(axis=3, mode="m"), 1, None, 2, 4, 5) == (1, None, 2, (4, 5), 3, "m")

    def test_context_comes_first(self) -> None:
        @op("Op")
        def handler(ctx, a):  # type: ignore[no-untyped-def]
            return ctx.node.label, a

        assert self.call(handler, node("float32"), 1) == ("n", 1)

    def test_free_attributes(self) -> None:
        @op("Op")
        def handler(a, **attributes):  # type: ignore[no-untyped-def]
            return (attributes,)

        assert self.call(handler, node("float32", p=1, q="r"), 1) == ({"p": 1, "q": "r"},)

    def test_a_body_arrives_ready_to_run(self) -> None:
        @op("Op")
        def handler(a, *, body, times):  # type: ignore[no-untyped-def]
            return (body(a), times)

        graph = Graph("b", (), (), (), {}, {})
        made = self.call(handler, node("float32", body=graph, times=2), 3, bodies={"body": lambda value: (value + 1,)})
        assert made == ((4,), 2)

    def test_host_form(self) -> None:
        @op("Op")
        def handler(ctx, a, *, times=2):  # type: ignore[no-untyped-def]
            return "on the device"

        @handler.host
        def on_host(a, *, times=2):  # type: ignore[no-untyped-def]
            return a * times

        assert handler.host_form is not None
        assert not handler.host_form.expands
        assert self.call(handler, node("float32"), 3, on_host=True) == (6,)
        assert self.call(handler, node("float32", times=5), 3, on_host=True) == (15,)
        assert self.call(handler, node("float32"), 3) == ("on the device",)
        assert on_host(4) == 8

    def test_host_form_may_take_the_context(self) -> None:
        handler = op("Op")(lambda a: a)

        @handler.host
        def on_host(ctx, a):  # type: ignore[no-untyped-def]
            return a, ctx.node.op_type

        assert self.call(handler, node("float32"), 3, on_host=True) == (3, "Op")

    def test_host_form_may_be_a_function_of_c(self) -> None:
        """Which does not tell its parameters: NumPy's, before 2.4."""
        handler = op("Op")(lambda a, b: a)
        handler.host(max)
        assert self.call(handler, node("float32", "float32"), 3, 4, on_host=True) == (4,)

    def test_host_form_that_expands(self) -> None:
        handler = op("Op")(lambda a: a)

        @handler.host(expands=True)
        def on_host(a):  # type: ignore[no-untyped-def]
            return a

        assert handler.host_form is not None
        assert handler.host_form.expands
        assert on_host(4) == 4


class TestContext:
    def test_cached_values_are_made_once(self) -> None:
        made = iter(["value", "another"])
        ctx = context(node(), [])
        for _ in range(3):
            assert ctx.cached("key", lambda: next(made)) == "value"
        assert ctx.cached("other", lambda: "more") == "more"

    def test_falsy_values_are_values(self) -> None:
        ctx = context(node(), [])
        assert ctx.cached("key", lambda: None) is None
        assert ctx.cached("key", lambda: "made again") is None

    def test_a_value_that_another_run_made_meanwhile_is_taken(self) -> None:
        cache: dict[Any, Any] = {}
        ctx = context(node(), [], cache=cache)

        def make() -> str:
            cache["key"] = "made by another"
            return "mine"

        assert ctx.cached("key", make) == "made by another"

    def test_prepared_constants_are_made_once(self) -> None:
        added = iter([1, 2, 3])
        cache: dict[Any, Any] = {}
        for run in range(3):
            ctx = context(node(), [10, run], constant=[True, False], cache=cache)
            assert ctx.prepared(0, lambda value: value + next(added)) == 11
            assert ctx.prepared(1, lambda value: value + 1) == run + 1

    def test_is_constant(self) -> None:
        ctx = context(node(), [1, 2], constant=[True, False])
        assert [ctx.is_constant(index) for index in range(3)] == [True, False, False]

    @pytest.mark.parametrize("key", ["keywords", ("prepared", 0), 0])
    def test_an_authors_keys_meet_no_others(self, key: Any) -> None:
        @op("Op")
        def handler(ctx, a, *, axis):  # type: ignore[no-untyped-def]
            return ctx.cached(key, lambda: "own"), ctx.prepared(0, lambda value: "prepared"), axis

        given = node("float32", axis=1)
        ctx = context(given, [1], constant=[True])
        for _ in range(2):
            assert handler.translate(ctx, given) == ("own", "prepared", 1)


class TestArrays:
    @pytest.mark.parametrize("dtype", sorted(ANY))
    def test_element_types_go_to_the_device_and_back(self, dtype: str) -> None:
        stored = np.array([[0, 1], [3, 2]]).astype(np.uint16 if dtype == "bfloat16" else dtype)
        device = device_from_storage(stored, dtype)
        assert element_type(device) == dtype
        assert device.dtype == MLX_TYPE[dtype]
        host = to_host(device)
        np.testing.assert_array_equal(host, host_from_storage(stored, dtype))
        assert host.dtype == ("float32" if dtype == "bfloat16" else dtype)

    def test_bfloat16_storage(self) -> None:
        bits = np.array([0x3F80, 0xC000, 0x7F80], np.uint16)
        np.testing.assert_array_equal(host_from_storage(bits, "bfloat16"), np.array([1, -2, np.inf], np.float32))
        np.testing.assert_array_equal(to_host(device_from_storage(bits, "bfloat16")), [1, -2, np.inf])

    @pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 1, 1)])
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int64"])
    def test_scalars_and_empty_arrays(self, shape: tuple[int, ...], dtype: str) -> None:
        device = device_from_storage(np.ones(shape, np.uint16 if dtype == "bfloat16" else dtype), dtype)
        assert device.shape == shape
        assert to_host(device).shape == shape

    def test_arrays_where_they_belong_are_not_copied(self) -> None:
        device, host = mx.ones(2), np.ones(2)
        assert to_device(device) is device
        assert to_host(host) is host

    @pytest.mark.parametrize(
        "array",
        [
            np.arange(12, dtype=np.float32).reshape(3, 4).T,
            np.arange(12, dtype=np.float32)[::-2],
            np.broadcast_to(np.float32(3), (2, 3)),
            np.frombuffer(b"read only", np.uint8),
        ],
        ids=["transposed", "backward", "broadcast", "read only"],
    )
    def test_memory_of_any_layout(self, array: Any) -> None:
        np.testing.assert_array_equal(to_host(to_device(array)), array)

    @pytest.mark.parametrize("dtype", [mx.float32, mx.int64, mx.bfloat16], ids=["float32", "int64", "bfloat16"])
    def test_what_cannot_be_computed_is_not_read(self, dtype: mx.Dtype) -> None:
        """NumPy would make a number of it, or the process would end, by the version of MLX."""
        singular = mx.linalg.inv(mx.zeros((2, 2)), stream=mx.cpu)
        with pytest.raises(RuntimeError, match="Inverse"):
            to_host(singular.sum().astype(dtype))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: op("Op", since=True)(lambda X: X), "since and until are whole numbers, not True"),
        (lambda: op("Op", since="1")(lambda X: X), "since and until are whole numbers, not '1'"),  # type: ignore[arg-type]
        (lambda: op("Op", until=1.5)(lambda X: X), "since and until are whole numbers, not 1.5"),  # type: ignore[arg-type]
        (lambda: op("Op", since=0)(lambda X: X), "there is no operator 'Op' of versions 0 to None"),
        (lambda: op("Op")(max), "its signature cannot be read"),
        (lambda: op("Op")(coroutine), "a translator is a function, and no coroutine"),
        (lambda: op("Op")(3), "a translator is a function, and no coroutine"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_a_handler(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        make()


async def coroutine(X: Any) -> Any:
    return X


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (0, 3)])
def test_arrays_that_lie_backwards_are_brought(shape: tuple[int, ...]) -> None:
    x = np.flip(np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape))
    assert np.array_equal(np.array(to_device(x)), x)
