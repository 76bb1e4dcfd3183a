"""Element types and shapes of the outputs of operators that packs define."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import onnx

from opgraft.engine.lanes import lane
from opgraft.engine.verify import stand_ins, translated
from opgraft.errors import ContractError
from opgraft.graph import Dim, Graph, Node, Shape, Value
from opgraft.graph.completion import Complete, completed
from opgraft.graph.element_types import HELD
from opgraft.graph.onnx_source import graph_of_model
from opgraft.ops import Handler, Output
from opgraft.ops.arrays import as_held, element_type
from opgraft.ops.handler import Input, Place, Signature
from opgraft.ops.schema import Schema, keywords_taken
from opgraft.registry import Candidate, Definition, set_versions
from opgraft.registry.definitions import only

NOTHING: Final = Output(None)
"""What is known of an output of which nothing is."""

_LIKELY_RANKS: Final = (2, 1, 3, 4, 0)

_RANKS: Final = range(5)
"""What an input of unknown rank is taken to have, in turn."""

_OWN_SIZES: Final = (
    (2, 3, 5, 7, 11, 13, 17, 19),
    (53, 59, 61, 67, 71, 73, 79, 83),
    (83, 79, 73, 71, 67, 61, 59, 53),
    (1, 1, 1, 1, 1, 1, 1, 1),
)
_COMMON_SIZES: Final = ((4, 8), (16, 32), (32, 64), (1, 2))
"""Pairs of sizes that unknown dimensions are taken to have."""


def infer_outputs(node: Node, definition: Definition) -> list[Output]:
    """What is known of the outputs of a node before it runs.

    Args:
        node: its inputs' types are read, its outputs' are not. Its version may be unknown: what the versions that take
            its form do not agree on is not known then.
        definition: of its operator.

    Returns:
        An output for each one that the node has, or more; none where no handler takes it as it is.

    Raises:
        ContractError: the handler's inference failed, or gave what no output can be.
    """
    found = definition.handlers_for(node).items()
    taking = [(version, handler) for version, handler in found if next(handler.declines(node), None) is None]
    return _agreed([_outputs(_of_version(node, version), handler, definition.pack) for version, handler in taking])


@cache
def output_types(definition: Definition) -> tuple[str | None, ...]:
    """For each output that every node of an operator has, its element type, where that is always the same: as declared,
    or as its handlers have it for all element types and numbers of inputs.

    Nothing is said of what may depend on an attribute: a node of another type than was told would be refused.
    """
    declared = definition.output_types
    if None not in declared or any(map(_reads_attributes, definition.handlers)):
        return declared
    found: list[set[str | None]] = [set() for _ in declared]
    for node in _nodes_of_each_form(definition):
        outputs = _of_some_rank(node, definition)
        for index, types in enumerate(found):
            types.add(outputs[index].dtype if index < len(outputs) else None)
        if all(len(types) > 1 for types in found):
            break
    return tuple(known or only(types) for known, types in zip(declared, found, strict=True))


def _reads_attributes(handler: Handler) -> bool:
    """Whether what is inferred of a handler's outputs may depend on an attribute."""
    attributes, schema = handler.signature.attributes, handler.definition
    if schema is None or schema.inference is None:
        return bool(attributes)
    return bool(keywords_taken(schema.inference, attributes))


def _nodes_of_each_form(definition: Definition) -> Iterator[Node]:
    """Nodes of unknown shapes, of each form, and with each element type that the inputs may have."""
    for handler in definition.handlers:
        for given in _forms(handler.signature):
            for dtype in sorted(set[str]().union(*(each.dtypes for each in given if each is not None))):
                yield _node_of_type(definition, handler.since, given, dtype)


def _forms(signature: Signature) -> Iterator[list[Input | None]]:
    """The inputs of nodes with all, with none and with one each of those that may be left out, and with none to two
    variadic ones; not without any, if there is a variadic one."""
    optional = {place for place, each in enumerate(signature.inputs) if not each.required}
    for left_out in (set[int](), optional, *(optional - {place} for place in optional)):
        fixed = [None if place in left_out else each for place, each in enumerate(signature.inputs)]
        for count in range(3 if signature.variadic else 1):
            given = [*fixed, *[signature.variadic] * count]
            if signature.variadic is None or any(given):
                yield given


def _node_of_type(definition: Definition, version: int, given: Sequence[Input | None], dtype: str) -> Node:
    """A node whose inputs are of an element type, or, where they are never of that, of one that they may be of."""
    inputs = [
        None if each is None else Value(f"input {place}", dtype if dtype in each.dtypes else min(each.dtypes))
        for place, each in enumerate(given)
    ]
    while inputs and inputs[-1] is None:
        inputs.pop()
    outputs = tuple(Value(f"output {index}") for index in range(len(definition.output_types)))
    node = Node("", definition.op_type, definition.domain, version, tuple(inputs), outputs, {})
    Graph("", tuple(each for each in inputs if each is not None), (), (node,), {}, {})
    return node


def _of_some_rank(node: Node, definition: Definition) -> list[Output]:
    """What is inferred where all inputs are of one rank, the first that the operator takes; nothing without one."""
    for rank in _LIKELY_RANKS:
        with suppress(Exception):
            return infer_outputs(_with_shapes(node, lambda _, shape, rank=rank: (4,) * rank), definition)  # type: ignore[misc]
    return []


def read_model(
    model: onnx.ModelProto,
    definitions: Mapping[str, Definition],
    folder: str | Path = ".",
    complete: Complete = completed,
) -> Graph:
    """The graph of a model, as `graph_of_model` gives it, in which operators that packs define have their versions and
    the types that are inferred for them.

    Args:
        model: the model.
        definitions: of those operators, by operator.
        folder: where the model's external data lies.
        complete: as for `graph_of_model`.

    Raises:
        ModelError: its nodes form a cycle.
    """

    def infer(node: Node) -> Sequence[Value]:
        definition = definitions.get(node.operator)
        if definition is None:
            return ()
        try:
            outputs = infer_outputs(node, definition)
        except ContractError:  # what is wrong is found again when the claim is tried
            return ()
        return [
            replace(value, dtype=output.dtype, shape=output.shape)
            for value, output in zip(node.outputs, outputs, strict=False)
            if value is not None
        ]

    graph = graph_of_model(model, folder, infer if definitions else None, complete)
    set_versions(graph, definitions)
    return graph


def cannot_infer(handler: Handler) -> str | None:
    """Why no element types can be inferred for a handler's operator whatever its node, or None where they can."""
    schema = handler.definition
    if schema is None or schema.inference is not None or all(each.dtype for each in schema.outputs):
        return None
    signature = handler.signature
    hosts = [each.name for each in (*signature.inputs, signature.variadic) if each and each.place is Place.HOST]
    cure = "give .schema a function, or outputs={name: element type, or input that has the same}"
    if hosts:
        return f"the element types of its outputs are unknown, since input {hosts[0]} is Host; {cure}"
    if signature.narrow:
        return f"the element types of its outputs are unknown, since MLX lacks {sorted(signature.narrow)[0]}; {cure}"
    return None


def _agreed(found: Sequence[Sequence[Output]]) -> list[Output]:
    """What all of several findings say."""
    if not found:
        return []
    return [
        Output(_same([each.dtype for each in one]), _same_shape([each.shape for each in one]))
        for one in zip(*found, strict=False)
    ]


def _same(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else None


def _same_shape(shapes: Sequence[Shape | None]) -> Shape | None:
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes) or len({len(shape) for shape in known}) != 1:
        return None
    return tuple(_same(dims) for dims in zip(*known, strict=True))


def _outputs(node: Node, handler: Handler, pack: str) -> list[Output]:
    schema = handler.definition
    assert schema is not None
    try:
        if schema.inference is not None:
            return _by_function(node, handler, schema.inference)
        found = _by_translation(node, Candidate.of(pack, handler, ()))
        return list(_with_declared_types(node, handler, schema, found))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # one that exits must not end its host
        failure = f"the inference failed: {Candidate.of(pack, handler, ()).text_of(error)}"
        refusal = _refusal(handler, node)
        raise ContractError(
            f"{handler.operator} [{pack}], node {node.label!r}: "
            + (failure if refusal is None else f"{refusal} (which is why {failure})")
        ) from error


def _refusal(handler: Handler, node: Node) -> str | None:
    """Why a handler does not take a node whose outputs it could not infer, in the words of its author."""
    with suppress(Exception):  # a condition that fails is found when the claim is tried
        return handler.reason(node)
    return None


def _by_function(node: Node, handler: Handler, inference: Callable[..., Any]) -> list[Output]:
    missing = [None] * (len(handler.signature.inputs) - len(node.inputs))
    results = inference(*node.inputs, *missing, **keywords_taken(inference, handler.signature.values(node)))
    return [_checked(result) for result in (results if isinstance(results, tuple | list) else (results,))]


def _checked(result: Any) -> Output:
    """What an inference function gave for one output.

    Raises:
        TypeError, ValueError: it is no output.
    """
    if not isinstance(result, Output | Value):
        raise TypeError(f"it gave a {type(result).__name__}, and not one of the inputs or an Output")
    if result.dtype is not None and result.dtype not in HELD:
        raise ValueError(f"{result.dtype!r} is not an element type that an output can have")
    shape = None if result.shape is None else tuple(_dimension(dim) for dim in result.shape)
    return Output(result.dtype, shape)


def _dimension(dim: Any) -> Dim:
    if isinstance(dim, bool) or not isinstance(dim, int | str | None):
        raise TypeError(f"{dim!r} is not a dimension: an int, a name, or None")
    if isinstance(dim, int) and dim < 0:
        raise ValueError(f"a dimension is {dim}")
    return dim


def _with_declared_types(node: Node, handler: Handler, schema: Schema, found: Sequence[Output]) -> Iterator[Output]:
    signature = handler.signature
    names = [each.name for each in (*signature.inputs, signature.variadic) if each is not None]
    for index in range(max(len(found), node.needed_outputs)):
        output = found[index] if index < len(found) else NOTHING
        parameter = schema.output(index)
        declared = None if parameter is None else parameter.dtype
        if declared in names:
            declared = node.dtype(names.index(declared))
        yield Output(declared, output.shape) if declared is not None else output


def _by_translation(node: Node, candidate: Candidate) -> list[Output]:
    """What the translator gives for stand-in inputs. Empty where it cannot be tried."""
    if all(value is None or value.shape is not None for value in node.inputs):
        return _of_known_ranks(node, candidate)
    found: list[list[Output]] = []
    failures: list[Exception] = []
    for rank in _RANKS:
        try:
            found.append(_of_known_ranks(with_unknown_ranks(node, rank), candidate))
        except Exception as error:  # a rank that the operator does not take, perhaps
            failures.append(error)
    if not found:
        raise failures[-1]
    outputs = _agreed(found)
    return [Output(each.dtype) for each in outputs] if failures else outputs


def with_unknown_ranks(node: Node, rank: int) -> Node:
    """The node as it is if inputs of unknown rank are of `rank`."""
    return _with_shapes(node, lambda _, shape: (None,) * rank if shape is None else shape)


def _of_version(node: Node, version: int) -> Node:
    made = _with_shapes(node, lambda _, shape: shape)
    made.since_version = version
    return made


def _with_shapes(node: Node, shape_of: Callable[[int, Shape | None], Shape | None]) -> Node:
    """The node with inputs of other shapes; `shape_of` is given each one's index and its shape."""
    inputs = tuple(
        None if value is None else replace(value, shape=shape_of(index, value.shape))
        for index, value in enumerate(node.inputs)
    )
    made = replace(node, inputs=inputs)
    made.graph = node.graph
    return made


def _of_known_ranks(node: Node, candidate: Candidate) -> list[Output]:
    """Outputs by translation where all ranks are known: twice, with other sizes for the unknown dimensions, so that
    a dimension which comes out the same is known, and one that comes out as a named one does is that."""
    unknown = _unknown_dimensions(node)
    if not unknown:
        return _tried(node, candidate)
    failure: Exception | None = None
    for needed, more in _assignments(unknown):
        try:
            found = [_tried(_sized(node, sizes), candidate) for sizes in needed]
        except Exception as error:  # sizes that do not fit, perhaps
            failure = error
            continue
        used = list(needed)
        for sizes in more:
            with suppress(Exception):  # the same
                found.append(_tried(_sized(node, sizes), candidate))
                used.append(sizes)
        names: dict[tuple[Dim, ...], str] = {}
        if len(set(needed[0].values())) == len(unknown):
            names = {tuple(sizes[key] for sizes in used): key for key in unknown if isinstance(key, str)}
        return [_of_all(outputs, names) for outputs in zip(*found, strict=False)]
    raise failure or ValueError("no size fits")


def _of_all(outputs: Sequence[Output], names: Mapping[tuple[Dim, ...], str]) -> Output:
    """What is known of an output that came out so for several sizes: a dimension that was always the same is known, and
    one that was as a named one each time is that."""
    shapes = [output.shape for output in outputs]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len({len(shape) for shape in known}) > 1:
        return Output(outputs[0].dtype)
    dims = zip(*known, strict=True)
    return Output(outputs[0].dtype, tuple(each[0] if len(set(each)) == 1 else names.get(each) for each in dims))


_Unknown: TypeAlias = str | tuple[int, int]
"""An unknown dimension: its name, or input and axis where it has none."""


def _unknown(index: int, axis: int, dim: Dim) -> _Unknown:
    return dim if isinstance(dim, str) else (index, axis)


def _unknown_dimensions(node: Node) -> list[_Unknown]:
    found = (
        _unknown(index, axis, dim)
        for index, value in enumerate(node.inputs)
        if value is not None
        for axis, dim in enumerate(value.shape or ())
        if not isinstance(dim, int)
    )
    return list(dict.fromkeys(found))


_Sizes: TypeAlias = dict[_Unknown, int]


def _assignments(unknown: Sequence[_Unknown]) -> Iterator[tuple[list[_Sizes], list[_Sizes]]]:
    """Sizes for unknown dimensions, those that must fit and those that may: each its own, then, for operators that need
    equal ones, one for all. The others are there to tell what is always so from what is cut off at some size."""
    if len(unknown) <= len(_OWN_SIZES[0]):
        given = [dict(zip(unknown, sizes, strict=False)) for sizes in _OWN_SIZES]
        yield given[:2], given[2:]
    for sizes in _COMMON_SIZES:
        yield [dict.fromkeys(unknown, size) for size in sizes], [dict.fromkeys(unknown, 1)]


def _sized(node: Node, sizes: dict[_Unknown, int]) -> Node:
    def shape_of(index: int, shape: Shape | None) -> Shape:
        return tuple(
            dim if isinstance(dim, int) else sizes[_unknown(index, axis, dim)] for axis, dim in enumerate(shape or ())
        )

    return _with_shapes(node, shape_of)


def _tried(node: Node, candidate: Candidate) -> list[Output]:
    """What the translator gives for stand-in inputs; empty where it cannot be tried."""
    with lane("cpu"):
        inputs = stand_ins(node, candidate, 1)
        if inputs is None:
            return []
        return [_seen(result) for result in translated(node, candidate, inputs, "cpu")]


def _seen(result: Any) -> Output:
    if result is None:  # an output that the node does not have
        return NOTHING
    held = as_held(result)
    return Output(element_type(held), tuple(held.shape))
