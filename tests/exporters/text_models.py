"""Text: encoders, decoders, encoder-decoders."""

from __future__ import annotations

import math

import torch
from architecture import BATCH_LENGTH, Architecture, Inputs, lengths_mask, tokens
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 64
WIDTH = 32
HEADS = 4
HEAD = WIDTH // HEADS


def split_heads(x: Tensor, heads: int = HEADS) -> Tensor:
    """(batch, length, heads * size) to (batch, heads, length, size)."""
    return x.view(x.size(0), x.size(1), heads, -1).permute(0, 2, 1, 3)


def merge_heads(x: Tensor) -> Tensor:
    """The reverse of `split_heads`."""
    x = x.permute(0, 2, 1, 3).contiguous()
    return x.view(x.size(0), x.size(1), -1)


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward, each with its residual connection and a layer norm after it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.attention_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = split_heads(self.query(x)), split_heads(self.key(x)), split_heads(self.value(x))
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(HEAD) + mask
        context = merge_heads(torch.matmul(scores.softmax(dim=-1), value))
        x = self.attention_norm(self.out(context) + x)
        return self.norm(self.down(functional.gelu(self.up(x))) + x)


class TextEncoder(nn.Module):
    """BERT: token, position and type embeddings, post-norm layers, a pooled first token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.positions, self.types = nn.Embedding(48, WIDTH), nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(2))
        self.pool = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("position_ids", torch.arange(48).expand((1, -1)))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        length = input_ids.size(1)
        x = self.tokens(input_ids) + self.types(token_type_ids) + self.positions(self.position_ids[:, :length])
        x = self.norm(x)
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pool(x[:, 0]))


def encoder_inputs(batch: int, length: int) -> Inputs:
    types = (torch.arange(length) > length // 2).long().expand(batch, -1).contiguous()
    mask = lengths_mask(batch, length)
    return {"input_ids": tokens(batch, length), "attention_mask": mask, "token_type_ids": types}


class DisentangledAttention(nn.Module):
    """DeBERTa: scores from content and, gathered by distance, from relative positions."""

    def __init__(self, span: int = 6) -> None:
        super().__init__()
        self.span = span
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.relative = nn.Embedding(2 * span, WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids)
        batch, length = input_ids.shape
        pairs = attention_mask.unsqueeze(1).unsqueeze(2)
        pairs = (pairs * pairs.squeeze(-2).unsqueeze(-1)).bool()
        query, key, value = split_heads(self.query(x)), split_heads(self.key(x)), split_heads(self.value(x))
        positions = torch.arange(length, device=x.device)
        distance = torch.clamp(positions[:, None] - positions[None, :] + self.span, 0, 2 * self.span - 1)
        position_key = split_heads(self.key(self.relative.weight)[None])
        position_query = split_heads(self.query(self.relative.weight)[None])
        index = distance[None, None].expand(batch, HEADS, length, length)
        from_content = torch.gather(query @ position_key.transpose(-1, -2), -1, index)
        from_position = torch.gather(key @ position_query.transpose(-1, -2), -1, index).transpose(-1, -2)
        scores = (query @ key.transpose(-1, -2) + from_content + from_position) / math.sqrt(3 * HEAD)
        scores = scores.masked_fill(~pairs, torch.finfo(x.dtype).min)
        weights = torch.softmax(scores, -1).masked_fill(~pairs, 0)
        return self.norm(x + self.out(merge_heads(weights @ value)))


class PackedProjection(nn.Module):
    """GPT-2's Conv1D: a linear layer that keeps its weight the other way round, through addmm."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / math.sqrt(inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.size()[:-1], self.bias.size(0))
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(shape)


def tanh_gelu(x: Tensor) -> Tensor:
    """GELU through tanh, spelled out."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class CausalLayer(nn.Module):
    """Pre-norm decoder layer whose mask is a slice of a constant triangle."""

    def __init__(self, limit: int = 32) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.project = PackedProjection(WIDTH, 3 * WIDTH), PackedProjection(WIDTH, WIDTH)
        self.up, self.down = PackedProjection(WIDTH, 64), PackedProjection(64, WIDTH)
        self.register_buffer("triangle", torch.tril(torch.ones(limit, limit, dtype=torch.bool))[None, None])

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (split_heads(part) for part in self.attend(self.first_norm(x)).split(WIDTH, dim=2))
        if past is not None:
            key, value = torch.cat((past[0], key), dim=-2), torch.cat((past[1], value), dim=-2)
        scores = torch.matmul(query, key.transpose(-1, -2)) / (value.size(-1) ** 0.5)
        queries, keys = query.size(-2), key.size(-2)
        triangle = self.triangle[:, :, keys - queries : keys, :keys]
        least = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype)
        weights = functional.softmax(torch.where(triangle, scores, least), dim=-1)
        x = x + self.project(merge_heads(torch.matmul(weights, value)))
        return x + self.down(tanh_gelu(self.up(self.second_norm(x)))), key, value


class CausalDecoder(nn.Module):
    """GPT-2 over a whole sequence; the output layer shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(32, WIDTH)
        self.layers = nn.ModuleList(CausalLayer() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, input_ids: Tensor) -> Tensor:
        positions = torch.arange(0, input_ids.shape[-1], dtype=torch.long, device=input_ids.device).unsqueeze(0)
        x = self.tokens(input_ids) + self.positions(positions)
        for layer in self.layers:
            x, _, _ = layer(x)
        return functional.linear(self.norm(x), self.tokens.weight)


class CachedDecoder(CausalDecoder):
    """GPT-2 step by step: the keys and values of earlier tokens come in, and go out with the new ones."""

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, past_key_0: Tensor, past_value_0: Tensor, past_key_1: Tensor, past_value_1: Tensor
    ) -> tuple[Tensor, ...]:
        before = past_key_0.size(-2)
        positions = torch.arange(before, before + input_ids.size(-1), dtype=torch.long).unsqueeze(0)
        x = self.tokens(input_ids) + self.positions(positions)
        present: list[Tensor] = []
        for layer, past in zip(self.layers, ((past_key_0, past_value_0), (past_key_1, past_value_1)), strict=True):
            x, key, value = layer(x, past)
            present += [key, value]
        return functional.linear(self.norm(x[:, -1:]), self.tokens.weight), *present


PAST_NAMES = ("past_key_0", "past_value_0", "past_key_1", "past_value_1")


def cached_inputs(batch: int, past: int, new: int, heads: int = HEADS) -> Inputs:
    return {"input_ids": tokens(batch, new), **{name: torch.randn(batch, heads, past, HEAD) for name in PAST_NAMES}}


class RootMeanSquareNorm(nn.Module):
    """Llama's and T5's norm: no mean taken off, no bias."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6)).to(x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """(batch, heads, length, size) to (batch, heads * times, length, size)."""
    batch, heads, length, size = x.shape
    return x[:, :, None].expand(batch, heads, times, length, size).reshape(batch, heads * times, length, size)


class RotaryLayer(nn.Module):
    """Rotary positions, two heads of keys and values for four of queries, a gated feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first_norm, self.second_norm = RootMeanSquareNorm(), RootMeanSquareNorm()
        self.query, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.key, self.value = nn.Linear(WIDTH, WIDTH // 2, bias=False), nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, 48, bias=False), nn.Linear(WIDTH, 48, bias=False)
        self.down = nn.Linear(48, WIDTH, bias=False)

    def forward(
        self, x: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        y = self.first_norm(x)
        query, key, value = split_heads(self.query(y)), split_heads(self.key(y), 2), split_heads(self.value(y), 2)
        query = query * cosine + rotate_half(query) * sine
        key = torch.cat((past[0], key * cosine + rotate_half(key) * sine), dim=2)
        value = torch.cat((past[1], value), dim=2)
        context = functional.scaled_dot_product_attention(query, repeat_heads(key, 2), repeat_heads(value, 2), mask)
        x = x + self.out(merge_heads(context))
        y = self.second_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), key, value


class RotaryDecoder(nn.Module):
    """Llama with a cache, positions given from outside, and a padding mask over past and new tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(RotaryLayer() for _ in range(2))
        self.norm, self.head = RootMeanSquareNorm(), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("frequencies", 1.0 / (10000 ** (torch.arange(0, HEAD, 2).float() / HEAD)))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        past_key_0: Tensor,
        past_value_0: Tensor,
        past_key_1: Tensor,
        past_value_1: Tensor,
    ) -> tuple[Tensor, ...]:
        x = self.embed(input_ids)
        batch, length = input_ids.shape
        total = attention_mask.shape[1]
        angles = (self.frequencies[None, :, None].float() @ position_ids[:, None, :].float()).transpose(1, 2)
        angles = torch.cat((angles, angles), dim=-1)
        cosine, sine = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
        least = torch.finfo(x.dtype).min
        causal = torch.triu(torch.full((length, total), least, dtype=x.dtype), diagonal=total - length + 1)
        mask = causal[None, None].expand(batch, 1, -1, -1).clone()
        mask = mask.masked_fill(attention_mask[:, None, None, :] == 0, least)
        present: list[Tensor] = []
        for layer, past in zip(self.layers, ((past_key_0, past_value_0), (past_key_1, past_value_1)), strict=True):
            x, key, value = layer(x, cosine, sine, mask, past)
            present += [key, value]
        return self.head(self.norm(x)).float(), *present


def rotary_inputs(batch: int, past: int, new: int) -> Inputs:
    given = cached_inputs(batch, past, new, heads=2)
    mask = torch.ones(batch, past + new, dtype=torch.long)
    mask[-1, 0] = int(past == 0)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, past:]
    return {"input_ids": given.pop("input_ids"), "attention_mask": mask, "position_ids": positions, **given}


class RelativeAttention(nn.Module):
    """T5's attention: no scaling, a bias added to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor) -> Tensor:
        query, key, value = split_heads(self.query(x)), split_heads(self.key(memory)), split_heads(self.value(memory))
        scores = torch.matmul(query, key.transpose(3, 2)) + bias
        weights = functional.softmax(scores.float(), dim=-1).type_as(scores)
        return self.out(merge_heads(torch.matmul(weights, value)))


def relative_bucket(distance: Tensor, both_ways: bool, buckets: int = 8, limit: int = 16) -> Tensor:
    """T5's buckets of distances: exact when near, logarithmic when far."""
    bucket = torch.zeros_like(distance)
    if both_ways:
        buckets //= 2
        bucket = bucket + (distance > 0).to(torch.long) * buckets
        distance = torch.abs(distance)
    else:
        distance = -torch.min(distance, torch.zeros_like(distance))
    exact = buckets // 2
    far = torch.log(distance.float() / exact) / math.log(limit / exact) * (buckets - exact)
    far = exact + far.to(torch.long)
    far = torch.min(far, torch.full_like(far, buckets - 1))
    return bucket + torch.where(distance < exact, distance, far)


class RelativeStack(nn.Module):
    """T5's encoder or decoder: two layers, the position bias of the first shared by the second."""

    def __init__(self, decoder: bool) -> None:
        super().__init__()
        self.decoder = decoder
        self.bias = nn.Embedding(8, HEADS)
        self.attend = nn.ModuleList(RelativeAttention() for _ in range(2))
        self.cross = nn.ModuleList(RelativeAttention() for _ in range(2 if decoder else 0))
        self.up = nn.ModuleList(nn.Linear(WIDTH, 48, bias=False) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(48, WIDTH, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(RootMeanSquareNorm() for _ in range(7))

    def position_bias(self, length: int) -> Tensor:
        positions = torch.arange(length, dtype=torch.long)
        distance = positions[None, :] - positions[:, None]
        return self.bias(relative_bucket(distance, not self.decoder)).permute([2, 0, 1]).unsqueeze(0)

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor | None = None) -> Tensor:
        length = x.shape[1]
        least = torch.finfo(x.dtype).min
        bias = self.position_bias(length)
        outside = (1.0 - mask[:, None, None, :].to(x.dtype)) * least
        if self.decoder:
            steps = torch.arange(length)
            causal = steps[None, None, :].repeat(x.shape[0], length, 1) <= steps[None, :, None]
            bias = bias + (1.0 - causal[:, None].to(x.dtype)) * least
        else:
            bias = bias + outside
        for layer in range(2):
            y = self.norms[3 * layer](x)
            x = x + self.attend[layer](y, y, bias)
            if memory is not None:
                x = x + self.cross[layer](self.norms[3 * layer + 1](x), memory, outside)
            x = x + self.down[layer](functional.relu(self.up[layer](self.norms[3 * layer + 2](x))))
        return self.norms[6](x)


class RelativeEncoderDecoder(nn.Module):
    """T5: encoder and decoder in one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder, self.decoder = RelativeStack(decoder=False), RelativeStack(decoder=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> Tensor:
        memory = self.encoder(self.embed(input_ids), attention_mask)
        x = self.decoder(self.embed(decoder_input_ids), attention_mask, memory)
        return functional.linear(x * (WIDTH**-0.5), self.embed.weight)


def encoder_decoder_inputs(batch: int, length: int, target: int) -> Inputs:
    mask = lengths_mask(batch, length)
    return {"input_ids": tokens(batch, length), "attention_mask": mask, "decoder_input_ids": tokens(batch, target)}


class TorchTransformer(nn.Module):
    """torch's own encoder and decoder layers, with the masks they take."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.TransformerEncoderLayer(WIDTH, HEADS, 48, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoderLayer(WIDTH, HEADS, 48, batch_first=True, activation="gelu")

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        padding = source == 0
        memory = self.encoder(self.embed(source), src_key_padding_mask=padding)
        length = target.size(1)
        causal = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
        return self.decoder(self.embed(target), memory, tgt_mask=causal, memory_key_padding_mask=padding)


def translation_inputs(batch: int, length: int, target: int) -> Inputs:
    return {"source": tokens(batch, length) * lengths_mask(batch, length), "target": tokens(batch, target)}


class ExpertLayer(nn.Module):
    """A mixture of experts, Mixtral-like: top two of four, the weights spread over a dense table."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.route = nn.Linear(WIDTH, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, WIDTH, 48) / math.sqrt(WIDTH))
        self.down = nn.Parameter(torch.randn(experts, 48, WIDTH) / math.sqrt(48))

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(input_ids)
        scores = functional.softmax(self.route(x), dim=-1)
        best, chosen = torch.topk(scores, 2, dim=-1)
        best = best / best.sum(dim=-1, keepdim=True)
        gates = torch.zeros_like(scores).scatter(-1, chosen, best)
        hidden = functional.silu(torch.einsum("bld,edh->bleh", x, self.up))
        mixed = torch.einsum("bleh,ehd,ble->bld", hidden, self.down, gates)
        load = functional.one_hot(chosen, 4).sum(dim=(0, 1, 2))
        return x + mixed, load


_PAST = {name: {0: "batch", 2: "past"} for name in PAST_NAMES}
_PRESENT = tuple(name.replace("past", "present") for name in PAST_NAMES)

ARCHITECTURES = (
    Architecture(
        "text-encoder",
        TextEncoder,
        encoder_inputs,
        ((2, 9), (1, 16)),
        dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), BATCH_LENGTH),
        ("hidden", "pooled"),
    ),
    Architecture(
        "disentangled-encoder",
        DisentangledAttention,
        lambda batch, length: {"input_ids": tokens(batch, length), "attention_mask": lengths_mask(batch, length)},
        ((2, 10), (1, 5)),
        dict.fromkeys(("input_ids", "attention_mask"), BATCH_LENGTH),
        ("hidden",),
    ),
    Architecture(
        "causal-decoder",
        CausalDecoder,
        lambda batch, length: {"input_ids": tokens(batch, length)},
        ((2, 9), (1, 14)),
        {"input_ids": BATCH_LENGTH},
        ("logits",),
    ),
    Architecture(
        "causal-decoder-cached",
        CachedDecoder,
        cached_inputs,
        ((2, 6, 3), (1, 9, 1), (1, 0, 4)),
        {"input_ids": BATCH_LENGTH, **_PAST},
        ("logits", *_PRESENT),
    ),
    Architecture(
        "rotary-decoder-cached",
        RotaryDecoder,
        rotary_inputs,
        ((2, 6, 3), (1, 9, 1), (1, 0, 4)),
        {"input_ids": BATCH_LENGTH, "attention_mask": {0: "batch", 1: "total"}, "position_ids": BATCH_LENGTH, **_PAST},
        ("logits", *_PRESENT),
    ),
    Architecture(
        "relative-encoder-decoder",
        RelativeEncoderDecoder,
        encoder_decoder_inputs,
        ((2, 9, 5), (1, 20, 3)),
        {"input_ids": BATCH_LENGTH, "attention_mask": BATCH_LENGTH, "decoder_input_ids": {0: "batch", 1: "target"}},
        ("logits",),
    ),
    Architecture(
        "torch-transformer",
        TorchTransformer,
        translation_inputs,
        ((2, 9, 5), (1, 12, 7)),
        {"source": BATCH_LENGTH, "target": {0: "batch", 1: "target_length"}},
        ("hidden",),
    ),
    Architecture(
        "mixture-of-experts",
        ExpertLayer,
        lambda batch, length: {"input_ids": tokens(batch, length)},
        ((2, 6), (1, 11)),
        {"input_ids": BATCH_LENGTH},
        ("hidden", "load"),
    ),
)
