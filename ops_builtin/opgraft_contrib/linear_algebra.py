"""Matrix products with what was fused into them, and inverses of matrices."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from opgraft.ops import FLOATS, Node, op
from opgraft_contrib._activations import OF_PRODUCT, claim_activation
from opgraft_ops._folding import widened
from opgraft_ops._sizes import flags
from opgraft_ops.linear_algebra import factors, gemm


@op("com.microsoft::FusedMatMul", dtypes=FLOATS)
def fused_mat_mul(ctx, A, B, *, alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0):
    """alpha A' B', as MatMul has it. transBatchA moves the first axis of A before its last one, so that (M, N1...Nn, K)
    is N1...Nn matrices; after that, transA swaps the last two. B likewise. A vector stays as it is.
    """
    if (transBatchA or transBatchB) and not A.ndim == B.ndim > 2:
        raise ValueError(
            f"{list(A.shape)} and {list(B.shape)} are not of one rank above 2, and so have no batch to move"
        )
    first, second = factors(ctx)
    product = mx.matmul(turned(first, transA, transBatchA), turned(second, transB, transBatchB))
    return (product if alpha == 1 else product * alpha).astype(A.dtype)


fused_mat_mul.condition(flags("transA", "transB", "transBatchA", "transBatchB"))


def turned(x: mx.array, transpose: int, batch: int) -> mx.array:
    x = mx.moveaxis(x, 0, -2) if batch else x
    return mx.swapaxes(x, -1, -2) if transpose and x.ndim > 1 else x


@op("com.microsoft::FusedGemm", dtypes=FLOATS - {"bfloat16"})
def fused_gemm(
    ctx,
    A,
    B,
    C=None,
    *,
    activation,
    activation_alpha=None,
    activation_beta=None,
    activation_gamma=None,
    alpha=1.0,
    beta=1.0,
    transA=0,
    transB=0,
):
    """An activation of alpha A' B' + beta C, as Gemm has it."""
    product = gemm(ctx, A, B, C, alpha=alpha, beta=beta, transA=transA, transB=transB)
    given = {"alpha": activation_alpha, "beta": activation_beta, "gamma": activation_gamma}
    chosen = OF_PRODUCT[activation]
    numbers: Sequence[float] = [given[name] for name in chosen.parameters]
    return chosen(widened(product), numbers).astype(A.dtype)


fused_gemm.condition(flags("transA", "transB"))


@fused_gemm.condition
def _(node: Node):
    claim_activation(node, OF_PRODUCT, None)
    for name in OF_PRODUCT[str(node.attributes["activation"])].parameters:
        node.require(f"activation_{name}" in node.attributes, f"attribute activation_{name} is required, and absent")


@op("com.microsoft::Inverse", dtypes=FLOATS - {"bfloat16"})
def inverse(X):
    """The inverses of square matrices: (..., M, M). A matrix that has none is an error."""
    if X.ndim < 2 or X.shape[-1] != X.shape[-2]:
        raise ValueError(f"matrices of shape {list(X.shape[-2:])} are not square")
    if not X.size:
        return X
    return mx.linalg.inv(widened(X), stream=mx.cpu).astype(X.dtype)  # MLX inverts on the CPU only
