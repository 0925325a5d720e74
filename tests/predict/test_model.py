"""The model's sanity: legal, deterministic, comparable with the closed form; the traps."""

import dataclasses

import pytest

import closedform
from closedform.hw import BadInput, catalogue
from closedform.operators.attention import Attention
from closedform.operators.conv2d import Conv2d
from closedform.operators.gemm import Gemm
from closedform.operators.softmax import Softmax
from closedform.predict import gemm_selector, predict_softmax
from closedform.predict.attention_lattice import attention_lattice, check_attention_config
from closedform.predict.constants import COLUMNS, FILE, constants_for, load_constants
from closedform.predict.lattice import check_gemm_config
from closedform.predict.step import registers_per_thread

#: The paper's descriptors have nothing but f32.
GPUS = (*(name for name in catalogue.names() if not name.startswith("paper_")), "h200")


def times(hw, layout, *shape):
    return gemm_selector(hw, "f16", layout).times(*shape)[0]


@pytest.mark.parametrize("gpu", [*catalogue.names(), "h200"])
def test_every_catalogued_gpu_is_predicted_by_the_kernels_of_its_target(gpu):
    hw = catalogue.get(gpu)
    dtype = "bf16" if hw.atoms_for("bf16", emittable=False) else "f32"
    found = closedform.predict(Gemm(512, 512, 512, dtype=dtype), hw)
    assert (found.constants_of == "h200") == (gpu == "h200")
    assert closedform.predict(Attention(512, 512, 64, dtype=dtype), hw).latency_us > 0
    assert predict_softmax(Softmax(512, 512, dtype), hw).latency_us > 0


def test_a_target_without_kernels_is_refused():
    hw = dataclasses.replace(catalogue.get("mi300x"), name="own", gfx="gfx1100", atoms=())
    with pytest.raises(BadInput, match="knows no kernels of gfx1100"):
        constants_for(hw, "staged")


@pytest.mark.parametrize("gpu", GPUS)
def test_the_lattice_is_legal(gpu):
    hw = catalogue.get(gpu)
    selector = gemm_selector(hw, "f16", "NN")
    c = selector.configs
    staged = selector.constants.family == "staged"
    lds = (c.tile_m + c.tile_n) * c.tile_k * 2 * (1 if staged else c.stages)
    assert len(c) > 50
    assert lds.max() <= hw.lds_max_per_workgroup_bytes
    assert registers_per_thread(hw, c).max() < hw.vgpr_per_wave_max
    assert (c.waves * hw.wavefront_size).max() <= hw.workgroup_max


@pytest.mark.parametrize("gpu", GPUS)
def test_what_is_selectable_can_be_asked_for(gpu):
    hw = catalogue.get(gpu)
    for dtype in sorted({a.dtype_a.name for a in hw.atoms if a.dtype_a.bits >= 8}):
        selector = gemm_selector(hw, dtype, "NN")
        for i in range(len(selector.configs)):
            check_gemm_config(hw, selector.constants.family, dtype, selector.configs.at(i), 2**20)
    c = attention_lattice(hw, 128)
    for i in range(len(c)):
        check_attention_config(hw, 128, 2, c.at(i))


def test_selection_is_deterministic_and_batched():
    first = closedform.select(Gemm(4096, 4096, 4096, dtype="bf16"), "h200")
    assert first.to_json() == closedform.select(Gemm(4096, 4096, 4096, dtype="bf16"), "h200").to_json()
    batch = closedform.select_batch([4096, 16], [4096, 8192], [4096, 4096], "h200")
    assert batch["tile_m"][0] == first.best.config["tile_m"]
    assert batch["latency_us"][0] == pytest.approx(first.best.latency_us)
    assert batch["tile_m"][1] <= 32


@pytest.mark.parametrize(("dtype", "gpu"), [("f32", "mi300x"), ("fp8", "mi300x"), ("bf16", "h200"), ("i8", "mi210")])
def test_a_batch_answers_as_one_product_does(dtype, gpu):
    hw = catalogue.get(gpu)
    m, n, k, b = [1, 300, 4096], [7919, 64, 4096], [512, 1, 8192], [1, 7, 2]
    batch = closedform.select_batch(m, n, k, hw, batch=b, dtype=dtype, layout="NT")
    name = hw.resolve_dtype(dtype).name
    for i, shape in enumerate(zip(m, n, k, strict=True)):
        one = closedform.select(Gemm(*shape, batch=b[i], dtype=name, layout="NT"), hw).best
        assert batch["latency_us"][i] == pytest.approx(one.latency_us)


@pytest.mark.parametrize("gpu", ["mi100", "mi210", "mi300x", "mi355x"])
def test_the_closed_form_is_timed_and_compared(gpu):
    for op in (
        Gemm(1000, 700, 3000, dtype="bf16"),
        Gemm(4096, 4096, 4096, dtype="bf16", layout="NT"),
        Attention(2048, 2048, 128, heads=8, dtype="bf16"),
        Attention(1, 64, 72, dtype="f32"),
    ):
        chosen = closedform.select(op, gpu)
        other = chosen.closed_form
        tiles = closedform.derive(op, gpu).tiles
        assert other.candidate.config["waves"] == tiles.waves
        factor = other.candidate.latency_us / chosen.best.latency_us
        expected = "faster than the closed form's" if factor > 1.0005 else "keep them" if factor < 0.9995 else "as fast"
        assert expected in other.why
        assert other.why in chosen.why


def test_without_a_closed_form_the_reason_is_given():
    chosen = closedform.select(Gemm(64, 64, 64, dtype="bf16"), "h200")
    assert chosen.closed_form.candidate is None
    assert "waves of 32 lanes" in chosen.why


@pytest.mark.parametrize("gpu", [*catalogue.names(), "h200"])
@pytest.mark.parametrize("shape", [(2048, 2048, 2048), (16, 8192, 4096), (1, 1, 1)])
def test_the_selected_configuration_is_predicted_as_it_was_ranked(gpu, shape):
    op = Gemm(*shape, dtype="f32" if gpu.startswith("paper_") else "bf16", layout="NT")
    chosen = closedform.select(op, gpu)
    for found in (chosen.best, *chosen.runners_up):
        given = closedform.predict(op, gpu, **found.config)
        assert given.latency_us == pytest.approx(found.latency_us)
        assert given.config == found.config


def test_a_given_configuration_is_what_is_predicted():
    op = Gemm(2048, 2048, 2048, dtype="bf16", layout="NT")
    chosen = closedform.select(op, "h200").best
    assert closedform.predict(op, "h200", **chosen.config).latency_us == pytest.approx(chosen.latency_us)
    slow = closedform.predict(op, "h200", tile_m=16, tile_n=16, tile_k=32, waves=4, stages=2, split_k=1)
    assert slow.latency_us > 2 * chosen.latency_us
    with pytest.raises(BadInput, match="tile_m"):
        closedform.predict(op, "h200", tile_m=0)


def test_one_row_carries_the_launch():
    p = closedform.predict(Gemm(1, 1, 1, dtype="f16"), "mi325x")
    assert p.bound == "launch"
    assert p.latency_us > constants_for(catalogue.get("mi325x"), "staged")["launch_us"]
    assert p.low_us < p.latency_us < p.high_us


@pytest.mark.parametrize(
    ("gpu", "dtype"), [("mi325x", "fp8_e4m3fn"), ("h200", "fp8_e4m3fnuz"), ("mi350x", "fp8_e4m3fnuz")]
)
def test_a_foreign_fp8_is_refused(gpu, dtype):
    with pytest.raises(BadInput, match="is not a type of"):
        closedform.select(Gemm(64, 64, 64, dtype=dtype), gpu)


@pytest.mark.parametrize("cus", [20, 38, 80, 228, 304])
def test_partitions(cus):
    hw = catalogue.get("mi300x").with_cus(cus)
    p = closedform.predict(Gemm(4096, 4096, 4096, dtype="bf16"), hw)
    assert p.latency_us > 0
    assert p.tflops < hw.peak_tflops("bf16")


def test_k_below_the_instruction_still_takes_a_step():
    hw = catalogue.get("mi325x")
    assert times(hw, "NT", 512, 512, 1).min() == pytest.approx(times(hw, "NT", 512, 512, 8).min(), rel=0.02)


def test_other_operators():
    hw = catalogue.get("mi300x")
    conv_op = Conv2d(1, 64, 56, 56, 64, 3, 3, pad=1, dtype="bf16")
    conv = closedform.predict(conv_op, hw)
    assert conv.notes[0] == "as a product of 3136 x 64 x 576"
    assert closedform.select(conv_op, hw).best.latency_us == conv.latency_us
    soft = closedform.predict(Softmax(8192, 8192, "bf16"), hw)
    assert soft.bound == "hbm"
    with pytest.raises(BadInput, match="no lattice of tiles for softmax"):
        closedform.select(Softmax(8, 8), hw)
    assert soft.hbm_bytes == 2 * 2 * 8192 * 8192
    attention = closedform.predict(Attention(4096, 4096, 128, heads=32, dtype="bf16", causal=True), "h200")
    assert (
        attention.latency_us < closedform.predict(Attention(4096, 4096, 128, heads=32, dtype="bf16"), "h200").latency_us
    )


#: How the name of a constant ends: with its unit, or with what it counts.
UNITS = ("_us", "_clk", "_bytes", "_bytes_per_clk", "_share", "_factor", "_steps", "_exponent", "_elements", "_outputs")
COUNTS = ("cus", "power_cus", "cus_half", "registers", "operand_registers", "group_rows", "held_workgroups")


def test_every_constant_names_its_unit():
    for constants in load_constants().values():
        for name in constants:
            assert name.endswith(UNITS) or name in COUNTS or name in ("share_8bit", "share_16bit"), name


def test_a_constant_may_be_that_of_another_set(tmp_path):
    sets = load_constants()
    assert sets["attention", "gfx942"]["latency_clk"] == sets["staged", "mi325x"]["latency_clk"]
    assert sets["attention", "gfx90a"]["direct_share"] == sets["staged", "mi210"]["share_16bit"]
    bad = tmp_path / "constants.csv"
    bad.write_text(",".join(COLUMNS) + "\nattention,x,fill,staged/y/fill,1,0,B,s,2026-01-01\n")
    with pytest.raises(BadInput, match="must be numbers"):
        load_constants(bad)


def test_a_source_says_fitted_only_of_what_a_fit_may_move():
    for constants in load_constants().values():
        for row in constants.rows:
            assert row.source.startswith("fitted on") == (row.spread > 0), row


def test_every_constant_has_a_source_and_a_date(tmp_path):
    for constants in load_constants().values():
        assert all(row.source and row.fit_date for row in constants.rows)
    lines = FILE.read_text().splitlines()
    bad = tmp_path / "constants.csv"
    bad.write_text("\n".join([lines[0], "staged,x,fill,1,1,0,B,,2026-01-01"]))
    with pytest.raises(BadInput, match="line 2: a constant without its source"):
        load_constants(bad)
    bad.write_text("\n".join([lines[0], "staged,x,fill,-1,1,0,B,s,2026-01-01"]))
    with pytest.raises(BadInput, match="above 0"):
        load_constants(bad)
    row = "staged,x,fill,1,1,0,B,s,2026-01-01"
    for text, message in (
        (row.replace("fill,1", "fill,inf"), "above 0"),
        (f"{row}\n{row}", "line 3: a second fill of x"),
        (row.removesuffix(",2026-01-01"), "line 2: expected 9 cells"),
        (f"{row},more", "line 2: expected 9 cells"),
    ):
        bad.write_text("\n".join([lines[0], text]))
        with pytest.raises(BadInput, match=message):
            load_constants(bad)
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="not a text in UTF-8"):
        load_constants(bad)
    bad.write_text(",".join(COLUMNS[:-1]) + "\n")
    with pytest.raises(BadInput, match="no column fit_date"):
        load_constants(bad)
