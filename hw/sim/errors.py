"""Errors of the simulator: what it does not know, and what it cannot go on after."""

from __future__ import annotations

from ..errors import ClosedformError

__all__ = ["AssemblyError", "SimulationError", "UnknownInstruction"]


class SimulationError(ClosedformError):
    """Base of every error of the simulator."""

    exit_status = 1


class AssemblyError(SimulationError):
    """The text is not AMDGPU assembly that the simulator can read, or the arguments do not fit the kernel."""

    exit_status = 2


class UnknownInstruction(SimulationError):
    """An instruction, operand or modifier without a model. The simulator never guesses."""

    def __init__(self, mnemonic: str, line: int, target: str, detail: str = "") -> None:
        text = f"line {line}: no model of `{mnemonic}` for {target}"
        super().__init__(f"{text}: {detail}" if detail else text)
        self.mnemonic = mnemonic
        self.line = line
        self.target = target
        self.detail = detail
