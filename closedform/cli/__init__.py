"""Command line: every command takes --json, and the exit status says what happened (see `root`)."""

from __future__ import annotations

from .root import cli, main

__all__ = ["cli", "main"]
