"""Where text goes: results on stdout, notices on stderr."""

from __future__ import annotations

import json
from typing import Any

import click

__all__ = ["notice", "print_json"]


def notice(text: str) -> None:
    """One line on stderr, so that stdout stays the result alone."""
    click.echo(f"note: {text}", err=True)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, sort_keys=True, allow_nan=False))
