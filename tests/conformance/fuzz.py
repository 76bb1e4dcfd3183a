"""Try the property of each operator on many random cases: `fuzz.py [--examples N] [--jobs N] [OPERATOR ...]`.

Each operator has a process of its own, and one that dies is told with the case that it died of.
"""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent


def fuzz(operator: str, examples: int) -> str:
    """What is wrong with an operator, as text; empty where nothing is."""
    with TemporaryDirectory() as folder:
        last = Path(folder, "case")
        environment = {**os.environ, "OPGRAFT_EXAMPLES": str(examples), "OPGRAFT_LAST_CASE": str(last)}
        test = f"{HERE / 'test_properties.py'}::test_operator[{operator}]"
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", test]
        done = subprocess.run(command, env=environment, cwd=HERE.parent.parent, capture_output=True, text=True)
        if done.returncode in (0, 1):
            return done.stdout if done.returncode else ""
        case = last.read_text() if last.exists() else "no case"
        return f"the process ended with {done.returncode} on {case}\n{done.stdout[-2000:]}{done.stderr[:2000]}"


def main() -> int:
    sys.path.insert(0, str(HERE))
    from test_properties import OPERATORS

    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=5000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("operators", nargs="*", default=sorted(OPERATORS))
    asked = parser.parse_args()
    wrong = 0
    with ThreadPoolExecutor(asked.jobs) as pool:
        results = pool.map(lambda operator: fuzz(operator, asked.examples), asked.operators)
        for operator, text in zip(asked.operators, results, strict=True):
            wrong += bool(text)
            print(f"{operator}: {'wrong' if text else 'right'}\n{text}".rstrip(), flush=True)
    print(f"{len(asked.operators)} operators, {wrong} of them wrong")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
