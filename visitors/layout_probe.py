"""Inputs of the fragment-layout probe: matrices whose product has no two equal elements, packed to words."""

from __future__ import annotations

from collections.abc import Sequence
from math import frexp

from closedform.hw.atoms import MFMAAtom
from closedform.hw.dtypes import DType
from closedform.hw.errors import BadInput
from closedform.hw.fragments import FragmentMap

__all__ = ["encode", "pack", "probe_matrices", "unpack_integers"]

Matrix = list[list[int]]


def probe_matrices(atom: MFMAAtom) -> tuple[Matrix, Matrix]:
    """A [m, k] and B [k, n] of small whole numbers, exact in the type; C[i][j] = n * i + j, all different.

    Each term of the sum over k carries a part of n * i + j. Two terms do for wide types: n * i and 1 * j. With
    more, i and j are split into digits, so that every factor is exact in its type. The terms are spread over
    k, so that a wrong k map shows too. Raises BadInput for several blocks, and for fewer than two terms.
    """
    if atom.blocks != 1 or atom.k < 2:
        raise BadInput(f"{atom} is not one block with at least two terms")
    rows = [_row_factors(atom, i) for i in range(atom.m)]
    columns = [_column_factors(atom, j) for j in range(atom.n)]
    count = len(columns[0])
    a = [[0] * atom.k for _ in range(atom.m)]
    b = [[0] * atom.n for _ in range(atom.k)]
    for term in range(count):
        place = atom.k - 1 - term * atom.k // count
        for i, factors in enumerate(rows):
            a[i][place] = factors[term]
        for j, factors in enumerate(columns):
            b[place][j] = factors[term]
    return a, b


def _is_narrow(atom: MFMAAtom) -> bool:
    """Types of 4 and 6 bits hold no factor above 6 that all of them share."""
    return atom.dtype_a.bits < 8


def _row_factors(atom: MFMAAtom, i: int) -> list[int]:
    if atom.k < 4:
        return [i, 1]
    if not _is_narrow(atom):
        return [2 * (i // 4), i % 4, 1, 1]
    low, middle, high = i % 4, i // 4 % 4, i // 16
    return [2 * low] * (atom.n // 8) + [2 * middle] * (atom.n // 2) + [6 * high] * 14 + [4 * high, 1, 1, 4]


def _column_factors(atom: MFMAAtom, j: int) -> list[int]:
    n = atom.n
    if atom.k < 4:
        return [n, j]
    if not _is_narrow(atom):
        return [2 * n, n, 4 * (j // 4), j % 4]
    return [4] * (n // 8) + [4] * (n // 2) + [6] * 14 + [2, j % 4, 4 * (j // 4 % 2), 2 * (j // 8)]


def encode(value: int, dtype: DType) -> int:
    """Bits of a small whole number in the type; BadInput where it is not exact.

    Floats of every flavour: sign, exponent of bits - precision bits, precision - 1 bits of significand;
    the exponent's bias is one more in the FNUZ flavour.
    """
    if not dtype.is_float:
        if not -dtype.max_finite - 1 <= value <= dtype.max_finite:
            raise BadInput(f"{value} is not exact in {dtype}")
        return value % (1 << dtype.bits)
    if value == 0:
        return 0
    precision = 24 if dtype.name == "xf32" else dtype.precision  # stored as f32, rounded by the instruction
    significand, exponent = frexp(value)
    scaled = significand * (1 << dtype.precision)
    bias = (1 << (dtype.bits - precision - 1)) - (0 if dtype.flavour == "fnuz" else 1)
    biased = exponent - 1 + bias
    if value < 0 or value > dtype.max_finite or scaled != int(scaled) or biased < 1:
        raise BadInput(f"{value} is not exact in {dtype}")
    hidden = 1 << (precision - 1)
    return biased * hidden + int(significand * 2 * hidden) - hidden


def pack(matrix: Matrix, fragment_map: FragmentMap, dtype: DType) -> list[list[int]]:
    """Registers of each lane, [lanes, registers], as signed 32-bit numbers: element e lies at bit e * bits.

    `matrix` is indexed by the map's first axis, then its second; B [k, n] must be given transposed.
    """
    row, column, _ = fragment_map.axes
    lanes = []
    for lane in range(fragment_map.lanes):
        bits = 0
        for element in range(fragment_map.elements):
            place = fragment_map.coords(lane, element)
            bits |= encode(matrix[place[row]][place[column]], dtype) << element * dtype.bits
        words = range(fragment_map.elements * dtype.bits // 32)
        lanes.append([_signed(bits >> 32 * word & 0xFFFFFFFF) for word in words])
    return lanes


def _signed(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word


def unpack_integers(lanes: Sequence[Sequence[float]], fragment_map: FragmentMap) -> Matrix:
    """The matrix that fragments [lanes, elements] hold."""
    row, column, _ = fragment_map.axes
    shape = fragment_map.shape
    matrix = [[0] * shape[column] for _ in range(shape[row])]
    for lane, elements in enumerate(lanes):
        for element, value in enumerate(elements):
            place = fragment_map.coords(lane, element)
            matrix[place[row]][place[column]] = int(value)
    return matrix
