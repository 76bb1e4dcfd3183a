from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path

import host_models
import mlx.core as mx
import onnxruntime
import pytest

import opgraft.host as host
from opgraft.errors import InstallationError
from opgraft.host.requirements import api_version_of, require_mlx


def devices() -> list[onnxruntime.OrtEpDevice]:
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == host.EP_NAME]


def test_a_cpu_device_is_offered_with_its_metadata() -> None:
    host.register()
    device = devices()[0]
    assert device.ep_vendor == "opgraft"
    assert device.device.type == onnxruntime.OrtHardwareDeviceType.CPU
    metadata = device.ep_metadata
    assert metadata["opgraft_version"] == version("opgraft")
    assert metadata["mlx_version"] == version("mlx")
    assert metadata["mlx_device"] == metadata["mlx_backend"] == "cpu"
    if "version" in metadata:
        assert re.fullmatch(r"\d+\.\d+\.\d+", metadata["version"])


def test_registering_twice_registers_once() -> None:
    host.register()
    before = len(devices())
    host.register()
    host.register("another name")
    assert len(devices()) == before
    assert len(host.registration_names) == 1


def test_unregister_and_register_again() -> None:
    result = host_models.run_script(
        """
import host_models, numpy as np, onnxruntime, opgraft.host as host
model, ones = host_models.add_model(), np.ones((2, 4), np.float32)
for _ in range(3):
    host.register("mlx")
    assert host.registration_names == ["mlx"]
    session = host_models.open_session(model)
    assert (session.run(None, {"x": ones, "y": ones})[0] == 2).all()
    del session
    host.unregister()
    host.unregister()
    assert host.registration_names == []
    assert not [device for device in onnxruntime.get_ep_devices() if device.ep_name == host.EP_NAME]
print("done")
"""
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "done\n"


@pytest.mark.parametrize("copied", [False, True])
def test_the_path_alone_is_enough(copied: bool, tmp_path: Path) -> None:
    """The library brings up its Python side in a process that never imported opgraft, from a copy of the file too."""
    path = Path(host.library_path())
    if copied:
        path = tmp_path / path.name
        path.write_bytes(Path(host.library_path()).read_bytes())
    result = host_models.run_script(
        f"""
import sys, onnxruntime
onnxruntime.register_execution_provider_library("by path", {str(path)!r})
assert "host_models" not in sys.modules
names = {{device.ep_name for device in onnxruntime.get_ep_devices()}}
assert "MLXExecutionProvider" in names, names
import host_models, numpy as np
session = host_models.open_session(host_models.add_model())
ones = np.ones((2, 4), np.float32)
assert (session.run(None, {{"x": ones, "y": ones}})[0] == 2).all()
print(session.get_providers()[0])
"""
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "MLXExecutionProvider\n"


def broken_mlx(folder: Path) -> dict[str, str]:
    """An environment in which MLX is installed and has no backend, as the plain wheel on Linux."""
    package = folder / "mlx"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "core.py").write_text("raise ImportError('libmlx.so: cannot open shared object file')")
    return {"PYTHONPATH": str(folder)}


def test_without_a_backend_the_message_names_the_cure(tmp_path: Path) -> None:
    script = f"""
import onnxruntime, opgraft.host as host
for register in (
    lambda: onnxruntime.register_execution_provider_library("mlx", {host.library_path()!r}), host.register,
):
    try:
        register()
    except Exception as error:
        print(type(error).__name__, error)
assert host.library_path().endswith(".so") or host.library_path().endswith(".pyd")
"""
    result = host_models.run_script(script, environment=broken_mlx(tmp_path))
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert second.startswith("InstallationError")
    for line in (first, second):
        assert "libmlx.so: cannot open shared object file" in line
        if sys.platform.startswith("linux"):
            assert 'pip install "opgraft[cpu]"' in line


def test_the_api_version_follows_the_runtime() -> None:
    assert api_version_of("1.24.4") == 24
    assert api_version_of("1.25") == 25
    assert api_version_of("1.27.1.dev20260101") == 27
    assert api_version_of("1.32.0") == 29
    assert api_version_of("2.0.0") == 29


@pytest.mark.parametrize("old", ["1.24.3", "1.23.2", "1.9.0", "0.5", "unknown"])
def test_an_old_runtime_is_refused(old: str) -> None:
    with pytest.raises(InstallationError, match=f"needs onnxruntime 1.24.4 or newer, this is {old}.*pip install -U"):
        api_version_of(old)


def test_an_old_mlx_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "__version__", "0.32.1")
    with pytest.raises(InstallationError, match=r"needs mlx 0\.32\.2 or newer, this is 0\.32\.1: pip install -U mlx"):
        require_mlx()
    monkeypatch.setattr(mx, "__version__", "0.33.0.dev20270101+abc")
    require_mlx()


def test_importing_the_host_is_light() -> None:
    result = host_models.run_script(
        """
import sys, opgraft.host
opgraft.host.library_path()
print([name for name in ("mlx", "onnxruntime", "opgraft.host._ep", "numpy") if name in sys.modules])
"""
    )
    assert result.stdout == "[]\n", result.stderr


def test_threads_that_register_at_once_all_get_through() -> None:
    result = host_models.run_script(
        """
import threading, onnxruntime, opgraft
threads = [threading.Thread(target=opgraft.register) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
from opgraft.host import registration_names
print(registration_names)
"""
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "['opgraft']"


@pytest.mark.parametrize("busy", ["onnxruntime.get_ep_devices()", "opgraft.register()"])
def test_others_may_ask_onnxruntime_meanwhile(busy: str) -> None:
    """ONNX Runtime holds a lock while it calls the library, and its own functions wait for it with the GIL held."""
    result = host_models.run_script(
        f"""
import faulthandler, threading, onnxruntime, opgraft
faulthandler.dump_traceback_later(60, exit=True)
done = False
def ask():
    while not done:
        {busy}
threads = [threading.Thread(target=ask) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(3):
    opgraft.register()
    opgraft.unregister()
opgraft.register()
done = True
for thread in threads:
    thread.join()
print("done")
"""
    )
    assert result.stdout == "done\n", result.stderr
