"""An error in each callback: what the user sees of it, and that nothing else comes of it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
from injection import KINDS, X, Y, errors_of, installed, living, model

import opgraft
from opgraft.host import compute, custom_kernel, custom_ops, ep, factory, profiler
from opgraft.host._ep import lib
from opgraft.host.status import callback
from opgraft.ops import FLOATS, op

AT_REGISTRATION = {
    "OrtEpFactory_GetSupportedDevices",
    "OrtEpFactory_CreateAllocator",
    "OrtEpFactory_CreateDataTransfer",
}
"""Asked once in a process: see `test_device_values`."""

OF_DEVICE_MEMORY = {
    *("OrtAllocator_Alloc", "OrtAllocator_Free"),
    *("OrtDataTransferImpl_CopyTensors", "OrtEpFactory_ReleaseAllocator"),
}
"""They come up where values stay on the device: see `test_device_values`."""


class Case(NamedTuple):
    """A callback.

    Attributes:
        function: its Python side.
        met: where its error is met: in making the "options", the "session", or in the "run"; or in the "log" alone.
        claimed: whether the execution provider takes the node of the operator that the pack defines.
        releases: it must do its work whatever happens.
    """

    function: Callable[..., Any]
    met: str
    claimed: bool = True
    releases: bool = False


CASES = {
    "OrtEpFactory_GetNumCustomOpDomains": Case(factory._get_num_custom_op_domains, "options"),
    "OrtEpFactory_GetCustomOpDomains": Case(factory._get_custom_op_domains, "options"),
    "OrtEpFactory_CreateEp": Case(factory._create_ep, "session"),
    "OrtEpFactory_ReleaseEp": Case(factory._release_ep, "log", releases=True),
    "OrtEp_GetCapability": Case(ep._get_capability, "log"),
    "OrtEp_Compile": Case(ep._compile, "session"),
    "OrtEp_ReleaseNodeComputeInfos": Case(ep._release_node_compute_infos, "log", releases=True),
    "OrtEp_OnRunStart": Case(ep._on_run_start, "run"),
    "OrtEp_OnRunEnd": Case(ep._on_run_end, "run"),
    "OrtEp_CreateProfiler": Case(ep._create_profiler, "log"),
    "OrtEp_OnSessionInitializationEnd": Case(ep._on_session_initialization_end, "session"),
    "OrtNodeComputeInfo_Compute": Case(compute._compute, "run"),
    "OrtEpProfilerImpl_StartProfiling": Case(profiler._start_profiling, "log"),
    "OrtEpProfilerImpl_EndProfiling": Case(profiler._end_profiling, "log"),
    "OrtEpProfilerImpl_Release": Case(profiler._release, "log", releases=True),
    "OrtCustomOp_InferOutputShapeFn": Case(custom_ops._infer_output_shape, "log"),
    "OrtCustomOp_CreateKernelV2": Case(custom_ops._create_kernel, "session", claimed=False),
    "OrtCustomOp_KernelComputeV2": Case(custom_kernel._compute, "run", claimed=False),
    "OrtCustomOp_KernelDestroy": Case(custom_kernel._destroy, "log", claimed=False, releases=True),
}


@op("acme::Twice", dtypes=FLOATS)
def twice(X: Any) -> Any:
    return X + X


twice.schema()
MODEL = model().SerializeToString()


@pytest.fixture(scope="module", autouse=True)
def pack() -> Any:
    opgraft.register()
    with installed(twice):
        yield


class Life:
    """A session from its options to its end, in which all callbacks come up. `at` says how far it got."""

    def __init__(self, folder: Path, claimed: bool) -> None:
        self.folder = folder
        self.claimed = claimed
        self.at = ""

    def live(self) -> None:
        self.at = "options"
        options = opgraft.session_options(device="cpu", trace=self.folder / "trace.json") if self.claimed else None
        if options is None:
            options = onnxruntime.SessionOptions()
            options.register_custom_ops_library(opgraft.library_path())
        options.log_severity_level, options.intra_op_num_threads = 2, 1
        options.enable_profiling, options.profile_file_prefix = True, str(self.folder / "profile")
        self.at = "session"
        session = onnxruntime.InferenceSession(MODEL, options, enable_fallback=0)
        self.at = "run"
        np.testing.assert_allclose(session.run(None, {"x": X})[0], Y, rtol=1e-5)
        self.at = "log"
        session.end_profiling()
        del session
        gc.collect()


def test_every_callback_has_its_case() -> None:
    names = {name.removeprefix("py_") for name in dir(lib) if name.startswith("py_")}
    assert set(CASES) | AT_REGISTRATION | OF_DEVICE_MEMORY == names


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_an_error_in_a_callback(name: str, kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]
    life = Life(tmp_path, case.claimed)
    before = living()
    raised: list[BaseException] = []

    def failing(*arguments: Any) -> Any:
        if raised:
            return case.function(*arguments)
        raised.append(KINDS[kind]())
        if case.releases and kind != "KeyboardInterrupt":  # after which it is asked again
            case.function(*arguments)
        raise raised[0]

    callback(name)(failing)
    met = errors_of(life.live)
    callback(name)(case.function)
    assert raised, "the callback did not come up"
    said = " ".join(map(str, met)) + capfd.readouterr().err
    assert name in said
    assert kind in said
    if kind == "KeyboardInterrupt":
        assert any(isinstance(error, KeyboardInterrupt) for error in met), "it did not reach the user"
    else:
        assert (life.at, bool(met)) == (case.met, case.met != "log")
    met.clear()
    raised.clear()
    assert living() == before
    life.live()
    assert living() == before
