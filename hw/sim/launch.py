"""The state of a kernel's start: argument memory, dispatch packet, and the registers that the hardware fills in."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .decode import Code
from .memory import Memory
from .scratch import SCRATCH_BASE
from .state import EXEC, LANES, SCALAR, Group, pack_mask

__all__ = ["Setup", "place_arguments", "start_group"]

Array = Any  # a numpy array; what its elements are is said where it matters

#: System VGPRs are packed into v0 from gfx90a on: 10 bits each for x, y and z.
_PACKED_IDS = ("gfx90a", "gfx942", "gfx950")
#: The private segment's descriptor: swizzled and indexed by the lane, without a bound.
SCRATCH_DESCRIPTOR = (SCRATCH_BASE & 0xFFFFFFFF, (SCRATCH_BASE >> 32) | 1 << 31, 0xFFFFFFFF, 0x00E27000 | 1 << 23)


@dataclass(frozen=True, slots=True)
class Setup:
    """Addresses of the argument segment and of the dispatch packet, and the segment's bytes."""

    kernarg: int
    dispatch: int
    segment: bytes


def place_arguments(
    memory: Memory, packed: bytes | bytearray, grid: tuple[int, int, int], block: tuple[int, int, int], lds_bytes: int
) -> Setup:
    """Put the arguments and an AQL dispatch packet into memory.

    The segment is allocated in whole cache lines: the compiler may widen a load past the last argument.
    """
    segment = bytes(packed).ljust(max(64, -(-len(packed) // 64) * 64), b"\0")
    kernarg = memory.add("kernel arguments", np.frombuffer(segment, np.uint8).copy())
    items = [g * b for g, b in zip(grid, block, strict=True)]
    packet = struct.pack("<HH3HHIIIII", 0, 3, *block, 0, *items, 0, lds_bytes) + struct.pack(
        "<QQQQ", 0, kernarg.base, 0, 0
    )
    dispatch = memory.add("dispatch packet", np.frombuffer(packet, np.uint8).copy())
    return Setup(kernarg.base, dispatch.base, segment)


def start_group(
    code: Code,
    numbers: Array,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    setup: Setup,
) -> Group:
    """All waves of these workgroups with the registers that the hardware fills in."""
    kernel, fields = code.kernel, code.kernel.descriptor
    waves = -(-block[0] * block[1] * block[2] // LANES)
    workgroup = np.repeat(np.arange(len(numbers)), waves)
    wave_in_group = np.tile(np.arange(waves), len(numbers))
    g = Group.fresh(code.rows, workgroup, wave_in_group)
    known: set[int] = set()

    def put(row: int, value: Any) -> None:
        g.S[row] = value
        g.scalar_known[row] = True
        known.add(row)

    row = _user_registers(fields, put, setup)
    row = fields.get("user_sgpr_count", row)
    flat = np.asarray(numbers)[workgroup]
    ids = (flat % grid[0], flat // grid[0] % grid[1], flat // (grid[0] * grid[1]))
    for axis, number in zip("xyz", ids, strict=True):
        if fields.get(f"system_sgpr_workgroup_id_{axis}", 1 if axis == "x" else 0):
            put(row, number)
            row += 1
    row += fields.get("system_sgpr_workgroup_info", 0)
    if fields.get("system_sgpr_private_segment_wavefront_offset", 0) or fields.get("enable_private_segment", 0):
        put(row, np.uint32(0))  # every wave has its own scratch
    item = wave_in_group[:, None] * LANES + np.arange(LANES)
    x, y, z = item % block[0], item // block[0] % block[1], item // (block[0] * block[1])
    exists = item < block[0] * block[1] * block[2]
    axes = fields.get("system_vgpr_workitem_id", 0) + 1
    if kernel.target in _PACKED_IDS:
        g.V[0] = x | (y << 10) * (axes > 1) | (z << 20) * (axes > 2)
        g.vector_known[0] = ~np.uint64(0)
    else:
        for k, values in enumerate((x, y, z)[:axes]):
            g.V[k] = values
            g.vector_known[k] = ~np.uint64(0)
    lanes = pack_mask(np.ascontiguousarray(exists))
    g.vector_known |= ~lanes
    g.set_scalar64(EXEC, lanes)
    g.scalar_known[EXEC : EXEC + 2] = True
    g.define(
        frozenset(range(code.rows))
        & frozenset(r for r in range(code.rows) if (g.vector_known[r] == ~np.uint64(0)).all())
    )
    g.unknown -= {SCALAR + r for r in (*known, EXEC, EXEC + 1)}
    g.refresh_hot()
    return g


def _user_registers(fields: dict[str, int], put: Callable[[int, Any], None], setup: Setup) -> int:
    """User SGPRs in the order of the ABI; returns the next free one. What has no model stays unwritten."""
    row = 0
    values: dict[str, tuple[int, ...]] = {
        "private_segment_buffer": SCRATCH_DESCRIPTOR,
        "dispatch_ptr": (setup.dispatch & 0xFFFFFFFF, setup.dispatch >> 32),
        "queue_ptr": (),
        "kernarg_segment_ptr": (setup.kernarg & 0xFFFFFFFF, setup.kernarg >> 32),
        "dispatch_id": (),
        "flat_scratch_init": (0, 0),
        "private_segment_size": (0,),
    }
    sizes = {"private_segment_buffer": 4, "private_segment_size": 1}
    for name, words in values.items():
        if fields.get(f"user_sgpr_{name}", 0):
            for k, word in enumerate(words):
                put(row + k, np.uint32(word))
            row += sizes.get(name, 2)
    length, offset = (fields.get(f"user_sgpr_kernarg_preload_{k}", 0) for k in ("length", "offset"))
    words32 = np.frombuffer(setup.segment, np.uint32)
    for k in range(length):
        put(row + k, words32[offset + k])
    return row + length
