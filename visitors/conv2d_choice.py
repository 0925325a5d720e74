"""Which kernel a convolution gets: MFMAs, or vector instructions where each channel has one filter of its own.

A depthwise filter fills one row of an MFMA's 16. The vector kernel is taken where it is predicted to take fewer clocks,
or where it or one of its knobs is asked for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput, near_names
from closedform.operators.conv2d import KNOBS as MFMA_KNOBS
from closedform.operators.conv2d import Conv2d
from closedform.operators.depthwise import DTYPES
from closedform.operators.depthwise import KNOBS as VECTOR_KNOBS

from .conv2d_default import derive_conv2d, predicted_clocks
from .depthwise_default import derive_depthwise
from .depthwise_default import predicted_clocks as vector_clocks
from .derivation import Derivation

__all__ = ["derive_convolution"]

#: Knobs of each kernel, by its name.
KNOBS = {"mfma": {row.name: row for row in MFMA_KNOBS}, "vector": {row.name: row for row in VECTOR_KNOBS}}


def derive_convolution(op: Conv2d, hw: HardwareDescriptor, **overrides: Any) -> Derivation:
    """Tiles of `op` on `hw` for the kernel of fewer predicted clocks; `overrides` fix the kernel and its knobs.

    Raises BadInput for an unknown knob or value, knobs of different kernels, an operator that the kernel asked for does
    not compute, and a type that the GPU has no atom for.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    kernel = _asked(given)
    possible = op.depthwise and op.dtype in DTYPES and not op.prepacked
    if kernel == "mfma" or (kernel is None and not possible):
        return derive_conv2d(op, hw, **given)
    vector = derive_depthwise(op, hw, **given)
    if kernel == "vector":
        return vector
    mfma = derive_conv2d(op, hw, **given)
    if mfma.tiles is None or vector.tiles is None:
        return mfma if vector.tiles is None else vector
    clocks = {"vector": vector_clocks(vector), "mfma": predicted_clocks(mfma)}
    found, other = (vector, "mfma") if clocks["vector"] <= clocks["mfma"] else (mfma, "vector")
    us = clocks[other] / hw.clock_mhz
    return replace(found, notes=(*found.notes, f"kernel={other}: {us:.1f} us predicted"))


def _asked(given: dict[str, Any]) -> str | None:
    """The kernel that is asked for, by its name or by knobs that no other has."""
    rows = {name: row for knobs in KNOBS.values() for name, row in knobs.items()}
    for name, value in given.items():
        if name not in rows:
            raise BadInput(f"unknown knob {name!r} of conv2d: {near_names(name, rows)}")
        if name != "atom":
            rows[name].check(value)
    kernels = [given["kernel"]] if "kernel" in given else list(KNOBS)
    able = [kernel for kernel in kernels if set(given) <= set(KNOBS[kernel])]
    if not able:
        kernel = kernels[0]
        stray = sorted(set(given) - set(KNOBS[kernel]))
        raise BadInput(f"{stray[0]} is no knob of kernel={kernel}: " + near_names(stray[0], KNOBS[kernel]))
    return able[0] if len(able) == 1 else None
