"""Files that are no sound models, of kinds that the fuzzer of files found: each is an ordinary error, a reason to
decline, or ONNX Runtime's own answer."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import onnx
import onnxruntime
import pytest
from host_models import add_model, model_of, open_session, run_script, tensor
from onnx import TensorProto, external_data_helper, helper
from reporting_models import registry_of, reported

import opgraft.graph.completion as completion
import opgraft.sessions
from opgraft.claims import decide
from opgraft.comparison import disagreements, run_timed
from opgraft.engine import read_model
from opgraft.errors import ModelError
from opgraft.graph.completion import completed, completed_apart
from opgraft.graph.onnx_source import graph_of_model, load_model, since_version, storage_array
from opgraft.ops import Anywhere, Host, op
from opgraft.randomness import random_outputs
from opgraft.registry import load_registry
from opgraft.sessions import open_cpu_session, survey

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def declined(model: onnx.ModelProto) -> list[str]:
    """Why nodes of a file are declined."""
    decisions = decide(read_model(model, {}), load_registry(), device="cpu")
    return [reason.text for _, reasons in decisions.declined for reason in reasons]


class TestReading:
    def test_a_function_that_calls_itself(self) -> None:
        call = helper.make_node("F", ["x"], ["y"], domain="acme")
        model = model_of([call], {"x": (FLOAT, [1])}, {"y": (FLOAT, [1])}, domains={"acme": 1})
        opsets = list(model.opset_import)
        model.functions.append(helper.make_function("acme", "F", ["x"], ["y"], [call], opsets))
        assert [node.op_type for node in graph_of_model(model).nodes] == ["F"]
        assert survey(model).coverage.note

    @pytest.mark.parametrize("outputs", [[], [""], ["a", "b"]])
    def test_a_constant_without_its_one_output(self, outputs: Sequence[str]) -> None:
        node = helper.make_node("Constant", [], outputs, value_int=1)
        graph = graph_of_model(model_of([node], {}, {"y": (INT64, [])}))
        assert [each.op_type for each in graph.nodes] == ["Constant"]

    @pytest.mark.parametrize("name", ["value_int", "value_string", "value", "sparse_value"])
    def test_a_constant_whose_attribute_is_of_another_type(self, name: str) -> None:
        node = helper.make_node("Constant", [], ["y"])
        node.attribute.append(helper.make_attribute(name, [1.0, 2.0]))
        graph = graph_of_model(model_of([node], {}, {"y": (INT64, [])}))
        assert not graph.initializers

    @pytest.mark.parametrize("opset", [2**31, 2**62, -(2**31) - 1])
    def test_an_opset_beyond_all(self, opset: int) -> None:
        assert since_version("Add", "ai.onnx", opset) == opset

    @pytest.mark.parametrize(
        ("dims", "places", "says"),
        [
            ([], [[0]], "too many indices"),
            ([3], [7], "out of bounds"),
            ([2, 3], [[0, 9]], "out of bounds"),
            ([-1], [0], "negative"),
            ([2**40, 2**40], [0], "too"),
            ([2**40], [0], "too large|Unable to allocate"),
            ([2, 3], [[0, 0], [1, 1]], "broadcast|shape mismatch"),
        ],
    )
    def test_a_sparse_initializer_that_does_not_fit(self, dims: list[int], places: Any, says: str) -> None:
        model = add_model(shape=[3])
        values = tensor("y", [1.0] if len(places) == 1 else [1.0, 2.0, 3.0])
        sparse = helper.make_sparse_tensor(values, tensor("", places, np.int64), dims)
        del model.graph.input[1]
        model.graph.sparse_initializer.append(sparse)
        found = graph_of_model(model).initializers["y"]
        with pytest.raises(ModelError, match=f"sparse tensor 'y'.*({says})"):
            found.read()


NO_FILE = "is no file in the model's folder"


class TestExternalData:
    """What lies outside of the model's folder is never read, and nothing is that has no end."""

    @pytest.mark.parametrize(
        ("location", "more", "says"),
        [
            ("missing", {}, NO_FILE),
            ("data", {"offset": 2**62}, ""),
            ("data", {"offset": -5}, ""),
            ("data", {"offset": "x"}, ""),
            ("data", {"length": 4}, ""),
            ("pipe", {}, NO_FILE),
            ("link", {}, NO_FILE),
            ("zero", {}, NO_FILE),
            ("away/outside", {}, NO_FILE),
            ("../outside", {}, NO_FILE),
            ("/dev/zero", {}, NO_FILE),
            (".", {}, NO_FILE),
            ("", {}, NO_FILE),
            ("a\0b", {}, "null"),
            ("n" * 5000, {}, "too long"),
        ],
    )
    def test_of_no_use(self, location: str, more: dict[str, Any], says: str, tmp_path: Path) -> None:
        folder = tmp_path / "model"
        folder.mkdir()
        for path in (folder / "data", tmp_path / "outside"):
            path.write_bytes(bytes(16))
        os.mkfifo(folder / "pipe")
        for name, target in (("link", "../outside"), ("zero", "/dev/zero"), ("away", "..")):
            (folder / name).symlink_to(target)
        lies = external(location, more)
        with pytest.raises(ModelError, match=f"tensor 't': .*{says}"):
            storage_array(lies, folder)
        model = model_of([helper.make_node("Add", ["x", "t"], ["y"])], {"x": (FLOAT, [4])}, {"y": (FLOAT, [4])}, [lies])
        onnx.save(model, folder / "model.onnx")
        with pytest.raises(ModelError):
            opgraft.sessions.open_session(folder / "model.onnx")

    def test_that_is_there(self, tmp_path: Path) -> None:
        (tmp_path / "data").write_bytes(np.arange(6, dtype=np.float32).tobytes())
        assert storage_array(external("data", {"offset": 4, "length": 16}), tmp_path).tolist() == [1, 2, 3, 4]

    def test_whose_name_is_no_text(self, tmp_path: Path) -> None:
        lies = TensorProto.FromString(external("data", {}).SerializeToString().replace(b"data", b"d\xff\xfea"))
        with pytest.raises(ModelError, match="is no text"):
            storage_array(lies, tmp_path)


def external(location: str, more: dict[str, Any]) -> TensorProto:
    found = TensorProto(name="t", data_type=FLOAT, dims=[4], raw_data=b"")
    external_data_helper.set_external_data(found, location)
    found.ClearField("raw_data")
    for key, value in more.items():
        found.external_data.add(key=key, value=str(value))
    return found


@pytest.mark.parametrize("dims", [[-1], [2**40], [2**62, 4], [], [0, 2**62]])
def test_sizes_that_are_not_those_of_the_data(dims: list[int]) -> None:
    data = TensorProto(name="t", data_type=FLOAT, dims=dims, raw_data=bytes(0 if 0 in dims else 16))
    with pytest.raises(ModelError, match="tensor 't'"):
        storage_array(data)


def test_no_tensor_keeps_inference_at_work_forever(tmp_path: Path) -> None:
    """In a process of its own, which ends in any case: onnx goes through all elements that a tensor says it has."""
    huge = TensorProto(data_type=FLOAT, dims=[2**63 - 1], raw_data=bytes(4))
    nodes = [
        helper.make_node("Constant", [], ["c"], value=huge),
        helper.make_node("Cast", ["c"], ["d"], to=FLOAT),
        helper.make_node("Constant", [], ["e"], value_floats=[1.0]),
        helper.make_node("Add", ["e", "d"], ["y"]),
    ]
    onnx.save(model_of(nodes, {}, {"y": (FLOAT, None)}), tmp_path / "model.onnx")
    done = run_script(
        "from opgraft.graph.onnx_source import graph_of_model, load_model\n"
        f"print(len(graph_of_model(load_model({str(tmp_path / 'model.onnx')!r})).nodes))\n"
    )
    assert done.stdout == "2\n", done.stderr


@pytest.mark.parametrize("op_type", ["LabelEncoder", "Split"])
def test_what_crashes_inference_is_read(op_type: str) -> None:
    """Some versions of onnx end their process with these."""
    nodes = {
        "LabelEncoder": helper.make_node(
            "LabelEncoder",
            ["nowhere"],
            ["y"],
            domain="ai.onnx.ml",
            keys_tensor=tensor("", [1], np.int64),
            values_tensor=tensor("", [2], np.int64),
            default_tensor=tensor("", [3], np.int64),
        ),
        "Split": helper.make_node("Split", ["x"], ["y", "z", "w"], num_outputs=1),
    }
    model = model_of(
        [nodes[op_type], helper.make_node("Lost", ["y"], ["v"])],
        {"x": (FLOAT, [6])},
        {"v": (FLOAT, None)},
        domains={"": 18, "ai.onnx.ml": 4},
    )
    graph = read_model(model, {}, complete=completed_apart)
    assert [each.op_type for each in graph.nodes] == [op_type, "Lost"]


@pytest.mark.parametrize("script", ["import os; os.abort()", "import time; time.sleep(60)", "print('no model')"])
def test_a_model_is_read_as_it_is_where_inference_ends(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script.py").write_text(script)
    monkeypatch.setattr(completion, "__file__", str(tmp_path / "script.py"))
    monkeypatch.setattr(completion, "SECONDS", 0.5)
    model = add_model()
    found = completed_apart(model)
    assert found == model
    assert found is not model


def test_inference_apart_takes_no_more_memory_than_is_reasonable() -> None:
    """onnx has each element of a vector's shape computed: here 3 thousand million of them."""
    nodes = [helper.make_node("Mean", ["x"], ["m"]), helper.make_node("Size", ["m"], ["s"])]
    model = model_of(nodes, {"x": (FLOAT, [3_037_000_500])}, {"s": (TensorProto.INT64, [])})
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert completed_apart(model) == model
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, completion.MEMORY // 1024)


def test_inference_apart_finds_what_inference_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of what lies in the current folder."""
    (tmp_path / "onnx.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    node = helper.make_node("Concat", ["x", "x"], ["t"], axis=0)
    model = model_of([node, helper.make_node("Neg", ["t"], ["y"])], {"x": (FLOAT, [2, "n"])}, {"y": (FLOAT, None)})
    found = completed_apart(model)
    assert found == completed(model)
    assert found.graph.value_info[0].type.tensor_type.shape.dim[0].dim_value == 4


def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        for call in (survey, load_model):
            with pytest.raises(ModelError, match="a pipe or a device, not a model file"):
                call(path)


def branch(name: str, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.GraphProto:
    infos = [[helper.make_tensor_value_info(each, FLOAT, None) for each in names] for names in (inputs, outputs)]
    nodes = [helper.make_node("Neg", ["x"], [each]) for each in outputs]
    return helper.make_graph(nodes, name, *infos)


class TestBodies:
    @pytest.mark.parametrize(
        ("then_branch", "says"),
        [
            (branch("b", [], []), "then_branch gives 0 outputs, and the node needs 1"),
            (branch("b", ["a"], ["b"]), "then_branch takes 1 inputs, and the node brings 0"),
            (3, "then_branch is no graph"),
        ],
    )
    def test_of_an_if(self, then_branch: Any, says: str) -> None:
        node = helper.make_node("If", ["c"], ["y"], then_branch=then_branch, else_branch=branch("e", [], ["e1"]))
        model = model_of([node], {"c": (BOOL, []), "x": (FLOAT, [1])}, {"y": (FLOAT, [1])})
        assert says in declined(model)

    @pytest.mark.parametrize(
        ("inputs", "outputs", "says"),
        [
            (["i", "c", "s"], ["c2"], "body gives 1 outputs, and the node needs 2"),
            (["i", "c"], ["c2", "s2"], "body takes 2 inputs, and the node brings 3"),
            (["i", "c", "s"], ["c2", "s2"], ""),
        ],
    )
    def test_of_a_loop(self, inputs: Sequence[str], outputs: Sequence[str], says: str) -> None:
        node = helper.make_node("Loop", ["m", "", "x"], ["y"], body=branch("b", inputs, outputs))
        found = declined(model_of([node], {"m": (INT64, []), "x": (FLOAT, [1])}, {"y": (FLOAT, [1])}))
        assert found == ([says] if says else [])

    @pytest.mark.parametrize(
        ("attributes", "says"),
        [
            ({"num_scan_inputs": 0}, "num_scan_inputs is 0, and it has 2 to scan"),
            ({"num_scan_inputs": 3}, "num_scan_inputs is 3, and it has 2 to scan"),
            ({"num_scan_inputs": 1, "scan_input_axes": [0, 0]}, "scan_input_axes are 2, for 1 inputs to scan"),
            ({"num_scan_inputs": 1}, ""),
        ],
    )
    def test_of_a_scan(self, attributes: dict[str, Any], says: str) -> None:
        node = helper.make_node("Scan", ["x", "z"], ["y"], body=branch("b", ["s", "e"], ["s2"]), **attributes)
        found = declined(model_of([node], {"x": (FLOAT, [1]), "z": (FLOAT, [2, 1])}, {"y": (FLOAT, [1])}))
        assert found == ([says] if says else [])


@pytest.mark.parametrize(
    ("op_type", "attribute", "outputs"),
    [("Cast", "saturate", 1), ("Unique", "sorted", 4), ("ReduceSum", "keepdims", 1), ("CumSum", "reverse", 1)],
)
@pytest.mark.parametrize("value", [2, -1, 2**32])
def test_a_flag_is_0_or_1(op_type: str, attribute: str, outputs: int, value: int) -> None:
    """ONNX Runtime takes other numbers now for the one and now for the other."""
    inputs, more = (["x", "axis"], {}) if op_type == "CumSum" else (["x"], {"to": FLOAT} if op_type == "Cast" else {})
    node = helper.make_node(op_type, inputs, [f"y{at}" for at in range(outputs)], **{attribute: value}, **more)
    model = model_of([node], {"x": (FLOAT, [3])}, {"y0": (FLOAT, None)}, [tensor("axis", 0, np.int64)])
    assert declined(model) == [f"{attribute} is {value}, and must be 0 or 1"]


@pytest.mark.parametrize("op_type", ["Elu", "Selu", "LeakyRelu"])
def test_an_alpha_that_is_no_number(op_type: str) -> None:
    node = helper.make_node(op_type, ["x"], ["y"], alpha=float("nan"))
    assert declined(model_of([node], {"x": (FLOAT, [3])}, {"y": (FLOAT, [3])})) == ["alpha is nan, and must be finite"]


@pytest.mark.parametrize("elements", [[True, False], []])
def test_whether_dropout_draws_where_that_is_no_single_truth(elements: list[bool]) -> None:
    node = helper.make_node("Dropout", ["x", "", "t"], ["y"])
    constants = [tensor("t", elements, np.bool_)]
    model = model_of([node], {"x": (FLOAT, [3])}, {"y": (FLOAT, [3])}, constants)
    assert random_outputs(model) == ({"y": ("Dropout",)} if elements else {})
    lies = external("nowhere", {})
    lies.name = "t"
    del model.graph.initializer[:]
    model.graph.initializer.append(lies)
    assert random_outputs(model) == {"y": ("Dropout",)}


def test_a_graph_without_outputs_is_a_session() -> None:
    numbers = [tensor(name, value, np.float16) for name, value in (("a", 0), ("b", 4), ("c", 1))]
    model = model_of([helper.make_node("Range", ["a", "b", "c"], ["y"])], {}, {}, numbers, {"": 27})
    assert len(open_session(model).get_outputs()) == len(open_cpu_session(model).get_outputs()) == 0
    assert any("no outputs" in reason for reason in declined(model))


@pytest.mark.parametrize(
    ("op_type", "sizes", "says"),
    [
        ("Tile", [2**40], r"MLX counts in 32 bits, and an input holds 1099511627776\)"),
        ("Expand", [2**31], r"MLX counts in 32 bits, and an input holds 2147483648\)"),
    ],
)
def test_a_size_that_nothing_holds_is_named(op_type: str, sizes: list[int], says: str) -> None:
    shape: list[int | None] = [None] * len(sizes)
    nodes = [helper.make_node(op_type, ["x", "s"], ["t"]), helper.make_node("Neg", ["t"], ["y"])]
    x = (FLOAT, [1] * (len(sizes) if op_type == "Tile" else 1))
    model = model_of(nodes, {"x": x, "s": (INT64, [len(sizes)])}, {"y": (FLOAT, shape)})
    session = open_session(model)
    with pytest.raises(Exception, match=f"node '{op_type} .*{says}"):
        session.run(None, {"x": np.ones(x[1], np.float32), "s": np.array(sizes)})


def test_sparse_outputs_are_compared() -> None:
    model = model_of([helper.make_node("Neg", ["x"], ["y"])], {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])})
    values = helper.make_sparse_tensor(tensor("s", [5.0]), tensor("", [[1, 2]], np.int64), [2, 3])
    model.graph.sparse_initializer.append(values)
    model.graph.output.append(helper.make_tensor_value_info("s", FLOAT, [2, 3]))
    feeds = {"x": np.ones(2, np.float32)}
    found, expected = (run_timed(each, feeds, 0, "").outputs for each in (open_session(model), open_cpu_session(model)))
    assert found["s.values"].tolist() == [5.0]
    assert not disagreements(found, expected)
    expected["s.values"] = expected["s.values"] + 1
    assert list(disagreements(found, expected)) == ["s.values"]


@pytest.mark.parametrize(("elements", "made"), [(2**10, True), (2**25, False)])
def test_nothing_large_is_made_to_stand_in_for_in_a_report(elements: int, made: bool) -> None:
    seen: list[Any] = []

    @op("acme::Same", dtypes={"int64"})
    def same(X: Anywhere):
        seen.append(X)
        return X

    @op("acme::Reads", dtypes={"int64"})
    def reads(X: Host):
        return mx.array(X)

    nodes = [
        helper.make_node(name, [x], [y], domain="acme") for name, x, y in (("Same", "x", "y"), ("Reads", "y", "z"))
    ]
    values = [{name: (INT64, [elements])} for name in "xz"]
    found = reported(model_of(nodes, *values, domains={"acme": 1}), registry_of(acme=[same, reads]))
    assert found.coverage.claimed == 2
    assert any(isinstance(each, np.ndarray) for each in seen) is made


def test_nothing_is_printed_of_a_file_that_cannot_be_loaded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime's Python would print that it falls back to the CPU, where the error's text is no UTF-8."""
    path = tmp_path / "model.onnx"
    path.write_bytes(add_model().SerializeToString().replace(b"Add", b"A\xe9d"))
    with pytest.raises(UnicodeDecodeError):
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"], enable_fallback=0)
    with pytest.raises(ModelError):
        open_cpu_session(path)
    assert survey(path).coverage.note
    assert capfd.readouterr().out == ""
