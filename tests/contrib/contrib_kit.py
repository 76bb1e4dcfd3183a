"""What several of these tests share: tolerances, arrays, packed numbers, a session in which the CPU takes nothing."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnxruntime
import pytest

import opgraft
from opgraft.errors import TranslationError
from opgraft.testing import assert_same, node_model, reference_outputs, run_model

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
"""The largest error, relative to the largest magnitude of the expected output."""


def floats(*shape, dtype="float32", seed=0):
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(kind)


def int32(*values):
    return np.array(values, np.int32)


def packed(numbers, bits):
    """Whole numbers packed into bytes along the last axis, from the lowest bits on."""
    count = 8 // bits
    missing = [(0, 0)] * (numbers.ndim - 1) + [(0, -numbers.shape[-1] % count)]
    groups = np.pad(numbers, missing).astype(np.uint32).reshape(*numbers.shape[:-1], -1, count)
    return sum(groups[..., place] << (bits * place) for place in range(count)).astype(np.uint8)


def whole_numbers(*shape, below, seed=0):
    return np.random.default_rng([seed, *shape]).integers(0, below, shape)


def check_session(operator, *inputs, expected=None, dtype="float32", **model):
    """Check a one-node model through a session in which no node may fall back to the CPU.

    Args:
        expected: the outputs; None for those of ONNX Runtime's CPU provider.
    """
    outputs = model.get("outputs", 1)
    proto = node_model(operator, inputs, output_types=[dtype] * outputs, dynamic=True, **model)
    feeds = {value.name: inputs[int(value.name[1:])] for value in proto.graph.input}
    expected = reference_outputs(proto, feeds) if expected is None else expected
    options = opgraft.session_options(device="cpu")
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    for found, wanted in zip(session.run(None, feeds), expected, strict=True):
        assert_same(found, wanted, TOLERANCE[dtype])


def check_error(operator, *inputs, match, dtype="float32", **model):
    """Check that a run of a one-node model fails with a message that names the node and holds `match`."""
    proto = node_model(operator, inputs, output_types=[dtype] * model.get("outputs", 1), dynamic=True, **model)
    feeds = {value.name: inputs[int(value.name[1:])] for value in proto.graph.input}
    with pytest.raises(TranslationError, match=f"node 'node'.*{match}"):
        run_model(proto, feeds)
