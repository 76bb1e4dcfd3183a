"""Graphs from an onnx ModelProto: the second source of `opgraft.graph`, for files that no session holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.numpy_helper
from google.protobuf.message import Error as ProtobufError
from onnx import AttributeProto, SparseTensorProto, TensorProto, TypeProto

from opgraft.errors import ModelError
from opgraft.graph.completion import ONNX_ERRORS, Complete, completed
from opgraft.graph.element_types import NAME_OF_ONNX, ONNX_OF_NAME, PACKED, STORAGE, marked
from opgraft.graph.model import (
    ONNX_DOMAIN,
    Array,
    AttributeValue,
    Graph,
    Initializer,
    Node,
    Shape,
    UnreadableAttribute,
    Value,
    normalized_domain,
    topologically_sorted,
)
from opgraft.graph.packing import from_codes

FIRST_IR_WITH_OVERRIDABLE_INITIALIZERS = 4
"""Before this IR version every initializer had to be a graph input too, and was a constant nevertheless."""


def load_model(path: str | Path) -> onnx.ModelProto:
    """Read a model file, with its external data still outside.

    Raises:
        ModelError: there is no such file, or it holds no ONNX model.
    """
    path = Path(path)
    if not path.exists():
        raise ModelError(f"{path}: no such file")
    if not path.is_file():  # a pipe may take forever, and a device never end
        raise ModelError(f"{path}: {'a folder' if path.is_dir() else 'a pipe or a device'}, not a model file")
    try:
        model = onnx.load(path, format="protobuf", load_external_data=False)
    except (ProtobufError, OSError, ValueError, MemoryError) as error:
        raise ModelError(f"{path}: not an ONNX model, or cut short ({type(error).__name__}: {error})") from error
    if not model.HasField("graph"):
        raise ModelError(f"{path}: not an ONNX model (it holds no graph)")
    return model


Infer: TypeAlias = Callable[[Node], Sequence[Value]]
"""Says what the outputs of a node are of, where ONNX has no schema of its operator."""


def graph_of_model(
    model: onnx.ModelProto, folder: str | Path = ".", infer: Infer | None = None, complete: Complete = completed
) -> Graph:
    """The graph of a model, with the types and shapes that ONNX's own inference finds.

    Constant nodes become initializers, and calls of the model's own functions the functions' nodes, as they do in ONNX
    Runtime.

    Args:
        model: the model.
        folder: where its external data lies.
        infer: asked for the types of outputs that ONNX's inference does not find.
        complete: ONNX's inference. For a file that may be anything, `completed_apart`.

    Raises:
        ModelError: its nodes form a cycle, or two of them have an output of one name.
    """
    opsets = {normalized_domain(each.domain): each.version for each in model.opset_import}
    overridable = model.ir_version >= FIRST_IR_WITH_OVERRIDABLE_INITIALIZERS
    while True:
        model = complete(model)
        reader = _Reader(opsets, Path(folder), overridable)
        graph = reader.graph(model.graph, {})
        # What is found here, ONNX's inference goes on from.
        if infer is None or not any([_note_types(each, proto, infer) for each, proto in reader.read]):
            return graph


def _note_types(graph: Graph, proto: onnx.GraphProto, infer: Infer) -> bool:
    """Write into a graph's proto what `infer` finds. Returns whether that was anything new."""
    infos = {info.name: info for info in (*proto.value_info, *proto.output)}
    news = False
    for node in graph.nodes:
        lacking = {value.name: value for value in node.outputs if value is not None and _lacks(value)}
        for found in infer(node) if lacking else ():
            known = lacking.get(found.name)
            if known is None or found.dtype is None or known.dtype not in (None, found.dtype):
                continue
            if known.dtype is None or found.shape is not None:
                info = infos[found.name] if found.name in infos else proto.value_info.add(name=found.name)
                info.type.CopyFrom(onnx.helper.make_tensor_type_proto(ONNX_OF_NAME[found.dtype], found.shape))
                news = True
    return news


def _lacks(value: Value) -> bool:
    return value.kind == "tensor" and (value.dtype is None or value.shape is None)


class _Reader:
    def __init__(self, opsets: Mapping[str, int], folder: Path, overridable: bool) -> None:
        self.opsets = opsets
        self.folder = folder
        self.overridable = overridable
        self.read: list[tuple[Graph, onnx.GraphProto]] = []
        """What was read, the graphs of bodies before those around them."""

    def graph(self, proto: onnx.GraphProto, outer: Mapping[str, Value]) -> Graph:
        """`outer`: the values that enclosing graphs define, by name."""
        known = dict(outer)
        known.update({name: Value(name) for node in proto.node for name in node.output if name})
        for info in (*proto.value_info, *proto.input, *proto.output):
            if info.type.WhichOneof("value") or info.name not in known:
                known[info.name] = _value(info.name, info.type)
        formals = {info.name for info in proto.input} if self.overridable else set()
        initializers: dict[str, Initializer] = {}
        for tensor in proto.initializer:
            self._carry(initializers, tensor.name, tensor, constant=tensor.name not in formals)
        for sparse in proto.sparse_initializer:
            self._carry(initializers, sparse.values.name, sparse, constant=sparse.values.name not in formals)
        computed: list[onnx.NodeProto] = []
        for node in proto.node:
            constant = _constant_tensor(node)
            if constant is None:
                computed.append(node)
            else:
                self._carry(initializers, node.output[0], constant, constant=True)
        known.update({name: each.value for name, each in initializers.items() if each.constant or name not in known})
        graph = Graph(
            name=proto.name,
            inputs=tuple(known[info.name] for info in proto.input),
            outputs=tuple(known[info.name] for info in proto.output),
            nodes=topologically_sorted([self._node(node, known) for node in computed]),
            initializers=initializers,
            opsets=self.opsets,
        )
        self.read.append((graph, proto))
        return graph

    def _carry(
        self, into: dict[str, Initializer], name: str, tensor: TensorProto | SparseTensorProto, *, constant: bool
    ) -> None:
        sparse = isinstance(tensor, SparseTensorProto)
        data_type = tensor.values.data_type if sparse else tensor.data_type
        read = partial(dense_array if sparse else storage_array, tensor, self.folder)
        shape = tuple(size if size >= 0 else None for size in tensor.dims)
        into[name] = Initializer(Value(name, NAME_OF_ONNX.get(data_type), shape), read, constant)

    def _node(self, proto: onnx.NodeProto, known: Mapping[str, Value]) -> Node:
        domain = normalized_domain(proto.domain)
        attributes = {each.name: self._attribute(each, known) for each in proto.attribute}
        implicit: dict[str, Value] = {}
        for body in (value for value in attributes.values() if isinstance(value, Graph)):
            implicit.update({name: known[name] for name in _free_names(body) if name in known})
        return Node(
            name=proto.name,
            op_type=proto.op_type,
            domain=domain,
            since_version=since_version(proto.op_type, domain, self.opsets.get(domain, 1)),
            inputs=_without_trailing_absent(proto.input, known),
            outputs=_values(proto.output, known),
            attributes=attributes,
            implicit_inputs=tuple(implicit.values()),
        )

    def _attribute(self, proto: AttributeProto, known: Mapping[str, Value]) -> AttributeValue:
        read = _ATTRIBUTE_READERS.get(proto.type)
        return UnreadableAttribute() if read is None else read(self, proto, known)

    def tensor_attribute(self, tensor: TensorProto) -> AttributeValue:
        try:
            return marked(storage_array(tensor, self.folder), NAME_OF_ONNX[tensor.data_type])
        except ModelError:
            return UnreadableAttribute()


_ATTRIBUTE_READERS: dict[int, Callable[[_Reader, AttributeProto, Mapping[str, Value]], AttributeValue]] = {
    AttributeProto.INT: lambda reader, proto, known: proto.i,
    AttributeProto.FLOAT: lambda reader, proto, known: proto.f,
    AttributeProto.STRING: lambda reader, proto, known: _text(proto.s),
    AttributeProto.INTS: lambda reader, proto, known: tuple(proto.ints),
    AttributeProto.FLOATS: lambda reader, proto, known: tuple(proto.floats),
    AttributeProto.STRINGS: lambda reader, proto, known: tuple(_text(each) for each in proto.strings),
    AttributeProto.TENSOR: lambda reader, proto, known: reader.tensor_attribute(proto.t),
    AttributeProto.GRAPH: lambda reader, proto, known: reader.graph(proto.g, known),
}


def since_version(op_type: str, domain: str, opset: int) -> int:
    """The operator version that `opset` means for an operator; the opset itself where ONNX has no schema."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, "" if domain == ONNX_DOMAIN else domain)
    except (onnx.defs.SchemaError, TypeError):  # a TypeError where it is more than a version can be
        return opset
    return int(schema.since_version)


def storage_array(tensor: TensorProto, folder: str | Path = ".") -> Array:
    """The elements of a tensor in the storage type of its element type; see `storage_form`.

    Raises:
        ModelError: its external data is missing or elsewhere, its sizes are not those of its data, or its element type
            has no storage here.
    """
    name = NAME_OF_ONNX.get(tensor.data_type, f"number {tensor.data_type}")
    storage = STORAGE.get(name)
    if storage is None and name != "string":
        raise ModelError(f"tensor {tensor.name!r}: element type {name} is not supported")
    if min(tensor.dims, default=0) < 0:
        raise ModelError(f"tensor {tensor.name!r}: a size of {list(tensor.dims)} is negative")
    try:
        if tensor.data_location == TensorProto.EXTERNAL:
            _require_inside(tensor, Path(folder).resolve())
        array: Any = onnx.numpy_helper.to_array(tensor, base_dir=str(folder))
    except (OSError, OverflowError, *ONNX_ERRORS) as error:
        raise ModelError(f"tensor {tensor.name!r}: {error or 'too large for here'}") from error
    if storage is None:
        return np.asarray(array, dtype=object)
    return storage_form(array, name)


def _require_inside(tensor: TensorProto, folder: Path) -> None:
    """Make sure that a tensor's file lies in the model's folder, wherever links lead: onnx has not always done so.

    Raises:
        ValueError: it lies elsewhere, or is no file.
    """
    location = next((each.value for each in tensor.external_data if each.key == "location"), "")
    if not isinstance(location, str):  # protobuf gives bytes where they are no UTF-8
        raise ValueError(f"its data is to be in {location!r}, which is no text")
    place = (folder / location).resolve()
    if not place.is_relative_to(folder) or not place.is_file():
        raise ValueError(f"its data is to be in {location!r}, which is no file in the model's folder")


def storage_form(array: Any, dtype: str) -> Array:
    """An array of element type `dtype` in its storage type: bfloat16 as its 16 bits, int4 as int8.

    Args:
        array: as onnx gives it (types that NumPy lacks are those of ml_dtypes), or in storage form already.
    """
    storage = STORAGE[dtype]
    if array.dtype == storage:
        return np.asarray(array).view(storage)  # onnx before 1.18 gives a storage type with a name of its own
    codes: Any = np.ascontiguousarray(array).reshape(-1)
    stored = from_codes(codes, dtype) if dtype in PACKED else codes.view(storage)
    return np.reshape(stored, array.shape)


def dense_array(sparse: SparseTensorProto, folder: str | Path = ".") -> Array:
    """The elements of a sparse tensor, zeros among them, in storage form; see `storage_array`.

    Raises:
        ModelError: as for `storage_array`; or its places are not in its shape, or not as many as its values.
    """
    values = storage_array(sparse.values, folder)
    places = storage_array(sparse.indices, folder)
    try:
        array = np.zeros(tuple(sparse.dims), values.dtype)
        if places.ndim == 1:
            array.flat[places.astype(np.int64)] = values
        else:
            array[tuple(places.astype(np.int64).T)] = values
    except (ValueError, IndexError, OverflowError, MemoryError) as error:
        raise ModelError(
            f"sparse tensor {sparse.values.name!r}, of shape {list(sparse.dims)}: {error or 'too large for here'}"
        ) from error
    return array


def _constant_tensor(node: onnx.NodeProto) -> TensorProto | SparseTensorProto | None:
    """What a sound Constant node holds; None for every other node."""
    if node.op_type != "Constant" or normalized_domain(node.domain) != ONNX_DOMAIN or len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    kind, read = _CONSTANT_FORMS.get(attribute.name, (None, None))
    if read is None or attribute.type != kind or len(node.output) != 1 or not node.output[0]:
        return None
    found = read(attribute)
    if isinstance(found, TensorProto | SparseTensorProto):
        return found
    return onnx.numpy_helper.from_array(found, node.output[0])


_CONSTANT_FORMS: dict[str, tuple[int, Callable[[AttributeProto], Any]]] = {
    "value": (AttributeProto.TENSOR, lambda attribute: attribute.t),
    "sparse_value": (AttributeProto.SPARSE_TENSOR, lambda attribute: attribute.sparse_tensor),
    "value_int": (AttributeProto.INT, lambda attribute: np.array(attribute.i, np.int64)),
    "value_ints": (AttributeProto.INTS, lambda attribute: np.array(attribute.ints, np.int64)),
    "value_float": (AttributeProto.FLOAT, lambda attribute: np.array(attribute.f, np.float32)),
    "value_floats": (AttributeProto.FLOATS, lambda attribute: np.array(attribute.floats, np.float32)),
    "value_string": (AttributeProto.STRING, lambda attribute: np.array(attribute.s, object)),
    "value_strings": (AttributeProto.STRINGS, lambda attribute: np.array(list(attribute.strings), object)),
}


def _value(name: str, proto: TypeProto) -> Value:
    kind = proto.WhichOneof("value") or "tensor_type"
    if kind != "tensor_type":
        return Value(name, kind=kind.removesuffix("_type"))
    tensor = proto.tensor_type
    return Value(name, NAME_OF_ONNX.get(tensor.elem_type), _shape(tensor))


def _shape(tensor: TypeProto.Tensor) -> Shape | None:
    if not tensor.HasField("shape"):
        return None
    return tuple(
        # some exporters write -1 for a size that they do not know
        (dim.dim_value if dim.dim_value >= 0 else None) if dim.HasField("dim_value") else (dim.dim_param or None)
        for dim in tensor.shape.dim
    )


def _values(names: Any, known: Mapping[str, Value]) -> tuple[Value | None, ...]:
    return tuple(known.get(name, Value(name)) if name else None for name in names)


def _without_trailing_absent(names: Any, known: Mapping[str, Value]) -> tuple[Value | None, ...]:
    values = list(_values(names, known))
    while values and values[-1] is None:
        values.pop()
    return tuple(values)


def _free_names(graph: Graph) -> list[str]:
    """The names that a body reads from outside it, in the order of their first use."""
    read = [value.name for node in graph.nodes for value in (*node.inputs, *node.implicit_inputs) if value is not None]
    read += [value.name for value in graph.outputs]
    return [name for name in dict.fromkeys(read) if name not in graph.own_names]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
