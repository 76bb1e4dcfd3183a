"""Ways to damage a model: each a function of a random generator and of the protobuf that it damages.

One that finds nothing to damage raises `LookupError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

Rng = np.random.Generator

NUMBERS = (0, 1, -1, 2, 3, 7, -2, 64, 127, 255, 2**15, 65537, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**62)
NUMBERS += (2**63 - 1, -(2**63), 3037000500)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, -1e38, float("inf"), float("-inf"), float("nan"), 0.5)
TEXTS = (
    "",
    "x",
    "NOTSET",
    "linear",
    "a\0b",
    "\x1b[2J\x1b]0;title\x07",
    "</script><script>alert(1)</script>",
    "|`\n*",
    "../../x",
)
TEXTS += ("os", "subprocess", "__import__('os')", "{{7*7}}", "%s%n", "é\u202e\u2028", "n" * 3000)
DOMAINS = (
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "com.microsoft",
    "com.ms.internal.nhwc",
    "os.path",
    "acme",
    "com.microsoft.nchwc",
)


def pick(rng: Rng, of: Sequence[Any]) -> Any:
    if not of:
        raise LookupError
    return of[int(rng.integers(len(of)))]


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs_of(attribute.g)


def nodes_of(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for graph in graphs_of(model.graph) for node in graph.node]


def tensors_of(model: onnx.ModelProto) -> list[TensorProto]:
    found = [tensor for graph in graphs_of(model.graph) for tensor in graph.initializer]
    return found + [each.t for node in nodes_of(model) for each in node.attribute if each.HasField("t")]


def infos_of(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    return [each for graph in graphs_of(model.graph) for each in (*graph.value_info, *graph.input, *graph.output)]


def names_of(model: onnx.ModelProto) -> list[str]:
    found = [name for node in nodes_of(model) for name in (*node.input, *node.output)]
    return list(dict.fromkeys([*found, *(each.name for each in infos_of(model)), "", "nowhere"]))


def attribute(rng: Rng, model: onnx.ModelProto) -> tuple[onnx.NodeProto, AttributeProto]:
    node = pick(rng, [node for node in nodes_of(model) if node.attribute])
    return node, pick(rng, node.attribute)


def random_attribute(rng: Rng, name: str) -> AttributeProto:
    values: tuple[Any, ...] = (
        pick(rng, NUMBERS),
        float(pick(rng, FLOATS)),
        pick(rng, TEXTS),
        [pick(rng, NUMBERS) for _ in range(rng.integers(1, 6))],
        [float(pick(rng, FLOATS)) for _ in range(rng.integers(1, 4))],
        [pick(rng, TEXTS) for _ in range(rng.integers(1, 4))],
        numpy_helper.from_array(np.asarray(rng.integers(-3, 4, rng.integers(0, 3, rng.integers(0, 3))))),
        helper.make_graph([], "body", [], []),
    )
    return helper.make_attribute(name, pick(rng, values))


def attribute_replaced(rng: Rng, model: onnx.ModelProto) -> None:
    _, one = attribute(rng, model)
    one.CopyFrom(random_attribute(rng, one.name))


def attribute_mistyped(rng: Rng, model: onnx.ModelProto) -> None:
    _, one = attribute(rng, model)
    one.type = int(pick(rng, AttributeProto.AttributeType.values()))


def attribute_missing(rng: Rng, model: onnx.ModelProto) -> None:
    node, one = attribute(rng, model)
    node.attribute.remove(one)


def attribute_twice(rng: Rng, model: onnx.ModelProto) -> None:
    node, one = attribute(rng, model)
    node.attribute.append(one)


def attribute_added(rng: Rng, model: onnx.ModelProto) -> None:
    """One that another node has, or that no operator has."""
    known = [each.name for node in nodes_of(model) for each in node.attribute]
    name = pick(rng, [*known, "axis", "axes", "to", "value", "mode", "pads", "strides", "acme"])
    pick(rng, nodes_of(model)).attribute.append(random_attribute(rng, name))


def attribute_absurd(rng: Rng, model: onnx.ModelProto) -> None:
    """Another value of the same type."""
    _, one = attribute(rng, model)
    if one.type == AttributeProto.INT:
        one.i = pick(rng, NUMBERS)
    elif one.type == AttributeProto.FLOAT:
        one.f = pick(rng, FLOATS)
    elif one.type == AttributeProto.STRING:
        one.s = pick(rng, TEXTS).encode()
    elif one.type == AttributeProto.INTS:
        change = rng.integers(3)
        if change and one.ints:
            one.ints[int(rng.integers(len(one.ints)))] = pick(rng, NUMBERS)
        elif change == 0 and one.ints:
            del one.ints[-1]
        else:
            one.ints.append(pick(rng, NUMBERS))
    else:
        raise LookupError


def info(rng: Rng, model: onnx.ModelProto) -> onnx.ValueInfoProto:
    return pick(rng, infos_of(model))


def type_declared(rng: Rng, model: onnx.ModelProto) -> None:
    info(rng, model).type.tensor_type.elem_type = int(pick(rng, [*TensorProto.DataType.values(), 99, -1]))


def kind_declared(rng: Rng, model: onnx.ModelProto) -> None:
    one, tensor = info(rng, model), onnx.TypeProto()
    tensor.tensor_type.elem_type = TensorProto.FLOAT
    kinds = (
        helper.make_sequence_type_proto(tensor),
        helper.make_optional_type_proto(tensor),
        helper.make_map_type_proto(TensorProto.INT64, tensor),
        helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [2, 3]),
        onnx.TypeProto(),
    )
    one.type.CopyFrom(pick(rng, kinds))


def shape_declared(rng: Rng, model: onnx.ModelProto) -> None:
    one = info(rng, model)
    if rng.random() < 0.2:
        one.type.tensor_type.ClearField("shape")
        return
    dims = one.type.tensor_type.shape.dim
    if not dims or rng.random() < 0.2:
        dims.add().dim_value = int(pick(rng, (0, 1, 2, 5)))
    elif rng.random() < 0.2:
        del dims[-1]
    else:
        dims[int(rng.integers(len(dims)))].dim_value = int(pick(rng, (0, 1, 2, 3, 4, 5, 7)))


def sizes_open(rng: Rng, model: onnx.ModelProto) -> None:
    """No size is known before a run, and perhaps no rank."""
    del model.graph.value_info[:]
    ranks = rng.random() < 0.7
    for one in infos_of(model):
        tensor = one.type.tensor_type
        if one.type.HasField("tensor_type") and ranks:
            for axis, dim in enumerate(tensor.shape.dim):
                dim.dim_param = f"{one.name} {axis}"
        elif one.type.HasField("tensor_type"):
            tensor.ClearField("shape")


def size_declared(rng: Rng, model: onnx.ModelProto) -> None:
    """A size that no memory holds, that is negative, or that overflows with others."""
    for dim in info(rng, model).type.tensor_type.shape.dim:
        if rng.random() < 0.6:
            dim.dim_value = pick(rng, NUMBERS)


def declaration_missing(rng: Rng, model: onnx.ModelProto) -> None:
    graph = pick(rng, list(graphs_of(model.graph)))
    infos = pick(rng, [each for each in (graph.value_info, graph.input, graph.output) if each])
    del infos[int(rng.integers(len(infos)))]


def declaration_twice(rng: Rng, model: onnx.ModelProto) -> None:
    graph = pick(rng, list(graphs_of(model.graph)))
    infos = pick(rng, [each for each in (graph.value_info, graph.input, graph.output) if each])
    infos.append(pick(rng, infos))


def input_renamed(rng: Rng, model: onnx.ModelProto) -> None:
    """An input that comes from anywhere: later nodes (a cycle), nowhere, or a value of another type."""
    node = pick(rng, [node for node in nodes_of(model) if node.input])
    node.input[int(rng.integers(len(node.input)))] = pick(rng, names_of(model))


def output_renamed(rng: Rng, model: onnx.ModelProto) -> None:
    node = pick(rng, [node for node in nodes_of(model) if node.output])
    node.output[int(rng.integers(len(node.output)))] = pick(rng, names_of(model))


def cycle(rng: Rng, model: onnx.ModelProto) -> None:
    graph = pick(rng, [graph for graph in graphs_of(model.graph) if graph.node])
    first, last = sorted(int(rng.integers(len(graph.node))) for _ in range(2))
    ends = list(graph.node[last].output) or ["nowhere"]
    if not graph.node[first].input:
        graph.node[first].input.append("")
    graph.node[first].input[int(rng.integers(len(graph.node[first].input)))] = pick(rng, ends)


def order_changed(rng: Rng, model: onnx.ModelProto) -> None:
    graph = pick(rng, [graph for graph in graphs_of(model.graph) if len(graph.node) > 1])
    nodes = [graph.node[int(at)] for at in rng.permutation(len(graph.node))]
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def node_missing(rng: Rng, model: onnx.ModelProto) -> None:
    graph = pick(rng, [graph for graph in graphs_of(model.graph) if graph.node])
    del graph.node[int(rng.integers(len(graph.node)))]


def node_twice(rng: Rng, model: onnx.ModelProto) -> None:
    graph = pick(rng, [graph for graph in graphs_of(model.graph) if graph.node])
    graph.node.append(pick(rng, graph.node))


def few_or_many(rng: Rng, names: Any, others: Sequence[str]) -> None:
    if names and rng.random() < 0.5:
        del names[int(rng.integers(len(names)))]
    else:
        names.extend(str(pick(rng, others)) for _ in range(rng.integers(1, 4)))


def inputs_counted(rng: Rng, model: onnx.ModelProto) -> None:
    few_or_many(rng, pick(rng, nodes_of(model)).input, names_of(model))


def outputs_counted(rng: Rng, model: onnx.ModelProto) -> None:
    few_or_many(rng, pick(rng, nodes_of(model)).output, ["more1", "more2", ""])


def operator_replaced(rng: Rng, model: onnx.ModelProto) -> None:
    pick(rng, nodes_of(model)).op_type = pick(
        rng, [*sorted({each.name for each in onnx.defs.get_all_schemas()}), *TEXTS]
    )


def domain_replaced(rng: Rng, model: onnx.ModelProto) -> None:
    node = pick(rng, nodes_of(model))
    node.domain = pick(rng, [*DOMAINS, *TEXTS])
    if rng.random() < 0.7:
        model.opset_import.append(helper.make_opsetid(node.domain, int(pick(rng, (1, 0, 21, 999)))))


def opset_replaced(rng: Rng, model: onnx.ModelProto) -> None:
    if rng.random() < 0.1:
        del model.opset_import[:]
        return
    pick(rng, model.opset_import).version = pick(rng, [*range(1, 30), *NUMBERS])


def ir_replaced(rng: Rng, model: onnx.ModelProto) -> None:
    model.ir_version = pick(rng, [*range(1, 16), *NUMBERS])


def names_replaced(rng: Rng, model: onnx.ModelProto) -> None:
    """A value has another name, everywhere."""
    old, new = pick(rng, names_of(model)), pick(rng, TEXTS)
    for graph in graphs_of(model.graph):
        for each in (*graph.initializer, *graph.value_info, *graph.input, *graph.output):
            each.name = new if each.name == old else each.name
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [new if name == old else name for name in names]


def node_named(rng: Rng, model: onnx.ModelProto) -> None:
    pick(rng, nodes_of(model)).name = pick(rng, TEXTS)


def tensor_bytes(rng: Rng, model: onnx.ModelProto) -> None:
    """Elements too few or too many."""
    tensor = pick(rng, tensors_of(model))
    if not tensor.HasField("raw_data"):
        tensor.raw_data = rng.bytes(int(rng.integers(0, 40)))
    elif rng.random() < 0.5:
        tensor.raw_data = tensor.raw_data[: int(rng.integers(len(tensor.raw_data) + 1))]
    else:
        tensor.raw_data += rng.bytes(int(rng.integers(1, 40)))


def tensor_type(rng: Rng, model: onnx.ModelProto) -> None:
    pick(rng, tensors_of(model)).data_type = int(pick(rng, [*TensorProto.DataType.values(), 99]))


def tensor_dims(rng: Rng, model: onnx.ModelProto) -> None:
    dims = pick(rng, tensors_of(model)).dims
    change = rng.integers(4)
    if change == 0 or not dims:
        dims.append(pick(rng, NUMBERS))
    elif change == 1:
        del dims[-1]
    else:
        dims[int(rng.integers(len(dims)))] = pick(rng, NUMBERS)


def tensor_values(rng: Rng, model: onnx.ModelProto) -> None:
    """Absurd elements, of shapes, axes, indices and scales above all."""
    found = [each for each in tensors_of(model) if each.HasField("raw_data") and len(each.raw_data) <= 256]
    tensor = pick(rng, [each for each in found if each.data_type in (TensorProto.INT64, TensorProto.INT32)] or found)
    try:
        array = numpy_helper.to_array(tensor).copy()
        with np.errstate(all="ignore"):
            array.flat[int(rng.integers(array.size))] = pick(rng, NUMBERS if array.dtype.kind in "iu" else FLOATS)
        tensor.raw_data = array.tobytes()
    except (ValueError, TypeError, OverflowError) as error:
        raise LookupError from error


def tensor_field(rng: Rng, model: onnx.ModelProto) -> None:
    """Elements in the field of another type."""
    tensor = pick(rng, tensors_of(model))
    tensor.ClearField("raw_data")
    getattr(tensor, pick(rng, ("float_data", "int32_data", "int64_data", "double_data", "uint64_data"))).extend(
        [1, 2, 3]
    )


def tensor_segment(rng: Rng, model: onnx.ModelProto) -> None:
    tensor = pick(rng, tensors_of(model))
    tensor.segment.begin, tensor.segment.end = pick(rng, NUMBERS), pick(rng, NUMBERS)


def initializer_twice(rng: Rng, model: onnx.ModelProto) -> None:
    graph = pick(rng, [graph for graph in graphs_of(model.graph) if graph.initializer])
    graph.initializer.append(pick(rng, graph.initializer))


def sparse_initializer(rng: Rng, model: onnx.ModelProto) -> None:
    """An initializer becomes a sparse one, whose places or sizes may be wrong."""
    graph = pick(rng, [graph for graph in graphs_of(model.graph) if graph.initializer])
    tensor = pick(rng, graph.initializer)
    sparse = graph.sparse_initializer.add(dims=list(tensor.dims))
    count = int(rng.integers(0, 4))
    dtype = np.float32 if tensor.data_type == TensorProto.FLOAT else np.int64
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(count, dtype), tensor.name))
    shape = [count, max(len(tensor.dims), 1)][: int(rng.integers(1, 3))]
    places = np.array([pick(rng, (0, 0, 0, 1, 2, -1, 2**40)) for _ in range(int(np.prod(shape)))], np.int64)
    sparse.indices.CopyFrom(numpy_helper.from_array(places.reshape(shape)))
    graph.initializer.remove(tensor)


def body_arity(rng: Rng, model: onnx.ModelProto) -> None:
    body = pick(rng, list(graphs_of(model.graph))[1:])
    values = pick(rng, [body.input, body.output])
    if values and rng.random() < 0.6:
        del values[int(rng.integers(len(values)))]
    else:
        values.append(pick(rng, infos_of(model)))


def body_replaced(rng: Rng, model: onnx.ModelProto) -> None:
    body, other = pick(rng, list(graphs_of(model.graph))[1:]), onnx.GraphProto()
    other.CopyFrom(pick(rng, list(graphs_of(model.graph))))
    body.CopyFrom(other)


def nested(rng: Rng, model: onnx.ModelProto) -> None:
    """The graph inside of an If, inside of an If, and so on."""
    for level in range(int(pick(rng, (1, 3, 12, 40)))):
        inner, outer = onnx.GraphProto(), onnx.GraphProto(name=f"level {level}")
        inner.CopyFrom(model.graph)
        outer.input.extend(inner.input)
        outer.output.extend(inner.output)
        del inner.input[:]
        outer.initializer.append(numpy_helper.from_array(np.array(bool(level % 2)), f"condition {level}"))
        names = [each.name for each in outer.output]
        outer.node.append(helper.make_node("If", [f"condition {level}"], names, then_branch=inner, else_branch=inner))
        if outer.ByteSize() > 100_000:
            return
        model.graph.CopyFrom(outer)


def function_added(rng: Rng, model: onnx.ModelProto) -> None:
    """A node calls a function of the model: one that calls itself, has a wrong arity, or does what the node did."""
    node, called = pick(rng, nodes_of(model)), onnx.NodeProto()
    called.CopyFrom(node)
    name, inner = pick(rng, ("F", *TEXTS)), called
    if rng.random() < 0.4:
        inner = helper.make_node(name, list(node.input), list(node.output), domain="acme")
    inputs = list(dict.fromkeys(each for each in node.input if each))[: int(rng.integers(0, 4))]
    model.functions.append(
        helper.make_function("acme", name, inputs, list(node.output), [inner], list(model.opset_import))
    )
    model.opset_import.append(helper.make_opsetid("acme", 1))
    node.op_type, node.domain = name, "acme"


def messages_of(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if hasattr(value, "add") else (value,):
                yield from messages_of(each)


def any_field(rng: Rng, model: onnx.ModelProto) -> None:
    """Some field of some message has another value, none, or more of them."""
    everything = list(messages_of(model))
    message = pick(rng, everything)
    fields = [field for field, _ in message.ListFields()] or list(message.DESCRIPTOR.fields)
    field = pick(rng, fields if rng.random() < 0.7 else list(message.DESCRIPTOR.fields))
    value = getattr(message, field.name)
    try:
        if rng.random() < 0.3:
            message.ClearField(field.name)
        elif field.message_type is not None:
            data = pick(rng, [each for each in everything if each.DESCRIPTOR is field.message_type]).SerializeToString()
            (value.add() if hasattr(value, "add") else value).ParseFromString(data)  # it may hold the message itself
        elif hasattr(value, "extend"):
            value.append(scalar(rng, field, model))
        else:
            setattr(message, field.name, scalar(rng, field, model))
    except (ValueError, TypeError) as error:
        raise LookupError from error


def scalar(rng: Rng, field: Any, model: onnx.ModelProto) -> Any:
    if field.type == field.TYPE_STRING:
        return pick(rng, [*names_of(model), *TEXTS])
    if field.type == field.TYPE_BYTES:
        return rng.bytes(int(rng.integers(0, 20)))
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return pick(rng, FLOATS)
    return pick(rng, [*NUMBERS, *range(20)])


_WEIGHTED: tuple[tuple[int, Callable[[Rng, onnx.ModelProto], None]], ...] = (
    (1, attribute_replaced),
    (1, attribute_mistyped),
    (2, attribute_missing),
    (1, attribute_twice),
    (1, attribute_added),
    (4, attribute_absurd),
    (1, type_declared),
    (1, kind_declared),
    (2, shape_declared),
    (3, sizes_open),
    (1, size_declared),
    (1, declaration_missing),
    (1, declaration_twice),
    (1, input_renamed),
    (1, output_renamed),
    (1, cycle),
    (1, order_changed),
    (1, node_missing),
    (1, node_twice),
    (2, inputs_counted),
    (1, outputs_counted),
    (1, operator_replaced),
    (1, domain_replaced),
    (1, opset_replaced),
    (1, ir_replaced),
    (1, names_replaced),
    (1, node_named),
    (1, tensor_bytes),
    (1, tensor_type),
    (1, tensor_dims),
    (5, tensor_values),
    (1, tensor_field),
    (1, tensor_segment),
    (1, initializer_twice),
    (1, sparse_initializer),
    (1, body_arity),
    (1, body_replaced),
    (1, nested),
    (1, function_added),
    (3, any_field),
)
TO_MODEL = tuple(damage for weight, damage in _WEIGHTED for _ in range(weight))
"""Those that most models survive come more often: they reach further."""
