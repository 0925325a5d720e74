"""closedform tune: a search from a start that is trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .operators import ATTENTION, CONV2D, GEMM, Request, takes
from .options import stack
from .output import notice, print_json
from .progress import tuning_progress

__all__ = ["tune"]


@click.group()
def tune() -> None:
    """Search for a faster kernel, a few knobs at a time, from the closed form's or any kernel that is trusted.

    Rounds open one mechanism each; what is measured faster twice takes the incumbent's place, so that no result is
    slower than the start.

    \b
    Examples:
      closedform tune gemm --M 4096 --N 4096 --K 4096 --dtype bf16 --hw mi300x --evaluator model
      closedform tune gemm --M 256 --N 256 --K 512 --dtype bf16 --hw mi300x --evaluator profile --journal tuning.jsonl
    """


_tune_options = stack(
    click.option(
        "--evaluator",
        metavar="NAME",
        help="device (a GPU here, the default), profile (compiled, simulated), model, table or tensilelite.",
    ),
    click.option(
        "--table",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Of table, the measured landscape to replay: CSV, or CSV in .gz.",
    ),
    click.option("--client", default="", metavar="COMMAND", help="Of tensilelite, its Tensile.py."),
    click.option(
        "--blocks",
        type=click.IntRange(1),
        default=2,
        show_default=True,
        metavar="N",
        help="Of profile, workgroups to run.",
    ),
    click.option(
        "--start",
        default="",
        metavar="derive|select|NAME|FILE",
        help="The trusted kernel: derive's, select's, or one that `decode` reads.",
    ),
    click.option(
        "--journal",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Keep every measurement here and measure nothing twice; several processes may share it.",
    ),
    click.option("--budget", type=int, metavar="N", help="Most measurements, those of the journal counted."),
    click.option("--seconds", type=float, metavar="S", help="Begin no measurement after S seconds."),
    click.option("--sweeps", type=click.IntRange(1), default=2, show_default=True, metavar="N", help="Of all rounds."),
    click.option(
        "--pool-maturity",
        type=click.FloatRange(0, 1),
        default=0.0,
        show_default=True,
        metavar="SHARE",
        help="Share of the shape's tiles that the start has won against; from 0.5 on the tile round is left out.",
    ),
    click.option("--grid", is_flag=True, help="Measure a cold one-shot grid of the same budget too."),
    click.option("--plot", type=click.Path(dir_okay=False), metavar="FILE", help="Plot latency by round (matplotlib)."),
)


@tune.command()
@takes(GEMM, knobs=False)
@_tune_options
def gemm(request: Request, **values: Any) -> None:
    """Tune a matrix product: tile, split, mapping, reads, stores, and Stream-K last.

    \b
    Examples:
      closedform tune gemm --M 4096 --N 4096 --K 4096 --dtype bf16 --hw mi300x --evaluator model --grid --budget 60
      closedform tune gemm --M 8192 --N 16 --K 2048 --dtype bf16 --hw h200 --evaluator table --table landscape.csv.gz
    """
    _run(request, **values)


@tune.command()
@takes(ATTENTION, knobs=False)
@_tune_options
def attention(request: Request, **values: Any) -> None:
    """Tune fused attention: queries, keys and the instruction, then waves.

    \b
    Example:
      closedform tune attention --L 4096 --d 128 --heads 16 --dtype bf16 --hw mi300x --evaluator model
    """
    _run(request, **values)


@tune.command()
@takes(CONV2D, knobs=False)
@_tune_options
def conv2d(request: Request, **values: Any) -> None:
    """Tune a direct convolution: channels, rows, columns and waves, then widths.

    \b
    Example:
      closedform tune conv2d --N 1 --IC 64 --IH 14 --IW 14 --OC 64 --KH 3 --KW 3 --dtype f16 --evaluator profile
    """
    _run(request, **values)


def _evaluator(name: str | None) -> str:
    """The evaluator asked for; without one the GPU of this machine, else the model, with a notice."""
    if name is not None:
        return name
    from closedform.device import detect

    if detect() is not None:
        return "device"
    notice("no AMD CDNA GPU here: by the model, which measures nothing (choose with --evaluator)")
    return "model"


def _run(
    request: Request,
    *,
    evaluator: str | None,
    table: Path | None,
    client: str,
    blocks: int,
    start: str,
    journal: Path | None,
    budget: int | None,
    seconds: float | None,
    sweeps: int,
    pool_maturity: float,
    grid: bool,
    plot: str | None,
) -> None:
    from closedform.plotting import check_plot
    from closedform.tuning.descent import Plan
    from closedform.tuning.measuring import Budget
    from closedform.tuning.report import trajectory_text
    from closedform.tuning.session import Source, run_tuning

    source = Source(_evaluator(evaluator), table, client, blocks, start)
    limit = Budget(budget, seconds)
    if plot:
        check_plot(plot)
    with tuning_progress(budget) as seen:
        plan = Plan(sweeps, pool_maturity)
        done = run_tuning(
            request.op, request.hw, source, journal=journal, budget=limit, plan=plan, grid=grid, seen=seen
        )
    for note in done.notes:
        notice(note)
    if request.as_json:
        print_json(done.to_json())
    else:
        click.echo(trajectory_text(done.descent, done.grid))
    if plot:
        from closedform.tuning.plot import trajectory_plot

        trajectory_plot(done.descent, plot, done.grid)
    if done.error is not None:  # what was found is shown all the same
        click.echo(f"error: {done.error}", err=True)
        raise click.exceptions.Exit(done.error.exit_status)
    if done.descent.stopped == "interrupted":
        raise click.exceptions.Exit(130)
