"""Where the registry.yaml that comes with opgraft lies."""

from __future__ import annotations

from pathlib import Path


def shipped_registry_path() -> Path:
    """The packaged registry.yaml, or the one at the top of the tree where opgraft runs from its sources."""
    packaged = Path(__file__).parents[1] / "registry.yaml"
    return packaged if packaged.exists() else Path(__file__).parents[3] / "registry.yaml"
