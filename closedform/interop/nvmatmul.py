"""The ranked list in the manner of nvMatmulHeuristics: a problem, and the fields of its GemmConfig with run times."""

from __future__ import annotations

import json
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.operators.gemm import Gemm

from .kernel import Kernel
from .rules import Rule
from .tool import Offer, Tool

__all__ = ["TOOL"]

#: Of its layout words, what says row-major.
_ORDER = "_ROW_MAJOR"
_SOURCE = "fields of GemmConfig in nvMatmulHeuristics"
_RULES: tuple[Rule[Offer], ...] = (
    Rule("waves", "a grid, for the warp tile", _SOURCE, lambda o: o.kernel.wave_m is None or o.kernel.wave_n is None),
    Rule("instruction", "of one block", _SOURCE, lambda o: o.kernel.mfma is None or o.kernel.mfma[3] != 1),
    Rule("Stream-K", "is not among the fields", _SOURCE, lambda o: bool(o.kernel.stream_k)),
)


def _config(offer: Offer) -> dict[str, Any]:
    k = offer.kernel
    assert k.mfma is not None
    assert k.wave_m is not None
    assert k.wave_n is not None
    tiles = {
        "cta_tile": (k.tile_m, k.tile_n, k.tile_k),
        "warp_tile": (k.tile_m // k.wave_m, k.tile_n // k.wave_n, k.tile_k),
        "instr_tile": k.mfma[:3],
    }
    return {
        **{f"{name}_{axis}": v for name, tile in tiles.items() for axis, v in zip("mnk", tile, strict=True)},
        "layout": _layout(offer.op),
        "cluster_m": 1,
        "cluster_n": 1,
        "split_k": k.split_k or 1,
        "stages": k.stages or 2,
        "cta_order": 0,
        "swizzle_factor": k.group_m or 1,
        "RUNTIME_S": None if offer.predicted_us is None else offer.predicted_us * 1e-6,
    }


def _layout(op: Gemm) -> str:
    return f"{op.layout}{_ORDER}"


def _write(offers: tuple[Offer, ...]) -> str:
    op = offers[0].op
    problem = {
        "m": op.M,
        "n": op.N,
        "k": op.K,
        "batch_count": op.batch,
        "layout": _layout(op),
        "dtype_a": op.dtype,
        "dtype_b": op.dtype,
        "dtype_c": op.result,
        "dtype_acc": "i32" if op.dtype == "i8" else "f64" if op.dtype == "f64" else "f32",
        "dtype_d": op.result,
    }
    return json.dumps({"problem": problem, "configs": [_config(offer) for offer in offers]}, indent=2) + "\n"


def _read(text: str, hw: HardwareDescriptor) -> tuple[Kernel, ...]:
    body = json.loads(text)
    try:
        problem, configs = body["problem"], body["configs"]
        return tuple(_kernel(problem, words) for words in configs)
    except KeyError as error:
        raise BadInput(f"not a list of configurations of a problem: no {error}") from None


def _kernel(problem: dict[str, Any], words: dict[str, Any]) -> Kernel:
    tile, warp, instruction = (
        tuple(words[f"{name}_{axis}"] for axis in "mnk") for name in ("cta_tile", "warp_tile", "instr_tile")
    )
    return Kernel(
        tile_m=tile[0],
        tile_n=tile[1],
        tile_k=tile[2],
        dtype=problem["dtype_a"],
        out_dtype=problem["dtype_d"],
        layout=problem["layout"].removesuffix(_ORDER),
        mfma=(*instruction, 1),
        wave_m=tile[0] // warp[0],
        wave_n=tile[1] // warp[1],
        stages=words["stages"],
        split_k=words["split_k"],
        group_m=words["swizzle_factor"],
    )


_CARRIES = ("dtype", "out_dtype", "layout", "mfma", "wave_m", "wave_n", "stages", "split_k", "group_m")
TOOL = Tool("nvmatmul", "nvMatmulHeuristics", ".json", _CARRIES, _RULES, _write, _read, features=("batch",))
