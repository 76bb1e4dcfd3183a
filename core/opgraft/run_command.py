"""`opgraft run`: a model on the execution provider, compared with ONNX Runtime's CPU execution provider."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.console import Console
from rich.text import Text

from opgraft.comparison import TOLERANCE, Outcome, RunError, disagreements, largest_difference, non_finite, run_timed
from opgraft.errors import ModelError
from opgraft.failures import about_sizes, explained
from opgraft.files import whole
from opgraft.graph import Array
from opgraft.graph.onnx_source import load_model
from opgraft.randomness import random_outputs
from opgraft.registry import installed_packs, load_registry
from opgraft.reporting import Coverage
from opgraft.reporting.packs import is_off
from opgraft.reporting.terminal import render
from opgraft.reporting.wording import counted, taken_as_1
from opgraft.samples import Sample
from opgraft.schemas import defined_by_packs
from opgraft.sessions import assignment, open_cpu_session, open_session, sample_inputs
from opgraft.text import printable

GUARD = "numerics-guard"
HOW_TO_GET_THE_GUARD = (
    f"{GUARD} comes with a clone of opgraft: pip install ./plugins_example/numerics_guard, run in that folder"
)

SLOW_ON_THE_CPU = "On MLX's CPU device the EP is expected to be slower than the CPU EP: what it is for is a GPU."


@dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Attributes:
        model: the model.
        options: provider options.
        sizes: of dimensions, for random inputs.
        inputs: the .npz file to take inputs from, in place of random ones.
        output: the .npz file to write the outputs to.
        runs: how often to run, for the time.
        compare: whether to compare with the CPU execution provider.
    """

    model: Path
    options: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    inputs: Path | None = None
    output: Path | None = None
    runs: int = 5
    compare: bool = True


def compare_and_show(request: Request, console: Console) -> Coverage:
    """Run a model on the execution provider and, if asked, on the CPU's, and show what came of it.

    Raises:
        ModelError: the model or an input cannot be used, a run fails, or the outputs are not equal.
        OptionError, RegistryError: an option, a size or a registry file cannot be used.
    """

    def show(*lines: str) -> None:
        for line in lines:
            console.print(Text(printable(line)))

    proto = load_model(request.model)
    opened = open_session(request.model, request.options)
    sample = sample_of(opened.session, request.inputs, request.sizes)
    feeds = sample.inputs
    if sample.assumed:
        show(taken_as_1(sample.assumed))
    show(f"inputs: {_described(feeds, scalars=True)}")
    outcome = _run(request, opened.session, sample)
    show(f"outputs: {_described(outcome.outputs)}")
    if request.output is not None:
        _write_npz(request.output, outcome.outputs)
    assigned = ", ".join(f"{sum(sizes)} on {name}" for name, sizes in assignment(opened.session).items())
    show(f"top-level nodes by ONNX Runtime's record: {assigned or 'none'}")
    median = f"median of {counted(request.runs, 'run')}: {1000 * outcome.seconds:.2f} ms on the EP"
    different: dict[str, str] = {}
    if request.compare:
        expected = _expected(request, sample)
        show(f"{median}, {1000 * expected.seconds:.2f} ms on the CPU EP")
        different = _compared(proto, outcome.outputs, expected.outputs, console)
        own = defined_by_packs(proto, load_registry(request.options.get("registry")))
        if own:
            show(f"compared with themselves, since the CPU EP runs the packs' handlers too: {', '.join(own)}")
        show(*_about_non_finite(outcome.outputs, expected.outputs))
    else:
        show(median, *_about_non_finite(outcome.outputs, None))
    if request.output is not None:
        show(f"outputs written to {request.output}")
    console.print()
    console.print(render(opened.coverage))
    if different:
        raise ModelError(f"the outputs differ from the CPU EP's: {', '.join(different)}{_next_step(outcome)}")
    return opened.coverage


def sample_of(session: Any, inputs: Path | None, sizes: Mapping[str, int]) -> Sample:
    """The inputs of a session: those of an .npz file, or random ones.

    Raises:
        ModelError: an input cannot be read or drawn.
        OptionError: a size is for no dimension.
    """
    return sample_inputs(session, sizes) if inputs is None else Sample(read_npz(inputs, session), {}, ())


def _run(request: Request, session: Any, sample: Sample) -> Outcome:
    """The run on the execution provider; where it fails, the error says whether the CPU's can do it."""
    try:
        return run_timed(session, sample.inputs, request.runs, "on the EP")
    except RunError as error:
        if not request.compare:
            raise ModelError(f"{error}{about_sizes(sample.assumed)}") from error
        raise explained(error, request.model, sample.inputs, sample.assumed) from error


def _expected(request: Request, sample: Sample) -> Outcome:
    """The run on the CPU's execution provider."""
    try:
        return run_timed(open_cpu_session(request.model), sample.inputs, request.runs, "on the CPU EP")
    except RunError as error:
        raise ModelError(f"{error}{about_sizes(sample.assumed)}") from error


def _compared(
    model: onnx.ModelProto, outputs: Mapping[str, Array], expected: Mapping[str, Array], console: Console
) -> dict[str, str]:
    """Show how the outputs of both sides compare, and return what differs. An output that is drawn at random says
    nothing where it differs."""
    drawn = random_outputs(model)
    different = disagreements(outputs, expected)
    random = {name: found for name in different if (found := drawn.get(name.partition("[")[0], drawn.get(name)))}
    sides = [{name: array for name, array in side.items() if name not in random} for side in (outputs, expected)]
    different = {name: what for name, what in different.items() if name not in random}
    if any(sides) or not random:
        verdict = Text("(different)", "red") if different else Text("(equal)", "green")
        worst = largest_difference(sides[0], sides[1])
        sentence = f"largest difference from the CPU EP, relative to the largest magnitude: {worst:.2g} "
        console.print(Text(sentence) + verdict)
    for name, what in different.items():
        console.print(Text(printable(f"{name}: {what}")))
    for name, operators in random.items():
        console.print(
            Text(printable(f"{name} cannot be compared, since it is drawn at random: {', '.join(operators)}"))
        )
    return different


def _about_non_finite(outputs: Mapping[str, Array], expected: Mapping[str, Array] | None) -> Iterator[str]:
    """A line for each output that holds a NaN or an infinity on either side, and one on how to find where from."""
    sides = {"the EP": outputs} | ({} if expected is None else {"the CPU EP": expected})
    found = False
    for name in dict.fromkeys(name for side in sides.values() for name in side):
        counts = {where: non_finite(side[name]) for where, side in sides.items() if name in side}
        if any(counts.values()):
            found = True
            held = ", ".join(f"{count or 'none'} on {where}" for where, count in counts.items())
            size = next(side[name].size for side in sides.values() if name in side)
            yield f"{name} holds NaN or infinities: {held} (of {counted(size, 'element')})"
    if found and (step := _with_guard("makes one")):
        yield step


def _next_step(outcome: Outcome) -> str:
    if not any(array.dtype.kind in "fc" for array in outcome.outputs.values()):
        return ""
    step = _with_guard("drifts", f"set OPGRAFT_NUMERICS_GUARD_DRIFT={TOLERANCE:g} and ")
    return f"; {step}" if step else ""


def _with_guard(does: str, setting: str = "") -> str:
    """How to find a node by the pack that looks at each; empty where it is looking already."""
    pack = next((pack for pack in installed_packs() if pack.name == GUARD), None)
    if pack is not None and not is_off(pack) and not pack.error:
        return ""
    step = f"to find the first node that {does}, {setting}add --pack {GUARD}"
    return step if pack is not None else f"{step} ({HOW_TO_GET_THE_GUARD})"


def read_npz(path: Path, session: Any) -> dict[str, Array]:
    """An array for each input of a session.

    Raises:
        ModelError: the file cannot be read, lacks one, or has one for no input.
    """
    wanted = [each.name for each in session.get_inputs()]
    try:
        with zipfile.ZipFile(path) as archive:
            held = {name.removesuffix(".npy"): name for name in archive.namelist()}
            missing = next((name for name in wanted if name not in held), None)
            if missing is not None:
                raise ModelError(f"{path}: it has no array for input {missing!r} (it has {', '.join(held) or 'none'})")
            extra = [name for name in held if name not in wanted]
            if extra:
                inputs = ", ".join(wanted) or "none"
                raise ModelError(f"{path}: it has {', '.join(extra)}, and the model's inputs are {inputs}")
            return {name: _read_array(archive, held[name], path) for name in wanted}
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ModelError(f"{path}: cannot be read as an .npz file, which numpy.savez writes ({error})") from error


def _read_array(archive: zipfile.ZipFile, name: str, path: Path) -> Array:
    with archive.open(name) as file:
        try:
            return np.lib.format.read_array(file, allow_pickle=False)
        except ValueError as error:
            objects = "allow_pickle" in str(error)
            why = "it holds Python objects; save numbers, bool or text" if objects else f"it is no array ({error})"
            raise ModelError(f"{path}: {name.removesuffix('.npy')!r} cannot be read: {why}") from error


def _write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """What `np.savez` writes, for names that need not be Python's."""
    try:
        with whole(path) as part, zipfile.ZipFile(part, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array.astype(str) if array.dtype == object else array)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error})") from error


def _described(arrays: Mapping[str, Array], *, scalars: bool = False) -> str:
    """Names, element types and shapes; of scalars the values too, where asked: they often are sizes."""
    return (
        ", ".join(
            f"{name} {array.dtype}{list(array.shape)}" + (f" = {array}" if scalars and not array.shape else "")
            for name, array in arrays.items()
        )
        or "none"
    )
