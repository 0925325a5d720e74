"""The default model of attention: tiles for the kernels that are emitted.

Order: (1) the atom, by rate and by LDS bytes per FLOP; (2) waves per SIMD, by type and head dim, which fixes the
register budget and the LDS share; (3) the largest t_Q for which a useful t_KV fits; (4) t_KV, the smaller of the LDS
and the register limit; (5) the compute units: where the grid leaves some idle, smaller t_Q or fewer waves, if the
roofline of the whole grid gets shorter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from closedform.hw.atoms import MFMAAtom
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput, Infeasible
from closedform.hw.occupancy import Budget, lds_share_bytes, register_budget, workgroups_per_cu
from closedform.operators.attention import Attention, AttentionTiles, chain_layout
from closedform.operators.chain_layout import ChainLayout
from closedform.operators.node import check_extent

from .attention_atom import alignment, choose_atom, narrow_atom
from .attention_formulas import DEFAULT, GRID
from .attention_grid import GRID_LIMIT, SPLIT_STEPS, grid_clocks, grid_verdict, longest_steps, split_count
from .attention_registers import (
    SPLIT_RESULTS,
    StepShape,
    bounds_registers,
    logits_registers,
    page_registers,
    predicted_registers,
    predicted_resources,
)
from .derivation import Derivation, GridVerdict
from .formula import FormulaValue, ceil_div, round_up

__all__ = ["Overrides", "derive_default"]

#: Waves of a workgroup, fewer than fill the CU only to fill the device: they share what one of them loads of K and V.
WAVES = (8, 4, 2, 1)
#: Query rows of a wave, tried in this order; beyond 64 the LDS reads are already a quarter of the matrix time.
TILE_Q = (64, 32, 16)
#: Query rows below which the device is not filled with smaller tiles: a narrower atom doubles the LDS bytes per FLOP.
FILL_TILE_Q = 32
#: Columns of O that a lane may own in the variant fma with more than 16 query rows.
FMA_COLUMNS = 2
#: Keys of a step, tried in this order. Beyond 64 the two barriers of a step are a few percent of its matrix time, while
#: scores and exponentials keep growing.
USEFUL_TILE_KV = (64, 32, 16)
#: Head dims up to which two waves of a 16-bit type share a SIMD, where one hides the softmax of the other; P on its way
#: through LDS takes registers, too.
TWO_WAVES_D = {"chained": 128, "lds": 96, "fma": 0}


@dataclass(frozen=True, slots=True)
class Overrides:
    """Parts of the tile policy that the caller fixes; None is derived. `atom` is "32x32" or an instruction."""

    atom: str | None = None
    tile_q: int | None = None
    tile_kv: int | None = None
    waves: int | None = None
    splits: int | None = None

    def __post_init__(self) -> None:
        for name in ("tile_q", "tile_kv", "waves", "splits"):
            if getattr(self, name) is not None:
                check_extent(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Tiles that fit; `groups` workgroups were to share the LDS, the grid and its roofline rank it."""

    tiles: AttentionTiles
    shape: StepShape
    groups: int
    lds_bytes: int
    grid: GridVerdict
    clocks: float


def derive_default(op: Attention, hw: HardwareDescriptor, fixed: Overrides) -> Derivation:
    """Tiles of the emitted kernel, or the binding constraint as `infeasible`."""
    return _Model(op, hw, fixed).derive()


class _Model:
    """One derivation: the operator, the GPU, what is fixed, and every refusal met on the way."""

    def __init__(self, op: Attention, hw: HardwareDescriptor, fixed: Overrides) -> None:
        self.op, self.hw, self.fixed = op, hw, fixed
        self.elem_bytes = op.elem_bytes
        rows = fixed.tile_q if fixed.tile_q is not None else op.L_q
        self.atom, self.atom_reason = choose_atom(op, hw, fixed.atom, rows)
        self.refusals: list[Infeasible] = []
        self.lds_need: FormulaValue | None = None
        self.steps: dict[str, ChainLayout] = {}

    def derive(self) -> Derivation:
        lanes = (self.fixed.waves or 1) * self.hw.wavefront_size
        if lanes > self.hw.workgroup_max:
            where = f"a workgroup of {self.fixed.waves} waves"
            self._refuse("work-items", lanes, self.hw.workgroup_max, "work-items", where, "use fewer --waves")
            return self._infeasible()
        first = self._first_fit()
        if first is None:
            return self._infeasible()
        best, note = self._fill_device(first)
        return self._result(best, note)

    # --- (2) occupancy ------------------------------------------------------------------------------------------------

    def _waves_per_simd(self) -> tuple[int, ...]:
        """1 for f32, whose MFMAs alone fill the matrix core, and for scalar FMA; 2 for 16 bits up to d = 128, or 96."""
        layout = self._step_of(self.atom)
        d_pad = max(layout.d_pad, layout.dv_pad)
        two = self.elem_bytes < 4 and d_pad <= TWO_WAVES_D[self.op.variant]
        return (2, 1) if two else (1,)

    # --- (3) and (4) tiles --------------------------------------------------------------------------------------------

    def _first_fit(self) -> _Candidate | None:
        """The largest t_Q that leaves room for a useful t_KV; 16 rows only as a fallback.

        A second wave of the SIMD pays only where it does not cost the useful step.
        """
        choices = self._tile_q_choices()
        wide = [t for t in choices if t > TILE_Q[-1]]
        narrow = [t for t in choices if t <= TILE_Q[-1]]
        for rows in (wide, narrow):
            for per_simd in self._waves_per_simd():
                waves = self.fixed.waves or per_simd * self.hw.simds_per_cu
                for useful in self._useful_steps(per_simd):
                    for tile_q in rows:
                        found = self._fit(per_simd, waves, tile_q, useful)
                        if found is not None:
                            return found
        return None

    def _useful_steps(self, per_simd: int) -> tuple[int, ...]:
        """Steps to try: for a second wave of the SIMD long ones, half of that where options take registers."""
        if per_simd == 1:
            return USEFUL_TILE_KV
        options = self.op.has_options or self.fixed.splits is not None
        return USEFUL_TILE_KV[:2] if options else USEFUL_TILE_KV[:1]

    def _tile_q_choices(self) -> tuple[int, ...]:
        if self.fixed.tile_q is not None:
            return (self.fixed.tile_q,)
        most = max(round_up(self.op.L_q, self.atom.n), TILE_Q[-1])
        if self.op.variant != "chained":
            most = min(most, TILE_Q[1])
        if self.op.variant == "fma" and ceil_div(self.op.d, self.hw.wavefront_size) > FMA_COLUMNS:
            most = TILE_Q[-1]
        return tuple(t for t in TILE_Q if t <= most)

    def _step_of(self, atom: MFMAAtom) -> ChainLayout:
        """The layout of the shortest step of an atom."""
        if atom.instruction not in self.steps:
            d_align, align = alignment(atom, self.elem_bytes)
            self.steps[atom.instruction] = chain_layout(self.op, atom, round_up(self.op.d, d_align), align)
        return self.steps[atom.instruction]

    def _atom_of(self, tile_q: int) -> MFMAAtom:
        """The chosen atom, or the narrow one for query tiles that are no multiple of its columns."""
        if tile_q % self.atom.n == 0:
            return self.atom
        narrow = narrow_atom(self.op, self.hw) if self.fixed.atom is None else None
        if narrow is None or tile_q % narrow.n:
            n = self.atom.n if narrow is None else narrow.n
            raise BadInput(f"tile_q={tile_q} is not a multiple of {n}, the columns of the atom")
        return narrow

    def _fit(self, per_simd: int, waves: int, tile_q: int, useful: int) -> _Candidate | None:
        """Tiles with this t_Q, if the LDS and the registers leave at least `useful` keys (or the fixed t_KV)."""
        op, hw = self.op, self.hw
        atom = self._atom_of(tile_q)
        step = self._step_of(atom)
        align, widths = step.key_align, {"d_pad": step.d_pad, "dv_pad": step.dv_pad}
        # A fixed t_KV may take the whole LDS: the occupancy is then what it leaves.
        groups = max(1, per_simd * hw.simds_per_cu // waves) if self.fixed.tile_kv is None else 1
        key_bytes = DEFAULT.lds.function(1, *widths.values(), self.elem_bytes, waves * tile_q, op.p_lds_bytes)
        keys = round_up(op.L_kv, align)
        wanted = self._wanted_keys(useful, keys, align)
        share = lds_share_bytes(hw, groups)
        if wanted * key_bytes > share:
            what = f"K and V{' and P' if op.p_lds_bytes else ''} of {wanted} keys (d_pad {step.d_pad}, {waves} waves)"
            way_out = "use a smaller --tile-kv, fewer --waves or 16 bits"
            self._refuse("LDS", wanted * key_bytes, share, "B", what, way_out)
            p = {"p_rows": waves * tile_q, "p_bytes": op.p_lds_bytes}
            self.lds_need = DEFAULT.lds(t_KV=wanted, **widths, elem_bytes=self.elem_bytes, **p)
            return None
        shape = self._shape(atom, tile_q, wanted, waves)
        budget = register_budget(hw, per_simd)
        if not self._fits(shape, budget):
            return None
        worthwhile = round_up(USEFUL_TILE_KV[0], align)
        if self.fixed.tile_kv is None and wanted < worthwhile:
            limits = self._limits(shape, groups, per_simd, waves * tile_q)
            longest = min(limits[0].value, limits[1].value, keys, worthwhile)
            if longest > wanted and self._fits(wider := self._shape(atom, tile_q, longest, waves), budget):
                shape = wider
        lds_bytes = shape.tile_kv * key_bytes
        _, arch, acc, _ = predicted_registers(hw, shape, per_simd)
        resident = workgroups_per_cu(hw, waves, arch, acc, lds_bytes)
        if resident == 0:
            whole = f"a workgroup of {waves} waves, which must fit whole on one CU,"
            self._refuse("wave slots", waves, hw.simds_per_cu * per_simd, "waves", whole, "use fewer --waves")
            return None
        tiles = AttentionTiles(tile_q, shape.tile_kv, waves, per_simd, step.d_pad, atom)
        splits = self._splits(tiles, resident)
        if splits > 1:
            split = replace(shape, split=SPLIT_RESULTS)
            if self._fits(split, budget):
                tiles, shape = replace(tiles, splits=splits), split
        grid = grid_verdict(op, tiles, hw, resident)
        return _Candidate(tiles, shape, groups, lds_bytes, grid, grid_clocks(op, tiles, hw, grid))

    def _limits(self, shape: StepShape, groups: int, per_simd: int, p_rows: int) -> tuple[FormulaValue, FormulaValue]:
        """t_KV that the LDS allows and t_KV that the registers allow; their need is linear in the keys."""
        hw, op = self.hw, self.op
        align = self._step_of(self._atom_of(shape.tile_q)).key_align
        lds = DEFAULT.tile_kv_lds(
            lds_share=lds_share_bytes(hw, groups),
            d_pad=shape.d_pad,
            dv_pad=shape.dv_pad,
            elem_bytes=self.elem_bytes,
            p_rows=p_rows,
            p_bytes=op.p_lds_bytes,
            key_align=align,
        )
        which, limit = self._binding_file(register_budget(hw, per_simd))
        one, two = (replace(shape, tile_kv=64 * n).need(hw.vgpr_unified)[which] for n in (1, 2))
        fixed = min(2 * one - two, limit)
        per_64 = max(two - one, 1)
        return lds, DEFAULT.tile_kv_registers(budget=limit, fixed=fixed, per_64_keys=per_64, key_align=align)

    def _wanted_keys(self, useful: int, keys: int, align: int) -> int:
        fixed = self.fixed.tile_kv
        if fixed is None:
            least: int = min(round_up(useful, align), keys)
            return least
        if fixed % align:
            raise BadInput(f"tile_kv={fixed} is not a multiple of {align}, the keys of one chained step of this atom")
        return fixed

    def _shape(self, atom: MFMAAtom, tile_q: int, tile_kv: int, waves: int) -> StepShape:
        op, lanes, step = self.op, self.hw.wavefront_size, self._step_of(atom)
        query_tiles = tile_q // atom.n
        return StepShape(
            tile_q=tile_q,
            tile_kv=tile_kv,
            waves=waves,
            d=op.d,
            d_pad=step.d_pad,
            dv=op.columns,
            dv_pad=step.dv_pad,
            elem_bytes=self.elem_bytes,
            query_tiles=query_tiles,
            dv_run=step.dv_run,
            columns=ceil_div(step.d_pad, lanes) if op.variant == "fma" else 0,
            chained=op.variant == "chained",
            lanes=lanes,
            bounds=bounds_registers(op, query_tiles),
            logits=logits_registers(op, query_tiles, tile_q * tile_kv // lanes),
            pages=page_registers(op, tile_kv),
            split=SPLIT_RESULTS if (self.fixed.splits or 1) > 1 else 0,
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
                where = f"a wave (t_Q={shape.tile_q}, t_KV={shape.tile_kv}, d={shape.d}) between the two products"
                self._refuse(resource, needed, limit, "registers", where, "use a smaller --tile-q or --tile-kv")
                return False
        return True

    def _binding_file(self, budget: Budget) -> tuple[int, int]:
        """Which count of `StepShape.need` runs out first, and its limit: all registers, or the ArchVGPRs alone."""
        if self.hw.vgpr_unified and budget.total <= budget.arch:
            return 2, budget.total
        return 0, budget.arch

    def _row_limit(self, c: _Candidate) -> FormulaValue:
        """t_Q that the registers allow at the derived t_KV: the need is linear in the rows, too."""
        n = c.tiles.atom.n
        which, limit = self._binding_file(register_budget(self.hw, c.tiles.waves_per_simd))
        shapes = (replace(c.shape, tile_q=64 * i, query_tiles=64 * i // n) for i in (1, 2))
        one, two = (shape.need(self.hw.vgpr_unified)[which] for shape in shapes)
        fixed = min(2 * one - two, limit)
        return DEFAULT.tile_q_registers(budget=limit, fixed=fixed, per_64_rows=max(two - one, 1), n=n)

    def _splits(self, tiles: AttentionTiles, resident: int) -> int:
        """Workgroups that share the keys of a query block: those that fill the device where the queries are few."""
        op = self.op
        if self.fixed.splits is not None:
            if self.fixed.splits > 1 and (op.varlen or op.variant != "chained"):
                raise BadInput(f"splits={self.fixed.splits} is not offered with varlen or the variants of the paper")
            if self.fixed.splits * op.batch > GRID_LIMIT:
                raise BadInput(f"splits={self.fixed.splits} of a batch of {op.batch}: {GRID_LIMIT} in all at most")
            return self.fixed.splits
        if op.varlen or op.variant != "chained" or not op.decodes:
            return 1
        blocks = ceil_div(op.L_q, tiles.block_q) * op.heads * op.batch
        slots = self.hw.num_cus * resident
        return split_count(blocks, slots, self._most_splits(tiles)) if blocks < self.hw.num_cus else 1

    def _most_splits(self, tiles: AttentionTiles) -> int:
        """Splits that leave each enough steps to pay for the merge, and that one launch covers."""
        return max(1, min(longest_steps(self.op, tiles) // SPLIT_STEPS, GRID_LIMIT // self.op.batch))

    # --- (5) compute units --------------------------------------------------------------------------------------------

    def _fill_device(self, first: _Candidate) -> tuple[_Candidate, str]:
        """Fewer waves a workgroup or smaller t_Q where that shortens the roofline of the whole grid.

        Ties go to larger t_Q and to more waves, which load K and V less often.
        """
        if first.grid.fills_device:
            return first, ""
        best = min([first, *self._smaller(first)], key=_time_key)
        if best is first:
            return first, ""
        gain = f"its roofline is {first.clocks / best.clocks:.2f} times shorter"
        return best, (
            f"t_Q={first.tiles.tile_q} with {first.tiles.waves} waves gave {first.grid.blocks} workgroups for "
            f"{self.hw.num_cus} CUs; with t_Q={best.tiles.tile_q} and {best.tiles.waves} waves there are "
            f"{best.grid.blocks}, {gain}"
        )

    def _smaller(self, first: _Candidate) -> Iterator[_Candidate]:
        for tile_q in (t for t in self._tile_q_choices() if t >= min(FILL_TILE_Q, first.tiles.tile_q)):
            for waves in (
                (w for w in WAVES if w <= first.tiles.waves) if self.fixed.waves is None else (self.fixed.waves,)
            ):
                if (tile_q, waves) == (first.tiles.tile_q, first.tiles.waves) or tile_q > first.tiles.tile_q:
                    continue
                for per_simd in dict.fromkeys((first.tiles.waves_per_simd, 1)):
                    found = self._fit(per_simd, waves, tile_q, first.tiles.tile_kv)
                    if found is not None:
                        yield found
                        break

    # --- result -------------------------------------------------------------------------------------------------------

    def _result(self, c: _Candidate, note: str) -> Derivation:
        op, hw, tiles = self.op, self.hw, c.tiles
        layout, p_rows = tiles.layout(op), tiles.waves * tiles.tile_q
        lds_limit, register_limit = self._limits(c.shape, c.groups, tiles.waves_per_simd, p_rows)
        row_limit = self._row_limit(c)
        keys = round_up(op.L_kv, layout.key_align)
        worthwhile = round_up(USEFUL_TILE_KV[0], layout.key_align)
        candidates = {
            "lds": lds_limit.value,
            "registers": register_limit.value,
            "keys": self.fixed.tile_kv or keys,
            "step": self.fixed.tile_kv or worthwhile,
        }
        binding = "cus" if note else min(candidates, key=lambda name: candidates[name])
        blocks = GRID.blocks(L_q=op.L_q, block_q=tiles.block_q, heads=op.heads, batch=op.batch)
        split = None
        if tiles.splits > 1:
            slots = hw.num_cus * c.grid.workgroups_per_cu
            split = GRID.splits(rounds=c.grid.rounds, slots=slots, blocks=blocks.value, most=self._most_splits(tiles))
            split = split if split.value == tiles.splits else None  # fixed by the caller
            blocks = GRID.split_blocks(
                L_q=op.L_q, block_q=tiles.block_q, heads=op.heads, batch=op.batch, splits=tiles.splits
            )
        tile_kv = DEFAULT.tile_kv(
            lds_limit=candidates["lds"],
            register_limit=candidates["registers"],
            keys=candidates["keys"],
            worthwhile=candidates["step"],
        )
        widths = {"d_pad": layout.d_pad, "dv_pad": layout.dv_pad}
        steps = (
            DEFAULT.d_pad(d=op.d, d_align=layout.d_align),
            DEFAULT.lds_share(
                lds_bytes=lds_share_bytes(hw, 1), workgroups_per_cu=c.groups, granule=hw.lds_granule_bytes
            ),
            lds_limit.binding() if binding == "lds" else lds_limit,
            DEFAULT.q(t_Q=tiles.tile_q, d_pad=layout.d_pad, elem_bytes=self.elem_bytes),
            DEFAULT.s(t_Q=tiles.tile_q, t_KV=tiles.tile_kv),
            DEFAULT.o(t_Q=tiles.tile_q, dv_pad=c.shape.columns * c.shape.lanes or layout.dv_pad),
            row_limit,
            register_limit.binding() if binding == "registers" else register_limit,
            tile_kv.binding() if binding in ("keys", "step") else tile_kv,
            DEFAULT.lds(
                t_KV=tiles.tile_kv, **widths, elem_bytes=self.elem_bytes, p_rows=p_rows, p_bytes=op.p_lds_bytes
            ),
            *([split] if split is not None else []),
            blocks.binding() if binding == "cus" else blocks,
            GRID.rounds(blocks=c.grid.blocks, num_cus=hw.num_cus, workgroups_per_cu=c.grid.workgroups_per_cu),
        )
        reason = self.atom_reason if tiles.atom == self.atom else f"t_Q={tiles.tile_q} fills no wider atom"
        notes = [f"atom {tiles.atom.instruction}: {reason}"] + ([note] if note else [])
        if op.page:
            notes.append(_page_note(op, tiles))
        if not c.grid.fills_device:
            splits = min(hw.num_cus // c.grid.blocks, self._most_splits(tiles))
            more = f", and so would splitting the keys {splits} ways (--splits {splits})" if splits > 1 else ""
            notes.append(f"{c.grid.verdict}; more heads or batch entries would fill it{more}")
        resources = predicted_resources(hw, c.shape, c.lds_bytes, tiles.waves_per_simd)
        limits = {"tile_q_max": row_limit.value, "tile_kv_max": min(lds_limit.value, register_limit.value)}
        return Derivation(op, hw, "default", tiles, binding, steps, resources, c.grid, None, tuple(notes), limits)

    def _refuse(self, resource: str, needed: float, limit: float, unit: str, where: str, way_out: str) -> None:
        self.refusals.append(Infeasible(resource, needed, limit, unit, where, way_out))

    def _infeasible(self) -> Derivation:
        """The refusal that came closest to fitting names the binding constraint."""
        closest = min(self.refusals, key=lambda r: r.needed / max(r.limit, 1))
        binding = {"LDS": "lds", "work-items": "cus", "wave slots": "cus"}.get(closest.resource, "registers")
        steps = (self.lds_need.binding(),) if binding == "lds" and self.lds_need is not None else ()
        return Derivation(self.op, self.hw, "default", None, binding, steps, None, None, closest)


def _page_note(op: Attention, tiles: AttentionTiles) -> str:
    """How the pages of K and V lie to the steps."""
    if op.page % tiles.tile_kv == 0:
        return f"a step's {tiles.tile_kv} keys lie within one page of {op.page}: a number of the table for each step"
    return (
        f"a step's {tiles.tile_kv} keys lie in several pages of {op.page}: a number of the table for each row, and a "
        "cache below 4 GiB"
    )


def _time_key(c: _Candidate) -> tuple[float, int, int]:
    return c.clocks, -c.tiles.tile_q, -c.tiles.waves
