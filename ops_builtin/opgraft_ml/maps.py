"""Operators of maps, which nobody can take; the reason says what to do instead."""

from __future__ import annotations

from dataclasses import dataclass

from opgraft.ops import Node, hookimpl


@dataclass(frozen=True)
class Declined:
    """Takes no node of its operators, and says why."""

    operators: tuple[str, ...]
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "__doc__", f"Declined: {self.reason}.")

    @hookimpl
    def claim(self, node: Node) -> bool | None:
        return None

    @hookimpl
    def decline_reason(self, node: Node) -> str:
        return self.reason


zip_map = Declined(
    ("ai.onnx.ml::ZipMap",),
    "it makes maps of scores, which are no tensors: export the model without it (skl2onnx: options={'zipmap': False})",
)
