"""From a node to the handlers that know its operator, in the order of the registry."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Protocol

import pluggy

from opgraft.errors import ContractError, place_of, text_with_place
from opgraft.graph import Node
from opgraft.ops.handler import Deciding, Growth, Handler, HostForm, Joining, Packing, Place
from opgraft.ops.layouts import Layout
from opgraft.registry.definitions import definitions_of
from opgraft.registry.names import close_operators
from opgraft.registry.packs import OpPlugin, Pack, hooks_of
from opgraft.registry.policy import Policy


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a node was not claimed: the pack that said so (None: opgraft itself) and its words, or its fault. Where it is
    final, no handler could take the node."""

    pack: str | None
    text: str
    fault: bool = False
    final: bool = False

    def __str__(self) -> str:
        return self.text if self.pack is None else f"{self.text} [{self.pack}]"


@dataclass(frozen=True, eq=False)
class Candidate:
    """One handler of an operator, with its hooks and the wrappers around them."""

    pack: str
    handler: OpPlugin
    claim: Callable[..., bool | None] = field(repr=False)
    decline_reason: Callable[..., list[str]] = field(repr=False)
    translate: Callable[..., Sequence[Any] | None] = field(repr=False)
    packages: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """The Python packages of the handler and of its wrappers, each with its pack."""

    @classmethod
    def of(cls, pack: str, handler: OpPlugin, wrappers: Sequence[tuple[str, OpPlugin]]) -> Candidate:
        """The candidate that `handler` is, inside `wrappers`, the first of them outermost.

        What stands alone is called directly, which saves a hook call for each node of each run.
        """
        if isinstance(handler, Handler) and not wrappers:
            return cls(pack, handler, handler.claim, handler.decline_reasons, handler.translate)
        packages = tuple((package_of(plugin), name) for name, plugin in ((pack, handler), *wrappers))
        plugins = [plugin for _, plugin in wrappers]
        within = [hooks_of(*plugins[place:], handler).hook for place in range(len(plugins) + 1)]
        claim, decline_reason, translate = (
            _answering(hook, within, wrappers) for hook in ("claim", "decline_reason", "translate")
        )
        return cls(pack, handler, claim, decline_reason, translate, packages)

    def culprit(self, error: BaseException) -> str:
        """The pack to blame for what one of the hooks raised: the handler's, or that of a wrapper around it whose code
        was the last of them all to run, or that returned nothing."""
        if isinstance(error, WrapperError):
            return error.pack
        found = place_of(error, self._pack_of)
        return self.pack if found is None else self._pack_of[found[0]]

    def text_of(self, error: BaseException) -> str:
        """What one of the hooks raised, with the line of its pack that it came from."""
        return text_with_place(error, self._pack_of)

    @property
    def _pack_of(self) -> dict[str, str]:
        """The packs by the Python packages of their code; the handler's and its wrappers'."""
        return {package_of(self.handler): self.pack, **dict(reversed(self.packages))}

    def covers(self, version: int) -> bool:
        """True where the operator's `version` is one that the handler speaks of at all."""
        handler = self.handler
        return not isinstance(handler, Handler) or handler.covers(version)

    @property
    def host_form(self) -> HostForm | None:
        """The same operator on NumPy arrays, where the handler has it."""
        return self.handler.host_form if isinstance(self.handler, Handler) else None

    @property
    def layout(self) -> Layout | None:
        """What the handler has to do with the order of axes; None where wrappers see its inputs, in ONNX's order."""
        return self.handler.layout if isinstance(self.handler, Handler) and not self.packages else None

    def deciding(self, index: int) -> Deciding | None:
        """What tells whether the value of input `index` counts; None where it may, or where wrappers see it."""
        if not isinstance(self.handler, Handler) or self.packages:
            return None
        parameter = self.handler.signature.input(index)
        return None if parameter is None else self.handler.deciding.get(parameter.name)

    @property
    def growth(self) -> Growth | None:
        """Which inputs may come with room to grow; None where none may, or where wrappers see them."""
        return self.handler.growth if isinstance(self.handler, Handler) and not self.packages else None

    @property
    def joining(self) -> Joining | None:
        """Which constants of several nodes may be one; None where none may, or where wrappers see them."""
        return self.handler.joining if isinstance(self.handler, Handler) and not self.packages else None

    @property
    def packing(self) -> Packing | None:
        """Which inputs may come as one; None where none may, or where wrappers see them."""
        return self.handler.packing if isinstance(self.handler, Handler) and not self.packages else None

    def place(self, index: int) -> Place:
        """Where the handler wants the elements of input `index`."""
        if not isinstance(self.handler, Handler):
            return Place.DEVICE
        parameter = self.handler.signature.input(index)
        return Place.DEVICE if parameter is None else parameter.place


class WrapperError(ContractError):
    """A hook of a wrapper returned nothing, where the hooks inside it had given something."""

    def __init__(self, pack: str, wrapper: OpPlugin, hook: str) -> None:
        self.pack = pack
        name = f"{type(wrapper).__name__}.{hook}"
        super().__init__(f"the wrapper {name} returned nothing: is a `return` of what its `yield` gave missing?")


def _answering(
    hook: str, within: Sequence[pluggy.HookRelay], wrappers: Sequence[tuple[str, OpPlugin]]
) -> Callable[..., Any]:
    """A hook of a handler inside wrappers. Where nothing comes out of it although something went in, it looks for the
    wrapper that kept it, by asking again with fewer of them.

    Args:
        within: the handler's hooks, inside all the wrappers, without the first of them, and so on to none.
    """
    asked = [getattr(hooks, hook) for hooks in within]

    def answer(**arguments: Any) -> Any:
        result = asked[0](**arguments)
        if result is not None or asked[-1](**arguments) is None:
            return result
        for place in reversed(range(len(wrappers))):
            if asked[place](**arguments) is None:
                raise WrapperError(*wrappers[place], hook)
        return result

    return answer


SLOW_SECONDS = 0.05
"""A claim that takes longer of a processor is named in the report: a session asks for one for each node."""


@dataclass(frozen=True)
class Claim:
    """What the handlers say of one node: who takes it, or the reasons why nobody does.

    Attributes:
        candidate, reasons: one of them.
        faults: of packs that failed to take it, whether or not another does.
        slow: the packs that took long to decide, with the seconds.
        missed: the packs that were to be asked before the one that takes it, and whose handlers of its operator are of
            other versions, with those versions.
    """

    candidate: Candidate | None
    reasons: tuple[Reason, ...] = ()
    faults: tuple[Reason, ...] = ()
    slow: tuple[tuple[str, float], ...] = ()
    missed: tuple[tuple[str, str], ...] = ()


class Claimer(Protocol):
    """Whoever can say which handler takes a node."""

    def claim(self, node: Node) -> Claim:
        """Who takes the node, or the reasons why nobody does."""


class Registry:
    """The packs in use under one policy.

    Attributes:
        definitions: the operators that packs define, by `domain::OpType`.
        undefined: those that a pack defines and that are left out, with the reason.
    """

    def __init__(self, packs: Sequence[Pack], policy: Policy) -> None:
        self.packs = tuple(packs)
        self.policy = policy
        self.definitions, self.undefined = definitions_of(self.packs, policy)
        self._operators: dict[str, tuple[Candidate, ...]] = {}
        self._exact: dict[str, list[tuple[str, OpPlugin]]] = {}
        self._patterns: list[tuple[str, str, OpPlugin]] = []
        for pack in self.packs:
            for plugin in pack.plugins:
                for operator in plugin.operators:
                    if any(sign in operator for sign in "*?["):
                        self._patterns.append((operator, pack.name, plugin))
                    else:
                        self._exact.setdefault(operator, []).append((pack.name, plugin))

    @property
    def operators(self) -> list[str]:
        """Every operator that some handler names, sorted."""
        return sorted(self._exact)

    def idle_rules(self) -> Iterator[str]:
        """Of each rule of the registry file that matches no operator: its file and line, and what may be meant."""
        for pattern, rule in self.policy.rules:
            if not self._serves(pattern):
                close = " or ".join(close_operators(pattern, self.operators))
                hint = f"did you mean {close}?" if close else "`opgraft ops` lists those that there are"
                problem = f"the rule {pattern!r} matches no operator of an installed pack"
                yield f"{self.policy.source}, line {rule.line}: {problem}; {hint}"

    def _serves(self, pattern: str) -> bool:
        """Whether some handler may be asked about an operator that a rule's pattern matches."""
        if any(fnmatchcase(operator, pattern) for operator in self._exact):
            return True
        own = [theirs for theirs, _, plugin in self._patterns if not only_wraps(plugin)]
        return any(fnmatchcase(pattern, theirs) or fnmatchcase(theirs, pattern) for theirs in own)

    def known_to(self, operator: str) -> list[tuple[str, OpPlugin]]:
        """The plugins that name an operator, with their packs, whatever the policy says."""
        matched = [(pack, plugin) for pattern, pack, plugin in self._patterns if fnmatchcase(operator, pattern)]
        return self._exact.get(operator, []) + matched

    def candidates(self, operator: str) -> tuple[Candidate, ...]:
        """The handlers of an operator in the order in which they are asked."""
        found = self._operators.get(operator)
        if found is None:
            found = self._operators[operator] = self._build(operator)
        return found

    def claim(self, node: Node, problem_with: Callable[[Node, Candidate], Reason | None] | None = None) -> Claim:
        """Ask the handlers of a node's operator, in order, until one takes it.

        Args:
            node: the node.
            problem_with: asked about each claim; a problem that it finds is a reason, and the next handler is asked.
        """
        candidates = self.candidates(node.operator)
        reasons: list[Reason] = []
        slow: list[tuple[str, float]] = []
        others: list[Candidate] = []
        for candidate in candidates:
            if not candidate.covers(node.since_version):
                others.append(candidate)
                continue
            started = time.thread_time()
            refusals = _refusals(candidate, node, problem_with)
            seconds = time.thread_time() - started
            if seconds > SLOW_SECONDS:
                slow.append((candidate.pack, seconds))
            if not refusals:
                return Claim(candidate, (), _faults(reasons), tuple(slow), _missed(node, candidates, others))
            reasons += refusals
        if reasons:
            missed = _missed(node, candidates, others)
            return Claim(None, tuple(reasons), _faults(reasons), tuple(slow), missed)
        return Claim(None, self._other_versions(node, candidates) if candidates else self.nobody(node.operator))

    def nobody(self, operator: str) -> tuple[Reason, ...]:
        """Why no handler of an operator is asked: none is there, or the policy holds all of them back."""
        if operator in self.undefined:
            return (Reason(None, self.undefined[operator].reason),)
        denials = {pack: self.policy.denial(operator, pack) for pack, _ in self.known_to(operator)}
        held_back = tuple(Reason(pack, denial) for pack, denial in denials.items() if denial)
        return held_back or (Reason(None, f"no installed pack has a handler for {operator}"),)

    def _other_versions(self, node: Node, candidates: Sequence[Candidate]) -> tuple[Reason, ...]:
        text = f"version {node.since_version} of {node.operator} has no handler (versions {_versions(candidates)} have)"
        return (Reason(None, text),)

    def _build(self, operator: str) -> tuple[Candidate, ...]:
        known = self.known_to(operator)
        if not known:
            return ()
        order = self.policy.order([pack.name for pack in self.packs], operator)
        asked: list[tuple[str, OpPlugin]] = []
        for pack, plugin in sorted(known, key=lambda entry: order.index(entry[0]) if entry[0] in order else -1):
            if pack not in order or self._is_of_another(operator, pack, plugin):
                continue
            if all(plugin != other for _, other in asked):  # a plugin's patterns may overlap
                asked.append((pack, plugin))
        wrappers = [(pack, plugin) for pack, plugin in asked if only_wraps(plugin)]
        return tuple(
            Candidate.of(pack, plugin, wrappers)
            for pack, plugin in asked
            if all(plugin is not each for _, each in wrappers)
        )

    def _is_of_another(self, operator: str, pack: str, plugin: OpPlugin) -> bool:
        """True for a handler of a defined operator whose own definition is not the one that counts: what it handles
        has the name of that operator, and is another."""
        if not isinstance(plugin, Handler) or plugin.definition is None:
            return False
        definition = self.definitions.get(operator)
        return definition is None or definition.pack != pack


def _refusals(
    candidate: Candidate, node: Node, problem_with: Callable[[Node, Candidate], Reason | None] | None
) -> list[Reason]:
    """Why one handler does not take a node, or cannot; nothing where it does."""
    try:
        if candidate.claim(node=node):
            problem = problem_with(node, candidate) if problem_with else None
            return [] if problem is None else [problem]
        texts = [text for text in candidate.decline_reason(node=node) if text]
        return [Reason(candidate.pack, text) for text in texts or ["declined without a reason"]]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a pack's fault must stay the pack's, even where it exits
        return [Reason(candidate.culprit(error), f"its claim failed: {candidate.text_of(error)}", fault=True)]


def _versions(candidates: Sequence[Candidate]) -> str:
    """The versions that handlers cover, as text."""
    return ", ".join(sorted({getattr(candidate.handler, "versions", "") for candidate in candidates}))


def _missed(node: Node, candidates: Sequence[Candidate], others: Sequence[Candidate]) -> tuple[tuple[str, str], ...]:
    """See `Claim.missed`; `others` are the handlers of other versions that came up."""
    if not others:
        return ()
    asked = {candidate.pack for candidate in candidates if candidate.covers(node.since_version)}
    packs = dict.fromkeys(candidate.pack for candidate in others if candidate.pack not in asked)
    return tuple((pack, _versions([each for each in candidates if each.pack == pack])) for pack in packs)


def _faults(reasons: Sequence[Reason]) -> tuple[Reason, ...]:
    return tuple(reason for reason in reasons if reason.fault) if reasons else ()


def package_of(plugin: OpPlugin) -> str:
    """The top-level Python package that a plugin's code is in."""
    code: Any = plugin.function if isinstance(plugin, Handler) else type(plugin)
    return str(getattr(code, "__module__", "")).partition(".")[0]


def only_wraps(plugin: OpPlugin) -> bool:
    """True for a plugin all of whose hooks wrap those of others."""
    if isinstance(plugin, Handler):
        return False
    callers = hooks_of(plugin).get_hookcallers(plugin) or []
    own = [implementation for caller in callers for implementation in caller.get_hookimpls()]
    return bool(own) and all(each.wrapper or each.hookwrapper for each in own)
