"""Interpreters, versions, and a virtual environment for each cell of the matrix.

All is uv's work, which needs no pip in an environment, and keeps on the disk once what several of them share.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from cells import EXTRAS, PROJECT, ROOT, SOURCES, Cell, lower_bounds

Versions = dict[str, str]

_UV: Final = Path(sys.executable).with_name("uv")


class Unavailable(Exception):
    """There is no such environment to be had, and why."""


def _uv(*arguments: str | Path, given: str | None = None) -> str:
    """What uv prints.

    Raises:
        Unavailable: uv says no.
    """
    command = [_UV, *arguments, "--no-python-downloads", "--quiet"]
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(" ".join(done.stderr.split()))
    return done.stdout


def compiles(python: Path, folder: Path) -> bool:
    """Whether an interpreter compiles all of opgraft's code without a warning; the byte code goes into a folder."""
    command = [python, "-W", "error", "-X", f"pycache_prefix={folder}", "-m", "compileall", "-q", "-f", *SOURCES]
    return subprocess.run(command, cwd=ROOT).returncode == 0


def build_wheel(folder: Path) -> Path:
    """The wheel that every cell installs, by way of the source distribution: nothing of an older build comes along."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([_UV, "build", "--quiet", "--python", sys.executable, "--out-dir", folder, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def interpreters(given: Iterable[Path]) -> Mapping[str, Path]:
    """Interpreters by minor version, of those that are given."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return {
        subprocess.run([each, "-c", code], check=True, capture_output=True, text=True).stdout.strip(): each.absolute()
        for each in given
    }


def find_interpreter(minor: str, given: Mapping[str, Path]) -> Path | None:
    """The interpreter of a minor version, among those that are given, or on the PATH; None where there is none."""
    try:
        return given.get(minor) or Path(_uv("python", "find", "--system", minor).strip())
    except Unavailable:
        return None


def _lock(python: str, requirements: str | Path, *options: str, given: str) -> str:
    """Requirements as `name==version`; '-' stands for what is given.

    Raises:
        Unavailable: nothing fulfils them.
    """
    wheels = ("--only-binary", ":all:", "--python-version", python)
    return _uv("pip", "compile", requirements, *wheels, "--no-annotate", "--no-header", *options, given=given)


def resolve(cell: Cell) -> Versions:
    """The version of each package in a cell; nothing but wheels is taken.

    Raises:
        Unavailable: some have no wheel for this Python, or they exclude each other.
    """
    bounds = lower_bounds()
    try:
        return _resolve(cell, bounds)
    except Unavailable:
        lacking = [name for name, bound in bounds.items() if not _has_wheel(f"{name}>={bound}", cell.python)]
        if not lacking:
            raise
        raise Unavailable(f"no wheel for Python {cell.python} of {', '.join(lacking)}") from None


def _resolve(cell: Cell, bounds: Mapping[str, str]) -> Versions:
    pins = list(cell.pins)
    if cell.oldest:
        oldest = "\n".join(f"{name}>={bounds[name]}" for name in cell.oldest)
        pins += _lock(cell.python, "-", "--no-deps", "--resolution", "lowest", given=oldest).split()
    extras = [part for name in EXTRAS for part in ("--extra", name)]
    locked = _lock(cell.python, PROJECT, "--constraints", "-", *extras, given="\n".join(pins))
    return dict(line.split("==") for line in locked.split())


def _has_wheel(requirement: str, python: str) -> bool:
    try:
        _lock(python, "-", "--no-deps", given=requirement)
    except Unavailable:
        return False
    return True


def make_environment(folder: Path, python: Path, versions: Versions, wheel: Path) -> Path:
    """An environment with exactly these packages; returns the folder of its programs."""
    _uv("venv", "--clear", "--python", python, folder)
    packages = [f"{name}=={version}" for name, version in versions.items()]
    _uv("pip", "install", "--python", folder / "bin" / "python", "--no-deps", "--compile-bytecode", *packages, wheel)
    return folder / "bin"
