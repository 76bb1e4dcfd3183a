"""Sliding windows over the spatial axes of an image: their sizes, places and paddings, for convolutions and pooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import mlx.core as mx

from opgraft.ops import Node

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True, slots=True)
class Windows:
    """Where the windows lie, by spatial axis.

    Window o of an axis covers the input positions o * stride + tap * dilation - begin, for each tap of the kernel.

    Attributes:
        sizes: the input's spatial sizes.
        kernel, strides, dilations: as in ONNX.
        begins, ends: the padding asked for; `ends` counts only where a window's padding is counted (AveragePool).
        outputs: how many windows there are.
    """

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def taps(self) -> Iterator[tuple[int, ...]]:
        """The places in the kernel, in row-major order."""
        return product(*map(range, self.kernel))

    @property
    def spans(self) -> tuple[int, ...]:
        """The lengths, padding included, that the windows reach over."""
        parts = zip(self.outputs, self.strides, self.kernel, self.dilations, strict=True)
        return tuple((output - 1) * stride + (kernel - 1) * dilation + 1 for output, stride, kernel, dilation in parts)

    def strided(self, tap: Sequence[int]) -> tuple[slice, ...]:
        """What one tap of all windows reads of an image that was fitted to `spans`."""
        parts = zip(tap, self.outputs, self.strides, self.dilations, strict=True)
        return tuple(
            slice(place * dilation, place * dilation + (output - 1) * stride + 1, stride)
            for place, output, stride, dilation in parts
        )


def windows(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    ceil_mode: int | None = None,
) -> Windows:
    """The windows that ONNX's attributes mean. SAME pads so that there are ceil(size / stride) windows.

    Args:
        ceil_mode: pooling's; without it, no window is larger than the padded image.

    Raises:
        ValueError: a window without extent, or too large for the padded image; or an attribute for other axes.
    """
    rank = len(sizes)
    strides, dilations = tuple(strides or (1,) * rank), tuple(dilations or (1,) * rank)
    if not rank or not len(kernel) == len(strides) == len(dilations) == rank or len(pads or ()) not in (0, 2 * rank):
        given = f"kernel {list(kernel)}, strides {list(strides)}, dilations {list(dilations)}, pads {list(pads or ())}"
        raise ValueError(f"{given} do not fit an image of {list(sizes)}")
    if min(kernel) < 1:
        raise ValueError(f"a kernel of size {list(kernel)} is empty")
    reach = [(length - 1) * dilation + 1 for length, dilation in zip(kernel, dilations, strict=True)]
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        outputs = [-(-size // stride) for size, stride in zip(sizes, strides, strict=True)]
        parts = zip(outputs, strides, reach, sizes, strict=True)
        total = [max(0, (output - 1) * stride + length - size) for output, stride, length, size in parts]
        begins = [each // 2 if auto_pad == "SAME_UPPER" else each - each // 2 for each in total]
        ends = [whole - begin for whole, begin in zip(total, begins, strict=True)]
    else:
        both = [0] * (2 * rank) if auto_pad == "VALID" else list(pads or [0] * (2 * rank))
        begins, ends = both[:rank], both[rank:]
        outputs = []
        for size, begin, end, length, stride in zip(sizes, begins, ends, reach, strides, strict=True):
            room = size + begin + end - length
            upward = ceil_mode or room < 0  # ONNX Runtime divides toward zero: a lone window may go over the end
            count = (-(-room // stride) if upward else room // stride) + 1
            starts_in_end_padding = ceil_mode and (count - 1) * stride >= size + begin
            outputs.append(count - 1 if starts_in_end_padding else count)
            if outputs[-1] < 0 or (ceil_mode is None and room < 0):
                raise ValueError(f"a window over {length} elements is too large for {size} with pads {begin} and {end}")
    return Windows(tuple(sizes), tuple(kernel), strides, dilations, tuple(begins), tuple(ends), tuple(outputs))


def claim_windows(node: Node, rank: int | None) -> None:
    """Decline attributes that windows over `rank` axes cannot have, and negative pads, which would cut the image."""
    auto_pad = node.attributes.get("auto_pad", "NOTSET")
    node.require(auto_pad in AUTO_PADS, f"auto_pad {auto_pad} is not one of {', '.join(AUTO_PADS)}")
    for name, least, count in (("kernel_shape", 1, 1), ("strides", 1, 1), ("dilations", 1, 1), ("pads", 0, 2)):
        values = node.attributes.get(name) or ()
        node.require(min(values, default=least) >= least, f"{name} {list(values)} has elements below {least}")
        fits = rank is None or len(values) in (0, count * rank)
        node.require(fits, f"{name} {list(values)} are not {count} for each of {rank} axes")


def fitted(x: mx.array, begins: Sequence[int], lengths: Sequence[int], value: Any = 0) -> mx.array:
    """x of shape (N, D1...Dn, C) with `begins` elements of `value` set before each spatial axis, and the axis then cut
    or continued to `lengths`."""
    kept = [slice(None)]
    widths = [(0, 0)]
    for size, begin, length in zip(x.shape[1:-1], begins, lengths, strict=True):
        begin = min(begin, length)
        used = min(size, length - begin)
        kept.append(slice(0, used))
        widths.append((begin, length - begin - used))
    widths.append((0, 0))
    if tuple(each.stop for each in kept[1:]) != x.shape[1:-1]:
        x = x[tuple(kept)]
    return mx.pad(x, widths, constant_values=value) if any(map(any, widths)) else x
