"""Session creation on large models, in seconds: `scale.py NODES`."""

from __future__ import annotations

import resource
import sys
import time

import onnxruntime
from report import large_model
from turns import tell

import opgraft


def main() -> None:
    nodes = int(sys.argv[1])
    model = large_model(nodes).SerializeToString()
    opgraft.register()
    seconds = {}
    for side, options in (("cpu", onnxruntime.SessionOptions()), ("ep", opgraft.session_options())):
        began = time.perf_counter()
        providers = ["CPUExecutionProvider"] if side == "cpu" else None
        session = onnxruntime.InferenceSession(model, options, providers=providers)
        seconds[side] = time.perf_counter() - began
        del session
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    tell([{"model": f"{nodes:,} nodes", **seconds, "peak": peak}])


if __name__ == "__main__":
    main()
