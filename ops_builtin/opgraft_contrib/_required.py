"""Inputs that a node must have although they stand behind optional ones, which Python's signatures cannot say."""

from __future__ import annotations

from opgraft.ops import Handler, Node


def require_inputs(handler: Handler, *names: str) -> None:
    """Have `handler` decline nodes that lack one of the inputs `names`."""
    places = {each.name: index for index, each in enumerate(handler.signature.inputs)}

    @handler.condition
    def _(node: Node) -> None:
        for name in names:
            node.require(node.input(places[name]) is not None, f"input {name} is required, and absent")
