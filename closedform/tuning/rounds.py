"""The rounds of our own kernels: one mechanism each, the most effective first, and what each tries."""

from __future__ import annotations

from closedform.hw.descriptor import HardwareDescriptor

from .candidate import Round

__all__ = ["TILE_MOST", "rounds_of"]

#: Tiles that a round measures, the best by the model first.
TILE_MOST = 16
_WAVES = (1, 2, 4)
_WIDTHS = (1, 2, 4, 8, 16)
_ATOMS = ("32x32", "16x16")


def rounds_of(op: str, hw: HardwareDescriptor) -> tuple[Round, ...]:
    """Rounds of the operator's kernels on that GPU; the chiplets are those that divide its compute units."""
    if op == "attention":
        return _ATTENTION
    if op == "conv2d":
        return _CONV2D
    shares = tuple(n for n in (1, 2, 4, 8, 16, 32) if hw.num_cus % n == 0)
    return (
        Round(
            "tile",
            "macro tile, depth, waves and instruction",
            {
                "tile_m": (16, 32, 64, 128, 256),
                "tile_n": (16, 32, 64, 128, 256),
                "tile_k": (16, 32, 64, 128),
                "wave_m": _WAVES,
                "wave_n": _WAVES,
                "atom": _ATOMS,
            },
            reseed=True,
            most=TILE_MOST,
        ),
        Round(
            "split",
            "workgroups that share the sum of a tile, and who adds",
            {"split_k": (1, 2, 3, 4, 6, 8, 12, 16), "split_algorithm": ("workspace", "single")},
            fixed=(("stream_k", 0),),
        ),
        Round(
            "mapping",
            "the order of tiles on compute units and chiplets",
            {"group_m": (1, 2, 4, 8, 16), "xcds": shares, "stagger": (0, 4, 16)},
            most=12,
        ),
        Round("reads", "widths of global reads", {"read_a": _WIDTHS, "read_b": _WIDTHS}, most=8),
        Round(
            "stores",
            "widths of stores and of LDS, pads and buffers",
            {
                "store": _WIDTHS,
                "lds_read": _WIDTHS,
                "lds_write": _WIDTHS,
                "pad": (0, 4, 8, 16),
                "buffers": (1, 2),
            },
            most=12,
        ),
        Round(
            "stream_k",
            "persistent workgroups in the place of a split; the split's best stays where they lose",
            {"stream_k": (hw.num_cus, 2 * hw.num_cus)},
            fixed=(("split_k", 1), ("split_algorithm", "workspace")),
        ),
    )


_ATTENTION = (
    Round(
        "tile",
        "queries of a wave, keys of a step and the instruction",
        {"tile_q": (16, 32, 64, 128), "tile_kv": (16, 32, 64, 128, 256), "atom": _ATOMS},
        reseed=True,
        most=TILE_MOST,
    ),
    Round("waves", "waves of a workgroup", {"waves": (1, 2, 4, 8)}),
)

_CONV2D = (
    Round(
        "tile",
        "channels, rows and columns of a workgroup, and its waves",
        {
            "tile_oc": (16, 32, 64, 128, 256),
            "tile_h": (1, 2, 4, 8, 16),
            "tile_w": (4, 8, 16, 32, 64),
            "wave_oc": _WAVES,
            "wave_px": _WAVES,
        },
        reseed=True,
        most=TILE_MOST,
    ),
    Round("depth", "channels of a step", {"tile_ic": (16, 32, 64, 128)}),
    Round("reads", "widths of global reads", {"read_x": _WIDTHS, "read_w": _WIDTHS}, most=8),
    Round("stores", "width of stores", {"store": _WIDTHS}),
)
