"""The contract that an op pack imports: everything an author of handlers needs, and nothing of the host's insides.

from opgraft.ops import FLOATS, Host, op

@op("Softplus", dtypes=FLOATS)
def softplus(X):
    return mx.logaddexp(X, 0)
"""

from opgraft.errors import Decline
from opgraft.graph import Node, Value
from opgraft.graph.element_types import (
    ANY,
    BOOL,
    COMPLEX,
    FLOAT8,
    FLOATS,
    HELD,
    INTEGERS,
    NARROW,
    NUMBERS,
    PACKED,
    SIGNED,
    UNSIGNED,
)
from opgraft.ops.arrays import to_device, to_host
from opgraft.ops.context import Body, Context
from opgraft.ops.handler import Anywhere, Handler, Host, op
from opgraft.ops.hookspecs import hookimpl
from opgraft.ops.layouts import Layout
from opgraft.ops.schema import Output
from opgraft.ops.tensors import Tensors

__all__ = [
    "ANY",
    "BOOL",
    "COMPLEX",
    "FLOAT8",
    "FLOATS",
    "HELD",
    "INTEGERS",
    "NARROW",
    "NUMBERS",
    "PACKED",
    "SIGNED",
    "UNSIGNED",
    "Anywhere",
    "Body",
    "Context",
    "Decline",
    "Handler",
    "Host",
    "Layout",
    "Node",
    "Output",
    "Tensors",
    "Value",
    "hookimpl",
    "op",
    "to_device",
    "to_host",
]
