"""What a report must ask while a graph can still be read: it is gone once the session is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opgraft.claims import Decisions, claim_of
from opgraft.engine import VerifiedRegistry
from opgraft.graph import Node
from opgraft.registry import Candidate, Claimer, Pack, Policy, Reason, Registry
from opgraft.reporting.breaks import Reading, readings_of
from opgraft.reporting.placement import carried, completed
from opgraft.schemas import is_no_operator


@dataclass(frozen=True)
class Offer:
    """An installed pack that would take a node, and the words of the registry file that keeps it from doing so."""

    pack: str
    held_back_by: str


@dataclass(frozen=True)
class Verdict:
    """What the handlers say of a node that is declined, and of every node of its bodies.

    Attributes:
        node: the node.
        candidate: who would take it, were it not for its bodies or its surroundings; None: nobody.
        reasons: why nobody does.
        offer: who would if the registry file let it.
        inner: the verdicts on the nodes of its bodies.
        final: True where no handler could take it: its operator does not exist, or MLX lacks an element type of it.
    """

    node: Node
    candidate: Candidate | None
    reasons: tuple[Reason, ...]
    offer: Offer | None
    inner: tuple[Verdict, ...]
    final: bool = False


@dataclass(frozen=True)
class Observation:
    """One showing of a graph: what was decided, the verdicts on the nodes that are declined, by index, and the graph
    breaks of each cluster."""

    decisions: Decisions
    verdicts: Mapping[int, Verdict]
    readings: tuple[tuple[Reading, ...], ...]


def completed_observations(observations: Sequence[Observation]) -> list[Observation]:
    """A session's observations, with what was declined before, and is not asked about again, in the later ones too."""
    passes = [each.decisions for each in observations]
    return [
        Observation(
            decisions,
            {
                **each.verdicts,
                **{index: observations[number].verdicts[place] for index, (number, place) in old.items()},
            },
            each.readings,
        )
        for each, decisions, old in zip(observations, completed(passes), carried(passes), strict=True)
    ]


class Observer:
    """Looks at decisions while their graph can be read.

    Args:
        registry: the registry that they were made with.
        packs: the installed packs, those that the registry file leaves out included.
        verify: whether claims are tried before they count.
    """

    def __init__(self, registry: Registry, packs: tuple[Pack, ...], *, verify: bool = True) -> None:
        self.registry = registry
        self.verify = verify
        self.unrestricted = Registry([pack for pack in packs if not pack.error], Policy())

    def observe(self, decisions: Decisions) -> Observation:
        """What there is to know of one showing of a graph."""
        verdicts = {
            index: self._verdict(decision.node, decisions.device)
            for index, decision in enumerate(decisions.decisions)
            if decision.reasons
        }
        return Observation(decisions, verdicts, readings_of(decisions))

    def _verdict(self, node: Node, device: str) -> Verdict:
        claim = claim_of(node, self._asked(self.registry, device), device)
        offer = None if claim.candidate is not None else self._offer(node, device)
        inner = tuple(self._verdict(each, device) for body in node.bodies.values() for each in body.nodes)
        final = any(reason.final for reason in claim.reasons) or (
            claim.candidate is None and is_no_operator(node.operator, self.unrestricted)
        )
        return Verdict(node, claim.candidate, claim.reasons, offer, inner, final)

    def _offer(self, node: Node, device: str) -> Offer | None:
        policy = self.registry.policy
        denials = {pack: policy.denial(node.operator, pack) for pack, _ in self.unrestricted.known_to(node.operator)}
        if not any(denials.values()):
            return None
        candidate = claim_of(node, self._asked(self.unrestricted, device), device).candidate
        denial = None if candidate is None else denials.get(candidate.pack)
        return None if candidate is None or denial is None else Offer(candidate.pack, denial)

    def _asked(self, registry: Registry, device: str) -> Claimer:
        return VerifiedRegistry(registry, device) if self.verify else registry
