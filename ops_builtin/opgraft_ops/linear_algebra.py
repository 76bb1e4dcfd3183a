"""Matrix products, einsum and determinants."""

from __future__ import annotations

from collections import Counter
from functools import reduce

import mlx.core as mx

from opgraft.ops import FLOATS, INTEGERS, NUMBERS, Context, Decline, op
from opgraft_ops._folding import Fold, is_float, widened
from opgraft_ops._sizes import flags

LARGEST_PRODUCT = 1 << 24
"""How many products of integers are held at once."""


@op("MatMul", dtypes=NUMBERS)
def mat_mul(ctx, A, B):
    """A @ B as NumPy has it: (..., M, K) and (..., K, N) give (..., M, N), vectors lose their axis. ONNX MatMul-13."""
    return mx.matmul(*factors(ctx)).astype(A.dtype) if is_float(A) else integer_matmul(A, B)


mat_mul.joins({"B": 1}, rank=2)


def factors(ctx: Context) -> tuple[mx.array, mx.array]:
    """The first two inputs, for a product of floats: in float32 on the CPU, where MLX takes ten times as long for
    16-bit floats. Constants are widened once."""
    first, second = ctx.inputs[:2]
    return (ctx.prepared(0, widened), ctx.prepared(1, widened)) if ctx.device == "cpu" else (first, second)


def integer_matmul(A, B):
    """A @ B of integers, exactly, wrapping on overflow: MLX's own is for floats. Vectors as in NumPy."""
    rows = A[None] if A.ndim == 1 else A
    columns = B[:, None] if B.ndim == 1 else B
    if rows.shape[-1] != columns.shape[-2]:
        raise ValueError(f"a product of {list(A.shape)} with {list(B.shape)}: the inner sizes differ")
    batch = mx.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
    result = mx.zeros((*batch, rows.shape[-2], columns.shape[-1]), A.dtype)
    step = max(LARGEST_PRODUCT // max(result.size, 1), 1)
    for start in range(0, rows.shape[-1] if result.size else 0, step):
        inner = slice(start, start + step)
        products = rows[..., :, inner, None] * columns[..., None, inner, :]
        result = result + mx.sum(products, axis=-2).astype(A.dtype)
    lost = [*([-2] if A.ndim == 1 else []), *([-1] if B.ndim == 1 else [])]
    return mx.squeeze(result, lost)


@op("Gemm", since=7, dtypes=NUMBERS)
def gemm(ctx, A, B, C=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):
    """alpha A' B' + beta C, with A' and B' transposed on demand, and C broadcast to (M, N). ONNX Gemm-13."""
    A = A.T if transA else A
    B = B.T if transB else B
    shape = (A.shape[0], B.shape[1])
    if C is not None and mx.broadcast_shapes(C.shape, shape) != shape:
        raise ValueError(f"C of shape {list(C.shape)} does not fit a product of shape {list(shape)}")
    if not is_float(A):
        product = scaled(integer_matmul(A, B), alpha)
        return product if C is None else product + scaled(C, beta)
    dtype = A.dtype
    A, B = (each.T if turns else each for each, turns in zip(factors(ctx), (transA, transB), strict=True))
    C = C if C is None else C.astype(A.dtype)
    if C is not None and alpha and A.shape[1]:
        return mx.addmm(C, A, B, alpha=alpha, beta=beta).astype(dtype)
    product = mx.matmul(A, B) if alpha == 1 else mx.matmul(A, B) * alpha
    return (product if C is None or not beta else product + C * beta).astype(dtype)


gemm.condition(flags("transA", "transB"))


@gemm.condition
def _(node):
    if node.dtype(0) in INTEGERS:
        for name in ("alpha", "beta"):
            whole(node.attributes.get(name, 1.0))


def scaled(x: mx.array, factor: float) -> mx.array:
    """Integers times a whole number, which wraps as they do."""
    return x * mx.array(whole(factor), mx.int64).astype(x.dtype)


def whole(factor):
    if not float(factor).is_integer():
        raise Decline(f"alpha and beta of a Gemm of integers must be whole numbers, and one is {factor}")
    return int(factor)


@op("Einsum", dtypes=NUMBERS)
def einsum(*Inputs, equation):
    """The sum of products that `equation` describes ("ij,jk->ik"). ONNX Einsum-28."""
    equation = equation.replace(" ", "")
    if not is_float(Inputs[0]) or any(each.size == 0 for each in Inputs):
        return sum_of_products(equation, Inputs)
    # A product of two matrices is summed in float32 as it is.
    wide = Inputs if len(Inputs) == 2 else [widened(each) for each in Inputs]
    return mx.einsum(equation, *wide).astype(Inputs[0].dtype)


def sum_of_products(equation, arrays):
    """An einsum by broadcasting: exact for integers, where MLX has none, and safe for arrays without elements."""
    left, arrow, result = equation.partition("->")
    terms = [spelled_out(term, array.ndim) for term, array in zip(left.split(","), arrays, strict=True)]
    covered = max((sum(type(label) is int for label in term) for term in terms), default=0)
    counts = Counter(label for term in terms for label in term)
    once = [*range(-covered, 0), *sorted(label for label, count in counts.items() if type(label) is str and count == 1)]
    kept = spelled_out(result, covered + len(result) - 3 * ("..." in result)) if arrow else once
    labels = [*kept, *(label for label in counts if label not in kept)]
    product = reduce(mx.multiply, [laid_out(term, array, labels) for term, array in zip(terms, arrays, strict=True)])
    summed = tuple(range(len(kept), len(labels)))
    return mx.squeeze(Fold(summed)(mx.sum, product), summed).astype(product.dtype)


def spelled_out(term, rank):
    """The labels of an operand's dimensions: letters, and for those under an ellipsis -1 for the last, -2, ..."""
    before, ellipsis, after = term.partition("...")
    return [*before, *range(len(before) + len(after) - rank, 0), *after] if ellipsis else list(term)


def laid_out(term, array, labels):
    """array with one dimension for each label, of size 1 where the term lacks it; of repeated labels, the diagonal."""
    term = list(term)
    for label in [label for label, count in Counter(term).items() for _ in range(count - 1)]:
        first = term.index(label)
        second = term.index(label, first + 1)
        if array.shape[first] != array.shape[second]:
            raise ValueError(f"label {label} stands for sizes {array.shape[first]} and {array.shape[second]}")
        array = mx.diagonal(array, axis1=first, axis2=second)
        term = [*(each for axis, each in enumerate(term) if axis not in (first, second)), label]
    found = [label for label in labels if label in term]
    array = array.transpose([term.index(label) for label in found])
    sizes = iter(array.shape)
    return array.reshape([next(sizes) if label in term else 1 for label in labels])


@op("Det", dtypes=FLOATS)
def det(X):
    """The determinants of square matrices: (..., M, M) gives (...). ONNX Det-22."""
    size = X.shape[-1]
    if X.shape[-2] != size:
        raise ValueError(f"matrices of shape {list(X.shape[-2:])} are not square")
    if X.size == 0:
        return mx.ones(X.shape[:-2], X.dtype)
    # MLX has LU factors on the CPU only. Each row that was swapped with another changes the sign.
    factors, swaps = mx.linalg.lu_factor(widened(X), stream=mx.cpu)
    swapped = mx.sum(swaps != mx.arange(size, dtype=swaps.dtype), axis=-1) % 2
    diagonal = mx.prod(mx.diagonal(factors, axis1=-2, axis2=-1), axis=-1)
    return mx.where(swapped == 1, -diagonal, diagonal).astype(X.dtype)
