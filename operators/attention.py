"""Fused attention, softmax(scale Q K^T) V, as a lazy tree.

Device -> block (the queries of one workgroup, of one batch and head) -> wave (tile_q queries) -> step (one
tile of keys: scores, softmax update, values) -> atoms. The scores are computed transposed, S^T = K Q^T, and
so is the output, O^T = V^T P^T, so that a lane owns one query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import sqrt
from numbers import Real
from typing import ClassVar

from closedform.hw.atoms import MFMAAtom
from closedform.hw.dtypes import dtype
from closedform.hw.errors import BadInput, near_names

from .chain_layout import ChainLayout
from .level import Level
from .node import AtomNode, Node, check_extent
from .policy import Pad
from .view import View, Window
from .visibility import Visibility

__all__ = [
    "DTYPES",
    "D_MAX",
    "VARIANTS",
    "Attention",
    "AttentionBlock",
    "AttentionDevice",
    "AttentionStep",
    "AttentionTiles",
    "AttentionWave",
    "ScoreAtom",
    "ValueAtom",
    "chain_layout",
]

D_MAX = 512
DTYPES = ("f32", "f16", "bf16", "fp8_e4m3fnuz", "fp8_e4m3fn")
#: Powers of two that a logit may lie above the maximum it is taken relative to before the maximum is raised.
#: Exponentials stay below 2^8, which f16 holds as precisely as any other value, and f32 the sum of 2^31 of them.
HEADROOM = 8.0
#: Powers of two by which exponentials are raised before they are rounded to 8 bits, and that a score may then lie
#: above the maximum: 2^7 fits both kinds of e4m3, whose smallest number is 2^-9 or less.
PEAK_8, HEADROOM_8 = 4.0, 3.0
#: Scales whose product with log2(e) is a normal f32 number; a negative one would turn the largest score into the least.
SCALE_MIN, SCALE_MAX = 2.0**-120, 2.0**120
#: Options that exclude each other, and why.
EXCLUSIVE = {
    ("key_lengths", "varlen"): "cu_seqlens has the numbers of keys",
    ("varlen", "page"): "pages have a table instead of rows end to end; their numbers of keys are key_lengths",
    ("varlen", "bias"): "the bias of entries that lie end to end has no rows of one length",
}
#: Queries up to which attention counts as decoding.
DECODE_ROWS = 16
#: What the variants of the paper do without.
OPTIONS = ("causal", "window", "sink", "v_dim", "softcap", "bias", "alibi", "key_lengths", "varlen", "page", "bshd")
#: How P reaches the second product: in registers, through LDS, or through LDS to scalar multiply-adds.
VARIANTS = ("chained", "lds", "fma")

BOUNDARY: Mapping[str, Pad] = {
    "Q": Pad.ZERO,
    "K": Pad.ZERO,
    "V": Pad.ZERO,
    "S": Pad.MAX_IDENTITY,
    "P": Pad.ZERO,
    "O": Pad.ZERO,
}


@dataclass(frozen=True, slots=True)
class Attention:
    """The operator. Q is [batch, heads, L_q, d], K [batch, key_heads, L_kv, d], V [batch, key_heads, L_kv, v_dim].

    kv_heads: heads of K and V, 0 for as many as of Q; head h of Q reads head h // (heads / kv_heads). v_dim: columns of
    V and of O, 0 for d. softmax_scale: factor of the logits, None for 1 / sqrt(d). lse: the natural logarithm of the
    sum of exponentials of each query's logits is a result, too, f32 [batch, heads, L_q].

    causal, window and sink: see Visibility. The logits are scale q k, then cap tanh(. / cap) with `softcap`, then plus
    bias [batch, heads, L_q, L_kv] (f32, any axis may be broadcast) with `bias`, and minus slope |position - key| with
    `alibi` (slopes f32 [heads]).

    key_lengths: the batch entries have a number of keys each, at most L_kv. varlen: the entries lie end to end, with
    as many queries and keys as cu_seqlens says, at most L_q and L_kv. page: K and V lie in pages of so many keys, found
    by a table; 0 for rows in order. bshd: tensors are [batch, L, heads, d] for the caller.

    Raises BadInput for an extent below 1, d above 512, an unknown dtype or an unknown variant, heads that are no
    multiple of kv_heads, a scale that is not positive or no f32 number, a sink without a window, options that exclude
    each other and any of them in the paper's variants.
    """

    L_q: int
    L_kv: int
    d: int
    batch: int = 1
    heads: int = 1
    dtype: str = "f32"
    variant: str = "chained"
    kv_heads: int = 0
    softmax_scale: float | None = None
    lse: bool = False
    causal: bool = False
    window: int = 0
    sink: int = 0
    v_dim: int = 0
    softcap: float | None = None
    bias: bool = False
    alibi: bool = False
    key_lengths: bool = False
    varlen: bool = False
    page: int = 0
    bshd: bool = False

    name: ClassVar[str] = "attention"
    #: Fields that are told only where they are set.
    optional: ClassVar[tuple[str, ...]] = ("kv_heads", "softmax_scale", "lse", *OPTIONS)

    def __post_init__(self) -> None:
        for name in ("L_q", "L_kv", "batch", "heads"):
            check_extent(name, getattr(self, name))
        check_extent("d", self.d, most=D_MAX)
        for name, most in (("window", None), ("sink", None), ("v_dim", D_MAX), ("page", None)):
            if getattr(self, name) or getattr(self, name) is False:
                check_extent(name, getattr(self, name), most=most)
        for name, known in (("dtype", DTYPES), ("variant", VARIANTS)):
            value = getattr(self, name)
            if value not in known:
                near = near_names(str(value), known)
                raise BadInput(f"{name}={value!r} is not offered for attention: {near}")
        if self.v_dim == self.d:
            object.__setattr__(self, "v_dim", 0)
        self._check_kv_heads()
        self._check_factor("softmax_scale")
        self._check_factor("softcap")
        self._check_options()

    def _check_options(self) -> None:
        given = [name for name in OPTIONS if getattr(self, name)]
        if self.elem_bytes == 1:
            given.append(f"dtype={self.dtype!r}")
        if given and self.variant != "chained":
            raise BadInput(f"{given[0]} is not offered in the variant {self.variant!r}: take chained")
        if self.sink and not self.window:
            raise BadInput(f"sink={self.sink} says what a window must not hide: give window too")
        for (one, other), why in EXCLUSIVE.items():
            if getattr(self, one) and getattr(self, other):
                raise BadInput(f"{one} and {other} exclude each other: {why}")
        if self.page and not self.key_lengths:
            raise BadInput(
                f"page={self.page}: how many keys the pages of an entry hold has to be told: give key_lengths"
            )
        if self.page & (self.page - 1):
            raise BadInput(f"page={self.page} must be a power of two")

    def _check_kv_heads(self) -> None:
        if self.kv_heads == 0 and self.kv_heads is not False:
            return
        check_extent("kv_heads", self.kv_heads)
        if self.heads % self.kv_heads:
            raise BadInput(f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}")

    def _check_factor(self, name: str) -> None:
        factor: float | None = getattr(self, name)
        if factor is None:
            return
        if isinstance(factor, bool) or not isinstance(factor, Real) or not SCALE_MIN <= factor <= SCALE_MAX:
            raise BadInput(f"{name}={factor!r} must be a number from {SCALE_MIN:.3g} to {SCALE_MAX:.3g}")

    @property
    def scale(self) -> float:
        """Factor of the logits: 1 / sqrt(d), with the true d and not the padded one, unless another was chosen.

        >>> Attention(1, 1, 64).scale, Attention(1, 1, 64, softmax_scale=0.5).scale
        (0.125, 0.5)
        """
        return 1.0 / sqrt(self.d) if self.softmax_scale is None else float(self.softmax_scale)

    @property
    def logit_scale(self) -> float:
        """Factor of what the softmax takes: that of the scores, 1 where logits have been made of them."""
        return 1.0 if self.has_logits else self.scale

    @property
    def key_heads(self) -> int:
        """Heads of K and V."""
        return self.kv_heads or self.heads

    @property
    def group(self) -> int:
        """Heads of Q that share a head of K and V.

        >>> Attention(1, 1, 64, heads=32, kv_heads=4).group
        8
        """
        return self.heads // self.key_heads

    @property
    def columns(self) -> int:
        """Columns of V and of O."""
        return self.v_dim or self.d

    @property
    def visibility(self) -> Visibility:
        """Which keys a query sees, of an entry with L_q queries and L_kv keys."""
        return Visibility(self.L_q, self.L_kv, self.causal, self.window, self.sink)

    @property
    def decodes(self) -> bool:
        """Whether the queries are so few that the keys are split where they leave compute units idle."""
        return self.L_q <= DECODE_ROWS

    @property
    def has_mask(self) -> bool:
        """Whether some keys ahead of the end are hidden from some queries."""
        return self.causal or self.window > 0

    @property
    def has_options(self) -> bool:
        """Whether any of the options that the paper's variants lack is set."""
        return any(getattr(self, name) for name in OPTIONS)

    @property
    def may_be_empty(self) -> bool:
        """Whether some workgroup may have no keys to visit."""
        return self.has_mask or self.key_lengths or self.varlen

    @property
    def has_logits(self) -> bool:
        """Whether scores become logits by more than a factor."""
        return self.bias or self.alibi or self.softcap is not None

    @property
    def elem_bytes(self) -> int:
        return dtype(self.dtype).bytes

    @property
    def result(self) -> str:
        """Type of O: that of the inputs, bf16 of 8-bit ones."""
        return "bf16" if self.elem_bytes == 1 else self.dtype

    @property
    def peak(self) -> float:
        """Power of two by which exponentials are raised before they are rounded; the quotient does not know it."""
        return PEAK_8 if self.elem_bytes == 1 else 0.0

    @property
    def headroom(self) -> float:
        """Powers of two that a score may lie above the running maximum."""
        return HEADROOM_8 if self.elem_bytes == 1 else HEADROOM

    @property
    def p_dtype(self) -> str:
        """Type in which P reaches the second product: that of the inputs for MFMAs, f32 for scalar multiply-adds."""
        return "f32" if self.variant == "fma" else self.dtype

    @property
    def p_lds_bytes(self) -> int:
        """Bytes of one element of P in LDS, 0 where it stays in registers."""
        return 0 if self.variant == "chained" else dtype(self.p_dtype).bytes

    def tree(self, tiles: AttentionTiles | None = None) -> AttentionDevice:
        """The tree of this operator, open without `tiles`."""
        return AttentionDevice(self, tiles)


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """Tile policy: `tile_q` queries per wave, `tile_kv` keys per step, `waves` per workgroup.

    `waves_per_simd` is the occupancy that the registers were budgeted for, `d_pad` the padded head dimension. With
    `splits` above 1 so many workgroups share the keys of a query block, and a second kernel merges what they found.
    """

    tile_q: int
    tile_kv: int
    waves: int
    waves_per_simd: int
    d_pad: int
    atom: MFMAAtom
    splits: int = 1

    def __post_init__(self) -> None:
        for name in ("tile_q", "tile_kv", "waves", "waves_per_simd", "d_pad", "splits"):
            check_extent(name, getattr(self, name))
        if self.tile_q % self.atom.n:
            raise BadInput(f"tile_q={self.tile_q} is not a multiple of the {self.atom.n} columns of the atom")

    @property
    def block_q(self) -> int:
        """Queries of one workgroup."""
        return self.tile_q * self.waves

    @property
    def query_tiles(self) -> int:
        """C tiles of S^T along the queries of one wave."""
        return self.tile_q // self.atom.n

    def layout(self, op: Attention) -> ChainLayout:
        """Fragment and LDS layout of one step; BadInput where the tiles do not align with it."""
        return chain_layout(op, self.atom, self.d_pad, self.tile_kv)


def chain_layout(op: Attention, atom: MFMAAtom, d_pad: int, tile_kv: int) -> ChainLayout:
    """The layout of a step; BadInput where its sizes do not align with the atom."""
    probe = ChainLayout(atom, op.elem_bytes, d_pad, tile_kv, permuted=op.variant == "chained")
    if op.columns == op.d:
        return probe
    return replace(probe, v_pad=-(-op.columns // probe.d_align) * probe.d_align)


@dataclass(frozen=True, slots=True)
class AttentionDevice(Node):
    """The whole operator."""

    op: Attention
    tiles: AttentionTiles | None = None

    level: ClassVar[Level] = Level.DEVICE
    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    def __post_init__(self) -> None:
        if self.tiles is None:
            return
        if self.tiles.d_pad < self.op.d:
            raise BadInput(f"d_pad={self.tiles.d_pad} is below d={self.op.d}")
        atom = self.tiles.atom
        if (atom.dtype_a.name, atom.dtype_b.name) != (self.op.dtype, self.op.dtype):
            raise BadInput(f"{atom} does not take {self.op.dtype}")

    @property
    def views(self) -> Mapping[str, View]:
        return _views(self.op, self.tiles, Window.whole(self.op.L_q), Window.whole(self.op.L_kv))

    @property
    def grid(self) -> tuple[int, int, int]:
        """Workgroups along (queries, heads, batch x splits of the keys)."""
        tiles: AttentionTiles = self.require_tiles()
        return Window.whole(self.op.L_q).count(tiles.block_q), self.op.heads, self.op.batch * tiles.splits

    def children(self) -> Iterator[AttentionBlock]:
        tiles: AttentionTiles = self.require_tiles()
        for batch in range(self.op.batch):
            for split in range(tiles.splits):
                for head in range(self.op.heads):
                    for rows in Window.whole(self.op.L_q).tiles(tiles.block_q):
                        yield AttentionBlock(self.op, tiles, batch, head, rows, split)

    def interior(self) -> tuple[AttentionBlock]:
        tiles: AttentionTiles = self.require_tiles()
        return (AttentionBlock(self.op, tiles, 0, 0, Window.whole(tiles.block_q)),)


@dataclass(frozen=True, slots=True)
class AttentionBlock(Node):
    """One workgroup: the queries `rows` of one batch and head against split number `split` of the keys that they see.

    Its waves share the K and V tiles in LDS.
    """

    op: Attention
    tiles: AttentionTiles
    batch: int
    head: int
    rows: Window
    split: int = 0

    level: ClassVar[Level] = Level.BLOCK
    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def views(self) -> Mapping[str, View]:
        return _views(self.op, self.tiles, self.rows, Window.whole(self.op.L_kv))

    def children(self) -> Iterator[AttentionWave]:
        for rows in self.rows.tiles(self.tiles.tile_q):
            yield AttentionWave(self.op, self.tiles, self.batch, self.head, rows, self.split)

    def interior(self) -> tuple[AttentionWave]:
        rows = Window(self.rows.start, self.tiles.tile_q, self.tiles.tile_q)
        return (AttentionWave(self.op, self.tiles, self.batch, self.head, rows),)


@dataclass(frozen=True, slots=True)
class AttentionWave(Node):
    """One wave: tile_q queries, one step after the other against the tiles of keys that its workgroup visits."""

    op: Attention
    tiles: AttentionTiles
    batch: int
    head: int
    rows: Window
    split: int = 0

    level: ClassVar[Level] = Level.WAVE
    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def views(self) -> Mapping[str, View]:
        return _views(self.op, self.tiles, self.rows, Window.whole(self.op.L_kv))

    @property
    def block_rows(self) -> Window:
        """The queries of the workgroup, whose waves step through the same tiles of keys."""
        block = self.tiles.block_q
        return Window.whole(self.op.L_q).tile(self.rows.start // block, block)

    def children(self) -> Iterator[AttentionStep]:
        tiles = self.tiles
        for keys in self.op.visibility.tiles(self.block_rows, tiles.tile_kv, self.split, tiles.splits):
            yield AttentionStep(self.op, self.tiles, self.batch, self.head, self.rows, keys)

    def interior(self) -> tuple[AttentionStep]:
        keys = Window.whole(self.tiles.tile_kv)
        return (AttentionStep(self.op, self.tiles, self.batch, self.head, self.rows, keys),)


@dataclass(frozen=True, slots=True)
class AttentionStep(Node):
    """One tile of keys: scores, softmax update, values. Scores past the valid keys become -inf."""

    op: Attention
    tiles: AttentionTiles
    batch: int
    head: int
    rows: Window
    keys: Window

    level: ClassVar[Level] = Level.WAVE
    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def views(self) -> Mapping[str, View]:
        return _views(self.op, self.tiles, self.rows, self.keys)

    def score_atoms(self) -> Iterator[ScoreAtom]:
        """The MFMAs of S^T += K Q^T, in the order of the kernel."""
        layout = self.tiles.layout(self.op)
        for key_tile in range(layout.key_tiles):
            for d_step in range(layout.d_steps):
                for part in range(layout.parts):
                    for query_tile in range(self.tiles.query_tiles):
                        yield ScoreAtom(self.op, self.tiles, key_tile, query_tile, d_step, part)

    def value_atoms(self) -> Iterator[ValueAtom]:
        """The MFMAs of O^T += V^T P^T, in the order of the kernel; none in the variant without them."""
        if self.op.variant == "fma":
            return
        layout = self.tiles.layout(self.op)
        for first in range(0, layout.registers, layout.value_span):
            for dv_tile in range(layout.dv_tiles):
                for register in range(first, first + layout.value_span, layout.ea):
                    for query_tile in range(self.tiles.query_tiles):
                        yield ValueAtom(self.op, self.tiles, dv_tile, query_tile, register)

    def children(self) -> Iterator[ScoreAtom | ValueAtom]:
        yield from self.score_atoms()
        yield from self.value_atoms()

    def interior(self) -> tuple[ScoreAtom | ValueAtom, ...]:
        score, value = ScoreAtom(self.op, self.tiles, 0, 0, 0, 0), ValueAtom(self.op, self.tiles, 0, 0, 0)
        return (score,) if self.op.variant == "fma" else (score, value)


@dataclass(frozen=True, slots=True)
class ScoreAtom(AtomNode):
    """One MFMA of S^T: C tile (key_tile, query_tile), part `part` of the 16-byte accesses number `d_step`."""

    op: Attention
    tiles: AttentionTiles
    key_tile: int
    query_tile: int
    d_step: int
    part: int

    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def views(self) -> Mapping[str, View]:
        """The C tile, in rows of K as stored and queries of the wave; which d it sums is scattered."""
        m = self.tiles.atom.m
        return {"S": View(Window(self.key_tile * m, m, m), Window(self.query_tile * m, m, m))}


@dataclass(frozen=True, slots=True)
class ValueAtom(AtomNode):
    """One MFMA of O^T: C tile (dv_tile, query_tile), fed by ea P registers from `register` on."""

    op: Attention
    tiles: AttentionTiles
    dv_tile: int
    query_tile: int
    register: int

    boundary: ClassVar[Mapping[str, Pad]] = BOUNDARY

    @property
    def views(self) -> Mapping[str, View]:
        """The C tile, in rows of V^T as stored and queries of the wave; which keys it sums is scattered."""
        m = self.tiles.atom.m
        return {"O": View(Window(self.dv_tile * m, m, m), Window(self.query_tile * m, m, m))}


def _views(op: Attention, tiles: AttentionTiles | None, rows: Window, keys: Window) -> Mapping[str, View]:
    d, columns = Window(0, op.d, op.d), Window(0, op.columns, op.columns)
    if tiles is not None:
        layout = tiles.layout(op)
        d, columns = Window(0, layout.d_pad, op.d), Window(0, layout.dv_pad, op.columns)
    return {
        "Q": View(rows, d),
        "K": View(keys, d),
        "V": View(keys, columns),
        "S": View(rows, keys),
        "P": View(rows, keys),
        "O": View(rows, columns),
    }
