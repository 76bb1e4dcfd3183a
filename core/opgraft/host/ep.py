"""OrtEp: what a session's graph is claimed of, and the compiling of what was claimed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, ClassVar, Final

from opgraft import joining
from opgraft.allocation import keep_freed_memory
from opgraft.claims import Decisions, decide
from opgraft.engine import ConstantStore, Program, VerifiedRegistry
from opgraft.fastest import Placer, is_settled
from opgraft.graph import Graph, Node
from opgraft.graph.extraction import extracted
from opgraft.graph.onnx_writer import Elements, model_of_graph, own_elements
from opgraft.host import observers
from opgraft.host._ep import ffi, lib
from opgraft.host.allocator import refuse_what_there_is_no_memory_for
from opgraft.host.compute import FusedNode, Runner
from opgraft.host.fallback import Fallback
from opgraft.host.kernel_info import forget, leave
from opgraft.host.logger import Logger
from opgraft.host.options import Options
from opgraft.host.ort_graph import read_graph, value_names
from opgraft.host.profiler import Profiler
from opgraft.host.status import OK, callback, check
from opgraft.host.structures import give_away, own
from opgraft.host.telling import Telling
from opgraft.nested import cpu_session, own_session
from opgraft.plan import build_plan
from opgraft.profiles import Profile, load_profile, require_device
from opgraft.registry import Claimer, load_registry, set_versions
from opgraft.schemas import told
from opgraft.tracing import Session, begin_session, end_session

_FEEDS_BODIES_SINCE: Final = 27
"""Before ONNX Runtime 1.27, the inputs of a fused node leave out what only the bodies of its nodes read."""


LARGE_WEIGHTS: Final = 16 * 2**20
"""With more bytes of weights than this, ONNX Runtime's own copy is worth giving back once it has dropped it."""


class ExecutionProvider:
    """The Python side of one OrtEp, which belongs to one session, and to a factory."""

    live: ClassVar[dict[Any, ExecutionProvider]] = {}

    def __init__(self, factory: Any, options: Options, device: str, logger: Logger) -> None:
        self.factory = factory
        self.options = options
        self.device = device
        if device == "cpu":
            keep_freed_memory()
            refuse_what_there_is_no_memory_for()
        self.logger = logger
        self.trace = Session() if is_settled() else begin_session(options.trace, trace_ops=options.trace_ops)
        self.telling = Telling(self.trace, logger if options.log_declined else None)
        try:
            with self.trace.making("create the EP"):
                with self.trace.span("load packs", "load"):
                    registry = load_registry(options.registry)
                    self.definitions = told(registry)
                profile = self._profile()
        except BaseException:
            end_session(self.trace)
            raise
        self.registry: Claimer = VerifiedRegistry(registry, device, self.trace.span) if options.verify else registry
        chooses = profile is not None or options.placement == "fastest"
        self.placer = Placer(self.registry, device, self, profile, self._warn) if chooses else None
        self.pointer = own(lib.new_OrtEp())
        if not self.trace.listeners:
            self.pointer.OnRunStart = self.pointer.OnRunEnd = ffi.NULL

    def _profile(self) -> Profile | None:
        """The profile that the session is to be decided by."""
        path = self.options.profile
        if path is None:
            return None
        profile = load_profile(path)
        require_device(profile, path, self.device)
        return profile

    def on_both(self, graph: Graph) -> Any:
        """A session of a graph with an execution provider like this one first."""
        options = {"device": self.device, "placement": "fastest", "registry": self.options.registry or ""}
        verify = "on" if self.options.verify else "off"
        return own_session(model_of_graph(graph).SerializeToString(), {**options, "verify": verify})

    def on_cpu(self, graph: Graph, elements: Elements = own_elements) -> Any:
        """A session of a graph on the CPU execution provider, whose kernels know of each node what this one does."""
        leave(graph.all_nodes(), self.definitions, self.trace)
        try:
            return cpu_session(model_of_graph(graph, elements).SerializeToString())
        finally:
            forget()

    def _warn(self, text: str) -> None:
        self.logger.warning(f"opgraft: {text}")

    def release(self) -> None:
        try:
            forget()
            end_session(self.trace)
        finally:
            ExecutionProvider.live.pop(self.pointer, None)

    def made(self) -> None:
        """The session is made."""
        self.trace.made()
        self.telling.forget()

    def claim(self, ort_graph: Any, support: Any) -> None:
        """Tell ONNX Runtime which clusters of nodes to fuse.

        It shows control-flow bodies before the graph that owns them. Nothing is claimed in a body: its node is claimed
        whole, in the graph around it.
        """
        if not _is_body(ort_graph):
            with self.trace.making("claim subgraphs"):
                self._claim(ort_graph, support)

    def _claim(self, ort_graph: Any, support: Any) -> None:
        with self.trace.span("read the graph", "read"):
            read = read_graph(ort_graph)
        with read as live:
            self.trace.call(live.graph.name)
            set_versions(live.graph, self.definitions)
            candidates = frozenset(range(len(live.pointers))) - live.assigned
            decisions = decide(
                live.graph,
                self.registry,
                device=self.device,
                candidates=candidates,
                feeds_bodies=lib.api_version() >= _FEEDS_BODIES_SINCE,
                span=self.trace.span,
            )
            if self.placer is not None:
                with self.trace.span("try the clusters", "trial"):
                    decisions = self.placer.place(decisions)
            options = ffi.gc(lib.new_OrtNodeFusionOptions(), lib.free)
            options.drop_constant_initializers = True
            for cluster in filter(None, decisions.clusters):
                nodes = ffi.new("const OrtNode *[]", [live.pointers[index] for index in cluster])
                check(lib.ep_EpGraphSupportInfo_AddNodesToFuse(support, nodes, len(cluster), options))
            if self.definitions:
                leave(_unclaimed(decisions, candidates), self.definitions, self.trace)
            if not is_settled():
                self.telling.tell(decisions)
                for observer in tuple(observers):
                    observer(decisions)

    def compile(self, ort_graphs: list[Any], fused_nodes: list[Any]) -> list[FusedNode]:
        """Each fused node. Weights that several of them read are converted once."""
        constants = ConstantStore()
        registry = self.registry.once_tried if isinstance(self.registry, VerifiedRegistry) else self.registry
        made: list[FusedNode] = []
        with self.trace.making("compile subgraphs"):
            for ort_graph, fused in zip(ort_graphs, fused_nodes, strict=True):
                inputs, outputs = value_names(fused)
                with read_graph(ort_graph) as live:
                    set_versions(live.graph, self.definitions)
                    plan = build_plan(self._joined(live.graph, registry), inputs, outputs)
                    with self.trace.span(f"compile {plan.name}", "compile", nodes=len(plan.steps)):
                        program = Program(plan, registry, self.device, constants)
                    runner = self._with_fallback(program, live.graph, constants)
                made.append(FusedNode(runner, self.trace))
        if made and constants.nbytes > LARGE_WEIGHTS:
            made[0].gives_back_memory = True
        return made

    def _joined(self, graph: Graph, registry: Claimer) -> Graph:
        """The graph with its products joined, where that repays; a fallback reads back the weights as they were."""
        joins = self.device in joining.DEVICES and self.options.on_error == "raise"
        return joining.joined(graph, registry) if joins else graph

    def _with_fallback(self, program: Program, graph: Graph, constants: ConstantStore) -> Runner:
        if self.options.on_error == "raise":
            return program
        outputs = [value.name for value in program.plan.output_values]
        whole = extracted(graph, range(len(graph.nodes)), outputs)
        return Fallback(program, whole, constants, self.on_cpu, self._warn)


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
    ExecutionProvider.live[this].made()
    return OK


@callback("OrtEp_OnRunStart")
def _on_run_start(this: Any, options: Any) -> Any:
    ExecutionProvider.live[this].trace.user_run_began()
    return OK


@callback("OrtEp_OnRunEnd")
def _on_run_end(this: Any, options: Any, sync_stream: bool) -> Any:
    ExecutionProvider.live[this].trace.user_run_ended()
    return OK


@callback("OrtEp_CreateProfiler")
def _create_profiler(this: Any, profiler: Any) -> Any:
    made = Profiler(ExecutionProvider.live[this].trace)
    profiler[0] = give_away(made.pointer)
    Profiler.live[made.pointer] = made
    return OK


@callback("OrtEp_Compile")
def _compile(this: Any, ort_graphs: Any, fused_nodes: Any, count: int, infos: Any, context_nodes: Any) -> Any:
    made = ExecutionProvider.live[this].compile(ffi.unpack(ort_graphs, count), ffi.unpack(fused_nodes, count))
    for index, node in enumerate(made):
        infos[index] = give_away(node.pointer)
    FusedNode.live.update((node.pointer, node) for node in made)
    return OK


@callback("OrtEp_ReleaseNodeComputeInfos")
def _release_node_compute_infos(this: Any, infos: Any, count: int) -> None:
    for pointer in ffi.unpack(infos, count):
        FusedNode.live.pop(pointer, None)
