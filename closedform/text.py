"""Lines and columns of reports: 100 columns, no colour codes, the same on a terminal and in a pipe."""

from __future__ import annotations

__all__ = ["WIDTH", "table", "wrapped"]

WIDTH = 100


def wrapped(part: str, indent: int = 0) -> str:
    """Lines of at most WIDTH columns, those that follow indented."""
    from textwrap import wrap

    lines = part.splitlines()
    return "\n".join(
        "\n".join(wrap(line, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False))
        if len(line) > WIDTH
        else line
        for line in lines
    )


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
