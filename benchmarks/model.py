"""Every figure of the latency model, cross-validated by shape, each fold fitted from the priors on.

    python benchmarks/model.py DATA [--only h200-gemm ...] [--folds N] [--held-out PART] [--write]

DATA is the folder of the measured tables (their README describes them). With `--held-out PART` it reads the files named
PART, not train, and scores the committed constants on them, with no fit. `--write` puts fitted values and bands into
constants.csv.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import time
from pathlib import Path

import model_amd
import model_data
import model_gfx90a
import model_h200_attention
import model_h200_gemm
import model_hipblaslt
import numpy as np
from model_data import Residuals

import closedform
from closedform.hw import catalogue
from closedform.operators.gemm import Gemm
from closedform.predict.bands import COVERAGE, REGIMES, coverage_of_held_out, fitted_bands
from closedform.predict.constants import COLUMNS, FILE, Constants, shipped_constants
from closedform.predict.quantise import hit_rate, rounds, utilisation
from closedform.predict.select import gemm_selector

PARTS = ("examples", "speed", "hipblaslt", "mi325x", "gfx90a", "gfx950", "h200-gemm", "h200-attention")
REPEATS = 200


def staged(gpu: str) -> Constants:
    return shipped_constants("staged", gpu)


def examples() -> None:
    print(f"20 tiles on 8 CUs: {rounds(20, 8)} rounds (3), {utilisation(20, 8):.0%} (83%)")
    print(f"hit rates of 4 x 4 and 8 x 8 tiles: {hit_rate(4, 4, 128, 128)} (0.75), {hit_rate(8, 8, 128, 128)} (0.875)")
    for length in (4096, 8192, 16384, 32768):
        blocks = -(-length // 32)
        print(f"paper, Table 3, L={length}: {rounds(blocks, 120)} rounds, slots used {utilisation(blocks, 120):.3f}")


def speed() -> None:
    for name, dtype in (("h200", "bf16"), ("mi325x", "bf16")):
        hw = catalogue.get(name)
        selector = gemm_selector(hw, dtype, "NT")
        closedform.select(Gemm(4096, 4096, 4096, dtype=dtype, layout="NT"), hw)
        spent = []
        for i in range(REPEATS):
            op = Gemm(4096 + i, 4096, 4096, dtype=dtype, layout="NT")
            begin = time.perf_counter()
            closedform.select(op, hw)
            spent.append(time.perf_counter() - begin)
        m, n, k = np.random.default_rng(0).integers(1, 16384, (3, 10000))
        batches = []
        for _ in range(3):
            begin = time.perf_counter()
            selector.best(m, n, k)
            batches.append(time.perf_counter() - begin)
        print(
            f"select on {name}, {len(selector.configs)} legal tiles: {np.median(spent) * 1e6:.0f} us a shape (< 300), "
            f"10,000 shapes {np.median(batches):.2f} s (< 2)"
        )


def joined(a: Constants, b: Constants) -> Constants:
    """The constants of both, to be fitted together."""
    return Constants(a.family, a.gpu, a.rows + b.rows, {**a.numbers, **b.numbers})


def with_bands(label: str, k: Constants, found: Residuals) -> Constants:
    """The constants with error bands of those residuals; prints how many held-out rows such bands hold."""
    bands = fitted_bands(found.predicted_us, found.measured_us)
    held = coverage_of_held_out(found.predicted_us, found.measured_us, found.groups)
    shown = ", ".join(
        f"{r} {bands[f'band_{r}_low_factor']:.2f} to {bands[f'band_{r}_high_factor']:.2f}" for r in REGIMES
    )
    print(f"  band of {label}: {shown}; holds {held:.1%} of held-out rows ({COVERAGE:.0%} +- 5%)")
    return k.with_values(bands)


def lent_together(parts: list[Residuals]) -> Residuals:
    """Every lending with the same weight: rows repeated up to the number of the largest."""
    most = max(len(p.groups) for p in parts)
    columns = ((p.predicted_us, p.measured_us, p.groups + 100000 * i) for i, p in enumerate(parts))
    repeated = [[np.resize(column, most) for column in part] for part in columns]
    return Residuals(*(np.concatenate(column) for column in zip(*repeated, strict=True)))


def write(fitted: list[Constants]) -> None:
    """Replace the values of the fitted rows and of the bands of constants.csv and date them."""
    with FILE.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for k in fitted:
        for row in rows:
            known = (row["family"], row["gpu"]) == (k.family, k.gpu)
            if known and (float(row["spread"]) > 0 or row["name"].startswith("band_")):
                row["value"], row["fit_date"] = f"{k[row['name']]:.4g}", datetime.date.today().isoformat()
    with FILE.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:  # noqa: PLR0915
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--folds", type=int, default=0, help="0 leaves one shape out at a time where that is quick")
    parser.add_argument("--held-out", metavar="PART")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    part = args.held_out or "train"
    passes = 0 if args.held_out else 12
    some = args.folds or 8
    fitted: list[Constants] = []
    if "examples" in args.only:
        examples()
    if "speed" in args.only:
        speed()
    lent: list[Residuals] = []
    costs: dict[tuple[str, str], float] = {}
    if "hipblaslt" in args.only:
        table, rows = model_data.hipblaslt(args.data, part)
        of_gpu, of_library = (shipped_constants(family, "mi300x") for family in ("staged", "recorded"))
        k, costs, found = model_hipblaslt.report(table, rows, joined(of_gpu, of_library), some, passes)
        fitted += [with_bands("mi300x", of_gpu.with_values({n: k[n] for n in of_gpu}), found)]
        fitted += [of_library.with_values({n: k[n] for n in of_library})]
    if "mi325x" in args.only:
        transfer = next((k for k in fitted if (k.family, k.gpu) == ("staged", "mi300x")), staged("mi300x"))
        table = model_data.mi325x_gemm(args.data, part)
        k, found, moved = model_amd.report_tuned(table, staged("mi325x"), transfer, args.folds, passes)
        fitted.append(with_bands("mi325x", k, found))
        lent.append(moved)
    mi325x = next((k for k in fitted if (k.family, k.gpu) == ("staged", "mi325x")), staged("mi325x"))
    if "gfx90a" in args.only:
        table, rows = model_data.hipblaslt(args.data, part, "gfx90a")
        of_library = shipped_constants("recorded", "mi210")
        start, other = joined(staged("mi210"), of_library), joined(mi325x, of_library)
        k, found, moved = model_gfx90a.report(table, rows, start, other, some, passes)
        fitted += [with_bands("mi210", staged("mi210").with_values({n: k[n] for n in staged("mi210")}), found)]
        fitted += [of_library.with_values({n: k[n] for n in of_library})]
        lent.append(moved)
    if "gfx950" in args.only:
        table = model_data.gfx950_sweep(args.data, part)
        k, found, moved = model_amd.report_sweep(table, staged("mi350x"), mi325x, some, passes)
        fitted.append(with_bands("mi350x", k, found))
        lent.append(moved)
    if len(lent) == 3:
        start = shipped_constants("borrowed", "any")
        fitted.append(with_bands("constants lent between parts", start, lent_together(lent)))
    if "h200-gemm" in args.only:
        start = shipped_constants("pipelined", "h200")
        k, found = model_h200_gemm.report(model_data.h200_gemm(args.data, part), start, some, passes)
        fitted.append(with_bands("h200 gemm", k, found))
    if "h200-attention" in args.only:
        start = shipped_constants("attention", "h200")
        k, found = model_h200_attention.report(model_h200_attention.Landscape(args.data, part), start, some, passes)
        fitted.append(with_bands("h200 attention", k, found))
    if args.write and not args.held_out:
        write(fitted)
        if costs:
            model_hipblaslt.write_costs(costs)


if __name__ == "__main__":
    main()
