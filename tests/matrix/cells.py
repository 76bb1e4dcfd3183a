"""What opgraft says that it supports, as cells to try: one axis at a time around the newest of everything, and the
corner where everything is the oldest."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[2]
PROJECT: Final = ROOT / "pyproject.toml"
EXTRAS: Final = ("cpu", "test")
"""What is installed beside opgraft's own dependencies."""

SOURCES: Final = ("core", "ops_builtin")
"""Where opgraft's code lies."""

OLDEST_PYTHON: Final = "3.11"
PYTHON: Final = "3.14"
"""The newest that all dependencies have wheels for."""

ONNXRUNTIMES: Final = tuple(f"1.{minor}" for minor in range(24, 33))
"""Every minor version, from the oldest that is supported to the newest that there is."""


def lower_bounds() -> Mapping[str, str]:
    """The oldest version of each dependency that pyproject.toml allows, by the dependency's name."""
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    extras = [each for name in EXTRAS for each in project["optional-dependencies"][name]]
    bounds = {}
    for requirement in map(Requirement, [*project["dependencies"], *extras]):
        for specifier in requirement.specifier:
            bounds[canonicalize_name(requirement.name)] = specifier.version
    return bounds


@dataclass(frozen=True)
class Cell:
    """One environment.

    Attributes:
        name: what the page and the command line call it.
        python: the minor version of the interpreter.
        pins: requirements that narrow those of pyproject.toml.
        oldest: the dependencies that are as old as pyproject.toml allows; all others are the newest.
    """

    name: str
    python: str = PYTHON
    pins: tuple[str, ...] = ()
    oldest: tuple[str, ...] = ()


_OLDEST: Final = tuple(lower_bounds())
_OTHERS: Final = tuple(name for name in _OLDEST if name not in ("onnxruntime", "mlx"))

CELLS: Final = (
    Cell("newest"),
    *(Cell(f"onnxruntime-{minor}", pins=(f"onnxruntime=={minor}.*",)) for minor in reversed(ONNXRUNTIMES[1:-1])),
    Cell("onnxruntime-oldest", oldest=("onnxruntime",)),
    *(Cell(f"python-{minor}", minor) for minor in ("3.15", "3.13", "3.12", "3.11")),
    Cell("mlx-oldest", oldest=("mlx",)),
    # The oldest of some of these have no wheels for a newer Python.
    Cell("others-oldest", OLDEST_PYTHON, oldest=_OTHERS),
    Cell("all-oldest", OLDEST_PYTHON, oldest=_OLDEST),
)
