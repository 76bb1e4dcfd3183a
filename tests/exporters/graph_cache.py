"""The exported graphs as files: `NAME.ROUTE.onnx`, an `.npz` of inputs and expected outputs, a `.json` on the export.

They lie under `exporters/` in `$OPGRAFT_MODEL_CACHE`, or in `opgraft-models` of the user's cache folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, Any]


def folder() -> Path:
    """Where the graphs are kept."""
    given = os.environ.get("OPGRAFT_MODEL_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(given) if given else home / "opgraft-models") / "exporters"


@dataclass(frozen=True)
class Case:
    """Inputs of a graph by name, and what the framework that it came from gives for them; none if no framework ran."""

    inputs: Arrays
    outputs: Arrays


@dataclass(frozen=True)
class Export:
    """How an export went.

    Attributes:
        nodes, opset: of the graph; 0 where there is none.
        sizes: how many sizes of input the graph takes on the CPU execution provider, of how many there are. The cases
            that it takes are kept; all of them where it takes none.
        difference: that provider's largest difference to the framework; None where no framework ran.
        half: whether it has weights of float16.
        problem: why there is no graph.
    """

    nodes: int = 0
    opset: int = 0
    sizes: tuple[int, int] = (0, 0)
    difference: float | None = None
    half: bool = False
    problem: str | None = None


@dataclass(frozen=True, order=True)
class CachedGraph:
    """A model exported one way."""

    name: str
    route: str

    @property
    def model(self) -> Path:
        return self._file(".onnx")

    def write(self, export: Export, model: bytes = b"", cases: Sequence[Case] = ()) -> None:
        """Keep an export. The record is written last: where it stands, the rest is complete."""
        folder().mkdir(parents=True, exist_ok=True)
        if model:
            self.model.write_bytes(model)
            arrays = {
                f"{number}/{kind}/{name}": array
                for number, case in enumerate(cases)
                for kind, held in (("inputs", case.inputs), ("outputs", case.outputs))
                for name, array in held.items()
            }
            np.savez(self._file(".npz"), **arrays)
        part = self._file(".json.part")
        part.write_text(json.dumps(asdict(export)))
        part.replace(self._file(".json"))

    def export(self) -> Export | None:
        """How the export went; None where it was not tried yet."""
        record = self._file(".json")
        if not record.exists():
            return None
        fields = json.loads(record.read_text())
        return Export(**{**fields, "sizes": tuple(fields["sizes"])})

    def cases(self) -> list[Case]:
        """The inputs that the graph takes, with the expected outputs."""
        found: dict[int, Case] = {}
        with np.load(self._file(".npz")) as arrays:
            for key in arrays.files:
                number, kind, name = key.split("/", 2)
                case = found.setdefault(int(number), Case({}, {}))
                (case.inputs if kind == "inputs" else case.outputs)[name] = arrays[key]
        return [found[number] for number in sorted(found)]

    def _file(self, suffix: str) -> Path:
        return folder() / f"{self.name}.{self.route}{suffix}"


def cached_graphs() -> Iterator[CachedGraph]:
    """Every graph that was exported, or that could not be."""
    for record in sorted(folder().glob("*.json")):
        name, route = record.stem.split(".", 1)
        yield CachedGraph(name, route)
