"""Runs the console examples of the README and writes what they print into it; copies the kernels they emit.

The table of knobs in docs/gemm.md is written from the fields of GemmTiles.

python .ci/refresh.py        after a change that alters an example on purpose; tests/test_readme.py checks it
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
KNOBS = re.compile(r"(<!-- knobs -->\n)(?:\|.*\n)*")


def examples(text: str) -> Iterator[tuple[re.Match[str], list[str]]]:
    """Every console block with its commands, the lines that begin with "$ "."""
    for block in BLOCK.finditer(text):
        yield block, [line[2:] for line in block.group(1).splitlines() if line.startswith("$ ")]


def printed(command: str, folder: Path) -> str:
    """The command and its standard output, run in `folder` with this interpreter's closedform."""
    program, *arguments = command.split()
    if program != "closedform":
        raise ValueError(f"an example runs {program}, expected closedform")
    start = "from closedform.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", start, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return f"$ {command}\n{done.stdout}"


def refreshed(text: str, folder: Path) -> str:
    """The text with every console block run again."""
    for block, commands in list(examples(text))[::-1]:
        output = "\n".join(printed(command, folder) for command in commands)
        text = f"{text[: block.start(1)]}{output}{text[block.end(1) :]}"
    return text


def knob_table(text: str) -> str:
    """The text with the table behind the marker of knobs written again."""
    from closedform.operators.gemm import KNOBS as knobs

    rows = ["| steers | knob | what |", "|---|---|---|"]
    rows += [f"| {knob.mechanism} | `{knob.name}` | {knob.text} |" for knob in knobs]
    return KNOBS.sub(lambda found: found.group(1) + "\n".join(rows) + "\n", text)


def main() -> None:
    readme, gemm = ROOT / "README.md", ROOT / "docs" / "gemm.md"
    gemm.write_text(knob_table(gemm.read_text()))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        readme.write_text(refreshed(readme.read_text(), folder))
        for file in (ROOT / "kernels_out").glob("*.*"):
            file.unlink()
        for file in (folder / "kernels_out").iterdir():
            shutil.copy(file, ROOT / "kernels_out")


if __name__ == "__main__":
    main()
