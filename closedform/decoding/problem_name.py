"""The problem in front of MT in a solution name: indices, types and the epilogue."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import Undecodable

__all__ = ["FAMILIES", "ProblemName", "problem_of"]

#: Types by their letters in names, as families of ours where there is one. F8 and B8 are FNUZ or OCP by the target.
FAMILIES = {
    "4xi8": "i8",
    "F8N": "fp8",
    "B8N": "bf8",
    "F8": "fp8",
    "B8": "bf8",
    "I8": "i8",
    "S": "f32",
    "D": "f64",
    "C": "complex f32",
    "Z": "complex f64",
    "H": "f16",
    "B": "bf16",
    "I": "i32",
    "X": "xf32",
}
_LETTER = "|".join(FAMILIES)
_EIGHT = "F8N|B8N|F8|B8"
#: Input (for 8-bit floats of A and of B), output and compute type. Only sums in f32 or i32 are printed in full, so that
#: the letters B and H at the end of a single type remain the flags beta and high-precision accumulate.
_MIXED = re.compile(rf"(?:({_EIGHT})({_EIGHT})|({_LETTER}))({_LETTER})(S|I)")
_SINGLE = re.compile(rf"({_LETTER})(B?)(H?)")
_OPERANDS = re.compile(rf"({_LETTER})({_LETTER})")
#: k, the index of a batch, is everywhere or nowhere.
_INDICES = re.compile(r"Cij(k?)_A(il|li)\1_B(lj|jl)\1(?=_)")
#: Families of outputs by those of the input, of 8-bit floats that of A, and of the sum.
_EIGHT_OUT = frozenset(("f32", "f16", "bf16", "fp8", "bf8"))
_OUTPUTS = {
    ("f16", "f32"): frozenset(("f32", "f16", "fp8")),
    ("bf16", "f32"): frozenset(("f32", "bf16", "f16")),
    ("i8", "i32"): frozenset(("i32",)),
    ("i8", "f32"): frozenset(("i32", "i8", "f16", "bf16")),
    ("fp8", "f32"): _EIGHT_OUT,
    ("bf8", "f32"): _EIGHT_OUT,
}
_FLAGS = re.compile(r"(B?)(H?)")
#: Words that may follow, in any number.
_EPILOGUE = re.compile(
    rf"Bias(?:{_LETTER})*|BiasSrc[ABD]|FDN|FDMN|Aux(?:{_LETTER})*|Grad(?:{_LETTER})*|AmaxD|SP[AB]|G[GB]|"
    rf"H?A[A-Z]?|NG|SABV?|SCD|SAV|UserArgs|(?:{_LETTER})"
)


@dataclass(frozen=True, slots=True)
class ProblemName:
    """What a name says of its product, column-major: D (M x N, M contiguous) = op(A) op(B).

    `layout` are the letters of A and B, T where k is contiguous in A. `a`, `b` and `multiplied` are families of types
    as stored and as the matrix instruction takes them (a pair), `output` and `compute` those of D and of the sum.
    """

    layout: str
    batched: bool
    a: str
    b: str
    multiplied: tuple[str, str]
    output: str
    compute: str
    epilogue: tuple[str, ...]


def problem_of(text: str) -> ProblemName:
    """The problem; Undecodable with the word that no grammar of ours reads.

    >>> p = problem_of("Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs")
    >>> p.layout, p.a, p.output, p.compute
    ('TN', 'bf16', 'bf16', 'f32')
    """
    match = _INDICES.match(text)
    if match is None:
        raise Undecodable(f"{text[:24]!r} does not begin with the indices of a product, such as Cijk_Alik_Bljk")
    layout = _letter(match[2], "i") + _letter(match[3], "l")
    words = text[match.end() :].removeprefix("_").split("_")
    # Two letters are the stored types of A and B where the types of the product follow them.
    stored = _OPERANDS.fullmatch(words[0]) if len(words) > 1 and _MIXED.fullmatch(words[1]) else None
    if stored is not None:
        words.pop(0)
    types = _type(words.pop(0))
    if types is None:
        raise Undecodable(f"{text!r}: no type that names print")
    pair, output, compute, flags = types
    if words and words[0].startswith("M") and words[0][1:] in FAMILIES:
        multiplied = FAMILIES[words.pop(0)[1:]]
        pair = (multiplied, multiplied)
    if words and not flags and _FLAGS.fullmatch(words[0]):
        words.pop(0)
    for word in words:
        if not _EPILOGUE.fullmatch(word):
            raise Undecodable(f"{word!r} in {text!r} is no part of a problem that is known")
    a, b = (FAMILIES[stored[1]], FAMILIES[stored[2]]) if stored is not None else pair
    return ProblemName(layout, bool(match[1]), a, b, pair, output, compute, tuple(words))


def _letter(indices: str, outer: str) -> str:
    """T or N of an operand by the order of its indices: A is N as ilk and T as lik, B is N as ljk and T as jlk."""
    return "N" if indices.startswith(outer) else "T"


def _type(word: str) -> tuple[tuple[str, str], str, str, bool] | None:
    """Multiplied pair, output, compute, and whether the flags were part of the word; None where it is no type."""
    mixed = _MIXED.fullmatch(word)
    if mixed is not None:
        pair = (FAMILIES[mixed[1] or mixed[3]], FAMILIES[mixed[2] or mixed[3]])
        if FAMILIES[mixed[4]] not in _OUTPUTS.get((pair[0], FAMILIES[mixed[5]]), ()):
            return None
        return pair, FAMILIES[mixed[4]], FAMILIES[mixed[5]], False
    single = _SINGLE.fullmatch(word)
    if single is None:
        return None
    kind = FAMILIES[single[1]]
    compute = {"i8": "i32", "f16": "f32", "bf16": "f32"}.get(kind, kind) if single[3] or kind == "i8" else kind
    return (kind, kind), ("i32" if kind == "i8" else kind), compute, bool(single[2] or single[3])
