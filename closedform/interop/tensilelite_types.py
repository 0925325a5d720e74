"""Types by the words of TensileLite and hipBLASLt."""

from __future__ import annotations

from closedform.hw.dtypes import ALIASES, dtype
from closedform.hw.errors import BadInput, near_names

__all__ = ["bench_word", "compute_word", "family_of", "letters_of"]

#: Family of ours: letters in YAML and names, word of hipblaslt-bench.
_WORDS = {
    "f64": ("D", "f64_r"),
    "f32": ("S", "f32_r"),
    "xf32": ("S", "f32_r"),
    "f16": ("H", "f16_r"),
    "bf16": ("B", "bf16_r"),
    "i8": ("I8", "i8_r"),
    "i32": ("I", "i32_r"),
    "fp8": ("F8", "f8_r"),
    "bf8": ("B8", "bf8_r"),
}
_COMPUTE = {"f64": "f64_r", "xf32": "xf32_r", "i8": "i32_r"}


def letters_of(name: str) -> str:
    """Letters of a type of ours; of an 8-bit float N says FNUZ.

    >>> letters_of("bf16"), letters_of("fp8_e4m3fnuz"), letters_of("fp8_e4m3fn")
    ('B', 'F8N', 'F8')
    """
    kind = dtype(name)
    if kind.family not in _WORDS:
        raise BadInput(f"TensileLite has no {kind.name}: {near_names(kind.family, _WORDS)}")
    return _WORDS[kind.family][0] + ("N" if kind.flavour == "fnuz" else "")


def family_of(letters: str) -> str:
    """The family of ours by its letters, without the flavour."""
    plain = letters.removesuffix("N")
    for family, (known, _) in _WORDS.items():
        if known == letters or (known == plain and family in ALIASES):
            return family
    raise BadInput(f"{letters!r} is no type of TensileLite that is known here")


def bench_word(name: str) -> str:
    """Word of hipblaslt-bench.

    >>> bench_word("fp8_e4m3fnuz"), bench_word("bf16")
    ('f8_fnuz_r', 'bf16_r')
    """
    kind = dtype(name)
    if kind.family not in _WORDS:
        raise BadInput(f"hipBLASLt has no {kind.name}: {near_names(kind.family, _WORDS)}")
    word = _WORDS[kind.family][1]
    return word.replace("_r", "_fnuz_r") if kind.flavour == "fnuz" else word


def compute_word(name: str) -> str:
    """Type of the sum in hipblaslt-bench, for products of that type."""
    return _COMPUTE.get(dtype(name).family, "f32_r")
