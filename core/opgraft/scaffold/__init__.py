"""`opgraft new-pack`: writes an op pack that installs and whose test passes, for its author to fill in."""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from opgraft.errors import ModelError, OptionError
from opgraft.registry import installed_packs
from opgraft.scaffold.operators import SETS, OperatorDraft, draft_of, not_there

_TEMPLATES = files("opgraft.scaffold") / "templates"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")


@dataclass(frozen=True)
class PackDraft:
    """A pack to be written.

    Attributes:
        name: of the distribution and of the pack.
        module: the Python package.
        operators: its operators, each once.
        opgraft: what pip installs opgraft from.
    """

    name: str
    module: str
    operators: tuple[OperatorDraft, ...]
    opgraft: str = "opgraft[cpu]"

    @property
    def warnings(self) -> list[str]:
        """A line for each operator that is new in a domain which is not the author's own."""
        absent = (not_there(each.operator) for each in self.operators)
        return [f"{problem}; for an operator of your own, name a domain of your own" for problem in absent if problem]

    @property
    def imports(self) -> list[str]:
        """What the handlers need of opgraft.ops."""
        sources = " ".join(each.dtypes or "" for each in self.operators)
        return [*(name for name in SETS if re.search(rf"\b{name}\b", sources)), "op"]


def draft_pack(name: str, operators: Sequence[str]) -> PackDraft:
    """A pack of that name with a handler for each operator, given as `domain::OpType`.

    Raises:
        OptionError: a name that no distribution, package or operator can have.
    """
    module = re.sub(r"[-_.]+", "_", name).lower()
    if not _NAME.fullmatch(name) or not module.isidentifier() or keyword.iskeyword(module):
        raise OptionError(
            f"{name!r} cannot be the name of a package: begin with a letter, and go on with letters, digits and "
            "dashes, a hundred at most"
        )
    taken = {pack.name for pack in installed_packs()}
    if name in taken:
        raise OptionError(f"a pack named {name!r} is installed already: choose another name")
    if module in sys.stdlib_module_names or module.startswith("opgraft") or _is_foreign(module):
        raise OptionError(f"{name!r} would hide the Python package {module!r}, which is installed here: choose another")
    drafts = {draft.operator: draft for draft in map(draft_of, operators)}
    functions = [draft.function for draft in drafts.values()]
    for draft in drafts.values():
        if functions.count(draft.function) > 1:
            raise OptionError(f"two of the operators would be the function {draft.function!r}: make them two packs")
    return PackDraft(name, module, tuple(drafts.values()), _source_of_opgraft())


def _source_of_opgraft() -> str:
    """What pip installed opgraft from, as it takes it again: an index, an address, or a folder."""
    for found in distributions(name="opgraft"):
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        if "url" in origin:
            version_control = origin.get("vcs_info", {})
            address = f"{version_control['vcs']}+{origin['url']}" if version_control else origin["url"]
            return f"opgraft[cpu] @ {address}"
    return "opgraft[cpu]"


def _is_foreign(module: str) -> bool:
    """True for an installed package, other than a pack that is being written anew in its own folder."""
    found = importlib.util.find_spec(module)
    return found is not None and found.origin is not None and "site-packages" in Path(found.origin).parts


def write_pack(pack: PackDraft, folder: Path) -> list[Path]:
    """Write the pack's files.

    Returns:
        The files, in the order of their names.

    Raises:
        ModelError: the folder is there already, and not empty; or it cannot be written.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("opgraft.scaffold"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    written = []
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ModelError(f"{folder} is there already: choose another name, another --into, or remove it")
        for name in sorted(_template_names(_TEMPLATES)):
            path = folder / name.removesuffix(".j2").replace("PACKAGE", pack.module)
            path.parent.mkdir(parents=True, exist_ok=True)
            written.append(path)
            path.write_text(environment.get_template(name).render(pack=pack), encoding="utf-8")
    except OSError as error:
        if written:
            shutil.rmtree(folder, ignore_errors=True)
        raise ModelError(f"{folder}: cannot be written ({error})") from error
    return written


def _template_names(folder: Any, prefix: str = "") -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _template_names(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".j2"):
            yield prefix + entry.name
