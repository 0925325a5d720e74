"""The command line as tests call it, and GPUs that only tests have."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

#: Runs the command line in a process that finds the modules in BLOCKED missing.
BLOCKED_MAIN = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None
from closedform.cli import main
sys.argv = ["closedform", *{arguments!r}]
main()
"""


@pytest.fixture
def run() -> Callable[..., Result]:
    """Invoke the command line in this process."""
    from closedform.cli import cli

    def invoke(*arguments: object) -> Result:
        return CliRunner().invoke(cli, [str(a) for a in arguments])

    return invoke


@pytest.fixture
def run_json(run: Callable[..., Result]) -> Callable[..., Any]:
    """Invoke with --json, expect success, return the parsed stdout."""

    def invoke(*arguments: object) -> Any:
        result = run(*arguments, "--json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    return invoke


@pytest.fixture
def run_without() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Invoke in a child process in which the named packages are not installed."""

    def invoke(blocked: list[str], *arguments: object) -> subprocess.CompletedProcess[str]:
        code = BLOCKED_MAIN.format(blocked=blocked, arguments=[str(a) for a in arguments])
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)

    return invoke


@pytest.fixture
def small_gpu(tmp_path: Path) -> Callable[..., Path]:
    """A TOML file: mi300x with other capacities."""

    def write(**changes: object) -> Path:
        path = tmp_path / "small_gpu.toml"
        lines = [
            'name = "small_gpu"',
            'base = "mi300x"',
            *(f"{key} = {value}" for key, value in changes.items()),
        ]
        path.write_text("\n".join(lines) + "\n")
        return path

    return write
