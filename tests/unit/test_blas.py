"""Which BLAS MLX multiplies matrices with; each case is a process of its own, since it is decided once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere MLX has its own, and only that")

SCRIPT = """
import ctypes, sys
import numpy as np
{first}
from opgraft import blas
import mlx.core as mx

generator = np.random.default_rng(0)
for dtype in (np.float32, np.complex64):
    a, b = (generator.normal(size=size).astype(dtype) for size in ((33, 65), (65, 17)))
    product = np.array(mx.matmul(mx.array(a), mx.array(b), stream=mx.cpu))
    np.testing.assert_allclose(product, a @ b, rtol=1e-4, atol=1e-4)
with mx.stream(mx.cpu):
    a, b = (mx.array(generator.normal(size=(8, 8)), dtype=mx.float64) for _ in range(2))
    np.testing.assert_allclose(np.array(a @ b.T), np.array(a) @ np.array(b).T, rtol=1e-12)

def check(x, y, transposed_x, transposed_y, device_type):
    # either factor as it is, or as the transpose of what lies in memory
    given = [mx.array(np.ascontiguousarray(each.T) if turned else each, device_type).T if turned
             else mx.array(each, device_type) for each, turned in ((x, transposed_x), (y, transposed_y))]
    found = np.array(given[0] @ given[1])
    with np.errstate(invalid="ignore"):
        expected = x.astype(np.float64) @ y.astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)

with mx.stream(mx.cpu):
    for dtype, device_type in ((np.float32, mx.float32), (np.float64, mx.float64)):
        for rows, inner, columns in ((1, 65, 33), (33, 65, 1), (1, 65, 1), (1, 1, 33), (1, 2000, 700), (700, 2000, 1)):
            x, y = (generator.normal(size=size).astype(dtype) for size in ((rows, inner), (inner, columns)))
            for spoiled in (False, True):
                if spoiled:  # 0 times what is no number is none, and what lay in memory before is nobody's business
                    x[0, 0], y[-1, -1], x[-1, -1] = 0, np.nan, 0
                    y[0, 0] = np.inf
                for turned in ((False, False), (True, False), (False, True), (True, True)):
                    check(x, y, *turned, device_type)
print(blas.in_use.name, hasattr(ctypes.CDLL(None), "cblas_sgemm"))
"""


@pytest.mark.parametrize(
    ("first", "switch", "answer"),
    [
        ("", None, "OPENBLAS True"),
        ("", "openblas", "OPENBLAS True"),
        ("", "mlx", "SWITCHED_OFF False"),
        ("import mlx.core", None, "TOO_LATE False"),
        ("sys.modules['scipy_openblas32'] = None", None, "NOT_INSTALLED False"),
    ],
)
def test_what_is_used(first, switch, answer):
    environment = {name: value for name, value in os.environ.items() if name != "OPGRAFT_BLAS"}
    environment |= {} if switch is None else {"OPGRAFT_BLAS": switch}
    script = SCRIPT.format(first=first)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == answer, done.stderr
