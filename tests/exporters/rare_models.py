"""What fewer models are made of: spectra, three dimensions, masks by compilation, decoding loops."""

from __future__ import annotations

import torch
from architecture import BATCH_LENGTH, BATCH_ONLY, PICTURE, Architecture, image, tokens
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, SHARED_HEADS = 32, 4, 2
HEAD = WIDTH // HEADS


class BytePictures(nn.Module):
    """Pictures as they come from a camera: bytes, channels last, and bytes again."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("deviation", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 4, 1))

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        x = frames.permute(0, 3, 1, 2).float() / 255.0
        small = functional.interpolate(x, size=(24, 24), mode="bilinear", align_corners=False)
        scores = self.layers((small - self.mean) / self.deviation)
        mask = functional.interpolate(scores, size=frames.shape[1:3], mode="nearest").argmax(1).to(torch.uint8)
        shown = torch.where(mask.unsqueeze(-1) == 1, frames, frames // 2)
        return mask, (x * 255.0).round().clamp(0, 255).to(torch.uint8).flip(1) + shown.permute(0, 3, 1, 2) // 4


class Antialiased(nn.Module):
    """Pictures shrunk with antialiasing, linear and cubic, and grown to the nearest, exactly."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        linear = functional.interpolate(images, size=(9, 7), mode="bilinear", antialias=True, align_corners=False)
        cubic = functional.interpolate(images, size=(9, 7), mode="bicubic", antialias=True, align_corners=False)
        return linear, cubic, functional.interpolate(linear, size=images.shape[2:], mode="nearest-exact")


class Pyramid(nn.Module):
    """Pooling to grids, pooling with places, patches taken apart and put together, every padding."""

    def __init__(self) -> None:
        super().__init__()
        self.circular = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular")
        self.fold = nn.Fold((8, 12), (2, 2), stride=2)
        self.unfold = nn.Unfold((2, 2), stride=2)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        x = self.circular(images)
        grids = torch.cat([functional.adaptive_avg_pool2d(x, size).flatten(2) for size in ((1, 1), (2, 2), (4, 6))], 2)
        largest, places = functional.max_pool2d(x, 2, return_indices=True)
        patches = self.unfold(x) * 0.5
        padded = functional.pad(functional.pad(x, (1, 2, 0, 3), mode="reflect"), (2, 1, 1, 0), value=0.3)
        cropped = functional.pad(padded, (-1, -2, -1, 0))
        return grids, largest, places, self.fold(patches), functional.max_pool1d(cropped.flatten(2), 3, 2, dilation=2)


class Volume(nn.Module):
    """Three dimensions: trilinear resizing, sampling by an affine grid in two and three."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.turn_volume = nn.Linear(4, 6), nn.Linear(4, 12)

    def forward(self, volume: Tensor, pose: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        resized = functional.interpolate(volume, size=(5, 7, 6), mode="trilinear", align_corners=False)
        flat = volume[:, :, 0]
        grid = functional.affine_grid(self.turn(pose).view(-1, 2, 3), [2, 3, 6, 8], align_corners=False)
        turned = functional.grid_sample(flat, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        grid = functional.affine_grid(self.turn_volume(pose).view(-1, 3, 4), [2, 3, 4, 6, 5], align_corners=True)
        nearest = functional.grid_sample(volume, grid, mode="nearest", padding_mode="border", align_corners=True)
        return resized, turned, nearest


class FourierOperator(nn.Module):
    """A Fourier neural operator: low frequencies of a real transform times complex weights, and back."""

    def __init__(self, modes: int = 4) -> None:
        super().__init__()
        self.modes = modes
        self.lift, self.beside, self.project = nn.Linear(2, 8), nn.Conv1d(8, 8, 1), nn.Linear(8, 1)
        self.real, self.imaginary = (nn.Parameter(torch.randn(8, 8, modes) / 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        place = torch.linspace(0, 1, 16).view(1, 16, 1).expand(x.shape[0], 16, 1)
        y = self.lift(torch.cat([x, place], dim=-1)).permute(0, 2, 1)
        spectrum = torch.view_as_real(torch.fft.rfft(y))[:, :, : self.modes]
        real = torch.einsum("bix,iox->box", spectrum[..., 0], self.real)
        real = real - torch.einsum("bix,iox->box", spectrum[..., 1], self.imaginary)
        imaginary = torch.einsum("bix,iox->box", spectrum[..., 0], self.imaginary)
        imaginary = imaginary + torch.einsum("bix,iox->box", spectrum[..., 1], self.real)
        low = functional.pad(torch.stack([real, imaginary], dim=-1), (0, 0, 0, 9 - self.modes))
        y = functional.gelu(torch.fft.irfft(torch.view_as_complex(low), n=16) + self.beside(y))
        return self.project(y.permute(0, 2, 1))


class FusedDecoder(nn.Module):
    """A decoder of torch's own fused functions: rms_norm, attention that is causal and shares heads."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(64, WIDTH), nn.RMSNorm(WIDTH, eps=1e-6)
        self.query, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.key, self.value = (nn.Linear(WIDTH, SHARED_HEADS * HEAD) for _ in range(2))

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        y = self.norm(x)
        query, key, value = (
            project(y).unflatten(-1, (heads, HEAD)).transpose(1, 2)
            for project, heads in ((self.query, HEADS), (self.key, SHARED_HEADS), (self.value, SHARED_HEADS))
        )
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return functional.linear(x + self.out(y.transpose(1, 2).flatten(2)), self.embed.weight)


class OnnxOperators(FusedDecoder):
    """The same through torch.onnx.ops: ONNX's RotaryEmbedding, and its Attention with a cache and a soft cap."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(24)[:, None] / 100 ** (torch.arange(HEAD // 2) * 2 / HEAD)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, position_ids: Tensor, past_key: Tensor, past_value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = self.embed(input_ids)
        y = self.norm(x)
        turned = [
            torch.onnx.ops.rotary_embedding(rows, self.cosine, self.sine, position_ids, num_heads=heads)
            for rows, heads in ((self.query(y), HEADS), (self.key(y), SHARED_HEADS))
        ]
        y, present_key, present_value, _ = torch.onnx.ops.attention(
            *turned,
            self.value(y),
            past_key=past_key,
            past_value=past_value,
            is_causal=True,
            q_num_heads=HEADS,
            kv_num_heads=SHARED_HEADS,
            softcap=5.0,
        )
        return functional.linear(x + self.out(y), self.embed.weight), present_key, present_value


class Reductions(nn.Module):
    """Scattering that adds, multiplies or takes the largest, writing through indices, masked writing."""

    def forward(self, x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        largest = torch.zeros(5, 4).scatter_reduce(0, index[:, None].expand(-1, 4), x, "amax", include_self=False)
        product = torch.ones(5, 4).scatter_reduce(0, index[:, None].expand(-1, 4), x, "prod")
        added = torch.zeros(5, 4).index_put((index,), x, accumulate=True)
        placed = torch.zeros(5, 4).index_copy(0, torch.tensor([3, 1]), x[:2])
        rows = x.clone()
        rows[index == 2] = -1.0
        pairs = x[torch.arange(x.shape[0])[:, None], torch.tensor([[2, 0]])]
        filled = x.index_fill(1, torch.tensor([1, 3]), 0.5)
        taken = torch.take_along_dim(x, x.argsort(dim=1, descending=True), dim=1)
        middle = x.sort(dim=0).values[x.shape[0] // 2]
        return largest, product, added, placed, rows, pairs, filled, taken, middle


class ScriptedList(nn.Module):
    """A recurrent network as it is written for torch.jit.script: states kept in a list, and stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(8 + 12, 12)

    def forward(self, frames: Tensor) -> Tensor:
        state = torch.zeros([frames.size(1), 12])
        states: list[Tensor] = []
        for step in range(frames.size(0)):
            state = torch.tanh(self.cell(torch.cat([frames[step], state], dim=1)))
            states.append(state)
        return torch.stack(states)


class ScriptedSuppression(nn.Module):
    """Non-maximum suppression as a loop over boxes in order of score."""

    def forward(self, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        order = torch.argsort(scores, descending=True)
        boxes = boxes[order]
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        alive = torch.ones([boxes.size(0)], dtype=torch.bool)
        for place in range(boxes.size(0)):
            if bool(alive[place]):
                low = torch.max(boxes[:, :2], boxes[place, :2])
                high = torch.min(boxes[:, 2:], boxes[place, 2:])
                shared = (high - low).clamp(min=0).prod(dim=1)
                overlap = shared / (area + area[place] - shared)
                later = torch.arange(boxes.size(0)) > place
                alive = alive & ~((overlap > 0.4) & later)
        return order[alive], boxes[alive]


def scattered_boxes(count: int) -> dict[str, Tensor]:
    corner = 10 * torch.rand(count, 2)
    return {"boxes": torch.cat([corner, corner + 2 + 4 * torch.rand(count, 2)], 1), "scores": torch.rand(count)}


class ScriptedBeam(nn.Module):
    """Beam search: scores of all beams and tokens ranked together, beams gathered, until every beam has ended."""

    def __init__(self, vocabulary: int = 11, beams: int = 3) -> None:
        super().__init__()
        self.vocabulary, self.beams = vocabulary, beams
        self.embed, self.cell, self.head = nn.Embedding(vocabulary, 8), nn.Linear(16, 8), nn.Linear(8, vocabulary)

    def forward(self, state: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
        beams = self.beams
        states = state.expand(beams, state.size(1))
        found = torch.ones([beams, 1], dtype=torch.long)
        total = torch.full([beams], -1e9)
        total[0] = 0.0
        ended = torch.zeros([beams], dtype=torch.bool)
        step = 0
        while step < int(limit) and not bool(ended.all()):
            states = torch.tanh(self.cell(torch.cat([self.embed(found[:, -1]), states], dim=1)))
            scores = torch.log_softmax(self.head(states), dim=1)
            ending = torch.full_like(scores, float("-inf"))
            ending[:, 0] = 0.0
            scores = torch.where(ended.unsqueeze(1), ending, scores)
            ranked, places = torch.topk((total.unsqueeze(1) + scores).view(-1), beams)
            beam = torch.div(places, self.vocabulary, rounding_mode="floor")
            token = places % self.vocabulary
            total, states = ranked, states[beam]
            found = torch.cat([found[beam], token.unsqueeze(1)], dim=1)
            ended = ended[beam] | (token == 0)
            step += 1
        return found, total


class WhileLoop(nn.Module):
    """torch.while_loop, as torch.export keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        from torch._higher_order_ops.while_loop import while_loop

        def going(count: Tensor, x: Tensor) -> Tensor:
            return (count < 9) & (x.abs().sum() > 1.0)

        def step(count: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return count + 1, torch.tanh(self.linear(x)) * 0.7

        count, last = while_loop(going, step, (torch.tensor(0), x))
        return count, last


ARCHITECTURES = (
    Architecture(
        "byte-pictures",
        BytePictures,
        lambda batch, height, width: {"frames": torch.randint(0, 256, (batch, height, width, 3), dtype=torch.uint8)},
        ((2, 40, 48), (1, 30, 20)),
        {"frames": {0: "batch", 1: "height", 2: "width"}},
        ("mask", "pictures"),
    ),
    Architecture(
        "antialiased",
        Antialiased,
        lambda *size: {"images": image(*size)},
        ((2, 24, 32), (1, 40, 18)),
        {"images": PICTURE},
        ("linear", "cubic", "nearest"),
    ),
    Architecture(
        "pyramid",
        Pyramid,
        lambda batch: {"images": image(batch, 8, 12)},
        ((2,), (1,)),
        {"images": BATCH_ONLY},
        ("grids", "largest", "places", "folded", "narrow"),
    ),
    Architecture(
        "volume",
        Volume,
        lambda depth: {"volume": torch.randn(2, 3, depth, 6, 8), "pose": 0.5 * torch.randn(2, 4)},
        ((4,), (6,)),
        {"volume": {2: "depth"}},
        ("resized", "turned", "nearest"),
    ),
    Architecture(
        "fourier-operator",
        FourierOperator,
        lambda batch: {"x": torch.randn(batch, 16, 1)},
        ((2,), (1,)),
        {"x": BATCH_ONLY},
        ("y",),
    ),
    Architecture(
        "fused-decoder",
        FusedDecoder,
        lambda batch, length: {"input_ids": tokens(batch, length)},
        ((2, 7), (1, 12)),
        {"input_ids": BATCH_LENGTH},
        ("logits",),
    ),
    Architecture(
        "onnx-operators",
        OnnxOperators,
        lambda batch, past, new: {
            "input_ids": tokens(batch, new),
            "position_ids": torch.arange(past, past + new).expand(batch, -1).contiguous(),
            "past_key": torch.randn(batch, SHARED_HEADS, past, HEAD),
            "past_value": torch.randn(batch, SHARED_HEADS, past, HEAD),
        },
        ((2, 5, 3), (1, 9, 1), (1, 0, 6)),
        {
            "input_ids": BATCH_LENGTH,
            "position_ids": BATCH_LENGTH,
            "past_key": {0: "batch", 2: "past"},
            "past_value": {0: "batch", 2: "past"},
        },
        ("logits", "present_key", "present_value"),
        ("dynamo",),
    ),
    Architecture(
        "reductions",
        Reductions,
        lambda rows: {"x": torch.randn(rows, 4), "index": torch.randint(0, 5, (rows,))},
        ((7,), (12,)),
        {"x": {0: "rows"}, "index": {0: "rows"}},
        ("largest", "product", "added", "placed", "rows_written", "pairs", "filled", "taken", "middle"),
    ),
    Architecture(
        "scripted-list",
        lambda: torch.jit.script(ScriptedList()),
        lambda length, batch: {"frames": torch.randn(length, batch, 8)},
        ((5, 2), (8, 1)),
        {"frames": {0: "length", 1: "batch"}},
        ("states",),
        ("torchscript",),
    ),
    Architecture(
        "scripted-suppression",
        lambda: torch.jit.script(ScriptedSuppression()),
        scattered_boxes,
        ((9,), (15,)),
        {"boxes": {0: "boxes"}, "scores": {0: "boxes"}},
        ("kept", "boxes_kept"),
        ("torchscript",),
    ),
    Architecture(
        "scripted-beam",
        lambda: torch.jit.script(ScriptedBeam()),
        lambda limit: {"state": torch.randn(1, 8), "limit": torch.tensor(limit)},
        ((6,), (12,)),
        {},
        ("found", "total"),
        ("torchscript",),
    ),
    Architecture(
        "while-loop",
        WhileLoop,
        lambda batch: {"x": torch.randn(batch, 6)},
        ((3,), (1,)),
        {"x": BATCH_ONLY},
        ("count", "last"),
        ("dynamo",),
    ),
)
