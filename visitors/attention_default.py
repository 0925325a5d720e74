"""The default model of attention: tiles for the kernels that are emitted.

Order: (1) the atom, by rate and by LDS bytes per FLOP; (2) waves per SIMD, by type and head dim, which fixes the register
budget and the LDS share; (3) the largest t_Q for which a useful t_KV fits; (4) t_KV, the smaller of the LDS and
the register limit; (5) the compute units: where the grid leaves some idle, fewer waves or smaller t_Q, if the
roofline of the whole grid gets shorter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from closedform.hw.atoms import MFMAAtom
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput, Infeasible
from closedform.hw.occupancy import Budget, lds_share_bytes, register_budget, workgroups_per_cu
from closedform.operators.attention import Attention, AttentionTiles
from closedform.operators.chain_layout import ChainLayout
from closedform.operators.node import check_extent

from .attention_formulas import DEFAULT, GRID
from .attention_registers import ADDRESSES, FRAGMENTS, StepShape
from .derivation import Derivation, GridVerdict, PredictedResources
from .formula import FormulaValue, ceil_div, round_up

__all__ = ["choose_atom", "derive_default", "predicted_resources"]

#: Waves of a workgroup before the grid is looked at: one for each SIMD.
WAVES = (4, 2, 1)
#: Query rows of a wave, tried in this order. Beyond 64 the LDS reads are already a quarter of the matrix time.
TILE_Q = (64, 32, 16)
#: Keys of a step that are worth their two barriers, tried in this order. From 64 on the barriers are a few percent of
#: the matrix time of a step, while scores and exponentials keep growing.
USEFUL_TILE_KV = (64, 32, 16)
#: Head dims up to which two waves of a 16-bit type share a SIMD: one hides the softmax of the other.
TWO_WAVES_D = 128
#: A length that every atom's alignment divides.
ALIGNED = 256


def derive_default(
    op: Attention,
    hw: HardwareDescriptor,
    atom: str | None = None,
    tile_q: int | None = None,
    tile_kv: int | None = None,
    waves: int | None = None,
) -> Derivation:
    """Tiles of the emitted kernel, or the binding constraint as `infeasible`. Overrides fix single tiles."""
    for name, value in (("tile_q", tile_q), ("tile_kv", tile_kv), ("waves", waves)):
        if value is not None:
            check_extent(name, value)
    return _Model(op, hw, atom, tile_q, tile_kv, waves).derive()


def choose_atom(op: Attention, hw: HardwareDescriptor, wanted: str | None, rows: int) -> tuple[MFMAAtom, str]:
    """The atom of both products and the reason.

    Fastest first; then the largest n, since a fragment of A from LDS feeds n columns: elem_bytes / (2 n) bytes per
    FLOP. With at most 16 query rows a 32-column atom would leave half of its columns empty.
    """
    atoms = _chainable(hw, op.dtype, op.elem_bytes)
    if not atoms:
        raise BadInput(f"{hw.name} ({hw.gfx}) has no emittable MFMA for {op.dtype}: see closedform hw atoms {hw.name}")
    if wanted is not None:
        named = [a for a in atoms if wanted in (a.instruction, f"{a.m}x{a.n}", f"{a.m}x{a.n}x{a.k}")]
        if not named:
            offered = ", ".join(f"{a.m}x{a.n}x{a.k}" for a in atoms)
            raise BadInput(f"atom {wanted!r} is not offered for {op.dtype} on {hw.gfx}: {offered}")
        return max(named, key=_preference), "fixed by the caller"
    narrow = [a for a in atoms if a.n < max(b.n for b in atoms)]
    if narrow and rows <= max(a.n for a in narrow):
        return max(narrow, key=_preference), f"{rows} query rows fill no more columns"
    best = max(atoms, key=_preference)
    return (
        best,
        f"{best.flops_per_clk_cu:.0f} FLOP/clk/CU and {op.elem_bytes / (2 * best.n):.4g} LDS bytes per FLOP",
    )


def _preference(atom: MFMAAtom) -> tuple[float, int, int]:
    return atom.flops_per_clk_cu, atom.n, atom.k


@lru_cache(maxsize=64)
def _chainable(hw: HardwareDescriptor, dtype: str, elem_bytes: int) -> tuple[MFMAAtom, ...]:
    """Emittable square single-block atoms whose maps chain."""
    return tuple(a for a in hw.atoms_for(dtype) if a.blocks == 1 and a.m == a.n and _chains(a, elem_bytes))


def _chains(atom: MFMAAtom, elem_bytes: int) -> bool:
    try:
        _alignment(atom, elem_bytes)
    except BadInput:
        return False
    return True


@lru_cache(maxsize=256)
def _alignment(atom: MFMAAtom, elem_bytes: int) -> tuple[int, int]:
    """Multiples that d_pad and t_KV must be of."""
    probe = ChainLayout(atom, elem_bytes, ALIGNED, ALIGNED)
    return probe.d_align, probe.key_align


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Tiles that fit, with the numbers that chose them."""

    tiles: AttentionTiles
    shape: StepShape
    lds_limit: FormulaValue
    register_limit: FormulaValue
    lds_bytes: int
    workgroups_per_cu: int


class _Model:
    def __init__(
        self,
        op: Attention,
        hw: HardwareDescriptor,
        atom: str | None,
        tile_q: int | None,
        tile_kv: int | None,
        waves: int | None,
    ) -> None:
        self.op, self.hw = op, hw
        self.elem_bytes = op.elem_bytes
        self.fixed_q, self.fixed_kv, self.fixed_waves = tile_q, tile_kv, waves
        rows = tile_q if tile_q is not None else op.L_q
        self.wanted_atom = atom
        self.atom, self.atom_reason = choose_atom(op, hw, atom, rows)
        self.refusals: list[Infeasible] = []

    def derive(self) -> Derivation:
        best = self._first_fit(WAVES[0])
        if best is None:
            return self._infeasible()
        filled, note = self._fill_device(best)
        return self._result(filled, note)

    # --- (2) occupancy ------------------------------------------------------------------------------------------

    def _waves_per_simd(self, d_pad: int) -> tuple[int, ...]:
        """1 for f32 (its MFMAs alone fill the matrix core) and for scalar FMA, 2 for 16 bits up to d = 128, then 1."""
        two = self.elem_bytes < 4 and d_pad <= TWO_WAVES_D and self.op.variant != "fma"
        return (2, 1) if two else (1,)

    # --- (3), (4) tiles -----------------------------------------------------------------------------------------

    def _atoms_for(self, tile_q: int) -> MFMAAtom | None:
        """The chosen atom, or the narrow one for query tiles that are no multiple of its columns."""
        if tile_q % self.atom.n == 0:
            return self.atom
        if self.wanted_atom is not None:
            return None
        narrow = choose_atom(self.op, self.hw, None, tile_q)[0]
        return narrow if tile_q % narrow.n == 0 else None

    def _tile_q_choices(self) -> tuple[int, ...]:
        if self.fixed_q is not None:
            return (self.fixed_q,)
        most = round_up(self.op.L_q, self.atom.n)
        return tuple(t for t in TILE_Q if t <= max(most, TILE_Q[-1])) or TILE_Q[-1:]

    def _first_fit(self, waves: int) -> _Candidate | None:
        """Occupancy first, then the useful t_KV, then the largest t_Q that fits it; 16 rows only as a fallback."""
        waves = self.fixed_waves or waves
        d_pad = round_up(self.op.d, _alignment(self.atom, self.elem_bytes)[0])
        choices = self._tile_q_choices()
        wide = [t for t in choices if t > TILE_Q[-1]]
        narrow = [t for t in choices if t <= TILE_Q[-1]]
        for rows in (wide, narrow):
            for per_simd in self._waves_per_simd(d_pad):
                # A second wave pays only where it does not cost the useful step.
                for useful in USEFUL_TILE_KV[:1] if per_simd > 1 else USEFUL_TILE_KV:
                    for tile_q in rows:
                        found = self._fit(per_simd, waves, tile_q, useful)
                        if found is not None:
                            return found
        return None

    def _fit(self, per_simd: int, waves: int, tile_q: int, useful: int) -> _Candidate | None:
        """Tiles with this t_Q, if t_KV = `useful` (or the fixed one) fits; then t_KV grows to its two limits."""
        op, hw = self.op, self.hw
        atom = self._atoms_for(tile_q)
        if atom is None:
            self._refuse("atom columns", tile_q, self.atom.n, "rows", "one wave", f"a multiple of {self.atom.n}")
            return None
        d_align, align = _alignment(atom, self.elem_bytes)
        d_pad = round_up(op.d, d_align)
        p_rows = 0 if op.variant == "chained" else waves * tile_q
        groups = max(1, per_simd * hw.simds_per_cu // waves)
        share = DEFAULT.lds_share(lds_bytes=hw.lds_bytes, workgroups_per_cu=groups, granule=hw.lds_granule_bytes)
        lds_limit = DEFAULT.tile_kv_lds(
            lds_share=min(share.value, lds_share_bytes(hw, groups)),
            d_pad=d_pad,
            p_rows=p_rows,
            elem_bytes=self.elem_bytes,
            key_align=align,
        )
        keys = round_up(op.L_kv, align)
        least = self.fixed_kv if self.fixed_kv is not None else min(round_up(useful, align), keys)
        if self.fixed_kv is not None and least % align:
            raise BadInput(f"tile_kv={least} is not a multiple of the {align} keys of one chained step of {atom}")
        if least > lds_limit.value:
            bytes_per_key = (2 * d_pad + p_rows) * self.elem_bytes
            self._refuse(
                "LDS",
                least * bytes_per_key,
                share.value,
                "B",
                f"a workgroup of {waves} waves (K and V{' and P' if p_rows else ''} of {least} keys, d_pad {d_pad})",
                "use a smaller --tile-kv, fewer waves or a 16-bit type",
            )
            return None
        shape = self._shape(atom, tile_q, least, waves, d_pad)
        budget = register_budget(hw, per_simd)
        if not self._fits(shape, budget):
            return None
        register_limit = self._register_limit(shape, budget, align)
        if self.fixed_kv is None:
            limit = self._tile_kv(lds_limit, register_limit, keys, align)
            wider = self._shape(atom, tile_q, max(least, limit.value), waves, d_pad)
            if self._fits(wider, budget):
                shape = wider
        tiles = AttentionTiles(tile_q, shape.tile_kv, waves, per_simd, d_pad, atom)
        lds_bytes = shape.tile_kv * (2 * d_pad + p_rows) * self.elem_bytes
        resident = self._resident(shape, waves, lds_bytes, per_simd)
        if resident == 0:
            whole = f"a workgroup of {waves} waves, which must fit whole on one CU,"
            self._refuse("waves", waves, hw.simds_per_cu * per_simd, "waves", whole, "use fewer --waves")
            return None
        return _Candidate(tiles, shape, lds_limit, register_limit, lds_bytes, resident)

    def _tile_kv(self, lds_limit: FormulaValue, register_limit: FormulaValue, keys: int, align: int) -> FormulaValue:
        most = round_up(USEFUL_TILE_KV[0], align)
        return DEFAULT.tile_kv(
            lds_limit=lds_limit.value, register_limit=register_limit.value, keys=keys, worthwhile=most
        )

    def _shape(self, atom: MFMAAtom, tile_q: int, tile_kv: int, waves: int, d_pad: int) -> StepShape:
        layout = ChainLayout(atom, self.elem_bytes, d_pad, tile_kv)
        lanes = self.hw.wavefront_size
        columns = ceil_div(d_pad, lanes) if self.op.variant == "fma" else 0
        return StepShape(
            tile_q,
            tile_kv,
            waves,
            self.op.d,
            d_pad,
            self.elem_bytes,
            tile_q // atom.n,
            layout.dv_run,
            columns,
            lanes,
        )

    def _fits(self, shape: StepShape, budget: Budget) -> bool:
        """Whether the live set fits: what vector instructions touch in ArchVGPRs, all of it in the budget."""
        arch, acc, total = shape.need(self.hw.vgpr_unified)
        for resource, needed, limit in (
            ("ArchVGPRs", arch, budget.arch),
            ("AccVGPRs", acc, budget.acc),
            ("VGPRs", total, budget.total),
        ):
            if needed > limit:
                way_out = "use a smaller --tile-q or --tile-kv"
                self._refuse(resource, needed, limit, "registers", self._place(shape), way_out)
                return False
        return True

    def _place(self, shape: StepShape) -> str:
        return (
            f"a wave with t_Q={shape.tile_q}, t_KV={shape.tile_kv}, d={shape.d} at the point between the two products"
        )

    def _binding_file(self, budget: Budget) -> tuple[int, int]:
        """Which count of `StepShape.need` runs out first, and its limit: all registers, or the ArchVGPRs alone."""
        if self.hw.vgpr_unified and budget.total <= budget.arch:
            return 2, budget.total
        return 0, budget.arch

    def _register_limit(self, shape: StepShape, budget: Budget, align: int) -> FormulaValue:
        """t_KV that the registers allow with all LDS fragments under way: the need is linear in the keys."""
        which, limit = self._binding_file(budget)
        one, two = (replace(shape, tile_kv=64 * n).need(self.hw.vgpr_unified)[which] for n in (1, 2))
        fixed = min(2 * one - two + FRAGMENTS, limit)
        return DEFAULT.tile_kv_registers(budget=limit, fixed=fixed, per_64_keys=max(two - one, 1), key_align=align)

    def _row_limit(self, c: _Candidate) -> FormulaValue:
        """t_Q that the registers allow at the derived t_KV: the need is linear in the rows, too."""
        n = c.tiles.atom.n
        which, limit = self._binding_file(register_budget(self.hw, c.tiles.waves_per_simd))
        one, two = (
            replace(c.shape, tile_q=64 * i, query_tiles=64 * i // n).need(self.hw.vgpr_unified)[which] for i in (1, 2)
        )
        return DEFAULT.tile_q_registers(
            budget=limit, fixed=min(2 * one - two, limit), per_64_rows=max(two - one, 1), n=n
        )

    def _resident(self, shape: StepShape, waves: int, lds_bytes: int, per_simd: int) -> int:
        """Workgroups that a CU holds at once with the predicted registers and LDS."""
        _, arch, acc, _ = predicted_registers(self.hw, shape, per_simd)
        return workgroups_per_cu(self.hw, waves, arch, acc, lds_bytes)

    # --- (5) compute units --------------------------------------------------------------------------------------

    def _fill_device(self, first: _Candidate) -> tuple[_Candidate, str]:
        """Fewer waves a workgroup or smaller t_Q while that shortens the roofline of the whole grid."""
        grid = self._grid(first)
        if grid.fills_device or (self.fixed_q is not None and self.fixed_waves is not None):
            return first, ""
        best, best_key = first, self._time_key(first)
        for candidate in self._smaller(first):
            key = self._time_key(candidate)
            if key < best_key:
                best, best_key = candidate, key
        if best is first:
            return first, ""
        return best, (
            f"the grid of t_Q={first.tiles.tile_q}, {first.tiles.waves} waves had {grid.blocks} workgroups for "
            f"{self.hw.num_cus} CUs; t_Q={best.tiles.tile_q}, {best.tiles.waves} waves shorten its roofline "
            f"{self._time_key(first)[0] / best_key[0]:.2f} times"
        )

    def _smaller(self, first: _Candidate) -> Iterator[_Candidate]:
        for tile_q in self._tile_q_choices():
            for waves in WAVES if self.fixed_waves is None else (self.fixed_waves,):
                if tile_q <= first.tiles.tile_q and (tile_q, waves) != (
                    first.tiles.tile_q,
                    first.tiles.waves,
                ):
                    per_simd = first.tiles.waves_per_simd
                    found = self._fit(per_simd, waves, tile_q, first.tiles.tile_kv)
                    if found is None and per_simd > 1:
                        found = self._fit(1, waves, tile_q, first.tiles.tile_kv)
                    if found is not None:
                        yield found

    def _time_key(self, c: _Candidate) -> tuple[float, float, int, int]:
        """Roofline clocks of the grid; ties go to more CUs in use, then to larger t_Q and more waves."""
        grid = self._grid(c)
        resident = min(c.workgroups_per_cu, ceil_div(grid.blocks, self.hw.num_cus))
        on_cu = c.tiles.waves * resident
        tiles = c.tiles
        flops = 4 * tiles.tile_q * tiles.tile_kv * tiles.d_pad
        lds_bytes = 2 * tiles.tile_kv * tiles.d_pad * self.elem_bytes
        clocks = GRID.step_clocks(
            matrix_clocks=flops * self.hw.simds_per_cu / tiles.atom.flops_per_clk_cu,
            waves_per_simd=ceil_div(on_cu, self.hw.simds_per_cu),
            lds_clocks=lds_bytes / self.hw.lds_read_bytes_per_clk,
            waves_per_cu=on_cu,
        ).value
        steps = ceil_div(self.op.L_kv, c.tiles.tile_kv)
        return (
            grid.rounds * steps * clocks,
            -min(grid.blocks, self.hw.num_cus),
            -c.tiles.tile_q,
            -c.tiles.waves,
        )

    def _grid(self, c: _Candidate) -> GridVerdict:
        op, cus = self.op, self.hw.num_cus
        q_blocks = ceil_div(op.L_q, c.tiles.block_q)
        blocks = q_blocks * op.heads * op.batch
        slots = cus * max(1, c.workgroups_per_cu)
        rounds = ceil_div(blocks, slots)
        fills = blocks >= cus
        utilisation = blocks / (rounds * slots)
        if fills:
            verdict = f"{blocks} workgroups on {slots} slots: {rounds} round(s), {utilisation:.0%} of the slots used"
        else:
            verdict = f"underfilled: {blocks} workgroups for {cus} CUs, {1 - blocks / cus:.0%} of the CUs idle"
        return GridVerdict(
            (q_blocks, op.heads, op.batch),
            blocks,
            cus,
            c.workgroups_per_cu,
            blocks / cus,
            rounds,
            utilisation,
            fills,
            verdict,
        )

    # --- result -------------------------------------------------------------------------------------------------

    def _result(self, c: _Candidate, note: str) -> Derivation:
        op, hw, tiles = self.op, self.hw, c.tiles
        p_rows = 0 if op.variant == "chained" else tiles.waves * tiles.tile_q
        layout = tiles.layout(op)
        limits = sorted([(c.lds_limit.value, "lds"), (c.register_limit.value, "registers")])
        binding = (
            limits[0][1]
            if tiles.tile_kv < round_up(op.L_kv, layout.key_align) or limits[0][0] <= tiles.tile_kv
            else "keys"
        )
        grid = self._grid(c)
        if note:
            binding = "cus"
        groups = max(1, tiles.waves_per_simd * hw.simds_per_cu // tiles.waves)
        steps = [
            DEFAULT.d_pad(d=op.d, d_align=layout.d_align),
            DEFAULT.lds_share(lds_bytes=hw.lds_bytes, workgroups_per_cu=groups, granule=hw.lds_granule_bytes),
            c.lds_limit.binding() if binding == "lds" else c.lds_limit,
            DEFAULT.q(t_Q=tiles.tile_q, d_pad=tiles.d_pad, elem_bytes=self.elem_bytes),
            DEFAULT.s(t_Q=tiles.tile_q, t_KV=tiles.tile_kv),
            DEFAULT.o(t_Q=tiles.tile_q, d_pad=tiles.d_pad),
            c.register_limit.binding() if binding == "registers" else c.register_limit,
            self._row_limit(c),
            DEFAULT.lds(t_KV=tiles.tile_kv, d_pad=tiles.d_pad, p_rows=p_rows, elem_bytes=self.elem_bytes),
            GRID.blocks(L_q=op.L_q, block_q=tiles.block_q, heads=op.heads, batch=op.batch),
            GRID.rounds(blocks=grid.blocks, num_cus=hw.num_cus, workgroups_per_cu=max(1, c.workgroups_per_cu)),
        ]
        notes = [
            f"atom {tiles.atom.instruction}: {self.atom_reason if tiles.atom == self.atom else 'query tile below the wide atom'}"
        ]
        if note:
            notes.append(note)
        if not grid.fills_device:
            splits = hw.num_cus // grid.blocks
            notes.append(
                f"{grid.verdict}; more heads or batch entries would fill it"
                + (f", and so would splitting the keys {splits} ways" if splits > 1 else "")
            )
        return Derivation(
            op,
            hw,
            "default",
            tiles,
            binding,
            tuple(steps),
            predicted_resources(hw, c.shape, c.lds_bytes, tiles.waves_per_simd),
            grid,
            None,
            tuple(notes),
            {
                "tile_q_max": self._row_limit(c).value,
                "tile_kv_max": min(c.lds_limit.value, c.register_limit.value),
            },
        )

    def _refuse(self, resource: str, needed: float, limit: float, unit: str, where: str, way_out: str) -> None:
        self.refusals.append(Infeasible(resource, needed, limit, unit, where, way_out))

    def _infeasible(self) -> Derivation:
        """The refusal that came closest to fitting names the binding constraint."""
        closest = min(self.refusals, key=lambda r: r.needed / max(r.limit, 1))
        binding = {"LDS": "lds", "atom columns": "atom"}.get(closest.resource, "registers")
        return Derivation(self.op, self.hw, "default", None, binding, (), None, None, closest)


def predicted_registers(hw: HardwareDescriptor, shape: StepShape, per_simd: int) -> tuple[int, int, int, int]:
    """(registers as the metadata counts them, arch, acc, budget) that the binary must stay within.

    The live set with the LDS fragments under way, but never above the budget: the compiler keeps to the registers of
    the aimed-at occupancy and fills what is left of them with reads under way.
    """
    budget = register_budget(hw, per_simd)
    q, s, p, o, k, v, offsets = shape.counts()
    live = q + s + p + o + k + v + offsets + 2 * shape.query_tiles + ADDRESSES + shape.fragments
    limit = budget.total if hw.vgpr_unified else budget.arch
    registers = min(live, limit)
    arch = min(registers, budget.arch)
    return registers, arch, registers - arch if hw.vgpr_unified else min(budget.acc, s + o), limit


def predicted_resources(hw: HardwareDescriptor, shape: StepShape, lds_bytes: int, per_simd: int) -> PredictedResources:
    """The promise for the binary, with the live set that it consists of."""
    registers, arch, acc, limit = predicted_registers(hw, shape, per_simd)
    return PredictedResources(
        items=shape.items(),
        registers=registers,
        arch_registers=arch,
        acc_registers=acc,
        register_budget=limit,
        lds_bytes=lds_bytes,
        lds_limit_bytes=hw.lds_max_per_workgroup_bytes,
        waves_per_simd=per_simd,
    )
