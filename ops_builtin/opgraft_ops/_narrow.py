"""Values of the element types that MLX lacks, to and from what holds them: on MLX and on NumPy arrays alike.

The floats are held as their bits, of which a table makes values and integer arithmetic makes them again; the integers
are held as values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import inf, ldexp, nan
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.graph.element_types import BITS, HELD_AS
from opgraft.ops import FLOATS
from opgraft.ops.arrays import element_type
from opgraft_ops._shared import Array, Numpy

ROUND_MODES = ("up", "down", "nearest")


@dataclass(frozen=True, slots=True)
class Format:
    """A float of a sign, an exponent and a mantissa.

    Attributes:
        mantissa: the number of its bits.
        bias: of the exponent.
        largest: the code of the largest finite number.
        beyond: the code of what is larger, where that is not to be the largest: infinity, or NaN if there is none.
        nan: the code that NaN becomes. One that is the sign alone takes the place of minus zero.
        sign: the bit of the sign.
    """

    mantissa: int
    bias: int
    largest: int
    beyond: int
    nan: int
    sign: int = 0x80

    def value(self, code: int) -> float:
        magnitude = code & (self.sign - 1)
        if code == self.nan == self.sign or magnitude > self.largest:
            value = inf if magnitude == self.beyond != self.nan else nan
        else:
            exponent, fraction = magnitude >> self.mantissa, magnitude & (2**self.mantissa - 1)
            fraction += 2**self.mantissa if exponent else 0
            value = ldexp(fraction, max(exponent, 1) - self.bias - self.mantissa)
        return -value if code & self.sign else value


FORMATS = {
    "float8e4m3fn": Format(mantissa=3, bias=7, largest=0x7E, beyond=0x7F, nan=0x7F),
    "float8e4m3fnuz": Format(mantissa=3, bias=8, largest=0x7F, beyond=0x80, nan=0x80),
    "float8e5m2": Format(mantissa=2, bias=15, largest=0x7B, beyond=0x7C, nan=0x7E),
    "float8e5m2fnuz": Format(mantissa=2, bias=16, largest=0x7F, beyond=0x80, nan=0x80),
    "float4e2m1": Format(mantissa=1, bias=1, largest=0x7, beyond=0x7, nan=0x0, sign=0x8),
}
"""float8e8m0 is not among them: it has neither sign nor mantissa."""


def values(array: Any, dtype: str | None) -> Any:
    """The values of an array that holds elements of type `dtype`: floats that MLX lacks as float32, others as held."""
    if dtype not in FORMATS and dtype != "float8e8m0":
        return array
    table = _values_of_codes(dtype)
    if isinstance(array, mx.array):
        return mx.take_along_axis(mx.array(table), array.reshape(-1), 0).reshape(array.shape)
    return table[array]


@cache
def _values_of_codes(dtype: str) -> Numpy:
    if dtype == "float8e8m0":
        return np.array([*(ldexp(1, code - 127) for code in range(255)), nan], np.float32)
    form = FORMATS[dtype]
    return np.array([form.value(code) for code in range(2 * form.sign)], np.float32)


def holding(x: Any, dtype: str, saturate: object = True, round_mode: str = "up") -> Any:
    """What holds the values x in element type `dtype`, one that MLX lacks.

    Floats are rounded to nearest even, as float32 to begin with. What is too large becomes the largest number, or with
    saturate=0 infinity, or NaN where the type has none; float4e2m1 has neither, and NaN becomes 0. float8e8m0 rounds as
    `round_mode` says; to it, numbers without a place are 0 and less than 2⁻¹²⁷. Integers are rounded to nearest even,
    and keep their lowest bits.
    """
    module: ModuleType = mx if isinstance(x, mx.array) else np
    if dtype in FORMATS:
        return _float_codes(module, x.astype(module.float32), FORMATS[dtype], saturate)
    if dtype == "float8e8m0":
        return _power_codes(module, x.astype(module.float32), saturate, round_mode)
    if element_type(x) in FLOATS:
        x = module.round(x).astype(module.int32)
    unused = 8 - BITS[dtype]
    return x.astype(getattr(module, HELD_AS[dtype])) << unused >> unused


def _float_codes(module: ModuleType, x: Any, form: Format, saturate: object) -> Array:
    bits = x.view(module.uint32)
    magnitude = bits & 0x7FFFFFFF
    dropped = 23 - form.mantissa
    half_less_one = (1 << (dropped - 1)) - 1
    rounded = (magnitude + half_less_one + ((magnitude >> dropped) & 1)) >> dropped
    normal = rounded - ((127 - form.bias) << form.mantissa)
    size = magnitude.view(module.float32)
    subnormal = module.round(size * 2.0 ** (form.bias - 1 + form.mantissa)).astype(module.uint32)
    code = module.where(size < 2.0 ** (1 - form.bias), subnormal, normal)
    code = module.where(code > form.largest, form.largest if saturate else form.beyond, code)
    code = module.where(magnitude > 0x7F800000, form.nan, code)
    sign = (bits >> 31) * form.sign
    if form.nan == form.sign:
        sign = module.where(code == 0, 0, sign)
    return (code | sign).astype(module.uint8)


def _power_codes(module: ModuleType, x: Any, saturate: object, round_mode: str) -> Array:
    bits = x.view(module.uint32)
    one, half = 1 << 23, 1 << 22
    # Below 2⁻¹²⁶ float32 has no leading one: twice the bits, less those of 2⁻¹²⁷, count on from there.
    magnitude = module.where(bits < one, module.maximum(bits << 1, one) - one, bits)
    code = (magnitude + {"up": one - 1, "nearest": half, "down": 0}[round_mode]) >> 23
    if saturate:
        code = module.where(bits >= 1 << 31, 0, module.minimum(code, 254))
    else:
        code = module.where((bits < half) | (bits > 254 << 23), 255, code)
    return module.where((bits & 0x7FFFFFFF) > 0x7F800000, 255, code).astype(module.uint8)
