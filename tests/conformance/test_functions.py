"""Models with functions of their own, and operators that ONNX Runtime expands into functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from opgraft.host import EP_NAME
from opgraft.sessions import assignment, open_session
from opgraft.testing import check_model, reference_outputs

HEADER = '<ir_version: 10, opset_import: ["": 21, "local": 1]>'

SCALE = """<opset_import: ["": 21], domain: "local">
Scale <alpha: float = 0.5> (v) => (w) { k = Constant <value_float: float = @alpha> () w = Mul (v, k) }
"""

MODELS = {
    "an attribute with a default": f"""{HEADER}
g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) {{ y = local.Scale (x) z = local.Scale <alpha = 3.0> (y) }}
{SCALE}""",
    "a function that calls a function": f"""{HEADER}
g (float[N, 4] x) => (float[N, 4] y) {{ a = local.Twice <alpha = 0.25> (x) y = local.Twice <alpha = 4.0> (a) }}
<opset_import: ["": 21, "local": 1], domain: "local">
Twice <alpha> (v) => (w) {{
    a = local.Scale <alpha: float = @alpha> (v) b = LeakyRelu <alpha: float = @alpha> (a)
    w = local.Scale <alpha: float = @alpha> (b)
}}
{SCALE}""",
    "called in a body": f"""{HEADER}
g (float[N, 4] x, bool cond) => (float[N, 4] y) {{
    a = local.Scale (x)
    y = If (cond) <
        then_branch = t () => (float[N, 4] r) {{ r = local.Scale (a) }},
        else_branch = e () => (float[N, 4] q) {{ q = local.Scale <alpha = 7.0> (x) }}
    >
}}
{SCALE}""",
    "a body in a function": f"""{HEADER}
g (float[N, 4] x, bool cond) => (float[N, 4] y) {{ a = local.Choose (x, cond) y = Add (a, x) }}
<opset_import: ["": 21], domain: "local">
Choose (v, cond) => (w) {{
    d = Add (v, v)
    w = If (cond) < then_branch = t () => (r) {{ r = Mul (d, v) }}, else_branch = e () => (q) {{ q = Neg (d) }} >
}}""",
    "an input left out, and an output": f"""{HEADER}
g (float[N, 4] x, int64[1] k) => (float[N, P] y) {{ y, unused = local.Best (x, k) }}
<opset_import: ["": 21], domain: "local">
Best (v, k, low) => (values, indices) {{ c = Clip (v, low) values, indices = TopK (c, k) }}""",
    "names that repeat inside and outside": f"""{HEADER}
g (float[N, 4] v) => (float[N, 4] w) {{ k = Neg (v) w = local.Scale (k) }}
{SCALE}""",
}


def inputs_of(model: onnx.ModelProto, cond: bool) -> dict[str, np.ndarray]:
    given = {
        "x": np.linspace(-2, 3, 12, dtype=np.float32).reshape(3, 4),
        "v": np.linspace(-2, 3, 12, dtype=np.float32).reshape(3, 4),
        "cond": np.array(cond),
        "k": np.array([2]),
    }
    return {info.name: given[info.name] for info in model.graph.input}


@pytest.mark.parametrize("cond", [True, False])
@pytest.mark.parametrize("text", MODELS.values(), ids=MODELS.keys())
def test_functions_of_the_model(text: str, cond: bool) -> None:
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model)
    inputs = inputs_of(model, cond)
    check_model(model, inputs)
    session = open_session(model).session
    assert assignment(session).keys() == {EP_NAME}
    for output, expected in zip(session.run(None, inputs), reference_outputs(model, inputs), strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


def test_an_operator_that_nobody_claims_is_expanded(tmp_path: Path) -> None:
    """ONNX Runtime has no kernel of GroupNormalization-21: its function's nodes are shown, and claimed."""
    registry = tmp_path / "registry.yaml"
    registry.write_text('ops: {GroupNormalization: {deny: ["*"]}}')
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in SHAPES.items()]
    node = helper.make_node("GroupNormalization", ["x", "scale", "bias"], ["y"], num_groups=2)
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4, 3])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    generator = np.random.default_rng(0)
    inputs = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    session = open_session(model, {"registry": str(registry)}).session
    assert assignment(session).keys() == {EP_NAME}
    assert sum(assignment(session)[EP_NAME]) > 1
    whole = open_session(model).session
    assert assignment(whole) == {EP_NAME: [1]}
    for each in (session, whole):
        expected = reference_outputs(model, inputs, "onnx")[0]
        np.testing.assert_allclose(each.run(None, inputs)[0], expected, rtol=1e-4, atol=1e-5)


SHAPES = {"x": (2, 4, 3), "scale": (4,), "bias": (4,)}
