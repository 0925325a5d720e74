"""For tests: small assembly programs, and one call that simulates a kernel with all sanitizers and compares.

`kernel_text` wraps instructions into a kernel that the simulator (and llvm-mc) accepts, so that a test reads as the
instructions that it is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .kernarg import Out, flydsl_args
from .memory import shadow
from .parse import parse_file
from .report import Result
from .run import run

__all__ = ["check_kernel", "kernel_text", "relative_error", "sparse_array"]

Array = Any  # a numpy array; what its elements are is said where it matters


def kernel_text(
    target: str,
    body: str,
    pointers: int,
    *,
    lds_bytes: int = 0,
    scratch_bytes: int = 0,
    threads: int = 64,
    scalars: int = 0,
    descriptor: dict[str, int] | None = None,
) -> str:
    """Assembly of a kernel `k` with these instructions.

    Its arguments are `pointers` buffers and then `scalars` words of 4 bytes. At the start s[0:1] point to the
    arguments, s2 is the workgroup's x and v0 the work-item's number (with y and z packed from gfx90a on).
    """
    arguments = [(8 * n, 8, "global_buffer") for n in range(pointers)]
    arguments += [(8 * pointers + 4 * n, 4, "by_value") for n in range(scalars)]
    size = 8 * pointers + 4 * scalars
    fields = {
        "group_segment_fixed_size": lds_bytes,
        "private_segment_fixed_size": scratch_bytes,
        "kernarg_size": size,
        "user_sgpr_count": 2,
        "user_sgpr_kernarg_segment_ptr": 1,
        "system_sgpr_workgroup_id_x": 1,
        "system_vgpr_workitem_id": 0,
        "next_free_vgpr": 512 if target != "gfx908" else 256,
        "next_free_sgpr": 96,
        "float_denorm_mode_32": 3,
        "float_denorm_mode_16_64": 3,
        **({"accum_offset": 256} if target != "gfx908" else {}),
        **(descriptor or {}),
    }
    lines = "\n".join(f"\t\t.amdhsa_{key} {value}" for key, value in fields.items())
    entries = "".join(
        f"      - .offset:         {offset}\n        .size:           {width}\n        .value_kind:     {kind}\n"
        for offset, width, kind in arguments
    )
    return f"""\t.amdgcn_target "amdgcn-amd-amdhsa--{target}"
\t.text
\t.globl\tk
\t.p2align\t8
\t.type\tk,@function
k:
{body}
\ts_endpgm
.Lfunc_end0:
\t.size\tk, .Lfunc_end0-k
\t.section\t.rodata,"a",@progbits
\t.p2align\t6, 0x0
\t.amdhsa_kernel k
{lines}
\t.end_amdhsa_kernel
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
{entries}    .group_segment_fixed_size: {lds_bytes}
    .kernarg_segment_align: 8
    .kernarg_segment_size: {size}
    .max_flat_workgroup_size: {threads}
    .name:           k
    .private_segment_fixed_size: {scratch_bytes}
    .reqd_workgroup_size:
      - {threads}
      - 1
      - 1
    .sgpr_count:     96
    .symbol:         k.kd
    .vgpr_count:     256
    .wavefront_size: 64
amdhsa.target:   amdgcn-amd-amdhsa--{target}
amdhsa.version:
  - 1
  - 2
...
\t.end_amdgpu_metadata
"""


def sparse_array(shape: Sequence[int], strides: Sequence[int], dtype: Any) -> Array:
    """Zeros with any positive strides, in elements: only the pages that are touched take memory.

    >>> sparse_array((2, 4), (1 << 32, 1), "f4").strides
    (17179869184, 4)
    """
    kind = np.dtype(dtype)
    span = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    whole = shadow(span, kind)
    return np.lib.stride_tricks.as_strided(whole, tuple(shape), tuple(s * kind.itemsize for s in strides))


def relative_error(got: Array, want: Array) -> float:
    """Frobenius norm of the difference relative to that of `want`, in binary64."""
    wanted = np.asarray(want, np.float64)
    return float(np.linalg.norm(np.asarray(got, np.float64) - wanted)) / max(float(np.linalg.norm(wanted)), 1e-300)


def check_kernel(
    assembly: str | Path,
    args: Sequence[Any],
    grid: Sequence[int] | int,
    wanted: Sequence[Array],
    tolerance: float,
    **options: Any,
) -> Result:
    """Simulate FlyDSL's assembly with all sanitizers and compare its outputs with float64 references.

    `args` are the kernel's tensors and numbers, outputs marked by `Out`; `wanted` has one reference for each of them.
    Raises AssertionError with the reports, or the error, if something is off.
    """
    program = parse_file(assembly)
    kernel = program.kernel(options.get("kernel"))
    result = run(program, flydsl_args(kernel, args), grid, **options)
    assert result.ok, str(result)
    outputs = [a.array for a in args if isinstance(a, Out)]
    for number, (output, reference) in enumerate(zip(outputs, wanted, strict=True)):
        error = relative_error(output, reference)
        assert error <= tolerance, f"output {number} of {kernel.name}: relative error {error:.3g} > {tolerance:.3g}"
    return result
