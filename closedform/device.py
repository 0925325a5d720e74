"""The GPU of this machine, read from the driver or from torch; it is only ever compared with a descriptor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .hw.errors import NoDevice

if TYPE_CHECKING:
    from .hw.descriptor import HardwareDescriptor

__all__ = ["Device", "detect", "launch_device", "parse_topology"]

#: Where the amdgpu driver lists its compute nodes.
TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")


@dataclass(frozen=True, slots=True)
class Device:
    """What was found: target, compute units, memory and clock, both 0 where unknown."""

    gfx: str
    num_cus: int
    memory_bytes: int = 0
    clock_mhz: int = 0
    marketing: str = ""

    @property
    def name(self) -> str | None:
        """Catalogue name of the part, or None.

        The target and the CU count decide; memory size and clock tell apart the parts that share both (mi300x
        and mi325x, mi350x and mi355x). A partition has fewer CUs than any part: the nearest part by
        memory of the same target is named, and `hardware` keeps the CU count that was found.
        """
        from .hw import catalogue

        parts = [catalogue.get(name) for name in catalogue.names() if not name.startswith("paper_")]
        parts = [part for part in parts if part.gfx == self.gfx]
        if not parts:
            return None
        return min(parts, key=self._distance).name

    def _distance(self, part: HardwareDescriptor) -> tuple[bool, float, float]:
        memory = abs(part.hbm_bytes / self.memory_bytes - 1) if self.memory_bytes else 0.0
        clock = abs(part.clock_mhz / self.clock_mhz - 1) if self.clock_mhz else 0.0
        return part.num_cus != self.num_cus, round(memory, 1), clock

    def hardware(self) -> HardwareDescriptor | None:
        """The catalogued descriptor with the CUs found (a partition sees fewer), or None."""
        from .hw import catalogue

        if self.name is None:
            return None
        part = catalogue.get(self.name)
        return part if part.num_cus == self.num_cus else part.with_cus(self.num_cus)

    def differences(self, hw: HardwareDescriptor) -> list[str]:
        """What the descriptor says otherwise than the device; an empty list where they agree."""
        found = []
        if hw.gfx != self.gfx:
            found.append(f"the GPU found is {self.gfx}, {hw.name} is {hw.gfx}")
        if hw.num_cus != self.num_cus:
            found.append(f"the GPU found has {self.num_cus} CUs, {hw.name} has {hw.num_cus}")
        return found

    def describe(self) -> str:
        label = self.marketing or self.name or "unknown part"
        return f"{label} ({self.gfx}, {self.num_cus} CUs)"


def parse_topology(properties: str) -> Device | None:
    """One node of the driver's topology, given the text of its `properties` file; None for a CPU node.

    >>> node = parse_topology("simd_count 1216\\nsimd_per_cu 4\\ngfx_target_version 90402\\n")
    >>> node.gfx, node.num_cus
    ('gfx942', 304)
    """
    values = {}
    for line in properties.splitlines():
        key, _, value = line.partition(" ")
        if value.strip().isdigit():
            values[key] = int(value)
    version = values.get("gfx_target_version", 0)
    if not version or not values.get("simd_count") or not values.get("simd_per_cu"):
        return None
    gfx = f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}"
    cus = values["simd_count"] // values["simd_per_cu"]
    return Device(gfx, cus, values.get("local_mem_size", 0), values.get("max_engine_clk_fcompute", 0))


def _device_memory(node: Path) -> int:
    """Bytes of the node's own memory: its banks of heap type 1 and 2 (frame buffer)."""
    total = 0
    for bank in node.glob("mem_banks/*/properties"):
        values = dict(line.split(" ", 1) for line in bank.read_text().splitlines() if " " in line)
        if values.get("heap_type", "").strip() in ("1", "2"):
            total += int(values.get("size_in_bytes", "0"))
    return total


def detect(topology: Path = TOPOLOGY) -> Device | None:
    """The first CDNA GPU that the driver lists, without importing torch; None where there is none."""
    from .hw import catalogue

    targets = {catalogue.get(name).gfx for name in catalogue.names()}
    nodes = sorted(topology.glob("*"), key=lambda node: (len(node.name), node.name))
    for node in nodes:
        try:
            device = parse_topology((node / "properties").read_text())
            memory = _device_memory(node)
        except OSError:  # a container may hide the nodes that it must not use
            continue
        if device is not None and device.gfx in targets:
            return replace(device, memory_bytes=memory or device.memory_bytes)
    return None


def launch_device() -> Device:
    """The CDNA GPU that torch would launch on. Raises NoDevice with the reason where there is none."""
    from .hw import catalogue

    try:
        import torch
    except ImportError:
        raise NoDevice("launching needs a ROCm build of torch, and torch is not installed") from None
    if torch.version.hip is None:
        raise NoDevice(f"torch {torch.__version__} is not a ROCm build, so no AMD GPU can be used")
    if not torch.cuda.is_available():
        raise NoDevice("torch sees no AMD GPU on this machine")
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    gfx = found.gcnArchName.split(":")[0]
    if gfx not in {catalogue.get(name).gfx for name in catalogue.names()}:
        raise NoDevice(f"the GPU found is {found.name} ({gfx}), not one of the CDNA targets of the catalogue")
    clock_mhz = getattr(found, "clock_rate", 0) // 1000
    return Device(gfx, found.multi_processor_count, found.total_memory, clock_mhz, found.name)
