"""Whatever is left: dual encoders, flows, graphs and points, rarely exported operators, control flow."""

from __future__ import annotations

import torch
from architecture import BATCH_ONLY, Architecture, image, tokens
from image_models import convolution
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 32


class DualEncoder(nn.Module):
    """CLIP: a picture and a text in one space; the text's vector stands at its highest token number."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, 8, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(WIDTH))
        self.positions = nn.Embedding(17, WIDTH)
        self.register_buffer("position_ids", torch.arange(17).expand((1, -1)))
        self.embed, self.text_positions = nn.Embedding(64, WIDTH), nn.Parameter(0.1 * torch.randn(16, WIDTH))
        self.see, self.read = (
            nn.TransformerEncoderLayer(WIDTH, 4, 64, 0.0, self.quick_gelu, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.to_shared = nn.ModuleList(nn.Linear(WIDTH, 24, bias=False) for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(2.6592))

    @staticmethod
    def quick_gelu(x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)

    def forward(self, pixel_values: Tensor, input_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch = pixel_values.shape[0]
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_embedding.expand(batch, 1, -1), x], dim=1) + self.positions(self.position_ids)
        seen = self.to_shared[0](self.see(x)[:, 0])
        length = input_ids.shape[1]
        causal = torch.full((length, length), float("-inf")).triu(1)
        y = self.read(self.embed(input_ids) + self.text_positions[:length], src_mask=causal)
        read = self.to_shared[1](y[torch.arange(y.shape[0]), input_ids.argmax(dim=-1)])
        seen = seen / seen.norm(dim=-1, keepdim=True)
        read = functional.normalize(read, dim=-1)
        logits = self.scale.exp() * read @ seen.t()
        return logits, logits.t(), read


class NormalizingFlow(nn.Module):
    """VITS and RealNVP: affine coupling on half of the channels, a 1x1 convolution, a rational-quadratic spline."""

    def __init__(self, channels: int = 8, bins: int = 5) -> None:
        super().__init__()
        self.bins = bins
        self.enter, self.gated = nn.Conv1d(channels // 2, WIDTH, 1), nn.Conv1d(WIDTH, 2 * WIDTH, 3, padding=1)
        self.leave = nn.Conv1d(WIDTH, channels, 1)
        self.mix = nn.Parameter(torch.linalg.qr(torch.randn(channels, channels))[0])
        self.spline = nn.Conv1d(channels // 2, channels // 2 * (3 * bins - 1), 1)

    def coupled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = torch.chunk(x, 2, 1)
        wide, gate = self.gated(self.enter(first)).split(WIDTH, dim=1)
        mean, log_scale = self.leave(torch.tanh(wide) * torch.sigmoid(gate)).chunk(2, 1)
        second = mean + second * torch.exp(0.1 * log_scale)
        return torch.flip(torch.cat([first, second], 1), [1]), torch.sum(0.1 * log_scale, [1, 2])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, determinant = self.coupled(x)
        x = functional.conv1d(x, self.mix[..., None])
        first, second = x.chunk(2, 1)
        batch, channels, length = first.shape
        shape = self.spline(first).reshape(batch, channels, -1, length).permute(0, 1, 3, 2)
        widths, heights, slopes = shape.split([self.bins, self.bins, self.bins - 1], dim=-1)
        edges, levels = (self.edges(part) for part in (widths, heights))
        slopes = functional.pad(0.1 + functional.softplus(slopes), (1, 1), value=1.0)
        inside = (second >= -3.0) & (second <= 3.0)
        place = torch.clamp(second, -3.0, 3.0)
        number = (torch.sum(place[..., None] >= edges, dim=-1) - 1).clamp(0, self.bins - 1)[..., None]
        left, low = edges.gather(-1, number)[..., 0], levels.gather(-1, number)[..., 0]
        width = (edges[..., 1:] - edges[..., :-1]).gather(-1, number)[..., 0]
        height = (levels[..., 1:] - levels[..., :-1]).gather(-1, number)[..., 0]
        before, after = slopes.gather(-1, number)[..., 0], slopes[..., 1:].gather(-1, number)[..., 0]
        part, slope = (place - left) / width, height / width
        mixed = part * (1 - part)
        bent = low + height * (slope * part.pow(2) + before * mixed) / (slope + (before + after - 2 * slope) * mixed)
        return torch.cat([first, torch.where(inside, bent, second)], 1), determinant

    @staticmethod
    def edges(shares: Tensor) -> Tensor:
        shares = 1e-3 + (1 - 1e-3 * shares.shape[-1]) * functional.softmax(shares, dim=-1)
        return 6.0 * functional.pad(torch.cumsum(shares, dim=-1), (1, 0), value=0.0) - 3.0


class GraphNetwork(nn.Module):
    """Messages along edges: gathered, added up at their targets, attention normalised over each target's edges."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.out = nn.Linear(6, 16, bias=False), nn.Linear(16, 4)
        self.score = nn.Linear(32, 1, bias=False)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        x = self.enter(nodes)
        source, target = edges[0], edges[1]
        degree = torch.zeros(x.size(0)).scatter_add(0, target, torch.ones_like(target, dtype=x.dtype))
        scale = degree.clamp(min=1).pow(-0.5)
        sent, received = x.index_select(0, source), x.index_select(0, target)
        score = functional.leaky_relu(self.score(torch.cat([sent, received], -1)), 0.2).exp()
        total = torch.zeros(x.size(0), 1).scatter_add(0, target.unsqueeze(-1), score)
        message = sent * score / (total[target] + 1e-8) * (scale[source] * scale[target]).unsqueeze(-1)
        gathered = torch.zeros_like(x).scatter_add(0, target.unsqueeze(-1).expand(-1, 16), message)
        return self.out(functional.elu(x + gathered)).log_softmax(-1)


def ring(nodes: int, extra: int) -> dict[str, Tensor]:
    around = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
    return {"nodes": torch.randn(nodes, 6), "edges": torch.cat([around, torch.randint(0, nodes, (2, extra))], 1)}


class PointNetwork(nn.Module):
    """DGCNN: the nearest neighbours of each point by topk of distances, edge features, max and mean pooling."""

    def __init__(self, neighbours: int = 4) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.edge = convolution(6, 16, 1, activation=nn.LeakyReLU(0.2))
        self.align, self.head = nn.Linear(16, 9), nn.Linear(32, 5)

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        batch, _, count = points.shape
        inner = -2 * torch.matmul(points.transpose(2, 1), points)
        square = torch.sum(points**2, dim=1, keepdim=True)
        index = (-square - inner - square.transpose(2, 1)).topk(k=self.neighbours, dim=-1)[1]
        index = (index + torch.arange(0, batch).view(-1, 1, 1) * count).view(-1)
        flat = points.transpose(2, 1).contiguous().view(batch * count, -1)
        near = flat[index, :].view(batch, count, self.neighbours, 3)
        centre = flat.view(batch, count, 1, 3).repeat(1, 1, self.neighbours, 1)
        x = self.edge(torch.cat((near - centre, centre), dim=3).permute(0, 3, 1, 2).contiguous()).max(dim=-1)[0]
        pooled = torch.cat([functional.adaptive_max_pool1d(x, 1).squeeze(-1), x.mean(-1)], 1)
        turn = self.align(pooled[:, :16]).view(-1, 3, 3) + torch.eye(3)
        return self.head(pooled), torch.bmm(turn, points)


class Recommender(nn.Module):
    """DLRM and DeepFM: bags of embeddings, products of pairs below the diagonal, a wide part."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, 8) for _ in range(3))
        self.bag = nn.EmbeddingBag(30, 8, mode="sum")
        self.dense, self.top = nn.Linear(5, 8), nn.Sequential(nn.Linear(8 + 10, 16), nn.Mish(), nn.Linear(16, 1))
        rows, columns = torch.tril_indices(5, 5, -1)
        self.register_buffer("rows", rows)
        self.register_buffer("columns", columns)

    def forward(self, dense: Tensor, sparse: Tensor, history: Tensor) -> Tensor:
        x = functional.selu(self.dense(dense))
        parts = [x, *(table(sparse[:, place]) for place, table in enumerate(self.tables)), self.bag(history)]
        stacked = torch.stack(parts, dim=1)
        pairs = torch.bmm(stacked, stacked.transpose(1, 2))[:, self.rows, self.columns]
        wide = 0.5 * (stacked.sum(1) ** 2 - (stacked**2).sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.top(torch.cat([x, pairs], 1)) + 0.01 * wide).squeeze(1)


class Selections(nn.Module):
    """Sorting, gathering and scattering: what decoding and post-processing are written with."""

    def forward(self, x: Tensor, index: Tensor, keep: Tensor) -> tuple[Tensor, ...]:
        batch, length, width = x.shape
        best, places = x.topk(3, dim=1, largest=True)
        ordered, order = torch.sort(x[..., 0], dim=-1, descending=True)
        lowest, lowest_place = torch.min(x, dim=2)
        filled = x.masked_fill(~keep.unsqueeze(-1), -1e9).softmax(1)
        spread = index.unsqueeze(-1).expand(-1, -1, width)
        picked = torch.gather(x, 1, spread)
        written = torch.zeros(batch, length, width).scatter(1, spread, 2.0 * picked)
        counted = torch.zeros(batch, length).scatter_add(1, index, torch.ones_like(index, dtype=x.dtype))
        running = torch.cumsum(keep.long(), dim=1) * keep.long()
        reverse = torch.flip(torch.cumsum(torch.flip(x, [1]), 1), [1])
        rolled = torch.roll(x, 2, dims=1) + torch.tile(x.mean(1, keepdim=True), (1, length, 1))
        table = functional.one_hot(index % 5, 5).to(x.dtype) @ torch.linspace(0, 1, 5)
        changed = x.clone()
        changed[:, 1:3, ::2] = 0.25
        changed[:, -1] = changed[:, -1] + 1.0
        triangle = torch.tril(x @ x.transpose(1, 2), -1)
        return (
            *(best, places, ordered, order, lowest, lowest_place, filled, written, counted, running, reverse, rolled),
            *(table, changed, triangle),
        )


class Products(nn.Module):
    """Einsum, diagonals, outer products and norms."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        gram = torch.einsum("bik,bjk->bij", x, x)
        diagonal = torch.diagonal(gram, dim1=1, dim2=2)
        trace = torch.einsum("bii->b", gram)
        chain = torch.einsum("bij,bjk,blk->bl", gram, x, x)
        outer = torch.einsum("bi,bj->bij", x[:, 0], x[:, 1])
        rank = x.norm(p=1, dim=-1) + x.norm(dim=-1) + torch.linalg.vector_norm(x, ord=float("inf"), dim=-1)
        cosine = functional.cosine_similarity(x[:, :-1], x[:, 1:], dim=-1)
        baddbmm = torch.baddbmm(gram, x, x.transpose(1, 2), beta=0.5, alpha=2.0)
        return diagonal, trace, chain, outer, rank, cosine, baddbmm


class Arithmetic(nn.Module):
    """Elementwise and reducing functions that few models use."""

    def forward(self, x: Tensor, index: Tensor, keep: Tensor) -> tuple[Tensor, ...]:
        parts = torch.where(x > 0, torch.log1p(x.abs()), torch.exp(x.clamp(max=0)) - 1)
        angles = torch.atan(x[..., 0] / (x[..., 1].abs() + 1)) + torch.fmod(x[..., 2], 0.7)
        angles = angles + torch.remainder(x[..., 3], 0.7)
        whole = torch.div(index, 2, rounding_mode="trunc") + index % 3 + torch.div(-index, 4, rounding_mode="floor")
        bits = (index << 2) + (index >> 1)
        logic = torch.logical_xor(keep & (x[..., 0] > 0), x[..., 1].isnan() | ~keep)
        spread = torch.logsumexp(x, dim=(1, 2)) + x.std(dim=(1, 2)) + x.prod(dim=2).sum(1)
        anything = torch.cat([keep.any(1, keepdim=True), keep.all(1, keepdim=True)], 1)
        wavy = x.erf() + x.sign() * x.round() + x.ceil() - x.floor() + torch.sin(x) * torch.cos(x) + torch.tan(x / 4)
        powers = x.abs().pow(1.5) + (2.0**x) + torch.rsqrt(x.abs() + 0.1) + torch.reciprocal(x.abs() + 1)
        bent = functional.softplus(x) + functional.softsign(x) + functional.hardshrink(x) + functional.celu(x)
        extreme = torch.maximum(x, x.mean(1, keepdim=True)) - torch.minimum(x, x.amax(2, keepdim=True) / 2)
        double = (x.double() * 2.0).to(torch.int32).float() + x.half().float()
        return parts, angles, whole, bits, logic, spread, anything, wavy, powers, bent, extreme, double


SELECTION_OUTPUTS = (
    *("best", "places", "ordered", "order", "lowest", "lowest_place", "filled", "written", "counted", "running"),
    *("reversed", "rolled", "table", "changed", "triangle"),
)
ARITHMETIC_OUTPUTS = (
    *("parts", "angles", "whole", "bits", "logic", "spread", "anything", "wavy", "powers", "bent", "extreme"),
    "double",
)


def odd_inputs(batch: int, length: int) -> dict[str, Tensor]:
    index = torch.stack([torch.randperm(length)[: length - 1] for _ in range(batch)])
    return {"x": torch.randn(batch, length, 6), "index": index, "keep": torch.rand(batch, length) < 0.7}


class DataDependentShapes(nn.Module):
    """Outputs whose sizes follow the values: nonzero, boolean selection, unique."""

    def forward(self, x: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        chosen = x > threshold
        found = torch.nonzero(chosen)
        return found, x[chosen] * 2, torch.unique(torch.clamp(x * 2, -2, 2).long())


class SpectralMixing(nn.Module):
    """FNet: a Fourier transform over length and width in place of attention, only its real part kept."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.feed = nn.Embedding(64, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        x = self.norm(x + torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real)
        return x + functional.hardtanh(self.feed(x))


class ScriptedSearch(nn.Module):
    """Greedy decoding, compiled with its loop and its conditions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(24, 16), nn.Linear(32, 16), nn.Linear(16, 24)

    def forward(self, state: Tensor, steps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        token = torch.zeros([state.size(0)], dtype=torch.long)
        found = torch.zeros([state.size(0), 0], dtype=torch.long)
        total = torch.zeros([state.size(0)])
        for step in range(int(steps)):
            state = torch.tanh(self.cell(torch.cat([self.embed(token), state], dim=1)))
            scores = torch.log_softmax(self.head(state), dim=1)
            best, token = scores.max(1)
            if bool((best > -2.8).all()):
                total = total + best
            elif step > 2:
                total = total - 1.0
            else:
                total = total * 0.5
            found = torch.cat([found, token.unsqueeze(1)], dim=1)
        return found, total, state


class ScriptedBranches(nn.Module):
    """A while loop until values are small, and an early way out for empty or flat input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.other = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, training: Tensor) -> tuple[Tensor, Tensor]:
        count = torch.zeros([], dtype=torch.long)
        while bool(x.abs().max() > 0.5):
            x = torch.tanh(self.linear(x)) * 0.8
            count = count + 1
        if bool(training):
            y = self.other(x)
        elif x.size(0) > 1:
            y = x[:, :4] - x[:, 4:]
        else:
            y = x[:, ::2]
        return y, count


class HigherOrder(nn.Module):
    """torch.cond and the scan of an exponential average, as torch.export keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        from torch._higher_order_ops.scan import scan

        y = torch.cond(x.sum() > 0, lambda x: torch.relu(self.linear(x)), lambda x: x - 1.0, (x,))

        def step(state: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            state = 0.5 * state + row
            return state, torch.sin(state)

        last, every = scan(step, torch.zeros(8), y)
        return last, every


ODD_DYNAMIC = {
    "x": {0: "batch", 1: "length"},
    "index": {0: "batch", 1: "picks"},
    "keep": {0: "batch", 1: "length"},
}

ARCHITECTURES = (
    Architecture(
        "dual-encoder",
        DualEncoder,
        lambda pictures, texts, length: {"pixel_values": image(pictures, 32, 32), "input_ids": tokens(texts, length)},
        ((2, 3, 7), (1, 2, 10)),
        {"pixel_values": {0: "pictures"}, "input_ids": {0: "texts", 1: "length"}},
        ("logits_per_text", "logits_per_image", "text_embeds"),
    ),
    Architecture(
        "normalizing-flow",
        NormalizingFlow,
        lambda batch, length: {"x": torch.randn(batch, 8, length)},
        ((2, 9), (1, 14)),
        {"x": {0: "batch", 2: "length"}},
        ("z", "determinant"),
    ),
    Architecture(
        "graph-network",
        GraphNetwork,
        ring,
        ((7, 9), (12, 5)),
        {"nodes": {0: "nodes"}, "edges": {1: "edges"}},
        ("labels",),
    ),
    Architecture(
        "point-network",
        PointNetwork,
        lambda batch, count: {"points": torch.randn(batch, 3, count)},
        ((2, 12), (1, 20)),
        {"points": {0: "batch", 2: "count"}},
        ("scores", "turned"),
    ),
    Architecture(
        "recommender",
        Recommender,
        lambda batch, items: {
            "dense": torch.randn(batch, 5),
            "sparse": torch.randint(0, 20, (batch, 3)),
            "history": torch.randint(0, 30, (batch, items)),
        },
        ((3, 4), (1, 4)),
        {"dense": BATCH_ONLY, "sparse": BATCH_ONLY, "history": BATCH_ONLY},
        ("chance",),
    ),
    Architecture("selections", Selections, odd_inputs, ((2, 7), (1, 9)), ODD_DYNAMIC, SELECTION_OUTPUTS),
    Architecture("arithmetic", Arithmetic, odd_inputs, ((2, 7), (1, 9)), ODD_DYNAMIC, ARITHMETIC_OUTPUTS),
    Architecture(
        "products",
        Products,
        lambda batch, length: {"x": torch.randn(batch, length, 6)},
        ((2, 7), (1, 9)),
        {"x": {0: "batch", 1: "length"}},
        ("diagonal", "trace", "chain", "outer", "rank", "cosine", "sum"),
    ),
    Architecture(
        "data-dependent-shapes",
        DataDependentShapes,
        lambda batch, length: {"x": torch.randn(batch, length), "threshold": torch.tensor(0.3)},
        ((3, 7), (1, 12)),
        {"x": {0: "batch", 1: "length"}},
        ("found", "values", "unique"),
    ),
    Architecture(
        "spectral-mixing",
        SpectralMixing,
        lambda batch, length: {"input_ids": tokens(batch, length)},
        ((2, 8), (1, 8)),
        {"input_ids": BATCH_ONLY},
        ("hidden",),
    ),
    Architecture(
        "scripted-search",
        lambda: torch.jit.script(ScriptedSearch()),
        lambda batch, steps: {"state": torch.randn(batch, 16), "steps": torch.tensor(steps)},
        ((2, 5), (1, 3), (3, 0)),
        {"state": BATCH_ONLY},
        ("found", "total", "last"),
        ("torchscript",),
    ),
    Architecture(
        "scripted-branches",
        lambda: torch.jit.script(ScriptedBranches()),
        lambda batch, training: {"x": 2 * torch.randn(batch, 8), "training": torch.tensor(bool(training))},
        ((2, 1), (3, 0), (1, 0)),
        {"x": BATCH_ONLY},
        ("y", "count"),
        ("torchscript",),
    ),
    Architecture(
        "higher-order",
        HigherOrder,
        lambda length, sign: {"x": torch.rand(length, 8) * sign},
        ((5, 1), (9, -1)),
        {"x": {0: "length"}},
        ("last", "every"),
        ("dynamo",),
    ),
)
