"""closedform fit: calibrate the latency model on measurements."""

from __future__ import annotations

import click

from .options import hardware_from, json_option
from .output import print_json

__all__ = ["fit"]


@click.command()
@click.argument("measurements", type=click.Path(exists=True, dir_okay=False))
@click.option("--hw", metavar="NAME|FILE", help="GPU that was measured; the GPU found, else mi300x.")
@click.option("--out", type=click.Path(dir_okay=False), metavar="FILE", help="Write the constants here, as CSV.")
@click.option(
    "--folds", type=click.IntRange(2), default=5, show_default=True, metavar="N", help="Of cross-validation by shape."
)
@click.option(
    "--source", default="measured by the user", show_default=True, metavar="TEXT", help="Goes into every row."
)
@json_option
def fit(measurements: str, hw: str | None, out: str | None, folds: int, source: str, as_json: bool) -> None:
    """Fit a GPU's GEMM constants to a CSV of measured products, and cross-validate them by shape.

    Columns: M N K dtype layout us, in row-major letters; tile_m tile_n tile_k waves stages split_k where the
    configuration is known. Without tiles a row counts as the time of the best configuration.

    \b
    Example:
      closedform fit timings.csv --hw mi300x --out mi300x_constants.csv
    """
    from closedform.predict.calibrate import calibrate, read_measurements, write_constants

    gpu = hardware_from(hw, None)
    result = calibrate(gpu, read_measurements(measurements), folds=folds)
    if out:
        write_constants(out, result, source)
    if as_json:
        print_json(result.to_json())
    else:
        click.echo(str(result))
