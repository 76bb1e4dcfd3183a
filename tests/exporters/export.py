"""Exports every architecture by every route into the cache: `python export.py [--again] [NAME ...]`.

Run by the Python of an environment that has `requirements.txt`. Graphs that are in the cache already are left alone.
Names choose architectures; all of them are exported where none is given. The table at the end covers the whole cache.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import paddle_graphs
import tensorflow_graphs
import torch
from architecture import Architecture, Inputs
from architectures import ARCHITECTURES
from graph_cache import Arrays, CachedGraph, Case, Export, cached_graphs
from graph_writer import WrittenGraph
from torch import nn

Made = tuple[onnx.ModelProto, list[Case]]


@dataclass(frozen=True)
class Route:
    """One way through torch.onnx.export."""

    exporter: str
    opset: int

    @property
    def name(self) -> str:
        return f"{self.exporter}-{self.opset}"


ROUTES = (Route("dynamo", 20), Route("dynamo", 23), Route("torchscript", 17), Route("torchscript", 12))


def through_torch(architecture: Architecture, route: Route) -> Made:
    """Export an architecture, and run it in torch."""
    model = architecture.model()
    cases = architecture.cases()
    export = _by_dynamo if route.exporter == "dynamo" else _by_torchscript
    proto = export(model, architecture, cases[0], route.opset)
    return proto, [Case(_arrays(inputs), _torch_outputs(model, architecture, inputs)) for inputs in cases]


def _by_dynamo(model: nn.Module, architecture: Architecture, inputs: Inputs, opset: int) -> onnx.ModelProto:
    """Where torch.export finds that an axis cannot be dynamic, once more with those axes left to it."""
    named = {name: dict(architecture.dynamic.get(name, {})) for name in inputs}
    try:
        return _by_dynamo_with(named, model, architecture, inputs, opset)
    except torch.onnx.errors.OnnxExporterError as error:
        if "inferred a static shape" not in str(_origin(error)):
            raise
    automatic = {name: dict.fromkeys(axes, torch.export.Dim.AUTO) for name, axes in named.items()}
    return _by_dynamo_with(automatic, model, architecture, inputs, opset)


def _by_dynamo_with(
    dynamic_shapes: dict[str, Any], model: nn.Module, architecture: Architecture, inputs: Inputs, opset: int
) -> onnx.ModelProto:
    program = torch.onnx.export(
        model,
        kwargs=inputs,
        dynamo=True,
        opset_version=opset,
        input_names=list(inputs),
        output_names=list(architecture.outputs),
        dynamic_shapes=dynamic_shapes,
        verbose=False,
    )
    assert program is not None
    return program.model_proto


def _by_torchscript(model: nn.Module, architecture: Architecture, inputs: Inputs, opset: int) -> onnx.ModelProto:
    written = io.BytesIO()
    torch.onnx.export(
        model,
        tuple(inputs.values()),
        written,
        dynamo=False,
        opset_version=opset,
        input_names=list(inputs),
        output_names=list(architecture.outputs),
        dynamic_axes=architecture.dynamic,
    )
    return onnx.load_model_from_string(written.getvalue())


def _torch_outputs(model: nn.Module, architecture: Architecture, inputs: Inputs) -> Arrays:
    with torch.no_grad():
        outputs = model(**{name: tensor.clone() for name, tensor in inputs.items()})
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return {name: tensor.detach().numpy() for name, tensor in zip(architecture.outputs, outputs, strict=True)}


def _arrays(inputs: Inputs) -> Arrays:
    return {name: tensor.numpy() for name, tensor in inputs.items()}


def by_hand(graph: WrittenGraph) -> Made:
    """Write a graph that no framework stands behind."""
    return graph.write(), [Case(inputs, {}) for inputs in graph.cases()]


def keep_alone(graph: CachedGraph, make: Callable[[], Made]) -> None:
    """`keep` in a process of its own: exporters crash, too."""
    process = multiprocessing.get_context("fork").Process(target=keep, args=(graph, make))
    process.start()
    process.join()
    if process.exitcode:
        graph.write(Export(problem=f"the exporter crashed, exit status {process.exitcode}"))


def keep(graph: CachedGraph, make: Callable[[], Made]) -> None:
    """Make a graph, try it on the CPU execution provider, and write it into the cache, or why that failed."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            proto, cases = make()
        model = proto.SerializeToString()
        taken, difference = _on_cpu(model, cases)
        sizes = (len(taken) // 2, len(cases) // 2)
    except Exception as error:  # an exporter fails in as many ways as there are models
        graph.write(Export(problem=_reason(error)))
        return
    opset = next(each.version for each in proto.opset_import if each.domain in ("", "ai.onnx"))
    half = any(weight.data_type == onnx.TensorProto.FLOAT16 for weight in proto.graph.initializer)
    graph.write(Export(len(proto.graph.node), opset, sizes, difference, half), model, taken or cases)


def _on_cpu(model: bytes, cases: Sequence[Case]) -> tuple[list[Case], float | None]:
    """The cases that the graph takes, and the largest difference to the framework's outputs.

    Inputs that the exporter has dropped from the graph are dropped from the cases.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    needed = {each.name for each in session.get_inputs()}
    names = [each.name for each in session.get_outputs()]
    taken: list[Case] = []
    differences: list[float] = []
    for case in cases:
        for name in case.inputs.keys() - needed:
            del case.inputs[name]
        try:
            outputs = dict(zip(names, session.run(None, case.inputs), strict=True))
        except Exception:  # an exporter may have fixed a size, and an execution provider may lack a form
            continue
        taken.append(case)
        differences += [_difference(outputs[name], wanted) for name, wanted in case.outputs.items()]
    return taken, max(differences, default=None)


def _difference(found: np.ndarray, wanted: np.ndarray) -> float:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return float("inf")
    if not wanted.size:
        return 0.0
    apart = np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max()
    return float(apart) / (float(np.abs(wanted.astype(np.float64)).max()) or 1.0)


def _origin(error: BaseException) -> BaseException:
    """The error that started it all."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _reason(error: BaseException) -> str:
    error = _origin(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def exports(names: Sequence[str]) -> Iterator[tuple[CachedGraph, Callable[[], Made]]]:
    """Everything there is to export, with what makes it."""
    for architecture in ARCHITECTURES:
        for route in ROUTES:
            if route.exporter in architecture.exporters and (not names or architecture.name in names):
                graph = CachedGraph(architecture.name, route.name)
                yield graph, lambda architecture=architecture, route=route: through_torch(architecture, route)
    for written in (*tensorflow_graphs.WRITTEN_GRAPHS, *paddle_graphs.WRITTEN_GRAPHS):
        if not names or written.name in names:
            yield CachedGraph(written.name, written.route), lambda written=written: by_hand(written)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--again", action="store_true", help="export also what is in the cache already")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    torch._C._jit_set_onnx_log_enabled(False)

    for graph, make in exports(arguments.names):
        if arguments.again or graph.export() is None:
            print(f"{graph.name} by {graph.route}", flush=True)
            keep_alone(graph, make)

    print(f"\n{'architecture':28} {'route':15} {'nodes':>5} {'opset':>5} {'sizes':>5} {'difference':>10}")
    for graph in cached_graphs():
        export = graph.export()
        if export is None:
            continue
        start = f"{graph.name:28} {graph.route:15}"
        if export.problem:
            print(f"{start} not exported: {export.problem}")
            continue
        sizes = "{}/{}".format(*export.sizes)
        difference = "-" if export.difference is None else f"{export.difference:.1e}"
        print(f"{start} {export.nodes:5} {export.opset:5} {sizes:>5} {difference:>10}")


if __name__ == "__main__":
    main()
