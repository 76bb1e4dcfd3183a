"""What ONNX Runtime alone makes of a file, without opgraft in the process: `plain.py FOLDER`.

The model and its inputs are in the folder. The exit status tells whether ONNX Runtime lives: its errors do not count.
"""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL")


def fed(array: Any, text: str) -> Any:
    """An input as a session takes it; of a type that NumPy lacks, the array is of its bytes."""
    name = text.removeprefix("tensor(").removesuffix(")").upper()
    lacking = name.startswith(("BFLOAT16", "FLOAT8", "FLOAT4", "INT4", "UINT4", "INT2", "UINT2"))
    if not lacking:
        return array
    storage = array.view({1: np.uint8, 2: np.uint16}[array.dtype.itemsize])
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(storage, onnx.TensorProto.DataType.Value(name))


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
                feeds = {each.name: fed(kept[str(at)], each.type) for at, each in enumerate(session.get_inputs())}
            if any(isinstance(each, onnxruntime.OrtValue) for each in feeds.values()):
                made = onnxruntime.OrtValue.ortvalue_from_numpy
                given = {name: made(each) if isinstance(each, np.ndarray) else each for name, each in feeds.items()}
                session.run_with_ort_values(None, given)
            else:
                session.run(None, feeds)
        except Exception:
            continue
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    try_alone(Path(sys.argv[1]), float(sys.argv[2]))
