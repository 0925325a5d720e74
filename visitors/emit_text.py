"""Text of emitted files: constants, headers, joining; deterministic bytes, no time, no path, no hash order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from textwrap import dedent, indent, wrap
from typing import Any

__all__ = ["CEIL_DIV", "RESOURCE", "constants", "docstring", "fill", "join", "piece"]

LINE = 118

#: A helper of every kernel file.
CEIL_DIV = """
def ceil_div(a, b):
    return -(-a // b)
"""

#: Buffer descriptors.
RESOURCE = '''
def resource(address, extent):
    """Buffer descriptor at a 64-bit address: reads past `extent` bytes give 0, writes are dropped."""
    extent = fx.Int64((extent > 0).select(extent, fx.Int32(0)))
    pointer = fx.inttoptr(fx.PointerType.get(T.i32, fx.AddressSpace.Global, 4), address)
    return rocdl.get_buffer_rsrc(rocdl.make_buffer_ptr(pointer, num_records_bytes=extent))
'''


def piece(text: str) -> str:
    """A dedented block of emitted code without surrounding blank lines."""
    return dedent(text).strip("\n")


def fill(text: str, values: Mapping[str, str]) -> str:
    """`text` with every `@name@` replaced by its value; KeyError for a name without one.

    A placeholder that has a line to itself takes the lines of its value at its indent, or goes with its line.

    >>> fill("def f(@given@):\\n    @body@\\n    return a", {"given": "a", "body": ""})
    'def f(a):\\n    return a'
    """
    lines = []
    for line in text.split("\n"):
        alone = re.fullmatch(r"( *)@(\w+)@", line)
        if alone is None:
            lines.append(re.sub(r"@(\w+)@", lambda found: values[found.group(1)], line))
        elif values[alone.group(2)]:
            lines.append(indent(values[alone.group(2)], alone.group(1)))
    return "\n".join(lines)


def join(*pieces: str, blank: int = 2) -> str:
    """Non-empty blocks separated by `blank` empty lines."""
    return ("\n" * (blank + 1)).join(p for p in pieces if p)


def constants(rows: Iterable[tuple[str, Any, str]]) -> str:
    """`NAME = value  # meaning` lines; a meaning may be empty; values print as Python literals."""
    lines = []
    for name, value, meaning in rows:
        line = f"{name} = {value}"
        if len(line) > LINE:
            line = (
                f"{name} = (\n"
                + "\n".join(f"    {part}" for part in wrap(", ".join(str(v) for v in value) + ",", LINE - 4))
                + "\n)"
            )
        lines.append(f"{line}  # {meaning}" if meaning else line)
    return "\n".join(lines)


def docstring(summary: str, facts: Iterable[tuple[str, str]]) -> str:
    """Module docstring: a summary and a table of facts."""
    rows = list(facts)
    width = max(len(name) for name, _ in rows)
    lines = [f'"""{summary}', ""]
    lines += [f"    {name:<{width}}  {text}" for name, text in rows]
    return "\n".join([*lines, '"""'])
