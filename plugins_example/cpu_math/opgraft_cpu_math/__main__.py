"""`build` builds the kernels, once on a machine; `bench` compares with the built-in pack."""

from __future__ import annotations

import argparse
import sys

from .bench import table
from .building import build, obstacle


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m opgraft_cpu_math", description=__doc__)
    parser.add_argument("command", choices=["build", "bench"])
    command = parser.parse_args().command
    if command == "build":
        try:
            build()
        except RuntimeError as error:
            print(f"the kernels cannot be built: {error}", file=sys.stderr)
            return 1
        return 0
    problem = obstacle()
    if problem is not None:
        print(problem, file=sys.stderr)
        return 1
    for line in table():
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
