"""What the tests of faults share: kinds of errors, a pack, a model, and what is left of its sessions."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import pytest
from host_models import model_of
from onnx import TensorProto, helper

import opgraft.registry as registry_module
from opgraft.host.compute import FusedNode
from opgraft.host.custom_kernel import Kernel
from opgraft.host.ep import ExecutionProvider
from opgraft.host.factory import Factory
from opgraft.host.profiler import Profiler
from opgraft.ops import Handler
from opgraft.registry import OpPlugin, Pack, installed_packs


class Abrupt(BaseException):
    """An error that is no Exception."""


class Unspeakable(Exception):
    """An error that has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


KINDS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("injected"),
    "MemoryError": lambda: MemoryError("injected"),
    "RecursionError": lambda: RecursionError("injected"),
    "SystemExit": lambda: SystemExit("injected"),
    "KeyboardInterrupt": KeyboardInterrupt,
    "Abrupt": lambda: Abrupt("injected"),
    "Unspeakable": Unspeakable,
}

FLOAT = TensorProto.FLOAT
X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = -2 * np.exp(X)


def model() -> onnx.ModelProto:
    """y = -acme.Twice(exp(x))."""
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], name="exp"),
        helper.make_node("Twice", ["a"], ["b"], domain="acme", name="twice"),
        helper.make_node("Neg", ["b"], ["y"], name="neg"),
    ]
    return model_of(nodes, {"x": (FLOAT, ["N", 3])}, {"y": (FLOAT, ["N", 3])}, domains={"acme": 1})


@contextmanager
def installed(*plugins: OpPlugin | Handler) -> Iterator[None]:
    """A pack `acme` of these plugins is installed, first of all, while the context lasts."""
    packs = (Pack("acme", plugins=plugins), *installed_packs())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry_module, "installed_packs", lambda: packs)
        registry_module._load.cache_clear()
        yield
    registry_module._load.cache_clear()


def errors_of(function: Callable[[], None]) -> list[BaseException]:
    """What a call raises and what that came from; a Ctrl-C that comes right after it counts too."""
    met: list[BaseException] = []
    try:
        try:
            function()
        except BaseException as error:
            met.append(error)
        time.sleep(0)
    except KeyboardInterrupt as error:
        met.append(error)
    for error in met:
        if error.__context__ is not None and error.__context__ not in met:
            met.append(error.__context__)
    return met


def living() -> dict[str, int]:
    """How many objects there are that ONNX Runtime holds."""
    gc.collect()
    tables: dict[str, dict[Any, Any]] = {
        "factories": Factory.live,
        "providers": ExecutionProvider.live,
        "fused nodes": FusedNode.live,
        "profilers": Profiler.live,
        "kernels": Kernel.live,
    }
    return {name: len(table) for name, table in tables.items()}
