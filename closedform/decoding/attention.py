"""A decoded attention kernel in our terms: needs, legality, and what the closed form takes instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.hw.errors import BadInput, InfeasibleError
from closedform.interop import aiter, flydsl_attention, inductor, tilelang, triton, triton_config
from closedform.interop.attention_kernel import AttentionKernel
from closedform.interop.attention_offers import attention_kernel_of, attention_us
from closedform.interop.plain import problem_of
from closedform.operators.attention import Attention
from closedform.predict.legality import check_capacities

from .explanation import difference, plain_values

__all__ = ["AttentionExplanation", "DecodedAttention", "attention_text", "explained_attention"]

#: Tools whose LDS Triton's backend allocates.
_ON_TRITON = (triton.ATTENTION.title, inductor.ATTENTION.title, aiter.ATTENTION.title)
REGISTER_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedAttention:
    """An attention kernel of another tool. `parameters` are the tool's own, by its names; `op` is the attention that it
    was made for and `measured_us` its time, where the source has them; `refusals` are the tool's rules that it breaks.
    """

    tool: str
    name: str
    kernel: AttentionKernel
    gfx: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    op: Attention | None = None
    measured_us: float | None = None
    refusals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AttentionExplanation:
    """The kernel on a GPU for an attention. `lds_bytes` of a workgroup and `registers` of a lane are needed at least;
    times are predicted, None where the model cannot say.
    """

    found: DecodedAttention
    hw: HardwareDescriptor
    op: Attention
    lds_bytes: int
    registers: int | None
    reasons: tuple[str, ...]
    predicted_us: float | None
    other: AttentionKernel | None
    other_us: float | None
    why: str
    number: int = 1
    count: int = 1

    @property
    def slower_by(self) -> float | None:
        """Predicted time over the closed form's, less 1."""
        if self.predicted_us is None or self.other_us is None:
            return None
        return self.predicted_us / self.other_us - 1

    def to_json(self) -> dict[str, Any]:
        found, k = self.found, self.found.kernel
        return {
            "op": "attention",
            "tool": found.tool,
            "name": found.name,
            "number": self.number,
            "count": self.count,
            "hw": self.hw.name,
            "gfx": found.gfx,
            "block_q": k.block_q,
            "tile_kv": k.tile_kv,
            "waves": k.waves,
            "kernel": k.to_json(),
            "parameters": plain_values(found.parameters),
            "lds_bytes": self.lds_bytes,
            "lds_limit_bytes": self.hw.lds_max_per_workgroup_bytes,
            "registers": self.registers,
            "registers_limit": self.hw.vgpr_per_wave_max,
            "legal": not self.reasons,
            "reasons": list(self.reasons),
            "problem": problem_of(self.op),
            "measured_us": found.measured_us,
            "predicted_us": self.predicted_us,
            "closed_form": {
                "kernel": None if self.other is None else self.other.to_json(),
                "predicted_us": self.other_us,
                "why": self.why,
            },
            "slower_by": self.slower_by,
        }


def explained_attention(
    found: DecodedAttention, hw: HardwareDescriptor, op: Attention, number: int = 1, count: int = 1
) -> AttentionExplanation:
    """The kernel on that GPU for `op`.

    registers = block_q (d + tile_kv) / lanes of a workgroup: the accumulators of scores and output, in 32 bits.
    """
    k = found.kernel
    lds = _lds(found, hw, op)
    registers = None if k.waves is None else k.block_q * (op.d + k.tile_kv) // (k.waves * hw.wavefront_size)
    reasons = _reasons(found, hw, op, lds, registers)
    predicted = None if reasons else attention_us(op, hw, k)
    other, us, why = _closed_form(op, hw)
    return AttentionExplanation(found, hw, op, lds, registers, reasons, predicted, other, us, why, number, count)


def _lds(found: DecodedAttention, hw: HardwareDescriptor, op: Attention) -> int:
    """LDS by the tool's own count; of others one tile of K and one of V."""
    k, elem_bytes = found.kernel, dtype(op.dtype).bytes
    if found.tool in _ON_TRITON:
        return triton_config.attention_lds_bytes(k, hw, op.d, elem_bytes)
    if found.tool == tilelang.ATTENTION.title:
        return tilelang.attention_lds_bytes(k, op.d, elem_bytes)
    return flydsl_attention.lds_bytes(k, op.d, elem_bytes)


def _reasons(
    found: DecodedAttention, hw: HardwareDescriptor, op: Attention, lds: int, registers: int | None
) -> tuple[str, ...]:
    """Why the kernel cannot run on that GPU; empty where nothing that is known forbids it."""
    k, reasons = found.kernel, []
    if found.gfx is not None and found.gfx != hw.gfx:
        reasons.append(f"built for {found.gfx}, {hw.name} is {hw.gfx}")
    try:
        hw.resolve_dtype(op.dtype)
    except BadInput as error:
        reasons.append(str(error))
    atoms = [a for a in hw.atoms if a.dtype_a.name == a.dtype_b.name == op.dtype]
    if k.mfma is not None and k.mfma not in {(a.m, a.n, a.k, a.blocks) for a in atoms}:
        reasons.append(f"{hw.name} has no matrix instruction of {'x'.join(map(str, k.mfma))} for {op.dtype}")
    elif k.mfma_m is not None and k.mfma_m not in {a.m for a in atoms}:
        reasons.append(f"{hw.name} has no matrix instruction of {k.mfma_m} rows for {op.dtype}")
    try:
        check_capacities(
            hw, waves=k.waves or 1, lds_bytes=lds, registers=registers or 0, tile_elements=k.block_q * k.tile_kv
        )
    except (BadInput, InfeasibleError) as error:
        reasons.append(str(error))
    return (*reasons, *found.refusals)


def _closed_form(op: Attention, hw: HardwareDescriptor) -> tuple[AttentionKernel | None, float | None, str]:
    """What `derive` takes, its predicted time, and what binds it or why there is none."""
    from closedform.visitors.feasibility import derive

    try:
        derivation = derive(op, hw)
    except BadInput as error:
        return None, None, str(error)
    if derivation.tiles is None:
        return None, None, str(derivation.infeasible)
    kernel = attention_kernel_of(op, derivation.tiles)
    return kernel, attention_us(op, hw, kernel), f"bound by {derivation.binding}"


def _tile(k: AttentionKernel) -> str:
    parts = [f"queries {k.block_q}", f"keys {k.tile_kv}"]
    if k.mfma is not None:
        parts.append(f"mfma {'x'.join(map(str, k.mfma[:3]))}")
    elif k.mfma_m is not None:
        parts.append(f"mfma {k.mfma_m} rows")
    named = (("waves", k.waves), ("stages", k.stages), ("waves_per_simd", k.waves_per_simd))
    return "  ".join([*parts, *(f"{name}={value}" for name, value in named if value is not None)])


def attention_text(e: AttentionExplanation) -> str:
    """The kernel, what it needs, whether it is legal, and the comparison with the closed form."""
    found, hw, op = e.found, e.hw, e.op
    which = f" (kernel {e.number} of {e.count})" if e.count > 1 else ""
    registers = "unknown" if e.registers is None else str(e.registers)
    lines = [
        f"{found.tool}{which}: {found.name}".rstrip(": "),
        f"kernel    {_tile(found.kernel)}",
        f"needs     {registers} of {hw.vgpr_per_wave_max} registers, {e.lds_bytes} of "
        f"{hw.lds_max_per_workgroup_bytes} B of LDS, at least",
        f"legal     {'no' if e.reasons else 'yes'} on {hw}" + "".join(f"\n          {r}" for r in e.reasons),
        f"attention L_q={op.L_q} L_kv={op.L_kv} d={op.d} heads={op.heads} batch={op.batch} {op.dtype}",
    ]
    times = (("measured", found.measured_us), ("predicted", e.predicted_us))
    lines += [f"{name:9} {us:.2f} us" for name, us in times if us is not None]
    if e.other is None:
        lines.append(f"closed    none: {e.why}")
    else:
        lines.append(f"closed    {_tile(e.other)}")
    if e.other_us is not None:
        lines.append(f"          {e.other_us:.2f} us predicted, {e.why}{difference(e.slower_by)}")
    if found.parameters:
        lines.append("fields    " + "  ".join(f"{name}={value}" for name, value in found.parameters.items()))
    return "\n".join(lines)
