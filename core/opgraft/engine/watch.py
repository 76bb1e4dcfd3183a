"""Watching runs step by step, for whoever wants to know where the time goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeAlias

from opgraft.graph import Node

Watcher: TypeAlias = Callable[[Node], AbstractContextManager[None]]
"""Gives a context in which one node is translated and computed, the nodes of its bodies included."""

watchers: list[Watcher] = []
"""While somebody is here, runs compute each node before the next is translated: slower, but each by itself."""


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """`watcher` is told of every node that runs while the context lasts, in whatever thread."""
    watchers.append(watcher)
    try:
        yield
    finally:
        watchers.remove(watcher)


def told(node: Node) -> ExitStack:
    """The contexts of all watchers for one node, entered."""
    contexts = ExitStack()
    for watcher in tuple(watchers):
        contexts.enter_context(watcher(node))
    return contexts
