"""The JSON that exports write, against schemas of what each tool's file must have."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from closedform.hw import catalogue
from closedform.interop.exporting import export_gemm
from closedform.operators.gemm import Gemm


def of(*, required: str, integers: str = "", **properties: Any) -> dict[str, Any]:
    """A schema of an object with exactly those names."""
    known = {**{name: {"type": "integer", "minimum": 0} for name in integers.split()}, **properties}
    names = [*integers.split(), *required.split()]
    return {"type": "object", "properties": known, "required": names, "additionalProperties": False}


ONE = {
    "type": "object",
    "properties": {"values": {"type": "array", "minItems": 1, "maxItems": 1}},
    "required": ["values"],
}
TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "number", "exclusiveMinimum": 0}, {"type": "boolean"}
CK_TILES = "tile_m tile_n tile_k warp_m warp_n warp_k warp_tile_m warp_tile_n warp_tile_k"
CK_TRAITS = "pipeline scheduler epilogue pad_m pad_n pad_k"
CK_PROBLEM = "layout_a layout_b layout_c datatype_a datatype_b datatype_c"
TRITON = "BLOCK_SIZE_M BLOCK_SIZE_N BLOCK_SIZE_K GROUP_SIZE_M matrix_instr_nonkdim waves_per_eu kpack"
NV_TILES = " ".join(f"{tile}_tile_{axis}" for tile in ("cta", "warp", "instr") for axis in "mnk")
NV_PROBLEM = "layout dtype_a dtype_b dtype_c dtype_acc dtype_d"
#: What the files of tools that do not install here must look like.
FORMATS = {
    "ck": of(
        required="problem tile_config trait_config",
        problem=of(required=CK_PROBLEM, **dict.fromkeys(CK_PROBLEM.split(), TEXT)),
        tile_config=of(required=CK_TILES, **dict.fromkeys(CK_TILES.split(), ONE)),
        trait_config=of(required=CK_TRAITS, **dict.fromkeys(CK_TRAITS.split(), ONE)),
    ),
    "tilelang": {
        "type": "array",
        "items": of(
            required="enable_rasteration",
            integers="block_M block_N block_K num_stages thread_num k_pack panel_size",
            enable_rasteration=FLAG,
        ),
    },
    "nvmatmul": of(
        required="problem configs",
        problem=of(required=NV_PROBLEM, integers="m n k batch_count", **dict.fromkeys(NV_PROBLEM.split(), TEXT)),
        configs={
            "type": "array",
            "items": of(
                required="layout RUNTIME_S",
                integers=f"{NV_TILES} cluster_m cluster_n split_k stages cta_order swizzle_factor",
                layout=TEXT,
                RUNTIME_S=NUMBER,
            ),
        },
    ),
    "triton": of(
        required="key predicted configs_timings",
        predicted=TEXT,
        key={"type": "array"},
        configs_timings={
            "type": "array",
            "items": {
                "type": "array",
                "prefixItems": [
                    of(
                        required="kwargs",
                        integers="num_warps num_ctas num_stages",
                        kwargs=of(required="", integers=TRITON, SPLIT_K={"type": "integer"}),
                    ),
                    NUMBER,
                ],
                "items": False,
            },
        },
    ),
    "aiter": of(
        required="any",
        any=of(
            required="cache_modifier",
            integers=f"{TRITON} num_warps num_stages NUM_KSPLIT",
            cache_modifier={"type": ["string", "null"]},
        ),
    ),
    "flydsl": of(
        required="version identity config",
        version={"const": 1},
        identity=of(
            required="name key device",
            name=TEXT,
            key=of(required="", integers="M N K"),
            device=of(required="name arch", integers="compute_units", name=TEXT, arch=TEXT),
        ),
        config={"type": "object", "additionalProperties": {"type": "integer"}},
    ),
}


@pytest.mark.parametrize("gpu", ["mi300x", "mi355x"])
@pytest.mark.parametrize("to", FORMATS)
def test_files_have_exactly_the_names_of_their_format(to: str, gpu: str) -> None:
    made = export_gemm(Gemm(4096, 4096, 4096, dtype="bf16", layout="NT"), catalogue.get(gpu), to, form="json")
    assert list(Draft202012Validator(FORMATS[to]).iter_errors(json.loads(made.text))) == []
