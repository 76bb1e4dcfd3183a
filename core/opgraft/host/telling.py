"""What is told of a session's claims: to its log, to stderr, and to the digest of what is recorded."""

from __future__ import annotations

from opgraft.claims import Decisions
from opgraft.host.logger import Logger
from opgraft.switches import switched
from opgraft.tracing import CLAIM_DEBUG, Session, tell


class Telling:
    """Tells each node that is not claimed, once: ONNX Runtime may show a graph several times.

    Args:
        session: what is recorded of the session; a digest gets the share of nodes that are claimed.
        log: where to log the nodes that are not claimed; None: nowhere. `OPGRAFT_CLAIM_DEBUG` has them on stderr.
    """

    def __init__(self, session: Session, log: Logger | None) -> None:
        self._session = session
        self._log = log
        self._on_stderr = switched(CLAIM_DEBUG)
        self._lines: set[str] = set()
        self._passes: list[Decisions] = []

    def tell(self, decisions: Decisions) -> None:
        """Tell what was decided about a graph."""
        if self._log is not None or self._on_stderr:
            self._tell_declined(decisions)
        if self._session.digests:
            self._passes.append(decisions)
            self._tell_placed()

    def forget(self) -> None:
        """The session is made: its graph is shown no more."""
        self._passes.clear()
        self._lines.clear()

    def _tell_declined(self, decisions: Decisions) -> None:
        for node, reasons in decisions.declined:
            why = "; ".join(map(str, reasons))
            line = f"{node.operator} {node.label!r}: {why}"
            if line in self._lines:
                continue
            self._lines.add(line)
            if self._log is not None:
                self._log.warning(f"opgraft declines {line}")
            if self._on_stderr:
                inner = sum(len(body.all_nodes()) for body in node.bodies.values())
                more = f" (and with it {inner} nodes in its bodies)" if inner else ""
                tell(f"opgraft: {self._session.name}: not claimed: {line}{more}")

    def _tell_placed(self) -> None:
        from opgraft.reporting import coverage_of

        found = coverage_of(self._passes, model=self._session.name, source="session")
        for digest in self._session.digests:
            digest.place(self._session.name, found.device, found.nodes, found.claimed, len(found.subgraphs))
