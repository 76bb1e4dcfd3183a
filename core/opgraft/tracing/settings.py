"""What is asked for in the environment and by a session's options, and the recorders and sessions that there are."""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import Final

from opgraft.switches import switched
from opgraft.tracing.digest import Digest
from opgraft.tracing.events import Listener
from opgraft.tracing.recorder import Recorder
from opgraft.tracing.session import Session

TRACE: Final = "OPGRAFT_TRACE"
TRACE_OPS: Final = "OPGRAFT_TRACE_OPS"
VERBOSE: Final = "OPGRAFT_VERBOSE"
CLAIM_DEBUG: Final = "OPGRAFT_CLAIM_DEBUG"

_recorders: dict[Path, Recorder] = {}
_live: dict[int, Session] = {}


def begin_session(trace: str | None = None, *, trace_ops: bool = False) -> Session:
    """A session that is recorded as its options and the environment ask; the options come first.

    Args:
        trace: path of the file to write a trace to, as `OPGRAFT_TRACE`; `%p` in it is the number of the process.
        trace_ops: whether each node is computed by itself while a trace or a digest is made, as `OPGRAFT_TRACE_OPS`.
    """
    path = trace or os.environ.get(TRACE)
    each_alone = trace_ops or switched(TRACE_OPS)
    listeners: list[Listener] = []
    if path:
        listeners.append(_recorder(path, each_alone))
    if switched(VERBOSE):
        listeners.append(Digest(each_alone=each_alone))
    session = Session(listeners)
    if listeners:
        _live[session.number] = session
    return session


def end_session(session: Session) -> None:
    """A session is gone: what was asked for is written and said."""
    if _live.pop(session.number, None) is not None:
        session.end()


def _recorder(path: str, each_alone: bool) -> Recorder:
    place = Path(os.path.abspath(os.path.expanduser(path.replace("%p", str(os.getpid())))))
    recorder = _recorders.get(place)
    if recorder is None:
        recorder = _recorders[place] = Recorder(place)
    recorder.each_alone |= each_alone
    return recorder


@atexit.register
def _end() -> None:
    for session in tuple(_live.values()):
        end_session(session)
    for recorder in _recorders.values():
        recorder.session_ended()


def _in_child() -> None:
    """What a forked process has of its parent's is the parent's to write."""
    for session in _live.values():
        session.listeners.clear()
    _live.clear()
    _recorders.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
