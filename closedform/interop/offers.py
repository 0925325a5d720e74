"""Kernels to export: the closed form's, or a ranked list of the model's, each a full derivation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from math import isfinite
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.hw.errors import BadInput
from closedform.operators.gemm import Gemm, GemmTiles

from .kernel import Kernel
from .rules import Refused, broken_rules
from .tool import Format, KernelT, Offer, ProposalT

__all__ = ["accepted", "derived_offer", "kernel_of", "predicted_us", "ranked_offers"]


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


def predicted_us(op: Gemm, hw: HardwareDescriptor, k: Kernel) -> float | None:
    """Microseconds of the kernel by the latency model; None where its waves or the type are not the model's."""
    from closedform.predict.configs import configs
    from closedform.predict.gemm import gemm_shapes, gemm_timing

    if k.waves is None:
        return None
    grid = {} if k.wave_m is None else {"wave_m": k.wave_m, "wave_n": k.wave_n, "wave_k": k.wave_k}
    c = configs(
        k.tile_m,
        k.tile_n,
        k.tile_k,
        waves=k.waves,
        stages=k.stages or 2,
        mfma_m=k.mfma_m or 16,
        split_k=k.split_k or 1,
        **grid,
    )
    s = gemm_shapes(op.M, op.N, op.K, op.elem_bytes, dtype(op.result).bytes, op.layout, op.batch)
    try:
        us = float(gemm_timing(hw, c, s, op.dtype, stream_k=bool(k.stream_k)).latency_us.ravel()[0])
    except BadInput:
        return None
    return us if isfinite(us) else None


def derived_offer(op: Gemm, hw: HardwareDescriptor, **overrides: Any) -> Offer:
    """The closed form's kernel with those knobs. Raises BadInput and InfeasibleError as the derivation does."""
    from closedform.visitors.feasibility import derive

    tiles, _, _ = derive(op, hw, **overrides).require()
    kernel = kernel_of(op, tiles)
    return Offer(op, hw, kernel, predicted_us(op, hw, kernel), overrides)


def ranked_offers(op: Gemm, hw: HardwareDescriptor) -> Iterator[Offer]:
    """The kernels that the model ranks first, best first: those of its lattice that the closed form completes."""
    from closedform.hw.errors import InfeasibleError
    from closedform.predict.select import gemm_selector
    from closedform.visitors.feasibility import derive

    selector = gemm_selector(hw, op.dtype, op.layout)
    ranking = selector.rank(op.M, op.N, op.K, op.batch)
    seen = set()
    for index in ranking.order(len(ranking.configs)):
        if not isfinite(ranking.latency_us[index]):
            return  # of no use for the product, and so is what follows
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


def accepted(
    tool: Format[ProposalT, KernelT], offer: ProposalT, whole: bool = False
) -> tuple[ProposalT, tuple[str, ...]]:
    """The offer as the tool takes it, and what had to change.

    Where it breaks a rule, what a kernel gives up is given up until it breaks none: of a product chiplets of unequal
    shares and, unless it must stay `whole`, tiles under way and then the depth of a tile. The tile of the result
    stays, and so does what the offer fixes.
    Raises Refused, with the rules that the offer itself breaks, where nothing helps, and for a fixed knob that the
    format has no place for.
    """
    broken = broken_rules(tool.rules, offer)
    reasons = "; ".join(rule.described for rule in broken)
    own: Any = offer.kernel
    if lost := [name for name, value in offer.fixed.items() if not tool.keeps(name, value)]:
        nowhere = f"its file has no place for {', '.join(lost)}: leave it out"
        raise Refused(f"{tool.title} refuses this kernel (tile {own.tile}): {reasons or nowhere}")
    if not broken:
        return offer, tool.unsaid(offer)
    fixed = {tool.field_of(name) for name in offer.fixed} & set(own.given_up)
    for kernel in own.smaller(offer.hw.num_cus, whole):
        if any(getattr(kernel, name) != getattr(own, name) for name in fixed):
            continue
        changed = dataclasses.replace(offer, kernel=kernel, predicted_us=offer.timed(kernel))
        if not broken_rules(tool.rules, changed):
            pairs = ((name, getattr(own, name), getattr(kernel, name)) for name in own.given_up)
            changes = ", ".join(f"{name} {was} -> {now}" for name, was, now in pairs if was != now)
            return changed, (f"{changes}, since {tool.title} refuses more: {broken[0].text}", *tool.unsaid(changed))
    raise Refused(f"{tool.title} refuses this kernel (tile {own.tile}): {reasons}")
