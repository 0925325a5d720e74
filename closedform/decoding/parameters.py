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
_PIECE = re.compile(r"(\d?[A-Z]+(?:\d[A-Z]+)*)(n?\d+(?:p\d+)?)?")
_ITEM = re.compile(r"n?\d+")


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
    if head.startswith("ISA") and not rest:
        return "ISA", f"gfx{head.removeprefix('ISA')}"
    if match is not None and match[2] is None and not rest and head not in _table():
        return head, ""
    if match is None or match[2] is None:
        raise Undecodable(f"{piece or 'an empty piece'}: not an abbreviation with a value")
    abbreviation = "AFEM2" if match[1] == "AFEM" and second else match[1]
    parameter, _ = _table().get(abbreviation, (abbreviation, {}))
    if rest:
        return parameter, tuple(_integer(item) for item in (match[2], *rest))
    return parameter, _number(match[2])


def _integer(text: str) -> int:
    return -int(text[1:]) if text.startswith("n") else int(text)


def _number(text: str) -> int | float:
    return float(text.replace("n", "-").replace("p", ".")) if "p" in text else _integer(text)
