"""Operators of maps, which nobody can take; the reason says what to do instead."""

from __future__ import annotations

from dataclasses import dataclass

from opgraft.ops import Node, hookimpl


@dataclass(frozen=True)
class Declined:
    """A plugin that takes no node of some operators, and says why."""

    operators: tuple[str, ...]
    reason: str

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
