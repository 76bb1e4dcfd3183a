"""An error in each callback of the device's memory: the run ends with it, the next one works, and nothing is left."""

from __future__ import annotations

import pytest
from host_models import run_script

SCRIPT = """
import gc
import numpy as np
from onnxruntime import OrtValue
from host_models import add_model, bound_on_device, open_session
from injection import KINDS, errors_of, living
from opgraft.host import device_memory
from opgraft.host.status import callback

session = open_session(add_model())
small, large = np.ones((3, 4), np.float32), np.ones((3000, 4), np.float32)
CALLBACKS = {
    "OrtAllocator_Alloc": device_memory._alloc,
    "OrtAllocator_Free": device_memory._free,
    "OrtDataTransferImpl_CopyTensors": device_memory._copy_tensors,
}

def live(array):
    assert (session.run(None, {"x": array, "y": array})[0] == 2).all()
    binding = bound_on_device(session, OrtValue.ortvalue_from_numpy(array, "gpu"))
    session.run_with_iobinding(binding)
    assert (binding.get_outputs()[0].numpy() == 2).all()

def met_with(name, kind, turn, array):
    calls, raised = [], []

    def failing(*arguments):
        calls.append(name)
        if raised or len(calls) <= turn:
            return CALLBACKS[name](*arguments)
        raised.append(KINDS[kind]())
        if name == "OrtAllocator_Free" and kind != "KeyboardInterrupt":  # after which it is asked again
            CALLBACKS[name](*arguments)
        raise raised[0]

    callback(name)(failing)
    try:
        met = errors_of(lambda: live(array))
        if raised:
            met += errors_of(gc.collect)
    finally:
        callback(name)(CALLBACKS[name])
    assert not met or raised
    return bool(raised), [type(each) for each in met]

live(small)
before = living()
for name in CALLBACKS:
    for kind in KINDS:
        for array in (small, large):
            for turn in range(10):
                raised, met = met_with(name, kind, turn, array)
                expected = raised and (name != "OrtAllocator_Free" or kind == "KeyboardInterrupt")
                assert bool(met) == expected, (name, kind, turn, met)
                assert raised or turn > 2, (name, kind, turn)
                assert kind != "KeyboardInterrupt" or not raised or KeyboardInterrupt in met, (name, kind, turn, met)
                del met
                live(array)
assert living() == before and len(device_memory.MEMORY) == 0
"""


def test_an_error_in_a_callback() -> None:
    done = run_script(SCRIPT, environment={"OPGRAFT_DEVICE_MEMORY": "1"})
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("name", ["get_supported_devices", "create_allocator", "create_data_transfer"])
def test_an_error_at_registration(name: str) -> None:
    script = f"""
from host_models import add_model, open_session
from injection import KINDS, errors_of
import numpy as np
import opgraft
from opgraft.host import factory
from opgraft.host.status import callback

name = "OrtEpFactory_" + "{name}".title().replace("_", "")
for kind, made in KINDS.items():
    def failing(*arguments):
        raise made()

    callback(name)(failing)
    met = errors_of(opgraft.register)
    said = " ".join(map(str, met))
    assert kind in said or KeyboardInterrupt in map(type, met), (kind, said)
callback(name)(factory._{name})
x = np.ones((2, 4), np.float32)
assert (open_session(add_model()).run(None, {{"x": x, "y": x}})[0] == 2).all()
"""
    done = run_script(script, environment={"OPGRAFT_DEVICE_MEMORY": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
