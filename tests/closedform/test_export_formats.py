"""The JSON that exports write, against schemas of what each tool's file must have."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from closedform.hw import catalogue
from closedform.interop.exporting import export_gemm, export_operator
from closedform.operators.attention import Attention
from closedform.operators.conv2d import Conv2d
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


#: The same of attention and convolutions.
CACHE = FORMATS["triton"]
BACKEND = "matrix_instr_nonkdim waves_per_eu kpack"


def cache_of(blocks: str) -> dict[str, Any]:
    """An autotune cache whose Configs have those blocks."""
    found = copy.deepcopy(CACHE)
    config = found["properties"]["configs_timings"]["items"]["prefixItems"][0]
    config["properties"]["kwargs"] = of(required="", integers=f"{blocks} {BACKEND}")
    return found


def artifact_of(key: str, config: str, **words: Any) -> dict[str, Any]:
    """An artifact with those names."""
    found = copy.deepcopy(FORMATS["flydsl"])
    found["properties"]["identity"]["properties"]["key"] = of(required="", integers=key)
    found["properties"]["config"] = of(required=" ".join(words), integers=config, **words)
    return found


FORWARD = of(
    required="PRELOAD_V", integers="BLOCK_M BLOCK_N waves_per_eu num_warps num_ctas num_stages", PRELOAD_V=FLAG
)
OTHERS = {
    ("attention", "triton"): cache_of("BLOCK_M BLOCK_N"),
    ("conv2d", "triton"): cache_of("BLOCK_M BLOCK_N BLOCK_K"),
    ("attention", "aiter"): of(required="fwd", fwd=of(required="default", default=FORWARD)),
    ("attention", "tilelang"): {
        "type": "array",
        "items": of(
            required="enable_rasterization",
            integers="block_M block_N num_split_q threads num_stages k_pack panel_size "
            "qk_coalesced_width v_coalesced_width",
            enable_rasterization=FLAG,
        ),
    },
    ("attention", "flydsl"): artifact_of(
        "num_heads num_kv_heads head_dim batch_size seq_len seq_len_kv",
        "block_m flat_work_group_size waves_per_eu",
        path_tag={"const": "N32"},
    ),
    ("conv2d", "flydsl"): artifact_of(
        "n c d h w k kt kh kw st sh sw pt ph pw dt dh dw groups", "TILE_M TILE_N WAVE_M WAVE_N WGM"
    ),
}
OPERATORS: dict[str, Any] = {
    "attention": Attention(4096, 4096, 128, heads=16, dtype="bf16"),
    "conv2d": Conv2d(8, 64, 56, 56, 64, 3, 3, pad=1, dtype="bf16"),
}


@pytest.mark.parametrize(("operator", "to"), OTHERS)
def test_files_of_other_operators_have_exactly_the_names_of_their_format(operator: str, to: str) -> None:
    made = export_operator(OPERATORS[operator], catalogue.get("mi355x"), to, form="json")
    assert list(Draft202012Validator(OTHERS[operator, to]).iter_errors(json.loads(made.text))) == []


@pytest.mark.parametrize("gpu", ["mi300x", "mi355x"])
@pytest.mark.parametrize("to", FORMATS)
def test_files_have_exactly_the_names_of_their_format(to: str, gpu: str) -> None:
    made = export_gemm(Gemm(4096, 4096, 4096, dtype="bf16", layout="NT"), catalogue.get(gpu), to, form="json")
    assert list(Draft202012Validator(FORMATS[to]).iter_errors(json.loads(made.text))) == []
