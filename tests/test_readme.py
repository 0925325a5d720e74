"""Every example of the README is run and prints what the README shows."""

from __future__ import annotations

import doctest
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from closedform.hw import catalogue
from closedform.visitors.compile import missing_dependency

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def refresh() -> Any:
    """The script that wrote the examples."""
    spec = importlib.util.spec_from_file_location("refresh", ROOT / ".ci" / "refresh.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.compile
@pytest.mark.skipif(missing_dependency() is not None, reason=str(missing_dependency()))
def test_console_examples_and_committed_kernels(refresh: Any, tmp_path: Path) -> None:
    """A difference that is meant: python .ci/refresh.py."""
    assert refresh.refreshed(README, tmp_path) == README
    emitted = {path.name: path.read_bytes() for path in (tmp_path / "kernels_out").iterdir()}
    committed = {path.name: path.read_bytes() for path in (ROOT / "kernels_out").glob("*.*")}
    assert emitted == committed


def test_table_of_knobs(refresh: Any) -> None:
    """A difference that is meant: python .ci/refresh.py."""
    text = (ROOT / "docs" / "gemm.md").read_text()
    assert "| `tile_m` |" in text
    assert refresh.knob_table(text) == text


def test_library_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner()
    for number, block in enumerate(blocks("pycon")):
        test = doctest.DocTestParser().get_doctest(block, {}, f"README {number}", "README.md", 0)
        assert runner.run(test).failed == 0


def test_gpu_file_example(tmp_path: Path) -> None:
    (block,) = blocks("toml")
    path = tmp_path / "my_gpu.toml"
    path.write_text(block)
    assert catalogue.find(str(path)).num_cus == 152


def test_the_infeasible_example_ends_with_4() -> None:
    from click.testing import CliRunner

    from closedform.cli import cli

    (command,) = [block for block in blocks("sh") if block.startswith("closedform")]
    assert CliRunner().invoke(cli, command.split()[1:]).exit_code == 4


@pytest.mark.parametrize("marker", ["install", "test"])
def test_ci_finds_its_commands(marker: str) -> None:
    """.ci/run runs the block after each marker."""
    assert re.search(rf"<!-- {marker} -->\n```sh\n[^\n]+\n```", README)


def test_install_command_emits_the_main_job() -> None:
    (command,) = [block for block in blocks("sh") if "venv .venv" in block]
    assert "closedform emit attention --L 16384 --d 128" in command


def test_every_command_is_listed() -> None:
    import click

    from closedform.cli import cli

    for name in cli.list_commands(click.Context(cli)):
        assert f"`closedform {name}" in README


def help_pages() -> list[list[str]]:
    import click

    from closedform.cli import cli

    def walk(group: click.Group, path: list[str]) -> list[list[str]]:
        pages = [path]
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            pages += walk(command, [*path, name]) if isinstance(command, click.Group) else [[*path, name]]
        return pages

    return walk(cli, [])


@pytest.mark.parametrize("path", help_pages(), ids=" ".join)
def test_every_help_page_has_an_example(path: list[str]) -> None:
    from click.testing import CliRunner

    from closedform.cli import cli

    result = CliRunner().invoke(cli, [*path, "--help"])
    assert result.exit_code == 0
    assert re.search(r"Examples?:\n +closedform ", result.stdout)
