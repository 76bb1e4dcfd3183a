"""Files that cannot be written: an error that says so, nothing half written, and the rest goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_models import run_script

pytest.importorskip("resource", reason="the limit on files is Unix's")

LIMITED = """
import resource, signal, sys
def no_room(size):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
"""

COMMAND = """
import onnx
from host_models import add_model
from click.testing import CliRunner
from opgraft.cli import main
from pathlib import Path
onnx.save(add_model(shape=("N", 4000)), "model.onnx")
Path("kept.html").write_text("kept")
Path("kept.yaml").write_text("kept")
no_room(100)
done = CliRunner().invoke(main, ARGUMENTS)
print(done.exit_code, " ".join(done.output.split()))
"""

COMMANDS = {
    "a report": ["report", "model.onnx", "--html", "kept.html"],
    "a profile": ["tune", "model.onnx", "-s", "N=20", "-o", "kept.yaml"],
    "outputs": ["run", "model.onnx", "-s", "N=40", "--runs", "1", "--output", "y.npz"],
    "a pack": ["new-pack", "acme-ops", "--op", "acme::Mish"],
}
"""What writes files, to be run where the first of them that is new has too little room."""


@pytest.mark.parametrize("what", COMMANDS)
def test_a_command_whose_file_has_no_room(what: str, tmp_path: Path) -> None:
    arguments = COMMANDS[what]
    result = run_script(
        f"import os; os.chdir({str(tmp_path)!r})\n{LIMITED}\nARGUMENTS = {arguments!r}\n{COMMAND}",
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("1 "), result.stdout
    assert "cannot be written" in result.stdout
    assert "File too large" in result.stdout
    kept = {each.name: each.read_text() for each in tmp_path.iterdir() if each.name.startswith("kept")}
    assert kept == {"kept.html": "kept", "kept.yaml": "kept"}
    assert {each.name for each in tmp_path.iterdir()} == {"model.onnx", *kept}


@pytest.mark.parametrize("place", ["/dev/full", "file/under"])
def test_a_session_whose_trace_cannot_be_written(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run_script(
        f"""
import os; os.chdir({str(tmp_path)!r})
import gc, numpy as np
from host_models import add_model, open_session
x = np.ones((2, 4), np.float32)
for _ in range(2):
    session = open_session(add_model(), {{"trace": {place!r}}})
    assert (session.run(None, {{"x": x, "y": x}})[0] == 2).all()
    del session
    gc.collect()
"""
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("the trace cannot be written to") == 1, result.stderr


@pytest.mark.parametrize("registered", [True, False], ids=["with opgraft", "onnxruntime alone"])
def test_a_profile_of_onnxruntime_without_room(registered: bool, tmp_path: Path) -> None:
    """It is onnxruntime that writes it: with the execution provider it does as it does without."""
    result = run_script(
        f"""
import os; os.chdir({str(tmp_path)!r})
{LIMITED}
import numpy as np, onnxruntime
from host_models import add_model
import opgraft
options = opgraft.session_options() if {registered} else onnxruntime.SessionOptions()
options.enable_profiling = True
x = np.ones((2, 4), np.float32)
session = onnxruntime.InferenceSession(add_model().SerializeToString(), options)
no_room(100)
for _ in range(50):
    assert (session.run(None, {{"x": x, "y": x}})[0] == 2).all()
session.end_profiling()
assert (session.run(None, {{"x": x, "y": x}})[0] == 2).all()
print("right")
"""
    )
    assert (result.returncode, result.stdout) == (0, "right\n"), result.stderr
