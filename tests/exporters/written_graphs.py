"""Graphs written by hand the way tf2onnx and paddle2onnx write theirs.

tf2onnx keeps TensorFlow's channels-last values and puts Transposes around each convolution; sizes go through Shape,
Cast, Slice and Squeeze. paddle2onnx holds constants in Constant nodes, and casts shapes to int32 and back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Arrays = dict[str, Any]
FLOAT, INT64, INT32, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL


class GraphWriter:
    """Writes a graph node by node; every method gives the names of the values it makes."""

    def __init__(self, producer: str, opset: int, constant_nodes: bool) -> None:
        self.producer, self.opset, self.constant_nodes = producer, opset, constant_nodes
        self.generator = np.random.default_rng(5)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.made = 0

    def input(self, name: str, element_type: int, *shape: int | str) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, element_type, shape))
        return name

    def constant(self, value: Any, dtype: str = "float32") -> str:
        name = self._name("const")
        tensor = numpy_helper.from_array(np.asarray(value, dtype), name)
        if self.constant_nodes:
            self.nodes.append(helper.make_node("Constant", [], [name], name=name, value=tensor))
        else:
            self.initializers.append(tensor)
        return name

    def integers(self, *values: int) -> str:
        return self.constant(values, "int64")

    def weight(self, *shape: int) -> str:
        scale = np.sqrt(2.0 / max(1, int(np.prod(shape[1:])))) if len(shape) > 1 else 0.2
        array = (scale * self.generator.normal(size=shape)).astype(np.float32)
        self.initializers.append(numpy_helper.from_array(array, self._name("weight")))
        return self.initializers[-1].name

    def positive(self, size: int) -> str:
        return self.constant(self.generator.uniform(0.5, 1.5, size))

    def __call__(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        return self.several(op_type, 1, *inputs, **attributes)[0]

    def several(self, op_type: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        name = self._name(op_type)
        made = [f"{name}:{place}" for place in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, made, name=name, **attributes))
        return made

    def cast(self, value: str, element_type: int) -> str:
        return self("Cast", value, to=element_type)

    def squeeze(self, value: str, *axes: int) -> str:
        return self._with_axes("Squeeze", value, axes)

    def unsqueeze(self, value: str, *axes: int) -> str:
        return self._with_axes("Unsqueeze", value, axes)

    def slice(self, value: str, start: int, end: int, axis: int = 0) -> str:
        return self("Slice", value, self.integers(start), self.integers(end), self.integers(axis))

    def model(self, **outputs: tuple[str, int]) -> onnx.ModelProto:
        """The model whose outputs are these values, of these element types."""
        self.nodes += [helper.make_node("Identity", [value], [name]) for name, (value, _) in outputs.items()]
        infos = [helper.make_tensor_value_info(name, kind, None) for name, (_, kind) in outputs.items()]
        graph = helper.make_graph(self.nodes, self.producer, self.inputs, infos, self.initializers)
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8, producer_name=self.producer)

    def _with_axes(self, op_type: str, value: str, axes: tuple[int, ...]) -> str:
        if self.opset < 13:
            return self(op_type, value, axes=axes)
        return self(op_type, value, self.integers(*axes))

    def _name(self, stem: str) -> str:
        self.made += 1
        return f"{stem}__{self.made}"


class TensorFlowWriter(GraphWriter):
    """tf2onnx."""

    def __init__(self, opset: int = 13) -> None:
        super().__init__("tf2onnx", opset, constant_nodes=False)

    def convolution(self, x: str, inputs: int, outputs: int, stride: int = 1, groups: int = 1, **more: Any) -> str:
        """A 3x3 convolution of a channels-last value, with FusedBatchNorm and relu6."""
        x = self("Transpose", x, perm=[0, 3, 1, 2])
        attributes = {"auto_pad": "SAME_UPPER", "strides": [stride, stride], "dilations": [1, 1], "group": groups}
        x = self("Conv", x, self.weight(outputs, inputs // groups, 3, 3), kernel_shape=[3, 3], **{**attributes, **more})
        moments = (self.positive(outputs), self.weight(outputs), self.weight(outputs), self.positive(outputs))
        x = self("BatchNormalization", x, *moments, epsilon=1e-3)
        x = self("Transpose", x, perm=[0, 2, 3, 1])
        return self("Min", self("Max", x, self.constant(0.0)), self.constant(6.0))

    def dimension(self, x: str, axis: int, element_type: int = INT32) -> str:
        """One size of a value, a scalar: tf.shape(x)[axis]."""
        shape = self.cast(self("Shape", x), element_type)
        return self.squeeze(self.slice(shape, axis, axis + 1), 0)

    def shape(self, *sizes: str | int) -> str:
        """tf.stack of sizes, as a shape."""
        parts = [self.constant([size], "int32") if isinstance(size, int) else self.unsqueeze(size, 0) for size in sizes]
        return self.cast(self("Concat", *parts, axis=0), INT64)

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        return self("Add", self("MatMul", x, self.weight(inputs, outputs)), self.weight(outputs))

    def layer_norm(self, x: str, size: int) -> str:
        mean = self("ReduceMean", x, axes=[-1], keepdims=1)
        apart = self("Sub", x, mean)
        variance = self("ReduceMean", self("Mul", apart, apart), axes=[-1], keepdims=1)
        root = self("Reciprocal", self("Sqrt", self("Add", variance, self.constant(1e-6))))
        scale = self("Mul", root, self.positive(size))
        return self("Add", self("Mul", x, scale), self("Sub", self.weight(size), self("Mul", mean, scale)))


def keras_classifier() -> onnx.ModelProto:
    """MobileNetV2 with explicit padding and a mean over height and width."""
    write = TensorFlowWriter(12)
    x = write.input("images", FLOAT, "batch", "height", "width", 3)
    x = write("Sub", write("Div", x, write.constant(127.5)), write.constant(1.0))
    x = write("Pad", x, write.integers(0, 0, 0, 0, 0, 1, 1, 0))
    x = write.convolution(x, 3, 16, 2, auto_pad="VALID")
    y = write.convolution(x, 16, 16, groups=16)
    x = write("Add", x, write.convolution(y, 16, 16))
    x = write.convolution(x, 16, 24, 2)
    x = write("Transpose", x, perm=[0, 3, 1, 2])
    x = write("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")
    x = write("Transpose", x, perm=[0, 2, 3, 1])
    x = write("ReduceMean", x, axes=[1, 2], keepdims=0)
    return write.model(scores=(write("Softmax", write.dense(x, 24, 10), axis=1), FLOAT))


def keras_segmenter() -> onnx.ModelProto:
    """Atrous convolution through SpaceToBatch, ResizeBilinear and ResizeNearest to sizes read off other values."""
    write = TensorFlowWriter()
    images = write.input("images", FLOAT, "batch", "height", "width", 3)
    side = write.convolution(images, 3, 16, 2)
    x = write.convolution(side, 16, 16, 2)

    height, width, batch = (write.dimension(x, axis) for axis in (1, 2, 0))
    two = write.constant(2, "int32")
    rest = [write("Mod", write("Sub", two, write("Mod", size, two)), two) for size in (height, width)]
    amounts = write.shape(0, 2, 2, 0, 0, write("Add", two, rest[0]), write("Add", two, rest[1]), 0)
    padded = write("Pad", x, amounts)
    rows, columns = (write("Div", write.dimension(padded, axis), two) for axis in (1, 2))
    apart = write("Reshape", padded, write.shape(batch, rows, 2, columns, 2, 16))
    apart = write("Transpose", apart, perm=[2, 4, 0, 1, 3, 5])
    apart = write("Reshape", apart, write.shape(write("Mul", batch, write.constant(4, "int32")), rows, columns, 16))
    apart = write.convolution(apart, 16, 16, auto_pad="VALID")
    rows, columns = (write.dimension(apart, axis) for axis in (1, 2))
    together = write("Reshape", apart, write.shape(2, 2, batch, rows, columns, 16))
    together = write("Transpose", together, perm=[2, 3, 0, 4, 1, 5])
    doubled = [write("Mul", size, two) for size in (rows, columns)]
    together = write("Reshape", together, write.shape(batch, *doubled, 16))
    cut = [write("Add", size, write("Neg", more)) for size, more in zip(doubled, rest, strict=True)]
    x = write("Slice", together, write.integers(0, 0), write.shape(*cut), write.integers(1, 2))

    target = write.slice(write.cast(write("Shape", side), INT32), 1, 3)
    shape = write("Shape", write("Transpose", x, perm=[0, 3, 1, 2]))
    sizes = write("Concat", write.slice(shape, 0, 2), write.cast(target, INT64), axis=0)
    first = write("Transpose", x, perm=[0, 3, 1, 2])
    mode = {"mode": "linear", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "floor"}
    x = write("Transpose", write("Resize", first, "", "", sizes, **mode), perm=[0, 2, 3, 1])
    x = write.convolution(write("Concat", x, side, axis=3), 32, 5)

    wanted = write.cast(write.slice(write("Shape", images), 1, 3), FLOAT)
    present = write.cast(write.slice(write("Shape", x), 1, 3), FLOAT)
    scales = write("Concat", write.constant([1.0, 1.0]), write("Div", wanted, present), axis=0)
    nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    x = write("Resize", write("Transpose", x, perm=[0, 3, 1, 2]), write.constant([]), scales, **nearest)
    x = write("Transpose", x, perm=[0, 2, 3, 1])
    classes = write.cast(write("ArgMax", x, axis=3, keepdims=0), INT32)
    return write.model(shares=(write("Softmax", x, axis=-1), FLOAT), classes=(classes, INT32))


def keras_tagger() -> onnx.ModelProto:
    """A bidirectional LSTM as two, over time-major values, initial states by Fill, lengths by a mask."""
    write = TensorFlowWriter()
    tokens = write.input("tokens", INT32, "batch", "length")
    mask = write("Not", write("Equal", tokens, write.constant(0, "int32")))
    x = write("Gather", write.weight(40, 8), tokens)
    batch = write.dimension(x, 0)
    zeros = write("ConstantOfShape", write.shape(batch, 6), value=numpy_helper.from_array(np.zeros(1, np.float32)))
    state = write.unsqueeze(zeros, 0)
    forward = write("Transpose", x, perm=[1, 0, 2])
    backward = write("Slice", forward, *(write.integers(value) for value in (-1, -(2**31) + 1, 0, -1)))
    sides = []
    for values in (forward, backward):
        weights = (write.weight(1, 24, 8), write.weight(1, 24, 6), write.weight(1, 48))
        states, _, _ = write.several("LSTM", 3, values, *weights, "", state, state, hidden_size=6, direction="forward")
        sides.append(write.squeeze(states, 1))
    sides[1] = write("Slice", sides[1], *(write.integers(value) for value in (-1, -(2**31) + 1, 0, -1)))
    x = write("Transpose", write("Concat", *sides, axis=2), perm=[1, 0, 2])
    x = write("Mul", x, write.unsqueeze(write.cast(mask, FLOAT), 2))
    length = write("ReduceSum", write.cast(mask, INT32), write.integers(1), keepdims=0)
    total = write("ReduceSum", x, write.integers(1), keepdims=0)
    mean = write("Div", total, write.unsqueeze(write.cast(length, FLOAT), 1))
    flat = write("Reshape", x, write.integers(-1, 12))
    labels = write("Reshape", write.dense(flat, 12, 5), write.shape(batch, write.dimension(tokens, 1), 5))
    best = write("ArgMax", labels, axis=2, keepdims=0)
    return write.model(labels=(labels, FLOAT), best=(best, INT64), mean=(mean, FLOAT))


def keras_text_encoder() -> onnx.ModelProto:
    """BERT: types through OneHot, dense layers over rows made flat, attention by Einsum, the first token by a slice."""
    write = TensorFlowWriter()
    tokens = write.input("input_ids", INT32, "batch", "length")
    mask = write.input("input_mask", INT32, "batch", "length")
    types = write.input("segment_ids", INT32, "batch", "length")
    batch, length = write.dimension(tokens, 0), write.dimension(tokens, 1)
    flat = write("Reshape", tokens, write.integers(-1))
    x = write("Reshape", write("Gather", write.weight(50, 16), flat), write.shape(batch, length, 16))
    kinds = write.cast(write("Reshape", types, write.integers(-1)), INT64)
    kinds = write("OneHot", kinds, write.integers(2), write.constant([0.0, 1.0]))
    kinds = write("Reshape", write("MatMul", kinds, write.weight(2, 16)), write.shape(batch, length, 16))
    upto = write("Concat", write.unsqueeze(length, 0), write.constant([-1], "int32"), axis=0)
    zeros, two = write.integers(0, 0), write.integers(0, 1)
    most = write.constant([2**31 - 1] * 2, "int32")
    whole = write("Where", write("Less", upto, write.constant(0, "int32")), most, upto)
    positions = write("Slice", write.weight(24, 16), zeros, write.cast(whole, INT64), two)
    x = write.layer_norm(write("Add", write("Add", x, kinds), write.unsqueeze(positions, 0)), 16)
    ones = write("Expand", write.constant([[[1.0]]]), write.shape(batch, length, 1))
    seen = write("Mul", ones, write.cast(write.unsqueeze(mask, 1), FLOAT))
    outside = write("Mul", write("Sub", write.constant(1.0), write.unsqueeze(seen, 1)), write.constant(-10000.0))
    parts = []
    for _ in range(3):
        rows = write.dense(write("Reshape", x, write.integers(-1, 16)), 16, 16)
        parts.append(write("Reshape", rows, write.shape(batch, length, 4, 4)))
    scores = write("Einsum", parts[0], parts[1], equation="bfnd,btnd->bnft")
    scores = write("Add", write("Mul", scores, write.constant(0.5)), outside)
    context = write("Einsum", write("Softmax", scores, axis=-1), parts[2], equation="bnft,btnd->bfnd")
    rows = write.dense(write("Reshape", context, write.shape(-1, 16)), 16, 16)
    x = write.layer_norm(write("Add", write("Reshape", rows, write.shape(batch, length, 16)), x), 16)
    y = write.dense(x, 16, 32)
    cube = write("Mul", write("Pow", y, write.constant(3.0)), write.constant(0.044715))
    bend = write("Tanh", write("Mul", write("Add", y, cube), write.constant(0.7978846)))
    y = write("Mul", y, write("Mul", write("Add", bend, write.constant(1.0)), write.constant(0.5)))
    x = write.layer_norm(write("Add", write.dense(y, 32, 16), x), 16)
    first = write.squeeze(write("Slice", x, write.integers(0), write.integers(1), write.integers(1)), 1)
    pooled = write("Tanh", write.dense(first, 16, 16))
    return write.model(sequence_output=(x, FLOAT), pooled_output=(pooled, FLOAT))


def keras_detector() -> onnx.ModelProto:
    """SSD: boxes by exp, the best by NonMaxSuppression, sorted by TopK, padded to a fixed count."""
    write = TensorFlowWriter(11)
    images = write.input("images", FLOAT, 1, "height", "width", 3)
    x = write.convolution(write.convolution(images, 3, 16, 4), 16, 16, 2)
    offsets = write("Reshape", write.convolution(x, 16, 8), write.integers(0, -1, 4))
    scores = write("Sigmoid", write("Reshape", write.convolution(x, 16, 6), write.integers(0, -1, 3)))
    rows, columns = (write.dimension(x, axis) for axis in (1, 2))
    zero, one = write.constant(0, "int32"), write.constant(1, "int32")
    y = write.unsqueeze(write.cast(write("Range", zero, rows, one), FLOAT), 1)
    z = write.unsqueeze(write.cast(write("Range", zero, columns, one), FLOAT), 0)
    ones = write("ConstantOfShape", write.shape(rows, columns), value=numpy_helper.from_array(np.ones(1, np.float32)))
    centres = [write("Mul", ones, each) for each in (y, z)]
    anchors = write("Concat", *(write("Reshape", each, write.integers(-1, 1)) for each in centres), axis=1)
    twice = write("Tile", write.unsqueeze(anchors, 1), write.integers(1, 2, 1))
    anchors = write("Reshape", twice, write.integers(-1, 2))
    parts = write.several("Split", 2, write.squeeze(offsets, 0), axis=1, split=[2, 2])
    middle = write("Add", write("Mul", parts[0], write.constant(0.1)), anchors)
    half = write("Mul", write("Exp", write("Mul", parts[1], write.constant(0.2))), write.constant(0.5))
    boxes = write("Concat", write("Sub", middle, half), write("Add", middle, half), axis=1)
    limits = write.constant([10], "int64"), write.constant([0.5]), write.constant([0.3])
    turned = write("Transpose", scores, perm=[0, 2, 1])
    chosen = write("NonMaxSuppression", write.unsqueeze(boxes, 0), turned, *limits)
    place = write("Squeeze", write.slice(chosen, 2, 3, 1), axes=[1])
    label = write("Squeeze", write.slice(chosen, 1, 2, 1), axes=[1])
    found = write("GatherND", turned, chosen)
    count = write("Shape", found)
    kept = write("Concat", count, write.integers(20), axis=0)
    best, order = write.several("TopK", 2, found, write("ReduceMin", kept, axes=[0], keepdims=1), axis=0)
    lack = write("Sub", write.integers(20), write("Shape", best))
    boxes = write("Gather", boxes, write("Gather", place, order))
    amounts = write("Concat", write.integers(0, 0), lack, write.integers(0), axis=0)
    boxes = write("Pad", boxes, amounts)
    best = write("Pad", best, write("Concat", write.integers(0), lack, axis=0), write.constant(-1.0))
    return write.model(boxes=(boxes, FLOAT), scores=(best, FLOAT), labels=(write("Gather", label, order), INT64))


def keras_loop() -> onnx.ModelProto:
    """tf.while_loop with a TensorArray: a Loop whose body reads the sequence by its counter and scans out states."""
    write = TensorFlowWriter()
    x = write.input("x", FLOAT, "batch", "length", 4)
    major = write("Transpose", x, perm=[1, 0, 2])
    steps = write.dimension(x, 1, INT64)
    zeros = write("Expand", write.constant(0.0), write.cast(write.shape(write.dimension(x, 0), 4), INT64))
    matrix = write.weight(4, 4)
    body = TensorFlowWriter()
    body.made = 1000
    body.input("counter", INT64)
    body.input("condition", BOOL)
    body.input("state", FLOAT, "batch", 4)
    row = body("Gather", major, "counter", axis=0)
    state = body("Tanh", body("Add", body("MatMul", "state", matrix), row))
    going = body("Less", body("Add", "counter", body.constant(1, "int64")), steps)
    results = ((going, BOOL, []), (state, FLOAT, ["batch", 4]), (f"{state}_out", FLOAT, ["batch", 4]))
    infos = [helper.make_tensor_value_info(*result) for result in results]
    body.nodes.append(helper.make_node("Identity", [state], [f"{state}_out"]))
    graph = helper.make_graph(body.nodes, "body", body.inputs, infos, body.initializers)
    positive = write("Greater", steps, write.constant(0, "int64"))
    last, every = write.several("Loop", 2, "", positive, zeros, body=graph)
    return write.model(last=(last, FLOAT), states=(write("Transpose", every, perm=[1, 0, 2]), FLOAT))


class PaddleWriter(GraphWriter):
    """paddle2onnx."""

    def __init__(self, opset: int = 11) -> None:
        super().__init__("paddle2onnx", opset, constant_nodes=True)

    def convolution(self, x: str, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> str:
        attributes = {"strides": [stride, stride], "pads": [kernel // 2] * 4, "dilations": [1, 1], "group": groups}
        weight = self.weight(outputs, inputs // groups, kernel, kernel)
        x = self("Conv", x, weight, kernel_shape=[kernel, kernel], **attributes)
        moments = (self.positive(outputs), self.weight(outputs), self.weight(outputs), self.positive(outputs))
        return self("BatchNormalization", x, *moments, epsilon=1e-5, momentum=0.9)

    def hard_swish(self, x: str) -> str:
        clipped = self("Clip", self("Add", x, self.constant(3.0)), self.constant(0.0), self.constant(6.0))
        return self("Div", self("Mul", x, clipped), self.constant(6.0))

    def squeeze_excite(self, x: str, channels: int) -> str:
        y = self("GlobalAveragePool", x)
        y = self("Conv", y, self.weight(channels // 4, channels, 1, 1))
        y = self("Relu", self("Add", y, self("Reshape", self.weight(channels // 4), self.integers(1, -1, 1, 1))))
        y = self("Conv", y, self.weight(channels, channels // 4, 1, 1))
        y = self("Add", y, self("Reshape", self.weight(channels), self.integers(1, -1, 1, 1)))
        return self("Mul", x, self("HardSigmoid", y, alpha=0.2, beta=0.5))

    def size(self, x: str, axis: int) -> str:
        """One size, (1,) of int32."""
        return self.slice(self.cast(self("Shape", x), INT32), axis, axis + 1)

    def shape(self, *sizes: str | int) -> str:
        parts = [self.constant([size], "int32") if isinstance(size, int) else size for size in sizes]
        return self.cast(self("Concat", *parts, axis=0), INT64)

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        return self("Add", self("MatMul", x, self.weight(inputs, outputs)), self.weight(outputs))

    def layer_norm(self, x: str, size: int) -> str:
        apart = self("Sub", x, self("ReduceMean", x, axes=[-1]))
        variance = self("ReduceMean", self("Pow", apart, self.constant([2.0])), axes=[-1])
        x = self("Div", apart, self("Sqrt", self("Add", variance, self.constant([1e-5]))))
        return self("Add", self("Mul", x, self.positive(size)), self.weight(size))


def paddle_recognizer() -> onnx.ModelProto:
    """PP-OCR's recognizer: hard swish and gates, one transformer block with shapes from the data, an LSTM, Softmax."""
    write = PaddleWriter()
    images = write.input("x", FLOAT, "batch", 3, 32, "width")
    x = write.hard_swish(write.convolution(images, 3, 16, stride=2))
    x = write.hard_swish(write.convolution(x, 16, 16, 5, groups=16))
    x = write.convolution(write.squeeze_excite(x, 16), 16, 24, 1)
    x = write("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=0, pads=[0, 0, 0, 0])
    x = write("AveragePool", x, kernel_shape=[8, 1], strides=[8, 1])
    x = write("Transpose", write.squeeze(x, 2), perm=[0, 2, 1])
    batch, length = write.size(x, 0), write.size(x, 1)
    packed = write("Reshape", write.dense(x, 24, 72), write.shape(batch, length, 3, 4, 6))
    packed = write("Transpose", packed, perm=[2, 0, 3, 1, 4])
    query, key, value = (write.squeeze(write.slice(packed, place, place + 1), 0) for place in range(3))
    query = write("Mul", query, write.constant([0.408]))
    scores = write("MatMul", query, write("Transpose", key, perm=[0, 1, 3, 2]))
    context = write("Transpose", write("MatMul", write("Softmax", scores, axis=3), value), perm=[0, 2, 1, 3])
    x = write("Add", x, write.dense(write("Reshape", context, write.shape(batch, -1, 24)), 24, 24))
    y = write.layer_norm(x, 24)
    y = write.dense(y, 24, 32)
    x = write("Add", x, write.dense(write("Mul", y, write("Sigmoid", y)), 32, 24))

    zeros = write("ConstantOfShape", write.shape(2, batch, 8), value=numpy_helper.from_array(np.zeros(1, np.float32)))
    weights = (write.weight(2, 32, 24), write.weight(2, 32, 8), write.weight(2, 64))
    major = write("Transpose", x, perm=[1, 0, 2])
    states, *_ = write.several("LSTM", 3, major, *weights, "", zeros, zeros, hidden_size=8, direction="bidirectional")
    states = write("Reshape", write("Transpose", states, perm=[2, 0, 1, 3]), write.shape(batch, length, 16))
    scores = write("Softmax", write.dense(states, 16, 20), axis=2)
    return write.model(scores=(scores, FLOAT))


def paddle_segmenter() -> onnx.ModelProto:
    """PP-OCR's detector: nearest interpolation between levels, then ConvTranspose up to a map of probabilities."""
    write = PaddleWriter()
    images = write.input("x", FLOAT, "batch", 3, "height", "width")
    near = write("Relu", write.convolution(images, 3, 16, stride=4))
    far = write.hard_swish(write.convolution(near, 16, 24, stride=2))
    near, far = (write("Conv", x, write.weight(16, width, 1, 1)) for x, width in ((near, 16), (far, 24)))
    nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    up = write("Resize", far, write.constant([]), write.constant([1.0, 1.0, 2.0, 2.0]), **nearest)
    x = write("Concat", write("Add", near, up), up, axis=1)
    x = write("Relu", write.convolution(x, 32, 16))
    for width in (16, 8):
        x = write("ConvTranspose", x, write.weight(width, 8, 2, 2), kernel_shape=[2, 2], strides=[2, 2])
        x = write("Add", x, write("Reshape", write.weight(8), write.integers(1, -1, 1, 1)))
    x = write("Sigmoid", write("Conv", x, write.weight(1, 8, 1, 1)))
    size = write.cast(write.slice(write("Shape", images), 2, 4), INT64)
    half = write("Div", size, write.integers(2, 2))
    sizes = write("Concat", write.slice(write("Shape", x), 0, 2), half, axis=0)
    linear = {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}
    small = write("Resize", x, write.constant([]), write.constant([]), sizes, **linear)
    return write.model(maps=(x, FLOAT), small=(small, FLOAT))


def paddle_detector() -> onnx.ModelProto:
    """PicoDet: points of a grid by Range and Expand, distances as weighted sums, boxes kept by suppression."""
    write = PaddleWriter(13)
    images = write.input("image", FLOAT, 1, 3, "height", "width")
    scale = write.input("scale_factor", FLOAT, 1, 2)
    x = write.hard_swish(write.convolution(images, 3, 16, stride=4))
    x = write.squeeze_excite(write.hard_swish(write.convolution(x, 16, 16, 5, stride=2, groups=16)), 16)
    scores = write("Sigmoid", write("Conv", x, write.weight(3, 16, 1, 1)))
    sides = write("Conv", x, write.weight(16, 16, 1, 1))
    rows, columns = write.size(x, 2), write.size(x, 3)
    axes = []
    for count in (rows, columns):
        steps = write("Range", write.constant(0, "int32"), write.squeeze(count, 0), write.constant(1, "int32"))
        moved = write("Add", write.cast(steps, FLOAT), write.constant(0.5))
        axes.append(write("Add", write("Mul", moved, write.constant(8.0)), write.constant(0.0)))
    grid = write.shape(rows, columns)
    y = write("Expand", write("Reshape", axes[0], write.integers(-1, 1)), grid)
    z = write("Expand", write("Reshape", axes[1], write.integers(1, -1)), grid)
    points = write("Concat", write.unsqueeze(z, -1), write.unsqueeze(y, -1), axis=-1)
    points = write("Reshape", points, write.integers(-1, 2))
    cells = write("Mul", rows, columns)
    sides = write("Reshape", write("Transpose", sides, perm=[0, 2, 3, 1]), write.integers(-1, 4))
    sides = write("MatMul", write("Softmax", sides, axis=-1), write.constant(np.arange(4.0)))
    sides = write("Mul", write("Reshape", sides, write.shape(1, cells, 4)), write.constant(8.0))
    before, after = write.several("Split", 2, sides, write.integers(2, 2), axis=-1)
    low = write("Add", write("Mul", before, write.constant(-1.0)), points)
    boxes = write("Concat", low, write("Add", after, points), axis=-1)
    halves = write.several("Split", 2, scale, write.integers(1, 1), axis=-1)
    both = write("Concat", halves[1], halves[0], halves[1], halves[0], axis=-1)
    boxes = write("Div", boxes, write("Reshape", both, write.integers(-1, 1, 4)))
    scores = write("Reshape", scores, write.integers(1, 3, -1))
    limits = write.constant([8], "int64"), write.constant([0.6]), write.constant([0.2])
    chosen = write("NonMaxSuppression", boxes, scores, *limits)
    label, place = (write("Gather", chosen, write.constant(column, "int64"), axis=1) for column in (1, 2))
    index = write("Add", write("Mul", label, write.squeeze(write.cast(cells, INT64), 0)), place)
    best = write("Gather", write("Reshape", scores, write.integers(-1)), index)
    count = write("Shape", best)
    kept = write("ReduceMin", write("Concat", count, write.integers(6), axis=0), axes=[0], keepdims=1)
    best, order = write.several("TopK", 2, best, kept, axis=0, largest=1, sorted=1)
    boxes = write("Gather", write.squeeze(boxes, 0), write("Gather", place, order))
    label = write.cast(write("Gather", label, order), FLOAT)
    rows = write("Concat", write.unsqueeze(label, 1), write.unsqueeze(best, 1), boxes, axis=1)
    return write.model(boxes=(rows, FLOAT), count=(write.cast(kept, INT32), INT32))


def paddle_encoder() -> onnx.ModelProto:
    """ERNIE: positions by cumulative sums of ones, a mask from equality, attention, the first token by slices."""
    write = PaddleWriter(12)
    tokens = write.input("input_ids", INT64, "batch", "length")
    mask = write("Equal", tokens, write.constant(0, "int64"))
    outside = write.unsqueeze(write("Mul", write.cast(mask, FLOAT), write.constant(-1e4)), 1, 2)
    shape = write.cast(write("Shape", tokens), INT32)
    ones = write("Expand", write.constant([1], "int64"), write.cast(shape, INT64))
    positions = write("Sub", write("CumSum", ones, write.constant(1, "int64")), ones)
    x = write("Add", write("Gather", write.weight(50, 16), tokens), write("Gather", write.weight(24, 16), positions))
    x = write("Dropout", write.layer_norm(x, 16), write.constant(0.1))
    parts = []
    for _ in range(3):
        heads = write("Reshape", write.dense(x, 16, 16), write.integers(0, 0, 4, 4))
        parts.append(write("Transpose", heads, perm=[0, 2, 1, 3]))
    query = write("Mul", parts[0], write.constant([0.5]))
    scores = write("Add", write("MatMul", query, write("Transpose", parts[1], perm=[0, 1, 3, 2])), outside)
    context = write("MatMul", write("Softmax", scores, axis=3), parts[2])
    context = write("Reshape", write("Transpose", context, perm=[0, 2, 1, 3]), write.integers(0, 0, 16))
    x = write.layer_norm(write("Add", x, write.dense(context, 16, 16)), 16)
    y = write.dense(x, 16, 32)
    bend = write("Add", write("Erf", write("Div", y, write.constant(1.4142135))), write.constant(1.0))
    y = write("Mul", write("Mul", y, bend), write.constant(0.5))
    x = write.layer_norm(write("Add", x, write.dense(y, 32, 16)), 16)
    first = write.squeeze(write.slice(x, 0, 1, 1), 1)
    logits = write.dense(write("Tanh", write.dense(first, 16, 16)), 16, 4)
    best, label = write.several("TopK", 2, write("Softmax", logits, axis=1), write.integers(1), axis=1)
    return write.model(logits=(logits, FLOAT), best=(best, FLOAT), label=(label, INT64))


@dataclass(frozen=True)
class WrittenGraph:
    """A graph, the converter it imitates, and its inputs at every size, twice."""

    name: str
    route: str
    write: Callable[[], onnx.ModelProto]
    inputs: Callable[..., Arrays]
    sizes: Sequence[tuple[int, ...]]

    def cases(self) -> list[Arrays]:
        generator = np.random.default_rng(3)
        return [self.inputs(generator, *size) for _ in range(2) for size in self.sizes]


def _pictures(name: str, last: bool, scale: float = 1.0) -> Callable[..., Arrays]:
    def make(generator: np.random.Generator, batch: int, height: int, width: int) -> Arrays:
        shape = (batch, height, width, 3) if last else (batch, 3, height, width)
        return {name: (scale * generator.normal(size=shape)).astype(np.float32)}

    return make


def _tokens(generator: np.random.Generator, batch: int, length: int, dtype: str) -> Any:
    tokens = generator.integers(1, 40, (batch, length)).astype(dtype)
    tokens[-1, -2:] = 0
    return tokens


def _encoder(generator: np.random.Generator, batch: int, length: int) -> Arrays:
    tokens = _tokens(generator, batch, length, "int32")
    types = np.broadcast_to(np.arange(length) > length // 2, tokens.shape).astype(np.int32)
    return {"input_ids": tokens, "input_mask": (tokens > 0).astype(np.int32), "segment_ids": types}


WRITTEN_GRAPHS = (
    WrittenGraph(
        "classifier", "tf2onnx", keras_classifier, _pictures("images", True, 100.0), ((2, 32, 32), (1, 48, 40))
    ),
    WrittenGraph("segmenter", "tf2onnx", keras_segmenter, _pictures("images", True), ((2, 32, 48), (1, 40, 32))),
    WrittenGraph(
        "tagger",
        "tf2onnx",
        keras_tagger,
        lambda generator, batch, length: {"tokens": _tokens(generator, batch, length, "int32")},
        ((2, 7), (1, 11)),
    ),
    WrittenGraph("text-encoder", "tf2onnx", keras_text_encoder, _encoder, ((2, 8), (1, 12))),
    WrittenGraph("detector", "tf2onnx", keras_detector, _pictures("images", True), ((1, 48, 64), (1, 32, 32))),
    WrittenGraph(
        "loop",
        "tf2onnx",
        keras_loop,
        lambda generator, batch, length: {"x": generator.normal(size=(batch, length, 4)).astype(np.float32)},
        ((2, 5), (1, 8)),
    ),
    WrittenGraph("recognizer", "paddle2onnx", paddle_recognizer, _pictures("x", False), ((2, 32, 64), (1, 32, 96))),
    WrittenGraph("segmenter", "paddle2onnx", paddle_segmenter, _pictures("x", False), ((2, 32, 64), (1, 48, 40))),
    WrittenGraph(
        "detector",
        "paddle2onnx",
        paddle_detector,
        lambda generator, height, width: {
            **_pictures("image", False)(generator, 1, height, width),
            "scale_factor": np.array([[1.5, 2.0]], np.float32),
        },
        ((64, 48), (32, 80)),
    ),
    WrittenGraph(
        "encoder",
        "paddle2onnx",
        paddle_encoder,
        lambda generator, batch, length: {"input_ids": _tokens(generator, batch, length, "int64")},
        ((2, 8), (1, 12)),
    ),
)
