"""Values that stay on the device: between subgraphs, and where they are bound."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from host_models import run_script
from reporting_models import denying

from opgraft.errors import ModelError
from opgraft.graph.element_types import ORT_OF_NAME
from opgraft.host._ep import ffi
from opgraft.host.device_memory import SMALL, DeviceMemory, write

PREPARED = """
import gc
import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime import OrtValue
from host_models import add_model, bound_on_device, model_of, open_session
from opgraft import ort_values
from opgraft.host import device_memory
from opgraft.host.device_memory import MEMORY

FLOAT = TensorProto.FLOAT
to_host, to_device = [], []

def counted(write, seen):
    def counting(view, array):
        seen.append(array.size)
        write(view, array)
    return counting

device_memory.write_at = counted(device_memory.write_at, to_host)
device_memory.MEMORY.write = counted(MEMORY.write, to_device)
"""

SCRIPTS = {
    "what is bound": """
session = open_session(add_model())
assert session.get_input_memory_infos()[0].name == session.get_output_memory_infos()[0].name == "MLX"
x = np.arange(12, dtype=np.float32).reshape(3, 4)
given = OrtValue.ortvalue_from_numpy(x, "gpu")
binding = bound_on_device(session, given)
session.run_with_iobinding(binding)
(total,) = binding.get_outputs()
assert not to_host
binding.bind_ortvalue_input("x", total)
binding.bind_ortvalue_output("z", total)
for _ in range(3):
    session.run_with_iobinding(binding)
assert not to_host
assert np.array_equal(total.numpy(), 5 * x)
given.update_inplace(np.ones((3, 4), np.float32))
assert np.array_equal(given.numpy(), np.ones((3, 4)))
assert np.array_equal(OrtValue.ortvalue_from_shape_and_type([2], np.float32, "gpu").numpy(), [0, 0])
assert np.array_equal(session.run(None, {"x": x, "y": x})[0], 2 * x)
del binding, given, total
gc.collect()
assert len(MEMORY) == 0
""",
    "what goes between subgraphs": """
nodes = [
    helper.make_node("Add", ["x", "x"], ["a"]),
    helper.make_node("Softplus", ["a"], ["b"]),
    helper.make_node("Mul", ["a", "b"], ["z"]),
]
model = model_of(nodes, {"x": (FLOAT, (None, 4))}, {"z": (FLOAT, (None, 4))})
session = open_session(model, {"registry": REGISTRY}, optimized=False)
x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
for _ in range(4):
    to_host.clear(), to_device.clear()
    (z,) = session.run(None, {"x": x})
    assert np.allclose(z, 2 * x * np.log1p(np.exp(2 * x)), atol=1e-6)
    assert len(to_host) == 2, to_host  # a for Softplus, z for the caller
    assert len(to_device) in (3, 4), to_device  # x, a, z; b where ONNX Runtime's own kernel brings it to the device
assert len(MEMORY) == 0
""",
    "bodies on the CPU": """
def branch(name, nodes):
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info("r", FLOAT, (None,))])

then = branch("then", [helper.make_node("Add", ["a", "x"], ["s"]), helper.make_node("Softplus", ["s"], ["r"])])
other = branch("other", [helper.make_node("Mul", ["a", "x"], ["r"])])
nodes = [
    helper.make_node("Add", ["x", "x"], ["a"]),
    helper.make_node("If", ["c"], ["i"], then_branch=then, else_branch=other),
    helper.make_node("Sub", ["i", "a"], ["z"]),
]
inputs = {"x": (FLOAT, (None,)), "c": (TensorProto.BOOL, ())}
session = open_session(model_of(nodes, inputs, {"z": (FLOAT, (None,))}), {"registry": REGISTRY}, optimized=False)
x = np.linspace(-1, 1, 5, dtype=np.float32)
for c in (True, False, True):
    (z,) = session.run(None, {"x": x, "c": np.array(c)})
    assert np.allclose(z, (np.log1p(np.exp(3 * x)) if c else 2 * x * x) - 2 * x, atol=1e-6)
assert to_host and len(MEMORY) == 0
""",
    "every element type": """
from opgraft.claims import DEVICE_TYPES
from opgraft.graph.element_types import HELD, ONNX_OF_NAME, STORAGE
from opgraft.graph.packing import array_of_bytes, bytes_in
from opgraft.host.devices import default_device

for name in sorted(HELD - {"complex64"}):  # which ONNX Runtime lacks
    dtype = ONNX_OF_NAME[name]
    nodes = [helper.make_node("Reshape", ["x", "s"], ["z"])]
    model = model_of(nodes, {"x": (dtype, None), "s": (TensorProto.INT64, (None,))}, {"z": (dtype, None)})
    model.opset_import[0].version, model.ir_version = 25, 13
    for shape in ((), (0,), (3,), (2, 3), (7, 999)):
        data = np.random.default_rng(0).integers(0, 2, bytes_in(shape, name), np.uint8)
        x = array_of_bytes(data, shape, name)
        try:
            session = open_session(model, optimized=False)
        except Exception:
            assert onnxruntime.__version__ < "1.30", name
            break
        to_host.clear()
        (z,) = ort_values.run(session, {"x": x, "s": np.array(shape, np.int64)})
        assert z.dtype == x.dtype and z.shape == x.shape and np.array_equal(z, x), name
        assert len(to_host) == (name in DEVICE_TYPES[default_device()])
assert len(MEMORY) == 0
""",
    "an input whose place the output takes": """
import mlx.core as mx

session = open_session(add_model())
x = (np.arange(2**22) % 7).astype(np.float32).reshape(-1, 4)
shared, other = OrtValue.ortvalue_from_numpy(x, "gpu"), OrtValue.ortvalue_from_numpy(x, "gpu")

def run(given, taken):
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", given)
    binding.bind_ortvalue_input("y", other)
    binding.bind_ortvalue_output("z", taken)
    session.run_with_iobinding(binding)

run(shared, shared)  # what came from NumPy is copied once
for number in range(2, 6):
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    run(shared, shared)
    assert mx.get_peak_memory() - before < x.nbytes / 2  # MLX wrote where the input was
    assert np.array_equal(shared.numpy(), (number + 1) * x)
assert np.array_equal(other.numpy(), x)
run(other, shared)
assert np.array_equal(other.numpy(), x) and np.array_equal(shared.numpy(), 2 * x)
""",
    "what is lost to a run that fails": """
from opgraft.engine import Program
from opgraft.errors import TranslationError

session = open_session(add_model())
x = np.ones((300, 4), np.float32)
given = OrtValue.ortvalue_from_numpy(x, "gpu")
binding = bound_on_device(session, given)
binding.bind_ortvalue_output("z", given)

def error_of_run():
    try:
        session.run_with_iobinding(binding)
    except RuntimeError as error:
        return str(error)
    raise SystemExit("no error")

compute = Program._compute

def fail(*arguments):
    raise RuntimeError("broken")

Program._compute = fail
assert "broken" in error_of_run()
Program._compute = compute
assert "lost to a run that failed" in error_of_run()
given.update_inplace(x)
session.run_with_iobinding(binding)
assert np.array_equal(given.numpy(), 2 * x)
""",
    "the CPU in place of what fails": """
from opgraft.engine import Program

session = open_session(add_model(), {"on_error": "cpu"})
x = np.ones((300, 4), np.float32)
given = OrtValue.ortvalue_from_numpy(x, "gpu")
binding = bound_on_device(session, given)
session.run_with_iobinding(binding)

def fail(*arguments):
    raise RuntimeError("broken")

Program.run = fail
for _ in range(2):
    session.run_with_iobinding(binding)
    assert np.array_equal(binding.get_outputs()[0].numpy(), 2 * x)
""",
    "values that outlive the library": """
import opgraft
for again in (True, False):
    opgraft.register()
    given = OrtValue.ortvalue_from_numpy(np.ones(4, np.float32), "gpu")
    opgraft.unregister()
    if again:
        opgraft.register()
    model = add_model().SerializeToString()
    x = np.ones((2, 4), np.float32)
    onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x, "y": x})
    del given
    opgraft.unregister()
from opgraft.host.factory import Factory
assert not Factory.live and len(MEMORY) == 0
""",
    "threads": """
from concurrent.futures import ThreadPoolExecutor

session = open_session(add_model())

def work(number):
    x = np.full((1 + number, 4), number, np.float32)
    binding = bound_on_device(session, OrtValue.ortvalue_from_numpy(x, "gpu"))
    for _ in range(100):
        binding.bind_output("z", "gpu")
        session.run_with_iobinding(binding)
        assert np.array_equal(binding.get_outputs()[0].numpy(), 2 * x)
        assert np.array_equal(session.run(None, {"x": x, "y": 3 * x})[0], 4 * x)

with ThreadPoolExecutor(8) as pool:
    list(pool.map(work, range(16)))
gc.collect()
assert len(MEMORY) == 0
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_values_stay_on_the_device(name: str, tmp_path: Path) -> None:
    script = f"{PREPARED}\nREGISTRY = {denying(tmp_path, ['Softplus'])!r}\n{SCRIPTS[name]}"
    done = run_script(script, environment={"OPGRAFT_DEVICE_MEMORY": "1"})
    assert done.returncode == 0, done.stderr


def test_the_page_says_so(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "device-memory.md").read_text(encoding="utf-8")
    example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0].replace("decoder.onnx", f"{tmp_path}/decoder.onnx")
    script = f"""
import onnx
from host_models import model_of, tensor
from onnx import TensorProto, helper
nodes = [
    helper.make_node("Cast", ["input_ids"], ["logits"], to=1),
    helper.make_node("Expand", ["logits", "shape"], ["new"]),
    helper.make_node("Concat", ["past", "new"], ["present"], axis=2),
]
cache = (1, (1, 2, None, 8))
shape = tensor("shape", [1, 2, 1, 8], "int64")
ids = (TensorProto.INT64, (1, 1))
model = model_of(nodes, {{"input_ids": ids, "past": cache}}, {{"logits": (1, (1, 1)), "present": cache}}, [shape])
onnx.save(model, "{tmp_path}/decoder.onnx")
{example}
assert present.device_name() != "cpu" and present.numpy().shape == (1, 2, 3, 8)
assert session.get_input_memory_infos()[0].name == "MLX"
"""
    done = run_script(script, environment={"OPGRAFT_DEVICE_MEMORY": "1"})
    assert done.returncode == 0, done.stderr


def test_the_host_has_the_values_where_the_environment_says_so() -> None:
    script = """
from host_models import add_model, open_session
session = open_session(add_model())
print(session.get_input_memory_infos()[0].name)
"""
    done = run_script(script, environment={"OPGRAFT_DEVICE_MEMORY": "0"})
    assert done.stdout.strip() == "Cpu", done.stderr


def view_of(address: int, dtype: str, *shape: int) -> Any:
    view = ffi.new("TensorView *")
    view.address, view.rank, view.element_type, view.on_device = address, len(shape), ORT_OF_NAME[dtype], True
    sizes = ffi.new("int64_t[]", shape or (0,))
    view.sizes = sizes
    _alive.append(sizes)
    return view


_alive: list[Any] = []


def test_addresses_are_used_again_and_arrays_let_go() -> None:
    memory = DeviceMemory()
    first, second = memory.allocate(10), memory.allocate(10)
    assert first and second and first != second
    memory.write(view_of(first, "float32", 2), mx.array([1.0, 2.0]))
    memory.write(view_of(first + 64, "float32", 1), mx.array([3.0]))
    assert len(memory) == 2
    assert memory.read(view_of(first + 64, "float32", 1)).item() == 3
    memory.free(first)
    assert len(memory) == 0
    assert memory.allocate(4096) == first
    assert np.array_equal(memory.read(view_of(first, "float32", 2)), [0, 0])
    memory.free(0)


def test_there_is_no_room_without_end() -> None:
    memory = DeviceMemory()
    assert memory.allocate(2**63) == 0
    assert memory.allocate(2**62) == 0
    with pytest.raises(ModelError, match="one that no memory is left for"):
        memory.write(view_of(0, "float32", 1), mx.array([1.0]))


def test_what_is_not_there_cannot_be_read() -> None:
    memory = DeviceMemory()
    address = memory.allocate(64)
    memory.write(view_of(address, "float32", 2), mx.array([1.0, 2.0]))
    assert np.array_equal(memory.read(view_of(address, "uint8", 8)), np.float32([1, 2]).view(np.uint8))
    with pytest.raises(ModelError, match=r"float32\[3\] was to be read on the device, where float32\[2\] was written"):
        memory.read(view_of(address, "float32", 3))
    with pytest.raises(ModelError, match="part of a tensor was to be read"):
        memory.read(view_of(address + 4, "float32", 1))
    with pytest.raises(ModelError, match="in the memory of a device that is not opgraft's"):
        memory.read(view_of(12345, "float32", 1))
    assert memory.read(view_of(0, "float32", 0)).shape == (0,)


def test_what_came_from_the_host_is_brought_once_and_never_changed() -> None:
    memory = DeviceMemory()
    address = memory.allocate(8 * SMALL)
    for size, kind in ((SMALL, np.ndarray), (SMALL + 1, mx.array)):
        given = np.ones(size, np.uint16)
        memory.write(view_of(address, "bfloat16", size), given)
        given[:] = 2
        taken = memory.take(view_of(address, "bfloat16", size))
        assert isinstance(taken, kind)
        assert memory.take(view_of(address, "bfloat16", size)) is taken
        assert np.array_equal(np.array(mx.array(taken).view(mx.uint16)), np.ones(size))
    small = np.ones(3, np.float32)
    memory.write(view_of(address, "float32", 3), small)
    with pytest.raises(ValueError, match="read-only"):
        memory.take(view_of(address, "float32", 3))[0] = 2


def test_a_tensor_on_another_device_is_not_written_to() -> None:
    with pytest.raises(ModelError, match="not opgraft's"):
        write(view_of(12345, "float32", 1), mx.array([1.0]))
