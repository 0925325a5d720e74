"""Rounds, wave quantisation and cache hits as plain geometry. Source: Origami, as explained in the cited article."""

from __future__ import annotations

from typing import Any

__all__ = ["distinct_share", "hit_rate", "rounds", "utilisation"]


def rounds(tiles: int, cus: int) -> int:
    """Rounds that `tiles` workgroups take on `cus` compute units: ceil(tiles / cus).

    >>> rounds(20, 8)
    3
    """
    return -(-tiles // cus)


def utilisation(tiles: int, cus: int) -> float:
    """Share of the slots of all rounds that hold work: tiles / (rounds * cus).

    >>> round(utilisation(20, 8), 2)
    0.83
    """
    return tiles / (rounds(tiles, cus) * cus)


def distinct_share(blocks_m: Any, blocks_n: Any, tile_m: Any, tile_n: Any) -> Any:
    """Share of requested bytes that is distinct when blocks_m x blocks_n workgroups share a cache: 1 - hit rate."""
    return (blocks_m * tile_m + blocks_n * tile_n) / (blocks_m * blocks_n * (tile_m + tile_n))


def hit_rate(blocks_m: Any, blocks_n: Any, tile_m: Any, tile_n: Any) -> Any:
    """H = 1 - (M_C t_M + N_C t_N) / (M_C N_C (t_M + t_N)) of M_C x N_C workgroups that share a cache.

    Holds while the slices of one k step stay in the cache, which `gemm_time` checks through its capacity terms.

    >>> hit_rate(4, 4, 128, 128), hit_rate(8, 8, 128, 128)
    (0.75, 0.875)
    """
    return 1 - distinct_share(blocks_m, blocks_n, tile_m, tile_n)
