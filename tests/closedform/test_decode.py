"""Kernels of other tools read back: names against recorded fields, files, refusals, legality, the comparison."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from closedform.decoding.errors import Undecodable
from closedform.decoding.explanation import Explanation, explained
from closedform.decoding.matrix_instruction import Nine, waves_of
from closedform.decoding.parameters import parameters_of
from closedform.decoding.problem_name import problem_of
from closedform.decoding.readers import decoded
from closedform.hw import catalogue
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.interop.aiter import HEADER
from closedform.interop.exporting import export_gemm
from closedform.interop.tensilelite_rules import RULES, Solution
from closedform.interop.tools import TOOLS, tool_named
from closedform.operators.gemm import Gemm
from closedform.schemas import schema

Run = Callable[..., Result]
RunJson = Callable[..., Any]

CASES = list(csv.DictReader((Path(__file__).parent / "data" / "solution_names.csv").open(newline="")))
#: GPUs whose matrix instructions the targets of the recorded names have.
GPUS = {"gfx908": "mi100", "gfx90a": "mi210", "gfx941": "mi300x", "gfx942": "mi300x", "gfx950": "mi355x"}
PARAMETERS = {
    "GSU": "GlobalSplitU",
    "GSUAlgorithm": "GlobalSplitUAlgorithm",
    "WGM": "WorkGroupMapping",
    "WGMXCC": "WorkGroupMappingXCC",
    "StaggerU": "StaggerU",
    "StaggerUStride": "StaggerUStride",
    "GRVWA": "GlobalReadVectorWidthA",
    "GRVWB": "GlobalReadVectorWidthB",
    "LRVW": "LocalReadVectorWidth",
    "VWA": "VectorWidthA",
    "VWB": "VectorWidthB",
    "SVW": "StoreVectorWidth",
    "LdsPadA": "LdsPadA",
    "LdsPadB": "LdsPadB",
    "PGR": "PrefetchGlobalRead",
    "PLR": "PrefetchLocalRead",
    "1LDSBuffer": "1LDSBuffer",
}
PLAIN = "Cijk_Ailk_Bljk_HHS_BH_MT64x16x64_MI16x16x1_SN_GSU4_MIWT1_1_WG64_4_1"
HALF = "Cijk_Ailk_Bljk_HHS_BH_MT64x16x64_MI16x16x1_SN_MIWT1_1"
HGEMM = "hgemm_bf16_t256x256x64x2_ks1_w2x4x1_gm0_bias0_lnt_phti"
FLYDSL = (
    "flydsl_gemm2_abf16_wbf16_bf16_t128x128x64_split_k4_block_m_warp2_block_n_warp2_block_k_warp1"
    "_async_copyTrue_b_to_ldsTrue_b_preshuffleFalse_c_to_ldsFalse_gfx942"
)


def gpu(name: str = "mi300x") -> HardwareDescriptor:
    return catalogue.get(name)


def explanation(what: str, hw: str = "mi300x") -> Explanation:
    return explained(decoded(what, gpu(hw))[0], gpu(hw), (4096, 4096, 4096, 1))


def wrong_fields(case: dict[str, str]) -> set[str]:
    """Columns in which the answer differs from the record; a field that the name leaves out is not compared."""
    answer = explanation(case["name"], GPUS[case["isa"]]).to_json()
    own = answer["parameters"]
    expected = {
        "tile": ([answer[f"tile_{axis}"] for axis in "mnk"], ("macrotile_m", "macrotile_n", "depthU")),
        "mfma": (answer["mfma"], ("mi_m", "mi_n", "mi_k", "mi_b")),
        "wave_grid": (answer["wave_grid"], ("wave_m", "wave_n")),
        "wave_tile": (own["MIWaveTile"], ("wavetile_m", "wavetile_n")),
    }
    wrong = {name for name, (found, columns) in expected.items() if found != [int(case[c]) for c in columns]}
    if "WorkGroup" in own and "x".join(map(str, own["WorkGroup"])) != case["workgroup"]:
        wrong.add("workgroup")
    named = {column: own[p] for column, p in PARAMETERS.items() if p in own and case[column]}
    return wrong | {column for column, value in named.items() if str(value) != case[column]}


@pytest.mark.parametrize("isa", GPUS)
def test_every_recorded_name_is_read_right(isa: str) -> None:
    cases = [case for case in CASES if case["isa"] == isa]
    wrong = {case["name"]: found for case in cases if (found := wrong_fields(case))}
    # Of hand-edited libraries the name is read as it stands, and the file's fields are other ones.
    edited = {case["name"] for case in cases if case["kind"] == "yaml_disagrees_with_name"}
    assert set(wrong) == edited
    assert all(found <= {"GSU", "WGM", "WGMXCC"} for found in wrong.values())


def test_recorded_kernels_are_legal_where_they_ran() -> None:
    illegal = {c["name"]: r for c in CASES if (r := explanation(c["name"], GPUS[c["isa"]]).reasons)}
    assert illegal == {}


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("foo", "neither a file nor a kernel name"),
        ("Custom_Cijk_Alik_Bljk_HHS_BH_shortname12_gfx942", "custom kernel"),
        ("Cijk_Alik_Bljk_HHS_BH_Bias_shortname3_gfx942", "custom kernel"),
        ("Cijk_Ailk_Bljk_HHS_BH_SN_GSU4", "is not <problem>_MT"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT0x16x64_MI16x16x1_SN_MIWT1_1", "without elements"),
        ("Cijk_Ailk_Bljk_QQS_BH_MT64x16x64_MI16x16x1_SN_MIWT1_1", "no type"),
        ("Cijk_Ailk_Bljk_HHS_BH_Nonsense_MT64x16x64_MI16x16x1_SN_MIWT1_1", "no part of a problem"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64x16x64_MI16x16x1_SN_gsu4", "not an abbreviation"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64x16x64_MI16x16x1_SN_GSU_MIWT1_1", "not an abbreviation"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64x16x64_MI16x16x1_SN_MIWT1_1_", "an empty piece"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64x16x64_MI16x16x1_SN_4_MIWT1_1", "belongs to no parameter"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64x16x64_MI16x16x1_SN_GSU4_GSU5", "a second value"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64x16x64_MI16x16x1_SN_MIWT3_1", "not whole pieces"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64x16x64_MI16x16x1_SN_MIWT2_1_WG64_4_1", "contradict"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64x16x64_MI16x16x1_SN_WG60_4_1", "not whole waves"),
        ("Cijk_Aiii_Bjjj_HHS_BH_MT64x16x64_MI16x16x1_SN_MIWT1_1", "indices of a product"),
        ("Cij_Ailk_Bljk_HHS_BH_MT64x16x64_MI16x16x1_SN_MIWT1_1", "indices of a product"),
        ("Cijkl_Ailk_Bljk_HHS_BH_MT64x16x64_MI16x16x1_SN_MIWT1_1", "indices of a product"),
        ("Cijk_Ailk_Bkkk_HHS_BH_MT64x16x64_MI16x16x1_SN_MIWT1_1", "<problem>_MT|indices of a product"),
        ("Cijk_Ailk_Bljk_DSS_BH_MT64x16x64_MI16x16x1_SN_MIWT1_1", "no type"),
        ("Cijk_Ailk_Bljk_HIS_BH_MT64x16x64_MI16x16x1_SN_MIWT1_1", "no type"),
        (f"{HALF}_MI16_16", "2 numbers where MatrixInstruction has 3 or 4"),
        (f"{HALF}_MI32_32_8_1", "contradict each other"),
        (f"{HALF}_GARBAGE", "not an abbreviation"),
        (f"{HALF}_GSUAXX", "not an abbreviation"),
        (f"{HALF}_SX_GSU1", "not an abbreviation"),
        (f"{HALF}_ISAzzz", "not an abbreviation"),
        (f"{HALF}_LBSPPA1p5", "whole number"),
        (f"{HALF}_WG64_4_0", "not whole waves"),
        (f"{HALF}_WG0_4_1", "not whole waves"),
        (f"{HALF}_GSU4_4", "2 numbers where GlobalSplitU has 1"),
        (f"{HALF}_WGM8_8", "2 numbers"),
        (f"{HALF}_PGR1_2", "2 numbers"),
        (f"{HALF}_SK3_1", "2 numbers"),
        (f"{HALF}_WG64", "1 numbers"),
        (HALF.replace("MIWT1_1", "MIWT1"), "1 numbers where MIWaveTile has 2"),
        (f"{HALF}_GSU{'9' * 5000}", "not an abbreviation"),
        (HALF.replace("MT64", "MT" + "6" * 5000), "<problem>_MT"),
        ("x" * 5000, "neither a file nor a kernel name"),
        ("a8w8_rowwise_256x128x64x128_0x32_2x1_8x32x1_8x32x1_1x32x1x8_8x8x1_1x1_intrawave_v3", "no tile of"),
        (f"hgemm_bf16_t{'9' * 5000}x2x3x2_ks1_w1x1x1", "no name of FlyDSL"),
        ("hgemm_f8_t1x2x3", "no name of FlyDSL"),
        ("flydsl_gemm2_nothing", "no kernel name of AITER"),
    ],
)
def test_other_names_are_refused(name: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        decoded(name, gpu())


@given(
    st.builds(
        Nine,
        st.sampled_from((16, 32)),
        st.sampled_from((16, 32)),
        st.just(16),
        st.sampled_from((1, 2, 4)),
        st.sampled_from((1, 2, 4)),
        st.integers(1, 32),
        st.integers(1, 32),
        st.sampled_from((1, 2, 4)),
        st.sampled_from((1, 2, 4)),
    )
)
def test_tile_and_waves_invert_the_nine_elements(nine: Nine) -> None:
    """From macro tile and wave tile, with the lanes and without, come the waves that the nine numbers make."""
    shape = (nine.m, nine.n, nine.blocks)
    rows = nine.blocks_m * nine.wave_m
    waves = nine.wave_m * nine.wave_n
    along_m = min(rows, nine.blocks)
    expected = (min(rows // along_m, waves), waves // min(rows // along_m, waves))
    lanes = (rows * nine.m, waves * 64 // (rows * nine.m), 1)
    if lanes[0] * lanes[1] == waves * 64:
        found = waves_of(nine.macro_tile, shape, None, lanes)
        assert found is not None
        assert (found.wave_m, found.wave_n, found.tile_m, found.tile_n) == (*expected, nine.tile_m, nine.tile_n)
    found = waves_of(nine.macro_tile, shape, (nine.tile_m, nine.tile_n), None)
    assert found is not None
    assert (found.wave_m, found.wave_n) == expected


#: Names of libraries of other years: rocBLAS's, with words that have no value, and the newest of kernels without MFMA.
OTHER_YEARS = [
    (
        "Cijk_Ailk_Bljk_HBH_MT128x128x16_MI32x32x8x1_SE_1LDSB0_APM1_AF0EM2_AF1EM1_ASE_ASAE01_ASCE01_ASEM1_ETSP_EPS1_"
        "GRVW8_GSU1_GSUASB_ISA90a_K1_KLA_LPA0_MAC_PGR1_PLR1_SU32_SUS256_TT4_64_VW4_WG64_4_1_WGM8",
        ("f16", (128, 128, 16), (32, 32, 8, 1), (2, 2)),
        {"EdgeType": "ShiftPtr", "KernelLanguage": "Assembly", "MAC": "", "AssertFree0ElementMultiple": 2},
    ),
    (
        "Cijk_Alik_Bljk_SB_MT32x64x32_AF0EM8_ASEM8_FL0_GRVW2_ISA908_MDA2_PGR1_PLR1_SU32_TT2_2_VAW1_VW2_WG16_32_1_WGM8",
        ("f32", (32, 64, 32), None, None),
        {"ThreadTile": (2, 2), "GlobalReadVectorWidth": 2, "WorkGroupMapping": 8},
    ),
    (
        "Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT16x16x128_MI16x16x1_SN_LDSB1_GSUAMB_ISA942_K1_LRVW4_MIWT1_1_WG16_4_4",
        ("f32", (16, 16, 128), (16, 16, 4, 1), (1, 1)),
        {"1LDSBuffer": 1, "GlobalSplitUAlgorithm": "MultipleBuffer"},
    ),
]


@pytest.mark.parametrize(("name", "kernel", "parameters"), OTHER_YEARS, ids=["rocblas", "oldest", "newest"])
def test_names_of_other_years(name: str, kernel: tuple[object, ...], parameters: dict[str, Any]) -> None:
    found = decoded(name, gpu("mi210"))[0]
    own = found.kernel.transposed()
    grid = None if own.wave_m is None else (own.wave_m, own.wave_n)
    assert (own.dtype, (own.tile_m, own.tile_n, own.tile_k), own.mfma, grid) == kernel
    assert {p: found.parameters[p] for p in parameters} == parameters
    assert own.waves


@given(
    st.dictionaries(st.from_regex(r"[A-Z]{2,5}", fullmatch=True).filter(lambda s: s != "AFEM"), st.integers(-99, 999))
)
def test_any_abbreviation_keeps_its_number(numbers: dict[str, int]) -> None:
    pieces = [f"X{name}{str(value).replace('-', 'n')}" for name, value in numbers.items()]
    found = parameters_of("_".join(pieces)) if pieces else {}
    assert sorted(map(str, found.values())) == sorted(map(str, numbers.values()))


@pytest.mark.parametrize(
    ("text", "a", "b", "multiplied", "output", "compute"),
    [
        ("SB_UserArgs", "f32", "f32", ("f32", "f32"), "f32", "f32"),
        ("S_MX_B_Bias_HAS_SAV", "xf32", "xf32", ("xf32", "xf32"), "f32", "f32"),
        ("I8BH_HAI_SAV", "i8", "i8", ("i8", "i8"), "i32", "i32"),
        ("HF8_HHS_BH", "f16", "fp8", ("f16", "f16"), "f16", "f32"),
        ("HH_F8B8HS_BH_BiasSH", "f16", "f16", ("fp8", "bf8"), "f16", "f32"),
        ("F8B8S_BH", "fp8", "fp8", ("fp8", "fp8"), "bf8", "f32"),
        ("F8NSS_BH", "fp8", "fp8", ("fp8", "fp8"), "f32", "f32"),
        ("BBS_BH", "bf16", "bf16", ("bf16", "bf16"), "bf16", "f32"),
        ("DB", "f64", "f64", ("f64", "f64"), "f64", "f64"),
    ],
)
def test_types(text: str, a: str, b: str, multiplied: tuple[str, str], output: str, compute: str) -> None:
    found = problem_of(f"Cijk_Ailk_Bjlk_{text}")
    assert (found.a, found.b, found.multiplied, found.output, found.compute) == (a, b, multiplied, output, compute)
    assert found.layout == "NT"


def logic_file(solution: dict[str, Any]) -> str:
    problem = {"DataType": 4, "DestDataType": 4, "ComputeDataType": 0, "TransposeA": False, "TransposeB": False}
    return yaml.safe_dump([{"MinimumRequiredVersion": "4.33.0"}, "s", "gfx942", [], problem, [solution], [], []])


SOLUTION = {
    "SolutionNameMin": PLAIN,
    "MacroTile0": 64,
    "MacroTile1": 16,
    "DepthU": 64,
    "MatrixInstruction": [16, 16, 16, 1],
    "MIWaveTile": [1, 1],
    "WorkGroup": [64, 4, 1],
    "GlobalSplitU": 1,
}


def test_fields_of_yaml_win_over_the_name(tmp_path: Path) -> None:
    path = tmp_path / "logic.yaml"
    path.write_text(logic_file(SOLUTION))
    (found,) = decoded(str(path), gpu())
    assert found.name == PLAIN
    assert found.parameters["GlobalSplitU"] == 1  # 4 by the name
    assert (found.kernel.tile_m, found.kernel.wave_n, found.kernel.dtype) == (16, 4, "f16")
    assert found.gfx == "gfx942"


@pytest.mark.parametrize(
    ("change", "problem", "what"),
    [
        ({"MatrixInstruction": [16, 16, 16, 1, 1, 1, 1, 4, 1], "MacroTile0": 128}, {}, "contradict"),
        ({"MatrixInstruction": [16, 16, 16, 1, 1, 1, 1, 4, 1], "MIWaveTile": [2, 1]}, {}, "contradict"),
        ({"SolutionNameMin": ""}, {"DataType": True}, "DataType True is not known"),
        ({"SolutionNameMin": ""}, {"DataTypeA": 99}, "DataTypeA 99 is not known"),
        ({"SolutionNameMin": ""}, {"DestDataType": "Q"}, "no type of TensileLite"),
    ],
)
def test_contradicting_yaml_is_refused(
    tmp_path: Path, change: dict[str, Any], problem: dict[str, Any], what: str
) -> None:
    path = tmp_path / "logic.yaml"
    known = {"DataType": 4, "DestDataType": 4, "ComputeDataType": 0, "TransposeA": False, "TransposeB": False}
    path.write_text(yaml.safe_dump(SOLUTION | change | {"ProblemType": known | problem}))
    with pytest.raises(Undecodable, match=what):
        decoded(str(path), gpu())


def test_types_and_the_target_of_yaml(tmp_path: Path) -> None:
    problem = {"DataType": "F8NB8N", "DataTypeA": "F8N", "DataTypeB": "B8N", "DestDataType": "H", "ComputeDataType": 0}
    path = tmp_path / "solution.yaml"
    path.write_text(yaml.safe_dump(SOLUTION | {"ISA": [9, 4, 2], "ProblemType": problem}))
    (found,) = decoded(str(path), gpu("mi355x"))
    assert (found.types, found.kernel.out_dtype, found.gfx) == (("bf8", "fp8"), "f16", "gfx942")
    assert any("built for gfx942" in reason for reason in explained(found, gpu("mi355x"), (64, 64, 64, 1)).reasons)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        f"x = ROCmGemmConfig({'-' * 50_000}1)",
        '{"configs_timings": []}',
        '{"kernels": [{"tile_m": 16}]}',
        '{"problem": 1, "configs": [2]}',
        '{"problem": 1, "tile_config": 2}',
        '{"configs_timings": [[{"kwargs": {"BLOCK_M": 1e999, "BLOCK_N": 64, "BLOCK_K": 32}}, 1]]}',
        f'{{"a": {"9" * 5000}}}',
        '{"version": 1, "identity": {"device": {"arch": 942}}, "config": {"block_m": 16}}',
        f"M,N,K,kernelName\n1,1,1,{'x' * 200_000}\n",
        f"M,N,K,splitK,kernelName\n1,1,1,{'9' * 12},flydsl_bpreshuffle_1x1x1_F8_F8_B16_x\n",
    ],
)
def test_odd_files_are_refused_without_innards(run: Run, tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd"
    path.write_text(text)
    result = run("decode", path, "--hw", "mi300x")
    assert result.exit_code == 2, result.output
    assert not re.search("Error|Traceback|NoneType", result.stderr)


@pytest.mark.parametrize(("to", "form"), [("inductor", None), ("aiter", "json"), ("tilelang", None), ("ck", None)])
def test_lds_of_a_file_is_counted_as_its_tool_does(tmp_path: Path, to: str, form: str | None) -> None:
    made = export_gemm(Gemm(4096, 4096, 4096, dtype="bf16", layout="NT"), gpu("mi355x"), to, form=form, count=1)
    own = dataclasses.replace(made.offers[0].kernel, stages=3)
    text = tool_named(to, form).write((dataclasses.replace(made.offers[0], kernel=own),))
    path = tmp_path / made.file
    path.write_text(text)
    needs = explained(decoded(str(path), gpu("mi355x"))[0], gpu("mi355x"), (64, 64, 64, 1), "bf16").needs
    assert needs.lds_bytes == 2 * (own.tile_m + own.tile_n) * own.tile_k * 2


def test_infinite_times_dates_and_numbered_names_are_json(run_json: RunJson, tmp_path: Path) -> None:
    kwargs = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "kpack": 2}
    path = tmp_path / "gemm.autotune.json"
    timings = [[{"kwargs": kwargs, "num_warps": 3, "num_stages": 2}, float("inf")]]
    path.write_text(json.dumps({"key": [], "configs_timings": timings}))
    answer = run_json("decode", path, "--hw", "mi355x", "--dtype", "bf16")
    assert answer["measured_us"] is None
    assert [reason.partition(":")[0] for reason in answer["reasons"]] == ["num_warps", "kpack"]
    path.write_text(yaml.safe_dump(SOLUTION | {"MIWaveTile": [1, 1], 7: 1}) + "When: 2024-01-01\n")
    answer = run_json("decode", path, "--hw", "mi300x")
    assert (answer["parameters"]["7"], answer["parameters"]["When"]) == (1, "2024-01-01")


def test_a_custom_kernel_keeps_its_name(tmp_path: Path) -> None:
    path = tmp_path / "logic.yaml"
    path.write_text(logic_file(SOLUTION | {"CustomKernelName": "Custom_label"}))
    (found,) = decoded(str(path), gpu())
    assert found.name == "Custom_label"
    assert any("label" in note for note in found.notes)


@pytest.mark.parametrize("text", ["- 1\n", "a: [", "x: 1\n", "{}", '{"a": 1}', ""])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ValueError, match=str(path)):
        decoded(str(path), gpu())


def test_triton_cache_gives_the_fastest_first(tmp_path: Path) -> None:
    configs = [
        [{"kwargs": {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}, "num_warps": 4, "num_stages": 2}, 0.5],
        [{"kwargs": {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32}, "num_warps": 8, "num_stages": 2}, [0.25, 0.2, 0.3]],
    ]
    path = tmp_path / "gemm.autotune.json"
    path.write_text(json.dumps({"key": [], "configs_timings": configs}))
    first, second = decoded(str(path), gpu())
    assert (first.kernel.tile_m, first.kernel.waves, first.measured_us) == (128, 8, 250.0)
    assert second.kernel.tile_m == 64
    answer = explained(first, gpu(), (512, 512, 512, 1), "bf16")
    assert answer.needs.lds_bytes == (128 + 64) * 32 * 2
    assert answer.predicted_us


def test_flydsl_artifact(tmp_path: Path) -> None:
    config = {"block_m": 128, "block_n": 64, "block_k": 64, "m_waves": 2, "n_waves": 2, "stages": 2}
    identity = {"name": "gemm", "key": {"M": 1, "N": 2, "K": 64}, "device": {"arch": "gfx950", "compute_units": 256}}
    path = tmp_path / "gemm-0.json"
    path.write_text(json.dumps({"version": 1, "identity": identity, "config": config}))
    (found,) = decoded(str(path), gpu("mi355x"))
    assert (found.problem, found.gfx, found.kernel.waves) == ((1, 2, 64, 1), "gfx950", 4)


def test_aiter_rows(tmp_path: Path) -> None:
    row = f"gfx942,304,64,4096,4096,False,torch.bfloat16,torch.bfloat16,False,False,flydsl,1,4,12.5,{FLYDSL},0.0,1,2"
    path = tmp_path / "bf16_tuned_gemm.csv"
    path.write_text(f"{','.join(HEADER)}\n{row}\n")
    (found,) = decoded(str(path), gpu())
    assert (found.kernel.split_k, found.problem, found.measured_us) == (4, (64, 4096, 4096, 1), 12.5)
    ck = "a8w8_rowwise_256x128x64x128_32x32_2x1_8x32x1_8x32x1_1x32x1x8_8x8x1_1x1_intrawave_v3"
    (found,) = decoded(ck, gpu())
    assert (found.kernel.tile_m, found.kernel.tile_n, found.kernel.wave_m, found.kernel.wave_n) == (128, 64, 2, 2)


def test_an_exponent_of_a_table_is_a_split(tmp_path: Path) -> None:
    """Of CK's kernels splitK is an exponent; the rows of 8-bit tables name the type of W."""
    name = "a8w8_blockscale_1x128x128_256x16x128x256_16x16_16x16_1x2_16x16x1_16x16x1_1x16x1x16_8_1x2_intrawave_v1"
    header = "gfx,cu_num,M,N,K,q_dtype_w,libtype,kernelId,splitK,us,kernelName,tflops,bw,errRatio"
    path = tmp_path / "a8w8_blockscale_tuned_gemm.csv"
    path.write_text(f"{header}\ngfx942,304,16,1536,7168,torch.float8_e4m3fnuz,ck,3,2,9.5,{name},1,2,0.0\n")
    (found,) = decoded(str(path), gpu())
    assert (found.kernel.split_k, found.kernel.dtype, found.kernel.tile_m) == (4, "fp8_e4m3fnuz", 16)
    assert (found.kernel.wave_m, found.kernel.wave_n, found.kernel.mfma_m) == (1, 4, 16)
    older = name.replace("_1x2_16x16x1_16x16x1", "_16x16x1_16x16x1")
    (found,) = decoded(older, gpu())
    assert (found.kernel.wave_m, found.kernel.waves, found.kernel.tile_n) == (None, 4, 128)
    with pytest.raises(BadInput, match="no tile of"):
        decoded(name.replace("_1x2_16x16x1_16x16x1", "_1x4_16x16x1_16x16x1"), gpu())


def test_a_short_name_of_flydsl() -> None:
    kernel = decoded("hgemm_bf16_t48x64x128x3_ksd_w1x4x1", gpu("mi355x"))[0].kernel
    assert (kernel.tile_m, kernel.stages, kernel.wave_n, kernel.split_k, kernel.layout) == (48, 3, 4, None, None)


@pytest.mark.parametrize(
    ("name", "parameters", "layout"),
    [
        ("split without code", {"GlobalSplitU": 0, "StreamK": 0}, "NN"),
        ("one buffer and direct loads", {"1LDSBuffer": 1, "DirectToLds": 1}, "NN"),
        ("transposed LDS of NT", {"TransposeLDS": 1}, "NT"),
        ("direct loads against the order of LDS", {"DirectToLdsA": 1, "TransposeLDS": 0}, "TN"),
        ("direct loads against the order of LDS", {"DirectToLdsB": 1, "TransposeLDS": 2}, "NT"),
        ("chiplets", {"WorkGroupMappingXCC": 32}, "NN"),
        ("one mapping", {"WorkGroupMappingXCC": 8, "StreamKXCCMapping": 8}, "NN"),
        ("Stream-K and a split", {"StreamK": 3, "GlobalSplitU": 2}, "NN"),
        ("waves of Stream-K", {"StreamK": 3, "MIWaveGroup": (2, 4)}, "NN"),
        ("vector widths", {"MIWaveTile": (3, 1), "VectorWidthA": 2}, "NN"),
        ("global reads", {"GlobalReadVectorWidthA": 16}, "NN"),
        ("accumulators", {"MIWaveTile": (16, 8), "MatrixInstruction": (16, 16, 16, 1)}, "NN"),
    ],
)
def test_rules_of_tensilelite(name: str, parameters: dict[str, Any], layout: str) -> None:
    broken = [rule.name for rule in RULES if rule.broken(Solution(parameters, layout, 304, (2, 2)))]
    assert broken == [name]
    assert not any(rule.broken(Solution({}, layout, 304, (2, 2))) for rule in RULES)


@pytest.mark.parametrize(
    ("name", "hw", "reason"),
    [
        (HGEMM, "mi300x", "no matrix instruction of 16x16x32x1|of LDS"),
        (FLYDSL, "mi355x", "built for gfx942"),
        ("Cijk_Ailk_Bljk_F8F8S_BH_MT64x16x64_MI16x16x1_SN_MIWT1_1", "mi210", "has no fp8"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT256x256x128_MI16x16x1_SN_MIWT8_8", "mi300x", "of LDS"),
        ("Cijk_Ailk_Bljk_ZB_MT64x16x64_MI16x16x1_SN_MIWT1_1", "mi300x", "complex f64"),
        ("Cijk_Ailk_Bljk_DB_MT64x16x64_MI16x16x1_SN_MIWT1_1", "mi100", "no matrix instruction of 16x16"),
        ("Cijk_Ailk_Bljk_S_MX_B_MT64x16x64_MI16x16x1_SN_MIWT1_1", "mi355x", "no matrix instruction of 16x16"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64x16x64_MI16x16x32x1_SN_MIWT1_1", "mi300x", "16x16x32x1 for f16"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64x16x64_MI16x16x2_SN_MIWT1_1", "mi300x", "of 2 blocks for f16"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64x16x24_MI16x16x16x1_SN_MIWT1_1", "mi300x", "not whole instructions"),
        (HALF, "h200", "64 lanes"),
        (FLYDSL.replace("_gfx942", ""), "h200", "64 lanes"),
        (f"{HALF}_SK9", "mi300x", "StreamK=9"),
        (f"{HALF}_GSU5000", "mi300x", "GlobalSplitU=5000"),
        (f"{HALF}_WGM5000", "mi300x", "WorkGroupMapping=5000"),
        (f"{HALF}_PGR7", "mi300x", "PrefetchGlobalRead=7"),
        (f"{HALF}_WGMXCC0", "mi300x", "WorkGroupMappingXCC=0"),
        (f"{HALF}_LRVW99", "mi300x", "LocalReadVectorWidth=99"),
        (FLYDSL.replace("t128x128x64", "t256x256x64"), "mi300x", "of LDS"),
        (FLYDSL.replace("gemm2", "gemm9"), "mi300x", "stages: 2 to 8"),
        ("hgemm_bf16_t256x256x64x1_ks1_w2x4x1", "mi355x", "stages: at least 2"),
        ("hgemm_bf16_t40x256x64x2_ks1_w1x4x1", "mi355x", "wave tiles"),
    ],
)
def test_what_a_gpu_does_not_hold_is_said(name: str, hw: str, reason: str) -> None:
    answer = explanation(name, hw)
    assert not answer.legal
    assert any(re.search(reason, text) for text in answer.reasons)
    assert answer.predicted_us is None


def test_row_major_exchanges_what_counts_rows_and_columns() -> None:
    answer = explanation("Cijk_Alik_Bljk_HHS_BH_MT64x16x64_MI16x16x1_SN_MIWT1_1").to_json()
    assert (answer["tile_m"], answer["tile_n"], answer["layout"]) == (64, 16, "TN")
    kernel = answer["kernel"]
    assert (kernel["tile_m"], kernel["tile_n"], kernel["wave_n"], kernel["layout"]) == (16, 64, 4, "NT")


def test_the_comparison_is_with_the_closed_form(run_json: RunJson) -> None:
    answer = run_json("decode", PLAIN, "--M", 2048, "--N", 2048, "--K", 1024, "--hw", "mi300x")
    assert answer["legal"]
    closed = answer["closed_form"]
    assert answer["slower_by"] == pytest.approx(answer["predicted_us"] / closed["predicted_us"] - 1)
    assert answer["slower_by"] > 0
    assert answer["problem"] == {"M": 2048, "N": 2048, "K": 1024, "batch": 1, "dtype": "f16", "layout": "NN"}


@pytest.mark.parametrize("name", [PLAIN, HGEMM, FLYDSL, CASES[-1]["name"], CASES[60]["name"]])
def test_answers_follow_the_schema(run_json: RunJson, name: str) -> None:
    answer = run_json("decode", name)
    assert list(Draft202012Validator(schema("decode")).iter_errors(answer)) == []


def test_the_target_of_the_name_chooses_the_gpu(run_json: RunJson) -> None:
    assert run_json("decode", CASES[-1]["name"])["hw"] == "mi355x"


def test_a_file_is_a_file_whatever_its_name_and_says_its_target(
    run_json: RunJson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"{HALF}_ISA90a").write_text(logic_file(SOLUTION).replace("gfx942", "gfx950"))
    answer = run_json("decode", f"{HALF}_ISA90a")
    assert (answer["hw"], answer["gfx"], answer["parameters"]["GlobalSplitU"]) == ("mi355x", "gfx950", 1)


def test_an_unknown_type_is_bad_input(run: Run) -> None:
    result = run("decode", HGEMM, "--hw", "mi355x", "--dtype", "bf61")
    assert result.exit_code == 2
    assert "bf16" in result.stderr


def test_text_and_status(run: Run, tmp_path: Path) -> None:
    shown = run("decode", PLAIN, "--hw", "mi300x")
    assert shown.exit_code == 0
    assert "kernel    tile 64x16x64  mfma 16x16x16  waves 4x1" in shown.stdout
    assert "row-major tile 16x64x64" in shown.stdout
    assert run("decode", "foo").exit_code == 2
    path = tmp_path / "logic.yaml"
    path.write_text(logic_file(SOLUTION))
    assert run("decode", path, "--number", 2, "--hw", "mi300x").exit_code == 2
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    assert run("decode", binary).exit_code == 2


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.sampled_from(("", "bf16", "NT", "x", "MultipleBuffer")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("any", "values", "M", "kwargs")), inner)
    ),
    max_leaves=4,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_spoilt_file_is_bad_input(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever replaces a value of what export wrote: the file is read, or refused by name."""
    tool = data.draw(st.sampled_from([t for t in TOOLS if t.suffix not in (".py", ".mlir")]))
    made = export_gemm(Gemm(1024, 1024, 1024, dtype="bf16", layout="NT"), gpu(), tool.name, form=tool.suffix)
    loaded = tool.suffix in (".yaml", ".json", ".autotune.json")
    body = yaml.safe_load(made.text) if loaded else made.text.split(",")
    place: Any = body
    while isinstance(place, (dict, list)) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(VALUES)
            break
        place = place[key]
    path = tmp_path / "spoilt"
    path.write_text(
        yaml.safe_dump(body) if tool.suffix == ".yaml" else json.dumps(body) if loaded else ",".join(map(str, body))
    )
    with contextlib.suppress(Undecodable):
        for one in decoded(str(path), gpu()):
            explained(one, gpu(), (64, 64, 64, 1), "bf16").to_json()


def test_the_error_is_typed() -> None:
    with pytest.raises(Undecodable):
        decoded("nothing", gpu())
