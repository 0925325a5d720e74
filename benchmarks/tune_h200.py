"""The descent and the one-shot grid on measured landscapes of GEMM and of attention on an H200, replayed.

    python benchmarks/tune_h200.py DATA [--budget N] [--part NAME]

DATA is the folder of the measured tables. Both searches may measure as many configurations of a problem.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from pathlib import Path

from closedform.hw import catalogue
from closedform.operators.attention import Attention
from closedform.tuning.descent import descend
from closedform.tuning.grid import one_shot
from closedform.tuning.journal import Journal
from closedform.tuning.lattice_space import attention_space, gemm_space
from closedform.tuning.measuring import Budget, Meter
from closedform.tuning.table import Landscape, TableEvaluator, read_landscapes
from closedform.tuning.trajectory import Trajectory

HW = catalogue.get("h200")


def searched(landscape: Landscape, budget: int) -> tuple[Trajectory, Trajectory]:
    """The descent and the grid, each with a journal of its own."""
    op = landscape.op
    space = attention_space(op, HW) if isinstance(op, Attention) else gemm_space(op, HW)
    evaluator = TableEvaluator(landscape)
    meters = [Meter(space, evaluator, Journal(), Budget(evaluations=budget)) for _ in range(2)]
    return descend(meters[0]), one_shot(meters[1])


def non_increasing(found: Trajectory) -> bool:
    times = [found.start_us, *(r.latency_us for r in found.rounds)]
    return all(a is not None and b is not None and b <= a for a, b in itertools.pairwise(times))


def report(name: str, landscapes: list[Landscape], budget: int) -> None:
    pairs = [searched(landscape, budget) for landscape in landscapes]
    starts, tuned, grids = [], [], []
    for landscape, (descent, grid) in zip(landscapes, pairs, strict=True):
        starts.append(landscape.best_us / (descent.start_us or float("inf")))
        tuned.append(landscape.best_us / (descent.best_us or float("inf")))
        grids.append(landscape.best_us / (grid.best_us or float("inf")))
    counts = [descent.measurements for descent, _ in pairs]
    enumerated = [sum(r.enumerated for r in descent.rounds) for descent, _ in pairs]
    print(f"{name}: {len(landscapes)} problems, at most {budget} measurements each; shares of the exhaustive best:")
    for method, shares in (("start", starts), ("rounds", tuned), ("grid", grids)):
        print(f"  {method:6} geometric mean {statistics.geometric_mean(shares):.4f}, worst {min(shares):.3f}")
    share = f"{statistics.mean(counts):.1f} of {statistics.mean(enumerated):.0f} enumerated"
    print(f"  measured {share}, at most {max(counts)}")
    print(f"  latency never rises: {all(non_increasing(descent) for descent, _ in pairs)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--budget", type=int, default=40)
    parser.add_argument("--part", default="train")
    args = parser.parse_args()
    for name in ("gemm", "attention"):
        path = args.data / f"h200_{name}_landscape_{args.part}.csv.gz"
        report(name, read_landscapes(path, HW), args.budget)


if __name__ == "__main__":
    main()
