"""registry.yaml: which packs are asked, in what order, and which operators are held back."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NoReturn

import yaml

from opgraft.errors import RegistryError
from opgraft.registry.packs import full_operator

SUPPORTED_VERSION = 1
ANY_PACK = "*"
DEFAULT_PACKS = ("builtin",)
"""The order where a file gives none: what is not listed is asked before, and so before opgraft's own pack."""

_MAPPING: Final = "tag:yaml.org,2002:map"
_LIST: Final = "tag:yaml.org,2002:seq"
_TEXT: Final = "tag:yaml.org,2002:str"
_NULL: Final = "tag:yaml.org,2002:null"


@dataclass(frozen=True)
class OpRule:
    """What a registry file says of one operator, or of all that a pattern matches."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()

    def permits(self, pack: str) -> bool:
        if self.allow is not None and pack not in self.allow and ANY_PACK not in self.allow:
            return False
        return pack not in self.deny and ANY_PACK not in self.deny


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
        unlisted = sorted(name for name in installed if name not in self.packs)
        order = unlisted + [name for name in self.packs if name in installed]
        for _, rule in self.rules_for(operator):
            order = [name for name in order if rule.permits(name)]
            preferred = [name for name in rule.prefer if name in order]
            order = preferred + [name for name in order if name not in preferred]
        return [name for name in order if name not in self.disabled]

    def places(self, pack: str, operator: str) -> bool:
        """Whether the file says where among others `pack` is asked for an operator."""
        return pack in self.packs or any(pack in rule.prefer for _, rule in self.rules_for(operator))

    def denial(self, operator: str, pack: str) -> str | None:
        """The line that keeps `pack` from `operator`, or None where nothing does."""
        if pack in self.disabled:
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
                close = difflib.get_close_matches(name, installed, 1)
                hint = f"did you mean {close[0]!r}?" if close else "install it, or take it out of the file"
                raise RegistryError(
                    f"{self.source}, line {line}: no pack named {name!r} is installed; {hint} "
                    f"(installed: {', '.join(sorted(installed)) or 'none'})"
                )


def load_policy(path: str | Path) -> Policy:
    """Read a registry file.

    Raises:
        RegistryError: the file is missing, is no YAML, or says what no registry file can say; with line and cure.
    """
    source = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RegistryError(
            f"{source}: cannot be read ({error}); check OPGRAFT_REGISTRY or the option `registry`"
        ) from error
    return parse_policy(text, source)


def parse_policy(text: str, source: str) -> Policy:
    """The policy that `text` gives; see `load_policy`."""
    root = _composed(text, source)
    if root is None:
        return Policy(source)
    reader = _Reader(source)
    parts = reader.mapping(root, "the file", ("version", "packs", "disable", "ops"))
    if "version" in parts:
        reader.check_version(parts["version"])
    packs = reader.pack_names(parts.get("packs"), "packs") or DEFAULT_PACKS
    disabled = reader.pack_names(parts.get("disable"), "disable")
    return Policy(source, packs, disabled, tuple(reader.rules(parts.get("ops"))), reader.lines)


def _composed(text: str, source: str) -> yaml.Node | None:
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = ", ".join(part for part in (error.context, error.problem) if part)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = f"{error.reason} ({chr(error.character)!r})"
    else:
        return root
    raise RegistryError(f"{source}, line {line}: not valid YAML: {problem}; mend that line, or the one before it")


class _Reader:
    """Reads the tree of one file; what it refuses, it refuses with a line and a cure."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[str, int] = {}
        """The line on which each pack is first named."""

    def refuse(self, at: yaml.Node, problem: str, cure: str) -> NoReturn:
        raise RegistryError(f"{self.source}, line {at.start_mark.line + 1}: {problem}; {cure}")

    def check_version(self, node: yaml.Node) -> None:
        if node.value != str(SUPPORTED_VERSION):
            cure = f"write version: {SUPPORTED_VERSION}"
            self.refuse(node, f"version {_shown(node)} is not known to this opgraft", cure)

    def mapping(self, node: yaml.Node, what: str, keys: Sequence[str] = ()) -> dict[str, yaml.Node]:
        """The entries of a mapping that may hold `keys`, or any where none are given."""
        if node.tag != _MAPPING:
            cure = (
                f"its keys are {', '.join(keys)}" if keys else "write a line `domain::OpType: {...}` for each operator"
            )
            self.refuse(node, f"{what} must be a mapping", cure)
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = self.text(key, what)
            if name in found:
                self.refuse(key, f"{name!r} is given twice", "keep one")
            if keys and name not in keys:
                close = difflib.get_close_matches(name, keys, 1)
                cure = f"did you mean {close[0]!r}?" if close else f"its keys are {', '.join(keys)}"
                self.refuse(key, f"{what} has no key {name!r}", cure)
            found[name] = value
        return found

    def text(self, node: yaml.Node, what: str) -> str:
        if node.tag != _TEXT or not node.value:
            self.refuse(node, f"{what} holds {_shown(node)}, which is not a name", "quote it if that is the name")
        value: str = node.value
        return value

    def pack_names(self, node: yaml.Node | None, what: str) -> tuple[str, ...]:
        if node is None or node.tag == _NULL:
            return ()
        if node.tag != _LIST:
            self.refuse(node, f"{what} must be a list of pack names", f"write {what.split()[0]}: [some-pack]")
        names: list[str] = []
        for item in node.value:
            name = self.text(item, what)
            if name in names:
                self.refuse(item, f"{what} names {name!r} twice", "keep one")
            names.append(name)
            self.lines.setdefault(name, item.start_mark.line + 1)
        return tuple(names)

    def rules(self, node: yaml.Node | None) -> Iterator[tuple[str, OpRule]]:
        if node is None or node.tag == _NULL:
            return
        seen: set[str] = set()
        for name, content in self.mapping(node, "ops").items():
            pattern = full_operator(name)
            if pattern in seen:
                self.refuse(content, f"{pattern!r} has two rules", "make them one")
            seen.add(pattern)
            what = f"the rule of {name}"
            parts = self.mapping(content, what, ("allow", "deny", "prefer"))
            lists = {key: self.pack_names(each, f"{key} in {what}") for key, each in parts.items()}
            yield pattern, OpRule(**lists)


def _shown(node: yaml.Node) -> str:
    return node.value or "nothing" if isinstance(node, yaml.ScalarNode) else "a list or mapping"
