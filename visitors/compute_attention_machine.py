"""The registers and LDS of one attention workgroup, and what its instructions do to them.

Every value is where the kernel has it: Q, S, P and O in lanes and elements, K and V (and P, in the variants
that pass it through LDS) at their offsets in LDS. All indices come from the ChainLayout, all sums from
MFMAs that follow the catalogue. So a wrong fragment map, a wrong chain or a wrong LDS index gives wrong
numbers. LDS starts as NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from closedform.operators.attention import AttentionStep, AttentionTiles, AttentionWave, ScoreAtom, ValueAtom
from closedform.operators.attention_logits import logits
from closedform.operators.chain_layout import ChainLayout
from closedform.operators.monoid import SoftmaxState, log2_scale, power, raised
from closedform.operators.numerics import Array, rounded

from .compute_mfma import LANES, mfma

__all__ = ["AttentionMachine"]

LANE = np.arange(LANES)


class AttentionMachine:
    """`waves` of one block on q, k, v of its batch and head. Arrays have a leading axis of waves.

    s is [waves, query tiles, key tiles, 64, acc], o is [waves, query tiles, dv tiles, 64, acc], the running
    maximum and sum are [waves, query tiles, 64].
    """

    def __init__(
        self,
        waves: tuple[AttentionWave, ...],
        q: Array,
        k: Array,
        v: Array,
        bias: Array | None = None,
        slope: Array | None = None,
    ) -> None:
        self.op, self.waves, self.k, self.v = waves[0].op, waves, k, v
        self.bias, self.slope = bias, slope
        self.tiles: AttentionTiles = waves[0].tiles
        self.layout = layout = self.make_layout()
        self.c = log2_scale(self.op.logit_scale)
        self.column, self.group = LANE % layout.atom.m, LANE // layout.atom.m
        count, queries = len(waves), self.tiles.query_tiles
        self.query = np.arange(queries)[:, None] * layout.atom.n + self.column
        self.s = np.zeros((count, queries, layout.key_tiles, LANES, layout.acc), np.float32)
        self.o = np.zeros((count, queries, layout.dv_tiles, LANES, layout.acc), np.float32)
        self.state = SoftmaxState.identity((count, queries, LANES))
        self._index_lds()
        self._load_q(q)
        self._columns = np.minimum(LANE[:, None] + LANES * np.arange(-(-layout.d_pad // LANES)), layout.d_pad - 1)
        self.scalar = np.zeros((count, self.tiles.tile_q, *self._columns.shape), np.float32)

    def make_layout(self) -> ChainLayout:
        """The layout that the kernel is written with."""
        return self.tiles.layout(self.op)

    def _index_lds(self) -> None:
        """Offsets of all LDS accesses of a step: tables that the kernel computes from its lane number."""
        lay, column, group = self.layout, self.column, self.group
        keys, d, dv = np.arange(lay.tile_kv), np.arange(lay.d_pad), np.arange(lay.dv_pad)
        rows = np.array([lay.flat_row_of_key(int(key)) for key in keys])
        self.k_write = lay.k_offset(rows[:, None], d)
        self.v_write = lay.v_offset(keys[:, None], dv)
        step, part = np.arange(lay.d_steps)[:, None, None], np.arange(lay.vec)
        self.d_of = lay.d_of(step, group[:, None], part)
        row = np.arange(lay.key_tiles)[:, None, None, None] * lay.atom.m + column[:, None]
        self.k_read = lay.k_offset(row, self.d_of)
        register, tile = np.arange(lay.registers)[:, None], np.arange(lay.dv_tiles)[:, None, None]
        self.key_read = lay.key_of(group, register)
        self.v_read = lay.v_offset(self.key_read.T, lay.dv_of(tile, column[:, None]))
        tile, elem = np.arange(lay.key_tiles)[:, None, None], np.arange(lay.acc)
        self.key_held = lay.key_of_c(group[:, None], tile, elem)
        tile = np.arange(lay.dv_tiles)[:, None, None]
        self.dv_held = lay.dv_of(tile, lay.c_row(group[:, None], elem))

    def _load_q(self, q: Array) -> None:
        """Operand B of the first product; rows and columns past the valid extent read 0."""
        lay = self.layout
        padded = np.zeros((len(self.waves), self.tiles.tile_q, lay.d_pad), np.float32)
        for wave, rows in zip(self.waves, padded, strict=True):
            rows[: wave.rows.extent, : self.op.d] = q[wave.rows.slice]
        self.q = padded[:, self.query[:, None, :, None], self.d_of]

    def load(self, step: AttentionStep) -> None:
        """K and V of the step into LDS, zeros past the valid keys; scores start at 0."""
        lay, extent = self.layout, step.keys.extent
        k, v = (np.zeros((lay.tile_kv, width), np.float32) for width in (lay.d_pad, lay.dv_pad))
        k[:extent, : self.op.d], v[:extent, : self.op.columns] = self.k[step.keys.slice], self.v[step.keys.slice]
        self.lds_k, self.lds_v = (np.full(x.size, np.nan, np.float32) for x in (k, v))
        self.lds_k[self.k_write], self.lds_v[self.v_write] = k, v
        self.s[...] = 0

    def score(self, atom: ScoreAtom) -> None:
        """One MFMA of S^T += K Q^T."""
        n, t, ea = atom.query_tile, atom.key_tile, self.layout.ea
        part = slice(atom.part * ea, atom.part * ea + ea)
        k = self.lds_k[self.k_read[t, atom.d_step, :, part]]
        self.s[:, n, t] = mfma(self.layout.atom, k, self.q[:, n, atom.d_step, :, part], self.s[:, n, t])

    def softmax(self, step: AttentionStep) -> None:
        """Mask, maximum and sum of the tile, exponentials, and where it is due the rescaling of what was summed."""
        s = self._logits(step)
        top = self._across_groups(np.fmax.reduce(s, axis=(2, 4)), np.fmax)
        m = raised(self.state.m, top, self.c, (1, 2), self.op.headroom)
        rescale = power(self.state.m, m, self.c)
        p = power(s, m[:, :, None, :, None], self.c)
        registers = np.moveaxis(p, (2, 4), (0, 1)).reshape(-1, *m.shape)
        self.state = SoftmaxState(m, np.add.reduce(registers, axis=0, initial=None) + self.state.l * rescale)
        self.o *= rescale[:, :, None, :, None]
        self.scalar *= self._of_query(rescale)[:, :, None, None]
        self.p = rounded(np.moveaxis(registers, 0, -1), self.op.p_dtype, self.op.peak)
        if self.op.variant != "chained":
            self._write_p()

    def _logits(self, step: AttentionStep) -> Array:
        """The scores as logits, -inf where a query does not see the key or there is none."""
        op, key = self.op, self.key_held + step.keys.start
        starts = np.array([wave.rows.start for wave in self.waves])
        query = (starts[:, None, None] + self.query)[:, :, None, :, None]
        bias = None
        if self.bias is not None:
            bias = self.bias[np.minimum(query, op.L_q - 1), np.minimum(key, op.L_kv - 1)]
        return logits(op, self.s, op.visibility, query, key, bias, self.slope)

    def _write_p(self) -> None:
        """P through LDS: each wave writes its own image P[query][key]."""
        lay = self.layout
        self.lds_p = np.full((len(self.waves), self.tiles.tile_q * lay.tile_kv), np.nan, np.float32)
        keys = np.moveaxis(self.key_held, 1, 0).reshape(LANES, -1)
        vec = 16 // self.op.p_lds_bytes
        self.lds_p[:, lay.p_offset(self.query[:, :, None], keys, vec)] = self.p
        self.p_read = lay.p_offset(self.query[:, :, None], self.key_read.T, vec)

    def value(self, atom: ValueAtom) -> None:
        """One MFMA of O^T += V^T P^T; P from the registers of S^T, or read back from its image in LDS."""
        n, t = atom.query_tile, atom.dv_tile
        used = slice(atom.register, atom.register + self.layout.ea)
        v = self.lds_v[self.v_read[t, :, used]]
        p = self.p[:, n, :, used] if self.op.variant == "chained" else self.lds_p[:, self.p_read[n, :, used]]
        self.o[:, n, t] = mfma(self.layout.atom, v, p, self.o[:, n, t])

    def scalar_values(self) -> None:
        """The second product of the variant fma: a lane owns columns lane, lane + 64, ... of every query."""
        if self.op.variant != "fma":
            return
        lay, queries = self.layout, np.arange(self.tiles.tile_q)
        for key in range(lay.tile_kv):
            p = self.lds_p[:, lay.p_offset(queries, key, 16 // self.op.p_lds_bytes)].astype(np.float64)
            v = self.lds_v[lay.v_offset(key, self._columns)]
            self.scalar = (p[:, :, None, None] * v + self.scalar).astype(np.float32)

    def output(self) -> list[Array]:
        """Valid rows of O of each wave, [rows, d]."""
        lay = self.layout
        inverse = self._row_states().inverse()
        padded = np.full((len(self.waves), self.tiles.tile_q, lay.dv_pad), np.nan, np.float32)
        if self.op.variant == "fma":
            padded[:, :, self._columns] = self.scalar * self._of_query(inverse)[:, :, None, None]
        else:
            rows = self.query[:, None, :, None]
            padded[:, rows, self.dv_held] = self.o * inverse[:, :, None, :, None]
        pairs = zip(self.waves, padded, strict=True)
        return [rows[: wave.rows.extent, : self.op.columns] for wave, rows in pairs]

    def lse(self) -> list[Array]:
        """Log-sum-exp of the valid rows of each wave, [rows]."""
        values = self._of_query(self._row_states().lse(self.op.logit_scale))
        return [rows[: wave.rows.extent] for wave, rows in zip(self.waves, values, strict=True)]

    def _row_states(self) -> SoftmaxState:
        """Maximum and sum of each query in every lane that holds it."""
        return SoftmaxState(self.state.m, self._across_groups(self.state.l, np.add))

    def _of_query(self, values: Array) -> Array:
        """[waves, query tiles, 64] to [waves, tile_q]: the value of each query, from its lane in group 0."""
        return values[:, :, : self.layout.atom.n].reshape(len(self.waves), -1)

    def _across_groups(self, values: Array, combine: Callable[[Array, Array], Array]) -> Array:
        """Combines the lanes that share a query: a butterfly over the lane groups."""
        distance = self.layout.atom.n
        while distance < LANES:
            values = combine(values, values[..., LANE ^ distance])
            distance *= 2
        return values
