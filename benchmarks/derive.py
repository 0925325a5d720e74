"""Microseconds of one derivation, after warm-up: `python benchmarks/derive.py`.

CPU time of this process, so that other work on the machine does not count; the limit is 200 us.
"""

import sys
import time

from closedform.hw import catalogue
from closedform.operators.attention import Attention
from closedform.operators.gemm import Gemm
from closedform.visitors.feasibility import derive

LIMIT_US = 200.0
CASES = {
    "attention f32 d=128, one head of 16384 (fills the device)": (Attention(16384, 16384, 128), "default"),
    "attention f16 d=128, 32 heads of 4096": (Attention(4096, 4096, 128, heads=32, dtype="f16"), "default"),
    "attention bf16 d=192, through LDS": (Attention(4096, 4096, 192, heads=32, dtype="bf16", variant="lds"), "default"),
    "attention, the paper's model": (Attention(16384, 16384, 128), "paper"),
    "gemm 4096^3, the paper's model": (Gemm(4096, 4096, 4096), "paper"),
    "gemm bf16 4096^3": (Gemm(4096, 4096, 4096, dtype="bf16", layout="NT"), "default"),
    "gemm f16 16x16384x4096, split": (Gemm(16, 16384, 4096, dtype="f16"), "default"),
    "gemm f32 8192x1024x2048": (Gemm(8192, 1024, 2048, layout="TN"), "default"),
}


def microseconds(op, hw, model, calls=200, repeats=10) -> float:
    """The best of `repeats` means over `calls`."""
    derive(op, hw, model)
    best = float("inf")
    for _ in range(repeats):
        begin = time.process_time()
        for _ in range(calls):
            derive(op, hw, model)
        best = min(best, (time.process_time() - begin) / calls)
    return best * 1e6


def main() -> int:
    worst = 0.0
    for gpu in ("mi100", "mi300x", "mi355x"):
        for name, (op, model) in CASES.items():
            took = microseconds(op, catalogue.get(gpu), model)
            worst = max(worst, took)
            print(f"{took:7.1f} us  {took / LIMIT_US:5.2f} of the limit  {gpu:7} {name}")
    print(f"{'sympy' in sys.modules = }")
    return 0 if worst < LIMIT_US and "sympy" not in sys.modules else 1


if __name__ == "__main__":
    sys.exit(main())
