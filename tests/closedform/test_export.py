"""Exports: round trips of every format, what each tool refuses, the same product in the other storage order."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from closedform.decoding.decoded import Decoded
from closedform.decoding.readers import decoded
from closedform.hw import catalogue
from closedform.hw.errors import BadInput
from closedform.interop import hipblaslt
from closedform.interop.exporting import Place, export_gemm
from closedform.interop.kernel import Kernel, transposed_layout
from closedform.interop.offers import accepted, derived_offer
from closedform.interop.rules import Refused, broken_rules
from closedform.interop.tensilelite import ROUNDS, benchmark, parameters_of_offer, round_values
from closedform.interop.tensilelite_rules import RULES, VALID, Solution, invalid_values
from closedform.interop.tool import Offer, Tool
from closedform.interop.tools import NAMES, TOOLS, tool_named
from closedform.operators.gemm import LAYOUTS, Gemm
from closedform.schemas import schema

Run = Callable[..., Result]
RunJson = Callable[..., Any]

FORMS = [pytest.param(tool, id=f"{tool.name}{tool.suffix}") for tool in TOOLS]
GPUS = ("mi100", "mi210", "mi300x", "mi355x")
SHAPE = ("--M", 4096, "--N", 2048, "--K", 1024, "--dtype", "bf16", "--layout", "NT")


@st.composite
def offers(draw: st.DrawFn, tool: Tool) -> Offer:
    """Kernels that the tool takes, with whole tiles of the product, so that few are thrown away."""
    hw = catalogue.get(draw(st.sampled_from(GPUS)))
    kind = draw(st.sampled_from([t for t in ("f16", "bf16", "f32", "fp8", "i8") if t != "fp8" or hw.fp8_flavour]))
    kind = hw.resolve_dtype(kind).name
    if tool.name in ("flydsl", "aiter") and tool.suffix != ".autotune.json":
        kind = draw(st.sampled_from(("f16", "bf16")))
    atom = draw(st.sampled_from([a for a in hw.atoms_for(kind) if a.blocks == 1]))
    wave_m, wave_n = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 2, 4)))
    tile_m, tile_n = (
        draw(st.sampled_from([t for t in (64, 128, 256) if t % (side * atom.m) == 0] or [side * atom.m]))
        for side in (wave_m, wave_n)
    )
    tile_k = draw(st.sampled_from([t for t in (64, 128) if t % atom.k == 0] or [atom.k]))
    split = draw(st.sampled_from((1, 2, 4)))
    layout = "NT" if tool.name == "aiter" else draw(st.sampled_from(LAYOUTS))
    counts = st.integers(1, 3)
    op = Gemm(tile_m * draw(counts), tile_n * draw(counts), tile_k * split * draw(counts), dtype=kind, layout=layout)
    streams = draw(st.booleans()) and split == 1
    kernel = Kernel(
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=tile_k,
        dtype=kind,
        out_dtype=op.result,
        layout=layout,
        mfma=(atom.m, atom.n, atom.k, 1),
        wave_m=wave_m,
        wave_n=wave_n,
        stages=draw(st.sampled_from((2, 3))),
        split_k=split,
        stream_k=hw.num_cus if streams else 0,
        group_m=draw(st.integers(1, 16)),
        xcds=draw(st.sampled_from((1, 2, 4, 8))),
        waves_per_simd=draw(st.integers(1, 4)),
    )
    offer = Offer(op, hw, kernel, draw(st.one_of(st.none(), st.floats(1, 1e6))))
    for change in ({}, {"stream_k": 0}, {"stream_k": 0, "split_k": 1}):
        changed = dataclasses.replace(offer, kernel=dataclasses.replace(kernel, **change))
        try:
            return accepted(tool, changed)[0]
        except Refused:
            continue
    small = dataclasses.replace(kernel, stream_k=0, split_k=1, xcds=1, stages=2, tile_k=atom.k)
    rejected = broken_rules(tool.rules, dataclasses.replace(offer, kernel=small))
    return draw(st.nothing()) if rejected else dataclasses.replace(offer, kernel=small)


@pytest.mark.parametrize("tool", FORMS)
def test_round_trip(tool: Tool) -> None:
    """What a format keeps of a kernel comes back; what its rules refuse was never there."""

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        offer = data.draw(offers(tool))
        assert not broken_rules(tool.rules, offer)
        assert tool.read(tool.write((offer,)), offer.hw) == (offer.kernel.only(tool.carries),)

    check()


@pytest.mark.parametrize("tool", [p for p in FORMS if p.values[0].many])
def test_a_list_keeps_its_order(tool: Tool) -> None:
    op, hw = Gemm(4096, 4096, 4096, dtype="bf16", layout="NT"), catalogue.get("mi300x")
    made = export_gemm(op, hw, tool.name, form=tool.suffix, count=3)
    assert len(made.offers) == 3
    assert [o.predicted_us for o in made.offers] == sorted(o.predicted_us for o in made.offers if o.predicted_us)
    assert tool.read(made.text, hw) == tuple(o.kernel.only(tool.carries) for o in made.offers)


@pytest.mark.parametrize("gpu", catalogue.names()[:7])
@pytest.mark.parametrize("to", [name for name in NAMES if name != "hipblaslt"])
def test_every_tool_gets_something_legal(to: str, gpu: str) -> None:
    hw = catalogue.get(gpu)
    made = export_gemm(Gemm(2048, 2048, 2048, dtype="f16", layout="NT"), hw, to)
    tool = tool_named(to)
    assert all(not broken_rules(tool.rules, offer) for offer in made.offers)
    assert tool.read(made.text, hw)


@pytest.mark.parametrize("cus", [304, 228, 100, 80, 38, 20])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (64, 64, 65536), (17, 5000, 333)])
def test_what_dominates_tuning_logs_is_never_written(cus: int, layout: str, shape: tuple[int, int, int]) -> None:
    hw = catalogue.get("mi300x").with_cus(cus)
    made = export_gemm(Gemm(*shape, dtype="bf16", layout=layout), hw, "tensilelite")
    ((problem, group),) = yaml.safe_load(made.text)["BenchmarkProblems"]
    own = {name: values[0] for fork in group["ForkParameters"] for name, values in fork.items()}
    letters = "NT"[problem["TransposeA"]] + "NT"[problem["TransposeB"]]
    assert not (own["GlobalSplitU"] == 0 and own["StreamK"] == 0)
    assert not (own["1LDSBuffer"] == 1 and own["DirectToLds"])
    assert not (own["TransposeLDS"] == 1 and letters == "NT")
    assert not own["DirectToLds"]
    assert cus % own["WorkGroupMappingXCC"] == 0
    assert not [r.name for r in RULES if r.broken(Solution(own, letters, cus, (2, 2)))]
    assert set(own) - {"MatrixInstruction", "KernelLanguage"} <= set(VALID)
    assert not invalid_values(own)


def test_plain_json_deals_tiles_to_equal_shares() -> None:
    hw = catalogue.get("mi300x").with_cus(100)
    (kernel,) = json.loads(export_gemm(Gemm(4096, 4096, 4096, dtype="bf16"), hw, "json").text)["kernels"]
    assert 100 % kernel["xcds"] == 0


def column_major(buffer: Any, rows: int, columns: int, letter: str) -> Any:
    """op of an operand as a column-major tool reads its memory."""
    shape = (rows, columns) if letter == "N" else (columns, rows)
    stored = buffer.ravel().reshape(shape, order="F")
    return stored if letter == "N" else stored.T


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_column_major_export_is_the_same_product(layout: str) -> None:
    """TensileLite's A is the memory of our B: its D, column-major, is the memory of ours."""
    op, hw = Gemm(48, 80, 32, dtype="f16", layout=layout), catalogue.get("mi300x")
    offer = derived_offer(op, hw)
    random = np.random.default_rng(0)
    a, b = random.integers(-4, 5, op.shape_a), random.integers(-4, 5, op.shape_b)
    ours = (a if layout[0] == "N" else a.T) @ (b if layout[1] == "N" else b.T)
    (problem, group) = benchmark(offer)["BenchmarkProblems"][0]
    m, n, _, k = group["BenchmarkFinalParameters"][0]["ProblemSizes"][0]["Exact"]
    letters = ["NT"[problem[f"Transpose{name}"]] for name in "AB"]
    theirs = column_major(b, m, k, letters[0]) @ column_major(a, k, n, letters[1])
    assert np.array_equal(theirs.ravel(order="F"), ours.ravel())
    row = hipblaslt.override([(op, hipblaslt.Listed(1, "name"))], "stamp").splitlines()[2].split(",")
    assert row[:2] == letters
    assert [int(v) for v in row[3:6]] == [m, n, k]
    nine = parameters_of_offer(offer)["MatrixInstruction"]
    assert nine[0] * nine[5] * nine[7] == offer.kernel.tile_n
    assert nine[1] * nine[6] * nine[8] == offer.kernel.tile_m


@given(st.sampled_from(LAYOUTS))
def test_the_other_order_of_the_other_order_is_the_first(layout: str) -> None:
    kernel = Kernel(tile_m=1, tile_n=2, tile_k=3, layout=layout, mfma=(4, 5, 6, 1), wave_m=7, wave_n=8, group_m=9)
    assert kernel.transposed().transposed() == kernel
    assert transposed_layout(transposed_layout(layout)) == layout


LISTING = """\
Git Version: abc1234
[0]:transA,transB,...
    --Solution index: 71
    --kernel name:    Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT128x128x64_MI16x16x1_SN_GSU1_MIWT4_4
    --Solution index: 72
    --kernel name:    Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_GSU1_MIWT8_8
    --Solution index: 73
    --kernel name:    Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI32x32x1_SN_GSU1_MIWT2_4_WG128_4_1
    --Solution index: 74
    --kernel name:    Custom_Cijk_Alik_Bljk_BBS_BH_MT256x256x64_label
"""


def test_an_override_takes_the_index_of_our_tile() -> None:
    hw = catalogue.get("mi300x")
    op = Gemm(8192, 4096, 4096, dtype="bf16", layout="NT")
    made = export_gemm(op, hw, "hipblaslt", place=Place(listing=LISTING))
    assert made.text.splitlines()[0] == "Git Version: abc1234"
    ((row, kernel),) = hipblaslt.read_override(made.text, hw)
    assert row["solution_index"] in ("71", "72", "73")
    assert (row["transA"], row["transB"], row["m"], row["n"], row["a_type"]) == ("T", "N", "4096", "8192", "bf16_r")
    tile = made.offers[0].kernel
    assert kernel is not None
    assert (kernel.tile_m, kernel.tile_n, kernel.tile_k) == (tile.tile_m, tile.tile_n, tile.tile_k)


@pytest.mark.parametrize(
    ("fixed", "what"), [({"wave_m": 4, "wave_n": 1}, "has our tile"), ({"pad": 0}, "do not say pad")]
)
def test_a_solution_has_what_is_fixed(fixed: dict[str, int], what: str) -> None:
    op = Gemm(4096, 4096, 4096, dtype="bf16", layout="NT", bias="row")
    offer = derived_offer(op, catalogue.get("mi300x"), tile_m=128, tile_n=128, tile_k=64)
    assert hipblaslt.matched(offer, LISTING).index == 71
    with pytest.raises(Refused, match=what):
        hipblaslt.matched(
            dataclasses.replace(offer, fixed=fixed, kernel=dataclasses.replace(offer.kernel, wave_m=4)), LISTING
        )


def test_stream_k_beyond_the_compute_units_is_said() -> None:
    tool = tool_named("tensilelite")
    offer = derived_offer(Gemm(4096, 4096, 4096, dtype="bf16"), catalogue.get("mi300x"))
    many = dataclasses.replace(offer, kernel=dataclasses.replace(offer.kernel, stream_k=608))
    assert "608 workgroups" in tool.unsaid(many)[0]
    assert not tool.unsaid(offer)


def test_a_name_may_come_before_its_index() -> None:
    pairs = [(one.index, one.name) for one in hipblaslt.listed(LISTING)]
    assert len(pairs) == 3
    backwards = "\n".join(f"name: {name}\nSolution index: {index}" for index, name in pairs)
    assert [(one.index, one.name) for one in hipblaslt.listed(backwards)] == pairs
    lines = "\n".join(f"{name} solution_index={index}" for index, name in pairs)
    assert [(one.index, one.name) for one in hipblaslt.listed(lines)] == pairs


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("BBS_BH", "BSS_BH"),
        ("BBS_BH", "BHS_BH"),
        ("_UserArgs", "_GG_UserArgs"),
        ("_SN_", "_SN_ISA950_"),
        ("BBS", "F8B_BBS"),
    ],
)
def test_solutions_of_other_types_products_and_targets_do_not_match(was: str, now: str) -> None:
    op = Gemm(4096, 4096, 4096, dtype="bf16", layout="NT")
    offer = derived_offer(op, catalogue.get("mi300x"), tile_m=256, tile_n=256, tile_k=64)
    with pytest.raises(Refused, match="has our tile"):
        hipblaslt.matched(offer, LISTING.replace(was, now))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 9999),
    st.integers(1, 9999),
    st.integers(1, 9999),
    st.integers(1, 64),
    st.sampled_from(("f16", "bf16", "f32", "i8")),
    st.sampled_from(LAYOUTS),
    st.integers(0, 10**6),
)
def test_round_trip_of_overrides(M: int, N: int, K: int, batch: int, kind: str, layout: str, index: int) -> None:
    op = Gemm(M, N, K, dtype=kind, layout=layout, batch=batch)
    solution = next(hipblaslt.listed(LISTING)).name
    text = hipblaslt.override([(op, hipblaslt.Listed(index, solution))] * 2, "abc")
    rows = hipblaslt.read_override(text, catalogue.get("mi300x"))
    assert len(rows) == 2
    row, kernel = rows[0]
    assert kernel is not None
    assert tuple(row[name] for name in ("m", "n", "k", "batch_count", "solution_index", "kernel_name")) == (
        *map(str, (N, M, K, batch, index)),
        solution,
    )
    assert transposed_layout(row["transA"] + row["transB"]) == layout


def test_of_several_solutions_the_most_alike_is_taken() -> None:
    op = Gemm(4096, 4096, 4096, dtype="bf16", layout="NT")
    offer = derived_offer(op, catalogue.get("mi300x"), tile_m=256, tile_n=256, tile_k=64, wave_m=2, wave_n=4)
    assert hipblaslt.matched(offer, LISTING).index == 73


@pytest.mark.parametrize(
    ("listing", "error", "what"),
    [
        (None, BadInput, "needs a listing"),
        ("nothing", BadInput, "says the build"),
        ("Git Version: a\nnothing", BadInput, "no solution index"),
        (LISTING.replace("x64_", "x32_"), Refused, "has our tile"),
    ],
)
def test_an_override_without_a_match(listing: str | None, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        export_gemm(
            Gemm(4096, 4096, 4096, dtype="bf16", layout="NT"),
            catalogue.get("mi300x"),
            "hipblaslt",
            place=Place(listing=listing),
        )


@pytest.mark.parametrize("cus", [304, 80, 38])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ROUNDS)
def test_a_rounds_grid_is_legal(name: str, layout: str, cus: int) -> None:
    """Every value beside the others' first, and the incumbent's own value in every list that it may be in."""
    hw = catalogue.get("mi300x").with_cus(cus)
    op = Gemm(4096, 4096, 4096, dtype="bf16", layout=layout)
    offer, _ = accepted(tool_named("tensilelite"), derived_offer(op, hw, tile_m=128, tile_n=128, stream_k=0))
    own = parameters_of_offer(offer)
    ((problem, group),) = benchmark(offer, round_values(offer, name))["BenchmarkProblems"]
    letters = "NT"[problem["TransposeA"]] + "NT"[problem["TransposeB"]]
    opened = {parameter: values for fork in group["ForkParameters"] for parameter, values in fork.items()}
    first = {parameter: values[0] for parameter, values in opened.items()}
    for parameter, values in opened.items():
        for value in values:
            one = {**first, parameter: value}
            assert not invalid_values(one)
            assert not [rule.name for rule in RULES if rule.broken(Solution(one, letters, cus, (2, 2)))]
    if name == "stream_k":
        assert (opened["GlobalSplitU"], opened["StreamK"]) == ([0], [1, 2, 3])
    else:
        assert first == own
    assert all(cus % value == 0 for value in opened["WorkGroupMappingXCC"])
    assert {p for p, values in opened.items() if len(values) > 1} <= set(ROUNDS[name])


def test_no_pad_where_the_tile_fills_the_lds() -> None:
    full = derived_offer(
        Gemm(4096, 4096, 4096, dtype="bf16"), catalogue.get("mi300x"), tile_m=256, tile_n=256, tile_k=64
    )
    assert round_values(full, "stores")["LdsPadA"] == [0]


def test_a_round_without_a_legal_value_is_refused() -> None:
    """Stream-K needs 4 waves: around a kernel of 8 its round is empty."""
    offer = derived_offer(Gemm(4096, 4096, 4096, dtype="bf16"), catalogue.get("mi300x"), wave_m=2, wave_n=4)
    with pytest.raises(Refused, match="StreamK needs 4 waves"):
        round_values(offer, "stream_k")


REFUSALS = [
    ("triton", {"tile_m": 96, "wave_m": 1}, "powers of two"),
    ("iree", {"tile_m": 192, "wave_m": 2, "wave_n": 2}, "divide M, N and K"),
    ("inductor", {"split_k": 2}, "do not split"),
    ("ck", {"split_k": 2}, "k_batch"),
    ("tilelang", {"stream_k": 304}, "not a keyword"),
    ("triton", {"tile_m": 256, "tile_n": 256, "tile_k": 64}, "fit the LDS"),  # what is fixed is not halved
    ("tensilelite", {"xcds": 19}, "validParameters"),
    ("tensilelite", {"pinned": False}, "no place for pinned"),
    ("tensilelite", {"stream_k": 19}, "fixed at run time"),
    ("triton", {"pad": 8, "stagger": 4}, "no place for pad, stagger"),
]


@pytest.mark.parametrize(("to", "overrides", "what"), REFUSALS)
def test_refusals_name_the_rule(to: str, overrides: dict[str, int], what: str) -> None:
    with pytest.raises(Refused, match=what):
        export_gemm(Gemm(4096, 4096, 4096, dtype="bf16", layout="NT"), catalogue.get("mi300x"), to, **overrides)


def test_fixed_knobs_are_parameters_of_tensilelite() -> None:
    op, fixed = Gemm(4096, 4096, 4096, dtype="bf16", lda=8192), {"stagger": 8, "read_a": 4, "store": 4}
    made = export_gemm(op, catalogue.get("mi300x"), "tensilelite", **fixed)
    own = parameters_of_offer(made.offers[0])
    assert (own["StaggerU"], own["GlobalReadVectorWidthB"], own["StoreVectorWidth"]) == (8, 4, 4)
    assert "[4096, 4096, 1, 4096, 4096, 4096, 4096, 8192]" in made.text


def test_parts_of_the_product_that_a_format_lacks_are_said() -> None:
    op = Gemm(4096, 4096, 4096, dtype="bf16", layout="NT", bias="row", activation="relu", lda=8192, batch=2)
    for to in ("triton", "flydsl", "ck"):
        notes = " ".join(export_gemm(op, catalogue.get("mi300x"), to).notes)
        assert all(f"{part} of the product" in notes for part in ("bias", "activation", "strides", "batch"))
    with pytest.raises(Refused, match="batch"):
        export_gemm(op, catalogue.get("mi300x"), "aiter", count=1)


def test_predicted_times_are_no_measured_ones(tmp_path: Path) -> None:
    """Triton's cache is in milliseconds; AITER's table has none that was not measured."""
    op, hw = Gemm(4096, 4096, 4096, dtype="bf16", layout="NT"), catalogue.get("mi300x")
    made = export_gemm(op, hw, "triton", form="json")
    ((_, ms),) = json.loads(made.text)["configs_timings"]
    assert ms * 1000 == made.offers[0].predicted_us
    for file in (made.write(tmp_path), export_gemm(op, hw, "aiter").write(tmp_path)):
        assert decoded(str(file), hw)[0].measured_us is None


def test_aiter_keeps_the_lds() -> None:
    offer = derived_offer(Gemm(4096, 4096, 4096, dtype="bf16", layout="NT"), catalogue.get("mi300x"))
    large = dataclasses.replace(offer.kernel, tile_m=256, tile_n=256, tile_k=64, stages=2, split_k=1, stream_k=0)
    broken = broken_rules(tool_named("aiter").rules, dataclasses.replace(offer, kernel=large))
    assert [rule.name for rule in broken] == ["LDS"]


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
@pytest.mark.parametrize("gpu", ["mi300x", "mi355x"])
def test_eight_bit_kernels_of_tensilelite_come_back(tmp_path: Path, kind: str, gpu: str) -> None:
    hw = catalogue.get(gpu)
    made = export_gemm(Gemm(2048, 2048, 2048, dtype=hw.resolve_dtype(kind).name), hw, "tensilelite")
    (found,) = decoded(str(made.write(tmp_path)), hw)
    assert (found.types, found.kernel.dtype) == ((kind, kind), made.offers[0].kernel.dtype)


def test_a_list_of_none_says_why() -> None:
    with pytest.raises(Refused, match=r"none of the model's kernels .* layout: B stored"):
        export_gemm(Gemm(4096, 4096, 4096, dtype="bf16"), catalogue.get("mi300x"), "aiter", count=2)


@pytest.mark.parametrize("shape", [(1, 4096, 4096), (7, 777, 100), (20000, 16, 64), (64, 64, 65536)])
@pytest.mark.parametrize("to", ["triton", "tensilelite", "nvmatmul", "json"])
def test_odd_shapes_come_back_too(to: str, shape: tuple[int, int, int]) -> None:
    """Predicted times that are none stay out of the files."""
    hw, tool = catalogue.get("mi300x"), tool_named(to)
    made = export_gemm(Gemm(*shape, dtype="f16", layout="TT"), hw, to, count=int(tool.many))
    assert tool.read(made.text, hw) == tuple(o.kernel.only(tool.carries) for o in made.offers)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--to", "tritn"), "did you mean triton"),
        (("--to", "triton", "--form", "xml"), "no form"),
        (("--to", "iree", "--count", 2), "holds one kernel"),
        (("--to", "ck", "--round", "split"), "file of tensilelite"),
        (("--to", "tensilelite", "--round", "splitt"), "did you mean split"),
        (("--to", "json", "--count", 2, "--tile-m", 64), "takes no overrides"),
        (("--to", "hipblaslt", "--count", 2, "--tile-m", 64), "takes no overrides"),
        (("--to", "hipblaslt", "--form", "py"), "no form"),
        (("--to", "triton", "--artifact", "x"), "--artifact is of flydsl"),
        (("--to", "triton", "--device-name", "x"), "--device-name is of flydsl"),
        (("--to", "flydsl", "--git-version", "x"), "--git-version is of hipblaslt"),
    ],
)
def test_bad_input(run: Run, arguments: tuple[object, ...], what: str) -> None:
    result = run("export", "gemm", *SHAPE, "--hw", "mi300x", *arguments)
    assert result.exit_code == 2
    assert what in result.stderr


def test_a_refusal_is_status_4(run: Run) -> None:
    result = run("export", "gemm", *SHAPE, "--hw", "mi300x", "--to", "ck", "--split-k", 2)
    assert result.exit_code == 4
    assert "k_batch" in result.stderr


@pytest.mark.parametrize("to", [name for name in NAMES if name != "hipblaslt"])
def test_json_and_files(run_json: RunJson, tmp_path: Path, to: str) -> None:
    answer = run_json("export", "gemm", *SHAPE, "--hw", "mi355x", "--to", to, "--out", tmp_path)
    assert list(Draft202012Validator(schema("export")).iter_errors(answer)) == []
    (path,) = tmp_path.iterdir()
    assert answer["file"] == str(path)
    assert path.read_text() == answer["text"]


def test_plain_json_follows_its_schema(run: Run) -> None:
    result = run("export", "gemm", *SHAPE, "--hw", "mi300x", "--to", "json", "--count", 3)
    assert list(Draft202012Validator(schema("kernels")).iter_errors(json.loads(result.stdout))) == []


@pytest.mark.parametrize(
    ("to", "form"),
    [
        *(("triton", "json"), ("aiter", "json"), ("flydsl", "py")),
        *((name, None) for name in NAMES if name != "hipblaslt"),
    ],
)
def test_decode_reads_what_export_wrote(tmp_path: Path, to: str, form: str | None) -> None:
    hw = catalogue.get("mi355x")
    made = export_gemm(Gemm(2048, 2048, 2048, dtype="bf16", layout="NT"), hw, to, form=form)
    (found,) = decoded(str(made.write(tmp_path)), hw)
    kernel = made.offers[0].kernel
    assert (found.kernel.tile_m, found.kernel.tile_n, found.kernel.tile_k) == (
        kernel.tile_m,
        kernel.tile_n,
        kernel.tile_k,
    )
    assert not found.refusals


@pytest.mark.parametrize(("bias", "side"), [("row", 2), ("column", 1)])
@pytest.mark.parametrize(("activation", "name"), [("relu", "relu"), ("gelu_tanh", "gelu"), ("silu", "silu")])
def test_tensilelite_has_bias_and_activation(tmp_path: Path, bias: str, side: int, activation: str, name: str) -> None:
    """A bias with an element for each of our rows is along its columns: M and N change places."""
    op, hw = Gemm(512, 256, 256, dtype="bf16", bias=bias, activation=activation), catalogue.get("mi300x")
    made = export_gemm(op, hw, "tensilelite")
    ((problem, group),) = yaml.safe_load(made.text)["BenchmarkProblems"]
    assert (problem["UseBias"], problem["BiasDataTypeList"]) == (side, ["S"])
    assert (problem["Activation"], problem["ActivationType"]) == (True, name)
    final = group["BenchmarkFinalParameters"]
    assert final[1:] == [{"BiasTypeArgs": ["S"]}, {"ActivationArgs": [[{"Enum": name}]]}]
    assert not made.notes
    (found,) = decoded(str(made.write(tmp_path)), hw)
    assert isinstance(found, Decoded)
    assert found.epilogue == ("Bias", *(("FDN",) if side == 2 else ()), f"Activation {name}")


def test_what_tensilelite_cannot_add_is_said() -> None:
    hw = catalogue.get("mi300x")
    made = export_gemm(Gemm(512, 256, 256, dtype="bf16", activation="gelu"), hw, "tensilelite")
    assert "TensileLite has no gelu" in made.notes[0]
    made = export_gemm(Gemm(512, 256, 256, dtype="i8", bias="row"), hw, "tensilelite")
    assert "of i8 a file of TensileLite does not say it" in made.notes[0]
    assert "UseBias" not in made.text
    assert "Activation" not in made.text


def test_other_problems_have_neither_bias_nor_activation() -> None:
    text = export_gemm(Gemm(512, 256, 256, dtype="bf16"), catalogue.get("mi300x"), "tensilelite").text
    assert not any(word in text for word in ("UseBias", "BiasTypeArgs", "Activation"))
