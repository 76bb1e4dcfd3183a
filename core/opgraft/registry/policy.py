"""registry.yaml: which packs are asked, in what order, and which operators are held back."""

from __future__ import annotations

import os
import reprlib
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from opgraft.errors import MissingRegistryError, RegistryError
from opgraft.registry.packs import full_operator
from opgraft.text import did_you_mean, printable

SUPPORTED_VERSION = 1
ANY_PACK = "*"
"""Stands for every pack where packs are left out, allowed or denied."""
WHERE_TO_WRITE = "a copy of registry.yaml that OPGRAFT_REGISTRY or the provider option `registry` names"
"""Where a line that a message advises has an effect."""
MOST_BYTES = 1 << 18
"""What is larger than this is no registry file: thousands of rules fit in."""
DEFAULT_PACKS = ("builtin", "contrib", "ml")
"""opgraft's own packs, and their order: one that a file does not list is asked after all others."""

_TEXT: Final = "tag:yaml.org,2002:str"
_NULL: Final = "tag:yaml.org,2002:null"
_DEEPEST: Final = 10
"""Nesting beyond this is refused unread; what a registry file can say takes 5."""


@dataclass(frozen=True)
class OpRule:
    """What a registry file says of one operator, or of all that a pattern matches."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    line: int = field(default=0, compare=False, repr=False)

    def permits(self, pack: str) -> bool:
        return (self.allow is None or _holds(self.allow, pack)) and not _holds(self.deny, pack)


@dataclass(frozen=True)
class Policy:
    """A registry file, read and checked."""

    source: str = "built in"
    packs: tuple[str, ...] = DEFAULT_PACKS
    disabled: tuple[str, ...] = ()
    rules: tuple[tuple[str, OpRule], ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    """The line on which each pack is first named."""

    def rules_for(self, operator: str) -> list[tuple[str, OpRule]]:
        """The rules whose pattern matches `domain::OpType`, with their patterns, in file order."""
        return [(pattern, rule) for pattern, rule in self.rules if fnmatchcase(operator, pattern)]

    def order(self, installed: Sequence[str], operator: str) -> list[str]:
        """The packs to ask for an operator, first to last."""
        unlisted = sorted(name for name in installed if name not in self.packs and name not in DEFAULT_PACKS)
        own = [name for name in DEFAULT_PACKS if name not in self.packs]
        order = [name for name in (*unlisted, *self.packs, *own) if name in installed]
        for _, rule in self.rules_for(operator):
            order = [name for name in order if rule.permits(name)]
            preferred = [name for name in rule.prefer if name in order]
            order = preferred + [name for name in order if name not in preferred]
        return [name for name in order if not _holds(self.disabled, name)]

    def places(self, pack: str, operator: str) -> bool:
        """Whether the file says where among others `pack` is asked for an operator."""
        return pack in (*self.packs, *DEFAULT_PACKS) or any(pack in rule.prefer for _, rule in self.rules_for(operator))

    def denial(self, operator: str, pack: str) -> str | None:
        """The line that keeps `pack` from `operator`, or None where nothing does."""
        if _holds(self.disabled, pack):
            return f"{self.source} disables the pack {pack}"
        for pattern, rule in self.rules_for(operator):
            if not rule.permits(pack):
                return f"{self.source} denies it (ops: {pattern!r})"
        return None

    def check_packs(self, installed: Sequence[str]) -> None:
        """Refuse a file that names a pack which is not installed.

        Raises:
            RegistryError: with the line and what to do.
        """
        for name, line in self.lines.items():
            if name not in installed and name != ANY_PACK:
                hint = did_you_mean(name, installed) or "install it, or take it out of the file"
                hint = f"{hint} (installed: {', '.join(sorted(installed)) or 'none'})"
                raise _refusal(self.source, line, f"no pack named {_quoted(name)} is installed", hint)


def _holds(packs: Collection[str], pack: str) -> bool:
    return pack in packs or ANY_PACK in packs


def load_policy(path: str | Path) -> Policy:
    """Read a registry file.

    Raises:
        RegistryError: the file is missing, is no YAML, or says what no registry file can say; with line and cure.
    """
    return parse_policy(*registry_text(path))


def registry_text(path: str | Path) -> tuple[str, str]:
    """What a registry file holds, and its full path as messages show it. A leading ~ is a home, as in a shell.

    Raises:
        MissingRegistryError: the file is missing, or is nothing that can be a registry file.
        RegistryError: it holds no text.
    """
    source = printable(str(path))
    try:
        file = os.path.expanduser(path)
        source = printable(os.path.realpath(file))
        content = _content(file)
    except (OSError, ValueError) as error:  # ValueError: characters that no path can have
        problem = getattr(error, "strerror", None) or error
        cure = "check OPGRAFT_REGISTRY or the option `registry`"
        raise MissingRegistryError(f"{source}: cannot be read ({problem}); {cure}") from error
    try:
        return content.decode(), source
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _refusal(source, line, "this is not UTF-8", "save the file as UTF-8") from error


def _content(path: str | Path) -> bytes:
    if not stat.S_ISREG(os.stat(path).st_mode):  # asked before it is opened: for a pipe, that may take forever
        raise OSError("it is a folder, a pipe or a device")
    with open(path, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(f"it is larger than a registry file may be, {MOST_BYTES} bytes")
    return content


def parse_policy(text: str, source: str) -> Policy:
    """The policy that `text` gives; see `load_policy`."""
    root = _composed(text, source)
    if root is None or root.tag == _NULL:
        return Policy(source)
    reader = _Reader(source)
    parts = reader.mapping(root, "the file", ("version", "packs", "disable", "ops"))
    if "version" in parts:
        reader.check_version(parts["version"])
    packs = reader.pack_names(parts.get("packs"), "packs", ordered=True) or DEFAULT_PACKS
    disabled = reader.pack_names(parts.get("disable"), "disable")
    return Policy(source, packs, disabled, tuple(reader.rules(parts.get("ops"))), reader.lines)


def _composed(text: str, source: str) -> yaml.Node | None:
    loader = None
    try:
        loader = _PlainLoader(text, source)
        root: yaml.Node | None = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line if error.problem_mark else 0
        problem = ", ".join(part for part in (error.context, error.problem) if part)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position)
        problem = f"{error.reason} ({chr(error.character)!r})"
    except (ValueError, OverflowError):  # PyYAML takes them unchecked, as in "\UFFFFFFFF"
        line = loader.line if loader else 0
        problem = "a number is too large"
    else:
        return root
    cure = "mend that line, or the one before it (a name that begins with * takes quotes; tabs do not indent)"
    raise _refusal(source, line + 1, f"not valid YAML: {_shown(problem)}", cure)


class _PlainLoader(yaml.SafeLoader):
    """Loads YAML without what no registry file needs, and what could make one that never ends: aliases, tags, and
    nesting without limit."""

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text)
        self.source = source
        self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            problem = f"{_shown(f'*{event.anchor}')} is an alias"
            cure = "quote it if it is a name, else write out what it stands for"
        elif event.tag is not None:
            tag = _shown(event.tag.replace("tag:yaml.org,2002:", "!!"))
            problem, cure = f"{tag} is a tag, which means nothing here", "take it out, or quote it if it is a name"
        elif self.depth == _DEEPEST:
            problem, cure = "the nesting is too deep", "see the comments in the registry.yaml that opgraft ships"
        else:
            self.depth += 1
            node: yaml.Node | None = super().compose_node(parent, index)
            self.depth -= 1
            return node
        raise _refusal(self.source, event.start_mark.line + 1, problem, cure)


class _Reader:
    """Reads the tree of one file; what it refuses, it refuses with a line and a cure."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[str, int] = {}
        """The line on which each pack is first named."""

    def refuse(self, at: yaml.Node, problem: str, cure: str) -> NoReturn:
        raise _refusal(self.source, at.start_mark.line + 1, problem, cure)

    def check_version(self, node: yaml.Node) -> None:
        if node.value != str(SUPPORTED_VERSION):
            cure = f"write version: {SUPPORTED_VERSION}"
            self.refuse(node, f"version {_value(node)} is not known to this opgraft", cure)

    def mapping(self, node: yaml.Node, what: str, keys: Sequence[str] = ()) -> dict[str, yaml.Node]:
        """The entries of a mapping that may hold `keys`, or any where none are given."""
        if not isinstance(node, yaml.MappingNode):
            cure = (
                f"its keys are {', '.join(keys)}" if keys else "write a line `domain::OpType: {...}` for each operator"
            )
            self.refuse(node, f"{what} must be a mapping", cure)
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = self.text(key, what)
            if name in found:
                self.refuse(key, f"{_quoted(name)} is given twice", "keep one")
            if keys and name not in keys:
                cure = did_you_mean(name, keys) or f"its keys are {', '.join(keys)}"
                self.refuse(key, f"{what} has no key {_quoted(name)}", cure)
            found[name] = value
        return found

    def text(self, node: yaml.Node, what: str) -> str:
        if node.tag != _TEXT or not node.value:
            self.refuse(node, f"{what} holds {_value(node)}, which is not a name", "quote it if that is the name")
        value: str = node.value
        return value

    def pack_names(self, node: yaml.Node | None, what: str, *, ordered: bool = False) -> tuple[str, ...]:
        """The packs that a list names; where it is `ordered`, each of them by its own name."""
        if node is None or node.tag == _NULL:
            return ()
        if not isinstance(node, yaml.SequenceNode):
            self.refuse(node, f"{what} must be a list of pack names", f"write {what.split()[0]}: [some-pack]")
        names: dict[str, None] = {}
        for item in node.value:
            name = self.text(item, what)
            if name in names:
                self.refuse(item, f"{what} names {_quoted(name)} twice", "keep one")
            if ordered and name == ANY_PACK:
                self.refuse(item, f"{what} is an order, in which {ANY_PACK!r} has no place", "name each pack")
            names[name] = None
            self.lines.setdefault(name, item.start_mark.line + 1)
        return tuple(names)

    def rules(self, node: yaml.Node | None) -> Iterator[tuple[str, OpRule]]:
        if node is None or node.tag == _NULL:
            return
        seen: set[str] = set()
        parsed = self.mapping(node, "ops")
        lines = {key.value: key.start_mark.line + 1 for key, _ in node.value}
        for name, content in parsed.items():
            pattern = full_operator(name)
            if pattern in seen:
                self.refuse(content, f"{_quoted(pattern)} has two rules", "make them one")
            seen.add(pattern)
            what = f"the rule of {_shown(name)}"
            parts = self.mapping(content, what, ("allow", "deny", "prefer"))
            lists = {
                key: self.pack_names(each, f"{key} in {what}", ordered=key == "prefer") for key, each in parts.items()
            }
            yield pattern, OpRule(**lists, line=lines[name])


def _refusal(source: str, line: int, problem: str, cure: str) -> RegistryError:
    return RegistryError(f"{source}, line {line}: {problem}; {cure}")


def _value(node: yaml.Node) -> str:
    return _shown(node.value) or "nothing" if isinstance(node, yaml.ScalarNode) else "a list or mapping"


_short: Final = reprlib.Repr()
_short.maxstring = 100
_quoted: Final = _short.repr
"""A name as messages show it."""


def _shown(text: str) -> str:
    """Text as messages show it without quotes."""
    return printable(text if len(text) <= 200 else f"{text[:200]}...")
