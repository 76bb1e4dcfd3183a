"""Fourier transforms, windows and mel filters."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from opgraft.graph.element_types import NAME_OF_ONNX
from opgraft.ops import FLOATS, Host, op, to_device
from opgraft.ops.arrays import MLX_TYPE
from opgraft_ops._sizes import check_shape, counted, flags

TRANSFORMED = FLOATS - {"float64"}  # MLX's transforms are of float32


@op("DFT", since=20, dtypes={"input": TRANSFORMED})
def dft(input, dft_length: Host = None, axis: Host = None, *, inverse=0, onesided=0):
    """The discrete Fourier transform along an axis. The last dimension holds a real part, or that and an imaginary one.

    One-sided, a real input gives the first half of its spectrum, and inverse, such a half gives a real output.
    ONNX DFT-20.
    """
    length = None if dft_length is None else int(dft_length.item())
    return transformed(input, length, -2 if axis is None else int(axis.item()), inverse, onesided)


@op("DFT", since=17, until=19, dtypes={"input": TRANSFORMED})
def dft_along_attribute(input, dft_length: Host = None, *, axis=1, inverse=0, onesided=0):
    """DFT with the axis as an attribute. ONNX DFT-17."""
    return transformed(input, None if dft_length is None else int(dft_length.item()), axis, inverse, onesided)


@op("STFT", dtypes={"signal": TRANSFORMED, "window": TRANSFORMED})
def stft(ctx, signal, frame_step: Host, window=None, frame_length: Host = None, *, onesided=1):
    """The DFT of each frame, multiplied by a window. signal: (N, length, 1 or 2), or (N, length) as some
    exporters write a real one; returns (N, frames, bins, 2). ONNX STFT-17.

    A node whose frames have no elements, or do not go on, is claimed, and its run is an error: ONNX Runtime's CPU
    kernel would end the process.
    """
    if signal.ndim == 2:
        signal = signal[..., None]
    batch, length, parts = signal.shape
    check_shape("window", window, [None])
    whole = length if window is None else window.shape[0]
    size = whole if frame_length is None else int(frame_length.item())
    step = int(frame_step.item())
    refusal = f"a signal of {length} has no frames of {size}, each {step} after the last"
    if size > length:
        raise ValueError(refusal)
    count = (length - size) // step + 1 if step > 0 else 0
    if step < 1 or size < 1:
        ctx.check(mx.array(False), refusal)
        shape = (batch, count, size // 2 + 1 if onesided else max(size, 0), 2)
        return mx.zeros(as_declared(ctx.node, shape), signal.dtype)
    check_shape("window", window, [size])
    frames = mx.as_strided(signal, (batch, count, size, parts), (length * parts, step * parts, parts, 1))
    if window is not None:
        frames = frames.astype(mx.float32) * window.astype(mx.float32)[:, None]
    return transformed(frames, size, 2, 0, onesided).astype(signal.dtype)


def as_declared(node, shape):
    """A shape that cannot be told, as the model says it where it does."""
    declared = node.outputs[0].shape
    if declared is None or len(declared) != len(shape):
        return shape
    return tuple(said if isinstance(said, int) else size for said, size in zip(declared, shape, strict=True))


for _handler in (dft, dft_along_attribute, stft):
    _handler.condition(flags("inverse", "onesided"))


def transformed(x: mx.array, length: int | None, axis: int, inverse: int, onesided: int) -> mx.array:
    """The transform of x, whose last dimension holds parts of complex numbers, along an axis that counts it too."""
    axis = counted(axis, x.ndim)
    wide = x.astype(mx.float32)
    real = x.shape[-1] == 1
    if axis == x.ndim - 1 or not (real or x.shape[-1] == 2) or (real and inverse and onesided):
        raise ValueError(f"{list(x.shape)} has no such transform along axis {axis}: parts of numbers come last")
    size = x.shape[axis]
    if (length is not None and length < 1) or (not size and (onesided or length is not None)):
        raise ValueError(f"there is no transform of length {length} of {size} elements")
    if length is None:
        length = 2 * (size - 1) if inverse and onesided else size
    if not length:
        return mx.zeros((*x.shape[:axis], 0, *x.shape[axis + 1 : -1], 1 if onesided else 2), x.dtype)
    values = mx.moveaxis(wide[..., 0] if real else complex_numbers(wide), axis, -1)
    if inverse and onesided:
        return mx.moveaxis(mx.fft.irfft(values, length), -1, axis)[..., None].astype(x.dtype)
    if inverse:
        result = mx.fft.ifft(values, length)
    elif real:
        half = mx.fft.rfft(values, length)
        result = half if onesided else mx.concatenate([half, mirrored(half, length)], axis=-1)
    else:
        whole = mx.fft.fft(values, length)
        result = whole[..., : length // 2 + 1] if onesided else whole
    return parts_of(mx.moveaxis(result, -1, axis)).astype(x.dtype)


def mirrored(half: mx.array, length: int) -> mx.array:
    """The second half of the spectrum of a real signal: the first's conjugate, backward."""
    return mx.conjugate(half[..., 1 : length - length // 2][..., ::-1])


def complex_numbers(parts: mx.array) -> mx.array:
    """(..., 2) of float32 as (...) of complex64."""
    return mx.contiguous(parts).view(mx.complex64)[..., 0]


def parts_of(values: mx.array) -> mx.array:
    """(...) of complex64 as (..., 2) of float32."""
    return mx.contiguous(values)[..., None].view(mx.float32)


def cosines(count: int, periodic: int, coefficients: Sequence[float]) -> np.ndarray:
    """A window of `count` points: coefficients[0] + coefficients[1] cos(t) + coefficients[2] cos(2t) + ..., as t goes
    round once. A single point that is no part of a period is NaN."""
    with np.errstate(invalid="ignore"):
        angle = 2 * np.pi * np.arange(count) / (count if periodic else count - 1)
    constant, *others = coefficients
    return sum(coefficient * np.cos(order * angle) for order, coefficient in enumerate(others, 1)) + constant


WINDOWS = {
    "HannWindow": (0.5, -0.5),
    "HammingWindow": (25 / 46, -21 / 46),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}


def window_handler(name, coefficients):
    def window(size: Host, *, output_datatype=1, periodic=1):
        if size.item() < 0:
            raise ValueError(f"a window of size {size.item()}")
        return as_type(cosines(int(size.item()), periodic, coefficients), output_datatype)

    window.__doc__ = f"The first `size` points of a window that ends there, or one point later. ONNX {name}-17."
    handler = op(name)(window)
    handler.condition(flags("periodic"))
    return handler


handlers = [window_handler(*each) for each in WINDOWS.items()]


@op("MelWeightMatrix")
def mel_weight_matrix(
    num_mel_bins: Host,
    dft_length: Host,
    sample_rate: Host,
    lower_edge_hertz: Host,
    upper_edge_hertz: Host,
    *,
    output_datatype=1,
):
    """Triangular filters over the bins of a spectrum, evenly spread over the mel scale. Returns (bins, num_mel_bins).
    ONNX MelWeightMatrix-17.
    """
    count, length = int(num_mel_bins.item()), int(dft_length.item())
    if count < 0:
        raise ValueError(f"{count} filters")
    with np.errstate(all="ignore"):
        low, high = (2595 * np.log10(1 + edge.item() / 700) for edge in (lower_edge_hertz, upper_edge_hertz))
        mels = low + np.arange(count + 2) * (high - low) / (count + 2)
        edges = ((length + 1) * 700 * (10 ** (mels / 2595) - 1) // sample_rate.item()).astype(np.int64)
    if edges.min() < 0 or edges.max() > length // 2:
        raise ValueError(f"the filters lie between the bins {edges.min()} and {edges.max()}, of {length // 2 + 1}")
    place = np.arange(length // 2 + 1)[:, None]
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    with np.errstate(all="ignore"):  # where two of a filter's edges fall together, one of its sides is not asked for
        rising = np.where(centre == left, place == centre, (place - left) / (centre - left))
        weights = np.where(place <= centre, rising, (right - place) / (right - centre))
    return as_type(np.where((place < left) | ((place >= right) & (place != centre)), 0, weights), output_datatype)


def as_type(values, number):
    """Computed values in the element type that ONNX's `number` names."""
    name = NAME_OF_ONNX[number]
    return to_device(values.astype(np.float32)).astype(mx.bfloat16) if name == "bfloat16" else values.astype(name)


def claim_type(node):
    """Decline an output type that MLX does not have."""
    number = node.attributes.get("output_datatype", 1)
    node.require(NAME_OF_ONNX.get(number) in MLX_TYPE, f"output_datatype {number} is not one that MLX has")


for handler in (*handlers, mel_weight_matrix):
    handler.condition(claim_type)
del handler
