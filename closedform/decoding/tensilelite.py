"""TensileLite solutions, from their names and from YAML, as kernels of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from closedform.hw.atoms import MFMA_LANES
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import ALIASES, DTYPES
from closedform.interop.kernel import Kernel
from closedform.interop.rules import broken_rules
from closedform.interop.tensilelite_rules import READ_VALID, RULES, Solution, invalid_values

from .decoded import Decoded
from .matrix_instruction import Waves, depth_of
from .solution_name import SolutionName, solution_of

__all__ = ["decoded_name", "decoded_solution", "family_name", "gfx_of", "kind_bits", "same_target"]

#: Targets whose matrix instructions are those of another one.
_SAME_TARGET = {"gfx940": "gfx942", "gfx941": "gfx942"}


def gfx_of(name: SolutionName) -> str | None:
    """The target that the name was built for, where it says so."""
    isa = name.parameters.get("ISA")
    return same_target(isa) if isinstance(isa, str) else None


def same_target(gfx: str) -> str:
    """The target whose matrix instructions that one has."""
    return _SAME_TARGET.get(gfx, gfx)


def kind_bits(family: str) -> int | None:
    """Bits of an element of that family; None for one that no operator of ours has."""
    full = ALIASES.get(family, (family,))[0]
    return DTYPES[full].bits if full in DTYPES else None


def family_name(word: str) -> str:
    """The family of a type by its name or the family's own."""
    return DTYPES[word].family if word in DTYPES else word


def decoded_name(text: str, hw: HardwareDescriptor) -> Decoded:
    """A solution by its name, on that GPU. Raises Undecodable."""
    name = solution_of(text)
    return decoded_solution(name, dict(name.parameters), hw, gfx_of(name))


def decoded_solution(name: SolutionName, own: dict[str, Any], hw: HardwareDescriptor, gfx: str | None) -> Decoded:
    """The solution of that name with parameters `own`, which win over the name's."""
    problem = name.problem
    k = name.instruction_k
    if name.instruction is not None and k is None:
        width = own.get("LocalReadVectorWidth")
        k = depth_of(hw.atoms, name.instruction, problem.multiplied, name.depth_u, width)
    notes = _notes(name, own, k)
    if name.waves is not None and name.instruction is not None:
        m, n, blocks = name.instruction
        own |= {
            "MIWaveTile": (name.waves.tile_m, name.waves.tile_n),
            "MIWaveGroup": (name.waves.wave_m, name.waves.wave_n),
        }
        if k is not None:
            own["MatrixInstruction"] = (m, n, k, blocks)
            _wrap_prefetch(own, name.depth_u // k // (name.local_split_u or 1))
    bits = (kind_bits(problem.a), kind_bits(problem.b))
    solution = Solution(own, problem.layout, hw.num_cus, tuple(size / 8 for size in bits if size is not None))
    return Decoded(
        tool="TensileLite",
        name=name.text,
        kernel=_kernel(name, own, k, hw).transposed(),
        column_major=True,
        gfx=gfx,
        types=(problem.b, problem.a),
        multiplied=problem.multiplied[::-1],
        lds_bytes=_lds_bytes(name, own),
        parameters=own,
        epilogue=problem.epilogue,
        refusals=(
            *(rule.described for rule in broken_rules(RULES, solution)),
            *(f"{p}={own[p]}: no value that TensileLite takes" for p in invalid_values(own, READ_VALID)),
            *_missing(name, k, hw),
        ),
        notes=notes,
    )


def _missing(name: SolutionName, k: int | None, hw: HardwareDescriptor) -> tuple[str, ...]:
    """That the target has no instruction of the named shape for the types and the depth, where it is so."""
    if name.instruction is None or k is not None:
        return ()
    m, n, blocks = name.instruction
    kinds = " x ".join(dict.fromkeys(name.problem.multiplied))
    return (f"{hw.name} has no matrix instruction of {m}x{n} of {blocks} blocks for {kinds} in DepthU {name.depth_u}",)


def _wrap_prefetch(own: dict[str, Any], steps: int) -> None:
    """PrefetchLocalRead as TensileLite uses it: a number above the steps of the loop begins again."""
    wanted = own.get("PrefetchLocalRead")
    if isinstance(wanted, int) and wanted > steps > 0:
        own["PrefetchLocalRead"] = wanted % steps


def _notes(name: SolutionName, own: Mapping[str, Any], k: int | None) -> tuple[str, ...]:
    found = []
    if name.instruction is None:
        found.append("a kernel of vector instructions: no matrix instruction")
    elif name.waves is None:
        found.append("neither MIWaveTile nor WorkGroup is named: the waves are unknown")
    elif name.local_split_u is None and "WorkGroup" not in own:
        found.append("WorkGroup is not named: one group of waves a k step is assumed")
    if name.instruction is not None and name.instruction_k is None and k is not None:
        found.append("the depth of the instruction follows from the type and the target")
    return tuple(found)


def _kernel(name: SolutionName, own: Mapping[str, Any], k: int | None, hw: HardwareDescriptor) -> Kernel:
    """Column-major, as the name counts."""
    waves: Waves | None = name.waves
    instruction = name.instruction
    stream = own.get("StreamK")
    split = own.get("GlobalSplitU")
    same = name.problem.a == name.problem.b
    group = own.get("WorkGroupMapping")
    return Kernel(
        tile_m=name.macro_tile[0],
        tile_n=name.macro_tile[1],
        tile_k=name.depth_u,
        dtype=_resolved(name.problem.multiplied[0], hw) if same and len(set(name.problem.multiplied)) == 1 else None,
        out_dtype=_resolved(name.problem.output, hw),
        layout=name.problem.layout,
        mfma=None if instruction is None or k is None else (instruction[0], instruction[1], k, instruction[2]),
        mfma_m=None if instruction is None else instruction[0],
        wave_m=None if waves is None else waves.wave_m,
        wave_n=None if waves is None else waves.wave_n,
        wave_k=name.local_split_u or 1,
        waves=_waves_of_lanes(own) if waves is None else None,
        stages=None if own.get("PrefetchGlobalRead") is None else own["PrefetchGlobalRead"] + 1,
        split_k=None if split is None else max(1, abs(split)),
        stream_k=None if stream is None else hw.num_cus if stream else 0,
        group_m=None if group is None else max(1, abs(group)),
        xcds=own.get("WorkGroupMappingXCC"),
    )


def _waves_of_lanes(own: Mapping[str, Any]) -> int | None:
    """Waves of a workgroup whose grid is not known, from its lanes."""
    group, size = own.get("WorkGroup"), own.get("WavefrontSize") or MFMA_LANES
    return math.prod(group) // size if isinstance(group, tuple) and math.prod(group) >= size else None


def _resolved(family: str, hw: HardwareDescriptor) -> str | None:
    """The type of that family on the GPU; None where it has none."""
    if family in ALIASES:
        here = [t for t in ALIASES[family] if DTYPES[t].flavour == hw.fp8_flavour]
        return here[0] if here else None
    return family if family in DTYPES else None


def _lds_bytes(name: SolutionName, own: Mapping[str, Any]) -> int | None:
    """LDS of the two images with their known pads, twice where 1LDSBuffer is 0 and a tile is prefetched; at least.

    An image is MT x DepthU elements of the type that is multiplied, and LdsPad elements every LdsBlockSizePerPad bytes.
    """
    bits = kind_bits(name.problem.multiplied[0])
    if bits is None:
        return None
    total = 0
    for length, operand in zip(name.macro_tile, "AB", strict=True):
        image = length * name.depth_u * bits // 8
        pad, block = own.get(f"LdsPad{operand}") or 0, own.get(f"LdsBlockSizePerPad{operand}") or 0
        if pad > 0 and block > 0:
            image += math.ceil(image / block) * pad * bits // 8
        total += image
    twice = own.get("1LDSBuffer") == 0 and own.get("PrefetchGlobalRead") != 0
    return total * (1 + twice)
