"""Kernels to export: the closed form's, or a ranked list of the model's, each a full derivation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from math import gcd
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.operators.gemm import Gemm, GemmTiles

from .kernel import Kernel
from .rules import Refused, broken_rules
from .tool import Offer, Tool

__all__ = ["accepted", "derived_offer", "kernel_of", "ranked_offers"]


#: What a configuration of the model's lattice fixes of a derivation.
_FIXED = ("tile_m", "tile_n", "tile_k", "wave_m", "wave_n", "split_k")


def kernel_of(op: Gemm, tiles: GemmTiles) -> Kernel:
    """The kernel of a derivation. Tiles under way are the LDS's and, but for direct loads, one in registers."""
    atom = tiles.atom
    return Kernel(
        tile_m=tiles.tile_m,
        tile_n=tiles.tile_n,
        tile_k=tiles.tile_k,
        dtype=op.dtype,
        out_dtype=op.result,
        layout=op.layout,
        mfma=(atom.m, atom.n, atom.k, atom.blocks),
        wave_m=tiles.wave_m,
        wave_n=tiles.wave_n,
        stages=tiles.buffers + (not tiles.direct),
        split_k=tiles.split_k,
        stream_k=tiles.stream_k,
        group_m=tiles.group_m,
        xcds=tiles.xcds,
        waves_per_simd=tiles.waves_per_simd,
    )


def derived_offer(op: Gemm, hw: HardwareDescriptor, **overrides: Any) -> Offer:
    """The closed form's kernel. Raises BadInput and InfeasibleError as the derivation does."""
    from closedform.predict.gemm_answer import predict_gemm
    from closedform.visitors.feasibility import derive

    tiles, _, _ = derive(op, hw, **overrides).require()
    kernel = kernel_of(op, tiles)
    config = {"tile_m": tiles.tile_m, "tile_n": tiles.tile_n, "tile_k": tiles.tile_k, "split_k": tiles.split_k}
    try:
        predicted = predict_gemm(op, hw, **config, waves=tiles.waves, stages=2).latency_us
    except BadInput:
        predicted = None
    return Offer(op, hw, kernel, predicted)


def ranked_offers(op: Gemm, hw: HardwareDescriptor) -> Iterator[Offer]:
    """The kernels that the model ranks first, best first: those of its lattice that the closed form completes."""
    from closedform.hw.errors import InfeasibleError
    from closedform.predict.select import gemm_selector
    from closedform.visitors.feasibility import derive

    selector = gemm_selector(hw, op.dtype, op.layout)
    ranking = selector.rank(op.M, op.N, op.K, op.batch)
    seen = set()
    for index in ranking.order(len(ranking.configs)):
        config = ranking.configs.at(int(index))
        fixed: dict[str, Any] = {
            name: config[name] for name in ("tile_m", "tile_n", "tile_k", "wave_m", "wave_n", "split_k")
        }
        try:
            tiles, _, _ = derive(op, hw, **fixed).require()
        except (BadInput, InfeasibleError):
            continue
        kernel = kernel_of(op, tiles)
        if kernel not in seen:
            seen.add(kernel)
            yield Offer(op, hw, kernel, float(ranking.latency_us[index]))


def accepted(tool: Tool, offer: Offer) -> tuple[Offer, tuple[str, ...]]:
    """The offer as the tool takes it, and what had to change.

    Where it breaks a rule, chiplets of unequal shares, tiles under way and then the depth of a tile are given up until
    it breaks none; the tile of the result stays. Raises Refused with the rules that the offer itself breaks where
    nothing helps.
    """
    broken = broken_rules(tool.rules, offer)
    if not broken:
        return offer, ()
    for kernel in _smaller(offer.kernel, offer.hw.num_cus):
        changed = dataclasses.replace(offer, kernel=kernel)
        if not broken_rules(tool.rules, changed):
            was, now = offer.kernel, kernel
            names = [name for name in ("xcds", "stages", "tile_k") if getattr(was, name) != getattr(now, name)]
            changes = ", ".join(f"{name} {getattr(was, name)} -> {getattr(now, name)}" for name in names)
            return changed, (f"{changes}, since {tool.title} refuses more: {broken[0].text}",)
    reasons = "; ".join(f"{rule.name}: {rule.text}" for rule in broken)
    raise Refused(f"{tool.title} refuses this kernel ({_tile(offer.kernel)}): {reasons}")


def _smaller(kernel: Kernel, num_cus: int) -> Iterator[Kernel]:
    """The kernel on chiplets of equal shares, with fewer tiles under way, then with half of their depth, and so on."""
    if kernel.xcds is not None:
        kernel = dataclasses.replace(kernel, xcds=gcd(kernel.xcds, num_cus))
    least = 1 if kernel.mfma is None else kernel.mfma[2]
    depth = kernel.tile_k
    while depth >= least and depth % least == 0:
        for stages in range(kernel.stages or 2, 1, -1):
            yield dataclasses.replace(kernel, tile_k=depth, stages=stages)
        if depth % 2:
            return
        depth //= 2


def _tile(kernel: Kernel) -> str:
    return f"tile {kernel.tile_m}x{kernel.tile_n}x{kernel.tile_k}"
