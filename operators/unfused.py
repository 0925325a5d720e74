"""Attention as three operators with S and P in memory: the baseline that fusion is measured against.

S = Q K^T / sqrt(d) and O = P V are products over all heads and batch entries, P = softmax(S) takes the place of S. The
rows of S are whole 16-byte accesses apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from closedform.hw.errors import BadInput

from .attention import Attention
from .gemm import Gemm
from .softmax import ACCESS_BYTES, Softmax

__all__ = ["UnfusedAttention"]


@dataclass(frozen=True, slots=True)
class UnfusedAttention:
    """The three operators of an Attention, whose variant must be the default one: no other has a meaning here.

    >>> UnfusedAttention(Attention(64, 50, 32, heads=3)).softmax
    Softmax(rows=192, cols=50, dtype='f32', log=False, mask=False, lse=False, empty='zero', ld=52)
    """

    op: Attention

    def __post_init__(self) -> None:
        if self.op.variant != "chained":
            raise BadInput(f"variant={self.op.variant!r}: attention in three kernels has no variants")
        for name in self.op.optional:
            if value := getattr(self.op, name):
                raise BadInput(f"{name}={value!r}: attention in three kernels does not have it")

    @property
    def products(self) -> int:
        """Matrices Q: one for every head of every batch entry."""
        return self.op.batch * self.op.heads

    @property
    def score_stride(self) -> int:
        """Elements from row to row of S."""
        vec = ACCESS_BYTES // self.op.elem_bytes
        return -(-self.op.L_kv // vec) * vec

    @property
    def scores(self) -> Gemm:
        """S = Q K^T; alpha is 1 / sqrt(d)."""
        op = self.op
        return Gemm(
            op.L_q, op.L_kv, op.d, layout="NT", batch=self.products, dtype=op.dtype, ldd=self.score_stride
        )

    @property
    def softmax(self) -> Softmax:
        """P = softmax(S)."""
        return Softmax(self.products * self.op.L_q, self.op.L_kv, self.op.dtype, ld=self.score_stride)

    @property
    def values(self) -> Gemm:
        """O = P V."""
        op = self.op
        return Gemm(
            op.L_q, op.d, op.L_kv, layout="NN", batch=self.products, dtype=op.dtype, lda=self.score_stride
        )
