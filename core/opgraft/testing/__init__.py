"""A test kit for authors of op packs: build small models, run them through a pack's handlers, compare with a reference.

Needs `onnx`, which opgraft installs. Nothing here goes through a session of ONNX Runtime, except the comparison with
its CPU execution provider.
"""

from opgraft.graph import Graph
from opgraft.testing.checks import (
    NodeReference,
    assert_same,
    check_declined,
    check_model,
    check_node,
)
from opgraft.testing.models import (
    Reference,
    decisions_for,
    node_model,
    reference_outputs,
    run_model,
    with_output_types,
)
from opgraft.testing.over import Tally, check_over

__all__ = [
    "Graph",
    "NodeReference",
    "Reference",
    "Tally",
    "assert_same",
    "check_declined",
    "check_model",
    "check_node",
    "check_over",
    "decisions_for",
    "node_model",
    "reference_outputs",
    "run_model",
    "with_output_types",
]
