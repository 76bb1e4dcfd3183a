"""What ONNX's own code makes of a model before it is read: inlining of functions, and inference of types and shapes.

With some files that ONNX Runtime only refuses, that code crashes or never ends. `completed_apart` has it run in another
process, which runs this module by itself: it imports nothing of opgraft.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from math import prod
from typing import Final, TypeAlias

import onnx
import onnx.inliner
from google.protobuf.message import Error as ProtobufError
from onnx import TensorProto

try:
    import resource
except ImportError:  # another system than Unix
    resource = None  # type: ignore[assignment]

ONNX_ERRORS = (
    onnx.shape_inference.InferenceError,
    onnx.checker.ValidationError,
    ProtobufError,
    ValueError,
    RuntimeError,
    MemoryError,
)
"""What onnx's own code raises for a model that is not as it should be."""

SECONDS: Final = 60
MEMORY: Final = 4 * 2**30
"""Inference in another process that takes longer, or more bytes beside 16 times those of the model, is given up."""

Complete: TypeAlias = Callable[[onnx.ModelProto], onnx.ModelProto]
"""`completed`, or `completed_apart`."""


def completed(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model with the nodes of its functions in place of their calls, and with the types that ONNX's own
    inference finds; where that fails, those that the file gives."""
    if model.functions:
        with suppress(*ONNX_ERRORS):
            model = onnx.inliner.inline_local_functions(_with_default_attributes(model))
    try:
        # what it propagates, it goes through element by element, as many as a tensor says that it has
        sound = all(prod(each.dims) <= 8 * each.ByteSize() for each in _tensors(model.graph))
        return onnx.shape_inference.infer_shapes(model, data_prop=sound)
    except ONNX_ERRORS:
        return _copied(model)


def completed_apart(model: onnx.ModelProto) -> onnx.ModelProto:
    """As `completed`, in another process; a copy of the model as it is where that process dies or takes too long."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable or "python", "-P", __file__]  # -P: no folder is added to those to import from
    with suppress(OSError, ValueError, ProtobufError, subprocess.SubprocessError):
        given = model.SerializeToString()
        done = subprocess.run(command, input=given, capture_output=True, env=environment, timeout=SECONDS, check=True)
        found: onnx.ModelProto = onnx.ModelProto.FromString(done.stdout)
        return found
    return _copied(model)


def _copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    return copied


def _tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """The tensors that a graph and its bodies hold themselves."""
    found = [*graph.initializer]
    for node in graph.node:
        for attribute in node.attribute:
            found += [attribute.t] * attribute.HasField("t")
            yield from _tensors(attribute.g)
    yield from (each for each in found if each.data_location != TensorProto.EXTERNAL)


def _with_default_attributes(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which each call of a function gives every attribute that the function has a default of: the inliner
    knows only those that are given."""
    completed = _copied(model)
    defaults = {(each.domain, each.name, each.overload): each.attribute_proto for each in completed.functions}

    def complete(nodes: Iterable[onnx.NodeProto]) -> None:
        for node in nodes:
            given = {attribute.name for attribute in node.attribute}
            missing = defaults.get((node.domain, node.op_type, node.overload), ())
            node.attribute.extend([each for each in missing if each.name not in given])
            for attribute in node.attribute:
                for body in (attribute.g, *attribute.graphs):
                    complete(body.node)

    complete(completed.graph.node)
    for function in completed.functions:
        complete(function.node)
    return completed


def _main() -> None:
    given = sys.stdin.buffer.read()
    if resource is not None:
        limits = resource.getrlimit(resource.RLIMIT_AS)
        most = min(MEMORY + 16 * len(given), *(each for each in limits if each != resource.RLIM_INFINITY), sys.maxsize)
        with suppress(ValueError, OSError):  # where none can be set
            resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    sys.stdout.buffer.write(completed(onnx.ModelProto.FromString(given)).SerializeToString())


if __name__ == "__main__":
    _main()
