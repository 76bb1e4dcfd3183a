"""Sequences of tensors, which live inside a subgraph only. Each holds small tensors where they were made."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from opgraft.graph.element_types import NAME_OF_ONNX
from opgraft.ops import ANY, INTEGERS, Anywhere, Host, Tensors, op, to_device
from opgraft_ops._shared import Array, Numpy
from opgraft_ops._sizes import counted, flags
from opgraft_ops.layout import concat_on_host, joined
from opgraft_ops.shape import SMALL


@op("SequenceEmpty")
def sequence_empty(*, dtype=1) -> Tensors:
    """A sequence without tensors. ONNX SequenceEmpty-11."""
    return Tensors()


@sequence_empty.condition
def _(node):
    dtype = NAME_OF_ONNX.get(node.attributes.get("dtype", 1), "unknown")
    node.require(dtype in ANY, f"a sequence of element type {dtype}, which MLX lacks")


@op("SequenceConstruct")
def sequence_construct(*inputs: Anywhere) -> Tensors:
    """The inputs, in order. ONNX SequenceConstruct-11."""
    return Tensors(map(kept, inputs))


@op("SequenceInsert", dtypes={"tensor": ANY, "position": INTEGERS})
def sequence_insert(input_sequence: Tensors, tensor: Anywhere, position: Host | None = None) -> Tensors:
    """The sequence with `tensor` before the one at `position`, by default at its end. ONNX SequenceInsert-11."""
    length = len(input_sequence)
    return input_sequence.inserted(length if position is None else place(position, length, length), kept(tensor))


@op("SequenceErase", dtypes={"position": INTEGERS})
def sequence_erase(input_sequence: Tensors, position: Host | None = None) -> Tensors:
    """The sequence without the tensor at `position`, by default the last. ONNX SequenceErase-11."""
    length = len(input_sequence)
    return input_sequence.erased(place(np.int64(-1) if position is None else position, length, length - 1))


@op("SequenceAt", dtypes={"position": INTEGERS})
def sequence_at(input_sequence: Tensors, position: Host):
    """The tensor at `position`, which counts from the end where it is negative. ONNX SequenceAt-11."""
    length = len(input_sequence)
    return input_sequence[place(position, length, length - 1)]


@op("SequenceLength")
def sequence_length(input_sequence: Tensors):
    """The number of tensors, as an int64 scalar. ONNX SequenceLength-11."""
    return np.array(len(input_sequence), np.int64)


@op("ConcatFromSequence")
def concat_from_sequence(input_sequence: Tensors, *, axis, new_axis=0):
    """The tensors one after another along `axis`, or along a new one. ONNX ConcatFromSequence-11."""
    if not input_sequence:
        raise ValueError("a sequence of 0 tensors has nothing to concatenate")
    tensors = list(input_sequence)
    if all(isinstance(each, np.ndarray) for each in tensors):
        return np.stack(tensors, axis) if new_axis else concat_on_host(*tensors, axis=axis)
    tensors = [to_device(each) for each in tensors]
    return mx.stack(tensors, axis) if new_axis else joined(tensors, axis)


@op("SplitToSequence", dtypes={"input": ANY, "split": INTEGERS})
def split_to_sequence(input: Anywhere, split: Host | None = None, *, axis=0, keepdims=1) -> Tensors:
    """Pieces of `input` along `axis`: of the sizes `split` if that is a vector, of that size if it is a scalar (but for
    the last, perhaps), and without it of size 1, less `axis` where keepdims is 0. ONNX SplitToSequence-24.
    """
    axis = counted(axis, input.ndim)
    sizes = piece_sizes(input.shape[axis], np.int64(1) if split is None else split)
    if not sizes:
        return Tensors()
    cuts = np.cumsum(sizes)[:-1].tolist()
    array = kept(input)
    pieces = (np if isinstance(array, np.ndarray) else mx).split(array, cuts, axis)
    return Tensors(each.squeeze(axis) for each in pieces) if split is None and not keepdims else Tensors(pieces)


split_to_sequence.condition(flags("keepdims"))
concat_from_sequence.condition(flags("new_axis"))


@split_to_sequence.condition
def _(node):
    node.require(
        node.attributes.get("keepdims", 1) or node.input(1) is None or node.rank(1) == 1,
        "keepdims is 0, and split is a scalar, or may be: ONNX keeps the axis then, and ONNX Runtime does not",
    )


@op("SequenceMap")
def sequence_map(ctx, input_sequence: Tensors, *additional_inputs: Anywhere | Tensors, body) -> tuple[Tensors, ...]:
    """What the body makes of each tensor of input_sequence, a sequence for each of its outputs. It takes along the
    tensor at the same place of each additional sequence, and each additional tensor. ONNX SequenceMap-17.
    """
    results = [
        body(tensor, *(each[index] if isinstance(each, Tensors) else each for each in additional_inputs))
        for index, tensor in enumerate(input_sequence)
    ]
    columns = zip(*results, strict=True) if results else [()] * len(ctx.node.outputs)
    return tuple(Tensors(column) for column in columns)


def kept(tensor: Array) -> Array:
    """A tensor as a sequence holds it: on the device, or on the host if it is small and came from there, since it may
    be a shape. What is large would be converted each time that it is read."""
    return tensor if tensor.size <= SMALL else to_device(tensor)


def place(position: Numpy, length: int, last: int) -> int:
    """A position in a sequence of `length` tensors, where it may be from -length to `last`.

    Raises:
        ValueError: it is not, or no single number.
    """
    index = int(position.item())
    if not -length <= index <= last:
        raise ValueError(f"position {index} is not in a sequence of {length} tensors")
    return index


def piece_sizes(total: int, split: Numpy) -> list[int]:
    """The sizes of the pieces of a dimension of size `total`: all of them, or one for all where it is a scalar.

    Raises:
        ValueError: they do not make up the dimension, or one is negative.
    """
    if split.ndim == 0:
        size = int(split)
        if size < 1:
            raise ValueError(f"a dimension of {total} has no pieces of size {size}")
        return [min(size, total - start) for start in range(0, total, size)]
    sizes = split.ravel().tolist()
    if min(sizes, default=0) < 0 or sum(sizes) != total:
        raise ValueError(f"pieces of sizes {sizes} do not make up a dimension of {total}")
    return sizes
