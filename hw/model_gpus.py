"""GPUs that only the latency model knows: no code is emitted for them, so they have rates but no fragment maps.

A descriptor of `model_gpus.csv` is complete in itself; its matrix instructions are rows of `model_atoms.csv`, each the
share of one wave. A compute unit is a streaming multiprocessor, a wave a warp of `wavefront_size`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from .atoms import MFMAAtom
from .descriptor import HardwareDescriptor
from .dtypes import DTYPES
from .tables import read_facts

__all__ = ["model_gpu", "model_gpu_names"]

NOT_EMITTED = "the model knows this GPU, the emitter does not"


@cache
def model_gpu_names() -> tuple[str, ...]:
    """Names of the GPUs that only `predict`, `select` and `fit` take.

    >>> model_gpu_names()
    ('h200',)
    """
    return tuple(dict.fromkeys(row["gpu"] for row in read_facts("model_gpus.csv", key=("gpu", "field"))))


def model_gpu(name: str, parse: Callable[[str, str, str], Any]) -> HardwareDescriptor:
    """The descriptor of that name; `parse` reads the text of a field in its unit."""
    rows = [row for row in read_facts("model_gpus.csv", key=("gpu", "field")) if row["gpu"] == name]
    values = {row["field"]: parse(row["field"], row["value"], row["unit"]) for row in rows}
    return HardwareDescriptor(
        name=name,
        atoms=_atoms(values["gfx"]),
        sources={row["field"]: row["source"] for row in rows},
        **values,
    )


def _atoms(gfx: str) -> tuple[MFMAAtom, ...]:
    rows = [row for row in read_facts("model_atoms.csv", key=("gfx", "instruction")) if row["gfx"] == gfx]
    return tuple(
        MFMAAtom(
            instruction=row["instruction"],
            gfx=gfx,
            m=int(row["m"]),
            n=int(row["n"]),
            k=int(row["k"]),
            blocks=1,
            dtype_a=DTYPES[row["dtype"]],
            dtype_b=DTYPES[row["dtype"]],
            dtype_acc=DTYPES[row["dtype_acc"]],
            cycles=int(row["cycles"]),
            coexec_valu_clocks=None,
            acc_only=False,
            map_a="",
            map_b="",
            map_c="",
            source=row["source"],
            note=row["note"],
            emit=None,
            emit_reason=NOT_EMITTED,
            emit_source="",
            rocdl_op="",
            rocdl_operand="",
        )
        for row in rows
    )
