"""Graphs written by hand the way paddle2onnx writes them.

It holds constants in Constant nodes, and casts shapes to int32 and back.
"""

from __future__ import annotations

import numpy as np
import onnx
from graph_writer import FLOAT, INT32, INT64, GraphWriter, WrittenGraph, padded_tokens, pictures
from onnx import numpy_helper


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


WRITTEN_GRAPHS = (
    WrittenGraph("recognizer", "paddle2onnx", paddle_recognizer, pictures("x", False), ((2, 32, 64), (1, 32, 96))),
    WrittenGraph("segmenter", "paddle2onnx", paddle_segmenter, pictures("x", False), ((2, 32, 64), (1, 48, 40))),
    WrittenGraph(
        "detector",
        "paddle2onnx",
        paddle_detector,
        lambda generator, height, width: {
            **pictures("image", False)(generator, 1, height, width),
            "scale_factor": np.array([[1.5, 2.0]], np.float32),
        },
        ((64, 48), (32, 80)),
    ),
    WrittenGraph(
        "encoder",
        "paddle2onnx",
        paddle_encoder,
        lambda generator, batch, length: {"input_ids": padded_tokens(generator, batch, length, "int64")},
        ((2, 8), (1, 12)),
    ),
)
