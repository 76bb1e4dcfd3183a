"""What holds for every test: the op packs that it sees, and how much the property tests try: `OPGRAFT_EXAMPLES`
examples each, 200 unless it is set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import opgraft.registry.packs as packs  # opgraft before MLX, which it gives a faster BLAS

settings.register_profile(
    "opgraft",
    max_examples=int(os.environ.get("OPGRAFT_EXAMPLES", "200")),
    deadline=None,
    derandomize="OPGRAFT_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("opgraft")


@pytest.fixture(scope="session", autouse=True)
def only_the_pack_of_opgraft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Op packs that are installed beside opgraft are not there for the tests, which write those that they need."""
    written = tmp_path_factory.getbasetemp().resolve()

    def is_foreign(distribution: Distribution) -> bool:
        if Path(str(distribution.locate_file(""))).resolve().is_relative_to(written):
            return False
        return bool(distribution.entry_points.select(group=packs.GROUP)) and distribution.name != "opgraft"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs, "distributions", lambda: (each for each in distributions() if not is_foreign(each)))
        packs.installed_packs.cache_clear()
        yield
    packs.installed_packs.cache_clear()
