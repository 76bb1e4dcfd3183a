"""What ONNX Runtime alone makes of a file, without opgraft in the process: `plain.py FOLDER`.

The model and its inputs are in the folder. The exit status tells whether ONNX Runtime lives: its errors do not count.
"""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path

import numpy as np
import onnxruntime

LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL")


def try_alone(folder: Path, seconds: float) -> None:
    onnxruntime.set_default_logger_severity(4)
    for level in LEVELS:
        faulthandler.dump_traceback_later(seconds, exit=True)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        try:
            session = onnxruntime.InferenceSession(
                str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
            )
            with np.load(folder / "feeds.npz", allow_pickle=True) as kept:  # written by the fuzzer itself
                session.run(None, {each.name: kept[str(at)] for at, each in enumerate(session.get_inputs())})
        except Exception:
            continue
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    try_alone(Path(sys.argv[1]), float(sys.argv[2]))
