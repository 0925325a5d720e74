"""What reading a kernel of another tool gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from closedform.interop.kernel import Kernel

__all__ = ["Decoded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A kernel of another tool.

    `kernel` is row-major whatever the tool counts in; `column_major` says that the tool's M is our N. `types` are the
    families of A and B as stored, `multiplied` those that the instruction takes where they are others; empty where
    unknown. `parameters` are the tool's own, by its names. `lds_bytes` is
    what a workgroup needs at least, `refusals` the tool's rules that the kernel breaks. `problem` is (M, N, K, batch),
    row-major, and `measured_us` its time, where the source has them.
    """

    tool: str
    name: str
    kernel: Kernel
    column_major: bool = False
    gfx: str | None = None
    types: tuple[str, ...] = ()
    multiplied: tuple[str, ...] = ()
    lds_bytes: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    epilogue: tuple[str, ...] = ()
    problem: tuple[int, int, int, int] | None = None
    measured_us: float | None = None
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
