"""The decorator that makes an op handler of one function whose Python signature is the operator's ONNX signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints, overload

import numpy as np

from opgraft.errors import ContractError, Decline
from opgraft.graph import Node, UnreadableAttribute, normalized_domain
from opgraft.graph.element_types import ANY, NARROW, ONNX_OF_NAME
from opgraft.ops.context import Context
from opgraft.ops.hookspecs import hookimpl
from opgraft.ops.layouts import Layout
from opgraft.ops.schema import (
    Outputs,
    Schema,
    check_default,
    check_inference,
    kinds_of,
    outputs_of_declaration,
    parameters_of,
)
from opgraft.ops.tensors import Tensors


class Place(Enum):
    """Where a translator wants the elements of an input."""

    DEVICE = "device"
    HOST = "host"
    ANYWHERE = "anywhere"


Host: TypeAlias = Annotated[np.ndarray[Any, Any], Place.HOST]
"""Marks an input whose elements must be known while translating; it arrives as a NumPy array."""

Anywhere: TypeAlias = Annotated[Any, Place.ANYWHERE]
"""Marks an input that arrives as it is held, an MLX or a NumPy array: for ops that look at shapes or hand values on."""

F = TypeVar("F", bound=Callable[..., Any])
Deciding: TypeAlias = Callable[[Node, np.ndarray[Any, Any], Sequence[tuple[int, ...] | None]], bool]
"""Tells of a node, the value of a `Host` input and the shapes of all inputs (None: absent, or not known yet) whether
more than the shapes counts of that value."""

Grown: TypeAlias = Callable[[Node, Mapping[str, np.ndarray[Any, Any]], int], int]
"""Tells of a node, the values of its `Host` inputs by name, and the length of the inputs that grow, how long the
outputs are that they grow to."""

D = TypeVar("D", bound=Deciding)
G = TypeVar("G", bound=Grown)
P = TypeVar("P", bound=Callable[[Node, Sequence[int]], bool])
Condition = TypeVar("Condition", bound=Callable[..., object])

_REQUIRED: Any = inspect.Parameter.empty

HIGHEST_VERSION = 1000
"""ONNX Runtime takes no operator of a later version."""


@dataclass(frozen=True, slots=True)
class Input:
    """One positional parameter of a translator: an ONNX input."""

    name: str
    required: bool
    place: Place
    dtypes: frozenset[str]
    variadic: bool = False
    kinds: frozenset[str] = frozenset({"tensor"})


class Signature:
    """What a translator's Python signature says about its operator."""

    def __init__(
        self, function: Callable[..., Any], dtypes: Mapping[str, Collection[str]] | Collection[str] | None
    ) -> None:
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except ValueError as error:
            raise ContractError(f"{_name(function)}: its signature cannot be read ({error})") from error
        self.takes_context = bool(parameters) and parameters[0].name == "ctx"
        if self.takes_context:
            del parameters[0]
        hints = _hints(function)
        names = [parameter.name for parameter in parameters]
        places = _places(hints, names)
        kinds = {name: _kinds(hints.get(name, Any)) for name in names}
        self.gives_sequences = _names_tensors(hints.get("return"))
        default, by_name = _dtypes_of(function, dtypes)
        self.narrow = NARROW & default.union(*by_name.values())
        inputs: list[Input] = []
        self.attributes: dict[str, Any] = {}
        self.extra_attributes = False
        for parameter in parameters:
            name = parameter.name
            if name == "ctx":
                raise ContractError(f"{_name(function)}: ctx must be the first parameter")
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                if name in places or "sequence" in kinds[name]:
                    raise ContractError(
                        f"{_name(function)}: {name} is an attribute; Host and Anywhere mark inputs, and so does Tensors"
                    )
                self.attributes[name] = parameter.default
                check_default(f"{_name(function)}: attribute {name}", parameter.default)
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                self.extra_attributes = True
            else:
                variadic = parameter.kind is inspect.Parameter.VAR_POSITIONAL
                required = parameter.default is _REQUIRED and not variadic
                taken = by_name.get(name, default)
                inputs.append(Input(name, required, places.get(name, Place.DEVICE), taken, variadic, kinds[name]))
        unknown = set(dtypes) - {each.name for each in inputs} if isinstance(dtypes, Mapping) else set()
        if unknown:
            raise ContractError(f"{_name(function)}: dtypes= names no input of the function: {sorted(unknown)}")
        self.variadic = inputs.pop() if inputs and inputs[-1].variadic else None
        self.inputs = tuple(inputs)
        self._rounded = {
            name: float(np.float32(default))
            for name, default in self.attributes.items()
            if isinstance(default, float) and isfinite(default) and float(np.float32(default)) != default
        }
        self.required_attributes = tuple(name for name, default in self.attributes.items() if default is _REQUIRED)

    def input(self, index: int) -> Input | None:
        """The parameter that takes input `index`, or None where the operator's signature has no such input."""
        return self.inputs[index] if index < len(self.inputs) else self.variadic

    def keywords(self, node: Node) -> dict[str, Any]:
        """The node's attributes as keyword arguments, defaults filled in by Python itself; but those that are no
        float32 numbers, as all of ONNX's are, are rounded to one."""
        given = node.attributes.items()
        return self._rounded | {
            name: value for name, value in given if name in self.attributes or self.extra_attributes
        }

    def values(self, node: Node) -> dict[str, Any]:
        """As `keywords`, with the defaults of the attributes that the node lacks."""
        return {**self.attributes, **self.keywords(node)}

    def type_declines(self, node: Node) -> Iterator[str]:
        """Each way in which the types of a node's inputs and outputs are not those that this signature takes."""
        for index, value in enumerate(node.inputs):
            parameter = self.input(index)
            if parameter is None or value is None:
                continue
            if not any(map(value.may_be, parameter.kinds)):
                taken = " and ".join(f"{kind}s" for kind in sorted(parameter.kinds))
                yield f"input {parameter.name} is a {value.kind}; only {taken} are supported"
            elif value.dtype is not None and value.dtype not in parameter.dtypes:
                yield f"element type {value.dtype} of input {parameter.name} is not supported"
        for value in node.outputs:
            if value is not None and value.dtype in NARROW and value.dtype not in self.narrow:
                yield f"element type {value.dtype} of output {value.name!r} is not supported"
            if value is not None and value.kind == "sequence" and not self.gives_sequences:
                yield f"output {value.name!r} is a sequence; only tensors are supported"

    def form_declines(self, node: Node) -> Iterator[str]:
        """Each way in which its inputs and attributes are not those of this signature."""
        for index, value in enumerate(node.inputs):
            parameter = self.input(index)
            if parameter is None:
                yield f"input {index} is not supported (at most {len(self.inputs)} inputs are)"
            elif value is None and parameter.required:
                yield f"input {parameter.name} is required, and absent"
        for parameter in self.inputs[len(node.inputs) :]:
            if parameter.required:
                yield f"input {parameter.name} is required, and absent"
        for name, attribute in node.attributes.items():
            if name not in self.attributes and not self.extra_attributes:
                yield f"attribute {name} is not supported"
            elif isinstance(attribute, UnreadableAttribute):
                yield f"attribute {name} is of a kind that is not supported"
        for name in self.required_attributes:
            if name not in node.attributes:
                yield f"attribute {name} is required, and absent"


@dataclass(frozen=True, slots=True)
class HostForm:
    """An operator on NumPy arrays. One that `expands` may make far more elements than it reads (Expand, Range): it is
    used only where somebody needs the elements on the host."""

    function: Callable[..., Any]
    expands: bool
    takes_context: bool


@dataclass(frozen=True, slots=True)
class Growth:
    """Inputs that may come with more room than their elements take.

    Attributes:
        outputs: for each such input, by its name, the index of the output that it becomes.
        axis: along which both have room.
        length: tells how long the outputs are.
        inputs, host: the indices of those inputs, and of the `Host` inputs, by name.
    """

    outputs: Mapping[str, int]
    axis: int
    length: Grown
    inputs: Mapping[str, int]
    host: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Joining:
    """Constants of nodes that otherwise read the same, which may lie one behind the other in one node: then its output
    is theirs, one behind the other along the last axis.

    Attributes:
        constants: the indices of these inputs, each with the axis along which they lie.
        rank: that of the first of them.
        sums: the attributes that are sums of theirs.
    """

    constants: Mapping[int, int]
    rank: int
    sums: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """Inputs that may come as one, along their last axis, in the first of them.

    Attributes:
        inputs: their indices.
        fits: tells of a node, and of how wide each of them is, whether they may.
    """

    inputs: tuple[int, ...]
    fits: Callable[[Node, Sequence[int]], bool]


class Handler:
    """One function, as a plugin that claims, explains and translates the nodes of one operator.

    Attributes:
        domain, op_type: the operator.
        since, until: the operator versions it covers (`until` None: no upper bound).
        function: the translator.
        layout: what it has to do with the order of its images' axes; None: it takes them in ONNX's.
        host_form: the same on NumPy arrays, for shape arithmetic; None where there is none.
        deciding: by the name of a `Host` input, what tells whether its value counts.
        growth: which inputs may come with room to grow; None where none may.
        joining: which constants of several nodes may be one; None where none may.
        packing: which inputs may come as one; None where none may.
        definition: what makes the operator the pack's own; None where ONNX Runtime has a schema of it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        since: int,
        until: int | None,
        dtypes: Mapping[str, Collection[str]] | Collection[str] | None,
        layout: Layout | None = None,
    ) -> None:
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise ContractError(f"{_name(function)}: a translator is a function, and no coroutine")
        for version in (since, until):
            if isinstance(version, bool) or not isinstance(version, int | None):
                raise ContractError(f"{_name(function)}: since and until are whole numbers, not {version!r}")
        domain, _, op_type = name.rpartition("::")
        if not op_type or since < 1 or (until is not None and until < since):
            raise ContractError(f"{_name(function)}: there is no operator {name!r} of versions {since} to {until}")
        if ":" in domain + op_type:
            raise ContractError(
                f"{_name(function)}: {name!r} is not the name of an operator: write domain::OpType, with two colons"
            )
        self.domain = normalized_domain(domain)
        self.op_type = op_type
        self.since = since
        self.until = until
        self.operators = (self.operator,)
        self.function = function
        self.layout = layout
        self.host_form: HostForm | None = None
        self.deciding: dict[str, Deciding] = {}
        self.growth: Growth | None = None
        self.joining: Joining | None = None
        self.packing: Packing | None = None
        self.definition: Schema | None = None
        self.signature = Signature(function, dtypes)
        self._conditions: list[tuple[Callable[..., object], frozenset[str]]] = []
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", op_type)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The translator itself, so that one handler can call another."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<handler {self.operator} {self.versions}>"

    @property
    def operator(self) -> str:
        return f"{self.domain}::{self.op_type}"

    @property
    def versions(self) -> str:
        """The operator versions covered, as text: '7-', '1-12', '9'."""
        return str(self.since) if self.since == self.until else f"{self.since}-{self.until or ''}"

    def covers(self, version: int) -> bool:
        """True where the operator's `version` is one that the handler speaks of at all."""
        return self.since <= version and (self.until is None or version <= self.until)

    def condition(self, predicate: Condition) -> Condition:
        """Add a claim condition, as a decorator: it raises `Decline` (or calls `node.require`) to decline.

        One that returns False declines too, without better words than its own name.

        Args:
            predicate: takes the node, and those of the attributes that it names as keywords: their values as the
                translator gets them, with the translator's defaults.

        Raises:
            ContractError: it names an attribute, without a default of its own, that the translator does not name.
        """
        self._conditions.append((predicate, self._attributes_of(predicate)))
        return predicate

    def _attributes_of(self, predicate: Callable[..., object]) -> frozenset[str]:
        """The attributes that a condition asks for."""
        asked = [each for each in parameters_of(predicate) if each.kind is inspect.Parameter.KEYWORD_ONLY]
        for each in asked:
            if each.name not in self.signature.attributes and each.default is _REQUIRED:
                raise ContractError(
                    f"{self.__name__}: a condition asks for the attribute {each.name}, which the function does not name"
                )
        return frozenset(each.name for each in asked)

    @overload
    def host(self, function: F, *, expands: bool = False) -> F: ...

    @overload
    def host(self, function: None = None, *, expands: bool = False) -> Callable[[F], F]: ...

    def host(self, function: Any = None, *, expands: bool = False) -> Any:
        """Give the same operator on NumPy arrays, as a decorator, so that shape arithmetic stays on the host.

        Args:
            function: takes what the translator takes, as NumPy arrays (and `ctx` where its first parameter is so
                named), and returns NumPy arrays.
            expands: see `HostForm`.
        """
        if function is None:
            return lambda given: self.host(given, expands=expands)
        self.host_form = HostForm(function, expands, _takes_context(function))
        return function

    def decides(self, name: str) -> Callable[[D], D]:
        """Say when the value of a `Host` input counts, as a decorator: where it does not, one trace serves many values.

        Args:
            name: the input. The function tells as `Deciding` says; whatever values it gives False for, with inputs of
                the same shapes, the translator must do the same.

        Raises:
            ContractError: no `Host` input is of that name.
        """
        if not any(each.name == name and each.place is Place.HOST for each in self.signature.inputs):
            raise ContractError(f"{_name(self.function)}: decides() names a Host input, and {name!r} is none")

        def decorate(function: D) -> D:
            self.deciding[name] = function
            return function

        return decorate

    def grows(self, outputs: Mapping[str, int], *, axis: int) -> Callable[[G], G]:
        """Say that inputs may come with more room than their elements take, as a decorator: caches, to which each run
        adds a row. Such an input is longer along `axis` than the value that it stands for, which `ctx.length` tells;
        what lies behind is to be passed over. Where the new rows fit into that room, the outputs are as long as the
        inputs came, with whatever lies behind; where not, they are as long as they should be.

        Args:
            outputs: the inputs by name, each with the index of the output that it becomes.
            axis: the axis along which they grow.

        Raises:
            ContractError: no input is of that name.
        """
        inputs = self._indices("grows", outputs)

        def decorate(function: G) -> G:
            host = {each.name: index for index, each in enumerate(self.signature.inputs) if each.place is Place.HOST}
            self.growth = Growth(dict(outputs), axis, function, inputs, host)
            return function

        return decorate

    def joins(self, constants: Mapping[str, int], *, rank: int, sums: Collection[str] = ()) -> None:
        """Say that several nodes may be computed as one, where they read the same but for these constants: then those
        lie one behind the other, and so do the outputs, along their last axis. For matrices that one value is
        multiplied with.

        Args:
            constants: the inputs by name, each with the axis along which the constants lie. A node may lack some.
            rank: that of the first of them.
            sums: the attributes that count what lies along the axis.

        Raises:
            ContractError: no input is of such a name.
        """
        indices = self._indices("joins", constants)
        self.joining = Joining({indices[name]: axis for name, axis in constants.items()}, rank, tuple(sums))

    def packs(self, *names: str) -> Callable[[P], P]:
        """Say that inputs may come as one, along their last axis: then it stands for the first, and the others are
        absent. As a decorator of what tells of a node, and of how wide each of them is, whether they may.

        Raises:
            ContractError: no input is of such a name.
        """
        indices = tuple(self._indices("packs", names).values())

        def decorate(fits: P) -> P:
            self.packing = Packing(indices, fits)
            return fits

        return decorate

    def _indices(self, asking: str, names: Iterable[str]) -> dict[str, int]:
        """Where inputs of these names are."""
        inputs = {each.name: index for index, each in enumerate(self.signature.inputs)}
        unknown = [name for name in names if name not in inputs]
        if unknown:
            raise ContractError(f"{_name(self.function)}: {asking}() names no input of the function: {unknown}")
        return {name: inputs[name] for name in names}

    @overload
    def schema(self, inference: F, *, outputs: Outputs = ("Y",)) -> F: ...

    @overload
    def schema(self, inference: None = None, *, outputs: Outputs = ("Y",)) -> Callable[[F], F]: ...

    def schema(self, inference: Any = None, *, outputs: Outputs = ("Y",)) -> Any:
        """Say that the operator is the pack's own: ONNX Runtime has no schema of it, and learns this one.

        As a decorator, it gives the inference of element types and shapes. `handler.schema()` alone will do where the
        translator can find them by itself, on stand-in inputs: where no input is `Host`, and no element type one that
        MLX lacks. Where an optional input stands before a variadic one, a node must give it, if only as "": that is
        ONNX's rule.

        Args:
            inference: takes the inputs as `Value`s (what counts is `dtype` and `shape`, whose dimensions are numbers,
                names or None, or which is None itself; an absent input is None) and those of the attributes that it
                names as keywords. It returns one of them, or an `Output`, or a tuple of these, in ONNX order.
            outputs: the outputs by name, `"mask?"` where it is optional, `"parts..."` where it is variadic; or a
                mapping from them to an element type, or to the name of the input that has the same. Say it where inputs
                may be of unknown rank and an output is of another type than the last input: ONNX Runtime takes no
                inferred type without a rank.

        Raises:
            ContractError: the kind of an attribute cannot be told, or the declaration contradicts itself.
        """
        self.definition = self._definition(inference, outputs)
        if inference is None:
            return lambda given: self.schema(given, outputs=outputs)
        return inference

    def _definition(self, inference: Callable[..., Any] | None, outputs: Outputs) -> Schema:
        signature = self.signature
        if signature.extra_attributes or any(sign in self.operator for sign in "*?["):
            raise ContractError(f"{_name(self.function)}: a schema is of one operator, and names all of its attributes")
        inputs = [each for each in (*signature.inputs, signature.variadic) if each is not None]
        if signature.gives_sequences or any("tensor" not in each.kinds for each in inputs):
            raise ContractError(f"{_name(self.function)}: in a schema, inputs and outputs are tensors, not sequences")
        if not 1 <= self.since <= HIGHEST_VERSION:
            raise ContractError(f"{_name(self.function)}: a schema's first version is from 1 to {HIGHEST_VERSION}")
        defaults = {name: None if each is _REQUIRED else each for name, each in signature.attributes.items()}
        if inference is not None:
            check_inference(inference, len(signature.inputs), signature.variadic is not None)
        return Schema(
            outputs_of_declaration(outputs, [each.name for each in inputs]),
            kinds_of(self.function, defaults),
            inference,
        )

    def reason(self, node: Node) -> str | None:
        """Why this handler does not take `node`, or None where it does."""
        if not self.covers(node.since_version):
            return f"version {node.since_version} of the operator is not supported (versions {self.versions} are)"
        refusal = next(self.declines(node), None)
        if refusal is not None:
            return refusal
        try:
            for condition, asked in self._conditions:
                if condition(node, **self._values(node, asked)) is False:
                    return f"the condition {_name(condition)} does not hold"
        except Decline as decline:
            return str(decline)
        return None

    def _values(self, node: Node, asked: frozenset[str]) -> dict[str, Any]:
        """Attributes of a node, those among `asked`, with the translator's defaults."""
        if not asked:
            return {}
        values = self.signature.values(node).items()
        return {name: value for name, value in values if name in asked and value is not _REQUIRED}

    def declines(self, node: Node) -> Iterator[str]:
        """Each way in which `node` asks for what the signature and the schema do not have."""
        yield from self.signature.type_declines(node)
        yield from self.form_declines(node)

    def form_declines(self, node: Node) -> Iterator[str]:
        """Those ways that are about which inputs, outputs and attributes there are."""
        yield from self.signature.form_declines(node)
        if self.definition is not None:
            yield from self.definition.declines(node)

    @hookimpl
    def claim(self, node: Node) -> bool | None:
        return True if self.reason(node) is None else None

    @hookimpl
    def decline_reason(self, node: Node) -> str | None:
        return self.reason(node)

    def decline_reasons(self, node: Node) -> list[str]:
        """What the hook `decline_reason` gives where this handler alone is asked."""
        reason = self.reason(node)
        return [] if reason is None else [reason]

    @hookimpl
    def translate(self, ctx: Context, node: Node) -> Sequence[Any] | None:
        function, takes_context = self.function, self.signature.takes_context
        if ctx.on_host and self.host_form is not None:
            function, takes_context = self.host_form.function, self.host_form.takes_context
        keywords = self.keywords(ctx)
        result = function(ctx, *ctx.inputs, **keywords) if takes_context else function(*ctx.inputs, **keywords)
        if result is None:
            raise TypeError(f"the function {self.__name__} returned nothing: is a `return` missing?")
        return result if isinstance(result, tuple | list) else (result,)

    def keywords(self, ctx: Context) -> dict[str, Any]:
        """The attributes as keyword arguments; a GRAPH attribute arrives as its callable body."""
        keywords = ctx.cached(self, lambda: self.signature.keywords(ctx.node))
        return {**keywords, **ctx.bodies} if ctx.bodies else keywords


def op(
    name: str,
    *,
    since: int = 1,
    until: int | None = None,
    dtypes: Mapping[str, Collection[str]] | Collection[str] | None = None,
    layout: Layout | None = None,
) -> Callable[[Callable[..., Any]], Handler]:
    """Make an op handler of a translator.

    The function's signature is the operator's: positional parameters are the inputs in ONNX order under ONNX's names
    (a default of None makes one optional, `*name` is variadic, the annotation `Host` asks for its elements as a NumPy
    array, `Tensors` takes a sequence); keyword-only parameters are the attributes with ONNX's defaults (none:
    required). A first parameter named `ctx` receives the `Context`. It returns the output, or a tuple of outputs in
    ONNX order; more outputs than the node has may be returned, since what nobody uses is never computed. Where it gives
    sequences, the annotation of what it returns names `Tensors`.

    Args:
        name: the op type, or `domain::OpType` (two colons) outside ai.onnx.
        since: the first operator version covered.
        until: the last one; None for all from `since` on.
        dtypes: the element types taken: one set for all inputs, or one for each input by name. Default: any type that
            MLX has. A type that it lacks (8-bit floats, types below a byte) must be in one of the sets even where only
            an output is of it; its elements arrive and leave as those of another type, see `element_types.HELD_AS`.
        layout: `Layout.ANY` where the operator does the same at each place, so that it may run with an image's axes in
            the order in which they lie in memory: see `Layout`.
    """

    def decorate(function: Callable[..., Any]) -> Handler:
        return Handler(function, name, since, until, dtypes, layout)

    return decorate


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a translator, by parameter, and that of what it returns."""
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ContractError(
            f"{_name(function)}: its annotations cannot be read ({error}); what they name must be imported when the "
            "module runs, not under TYPE_CHECKING, and at its top level"
        ) from error


def _places(hints: Mapping[str, Any], names: Collection[str]) -> dict[str, Place]:
    """The marked parameters of a translator, whether or not `| None` stands beside the mark."""

    def mark(hint: Any) -> Place | None:
        own = [each for each in get_args(hint)[1:] if isinstance(each, Place)] if get_origin(hint) is Annotated else []
        inner = (mark(each) for each in get_args(hint))
        return next((each for each in (*own, *inner) if each is not None), None)

    found = {name: mark(hints[name]) for name in names if name in hints}
    return {name: place for name, place in found.items() if place is not None}


def _kinds(hint: Any) -> frozenset[str]:
    """The kinds of value that an input's annotation allows: `Tensors` is a sequence, anything else a tensor."""
    either = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return frozenset("sequence" if each is Tensors else "tensor" for each in either if each is not NoneType)


def _names_tensors(hint: Any) -> bool:
    return hint is Tensors or any(map(_names_tensors, get_args(hint)))


def _dtypes_of(
    function: Callable[..., Any], dtypes: Mapping[str, Collection[str]] | Collection[str] | None
) -> tuple[frozenset[str], dict[str, frozenset[str]]]:
    """The element types of an input that is not named, and those of each that is."""
    by_name = dtypes if isinstance(dtypes, Mapping) else {}
    every = ANY if dtypes is None or isinstance(dtypes, Mapping) else dtypes
    for given in (every, *by_name.values()):
        unknown = [given] if isinstance(given, str) else sorted(set(given) - ONNX_OF_NAME.keys())
        if unknown:
            raise ContractError(
                f"{_name(function)}: dtypes= takes sets of element types, not {unknown[0]!r}: FLOATS and others "
                f"of opgraft.ops, or names ({', '.join(sorted(ANY))})"
            )
    return frozenset(every), {name: frozenset(each) for name, each in by_name.items()}


def _takes_context(function: Callable[..., Any]) -> bool:
    return [each.name for each in parameters_of(function)][:1] == ["ctx"]


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
