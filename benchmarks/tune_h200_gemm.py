"""The descent and the one-shot grid on measured landscapes of GEMM on an H200, replayed.

    python benchmarks/tune_h200_gemm.py DATA [--budget N] [--part NAME]

DATA is the folder of the measured tables. Both searches may measure as many configurations of a product.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from pathlib import Path

from closedform.hw import catalogue
from closedform.tuning.descent import descend
from closedform.tuning.grid import one_shot
from closedform.tuning.journal import Journal
from closedform.tuning.lattice_space import LatticeSpace
from closedform.tuning.measuring import Budget, Meter
from closedform.tuning.table import Landscape, TableEvaluator, read_landscapes
from closedform.tuning.trajectory import Trajectory


def searched(landscape: Landscape, budget: int) -> tuple[Trajectory, Trajectory]:
    """The descent and the grid, each with a journal of its own."""
    space = LatticeSpace(landscape.op, catalogue.get("h200"))
    evaluator = TableEvaluator(landscape)
    meters = [Meter(space, evaluator, Journal(), Budget(evaluations=budget)) for _ in range(2)]
    return descend(meters[0]), one_shot(meters[1])


def non_increasing(found: Trajectory) -> bool:
    times = [found.start_us, *(r.latency_us for r in found.rounds)]
    return all(a is not None and b is not None and b <= a for a, b in itertools.pairwise(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--budget", type=int, default=40)
    parser.add_argument("--part", default="train")
    args = parser.parse_args()
    path = args.data / f"h200_gemm_landscape_{args.part}.csv.gz"
    landscapes = read_landscapes(path, catalogue.get("h200"))
    pairs = [searched(landscape, args.budget) for landscape in landscapes]
    starts, tuned, grids = [], [], []
    for landscape, (descent, grid) in zip(landscapes, pairs, strict=True):
        starts.append(landscape.best_us / (descent.start_us or float("inf")))
        tuned.append(landscape.best_us / (descent.best_us or float("inf")))
        grids.append(landscape.best_us / (grid.best_us or float("inf")))
    counts = [descent.measurements for descent, _ in pairs]
    enumerated = [sum(r.enumerated for r in descent.rounds) for descent, _ in pairs]
    print(f"{len(landscapes)} products, at most {args.budget} measurements each; shares of the exhaustive best:")
    for name, shares in (("start", starts), ("rounds", tuned), ("grid", grids)):
        print(f"  {name:6} geometric mean {statistics.geometric_mean(shares):.4f}, worst {min(shares):.3f}")
    print(
        f"  measured {statistics.mean(counts):.1f} of {statistics.mean(enumerated):.0f} enumerated, most {max(counts)}"
    )
    print(f"  latency never rises: {all(non_increasing(descent) for descent, _ in pairs)}")


if __name__ == "__main__":
    main()
