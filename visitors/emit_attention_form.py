"""What tells one emitted attention kernel from another: the options of the operator and what its tiles make of them."""

from __future__ import annotations

from dataclasses import dataclass

from closedform.operators.attention import OPTIONS, Attention, AttentionTiles

__all__ = ["Form", "attention_name"]

#: Columns of the atom that query tiles of a multiple of it have unless the caller fixed another.
WIDE_ATOM = 32


@dataclass(frozen=True, slots=True)
class Form:
    """The operator and the tiles of a kernel, asked what its text depends on."""

    op: Attention
    tiles: AttentionTiles

    @property
    def narrow(self) -> bool:
        """8-bit inputs, which the kernel moves as bytes; O has another type."""
        return self.op.elem_bytes == 1

    @property
    def own_result(self) -> bool:
        """Whether the first kernel stores rows of another type than that of the inputs."""
        return self.split or self.narrow

    @property
    def split(self) -> bool:
        """Whether the keys are split over workgroups, whose results a second kernel merges."""
        return self.tiles.splits > 1

    @property
    def keeps_lse(self) -> bool:
        """Whether the first kernel stores log-sum-exps: as a result, or for the merge."""
        return self.op.lse or self.split

    @property
    def has_options(self) -> bool:
        """Whether the host side is that of a kernel with options."""
        return self.own_result or self.op.has_options

    @property
    def small_pages(self) -> bool:
        """Whether the keys of a tile lie in several pages."""
        return self.op.page > 0 and self.op.page % self.tiles.tile_kv > 0

    @property
    def is_numbered(self) -> bool:
        """Whether the tiles that a workgroup visits are not simply those from 0 on."""
        return self.op.has_mask or self.split

    @property
    def may_be_empty(self) -> bool:
        """Whether some workgroup may have no keys to visit."""
        return self.op.may_be_empty or self.split

    @property
    def own_columns(self) -> bool:
        """Whether rows of V and O have another length than those of Q and K."""
        return self.op.columns != self.op.d

    @property
    def v_dim(self) -> str:
        """The constant that has the columns of V and O; with _PADDED behind it, those of whole atoms."""
        return "V_DIM" if self.own_columns else "HEAD_DIM"

    def number(self, tile: str) -> str:
        """Which tile of the keys the tile of that number is."""
        return f"self.tile_number({tile})" if self.is_numbered else tile


def attention_name(op: Attention, tiles: AttentionTiles) -> list[str]:
    """Parts of the file name that tell an attention kernel from its neighbours."""
    parts = [f"d{op.d}", f"q{tiles.tile_q}", f"kv{tiles.tile_kv}", f"w{tiles.waves}"]
    if tiles.atom.n < WIDE_ATOM <= tiles.tile_q and tiles.tile_q % WIDE_ATOM == 0:
        parts.append(f"{tiles.atom.m}x{tiles.atom.n}")
    if op.variant != "chained":
        parts.append(op.variant)
    parts += [f"g{op.group}"] if op.group > 1 else []
    parts += [] if op.softmax_scale is None else [f"scale{op.scale!r}"]
    parts += ["lse"] if op.lse else []
    for name in OPTIONS:
        value = getattr(op, name)
        if value:
            parts.append(name.replace("_", "") if value is True else f"{name.replace('_', '')}{value!r}")
    return [*parts, *([f"split{tiles.splits}"] if tiles.splits > 1 else [])]
