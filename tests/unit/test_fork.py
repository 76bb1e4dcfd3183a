"""A process forked from one that has used MLX: an error at once, where MLX alone would wait forever."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")

SCRIPT = """
import os, sys
import numpy as np
import onnx.parser
import onnxruntime
import opgraft

text = '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) { y = Exp (x) }'
model = onnx.parser.parse_model(text).SerializeToString()
feeds = {"x": np.zeros(2, np.float32)}

def session():
    return onnxruntime.InferenceSession(model, opgraft.session_options())

made = session() if sys.argv[1] != "first" else None
if sys.argv[1] == "ran":
    made.run(None, feeds)
child = os.fork()
if child == 0:
    try:
        (made or session()).run(None, feeds)
        print("ran", flush=True)
    except Exception as error:
        print("spawn" in str(error), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(session().run(None, feeds)[0].tolist())
"""


@pytest.mark.parametrize(("when", "child"), [("first", "ran"), ("made", "True"), ("ran", "True")])
def test_a_forked_process(when, child):
    done = subprocess.run([sys.executable, "-c", SCRIPT, when], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split("\n")[:2] == [child, "[1.0, 1.0]"], done.stderr
