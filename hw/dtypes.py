"""Element types that matrix instructions take, with the numbers that error bounds need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import BadInput, near_names

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ALIASES", "DTYPES", "DType", "dtype"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    `bits` is the size in a register or in memory (xf32 lives in 32 bits and is rounded by the instruction).
    `precision` counts significand bits with the hidden one, 0 for integers. `family` is the short name
    that several flavours share, and `flavour` is empty where a type has only one.
    """

    name: str
    bits: int
    precision: int
    max_finite: float
    min_normal: float
    family: str
    flavour: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def bytes(self) -> int:
        """Size in bytes; a type smaller than a byte has none and raises BadInput: use `bits`.

        >>> dtype("bf16").bytes
        2
        """
        if self.bits % 8:
            raise BadInput(f"{self.name} has {self.bits} bits: not a whole number of bytes, count bits instead")
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.precision > 0

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding to nearest: 2^-precision; 0.0 for integers.

        >>> dtype("f16").unit_roundoff == 2.0**-11
        True
        """
        return 2.0**-self.precision if self.precision else 0.0

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy type of the same value, or of the raw bits (unsigned) where numpy has no such type."""
        import numpy as np

        native = {"f64": "f8", "f32": "f4", "xf32": "f4", "f16": "f2", "i8": "i1", "i32": "i4", "bf16": "u2"}
        return np.dtype(native.get(self.name, "u1"))


DTYPES: dict[str, DType] = {
    t.name: t
    for t in (
        DType("f64", 64, 53, 1.7976931348623157e308, 2.0**-1022, "f64"),
        DType("f32", 32, 24, 3.4028234663852886e38, 2.0**-126, "f32"),
        DType("xf32", 32, 11, 3.4011621342146535e38, 2.0**-126, "xf32"),
        DType("f16", 16, 11, 65504.0, 2.0**-14, "f16"),
        DType("bf16", 16, 8, 3.3895313892515355e38, 2.0**-126, "bf16"),
        DType("i8", 8, 0, 127.0, 1.0, "i8"),
        DType("i32", 32, 0, 2147483647.0, 1.0, "i32"),
        DType("fp8_e4m3fnuz", 8, 4, 240.0, 2.0**-7, "fp8", "fnuz"),
        DType("bf8_e5m2fnuz", 8, 3, 57344.0, 2.0**-15, "bf8", "fnuz"),
        DType("fp8_e4m3fn", 8, 4, 448.0, 2.0**-6, "fp8", "ocp"),
        DType("bf8_e5m2", 8, 3, 57344.0, 2.0**-14, "bf8", "ocp"),
        DType("fp6_e2m3", 6, 4, 7.5, 1.0, "fp6", "ocp"),
        DType("bf6_e3m2", 6, 3, 28.0, 0.25, "bf6", "ocp"),
        DType("fp4_e2m1", 4, 2, 6.0, 1.0, "fp4", "ocp"),
    )
}

#: Short names that a descriptor resolves to its own flavour.
ALIASES: dict[str, tuple[str, ...]] = {}
for _type in DTYPES.values():
    if _type.flavour:
        ALIASES[_type.family] = (*ALIASES.get(_type.family, ()), _type.name)


def dtype(name: str | DType) -> DType:
    """The type of that full name; BadInput with near names otherwise.

    >>> dtype("bf16").bits
    16
    """
    if isinstance(name, DType):
        return name
    found = DTYPES.get(name)
    if found is not None:
        return found
    if name in ALIASES:
        flavours = " or ".join(ALIASES[name])
        raise BadInput(f"dtype {name!r} depends on the GPU ({flavours}): resolve it with a descriptor")
    raise BadInput(f"unknown dtype {name!r}: {near_names(name, DTYPES)}")
