"""The parameters behind SN in a solution name: abbreviations and values, and what each stands for."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from closedform.hw.tables import read_facts

from .errors import Undecodable

__all__ = ["Value", "parameters_of"]

Value = int | float | str | tuple[int, ...]

_FILE = Path(__file__).parent / "parameters.csv"
_PIECE = re.compile(r"(\d?[A-Z]+(?:\d[A-Z]+)*)(n?\d{1,9}(?:p\d{1,9})?)?")
_ITEM = re.compile(r"n?\d{1,9}")
_ISA = re.compile(r"ISA(\d[0-9a-f]{2,3})")
#: Words without a value that names of rocBLAS have.
_BARE = ("ASE", "FMA", "MAC")
#: Parameters that are lists, with their lengths, and those that are fractions; all others are one whole number.
_LISTS = {"MIWaveTile": (2,), "MatrixInstruction": (3, 4), "ThreadTile": (2,), "WorkGroup": (3,)}
_FRACTIONS = ("GlobalReadPerMfma", "LocalWritePerMfma")


@cache
def _table() -> dict[str, tuple[str, dict[str, str]]]:
    """Parameter and the words that its value may be, by abbreviation."""
    found = {}
    for row in read_facts(_FILE, key=("abbreviation",)):
        words = dict(word.split("=") for word in row["words"].split())
        found[row["abbreviation"]] = (row["parameter"], words)
    return found


@cache
def _worded() -> dict[str, tuple[str, str]]:
    """Parameter and value of every piece whose value is a word, such as GSUAMBSK."""
    return {
        abbreviation + word: (parameter, value)
        for abbreviation, (parameter, words) in _table().items()
        for word, value in words.items()
    }


def parameters_of(tail: str) -> dict[str, Value]:
    """Values by full parameter name; an abbreviation that no table of ours names keeps itself as name.

    `tail` is what stands behind `SN_`: pieces joined by underscores, where a piece that is only a number belongs to the
    one before it. A word without a value, which only old names have, gives itself with an empty text. Raises
    Undecodable for a piece that is no abbreviation with a value, and for a second value.

    >>> parameters_of("GSU4_GSUAMBSK_LWPM0p40_MIWT2_1_WGMn8_WG32_8_1")["LocalWritePerMfma"]
    0.4
    """
    found: dict[str, Value] = {}
    for piece in _joined(tail):
        parameter, value = _one(piece, "AssertFree0ElementMultiple" in found)
        if parameter in found:
            raise Undecodable(f"{piece}: a second value of {parameter}")
        found[parameter] = value
    return found


def _joined(tail: str) -> list[str]:
    """The pieces, numbers of a list joined to its abbreviation by commas."""
    pieces: list[str] = []
    for word in tail.split("_"):
        if _ITEM.fullmatch(word):
            if not pieces:
                raise Undecodable(f"{word}: a number that belongs to no parameter")
            pieces[-1] += f",{word}"
        else:
            pieces.append(word)
    return pieces


def _one(piece: str, second: bool) -> tuple[str, Value]:
    """Parameter and value of a piece; `second` where AFEM stands for Free1."""
    if piece in _worded():
        return _worded()[piece]
    head, *rest = piece.split(",")
    match = _PIECE.fullmatch(head)
    isa = _ISA.fullmatch(piece)
    if isa is not None:
        return "ISA", f"gfx{isa[1]}"
    if piece in _BARE:
        return head, ""
    if match is None or match[2] is None:
        raise Undecodable(f"{piece[:40] or 'an empty piece'}: not an abbreviation with a value")
    abbreviation = "AFEM2" if match[1] == "AFEM" and second else match[1]
    parameter, _ = _table().get(abbreviation, (abbreviation, {}))
    if abbreviation in _table():
        _check(piece, parameter, match[2], len(rest) + 1)
    if rest:
        return parameter, tuple(_integer(item) for item in (match[2], *rest))
    return parameter, _number(match[2])


def _check(piece: str, parameter: str, first: str, count: int) -> None:
    """Raises Undecodable where the parameter takes another count of numbers, or no fraction."""
    lengths = _LISTS.get(parameter, (1,))
    if count not in lengths:
        wanted = " or ".join(map(str, lengths))
        raise Undecodable(f"{piece.replace(',', '_')}: {count} numbers where {parameter} has {wanted}")
    if "p" in first and parameter not in _FRACTIONS:
        raise Undecodable(f"{piece}: {parameter} is a whole number")


def _integer(text: str) -> int:
    return -int(text[1:]) if text.startswith("n") else int(text)


def _number(text: str) -> int | float:
    return float(text.replace("n", "-").replace("p", ".")) if "p" in text else _integer(text)
