"""Vector instructions that are plain functions: name -> (type of result, types of sources, function).

Functions get arrays that broadcast to [waves, 64], in the types that the entry names.
"""

from __future__ import annotations

from .valu_float import FLOATS
from .valu_int import INTEGERS

__all__ = ["CLOCKS16", "KEEPS_HIGH", "VALU"]

VALU = {**FLOATS, **INTEGERS}


#: 16-bit results that leave the upper half of the register alone (all other 16-bit results clear it).
KEEPS_HIGH = frozenset(
    {
        *(
            "v_mad_f16",
            "v_fma_f16",
            "v_mad_u16",
            "v_mad_i16",
            "v_div_fixup_f16",
            "v_add_i16",
            "v_sub_i16",
            "v_bitop3_b16",
        ),
        *(f"v_{name}3_{kind}" for name in ("min", "max", "med") for kind in ("f16", "i16", "u16")),
    }
)

#: Quarter-rate instructions: 16 clocks for a wave where the others take 4.
CLOCKS16 = frozenset(
    name
    for name in VALU
    if name.split("_")[1] in ("exp", "log", "rcp", "rsq", "sqrt", "sin", "cos")
    or name in ("v_mul_lo_u32", "v_mul_hi_u32", "v_mul_hi_i32")
)
