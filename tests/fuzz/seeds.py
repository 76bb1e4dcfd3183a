"""The sound models that the file fuzzer damages, with inputs for each: random graphs, ONNX's node cases, models of
scikit-learn, and the real ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from graph_maker import random_model
from onnx import numpy_helper

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "conformance"), str(TESTS / "models")]

from node_cases import cases, plain  # noqa: E402
from zoo import MODELS  # noqa: E402

MOST_NODES = 14


@dataclass
class Seed:
    """A model, and arrays for its inputs by name, as far as there are any."""

    name: str
    model: onnx.ModelProto
    feeds: dict[str, Any]


def random_graph(rng: np.random.Generator) -> Seed:
    number = int(rng.integers(1_000_000))
    made = random_model(number, MOST_NODES)
    return Seed(f"random {number}", made.model, made.feeds(0, rng))


def node_case(rng: np.random.Generator) -> Seed:
    """A node case; in half of them some inputs are constants."""
    name = sorted(cases())[int(rng.integers(len(cases())))]
    case = cases()[name]
    model = copied(case.model)
    inputs = [plain(each) for each in case.data_sets[0][0]]
    feeds = dict(zip((each.name for each in model.graph.input), inputs, strict=False))
    if rng.random() < 0.5:
        for each in tuple(model.graph.input):
            if isinstance(feeds.get(each.name), np.ndarray) and rng.random() < 0.7:
                model.graph.initializer.append(numpy_helper.from_array(feeds.pop(each.name), each.name))
                model.graph.input.remove(each)
    return Seed(name, model, feeds)


def sklearn_model(rng: np.random.Generator) -> Seed:
    paths = sorted((TESTS / "ml" / "sklearn_models").glob("*.onnx"))
    path = paths[int(rng.integers(len(paths)))]
    return Seed(path.stem, onnx.load(path), {})


def real_model(rng: np.random.Generator) -> Seed:
    """A real model, rather a small one."""
    by_size = sorted(MODELS, key=lambda each: each.path().stat().st_size)
    chosen = by_size[min(int(rng.geometric(0.5)) - 1, len(by_size) - 1)]
    return Seed(chosen.name, copied(_read(chosen.path())), chosen.feeds(rng, chosen.sizes[-1]))


SEEDS: tuple[tuple[float, Callable[[np.random.Generator], Seed]], ...] = (
    (0.50, node_case),
    (0.40, random_graph),
    (0.09, sklearn_model),
    (0.01, real_model),
)
"""Where the models come from, and how often: the real ones take long to make sessions of."""


def seed_model(rng: np.random.Generator) -> Seed:
    weights = [weight for weight, _ in SEEDS]
    return SEEDS[int(rng.choice(len(SEEDS), p=weights))][1](rng)


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    other = onnx.ModelProto()
    other.CopyFrom(model)
    return other


@cache
def _read(path: Path) -> onnx.ModelProto:
    return onnx.load(path)
