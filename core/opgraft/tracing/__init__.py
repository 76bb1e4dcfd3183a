"""What happens in sessions, recorded: traces for Chrome and Perfetto, and digests.

It knows neither ONNX Runtime nor MLX, only what it is told.
"""

from opgraft.tracing.events import HIT, MISS, RETRACE, Event, Listener, Recording, Span, SpanMaker, tell, untold
from opgraft.tracing.recorder import MOST_EVENTS, Kept, Recorder, clean
from opgraft.tracing.session import Session, listening
from opgraft.tracing.settings import CLAIM_DEBUG, begin_session, end_session

__all__ = [
    "CLAIM_DEBUG",
    "HIT",
    "MISS",
    "MOST_EVENTS",
    "RETRACE",
    "Event",
    "Kept",
    "Listener",
    "Recorder",
    "Recording",
    "Session",
    "Span",
    "SpanMaker",
    "begin_session",
    "clean",
    "end_session",
    "listening",
    "tell",
    "untold",
]
