"""Command line. Every command takes --json; exit status: 0 done, 1 our bug, 2 bad input, 3 no device, 4 infeasible."""

from __future__ import annotations

from .root import cli, main

__all__ = ["cli", "main"]
