"""Fused attention against the paper's variant, with exponentials through LDS, and against three kernels, no GPU needed.

    python benchmarks/attention.py [--gpu mi100 mi300x] [--L 4096 8192 16384 32768] [--dtype f16] [--json]

LDS: bytes that the whole launch reads from LDS and writes to it. Each kernel is compiled once, and a workgroup of it
is executed on this CPU at two lengths of its loop, whose difference is the cost of a step; a product whose loop is
short, and the softmax, are executed at their true length. HBM: what must be moved. MFMA share: static, of the compiled
main loop by llvm-mca ("-" without it); of three kernels that of both products. Rounds: times that the device is filled,
by all kernels. Time: the latency model's. It knows the loop of the chained variant only: the time of lds is that at its
tiles times the share of chained over the share of lds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from closedform import Attention, HardwareDescriptor, derive, hardware
from closedform.comparison import compare_attention
from closedform.hw.errors import BadInput, ClosedformError
from closedform.hw.sim import parse_file
from closedform.hw.sim.decode import Code
from closedform.predict.attention_answer import predict_attention
from closedform.predict.step import STAGED_BUFFERS
from closedform.simulation import How, compiled_kernel, simulate_derivation
from closedform.static_share import static_share
from closedform.traffic import fused_bytes
from closedform.visitors.derivation import Derivation
from closedform.visitors.emit import kernel_name
from closedform.visitors.unfused import derive_unfused

GPUS, LENGTHS = ("mi100", "mi300x"), (4096, 8192, 16384, 32768)
HEADS, HEAD_DIM = 16, 128
#: Steps of the loop at which a workgroup is executed; a loop of no more than the longer is executed as it is.
STEPS = 4, 8
NAMES = {"chained": "fused", "lds": "fused, exponentials through LDS", "unfused": "three kernels"}


@dataclass(frozen=True)
class Planned:
    """What is known of a way to compute attention before anything is compiled; latency_us of lds is still the model's
    for the chained loop at the tiles of lds.
    """

    gpu: str
    L: int
    way: str
    hbm_bytes: int
    rounds: int
    latency_us: float


@dataclass(frozen=True)
class Row:
    """A line of the table. Without llvm-mca there are no shares, and no time of lds."""

    gpu: str
    L: int
    way: str
    lds_bytes: int
    hbm_bytes: int
    mfma_share: tuple[float, ...] | None
    rounds: int
    latency_us: float | None


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def attention(length: int, dtype: str, variant: str = "chained") -> Attention:
    return Attention(length, length, HEAD_DIM, heads=HEADS, dtype=dtype, variant=variant)


def plan(hw: HardwareDescriptor, length: int, dtype: str) -> list[Planned]:
    """The three ways, in the order of the table."""
    op = attention(length, dtype)
    both = compare_attention(op, hw)
    tiles, _, grid = derive(attention(length, dtype, "lds"), hw).require()
    config = {"tile_q": tiles.block_q, "tile_kv": tiles.tile_kv, "waves": tiles.waves, "stages": STAGED_BUFFERS}
    lds_us = predict_attention(op, hw, **config).latency_us
    row = partial(Planned, hw.name, length)
    return [
        row("chained", both.fused.hbm_bytes, both.fused.rounds, both.fused.latency_us),
        row("lds", fused_bytes(op), grid.rounds, lds_us),
        row("unfused", both.unfused.hbm_bytes, both.unfused.rounds, both.unfused.latency_us),
    ]


class Kernels:
    """Compiled kernels and what was counted of them, each once. `tell` is called with what begins."""

    def __init__(self, tell: Callable[[str], None] = lambda _: None) -> None:
        self.tell = tell
        self.compiled: dict[str, Any] = {}
        self.shares: dict[str, float | None] = {}
        self.counts: dict[tuple[str, Any], int] = {}

    def binary(self, derivation: Derivation) -> Any:
        name = kernel_name(derivation)
        if name not in self.compiled:
            self.tell(f"compile {name}")
            self.compiled[name] = compiled_kernel(derivation)
        return self.compiled[name]

    def share(self, derivation: Derivation) -> float | None:
        """MFMA share of the path that every iteration of the main loop takes."""
        name = kernel_name(derivation)
        if name not in self.shares:
            found = static_share(Code(parse_file(self.binary(derivation).isa).kernel()))
            assert found is not None, f"{name} has no loop with MFMAs"
            self.shares[name] = found.always.share
        return self.shares[name]

    def executed(self, derivation: Derivation, op: Any, blocks: int = 1) -> int:
        """LDS bytes read and written by `blocks` workgroups of the kernel, given the problem `op`."""
        key = kernel_name(derivation), op
        if key not in self.counts:
            compiled = self.binary(derivation)
            self.tell(f"execute {key[0]}")
            _, _, verdict = derivation.require()
            small = replace(derivation, op=op, grid=replace(verdict, grid=(1, 1, 1), blocks=1))
            done = simulate_derivation(small, How(blocks=blocks, sanitizers=False), compiled=compiled)
            assert done.ok, f"{key[0]} is wrong on {op}"
            counts = [result.counts for result in done.results]
            self.counts[key] = sum(c["lds_read_bytes"] + c["lds_write_bytes"] for c in counts)
        return self.counts[key]

    def extrapolated(self, steps: int, at: Callable[[int], int]) -> int:
        """LDS bytes of `steps` steps of a loop, from those `at` two lengths of it."""
        if steps <= STEPS[1]:
            return at(steps)
        few, many = (at(n) for n in STEPS)
        each, rest = divmod(many - few, STEPS[1] - STEPS[0])
        assert rest == 0, f"{many - few} bytes are not those of {STEPS[1] - STEPS[0]} equal steps"
        return many + (steps - STEPS[1]) * each

    def attention_lds(self, derivation: Derivation) -> int:
        """Of all workgroups: each takes the same queries through all keys."""
        op, (tiles, _, grid) = derivation.op, derivation.require()
        if tiles.splits > 1:
            raise BadInput(
                f"L={op.L_kv}: the keys are split over workgroups on {derivation.hw.name}, choose a greater L"
            )

        def at(steps: int) -> int:
            few = replace(op, L_q=tiles.block_q, L_kv=steps * tiles.tile_kv, heads=1)
            return self.executed(derivation, few)

        return grid.blocks * self.extrapolated(ceil_div(op.L_kv, tiles.tile_kv), at)

    def gemm_lds(self, derivation: Derivation) -> int:
        """Of all tiles of the result, each with all parts of a split sum. Stream-K is executed with one tile for each
        workgroup: the cost of beginning a tile twice where two workgroups share it is left out.
        """
        op, (tiles, _, _) = derivation.op, derivation.require()

        def at(steps: int) -> int:
            rows = tiles.tile_m * (tiles.stream_k or 1)
            one = replace(op, M=rows, N=tiles.tile_n, K=steps * tiles.tile_k, batch=1, lda=0, ldb=0, ldd=0)
            return self.executed(derivation, one, tiles.split_k)

        number = op.batch * ceil_div(op.M, tiles.tile_m) * ceil_div(op.N, tiles.tile_n)
        return number * self.extrapolated(ceil_div(op.K, tiles.tile_k), at)

    def softmax_lds(self, derivation: Derivation) -> int:
        """Of all groups of rows, one executed at its true length."""
        op, (tiles, _, _) = derivation.op, derivation.require()
        one = replace(op, rows=tiles.block_rows)
        return ceil_div(op.rows, tiles.block_rows) * self.executed(derivation, one, tiles.splits)


def measured(kernels: Kernels, hw: HardwareDescriptor, planned: list[Planned], dtype: str) -> Iterator[Row]:
    """The planned rows of a GPU and a length with what is counted of their kernels."""
    length = planned[0].L
    fused = {variant: derive(attention(length, dtype, variant), hw) for variant in ("chained", "lds")}
    unfused = derive_unfused(attention(length, dtype), hw)
    for known in planned:
        row = partial(Row, known.gpu, known.L, known.way)
        latency: float | None = known.latency_us
        if known.way == "unfused":
            products = (unfused.scores, unfused.values)
            lds = sum(kernels.gemm_lds(product) for product in products) + kernels.softmax_lds(unfused.softmax)
            shares = [kernels.share(product) for product in products]
        else:
            lds, shares = kernels.attention_lds(fused[known.way]), [kernels.share(fused[known.way])]
        found = tuple(share for share in shares if share is not None)
        if known.way == "lds":
            chained = kernels.share(fused["chained"])
            latency = known.latency_us * chained / found[0] if chained and found else None
        yield row(lds, known.hbm_bytes, found or None, known.rounds, latency)


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = ["| GPU | L | attention | LDS GB | HBM GB | MFMA share | rounds | predicted ms |", f"|{'---|' * 8}"]
    for row in rows:
        shares = "-" if row.mfma_share is None else " and ".join(f"{share:.2f}" for share in row.mfma_share)
        latency = "-" if row.latency_us is None else f"{row.latency_us / 1e3:.2f}"
        sizes = f"{row.lds_bytes / 1e9:.1f} | {row.hbm_bytes / 1e9:.2f}"
        lines.append(f"| {row.gpu} | {row.L} | {NAMES[row.way]} | {sizes} | {shares} | {row.rounds} | {latency} |")
    return "\n".join(lines)


@contextmanager
def progress(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """Functions to call with what begins and when a row is done: a bar on stderr, lines where it is no terminal."""
    if not sys.stderr.isatty():
        yield (lambda text: print(text, file=sys.stderr, flush=True)), lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("derive", total=total)
        yield (lambda text: bar.update(task, description=text)), lambda: bar.advance(task)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", nargs="+", default=GPUS)
    parser.add_argument("--L", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--dtype", choices=("f16", "bf16", "f32"), default="f16")
    parser.add_argument("--json", action="store_true", help="bytes and microseconds instead of the table")
    args = parser.parse_args()
    rows: list[Row] = []
    try:
        with progress(len(args.gpu) * len(args.L) * len(NAMES)) as (tell, done):
            kernels = Kernels(tell)
            for hw in map(hardware, args.gpu):
                for length in args.L:
                    for row in measured(kernels, hw, plan(hw, length, args.dtype), args.dtype):
                        rows.append(row)
                        done()
    except ClosedformError as error:
        raise SystemExit(f"attention.py: {error}") from None
    if args.json:
        head = {"dtype": args.dtype, "d": HEAD_DIM, "heads": HEADS, "batch": 1}
        print(json.dumps({**head, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
