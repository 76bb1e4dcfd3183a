"""Ways to damage the file of a model, and the files beside it that hold its tensors.

One that finds nothing to damage raises `LookupError`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from damage import NUMBERS, TEXTS, Rng, pick
from onnx import external_data_helper


def flipped(rng: Rng, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 4)) if data else 0):
        changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def cut_short(rng: Rng, data: bytes) -> bytes:
    return data[: int(rng.integers(len(data) + 1))]


def inserted(rng: Rng, data: bytes) -> bytes:
    at = int(rng.integers(len(data) + 1))
    return data[:at] + rng.bytes(int(rng.integers(1, 9))) + data[at:]


def left_out(rng: Rng, data: bytes) -> bytes:
    at = int(rng.integers(len(data) + 1))
    return data[:at] + data[at + int(rng.integers(1, 9)) :]


def repeated(rng: Rng, data: bytes) -> bytes:
    first, end = sorted(int(rng.integers(len(data) + 1)) for _ in range(2))
    return data[:end] + data[first:]


TO_BYTES: tuple[Callable[[Rng, bytes], bytes], ...] = (flipped, cut_short, inserted, left_out, repeated)


def external(rng: Rng, model: onnx.ModelProto, folder: Path) -> None:
    """Some tensors lie in a file beside the model, or elsewhere; places and lengths may be wrong."""
    found = [each for each in model.graph.initializer if each.HasField("raw_data")]
    if not found:
        raise LookupError
    data = b"".join(each.raw_data for each in found)
    place = pick(rng, sorted(PLACES))
    location = PLACES[place](folder, data)
    begin = 0
    for tensor in found:
        length = len(tensor.raw_data)
        offset: Any = begin if rng.random() < 0.7 else pick(rng, (*NUMBERS, *TEXTS))
        size: Any = length if rng.random() < 0.7 else pick(rng, (*NUMBERS, *TEXTS))
        external_data_helper.set_external_data(tensor, location)
        for key, value in (("offset", offset), ("length", size)):
            if rng.random() < 0.9:
                tensor.external_data.add(key=key, value=str(value))
        tensor.ClearField("raw_data")
        begin += length


def _written(path: Path, data: bytes, location: str | None = None) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return location or path.name


def _linked(folder: Path, data: bytes) -> str:
    _written(folder.parent / "elsewhere.bin", data)
    (folder / "link.bin").symlink_to("../elsewhere.bin")
    return "link.bin"


def _linked_folder(folder: Path, data: bytes) -> str:
    _written(folder.parent / "elsewhere.bin", data)
    (folder / "away").symlink_to("..")
    return "away/elsewhere.bin"


def _pipe(folder: Path, data: bytes) -> str:
    """One that nobody writes into: who opens it waits forever."""
    os.mkfifo(folder / "pipe.bin")
    return "pipe.bin"


PLACES: dict[str, Callable[[Path, bytes], str]] = {
    "beside": lambda folder, data: _written(folder / "data.bin", data),
    "below": lambda folder, data: _written(folder / "below" / "data.bin", data, "below/data.bin"),
    "short": lambda folder, data: _written(folder / "short.bin", data[: len(data) // 2]),
    "missing": lambda folder, data: "missing.bin",
    "above": lambda folder, data: _written(folder.parent / "elsewhere.bin", data, "../elsewhere.bin"),
    "absolute": lambda folder, data: _written(folder / "data.bin", data, str(folder / "data.bin")),
    "linked": _linked,
    "linked folder": _linked_folder,
    "pipe": _pipe,
    "a folder": lambda folder, data: ".",
    "endless": lambda folder, data: "/dev/zero",
    "the model": lambda folder, data: "model.onnx",
    "odd": lambda folder, data: "a\0b",
}
"""Where the data of a model's tensors are: each writes them there, and gives the location that the model names."""
TO_FILES: tuple[Callable[[Rng, onnx.ModelProto, Path], None], ...] = (external,)
