"""Greedy generation with a session: caches that grow at every step, or buffers with room that stay where they are.

What is bound stays where the session has its values: on the device, where that has memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Protocol, TypeAlias

import numpy as np
import onnxruntime
from decoder_graphs import model_of
from recipes import Array, Recipe

Feeds: TypeAlias = dict[str, Array]

PROMPT = (3, 141, 59, 26, 53, 58, 97)


@cache
def serialized(form: str, recipe: Recipe) -> bytes:
    return model_of(form, recipe).SerializeToString()


@cache
def cpu_session(form: str, recipe: Recipe) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(serialized(form, recipe), providers=["CPUExecutionProvider"])


def past_of(present: str) -> str:
    return present.replace("present", "past_key_values")


class Generator(Protocol):
    """Runs tokens, of one sequence, behind those that it ran before."""

    def step(self, tokens: Sequence[int]) -> Array:
        """The logits behind the last token, (vocabulary)."""
        ...


class Growing:
    """Each run is given the caches that the one before gave."""

    def __init__(self, session: onnxruntime.InferenceSession, recipe: Recipe) -> None:
        self.session = session
        self.names = [each.name for each in session.get_outputs()]
        self.takes_positions = "position_ids" in (each.name for each in session.get_inputs())
        self.length = 0
        empty = np.zeros((1, recipe.kv_heads, 0, recipe.size), recipe.dtype)
        self.caches: dict[str, Any] = {past_of(name): empty for name in self.names[1:]}
        self.device = device_of(session)

    def step(self, tokens: Sequence[int]) -> Array:
        feeds = inputs_of(tokens, self.length, self.takes_positions)
        logits, *presents = self.session.run(None, feeds | self.caches)
        self.caches = {past_of(name): each for name, each in zip(self.names[1:], presents, strict=True)}
        self.length += len(tokens)
        return logits[0, -1]


class Bound(Growing):
    """The same, and the caches stay where they are."""

    def step(self, tokens: Sequence[int]) -> Array:
        binding = self.session.io_binding()
        for name, each in inputs_of(tokens, self.length, self.takes_positions).items():
            binding.bind_cpu_input(name, each)
        for name, each in self.caches.items():
            if isinstance(each, onnxruntime.OrtValue):
                binding.bind_ortvalue_input(name, each)
            else:
                binding.bind_cpu_input(name, each)
        binding.bind_output(self.names[0])
        for name in self.names[1:]:
            binding.bind_output(name, self.device)
        self.session.run_with_iobinding(binding)
        logits, *presents = binding.get_outputs()
        self.caches = {past_of(name): each for name, each in zip(self.names[1:], presents, strict=True)}
        self.length += len(tokens)
        return logits.numpy()[0, -1]


class Shared:
    """Caches of a fixed number of places, each of which is an input and the output at once.

    Args:
        whole_mask: attention_mask is as long as the caches, zeros where no token is yet; otherwise it grows.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, recipe: Recipe, places: int, *, whole_mask: bool = False
    ) -> None:
        self.session = session
        self.binding = session.io_binding()
        self.places = places if whole_mask else None
        self.length = 0
        shape = (1, recipe.kv_heads, places, recipe.size)
        names = [each.name for each in session.get_outputs()][1:]
        empty, device = np.zeros(shape, recipe.dtype), device_of(session)
        self.caches = {name: onnxruntime.OrtValue.ortvalue_from_numpy(empty.copy(), device) for name in names}
        for name, buffer in self.caches.items():
            self.binding.bind_ortvalue_input(past_of(name), buffer)
            self.binding.bind_ortvalue_output(name, buffer)

    def step(self, tokens: Sequence[int]) -> Array:
        for name, each in inputs_of(tokens, self.length, False, self.places).items():
            self.binding.bind_cpu_input(name, each)
        self.binding.bind_output("logits")
        self.session.run_with_iobinding(self.binding)
        self.length += len(tokens)
        return self.binding.get_outputs()[-1].numpy()[0, -1]


def device_of(session: onnxruntime.InferenceSession) -> str:
    """Where a session has its inputs and outputs, for OrtValue and IOBinding."""
    return "cpu" if session.get_input_memory_infos()[0].name == "Cpu" else "gpu"


def inputs_of(tokens: Sequence[int], before: int, positions: bool, places: int | None = None) -> Feeds:
    """What a run of one sequence takes beside the caches."""
    total = before + len(tokens)
    mask = np.ones((1, total if places is None else places), np.int64)
    mask[:, total:] = 0
    feeds = {"input_ids": np.array([tokens], np.int64), "attention_mask": mask}
    return feeds | {"position_ids": np.arange(before, total)[None]} if positions else feeds


def greedy(generator: Generator, steps: int, prompt: Sequence[int] = PROMPT) -> Iterator[tuple[int, Array]]:
    """Each next token with the logits that chose it."""
    tokens = list(prompt)
    for _ in range(steps):
        logits = generator.step(tokens)
        tokens = [int(logits.argmax())]
        yield tokens[0], logits


def along(generator: Generator, tokens: Sequence[int], prompt: Sequence[int] = PROMPT) -> Iterator[Array]:
    """The logits that would choose each of `tokens`, where those before it are as given."""
    for each in (prompt, *([token] for token in tokens[:-1])):
        yield generator.step(each)


Maker: TypeAlias = Callable[[onnxruntime.InferenceSession, Recipe], Generator]

MAKERS: dict[str, Maker] = {
    "growing": Growing,
    "growing, bound": Bound,
    "shared": lambda session, recipe: Shared(session, recipe, 320),
    "shared, whole mask": lambda session, recipe: Shared(session, recipe, 320, whole_mask=True),
}
