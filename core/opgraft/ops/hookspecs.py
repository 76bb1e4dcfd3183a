"""The hooks of an op handler, as pluggy specifications.

The host keeps one plugin manager per operator (domain and op type) and registers there only the plugins that know that
operator, so a node asks nobody else. Plugins are asked in the order of the registry. A plugin may also be a pluggy
wrapper (`@hookimpl(wrapper=True)`) around any of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from opgraft.graph import Node
    from opgraft.ops.context import Context

PROJECT = "opgraft"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class HandlerHooks:
    """What a handler of one operator answers."""

    @hookspec(firstresult=True)
    def claim(self, node: Node) -> bool | None:
        """True to take `node`; None to leave it to the next plugin. The first True ends the asking."""

    @hookspec
    def decline_reason(self, node: Node) -> str | None:
        """Why this plugin does not take `node`, in words for the model's owner; None where it does."""

    @hookspec(firstresult=True)
    def translate(self, ctx: Context, node: Node) -> Sequence[Any] | None:
        """The node's outputs, in order, as MLX arrays that need not be evaluated yet.

        Asked of the plugin whose claim stood, with the wrappers around it. The inputs are `ctx.inputs`. Where
        `ctx.on_host` is set they are NumPy arrays, and so are the outputs.
        """
