"""Operators that packs define: in sessions of ONNX Runtime, claimed and by their own kernel."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from host_models import ONNXRUNTIME, OPSET, providers_by_name, since_onnxruntime, tensor
from onnx import TensorProto, helper
from packaging.version import Version

import opgraft
import opgraft.registry as registry_module
from opgraft import ort_values, schemas
from opgraft.cli import main
from opgraft.errors import ModelError, RegistryError
from opgraft.graph.element_types import HELD, ONNX_OF_NAME
from opgraft.host import kernel_info
from opgraft.host.custom_kernel import Kernel
from opgraft.ops import ANY, FLOATS, NUMBERS, Handler, Host, Output, op
from opgraft.registry import Pack, installed_packs, load_registry
from opgraft.sessions import assignment, open_cpu_session, open_session

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)

Info = tuple[int, Sequence[int | str | None] | None]


@op("acme::Scale", dtypes=FLOATS)
def scale(X: Any, *, by: float = 2.0) -> Any:
    return X * by


scale.schema()


@op("acme::Halves", dtypes=FLOATS)
def halves(X: Any, bias: Any = None) -> Any:
    left, right = mx.split(X, 2, axis=-1)
    return (left if bias is None else left + bias), right > 0


halves.schema(outputs=("left", "positive?"))


@op("acme::Sum", dtypes=NUMBERS)
def total(*X: Any) -> Any:
    return sum(X[1:], X[0])


total.schema()

Use = Callable[..., None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Use]:
    """Installs handlers as a pack `acme`, or packs by name, beside what is installed."""
    real = installed_packs()

    def install(*handlers: Handler, **packs: Sequence[Handler]) -> None:
        by_name: dict[str, Sequence[Handler]] = {**({"acme": handlers} if handlers else {}), **packs}
        made = tuple(Pack(name, plugins=tuple(each)) for name, each in by_name.items())
        monkeypatch.setattr(registry_module, "installed_packs", lambda: (*made, *real))
        registry_module._load.cache_clear()

    yield install
    registry_module._load.cache_clear()


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Info],
    outputs: Mapping[str, Info | None],
    initializers: Sequence[onnx.TensorProto] = (),
    version: int = 1,
    infos: Mapping[str, Info] | None = None,
) -> onnx.ModelProto:
    """A model that imports the domain acme; an output without a type is left to inference."""
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, *info) for name, info in inputs.items()],
        [
            helper.make_tensor_value_info(name, *info) if info else helper.make_empty_tensor_value_info(name)
            for name, info in outputs.items()
        ],
        list(initializers),
        value_info=[helper.make_tensor_value_info(name, *info) for name, info in (infos or {}).items()],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("acme", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    attributes.setdefault("name", "it")
    return helper.make_node(op_type, inputs, outputs, domain="acme", **attributes)


def one(op_type: str, *inputs: Info, outputs: int = 1, version: int = 1, **attributes: Any) -> onnx.ModelProto:
    """A model of one node of the domain acme, with inputs x0, x1, ... and outputs y0, y1, ..."""
    names = [f"x{index}" for index in range(len(inputs))]
    results = [f"y{index}" for index in range(outputs)]
    made = node(op_type, names, results, **attributes)
    return model([made], dict(zip(names, inputs, strict=True)), dict.fromkeys(results), version=version)


def on_ep(proto: onnx.ModelProto, **options: str) -> Any:
    """A session with the execution provider."""
    settings = opgraft.session_options(**options)
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return session(proto, settings)


def on_cpu(proto: onnx.ModelProto) -> Any:
    """A session without it, where the operator's own kernel runs."""
    settings = onnxruntime.SessionOptions()
    settings.register_custom_ops_library(opgraft.library_path())
    return session(proto, settings, providers=["CPUExecutionProvider"])


def session(proto: onnx.ModelProto, settings: Any, **arguments: Any) -> Any:
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(proto.SerializeToString(), settings, enable_fallback=0, **arguments)


BOTH = pytest.mark.parametrize("opened", [on_ep, on_cpu], ids=["claimed", "kernel"])
Opened = Callable[[onnx.ModelProto], Any]


def run(made: Any, *inputs: Any) -> list[Any]:
    return list(made.run(None, {f"x{index}": each for index, each in enumerate(inputs)}))


def types(made: Any) -> list[tuple[str, list[Any]]]:
    return [(each.type, each.shape) for each in made.get_outputs()]


def kernels() -> int:
    gc.collect()
    return len(Kernel.live)


# The ways to a session


def scaled() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x0"], ["a"]),
        node("Scale", ["a"], ["b"], by=3.0),
        helper.make_node("Neg", ["b"], ["y0"]),
    ]
    return model(nodes, {"x0": (FLOAT, ["N", 4])}, {"y0": None})


def test_a_defined_operator_is_claimed_with_its_neighbours(use: Use) -> None:
    use(scale)
    made = on_ep(scaled())
    assert assignment(made) == {"MLXExecutionProvider": [3]}
    assert types(made) == [("tensor(float)", ["N", 4])]
    np.testing.assert_array_equal(run(made, X)[0], -3 * np.maximum(X, 0))


def test_it_runs_by_its_own_kernel_where_the_provider_is_not_there(use: Use) -> None:
    use(scale)
    made = on_cpu(scaled())
    assert made.get_providers() == ["CPUExecutionProvider"]
    np.testing.assert_array_equal(run(made, X)[0], -3 * np.maximum(X, 0))


def test_add_provider_for_devices_is_enough(use: Use) -> None:
    use(scale)
    opgraft.register()
    settings = onnxruntime.SessionOptions()
    devices = [each for each in onnxruntime.get_ep_devices() if each.ep_name == opgraft.EP_NAME]
    settings.add_provider_for_devices(devices, {})
    np.testing.assert_array_equal(run(session(scaled(), settings), X)[0], -3 * np.maximum(X, 0))


@providers_by_name
def test_providers_by_name_need_the_library_too(use: Use) -> None:
    use(scale)
    opgraft.register()
    providers = ["MLXExecutionProvider", "CPUExecutionProvider"]
    with pytest.raises(Exception, match=r"acme:Scale\(-1\) is not a registered function/op"):
        session(scaled(), onnxruntime.SessionOptions(), providers=providers)
    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    settings.register_custom_ops_library(opgraft.library_path())
    made = session(scaled(), settings, providers=providers)
    assert assignment(made) == {"MLXExecutionProvider": [3]}
    np.testing.assert_array_equal(run(made, X)[0], -3 * np.maximum(X, 0))


def test_telling_the_same_options_twice_is_telling_them_once(use: Use) -> None:
    use(scale)
    settings = opgraft.session_options()
    settings.register_custom_ops_library(opgraft.library_path())
    settings.register_custom_ops_library(opgraft.library_path())
    np.testing.assert_array_equal(run(session(scaled(), settings), X)[0], -3 * np.maximum(X, 0))


def test_registering_again_keeps_the_operators(use: Use) -> None:
    use(scale)
    kept = on_ep(scaled())
    for _ in range(3):
        opgraft.unregister()
        opgraft.register()
        np.testing.assert_array_equal(run(on_ep(scaled()), X)[0], run(kept, X)[0])


def test_a_model_without_them_is_as_before(use: Use) -> None:
    use(scale, halves, total)
    made = on_ep(model([helper.make_node("Relu", ["x0"], ["y0"])], {"x0": (FLOAT, [3, 4])}, {"y0": (FLOAT, [3, 4])}))
    np.testing.assert_array_equal(run(made, X)[0], np.maximum(X, 0))


def test_an_operator_can_be_of_the_domain_ai_onnx(use: Use) -> None:
    @op("NotYetThere", dtypes=FLOATS, since=13)
    def later(X: Any) -> Any:
        return X + 1

    later.schema()
    use(later)
    proto = model([helper.make_node("NotYetThere", ["x0"], ["y0"])], {"x0": (FLOAT, [3, 4])}, {"y0": None})
    for opened in (on_ep, on_cpu):
        np.testing.assert_array_equal(run(opened(proto), X)[0], X + 1)


# What a schema says


@BOTH
def test_optional_inputs_and_outputs(use: Use, opened: Opened) -> None:
    use(halves)
    bias = np.array([10, 20], np.float32)
    info, small = (FLOAT, [3, 4]), (FLOAT, [2])
    assert types(opened(one("Halves", info))) == [("tensor(float)", [3, 2])]
    np.testing.assert_array_equal(run(opened(one("Halves", info)), X)[0], X[:, :2])
    np.testing.assert_array_equal(run(opened(one("Halves", info, small)), X, bias)[0], X[:, :2] + bias)
    both = model([node("Halves", ["x0"], ["y0", "y1"])], {"x0": info}, {"y0": None, "y1": (BOOL, None)})
    left, positive = run(opened(both), X)
    np.testing.assert_array_equal(left, X[:, :2])
    np.testing.assert_array_equal(positive, X[:, 2:] > 0)
    second = model([node("Halves", ["x0"], ["", "y1"])], {"x0": info}, {"y1": (BOOL, None)})
    np.testing.assert_array_equal(run(opened(second), X)[0], X[:, 2:] > 0)


@since_onnxruntime("1.28", "types of a pack's optional outputs are not inferred")
def test_types_of_optional_outputs_are_inferred(use: Use) -> None:
    use(halves)
    made = on_ep(one("Halves", (FLOAT, ["N", 4]), outputs=2))
    assert types(made) == [("tensor(float)", ["N", 2]), ("tensor(bool)", ["N", 2])]


@BOTH
def test_an_absent_input_before_others(use: Use, opened: Opened) -> None:
    @op("acme::Add3", dtypes=FLOATS)
    def add3(a: Any, b: Any = None, c: Any = None) -> Any:
        return sum(each for each in (a, b, c) if each is not None)

    add3.schema()
    use(add3)
    proto = model([node("Add3", ["x0", "", "x1"], ["y0"])], {"x0": (FLOAT, [3, 4]), "x1": (FLOAT, [])}, {"y0": None})
    np.testing.assert_array_equal(run(opened(proto), X, np.array(5, np.float32))[0], X + 5)


@BOTH
@pytest.mark.parametrize("count", [1, 2, 5])
def test_variadic_inputs(use: Use, opened: Opened, count: int) -> None:
    use(total)
    inputs = [X + index for index in range(count)]
    made = opened(one("Sum", *[(FLOAT, ["N", 4])] * count))
    assert types(made) == [("tensor(float)", ["N", 4])]
    np.testing.assert_array_equal(run(made, *inputs)[0], sum(inputs))


@BOTH
def test_one_value_at_two_places(use: Use, opened: Opened) -> None:
    use(total)
    proto = model([node("Sum", ["x0", "x0", "x0"], ["y0"])], {"x0": (FLOAT, [3, 4])}, {"y0": None})
    np.testing.assert_array_equal(run(opened(proto), X)[0], 3 * X)


@BOTH
def test_variadic_outputs(use: Use, opened: Opened) -> None:
    @op("acme::Rows", dtypes=FLOATS)
    def rows(X: Any) -> Any:
        return tuple(X[index] for index in range(X.shape[0]))

    rows.schema(outputs=("first", "rest..."))
    use(rows)
    infos: dict[str, Info | None] = {"y0": None, "y1": (FLOAT, [4]), "y2": (FLOAT, [4])}
    made = opened(model([node("Rows", ["x0"], list(infos))], {"x0": (FLOAT, [3, 4])}, infos))
    np.testing.assert_array_equal(np.stack(run(made, X)), X)


@op("acme::Echo", dtypes=FLOATS)
def echo(
    X: Any,
    *,
    whole: int = 1,
    flag: bool = False,
    number: float = 0.5,
    text: str = "no",
    wholes: tuple[int, ...] = (1,),
    numbers: Sequence[float] = (0.5, 1.5),
    texts: tuple[str, ...] | None = None,
    table: np.ndarray[Any, Any] | None = None,
) -> Any:
    """Every attribute as a number, in a vector."""
    parts = [
        [whole, flag, number, len(text)],
        list(wholes),
        list(numbers),
        [len(each) for each in texts or ()],
        [] if table is None else table.reshape(-1).tolist(),
    ]
    return mx.array([each for part in parts for each in part], mx.float32)


@echo.schema
def _(X: Any) -> Any:
    return Output("float32", (None,))


@BOTH
@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, [1, 0, 0.5, 2, 1, 0.5, 1.5]),
        ({"whole": -(2**40)}, [-(2**40), 0, 0.5, 2, 1, 0.5, 1.5]),
        ({"flag": 1}, [1, 1, 0.5, 2, 1, 0.5, 1.5]),
        ({"number": 0.25}, [1, 0, 0.25, 2, 1, 0.5, 1.5]),
        ({"number": 3}, [1, 0, 3, 2, 1, 0.5, 1.5]),
        ({"text": "wörter"}, [1, 0, 0.5, 6, 1, 0.5, 1.5]),
        ({"text": ""}, [1, 0, 0.5, 0, 1, 0.5, 1.5]),
        ({"wholes": [7, 8, 9]}, [1, 0, 0.5, 2, 7, 8, 9, 0.5, 1.5]),
        ({"numbers": [0.125]}, [1, 0, 0.5, 2, 1, 0.125]),
        ({"table": tensor("t", [[4, 5], [6, 7]])}, [1, 0, 0.5, 2, 1, 0.5, 1.5, 4, 5, 6, 7]),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, dict) else "",
)
def test_attributes_of_each_kind(
    use: Use, opened: Opened, attributes: dict[str, Any], expected: Sequence[float]
) -> None:
    use(echo)
    np.testing.assert_array_equal(run(opened(one("Echo", (FLOAT, [3, 4]), **attributes)), X)[0], expected)


@BOTH
def test_empty_lists_as_attributes(use: Use, opened: Opened) -> None:
    use(echo)
    made = node("Echo", ["x0"], ["y0"])
    made.attribute.append(helper.make_attribute("wholes", [], attr_type=onnx.AttributeProto.INTS))
    made.attribute.append(helper.make_attribute("numbers", [], attr_type=onnx.AttributeProto.FLOATS))
    proto = model([made], {"x0": (FLOAT, [3, 4])}, {"y0": None})
    np.testing.assert_array_equal(run(opened(proto), X)[0], [1, 0, 0.5, 2])


def test_a_list_of_texts_as_attribute(use: Use, record_property: Callable[[str, object], None]) -> None:
    use(echo)
    proto = one("Echo", (FLOAT, [3, 4]), texts=["a", "", "ccc"])
    expected = [1, 0, 0.5, 2, 1, 0.5, 1.5, 1, 0, 3]
    np.testing.assert_array_equal(run(on_ep(proto), X)[0], expected)
    if Version("1.25") > ONNXRUNTIME:
        record_property("differs", "on the CPU EP, no operator of a pack has a list of texts as attribute")
        with pytest.raises(Exception, match="attribute texts is of a kind that is not supported"):
            on_cpu(proto)
    else:
        np.testing.assert_array_equal(run(on_cpu(proto), X)[0], expected)


@BOTH
@pytest.mark.parametrize("attributes", [{"whole": 1.5}, {"number": "x"}, {"wholes": [1.5]}, {"text": 3}])
def test_an_attribute_of_another_kind_is_refused(use: Use, opened: Opened, attributes: dict[str, Any]) -> None:
    use(echo)
    (name,) = attributes
    with pytest.raises(Exception, match=f"attribute {name} is not of the kind .*, which its schema says.*acme"):
        opened(one("Echo", (FLOAT, [3, 4]), **attributes))


def test_a_required_attribute(use: Use) -> None:
    @op("acme::Power", dtypes=FLOATS)
    def power(X: Any, *, exponent: int) -> Any:
        return X**exponent

    power.schema()
    use(power)
    for opened in (on_ep, on_cpu):
        np.testing.assert_array_equal(run(opened(one("Power", (FLOAT, [3, 4]), exponent=2)), X)[0], X**2)
        with pytest.raises(Exception, match="attribute exponent is required, and absent"):
            opened(one("Power", (FLOAT, [3, 4])))


# Element types and shapes


@op("acme::Same", dtypes=HELD)
def same(X: Any) -> Any:
    return X


@same.schema
def _(X: Any) -> Any:
    return X


@BOTH
@pytest.mark.parametrize("dtype", sorted(HELD))
def test_every_element_type(use: Use, opened: Opened, dtype: str) -> None:
    use(same)
    if dtype in {"complex64", "float8e8m0", "int2", "uint2"}:
        pytest.skip("onnxruntime takes no inputs of it in operators that it is told of")
    made = opened(one("Same", (ONNX_OF_NAME[dtype], ["N", 3])))
    given = np.array([[0, 1, 1], [1, 0, 1]]).astype(ort_values.STORAGE[dtype])
    (found,) = ort_values.run(made, {"x0": given})
    np.testing.assert_array_equal(found, given)
    assert made.get_outputs()[0].type == made.get_inputs()[0].type
    assert made.get_outputs()[0].shape == ["N", 3]


@pytest.mark.parametrize("opened", [on_ep, on_cpu])
def test_texts_are_declined(use: Use, opened: Opened) -> None:
    use(same)
    with pytest.raises(Exception, match="element type string"):
        opened(one("Same", (TensorProto.STRING, [3])))


@BOTH
def test_empty_tensors(use: Use, opened: Opened) -> None:
    use(scale, total)
    empty = np.zeros((0, 4), np.float32)
    assert run(opened(one("Scale", (FLOAT, ["N", 4]))), empty)[0].shape == (0, 4)
    assert run(opened(one("Sum", (FLOAT, [0, 4]), (FLOAT, [0, 4]))), empty, empty)[0].shape == (0, 4)


@BOTH
def test_shapes_by_translation(use: Use, opened: Opened) -> None:
    @op("acme::Outer", dtypes=FLOATS)
    def outer(a: Any, b: Any) -> Any:
        return a[:, None] * b[None]

    @op("acme::Front", dtypes=FLOATS)
    def front(X: Any) -> Any:
        return X[:3]

    @op("acme::Twice", dtypes=FLOATS)
    def twice(X: Any) -> Any:
        return mx.concatenate([X, X])

    for each in (outer, front, twice):
        each.schema()
    use(outer, front, twice, scale)
    vectors = ((FLOAT, ["M"]), (FLOAT, ["K"]))
    assert types(opened(one("Outer", *vectors))) == [("tensor(float)", ["M", "K"])]
    assert types(opened(one("Outer", (FLOAT, [5]), (FLOAT, ["K"])))) == [("tensor(float)", [5, "K"])]
    (_, (first,)) = types(opened(one("Front", (FLOAT, ["N"]))))[0]
    assert isinstance(first, str) and first != "N"
    (_, (first,)) = types(opened(one("Twice", (FLOAT, ["N"]))))[0]
    assert isinstance(first, str) and first != "N"
    assert types(opened(one("Twice", (FLOAT, [7])))) == [("tensor(float)", [14])]
    made = opened(one("Scale", (FLOAT, None)))
    for shape in ((), (2,), (2, 3, 4)):
        np.testing.assert_array_equal(run(made, np.ones(shape, np.float32))[0], np.full(shape, 2, np.float32))


@BOTH
def test_shapes_by_a_function(use: Use, opened: Opened) -> None:
    @op("acme::Topmost", dtypes={"X": FLOATS, "k": {"int64"}})
    def topmost(X: Any, k: Host, *, axis: int = -1) -> Any:
        order = mx.argsort(-X, axis=axis)
        taken = mx.take(order, mx.arange(int(k)), axis=axis)
        return mx.take_along_axis(X, taken, axis=axis), taken.astype(mx.int64)

    @topmost.schema(outputs=("values", "indices"))
    def _(X: Any, k: Any, *, axis: int) -> Any:
        shape = None if X.shape is None else (*X.shape[:-1], None)
        return Output(X.dtype, shape), Output("int64", shape)

    use(topmost)
    made = opened(one("Topmost", (FLOAT, ["N", 4]), (INT64, []), outputs=2))
    (one_type, one_shape), (other_type, other_shape) = types(made)
    assert (one_type, other_type, one_shape[0], other_shape[0]) == ("tensor(float)", "tensor(int64)", "N", "N")
    values, indices = run(made, X, np.array(2))
    np.testing.assert_array_equal(values, X[:, :1:-1])
    np.testing.assert_array_equal(indices, [[3, 2]] * 3)
    fixed = model(
        [node("Topmost", ["x0", "k"], ["y0", "y1"])],
        {"x0": (FLOAT, [3, 4])},
        {"y0": None, "y1": None},
        [tensor("k", 3, np.int64)],
    )
    np.testing.assert_array_equal(run(opened(fixed), X)[0], X[:, :0:-1])


@BOTH
def test_element_types_by_declaration(use: Use, opened: Opened) -> None:
    @op("acme::Nonzero", dtypes={"X": ANY, "keep": {"int64"}})
    def nonzero(X: Any, keep: Host) -> Any:
        return X[mx.array(keep)], np.flatnonzero(keep).astype(np.int64)

    nonzero.schema(outputs={"picked": "X", "where": "int64"})
    use(nonzero)
    made = opened(one("Nonzero", (FLOAT, [3, 4]), (INT64, [2]), outputs=2))
    assert [each for each, _ in types(made)] == ["tensor(float)", "tensor(int64)"]
    picked, where = run(made, X, np.array([0, 2]))
    np.testing.assert_array_equal(picked, X[[0, 2]])
    np.testing.assert_array_equal(where, [1])


def test_a_named_dimension_that_is_unknown_is_not_another(use: Use) -> None:
    """Were two of them the same, ONNX Runtime would take them for equal."""

    @op("acme::Cut", dtypes=FLOATS)
    def cut(X: Any) -> Any:
        return X[:3]

    cut.schema()
    use(cut)
    nodes = [node("Cut", ["x0"], ["y0"]), node("Cut", ["x1"], ["y1"], name="other")]
    proto = model(nodes, {"x0": (FLOAT, ["N"]), "x1": (FLOAT, ["M"])}, {"y0": None, "y1": None})
    (_, (one_dim,)), (_, (other_dim,)) = types(on_ep(proto))
    assert one_dim != other_dim
    declared = model(nodes[:1], {"x0": (FLOAT, ["N"])}, {"y0": (FLOAT, [3])})
    assert types(on_ep(declared)) == [("tensor(float)", [3])]


@BOTH
def test_inputs_of_unknown_rank(use: Use, opened: Opened) -> None:
    """ONNX Runtime shows them as scalars, and takes no type without a rank."""

    @op("acme::Above", dtypes=FLOATS)
    def above(X: Any, limit: Any) -> Any:
        return limit < X

    @op("acme::Added", dtypes=NUMBERS)
    def added(*X: Any) -> Any:
        return sum(X[1:], X[0])

    above.schema(outputs={"Y": "bool"})
    added.schema(outputs={"Y": "X"})
    use(above, added, scale)
    limit = np.array(1, np.float32)
    for shape in (None, [3, 4]):
        infos: dict[str, Info] = {"x0": (FLOAT, shape), "x1": (FLOAT, [])}
        nodes = [
            node("Added", ["x0", "x1"], ["a"]),
            node("Scale", ["a"], ["b"], name="other"),
            node("Above", ["b", "x1"], ["c"], name="third"),
            helper.make_node("Cast", ["c"], ["d"], to=FLOAT),
            helper.make_node("Softmax", ["d"], ["y0"], axis=1),
        ]
        made = opened(model(nodes, infos, {"y0": None}))
        e = np.exp((2 * (X + limit) > limit).astype(np.float32))
        np.testing.assert_allclose(run(made, X, limit)[0], e / e.sum(1, keepdims=True), rtol=1e-6)


def test_element_types_that_depend_on_attributes_or_inputs(use: Use) -> None:
    """ONNX Runtime refuses a node whose output is of another type than the operator was told to have."""

    @op("acme::Cast", dtypes=FLOATS)
    def cast(X: Any, *, whole: int = 0) -> Any:
        return X.astype(mx.int64 if whole else mx.float32)

    @op("acme::Mask", dtypes=FLOATS)
    def mask(X: Any, more: Any = None) -> Any:
        return X > 0 if more is None else X + more

    @op("acme::Any", dtypes=FLOATS)
    def of_several(*X: Any) -> Any:
        return X[0] > 0 if len(X) == 1 else X[1]

    for each in (cast, mask, of_several):
        each.schema()
    use(cast, mask, of_several)
    info: Info = (FLOAT, ["N", 4])
    for opened in (on_ep, on_cpu):
        for proto, dtype in (
            (one("Cast", info), "float"),
            (one("Cast", info, whole=1), "int64"),
            (one("Mask", info), "bool"),
            (one("Mask", info, info), "float"),
            (one("Any", info), "bool"),
            (one("Any", info, info), "float"),
        ):
            assert types(opened(proto)) == [(f"tensor({dtype})", ["N", 4])]


def test_an_element_type_that_onnxruntime_lacks_costs_nobody_else(use: Use) -> None:
    @op("acme::Complex", dtypes=FLOATS)
    def to_complex(X: Any) -> Any:
        return X.astype(mx.complex64)

    to_complex.schema()
    use(to_complex, scale)
    for opened in (on_ep, on_cpu):
        np.testing.assert_array_equal(run(opened(one("Scale", (FLOAT, [3, 4]))), X)[0], 2 * X)


def test_no_inputs_at_all(use: Use) -> None:
    @op("acme::Fill")
    def fill(*, value: float = 1.5, count: int = 2) -> Any:
        return mx.full((count,), value)

    fill.schema()
    use(fill)
    for opened in (on_ep, on_cpu):
        made = opened(one("Fill", count=3))
        assert types(made) == [("tensor(float)", [3])]
        np.testing.assert_array_equal(run(made)[0], [1.5] * 3)


def test_in_a_function_of_the_model(use: Use) -> None:
    use(scale)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("acme", 1)]
    nodes = [node("Scale", ["x"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
    function = helper.make_function("local", "Both", ["x"], ["y"], nodes, opsets)
    info: Info = (FLOAT, ["N", 4])
    proto = model([helper.make_node("Both", ["x0"], ["y0"], domain="local")], {"x0": info}, {"y0": info})
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    for opened in (on_ep, on_cpu):
        np.testing.assert_array_equal(run(opened(proto), X)[0], np.maximum(2 * X, 0))


# Versions


@op("acme::Norm", since=1, until=2, dtypes=FLOATS)
def norm_1(X: Any, *, axis: int) -> Any:
    return mx.sum(X * X, axis=axis)


@op("acme::Norm", since=3, dtypes={"X": FLOATS, "axis": {"int64"}})
def norm_3(X: Any, axis: Host) -> Any:
    return mx.sqrt(mx.sum(X * X, axis=int(axis)))


norm_1.schema()
norm_3.schema(outputs={"Y": "X"})


@BOTH
@pytest.mark.parametrize("version", [1, 2, 3, 9])
def test_versions_of_other_forms(use: Use, opened: Opened, version: int) -> None:
    use(norm_1, norm_3)
    if version < 3:
        made = opened(one("Norm", (FLOAT, [3, 4]), axis=1, version=version))
        np.testing.assert_allclose(run(made, X)[0], (X * X).sum(1))
    else:
        made = opened(one("Norm", (FLOAT, [3, 4]), (INT64, []), version=version))
        np.testing.assert_allclose(run(made, X, np.array(1))[0], np.sqrt((X * X).sum(1)), rtol=1e-6)


def test_versions_of_one_form_are_told_apart_where_the_opset_is_known(use: Use) -> None:
    @op("acme::Step", since=1, until=1, dtypes=FLOATS)
    def step_1(X: Any) -> Any:
        return X + 1

    @op("acme::Step", since=2, dtypes=FLOATS)
    def step_2(X: Any) -> Any:
        return X + 2

    step_1.schema()
    step_2.schema()
    use(step_1, step_2)
    for version, more in ((1, 1), (2, 2), (5, 2)):
        proto = one("Step", (FLOAT, ["N", 4]), version=version)
        made = on_ep(proto)
        assert types(made) == [("tensor(float)", ["N", 4])]
        np.testing.assert_array_equal(run(made, X)[0], X + more)
        with pytest.raises(Exception, match=r"'it' \(acme::Step, pack 'acme'\) is of version 1 or 2"):
            on_cpu(proto)


def test_a_kernel_knows_the_version_that_the_provider_saw(use: Use, tmp_path: Any) -> None:
    @op("acme::Step", since=1, until=1, dtypes=FLOATS)
    def step_1(X: Any) -> Any:
        return X + 1

    @op("acme::Step", since=2, dtypes=FLOATS)
    def step_2(X: Any) -> Any:
        return X + 2

    step_1.schema()
    step_2.schema()
    use(step_1, step_2)
    registry = tmp_path / "registry.yaml"
    registry.write_text('ops:\n  If: {deny: ["*"]}\n')

    def body(name: str) -> onnx.GraphProto:
        made = node("Step", ["x0"], [name], name=name)
        return helper.make_graph([made], name, [], [helper.make_tensor_value_info(name, FLOAT, None)])

    chosen = helper.make_node("If", ["c"], ["y0"], then_branch=body("then"), else_branch=body("else"))
    for version in (1, 2):
        inputs = {"c": (BOOL, []), "x0": (FLOAT, [3, 4])}
        proto = model([chosen], inputs, {"y0": (FLOAT, [3, 4])}, version=version)
        made = on_ep(proto, registry=str(registry))
        np.testing.assert_array_equal(made.run(None, {"c": np.array(True), "x0": X})[0], X + version)
        assert not kernel_info._here.left
        with pytest.raises(Exception, match="is of version 1 or 2"):
            on_cpu(proto)


def test_an_attribute_that_the_schema_does_not_name_is_declined_where_it_is_seen(use: Use) -> None:
    """A kernel alone has no way to see it."""
    use(scale)
    proto = one("Scale", (FLOAT, [3, 4]), more=1)
    with pytest.raises(Exception, match=r"'it' \(acme::Scale\) has no handler: attribute more is not supported"):
        on_ep(proto)
    assert not kernel_info._here.left
    np.testing.assert_array_equal(run(on_cpu(proto), X)[0], 2 * X)


def test_nodes_of_one_name_in_several_bodies(use: Use, tmp_path: Any) -> None:
    """What their kernels are not shown is told apart only where it is the same."""
    use(scale)
    registry = tmp_path / "registry.yaml"
    registry.write_text('ops:\n  If: {deny: ["*"]}\n')

    def opened_with(then: Mapping[str, Any], otherwise: Mapping[str, Any]) -> Any:
        bodies = {
            f"{name}_branch": helper.make_graph(
                [node("Scale", ["x0"], ["out"], **attributes)],
                name,
                [],
                [helper.make_tensor_value_info("out", FLOAT, None)],
            )
            for name, attributes in (("then", then), ("else", otherwise))
        }
        nodes = [helper.make_node("If", ["c"], ["y0"], **bodies)]
        proto = model(nodes, {"c": (BOOL, []), "x0": (FLOAT, [3, 4])}, {"y0": (FLOAT, [3, 4])})
        return on_ep(proto, registry=str(registry))

    made = opened_with({"by": 3.0}, {"by": 5.0})
    for condition, factor in ((True, 3), (False, 5)):
        (found,) = made.run(None, {"c": np.array(condition), "x0": X})
        np.testing.assert_array_equal(found, factor * X)
    tables = [{"table": tensor("t", [index, 1])} for index in range(2)]
    with pytest.raises(Exception, match="attribute table is not supported"):
        opened_with(*tables)
    assert not kernel_info._here.left


def test_versions_that_no_handler_covers(use: Use) -> None:
    use(norm_3)
    message = r"acme:Norm\(-1\) is not a registered.*acme::Norm is there from version 3 on \(pack acme\), and the model"
    with pytest.raises(ModelError, match=message):
        open_session(one("Norm", (FLOAT, [3, 4]), (INT64, []), version=2))
    use(norm_1)
    coverage = open_session(one("Norm", (FLOAT, [3, 4]), axis=1, version=2)).coverage
    assert coverage.percentage == 100
    with pytest.raises(Exception, match="element type"):
        use(norm_1)
        on_cpu(one("Norm", (INT64, [3, 4]), axis=1))


# What fails


@BOTH
def test_a_form_that_is_declined_names_all_there_is_to_know(use: Use, opened: Opened) -> None:
    @op("acme::Even", dtypes=FLOATS)
    def even(X: Any) -> Any:
        return X

    @even.condition
    def _(node: Any) -> None:
        node.require(node.rank(0) != 3, "rank 3 is odd")

    even.schema()
    use(even)
    message = r"node 'it' \(acme::Even\) has no handler: rank 3 is odd \[acme\]"
    with pytest.raises(Exception, match=message):
        opened(one("Even", (FLOAT, [1, 2, 3])))
    with pytest.raises(
        Exception, match=r"'it' \(acme::Even\).*element type int64 of input X is not supported \[acme\]"
    ):
        opened(one("Even", (INT64, [1, 2])))


@BOTH
def test_a_translator_that_raises_fails_its_run_alone(use: Use, opened: Opened) -> None:
    @op("acme::Picky", dtypes=FLOATS)
    def picky(X: Any) -> Any:
        if X.shape[0] == 3:
            raise ValueError("three is too many")
        return X

    picky.schema()
    use(picky)
    made = opened(one("Picky", (FLOAT, ["N", 4])))
    for _ in range(3):
        with pytest.raises(Exception, match=r"'it' \(acme::Picky.*pack 'acme': ValueError: three is too many"):
            run(made, X)
        np.testing.assert_array_equal(run(made, X[:2])[0], X[:2])


@BOTH
@pytest.mark.parametrize("error", [SystemExit(3), RecursionError(), MemoryError("all of it"), Exception("\0")])
def test_whatever_a_translator_raises_is_an_error(use: Use, opened: Opened, error: BaseException) -> None:
    quiet = True

    @op("acme::Bad", dtypes=FLOATS)
    def bad(X: Any) -> Any:
        if quiet:
            return X
        raise error

    bad.schema(outputs={"Y": "X"})
    use(bad)
    made = opened(one("Bad", (FLOAT, [3, 4])))
    quiet = False
    with pytest.raises(Exception, match=r"'it' \(acme::Bad"):
        run(made, X)
    quiet = True
    np.testing.assert_array_equal(run(made, X)[0], X)


def _raises(X: Any) -> Any:
    raise ValueError("no idea")


@pytest.mark.parametrize(
    "inference",
    [
        _raises,
        lambda X: None,
        lambda X: 3,
        lambda X: Output("float33", X.shape),
        lambda X: Output("string", X.shape),
        lambda X: Output("float32", (-1,)),
        lambda X: Output("float32", (1.5,)),
        lambda X: Output("float32", 7),
        lambda X: (),
    ],
)
def test_an_inference_that_fails_leaves_types_to_onnxruntime(use: Use, inference: Callable[[Any], Any]) -> None:
    """It supposes that the output is of the type of the input."""

    @op("acme::Lost", dtypes=FLOATS)
    def lost(X: Any) -> Any:
        return X

    lost.schema(inference)
    use(lost)
    for output in (None, (FLOAT, [3, 4])):
        proto = model([node("Lost", ["x0"], ["y0"])], {"x0": (FLOAT, [3, 4])}, {"y0": output})
        for opened in (on_ep, on_cpu):
            np.testing.assert_array_equal(run(opened(proto), X)[0], X)


@BOTH
def test_an_inference_that_is_wrong_is_found_out(use: Use, opened: Opened) -> None:
    @op("acme::Wrong", dtypes=FLOATS)
    def wrong(X: Any) -> Any:
        return X

    @wrong.schema
    def _(X: Any) -> Any:
        return Output("int64", X.shape)

    use(wrong)
    with pytest.raises(
        Exception, match=r"'it' \(acme::Wrong\).*gives float32 for .*, and the model says int64 \[acme\]"
    ):
        opened(one("Wrong", (FLOAT, [3, 4])))


def test_sequences_are_refused(use: Use) -> None:
    use(scale)
    graph = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["x0"], ["s"]), node("Scale", ["s"], ["y0"])],
        "model",
        [helper.make_tensor_value_info("x0", FLOAT, [3])],
        [helper.make_tensor_value_info("y0", FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("acme", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    for opened in (on_ep, on_cpu):
        with pytest.raises(Exception, match="seq"):
            opened(proto)


@BOTH
def test_too_many_outputs_are_refused(use: Use, opened: Opened) -> None:
    use(scale)
    proto = model([node("Scale", ["x0"], ["y0", "y1"])], {"x0": (FLOAT, [3])}, {"y0": None, "y1": (FLOAT, [3])})
    with pytest.raises(
        Exception,
        match=r"'it' \(acme::Scale\).*output 1 is not one of its schema's \(it has 1\); name them: .* \[acme\]",
    ):
        opened(proto)


# Bodies


def branches() -> onnx.ModelProto:
    """y = Scale(x) if c else x, with a further Scale around it."""

    def body(name: str, made: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph([made], name, [], [helper.make_tensor_value_info(name, FLOAT, None)])

    chosen = helper.make_node(
        "If",
        ["c"],
        ["y"],
        name="if",
        then_branch=body("then", node("Scale", ["x"], ["then"], by=10.0)),
        else_branch=body("else", helper.make_node("Identity", ["x"], ["else"])),
    )
    nodes = [chosen, node("Scale", ["y"], ["z"], name="around")]
    return model(nodes, {"c": (BOOL, []), "x": (FLOAT, ["N"])}, {"z": (FLOAT, None)})


@BOTH
def test_in_a_body(use: Use, opened: Opened) -> None:
    use(scale)
    made = opened(branches())
    x = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(made.run(None, {"c": np.array(True), "x": x})[0], 20 * x)
    np.testing.assert_array_equal(made.run(None, {"c": np.array(False), "x": x})[0], 2 * x)


def test_in_a_body_whose_owner_is_declined(use: Use, tmp_path: Any) -> None:
    use(scale)
    registry = tmp_path / "registry.yaml"
    registry.write_text('ops:\n  If: {deny: ["*"]}\n')
    before = kernels()
    made = on_ep(branches(), registry=str(registry))
    x = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(made.run(None, {"c": np.array(True), "x": x})[0], 20 * x)
    assert kernels() == before + 1  # the node in the body; the one around it is claimed
    del made
    assert kernels() == before


# Several packs


@op("acme::Scale", dtypes=FLOATS)
def other_scale(X: Any, *, by: float = 2.0) -> Any:
    return X * by + 100


other_scale.schema()


@pytest.mark.parametrize(
    ("text", "plus"),
    [
        ("packs: [one, two, builtin]", 0),
        ("packs: [two, one, builtin]", 100),
        ("packs: [two, builtin]", 0),  # what is not listed is asked before
        ('ops: {"acme::Scale": {prefer: [two]}}', 100),
        ('ops: {"acme::*": {deny: [one]}}', 100),
        ("disable: [two]", 0),
    ],
)
def test_the_registry_says_whose_operator_it_is(
    use: Use, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, text: str, plus: int
) -> None:
    use(one=[scale], two=[other_scale])
    registry = tmp_path / "registry.yaml"
    registry.write_text(text + "\n")
    monkeypatch.setenv("OPGRAFT_REGISTRY", str(registry))
    for opened in (on_ep, on_cpu):
        np.testing.assert_array_equal(run(opened(one("Scale", (FLOAT, [3, 4]))), X)[0], 2 * X + plus)


def test_without_an_order_it_is_nobodys(use: Use) -> None:
    use(one=[scale, total], two=[other_scale])
    with pytest.raises(
        ModelError,
        match=r"is left out: the packs one and two define it, and nothing says whose counts; in .* OPGRAFT_REGISTRY",
    ):
        open_session(one("Scale", (FLOAT, [3, 4])))
    np.testing.assert_array_equal(run(on_ep(one("Sum", (FLOAT, [3, 4]))), X)[0], X)
    coverage = opgraft.report(one("Scale", (FLOAT, [3, 4]))).coverage
    assert coverage.claimed == 0
    assert "nothing says whose counts" in coverage.operators[0].reasons[0].reason


def test_a_pack_that_loses_is_not_asked(use: Use, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """What it handles is another operator by the same name. A handler that defines nothing takes part."""

    @op("acme::Scale", dtypes={"int64"})
    def of_integers(X: Any, *, by: float = 2.0) -> Any:
        return X * int(by)

    @op("acme::Scale", dtypes={"int64"})
    def another(X: Any, *, by: float = 2.0) -> Any:
        return X * int(by) + 100

    another.schema()
    registry = tmp_path / "registry.yaml"
    registry.write_text("packs: [one, two, three, builtin]\n")
    monkeypatch.setenv("OPGRAFT_REGISTRY", str(registry))
    proto = one("Scale", (INT64, [3, 4]))
    use(one=[scale], two=[another], three=[])
    with pytest.raises(Exception, match="element type int64 of input X is not supported"):
        on_ep(proto)
    use(one=[scale], two=[another], three=[of_integers])
    np.testing.assert_array_equal(run(on_ep(proto), X.astype(np.int64))[0], 2 * X.astype(np.int64))


# Schemas that ONNX Runtime is not told of


def test_a_schema_that_cannot_be_is_left_out_alone(use: Use) -> None:
    @op("com.microsoft::Gelu", dtypes=FLOATS)
    def gelu(X: Any) -> Any:
        return X * 1000

    @op("acme::Reshaped", dtypes={"X": ANY, "shape": {"int64"}})
    def reshaped(X: Any, shape: Host) -> Any:
        return X.reshape(shape.tolist())

    gelu.schema()
    reshaped.schema()
    use(gelu, reshaped, scale)
    out = schemas.left_out(load_registry())
    assert {operator: each.reason.partition(";")[0] for operator, each in out.items()} == {
        "com.microsoft::Gelu": "onnxruntime has a schema of it already",
        "acme::Reshaped": "the element types of its outputs are unknown, since input shape is Host",
    }
    np.testing.assert_array_equal(run(on_ep(scaled()), X)[0], -3 * np.maximum(X, 0))
    with pytest.raises(ModelError, match=r"acme::Reshaped, which the pack acme defines, is left out: .*give .schema"):
        open_session(one("Reshaped", (FLOAT, [3, 4]), (INT64, [2])))


def test_errors_say_which_operators_are_unknown(use: Use) -> None:
    @op("acme::Undefined", dtypes=FLOATS)
    def undefined(X: Any) -> Any:
        return X

    use(undefined)
    for opened in (open_session, open_cpu_session):
        with pytest.raises(ModelError, match=r"acme::Undefined has a handler in the pack acme, and nobody defines it"):
            opened(one("Undefined", (FLOAT, [3])))
        with pytest.raises(ModelError, match=r"acme::Nowhere: no installed pack defines it"):
            opened(one("Nowhere", (FLOAT, [3])))


def test_a_registry_that_cannot_be_used_is_the_sessions_error(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    use(scale)
    by_hand = onnxruntime.SessionOptions()
    opgraft.register()
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == opgraft.EP_NAME]
    monkeypatch.setenv("OPGRAFT_REGISTRY", "/nowhere/registry.yaml")
    by_hand.add_provider_for_devices(devices, {})
    with pytest.raises(RegistryError, match=r"/nowhere/registry.yaml: cannot be read"):
        opgraft.session_options()
    with pytest.raises(RegistryError, match=r"/nowhere/registry.yaml: cannot be read"):
        open_session(scaled())
    with pytest.raises(Exception, match=r"/nowhere/registry.yaml: cannot be read"):
        on_cpu(scaled())


def test_run_says_what_it_compares_with_itself(use: Use, tmp_path: Path) -> None:
    use(scale)
    onnx.save(scaled(), tmp_path / "model.onnx")
    result = CliRunner().invoke(main, ["run", str(tmp_path / "model.onnx")])
    assert result.exit_code == 0, result.output
    assert "compared with themselves, since the CPU EP runs the packs' handlers too: acme::Scale\n" in result.output


# Files that ONNX Runtime does not see


def test_a_report_from_the_file_alone(use: Use) -> None:
    use(scale, halves)
    nodes = [
        node("Scale", ["x0"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        node("Halves", ["b"], ["c", "d"]),
        helper.make_node("Not", ["d"], ["e"]),
        helper.make_node("Unknown", ["c"], ["f"], domain="nobody"),
    ]
    coverage = opgraft.report(model(nodes, {"x0": (FLOAT, ["N", 4])}, {"f": None, "e": None})).coverage
    assert coverage.source == "file"
    assert coverage.note is not None and "nobody::Unknown: no installed pack defines it" in coverage.note
    assert {each.operator: each.claimed for each in coverage.operators} == {
        "nobody::Unknown": 0,
        "acme::Scale": 1,
        "ai.onnx::Relu": 1,
        "acme::Halves": 1,
        "ai.onnx::Not": 1,
    }


# Threads


@BOTH
def test_eight_threads_in_one_session(use: Use, opened: Opened) -> None:
    use(scale, halves)
    nodes = [node("Scale", ["x0"], ["a"]), node("Halves", ["a"], ["y0"], name="other")]
    made = opened(model(nodes, {"x0": (FLOAT, ["N", 4])}, {"y0": None}))

    def work(number: int) -> None:
        x = np.full((number + 1, 4), number, np.float32)
        for _ in range(50):
            np.testing.assert_array_equal(run(made, x)[0], 2 * x[:, :2])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


@BOTH
def test_eight_threads_that_make_sessions(use: Use, opened: Opened) -> None:
    use(scale)

    def work(number: int) -> None:
        for _ in range(10):
            proto = one("Scale", (FLOAT, ["N", 4]), by=float(number))
            np.testing.assert_array_equal(run(opened(proto), X)[0], number * X)

    before = kernels()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert kernels() == before


@BOTH
def test_the_rank_of_an_output_is_not_made_up(use: Use, opened: Opened) -> None:
    """ONNX Runtime folds the Shape of what it was told."""

    @op("acme::Positive", dtypes=FLOATS)
    def positive(X: Any) -> Any:
        return X > 0

    positive.schema()
    use(positive)
    nodes = [node("Positive", ["x0"], ["p"]), helper.make_node("Shape", ["p"], ["y"])]
    made = opened(model(nodes, {"x0": (FLOAT, None)}, {"y": (INT64, None), "p": (BOOL, None)}))
    shape, found = run(made, X)
    assert shape.tolist() == [3, 4]
    np.testing.assert_array_equal(found, X > 0)


@BOTH
def test_a_size_that_is_cut_off_is_not_taken_for_a_fact(use: Use, opened: Opened) -> None:
    @op("acme::Head", dtypes=FLOATS)
    def head(X: Any, Y: Any) -> Any:
        return X[:2], X[: min(X.shape[0], Y.shape[0])]

    head.schema(outputs=("two", "least"))
    use(head)
    nodes = [
        node("Head", ["x", "y"], ["a", "b"]),
        helper.make_node("Shape", ["a"], ["sa"]),
        helper.make_node("Shape", ["b"], ["sb"]),
    ]
    outputs: dict[str, Info | None] = {"sa": (INT64, [2]), "sb": (INT64, [2])}
    made = opened(model(nodes, {"x": (FLOAT, ["n", 3]), "y": (FLOAT, ["m", 3])}, outputs))
    for n, m in [(1, 5), (4, 3), (3, 4), (2, 2)]:
        ones = [np.ones((n, 3), np.float32), np.ones((m, 3), np.float32)]
        a, b = made.run(None, dict(zip(["x", "y"], ones, strict=True)))
        assert a.tolist() == [min(n, 2), 3]
        assert b.tolist() == [min(n, m), 3]


def test_versions_of_sessions_made_side_by_side(use: Use, tmp_path: Any) -> None:
    """Nodes with the same names, of one version or another, left to kernels by the same handler's owner."""

    @op("acme::Step", since=1, until=1, dtypes=FLOATS)
    def step_1(X: Any) -> Any:
        return X + 1

    @op("acme::Step", since=2, dtypes=FLOATS)
    def step_2(X: Any) -> Any:
        return X + 2

    step_1.schema()
    step_2.schema()
    use(step_1, step_2)
    registry = tmp_path / "registry.yaml"
    registry.write_text('ops:\n  If: {deny: ["*"]}\n')

    def body(name: str) -> onnx.GraphProto:
        made = node("Step", ["x0"], ["r"])  # both branches: the same name and output
        return helper.make_graph([made], name, [], [helper.make_tensor_value_info("r", FLOAT, None)])

    chosen = helper.make_node("If", ["c"], ["y0"], then_branch=body("then"), else_branch=body("else"))
    inputs: dict[str, Info] = {"c": (BOOL, []), "x0": (FLOAT, [3, 4])}
    models = {v: model([chosen], inputs, {"y0": (FLOAT, [3, 4])}, version=v) for v in (1, 2)}

    def check(version: int) -> None:
        for cond in (True, False):
            made = on_ep(models[version], registry=str(registry))
            np.testing.assert_array_equal(made.run(None, {"c": np.array(cond), "x0": X})[0], X + version)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, [1, 2] * 20))
