"""From a derivation to the text of a kernel file."""

from __future__ import annotations

from collections.abc import Callable

from closedform.hw.errors import BadInput
from closedform.operators.depthwise import DepthwiseTiles

from .derivation import Derivation
from .emit_attention import AttentionEmit
from .emit_attention_form import attention_name
from .emit_conv2d import Conv2dEmit, conv2d_name
from .emit_depthwise import DepthwiseEmit, depthwise_name
from .emit_gemm import GemmEmit, gemm_name
from .emit_softmax import SoftmaxEmit, softmax_name
from .visitor import Visitor

__all__ = ["EMIT_VISITORS", "emit_source", "kernel_name"]


def _conv2d_visitor(derivation: Derivation) -> Visitor:
    """That of the kernel which the tiles are of."""
    return (DepthwiseEmit if isinstance(derivation.tiles, DepthwiseTiles) else Conv2dEmit)(derivation)


#: The EmitVisitor of each operator's nodes: it writes the FlyDSL file of a derived tree.
EMIT_VISITORS: dict[str, Callable[[Derivation], Visitor]] = {
    "attention": AttentionEmit,
    "gemm": GemmEmit,
    "softmax": SoftmaxEmit,
    "conv2d": _conv2d_visitor,
}


def emit_source(derivation: Derivation) -> str:
    """The FlyDSL file of the derived kernel: the same bytes for the same derivation.

    Raises InfeasibleError without tiles, BadInput for the paper's model, which describes no kernel that fits the LDS.
    """
    tiles, _, _ = derivation.require()
    if derivation.model != "default":
        raise BadInput(f"model {derivation.model!r} reproduces the paper's tables; kernels follow --model default")
    return str(EMIT_VISITORS[derivation.op.name](derivation).visit(derivation.op.tree(tiles)))


def kernel_name(derivation: Derivation) -> str:
    """File name without suffix: operator, GPU, type and what else tells the kernel from its neighbours.

    Lengths, heads and batch are run-time arguments of the kernel and not part of it.
    """
    tiles, _, _ = derivation.require()
    op = derivation.op
    parts = [op.name, derivation.hw.name, op.dtype]
    if op.name == "gemm":
        parts += gemm_name(op, tiles)
    elif op.name == "softmax":
        parts += softmax_name(op, tiles)
    elif op.name == "conv2d":
        parts += depthwise_name(op, tiles) if isinstance(tiles, DepthwiseTiles) else conv2d_name(op, tiles)
    else:
        parts += attention_name(op, tiles)
    return "_".join(parts)
