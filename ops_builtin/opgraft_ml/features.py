"""What happens to features before a model sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan
from typing import Any

import mlx.core as mx
import numpy as np

from opgraft.ops import Context, Node, op, to_device
from opgraft.ops.arrays import HELD_TYPE
from opgraft_ml._lookup import found, sorted_keys
from opgraft_ml._types import FLOATING, NUMBERS
from opgraft_ops._shared import indices_within
from opgraft_ops._sizes import flags


def wide(X: mx.array) -> mx.array:
    """X as float32 or, if it is, float64."""
    return X if X.dtype == mx.float64 else X.astype(mx.float32)


def by_feature(name: str, values: Sequence[float], X: mx.array) -> Sequence[float]:
    """One number for all features, or one for each of X's last axis.

    Raises:
        ValueError: there are not as many.
    """
    if len(values) not in (1, X.shape[-1]):
        raise ValueError(f"{name} has {len(values)} numbers for {X.shape[-1]} features")
    return values


@op("ai.onnx.ml::Scaler", dtypes=NUMBERS)
def scaler(X, *, offset, scale):
    """(X - offset) * scale, as float32; both are one number, or one for each feature. ONNX Scaler-1."""
    x = wide(X)
    offsets, scales = (mx.array(by_feature(*each, X), x.dtype) for each in (("offset", offset), ("scale", scale)))
    return ((x - offsets) * scales).astype(mx.float32)


NORMS: dict[str, Callable[[mx.array], mx.array]] = {
    "MAX": lambda x: mx.max(x, axis=-1, keepdims=True),
    "L1": lambda x: mx.sum(mx.abs(x), axis=-1, keepdims=True),
    "L2": lambda x: mx.sqrt(mx.sum(mx.square(x), axis=-1, keepdims=True)),
}


@op("ai.onnx.ml::Normalizer", dtypes=NUMBERS)
def normalizer(X, *, norm="MAX"):
    """Each row of X divided by its norm, where that is not 0, as float32. MAX is the largest element, not the largest
    magnitude. ONNX Normalizer-1.
    """
    if not X.size:
        return X.astype(mx.float32)
    x = wide(X)
    size = NORMS[norm](x)
    return mx.where(size == 0, x, x / size).astype(mx.float32)


@normalizer.condition
def _(node: Node):
    norm = node.attributes.get("norm", "MAX")
    node.require(norm in NORMS, f"norm {norm} is not one of {', '.join(NORMS)}")
    node.require(node.rank(0) in (None, 1, 2), f"X has {node.rank(0)} axes, and must have 1 or 2")


@op("ai.onnx.ml::Imputer", dtypes=NUMBERS)
def imputer(X, *, imputed_value_floats=(), imputed_value_int64s=(), replaced_value_float=0.0, replaced_value_int64=0):
    """X with other values in place of those that are replaced_value (NaN, for one). ONNX Imputer-1."""
    floating = mx.issubdtype(X.dtype, mx.floating)
    values, replaced = (
        (imputed_value_floats, replaced_value_float) if floating else (imputed_value_int64s, replaced_value_int64)
    )
    missing = mx.isnan(X) if isnan(replaced) else mx.equal(X, mx.array(replaced, X.dtype))
    return mx.where(missing, mx.array(by_feature("the imputed value", values, X), X.dtype), X)


@imputer.condition
def _(node: Node):
    kind = "imputed_value_floats" if node.dtype(0) in FLOATING else "imputed_value_int64s"
    node.require(node.dtype(0) is None or node.attributes.get(kind), f"attribute {kind} is required, and absent")


@op("ai.onnx.ml::Binarizer", dtypes=NUMBERS)
def binarizer(X, *, threshold=0.0):
    """1 where X is above the threshold, 0 elsewhere, in X's element type. ONNX Binarizer-1."""
    return (wide(X) > threshold).astype(X.dtype)


@op("ai.onnx.ml::ArrayFeatureExtractor", dtypes={"X": NUMBERS, "Y": {"int64"}})
def array_feature_extractor(ctx: Context, X, Y):
    """The features of X (..., features) whose places are Y: (..., Y's elements). A vector X is one row of them.
    ONNX ArrayFeatureExtractor-1.
    """
    if not Y.size:
        raise ValueError("Y names no feature")
    places = indices_within(ctx, Y.reshape(-1), X.shape[-1], from_end=False)
    return mx.take(X[None] if X.ndim == 1 else X, places, axis=-1)


@op("ai.onnx.ml::FeatureVectorizer", dtypes=NUMBERS)
def feature_vectorizer(*X, inputdimensions=None):
    """Features in a row, as float32: each input (N, d), or (N) for d = 1, gives as many as inputdimensions says.
    ONNX FeatureVectorizer-1.
    """
    columns = [each.reshape(each.shape[0], -1).astype(mx.float32) for each in X]
    if inputdimensions is None:
        return mx.concatenate(columns, axis=1)
    fitted = [
        mx.pad(each[:, :size], [(0, 0), (0, max(size - each.shape[1], 0))])
        for each, size in zip(columns, inputdimensions, strict=True)
    ]
    return mx.concatenate(fitted, axis=1)


@op("ai.onnx.ml::OneHotEncoder", dtypes=NUMBERS)
def one_hot_encoder(ctx: Context, X, *, cats_int64s, zeros=1):
    """A new last axis with 1 at the place of X, truncated to an integer, among the categories, and 0 elsewhere, as
    float32. What is none of them gives only zeros, or with zeros=0 an error. ONNX OneHotEncoder-1.
    """
    count = len(cats_int64s)
    backward = np.array(cats_int64s, np.int64)[::-1], np.arange(count)[::-1]  # the last of equal categories counts
    keys, places = ctx.cached("keys", lambda: sorted_keys(*backward))
    place, known = found(X.astype(mx.int64), keys, places)
    if not zeros:
        ctx.check(known, "X holds what is none of the categories")
    return ((place[..., None] == mx.arange(count)) & known[..., None]).astype(mx.float32)


one_hot_encoder.condition(flags("zeros"))


@one_hot_encoder.condition
def _(node: Node):
    node.require(node.attributes["cats_int64s"], "cats_int64s is empty")


KEYS = ("int64s", "floats", "tensor")
TYPES = {"int64s": np.int64, "floats": np.float32}


@op(
    "ai.onnx.ml::LabelEncoder",
    since=2,
    dtypes={"float32", "float64", "int64", "int32", "int16"},
)
def label_encoder(
    ctx: Context,
    X,
    *,
    default_float=-0.0,
    default_int64=-1,
    default_string="_Unused",
    default_tensor=None,
    keys_floats=None,
    keys_int64s=None,
    keys_tensor=None,
    values_floats=None,
    values_int64s=None,
    values_tensor=None,
):
    """The value whose key each element of X is, or a default. NaN is a key like others. ONNX LabelEncoder-4."""
    attributes = ctx.node.attributes
    values = given(attributes, "values")
    keys, places = ctx.cached("keys", lambda: sorted_keys(given(attributes, "keys")))
    otherwise: Any = default_float if values.dtype.kind == "f" else default_int64
    if default_tensor is not None:
        otherwise = np.ravel(default_tensor)[0]
    place, known = found(X, keys, places)
    return mx.where(known, mx.take(to_device(values), place), mx.array(otherwise, HELD_TYPE[values.dtype.name]))


def given(attributes: Any, name: str) -> np.ndarray:
    """The keys or values of a LabelEncoder, whose name says their element type."""
    for kind in KEYS:
        found = attributes.get(f"{name}_{kind}")
        if found is not None:
            return np.asarray(found, TYPES.get(kind)).ravel()
    raise ValueError(f"there are no {name}")


@label_encoder.condition
def _(node: Node):
    for name in ("keys", "values"):
        count = sum(f"{name}_{kind}" in node.attributes for kind in KEYS)
        node.require(count == 1, f"of the attributes {name}_int64s, {name}_floats and {name}_tensor {count} are there")
    keys, values = given(node.attributes, "keys"), given(node.attributes, "values")
    node.require(len(keys) == len(values) > 0, f"there are {len(keys)} keys and {len(values)} values")
    node.require(
        node.dtype(0) in (None, keys.dtype.name), f"X is of {node.dtype(0)}, and the keys of {keys.dtype.name}"
    )
