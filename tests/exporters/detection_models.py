"""Detectors: grids decoded, anchors decoded and sorted, queries that attend."""

from __future__ import annotations

import math

import torch
from architecture import PICTURE, Architecture, pictures
from image_models import convolution
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 4


class SplitBlock(nn.Module):
    """YOLOv8's block: half of the channels through a bottleneck, every stage kept."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter = convolution(channels, channels, 1, activation=nn.SiLU())
        self.first = convolution(channels // 2, channels // 2, activation=nn.SiLU())
        self.leave = convolution(channels + channels // 2, channels, 1, activation=nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.enter(x).chunk(2, 1))
        parts.append(self.first(parts[-1]))
        return self.leave(torch.cat(parts, 1))


class GridDetector(nn.Module):
    """YOLO: two levels, spatial pyramid pooling, boxes as distributions over distances from the cells of a grid."""

    def __init__(self, bins: int = 4) -> None:
        super().__init__()
        self.bins = bins
        self.stem = nn.Sequential(convolution(3, 16, 3, 4, activation=nn.SiLU()), convolution(16, 16, 3, 2))
        self.near, self.down = SplitBlock(16), convolution(16, 32, 3, 2, activation=nn.SiLU())
        self.far, self.pool = SplitBlock(32), nn.MaxPool2d(5, 1, 2)
        self.squeeze, self.join = convolution(32 * 3, 16, 1), SplitBlock(32)
        self.heads = nn.ModuleList(nn.Conv2d(width, 4 * bins + CLASSES, 1) for width in (32, 16))

    def forward(self, images: Tensor) -> Tensor:
        near = self.near(self.stem(images))
        far = self.far(self.down(near))
        once = self.pool(far)
        far = self.squeeze(torch.cat([far, once, self.pool(once)], 1))
        upsampled = functional.interpolate(far, scale_factor=2.0, mode="nearest")
        features = (self.join(torch.cat([upsampled, near], 1)), far)
        levels = [head(x) for head, x in zip(self.heads, features, strict=True)]
        points, strides = [], []
        for level, stride in zip(levels, (8, 16), strict=True):
            rows, columns = level.shape[-2:]
            y, x = torch.meshgrid(torch.arange(rows) + 0.5, torch.arange(columns) + 0.5, indexing="ij")
            points.append(torch.stack((x, y), -1).view(-1, 2))
            strides.append(torch.full((rows * columns, 1), stride, dtype=torch.float32))
        centres, scale = torch.cat(points).transpose(0, 1), torch.cat(strides).transpose(0, 1)
        flat = torch.cat([level.view(level.shape[0], 4 * self.bins + CLASSES, -1) for level in levels], 2)
        sides, scores = flat.split((4 * self.bins, CLASSES), 1)
        batch, _, cells = sides.shape
        shares = sides.view(batch, 4, self.bins, cells).transpose(2, 1).softmax(1)
        distance = (shares * torch.arange(self.bins, dtype=torch.float32).view(1, -1, 1, 1)).sum(1)
        before, after = distance.chunk(2, 1)
        low, high = centres.unsqueeze(0) - before, centres.unsqueeze(0) + after
        boxes = torch.cat(((low + high) / 2, high - low), 1) * scale
        return torch.cat((boxes, scores.sigmoid()), 1)


class AnchorGridDetector(nn.Module):
    """YOLOv5: the five-dimensional view, anchors times grid cells, written into slices of the prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(3, 16, 6, 4), convolution(16, 24, 3, 2, activation=nn.LeakyReLU(0.1)))
        self.head = nn.Conv2d(24, 3 * (5 + CLASSES), 1)
        self.register_buffer("anchors", torch.tensor([[10.0, 13.0], [16.0, 30.0], [33.0, 23.0]]).view(1, 3, 1, 1, 2))

    def forward(self, images: Tensor) -> Tensor:
        x = self.head(self.stem(images))
        batch, _, rows, columns = x.shape
        x = x.view(batch, 3, 5 + CLASSES, rows, columns).permute(0, 1, 3, 4, 2).contiguous()
        y, z = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        grid = torch.stack((z, y), 2).expand((1, 3, rows, columns, 2)).float()
        prediction = x.sigmoid()
        prediction[..., 0:2] = (prediction[..., 0:2] * 2.0 - 0.5 + grid) * 8
        prediction[..., 2:4] = (prediction[..., 2:4] * 2) ** 2 * self.anchors
        return prediction.view(batch, -1, 5 + CLASSES)


class SingleShotDetector(nn.Module):
    """SSD: anchors made for the grid, offsets decoded with exp, the best by topk, gathered, clipped to the picture."""

    def __init__(self, best: int = 12) -> None:
        super().__init__()
        self.best = best
        self.stem = nn.Sequential(convolution(3, 16, 3, 4, activation=nn.ReLU6()), convolution(16, 16, 3, 2))
        self.further = convolution(16, 24, 3, 2)
        self.offsets = nn.ModuleList(nn.Conv2d(width, 8, 3, padding=1) for width in (16, 24))
        self.scores = nn.ModuleList(nn.Conv2d(width, 2 * CLASSES, 3, padding=1) for width in (16, 24))

    def anchors(self, level: Tensor, stride: int) -> Tensor:
        rows, columns = level.shape[-2:]
        shifts_y, shifts_x = torch.meshgrid(
            torch.arange(rows, dtype=torch.float32) * stride,
            torch.arange(columns, dtype=torch.float32) * stride,
            indexing="ij",
        )
        shifts = torch.stack([shifts_x, shifts_y, shifts_x, shifts_y], dim=-1).reshape(-1, 1, 4)
        sides = torch.tensor([[-1.0, -1.0, 1.0, 1.0], [-2.0, -1.0, 2.0, 1.0]]) * stride
        return (shifts + sides[None]).reshape(-1, 4)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        near = self.stem(images)
        levels = [near, self.further(near)]
        anchors = torch.cat([self.anchors(level, stride) for level, stride in zip(levels, (8, 16), strict=True)])
        batch = images.shape[0]
        offsets, scores = (
            torch.cat(
                [head(x).permute(0, 2, 3, 1).reshape(batch, -1, size) for head, x in zip(heads, levels, strict=True)], 1
            )
            for heads, size in ((self.offsets, 4), (self.scores, CLASSES))
        )
        size = anchors[:, 2:] - anchors[:, :2]
        centre = anchors[:, :2] + 0.5 * size + offsets[..., :2] / 10 * size
        extent = torch.exp(torch.clamp(offsets[..., 2:] / 5, max=math.log(1000.0 / 16))) * size
        boxes = torch.cat([centre - 0.5 * extent, centre + 0.5 * extent], dim=-1)
        boxes = torch.stack(
            [
                boxes[..., 0::2].clamp(min=0, max=images.shape[3]),
                boxes[..., 1::2].clamp(min=0, max=images.shape[2]),
            ],
            dim=3,
        ).flatten(2)
        confidence, labels = functional.softmax(scores, dim=-1)[..., 1:].max(dim=-1)
        confidence, chosen = confidence.topk(self.best, dim=1)
        boxes = torch.gather(boxes, 1, chosen.unsqueeze(-1).expand(-1, -1, 4))
        return boxes, confidence, torch.gather(labels, 1, chosen) + 1


class QueryDetector(nn.Module):
    """DETR: sine positions from cumulative sums of a mask, learned queries, cross-attention, boxes as corners."""

    def __init__(self, width: int = 32, queries: int = 6) -> None:
        super().__init__()
        self.width = width
        self.stem = nn.Sequential(convolution(3, 16, 3, 4), convolution(16, width, 3, 4))
        self.queries = nn.Embedding(queries, width)
        self.encode = nn.TransformerEncoderLayer(width, 4, 48, batch_first=True)
        self.own = nn.MultiheadAttention(width, 4, batch_first=True)
        self.cross = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.label = nn.Linear(width, CLASSES + 1)
        self.box = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 4))

    def positions(self, inside: Tensor) -> Tensor:
        rows, columns = inside.cumsum(1, dtype=torch.float32), inside.cumsum(2, dtype=torch.float32)
        rows = rows / (rows[:, -1:, :] + 1e-6) * 2 * math.pi
        columns = columns / (columns[:, :, -1:] + 1e-6) * 2 * math.pi
        half = self.width // 2
        powers = torch.arange(half, dtype=torch.float32)
        powers = 10000 ** (2 * torch.div(powers, 2, rounding_mode="floor") / half)
        waves = []
        for angles in (rows[..., None] / powers, columns[..., None] / powers):
            waves.append(torch.stack((angles[..., 0::2].sin(), angles[..., 1::2].cos()), dim=4).flatten(3))
        return torch.cat(waves, dim=3).flatten(1, 2)

    def forward(self, images: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.stem(images)
        inside = functional.interpolate(mask[:, None].float(), size=x.shape[-2:], mode="nearest")[:, 0].to(torch.bool)
        positions = self.positions(inside)
        outside = ~inside.flatten(1)
        memory = self.encode(x.flatten(2).permute(0, 2, 1) + positions, src_key_padding_mask=outside)
        queries = self.queries.weight.unsqueeze(0).repeat(x.shape[0], 1, 1)
        target = torch.zeros_like(queries)
        placed = target + queries
        target = self.norms[0](target + self.own(placed, placed, target)[0])
        found, weights = self.cross(target + queries, memory + positions, memory, key_padding_mask=outside)
        target = self.norms[1](target + found)
        centre_x, centre_y, wide, high = self.box(target).sigmoid().unbind(-1)
        corners = [centre_x - 0.5 * wide, centre_y - 0.5 * high, centre_x + 0.5 * wide, centre_y + 0.5 * high]
        return self.label(target), torch.stack(corners, dim=-1), weights


def masked_pictures(batch: int, height: int, width: int) -> dict[str, Tensor]:
    mask = torch.ones(batch, height, width, dtype=torch.bool)
    mask[-1, height // 2 :] = False
    return {**pictures("images")(batch, height, width), "mask": mask}


class PromptedSegmenter(nn.Module):
    """SAM's decoder: points as random Fourier features, tokens and cells attending to each other, masks as products."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.register_buffer("gaussian", torch.randn(2, width // 2))
        self.kinds = nn.ModuleList(nn.Embedding(1, width) for _ in range(2))
        self.outside = nn.Embedding(1, width)
        self.tokens = nn.Embedding(3, width)
        self.encode = nn.Sequential(convolution(3, 16, 3, 4), nn.Conv2d(16, width, 3, 2, 1))
        self.to_cells = nn.MultiheadAttention(width, 4, batch_first=True)
        self.to_tokens = nn.MultiheadAttention(width, 4, batch_first=True)
        self.upscale = nn.Sequential(nn.ConvTranspose2d(width, 8, 2, 2), nn.GELU())
        self.hyper, self.quality = nn.Linear(width, 8), nn.Linear(width, 3)

    def place(self, coordinates: Tensor) -> Tensor:
        angles = 2 * math.pi * ((2 * coordinates - 1) @ self.gaussian)
        return torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1)

    def forward(self, images: Tensor, points: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        cells = self.encode(images)
        batch, width, rows, columns = cells.shape
        size = torch.stack([torch.tensor(images.shape[3]), torch.tensor(images.shape[2])]).float()
        placed = self.place((points + 0.5) / size)
        chosen = labels.unsqueeze(-1)
        placed = placed * (chosen != -1).float() + self.outside.weight * (chosen == -1).float()
        for kind, embedding in enumerate(self.kinds):
            placed = placed + embedding.weight * (chosen == kind).float()
        tokens = torch.cat([self.tokens.weight.unsqueeze(0).expand(batch, -1, -1), placed], dim=1)
        ones = torch.ones(rows, columns)
        grid = torch.stack([(ones.cumsum(1) - 0.5) / columns, (ones.cumsum(0) - 0.5) / rows], dim=-1)
        flat = cells.flatten(2).permute(0, 2, 1)
        where = self.place(grid).flatten(0, 1)
        tokens = tokens + self.to_cells(tokens, flat + where, flat, need_weights=False)[0]
        flat = flat + self.to_tokens(flat + where, tokens, tokens, need_weights=False)[0]
        large = self.upscale(flat.transpose(1, 2).view(batch, width, rows, columns))
        masks = self.hyper(tokens[:, 1:3]) @ large.flatten(2)
        masks = masks.view(batch, 2, 2 * rows, 2 * columns)
        masks = functional.interpolate(masks, images.shape[-2:], mode="bilinear", align_corners=False)
        return masks > 0.0, self.quality(tokens[:, 0])


SIZES = ((2, 64, 64), (1, 96, 64))
_SEEN = {"images": PICTURE}

ARCHITECTURES = (
    Architecture("grid-detector", GridDetector, pictures("images"), SIZES, _SEEN, ("predictions",)),
    Architecture("anchor-grid-detector", AnchorGridDetector, pictures("images"), SIZES, _SEEN, ("predictions",)),
    Architecture(
        "single-shot-detector", SingleShotDetector, pictures("images"), SIZES, _SEEN, ("boxes", "confidence", "labels")
    ),
    Architecture(
        "query-detector",
        QueryDetector,
        masked_pictures,
        SIZES,
        {"images": PICTURE, "mask": {0: "batch", 1: "height", 2: "width"}},
        ("logits", "boxes", "weights"),
    ),
    Architecture(
        "prompted-segmenter",
        PromptedSegmenter,
        lambda batch, height, width, points: {
            **pictures("images")(batch, height, width),
            "points": 32 * torch.rand(batch, points, 2),
            "labels": torch.randint(-1, 2, (batch, points)),
        },
        ((2, 32, 64, 3), (1, 48, 32, 5)),
        {"images": PICTURE, "points": {0: "batch", 1: "points"}, "labels": {0: "batch", 1: "points"}},
        ("masks", "quality"),
    ),
)
