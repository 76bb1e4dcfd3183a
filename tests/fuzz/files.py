"""Try damaged model files: `files.py [--files N] [--first SEED] [--jobs N]`.

Each file is a sound model that was damaged once to three times. It is read and decided, made a session of with the
execution provider first, run where it loads, and compared with ONNX Runtime's CPU execution provider; some are also
given to `opgraft report` and `opgraft run`. What must come of it is an answer, the CPU's, or an ordinary error. A file
that fails is made again with less damage, and kept in the folder `failures`. A file on which ONNX Runtime crashes
without opgraft is counted apart.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
import warnings
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
from damage import TO_MODEL, nodes_of, pick, tensors_of
from damage_files import TO_BYTES, TO_FILES
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import SparseTensor
from processes import SECONDS, Ended, Mark, limit_memory, run_cases
from rich.console import Console
from seeds import seed_model

import opgraft
from opgraft import ort_values, run_command
from opgraft.claims import decide
from opgraft.comparison import difference, disagreements
from opgraft.engine import VerifiedRegistry, read_model
from opgraft.errors import ModelError, OpgraftError, place_of, text_of
from opgraft.graph import Graph
from opgraft.graph.element_types import ONNX_OF_NAME, STORAGE
from opgraft.graph.onnx_source import load_model
from opgraft.ort_values import DTYPE_OF_TEXT
from opgraft.randomness import random_outputs
from opgraft.registry import load_registry
from opgraft.reporting.document import document_of
from opgraft.reporting.html import report_as_html
from opgraft.reporting.markdown import report_as_markdown
from opgraft.reporting.terminal_report import render_report
from opgraft.schemas import told
from opgraft.sessions import survey

FAILURES = Path("failures")
CHUNK = 500
MOST_ELEMENTS = 1_000_000
"""Larger inputs are not made."""

TOLERANCE = 1e-3

COMPARING = frozenset(
    {"Max", "Min", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "TopK", "Clip", "MaxPool", "GlobalMaxPool", "Relu"}
)

OPTIONS: tuple[dict[str, str], ...] = ({}, {}, {}, {"placement": "fastest"}, {}, {"on_error": "cpu"}, {})
"""Those of the execution provider, in turns."""

OWN = frozenset({"opgraft", "opgraft_ops", "opgraft_contrib", "opgraft_ml"})


MAKING = "making the file"
WRONG, OWN_CRASH = "wrong", "ONNX Runtime's own crash"
TOLD = (
    WRONG,
    OWN_CRASH,
    "fails on the EP alone",
    "runs on the EP alone",
    "loads on the CPU EP alone",
)
"""Of these kinds each file is told."""


class Wrong(Exception):
    """What came of a file is neither an answer nor an ordinary error."""


@dataclass(frozen=True)
class File:
    """A damaged file, written into a folder, and arrays for its model's inputs by name."""

    path: Path
    feeds: Mapping[str, Any]
    about: str


KINDS = (("model", 0.83, TO_MODEL), ("bytes", 0.10, TO_BYTES), ("files", 0.07, TO_FILES))
COUNTS = (0.65, 0.25, 0.1)
"""How many files are damaged once, twice and three times."""


def damaged(seed: int, folder: Path, left_out: Sequence[int] = ()) -> File:
    """Write the file of a seed into `folder`; without some of its damages where they are told by number."""
    rng = np.random.default_rng(seed)
    sound = seed_model(rng)
    model, folder = sound.model, folder / "model"
    folder.mkdir()
    about = [sound.name]
    data: bytes | None = None
    chosen = rng.choice(len(KINDS), size=1 + rng.choice(3, p=COUNTS), p=[weight for _, weight, _ in KINDS])
    for number, at in enumerate(sorted(chosen, key=[0, 2, 1].index)):
        if number in left_out:
            continue
        own, (kind, _, damages) = np.random.default_rng([seed, number]), KINDS[at]
        while True:
            damage = pick(own, damages)
            with suppress(LookupError):
                if kind == "model":
                    damage(own, model)
                elif kind == "files":
                    damage(own, model, folder)
                else:
                    data = damage(own, model.SerializeToString() if data is None else data)
                break
            damages = [each for each in damages if each is not damage]
            if not damages:
                break
        about.append(f"{number} {damage.__name__}")
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString() if data is None else data)
    return File(path, sound.feeds, ", ".join(about))


def checked(what: str, call: Callable[[], Any]) -> Any:
    """What a call gives, or the ordinary error that it raised.

    Raises:
        Wrong: it raised another.
    """
    try:
        return call()
    except Exception as error:
        ordinary = isinstance(error, OpgraftError) or type(error).__module__.startswith("onnxruntime")
        ordinary |= place_of(error, OWN) is None
        if not ordinary or isinstance(error, MemoryError) or "internal error in" in str(error):
            lines = "".join(traceback.format_exception(error)[-4:])
            raise Wrong(f"{what}: {text_of(error)}\n{lines}") from error
        return error


def session_of(path: Path, provider: Mapping[str, str] | None = None, level: str = "ORT_ENABLE_ALL") -> Any:
    """A session with the execution provider first, given its options, or with the CPU's alone."""
    alone = provider is None
    options = onnxruntime.SessionOptions() if provider is None else opgraft.session_options(device="cpu", **provider)
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    providers = ["CPUExecutionProvider"] if alone else None
    return onnxruntime.InferenceSession(str(path), options, providers=providers, enable_fallback=0)


def inputs_of(session: Any, given: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any] | None:
    """Small inputs for a session, those that the sound model had where they fit; None where there are none."""
    feeds: dict[str, Any] = {}
    for each in session.get_inputs():
        dtype = DTYPE_OF_TEXT.get(each.type)
        storage = None if dtype is None else STORAGE[dtype]
        sizes = [size if isinstance(size, int) else 2 for size in each.shape]
        if dtype is None or np.prod(sizes, dtype=float) > MOST_ELEMENTS or min(sizes, default=1) < 0:
            return None
        known = given.get(each.name)
        if isinstance(known, np.ndarray) and known.ndim == len(sizes) and known.dtype.name == dtype:
            feeds[each.name] = known
        elif storage is None:
            feeds[each.name] = np.full(sizes, "a", dtype=object)
        elif dtype.startswith("float"):
            feeds[each.name] = rng.normal(size=sizes).astype(storage)
        else:
            feeds[each.name] = rng.integers(0, 2, size=sizes).astype(storage)
    return feeds


def answer_of(session: Any, feeds: Mapping[str, Any]) -> list[Any]:
    """The arrays that a session gives, those of sequences and maps one by one, of numbers that NumPy can compare."""
    found: list[Any] = []
    for info, value in zip(session.get_outputs(), ort_values.run(session, feeds), strict=True):
        found += [readable(each, DTYPE_OF_TEXT.get(info.type)) for each in arrays(value)]
    return found


def arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from arrays(each)
    elif isinstance(value, SparseTensor):
        yield from (value.values(), value.get_coo_data().indices())
    elif value is not None:
        yield np.asarray(value)


def readable(array: Any, dtype: str | None) -> Any:
    """What is in storage form, like the bits of a bfloat16, as float32; infinities as the largest number, with which
    some of ONNX Runtime's kernels mask."""
    own = array.dtype if dtype is None else helper.tensor_dtype_to_np_dtype(ONNX_OF_NAME[dtype])
    array = array.view(own).astype(np.float32) if own.isbuiltin == 2 else array
    if array.dtype.kind != "f":
        return array
    return np.clip(array, np.finfo(array.dtype).min, np.finfo(array.dtype).max)


def apart(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest difference of two answers, relative to the largest magnitude."""
    if len(found) != len(expected):
        return float("inf")
    with np.errstate(all="ignore"):
        return max((difference(*pair) for pair in zip(found, expected, strict=True)), default=0.0)


def nudged(value: Any, rng: np.random.Generator) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    return (value * (1 + 8 * np.finfo(value.dtype).eps * rng.normal(size=value.shape))).astype(value.dtype)


def unsure(path: Path, feeds: Mapping[str, Any], expected: Any, found: float) -> bool:
    """Whether the CPU execution provider's own answers are about as far apart: without its optimizations, and on inputs
    that differ in their last digits. Or whether what overflows depends on how a sum is arranged, and on whether the
    zeros around an image are multiplied too."""
    if extreme(path):
        return True
    rng = np.random.default_rng(0)
    plain = session_of(path, level="ORT_DISABLE_ALL")
    for given in (feeds, *({name: nudged(each, rng) for name, each in feeds.items()} for _ in range(3))):
        with suppress(Exception):
            if apart(answer_of(plain, given), expected) > found / 30:
                return True
    return False


def tiny(found: Sequence[Any], expected: Sequence[Any], feeds: Mapping[str, Any]) -> bool:
    """Whether what differs is no larger than what float32 tells apart at the size of the inputs."""
    given = [each for each in feeds.values() if isinstance(each, np.ndarray) and each.dtype.kind == "f" and each.size]
    least = 32 * np.finfo(np.float32).eps * max((float(np.abs(each).max()) for each in given), default=0.0)
    if len(found) != len(expected):
        return False
    differing = [pair for pair in zip(found, expected, strict=True) if apart(*([each] for each in pair)) > TOLERANCE]
    return all(
        each.dtype.kind == "f" and each.size and np.abs(each).max() <= least for pair in differing for each in pair
    )


def nans_compared(path: Path, found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether answers differ only where one of them is NaN, and the model compares numbers: ONNX does not say what is
    the largest of NaN and others, and of ONNX Runtime's kernels some say this and some that."""
    model = model_at(path)
    if len(found) != len(expected) or COMPARING.isdisjoint(node.op_type for node in nodes_of(model)):
        return False
    for one, other in zip(found, expected, strict=True):
        if one.dtype.kind == "f" and one.shape == other.shape:
            numbers = ~np.isnan(one) & ~np.isnan(other)
            one, other = one[numbers], other[numbers]
        if apart([one], [other]) > TOLERANCE:
            return False
    return True


def model_at(path: Path) -> onnx.ModelProto:
    """The model of a file; an empty one where only ONNX Runtime's protobuf can read it."""
    try:
        return onnx.load(path, load_external_data=False)
    except DecodeError:
        return onnx.ModelProto()


def extreme(path: Path) -> bool:
    """Whether a model holds numbers that overflow as soon as they are multiplied."""
    with suppress(Exception), np.errstate(all="ignore"):
        for tensor in tensors_of(onnx.load(path)):
            array = numpy_helper.to_array(tensor)
            if array.dtype.kind == "f" and not (np.abs(array.astype(np.float64)) < 1e18).all():
                return True
    return False


def read(path: Path) -> Any:
    """The model as a file gives it, decided: what a report shows where ONNX Runtime cannot load it."""
    registry = load_registry()
    graph = read_model(load_model(path), told(registry), path.parent)
    decide(graph, VerifiedRegistry(registry, "cpu"), device="cpu")
    read_constants(graph)


def read_constants(graph: Graph) -> None:
    for initializer in graph.initializers.values():
        with suppress(ModelError):
            initializer.read()
    for node in graph.nodes:
        for body in node.bodies.values():
            read_constants(body)


def report(path: Path) -> None:
    found = survey(path, {"device": "cpu"})
    json.dumps(document_of(found))
    report_as_html(found)
    report_as_markdown(found)
    Console(file=io.StringIO(), width=100).print(render_report(found))


def command(path: Path) -> None:
    request = run_command.Request(path, {"device": "cpu"}, {}, runs=1)
    run_command.compare_and_show(request, Console(file=io.StringIO(), width=100))


def check(file: File, number: int, doing: Callable[[str], None]) -> str:
    """Give a file to all that takes one; what came of it, as a kind.

    Raises:
        Wrong: neither an answer nor an ordinary error.
    """
    path, rng = file.path, np.random.default_rng(number)
    doing("read")
    checked("reading", lambda: read(path))
    doing("session")
    session = checked("session", lambda: session_of(path, OPTIONS[number % len(OPTIONS)]))
    doing("session on the CPU")
    cpu = checked("session on the CPU", lambda: session_of(path))
    kind = run(file, session, cpu, rng, doing)
    if number % 16 == 0:
        doing("report")
        checked("report", lambda: report(path))
    if number % 8 == 1 and not kind.startswith("not fed"):
        doing("run")
        checked("opgraft run", lambda: command(path))
    return kind


def run(file: File, session: Any, cpu: Any, rng: np.random.Generator, doing: Callable[[str], None]) -> str:
    refused = isinstance(session, Exception)
    if isinstance(cpu, Exception):
        return "refused" if refused else f"loads on the EP alone: {text_of(cpu)}"
    if refused:
        return f"loads on the CPU EP alone: {text_of(session)}"
    feeds = checked("inputs", lambda: inputs_of(session, file.feeds, rng))
    if not isinstance(feeds, dict):
        return "not fed"
    with suppress(Exception):
        np.savez(file.path.with_name("feeds.npz"), **{str(at): each for at, each in enumerate(feeds.values())})
    doing("running on the CPU")
    expected = checked("run on the CPU", lambda: answer_of(cpu, feeds))
    doing("running")
    found = checked("run", lambda: answer_of(session, feeds))
    if isinstance(expected, Exception):
        return "fails" if isinstance(found, Exception) else f"runs on the EP alone: {text_of(expected)}"
    if isinstance(found, Exception):
        return f"fails on the EP alone: {text_of(found)}"
    if random_outputs(model_at(file.path)):
        return "random"
    distance = apart(found, expected)
    if distance <= TOLERANCE:
        return "equal"
    excused = tiny(found, expected, feeds) or nans_compared(file.path, found, expected)
    if excused or unsure(file.path, feeds, expected, distance):
        return "ill-conditioned"
    sides = [{str(at): each for at, each in enumerate(side)} for side in (found, expected)]
    raise Wrong(f"outputs: {disagreements(*sides) or distance}")


def attempt(number: int, folder: Path, doing: Callable[[str], None], left_out: Sequence[int] = ()) -> dict[str, Any]:
    """Make a file and check it; what came of it, as what can be written as JSON."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    file = damaged(number, folder, left_out)
    try:
        kind, _, text = check(file, number, doing).partition(": ")
    except Wrong as error:
        kind, text = WRONG, str(error)
    return {"number": number, "kind": kind, "text": text, "about": file.about}


def work(first: int, end: int, mark: Mark, folder: Path) -> None:
    """Try some files in this process, and write what came of each as a line of JSON."""
    onnxruntime.set_default_logger_severity(4)
    limit_memory()
    warnings.simplefilter("ignore")
    warnings.filterwarnings("default", module="opgraft")
    warnings.simplefilter("ignore", np.exceptions.ComplexWarning)  # of an index that a file says is complex
    for number in range(first, end):
        mark.at(number, MAKING, 5 * SECONDS)
        found = attempt(number, folder, partial(mark.at, number))
        if found["kind"] == WRONG:
            mark.at(number, "being made smaller", 20 * SECONDS)
            keep(smaller(found, FAILURES / str(number)), FAILURES / str(number))
        print(json.dumps(found), flush=True)
    mark.done()


def chunk(first: int, end: int, folder: Path) -> Iterator[dict[str, Any]]:
    """What comes of some files in a process of their own, and of the one that it died of."""
    mark = folder / f"last{first}"
    place = folder / f"files{first}"
    done = run_cases(__file__, ["--work", str(first), str(end), str(mark), str(place)], mark)
    lines = done.output.splitlines()
    yield from (json.loads(line) for line in lines if line.startswith('{"number"'))
    rest = "\n".join([*(line for line in lines if not line.startswith('{"number"')), done.errors])
    if rest.strip() and not done.died:
        yield {"number": first, "kind": WRONG, "text": f"said: {rest[-3000:]}", "about": f"up to {end}"}
    if done.died:
        yield dead(done, place)
        if first <= done.number < end - 1:
            yield from chunk(done.number + 1, end, folder)
    shutil.rmtree(place, ignore_errors=True)


def dead(done: Ended, place: Path) -> dict[str, Any]:
    """A file that a process died of, kept where it is its own fault: it may be ONNX Runtime's, which dies of it alone
    too, or that of onnx, which `opgraft report` keeps to another process."""
    text = f"{done.died} ({done.doing})\n{done.errors[-3000:]}"
    plain = [sys.executable, str(Path(__file__).with_name("plain.py")), str(place / "model"), str(SECONDS)]
    shown = [sys.executable, "-m", "opgraft.cli", "report", str(place / "model" / "model.onnx")]
    kind = WRONG
    if subprocess.run(plain, capture_output=True, preexec_fn=limit_memory).returncode:
        kind = OWN_CRASH
    elif done.doing == "read" and subprocess.run(shown, capture_output=True, preexec_fn=limit_memory).returncode in (
        0,
        1,
    ):
        kind = "onnx's own crash"
    found = {"number": done.number, "kind": kind, "text": text, "about": done.doing}
    if kind == WRONG:
        shutil.copytree(place, FAILURES / str(done.number), dirs_exist_ok=True)
        keep(found, FAILURES / str(done.number))
    return found


def smaller(found: dict[str, Any], place: Path) -> dict[str, Any]:
    """Make a file that fails again in `place`, with no more damage than it needs; what came of it then."""
    left_out: list[int] = []
    for number in range(3):
        tried = attempt(found["number"], place, lambda _: None, [*left_out, number])
        left_out += [number] * (tried["kind"] == WRONG and tried["text"][:20] == found["text"][:20])
    return attempt(found["number"], place, lambda _: None, left_out)


def keep(found: Mapping[str, Any], place: Path) -> None:
    """Write what is known of a file that fails beside it."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "about.txt").write_text(f"{found['about']}\n{found['text']}\n", errors="backslashreplace")


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--work", nargs=4, help="used by the command itself")
    asked = parser.parse_args()
    if asked.work:
        first, end, mark, folder = asked.work
        work(int(first), int(end), Mark(Path(mark)), Path(folder))
        return 0
    began, kinds = time.monotonic(), Counter[str]()
    limit = asked.first + asked.files
    try:
        with TemporaryDirectory() as scratch, ThreadPoolExecutor(asked.jobs) as pool:
            starts = range(asked.first, limit, CHUNK)
            work_of = partial(chunk_of, limit=limit, folder=Path(scratch))
            for found in chain.from_iterable(pool.map(work_of, starts)):
                kinds[found["kind"]] += 1
                tell(found)
    finally:
        seconds, tried = time.monotonic() - began, kinds.total()
        print(f"{tried} files in {seconds:.0f} s ({tried / seconds:.1f} a second), {kinds[WRONG]} of them wrong")
        for kind, count in kinds.most_common():
            print(f"{count:7} {kind}", flush=True)
    return min(kinds[WRONG], 1)


def chunk_of(first: int, limit: int, folder: Path) -> list[dict[str, Any]]:
    return list(chunk(first, min(first + CHUNK, limit), folder))


def tell(found: Mapping[str, Any]) -> None:
    """Show what came of a file, where that is to be seen."""
    if found["kind"] in TOLD:
        print(f"{found['number']} ({found['about']}): {found['kind']}: {found['text'][:1500]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
