"""Build ``detector.onnx``, the small object detector that ``opgraft demo`` runs.

The network has the shape of a current one-stage detector, at a tiny width: a convolutional backbone with
split-and-concatenate blocks, an inverted residual block with depthwise convolution and squeeze-and-excitation,
spatial pyramid pooling, a transformer encoder layer on the coarsest level, a top-down feature pyramid, and an
anchor-free head whose boxes are decoded on a grid that follows the sizes of the feature maps. Batch, height and
width are all dynamic.

The weights are random, from a fixed seed, and never trained: the detections mean nothing, but the values are well
spread. The batch normalisation statistics are measured on synthetic images, so every layer sees inputs of ordinary
scale.

Command, run at the top of the tree (it writes ``core/opgraft/demo/detector.onnx``, and checks it)::

    python bench/make_detector.py

Requirements: Python 3.11 or newer, and ``pip install torch==2.13.0 onnx onnxscript onnxruntime``.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn
from torch.nn import functional

SEED = 20
OPSET = 20
NUM_CLASSES = 10
NUM_BINS = 8
STRIDES = (8, 16, 32)
CHECK_SHAPES = ((1, 3, 160, 160), (2, 3, 192, 128), (1, 3, 320, 256), (3, 3, 100, 140))
MAX_RELATIVE_ERROR = 1e-4


class ConvBlock(nn.Module):
    """Convolution, batch normalisation, and an activation (SiLU unless told otherwise)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        activation: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)
        self.activation = nn.SiLU() if activation is None else activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.norm(self.conv(x)))


class Bottleneck(nn.Module):
    """Two 3x3 convolutions, with an optional residual connection."""

    def __init__(self, channels: int, residual: bool) -> None:
        super().__init__()
        self.first = ConvBlock(channels, channels, 3)
        self.second = ConvBlock(channels, channels, 3)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.first(x))
        return x + y if self.residual else y


class SplitBlock(nn.Module):
    """Split the channels in two, run a chain of bottlenecks on one half, and merge every intermediate result."""

    def __init__(self, in_channels: int, out_channels: int, depth: int = 1, residual: bool = True) -> None:
        super().__init__()
        half = out_channels // 2
        self.enter = ConvBlock(in_channels, 2 * half)
        self.chain = nn.ModuleList(Bottleneck(half, residual) for _ in range(depth))
        self.merge = ConvBlock((2 + depth) * half, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.enter(x).chunk(2, dim=1))
        for block in self.chain:
            parts.append(block(parts[-1]))
        return self.merge(torch.cat(parts, dim=1))


class SqueezeExcite(nn.Module):
    """Scale the channels by gates computed from their spatial means."""

    def __init__(self, channels: int, reduction: int = 4) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, channels // reduction, 1)
        self.expand = nn.Conv2d(channels // reduction, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=(2, 3), keepdim=True)
        return x * functional.hardsigmoid(self.expand(functional.relu(self.reduce(mean))))


class InvertedResidual(nn.Module):
    """Expand the channels, filter them depthwise at stride 2, gate them, and project them down."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            ConvBlock(in_channels, hidden_channels, activation=nn.Hardswish()),
            ConvBlock(hidden_channels, hidden_channels, 5, 2, groups=hidden_channels, activation=nn.Hardswish()),
            SqueezeExcite(hidden_channels),
            ConvBlock(hidden_channels, out_channels, activation=nn.Identity()),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class PyramidPooling(nn.Module):
    """Three chained max pools, concatenated with their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter = ConvBlock(channels, channels // 2)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)
        self.merge = ConvBlock(2 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        levels = [self.enter(x)]
        for _ in range(3):
            levels.append(self.pool(levels[-1]))
        return self.merge(torch.cat(levels, dim=1))


def cell_grid(height: int, width: int) -> Tensor:
    """The column (first) and row index of every cell of a feature map, row by row, as a (2, cells) tensor."""
    rows = torch.arange(height, dtype=torch.float32)
    columns = torch.arange(width, dtype=torch.float32)
    grid_y, grid_x = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack([grid_x, grid_y]).reshape(2, height * width)


class EncoderLayer(nn.Module):
    """A pre-norm transformer encoder layer over the cells of a feature map, with sine and cosine positions."""

    def __init__(self, channels: int, heads: int = 4, expansion: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.head_size = channels // heads
        self.attention_norm = nn.LayerNorm(channels)
        self.query_key_value = nn.Linear(channels, 3 * channels)
        self.project = nn.Linear(channels, channels)
        self.feedforward_norm = nn.LayerNorm(channels)
        self.feedforward = nn.Sequential(
            nn.Linear(channels, expansion * channels), nn.GELU(), nn.Linear(expansion * channels, channels)
        )
        steps = torch.arange(channels // 4, dtype=torch.float32) / (channels // 4)
        self.register_buffer("frequencies", 100.0**-steps)

    def positions(self, height: int, width: int) -> Tensor:
        angles = cell_grid(height, width)[:, :, None] * self.frequencies
        waves = torch.cat([angles.sin(), angles.cos()], dim=2)
        return waves.transpose(0, 1).flatten(1)

    def attend(self, tokens: Tensor) -> Tensor:
        batch, count, channels = tokens.shape
        packed = self.query_key_value(tokens).reshape(batch, count, 3, self.heads, self.head_size)
        query, key, value = packed.permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(query @ key.transpose(-2, -1) / math.sqrt(self.head_size), dim=-1)
        return self.project((weights @ value).transpose(1, 2).reshape(batch, count, channels))

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        tokens = x.flatten(2).transpose(1, 2) + self.positions(height, width)
        tokens = tokens + self.attend(self.attention_norm(tokens))
        tokens = tokens + self.feedforward(self.feedforward_norm(tokens))
        return tokens.transpose(1, 2).reshape(batch, channels, height, width)


class Head(nn.Module):
    """Box-side distributions and class logits of one pyramid level, from two branches after a depthwise filter."""

    def __init__(self, in_channels: int, channels: int = 24) -> None:
        super().__init__()
        self.filter = ConvBlock(in_channels, in_channels, 3, groups=in_channels)
        self.box = nn.Sequential(ConvBlock(in_channels, channels), nn.Conv2d(channels, 4 * NUM_BINS, 1))
        self.score = nn.Sequential(ConvBlock(in_channels, channels), nn.Conv2d(channels, NUM_CLASSES, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.filter(x)
        return torch.cat([self.box(x), self.score(x)], dim=1)


class Detector(nn.Module):
    """Images (batch, 3, height, width) in [0, 1] to boxes (x1, y1, x2, y2 in pixels) and class scores."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(ConvBlock(3, 8, 3, 2), ConvBlock(8, 16, 3, 2))
        self.stage3 = nn.Sequential(ConvBlock(16, 32, 3, 2), SplitBlock(32, 32, depth=2))
        self.stage4 = nn.Sequential(ConvBlock(32, 48, 3, 2), SplitBlock(48, 48))
        self.stage5 = nn.Sequential(InvertedResidual(48, 96, 64), PyramidPooling(64))
        self.encoder = EncoderLayer(64)
        self.fuse4 = SplitBlock(64 + 48, 48, residual=False)
        self.fuse3 = SplitBlock(48 + 32, 32, residual=False)
        self.heads = nn.ModuleList(Head(channels) for channels in (32, 48, 64))
        self.expectation = nn.Conv2d(NUM_BINS, 1, 1, bias=False)

    def features(self, images: Tensor) -> list[Tensor]:
        level3 = self.stage3(self.stem(images))
        level4 = self.stage4(level3)
        level5 = self.encoder(self.stage5(level4))
        level4 = self.fuse4(torch.cat([functional.interpolate(level5, size=level4.shape[2:]), level4], dim=1))
        level3 = self.fuse3(torch.cat([functional.interpolate(level4, size=level3.shape[2:]), level3], dim=1))
        return [level3, level4, level5]

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        batch, _, height, width = images.shape
        features = self.features(images)
        rows = [head(level).flatten(2) for head, level in zip(self.heads, features, strict=True)]
        sides, logits = torch.cat(rows, dim=2).split([4 * NUM_BINS, NUM_CLASSES], dim=1)

        bins = sides.reshape(batch, 4, NUM_BINS, -1).transpose(1, 2).softmax(dim=1)
        distances = self.expectation(bins).reshape(batch, 4, -1)
        left_top, right_bottom = distances.chunk(2, dim=1)

        centres, strides = self.centres(features)
        left_top = ((centres - left_top) * strides).clamp(min=0)
        right_bottom = (centres + right_bottom) * strides
        right, bottom = right_bottom[:, 0].clamp(max=width), right_bottom[:, 1].clamp(max=height)
        boxes = torch.cat([left_top, torch.stack([right, bottom], dim=1)], dim=1).transpose(1, 2)
        return boxes, logits.transpose(1, 2).sigmoid()

    @staticmethod
    def centres(features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Cell centres, in cells, as (2, anchors), and the stride of every cell, as (anchors,)."""
        centres, strides = [], []
        for level, stride in zip(features, STRIDES, strict=True):
            height, width = level.shape[2:]
            centres.append(cell_grid(height, width))
            strides.append(torch.full((height * width,), float(stride)))
        return torch.cat(centres, dim=1) + 0.5, torch.cat(strides)


def synthetic_images(shape: tuple[int, int, int, int], seed: int) -> Tensor:
    """Images in [0, 1]: a smooth background and some flat rectangles, mixed with anything from no noise to much."""
    batch, channels, height, width = shape
    generator = np.random.default_rng(seed)
    coarse = torch.from_numpy(generator.random((batch, channels, 6, 6), dtype=np.float32))
    images = functional.interpolate(coarse, size=(height, width), mode="bicubic").numpy()
    for image in images:
        for _ in range(12):
            top, left = generator.integers(0, height), generator.integers(0, width)
            bottom = top + generator.integers(6, height // 2)
            right = left + generator.integers(6, width // 2)
            image[:, top:bottom, left:right] = generator.random((channels, 1, 1), dtype=np.float32)
    noise = generator.random(images.shape, dtype=np.float32)
    strength = generator.random((batch, 1, 1, 1), dtype=np.float32)
    images = (1.0 - strength) * images + strength * noise
    return torch.from_numpy(images.clip(0.0, 1.0))


def initialise(model: Detector) -> None:
    """Draw the weights, then measure the batch normalisation statistics on synthetic images."""
    generator = torch.Generator().manual_seed(SEED)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
        elif isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight, generator=generator)
        elif isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.7, 1.3, generator=generator)
            nn.init.normal_(module.bias, 0.0, 0.2, generator=generator)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.normal_(module.bias, 0.0, 0.1, generator=generator)
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # a plain average over the batches below
    for head in model.heads:
        nearer = -0.4 * torch.arange(NUM_BINS, dtype=torch.float32).repeat(4)  # small boxes are likelier
        head.box[-1].bias.data = nearer + 0.5 * torch.randn(4 * NUM_BINS, generator=generator)
        nn.init.xavier_normal_(head.score[-1].weight, generator=generator)
        nn.init.normal_(head.score[-1].bias, -1.5, 0.5, generator=generator)
    with torch.no_grad():
        model.expectation.weight.copy_(torch.arange(NUM_BINS, dtype=torch.float32).reshape(1, NUM_BINS, 1, 1))
        model.train()
        for step in range(4):
            model(synthetic_images((8, 3, 224, 224), seed=SEED + step))
    model.eval()


def export(model: Detector) -> onnx.ModelProto:
    """Trace the model with dynamic batch, height and width, and return it without the exporter's debug notes."""
    batch = torch.export.Dim("batch", min=1)
    height, width = torch.export.Dim("height", min=64), torch.export.Dim("width", min=64)
    program = torch.onnx.export(
        model,
        (synthetic_images((2, 3, 224, 160), seed=SEED),),
        dynamo=True,
        opset_version=OPSET,
        input_names=["images"],
        output_names=["boxes", "scores"],
        dynamic_shapes={"images": {0: batch, 2: height, 3: width}},
        verbose=False,
    )
    proto = program.model_proto
    strip_notes(proto)
    return proto


def strip_notes(proto: onnx.ModelProto) -> None:
    """Remove doc strings and metadata properties, which hold stack traces and file paths."""
    graph = proto.graph
    holders = [proto, graph, *graph.node, *graph.initializer, *graph.input, *graph.output, *graph.value_info]
    holders += [attribute for node in graph.node for attribute in node.attribute]
    for holder in holders:
        holder.ClearField("doc_string")
        if "metadata_props" in holder.DESCRIPTOR.fields_by_name:
            holder.ClearField("metadata_props")


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest magnitude expected."""
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def check(path: Path, model: Detector) -> None:
    """Validate the file, and compare ONNX Runtime's results with PyTorch's at several input shapes."""
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for number, shape in enumerate(CHECK_SHAPES):
        images = synthetic_images(shape, seed=1000 + number)
        with torch.no_grad():
            expected = [tensor.numpy() for tensor in model(images)]
        actual = session.run(None, {"images": images.numpy()})
        for name, got, want in zip(("boxes", "scores"), actual, expected, strict=True):
            if got.shape != want.shape or not np.isfinite(got).all():
                raise SystemExit(f"{name} for {shape}: shape {got.shape}, wanted {want.shape}, or not finite")
            error = relative_error(got, want)
            quantiles = ", ".join(f"{value:.3f}" for value in np.quantile(got, (0, 0.05, 0.5, 0.95, 1)))
            print(f"{shape} {name} {got.shape}: relative error {error:.1e}; quantiles {quantiles}")
            if error > MAX_RELATIVE_ERROR:
                raise SystemExit(f"{name} for {shape}: relative error {error:.1e} is over {MAX_RELATIVE_ERROR:.0e}")


def main() -> None:
    """Build the model, write it, check it, and print what it holds."""
    parser = argparse.ArgumentParser(description="Build the demo's object detector as an ONNX file.")
    parser.add_argument("--output", type=Path, default=Path("core/opgraft/demo/detector.onnx"))
    output = parser.parse_args().output

    torch.set_num_threads(1)  # one order of summation, so that a rerun gives the same statistics
    model = Detector()
    initialise(model)
    proto = export(model)
    output.write_bytes(proto.SerializeToString(deterministic=True))
    check(output, model)

    operators = Counter(node.op_type for node in proto.graph.node)
    print(f"{output.name}: {output.stat().st_size} bytes, {operators.total()} nodes")
    print(", ".join(f"{name} {count}" for name, count in operators.most_common()))


if __name__ == "__main__":
    main()
