"""Pictures made from pictures: restoration, motion, diffusion, code books."""

from __future__ import annotations

import math

import torch
from architecture import PICTURE, Architecture, Inputs, image, pictures
from image_models import convolution
from torch import Tensor, nn
from torch.nn import functional


class Restorer(nn.Module):
    """Super-resolution and style transfer: reflection padding, instance norm, PReLU, pixel shuffle, a bicubic base."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.ReflectionPad2d(2), nn.Conv2d(3, 16, 5), nn.InstanceNorm2d(16), nn.PReLU(16))
        self.body = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ELU(), nn.Conv2d(16, 12, 3, padding=1))
        self.shuffle = nn.PixelShuffle(2)
        self.unshuffle = nn.PixelUnshuffle(2)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        base = functional.interpolate(images, scale_factor=2, mode="bicubic", align_corners=False)
        larger = torch.clamp(base + self.shuffle(self.body(self.enter(images))), -2.0, 2.0)
        return larger, self.unshuffle(larger)


class Flow(nn.Module):
    """Optical flow: a correlation volume, warping by grid_sample, upsampling through unfold and softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(convolution(3, 16, 3, 2), nn.Conv2d(16, 16, 3, 2, 1))
        self.estimate, self.weigh = nn.Conv2d(32, 2, 3, padding=1), nn.Conv2d(32, 9 * 4, 1)

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        left, right = self.encode(first), self.encode(second)
        batch, channels, height, width = left.shape
        volume = torch.matmul(left.flatten(2).transpose(1, 2), right.flatten(2)) / math.sqrt(channels)
        likely = volume.view(batch, height, width, height * width).amax(-1, keepdim=False).unsqueeze(1)
        pair = torch.cat([left + likely, right], dim=1)
        motion = torch.tanh(self.estimate(pair))
        columns = (2 * torch.arange(width) / (width - 1) - 1).view(1, 1, width).expand(batch, height, width)
        rows = (2 * torch.arange(height) / (height - 1) - 1).view(1, height, 1).expand(batch, height, width)
        grid = torch.stack([columns, rows], dim=-1) + motion.permute(0, 2, 3, 1) * 0.2
        warped = functional.grid_sample(right, grid, mode="bilinear", padding_mode="border", align_corners=True)
        weights = self.weigh(pair).view(batch, 1, 9, 2, 2, height, width).softmax(dim=2)
        patches = functional.unfold(2 * motion, [3, 3], padding=1).view(batch, 2, 9, 1, 1, height, width)
        larger = (weights * patches).sum(dim=2).permute(0, 1, 4, 2, 5, 3)
        return larger.reshape(batch, 2, 2 * height, 2 * width), warped


class DiffusionBlock(nn.Module):
    """A diffusion U-Net block: sinusoidal time embedding, scale and shift, attention from cells to a context."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 64), nn.SiLU(), nn.Linear(64, 2 * width))
        self.enter, self.leave = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(8, width, eps=1e-5) for _ in range(2))
        self.convolution = nn.Conv2d(width, width, 3, padding=1)
        self.cross = nn.MultiheadAttention(width, 4, kdim=16, vdim=16, batch_first=True)
        self.gated, self.out = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.down = nn.Conv2d(width, width, 3, stride=2)

    def embedding(self, steps: Tensor) -> Tensor:
        half = self.width // 2
        exponents = -math.log(10000) * torch.arange(start=0, end=half, dtype=torch.float32) / half
        angles = steps[:, None].float() * torch.exp(exponents)[None, :]
        waves = torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1)
        return torch.cat([waves[:, half:], waves[:, :half]], dim=-1)

    def forward(self, sample: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        x = self.enter(sample)
        steps = timestep.expand(sample.shape[0])
        scale, shift = self.time(self.embedding(steps))[:, :, None, None].chunk(2, dim=1)
        y = functional.silu(self.norms[0](x) * (1 + scale) + shift)
        x = x + self.convolution(y)
        batch, width, rows, columns = x.shape
        cells = self.norms[1](x).permute(0, 2, 3, 1).reshape(batch, rows * columns, width)
        cells = cells + self.cross(cells, context, context, need_weights=False)[0]
        values, gate = self.gated(cells).chunk(2, dim=-1)
        cells = cells + self.out(values * functional.gelu(gate))
        x = x + cells.reshape(batch, rows, columns, width).permute(0, 3, 1, 2).contiguous()
        small = self.down(functional.pad(x, (0, 1, 0, 1), mode="constant", value=0))
        large = functional.interpolate(small, scale_factor=2.0, mode="nearest")
        return self.leave(large)


def diffusion_inputs(batch: int, size: int, length: int) -> Inputs:
    return {
        "sample": torch.randn(batch, 4, size, size),
        "timestep": torch.tensor([37]),
        "context": torch.randn(batch, length, 16),
    }


class QuantizingAutoencoder(nn.Module):
    """VQ-VAE: the nearest entry of a code book by cdist and argmin, decoded again."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 8, 4, 2, 1))
        self.book = nn.Embedding(24, 8)
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(8, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Sigmoid()
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.encode(images)
        cells = x.permute(0, 2, 3, 1)
        codes = torch.cdist(cells.reshape(1, -1, 8), self.book.weight[None]).squeeze(0).argmin(dim=-1)
        found = self.book(codes).view(cells.shape).permute(0, 3, 1, 2)
        return self.decode(x + (found - x)), codes.view(images.shape[0], -1)


_SEEN = {"images": PICTURE}

ARCHITECTURES = (
    Architecture("restorer", Restorer, pictures("images"), ((2, 16, 24), (1, 20, 12)), _SEEN, ("larger", "unshuffled")),
    Architecture(
        "flow",
        Flow,
        lambda *size: {"first": image(*size), "second": image(*size)},
        ((2, 32, 24), (1, 16, 40)),
        dict.fromkeys(("first", "second"), PICTURE),
        ("motion", "warped"),
    ),
    Architecture(
        "diffusion-block",
        DiffusionBlock,
        diffusion_inputs,
        ((2, 16, 5), (1, 12, 9)),
        {"sample": PICTURE, "context": {0: "batch", 1: "length"}},
        ("noise",),
    ),
    Architecture(
        "quantizing-autoencoder",
        QuantizingAutoencoder,
        pictures("images"),
        ((2, 32, 32), (1, 16, 24)),
        _SEEN,
        ("images_again", "codes"),
    ),
)
