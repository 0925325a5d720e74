"""What compiled instructions cost: counts and clocks of a simulated sample, occupancy, static MFMA share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .hw.occupancy import Occupancy, occupancy_of
from .hw.sim import Kernel, parse_file
from .hw.sim.bound import registers_of
from .hw.sim.counts import reference_gpu
from .hw.sim.decode import code_of
from .static_share import StaticShare, static_share

if TYPE_CHECKING:
    from .simulation import Simulation
    from .simulation_case import How, Progress
    from .visitors.derivation import Derivation

__all__ = ["Binary", "Profile", "profile_derivation", "profile_file"]

WAVE = 64


@dataclass(frozen=True, slots=True)
class Binary:
    """What the binary takes, by its metadata, and the occupancy that follows; None without a workgroup size."""

    arch_registers: int
    acc_registers: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds_bytes: int
    scratch_bytes: int
    waves_per_workgroup: int | None
    occupancy: Occupancy | None


@dataclass(frozen=True, slots=True)
class Profile:
    """A kernel's cost. `executed` is None where nothing was run: then only the static part is known."""

    name: str
    kernel: str
    gfx: str
    gpu: str
    binary: Binary
    static: StaticShare | None
    executed: Simulation | None

    def to_json(self) -> dict[str, Any]:
        done = None if self.executed is None else self.executed.to_json()
        return {
            "name": self.name,
            "kernel": self.kernel,
            "gfx": self.gfx,
            "gpu": self.gpu,
            "binary": asdict(self.binary),
            "static_mfma_share": None if self.static is None else self.static.to_json(),
            "grid": None if done is None else done["grid"],
            "workgroups": None if done is None else done["workgroups"],
            "sampled": None if done is None else done["sampled"],
            "counts": None if done is None else done["counts"],
            "cu_bound": None if done is None else done["cu_bound"],
            "seconds": None if done is None else done["seconds"],
        }


def profile_derivation(derivation: Derivation, how: How) -> Profile:
    """Emit, compile and profile the kernel; of several that are launched, the first."""
    from .simulation import compiled_kernel, simulate_derivation

    compiled = compiled_kernel(derivation)
    done = simulate_derivation(derivation, how, compiled=compiled)
    kernel = parse_file(compiled.isa).kernel(done.result.kernel)
    return _profile(derivation.op.name, kernel, None, 0, done)


def profile_file(
    path: str | Path,
    arguments: Sequence[str],
    grid: Sequence[int] | None,
    *,
    block: Sequence[int] | None = None,
    kernel: str | None = None,
    flydsl: bool = False,
    dynamic_lds: int = 0,
    blocks: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Profile:
    """Profile a kernel of an assembly file; without a grid only what the text says."""
    from .simulation import simulate_file

    chosen = parse_file(Path(path)).kernel(kernel)
    done = None
    if grid is not None:
        done = simulate_file(
            path,
            arguments,
            grid,
            block=block,
            kernel=chosen.name,
            flydsl=flydsl,
            dynamic_lds=dynamic_lds,
            blocks=blocks,
            sanitizers=False,
            seed=seed,
            progress=progress,
        )
    return _profile(Path(path).name, chosen, block, dynamic_lds, done)


def _profile(
    name: str, kernel: Kernel, block: Sequence[int] | None, dynamic_lds: int, done: Simulation | None
) -> Profile:
    code = code_of(kernel)
    hw = reference_gpu(kernel.target)
    arch, acc = registers_of(code)
    lds_bytes = kernel.lds_bytes + dynamic_lds
    sizes = kernel.workgroup if block is None else block
    waves = None if sizes is None else -(-sizes[0] * sizes[1] * sizes[2] // WAVE)
    fields = {key: int(kernel.metadata.get(key, 0)) for key in ("sgpr_count", "vgpr_spill_count", "sgpr_spill_count")}
    binary = Binary(
        arch_registers=arch,
        acc_registers=acc,
        sgprs=fields["sgpr_count"],
        vgpr_spills=fields["vgpr_spill_count"],
        sgpr_spills=fields["sgpr_spill_count"],
        lds_bytes=lds_bytes,
        scratch_bytes=kernel.scratch_bytes,
        waves_per_workgroup=waves,
        occupancy=None if waves is None else occupancy_of(hw, waves, arch, acc, lds_bytes),
    )
    return Profile(name, kernel.name, kernel.target, hw.name, binary, static_share(code), done)
