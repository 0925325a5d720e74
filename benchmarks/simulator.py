"""Speed of the simulator: GEMM-like MFMA loops, in lane-instructions per second, with sanitizers and counts on.

Run as `python benchmarks/simulator.py`; prints one line for each atom.
"""

import time

import numpy as np

from closedform.hw.sim import Out, parse_text, run
from closedform.hw.sim.testing import kernel_text

#: target, MFMA, registers of A and B, registers of C
LOOPS = (
    ("gfx942", "v_mfma_f32_32x32x2_f32", 1, 16),
    ("gfx942", "v_mfma_f32_16x16x4_f32", 1, 4),
    ("gfx942", "v_mfma_f32_32x32x8_f16", 2, 16),
    ("gfx942", "v_mfma_f32_16x16x16_bf16", 2, 4),
    ("gfx950", "v_mfma_f32_32x32x16_bf16", 4, 16),
    ("gfx950", "v_mfma_f32_16x16x32_f16", 4, 4),
)
STEPS, WORKGROUPS, THREADS = 40, 64, 256


def span(first, count):
    return f"v[{first}:{first + count - 1}]" if count > 1 else f"v{first}"


def loop(target, name, operands, accumulators):
    """16 MFMAs a step on fragments read from LDS, with address arithmetic, a wait and a barrier."""
    a, b = [8 + k * operands for k in range(4)], [24 + k * operands for k in range(4)]
    width = 32 * operands
    lines = ["s_load_dwordx2 s[4:5], s[0:1], 0x0", f"v_lshlrev_b32_e32 v1, {2 + operands.bit_length() - 1}, v0"]
    lines += [f"v_mov_b32_e32 v{r}, 0" for r in range(8, 48)]
    lines += [f"ds_write_b{width} v1, {span(8, operands)} offset:{256 * 4 * operands * k}" for k in range(2)]
    lines += [f"v_mov_b32_e32 v{48 + r}, 0" for r in range(4 * accumulators)]
    lines += ["s_waitcnt lgkmcnt(0)", "s_barrier", f"s_mov_b32 s6, {STEPS}", ".Lloop:"]
    lines += [
        f"ds_read_b{width} {span(r, operands)}, v1 offset:{256 * 4 * operands * (k % 2)}" for k, r in enumerate(a + b)
    ]
    lines += ["v_add_u32_e32 v2, v1, v0", "v_xor_b32_e32 v3, v2, v0", "s_waitcnt lgkmcnt(0)"]
    for k in range(16):
        c = span(48 + accumulators * (k // 4 if accumulators == 16 else k % 4), accumulators)
        lines.append(f"{name} {c}, {span(a[k // 4], operands)}, {span(b[k % 4], operands)}, {c}")
    lines += ["s_barrier", "s_sub_u32 s6, s6, 1", "s_cmp_lg_u32 s6, 0", "s_cbranch_scc1 .Lloop"]
    lines += ["v_lshl_or_b32 v4, s2, 8, v0", "v_lshlrev_b32_e32 v4, 2, v4", "global_store_dword v4, v48, s[4:5]"]
    return kernel_text(target, "\n".join(lines), 1, lds_bytes=2 * 256 * 4 * operands, threads=THREADS)


def main():
    for target, name, operands, accumulators in LOOPS:
        program = parse_text(loop(target, name, operands, accumulators))
        begin = time.process_time()
        result = run(program, [Out(np.zeros(WORKGROUPS * THREADS, np.float32))], WORKGROUPS)
        busy = time.process_time() - begin
        count = result.counts["lane_instructions"] / 1e6
        print(
            f"{target} {name}: {count / result.seconds:.0f} million lane-instructions/s, "
            f"{count / busy:.0f} for a second of processor time, ok={result.ok}"
        )


if __name__ == "__main__":
    main()
