"""Tries the oldest and the newest of what opgraft supports, each in an environment of its own: `make matrix`.

python tests/matrix/run.py                            # all cells; writes results.json and docs/compatibility.md
python tests/matrix/run.py newest onnxruntime-1.25    # these alone; the others' results stay
python tests/matrix/run.py --python /path/to/python3.14    # interpreters that are not on the PATH

The environments lie under `matrix/` in the folder of the models that tests fetch: `$OPGRAFT_MODEL_CACHE`, or
`opgraft-models` in the user's cache folder. A cell's logs lie in its environment.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import checks
from cells import CELLS, ONNXRUNTIMES, ROOT, Cell
from compatibility_page import write_page
from environments import Unavailable, build_wheel, compiles, find_interpreter, interpreters, make_environment, resolve
from results import Result, load, save

sys.path.insert(0, str(ROOT / "tests" / "models"))
from zoo import MODELS, cache


def try_cell(cell: Cell, given: Mapping[str, Path], wheel: Path) -> Result:
    """Make the cell's environment, and run each check in it."""
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    result = Result(datetime.date.today().isoformat(), machine)
    folder = cache() / "matrix" / cell.name
    python = find_interpreter(cell.python, given)
    try:
        versions = resolve(cell)
    except Unavailable as error:
        compiled = python and ("compiles" if compiles(python, folder) else "does not compile")
        result.not_run = f"{error}; opgraft's own code {compiled} for it" if compiled else str(error)
        return result
    if python is None:
        result.not_run = f"no Python {cell.python} here; every dependency has a wheel for it"
        return result
    programs = make_environment(folder, python, versions, wheel)
    code = "import opgraft, platform; print(platform.python_version(), opgraft.__file__)"
    shown = subprocess.check_output([programs / "python", "-c", code], cwd=programs, text=True)
    version, module = shown.split(maxsplit=1)
    assert module.startswith(str(programs.parent)), module
    result.versions = {"python": version, **versions}
    result.outcomes = {name: checks.run(name, programs) for name in checks.CHECKS}
    return result


def told(cell: Cell, result: Result, seconds: float) -> str:
    """A cell's result as a line, and its failures below."""
    if result.not_run:
        return f"{cell.name}: not run: {result.not_run}"
    counts = ", ".join(
        f"{name} {outcome.passed} passed {len(outcome.failed)} failed {sum(outcome.skipped.values())} skipped"
        for name, outcome in result.outcomes.items()
    )
    return "\n  ".join([f"{cell.name}: {counts} ({seconds:.0f} s)", *result.failed])


def main() -> int:
    parser = argparse.ArgumentParser(description="Try the oldest and the newest of what opgraft supports.")
    cells = {cell.name: cell for cell in CELLS}
    parser.add_argument("cells", nargs="*", metavar="CELL", help=f"only these, of {', '.join(cells)}")
    parser.add_argument(
        "--python", type=Path, action="append", default=[], help="an interpreter beside those on the PATH"
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many cells to try at once")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.cells) - set(cells)):
        parser.error(f"no such cell: {', '.join(unknown)}; there are {', '.join(cells)}")
    started = time.monotonic()
    given = interpreters(arguments.python)
    wheel = build_wheel(cache() / "matrix" / "wheel")
    MODELS[0].path()  # fetched here: the environments have no pip
    todo = [cells[name] for name in arguments.cells or cells]
    results = load()

    def work(cell: Cell) -> Result:
        began = time.monotonic()
        result = try_cell(cell, given, wheel)
        print(told(cell, result, time.monotonic() - began), flush=True)
        return result

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for cell, result in zip(todo, pool.map(work, todo), strict=True):
            results[cell.name] = result
            save({name: results[name] for name in cells if name in results})
    write_page(results)
    failed = [cell.name for cell in todo if results[cell.name].failed]
    idle = [cell.name for cell in todo if results[cell.name].not_run]
    print(
        f"{len(todo)} cells: {len(todo) - len(failed) - len(idle)} passed, {len(failed)} failed, "
        f"{len(idle)} not run ({time.monotonic() - started:.0f} s)"
    )
    newest = results["newest"].versions.get("onnxruntime", "") if "newest" in results else ""
    if newest and not newest.startswith(f"{ONNXRUNTIMES[-1]}."):
        print(f"onnxruntime {newest} is newer than all cells: add it to ONNXRUNTIMES in tests/matrix/cells.py")
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
