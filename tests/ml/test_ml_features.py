"""What happens to features before a model sees them, against ONNX Runtime's CPU provider, or NumPy where it has no
kernel."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from forests import examples

from opgraft.errors import TranslationError
from opgraft.testing import check_declined, check_node, decisions_for

TOLERANCE = 1e-6
NUMBERS = ["float32", "float64", "int64", "int32"]
SINGLE = {"output_types": ["float32"]}
ONE = {**SINGLE, "tolerance": TOLERANCE}


def named(operator):
    return f"ai.onnx.ml::{operator}"


def of_type(dtype, count=30):
    x = examples(count)
    return x.round().astype(dtype) if "int" in dtype else x.astype(dtype)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("count", [0, 1, 30])
@pytest.mark.parametrize("lone", [False, True])
def test_scaler(dtype, count, lone):
    offset, scale = [0.5, -1.0, 0.25, 3.0], [2.0, 0.1, -0.5, 1.0]
    settings = {"offset": offset[:1] if lone else offset, "scale": scale[:1] if lone else scale}
    check_node(named("Scaler"), of_type(dtype, count), **settings, **ONE)


def test_scaler_needs_numbers_for_all_features():
    check_declined(named("Scaler"), examples(), offset=[0.0] * 3, scale=[1.0] * 3, because="3 numbers for 4", **SINGLE)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2", None])
@pytest.mark.parametrize("count", [1, 30])
def test_normalizer(dtype, norm, count):
    x = of_type(dtype, count)
    x[0] = 0
    check_node(named("Normalizer"), x, **({} if norm is None else {"norm": norm}), **ONE)
    check_node(named("Normalizer"), -np.abs(x), **({} if norm is None else {"norm": norm}), **ONE)


def test_normalizer_declines():
    check_declined(named("Normalizer"), examples(), norm="L3", because="norm L3 is not one of", **SINGLE)
    check_declined(named("Normalizer"), examples()[None], because="X has 3 axes", **SINGLE)


@pytest.mark.parametrize("replaced", [0.0, 1.0, np.nan])
@pytest.mark.parametrize("values", [[7.5], [1.0, 2.0, 3.0, 4.0]])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_imputer_of_floats(replaced, values, dtype):
    x = of_type(dtype)
    x[::3, 1] = np.nan
    x[1::3, 2] = 1
    settings = {"imputed_value_floats": values, "replaced_value_float": replaced, "output_types": [dtype]}
    expected = np.where(np.isnan(x) if np.isnan(replaced) else x == replaced, np.array(values, dtype), x)
    check_node(named("Imputer"), x, reference=[expected], **settings)
    if dtype == "float32":
        check_node(named("Imputer"), x, **settings)


@pytest.mark.parametrize("replaced", [0, 1, -2])
@pytest.mark.parametrize("values", [[7], [1, 2, 3, 4]])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_imputer_of_integers(replaced, values, dtype):
    x = of_type(dtype)
    settings = {"imputed_value_int64s": values, "replaced_value_int64": replaced, "output_types": [dtype]}
    check_node(named("Imputer"), x, reference=[np.where(x == replaced, np.array(values, dtype), x)], **settings)
    if dtype == "int64":
        check_node(named("Imputer"), x, **settings)


def test_imputer_declines():
    check_declined(named("Imputer"), examples(), imputed_value_int64s=[1], because="imputed_value_floats is required")
    check_declined(named("Imputer"), examples(), imputed_value_floats=[1.0, 2.0], because="2 numbers for 4 features")


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("threshold", [None, 0.0, 1.0, -0.5])
@pytest.mark.parametrize("count", [0, 30])
def test_binarizer(dtype, threshold, count):
    x = of_type(dtype, count)
    settings = {"output_types": [dtype], **({} if threshold is None else {"threshold": threshold})}
    check_node(named("Binarizer"), x, reference=[(x > (threshold or 0)).astype(dtype)], **settings)
    if dtype == "float32":
        check_node(named("Binarizer"), x, **settings)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("places", [[0], [3, 1], [2, 2, 0], [[1], [3]]])
@pytest.mark.parametrize("shape", [(30, 4), (1, 4), (4,), (2, 3, 4)])
@pytest.mark.parametrize("constant", [(), (1,)])
def test_array_feature_extractor(dtype, places, shape, constant):
    x = of_type(dtype).ravel()[: np.prod(shape)].reshape(shape)
    inputs = x, np.array(places, np.int64)
    check_node(named("ArrayFeatureExtractor"), *inputs, output_types=[dtype], constant=constant)


def test_features_that_there_are_not():
    for places in ([4], [-1]):
        with pytest.raises(TranslationError, match="indices must lie between 0 and 3"):
            inputs = examples(), np.array(places)
            check_node(named("ArrayFeatureExtractor"), *inputs, reference=[], output_types=["float32"])


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("sizes", [[4], [4, 4], [4, 2, 1]])
def test_feature_vectorizer(dtype, sizes):
    inputs = [of_type(dtype)[:, :size] for size in sizes]
    check_node(named("FeatureVectorizer"), *inputs, inputdimensions=sizes, **ONE)


@pytest.mark.parametrize("sizes", [[6, 2], [2, 6], [1, 1]])
def test_features_cut_and_filled(sizes):
    inputs = [of_type("float32"), of_type("float32")[:, ::-1].copy()]
    check_node(named("FeatureVectorizer"), *inputs, inputdimensions=sizes, **ONE)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("categories", [[0], [1, 0, -1], [5, -3, 2, 0, 7, 1, -2], [1, 1, 0]])
@pytest.mark.parametrize("shape", [(30, 4), (30,), (2, 3, 4), (0,)])
def test_one_hot_encoder(dtype, categories, shape):
    x = of_type(dtype).ravel()[: np.prod(shape)].reshape(shape)
    known = np.where(np.isin(x.astype(np.int64), categories), x, np.array(categories[0]).astype(dtype))
    for given, settings in ((x, {}), (known, {"zeros": 0})):
        settings |= {"cats_int64s": categories, **ONE}
        if dtype != "int32":  # which the CPU provider lacks
            check_node(named("OneHotEncoder"), given, **settings)
        last = [category not in categories[index + 1 :] for index, category in enumerate(categories)]
        expected = (given.astype(np.int64)[..., None] == categories) & np.array(last)
        check_node(named("OneHotEncoder"), given, reference=[expected.astype(np.float32)], **settings)


def test_what_is_no_category():
    with pytest.raises(TranslationError, match="none of the categories"):
        check_node(named("OneHotEncoder"), np.array([3], np.int64), cats_int64s=[1], zeros=0, reference=[], **ONE)
    check_declined(
        named("OneHotEncoder"), np.array([3], np.int64), cats_strings=["a"], because="cats_strings is not", **SINGLE
    )


KEYS = {"int64s": [3, -1, 0, 2, 10**12], "floats": [0.5, -1.0, 2.0, 3.0, 0.0]}
VALUES = {"int64s": [30, 10, 0, 20, 10**13], "floats": [0.25, 1.5, -2.0, 3.5, 8.0]}
TYPE = {"int64s": "int64", "floats": "float32"}


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("opset", [2, 4])
@pytest.mark.parametrize("defaults", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_label_encoder(keys, values, opset, defaults, count):
    others = {"default_int64": 77, "default_float": 7.5} if defaults else {}
    x = np.array([*KEYS[keys], 9, -7, 1], TYPE[keys]).reshape(2, 4)
    settings = {f"keys_{keys}": KEYS[keys][:count], f"values_{values}": VALUES[values][:count], "opset": opset}
    check_node(named("LabelEncoder"), x, output_types=[TYPE[values]], **settings, **others)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "float32", "float64"])
@pytest.mark.parametrize("result", ["int64", "int16", "float32", "float64"])
@pytest.mark.parametrize("default", [False, True])
def test_label_encoder_of_tensors(dtype, result, default):
    keys, values = np.array([3, -1, 0, 2], dtype), np.array([4, 1, 3, 2], result)
    x = np.array([[0, 1, 2], [3, -1, 9]], dtype)
    otherwise = 5 if default else -1 if "int" in result else -0.0
    found = {key: value for key, value in zip(keys.tolist(), values.tolist(), strict=True)}
    expected = np.array([found.get(each, otherwise) for each in x.ravel().tolist()], result).reshape(x.shape)
    tensors = {"keys_tensor": keys, "values_tensor": values}
    tensors |= {"default_tensor": np.array([5], result)} if default else {}
    attributes = {name: onnx.numpy_helper.from_array(each) for name, each in tensors.items()}
    settings = {"opset": 4, "output_types": [result]}
    check_node(named("LabelEncoder"), x, reference=[expected], **settings, **attributes)


def test_nan_is_a_key_like_others():
    x = np.array([np.nan, 1, 0, 2], np.float32)
    for keys in ([1.0, np.nan, 0.0], [np.nan], [np.nan, 1.0, 2.0, 3.0, 0.0]):
        settings = {"keys_floats": keys, "values_int64s": list(range(10, 10 + len(keys))), "opset": 4}
        check_node(named("LabelEncoder"), x, output_types=["int64"], **settings)
    check_node(named("LabelEncoder"), x, keys_floats=[1.0], values_int64s=[5], opset=4, output_types=["int64"])


def test_the_first_of_equal_keys_counts():
    x = np.array([1, 2], np.int64)
    settings = {"keys_int64s": [1, 1, 2], "values_int64s": [5, 6, 7], "opset": 2}
    check_node(named("LabelEncoder"), x, output_types=["int64"], **settings)


def test_what_label_encoders_decline():
    x = np.array([1, 2], np.int64)
    for attributes, because in (
        ({"keys_int64s": [1], "values_strings": ["a"]}, "values_strings is not supported"),
        ({"keys_int64s": [1], "keys_floats": [1.0], "values_int64s": [1]}, "2 are there"),
        ({"values_int64s": [1]}, "0 are there"),
        ({"keys_int64s": [1, 2], "values_int64s": [1]}, "2 keys and 1 values"),
        ({"keys_floats": [1.0], "values_int64s": [1]}, "X is of int64, and the keys of float32"),
    ):
        check_declined(named("LabelEncoder"), x, because=because, opset=4, output_types=["int64"], **attributes)


def test_maps_of_scores_are_declined_with_what_to_do():
    scores = np.ones((3, 2), np.float32)
    node = onnx.helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", name="node", classlabels_int64s=[1, 2])
    kind = onnx.helper.make_map_type_proto(onnx.TensorProto.INT64, onnx.helper.make_tensor_type_proto(1, []))
    made = onnx.helper.make_value_info("y", onnx.helper.make_sequence_type_proto(kind))
    given = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, scores.shape)
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 1)]
    graph = onnx.helper.make_graph([node], "maps", [given], [made])
    ((_, reasons),) = decisions_for(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)).declined
    assert [reason for reason in map(str, reasons) if "options={'zipmap': False}" in reason]
