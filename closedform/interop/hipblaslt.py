"""hipBLASLt: rows of its tuning override file, by matching the kernel names of a bench listing with our tiles.

A solution's index is known only to the library that lists it: `hipblaslt-bench --algo_method all --print_kernel_info`
names every solution, the names say the tiles, and the row takes the index of the one whose tile is ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.hw.errors import BadInput
from closedform.operators.gemm import Gemm

from .kernel import Kernel, transposed_layout
from .rules import Refused
from .tensilelite_types import bench_word, compute_word
from .tool import FIELD_OF_KNOB, Offer

__all__ = ["HEADER", "Listed", "listed", "matched", "override", "read_override", "stamp_of"]

HEADER = (
    *("transA", "transB", "batch_count", "m", "n", "k", "a_type", "b_type", "c_type", "compute_type"),
    *("solution_index", "kernel_name"),
)
_INDEX = re.compile(r"(?:solution[ _]?index|index|--algo)\D{0,4}(\d{1,9})", re.IGNORECASE)
_NAME = re.compile(r"\b(C[ijkl]+_A[ijkl]+_B[ijkl]+_\w+)")
_STAMP = re.compile(r"Git Version:\s*(\S+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Listed:
    """A solution of a listing."""

    index: int
    name: str


def listed(text: str) -> Iterator[Listed]:
    """Solutions of a bench listing: an index and a kernel name in one line, or in lines after each other.

    Which of both begins a solution is the same in the whole listing: what comes first in it.
    """
    pending: dict[str, str] = {}
    first = ""
    for line in text.splitlines():
        places = {"index": _INDEX.search(line), "name": _NAME.search(line)}
        found = {part: place[1] for part, place in places.items() if place is not None}
        first = first or next(iter(found), "")
        if first in found:
            pending.clear()
        pending |= found
        if len(pending) == len(places):
            yield Listed(int(pending["index"]), pending["name"])
            pending.clear()


def matched(offer: Offer, text: str) -> Listed:
    """The solution of the listing that is nearest to the offer: tile, layout and types must be ours, the last that of
    the sum too; it must be for a single product, for the GPU where it names one, and have what the offer fixes.

    Of several the one with the same wave grid, then the same instruction and split. Raises Refused where no solution
    has the tile, and BadInput for a listing without names.
    """
    from closedform.decoding.errors import Undecodable
    from closedform.decoding.solution_name import solution_of
    from closedform.decoding.tensilelite import decoded_name, gfx_of

    ours = offer.kernel
    family = dtype(offer.op.dtype).family
    fixed = [FIELD_OF_KNOB.get(knob, knob) for knob in offer.fixed]
    if lost := [field for field in fixed if field not in Kernel.__slots__]:
        raise Refused(f"names of solutions do not say {', '.join(lost)}: leave it out")
    total = {"f64": "f64", "i8": "i32"}.get(family, "f32")
    best: tuple[tuple[bool, ...], Listed] | None = None
    count = 0
    for one in listed(text):
        count += 1
        try:
            name = solution_of(one.name)
            theirs = decoded_name(one.name, offer.hw).kernel
        except Undecodable:
            continue  # a custom kernel: its numbers are labels
        if (theirs.tile_m, theirs.tile_n, theirs.tile_k) != (ours.tile_m, ours.tile_n, ours.tile_k):
            continue
        if (theirs.layout, theirs.dtype, theirs.out_dtype) != (ours.layout, ours.dtype, offer.op.result):
            continue
        if name.problem.compute != total or {"GG", "GB"} & set(name.problem.epilogue):
            continue
        if gfx_of(name) not in (None, offer.hw.gfx):
            continue
        if any(getattr(theirs, field) != getattr(ours, field) for field in fixed):
            continue
        likeness = (
            (theirs.wave_m, theirs.wave_n) == (ours.wave_m, ours.wave_n),
            theirs.mfma == ours.mfma,
            theirs.split_k == ours.split_k,
        )
        if best is None or likeness > best[0]:
            best = likeness, one
    if not count:
        raise BadInput("no solution index with a kernel name in this listing of hipblaslt-bench")
    if best is None:
        tile = f"{ours.tile_n}x{ours.tile_m}x{ours.tile_k}"
        raise Refused(f"none of {count} listed solutions has our tile, MT{tile} for {ours.layout} row-major")
    return best[1]


def override(found: list[tuple[Gemm, Listed]], stamp: str) -> str:
    """The override file: a stamp of the library's build, then a line of names and a line of values for each product.

    Column-major: M and N are exchanged, and the letters and types of A and B.
    """
    lines = [f"Git Version: {stamp}"]
    for op, one in found:
        letters = transposed_layout(op.layout)
        kind = bench_word(op.dtype)
        values = (*letters, op.batch, op.N, op.M, op.K, kind, kind, bench_word(op.result), compute_word(op.dtype))
        lines += [",".join(HEADER), ",".join(str(value) for value in (*values, one.index, one.name))]
    return "\n".join(lines) + "\n"


def stamp_of(listing: str) -> str | None:
    """The build stamp that a listing prints."""
    found = _STAMP.search(listing)
    return None if found is None else found[1]


def read_override(text: str, hw: HardwareDescriptor) -> list[tuple[dict[str, str], Kernel | None]]:
    """Rows of an override file, and the kernel of each that has a name which can be read."""
    from closedform.decoding.tensilelite import decoded_name

    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or _STAMP.match(lines[0]) is None:
        raise BadInput("not an override file of hipBLASLt: no Git Version in its first line")
    if len(lines) % 2 == 0:
        raise BadInput("an override file has a line of names and a line of values for each product")
    found = []
    for names, values in zip(lines[1::2], lines[2::2], strict=True):
        columns, cells = names.split(","), values.split(",")
        if len(columns) != len(cells):
            raise BadInput(f"{len(cells)} values for {len(columns)} names: {values}")
        row = dict(zip(columns, cells, strict=True))
        name = row.get("kernel_name") or row.get("solution_name")
        found.append((row, decoded_name(name, hw).kernel if name else None))
    return found
