"""Any operator of the project."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TypeAlias

from .attention import Attention
from .conv2d import Conv2d
from .gemm import Gemm
from .softmax import Softmax

__all__ = ["Operator", "described"]

Operator: TypeAlias = Attention | Gemm | Softmax | Conv2d


def described(op: Operator) -> dict[str, Any]:
    """Fields by name, without the optional ones that are not set.

    >>> list(described(Attention(8, 8, 64, heads=4, kv_heads=2)))
    ['L_q', 'L_kv', 'd', 'batch', 'heads', 'dtype', 'variant', 'kv_heads']
    """
    optional = getattr(op, "optional", ())
    return {name: value for name, value in asdict(op).items() if value or name not in optional}
