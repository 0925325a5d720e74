"""Descriptors of the catalogue: capacities, peaks against published ones, types, partitions."""

import dataclasses
import json
import math

import pytest

from closedform.hw import BadInput, catalogue, find, get, names, targets
from closedform.hw.tables import read_facts

PRODUCTS = ("mi100", "mi210", "mi250x", "mi300x", "mi325x", "mi350x", "mi355x")
PEAKS = read_facts("published_peaks.csv", key=("gpu", "unit_kind", "dtype"))
#: Half of the last printed decimal, in TFLOPS.
PRINTED = 0.05
#: gfx950 pages print rounded thousands: 2300, 4600, 9200 for 2306.9 and its multiples, 2500, 5000, 10000 for
#: 2516.6 and its multiples.
ROUNDED = 7e-3
ROUNDED_TYPES = ("f16", "bf16", "fp8", "i8", "fp6", "fp4")


def test_names():
    assert names() == (*PRODUCTS, "paper_a", "paper_b")
    assert targets() == ("gfx908", "gfx90a", "gfx942", "gfx950")


@pytest.mark.parametrize("row", PEAKS, ids=lambda r: f"{r['gpu']}-{r['unit_kind']}-{r['dtype']}")
def test_computed_peaks_agree_with_published_ones(row):
    hw = get(row["gpu"])
    if row["value"] == "none":
        with pytest.raises(BadInput, match="no matrix instruction"):
            hw.peak_tflops(row["dtype"])
        return
    if row["unit_kind"] == "vector":
        rate = getattr(hw, f"vector_{row['dtype']}_flops_per_clk_cu")
        computed = hw.num_cus * hw.clock_mhz * rate / 1e6
    else:
        computed = hw.peak_tflops(row["dtype"])
    loose = hw.gfx == "gfx950" and row["unit_kind"] == "matrix" and row["dtype"] in ROUNDED_TYPES
    if loose:
        assert computed == pytest.approx(float(row["value"]), rel=ROUNDED)
    else:
        assert computed == pytest.approx(float(row["value"]), abs=PRINTED)


def test_contradictory_prints_are_not_followed():
    """490.3 TFLOPS xf32 stands beside 1024 FLOP/clk/CU: that is the 228 CUs of MI300A, not 304."""
    hw = get("mi325x")
    assert hw.peak_tflops("xf32") == pytest.approx(653.7, abs=0.1)
    assert hw.with_cus(228).peak_tflops("xf32") == pytest.approx(490.3, abs=0.1)
    assert get("mi250x").peak_tflops("f16") * 2 == pytest.approx(383.0, abs=0.1)
    assert get("paper_b").printed_peak_tflops_f32 == 383.0
    assert get("paper_b").peak_tflops("f32") == pytest.approx(163.4, abs=0.1)
    assert get("paper_a").peak_tflops("f32") == pytest.approx(46.1, abs=0.1)
    assert get("paper_a").printed_peak_tflops_f32 == 11.5


@pytest.mark.parametrize("name", names())
def test_every_value_of_a_descriptor_has_a_source(name):
    hw = get(name)
    for f in dataclasses.fields(hw):
        if f.name in ("name", "atoms", "sources", "printed_peak_tflops_f32"):
            continue
        assert hw.sources[f.name], f.name


def test_capacities():
    a, b, c, d = (get(n) for n in ("mi100", "mi250x", "mi300x", "mi355x"))
    assert [hw.lds_bytes for hw in (a, b, c, d)] == [65536, 65536, 65536, 163840]
    assert [hw.vgpr_file for hw in (a, b, c, d)] == [256, 512, 512, 512]
    assert [hw.vgpr_unified for hw in (a, b, c, d)] == [False, True, True, True]
    assert [hw.mfma_acc_only for hw in (a, b, c, d)] == [True, False, False, False]
    assert [hw.f32_mfma_coexec_valu for hw in (a, b, c, d)] == [True, True, False, None]
    assert [hw.has_cvt_pk_bf16_f32 for hw in (a, b, c, d)] == [False, False, False, True]
    assert [hw.has_permlane32_swap for hw in (a, b, c, d)] == [False, False, False, True]
    assert [max(hw.direct_to_lds_bytes) for hw in (a, b, c, d)] == [4, 4, 4, 16]
    assert [hw.lds_banks_wide_read for hw in (a, b, c, d)] == [32, 32, 32, 64]
    assert (b.num_cus, b.num_xcds) == (110, 1)
    assert (c.num_cus, c.num_xcds, c.cus_per_xcd) == (304, 8, 38)
    assert c.hbm_bytes == 192 * 10**9
    assert c.hbm_bytes_per_s == 5.3e12
    assert (get("mi350x").mall_bytes, get("mi350x").mall_bytes_per_s) == (256 * 2**20, None)


@pytest.mark.parametrize(("name", "cus", "hbm"), [("paper_a", 120, 1.2e12), ("paper_b", 304, 5.3e12)])
def test_paper_descriptors_have_the_printed_inputs(name, cus, hbm):
    hw = get(name)
    assert (hw.lds_bytes, hw.vgpr_file, hw.vgpr_per_wave_max, hw.wavefront_size) == (65536, 256, 256, 64)
    assert (hw.num_cus, hw.hbm_bytes_per_s) == (cus, hbm)
    [atom] = hw.atoms
    assert (atom.m, atom.n, atom.k, atom.dtype_a.name, atom.dtype_acc.name) == (16, 16, 4, "f32", "f32")


@pytest.mark.parametrize(("cus", "xcds"), [(38, 1), (20, 1), (228, 6), (80, 3), (304, 8)])
def test_partitions(cus, xcds):
    part = get("mi300x").with_cus(cus)
    assert (part.num_cus, part.num_xcds) == (cus, xcds)
    assert part.peak_tflops("f16") == pytest.approx(get("mi300x").peak_tflops("f16") * cus / 304)
    assert part.l2_bytes_per_s == pytest.approx(34.4e12 * xcds / 8)
    assert part.hbm_bytes_per_s == 5.3e12
    assert part.sources["num_cus"] == "given by the caller"


@pytest.mark.parametrize("cus", [0, -1, 1.5, True, "38"])
def test_senseless_numbers_of_cus_are_refused(cus):
    with pytest.raises(BadInput, match="visible CUs"):
        get("mi300x").with_cus(cus)


@pytest.mark.parametrize(
    ("gpu", "alias", "name"),
    [
        ("mi300x", "fp8", "fp8_e4m3fnuz"),
        ("mi300x", "bf8", "bf8_e5m2fnuz"),
        ("mi355x", "fp8", "fp8_e4m3fn"),
        ("mi355x", "bf8", "bf8_e5m2"),
        ("mi355x", "fp4", "fp4_e2m1"),
        ("mi100", "bf16", "bf16"),
    ],
)
def test_types_resolve_to_the_flavour_of_the_gpu(gpu, alias, name):
    assert get(gpu).resolve_dtype(alias).name == name


@pytest.mark.parametrize(
    ("gpu", "name", "message"),
    [
        ("mi100", "fp8", "mi100 .gfx908. has no fp8"),
        ("mi210", "fp8_e4m3fn", "it has no fp8"),
        ("mi300x", "fp8_e4m3fn", "use fp8_e4m3fnuz"),
        ("mi355x", "bf8_e5m2fnuz", "use bf8_e5m2"),
        ("mi300x", "fp4", "has no fp4"),
        ("mi300x", "fp4_e2m1", "it has no fp4"),
        ("mi300x", "f8", "unknown dtype 'f8'"),
    ],
)
def test_types_that_are_not_of_the_gpu_are_refused(gpu, name, message):
    with pytest.raises(BadInput, match=message):
        get(gpu).resolve_dtype(name)
    with pytest.raises(BadInput):
        get(gpu).atoms_for(name)


def test_atoms_come_fastest_first():
    for name in PRODUCTS:
        hw = get(name)
        for dtype in ("f32", "f16", "bf16"):
            rates = [atom.flops_per_clk_cu for atom in hw.atoms_for(dtype)]
            assert rates
            assert rates == sorted(rates, reverse=True)
            assert set(hw.atoms_for(dtype)) <= set(hw.atoms_for(dtype, emittable=False))
    assert get("mi210").atoms_for("bf16")[0].instruction == "v_mfma_f32_16x16x16bf16_1k"
    assert get("mi100").atoms_for("f64", emittable=False) == ()


def test_unknown_instruction_suggests_near_ones():
    with pytest.raises(BadInput, match="did you mean v_mfma_f32_16x16x4f32"):
        get("mi100").atom("v_mfma_f32_16x16x4_f32")
    with pytest.raises(BadInput, match="needs its type: 4 atoms match"):
        dataclasses.replace(get("mi355x"), atoms=get("mi355x").atoms_for("fp8", emittable=False)[:1] * 4).atom(
            "v_mfma_f32_16x16x128_f8f6f4"
        )


@pytest.mark.parametrize("name", ["mi300", "MI300Y", "h100", ""])
def test_unknown_gpu_suggests_near_ones(name):
    with pytest.raises(BadInput, match=r"unknown GPU .*(did you mean|known:)"):
        get(name)


def test_names_match_in_any_case():
    assert get("MI300X") == get("mi300x") == find("Mi300X")


@pytest.mark.parametrize("name", names())
def test_json_holds_everything(name):
    shown = json.loads(json.dumps(get(name).to_json()))
    assert shown["name"] == name
    assert shown["num_cus"] == get(name).num_cus
    assert shown["peak_tflops"]["f32"] == pytest.approx(get(name).peak_tflops("f32"), rel=1e-3)
    assert set(shown) == {f.name for f in dataclasses.fields(get(name))} | {"peak_tflops"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_cus": 0}, "num_cus must be a whole number of at least 1, not 0"),
        ({"num_cus": 2.5}, "num_cus must be a whole number"),
        ({"num_cus": True}, "num_cus must be a whole number"),
        ({"mall_bytes": -1}, "mall_bytes must be a whole number of at least 0"),
        ({"hbm_bytes_per_s": math.nan}, "hbm_bytes_per_s must be a positive number, not nan"),
        ({"hbm_bytes_per_s": math.inf}, "hbm_bytes_per_s must be a positive number, not inf"),
        ({"mall_bytes_per_s": 0.0}, "mall_bytes_per_s must be a positive number, not 0.0"),
        ({"vgpr_unified": 1}, "vgpr_unified must be true or false, not 1"),
        ({"fp8_flavour": "nv"}, "fp8_flavour must be fnuz, ocp or absent"),
        ({"direct_to_lds_bytes": (4, 0)}, "direct_to_lds_bytes must hold whole numbers"),
        ({"num_xcds": 400}, "num_xcds exceeds num_cus"),
        ({"lds_max_per_workgroup_bytes": 65537}, "lds_max_per_workgroup_bytes exceeds lds_bytes"),
        ({"lds_granule_bytes": 65537}, "lds_granule_bytes exceeds lds_bytes"),
        ({"lds_granule_encoded_bytes": 65537}, "lds_granule_encoded_bytes exceeds lds_bytes"),
        ({"vgpr_per_wave_max": 513}, "exceeds vgpr_arch [+] vgpr_acc"),
        ({"vgpr_file": 504}, "vgpr_per_wave_max exceeds the unified vgpr_file"),
        ({"vgpr_unified": False, "vgpr_file": 248}, "exceeds the split vgpr_file"),
        ({"vgpr_file": 516}, "vgpr_file is not a multiple of vgpr_granule"),
        ({"workgroup_max": 1000}, "workgroup_max is not a multiple of wavefront_size"),
        ({"mfma_acc_only": True, "vgpr_acc": 0, "vgpr_per_wave_max": 256}, "mfma_acc_only needs AccVGPRs"),
    ],
)
def test_contradictory_descriptors_are_refused(changes, message):
    with pytest.raises(BadInput, match=message):
        dataclasses.replace(get("mi300x"), **changes)


def test_all_contradictions_are_named_at_once():
    with pytest.raises(BadInput) as caught:
        dataclasses.replace(get("mi300x"), num_cus=-1, clock_mhz=0, vgpr_file=516)
    assert all(name in str(caught.value) for name in ("num_cus", "clock_mhz", "vgpr_file"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("mi1,num_cuss,3,CU,s,read,", "unknown field 'num_cuss'"),
        ("mi1,num_cus,3,furlong,s,read,", "unknown unit 'furlong'"),
        ("mi1,num_cus,3.5,CU,s,read,", "cannot read '3.5' as num_cus"),
        ("mi1,num_cus,,CU,s,read,", "cannot read '' as num_cus"),
        ("mi1,vgpr_unified,yes,,s,read,", "cannot read 'yes' as vgpr_unified"),
        ("mi1,hbm_bytes_per_s,fast,TB/s,s,read,", "cannot read 'fast' as hbm_bytes_per_s"),
        ("mi1,direct_to_lds_bytes,1 x,B,s,read,", "cannot read '1 x' as direct_to_lds_bytes"),
        ("mi1,sources,x,,s,read,", "unknown field 'sources'"),
        ("mi1,num_cus,3,CU,,read,", "without a source"),
    ],
)
def test_malformed_rows_of_the_catalogue_are_refused(tmp_path, row, message):
    path = tmp_path / "gpus.csv"
    path.write_text(f"gpu,field,value,unit,source,status,note\n{row}\n")
    with pytest.raises(BadInput, match=message):
        catalogue._layers(str(path), "gpu")


def test_a_descriptor_is_a_key():
    assert hash(get("mi300x")) == hash(dataclasses.replace(get("mi300x")))
    assert len({get(name) for name in names()}) == len(names())
    assert str(get("mi300x")) == "mi300x (gfx942, 304 CUs)"


def test_unknown_target_suggests_near_ones():
    with pytest.raises(BadInput, match="did you mean gfx942"):
        catalogue.target_layer("gfx941")
