"""What a translator may ask of the host while it translates one node."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol, TypeVar

import mlx.core as mx
import numpy as np

from opgraft.graph import Node
from opgraft.ops.arrays import to_device

T = TypeVar("T")


class Body(Protocol):
    """A control-flow body, ready to run: takes its formal inputs in order and returns its outputs in order.

    Inputs and outputs are MLX arrays, NumPy arrays where a value is known on the host, or sequences (`Tensors`). Values
    captured from the enclosing graph are bound already.
    """

    def __call__(self, *inputs: Any) -> tuple[Any, ...]: ...


class Context:
    """One translation of one node.

    Attributes:
        node: the node being translated.
        inputs: its inputs in ONNX order, None where absent: MLX arrays, or NumPy arrays for those marked `Host`.
        bodies: the control-flow bodies by attribute name.
        device: "cpu" or "gpu".
        on_host: True where every input and output is a NumPy array (shape arithmetic).
        random_key: makes a new MLX random key at each call.
        channels_last: True where the first input is an image that lies in memory with its channels last.
        in_order: inputs that grow came with room, and the run counts on it that what is new goes right behind their
            length; where a check then fails, it is done again without counting on that.
        appended: what `appends` was given.
        checks: what `check` was given and only the device can tell, with its messages.
    """

    __slots__ = (
        "_cache",
        "_constant",
        "_length",
        "_read",
        "_shared",
        "_slots",
        "_turned",
        "appended",
        "bodies",
        "channels_last",
        "checks",
        "device",
        "in_order",
        "inputs",
        "node",
        "on_host",
        "random_key",
    )

    def __init__(
        self,
        node: Node,
        inputs: Sequence[Any],
        *,
        device: str,
        cache: MutableMapping[Hashable, Any],
        constant: Sequence[bool],
        bodies: Mapping[str, Body],
        random_key: Callable[[], Any],
        on_host: bool = False,
        channels_last: bool = False,
        turned: bool = False,
        shared: MutableMapping[Hashable, Any] | None = None,
        slots: Sequence[int] = (),
        length: Any = None,
        read: Callable[[int], Any] | None = None,
        in_order: bool = False,
    ) -> None:
        self.node = node
        self.inputs = inputs
        self.device = device
        self.bodies = bodies
        self.on_host = on_host
        self.random_key = random_key
        self._cache = cache
        self._constant = constant
        self._turned = turned
        self._shared = {} if shared is None else shared
        self._slots = slots
        self._length = length
        self._read = read
        self.in_order = in_order
        self.appended: list[int] = []
        self.channels_last = channels_last
        self.checks: list[tuple[Any, str]] = []

    def check(self, holds: Any, message: str) -> None:
        """Have the run fail with `message` where `holds` comes out false: for data that the operator does not allow.

        Args:
            holds: a boolean MLX array of any shape, all of which must be true; it is computed along with the outputs,
                and nobody waits for it here. Or a bool or NumPy array, which is judged at once.
            message: what is wrong with the data, and which of the inputs it is.

        Raises:
            ValueError: `holds` is known, and false.
        """
        if isinstance(holds, mx.array):
            if holds.size:
                self.checks.append((holds, message))
        elif not np.all(holds):
            raise ValueError(message)

    def length(self, index: int, axis: int) -> Any:
        """How long input `index`, which may come with room to grow, is along its `axis` without that room: a number, or
        a scalar on the device, int32."""
        return self.inputs[index].shape[axis] if self._length is None else self._length

    def appends(self, *indices: int) -> None:
        """Say that nothing is written before the length of these inputs, which grow, whatever the data are: then the
        outputs that they become may take their memory."""
        self.appended += indices

    def on_device(self, index: int) -> mx.array:
        """A `Host` input as data on the device: in a trace that serves many of its values, that of the run. Where
        inputs grow (`Handler.grows`), that is what the data of other inputs can be checked against."""
        return to_device(self.inputs[index]) if self._read is None else self._read(self._slots[index])

    def axis(self, axis: int, rank: int) -> int:
        """Where an axis of ONNX's numbering lies in the inputs, for a handler of `Layout.ANY`.

        Args:
            axis: the axis, counted from the end where it is negative.
            rank: the number of axes.
        """
        if not self._turned or not -rank <= axis < rank or rank < 3:
            return axis
        axis %= rank
        return axis if axis == 0 else rank - 1 if axis == 1 else axis - 1

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """`make()`, kept for this node for the life of its plan; `key` tells one such value from another.

        The value must depend on nothing but the node's attributes and constant inputs. It may be an MLX array, or a
        tuple, list or dict of them, and is computed at once: runs in other threads use it too. All runs get the same
        value, even where two of them came to make it at the same time.
        """
        try:
            found: T = self._cache[key]
        except KeyError:
            found = self._cache.setdefault(key, make())
        return found

    def shared(self, key: Hashable, indices: Iterable[int], make: Callable[[], T]) -> T:
        """`make()`, done once a run for all nodes that ask for `key` with the same values as their inputs `indices`.

        The value must depend on nothing but the key and those inputs: the positions that the layers of a model go by,
        their mask. Whoever gets it leaves it as it is. What `make` has checked is checked once.
        """
        slots = self._slots
        own = (key, *(slots[index] if index < len(slots) else None for index in indices))
        try:
            found: T = self._shared[own]
        except KeyError:
            found = self._shared[own] = make()
        return found

    def is_constant(self, index: int) -> bool:
        """True where the model fixes the elements of input `index`, the same at every run."""
        return index < len(self._constant) and self._constant[index]

    def cached_of(self, key: Hashable, indices: Iterable[int], make: Callable[[], T]) -> T:
        """`make()` of the inputs `indices`, kept as by `cached` where those of them that are there are constants."""
        given = (index for index in indices if index < len(self.inputs) and self.inputs[index] is not None)
        return self.cached(key, make) if all(map(self.is_constant, given)) else make()

    def prepared(self, index: int, make: Callable[[Any], T]) -> T:
        """`make(input)`, done once where the input is a constant: for weights in another layout.

        An input has one such value: two of them go into one `make` that returns both.
        """
        value = self.inputs[index]
        if self.is_constant(index):
            return self.cached((Context, index), lambda: make(value))
        return make(value)
