"""The op pack for ONNX Runtime's own operators (com.microsoft), a module for each family."""

from opgraft_contrib import (
    activation,
    attention,
    block_quantized,
    convolution,
    experts,
    grouped_attention,
    layout,
    linear_algebra,
    linear_attention,
    normalization,
    quantization,
    recurrent,
    rotary,
    sparse_attention,
)

__all__ = [
    "activation",
    "attention",
    "block_quantized",
    "convolution",
    "experts",
    "grouped_attention",
    "layout",
    "linear_algebra",
    "linear_attention",
    "normalization",
    "quantization",
    "recurrent",
    "rotary",
    "sparse_attention",
]
