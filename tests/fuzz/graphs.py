"""Try whole graphs: `graphs.py [--models N] [--first SEED] [--jobs N] [--sessions]`.

Each random model is run several times, with other data and other shapes, step by step, compiled, and by ONNX Runtime's
CPU execution provider; each tenth, with --sessions each, also on the execution provider. A model that fails is made
smaller by leaving nodes out, and written into the folder `failures`.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from graph_maker import CASES, Made, Random, random_model
from processes import SECONDS, Mark, run_cases

from opgraft.engine import Program, compiled, read_model
from opgraft.errors import ModelError
from opgraft.plan import build_plan
from opgraft.registry import load_registry
from opgraft.sessions import open_session

FAILURES = Path("failures")
RUNS = 10
CHUNK = 250


class Wrong(Exception):
    """Two ways of running a model differ."""


class Invalid(Exception):
    """ONNX Runtime's CPU execution provider does not take a model."""


def cpu_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def program_of(model: onnx.ModelProto) -> Program:
    registry = load_registry()
    return Program(build_plan(read_model(model, registry.definitions)), registry, "cpu")


def schedule(seed: int) -> list[int]:
    """Which case each run is of: the first ones return, so that they are replayed."""
    rng = np.random.default_rng(seed)
    return [0, 0, 0, 0, *[int(case) for case in rng.integers(0, CASES, size=RUNS)]]


def compare(name: str, found: Sequence[Any], expected: Sequence[Any], outputs: Sequence[Made], *, far: float) -> None:
    for one, other, made in zip(found, expected, outputs, strict=True):
        one, other = np.asarray(one), np.asarray(other)
        if one.dtype != other.dtype or one.shape != other.shape:
            raise Wrong(f"{name}: {made.name} is {one.dtype}{one.shape}, not {other.dtype}{other.shape}")
        if made.error == 0 and np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
            continue
        if made.error == 0 or not np.allclose(one, other, rtol=0, atol=far * made.error, equal_nan=True):
            raise Wrong(f"{name}: {made.name} ({made.error:.2g}) is\n{one}\nnot\n{other}")


def check(made: Random, seed: int, *, session: bool = False) -> tuple[int, int]:
    """Run a model in all ways; how often its segments were replayed and traced.

    Raises:
        Invalid: ONNX Runtime does not take it.
        Wrong: two ways differ.
    """
    cases, rng = schedule(seed), np.random.default_rng(seed)
    given = [made.feeds(case, rng) for case in cases]
    try:
        cpu = cpu_session(made.model)
        answers = [cpu.run(None, feeds) for feeds in given]
    except Exception as error:
        raise Invalid(str(error)) from error
    program, plain = program_of(made.model), program_of(made.model)
    plain.compiler = None
    try:
        provider = open_session(made.model).session if session else None
    except ModelError as error:  # of its own optimizations, some give what it refuses afterwards
        raise Invalid(str(error)) from error
    with ThreadPoolExecutor(1) as elsewhere:
        for number, (case, feeds, expected) in enumerate(zip(cases, given, answers, strict=True)):
            where, kept = f"run {number} (case {case})", {name: value.copy() for name, value in feeds.items()}
            inputs = [feeds[value.name] for value in program.plan.inputs]
            by_step = [np.array(each) for each in plain.run(inputs)]
            compare(f"step by step, {where}", by_step, expected, made.outputs, far=10)
            found = elsewhere.submit(program.run, inputs).result() if number % 3 == 2 else program.run(inputs)
            compare(f"compiled, {where}", found, by_step, made.outputs, far=1)
            if provider is not None:
                compare(f"on the provider, {where}", provider.run(None, feeds), expected, made.outputs, far=10)
            for name, value in kept.items():
                if not np.array_equal(feeds[name], value):
                    raise Wrong(f"input {name} was written to, {where}")
                feeds[name][...] = 1  # its memory is the caller's again
    counts = program.compiler.counts if program.compiler is not None else compiled.Counts()
    return counts.replayed, counts.traced


def failure(made: Random, seed: int, session: bool) -> str:
    """What is wrong with a model, as text; empty where nothing is, or where ONNX Runtime does not take it."""
    try:
        check(made, seed, session=session)
    except Invalid:
        pass
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def smaller(made: Random, fails: Callable[[Random], bool]) -> Random:
    """The model without outputs and nodes that it fails without too."""
    going = True
    while going:
        going = False
        graph = made.model.graph
        for number in reversed(range(len(graph.output))):
            if len(graph.output) > 1:
                tried = copied(made)
                del tried.model.graph.output[number], tried.outputs[number]
                prune(tried.model.graph)
                if fails(tried):
                    made, going, graph = tried, True, tried.model.graph
        for number in reversed(range(len(graph.node))):
            if number >= len(graph.node):
                continue
            for place in range(len(graph.node[number].input)):
                tried = copied(made)
                node = tried.model.graph.node[number]
                if not bypass(tried, node, place):
                    continue
                prune(tried.model.graph)
                if fails(tried):
                    made, going, graph = tried, True, tried.model.graph
                    break
    return made


def copied(made: Random) -> Random:
    model = onnx.ModelProto()
    model.CopyFrom(made.model)
    return Random(model, list(made.inputs), list(made.outputs), made.errors)


def bypass(made: Random, node: onnx.NodeProto, place: int) -> bool:
    """Have an input of a node stand for its first output; False where it cannot, or is not as exact."""
    graph, gone, stays = made.model.graph, node.output[0], node.input[place]
    if (
        not stays
        or made.errors.get(stays, 0) > made.errors.get(gone, 0)
        or any(output.name == gone for output in graph.output)
    ):
        return False
    for each in nodes_of(graph):
        for at, name in enumerate(each.input):
            if name == gone:
                each.input[at] = stays
    return True


def nodes_of(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    found = []
    for node in graph.node:
        found.append(node)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += nodes_of(attribute.g)
    return found


def prune(graph: onnx.GraphProto) -> None:
    """Leave out what no output needs."""
    needed = {output.name for output in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            inner = [each for attribute in node.attribute if attribute.HasField("g") for each in nodes_of(attribute.g)]
            ends = [o.name for a in node.attribute if a.HasField("g") for o in a.g.output]
            needed.update(*[each.input for each in [node, *inner]], ends)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    initializers = [each for each in graph.initializer if each.name in needed]
    del graph.initializer[:]
    graph.initializer.extend(initializers)


@contextmanager
def everything_traced(most_forms: int) -> Iterator[None]:
    """Every segment is worth a trace, and few forms too many."""
    before = compiled.LEAST_BUILDING, compiled.MOST_FORMS
    compiled.LEAST_BUILDING, compiled.MOST_FORMS = 0.0, most_forms
    try:
        yield
    finally:
        compiled.LEAST_BUILDING, compiled.MOST_FORMS = before


def in_session(seed: int) -> bool:
    """Whether a model runs on the execution provider too."""
    return seed % 10 == 0


def most_forms(seed: int) -> int:
    """How many forms the programs of a model may have."""
    return 4 if seed % 4 == 0 else 256


def work(first: int, end: int, session: bool, mark: Mark) -> int:
    """Try some models in this process; 1 where one is wrong."""
    onnxruntime.set_default_logger_severity(4)
    right = wrong = replayed = traced = 0
    for seed in range(first, end):
        mark.at(seed)
        made = random_model(seed)
        own = session or in_session(seed)
        with everything_traced(most_forms(seed)):
            try:
                counts = check(made, seed, session=own)
                right, replayed, traced = right + 1, replayed + counts[0], traced + counts[1]
            except Invalid as error:
                print(f"{seed} is not valid: {str(error)[:200]}")
            except Exception as error:
                wrong += 1
                text = f"{type(error).__name__}: {error}"
                mark.at(seed, "being made smaller", 20 * SECONDS)
                keep(made, seed, own, text)
                print(f"model {seed}: {text[:300]}", flush=True)
    mark.done()
    print(f"{first} to {end - 1}: {right} right, {wrong} wrong, {traced} traces, replayed {replayed} times", flush=True)
    return min(wrong, 1)


def keep(made: Random, seed: int, session: bool, text: str) -> None:
    """Write a model that fails, made smaller."""
    kind = text[:12]
    small = smaller(made, lambda tried: failure(tried, seed, session)[:12] == kind)
    FAILURES.mkdir(exist_ok=True)
    onnx.save(small.model, FAILURES / f"{seed}.onnx")
    found = f"{text}\n\n{failure(small, seed, session)}\n\n{onnx.printer.to_text(small.model)}"
    (FAILURES / f"{seed}.txt").write_text(found)


def chunk(first: int, end: int, session: bool) -> str:
    """What a process of its own says of some models, and of the one that it died of."""
    FAILURES.mkdir(exist_ok=True)
    mark = FAILURES / f"last{first}"
    arguments = ["--work", str(first), str(end), str(mark), *["--sessions"] * session]
    done = run_cases(__file__, arguments, mark)
    text = done.output
    if done.died:
        text += f"model {done.number}: it {done.died}\n{done.errors[-1500:]}\n"
        text += chunk(done.number + 1, end, session) if first <= done.number < end - 1 else ""
    return text


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--sessions", action="store_true")
    parser.add_argument("--work", nargs=3, help="used by the command itself")
    asked = parser.parse_args()
    if asked.work:
        first, end, mark = asked.work
        return work(int(first), int(end), asked.sessions, Mark(Path(mark)))
    wrong = 0
    starts = range(asked.first, asked.first + asked.models, CHUNK)
    with ThreadPoolExecutor(asked.jobs) as pool:
        limit = asked.first + asked.models
        for text in pool.map(lambda first: chunk(first, min(first + CHUNK, limit), asked.sessions), starts):
            print(text, end="", flush=True)
            wrong += text.count("model ")
    print(f"{asked.models} models, {wrong} of them wrong")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
