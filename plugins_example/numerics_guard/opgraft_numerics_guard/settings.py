"""What the guard is told to do, by two environment variables."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from opgraft.errors import OptionError

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
        """The settings of the environment: off, unless one of the variables is set; then `raise`, unless the other
        says something else.

        Raises:
            OptionError: a variable holds what it does not take.
        """
        drift = _drift(environment.get(DRIFT_VARIABLE, "").strip())
        given = environment.get(MODE_VARIABLE, "").strip().lower()
        if not given:
            return cls(Mode.OFF if drift is None else Mode.RAISE, drift)
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
