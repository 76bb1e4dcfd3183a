"""What the guard is told to do, by two environment variables."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from opgraft.errors import OptionError

PACK = "numerics-guard"
PACKS_VARIABLE = "OPGRAFT_PACKS"
"""The packs that the user asked for by name, as `opgraft run --pack` does."""

MODE_VARIABLE = "OPGRAFT_NUMERICS_GUARD"
DRIFT_VARIABLE = "OPGRAFT_NUMERICS_GUARD_DRIFT"


class Mode(StrEnum):
    """What happens at a finding."""

    OFF = "off"
    WARN = "warn"
    RAISE = "raise"


@dataclass(frozen=True)
class Settings:
    """What happens at a finding, and the drift from a reference that counts as one (None: outputs are not compared)."""

    mode: Mode = Mode.OFF
    drift: float | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """The settings of the environment: off, unless one of the variables is set or the pack is asked for by name;
        then `raise`, unless the first variable says something else.

        Raises:
            OptionError: a variable holds what it does not take.
        """
        drift = _drift(environment.get(DRIFT_VARIABLE, "").strip())
        given = environment.get(MODE_VARIABLE, "").strip().lower()
        if not given:
            asked_for = PACK in environment.get(PACKS_VARIABLE, "").split(",")
            return cls(Mode.RAISE if asked_for or drift is not None else Mode.OFF, drift)
        try:
            return cls(Mode(given), drift)
        except ValueError:
            raise OptionError(f"{MODE_VARIABLE} is {given!r}; it takes {', '.join(Mode)}") from None


def _drift(given: str) -> float | None:
    if not given:
        return None
    try:
        drift = float(given)
    except ValueError:
        drift = math.nan
    if not 0 <= drift < math.inf:
        raise OptionError(f"{DRIFT_VARIABLE} is {given!r}; it takes a tolerance such as 1e-3")
    return drift
