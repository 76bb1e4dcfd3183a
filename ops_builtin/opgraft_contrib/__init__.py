"""The op pack for ONNX Runtime's own operators (com.microsoft), a module for each family."""

from opgraft_contrib import activation, convolution, layout, linear_algebra, normalization, quantization, recurrent

__all__ = ["activation", "convolution", "layout", "linear_algebra", "normalization", "quantization", "recurrent"]
