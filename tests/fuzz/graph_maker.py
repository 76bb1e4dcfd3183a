"""Random valid models for the test of whole graphs: shapes that differ from run to run, and values on the host.

What a value will be is known while its model is made: for each of the model's cases its shape, and, for arithmetic on
shapes, its elements; how large it can be, and how far two right answers can be apart. Where that is 0, the model may
round, compare or branch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CASES = 4
"""How many sets of shapes and of values on the host a model is run with."""

Shape = tuple[int, ...]

ELEMENTS = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "b": TensorProto.BOOL}
NUMPY: dict[str, Any] = {"f": np.float32, "i": np.int64, "b": np.bool_}
OPSET = 21
LARGEST = 1e4
MOST_ELEMENTS = 4000


@dataclass(eq=False)
class Made:
    """A value: its shape in each case, the largest magnitude, the error, and the elements where all are known."""

    name: str
    kind: str
    shapes: list[Shape]
    bound: float = 1.0
    error: float = 0.0
    known: list[np.ndarray] | None = None

    @property
    def rank(self) -> int:
        return len(self.shapes[0])

    @property
    def empty(self) -> bool:
        return any(0 in shape for shape in self.shapes)

    def fixed(self, axis: int) -> int | None:
        sizes = {shape[axis] for shape in self.shapes}
        return sizes.pop() if len(sizes) == 1 else None


@dataclass
class Random:
    """A model, what it is fed and gives, and how far from the truth its values may be."""

    model: onnx.ModelProto
    inputs: list[Made]
    outputs: list[Made]
    errors: dict[str, float]

    def feeds(self, case: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {each.name: data(each, case, rng) for each in self.inputs}


def data(value: Made, case: int, rng: np.random.Generator) -> np.ndarray:
    if value.known is not None:
        return value.known[case].copy()
    found = rng.integers(-int(value.bound), int(value.bound) + 1, size=value.shapes[case])
    return np.asarray(found > 0 if value.kind == "b" else found, NUMPY[value.kind])


@dataclass
class Maker:
    """A graph in the making; `outer` is the one around it."""

    rng: np.random.Generator
    outer: Maker | None = None
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    values: list[Made] = field(default_factory=list)
    numbers: list[int] = field(default_factory=lambda: [0])

    def name(self, prefix: str = "v") -> str:
        self.numbers[0] += 1
        return f"{prefix}{self.numbers[0]}"

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def choice(self, of: Sequence[Any]) -> Any:
        return of[int(self.rng.integers(len(of)))]

    def pick(self, wanted: Callable[[Made], bool] = lambda _: True) -> Made:
        """A value, rather one of the last.

        Raises:
            LookupError: there is none.
        """
        around = self.outer.values if self.outer is not None else []
        found = [each for each in [*around, *self.values] if wanted(each)]
        if not found:
            raise LookupError
        return self.choice(found[-4:] if self.chance(0.6) else found)

    def emit(self, operator: str, inputs: Sequence[Made | None], outputs: int = 1, **attributes: Any) -> list[str]:
        names = [self.name() for _ in range(outputs)]
        given = ["" if each is None else each.name for each in inputs]
        self.nodes.append(helper.make_node(operator, given, names, name=f"{operator}_{names[0]}", **attributes))
        return names

    def constant(self, elements: Any, kind: str = "i") -> Made:
        """A value that is known: an initializer, or a node's."""
        array = np.asarray(elements, NUMPY[kind])
        name = self.name("c")
        if self.chance(0.8):
            self.initializers.append(numpy_helper.from_array(array, name))
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array), name=name))
        bound = float(np.abs(array.astype(np.float64)).max()) if array.size else 1.0
        return Made(name, kind, [array.shape] * CASES, bound, 0.0, [array] * CASES)

    def put(
        self, name: str, kind: str, shapes: Sequence[Shape], bound: float, error: float = 0.0, known: Any = None
    ) -> Made:
        """Keep a value, smaller if it is too large.

        Raises:
            LookupError: it has too many elements.
        """
        if any(math.prod(shape) > MOST_ELEMENTS for shape in shapes):
            raise LookupError
        made = Made(name, kind, [tuple(int(n) for n in shape) for shape in shapes], bound, error, known)
        if kind != "b" and bound > (64 if error else LARGEST):
            low, high = self.constant(-8, kind), self.constant(8, kind)
            (name,) = self.emit("Clip", [made, low, high])
            known = None if known is None else [np.clip(each, -8, 8) for each in known]
            made = Made(name, kind, made.shapes, 8.0, error, known)
        self.values.append(made)
        return made


def floats(value: Made) -> bool:
    return value.kind == "f"


def exact(value: Made) -> bool:
    return value.kind == "f" and value.error == 0


def integers(value: Made) -> bool:
    return value.kind == "i"


def images(value: Made) -> bool:
    return value.kind == "f" and value.rank >= 3 and not value.empty and value.fixed(1) is not None


def unary(m: Maker) -> None:
    x = m.pick(floats)
    operator, bound, steep, attributes = m.choice(
        [
            ("Relu", x.bound, 1, {}),
            ("Neg", x.bound, 1, {}),
            ("Abs", x.bound, 1, {}),
            ("Identity", x.bound, 1, {}),
            ("Sigmoid", 1, 1, {}),
            ("Tanh", 1, 1, {}),
            ("Erf", 1, 2, {}),
            ("Sin", 1, 1, {}),
            ("Atan", 2, 1, {}),
            ("LeakyRelu", x.bound, 1, {"alpha": 0.25}),
            ("LeakyRelu", x.bound, 1, {"alpha": 0.3}),
            ("HardSigmoid", 1, 1, {}),
            ("HardSwish", x.bound, 3, {}),
            ("Elu", x.bound, 1, {}),
            ("Softplus", x.bound + 1, 1, {}),
            ("Gelu", x.bound, 2, {}),
            ("Mish", x.bound, 2, {}),
            ("ThresholdedRelu", x.bound, 1, {"alpha": 0.5}),
        ]
    )
    if operator == "ThresholdedRelu" and x.error:
        return
    precise = operator in ("Relu", "Neg", "Abs", "Identity", "ThresholdedRelu") or attributes.get("alpha") == 0.25
    (name,) = m.emit(operator, [x], **attributes)
    m.put(name, "f", x.shapes, bound, steep * x.error + (0 if precise else 2e-6 * max(1, bound)))


def rounded(m: Maker) -> None:
    x = m.pick(exact)
    (name,) = m.emit(m.choice(["Floor", "Ceil", "Round", "Sign"]), [x])
    m.put(name, "f", x.shapes, x.bound + 1)


def to_integer(m: Maker) -> None:
    x = m.pick(exact)
    (name,) = m.emit("Cast", [x], to=TensorProto.INT64)
    m.put(name, "i", x.shapes, x.bound)


def to_float(m: Maker) -> None:
    x = m.pick(lambda each: each.kind in "ib")
    (name,) = m.emit("Cast", [x], to=TensorProto.FLOAT)
    m.put(name, "f", x.shapes, x.bound)


def through_half(m: Maker) -> None:
    x = m.pick(lambda each: exact(each) and each.bound <= 64)
    (half,) = m.emit("Cast", [x], to=TensorProto.FLOAT16)
    middle = Made(half, "f", x.shapes)
    (other,) = m.emit(m.choice(["Relu", "Neg", "Abs"]), [middle])
    (name,) = m.emit("Cast", [Made(other, "f", x.shapes)], to=TensorProto.FLOAT)
    m.put(name, "f", x.shapes, x.bound, 0.05)  # halves of quarters may be rounded


def broadcast(*shapes: Sequence[Shape]) -> list[Shape]:
    try:
        return [np.broadcast_shapes(*each) for each in zip(*shapes, strict=True)]
    except ValueError:
        raise LookupError from None


def fitting(m: Maker, x: Made) -> Made:
    """A value that broadcasts with another, or a new constant that does."""
    if m.chance(0.6):
        for _ in range(4):
            y = m.pick(lambda each: each.kind == x.kind)
            try:
                broadcast(x.shapes, y.shapes)
            except LookupError:
                continue
            return y
    rank = int(m.rng.integers(0, x.rank + 1))
    sizes = [x.fixed(axis - rank + x.rank) for axis in range(rank)]
    shape = [1 if size is None or m.chance(0.4) else size for size in sizes]
    if x.rank and m.chance(0.1):
        shape = [1] * m.choice([0, 1]) + [1] * (x.rank + 1)
    return m.constant(m.rng.integers(-3, 4, size=shape), x.kind)


def binary(m: Maker) -> None:
    x = m.pick(lambda each: each.kind in "fi")
    y = fitting(m, x)
    if m.chance(0.5):
        x, y = y, x
    operator = m.choice(["Add", "Sub", "Mul", "Max", "Min", "Add", "Mul", "Div", "PRelu", "Pow"])
    shapes = broadcast(x.shapes, y.shapes)
    bound, error = x.bound + y.bound, x.error + y.error
    function: Any = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum}.get(
        operator
    )
    attributes: dict[str, Any] = {}
    if operator in ("Mul", "PRelu"):
        bound, error = x.bound * max(y.bound, 1), x.error * max(y.bound, 1) + y.error * x.bound
        if bound > 1e7 or error > 1e-2:
            return
        if operator == "PRelu" and (shapes != x.shapes or x.kind == "i"):
            return
    elif operator == "Pow":
        if x.kind == "i" or x.bound > 8 or x.error > 1e-3:
            return
        y, shapes, bound, error = m.constant(2, "f"), x.shapes, x.bound**2, 2 * x.bound * x.error
        if x.bound and m.chance(0.5):
            error += 1e-5 * bound
    elif operator == "Div":
        if x.kind == "i":
            y = m.constant(m.choice([1, 2, 3, -2]), "i")
            shapes, function = x.shapes, lambda a, b: (np.abs(a) // np.abs(b)) * np.sign(a) * np.sign(b)
        else:
            (down,) = m.emit("Abs", [y])
            (up,) = m.emit("Add", [Made(down, "f", y.shapes), m.constant(1, "f")])
            y = Made(up, "f", y.shapes, y.bound + 1, y.error)
            bound, error = x.bound, x.error + y.error * x.bound + 1e-6 * x.bound
        bound = x.bound
    (name,) = m.emit(operator, [x, y], **attributes)
    known = None
    if x.known is not None and y.known is not None and function is not None and x.kind == "i":
        known = [function(a, b) for a, b in zip(x.known, y.known, strict=True)]
    m.put(name, x.kind, shapes, bound, error, known)


def variadic(m: Maker) -> None:
    x = m.pick(floats)
    others = [fitting(m, x) for _ in range(m.rng.integers(0, 3))]
    operator = m.choice(["Sum", "Mean", "Max", "Min"])
    given = [x, *others]
    shapes = broadcast(*[each.shapes for each in given])
    bound, error = sum(each.bound for each in given), sum(each.error for each in given)
    (name,) = m.emit(operator, given)
    m.put(name, "f", shapes, bound, error + (2e-6 * bound if operator == "Mean" else 0))


def compare(m: Maker) -> None:
    x = m.pick(lambda each: exact(each) or integers(each))
    y = fitting(m, x)
    if y.error:
        return
    (name,) = m.emit(m.choice(["Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual"]), [x, y])
    m.put(name, "b", broadcast(x.shapes, y.shapes), 1)


def logic(m: Maker) -> None:
    x = m.pick(lambda each: each.kind == "b")
    if m.chance(0.4):
        (name,) = m.emit("Not", [x])
        m.put(name, "b", x.shapes, 1)
        return
    y = m.pick(lambda each: each.kind == "b")
    shapes = broadcast(x.shapes, y.shapes)
    (name,) = m.emit(m.choice(["And", "Or", "Xor"]), [x, y])
    m.put(name, "b", shapes, 1)


def where(m: Maker) -> None:
    condition = m.pick(lambda each: each.kind == "b")
    x = m.pick(lambda each: each.kind in "fi")
    y = fitting(m, x)
    shapes = broadcast(condition.shapes, x.shapes, y.shapes)
    (name,) = m.emit("Where", [condition, x, y])
    m.put(name, x.kind, shapes, max(x.bound, y.bound), max(x.error, y.error))


def clip(m: Maker) -> None:
    x = m.pick(lambda each: each.kind in "fi")
    low = None if m.chance(0.3) else m.constant(-3, x.kind)
    high = None if m.chance(0.3) else m.constant(2, x.kind)
    (name,) = m.emit("Clip", [x, low, high])
    m.put(name, x.kind, x.shapes, max(x.bound, 3), x.error)


def matmul(m: Maker) -> None:
    x = m.pick(lambda each: floats(each) and each.rank >= 2 and each.fixed(-1) is not None and each.error < 1e-2)
    size = x.fixed(-1)
    assert size is not None
    width = int(m.rng.integers(1, 5))
    bound = x.bound * 2 * max(size, 1)
    if bound > 1e6:
        return
    w = m.constant(m.rng.integers(-2, 3, size=(size, width)), "f")
    if m.chance(0.4) and x.rank == 2:
        turned = m.chance(0.5)
        if turned:
            w = m.constant(m.rng.integers(-2, 3, size=(width, size)), "f")
        (name,) = m.emit("Gemm", [x, w, m.constant(m.rng.integers(-2, 3, size=width), "f")], transB=int(turned))
    else:
        (name,) = m.emit("MatMul", [x, w])
    m.put(name, "f", [(*shape[:-1], width) for shape in x.shapes], bound + 2, x.error * 2 * max(size, 1))


def convolve(m: Maker) -> None:
    x = m.pick(lambda each: images(each) and each.error < 1e-2)
    channels = x.fixed(1)
    assert channels is not None
    kernel = [int(m.choice([1, 2, 3])) for _ in range(x.rank - 2)]
    pad, stride, dilation = int(m.choice([0, 1])), int(m.choice([1, 1, 2])), int(m.choice([1, 1, 2]))
    group = channels if m.chance(0.3) else 1
    transposed = m.chance(0.15)
    made = int(m.rng.integers(1, 5)) if group == 1 else channels
    bound = x.bound * 2 * math.prod(kernel) * channels + 2
    if bound > 5e6:
        return
    spatial = []
    for shape in x.shapes:
        sizes = []
        for size, k in zip(shape[2:], kernel, strict=True):
            if transposed:
                sizes.append((size - 1) * stride + dilation * (k - 1) + 1 - 2 * pad)
            else:
                sizes.append((size + 2 * pad - dilation * (k - 1) - 1) // stride + 1)
        if min(sizes) < 1 or any(
            size + 2 * pad < dilation * (k - 1) + 1 for size, k in zip(shape[2:], kernel, strict=True)
        ):
            return
        spatial.append((shape[0], made, *sizes))
    weight = (channels, made // group, *kernel) if transposed else (made, channels // group, *kernel)
    w = m.constant(m.rng.integers(-2, 3, size=weight), "f")
    b = None if m.chance(0.5) else m.constant(m.rng.integers(-2, 3, size=made), "f")
    flat = x.rank - 2
    (name,) = m.emit(
        "ConvTranspose" if transposed else "Conv",
        [x, w] if b is None else [x, w, b],
        pads=[pad] * 2 * flat,
        strides=[stride] * flat,
        dilations=[dilation] * flat,
        group=group,
    )
    m.put(name, "f", spatial, bound, x.error * 2 * math.prod(kernel) * channels)


def pool(m: Maker) -> None:
    x = m.pick(images)
    flat = x.rank - 2
    kind = m.choice(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool"])
    if kind.startswith("Global"):
        (name,) = m.emit(kind, [x])
        shapes = [(*shape[:2], *[1] * flat) for shape in x.shapes]
        m.put(name, "f", shapes, x.bound, x.error + (1e-6 * x.bound if "Average" in kind else 0))
        return
    k, stride, pad = int(m.choice([1, 2, 3])), int(m.choice([1, 2])), int(m.choice([0, 1]))
    if pad >= k or any(min(shape[2:]) + 2 * pad < k for shape in x.shapes) or (kind == "LpPool" and pad):
        return
    attributes: dict[str, Any] = {"kernel_shape": [k] * flat, "strides": [stride] * flat, "pads": [pad] * 2 * flat}
    if kind == "AveragePool" and m.chance(0.5):
        attributes["count_include_pad"] = 1
    (name,) = m.emit(kind, [x], **attributes)
    shapes = [(*s[:2], *[(n + 2 * pad - k) // stride + 1 for n in s[2:]]) for s in x.shapes]
    bound = x.bound * (k**flat if kind == "LpPool" else 1)
    if kind == "LpPool" and x.error:
        m.nodes.pop()
        return
    m.put(name, "f", shapes, bound, x.error + (0 if kind == "MaxPool" else 2e-5 * bound))


def normalize(m: Maker) -> None:
    x = m.pick(lambda each: images(each) and each.error < 1e-2)
    channels = x.fixed(1)
    given = [m.constant(m.rng.integers(1, 3, size=channels), "f") for _ in range(4)]
    (name,) = m.emit("BatchNormalization", [x, *given])
    m.put(name, "f", x.shapes, 2 * x.bound + 6, 2 * x.error + 1e-5 * (x.bound + 1))


def resize(m: Maker) -> None:
    x = m.pick(images)
    mode = m.choice(["nearest", "nearest", "linear"])
    scales = [1.0, 1.0, *[float(m.choice([1.0, 2.0, 3.0])) for _ in range(x.rank - 2)]]
    shapes = [tuple(int(n * s) for n, s in zip(shape, scales, strict=True)) for shape in x.shapes]
    attributes = {"mode": mode, "coordinate_transformation_mode": "asymmetric" if mode == "nearest" else "half_pixel"}
    if mode == "nearest":
        attributes["nearest_mode"] = "floor"
    elif x.rank != 4:
        return
    if m.chance(0.5):
        (name,) = m.emit("Resize", [x, None, m.constant(scales, "f")], **attributes)
    else:
        (of,) = m.emit("Shape", [x])
        (times,) = m.emit("Mul", [Made(of, "i", [(x.rank,)] * CASES), m.constant([int(s) for s in scales])])
        (name,) = m.emit("Resize", [x, None, None, Made(times, "i", [])], **attributes)
    m.put(name, "f", shapes, x.bound, x.error + (2e-5 * x.bound if mode == "linear" else 0))


def concat(m: Maker) -> None:
    x = m.pick(lambda each: each.rank >= 1)
    axis = int(m.rng.integers(x.rank))

    def fits(y: Made) -> bool:
        if y.kind != x.kind or y.rank != x.rank:
            return False
        pairs = zip(x.shapes, y.shapes, strict=True)
        return all(a[:axis] == b[:axis] and a[axis + 1 :] == b[axis + 1 :] for a, b in pairs)

    given = [x, *[m.pick(fits) for _ in range(m.rng.integers(0, 3))]]
    given = [given[at] for at in m.rng.permutation(len(given))]
    (name,) = m.emit("Concat", given, axis=axis - x.rank if m.chance(0.3) else axis)
    shapes = []
    for case in range(CASES):
        shape = list(x.shapes[case])
        shape[axis] = sum(each.shapes[case][axis] for each in given)
        shapes.append(tuple(shape))
    known = None
    if x.kind == "i" and all(each.known is not None for each in given):
        known = [np.concatenate([each.known[case] for each in given], axis) for case in range(CASES)]
    m.put(name, x.kind, shapes, max(each.bound for each in given), max(each.error for each in given), known)


def split(m: Maker) -> None:
    x = m.pick(lambda each: each.rank >= 1 and any((each.fixed(axis) or 0) >= 2 for axis in range(each.rank)))
    axis = m.choice([axis for axis in range(x.rank) if (x.fixed(axis) or 0) >= 2])
    size = x.fixed(axis)
    assert size is not None
    first = int(m.rng.integers(0 if m.chance(0.1) else 1, size))
    given = [x, m.constant([first, size - first])]
    names = m.emit("Split", given, 2, axis=axis - x.rank if m.chance(0.3) else axis)
    for name, part in zip(names, (first, size - first), strict=True):
        m.put(name, x.kind, [(*s[:axis], part, *s[axis + 1 :]) for s in x.shapes], x.bound, x.error)


def transpose(m: Maker) -> None:
    x = m.pick(lambda each: each.rank >= 2)
    order = [int(axis) for axis in m.rng.permutation(x.rank)]
    (name,) = m.emit("Transpose", [x], perm=order)
    m.put(name, x.kind, [tuple(s[axis] for axis in order) for s in x.shapes], x.bound, x.error)


def pad(m: Maker) -> None:
    x = m.pick(lambda each: each.kind == "f" and each.rank >= 1 and not each.empty)
    pads = [int(each) for each in m.rng.integers(0, 2, size=2 * x.rank)]
    mode = m.choice(["constant", "edge"])
    given = [x, m.constant(pads)] + ([m.constant(2, "f")] if mode == "constant" else [])
    (name,) = m.emit("Pad", given, mode=mode)
    shapes = [tuple(n + pads[a] + pads[a + x.rank] for a, n in enumerate(s)) for s in x.shapes]
    m.put(name, "f", shapes, max(x.bound, 2), x.error)


def reduce(m: Maker) -> None:
    x = m.pick(lambda each: each.kind in "fi" and each.rank >= 1)
    operator = m.choice(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1"])
    if x.kind == "i" and operator in ("ReduceMean", "ReduceL1"):
        operator = "ReduceSum"
    if x.empty and operator != "ReduceSum":
        return
    axes = sorted({int(axis) for axis in m.rng.integers(x.rank, size=m.rng.integers(1, x.rank + 1))})
    keep = m.chance(0.5)
    largest = max(math.prod(shape[axis] for axis in axes) for shape in x.shapes)
    times = largest if operator in ("ReduceSum", "ReduceL1") else 1
    if x.bound * times > 1e7 or x.error * times > 1e-2:
        return
    given = [x] if len(axes) == x.rank and m.chance(0.5) else [x, m.constant(axes)]
    (name,) = m.emit(operator, given, keepdims=int(keep))
    shapes = [tuple(1 if axis in axes else n for axis, n in enumerate(s) if keep or axis not in axes) for s in x.shapes]
    error = x.error * times + (2e-6 * x.bound if operator == "ReduceMean" else 0)
    error += 1e-6 * x.bound * times if x.error else 0
    m.put(name, x.kind, shapes, max(1.0, x.bound * times), error)


def softmax(m: Maker) -> None:
    x = m.pick(lambda each: floats(each) and each.rank >= 1 and not each.empty and each.error < 1e-2)
    (name,) = m.emit(m.choice(["Softmax", "LogSoftmax"]), [x], axis=int(m.rng.integers(-x.rank, x.rank)))
    m.put(name, "f", x.shapes, 2 * x.bound + 6, 2 * x.error + 4e-6 * (x.bound + 6))


def top(m: Maker) -> None:
    x = m.pick(lambda each: (exact(each) or integers(each)) and each.rank >= 1 and not each.empty)
    axis = int(m.rng.integers(x.rank))
    if m.chance(0.6):
        keep = m.chance(0.5)
        (name,) = m.emit(m.choice(["ArgMax", "ArgMin"]), [x], axis=axis, keepdims=int(keep))
        shapes = [(*s[:axis], *[1] * keep, *s[axis + 1 :]) for s in x.shapes]
        m.put(name, "i", shapes, max(s[axis] for s in x.shapes))
        return
    name, _ = m.emit("TopK", [x, m.constant([1])], 2, axis=axis)
    m.put(name, x.kind, [(*s[:axis], 1, *s[axis + 1 :]) for s in x.shapes], x.bound)


def shape_of(m: Maker) -> None:
    x = m.pick(lambda each: each.rank >= 1)
    known = [np.array(shape, np.int64) for shape in x.shapes]
    if m.chance(0.3):
        (name,) = m.emit("Size", [x])
        known = [np.array(math.prod(shape), np.int64) for shape in x.shapes]
    else:
        start = int(m.rng.integers(x.rank)) if m.chance(0.5) else 0
        (name,) = m.emit("Shape", [x], **({"start": start} if start else {}))
        known = [each[start:] for each in known]
    m.put(name, "i", [each.shape for each in known], MOST_ELEMENTS, 0.0, known)


def pick_known(m: Maker) -> None:
    x = m.pick(lambda each: each.kind == "i" and each.known is not None and each.rank == 1 and not each.empty)
    assert x.known is not None
    at = int(m.rng.integers(min(len(each) for each in x.known)))
    if m.chance(0.5):
        index = at if m.chance(0.4) else [at]
        (name,) = m.emit("Gather", [x, m.constant(index)], axis=0)
        known = [each[index] for each in x.known]
    else:
        (name,) = m.emit("Slice", [x, m.constant([at]), m.constant([at + 1])])
        known = [each[at : at + 1] for each in x.known]
    m.put(name, "i", [np.shape(each) for each in known], x.bound, 0.0, [np.asarray(each) for each in known])


def reshape(m: Maker) -> None:
    x = m.pick()
    choice = m.rng.integers(4)
    if choice == 0 and x.rank >= 1:
        (name,) = m.emit("Reshape", [x, m.constant([-1])])
        if x.empty:
            m.nodes.pop()
            return
        shapes: list[Shape] = [(math.prod(s),) for s in x.shapes]
    elif choice == 1 and x.rank >= 2:
        axis = int(m.rng.integers(x.rank + 1))
        (name,) = m.emit("Flatten", [x], axis=axis)
        shapes = [(math.prod(s[:axis]), math.prod(s[axis:])) for s in x.shapes]
    elif choice == 2 and x.rank >= 2 and not x.empty:
        (of,) = m.emit("Shape", [x], end=1)
        (whole,) = m.emit("Concat", [Made(of, "i", []), m.constant([-1])], axis=0)
        (name,) = m.emit("Reshape", [x, Made(whole, "i", [])])
        shapes = [(s[0], math.prod(s[1:])) for s in x.shapes]
    else:
        y = m.pick(lambda each: [math.prod(s) for s in each.shapes] == [math.prod(s) for s in x.shapes])
        (of,) = m.emit("Shape", [y])
        (name,) = m.emit("Reshape", [x, Made(of, "i", [])], allowzero=1)
        shapes = y.shapes
    m.put(name, x.kind, shapes, x.bound, x.error)


def squeeze(m: Maker) -> None:
    x = m.pick()
    ones = [axis for axis in range(x.rank) if x.fixed(axis) == 1]
    if ones and m.chance(0.6):
        axis = m.choice(ones)
        (name,) = m.emit("Squeeze", [x, m.constant([axis])])
        shapes: list[Shape] = [(*s[:axis], *s[axis + 1 :]) for s in x.shapes]
    elif x.rank < 5:
        axis = int(m.rng.integers(x.rank + 1))
        (name,) = m.emit("Unsqueeze", [x, m.constant([axis])])
        shapes = [(*s[:axis], 1, *s[axis:]) for s in x.shapes]
    else:
        return
    known = None if x.known is None or x.kind != "i" else [e.reshape(s) for e, s in zip(x.known, shapes, strict=True)]
    m.put(name, x.kind, shapes, x.bound, x.error, known)


def expand(m: Maker) -> None:
    x = m.pick()
    y = m.pick()
    shapes = broadcast(x.shapes, y.shapes)
    (of,) = m.emit("Shape", [y])
    (name,) = m.emit("Expand", [x, Made(of, "i", [])])
    m.put(name, x.kind, shapes, x.bound, x.error)


def cut(m: Maker) -> None:
    x = m.pick(lambda each: each.rank >= 1)
    axis = int(m.rng.integers(x.rank))
    start = (
        m.pick(lambda each: integers(each) and each.known is not None and each.shapes == [(1,)] * CASES)
        if m.chance(0.6)
        else m.constant([int(m.rng.integers(-2, 3))])
    )
    assert start.known is not None
    step = int(m.choice([1, 1, 2, -1]))
    end = 1000 if step > 0 else -1000
    (name,) = m.emit("Slice", [x, start, m.constant([end]), m.constant([axis]), m.constant([step])])
    shapes = []
    for shape, at in zip(x.shapes, start.known, strict=True):
        size, begin = shape[axis], int(at[0])
        begin = begin + size if begin < 0 else begin
        begin = min(max(begin, 0), size if step > 0 else size - 1)
        count = len(range(begin, size, step)) if step > 0 else len(range(begin, -1, step))
        shapes.append((*shape[:axis], max(count, 0), *shape[axis + 1 :]))
    m.put(name, x.kind, shapes, x.bound, x.error)


def count_up(m: Maker) -> None:
    n = m.pick(
        lambda e: integers(e) and e.known is not None and e.rank == 0 and all(abs(int(k)) <= 40 for k in e.known)
    )
    assert n.known is not None
    (name,) = m.emit("Range", [m.constant(0), n, m.constant(1)])
    known = [np.arange(max(int(each), 0)) for each in n.known]
    m.put(name, "i", [each.shape for each in known], 40, 0.0, known)


def fill(m: Maker) -> None:
    y = m.pick(
        lambda e: (
            integers(e)
            and e.known is not None
            and e.rank == 1
            and all((k >= 0).all() and k.prod() < 500 for k in e.known)
            and e.fixed(0) is not None
            and (e.fixed(0) or 0) <= 4
        )
    )
    assert y.known is not None
    (name,) = m.emit("ConstantOfShape", [y], value=numpy_helper.from_array(np.array([2], np.float32)))
    m.put(name, "f", [tuple(int(n) for n in each) for each in y.known], 2)


def gather(m: Maker) -> None:
    x = m.pick(lambda each: each.rank >= 1 and not each.empty)
    axis = int(m.rng.integers(x.rank))
    smallest = min(shape[axis] for shape in x.shapes)
    if m.chance(0.5):
        index = m.constant(m.rng.integers(-smallest, smallest, size=m.choice([(), (1,), (3,), (2, 2), (0,)])))
    else:
        found = m.pick(integers)
        (name,) = m.emit("Mod", [found, m.constant(smallest)])
        index = Made(name, "i", found.shapes)
    (name,) = m.emit("Gather", [x, index], axis=axis)
    shapes = [(*s[:axis], *t, *s[axis + 1 :]) for s, t in zip(x.shapes, index.shapes, strict=True)]
    if len(shapes[0]) > 5:
        m.nodes.pop()
        return
    m.put(name, x.kind, shapes, x.bound, x.error)


def cumulate(m: Maker) -> None:
    x = m.pick(lambda e: exact(e) and e.rank >= 1 and e.bound * max(max(s) for s in e.shapes) < 1e6)
    axis = int(m.rng.integers(x.rank))
    (name,) = m.emit("CumSum", [x, m.constant(axis)], reverse=int(m.chance(0.3)))
    m.put(name, "f", x.shapes, x.bound * max(1, *[s[axis] for s in x.shapes]))


def read_back(m: Maker) -> None:
    """Shapes that depend on the data, and end in one that does not."""
    x = m.pick(lambda each: exact(each) and each.rank >= 1)
    if m.chance(0.5):
        (found,) = m.emit("NonZero", [x])
        (total,) = m.emit("ReduceSum", [Made(found, "i", []), m.constant([1])], keepdims=0)
        m.put(total, "i", [(x.rank,)] * CASES, 4e4)
        return
    if x.bound > 1e3:
        return
    (mask,) = m.emit("Greater", [x, m.constant(0, "f")])
    (flat,) = m.emit("Reshape", [Made(mask, "b", []), m.constant([-1])])
    (picked,) = m.emit("Compress", [x, Made(flat, "b", [])])
    (twice,) = m.emit("Relu", [Made(picked, "f", [])])
    (total,) = m.emit("ReduceSum", [Made(twice, "f", [])], keepdims=int(m.chance(0.5) and 0))
    m.put(total, "f", [()] * CASES, x.bound * MOST_ELEMENTS)


def total(m: Maker, wanted: Callable[[Made], bool] = exact) -> Made:
    """A scalar from the data."""
    x = m.pick(lambda each: wanted(each) and each.bound * MOST_ELEMENTS < 1e7 and not each.empty)
    (name,) = m.emit("ReduceSum", [x], keepdims=0)
    return Made(name, x.kind, [()] * CASES, x.bound * MOST_ELEMENTS)


def inner(m: Maker, size: int) -> Maker:
    body = Maker(m.rng, m, numbers=m.numbers)
    grow(body, size)
    return body


def ended(body: Maker, x: Made) -> Made:
    """What a body gives: of the shape of `x`, and it depends on what was last made."""
    result = x
    for each in body.values[-2:]:
        if each.kind == "f" and not each.error and each is not x and not each.empty:
            (least,) = body.emit("ReduceMax", [each], keepdims=0)
            (name,) = body.emit("Add", [result, Made(least, "f", [()] * CASES)])
            result = Made(name, "f", x.shapes, result.bound + each.bound, x.error)
    bottom, top = body.constant(-8, "f"), body.constant(8, "f")
    (name,) = body.emit("Clip", [result, bottom, top])
    return Made(name, "f", x.shapes, 8, x.error)


def declared(value: Made) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, ELEMENTS[value.kind], [None] * value.rank)


def graph_of(body: Maker, inputs: Sequence[Made], outputs: Sequence[Made]) -> onnx.GraphProto:
    name = body.name("g")
    return helper.make_graph(
        body.nodes, name, [declared(each) for each in inputs], [declared(each) for each in outputs], body.initializers
    )


def branch(m: Maker) -> None:
    x = m.pick(lambda each: exact(each))
    if m.chance(0.3):
        condition = m.pick(lambda each: each.kind == "b" and each.rank == 0)
    else:
        (name,) = m.emit("Greater", [total(m), m.constant(0, "f")])
        condition = Made(name, "b", [()] * CASES)
    graphs = []
    for _ in range(2):
        body = inner(m, int(m.rng.integers(0, 5)))
        graphs.append(graph_of(body, [], [ended(body, x)]))
    (name,) = m.emit("If", [condition], then_branch=graphs[0], else_branch=graphs[1])
    m.put(name, "f", x.shapes, 8)


def loop(m: Maker) -> None:
    x = m.pick(exact)
    known = m.chance(0.5)
    if known:
        trips = m.pick(
            lambda e: integers(e) and e.known is not None and e.rank == 0 and all(0 <= int(k) <= 6 for k in e.known)
        )
    else:
        (name,) = m.emit("Mod", [total(m, integers), m.constant(4)])
        trips = Made(name, "i", [()] * CASES)
    body = Maker(m.rng, m, numbers=m.numbers)
    number = Made(body.name(), "i", [()] * CASES, 6)
    going = Made(body.name(), "b", [()] * CASES)
    state = Made(body.name(), "f", x.shapes, 8)
    body.values += [number, state]
    grow(body, int(m.rng.integers(0, 5)))
    after = ended(body, state)
    (name,) = body.emit("Identity", [going])
    scanned = m.chance(0.5) and (
        trips.known is None or all(int(each) for each in trips.known)
    )  # 0 rows of which shape?
    outputs = [Made(name, "b", [()] * CASES), after]
    if scanned:
        (name,) = body.emit("Neg", [after])
        outputs.append(Made(name, "f", x.shapes))
    (low,) = m.emit("Clip", [x, m.constant(-8, "f"), m.constant(8, "f")])
    start = Made(low, "f", x.shapes, 8)
    names = m.emit(
        "Loop",
        [trips, None if m.chance(0.5) else m.constant(True, "b"), start],
        len(outputs) - 1,
        body=graph_of(body, [number, going, state], outputs),
    )
    m.put(names[0], "f", x.shapes, 8)
    if scanned and known:
        assert trips.known is not None
        m.put(names[1], "f", [(int(k), *s) for k, s in zip(trips.known, x.shapes, strict=True)], 8)


def scan(m: Maker) -> None:
    x = m.pick(lambda each: exact(each) and each.rank >= 1 and not each.empty and max(s[0] for s in each.shapes) < 8)
    body = Maker(m.rng, m, numbers=m.numbers)
    shapes = [shape[1:] for shape in x.shapes]
    state, row = Made(body.name(), "f", shapes, 8), Made(body.name(), "f", shapes, x.bound)
    body.values += [state, row]
    grow(body, int(m.rng.integers(0, 4)))
    (name,) = body.emit("Add", [state, row])
    after = ended(body, Made(name, "f", shapes, 8 + x.bound))
    (name,) = body.emit("Neg", [after])
    (first,) = m.emit("Gather", [x, m.constant(0)], axis=0)
    (low,) = m.emit("Clip", [Made(first, "f", shapes), m.constant(-8, "f"), m.constant(8, "f")])
    names = m.emit(
        "Scan",
        [Made(low, "f", shapes), x],
        2,
        num_scan_inputs=1,
        body=graph_of(body, [state, row], [after, Made(name, "f", shapes)]),
    )
    m.put(names[0], "f", shapes, 8)
    m.put(names[1], "f", x.shapes, 8)


IMAGES = [convolve, convolve, pool, normalize, resize, concat, split, unary, binary, variadic, clip, pad]
ARITHMETIC = [
    unary,
    unary,
    binary,
    binary,
    binary,
    variadic,
    compare,
    logic,
    where,
    clip,
    rounded,
    to_integer,
    to_float,
]
ARITHMETIC += [through_half, matmul, reduce, softmax, top, cumulate]
SHAPES = [shape_of, shape_of, pick_known, pick_known, reshape, squeeze, expand, cut, count_up, fill, concat, gather]
SHAPES += [transpose, split, binary]
BREAKS = [read_back, branch, loop, scan]


def grow(m: Maker, nodes: int, images: float = 0.0) -> None:
    """Add so many operators, or a few less."""
    for _ in range(nodes * 2):
        if len(m.nodes) >= nodes:
            return
        depth = 0 if m.outer is None else 1 if m.outer.outer is None else 2
        families = [IMAGES] * (5 if m.chance(images) else 0) or [ARITHMETIC, ARITHMETIC, SHAPES]
        if m.chance(0.1 / (1 + 2 * depth)) and depth < 2:
            families = [BREAKS]
        step = m.choice(m.choice(families))
        before = len(m.nodes), len(m.initializers)
        try:
            step(m)
        except LookupError:
            del m.nodes[before[0] :], m.initializers[before[1] :]


def random_model(seed: int, most: int = 60) -> Random:
    """A valid model, the same for a seed."""
    rng = np.random.default_rng(seed)
    m = Maker(rng)
    empty = m.chance(0.15)
    sizes = [0, 1, 2, 3, 5] if empty else [1, 2, 3, 5]
    varying = {name: [int(m.choice(sizes)) for _ in range(CASES)] for name in "NM"}
    if m.chance(0.4):  # the values on the host differ, and no shape
        varying = {name: [found[0]] * CASES for name, found in varying.items()}
    inputs: list[Made] = []
    shown: dict[str, list[int | str]] = {}

    def given(kind: str, dims: Sequence[int | str], bound: float = 4, known: Any = None) -> None:
        shapes = [tuple(varying[d][case] if isinstance(d, str) else d for d in dims) for case in range(CASES)]
        made = Made(m.name("x"), kind, shapes, bound, 0.0, known)
        inputs.append(made)
        shown[made.name] = list(dims)

    images = 0.8 if m.chance(0.45) else 0.0
    if images:
        flat = m.choice([1, 2, 2, 2])
        given("f", ["N" if m.chance(0.6) else 1, int(m.choice([1, 2, 4])), *[m.choice([4, 5, 7]) for _ in range(flat)]])
    for _ in range(int(rng.integers(1, 4))):
        given("f", [m.choice(["N", "M", 1, 2, 3]) for _ in range(rng.integers(0, 4))])
    if m.chance(0.6):
        given("i", [m.choice(["N", "M", 2]) for _ in range(rng.integers(0, 2))])
    if m.chance(0.3):
        given("b", [m.choice(["N", "M", 2]) for _ in range(rng.integers(0, 2))], 1)
    if m.chance(0.6):
        given("i", [], 6, [np.array(rng.integers(0, 6)) for _ in range(CASES)])
    if m.chance(0.4):
        given("i", [1], 3, [rng.integers(-2, 4, size=1) for _ in range(CASES)])
    order = [int(at) for at in rng.permutation(len(inputs))]
    m.values += [inputs[at] for at in order if not images or at]
    m.values += inputs[:1] if images else []
    if m.chance(0.5):
        m.values.insert(0, m.constant(rng.integers(-3, 4, size=(2, 3)), "f"))
    grow(m, int(rng.integers(1, most + 1) if m.chance(0.7) else rng.integers(1, 12)), images)
    made = [each for each in m.values if each not in inputs]
    outputs = made[-2:] + [m.choice(m.values) for _ in range(rng.integers(1, 5))]
    outputs = list({each.name: each for each in outputs}.values())
    graph = helper.make_graph(
        m.nodes,
        f"random{seed}",
        [helper.make_tensor_value_info(e.name, ELEMENTS[e.kind], shown[e.name]) for e in inputs],
        [declared(each) for each in outputs],
        m.initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    return Random(model, inputs, outputs, {each.name: each.error for each in m.values})
