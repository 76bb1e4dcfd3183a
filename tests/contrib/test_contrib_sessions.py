"""Each operator in a session of ONNX Runtime's: claimed, with the CPU provider's results where that has a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from opgraft.sessions import assignment, open_session
from opgraft.testing import assert_same, node_model, reference_outputs

RNG = np.random.default_rng(0)
BOTH = {"outputs": 2}


def floats(*shape, dtype="float32"):
    return RNG.standard_normal(shape).astype(dtype)


def codes(*shape, dtype="uint8"):
    return RNG.integers(0, 100, shape).astype(dtype)


def one(value, dtype="float32"):
    return np.array(value, dtype)


STEP, POINT = one(0.05), one(3, "uint8")
CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "BiasDropout": ([floats(2, 3, 8), floats(8)], {}),
    "BiasGelu": ([floats(2, 3, 8), floats(8)], {}),
    "BiasSplitGelu": ([floats(2, 3, 8), floats(8)], {}),
    "DequantizeLinear": ([codes(4, 5), STEP, POINT], {}),
    "DynamicQuantizeLSTM": (
        [floats(4, 1, 5), codes(1, 5, 32), codes(1, 8, 32), *[None] * 5, *[one([0.01]), one([50], "uint8")] * 2],
        {"hidden_size": 8, "outputs": 3},
    ),
    "DynamicQuantizeMatMul": ([floats(3, 4), codes(4, 5), STEP, POINT], {}),
    "EmbedLayerNormalization": (
        [codes(2, 5, dtype="int32") % 9, None, floats(9, 8), floats(6, 8), None, floats(8), floats(8)],
        {"outputs": 3, "output_types": ["float32", "int32", "float32"], "constant": (2, 3, 5, 6)},
    ),
    "FastGelu": ([floats(2, 3, 8), floats(8)], {}),
    "FusedConv": ([floats(1, 3, 6, 6), floats(4, 3, 3, 3), floats(4)], {"activation": "Relu", "constant": (1, 2)}),
    "FusedGemm": ([floats(3, 4), floats(4, 5), floats(5)], {"activation": "LeakyRelu", "activation_alpha": 0.1}),
    "FusedMatMul": ([floats(2, 3, 4), floats(2, 5, 4)], {"transB": 1, "alpha": 0.5}),
    "Gelu": ([floats(2, 3, 8)], {}),
    "GroupNorm": ([floats(2, 4, 4, 8), floats(8), floats(8)], {"groups": 2, "activation": 1}),
    "Inverse": ([floats(2, 3, 3) + 3 * np.eye(3, dtype="float32")], {}),
    "MatMulIntegerToFloat": ([codes(3, 4), codes(4, 5), STEP, STEP, POINT, POINT], {}),
    "NhwcConv": ([floats(1, 6, 6, 3), floats(4, 3, 3, 3), floats(4)], {"kernel_shape": [3, 3], "constant": (1, 2)}),
    "NhwcFusedConv": ([floats(1, 6, 6, 3), floats(4, 3, 3, 3), floats(4)], {"activation": "Relu"}),
    "NhwcMaxPool": ([codes(1, 6, 6, 3)], {"kernel_shape": [2, 2]}),
    "Pad": ([floats(3, 4), one([1, 0, 0, 2], "int64"), one([2.5])], {"constant": (1,)}),
    "QLinearAdd": ([codes(3, 4), STEP, POINT, codes(3, 4), STEP, POINT, STEP, POINT], {}),
    "QLinearAveragePool": ([codes(1, 3, 6, 6), STEP, POINT, STEP, POINT], {"kernel_shape": [2, 2]}),
    "QLinearConcat": ([STEP, POINT, codes(2, 3), STEP, POINT, codes(2, 4), one(0.1), POINT], {"axis": 1}),
    "QLinearConv": (
        [codes(1, 6, 6, 3), STEP, POINT, codes(4, 3, 3, 3), STEP, POINT, one(1.0), POINT],
        {"channels_last": 1, "constant": (1, 2, 3, 4, 5, 6, 7)},
    ),
    "QLinearGlobalAveragePool": ([codes(1, 3, 6, 6), STEP, POINT, STEP, POINT], {}),
    "QLinearLeakyRelu": ([codes(3, 4), STEP, POINT, STEP, POINT], {"alpha": 0.1}),
    "QLinearMul": ([codes(3, 4), STEP, POINT, codes(3, 4), STEP, POINT, STEP, POINT], {}),
    "QLinearSigmoid": ([codes(3, 4), STEP, POINT, one(1 / 256), POINT], {}),
    "QuantizeLinear": ([floats(4, 5), STEP, POINT], {}),
    "QuickGelu": ([floats(2, 3, 8)], {"alpha": 1.0}),
    "SkipGroupNorm": ([floats(2, 4, 4, 8), floats(8), floats(8), floats(2, 8)], {"groups": 2, "activation": 0, **BOTH}),
    "SkipLayerNormalization": ([floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8)], {}),
    "SkipSimplifiedLayerNormalization": ([floats(2, 3, 8), floats(2, 3, 8), floats(8)], {}),
    "Trilu": ([floats(4, 4), one(1, "int64")], {"constant": (1,)}),
}
BYTES_OUT = {"NhwcMaxPool", "QuantizeLinear", *(name for name in CASES if name.startswith("QLinear"))}
WITHOUT_KERNEL = {"BiasDropout", "BiasSplitGelu", "GroupNorm", "NhwcConv", "NhwcFusedConv", "SkipGroupNorm"}


def check_session(model: onnx.ModelProto, feeds: dict[str, Any], tolerance: float, known: bool = True) -> None:
    """Check that a session runs a model on opgraft alone, and with the CPU provider's results, if these are `known`."""
    session = open_session(model, {"device": "cpu"}).session
    assert assignment(session).keys() == {"MLXExecutionProvider"}
    outputs = session.run(None, feeds)
    expected = reference_outputs(model, feeds) if known else outputs
    for output, wanted in zip(outputs, expected, strict=True):
        assert_same(output, wanted, tolerance)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("operator", CASES)
def test_sessions(operator, dynamic):
    inputs, settings = CASES[operator]
    settings = {
        "output_types": ["uint8" if operator in BYTES_OUT else "float32"] * settings.get("outputs", 1),
        **settings,
    }
    constant = settings.pop("constant", ())
    if dynamic and operator in {"DynamicQuantizeLSTM", "QLinearConcat", "Trilu"}:
        constant = tuple(index for index, each in enumerate(inputs) if index and each is not None)
    model = node_model(f"com.microsoft::{operator}", inputs, constant=constant, dynamic=dynamic, **settings)
    feeds = {f"x{index}": each for index, each in enumerate(inputs) if each is not None and index not in constant}
    check_session(model, feeds, 1e-5, operator not in WITHOUT_KERNEL)


def test_simplified_layer_normalization():
    inputs = floats(2, 3, 8), floats(8)
    model = node_model("SimplifiedLayerNormalization", inputs, output_types=["float32"])
    check_session(model, {"x0": inputs[0], "x1": inputs[1]}, 1e-5)


def test_quantized_softmax():
    model = node_model(
        "com.microsoft::QLinearSigmoid", [codes(3, 4), STEP, POINT, one(1 / 256), POINT], output_types=["uint8"]
    )
    node = model.graph.node[0]
    node.op_type = "QLinearSoftmax"
    node.attribute.append(onnx.helper.make_attribute("opset", 13))
    check_session(
        model, {f"x{index}": each for index, each in enumerate([codes(3, 4), STEP, POINT, one(1 / 256), POINT])}, 0
    )
