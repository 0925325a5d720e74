"""Whether a decoded kernel can exist on a GPU: what it needs, and every reason against it."""

from __future__ import annotations

from dataclasses import dataclass

from closedform.hw.atoms import MFMA_LANES
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput, InfeasibleError
from closedform.interop import aiter, ck, flydsl, inductor, tilelang, triton, triton_config
from closedform.interop.kernel import Kernel
from closedform.interop.tool import images_bytes
from closedform.predict.legality import check_capacities

from .decoded import Decoded
from .tensilelite import family_name, kind_bits

__all__ = ["Needs", "needs_of", "reasons_against"]

#: Tools whose LDS Triton's backend allocates.
_ON_TRITON = (triton.TOOL.title, inductor.TOOL.title, aiter.TOOL_TRITON.title)
#: Tools whose kernels are of AMD's CDNA alone.
_OF_WIDE_WAVES = ("TensileLite", "FlyDSL", "AITER", "Composable Kernel", "IREE", "TorchInductor")


@dataclass(frozen=True, slots=True)
class Needs:
    """LDS of a workgroup and registers of a lane that the kernel needs at least; None where too little is known."""

    lds_bytes: int | None
    registers: int | None


def needs_of(found: Decoded, hw: HardwareDescriptor, bits: int | None) -> Needs:
    """By the tool's own count of LDS; `bits` of an element, None where the type is unknown.

    registers = accumulators + fragments of one step + the next tile's loads, each of a lane, in 32 bits:
    tile_m tile_n / lanes, (rows + columns of a wave) mfma_k bits / (64 x 32),
    (tile_m + tile_n) tile_k bits / (lanes x 32).
    """
    return Needs(_lds(found, bits), _registers(found.kernel, hw, bits))


def _lds(found: Decoded, bits: int | None) -> int | None:
    k = found.kernel
    if found.lds_bytes is not None or bits is None:
        return found.lds_bytes
    if found.tool in _ON_TRITON:
        return triton_config.lds_bytes((k.tile_m, k.tile_n, k.tile_k), bits / 8, k.stages or 2)
    if found.tool == "FlyDSL":
        return flydsl.lds_bytes(k, bits / 8)
    if found.tool in (ck.TOOL.title, tilelang.TOOL.title):
        return images_bytes(k, bits / 8)
    return (k.tile_m + k.tile_n) * k.tile_k * bits // 8


def _registers(k: Kernel, hw: HardwareDescriptor, bits: int | None) -> int | None:
    if k.waves is None or bits is None:
        return None
    lanes = k.waves * hw.wavefront_size
    total = k.tile_m * k.tile_n * k.wave_k * max(bits, 32) // 32 // lanes
    if k.mfma is not None and k.wave_m is not None and k.wave_n is not None:
        edge = k.tile_m // k.wave_m + k.tile_n // k.wave_n
        total += edge * k.mfma[2] * bits // (hw.wavefront_size * 32)
    if k.stages is None or k.stages > 1:
        total += (k.tile_m + k.tile_n) * k.tile_k * bits // (lanes * 32)
    return total


def reasons_against(found: Decoded, hw: HardwareDescriptor, needs: Needs, kind: str | None = None) -> tuple[str, ...]:
    """Why the kernel cannot run on that GPU; empty where nothing that is known forbids it.

    `kind` is the type where the source does not say it.
    """
    reasons = []
    if found.tool in _OF_WIDE_WAVES and hw.wavefront_size != MFMA_LANES:
        reasons.append(
            f"kernels of {found.tool} have waves of {MFMA_LANES} lanes, those of {hw.name} {hw.wavefront_size}"
        )
    if found.gfx is not None and found.gfx != hw.gfx:
        reasons.append(f"built for {found.gfx}, {hw.name} is {hw.gfx}")
    for stored in dict.fromkeys(found.types):
        if kind_bits(stored) is None:
            reasons.append(f"{stored} is no type of a matrix product here")
            continue
        try:
            hw.resolve_dtype(stored)
        except BadInput as error:
            reasons.append(str(error))
    kinds = found.multiplied or found.types or (() if kind is None else (kind, kind))
    reasons += _instruction(found.kernel, hw, tuple(family_name(word) for word in kinds))
    k = found.kernel
    try:
        check_capacities(
            hw,
            waves=k.waves or 1,
            lds_bytes=needs.lds_bytes or 0,
            registers=needs.registers or 0,
            tile_elements=k.tile_m * k.tile_n * k.wave_k,
        )
    except (BadInput, InfeasibleError) as error:
        reasons.append(str(error))
    return (*reasons, *found.refusals)


def _instruction(k: Kernel, hw: HardwareDescriptor, pair: tuple[str, ...]) -> list[str]:
    """Reasons against the instruction, of those that take the `pair` of families; of all where it is unknown."""
    atoms = [a for a in hw.atoms if not pair or (a.dtype_a.family, a.dtype_b.family) in (pair, pair[::-1])]
    whose = f" for {' x '.join(dict.fromkeys(pair))}" if pair else ""
    if k.mfma is None:
        if k.mfma_m is not None and k.mfma_m not in {a.m for a in atoms}:
            return [f"{hw.name} has no matrix instruction of {k.mfma_m} rows{whose}"]
        return []
    if k.mfma not in {(a.m, a.n, a.k, a.blocks) for a in atoms}:
        return [f"{hw.name} has no matrix instruction of {'x'.join(map(str, k.mfma))}{whose}"]
    depth = k.mfma[2] * k.wave_k
    return [f"a depth of {k.tile_k} is not whole instructions of {depth}"] if k.tile_k % depth else []
