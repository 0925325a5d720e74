"""Where text goes: results on stdout, notices on stderr, tables without colour codes when piped."""

from __future__ import annotations

import json
from typing import Any

import click

__all__ = ["notice", "print_json", "table"]


def notice(text: str) -> None:
    """One line on stderr, so that stdout stays the result alone."""
    click.echo(f"note: {text}", err=True)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, sort_keys=True, allow_nan=False))


def table(headers: list[str], rows: list[list[str]]) -> str:
    """Plain text columns: cells that are all numbers align right, two blanks between columns.

    >>> print(table(["name", "CUs"], [["mi100", "120"], ["mi300x", "304"]]))
    name    CUs
    mi100   120
    mi300x  304
    """
    columns = list(zip(headers, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [bool(rows) and all(_is_number(cell) for cell in column[1:]) for column in columns]
    lines = []
    for row in [headers, *rows]:
        cells = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _is_number(cell: str) -> bool:
    return cell in ("", "-") or cell.replace(".", "", 1).replace(",", "").isdigit()
