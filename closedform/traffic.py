"""HBM traffic and operations: what any implementation must move, and what others of attention move beyond it.

Sizes in bytes. The matrix S is the L_q x L_kv scores of every head. Source of the countings: closed-formula
paper, section 6 and the paragraph on HBM traffic in 6.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .operators.attention import Attention
    from .operators.gemm import Gemm
    from .operators.operator import Operator
    from .operators.softmax import Softmax

__all__ = [
    "attention_flops",
    "compulsory_bytes",
    "flops",
    "fused_bytes",
    "gemm_bytes",
    "gemm_flops",
    "savings",
    "scores_bytes",
    "softmax_bytes",
    "softmax_flops",
    "streamed_bytes",
    "unfused_bytes",
]


def attention_flops(op: Attention) -> int:
    """Operations of the two products on the keys that each query sees, 2 * batch * heads * pairs * (d + columns of V).

    The softmax is not counted. L = 16384, d = 128, one head without a mask: 137.4e9.
    """
    return 2 * op.batch * op.heads * op.visibility.pairs * (op.d + op.columns)


def fused_bytes(op: Attention) -> int:
    """Compulsory traffic, (d + columns) elem for each row of Q and of K: Q, K, V and a bias read once, R (and the
    log-sum-exp) written once.

    L = 16384, d = 128, f32: 33.6 MB.
    """
    from .hw.dtypes import dtype

    q, kv = op.heads * op.L_q, op.key_heads * op.L_kv
    moved = (q * op.d + kv * (op.d + op.columns)) * op.elem_bytes + q * op.columns * dtype(op.result).bytes
    bias = 4 * op.bias * op.heads * op.visibility.pairs
    return op.batch * (moved + 4 * op.lse * q + bias)


def scores_bytes(op: Attention) -> int:
    """The matrix S, L_q L_kv elem a head.

    L = 16384, f32: 1073.7 MB.
    """
    return op.batch * op.heads * op.L_q * op.L_kv * op.elem_bytes


def unfused_bytes(op: Attention) -> int:
    """Three separate kernels: the compulsory traffic, and S written, read, written as softmax and read again.

    L = 16384, d = 128, f32: 4328.5 MB.
    """
    return fused_bytes(op) + 4 * scores_bytes(op)


def savings(op: Attention) -> float:
    """S over the compulsory traffic: L / (4 d) where L_q = L_kv = L.

    L = 16384, d = 128: 32.
    """
    return scores_bytes(op) / fused_bytes(op)


def streamed_bytes(op: Attention, block_q: int) -> int:
    """Loads of K and V by all workgroups of `block_q` queries: each reads all keys, and caches serve most.

    L = 16384, d = 128, f32, 32 queries: 512 * 16.8 MB = 8.59 GB.
    """
    blocks = -(-op.L_q // block_q)
    return op.batch * op.heads * blocks * 2 * op.L_kv * op.d * op.elem_bytes


def gemm_flops(op: Gemm) -> int:
    """Operations of the product, 2 * batch * M * N * K; the epilogue is not counted.

    M = N = K = 4096: 137.4e9.
    """
    return 2 * op.batch * op.M * op.N * op.K


def gemm_bytes(op: Gemm) -> int:
    """Compulsory traffic of the product: A, B and C read once, D written once.

    M = N = K = 4096, bf16: 100.7 MB.
    """
    from .hw.dtypes import dtype

    operands = (op.M * op.K + op.K * op.N) * dtype(op.dtype).bits
    return op.batch * (operands + (1 + op.has_c) * op.M * op.N * dtype(op.result).bits) // 8


#: Operations of a softmax for each element: the maximum, a difference, an exponential, a sum and a product.
SOFTMAX_OPS = 5


def softmax_flops(op: Softmax) -> int:
    """Operations of a softmax, 5 rows cols.

    8192 rows of 512: 21.0e6.
    """
    return SOFTMAX_OPS * op.rows * op.cols


def softmax_bytes(op: Softmax) -> int:
    """Compulsory traffic of a softmax: X and the mask read once, O and the lse written once.

    8192 rows of 512, f32: 33.6 MB.
    """
    return op.rows * (op.cols * (2 * op.elem_bytes + op.mask) + 4 * op.lse)


def flops(op: Operator) -> int:
    """Operations of the operator; of those with products, their operations."""
    counts: dict[str, Callable[[Any], int]]
    counts = {
        "gemm": gemm_flops,
        "conv2d": lambda conv: int(conv.flops),
        "softmax": softmax_flops,
        "attention": attention_flops,
    }
    return counts[op.name](op)


def compulsory_bytes(op: Operator) -> int:
    """What any implementation of the operator must move: inputs read once, the result written once."""
    sizes: dict[str, Callable[[Any], int]]
    sizes = {
        "gemm": gemm_bytes,
        "conv2d": lambda conv: int(conv.compulsory_bytes),
        "softmax": softmax_bytes,
        "attention": fused_bytes,
    }
    return sizes[op.name](op)
