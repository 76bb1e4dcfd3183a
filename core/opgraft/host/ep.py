"""OrtEp: what a session's graph is claimed of, and the compiling of what was claimed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, ClassVar, Final

from opgraft.allocation import keep_freed_memory
from opgraft.claims import Decisions, decide
from opgraft.engine import ConstantStore, Program, VerifiedRegistry
from opgraft.graph import Node
from opgraft.host import observers
from opgraft.host._ep import ffi, lib
from opgraft.host.compute import FusedNode
from opgraft.host.kernel_info import forget, leave
from opgraft.host.logger import Logger
from opgraft.host.options import Options
from opgraft.host.ort_graph import read_graph, value_names
from opgraft.host.status import OK, callback, check
from opgraft.plan import build_plan
from opgraft.registry import Claimer, load_registry, set_versions
from opgraft.schemas import told

_FEEDS_BODIES_SINCE: Final = 27
"""Before ONNX Runtime 1.27, the inputs of a fused node leave out what only the bodies of its nodes read."""


class ExecutionProvider:
    """The Python side of one OrtEp, which belongs to one session."""

    live: ClassVar[dict[Any, ExecutionProvider]] = {}

    def __init__(self, options: Options, device: str, logger: Logger) -> None:
        self.options = options
        self.device = device
        if device == "cpu":
            keep_freed_memory()
        self.logger = logger
        registry = load_registry(options.registry)
        self.definitions = told(registry)
        self.registry: Claimer = VerifiedRegistry(registry, device) if options.verify else registry
        self.pointer = lib.new_OrtEp()
        ExecutionProvider.live[self.pointer] = self

    def release(self) -> None:
        del ExecutionProvider.live[self.pointer]
        forget()
        lib.free(self.pointer)

    def claim(self, ort_graph: Any, support: Any) -> None:
        """Tell ONNX Runtime which clusters of nodes to fuse.

        It shows control-flow bodies before the graph that owns them. Nothing is claimed in a body: its node is claimed
        whole, in the graph around it.
        """
        if _is_body(ort_graph):
            return
        with read_graph(ort_graph) as live:
            set_versions(live.graph, self.definitions)
            candidates = frozenset(range(len(live.pointers))) - live.assigned
            decisions = decide(
                live.graph,
                self.registry,
                device=self.device,
                candidates=candidates,
                feeds_bodies=lib.api_version() >= _FEEDS_BODIES_SINCE,
            )
            options = ffi.gc(lib.new_OrtNodeFusionOptions(), lib.free)
            options.drop_constant_initializers = True
            for cluster in filter(None, decisions.clusters):
                nodes = ffi.new("const OrtNode *[]", [live.pointers[index] for index in cluster])
                check(lib.ep_EpGraphSupportInfo_AddNodesToFuse(support, nodes, len(cluster), options))
            if self.definitions:
                leave(_unclaimed(decisions, candidates), self.definitions)
            self._report(decisions)

    def _report(self, decisions: Decisions) -> None:
        if self.options.log_declined:
            for node, reasons in decisions.declined:
                why = "; ".join(str(reason) for reason in reasons)
                self.logger.warning(f"opgraft declines {node.operator} {node.label!r}: {why}")
        for observer in tuple(observers):
            observer(decisions)

    def compile(self, ort_graphs: list[Any], fused_nodes: list[Any]) -> list[Any]:
        """An OrtNodeComputeInfo for each fused node. Weights that several of them read are converted once."""
        constants = ConstantStore()
        made: list[FusedNode] = []
        try:
            for ort_graph, fused in zip(ort_graphs, fused_nodes, strict=True):
                inputs, outputs = value_names(fused)
                with read_graph(ort_graph) as live:
                    set_versions(live.graph, self.definitions)
                    plan = build_plan(live.graph, inputs, outputs)
                    made.append(FusedNode(Program(plan, self.registry, self.device, constants)))
        except BaseException:
            for node in made:
                node.release()
            raise
        return [node.pointer for node in made]


def _unclaimed(decisions: Decisions, candidates: Collection[int]) -> Iterator[Node]:
    """The nodes that are claimed by nobody, those of bodies among them."""
    for index, decision in enumerate(decisions.decisions):
        if index in candidates and not decision.claimed:
            yield decision.node
            for body in decision.node.bodies.values():
                yield from body.all_nodes()


def _is_body(ort_graph: Any) -> bool:
    parent = ffi.new("const OrtNode **")
    check(lib.ort_Graph_GetParentNode(ort_graph, parent))
    return bool(parent[0])


@callback("OrtEp_GetCapability")
def _get_capability(this: Any, ort_graph: Any, support: Any) -> Any:
    ExecutionProvider.live[this].claim(ort_graph, support)
    return OK


@callback("OrtEp_OnSessionInitializationEnd")
def _on_session_initialization_end(this: Any) -> Any:
    forget()
    return OK


@callback("OrtEp_Compile")
def _compile(this: Any, ort_graphs: Any, fused_nodes: Any, count: int, infos: Any, context_nodes: Any) -> Any:
    made = ExecutionProvider.live[this].compile(ffi.unpack(ort_graphs, count), ffi.unpack(fused_nodes, count))
    for index, pointer in enumerate(made):
        infos[index] = pointer
    return OK


@callback("OrtEp_ReleaseNodeComputeInfos")
def _release_node_compute_infos(this: Any, infos: Any, count: int) -> None:
    for pointer in ffi.unpack(infos, count):
        if pointer:
            FusedNode.live[pointer].release()
