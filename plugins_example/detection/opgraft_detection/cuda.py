"""Greedy suppression by a kernel of its own on CUDA, where hundreds of small steps cost more than what they compute."""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx

_SOURCE = """
    __shared__ uint64_t own[64];
    __shared__ uint64_t settled;
    const int words = alive_shape[1];
    const int word = threadIdx.x;
    const uint64_t* rows = suppressing + uint64_t(blockIdx.x) * 64 * words * words;
    uint64_t mine = word < words ? alive[blockIdx.x * words + word] : 0;
    for (int block = 0; block < words; ++block, rows += 64 * words) {
        if (word < 64) own[word] = rows[word * words + block];
        if (word == block) settled = mine;
        __syncthreads();
        if (word == 0) {
            uint64_t left = settled;
            for (int i = 0; i < 63; ++i)
                if (left >> i & 1) left &= ~(own[i] & (~uint64_t(1) << i));
            settled = left;
        }
        __syncthreads();
        if (word == block) mine = settled;
        if (block < word && word < words)
            for (uint64_t left = settled; left; left &= left - 1)
                mine &= ~rows[(__ffsll(left) - 1) * words + word];
        __syncthreads();
    }
    if (word < words) kept[blockIdx.x * words + word] = mine;
"""
"""A thread for each word of an image: the first settles a block, then each strikes out of its word what that keeps."""


def kept_words(alive: mx.array, suppressing: mx.array) -> mx.array:
    """Which candidates are kept, as words (N, W), from those that are alive, (N, W), and what each suppresses,
    (N, 64 W, W)."""
    images, words = alive.shape
    threads = max(64, -(-words // 32) * 32)
    kept: mx.array
    (kept,) = _kernel()(
        inputs=[alive, suppressing],
        grid=(images * threads, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[alive.shape],
        output_dtypes=[mx.uint64],
    )
    return kept


@cache
def _kernel() -> Any:
    return mx.fast.cuda_kernel(
        name="opgraft_detection_kept_words",
        input_names=["alive", "suppressing"],
        output_names=["kept"],
        source=_SOURCE,
    )
