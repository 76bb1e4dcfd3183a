"""Op packs: found through the entry-point group `opgraft.packs`, loaded once, and kept apart from each other's faults."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from opgraft.errors import ContractError
from opgraft.graph import normalized_domain
from opgraft.ops import Handler

GROUP = "opgraft.packs"
_log = logging.getLogger("opgraft")


@runtime_checkable
class OpPlugin(Protocol):
    """What a pack may hold: an object with hook implementations, and the operators that it wants to be asked about.

    `operators` are `domain::OpType` names; * and ? match as in file names. A `Handler` is one; a wrapper is another.
    """

    operators: tuple[str, ...]


@dataclass(frozen=True)
class Pack:
    """An installed op pack. One that could not be loaded has an `error` and no plugins."""

    name: str
    distribution: str = ""
    version: str = ""
    module: str = ""
    plugins: tuple[OpPlugin, ...] = field(default=(), repr=False)
    error: str | None = None

    @property
    def handlers(self) -> tuple[Handler, ...]:
        return tuple(plugin for plugin in self.plugins if isinstance(plugin, Handler))


@lru_cache(maxsize=1)
def installed_packs() -> tuple[Pack, ...]:
    """Every installed pack, in the order of their names; those that failed to load carry the reason."""
    entries = sorted(importlib.metadata.entry_points(group=GROUP), key=lambda entry: entry.name)
    packs: dict[str, Pack] = {}
    for entry in entries:
        pack = load_pack(entry)
        other = packs.get(pack.name)
        if other is None or other.error:
            packs[pack.name] = pack
        elif (other.distribution, other.module) != (pack.distribution, pack.module):
            error = f"two distributions name a pack {pack.name!r}: {other.distribution} and {pack.distribution}; uninstall one"
            packs[pack.name] = Pack(pack.name, pack.distribution, pack.version, pack.module, error=error)
    for pack in packs.values():
        if pack.error:
            _log.warning("op pack %s is left out: %s", pack.name, pack.error)
    return tuple(packs.values())


def load_pack(entry: importlib.metadata.EntryPoint) -> Pack:
    """Load one entry point; whatever goes wrong inside the pack ends up in `Pack.error`."""
    distribution = entry.dist.name if entry.dist else ""
    version = entry.dist.version if entry.dist else ""
    try:
        plugins = tuple(plugins_of(entry.load()))
        if not plugins:
            raise ContractError(f"{entry.value} holds no op handler; decorate one with @opgraft.ops.op(...)")
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # a pack that exits at import must not end its host
        return Pack(entry.name, distribution, version, entry.value, error=f"{type(error).__name__}: {error}")
    return Pack(entry.name, distribution, version, entry.value, plugins)


def plugins_of(source: Any) -> Iterator[OpPlugin]:
    """The plugins of a pack, in the order written: those in a module, in the modules it imports from its own package,
    and in module-level lists and tuples; or those of any object that is itself a plugin or a list of them.

    Raises:
        ContractError: something that poses as a plugin breaks the contract.
    """
    seen: set[int] = set()

    def walk(item: Any, root: str) -> Iterator[OpPlugin]:
        if isinstance(item, ModuleType):
            if id(item) in seen or not (item.__name__ + ".").startswith(root):
                return
            seen.add(id(item))
            for value in list(vars(item).values()):
                if isinstance(value, ModuleType | Handler | list | tuple) or _is_plugin(value):
                    yield from walk(value, root)
        elif isinstance(item, list | tuple):
            for value in item:
                if isinstance(value, Handler) or _is_plugin(value):
                    yield from walk(value, root)
        elif isinstance(item, Handler) or _is_plugin(item):
            if id(item) not in seen:
                seen.add(id(item))
                yield item

    yield from walk(source, source.__name__ + "." if isinstance(source, ModuleType) else "")


def _is_plugin(item: Any) -> bool:
    operators = getattr(item, "operators", None)
    if isinstance(item, type) or not isinstance(operators, tuple):
        return False
    if not all(isinstance(each, str) and "::" in each for each in operators):
        raise ContractError(f"{item!r}: operators must be 'domain::OpType' names, not {operators!r}")
    return True


def full_operator(name: str) -> str:
    """`domain::OpType` of a name that may leave ai.onnx out."""
    domain, _, op_type = name.rpartition("::")
    return f"{normalized_domain(domain)}::{op_type}"
