"""A graph that is written as a model and run on the CPU execution provider gives what the model gave that it is of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from reporting_models import DETECTOR, parsed

from opgraft import ort_values
from opgraft.comparison import difference
from opgraft.errors import ModelError
from opgraft.graph import Graph, Initializer, Node, Value
from opgraft.graph.element_types import NARROW, ONNX_OF_NAME, STORAGE
from opgraft.graph.extraction import extracted, makers
from opgraft.graph.onnx_source import graph_of_model
from opgraft.graph.onnx_writer import MOST_BYTES, model_of_graph
from opgraft.host import observed
from opgraft.nested import cpu_session
from opgraft.sessions import decided_session, options_with_provider, sample_inputs

Feeds = dict[str, Any]


def run(model: onnx.ModelProto | str, feeds: Feeds) -> list[Any]:
    session = cpu_session(model if isinstance(model, str) else model.SerializeToString())
    wanted = {each.name for each in session.get_inputs()}
    return ort_values.run(session, {name: array for name, array in feeds.items() if name in wanted})


def by_name(graph: Graph, feeds: Feeds) -> Feeds:
    """What a graph gives, by name."""
    return dict(zip((value.name for value in graph.outputs), run(model_of_graph(graph), feeds), strict=True))


def same(outputs: Sequence[Any], expected: Sequence[Any]) -> None:
    for output, wanted in zip(outputs, expected, strict=True):
        assert np.asarray(output).dtype == np.asarray(wanted).dtype
        np.testing.assert_array_equal(output, wanted)


def live(model: Any, look: Any) -> list[Any]:
    """What `look` gives for the graphs that a session shows."""
    with observed(lambda decisions: look(decisions.graph)) as seen:
        decided_session(model)
    return seen


def test_a_models_pieces_give_what_the_whole_gives() -> None:
    """The live graph is cut in two at several places; one piece feeds the other."""
    feeds = sample_inputs(cpu_session(DETECTOR), {"batch": 2, "height": 64, "width": 96}).inputs
    expected = run(DETECTOR, feeds)

    def look(graph: Graph) -> list[tuple[list[str], Feeds]]:
        found = []
        names = [value.name for value in graph.outputs]
        for share in (0.0, 0.2, 0.5, 0.8):
            cut = int(share * len(graph.nodes))
            known: Feeds = dict(feeds)
            for indices in filter(None, (range(cut), range(cut, len(graph.nodes)))):
                piece = extracted(graph, indices)
                assert {value.name for value in piece.inputs} <= known.keys()
                known.update(by_name(piece, known))
            found.append((names, known))
        return found

    for names, known in live(DETECTOR, look)[0]:
        for name, wanted in zip(names, expected, strict=True):
            assert difference(known[name], wanted) <= 1e-5


def test_extraction_leaves_the_graph_as_it_is() -> None:
    graph = graph_of_model(
        parsed(
            "g (bool c, float[n] x) => (float[n] y) { z = Neg(x)  y = If(c)"
            "<then_branch = a () => (float[n] p) { p = Abs(z) }, else_branch = b () => (float[n] q) { q = Relu(z) }> }"
        )
    )
    branch = graph.nodes[1]
    piece = extracted(graph, [1])
    assert [value.name for value in piece.inputs] == ["c", "z"]
    assert [value.name for value in piece.outputs] == ["y"]
    assert all(node.graph is graph for node in graph.nodes)
    assert all(body.parent is graph for body in branch.bodies.values())
    assert all(body.parent is piece for body in piece.nodes[0].bodies.values())
    assert makers(graph, ["y"]) == [0, 1]
    assert makers(graph, ["z"]) == [0]
    x = np.array([-1, 2], np.float32)
    for condition, expected in ((True, [1, 2]), (False, [0, 2])):
        same(run(model_of_graph(graph), {"c": np.array(condition), "x": -x}), [np.array(expected, np.float32)])


@pytest.mark.parametrize("dtype", sorted(STORAGE))
def test_constants_of_every_element_type(dtype: str) -> None:
    """As an initializer, and as an attribute, from a file and from a live graph; the bits are compared."""
    number = ONNX_OF_NAME[dtype]
    if dtype == "string":
        tensor = helper.make_tensor("w", number, [3], ["a", "", "ü"])
    else:
        values = [0.0, 1.0, 1.0] if dtype in ("bool", "float8e8m0", "uint2", "int2") else [0.0, 1.0, 3.0]
        tensor = helper.make_tensor("w", number, [3], [1.0, 1.0, 2.0] if dtype == "float8e8m0" else values)
    node = helper.make_node("Identity", ["w"], ["y"])
    output = helper.make_tensor_value_info("y", number, [3])
    model = helper.make_model(
        helper.make_graph([node], "g", [], [output], [tensor]),
        opset_imports=[helper.make_opsetid("", 25)],
    )
    graph = graph_of_model(model)
    written = model_of_graph(graph)
    (found,) = written.graph.initializer
    expected = onnx.numpy_helper.to_array(tensor)
    assert found.data_type == number
    assert onnx.numpy_helper.to_array(found).tolist() == expected.tolist()
    again = graph_of_model(written).initializers["w"]
    assert again.value == graph.initializers["w"].value
    np.testing.assert_array_equal(again.read(), graph.initializers["w"].read())

    carried = helper.make_node("Any", [], ["y"], domain="acme", value=tensor)
    attribute = model_of_graph(_graph_of(carried, model)).graph.node[0].attribute[0]
    assert attribute.t.data_type == number
    assert onnx.numpy_helper.to_array(attribute.t).tolist() == expected.tolist()


def _graph_of(node: onnx.NodeProto, like: onnx.ModelProto) -> Graph:
    model = onnx.ModelProto()
    model.CopyFrom(like)
    model.opset_import.add(domain=node.domain, version=1)
    del model.graph.node[:]
    model.graph.node.append(node)
    return graph_of_model(model)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8e4m3fn", "float16", "float32", "int64"])
def test_a_live_tensor_attribute_keeps_its_element_type(dtype: str) -> None:
    value = helper.make_tensor("value", ONNX_OF_NAME[dtype], [1], [1.0])
    node = helper.make_node("ConstantOfShape", ["s"], ["y"], value=value)
    info = helper.make_tensor_value_info("y", ONNX_OF_NAME[dtype], [None])
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("s", TensorProto.INT64, [1])], [info])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)

    def look(shown: Graph) -> Any:
        return model_of_graph(shown).graph.node[0].attribute[0].t

    options = options_with_provider({"device": "cpu"})
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with observed(lambda decisions: look(decisions.graph)) as seen:
        onnxruntime.InferenceSession(model.SerializeToString(), options)
    assert seen[0].data_type == value.data_type
    assert onnx.numpy_helper.to_array(seen[0]).tolist() == [1.0]


def test_attributes_of_every_kind() -> None:
    given = {
        "whole": 3,
        "part": 0.5,
        "text": "a\0b",
        "wholes": [1, -2],
        "parts": [0.5, 2.0],
        "texts": ["a", "", "c"],
        "tensor": helper.make_tensor("t", TensorProto.INT4, [3], [1, -2, 3]),
        "body": helper.make_graph([], "inner", [], []),
    }
    node = helper.make_node("Any", ["x"], ["y"], domain="acme", **given)
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x", "y")]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("acme", 4)]
    model = helper.make_model(helper.make_graph([node], "g", info[:1], info[1:]), opset_imports=opsets)
    written = model_of_graph(graph_of_model(model))
    found = {each.name: helper.get_attribute_value(each) for each in written.graph.node[0].attribute}
    expected = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    tensor = onnx.numpy_helper.to_array(found.pop("tensor"))
    assert tensor.tolist() == onnx.numpy_helper.to_array(expected.pop("tensor")).tolist()
    assert found.pop("body").name == expected.pop("body").name
    assert found == expected
    assert {each.domain: each.version for each in written.opset_import} == {"": 21, "acme": 4}


def test_a_list_of_nothing_keeps_its_kind() -> None:
    node = Node(
        "n",
        "LabelEncoder",
        "ai.onnx.ml",
        4,
        (Value("x", "int64", (1,)),),
        (Value("y"),),
        {
            "keys_floats": (),
            "values_strings": (),
            "keys_int64s": (),
        },
    )
    graph = Graph("g", (Value("x", "int64", (1,)),), (Value("y"),), (node,), {}, {"ai.onnx": 21, "ai.onnx.ml": 4})
    kinds = {each.name: each.type for each in model_of_graph(graph).graph.node[0].attribute}
    kind = onnx.AttributeProto
    assert kinds == {"keys_floats": kind.FLOATS, "values_strings": kind.STRINGS, "keys_int64s": kind.INTS}


@pytest.mark.parametrize(
    ("dtype", "least"), [("float32", 10), ("int4", 10), ("float4e2m1", 11), ("float8e8m0", 12), ("int2", 13)]
)
def test_the_ir_version_has_the_element_types(dtype: str, least: int) -> None:
    value = Value("x", dtype, (2,))
    node = Node("", "Identity", "ai.onnx", 1, (value,), (Value("y", dtype, (2,)),), {})
    written = model_of_graph(Graph("g", (value,), (Value("y", dtype, (2,)),), (node,), {}, {"ai.onnx": 17}))
    assert written.ir_version == least
    assert dtype in NARROW or least == 10


def test_what_cannot_be_written_is_refused_with_the_reason() -> None:
    sequence = Value("s", kind="sequence")
    with pytest.raises(ModelError, match="input 's' is not known to be a tensor"):
        model_of_graph(Graph("g", (sequence,), (), (), {}, {"ai.onnx": 21}))

    def unread() -> Any:
        raise AssertionError("nothing is read of what is too large")

    large = {name: Initializer(Value(name, "float32", (MOST_BYTES // 8,)), unread) for name in "abc"}
    with pytest.raises(ModelError, match=r"the constants take 3\.2 GB"):
        model_of_graph(Graph("g", (), (), (), large, {"ai.onnx": 21}))

    typed = parsed("g (float[n] x) => (float[n] y) { y = Identity(x) }")
    optional = helper.make_node("Optional", [], ["o"], type=helper.make_tensor_type_proto(TensorProto.FLOAT, [1]))
    typed.graph.node.append(optional)
    with pytest.raises(ModelError, match=r"attribute 'type' of node .*Optional.* is of a kind that is not read"):
        model_of_graph(graph_of_model(typed))


def test_an_input_with_a_default_keeps_it(tmp_path: Path) -> None:
    model = parsed("g (float[2] x, float[2] w = {1, 2}) => (float[2] y) { y = Add(x, w) }")
    x = np.array([1, 1], np.float32)
    written = model_of_graph(graph_of_model(model))
    same(run(written, {"x": x}), [x + np.array([1, 2], np.float32)])
    same(run(written, {"x": x, "w": x}), [x + np.array([1, 2], np.float32)])
    piece = extracted(graph_of_model(model), [0])
    assert [value.name for value in piece.inputs] == ["x", "w"]
    same(run(model_of_graph(piece), {"x": x, "w": x}), [x + x])
