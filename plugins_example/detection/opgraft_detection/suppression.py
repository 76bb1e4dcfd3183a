"""Greedy non-maximum suppression without a look at the data: exact, lazy, in a number of steps that is fixed.

Greedy means: from the best candidate to the worst, one is kept unless one kept before it suppresses it. A candidate's
fate hangs on those of all before it, which is why others loop on the host, or stop after some rounds and are inexact.
Here candidates are bits of 64-bit words, one word a block:

- a block that knows what earlier blocks leave alive is settled in eight steps, a byte at a time: a table, made for all
  blocks at once, says which of the block's candidates survive what is kept of a byte's eight;
- what is kept in earlier blocks suppresses in the next by words, 64 candidates at a time.
"""

from __future__ import annotations

import mlx.core as mx

from . import cuda

BLOCK = 64
"""Candidates of a block; a word has as many bits."""

_BYTE = 8
_PACK = 0x0102040810204080
"""Eight bytes of 0 or 1, read as one word and multiplied by this, leave their bits in the highest byte, in order."""


def not_suppressed(valid: mx.array, suppress: mx.array, device: str) -> mx.array:
    """Which candidates greedy suppression keeps: booleans, (N, K).

    Args:
        valid: (N, K), which of them are candidates at all, best first; K is a multiple of `BLOCK`.
        suppress: (N, K, K), which of two suppress each other: symmetric. The diagonal does not matter.
        device: "cpu" or "gpu".
    """
    alive, suppressing = _words(valid), _words(suppress)
    on_cuda = device == "gpu" and mx.cuda.is_available()
    words = cuda.kept_words(alive, suppressing) if on_cuda else _kept_words(alive, suppressing)
    eights = mx.view(words, mx.uint8)[..., None]
    return mx.reshape((eights >> mx.arange(_BYTE, dtype=mx.uint8)) & 1, valid.shape).astype(mx.bool_)


def _kept_words(alive: mx.array, suppressing: mx.array) -> mx.array:
    """Which candidates are kept, as words (N, W), from those that are alive, (N, W), and what each suppresses,
    (N, 64 W, W)."""
    tables = _tables(suppressing)
    kept: list[mx.array] = []
    for block in range(alive.shape[1]):
        word = alive[:, block]
        if kept:
            rows = suppressing[:, block * BLOCK : (block + 1) * BLOCK, :block]
            hit = mx.any((rows & mx.stack(kept, axis=1)[:, None]) != 0, axis=2)
            word &= ~_words(hit)[:, 0]
        for byte in range(_BYTE):
            state = ((word >> (byte * _BYTE)) & 0xFF)[:, None].astype(mx.uint32)
            word &= mx.take_along_axis(tables[:, block, byte], state, axis=1)[:, 0]
        kept.append(word)
    return mx.stack(kept, axis=1)


def _words(bits: mx.array) -> mx.array:
    """Booleans (..., 64 W) as words (..., W); bit i of a word is its i-th boolean."""
    eights = mx.view(mx.contiguous(bits).astype(mx.uint8), mx.uint64)
    packed = (eights * mx.array(_PACK, mx.uint64)) >> 56
    return mx.view(packed.astype(mx.uint8), mx.uint64)


def _tables(suppressing: mx.array) -> mx.array:
    """For each block, byte, and state of that byte (which of its eight are alive): the word of those in the block that
    survive it. Shape (N, blocks, 8, 256).

    Grown bit by bit: a state with one more candidate alive is the state without it, and, where that leaves the
    candidate alive, minus what it suppresses.
    """
    images, _, blocks = suppressing.shape
    within = mx.diagonal(mx.unflatten(suppressing, 1, (blocks, BLOCK)), axis1=1, axis2=3)  # (N, 64, blocks)
    places = mx.arange(BLOCK, dtype=mx.uint64)
    later = ~((mx.array(2, mx.uint64) << places) - 1)
    survives = ~(mx.swapaxes(within, 1, 2) & later)
    survives = mx.reshape(survives, (images, blocks, _BYTE, _BYTE, 1))
    places = mx.reshape(places, (_BYTE, _BYTE, 1))
    table = ~mx.zeros((images, blocks, _BYTE, 1), mx.uint64)
    for bit in range(_BYTE):
        alive = (table >> places[:, bit]) & 1
        table = mx.concatenate([table, mx.where(alive == 1, table & survives[:, :, :, bit], table)], axis=3)
    return table
