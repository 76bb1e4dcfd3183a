"""The element types that most operators of ai.onnx.ml take."""

from __future__ import annotations

FLOATING = frozenset({"float32", "float64"})
NUMBERS = FLOATING | {"int64", "int32"}
