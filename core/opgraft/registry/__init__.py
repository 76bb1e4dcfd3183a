"""The registry: packs found through entry points, the policy of registry.yaml, and dispatch from a node to handlers."""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from pathlib import Path

from opgraft.registry.definitions import UNKNOWN_VERSION, Definition, Parameter, Undefined, set_versions
from opgraft.registry.dispatch import Candidate, Claim, Claimer, Reason, Registry
from opgraft.registry.packs import GROUP, OpPlugin, Pack, installed_packs, plugins_of
from opgraft.registry.policy import OpRule, Policy, load_policy, parse_policy, registry_text
from opgraft.registry.shipped import shipped_registry_path

ENVIRONMENT_VARIABLE = "OPGRAFT_REGISTRY"

_log = logging.getLogger("opgraft")

PACKS_VARIABLE = "OPGRAFT_PACKS"
"""Names, with commas between, of packs that their user turns on: a pack that does nothing unasked looks here."""


def load_registry(path: str | Path | None = None) -> Registry:
    """The registry that a session uses. The file is read each time; what it says is worked out once.

    A rule of the file that matches no operator is a warning in the log.

    Args:
        path: a registry.yaml. Where it is None or empty: the one named by the environment variable OPGRAFT_REGISTRY;
            where that is empty too, the one that opgraft ships.

    Raises:
        RegistryError: the file cannot be used.
    """
    return _load(*registry_text(path or os.environ.get(ENVIRONMENT_VARIABLE) or shipped_registry_path()))


@lru_cache(maxsize=16)
def _load(text: str, source: str) -> Registry:
    policy = parse_policy(text, source)
    packs = installed_packs()
    policy.check_packs([pack.name for pack in packs])
    registry = Registry([pack for pack in packs if not pack.error], policy)
    for idle in registry.idle_rules():
        _log.warning("%s", idle)
    return registry


__all__ = [
    "ENVIRONMENT_VARIABLE",
    "GROUP",
    "UNKNOWN_VERSION",
    "Candidate",
    "Claim",
    "Claimer",
    "Definition",
    "OpPlugin",
    "OpRule",
    "Pack",
    "Parameter",
    "Policy",
    "Reason",
    "Registry",
    "Undefined",
    "installed_packs",
    "load_policy",
    "load_registry",
    "parse_policy",
    "plugins_of",
    "set_versions",
]
