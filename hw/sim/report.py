"""What a run found: sanitizer reports, each with its place, and the result of the run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .parse import Instruction
from .state import Group

__all__ = ["KINDS", "Report", "Reporter", "Result"]

#: Kinds of report, and what each says.
KINDS = {
    "uninitialised-register": "a register was read that no instruction wrote",
    "uninitialised-lds": "an LDS byte was read that no instruction wrote",
    "uninitialised-global": "a byte of global memory was read that nothing wrote",
    "uninitialised-scratch": "a scratch byte was read that no instruction wrote",
    "out-of-bounds": "an address is outside of every buffer, or of the LDS of the workgroup",
    "misaligned": "an address is not a multiple of what the access needs",
    "lds-race": "two waves touched an LDS byte between barriers and one of them wrote",
    "global-race": "two workgroups wrote one byte of global memory",
    "divergent-barrier": "waves of a workgroup wait at different barriers, or some ended before",
    "deadlock": "waves wait at a barrier that the others can never reach",
    "missing-wait": "a register or LDS byte was used before a wait counter said that it arrived",
    "unwritten-output": "a byte of an output was never stored",
}


@dataclass(frozen=True, slots=True)
class Report:
    """One finding. `count` is how often the same instruction had it; the place is that of the first."""

    kind: str
    message: str
    instruction: str = ""
    line: int = 0
    source: str = ""
    workgroup: int = -1
    wave: int = -1
    lane: int = -1
    address: int = -1
    count: int = 1

    def __str__(self) -> str:
        place = f"line {self.line}: `{self.instruction}`" if self.instruction else ""
        where = f" workgroup {self.workgroup} wave {self.wave} lane {self.lane}" if self.workgroup >= 0 else ""
        address = f" address {self.address:#x}" if self.address >= 0 else ""
        source = f" ({self.source})" if self.source else ""
        times = f" [{self.count} times]" if self.count > 1 else ""
        return f"{self.kind}: {place}{where}{address}{source}: {self.message}{times}".replace(":  ", ": ")


class Reporter:
    """Collects findings, one Report for each kind and instruction."""

    def __init__(self) -> None:
        self.numbers: NDArray[Any] = np.zeros(0, np.int64)  # flat numbers of the resident workgroups
        self._found: dict[tuple[str, int], Report] = {}
        self.ignored: frozenset[str] = frozenset()

    def add(
        self,
        kind: str,
        ins: Instruction,
        g: Group,
        where: NDArray[Any],
        message: str,
        addresses: NDArray[Any] | None = None,
    ) -> None:
        """Report the lanes (bool [waves, 64]) or waves (bool [waves]) where `where` holds, if any."""
        hits = np.argwhere(where)
        if not len(hits) or kind in self.ignored:
            return
        first = hits[0]
        wave, lane = int(first[0]), int(first[1]) if len(first) > 1 else -1
        address = -1
        if addresses is not None:
            address = int(np.broadcast_to(addresses, np.shape(where))[tuple(first)])
        old = self._found.get((kind, ins.index))
        if old is None:
            old = Report(
                kind, message, ins.text, ins.line, ins.source, int(self.numbers[g.workgroup[wave]]),
                int(g.wave_in_group[wave]), lane, address, 0,
            )  # fmt: skip
        fields = {**{k: getattr(old, k) for k in Report.__slots__}, "count": old.count + len(hits)}
        self._found[kind, ins.index] = Report(**fields)

    def plain(self, report: Report) -> None:
        """A finding that has no instruction."""
        if report.kind not in self.ignored:
            self._found[report.kind, -1 - len(self._found)] = report

    @property
    def reports(self) -> tuple[Report, ...]:
        return tuple(self._found.values())


@dataclass(frozen=True, slots=True)
class Result:
    """What a run did. `ok` means no report; the values have to be compared by the caller."""

    kernel: str
    target: str
    ok: bool
    reports: tuple[Report, ...]
    counts: dict[str, Any]
    seconds: float
    workgroups: int
    sampled: bool = False
    bound: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values for json.dumps."""
        return {
            "kernel": self.kernel,
            "target": self.target,
            "ok": self.ok,
            "reports": [asdict(r) for r in self.reports],
            "counts": self.counts,
            "bound": self.bound,
            "seconds": self.seconds,
            "workgroups": self.workgroups,
            "sampled": self.sampled,
        }

    def __str__(self) -> str:
        lines = [f"{self.kernel} on {self.target}: {self.workgroups} workgroups in {self.seconds:.2f} s"]
        lines += [str(r) for r in self.reports] or ["no reports"]
        return "\n".join(lines)
