"""registry.yaml: which packs are asked, in what order, and which operators are held back."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
import yaml

from opgraft.errors import RegistryError
from opgraft.graph import ONNX_DOMAIN

SUPPORTED_VERSION = 1
ANY_PACK = "*"


class OpRule(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a registry file says of one operator, or of all that a pattern matches."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()

    def permits(self, pack: str) -> bool:
        if self.allow is not None and pack not in self.allow and ANY_PACK not in self.allow:
            return False
        return pack not in self.deny and ANY_PACK not in self.deny


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int = SUPPORTED_VERSION
    packs: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    ops: dict[str, Any] | None = None


@dataclass(frozen=True)
class Policy:
    """A registry file, read and checked."""

    source: str = "built in"
    packs: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()
    rules: tuple[tuple[str, OpRule], ...] = ()
    lines: dict[tuple[str, ...], int] = field(default_factory=dict, compare=False, repr=False)

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
        for where, line in self.lines.items():
            name = where[-1]
            if where[0] == "pack" and name not in installed and name != ANY_PACK:
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
        raise RegistryError(f"{source}: cannot be read ({error}); check OPGRAFT_REGISTRY or the option `registry`") from error
    return parse_policy(text, source)


def parse_policy(text: str, source: str) -> Policy:
    """The policy that `text` gives; see `load_policy`."""
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise RegistryError(f"{source}, line {line}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise RegistryError(f"{source}: not valid YAML: {error}") from error
    if content is None:
        return Policy(source)
    _refuse_duplicate_keys(tree, source)
    file = _convert(content, _File, tree, source)
    if file.version != SUPPORTED_VERSION:
        line = _line(tree, ("version",))
        raise RegistryError(
            f"{source}, line {line}: version {file.version} is not known to this opgraft; write version: {SUPPORTED_VERSION}"
        )
    rules: list[tuple[str, OpRule]] = []
    for pattern, rule in (file.ops or {}).items():
        at = _child(_child(tree, "ops"), pattern)
        full = pattern if "::" in pattern else f"{ONNX_DOMAIN}::{pattern}"
        rules.append((full, _convert(rule, OpRule, at, source)))
    return Policy(source, file.packs, file.disable, tuple(rules), _pack_lines(tree))


def _convert(content: Any, into: Any, at: yaml.Node | None, source: str) -> Any:
    try:
        return msgspec.convert(content, into)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        keys = tuple(part for part in path.rstrip("`").replace("[", ".").replace("]", "").split(".") if part)
        known = ", ".join(into.__struct_fields__)
        where = f" in `{'.'.join(keys)}`" if keys else ""
        raise RegistryError(f"{source}, line {_line(at, keys)}: {problem}{where} (known here: {known})") from error


def _child(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for name, value in node.value if name.value == key), None)
    if isinstance(node, yaml.SequenceNode) and key.isdigit() and int(key) < len(node.value):
        found: yaml.Node = node.value[int(key)]
        return found
    return None


def _line(node: yaml.Node | None, keys: Sequence[str]) -> int:
    for key in keys:
        node = _child(node, key) or node
    return node.start_mark.line + 1 if node is not None else 1


def _refuse_duplicate_keys(node: yaml.Node | None, source: str) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                raise RegistryError(f"{source}, line {key.start_mark.line + 1}: {key.value!r} is given twice; keep one")
            seen.add(key.value)
            _refuse_duplicate_keys(value, source)


def _pack_lines(tree: yaml.Node | None) -> dict[tuple[str, ...], int]:
    """The line of each mention of a pack's name."""
    lines: dict[tuple[str, ...], int] = {}
    mentions = [_child(tree, "packs"), _child(tree, "disable")]
    rules = _child(tree, "ops")
    if isinstance(rules, yaml.MappingNode):
        mentions += [_child(rule, key) for _, rule in rules.value for key in ("allow", "deny", "prefer")]
    for mention in mentions:
        for item in getattr(mention, "value", None) or ():
            lines.setdefault(("pack", item.value), item.start_mark.line + 1)
    return lines
