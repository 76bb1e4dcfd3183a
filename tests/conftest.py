"""How much the property tests try: `OPGRAFT_EXAMPLES` examples each, 200 unless it is set."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "opgraft",
    max_examples=int(os.environ.get("OPGRAFT_EXAMPLES", "200")),
    deadline=None,
    derandomize="OPGRAFT_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("opgraft")
