"""Graphs read from onnx ModelProtos."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from opgraft.errors import Decline, ModelError
from opgraft.graph import Graph, Node, UnreadableAttribute, Value, normalized_domain
from opgraft.graph.element_types import NAME_OF_ONNX, NAME_OF_ORT, ONNX_OF_NAME, ORT_OF_NAME, STORAGE
from opgraft.graph.onnx_source import graph_of_model, load_model, since_version, storage_array

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def tensor_info(name: str, shape: Any = (2,), dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto] | None = None,
    outputs: list[onnx.ValueInfoProto] | None = None,
    initializers: list[TensorProto] | None = None,
    *,
    opset: int = 21,
    ir_version: int = 10,
    more_opsets: dict[str, int] | None = None,
    **graph: Any,
) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(*each) for each in (more_opsets or {}).items())]
    proto = helper.make_graph(nodes, "g", inputs or [], outputs or [], initializers or [], **graph)
    return helper.make_model(proto, opset_imports=opsets, ir_version=ir_version)


def only_node(node: onnx.NodeProto, **model: Any) -> Node:
    (found,) = graph_of_model(model_of([node], **model)).nodes
    return found


def branch(name: str, nodes: list[onnx.NodeProto], output: str, **graph: Any) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [helper.make_empty_tensor_value_info(output)], **graph)


def if_node(then_branch: onnx.GraphProto, else_branch: onnx.GraphProto, output: str = "y") -> onnx.NodeProto:
    return helper.make_node("If", ["cond"], [output], then_branch=then_branch, else_branch=else_branch, name="if")


@pytest.mark.parametrize("texts", [["a\0b", "c"], ["a", "b", "c"], ["\0"], ["", ""], ["a\0", ""]])
def test_texts_with_nul_are_read_as_they_are(texts: list[str]) -> None:
    node = only_node(helper.make_node("Op", [], [], domain="d", one=texts[0], several=texts), more_opsets={"d": 1})
    assert node.attributes == {"one": texts[0], "several": tuple(texts)}


class TestElementTypes:
    def test_numberings_of_onnx_are_those_of_onnx(self) -> None:
        for name, number in ONNX_OF_NAME.items():
            assert TensorProto.DataType.Name(number) in (name.upper(), _PROTO_NAMES.get(name))

    def test_tables_are_inverse(self) -> None:
        assert {NAME_OF_ONNX[number]: number for number in NAME_OF_ONNX} == ONNX_OF_NAME
        assert {NAME_OF_ORT[number]: number for number in NAME_OF_ORT} == ORT_OF_NAME
        assert STORAGE.keys() == ONNX_OF_NAME.keys() == ORT_OF_NAME.keys()


_PROTO_NAMES = {"float32": "FLOAT", "float64": "DOUBLE"}


class TestAttributes:
    @pytest.mark.parametrize(
        ("given", "read"),
        [
            (3, 3),
            (0.5, 0.5),
            ("text", "text"),
            (b"\xff\x00", "\udcff\x00"),
            ([1, 2, 3], (1, 2, 3)),
            ([0.5, 1.5], (0.5, 1.5)),
            (["a", "b"], ("a", "b")),
        ],
    )
    def test_plain_kinds(self, given: Any, read: Any) -> None:
        attribute = only_node(helper.make_node("Op", [], ["y"], domain="d", a=given)).attributes["a"]
        assert attribute == read
        assert type(attribute) is type(read)

    def test_tensor(self) -> None:
        elements = np.arange(6, dtype=np.int16).reshape(2, 3)
        node = only_node(helper.make_node("Op", [], ["y"], domain="d", a=numpy_helper.from_array(elements)))
        np.testing.assert_array_equal(node.attributes["a"], elements)

    def test_graph(self) -> None:
        body = branch("body", [helper.make_node("Relu", ["x"], ["r"])], "r")
        node = only_node(helper.make_node("Op", [], ["y"], domain="d", a=body), inputs=[tensor_info("x")])
        assert node.bodies.keys() == {"a"}
        assert [each.op_type for each in node.bodies["a"].nodes] == ["Relu"]
        assert node.bodies["a"].parent is node.graph

    @pytest.mark.parametrize(
        "value",
        [
            helper.make_tensor_type_proto(FLOAT, [1]),
            helper.make_sparse_tensor(
                numpy_helper.from_array(np.ones(1, np.float32)), numpy_helper.from_array(np.zeros(1, np.int64)), [3]
            ),
            [numpy_helper.from_array(np.ones(1, np.float32))],
        ],
        ids=["type", "sparse", "tensors"],
    )
    def test_other_kinds_are_there_and_unreadable(self, value: Any) -> None:
        node = only_node(helper.make_node("Op", [], ["y"], domain="d", a=value))
        assert isinstance(node.attributes["a"], UnreadableAttribute)

    def test_untyped_attribute_is_unreadable(self) -> None:
        node = helper.make_node("Op", [], ["y"], domain="d", a=1)
        node.attribute[0].ClearField("type")
        assert isinstance(only_node(node).attributes["a"], UnreadableAttribute)


class TestInitializers:
    @pytest.mark.parametrize(
        ("elements", "dtype", "storage"),
        [
            (np.array([[1.5, -2]], np.float32), "float32", np.float32),
            (np.array([True, False]), "bool", np.bool_),
            (np.array(7, np.int64), "int64", np.int64),
            (np.zeros((0, 3), np.float64), "float64", np.float64),
            (np.array([1 + 2j], np.complex64), "complex64", np.complex64),
            (np.array([1.5, 3], ml_dtypes.bfloat16), "bfloat16", np.uint16),
            (np.array(1.5, ml_dtypes.bfloat16), "bfloat16", np.uint16),
            (np.array([1, 2], ml_dtypes.float8_e4m3fn), "float8e4m3fn", np.uint8),
            (np.array([1, 2], ml_dtypes.float8_e5m2), "float8e5m2", np.uint8),
        ],
        ids=lambda each: each if isinstance(each, str) else "",
    )
    def test_storage_form(self, elements: Any, dtype: str, storage: type[np.generic]) -> None:
        graph = graph_of_model(model_of([], initializers=[numpy_helper.from_array(elements, "w")]))
        initializer = graph.initializers["w"]
        assert initializer.value == Value("w", dtype, elements.shape)
        assert initializer.constant
        assert initializer.read().dtype == storage
        assert initializer.read().shape == elements.shape
        assert initializer.read().tobytes() == elements.tobytes()

    def test_elements_in_typed_fields(self) -> None:
        tensor = helper.make_tensor("w", TensorProto.FLOAT16, [2], [1.0, 2.5])
        assert not tensor.raw_data
        np.testing.assert_array_equal(storage_array(tensor), np.array([1, 2.5], np.float16))

    def test_strings(self) -> None:
        tensor = TensorProto(name="w", data_type=TensorProto.STRING, dims=[2], string_data=[b"a", "ü".encode()])
        initializer = graph_of_model(model_of([], initializers=[tensor])).initializers["w"]
        assert initializer.value.dtype == "string"
        assert initializer.read().tolist() == ["a", "ü"]

    @pytest.mark.parametrize(
        ("name", "elements"),
        [
            ("int4", [-8, -1, 7]),
            ("uint4", [0, 8, 15]),
            ("int2", [-2, -1, 1]),
            ("uint2", [0, 2, 3]),
            ("float4e2m1", [0b0010, 0b0111, 0b1001]),
        ],
    )
    @pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 1, 1)])
    def test_packed_types_are_read_one_to_a_byte(self, name: str, elements: list[int], shape: tuple[int, ...]) -> None:
        values = [1.0, 6.0, -0.5] if name == "float4e2m1" else elements
        tensor = helper.make_tensor("w", ONNX_OF_NAME[name], shape, values)
        graph = graph_of_model(
            model_of([helper.make_node("Op", [], ["y"], domain="d", a=tensor)], initializers=[tensor])
        )
        assert graph.initializers["w"].value == Value("w", name, shape)
        for array in (graph.initializers["w"].read(), graph.nodes[0].attributes["a"]):
            assert isinstance(array, np.ndarray)
            assert (array.dtype, array.shape) == (STORAGE[name], shape)
            assert array.reshape(-1).tolist() == elements

    def test_unknown_element_type(self) -> None:
        tensor = TensorProto(name="w", data_type=99, dims=[1])
        assert graph_of_model(model_of([], initializers=[tensor])).initializers["w"].value.dtype is None
        with pytest.raises(ModelError, match="'w'"):
            storage_array(tensor)

    def test_too_few_elements(self) -> None:
        tensor = TensorProto(name="w", data_type=FLOAT, dims=[3], raw_data=b"\0" * 8)
        with pytest.raises(ModelError, match="'w'"):
            storage_array(tensor)

    @pytest.mark.parametrize(
        ("indices", "expected"),
        [([1, 4], [[0, 5, 0], [0, 6, 0]]), ([[0, 2], [1, 0]], [[0, 0, 5], [6, 0, 0]])],
        ids=["linear", "by axis"],
    )
    def test_sparse(self, indices: list[Any], expected: list[list[int]]) -> None:
        sparse = helper.make_sparse_tensor(
            numpy_helper.from_array(np.array([5, 6], np.float32), "w"),
            numpy_helper.from_array(np.array(indices, np.int64)),
            [2, 3],
        )
        initializer = graph_of_model(model_of([], sparse_initializer=[sparse])).initializers["w"]
        assert initializer.value == Value("w", "float32", (2, 3))
        np.testing.assert_array_equal(initializer.read(), np.array(expected, np.float32))

    def test_each_has_an_identity_of_its_own(self) -> None:
        tensors = [numpy_helper.from_array(np.ones(1, np.float32), name) for name in "ab"]
        a, b = graph_of_model(model_of([], initializers=tensors)).initializers.values()
        assert a.identity != b.identity

    @pytest.mark.parametrize(("ir_version", "constant"), [(3, True), (4, False), (10, False)])
    def test_one_that_is_an_input_too_may_be_overridden_since_ir_4(self, ir_version: int, constant: bool) -> None:
        tensor = numpy_helper.from_array(np.ones(2, np.float32), "w")
        node = helper.make_node("Relu", ["w"], ["y"])
        model = model_of([node], [tensor_info("w", ["n"])], [tensor_info("y", None)], [tensor], ir_version=ir_version)
        graph = graph_of_model(model)
        assert graph.initializers["w"].constant is constant
        (relu,) = graph.nodes
        assert relu.is_constant(0) is constant
        assert (relu.constant(0) is not None) is constant
        assert relu.shape(0) == ((2,) if constant else ("n",))


class TestExternalData:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        tensor = numpy_helper.from_array(np.arange(300, dtype=np.float32), "w")
        model = model_of([helper.make_node("Relu", ["w"], ["y"])], [], [tensor_info("y", None)], [tensor])
        path = tmp_path / "model.onnx"
        onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
        return path

    def test_is_read_when_asked_for(self, path: Path) -> None:
        initializer = graph_of_model(load_model(path), path.parent).initializers["w"]
        assert initializer.value == Value("w", "float32", (300,))
        np.testing.assert_array_equal(initializer.read(), np.arange(300, dtype=np.float32))

    def test_missing_file(self, path: Path) -> None:
        path.with_name("weights.bin").unlink()
        graph = graph_of_model(load_model(path), path.parent)
        with pytest.raises(ModelError, match=r"'w'.*weights\.bin"):
            graph.initializers["w"].read()

    def test_short_file(self, path: Path) -> None:
        path.with_name("weights.bin").write_bytes(b"\0" * 100)
        graph = graph_of_model(load_model(path), path.parent)
        with pytest.raises(ModelError, match="'w'"):
            graph.initializers["w"].read()


class TestConstantNodes:
    @pytest.mark.parametrize(
        ("attribute", "expected"),
        [
            ({"value": numpy_helper.from_array(np.eye(2, dtype=np.int8))}, np.eye(2, dtype=np.int8)),
            ({"value_int": 3}, np.array(3, np.int64)),
            ({"value_ints": [3, 4]}, np.array([3, 4], np.int64)),
            ({"value_float": 0.5}, np.array(0.5, np.float32)),
            ({"value_floats": [0.5, 1]}, np.array([0.5, 1], np.float32)),
            ({"value_string": "a"}, np.array("a", object)),
            ({"value_strings": ["a", "b"]}, np.array(["a", "b"], object)),
        ],
        ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
    )
    def test_become_initializers(self, attribute: dict[str, Any], expected: Any) -> None:
        graph = graph_of_model(model_of([helper.make_node("Constant", [], ["c"], **attribute)]))
        assert graph.nodes == ()
        initializer = graph.initializers["c"]
        assert initializer.constant
        assert initializer.value.shape == expected.shape
        assert initializer.read().dtype == expected.dtype
        np.testing.assert_array_equal(initializer.read(), expected)

    def test_sparse_value(self) -> None:
        sparse = helper.make_sparse_tensor(
            numpy_helper.from_array(np.array([5], np.float32)), numpy_helper.from_array(np.array([1], np.int64)), [3]
        )
        graph = graph_of_model(model_of([helper.make_node("Constant", [], ["c"], sparse_value=sparse)]))
        np.testing.assert_array_equal(graph.initializers["c"].read(), np.array([0, 5, 0], np.float32))

    def test_of_another_domain_stay_nodes(self) -> None:
        node = helper.make_node("Constant", [], ["c"], domain="other", value_int=3)
        graph = graph_of_model(model_of([node], more_opsets={"other": 1}))
        assert [each.operator for each in graph.nodes] == ["other::Constant"]
        assert not graph.initializers


class TestNodes:
    def test_absent_inputs_and_outputs(self) -> None:
        node = helper.make_node("Op", ["", "a", "", "b", "", ""], ["", "y", ""], domain="d")
        found = only_node(node, inputs=[tensor_info("a"), tensor_info("b")])
        assert [value and value.name for value in found.inputs] == [None, "a", None, "b"]
        assert [value and value.name for value in found.outputs] == [None, "y", None]
        assert found.needed_outputs == 2
        assert [found.wants(index) for index in range(4)] == [False, True, False, False]
        assert found.input(0) is found.input(9) is None
        assert (found.dtype(1), found.dtype(0), found.dtype(9)) == ("float32", None, None)
        assert (found.shape(1), found.shape(0), found.rank(1), found.rank(0)) == ((2,), None, 1, None)

    def test_label(self) -> None:
        assert only_node(helper.make_node("Op", [], ["y"], domain="d", name="n")).label == "n"
        assert only_node(helper.make_node("Op", [], ["", "y"], domain="d")).label == "Op (-> y)"
        assert only_node(helper.make_node("Op", [], [], domain="d")).label == "Op (-> ?)"

    def test_require(self) -> None:
        node = only_node(helper.make_node("Op", [], ["y"], domain="d"))
        node.require([1], "unused")
        with pytest.raises(Decline, match=r"^too bad$"):
            node.require([], "too bad")

    @pytest.mark.parametrize(("domain", "operator"), [("", "ai.onnx::Relu"), ("ai.onnx", "ai.onnx::Relu")])
    def test_domain_is_normalized(self, domain: str, operator: str) -> None:
        assert only_node(helper.make_node("Relu", ["x"], ["y"], domain=domain)).operator == operator

    def test_opset_domains_are_normalized(self) -> None:
        graph = graph_of_model(model_of([], opset=13, more_opsets={"ai.onnx.ml": 3}))
        assert graph.opsets == {"ai.onnx": 13, "ai.onnx.ml": 3}

    def test_normalized_domain(self) -> None:
        assert [normalized_domain(each) for each in ("", "ai.onnx", "com.microsoft")] == [
            "ai.onnx",
            "ai.onnx",
            "com.microsoft",
        ]

    @pytest.mark.parametrize(
        ("op_type", "domain", "opset", "version"),
        [
            ("Relu", "ai.onnx", 21, 14),
            ("Relu", "ai.onnx", 13, 13),
            ("Relu", "ai.onnx", 12, 6),
            ("Relu", "ai.onnx", 1, 1),
            ("LinearClassifier", "ai.onnx.ml", 3, 1),
            ("LayerNormalization", "ai.onnx", 16, 16),  # no such operator yet
            ("Nothing", "com.example", 7, 7),
        ],
    )
    def test_opset_gives_the_operators_version(self, op_type: str, domain: str, opset: int, version: int) -> None:
        assert since_version(op_type, domain, opset) == version

    def test_since_version_of_a_node(self) -> None:
        assert only_node(helper.make_node("Relu", ["x"], ["y"]), opset=13).since_version == 13
        custom = helper.make_node("Op", ["x"], ["y"], domain="d")
        assert only_node(custom, more_opsets={"d": 4}).since_version == 4
        assert only_node(custom).since_version == 1  # no opset import for its domain

    def test_constant_elements_of_inputs(self) -> None:
        shape = numpy_helper.from_array(np.array([3, 2], np.int64), "shape")
        node = only_node(
            helper.make_node("Reshape", ["x", "shape"], ["y"]), inputs=[tensor_info("x")], initializers=[shape]
        )
        np.testing.assert_array_equal(node.constant(1), [3, 2])
        assert node.constant(0) is node.constant(5) is None
        assert [node.is_constant(index) for index in (0, 1, 5)] == [False, True, False]

    def test_whether_an_input_is_constant_is_known_without_reading_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tensor = numpy_helper.from_array(np.ones(2, np.float32), "w")
        node = only_node(helper.make_node("Relu", ["w"], ["y"]), initializers=[tensor])
        monkeypatch.setattr("onnx.numpy_helper.to_array", lambda *_args, **_keywords: pytest.fail("it was read"))
        assert node.is_constant(0)


class TestTypes:
    @pytest.mark.parametrize(
        ("shape", "read", "static", "rank"),
        [
            ((2, 3), (2, 3), (2, 3), 2),
            ((), (), (), 0),
            ((0, 4), (0, 4), (0, 4), 2),
            (("n", 3), ("n", 3), None, 2),
            ((None, 3), (None, 3), None, 2),
            ((-1, 3), (None, 3), None, 2),
            (None, None, None, None),
        ],
    )
    def test_shapes(self, shape: Any, read: Any, static: Any, rank: int | None) -> None:
        (value,) = graph_of_model(model_of([], [tensor_info("x", shape)])).inputs
        assert (value.shape, value.static_shape, value.rank, value.dtype) == (read, static, rank, "float32")

    def test_no_type_at_all(self) -> None:
        (value,) = graph_of_model(model_of([], [helper.make_empty_tensor_value_info("x")])).inputs
        assert value == Value("x")

    @pytest.mark.parametrize(
        ("proto", "kind"),
        [
            (helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None)), "sequence"),
            (helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, None)), "optional"),
            (helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, None)), "map"),
            (helper.make_sparse_tensor_type_proto(FLOAT, [2]), "sparse_tensor"),
        ],
    )
    def test_no_tensor(self, proto: onnx.TypeProto, kind: str) -> None:
        (value,) = graph_of_model(model_of([], [helper.make_value_info("x", proto)])).inputs
        assert value == Value("x", kind=kind)

    def test_inference_fills_in_what_is_not_declared(self) -> None:
        nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Relu", ["x"], ["y"])]
        graph = graph_of_model(model_of(nodes, [tensor_info("x", ["n", 3])]))
        outputs = [node.outputs[0] for node in graph.nodes]
        assert outputs == [Value("s", "int64", (2,)), Value("y", "float32", ("n", 3))]

    def test_a_model_that_inference_refuses_keeps_its_own_types(self) -> None:
        nodes = [helper.make_node("MatMul", ["x", "x"], ["y"])]
        graph = graph_of_model(model_of(nodes, [tensor_info("x", [2, 3])], [tensor_info("y", [7])]))
        assert graph.outputs == (Value("y", "float32", (7,)),)

    def test_unknown_operators_leave_types_unknown(self) -> None:
        node = only_node(helper.make_node("Op", ["x"], ["y"], domain="d"), inputs=[tensor_info("x")])
        assert node.outputs == (Value("y"),)


class TestOrder:
    def test_nodes_follow_their_producers(self) -> None:
        nodes = [
            helper.make_node("Relu", ["b"], ["c"], name="third"),
            helper.make_node("Relu", ["x"], ["a"], name="first"),
            helper.make_node("Relu", ["x"], ["z"], name="apart"),
            helper.make_node("Relu", ["a"], ["b"], name="second"),
        ]
        graph = graph_of_model(model_of(nodes, [tensor_info("x")]))
        assert [node.name for node in graph.nodes] == ["first", "apart", "second", "third"]

    def test_sorted_nodes_stay_as_they_are(self) -> None:
        nodes = [helper.make_node("Relu", ["x"], [name], name=name) for name in "zyw"]
        graph = graph_of_model(model_of(nodes, [tensor_info("x")]))
        assert [node.name for node in graph.nodes] == ["z", "y", "w"]

    def test_what_a_body_reads_counts(self) -> None:
        body = branch("b", [helper.make_node("Relu", ["late"], ["r"])], "r")
        nodes = [if_node(body, body), helper.make_node("Op", ["x"], ["late"], name="producer", domain="d")]
        graph = graph_of_model(model_of(nodes, [tensor_info("x"), tensor_info("cond", [], TensorProto.BOOL)]))
        assert [node.name for node in graph.nodes] == ["producer", "if"]
        assert [value.name for value in graph.nodes[1].implicit_inputs] == ["late"]

    @pytest.mark.parametrize(
        "edges",
        [[("a", "a")], [("b", "a"), ("a", "b")], [("x", "n"), ("c", "a"), ("a", "b"), ("b", "c"), ("c", "z")]],
        ids=["itself", "two", "three of five"],
    )
    def test_cycles(self, edges: list[tuple[str, str]]) -> None:
        nodes = [helper.make_node("Relu", [source], [target], name=target) for source, target in edges]
        with pytest.raises(ModelError, match=r"cycle, at or before node '[abcz]'"):
            graph_of_model(model_of(nodes, [tensor_info("x")]))

    @pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 1, 0)])
    def test_two_nodes_that_give_one_name(self, order: tuple[int, ...]) -> None:
        nodes = [helper.make_node("Relu", [source], ["y"], name=source) for source in "xa"]
        nodes.append(helper.make_node("Relu", ["y"], ["a"], name="b"))
        with pytest.raises(ModelError, match="both have an output named 'y'"):
            graph_of_model(model_of([nodes[each] for each in order], [tensor_info("x")]))

    def test_cycle_in_a_body(self) -> None:
        body = branch("b", [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Relu", ["b"], ["a"])], "a")
        with pytest.raises(ModelError, match="cycle"):
            graph_of_model(model_of([if_node(body, body)]))


class TestBodies:
    @pytest.fixture
    def graph(self) -> Graph:
        """An If within an If: the inner branches read names from every level."""
        inner = branch(
            "inner",
            [helper.make_node("Op", ["x", "w", "m", "k"], ["deep"], domain="d", name="reader")],
            "deep",
            initializer=[numpy_helper.from_array(np.full(3, 9, np.float32), "k")],
        )
        outer = branch(
            "outer",
            [helper.make_node("Op", ["x"], ["m"], domain="d", name="middle"), if_node(inner, inner, "i")],
            "i",
        )
        weights = [numpy_helper.from_array(np.full(2, value, np.float32), name) for name, value in (("w", 1), ("k", 2))]
        inputs = [tensor_info("x"), tensor_info("cond", [], TensorProto.BOOL)]
        return graph_of_model(model_of([if_node(outer, outer)], inputs, [], weights))

    def test_implicit_inputs_are_what_comes_from_outside(self, graph: Graph) -> None:
        (outer_if,) = graph.nodes
        assert [value.name for value in outer_if.implicit_inputs] == ["x", "cond", "w"]
        inner_if = outer_if.bodies["then_branch"].nodes[1]
        assert [value.name for value in inner_if.implicit_inputs] == ["x", "w", "m"]

    def test_types_of_outer_values_are_known_inside(self, graph: Graph) -> None:
        reader = next(node for node in graph.all_nodes() if node.name == "reader")
        assert reader.inputs[0] == Value("x", "float32", (2,))

    def test_the_innermost_initializer_is_meant(self, graph: Graph) -> None:
        reader = next(node for node in graph.all_nodes() if node.name == "reader")
        np.testing.assert_array_equal(reader.constant(1), [1, 1])
        np.testing.assert_array_equal(reader.constant(3), [9, 9, 9])
        assert reader.shape(3) == (3,)
        assert reader.constant(2) is None

    def test_a_runtime_value_hides_an_outer_initializer(self) -> None:
        body = branch(
            "b", [helper.make_node("Op", [], ["w"], domain="d"), helper.make_node("Relu", ["w"], ["r"], name="r")], "r"
        )
        weights = [numpy_helper.from_array(np.ones(2, np.float32), "w")]
        graph = graph_of_model(model_of([if_node(body, body)], initializers=weights))
        reader = next(node for node in graph.all_nodes() if node.name == "r")
        assert reader.constant(0) is None
        assert reader.inputs == (Value("w"),)
        assert graph.nodes[0].implicit_inputs == ()

    def test_all_nodes_go_all_the_way_down(self, graph: Graph) -> None:
        names = [node.name for node in graph.all_nodes()]
        assert names == ["if", "middle", "if", "reader", "reader", "middle", "if", "reader", "reader"]

    def test_an_output_that_is_an_outer_value_is_read_from_outside(self) -> None:
        body = branch("b", [], "x")
        graph = graph_of_model(model_of([if_node(body, body)], [tensor_info("x")]))
        assert [value.name for value in graph.nodes[0].implicit_inputs] == ["x"]
        assert graph.nodes[0].bodies["then_branch"].outputs == (Value("x", "float32", (2,)),)


class TestFiles:
    def test_a_good_file(self, tmp_path: Path) -> None:
        path = tmp_path / "model.onnx"
        onnx.save(model_of([helper.make_node("Relu", ["x"], ["y"])]), path)
        assert [node.op_type for node in load_model(path).graph.node] == ["Relu"]
        assert [node.op_type for node in load_model(str(path)).graph.node] == ["Relu"]

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"nothing\.onnx: no such file"):
            load_model(tmp_path / "nothing.onnx")

    def test_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="a folder, not a model file"):
            load_model(tmp_path)

    @pytest.mark.parametrize("suffix", [".onnx", ".json", ".textproto", ".onnxtxt"])
    @pytest.mark.parametrize(
        "spoil",
        [
            lambda data: data[: len(data) // 2],
            lambda data: data[:-1],
            lambda data: b"",
            lambda data: b"\x7fELF" + data,
            lambda data: b'{"graph": 1}',
            lambda data: b"hello, world\n",
        ],
        ids=["half", "one byte short", "empty", "another format", "json", "text"],
    )
    def test_spoiled(self, tmp_path: Path, spoil: Callable[[bytes], bytes], suffix: str) -> None:
        path = tmp_path / f"model{suffix}"
        tensor = numpy_helper.from_array(np.ones(100, np.float32), "w")
        path.write_bytes(spoil(_bytes(tensor)))
        with pytest.raises(ModelError, match=f"model{suffix}: not an ONNX model"):
            load_model(path)


def _bytes(tensor: TensorProto) -> bytes:
    """A model whose graph is the last thing in the file, so that every cut goes through it."""
    model = model_of([helper.make_node("Relu", ["w"], ["y"])], initializers=[tensor])
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    bare.ClearField("graph")
    rest = onnx.ModelProto()
    rest.graph.CopyFrom(model.graph)
    return bytes(bare.SerializeToString() + rest.SerializeToString())
