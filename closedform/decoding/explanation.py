"""A decoded kernel in our terms: needs, legality, what the closed form takes instead and the predicted difference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.interop.kernel import Kernel
from closedform.interop.offers import kernel_of, predicted_us
from closedform.operators.gemm import Gemm

from .decoded import Decoded
from .legality import Needs, needs_of, reasons_against
from .tensilelite import kind_bits

__all__ = ["ClosedFormAnswer", "Explanation", "difference", "explained", "plain_values"]


@dataclass(frozen=True, slots=True)
class ClosedFormAnswer:
    """What `derive` takes for the product, and its predicted time; no kernel where it has none, with the reason."""

    kernel: Kernel | None
    predicted_us: float | None
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decoded kernel on a GPU. Times are predicted for `op`, None where the model cannot say."""

    found: Decoded
    hw: HardwareDescriptor
    needs: Needs
    reasons: tuple[str, ...]
    op: Gemm | None
    predicted_us: float | None
    closed_form: ClosedFormAnswer | None
    number: int = 1
    count: int = 1

    @property
    def legal(self) -> bool:
        return not self.reasons

    @property
    def own(self) -> Kernel:
        """The kernel as its tool counts rows and columns."""
        return self.found.kernel.transposed() if self.found.column_major else self.found.kernel

    @property
    def slower_by(self) -> float | None:
        """Predicted time over the closed form's, less 1."""
        other = self.closed_form
        if self.predicted_us is None or other is None or other.predicted_us is None:
            return None
        return self.predicted_us / other.predicted_us - 1

    def to_json(self) -> dict[str, Any]:
        """The public form: tile, mfma and wave_grid as the kernel's tool counts, `kernel` row-major."""
        own, found, op = self.own, self.found, self.op
        grid = None if own.wave_m is None or own.wave_n is None else [own.wave_m, own.wave_n]
        other = self.closed_form
        return {
            "tool": found.tool,
            "name": found.name,
            "number": self.number,
            "count": self.count,
            "hw": self.hw.name,
            "gfx": found.gfx,
            "convention": "column-major" if found.column_major else "row-major",
            "tile_m": own.tile_m,
            "tile_n": own.tile_n,
            "tile_k": own.tile_k,
            "mfma": None if own.mfma is None else list(own.mfma),
            "wave_grid": grid,
            "waves": own.waves,
            "types": list(found.types),
            "layout": own.layout,
            "epilogue": list(found.epilogue),
            "parameters": plain_values(found.parameters),
            "kernel": found.kernel.to_json(),
            "lds_bytes": self.needs.lds_bytes,
            "lds_limit_bytes": self.hw.lds_max_per_workgroup_bytes,
            "registers": self.needs.registers,
            "registers_limit": self.hw.vgpr_per_wave_max,
            "legal": self.legal,
            "reasons": list(self.reasons),
            "problem": None if op is None else {n: getattr(op, n) for n in ("M", "N", "K", "batch", "dtype", "layout")},
            "measured_us": found.measured_us,
            "predicted_us": self.predicted_us,
            "closed_form": None
            if other is None
            else {
                "kernel": None if other.kernel is None else other.kernel.to_json(),
                "predicted_us": other.predicted_us,
                "why": other.why,
            },
            "slower_by": self.slower_by,
            "notes": list(found.notes),
        }


def plain_values(value: Any) -> Any:
    """The value as JSON has it: dates, times that are infinite and names that are no text become text."""
    if isinstance(value, Mapping):
        return {str(name): plain_values(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_values(inner) for inner in value]
    known = value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))
    return value if known else str(value)


def difference(slower_by: float | None) -> str:
    """How much slower or faster the kernel is predicted, as the end of a sentence."""
    if slower_by is None:
        return ""
    return f": the kernel is predicted {abs(slower_by):.1%} {'slower' if slower_by > 0 else 'faster'}"


def explained(
    found: Decoded,
    hw: HardwareDescriptor,
    shape: tuple[int, int, int, int],
    kind: str | None = None,
    number: int = 1,
    count: int = 1,
) -> Explanation:
    """The kernel on that GPU for a product of (M, N, K, batch), row-major, unless its source names one.

    `kind` is the type where the source does not say it.
    """
    k = found.kernel
    own = found.types[0] if found.types else kind
    bits = None if own is None else kind_bits(own)
    needs = needs_of(found, hw, bits)
    reasons = reasons_against(found, hw, needs, kind)
    op = _product(found, hw, found.problem or shape, kind)
    predicted = None if op is None or reasons else predicted_us(op, hw, k)
    closed = None if op is None else _closed_form(op, hw)
    return Explanation(found, hw, needs, reasons, op, predicted, closed, number, count)


def _product(found: Decoded, hw: HardwareDescriptor, shape: tuple[int, int, int, int], kind: str | None) -> Gemm | None:
    """The product as an operator of ours; None for types that it does not have."""
    k = found.kernel
    name = k.dtype or (kind if not found.types else None)
    if name is None:
        return None
    m, n, depth, batch = shape
    try:
        kind = hw.resolve_dtype(name).name
        return Gemm(m, n, depth, dtype=kind, batch=batch, layout=k.layout or "NN", out_dtype=k.out_dtype or "")
    except BadInput:
        return None


def _closed_form(op: Gemm, hw: HardwareDescriptor) -> ClosedFormAnswer:
    from closedform.visitors.feasibility import derive

    try:
        derivation = derive(op, hw)
    except BadInput as error:
        return ClosedFormAnswer(None, None, str(error))
    if derivation.tiles is None:
        return ClosedFormAnswer(None, None, str(derivation.infeasible))
    kernel = kernel_of(op, derivation.tiles)
    return ClosedFormAnswer(kernel, predicted_us(op, hw, kernel), f"bound by {derivation.binding}")
