"""The --explain report: readable at 100 columns and in a pipe, and it holds the numbers of the derivation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import Result

import closedform
from closedform.explain import WIDTH, explanation, summary
from closedform.hw import catalogue
from closedform.operators.attention import Attention
from closedform.operators.gemm import Gemm

Run = Callable[..., Result]


def reports() -> list[str]:
    main_job = Attention(16384, 16384, 128)
    derivations = [closedform.derive(main_job, hw) for hw in catalogue.names()]
    derivations += [closedform.derive(main_job, hw, model="paper") for hw in ("paper_a", "paper_b")]
    derivations.append(closedform.derive(Gemm(4096, 4096, 4096), "paper_a"))
    return [explanation(d) for d in derivations] + [summary(d) for d in derivations]


def test_fits_100_columns_without_colour() -> None:
    for text in reports():
        assert max(map(len, text.splitlines())) <= WIDTH == 100
        assert "\x1b" not in text
        assert text.isascii()


@pytest.mark.parametrize("hw", catalogue.names())
def test_every_formula_and_register_is_there(hw: str) -> None:
    derivation = closedform.derive(Attention(16384, 16384, 128), hw)
    report = explanation(derivation)
    flat = " ".join(report.split())
    for step in derivation.steps:
        assert step.formula.name.split()[0] in flat
    assert derivation.resources is not None
    for item in derivation.resources.items:
        assert str(item.registers) in flat
    assert derivation.binding in flat
    assert derivation.grid is not None
    assert f"{derivation.grid.blocks_per_cu:.2f} per CU" in flat
    assert ("** binds **" in flat) is any(step.binds for step in derivation.steps)


MAIN_JOB = ("--L", 16384, "--d", 128, "--dtype", "f32", "--explain")


def test_paper_a_in_full(run: Run) -> None:
    """The paper's own example."""
    result = run("derive", "attention", *MAIN_JOB, "--hw", "paper_a", "--model", "paper")
    assert result.exit_code == 0
    for part in ("tile_q=32", "tile_kv=64", "180", "4.27 per CU", "5 rounds"):
        assert part in result.stdout, part


def test_infeasible_report(run: Run) -> None:
    tiles = ("--variant", "lds", "--tile-q", 32, "--tile-kv", 64, "--waves", 1)
    result = run("derive", "attention", *MAIN_JOB, "--hw", "mi100", *tiles)
    assert result.exit_code == 4
    assert "Infeasible:" in result.stdout
