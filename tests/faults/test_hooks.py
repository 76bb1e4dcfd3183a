"""An error in each hook of an op pack: when the session is made, and when it runs, step by step and compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from host_models import model_of, open_session
from injection import FLOAT, KINDS, X, errors_of, installed, living
from onnx import TensorProto, helper

import opgraft
from opgraft.claims import Decisions
from opgraft.engine import compiled
from opgraft.host import observed
from opgraft.ops import FLOATS, Host, hookimpl, op


class Trap:
    """Raises where it is set. `sprung`: how often it did; `left`: how often it will."""

    def __init__(self) -> None:
        self.disarm()

    def arm(self, place: str, kind: str, times: int) -> None:
        self.place, self.make, self.left, self.sprung = place, KINDS[kind], times, 0

    def disarm(self) -> None:
        self.place, self.left, self.sprung = "", 0, 0

    def __call__(self, place: str) -> None:
        if place == self.place and self.left:
            self.left -= 1
            self.sprung += 1
            raise self.make()


trap = Trap()


@op("Exp", dtypes=FLOATS)
def exp(X: Any) -> Any:
    trap("translator")
    return mx.exp(X)


@exp.condition
def _(node: Any) -> None:
    trap("condition")


@op("Mul")
def mul(A: Any, B: Any) -> Any:
    return A * B


@mul.host
def _(A: Any, B: Any) -> Any:
    trap("host form")
    return A * B


@op("Reshape")
def reshape(data: Any, shape: Host, *, allowzero: int = 0) -> Any:
    return data.reshape(shape.tolist())


@reshape.decides("shape")
def _(node: Any, value: Any, shapes: Any) -> bool:
    trap("decides")
    return True


class Whole:
    """A plugin with hooks of its own."""

    operators = ("ai.onnx::Neg",)

    @hookimpl
    def claim(self, node: Any) -> bool:
        trap("claim")
        return True

    @hookimpl
    def decline_reason(self, node: Any) -> str | None:
        return None

    @hookimpl
    def translate(self, ctx: Any, node: Any) -> Any:
        trap("translate")
        return (-ctx.inputs[0],)


class Refusing:
    """A plugin that takes nothing."""

    operators = ("ai.onnx::Abs",)

    @hookimpl
    def claim(self, node: Any) -> bool | None:
        return None

    @hookimpl
    def decline_reason(self, node: Any) -> str:
        trap("decline_reason")
        return "never"

    @hookimpl
    def translate(self, ctx: Any, node: Any) -> Any:
        raise AssertionError("it took nothing")


class Around:
    """A plugin that wraps the hooks of others."""

    operators = ("ai.onnx::Sqrt",)

    @hookimpl(wrapper=True)
    def claim(self, node: Any) -> Iterator[None]:
        result = yield
        trap("claim around")
        return result

    @hookimpl(wrapper=True)
    def translate(self, ctx: Any, node: Any) -> Iterator[None]:
        result = yield
        trap("translate around")
        return result


@op("acme::Twice", dtypes=FLOATS)
def twice(X: Any) -> Any:
    return X + X


@twice.schema
def _(X: Any) -> Any:
    trap("inference")
    return X


NODES = {
    "condition": "exp",
    "claim": "neg",
    "decline_reason": "abs",
    "claim around": "sqrt",
    "translator": "exp",
    "translate": "neg",
    "translate around": "sqrt",
    "host form": "mul",
    "decides": "reshape by input",
}
"""The hooks, each with the node that it is asked about."""

CLAIMING = ("condition", "claim", "decline_reason", "claim around", "translator", "translate", "translate around")
RUNNING = ("translator", "translate", "translate around", "host form", "decides")

FEEDS = {"x": X, "k": np.array([1, 1]), "t": np.array([3, 2])}
Y = 2 * np.sqrt(np.exp(X)).reshape(3, 2)


def model() -> Any:
    """y = acme.Twice(sqrt(|-exp(x)|)), reshaped twice: as x times k, and as t."""
    nodes = [
        helper.make_node("Exp", ["x"], ["e"], name="exp"),
        helper.make_node("Neg", ["e"], ["n"], name="neg"),
        helper.make_node("Abs", ["n"], ["a"], name="abs"),
        helper.make_node("Sqrt", ["a"], ["q"], name="sqrt"),
        helper.make_node("Shape", ["x"], ["s"], name="shape"),
        helper.make_node("Mul", ["s", "k"], ["m"], name="mul"),
        helper.make_node("Reshape", ["q", "m"], ["r"], name="reshape"),
        helper.make_node("Reshape", ["r", "t"], ["o"], name="reshape by input"),
        helper.make_node("Twice", ["o"], ["y"], domain="acme", name="twice"),
    ]
    inputs = {"x": (FLOAT, ["N", 3]), "k": (TensorProto.INT64, [2]), "t": (TensorProto.INT64, [2])}
    return model_of(nodes, inputs, {"y": (FLOAT, None)}, domains={"acme": 1})


@pytest.fixture(scope="module", autouse=True)
def pack() -> Iterator[None]:
    opgraft.register()
    with installed(exp, mul, reshape, Whole(), Refusing(), Around(), twice):
        yield


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    trap.disarm()


@pytest.fixture(params=["0", "1"], ids=["eager", "compiled"])
def compiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether runs are traced: the first two are recorded, and so the third and the fourth are."""
    monkeypatch.setenv("OPGRAFT_COMPILE", request.param)
    monkeypatch.setattr(compiled, "LEAST_BUILDING", 0.0)
    return request.param == "1"


def right(session: Any) -> None:
    np.testing.assert_allclose(session.run(None, FEEDS)[0], Y, rtol=1e-5)


def opened() -> Any:
    return open_session(model(), {"device": "cpu"}, optimized=False, quiet=False)


def opened_with(hook: str, kind: str) -> list[Any]:
    """A session that was made although a hook fails, in a list; none where Ctrl-C ended it, which reaches the user."""
    trap.arm(hook, kind, 1000)
    seen: list[Any] = []
    met = errors_of(lambda: seen.append(opened()))
    assert trap.sprung
    if kind == "KeyboardInterrupt":
        assert any(isinstance(error, KeyboardInterrupt) for error in met)
    else:
        assert not met
    met.clear()
    return seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hook", CLAIMING)
def test_an_error_while_a_claim_is_decided(hook: str, kind: str) -> None:
    """The next pack is asked, and the report says whose fault it was."""
    before = living()
    with observed(faults_of) as found:
        seen = opened_with(hook, kind)
    if kind != "KeyboardInterrupt":
        ((name, pack, text),) = found[0]
        assert (name, pack) == (NODES[hook], "acme")
        assert kind in text
    trap.disarm()
    while seen:
        right(seen.pop())
    assert living() == before
    right(opened())


def faults_of(decisions: Decisions) -> list[tuple[str, str | None, str]]:
    return [(each.node.name, fault.pack, fault.text) for each in decisions.decisions for fault in each.faults]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_while_types_are_inferred(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime is told nothing, and the log says why."""
    before = living()
    seen = opened_with("inference", kind)
    if kind != "KeyboardInterrupt":
        said = capfd.readouterr().err
        assert kind in said
        assert "acme::Twice" in said
    while seen:
        right(seen.pop())
    assert living() == before


@pytest.mark.parametrize("times", [1, 1000], ids=["once", "always"])
@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hook", RUNNING)
def test_an_error_in_a_run(hook: str, kind: str, number: int, times: int, compiles: bool) -> None:
    """It is the run's, with the node's name; or the run comes out right without the hook. So does every other run."""
    before = living()
    session: Any = opened()
    for _ in range(number):
        right(session)
    trap.arm(hook, kind, times)
    met = errors_of(lambda: right(session))
    assert bool(trap.sprung) is (compiles or hook != "decides")
    if met and kind == "KeyboardInterrupt":
        assert any(isinstance(error, KeyboardInterrupt) for error in met)
    elif met:
        said = str(met[0])
        for part in (f"node {NODES[hook]!r}", "pack 'acme'", kind, "registry.yaml"):
            assert part in said
    trap.disarm()
    for _ in range(4):
        right(session)
    session = None
    met.clear()
    assert living() == before
