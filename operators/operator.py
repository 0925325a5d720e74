"""Any operator of the project."""

from __future__ import annotations

from typing import TypeAlias

from .attention import Attention
from .conv2d import Conv2d
from .gemm import Gemm
from .softmax import Softmax

__all__ = ["Operator"]

Operator: TypeAlias = Attention | Gemm | Softmax | Conv2d
