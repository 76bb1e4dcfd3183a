"""The op pack for ONNX Runtime's own operators (com.microsoft), a module for each family."""

from opgraft_contrib import (
    attention,
    block_quantized,
    experts,
    grouped_attention,
    linear_attention,
    rotary,
    sparse_attention,
)

__all__ = [
    "attention",
    "block_quantized",
    "experts",
    "grouped_attention",
    "linear_attention",
    "rotary",
    "sparse_attention",
]
