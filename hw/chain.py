"""Chaining two matrix products through registers: C of the first is the B operand of the second.

The first product computes S^T = K Q^T, so its C tiles have keys as rows (m) and queries as columns (n). The
second computes O^T = V^T P^T, whose B operand P^T has queries as columns (n) and sums over keys (k). A sum
may take its terms in any order, so each MFMA of the second product takes whatever keys the lanes hold: no
register leaves its lane, and only the addresses of V follow the order of the keys. Which keys those are is
computed here from the two fragment maps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import gcd
from typing import Any

from .atoms import MFMAAtom
from .errors import BadInput, Infeasible
from .fragments import FragmentMap

__all__ = ["ChainStep", "KeyDigit", "chain", "chain_atoms", "tiles_per_group"]


@dataclass(frozen=True, slots=True)
class KeyDigit:
    """One digit of k: `extent` values at `weight` in k, each worth `stride` keys."""

    weight: int
    extent: int
    stride: int


@dataclass(frozen=True, slots=True)
class ChainStep:
    """One MFMA of the second product.

    `registers[e]` is the (C tile, element) that is element e of B, in every lane. `key_of_k[k]` is the key
    that index k of this step stands for, counted over the rows of the C tiles: tile * M + m.
    """

    registers: tuple[tuple[int, int], ...]
    key_of_k: tuple[int, ...]

    def __post_init__(self) -> None:
        if tuple(self.key(k) for k in range(len(self.key_of_k))) != self.key_of_k:
            raise BadInput(f"the keys {self.key_of_k} are not digits of k")

    def key(self, k: Any) -> Any:
        """`key_of_k` as arithmetic, so that k may be an int, an array or a symbol."""
        offset, digits = self.key_digits
        key = offset
        for digit in digits:
            shifted = k // digit.weight if digit.weight > 1 else k
            top = digit.weight * digit.extent == len(self.key_of_k)
            key = key + digit.stride * (shifted if top else shifted % digit.extent)
        return key

    def key_of_a(self, a: FragmentMap, lane: Any, elem: Any) -> Any:
        """The key whose row of V element `elem` of `lane` must hold in the A operand of this step."""
        return self.key(a.coords(lane, elem)["k"])

    @property
    def key_digits(self) -> tuple[int, tuple[KeyDigit, ...]]:
        """First key, and the digits by which k moves away from it."""
        offset = self.key_of_k[0]
        digits = []
        weight = 1
        while weight < len(self.key_of_k):
            stride = self.key_of_k[weight] - offset
            extent = 2
            while (
                weight * (extent + 1) <= len(self.key_of_k)
                and self.key_of_k[weight * extent] - offset == stride * extent
            ):
                extent += 1
            digits.append(KeyDigit(weight, extent, stride))
            weight *= extent
        return offset, tuple(digits)


def tiles_per_group(c: FragmentMap, b: FragmentMap) -> int:
    """C tiles that a whole number of second MFMAs consumes: 2 for 16x16x32 of gfx950, 1 for 32x32x16."""
    return b.elements // gcd(b.elements, c.elements)


@cache
def chain(c: FragmentMap, b: FragmentMap, tiles: int) -> tuple[ChainStep, ...] | Infeasible:
    """The steps of the second product over a group of `tiles` C tiles, or why the maps do not chain.

    `c` is the C map of the first product and `b` the B map of the second. Registers are taken in order, so
    the steps use each (tile, element) and each key exactly once.

    >>> from closedform.hw.catalogue import get
    >>> f32 = get("mi300x").atom("v_mfma_f32_16x16x4_f32")
    >>> chain(f32.c, f32.b, 1)[1]
    ChainStep(registers=((0, 1),), key_of_k=(1, 5, 9, 13))
    """
    where = f"chaining {c.name} into {b.name}"
    blocks = max(c.shape["block"], b.shape["block"])
    if blocks > 1:
        return Infeasible("one instruction", blocks, 1, "blocks", where, "use an instruction of one block")
    group = tiles_per_group(c, b)
    if tiles < 1 or tiles % group:
        return Infeasible("C", group, tiles, "tiles a group", where, f"use a multiple of {group}")
    steps = []
    for first in range(0, tiles * c.elements, b.elements):
        registers = tuple(divmod(r, c.elements) for r in range(first, first + b.elements))
        keys = _keys_of_step(c, b, registers)
        if isinstance(keys, str):
            return Infeasible(f"exchange between lanes ({keys})", 1, 0, "register", where, "go through LDS")
        steps.append(ChainStep(registers, keys))
    return tuple(steps)


def chain_atoms(first: MFMAAtom, second: MFMAAtom, tiles: int) -> tuple[ChainStep, ...] | Infeasible:
    """`chain` of the C map of `first` with the B map of `second`."""
    return chain(first.c, second.b, tiles)


def _keys_of_step(c: FragmentMap, b: FragmentMap, registers: tuple[tuple[int, int], ...]) -> tuple[int, ...] | str:
    """Key of each k of one step, or what a lane would have to fetch from another."""
    rows = c.shape["m"]
    keys: dict[int, int] = {}
    for elem, (tile, register) in enumerate(registers):
        for lane in range(b.lanes):
            held, wanted = c.coords(lane, register), b.coords(lane, elem)
            if held["n"] != wanted["n"]:
                return f"lane {lane} holds query {held['n']}, B wants {wanted['n']}"
            key = tile * rows + held["m"]
            agreed = keys.setdefault(wanted["k"], key)
            assert agreed == key, "two bijections that agree on n also agree on which lanes share a row"
    return tuple(keys[k] for k in range(b.shape["k"]))
