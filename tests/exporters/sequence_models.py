"""Sound and other sequences: speech encoders, recurrent taggers, state-space models, vocoders."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from architecture import BATCH_LENGTH, Architecture, Inputs, image, tokens
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

WIDTH = 32


def sinusoids(length: int, width: int) -> Tensor:
    """Whisper's position table."""
    scales = torch.exp(-math.log(10000) / (width // 2 - 1) * torch.arange(width // 2))
    angles = torch.arange(length)[:, None] * scales[None, :]
    return torch.cat([torch.sin(angles), torch.cos(angles)], dim=1)


class ScaledAttentionLayer(nn.Module):
    """Whisper's layer: queries and keys scaled by the fourth root, keys without bias."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.first_norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first_norm(x)
        batch, length, width = y.shape
        scale = (width // self.heads) ** -0.25
        query = self.query(y).view(batch, length, self.heads, -1).permute(0, 2, 1, 3) * scale
        key = self.key(y).view(batch, length, self.heads, -1).permute(0, 2, 3, 1) * scale
        value = self.value(y).view(batch, length, self.heads, -1).permute(0, 2, 1, 3)
        weights = functional.softmax((query @ key).float(), dim=-1).to(query.dtype)
        x = x + self.out((weights @ value).permute(0, 2, 1, 3).flatten(start_dim=2))
        return x + self.feed(self.second_norm(x))


class SpectrogramEncoder(nn.Module):
    """Whisper's encoder: two convolutions over mel frames, the second of stride 2, and sinusoidal positions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(16, WIDTH, 3, padding=1), nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.register_buffer("positions", sinusoids(64, WIDTH))
        self.layers = nn.ModuleList(ScaledAttentionLayer() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, mel: Tensor) -> Tensor:
        x = functional.gelu(self.second(functional.gelu(self.first(mel)))).permute(0, 2, 1)
        x = (x + self.positions[: x.shape[1]]).to(x.dtype)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class WaveEncoder(nn.Module):
    """wav2vec 2.0: a stem on raw samples, a grouped convolution for positions, torch's own encoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.ModuleList([nn.Conv1d(1, 16, 10, 5, bias=False), nn.Conv1d(16, 16, 3, 2, bias=False)])
        self.group_norm = nn.GroupNorm(16, 16)
        self.norm, self.project = nn.LayerNorm(16), nn.Linear(16, WIDTH)
        self.positions = weight_norm(nn.Conv1d(WIDTH, WIDTH, 8, padding=4, groups=4), name="weight", dim=2)
        self.encoder_norm = nn.LayerNorm(WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, activation="gelu", batch_first=True)

    def forward(self, samples: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x = (samples - samples.mean(-1, keepdim=True)) / torch.sqrt(samples.var(-1, keepdim=True) + 1e-7)
        x = functional.gelu(self.group_norm(self.stem[0](x.unsqueeze(1))))
        x = functional.gelu(self.stem[1](x)).transpose(1, 2)
        x = self.project(self.norm(x))
        frames = torch.div(torch.div(lengths - 10, 5, rounding_mode="floor") + 1 - 3, 2, rounding_mode="floor") + 1
        outside = torch.arange(x.size(1))[None, :] >= frames[:, None]
        x = x.masked_fill(outside.unsqueeze(-1), 0.0)
        placed = functional.gelu(self.positions(x.transpose(1, 2))[:, :, :-1]).transpose(1, 2)
        return self.layer(self.encoder_norm(x + placed), src_key_padding_mask=outside), frames


def wave_inputs(batch: int, samples: int) -> Inputs:
    return {"samples": torch.randn(batch, samples), "lengths": torch.arange(samples, samples - 30 * batch, -30)}


class ConformerBlock(nn.Module):
    """Half a feed-forward, a gated depthwise convolution with a batch norm, another half feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.SiLU(), nn.Linear(64, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.gate = nn.Conv1d(WIDTH, 2 * WIDTH, 1)
        self.depthwise = nn.Conv1d(WIDTH, WIDTH, 7, padding=3, groups=WIDTH, bias=False)
        self.batch_norm, self.point = nn.BatchNorm1d(WIDTH), nn.Conv1d(WIDTH, WIDTH, 1)
        self.after = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.SiLU(), nn.Linear(64, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.before(x)
        y = functional.glu(self.gate(self.norm(x).transpose(1, 2)), dim=1)
        x = x + self.point(functional.silu(self.batch_norm(self.depthwise(y)))).transpose(1, 2)
        return x + 0.5 * self.after(x)


class SpeechRecognizer(nn.Module):
    """Pictures of sound, subsampled by two 2-D convolutions, a conformer block, the likeliest symbol of each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU())
        self.project, self.block, self.head = nn.Linear(8 * 3, WIDTH), ConformerBlock(), nn.Linear(WIDTH, 20)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(features.unsqueeze(1))
        batch, channels, frames, bands = x.size()
        x = self.project(x.transpose(1, 2).contiguous().view(batch, frames, channels * bands))
        scores = functional.log_softmax(self.head(self.block(x * math.sqrt(WIDTH))), dim=-1)
        return scores, scores.argmax(-1)


class BidirectionalTagger(nn.Module):
    """Two bidirectional LSTM layers, zero states of the batch's size, a label for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 16)
        self.lstm = nn.LSTM(16, 12, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(24, 7)

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states, (hidden, cell) = self.lstm(self.embed(input_ids))
        return self.head(states), hidden, cell


class PackedTagger(nn.Module):
    """A bidirectional GRU over packed sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 16)
        self.gru = nn.GRU(16, 12, bidirectional=True, batch_first=True)
        self.head = nn.Linear(24, 7)

    def forward(self, input_ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        packed = pack_padded_sequence(self.embed(input_ids), lengths, batch_first=True)
        states, hidden = self.gru(packed)
        padded, _ = pad_packed_sequence(states, batch_first=True)
        return self.head(padded), hidden


class StreamingRecognizer(nn.Module):
    """One chunk at a time: LSTM, GRU and plain RNN states come in and go out."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru, self.plain = nn.LSTM(8, 12), nn.GRU(12, 12), nn.RNN(12, 12, nonlinearity="relu")

    def forward(
        self, frames: Tensor, hidden: Tensor, cell: Tensor, gate: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        x, (hidden, cell) = self.lstm(frames, (hidden, cell))
        x, gate = self.gru(x, gate)
        x, state = self.plain(x, state)
        return x, hidden, cell, gate, state


def streaming_inputs(batch: int, length: int) -> Inputs:
    states = {name: torch.randn(1, batch, 12) for name in ("hidden", "cell", "gate", "state")}
    return {"frames": torch.randn(length, batch, 8), **states}


class CellLoop(nn.Module):
    """An LSTM cell called step by step in Python: unrolled by the exporter."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.gru = nn.LSTMCell(8, 12), nn.GRUCell(12, 12)

    def forward(self, frames: Tensor) -> Tensor:
        hidden = cell = state = torch.zeros(frames.size(0), 12)
        outputs = []
        for step in range(4):
            hidden, cell = self.cell(frames[:, step], (hidden, cell))
            state = self.gru(hidden, state)
            outputs.append(state)
        return torch.stack(outputs, dim=1)


class SelectiveStateSpace(nn.Module):
    """Mamba: a causal depthwise convolution, input-dependent steps, and the recurrence as a Python loop."""

    def __init__(self, inner: int = 32, state: int = 4, steps: int = 6) -> None:
        super().__init__()
        self.inner, self.state, self.steps = inner, state, steps
        self.enter, self.leave = nn.Linear(WIDTH, 2 * inner, bias=False), nn.Linear(inner, WIDTH, bias=False)
        self.convolution = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.select, self.step = nn.Linear(inner, 2 + 2 * state, bias=False), nn.Linear(2, inner)
        self.log_decay = nn.Parameter(torch.log(torch.arange(1, state + 1).float()).repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))

    def forward(self, x: Tensor) -> Tensor:
        inner, gate = self.enter(x).chunk(2, dim=-1)
        inner = functional.silu(self.convolution(inner.transpose(1, 2))[..., : self.steps]).transpose(1, 2)
        step, into, out = self.select(inner).split([2, self.state, self.state], dim=-1)
        step = functional.softplus(self.step(step))
        decay = torch.exp(step.unsqueeze(-1) * -torch.exp(self.log_decay.float()))
        drive = step.unsqueeze(-1) * into.unsqueeze(2) * inner.unsqueeze(-1)
        state = torch.zeros(x.size(0), self.inner, self.state)
        outputs = []
        for place in range(self.steps):
            state = decay[:, place] * state + drive[:, place]
            outputs.append(torch.einsum("bdn,bn->bd", state, out[:, place]))
        y = torch.stack(outputs, dim=1) + inner * self.skip
        return self.leave(y * functional.silu(gate))


class CumulativeStateSpace(nn.Module):
    """Mamba-2: the same recurrence over any length, as a matrix of segment sums made by cumsum and two triangles."""

    def __init__(self, heads: int = 4, size: int = 8, state: int = 6) -> None:
        super().__init__()
        self.heads, self.size, self.state = heads, size, state
        self.enter = nn.Linear(WIDTH, heads * size + 2 * state + heads)
        self.log_decay = nn.Parameter(torch.log(torch.linspace(1, 4, heads)))
        self.leave = nn.Linear(heads * size, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        values, into, out, step = self.enter(x).split([self.heads * self.size, self.state, self.state, self.heads], -1)
        values = values.view(batch, length, self.heads, self.size)
        step = functional.softplus(step)
        decay = (step * -torch.exp(self.log_decay)).transpose(1, 2)
        square = decay[..., None].expand(batch, self.heads, length, length)
        below = torch.tril(torch.ones(length, length, dtype=torch.bool), diagonal=-1)
        sums = torch.cumsum(square.masked_fill(~below, 0), dim=-2)
        kept = torch.tril(torch.ones(length, length, dtype=torch.bool))
        weights = torch.exp(sums.masked_fill(~kept, -torch.inf))
        y = torch.einsum("bln,bsn,bhls,bshp->blhp", out, into, weights, values * step[..., None])
        return self.leave(y.reshape(batch, length, -1))


class Vocoder(nn.Module):
    """HiFi-GAN: transposed convolutions up from mel frames, leaky residual stacks with dilation."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = weight_norm(nn.Conv1d(16, WIDTH, 7, padding=3))
        self.up = nn.ModuleList(
            [nn.ConvTranspose1d(WIDTH, 16, 8, 4, padding=2), nn.ConvTranspose1d(16, 8, 4, 2, padding=1)]
        )
        self.residual = nn.ModuleList(
            nn.ModuleList(nn.Conv1d(width, width, 3, dilation=rate, padding=rate) for rate in (1, 3, 5))
            for width in (16, 8)
        )
        self.leave = nn.Conv1d(8, 1, 7, padding=3)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.enter(mel)
        for up, stack in zip(self.up, self.residual, strict=True):
            x = up(functional.leaky_relu(x, 0.1))
            for convolution in stack:
                x = x + convolution(functional.leaky_relu(x, 0.1))
        return torch.tanh(self.leave(functional.leaky_relu(x)))


class SpeechSynthesizer(nn.Module):
    """FastSpeech: durations from text, each token's vector put under as many frames by comparing cumulative sums."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 16)
        self.duration = nn.Sequential(nn.Conv1d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv1d(16, 1, 1))
        self.decode = nn.Linear(16, 12)

    def forward(self, input_ids: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(input_ids)
        durations = torch.clamp(torch.round(torch.exp(self.duration(x.transpose(1, 2)).squeeze(1))), min=1).long()
        ends = durations.cumsum(1)
        starts = functional.pad(ends, [1, 0])[:, :-1]
        inside = (frames[None, None] >= starts[..., None]) & (frames[None, None] < ends[..., None])
        spread = torch.einsum("btf,btc->bfc", inside.to(x.dtype), x)
        return self.decode(spread), durations


class MelTagger(nn.Module):
    """Samples through a short-time Fourier transform, mel bands, decibels, and a small convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(64))
        self.register_buffer("bands", torch.rand(33, 12))
        self.convolution, self.head = nn.Conv1d(12, 16, 3, padding=1), nn.Linear(16, 5)

    def forward(self, samples: Tensor) -> Tensor:
        spectrum = torch.stft(samples, 64, 32, window=self.window, center=True, return_complex=False)
        power = spectrum.pow(2).sum(-1)
        mel = torch.einsum("bft,fm->bmt", power, self.bands)
        decibels = 10 * torch.log10(mel.clamp(min=1e-10))
        decibels = torch.maximum(decibels, decibels.amax(dim=(1, 2), keepdim=True) - 80)
        return self.head(functional.relu(self.convolution(decibels)).mean(-1)).sigmoid()


STATES: Mapping[int, str] = {1: "batch"}

ARCHITECTURES = (
    Architecture(
        "spectrogram-encoder",
        SpectrogramEncoder,
        lambda batch, frames: {"mel": torch.randn(batch, 16, frames)},
        ((2, 24), (1, 37)),
        {"mel": {0: "batch", 2: "frames"}},
        ("hidden",),
    ),
    Architecture(
        "wave-encoder",
        WaveEncoder,
        wave_inputs,
        ((2, 220), (1, 301)),
        {"samples": {0: "batch", 1: "time"}, "lengths": {0: "batch"}},
        ("hidden", "frames"),
    ),
    Architecture(
        "speech-recognizer",
        SpeechRecognizer,
        lambda batch, frames: {"features": image(batch, frames, 16, 1)[:, 0]},
        ((2, 40), (1, 61)),
        {"features": {0: "batch", 1: "frames"}},
        ("scores", "symbols"),
    ),
    Architecture(
        "bidirectional-tagger",
        BidirectionalTagger,
        lambda batch, length: {"input_ids": tokens(batch, length)},
        ((3, 8), (1, 5)),
        {"input_ids": BATCH_LENGTH},
        ("labels", "hidden", "cell"),
    ),
    Architecture(
        "packed-tagger",
        PackedTagger,
        lambda batch, length: {
            "input_ids": tokens(batch, length),
            "lengths": torch.arange(length, length - batch, -1),
        },
        ((3, 8), (1, 5)),
        {"input_ids": BATCH_LENGTH, "lengths": {0: "batch"}},
        ("labels", "hidden"),
    ),
    Architecture(
        "streaming-recognizer",
        StreamingRecognizer,
        streaming_inputs,
        ((2, 5), (1, 9)),
        {"frames": {0: "length", 1: "batch"}, **dict.fromkeys(("hidden", "cell", "gate", "state"), STATES)},
        ("output", "next_hidden", "next_cell", "next_gate", "next_state"),
    ),
    Architecture(
        "cell-loop",
        CellLoop,
        lambda batch: {"frames": torch.randn(batch, 4, 8)},
        ((2,), (1,)),
        {"frames": {0: "batch"}},
        ("states",),
    ),
    Architecture(
        "selective-state-space",
        SelectiveStateSpace,
        lambda batch: {"x": torch.randn(batch, 6, WIDTH)},
        ((2,), (1,)),
        {"x": {0: "batch"}},
        ("y",),
    ),
    Architecture(
        "cumulative-state-space",
        CumulativeStateSpace,
        lambda batch, length: {"x": torch.randn(batch, length, WIDTH)},
        ((2, 7), (1, 12)),
        {"x": BATCH_LENGTH},
        ("y",),
    ),
    Architecture(
        "vocoder",
        Vocoder,
        lambda batch, frames: {"mel": torch.randn(batch, 16, frames)},
        ((2, 10), (1, 17)),
        {"mel": {0: "batch", 2: "frames"}},
        ("samples",),
    ),
    Architecture(
        "speech-synthesizer",
        SpeechSynthesizer,
        lambda batch, length, frames: {"input_ids": tokens(batch, length), "frames": torch.arange(frames)},
        ((2, 6, 14), (1, 9, 20)),
        {"input_ids": BATCH_LENGTH, "frames": {0: "frames"}},
        ("mel", "durations"),
    ),
    Architecture(
        "mel-tagger",
        MelTagger,
        lambda batch, samples: {"samples": torch.randn(batch, samples)},
        ((2, 400), (1, 560)),
        {"samples": {0: "batch", 1: "time"}},
        ("tags",),
    ),
)
