"""What a schema may say, what is inferred by it, and which operators of packs ONNX Runtime is told of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import opgraft.registry as registry_module
from opgraft import doctor, schemas
from opgraft.cli import main
from opgraft.engine import read_model
from opgraft.engine.inference import infer_outputs
from opgraft.errors import ContractError
from opgraft.graph import Graph, Node, Shape, Value
from opgraft.ops import ANY, FLOATS, Handler, Host, Output, Tensors, op
from opgraft.ops.schema import AttributeKind
from opgraft.registry import UNKNOWN_VERSION, Pack, Registry, installed_packs, parse_policy
from opgraft.testing import check_declined, check_node

Translator = Callable[..., Any]


def registry_of(*handlers: Handler, policy: str = "", **packs: Sequence[Handler]) -> Registry:
    by_name: dict[str, Sequence[Handler]] = {**({"acme": handlers} if handlers else {}), **packs}
    found = [Pack(name, plugins=tuple(each)) for name, each in by_name.items()]
    return Registry(found, parse_policy(policy, "registry.yaml"))


def make(function: Translator, name: str = "acme::It", **arguments: Any) -> Handler:
    return op(name, **arguments)(function)


def inferred(
    handlers: Handler | Sequence[Handler],
    *inputs: tuple[str, Shape | None] | None,
    version: int = UNKNOWN_VERSION,
    outputs: int = 1,
    **attributes: Any,
) -> list[tuple[str | None, Shape | None]]:
    """Element types and shapes of the outputs of a node."""
    registry = registry_of(*([handlers] if isinstance(handlers, Handler) else handlers))
    (definition,) = registry.definitions.values()
    values = tuple(each and Value(f"x{index}", *each) for index, each in enumerate(inputs))
    results = tuple(Value(f"y{index}") for index in range(outputs))
    node = Node("it", definition.op_type, definition.domain, version, values, results, attributes)
    Graph("g", tuple(each for each in values if each), results, (node,), {}, {})
    return [(each.dtype, each.shape) for each in infer_outputs(node, definition)]


# The contract


def test_kinds_of_attributes_come_from_annotations_then_defaults() -> None:
    def it(
        X: Any,
        *,
        a: int,
        b: float = 1,
        c: str | None = None,
        d: list[int] | None = None,
        e: tuple[float, ...] = (),
        f: Sequence[str] = (),
        g: np.ndarray[Any, Any] | None = None,
        h: bool = True,
    ) -> Any:
        return X

    def bare(X, *, a=1, b=1.0, c="x", d=(1, 2), e=[1, 2.5], f=("x",), g=np.zeros(1), h=False):  # type: ignore[no-untyped-def]  # noqa: B006, B008
        return X

    kind = AttributeKind
    expected = [kind.INT, kind.FLOAT, kind.STRING, kind.INTS, kind.FLOATS, kind.STRINGS, kind.TENSOR, kind.INT]
    for function in (it, bare):
        handler = make(function)
        handler.schema()
        assert handler.definition is not None
        assert dict(handler.definition.kinds) == dict(zip("abcdefgh", expected, strict=True))


def _no_kind(X, *, a=None):  # type: ignore[no-untyped-def]
    return X


def _empty(X, *, a=()):  # type: ignore[no-untyped-def]
    return X


def _mixed(X, *, a=(1, "x")):  # type: ignore[no-untyped-def]
    return X


def _odd(X: Any, *, a: dict[str, int]) -> Any:
    return X


def _either(X: Any, *, a: int | str = 1) -> Any:
    return X


@pytest.mark.parametrize("function", [_no_kind, _empty, _mixed, _odd, _either])
def test_a_kind_that_cannot_be_told(function: Translator) -> None:
    with pytest.raises(ContractError, match="the kind of attribute a cannot be told; annotate it with int, float"):
        make(function).schema()


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ((), "takes names of outputs"),
        ("Y", "takes names of outputs"),
        (("Y", "Y"), "names one output twice"),
        (("Y", "Y?"), "names one output twice"),
        (("Y...", "Z"), "only the last output can be variadic"),
        (("Y?", "Z"), "stands after an optional one"),
        (("a b",), "takes names"),
        ((3,), "takes names"),
        (("Y?...",), "takes names"),
        (("Y...?",), "takes names"),
        (("Y??",), "takes names"),
        (("Y.",), "takes names"),
        (("?",), "takes names"),
        ({"Y": "float33"}, "'float33' is neither an element type nor an input"),
        ({"Y": "string"}, "'string' is neither an element type nor an input"),
    ],
)
def test_outputs_that_cannot_be(outputs: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        make(lambda X: X).schema(outputs=outputs)


@pytest.mark.parametrize("default", [2**70, -(2**63) - 1, 2**63, 1e39, -4e38, (1, 2**64), [1.0, 1e40]])
def test_defaults_beyond_what_an_attribute_holds(default: Any) -> None:
    with pytest.raises(ContractError, match=r"attribute a: its default .* is beyond what an attribute holds"):
        make(lambda X, *, a=default: X)


@pytest.mark.parametrize("default", [2**63 - 1, -(2**63), float("inf"), 3.4e38, (1, 2), None, "text", True])
def test_defaults_that_an_attribute_holds(default: Any) -> None:
    assert make(lambda X, *, a=default: X).signature.attributes == {"a": default}


def _of_another_kind(X: Any, *, a: int = 1.5) -> Any:  # type: ignore[assignment]
    return X


def test_a_default_of_another_kind_than_its_annotation() -> None:
    with pytest.raises(ContractError, match=r"attribute a is of the kind INT, and its default, 1\.5, is not"):
        make(_of_another_kind).schema()


def _of_sequences(X: Tensors) -> Any:
    return X[0]


def test_what_no_schema_can_be_made_of() -> None:
    with pytest.raises(ContractError, match="names all of its attributes"):
        make(lambda X, **more: X).schema()
    with pytest.raises(ContractError, match="inputs and outputs are tensors, not sequences"):
        make(_of_sequences).schema()
    with pytest.raises(ContractError, match="of one operator"):
        make(lambda X: X, "acme::*").schema()
    with pytest.raises(ContractError, match="from 1 to 1000"):
        make(lambda X: X, since=1001).schema()
    with pytest.raises(ContractError, match="takes the inputs that the operator has"):
        make(lambda X, Y: X).schema(lambda X: X)
    with pytest.raises(ContractError, match="takes the inputs that the operator has"):
        make(lambda *X: X[0]).schema(lambda X: X)


def test_the_forms_of_the_decorator() -> None:
    handler = make(lambda X: (X, X))

    @handler.schema
    def plain(X: Any) -> Any:
        return X

    assert handler.definition is not None and handler.definition.inference is plain
    assert [each.name for each in handler.definition.outputs] == ["Y"]

    @handler.schema(outputs=("a", "b?", "c..."))
    def named(X: Any) -> Any:
        return X, X

    assert handler.definition.inference is named
    assert handler.definition.required_outputs == 1
    assert [(each.name, each.required, each.variadic) for each in handler.definition.outputs] == [
        ("a", True, False),
        ("b", False, False),
        ("c", False, True),
    ]
    assert handler.definition.output(7) is handler.definition.outputs[2]


# Inference by the translator


@pytest.mark.parametrize(
    ("function", "inputs", "outputs"),
    [
        (lambda X: X, [("float32", ("N", 3))], [("float32", ("N", 3))]),
        (lambda X: X > 0, [("float32", ("N", None))], [("bool", ("N", None))]),
        (lambda X: X[None], [("float32", ())], [("float32", (1,))]),
        (lambda X: X.T, [("float32", ("N", "M"))], [("float32", ("M", "N"))]),
        (lambda X: X.reshape(-1), [("float32", ("N", "M"))], [("float32", (None,))]),
        (lambda X: X.reshape(-1), [("float32", (4, 5))], [("float32", (20,))]),
        (lambda X: X[:3], [("float32", ("N",))], [("float32", (None,))]),
        (lambda X: X, [("float32", (0, "N"))], [("float32", (0, "N"))]),
        (lambda X: X, [("bfloat16", ("N",))], [("bfloat16", ("N",))]),
        (lambda X: mx.zeros((2, 2)), [("float32", ("N",))], [("float32", (2, 2))]),
        (lambda X: (X, X > 0), [("float32", ("N",))], [("float32", ("N",)), ("bool", ("N",))]),
        (lambda X, Y: X + Y, [("float32", ("N", 3)), ("float32", ("N", 3))], [("float32", ("N", 3))]),
        (lambda X, Y: X + Y, [("float32", ("N", 3)), ("float32", ("M", 3))], [("float32", (None, 3))]),
        (lambda X, Y: X + Y, [("float32", ("N", None)), ("float32", ("N", None))], [("float32", (None, None))]),
        (lambda X, Y: X @ Y, [("float32", ("N", "K")), ("float32", ("K", "M"))], [("float32", ("N", "M"))]),
        (lambda X, Y=None: X if Y is None else Y, [("float32", ("N",))], [("float32", ("N",))]),
        (lambda X: X.reshape(X.shape[0] // 16, 16), [("float32", ("N",))], [("float32", (None, 16))]),
        (lambda X: X, [("float32", None)], [("float32", None)]),
        (lambda X: X > 0, [("float32", None)], [("bool", None)]),
        (lambda X: mx.sum(X), [("float32", None)], [("float32", ())]),
        (lambda X: X[:, 0], [("float32", None)], [("float32", None)]),
        (lambda X, Y: X * Y, [("float32", ("N", 4)), ("float32", None)], [("float32", None)]),
    ],
)
def test_inference_by_the_translator(
    function: Translator, inputs: Sequence[Any], outputs: Sequence[tuple[str, Shape | None]]
) -> None:
    handler = make(function)
    handler.schema(outputs=tuple(f"y{index}" for index in range(len(outputs))))
    assert inferred(handler, *inputs, outputs=len(outputs)) == outputs


def test_many_unknown_dimensions_have_one_size() -> None:
    handler = make(lambda X: X)
    handler.schema()
    shape = tuple(f"d{axis}" for axis in range(12))
    assert inferred(handler, ("float32", shape)) == [("float32", (None,) * 12)]


def test_nothing_is_inferred_of_what_no_handler_takes() -> None:
    handler = make(lambda X: X * 2.0, dtypes=FLOATS)
    handler.schema()
    assert inferred(handler, ("int64", (3,))) == []


def test_an_inference_that_fails_names_node_operator_and_pack() -> None:
    handler = make(lambda X: X.reshape(7, 7))
    handler.schema()
    with pytest.raises(ContractError, match=r"acme::It \[acme\], node 'it': the inference failed: ValueError"):
        inferred(handler, ("float32", ("N",)))


def test_what_a_handler_declines_is_told_in_its_own_words_where_no_inference_can_be() -> None:
    handler = make(lambda X: X.reshape(7, 7))
    handler.schema()

    @handler.condition
    def _(node: Node) -> None:
        node.require(node.shape(0) == (7, 7), "X must be 7 x 7")

    with pytest.raises(ContractError, match=r"node 'it': X must be 7 x 7 \(which is why the inference failed: "):
        inferred(handler, ("float32", ("N",)))
    assert inferred(handler, ("float32", (7, 7))) == [("float32", (7, 7))]


def test_declared_element_types_stand_beside_shapes_by_translation() -> None:
    handler = make(lambda X: X.astype(mx.uint8), dtypes={"X": {"float8e4m3fn", "float32"}})
    handler.schema(outputs={"Y": "float8e4m3fn"})
    assert inferred(handler, ("float32", ("N",))) == [("float8e4m3fn", ("N",))]
    hosted = make(lambda X: X, dtypes={"X": ANY})

    def cut(X: Any, to: Host) -> Any:
        return X[: int(to)]

    hosted = make(cut)
    hosted.schema(outputs={"Y": "X"})
    assert inferred(hosted, ("int16", ("N",)), ("int64", ())) == [("int16", None)]


def test_an_inference_function_gets_the_attributes_that_it_names() -> None:
    handler = make(_power)

    @handler.schema
    def _(X: Any, bias: Any, *, keep: int) -> Any:
        return (X if keep else Output("float64", ())) if bias is None else bias

    assert inferred(handler, ("float32", ("N",))) == [("float32", ("N",))]
    assert inferred(handler, ("float32", ("N",)), keep=0) == [("float64", ())]
    assert inferred(handler, ("float32", ("N",)), ("int8", (1,))) == [("int8", (1,))]


def _power(X: Any, bias: Any = None, *, keep: int = 1, exponent: float = 2.0) -> Any:
    return X**exponent


# Definitions


def versions() -> tuple[Handler, Handler]:
    """Version 1 takes an attribute, version 3 an input."""

    def first(X: Any, *, axis: int) -> Any:
        return mx.sum(X, axis=axis)

    def third(X: Any, axis: Host, *, keep: int = 0) -> Any:
        return mx.sum(X, axis=int(axis), keepdims=bool(keep))

    one = make(first, "acme::Sum", since=1, until=2)
    three = make(third, "acme::Sum", since=3, dtypes={"axis": {"int64"}})
    one.schema()
    three.schema(outputs={"Y": "X"})
    return one, three


def test_versions_become_one_schema() -> None:
    (definition,) = registry_of(*versions()).definitions.values()
    assert definition.since == 1
    assert [(each.name, each.required, each.dtype) for each in definition.inputs] == [
        ("X", True, None),
        ("axis", False, "int64"),
    ]
    assert definition.attribute_kinds == {"axis": AttributeKind.INT, "keep": AttributeKind.INT}
    assert [definition.version(opset) for opset in (1, 2, 3, 9)] == [1, 1, 3, 3]
    one, _ = versions()
    (alone,) = registry_of(one).definitions.values()
    assert [alone.version(opset) for opset in (1, 2, 3)] == [1, 1, 3]


def test_inference_is_of_the_version_that_the_form_shows() -> None:
    assert inferred(versions(), ("float32", ("N", 3)), axis=0) == [("float32", (3,))]
    assert inferred(versions(), ("float32", ("N", 3)), ("int64", ())) == [("float32", None)]
    assert inferred(versions(), ("float32", ("N", 3))) == []


def test_inference_of_several_versions_says_what_they_agree_on() -> None:
    first, second = make(lambda X: X, until=1), make(lambda X: X[0], since=2)
    first.schema()
    second.schema()
    node = ("float32", (4, 5))
    assert inferred([first, second], node) == [("float32", None)]
    assert inferred([first, second], node, version=1) == [("float32", (4, 5))]
    assert inferred([first, second], node, version=7) == [("float32", (5,))]


def test_several_handlers_for_several_element_types() -> None:
    whole = make(lambda X: X.astype(mx.int64), dtypes={"int32"})
    real = make(lambda X: X, dtypes=FLOATS)
    whole.schema()
    real.schema()
    assert inferred([whole, real], ("int32", (3,))) == [("int64", (3,))]
    assert inferred([whole, real], ("float16", (3,))) == [("float16", (3,))]


def test_versions_that_overlap() -> None:
    """A handler that came later, for more element types, makes no second meaning of the first one's nodes."""
    real = make(lambda X: X, since=1, dtypes=FLOATS)
    whole = make(lambda X: X, since=2, dtypes={"int32"})
    last = make(lambda X: X[0], since=3, dtypes=FLOATS)
    for handler in (whole, real, last):
        handler.schema()
    assert inferred([whole, real], ("float32", (3, 4))) == [("float32", (3, 4))]
    assert inferred([whole, real], ("int32", (3, 4))) == [("int32", (3, 4))]
    assert inferred([last, whole, real], ("float32", (3, 4))) == [("float32", None)]
    assert inferred([last, whole, real], ("float32", (3, 4)), version=2) == [("float32", (3, 4))]


@pytest.mark.parametrize(
    ("policy", "pack"),
    [
        ("", None),
        ("packs: [one]", None),  # two unlisted packs are left, which are asked before
        ("packs: [one, two]", "three"),
        ("packs: [one, two, three]", "one"),
        ("packs: [three, two, one]", "three"),
        ('ops: {"acme::It": {prefer: [two]}}', "two"),
        ('ops: {"acme::*": {allow: [two]}}', "two"),
        ('ops: {"acme::It": {deny: [one]}}', None),
        ("disable: [one, two]", "three"),
    ],
)
def test_whose_definition_counts(policy: str, pack: str | None) -> None:
    handlers = {name: make(lambda X: X) for name in ("one", "two", "three")}
    for handler in handlers.values():
        handler.schema()
    registry = registry_of(policy=policy, **{name: [handler] for name, handler in handlers.items()})
    candidates = registry.candidates("acme::It")
    if pack is None:
        assert not registry.definitions and not candidates
        assert "nothing says whose counts" in registry.undefined["acme::It"].reason
        assert "nothing says whose counts" in registry.nobody("acme::It")[0].text
    else:
        assert registry.definitions["acme::It"].pack == pack
        assert [each.handler for each in candidates] == [handlers[pack]]


def test_a_definition_that_the_registry_denies() -> None:
    handler = make(lambda X: X)
    handler.schema()
    registry = registry_of(handler, policy='ops: {"acme::It": {deny: ["*"]}}')
    assert not registry.definitions
    assert registry.undefined["acme::It"].reason == "registry.yaml denies it (ops: 'acme::It')"


def test_what_is_told_and_what_is_left_out() -> None:
    def reshaped(X: Any, shape: Host) -> Any:
        return X.reshape(shape.tolist())

    good, host = make(lambda X: X, "acme::Good"), make(reshaped, "acme::Host")
    narrow = make(lambda X: X, "acme::Narrow", dtypes={"int4"})
    known, nul = make(lambda X: X, "com.microsoft::Gelu"), make(lambda X: X, "acme::N\0l")
    for handler in (good, host, narrow, known, nul):
        handler.schema()
    registry = registry_of(good, host, narrow, known, nul)
    assert list(schemas.told(registry)) == ["acme::Good"]
    reasons = {operator: each.reason for operator, each in schemas.left_out(registry).items()}
    assert "input shape is Host; give .schema a function" in reasons["acme::Host"]
    assert "MLX lacks int4" in reasons["acme::Narrow"]
    assert "onnxruntime has a schema of it already" in reasons["com.microsoft::Gelu"]
    assert "NUL" in reasons["acme::N\0l"]


# Files, the test kit, the command line


def test_types_go_through_chains_and_bodies_of_a_file() -> None:
    handler = make(lambda X: X)
    handler.schema()

    def it(source: str, target: str) -> onnx.NodeProto:
        return helper.make_node("It", [source], [target], domain="acme")

    empty = helper.make_empty_tensor_value_info
    body = helper.make_graph([it("c", "d"), helper.make_node("Neg", ["d"], ["e"])], "body", [], [empty("e")])
    nodes = [
        it("x", "a"),
        helper.make_node("Transpose", ["a"], ["b"]),
        it("b", "c"),
        helper.make_node("If", ["t"], ["y"], then_branch=body, else_branch=body),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3]),
        helper.make_tensor_value_info("t", TensorProto.BOOL, []),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [empty("y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 5)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    before = model.SerializeToString()
    read = read_model(model, registry_of(handler).definitions)
    assert model.SerializeToString() == before
    assert (read.outputs[0].dtype, read.outputs[0].shape) == ("float32", (3, "N"))
    inner = read.nodes[3].bodies["then_branch"]
    assert (inner.outputs[0].dtype, inner.outputs[0].shape) == ("float32", (3, "N"))
    assert [node.since_version for node in read.all_nodes() if node.op_type == "It"] == [1, 1, 1, 1]


def test_the_test_kit() -> None:
    handler = make(_power, dtypes=FLOATS)
    handler.schema()
    registry = registry_of(handler)
    x = np.array([1, 2, 3], np.float32)
    check_node("acme::It", x, reference=[x**3], exponent=3.0, registry=registry)
    check_declined("acme::It", x, because="attribute more is not supported", more=1, registry=registry)
    check_declined("acme::It", x, because="attribute keep is not of the kind INT", keep="x", registry=registry)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pack with a schema that cannot be told."""
    handler = make(lambda X: X, "com.microsoft::Gelu")
    handler.schema()
    packs = (*installed_packs(), Pack("acme", plugins=(handler,)))
    monkeypatch.setattr(registry_module, "installed_packs", lambda: packs)
    registry_module._load.cache_clear()
    yield
    registry_module._load.cache_clear()


def test_the_command_line_says_what_is_left_out(broken: Any) -> None:
    result = CliRunner().invoke(main, ["packs"])
    text = " ".join(result.output.split())
    assert "left out: com.microsoft::Gelu, which acme would define: onnxruntime has a schema of it already" in text


def test_the_doctor_says_what_is_left_out(broken: Any) -> None:
    found: Mapping[str, doctor.Check] = {check.name: check for check in doctor.checks()}
    assert not found["registry"].good
    assert "com.microsoft::Gelu is left out" in found["registry"].detail


def test_an_operator_that_nobody_defines_is_told_of_with_the_likeliest_one() -> None:
    registry = Registry([Pack("acme", plugins=(op("acme::TopMean")(lambda X: X),))], parse_policy("", "registry.yaml"))
    handler = op("acme::TopMean")(lambda X: X)
    handler.schema()
    defining = Registry([Pack("acme", plugins=(handler,))], parse_policy("", "registry.yaml"))
    model = helper.make_model(
        helper.make_graph([helper.make_node("TopMeen", ["x"], ["y"], domain="acme")], "g", [], []),
        opset_imports=[helper.make_opsetid("acme", 1)],
    )
    assert schemas.unknown_operators(model, defining) == [
        "acme::TopMeen: no installed pack defines it (did you mean acme::TopMean?)"
    ]
    assert schemas.unknown_operators(model, registry) == [
        "acme::TopMeen: no installed pack defines it (`opgraft packs` lists them)"
    ]
