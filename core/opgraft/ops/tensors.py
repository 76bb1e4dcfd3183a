"""The value of an ONNX sequence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import mlx.core as mx

from opgraft.ops.arrays import as_held


class Tensors:
    """Tensors in order, each as it is held: an MLX array, or a NumPy array where its elements are known on the host.

    An input that is annotated so takes a sequence, and with `Anywhere | Tensors` either that or a tensor; a translator
    that gives sequences has `Tensors` in the annotation of what it returns. Nothing changes one: an operator that adds
    or takes away makes another, which shares the rest.

    Args:
        tensors: the elements, as a translator may give outputs.

    Raises:
        TypeError: one of them is not an array that MLX can hold.
    """

    __slots__ = ("_held", "_lazy")

    def __init__(self, tensors: Iterable[Any] = ()) -> None:
        self._held: tuple[Any, ...] = tuple(as_held(each) for each in tensors)
        self._lazy = tuple(each for each in self._held if isinstance(each, mx.array))

    def __len__(self) -> int:
        return len(self._held)

    def __getitem__(self, index: int) -> Any:
        """A tensor; from the end where `index` is negative. What is done to it in place is done to it alone."""
        return _own_handle(self._held[index])

    def __iter__(self) -> Iterator[Any]:
        return map(_own_handle, self._held)

    def __repr__(self) -> str:
        return f"a sequence of {len(self)} tensors"

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self!r} is not an array that MLX can hold")  # NumPy would make one, if it could

    def inserted(self, index: int, tensor: Any) -> Tensors:
        """Another sequence, with `tensor` before the one at `index`; at the end where `index` is the length."""
        held = as_held(tensor)
        lazy = (held,) if isinstance(held, mx.array) else ()
        return _made_of((*self._held[:index], held, *self._held[index:]), self._lazy + lazy)

    def erased(self, index: int) -> Tensors:
        """Another sequence, without the tensor at `index`."""
        index = range(len(self))[index]
        lazy = tuple(each for each in self._lazy if each is not self._held[index])
        return _made_of(self._held[:index] + self._held[index + 1 :], lazy)

    def take_lazy(self) -> tuple[mx.array, ...]:
        """The tensors that MLX may have yet to compute. Whoever asks has them computed: they are not given again."""
        lazy, self._lazy = self._lazy, ()
        return lazy


def _made_of(held: tuple[Any, ...], lazy: tuple[mx.array, ...]) -> Tensors:
    made = Tensors()
    made._held, made._lazy = held, lazy
    return made


def _own_handle(held: Any) -> Any:
    return mx.array(held) if isinstance(held, mx.array) else held
