"""Op packs: found through the entry-point group `opgraft.packs`, loaded once, each kept from the others' faults."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, distributions
from types import ModuleType
from typing import Any, Protocol, TypeGuard

import pluggy

from opgraft.errors import ContractError, text_of, text_with_place
from opgraft.graph import normalized_domain
from opgraft.ops import Handler
from opgraft.ops.arrays import compute
from opgraft.ops.hookspecs import PROJECT, HandlerHooks
from opgraft.text import printable

GROUP = "opgraft.packs"
_log = logging.getLogger("opgraft")


class OpPlugin(Protocol):
    """What a pack may hold: an object with hook implementations, and the operators that it wants to be asked about.

    `operators` are `domain::OpType` names; * and ? match as in file names. A `Handler` is one; a wrapper is another.
    """

    @property
    def operators(self) -> tuple[str, ...]: ...


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
    by_name: dict[str, list[Pack]] = {}
    for pack in sorted(_declared_packs(), key=lambda pack: (pack.name, pack.distribution, pack.module)):
        by_name.setdefault(pack.name, []).append(pack)
    packs = tuple(_only_pack(found) for found in by_name.values())
    for pack in packs:
        if pack.error:
            _log.warning("op pack %s is left out: %s", printable(pack.name), printable(pack.error))
    return packs


def _declared_packs() -> Iterator[Pack]:
    """The packs that distributions declare, yet to be loaded. Of a distribution that lies on the path more than once,
    the first counts, as it does when it is imported."""
    seen: set[str] = set()
    for distribution in distributions():
        try:
            entries = distribution.entry_points.select(group=GROUP)
            if not entries:
                continue
            name, version = _name_and_version(distribution)
        except Exception as error:  # damaged, and most likely no pack at all
            place = distribution.locate_file("")
            _log.warning("a distribution in %s cannot be read, nor any op pack in it: %s", place, text_of(error))
            continue
        normalized_name = re.sub(r"[-_.]+", "-", name).lower()
        if normalized_name not in seen:
            seen.add(normalized_name)
            yield from dict.fromkeys(Pack(entry.name, name, version, entry.value) for entry in entries)


def _name_and_version(distribution: Distribution) -> tuple[str, str]:
    """A distribution's name and version, empty where its metadata has none: there `Distribution.name` is None, and from
    Python 3.15 on it raises."""
    try:
        metadata = distribution.metadata
    except FileNotFoundError:
        return "", ""
    name, version = ((metadata.get_all(key) or [""])[0] for key in ("Name", "Version"))
    return name, version


def _only_pack(declared: Sequence[Pack]) -> Pack:
    """The pack of one name, loaded, which must be declared once only."""
    if len(declared) == 1:
        return load_pack(declared[0])
    name = declared[0].name
    sources = " and ".join(f"{pack.distribution} ({pack.module})" for pack in declared)
    return Pack(name, error=f"more than one distribution names a pack {name!r}: {sources}; uninstall all but one")


def load_pack(declared: Pack) -> Pack:
    """Load a pack; whatever goes wrong inside it ends up in `Pack.error`."""
    try:
        plugins = tuple(plugins_of(EntryPoint(declared.name, declared.module, GROUP).load()))
        if not plugins:
            raise ContractError(f"{declared.module} holds no op handler; decorate one with @opgraft.ops.op(...)")
        _compute_globals(declared.module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a pack that exits at import must not end its host
        return replace(declared, error=text_with_place(error, {_package(declared.module)}))
    return replace(declared, plugins=plugins)


def _package(module: str) -> str:
    """The top-level Python package of a pack's module, which may name an object in it."""
    return module.partition(":")[0].partition(".")[0]


def _compute_globals(module: str) -> None:
    """Compute the arrays that the modules of a pack keep: runs in other threads read them."""
    package = _package(module)
    for name, found in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            compute(dict(vars(found)))


def plugins_of(source: Any) -> Iterator[OpPlugin]:
    """The plugins of a pack, in the order written: those in a module, in the modules it imports from its own package,
    and in module-level lists and tuples; or those of any object that is itself a plugin or a list of them.

    A handler that a module imports from another package, to call it, stays that package's own.

    Raises:
        ContractError: something that poses as a plugin breaks the contract.
    """
    seen: set[int] = set()
    package = (source.__package__ or source.__name__) + "." if isinstance(source, ModuleType) else ""

    def walk(item: Any) -> Iterator[OpPlugin]:
        if isinstance(item, ModuleType):
            if id(item) in seen or not f"{item.__name__}.".startswith(package):
                return
            seen.add(id(item))
            for value in list(vars(item).values()):
                if not isinstance(value, Handler) or f"{value.function.__module__}.".startswith(package):
                    yield from walk(value)
        elif isinstance(item, list | tuple):
            for value in item:
                if _is_plugin(value):
                    yield from walk(value)
        elif _is_plugin(item) and id(item) not in seen:
            seen.add(id(item))
            yield item

    yield from walk(source)


def _is_plugin(item: Any) -> TypeGuard[OpPlugin]:
    if isinstance(item, Handler):
        return True
    operators = getattr(item, "operators", None)
    if isinstance(item, type | ModuleType) or not isinstance(operators, tuple):
        return False
    if not all(isinstance(each, str) and "::" in each for each in operators):
        raise ContractError(f"{item!r}: operators must be 'domain::OpType' names, not {operators!r}")
    try:
        hooks_of(item)
    except pluggy.PluginValidationError as error:
        raise ContractError(f"{item!r}: {error}") from error
    return True


def hooks_of(*plugins: OpPlugin) -> pluggy.PluginManager:
    """The hooks of plugins, which are asked first to last.

    Raises:
        pluggy.PluginValidationError: one implements a hook that there is not, or with arguments that the hook lacks.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(HandlerHooks)
    for place, plugin in reversed(list(enumerate(plugins))):  # pluggy asks the plugin registered last first
        manager.register(plugin, name=str(place))
    manager.check_pending()
    return manager


def full_operator(name: str) -> str:
    """`domain::OpType` of a name that may leave ai.onnx out."""
    domain, _, op_type = name.rpartition("::")
    return f"{normalized_domain(domain)}::{op_type}"
