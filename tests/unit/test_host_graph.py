"""What a session shows in GetCapability and Compile, as `opgraft.graph` objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import host_models
import numpy as np
import onnx
import pytest
from host_models import model_of, open_session, tensor
from onnx import TensorProto, helper

import opgraft.host as host
from opgraft.errors import ModelError
from opgraft.graph import Graph, Node, UnreadableAttribute
from opgraft.graph.onnx_source import graph_of_model
from opgraft.host import ep
from opgraft.plan import build_plan

FLOAT = TensorProto.FLOAT
ODD_TEXTS = ["é", "", b"\xff\xfe", "x" * 1000]


@dataclass
class Seen:
    """One graph that was shown, and its initializers, which can be read only while it is."""

    graph: Graph
    initializers: dict[str, Any]


def _elements(graph: Graph) -> dict[str, Any]:
    elements: dict[str, Any] = {}
    for name, initializer in graph.initializers.items():
        try:
            elements[name] = initializer.read().copy()
        except ModelError as error:
            elements[name] = error
    return elements


@pytest.fixture
def seen() -> Iterator[list[Seen]]:
    with host.observed(lambda decisions: Seen(decisions.graph, _elements(decisions.graph))) as graphs:
        yield graphs


def shown(model: onnx.ModelProto | Path, seen: list[Seen]) -> Seen:
    """The model's graph as a session shows it, with nothing rewritten."""
    open_session(model, optimized=False)
    return seen[-1]


def node_of(graph: Graph, op_type: str) -> Node:
    return next(node for node in graph.nodes if node.op_type == op_type)


def every_attribute() -> onnx.ModelProto:
    """A model with an attribute of each kind but GRAPH: ints, floats, strings, with odd bytes, and a tensor."""
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["c"], axis=-1, name="int"),
        helper.make_node("LeakyRelu", ["c"], ["l"], alpha=0.125, name="float"),
        helper.make_node("Transpose", ["l"], ["t"], perm=[1, 0], name="ints"),
        helper.make_node("Scaler", ["t"], ["s"], domain="ai.onnx.ml", offset=[0.5], scale=[2.0], name="floats"),
        helper.make_node("Shape", ["s"], ["shape"], name="shape"),
        helper.make_node("ConstantOfShape", ["shape"], ["filled"], value=tensor("v", [1.5]), name="tensor"),
        helper.make_node("DepthToSpace", ["d"], ["e"], blocksize=1, mode="CRD", name="string"),
        helper.make_node(
            "LabelEncoder",
            ["text"],
            ["n"],
            domain="ai.onnx.ml",
            keys_strings=ODD_TEXTS,
            values_int64s=[1, 2, 3, 4],
            default_string="",
            name="strings",
        ),
    ]
    return model_of(
        nodes,
        {"x": (FLOAT, ["N", 2]), "d": (FLOAT, [1, 4, 2, 2]), "text": (TensorProto.STRING, ["T"])},
        {"filled": (FLOAT, None), "e": (FLOAT, None), "n": (TensorProto.INT64, None)},
        domains={"ai.onnx.ml": 3},
    )


def encoder(keys: Sequence[str], default: str = "") -> onnx.ModelProto:
    node = helper.make_node(
        "LabelEncoder",
        ["text"],
        ["n"],
        domain="ai.onnx.ml",
        keys_strings=keys,
        values_int64s=range(len(keys)),
        default_string=default,
    )
    inputs, outputs = {"text": (TensorProto.STRING, ["T"])}, {"n": (TensorProto.INT64, None)}
    return model_of([node], inputs, outputs, domains={"ai.onnx.ml": 3})


@pytest.mark.parametrize("text", ["", "a", "\0", "a\0", "a\0b", "a\0\0"])
def test_a_text_may_hold_nul_anywhere(text: str, seen: list[Seen]) -> None:
    graph = shown(encoder(["a"], text), seen).graph
    assert node_of(graph, "LabelEncoder").attributes["default_string"] == text


def test_onnxruntime_gives_a_list_of_texts_with_nul_as_it_gives_a_longer_list(seen: list[Seen]) -> None:
    """Which is why such a list cannot be declined: should this fail, it can be told, and must be."""
    given = [["a\0b", "c"], ["a", "b\0c"], ["a", "b", "c"]]
    read = [node_of(shown(encoder(keys), seen).graph, "LabelEncoder").attributes["keys_strings"] for keys in given]
    assert read == [("a", "b", "c")] * 3


def test_attributes_of_every_kind(seen: list[Seen]) -> None:
    graph = shown(every_attribute(), seen).graph
    assert node_of(graph, "Concat").attributes == {"axis": -1}
    assert node_of(graph, "LeakyRelu").attributes == {"alpha": 0.125}
    assert node_of(graph, "Transpose").attributes == {"perm": (1, 0)}
    assert node_of(graph, "Scaler").attributes == {"offset": (0.5,), "scale": (2.0,)}
    assert node_of(graph, "DepthToSpace").attributes == {"blocksize": 1, "mode": "CRD"}
    encoder = node_of(graph, "LabelEncoder").attributes
    assert encoder["keys_strings"] == ("é", "", "\udcff\udcfe", "x" * 1000)
    assert encoder["values_int64s"] == (1, 2, 3, 4)
    assert encoder["default_string"] == ""
    value = node_of(graph, "ConstantOfShape").attributes["value"]
    assert isinstance(value, np.ndarray)
    assert value.dtype == np.float32
    assert value.tolist() == [1.5]
    assert node_of(graph, "Scaler").domain == "ai.onnx.ml"
    assert graph.opsets["ai.onnx"] == host_models.OPSET
    assert graph.opsets["ai.onnx.ml"] == 3


def test_both_sources_give_the_same_nodes(seen: list[Seen]) -> None:
    model = every_attribute()
    live, read = shown(model, seen).graph, graph_of_model(model)
    assert [value.name for value in live.inputs] == [value.name for value in read.inputs]
    assert [value.name for value in live.outputs] == [value.name for value in read.outputs]
    by_name = {node.name: node for node in read.nodes}
    assert {node.name for node in live.nodes} == set(by_name)
    for node in live.nodes:
        other = by_name[node.name]
        assert (node.operator, node.since_version) == (other.operator, other.since_version)
        assert [value and value.name for value in node.inputs] == [value and value.name for value in other.inputs]
        assert [value and value.name for value in node.outputs] == [value and value.name for value in other.outputs]
        assert other.attributes.keys() <= node.attributes.keys()  # ONNX Runtime adds defaults
        for name, value in other.attributes.items():
            np.testing.assert_equal(node.attributes[name], value)


def test_an_attribute_that_the_api_does_not_give_is_there_by_name(seen: list[Seen]) -> None:
    optional = helper.make_node("Optional", [], ["o"], name="empty")
    optional.attribute.append(helper.make_attribute("type", helper.make_tensor_type_proto(FLOAT, [2])))
    has = helper.make_node("OptionalHasElement", ["o"], ["h"])
    graph = shown(model_of([optional, has], {}, {"h": (TensorProto.BOOL, [])}), seen).graph
    node = node_of(graph, "Optional")
    assert isinstance(node.attributes["type"], UnreadableAttribute)
    assert [value and value.kind for value in node.outputs] == ["optional"]


def test_shapes_and_kinds(seen: list[Seen]) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["unknown_size"]),
        helper.make_node("ReduceSum", ["r"], ["scalar"], keepdims=0),
        helper.make_node("SequenceConstruct", ["r"], ["sequence"]),
        helper.make_node("SequenceLength", ["sequence"], ["length"]),
        helper.make_node("Clip", ["x", "", "scalar"], ["clipped"], name="absent in the middle"),
        helper.make_node("Clip", ["x", "scalar", ""], ["other"], name="absent at the end"),
    ]
    outputs = {name: (FLOAT, None) for name in ("clipped", "other")} | {
        "unknown_size": (TensorProto.INT64, None),
        "length": (TensorProto.INT64, None),
    }
    graph = shown(model_of(nodes, {"x": (FLOAT, ["N", 3, None])}, outputs), seen).graph
    values = {value.name: value for node in graph.nodes for value in (*node.inputs, *node.outputs) if value}
    assert values["x"].dtype == "float32"
    shape = values["x"].shape
    assert shape is not None
    assert shape[:2] == ("N", 3)
    assert not isinstance(shape[2], int)
    assert values["scalar"].shape == ()
    assert values["unknown_size"].rank == 2
    assert values["unknown_size"].dtype == "int64"
    assert values["sequence"].kind == "sequence"
    assert values["sequence"].dtype is None
    clips = {node.name: node for node in graph.nodes if node.op_type == "Clip"}
    assert [value and value.name for value in clips["absent in the middle"].inputs] == ["x", None, "scalar"]
    assert [value and value.name for value in clips["absent at the end"].inputs] == ["x", "scalar"]


def test_nodes_are_in_topological_order(seen: list[Seen]) -> None:
    nodes = [helper.make_node("Neg", [f"v{index}"], [f"v{index + 1}"]) for index in reversed(range(50))]
    graph = shown(model_of(nodes[::-1], {"v0": (FLOAT, [2])}, {"v50": (FLOAT, [2])}), seen).graph
    known = {"v0"}
    for node in graph.nodes:
        assert {value.name for value in node.inputs if value} <= known
        known |= {value.name for value in node.outputs if value}


def test_a_node_with_many_inputs(seen: list[Seen]) -> None:
    node = helper.make_node("Sum", [f"x{index}" for index in range(300)], ["z"])
    model = model_of([node], {f"x{index}": (FLOAT, [1]) for index in range(300)}, {"z": (FLOAT, [1])})
    graph = shown(model, seen).graph
    assert [value.name for value in graph.nodes[0].inputs if value] == [f"x{index}" for index in range(300)]


def test_a_tensor_attribute_of_a_packed_type(seen: list[Seen]) -> None:
    value = helper.make_tensor("v", TensorProto.INT4, [1], [-3])
    node = helper.make_node("ConstantOfShape", ["shape"], ["filled"], value=value)
    model = model_of([node], {"shape": (TensorProto.INT64, [1])}, {"filled": (TensorProto.INT4, None)})
    model.opset_import[0].version = 21
    found = node_of(shown(model, seen).graph, "ConstantOfShape").attributes["value"]
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.tolist()) == (np.int8, [-3])


def test_initializers(seen: list[Seen]) -> None:
    int4 = helper.make_tensor("int4", TensorProto.INT4, [3], [1, -2, 3])
    bfloat16 = helper.make_tensor("bfloat16", TensorProto.BFLOAT16, [2], [1.0, -2.0])
    initializers = [
        tensor("weights", [[1, 2], [3, 4]]),
        tensor("scalar", 7, np.int64),
        tensor("empty", np.zeros((0, 3))),
        tensor("text", ["a", "é", ""], object),
        bfloat16,
        int4,
        tensor("overridable", [5.0]),
    ]
    nodes = [helper.make_node("Identity", [each.name], [f"{each.name}_out"]) for each in initializers if each != int4]
    nodes.append(helper.make_node("DequantizeLinear", ["int4", "scale"], ["int4_out"]))
    initializers.append(tensor("scale", 0.5))
    outputs = {
        f"{each.name}_out": (each.data_type, None) for each in initializers if each.name not in ("int4", "scale")
    }
    model = model_of(nodes, {"overridable": (FLOAT, [1])}, {**outputs, "int4_out": (FLOAT, [3])}, initializers)
    model.opset_import[0].version = 21
    found = shown(model, seen)
    elements = found.initializers
    assert elements["weights"].tolist() == [[1, 2], [3, 4]]
    assert elements["scalar"].shape == ()
    assert elements["scalar"] == 7
    assert elements["scalar"].dtype == np.int64
    assert elements["empty"].shape == (0, 3)
    assert elements["text"].dtype == object
    assert elements["text"].tolist() == ["a", "é", ""]
    assert elements["bfloat16"].dtype == np.uint16
    assert elements["bfloat16"].tolist() == [0x3F80, 0xC000]
    assert elements["int4"].dtype == np.int8
    assert elements["int4"].tolist() == [1, -2, 3]
    constant = {name: initializer.constant for name, initializer in found.graph.initializers.items()}
    assert not constant.pop("overridable")
    assert all(constant.values())


def test_initializers_cannot_be_read_afterwards(seen: list[Seen]) -> None:
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["z"])], {"x": (FLOAT, [2])}, {"z": (FLOAT, [2])}, [tensor("w", [1, 2])]
    )
    initializer = shown(model, seen).graph.initializers["w"]
    with pytest.raises(ModelError, match="cannot be read any more"):
        initializer.read()


def test_external_data(seen: list[Seen], tmp_path: Path) -> None:
    weights = np.arange(20000, dtype=np.float32).reshape(100, 200)
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["z"])],
        {"x": (FLOAT, [100, 200])},
        {"z": (FLOAT, [100, 200])},
        [tensor("w", weights)],
    )
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    session = open_session(path)
    np.testing.assert_array_equal(seen[-1].initializers["w"], weights)
    np.testing.assert_array_equal(session.run(None, {"x": weights})[0], 2 * weights)


def nested_model() -> onnx.ModelProto:
    """Bodies in bodies. `k` is another constant in each branch; `w`, `w2` and `w3` come from the outermost graph."""

    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, FLOAT, [3])

    inner_then = helper.make_graph(
        [helper.make_node("Mul", ["a", "w"], ["p"]), helper.make_node("Add", ["p", "w3"], ["it"])],
        "inner then",
        [],
        [value("it")],
    )
    inner_else = helper.make_graph([helper.make_node("Sub", ["a", "k"], ["ie"])], "inner else", [], [value("ie")])
    outer_then = helper.make_graph(
        [
            helper.make_node("Mul", ["a", "k"], ["t0"]),
            helper.make_node("If", ["c"], ["t1"], then_branch=inner_then, else_branch=inner_else),
            helper.make_node("Add", ["t0", "t1"], ["to"]),
        ],
        "then",
        [],
        [value("to")],
        [tensor("k", [1, 2, 3])],
    )
    outer_else = helper.make_graph(
        [helper.make_node("Add", ["x", "w2"], ["e0"]), helper.make_node("Mul", ["e0", "k"], ["eo"])],
        "else",
        [],
        [value("eo")],
        [tensor("k", [7, 7, 7])],
    )
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"]),
        helper.make_node("If", ["c"], ["b"], then_branch=outer_then, else_branch=outer_else),
        helper.make_node("Abs", ["b"], ["n"]),
        helper.make_node("Add", ["n", "w"], ["z"]),
    ]
    weights = [tensor(name, [number] * 3) for name, number in (("w", 1), ("w2", 2), ("w3", 3))]
    inputs = {"x": (FLOAT, [3]), "c": (TensorProto.BOOL, [])}
    return model_of(nodes, inputs, {"z": (FLOAT, [3])}, weights)


def check_bodies(conditional: Node) -> None:
    assert {value.name for value in conditional.implicit_inputs} == {"a", "c", "w", "w2", "w3", "x"}
    then, other = conditional.bodies["then_branch"], conditional.bodies["else_branch"]
    assert then.parent is other.parent is conditional.graph
    assert list(then.initializers) == list(other.initializers) == ["k"]
    inner = node_of(then, "If").bodies["then_branch"]
    assert inner.parent is then
    for name in ("w", "w3"):
        assert inner.find_initializer(name) is conditional.graph.initializers[name]
    assert node_of(then, "If").bodies["else_branch"].find_initializer("k") is then.initializers["k"]
    assert inner.find_initializer("a") is None


def test_bodies_see_what_encloses_them(seen: list[Seen]) -> None:
    found = shown(nested_model(), seen)
    assert [item.graph.name for item in seen] == ["model"]  # bodies are not shown alone
    assert found.graph.parent is None
    check_bodies(node_of(found.graph, "If"))


def test_compiled_graphs_carry_the_outer_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Compile a graph holds a cluster alone; what its bodies take from the model's own graph must be found."""
    graphs: list[Seen] = []
    plans: list[Any] = []

    def decide(graph: Graph, *arguments: Any, **options: Any) -> Any:
        return type("Decisions", (), {"clusters": [[0, 1], [3]], "declined": [], "decisions": []})

    def plan_of(graph: Graph, inputs: list[str], outputs: list[str]) -> Any:
        graphs.append(Seen(graph, _elements(graph)))
        plans.append(build_plan(graph, inputs, outputs))
        return plans[-1]

    monkeypatch.setattr(ep, "decide", decide)
    monkeypatch.setattr(ep, "build_plan", plan_of)
    monkeypatch.setattr(ep, "Program", lambda plan, *rest: type("Program", (), {"plan": plan}))
    open_session(nested_model(), optimized=False)
    first, second = graphs
    check_bodies(node_of(first.graph, "If"))
    assert {name: elements[0] for name, elements in first.initializers.items()} == {"w": 1, "w2": 2, "w3": 3}
    assert {name: elements[0] for name, elements in second.initializers.items()} == {"w": 1}
    assert sorted(value.name for value in plans[0].inputs) == ["c", "x"]
    assert [value.name for value in plans[0].output_values] == ["b"]
    assert [value.name for value in plans[1].inputs] == ["n"]
    assert first.graph.initializers["w"].identity == second.graph.initializers["w"].identity
    then, other = node_of(first.graph, "If").bodies.values()
    assert then.initializers["k"].identity != other.initializers["k"].identity
