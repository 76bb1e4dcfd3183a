"""Graphs written by hand the way tf2onnx writes them.

It keeps TensorFlow's channels-last values and puts Transposes around each convolution; sizes go through Shape, Cast,
Slice and Squeeze.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from graph_writer import BOOL, FLOAT, INT32, INT64, Arrays, GraphWriter, WrittenGraph, padded_tokens, pictures
from onnx import helper, numpy_helper


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


def _encoder(generator: np.random.Generator, batch: int, length: int) -> Arrays:
    tokens = padded_tokens(generator, batch, length, "int32")
    types = np.broadcast_to(np.arange(length) > length // 2, tokens.shape).astype(np.int32)
    return {"input_ids": tokens, "input_mask": (tokens > 0).astype(np.int32), "segment_ids": types}


WRITTEN_GRAPHS = (
    WrittenGraph(
        "classifier", "tf2onnx", keras_classifier, pictures("images", True, 100.0), ((2, 32, 32), (1, 48, 40))
    ),
    WrittenGraph("segmenter", "tf2onnx", keras_segmenter, pictures("images", True), ((2, 32, 48), (1, 40, 32))),
    WrittenGraph(
        "tagger",
        "tf2onnx",
        keras_tagger,
        lambda generator, batch, length: {"tokens": padded_tokens(generator, batch, length, "int32")},
        ((2, 7), (1, 11)),
    ),
    WrittenGraph("text-encoder", "tf2onnx", keras_text_encoder, _encoder, ((2, 8), (1, 12))),
    WrittenGraph("detector", "tf2onnx", keras_detector, pictures("images", True), ((1, 48, 64), (1, 32, 32))),
    WrittenGraph(
        "loop",
        "tf2onnx",
        keras_loop,
        lambda generator, batch, length: {"x": generator.normal(size=(batch, length, 4)).astype(np.float32)},
        ((2, 5), (1, 8)),
    ),
)
