"""Caches of keys and values, (B, heads, places, D): which tokens they hold, where new ones go, how they are kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import mlx.core as mx

from opgraft.ops import Context
from opgraft_contrib._attend import CAUSAL, counting, places_from, places_in, written
from opgraft_contrib.block_quantized import numbers
from opgraft_ops._sizes import check_broadcast, check_shape

T = TypeVar("T")

GAP = "seqlens_k is not that of the past and the new tokens"


@dataclass(frozen=True, slots=True)
class Growing:
    """What is known of caches that new rows are written into.

    Attributes:
        length: how many of their rows count; a number, or as only the device knows it.
        total: how many there may be with the new ones, where the caches came with more room than that.
        behind: the new rows go right behind `length`, or the run is done again otherwise.
        inputs: the indices of the inputs that decide what is allowed.
    """

    length: int | mx.array
    total: mx.array | None
    behind: bool
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """The new tokens of a batch of sequences, as only the device knows them. The layers of a model have them in common,
    and what follows from them too: all of it is made once.

    Attributes:
        start: how many tokens came before them, (B).
        total: how many there are with them, (B).
        new: how many there are of each sequence, some of them perhaps padding on the right.
        padded: True where an input says how much of them is padding.
    """

    start: mx.array
    total: mx.array
    new: int
    padded: bool
    _made: dict[Hashable, Any] = field(default_factory=dict)

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        found: T = self._made[key] if key in self._made else self._made.setdefault(key, make())
        return found

    @classmethod
    def of(cls, ctx: Context, batch: int, new: int, seqlens_k: mx.array, query_seqlens: mx.array | None) -> Steps:
        check_shape("query_seqlens", query_seqlens, [batch])
        total = mx.reshape(seqlens_k, (-1,)) + 1
        check_shape("seqlens_k", total, [batch])
        counted = mx.minimum(total, new) if query_seqlens is None else query_seqlens
        if query_seqlens is not None:
            ctx.check((counted >= 0) & (counted <= mx.minimum(total, new)), "query_seqlens counts more tokens than are")
        return cls(total - counted, total, new, query_seqlens is not None)

    @property
    def places(self) -> mx.array:
        """The place of each new token in its sequence, (B, S); padding has that of the last."""
        return self._once(
            "places",
            lambda: mx.clip(places_from(self.start, self.new), 0, mx.maximum(self.total - 1, 0)[:, None]),
        )

    def places_from(self, position_ids: mx.array) -> mx.array:
        """What position_ids (B, S) put for `places`; of a first prompt, just where the first sequence begins."""
        check_shape("position_ids", position_ids, [self.start.size, self.new])
        first = mx.max(self.total) <= self.new
        return mx.where(first, position_ids[:1, :1] + counting(self.new), position_ids)

    @property
    def alone(self) -> bool:
        """True for a lone sequence, none of whose tokens are padding."""
        return self.start.size == 1 and not self.padded

    def appended(self, ctx: Context, past: mx.array | None, rows: mx.array, room: int, growing: Growing) -> mx.array:
        """A cache (B, heads, room, D) with `rows` (B, heads, S, D) in their places, after a past shorter or as long."""
        most: int | mx.array = room
        fits = f"seqlens_k: the caches have {room} places"
        if growing.total is not None:
            most, fits = growing.total, "seqlens_k: more tokens than total_sequence_length"

        def check() -> None:
            ctx.check((self.total >= 0) & (self.start + self.new <= most), fits)

        ctx.shared((Growing, fits), growing.inputs, check)
        if past is None:
            return rows
        check_shape("a cache", past, [rows.shape[0], rows.shape[1], None, rows.shape[3]])
        start = self.start
        if growing.behind and isinstance(growing.length, mx.array):
            start = mx.reshape(growing.length, (1,))
            self._once("behind", lambda: ctx.check(self.start == start, GAP))
        elif growing.total is not None or room > past.shape[2]:
            length = growing.length
            key = "gap", length if isinstance(length, int) else None
            self._once(key, lambda: ctx.check(self.start <= length, GAP))
        if room > past.shape[2]:
            past = mx.pad(past, [(0, 0), (0, 0), (0, room - past.shape[2]), (0, 0)])
        places = self._once(("in", room, growing.behind), lambda: places_in(room, start, self.new))
        return written(past, rows, places)

    def mask(self, room: int, causal: int, window: int, past: mx.array | None) -> mx.array | str | None:
        """Which of the keys in a cache of `room` places each new token attends, (B, 1, S, room)."""
        if causal and window < 0 and past is None:
            return CAUSAL if self.new > 1 else None
        return self._once(("mask", room, bool(causal), window), lambda: self._mask(room, causal, window))

    def _mask(self, room: int, causal: int, window: int) -> mx.array:
        key = counting(room)
        if not causal:
            return (key < self.total[:, None])[:, None, None]
        place = places_from(self.start, self.new)[:, None, :, None]
        allowed = key <= place
        return allowed if window < 0 else allowed & (key > place - window)


@dataclass(frozen=True, slots=True)
class Window:
    """A cache of C places that holds the last tokens of each sequence, from place 0 on, of which W count.

    Where all places are taken, C - W + 1 tokens leave it at once.

    Attributes:
        steps: the new tokens.
        capacity: C.
        size: W.
    """

    steps: Steps
    capacity: int
    size: int

    @classmethod
    def of(cls, steps: Steps, cache: mx.array, size: int) -> Window:
        """That of a cache (B, heads, C, D), of which `size` places count.

        Raises:
            ValueError: it has fewer.
        """
        if cache.shape[2] < size:
            raise ValueError(f"a cache of {cache.shape[2]} places does not hold the {size} of local_window_size")
        return cls(steps, cache.shape[2], size)

    def held(self, total: mx.array) -> mx.array:
        """How many of `total` tokens the cache holds, (B)."""
        leaving = self.capacity - self.size + 1
        rounds = (mx.maximum(total - self.capacity, 0) + leaving - 1) // leaving
        return total - leaving * rounds

    @property
    def first(self) -> mx.array:
        """The place in its sequence of the first token that the cache holds before the new ones come, (B)."""
        return self.steps.start - self.held(self.steps.start)

    def mask(self) -> mx.array:
        """Which rows of the cache with the new ones behind it each new token attends, (B, 1, S, C + S)."""
        steps = self.steps
        row = counting(self.capacity)
        old = mx.where(row < self.held(steps.start)[:, None], self.first[:, None] + row, -self.size)
        new = places_from(steps.start, steps.new)
        place = mx.concatenate([old, new], axis=1)[:, None, None]
        own = new[:, None, :, None]
        return (place >= 0) & (place <= own) & (place > own - self.size)

    def kept(self, cache: mx.array, rows: mx.array) -> mx.array:
        """The cache after the new rows (B, heads, S, D) came."""
        steps = self.steps
        place = (steps.total - self.held(steps.total))[:, None] + counting(self.capacity)
        start = steps.start[:, None]
        source = mx.where(place < start, place - self.first[:, None], self.capacity + place - start)
        source = mx.clip(source, 0, self.capacity + steps.new - 1)[:, None, :, None]
        return mx.take_along_axis(mx.concatenate([cache, rows], axis=2), source, axis=2)


@dataclass(frozen=True, slots=True)
class Codec:
    """How a quantized cache keeps its rows: as int8, or two numbers of 4 bits to a byte, each 8 more than it means.

    Attributes:
        scale: of one element, or (1, heads, 1, D).
        bits: 8 or 4.
    """

    scale: mx.array
    bits: int

    @classmethod
    def of(cls, scale: mx.array | None, bits: int, rows: mx.array) -> Codec | None:
        """That of rows (B, heads, S, D), or None where there is no scale."""
        if scale is None:
            return None
        if scale.size == 1:
            scale = mx.reshape(scale, ())
        check_broadcast("the scale of a cache", scale, (1, rows.shape[1], 1, rows.shape[3]))
        return cls(scale, bits)

    def stored(self, rows: mx.array) -> mx.array:
        most = 2 ** (self.bits - 1)
        whole = mx.clip(mx.round(rows.astype(mx.float32) / self.scale), -most, most - 1)
        if self.bits == 8:
            return whole.astype(mx.int8)
        halves = (whole + most).astype(mx.uint8)
        return halves[..., 0::2] | (halves[..., 1::2] << 4)

    def values(self, cache: mx.array) -> mx.array:
        if self.bits == 4:
            cache = numbers(cache, 4).astype(mx.int32) - 8
        return cache.astype(mx.float32) * self.scale
