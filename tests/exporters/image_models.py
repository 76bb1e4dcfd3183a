"""Pictures and films: classifiers, segmenters, readers of text."""

from __future__ import annotations

import torch
from architecture import BATCH_ONLY, PICTURE, Architecture, image, pictures
from torch import Tensor, nn
from torch.nn import functional


def convolution(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, activation: nn.Module | None = None
) -> nn.Sequential:
    """Convolution, batch normalisation, activation (ReLU unless told otherwise)."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True) if activation is None else activation,
    )


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(inputs, outputs, 3, stride)
        self.second = convolution(outputs, outputs, activation=nn.Identity())
        self.shortcut = convolution(inputs, outputs, 1, stride, activation=nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(x)) + self.shortcut(x))


class ResidualNetwork(nn.Module):
    """ResNet: a 7x7 stem, max pooling, residual blocks, a global mean."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(3, 16, 7, 2), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(ResidualBlock(16, 16, 1), ResidualBlock(16, 32, 2))
        self.pool, self.head = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(torch.flatten(self.pool(self.blocks(self.stem(images))), 1))


class DenseInception(nn.Module):
    """DenseNet and Inception: concatenated branches, every kind of pooling, channel shuffle, local response norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.respond = nn.Conv2d(3, 16, 3, 2), nn.LocalResponseNorm(5, alpha=1e-3)
        self.pools = nn.ModuleList(
            [
                nn.AvgPool2d(3, 1, 1),
                nn.AvgPool2d(3, 1, 1, count_include_pad=False),
                nn.MaxPool2d(3, 1, 1),
                nn.LPPool2d(2, 3, stride=1),
            ]
        )
        self.shrink = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.grouped = convolution(16, 16, groups=4)
        self.tall = nn.Sequential(nn.Conv2d(16, 8, (1, 7), padding=(0, 3)), nn.Conv2d(8, 8, (7, 1), padding=(3, 0)))
        self.head = nn.Linear(16 * 4 + 16 + 8, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.shrink(self.respond(torch.relu(self.stem(images))))
        batch, channels, height, width = x.shape
        x = x.view(batch, 4, channels // 4, height, width).transpose(1, 2).reshape(batch, channels, height, width)
        wide = functional.pad(self.pools[3](torch.relu(x)), (1, 1, 1, 1))
        x = torch.cat([*(pool(x) for pool in self.pools[:3]), wide, self.grouped(x), self.tall(x)], 1)
        return functional.log_softmax(self.head(x.mean([2, 3])), dim=1)


class SqueezeExcite(nn.Module):
    """Gates on channels, from their means."""

    def __init__(self, channels: int, activation: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)
        self.activation, self.gate = activation, gate

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.expand(self.activation(self.reduce(functional.adaptive_avg_pool2d(x, 1)))))


class InvertedResidual(nn.Module):
    """Expand, filter depthwise, gate, project."""

    def __init__(self, channels: int, hidden: int, kernel: int, activation: nn.Module, excite: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            convolution(channels, hidden, 1, activation=activation),
            convolution(hidden, hidden, kernel, groups=hidden, activation=activation),
            excite,
            convolution(hidden, channels, 1, activation=nn.Identity()),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class MobileNetwork(nn.Module):
    """MobileNetV3 (hard swish, hard sigmoid) or EfficientNet (SiLU, sigmoid)."""

    def __init__(self, hard: bool) -> None:
        super().__init__()
        activation = nn.Hardswish() if hard else nn.SiLU()
        gate = nn.Hardsigmoid() if hard else nn.Sigmoid()
        self.stem = convolution(3, 16, 3, 2, activation=activation)
        self.blocks = nn.Sequential(
            InvertedResidual(16, 32, 3, activation, nn.Identity()),
            convolution(16, 24, 3, 2, activation=nn.ReLU6()),
            InvertedResidual(24, 48, 5, activation, SqueezeExcite(48, nn.ReLU() if hard else nn.SiLU(), gate)),
        )
        self.head = nn.Sequential(nn.Linear(24, 32), activation, nn.Dropout(0.2), nn.Linear(32, 10))

    def forward(self, images: Tensor) -> Tensor:
        x = functional.adaptive_avg_pool2d(self.blocks(self.stem(images)), 1)
        return self.head(x.view(x.shape[0], -1))


class ChannelsLastBlock(nn.Module):
    """ConvNeXt: depthwise 7x7, then everything else on the last axis, with a learned scale."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.filter = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.filter(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(functional.gelu(self.up(y)))).permute(0, 3, 1, 2)


class ChannelsFirstNorm(nn.Module):
    """ConvNeXt's layer norm over the channels, written out."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class ConvNext(nn.Module):
    """ConvNeXt: a patch stem and two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 4, 4),
            ChannelsFirstNorm(16),
            ChannelsLastBlock(16),
            ChannelsFirstNorm(16),
            nn.Conv2d(16, 32, 2, 2),
            ChannelsLastBlock(32),
        )
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(images).mean([-2, -1])))


class VisionTransformer(nn.Module):
    """ViT: patches and a class token; the position table, made for 4x4 patches, is resized to the picture."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.class_token = nn.Parameter(0.1 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.1 * torch.randn(1, 17, width))
        layers = nn.TransformerEncoderLayer(width, 4, 64, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layers, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images)
        rows, columns = x.shape[2], x.shape[3]
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x.flatten(2).transpose(1, 2)], dim=1)
        table = self.positions[:, 1:].reshape(1, 4, 4, -1).permute(0, 3, 1, 2)
        table = functional.interpolate(table, size=(rows, columns), mode="bicubic", align_corners=False)
        table = table.permute(0, 2, 3, 1).reshape(1, rows * columns, -1)
        x = self.encoder(x + torch.cat([self.positions[:, :1], table], dim=1))
        return self.head(self.norm(x)[:, 0])


def windows_of(x: Tensor, size: int) -> Tensor:
    """(batch, height, width, channels) to (batch * windows, size * size, channels)."""
    batch, height, width, channels = x.shape
    x = x.view(batch, height // size, size, width // size, size, channels)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, size * size, channels)


class ShiftedWindows(nn.Module):
    """Swin: attention inside windows, with gathered relative biases, plain and then rolled by half a window."""

    def __init__(self, width: int = 32, size: int = 4, heads: int = 4, grid: int = 8) -> None:
        super().__init__()
        self.size, self.heads = size, heads
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.pack = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.biases = nn.Parameter(torch.randn((2 * size - 1) ** 2, heads))
        cells = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")).flatten(1)
        relative = (cells[:, :, None] - cells[:, None, :]).permute(1, 2, 0) + size - 1
        self.register_buffer("relative_index", relative[..., 0] * (2 * size - 1) + relative[..., 1])
        regions = torch.zeros(1, grid, grid, 1)
        parts = (slice(0, -size), slice(-size, -size // 2), slice(-size // 2, None))
        for number, (row, column) in enumerate((row, column) for row in parts for column in parts):
            regions[:, row, column] = number
        regions = windows_of(regions, size).squeeze(-1)
        apart = regions[:, None, :] != regions[:, :, None]
        self.register_buffer("mask", apart.float() * -100.0)
        self.merge_norm, self.merge = nn.LayerNorm(4 * width), nn.Linear(4 * width, 10, bias=False)

    def attend(self, x: Tensor, block: int) -> Tensor:
        windows, length, width = x.shape
        packed = self.pack[block](x).reshape(windows, length, 3, self.heads, width // self.heads)
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        bias = self.biases[self.relative_index.view(-1)].view(length, length, -1).permute(2, 0, 1).contiguous()
        scores = (query * (width // self.heads) ** -0.5) @ key.transpose(-2, -1) + bias.unsqueeze(0)
        if block:
            count = self.mask.shape[0]
            scores = scores.view(windows // count, count, self.heads, length, length)
            scores = (scores + self.mask.unsqueeze(1).unsqueeze(0)).view(-1, self.heads, length, length)
        return self.out[block]((scores.softmax(-1) @ value).transpose(1, 2).reshape(windows, length, width))

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).permute(0, 2, 3, 1)
        batch, rows, columns, width = x.shape
        for block in range(2):
            y = self.norms[block](x)
            if block:
                y = torch.roll(y, shifts=(-self.size // 2, -self.size // 2), dims=(1, 2))
            y = self.attend(windows_of(y, self.size), block)
            y = y.view(batch, rows // self.size, columns // self.size, self.size, self.size, width)
            y = y.permute(0, 1, 3, 2, 4, 5).contiguous().view(batch, rows, columns, width)
            if block:
                y = torch.roll(y, shifts=(self.size // 2, self.size // 2), dims=(1, 2))
            x = x + y
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], dim=-1)
        return self.merge(self.merge_norm(x)).mean(dim=(1, 2))


class UNet(nn.Module):
    """A segmenter: group norms, transposed convolutions up, a shortcut at each level, bilinear to the input's size."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down, self.middle = self.pair(3, 16), self.pair(16, 32), self.pair(32, 32)
        self.up = nn.ConvTranspose2d(32, 32, 2, 2)
        self.join = self.pair(64, 16)
        self.last = nn.ConvTranspose2d(16, 16, 3, 2, 1, output_padding=1, groups=4)
        self.head = nn.Conv2d(16, 4, 1)

    @staticmethod
    def pair(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.GroupNorm(4, outputs),
            nn.LeakyReLU(0.1),
            nn.Conv2d(outputs, outputs, 3, padding=1, padding_mode="replicate"),
            nn.InstanceNorm2d(outputs, affine=True),
            nn.SiLU(),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        top = functional.max_pool2d(self.enter(images), 2)
        side = self.down(top)
        low = self.up(self.middle(functional.avg_pool2d(side, 2)))
        low = functional.interpolate(low, size=side.shape[-2:], mode="nearest")
        x = self.last(self.join(torch.cat([side, low], dim=1)))
        x = functional.interpolate(self.head(x), size=images.shape[-2:], mode="bilinear", align_corners=False)
        return x.softmax(1), x.argmax(1)


class DilatedSegmenter(nn.Module):
    """DeepLab: parallel dilated convolutions and a global mean, resized back with aligned corners."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(3, 16, 3, 2), convolution(16, 24, 3, 2))
        self.branches = nn.ModuleList(
            [nn.Conv2d(24, 16, 1), *(nn.Conv2d(24, 16, 3, padding=rate, dilation=rate) for rate in (2, 4, 6))]
        )
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(24, 16, 1), nn.ReLU())
        self.project, self.head = convolution(80, 32, 1), nn.Conv2d(32, 5, 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        size = x.shape[-2:]
        whole = functional.interpolate(self.whole(x), size=size, mode="bilinear", align_corners=False)
        x = self.project(torch.cat([*(branch(x) for branch in self.branches), whole], dim=1))
        return functional.interpolate(self.head(x), size=images.shape[-2:], mode="bilinear", align_corners=True)


class VideoClassifier(nn.Module):
    """3-D convolutions, pooling and normalisation over frames."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv3d(3, 8, (3, 5, 5), (1, 2, 2), (1, 2, 2), bias=False),
            nn.BatchNorm3d(8),
            nn.ReLU(),
            nn.MaxPool3d((1, 2, 2)),
            nn.Conv3d(8, 16, 3, padding=1, groups=2),
            nn.ReLU(),
            nn.AvgPool3d(2),
            nn.ConvTranspose3d(16, 8, 2, 2),
        )
        self.head = nn.Linear(8, 6)

    def forward(self, frames: Tensor) -> Tensor:
        return self.head(self.layers(frames).mean(dim=(-3, -2, -1)))


class TextRecognizer(nn.Module):
    """CRNN: convolutions that flatten the height, a bidirectional LSTM over the columns, the likeliest symbols."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            convolution(1, 16),
            nn.MaxPool2d(2),
            convolution(16, 24),
            nn.MaxPool2d((2, 1)),
            nn.AvgPool2d((4, 1)),
        )
        self.lstm, self.head = nn.LSTM(24, 16, bidirectional=True), nn.Linear(32, 20)

    def forward(self, lines: Tensor) -> tuple[Tensor, Tensor]:
        x, _ = self.lstm(self.layers(lines).squeeze(2).permute(2, 0, 1))
        best, symbols = self.head(x).softmax(2).max(2)
        return best.permute(1, 0), symbols.permute(1, 0)


SIZES = ((2, 64, 64), (1, 96, 64))
_SEEN = {"images": PICTURE}

ARCHITECTURES = (
    Architecture("residual-network", ResidualNetwork, pictures("images"), SIZES, _SEEN, ("scores",)),
    Architecture("dense-inception", DenseInception, pictures("images"), SIZES, _SEEN, ("scores",)),
    Architecture("mobile-network", lambda: MobileNetwork(True), pictures("images"), SIZES, _SEEN, ("scores",)),
    Architecture("efficient-network", lambda: MobileNetwork(False), pictures("images"), SIZES, _SEEN, ("scores",)),
    Architecture("convnext", ConvNext, pictures("images"), SIZES, _SEEN, ("scores",)),
    Architecture("vision-transformer", VisionTransformer, pictures("images"), SIZES, _SEEN, ("scores",)),
    Architecture(
        "shifted-windows",
        ShiftedWindows,
        pictures("images"),
        ((2, 32, 32), (1, 32, 32)),
        {"images": BATCH_ONLY},
        ("scores",),
    ),
    Architecture("u-net", UNet, pictures("images"), ((2, 32, 32), (1, 48, 32)), _SEEN, ("shares", "classes")),
    Architecture("dilated-segmenter", DilatedSegmenter, pictures("images"), SIZES, _SEEN, ("scores",)),
    Architecture(
        "video-classifier",
        VideoClassifier,
        lambda batch, frames, size: {"frames": torch.randn(batch, 3, frames, size, size)},
        ((2, 4, 32), (1, 6, 24)),
        {"frames": {0: "batch", 2: "count", 3: "height", 4: "width"}},
        ("scores",),
    ),
    Architecture(
        "text-recognizer",
        TextRecognizer,
        lambda batch, width: {"lines": image(batch, 16, width, 1)},
        ((2, 40), (1, 64)),
        {"lines": {0: "batch", 3: "width"}},
        ("best", "symbols"),
    ),
)
