"""Where every element of a chained attention step lives: the composition of two fragment maps.

The first product is S^T = K Q^T, the second O^T = V^T P^T. The registers of the first result are the B
operand of the second product when the sum over keys visits them in the order in which a lane holds them. So
the rows of K are permuted once, on their way into LDS, and nothing else moves. Everything here is computed
from the maps of the atom; a map that does not allow the chain is refused.

Names: M = atom.m = atom.n; G = 64 // M lane groups (group = lane // M); ea = elements of A in a lane;
acc = elements of C in a lane; vec = elements of one 16-byte LDS access.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd, lcm
from typing import Any

from closedform.hw.atoms import MFMAAtom
from closedform.hw.errors import BadInput
from closedform.hw.fragments import FragmentMap
from closedform.hw.lds import read_slots

__all__ = ["ChainLayout"]

WAVEFRONT = 64
ACCESS_BYTES = 16


@dataclass(frozen=True, slots=True)
class ChainLayout:
    """The layout of one attention step for `atom`: a pure function of the atom's three fragment maps.

    `elem_bytes` is the size of an input element, `d_pad` the head dimension padded to `d_align`, `tile_kv` the keys of
    one step, `v_pad` the padded columns of V and O, 0 for `d_pad`. With `permuted` the rows of K are stored in the
    order that the chain needs; without it (variants that pass P through LDS) they are stored in natural order.

    Raises BadInput where the maps do not chain, or where d_pad or tile_kv is not a multiple of one step.
    """

    atom: MFMAAtom
    elem_bytes: int
    d_pad: int
    tile_kv: int
    permuted: bool = True
    v_pad: int = 0

    def __post_init__(self) -> None:
        _row_keys(self.atom, self.vec)
        aligned = (
            ("d_pad", self.d_pad, self.d_align),
            ("tile_kv", self.tile_kv, self.key_align),
            ("v_pad", self.dv_pad, self.d_align),
        )
        for name, value, align in aligned:
            if value < align or value % align:
                raise BadInput(f"{name}={value} is not a multiple of {align}, as {self.atom.instruction} needs")

    # Sizes.

    @property
    def groups(self) -> int:
        """Lane groups G: lanes that share a column of C."""
        return WAVEFRONT // self.atom.m

    @property
    def vec(self) -> int:
        """Elements of one 16-byte access."""
        return ACCESS_BYTES // self.elem_bytes

    @property
    def ea(self) -> int:
        """Elements of A (and of B) that a lane feeds to one MFMA."""
        return self.atom.elements_a

    @property
    def acc(self) -> int:
        """Elements of C that a lane holds."""
        return self.atom.elements_c

    @property
    def chunk(self) -> int:
        """Elements of d (or keys) that one 16-byte access of all lane groups covers."""
        return self.groups * self.vec

    @property
    def d_align(self) -> int:
        """d_pad is a multiple of this: whole accesses along d for Q and K, whole atoms along dv for V."""
        return lcm(self.chunk, self.atom.m)

    @property
    def key_align(self) -> int:
        """tile_kv is a multiple of this: the keys of one chained step (16-bit 16x16: two C tiles)."""
        return lcm(self.chunk, self.atom.m)

    @property
    def dv_pad(self) -> int:
        """Padded columns of V and O."""
        return self.v_pad or self.d_pad

    @property
    def d_steps(self) -> int:
        """16-byte accesses of a lane along d."""
        return self.d_pad // self.chunk

    @property
    def parts(self) -> int:
        """MFMAs fed by one 16-byte access along k."""
        return self.vec // self.ea

    @property
    def key_tiles(self) -> int:
        """C tiles of S^T along the keys."""
        return self.tile_kv // self.atom.m

    @property
    def dv_tiles(self) -> int:
        """C tiles of O^T along dv."""
        return self.dv_pad // self.atom.m

    @property
    def registers(self) -> int:
        """C registers of S^T in a lane, for one tile of queries."""
        return self.key_tiles * self.acc

    # First product.

    def d_of(self, step: Any, group: Any, elem: Any) -> Any:
        """d held by element `elem` (below vec) of the 16-byte access number `step`; the same for K and for Q.

        MFMA number elem // ea of that access takes it.
        """
        return step * self.chunk + group * self.vec + elem

    def c_row(self, group: Any, elem: Any) -> Any:
        """Row of C that element `elem` of a lane of that group holds, from the atom's C map."""
        return self.atom.c.coords(group * self.atom.m, elem)["m"]

    # Keys: the order of the second product and the rows of K that follow from it.

    def key_of(self, group: Any, register: Any) -> Any:
        """Key that the second product takes from a lane of that group at register tile * acc + elem.

        Consecutive registers hold consecutive keys, vec of them for one 16-byte read of V.
        """
        return register // self.vec * self.chunk + group * self.vec + register % self.vec

    def key_of_c(self, group: Any, tile: Any, elem: Any) -> Any:
        """Key whose score is in element `elem` of C tile `tile`; `key_of` of that register if permuted."""
        if self.permuted:
            return self.key_of(group, tile * self.acc + elem)
        return tile * self.atom.m + self.c_row(group, elem)

    @property
    def period(self) -> int:
        """Keys after which the row permutation repeats: a power of two, and a divisor of tile_kv."""
        return self.key_align

    @property
    def row_keys(self) -> tuple[int, ...]:
        """One period of the permutation: the key stored in each row."""
        return _row_keys(self.atom, self.vec) if self.permuted else tuple(range(self.period))

    def key_of_row(self, tile: int, m: int) -> int:
        """Key whose row of K must be row `m` of A in C tile `tile`."""
        row = tile * self.atom.m + m
        return row // self.period * self.period + self.row_keys[row % self.period]

    def row_of_key(self, key: int) -> tuple[int, int]:
        """(C tile, row of A) of a key: the inverse of `key_of_row`."""
        row = self.flat_row_of_key(key)
        return row // self.atom.m, row % self.atom.m

    def flat_row_of_key(self, key: int) -> int:
        """Row of K in LDS, tile * M + m, that stores the key."""
        return key // self.period * self.period + _inverse(self.row_keys)[key % self.period]

    @property
    def row_of_key_bits(self) -> tuple[int, ...] | None:
        """Bit of the key that each bit of the row is, least first, within a period; None if bits do not do.

        Bits from log2(period) on stay in place. f16 32x32x8 gives (0, 1, 3, 2, 4): bits 2 and 3 swap.
        """
        return _bit_moves(_inverse(self.row_keys))

    @property
    def is_identity(self) -> bool:
        """True where keys are stored in natural order."""
        return self.row_keys == tuple(range(self.period))

    # Head dimension of V and O.

    @property
    def c_row_period(self) -> int:
        """Rows after which the lane group that holds a row of C repeats: 8 for 32x32, 16 for 16x16."""
        return _c_row_period(self.atom.c)

    @property
    def dv_run(self) -> int:
        """Consecutive dv that a lane holds (w): 4, 2 or 1, the width of its stores of O in elements."""
        if self.packs_keys:
            return next(w for w in (4, 2, 1) if self.dv_pad % (w * self.c_row_period) == 0)
        return next(w for w in (4, 2, 1) if self.dv_tiles % w == 0)

    def dv_of(self, tile: Any, m: Any) -> Any:
        """dv that row `m` of A of dv tile `tile` stands for: a lane ends up with dv_run consecutive dv."""
        w = self.dv_run
        if self.packs_keys:
            return self.dv_at(tile * self.atom.m + m)
        return (tile // w * self.atom.m + m) * w + tile % w

    def dv_at(self, position: Any) -> Any:
        """dv stored at `position` of the packed V image of the 16-bit types (position = tile * M + m)."""
        stride = self.dv_pad // self.dv_run
        return self.dv_run * (position % stride) + position // stride

    def position_of_dv(self, dv: Any) -> Any:
        """Inverse of `dv_at`: where the packed V image of the 16-bit types stores dv."""
        return dv // self.dv_run + dv % self.dv_run * (self.dv_pad // self.dv_run)

    @property
    def packs_keys(self) -> bool:
        """One access of V holds consecutive keys (16-bit types); f32 takes its 16 bytes along dv instead."""
        return self.elem_bytes < 4

    @property
    def value_span(self) -> int:
        """C registers of S^T whose A operands one access of V per dv tile brings."""
        return self.vec if self.packs_keys else self.ea

    # LDS images; offsets in elements.

    @property
    def slots(self) -> int:
        """16-byte slots side by side in the banks of the LDS: rows that far apart in the images meet in a bank."""
        return read_slots(self.atom.gfx)

    @property
    def swizzle_group(self) -> int:
        """16-byte chunks of a K row among which the swizzle moves (gc)."""
        return gcd(self.d_pad // self.vec, self.slots)

    def swizzle(self, row: Any, chunk: Any) -> Any:
        """16-byte chunk of a K row in which chunk number `chunk` is stored."""
        return chunk ^ ((row // (self.slots // self.swizzle_group)) % self.swizzle_group)

    def k_offset(self, row: Any, d: Any) -> Any:
        """Offset of (row of K, d) in the K image: d_pad elements a row, 16-byte chunks swizzled."""
        return row * self.d_pad + self.swizzle(row, d // self.vec) * self.vec + d % self.vec

    def v_offset(self, key: Any, dv: Any) -> Any:
        """Offset of (key, dv) in the V image: [key // vec][position][key % vec], or [key][dv] for f32."""
        if self.packs_keys:
            return (key // self.vec * self.dv_pad + self.position_of_dv(dv)) * self.vec + key % self.vec
        return key * self.dv_pad + dv

    def p_offset(self, query: Any, key: Any, vec: int | None = None) -> Any:
        """Offset of P[query][key] in the LDS image of one wave, its chunks swizzled like those of K.

        `vec` is how many elements of P 16 bytes hold, where its type is not that of the inputs.
        """
        vec = self.vec if vec is None else vec
        among = gcd(self.tile_kv // vec, self.slots)
        chunk = (key // vec) ^ (query // (self.slots // among) % among)
        return query * self.tile_kv + chunk * vec + key % vec


@lru_cache(maxsize=256)
def _row_keys(atom: MFMAAtom, vec: int) -> tuple[int, ...]:
    """Key of each row of A over one period, from the C map; BadInput where the maps do not chain."""
    m, ea, acc = atom.m, atom.elements_a, atom.elements_c

    def refuse(why: str) -> BadInput:
        return BadInput(f"{atom.instruction} on {atom.gfx} cannot be chained: {why}")

    if atom.blocks != 1 or atom.m != atom.n:
        raise refuse(f"{atom.m}x{atom.n} with {atom.blocks} blocks, needs a square single block")
    if vec % ea:
        raise refuse(f"a lane takes {ea} elements of A, not a divisor of the {vec} of a 16-byte access")
    for lane in range(WAVEFRONT):
        if any(atom.c.coords(lane, e)["n"] != lane % m for e in range(acc)):
            raise refuse("the column of C is not lane % M")
        for e in range(ea):
            a, b = atom.a.coords(lane, e), atom.b.coords(lane, e)
            if a["m"] != lane % m or b["n"] != lane % m:
                raise refuse("the row of A or the column of B is not lane % M")
            if a["k"] != b["k"]:
                raise refuse("A and B hold different k in the same lane and element")
    groups = WAVEFRONT // m
    period = lcm(groups * vec, m)
    keys: list[int] = []
    for row in range(period):
        lane, elem = atom.c.owner(m=row % m, n=0)
        register = row // m * acc + elem
        keys.append(register // vec * groups * vec + lane // m * vec + register % vec)
    if sorted(keys) != list(range(period)):
        raise refuse("its C map does not give every key exactly one row")
    return tuple(keys)


@lru_cache(maxsize=256)
def _inverse(permutation: tuple[int, ...]) -> tuple[int, ...]:
    inverse = [0] * len(permutation)
    for place, value in enumerate(permutation):
        inverse[value] = place
    return tuple(inverse)


@lru_cache(maxsize=256)
def _bit_moves(table: tuple[int, ...]) -> tuple[int, ...] | None:
    """Source bit of each destination bit if `table` moves bits, else None."""
    bits = (len(table) - 1).bit_length()
    images = [table[1 << bit] if 1 << bit < len(table) else 0 for bit in range(bits)]
    if len(table) != 1 << bits or any(image.bit_count() != 1 for image in images):
        return None
    moves = [images.index(1 << bit) if 1 << bit in images else -1 for bit in range(bits)]
    moved = (sum((key >> source & 1) << bit for bit, source in enumerate(moves)) for key in range(len(table)))
    return tuple(moves) if -1 not in moves and tuple(moved) == table else None


@lru_cache(maxsize=256)
def _c_row_period(c: FragmentMap) -> int:
    """Smallest shift of the rows that keeps every row in its lane group."""
    rows = c.shape["m"]
    lanes = [c.owner(m=row, n=0)[0] for row in range(rows)]
    periods = (p for p in range(1, rows + 1) if rows % p == 0)
    return next(p for p in periods if all(lanes[row] == lanes[row % p] for row in range(rows)))
