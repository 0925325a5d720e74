"""The derivation of emitted GEMMs: its rules, its named cases, its addresses, its speed."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closedform import derive_batch
from closedform.hw import catalogue
from closedform.hw.errors import BadInput
from closedform.hw.occupancy import waves_per_simd
from closedform.operators.gemm import KNOBS, LAYOUTS, Gemm, GemmTiles
from closedform.operators.knob import MECHANISMS, KnobRow
from closedform.visitors.compile import compile_source, missing_dependency
from closedform.visitors.emit import emit_source
from closedform.visitors.feasibility import derive
from closedform.visitors.gemm_rules import EXPORT_MARGIN_BYTES, RULES, lds_fits
from closedform.visitors.gemm_shape import GemmShape, _known

from .gemm_addresses import Int, namespace, place

TARGETS = ("mi100", "mi210", "mi300x", "mi355x")


def square(n: int = 4096, **fields: Any) -> Gemm:
    return Gemm(n, n, n, **{"dtype": "bf16", "layout": "NT", **fields})


def derived(hw: str, op: Gemm, **fixed: Any) -> Any:
    return derive(op, catalogue.get(hw), "default", **fixed)


@given(
    hw=st.sampled_from(TARGETS),
    dtype=st.sampled_from(["f32", "f16", "bf16"]),
    layout=st.sampled_from(LAYOUTS),
    first=st.tuples(*[st.integers(1, 5000)] * 3),
    second=st.tuples(*[st.integers(1, 5000)] * 3),
)
@settings(max_examples=60, deadline=None)
def test_counts_are_the_same_whatever_was_derived_before(
    hw: str, dtype: str, layout: str, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    """Counts that problem sizes share must not depend on them."""
    _known.cache_clear()
    alone = derived(hw, Gemm(*second, dtype=dtype, layout=layout))
    _known.cache_clear()
    other = derived(hw, Gemm(*first, dtype=dtype, layout=layout))
    if other.tiles is not None and alone.tiles is not None:
        for op in (other.op, alone.op):
            assert GemmShape(op, alone.tiles, other.hw).items
    again = derived(hw, Gemm(*second, dtype=dtype, layout=layout))
    assert again.resources == alone.resources
    assert again.tiles == alone.tiles


# --- named cases ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "buffers"), [(128, 2), (256, 1)])
def test_lds_of_register_staging_is_one_tile_less_than_its_stages(side: int, buffers: int) -> None:
    tiles = {"tile_m": side, "tile_n": side, "tile_k": 64, "buffers": buffers}
    derivation = derived("mi300x", square(), **tiles)
    assert derivation.require()[1].lds_bytes == 65536
    direct = derived("mi355x", square(), **{**tiles, "buffers": 2, "direct": True})
    assert direct.require()[1].lds_bytes == 2 * (side + side) * 64 * 2


def test_lds_of_the_deep_tile() -> None:
    for buffers, need in ((1, 98304), (2, 196608)):
        derivation = derived("mi355x", square(), tile_m=128, tile_n=256, tile_k=128, buffers=buffers, direct=False)
        if need <= 163840:
            assert derivation.require()[1].lds_bytes == need
        else:
            assert derivation.infeasible is not None
            assert (derivation.infeasible.resource, derivation.infeasible.needed) == ("LDS", need)
            assert derivation.infeasible.limit == 163840


def test_all_of_the_lds_is_legal_here_and_not_for_exports() -> None:
    hw = catalogue.get("mi300x")
    assert derived("mi300x", square()).require()[1].lds_bytes == hw.lds_max_per_workgroup_bytes
    assert lds_fits(hw, 65536)
    assert not lds_fits(hw, 65536, EXPORT_MARGIN_BYTES)


def test_a_tile_that_is_not_whole_loads_is_guarded() -> None:
    source = emit_source(derived("mi300x", square(), tile_m=48, tile_n=64, tile_k=64))
    assert "store_if(self.units[i] < self.rows * ROW_CHUNKS" in source


def test_occupancy_of_36_arch_and_32_acc() -> None:
    assert waves_per_simd(catalogue.get("mi300x"), 36, 32) == 7


# --- rules ------------------------------------------------------------------------------------------------------

BROKEN = {
    "LDS": {"tile_m": 256, "tile_n": 256, "buffers": 2},
    "registers": {"tile_m": 256, "tile_n": 256, "waves_per_simd": 4},
    "waves per SIMD": {"tile_m": 128, "tile_n": 128, "waves_per_simd": 3},
    "waves of a workgroup": {"tile_m": 256, "tile_n": 256, "waves_per_simd": 1},
    "wave grid": {"tile_m": 192, "tile_n": 64, "wave_m": 3, "wave_n": 1},
    "row of LDS": {"tile_k": 48},
    "buffers": {"tile_m": 64, "tile_n": 64, "buffers": 3},
    "direct buffers": {"direct": True},
    "access width": {"read_a": 16},
    "access size": {"read_a": 3},
    "access divides": {"read_a": 8},
    "store divides": {"store": 8},
    "XCDs": {"xcds": 7},
    "split or stream": {"split_k": 2, "stream_k": 304},
    "split depth": {"split_k": 65},
    "workgroups": {"stream_k": 2**26},
    "persistent workgroups": {"stream_k": 304 * 4 * 8 + 1},
    "group of tiles": {"group_m": 2**31},
    "stagger": {"stagger": 2**31},
    "whole atoms": {"tile_m": 40},
}
#: Settings that break a rule in another way than the ones above.
BROKEN_TOO = [
    ("waves per SIMD", {"waves_per_simd": 100}),
    ("row of LDS", {"tile_k": 2**40}),
    ("access size", {"read_b": 6}),
    ("access size", {"tail_a": 3}),
    ("group of tiles", {"group_m": 2**27, "tile_n": 64}),
]


#: Problems that show a rule where bf16 NT of 4096^3 does not.
OTHER = {
    "access divides": Gemm(4096, 4100, 4100, dtype="bf16", layout="NT"),
    "store divides": Gemm(4096, 4100, 4100, dtype="bf16", layout="NT"),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_every_illegal_setting_names_its_rule(rule: str) -> None:
    op = OTHER.get(rule, square())
    reason = derived("mi300x", op, **BROKEN[rule]).infeasible
    assert reason is not None
    assert reason.resource == rule


@pytest.mark.parametrize(("rule", "knobs"), BROKEN_TOO)
def test_other_illegal_settings_name_their_rule(rule: str, knobs: dict[str, Any]) -> None:
    reason = derived("mi300x", square(), **knobs).infeasible
    assert reason is not None
    assert reason.resource == rule


@pytest.mark.parametrize("extents", [(10**15, 64, 64), (2**31 - 8, 64, 64), (64, 2**32, 1), (1, 1, 2**31)])
def test_extents_that_the_kernel_cannot_count_are_refused(extents: tuple[int, int, int]) -> None:
    reason = derived("mi300x", Gemm(*extents, dtype="bf16")).infeasible
    assert reason is not None
    assert reason.resource == "extents"
    assert derived("mi300x", Gemm(2**31 - 300, 1, 1, dtype="bf16")).feasible


def test_a_word_that_no_knob_takes_is_refused() -> None:
    with pytest.raises(BadInput, match=r"split_algorithm='singel' .* did you mean single\?"):
        derived("mi300x", square(), split_k=2, split_algorithm="singel")


def test_no_more_persistent_workgroups_are_announced_than_are_launched() -> None:
    derivation = derived("mi300x", Gemm(64, 64, 128, dtype="bf16"), tile_m=32, tile_n=32, tile_k=64, stream_k=304)
    assert derivation.grid is not None
    assert derivation.grid.grid == (8, 1, 1)


def test_large_groups_are_checked_at_run_time() -> None:
    """The rule knows the N that is derived for, not the one that run() is given."""
    guard = "tiles in groups of {GROUP_M} rows are counted in 31 bits"
    source = emit_source(derived("mi300x", square(), group_m=2**20, tile_n=64))
    compile(source, "emitted", "exec")
    assert guard in source
    assert guard not in emit_source(derived("mi300x", square()))


def test_rules_are_data() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert {rule.mechanism for rule in RULES} <= set(MECHANISMS)
    assert all(rule.way_out for rule in RULES)


def test_every_field_of_the_tiles_is_a_knob_with_an_option() -> None:
    from closedform.cli import derive, emit

    assert {knob.name for knob in KNOBS} == {field.name for field in dataclasses.fields(GemmTiles)}
    for command in (derive.derive, emit.emit):
        options = {option.name for option in command.commands["gemm"].params}
        assert options >= {knob.name for knob in KNOBS}


@pytest.mark.parametrize("knob", [knob for knob in KNOBS if knob.kind in (int, bool)], ids=lambda knob: knob.name)
def test_a_value_that_no_knob_takes_is_refused(knob: KnobRow) -> None:
    wrong = [knob.least - 1, "1", True] if knob.kind is int else [2, "yes"]
    for value in wrong:
        with pytest.raises(BadInput, match=f"{knob.name}="):
            derived("mi300x", square(), **{knob.name: value})


def test_unknown_knobs_and_types_are_refused() -> None:
    with pytest.raises(BadInput, match="tile_m"):
        derived("mi300x", square(), tile_mm=64)
    with pytest.raises(BadInput, match="f64"):
        derived("mi100", square(dtype="f64"))
    with pytest.raises(BadInput, match="lda"):
        Gemm(4, 4, 64, lda=32)


@st.composite
def settings_of_knobs(draw: Any) -> tuple[Gemm, dict[str, Any]]:
    op = square(layout=draw(st.sampled_from(LAYOUTS)), dtype=draw(st.sampled_from(["f32", "f16", "bf16"])))
    knobs = {
        "tile_m": st.sampled_from([16, 32, 48, 64, 96, 128, 256]),
        "tile_n": st.sampled_from([16, 32, 64, 128, 192, 256]),
        "tile_k": st.sampled_from([16, 32, 64, 128]),
        "wave_m": st.sampled_from([1, 2, 3, 4]),
        "wave_n": st.sampled_from([1, 2, 4, 8]),
        "atom": st.sampled_from(["32x32", "16x16"]),
        "buffers": st.sampled_from([1, 2, 3]),
        "direct": st.booleans(),
        "pad": st.sampled_from([0, 4, 8, 16]),
        "lds_read": st.sampled_from([2, 4, 8]),
        "lds_write": st.sampled_from([2, 4, 8]),
        "stagger": st.sampled_from([0, 1, 4, 7]),
        "read_a": st.sampled_from([1, 2, 4, 8]),
        "store": st.sampled_from([1, 2, 4, 8]),
        "group_m": st.sampled_from([1, 4, 8]),
        "pinned": st.booleans(),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(knobs)), max_size=5, unique=True))
    return op, {name: draw(knobs[name]) for name in chosen}


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.sampled_from(TARGETS), settings_of_knobs())
def test_any_setting_derives_or_names_a_rule(hw: str, setting: tuple[Gemm, dict[str, Any]]) -> None:
    op, knobs = setting
    try:
        derivation = derived(hw, op, **knobs)
    except BadInput:
        assert "atom" in knobs  # the target has no such shape for the type
        return
    if derivation.infeasible is not None:
        assert derivation.infeasible.resource in {*(rule.name for rule in RULES), "whole atoms"}
    else:
        compile(emit_source(derivation), "emitted.py", "exec")


@pytest.mark.compile
@pytest.mark.skipif(missing_dependency() is not None, reason="needs flydsl and torch")
@pytest.mark.parametrize("count", [10, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("hw", ["mi300x", "mi355x"])
def test_any_legal_setting_compiles(hw: str, count: int) -> None:
    @settings(max_examples=count, deadline=None, derandomize=True)
    @given(settings_of_knobs())
    def compiles(setting: tuple[Gemm, dict[str, Any]]) -> None:
        op, knobs = setting
        derivation = derived(hw, op, **knobs)
        if derivation.infeasible is None:
            compile_source(emit_source(derivation), derivation.hw.gfx)

    compiles()


# --- addresses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("M", "N", "cus"), [(1000, 3000, 304), (64 * 37, 64 * 11, 304), (1, 10**5, 80), (300, 70, 38)])
def test_every_tile_has_one_workgroup(M: int, N: int, cus: int) -> None:
    op = Gemm(M, N, 64, dtype="bf16", layout="NT")
    derivation = derive(op, catalogue.get("mi300x").with_cus(cus), "default", tile_m=64, tile_n=64)
    names = namespace(emit_source(derivation))
    tiles = -(-M // 64) * -(-N // 64)
    found = {place(names, M, N, 64, t % 65536, t // 65536)[2:4] for t in range(tiles)}
    assert found == {(m, n) for m in range(0, M, 64) for n in range(0, N, 64)}
    assert place(names, M, N, 64, tiles % 65536, tiles // 65536)[:2] == (0, 0)


LARGE_SHAPES = [
    (65536, 65536, 64),  # 2^32 elements of D
    (46341, 46337, 128),  # past 2^31 elements, no multiple of a tile
    (10**7, 1, 256),
    (1, 10**7, 256),
    (16 * 2900, 16 * 2900, 16),  # 8.4 million tiles of 16 x 16: above 2^31 / 256
]


@settings(max_examples=40, deadline=None)
@given(st.data())
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", LARGE_SHAPES)
def test_addresses_of_large_outputs_are_exact(shape: tuple[int, int, int], layout: str, data: Any) -> None:
    M, N, K = shape
    op = Gemm(M, N, K, dtype="f32", layout=layout)
    small = {"tile_m": 16, "tile_n": 16} if K == 16 else {}
    derivation = derived("mi300x", op, **small)
    tiles = derivation.require()[0]
    names = namespace(emit_source(derivation))
    count = -(-M // tiles.tile_m) * -(-N // tiles.tile_n)
    workgroup = data.draw(st.integers(0, count - 1))
    _, _, m, n, _ = place(names, M, N, K, workgroup % 65536, workgroup // 65536)
    rows, columns = min(tiles.tile_m, M - m), min(tiles.tile_n, N - n)
    (address, extent), _ = names["output_tile"](
        (M * N, N), Int(0, 64), Int(m, 32), Int(n, 32), Int(rows, 32), Int(columns, 32)
    )
    assert address == 4 * (m * N + n)
    assert address + extent == 4 * ((m + rows - 1) * N + n + columns)
    thread = data.draw(st.integers(0, tiles.waves * 64 - 1))
    lane, wave = Int(thread % 64, 32), thread // 64
    whole = data.draw(st.integers(0, K // tiles.tile_k))
    for name, along_k, rows_all, first, tile_rows, waves, turn in (
        ("A", layout[0] == "N", M, m, tiles.tile_m, tiles.wave_m, names["ATOM_MN"]),
        ("B", layout[1] == "T", N, n, tiles.tile_n, tiles.wave_n, names["COLUMN_SPAN"]),
    ):
        ld = K if along_k else rows_all
        kind = names["AlongK" if along_k else "AlongRows"]
        operand = kind(Int(0, 32), 0, tile_rows, turn, waves, Int(wave % waves, 32), lane)
        access = (names[f"{name}_READ"], names[f"{name}_TAIL"]) if along_k else (names[f"{name}_READ"],)
        order = names["natural" if name == "A" else "column_row"]
        operand.source_of(
            (rows_all * K, ld),
            Int(0, 64),
            Int(first, 32),
            Int(rows_all, 32),
            Int(0, 32),
            Int(K, 32),
            Int(thread, 32),
            *access,
            order,
        )
        names["load"] = lambda source, offsets, access, beyond=0: [
            (source, int(o) + int(beyond), access) for o in offsets
        ]
        names["chunk_of"] = list
        for tail in (False, True):
            if not tail and (whole + 1) * tiles.tile_k > K:
                continue
            for _, _, function in operand.loads(Int(whole, 32), tail):
                for (base, extent), offset, access in function():
                    start = base + offset
                    if offset + access > extent:
                        continue  # gives 0
                    assert start >= 0
                    assert start + access <= 4 * rows_all * K
                    line, inside = divmod(start // 4, ld)
                    row, k = (line, inside) if along_k else (inside, line)
                    assert first <= row < first + tile_rows
                    assert whole * tiles.tile_k <= k < min(K, (whole + 1) * tiles.tile_k)


# --- speed and order --------------------------------------------------------------------------------------------


def calls_of(action: Callable[[], object]) -> int:
    """How many Python and C functions the action calls: its cost, whatever else the machine does."""
    events: list[str] = []
    sys.setprofile(lambda _frame, event, _arg: events.append(event))
    try:
        action()
    finally:
        sys.setprofile(None)
    return events.count("call") + events.count("c_call")


def test_deriving_calls_little_and_many_shapes_are_derived_together() -> None:
    """1000 calls take 150 microseconds on an idle core; `benchmarks/derive.py` has the times."""
    hw = catalogue.get("mi300x")
    ops = [Gemm(100 + i, 200 + 3 * i, 64 * (1 + i % 50), dtype="bf16", layout="NT") for i in range(100)]
    for op in ops:  # fills the caches
        derive(op, hw)
    assert max(calls_of(lambda op=op: derive(op, hw)) for op in ops) < 1300
    sizes = np.random.default_rng(0).integers(1, 300, (3, 10000)) * 64
    derive_batch(*sizes[:, :10], hw, dtype="bf16", layout="NT")
    assert calls_of(lambda: derive_batch(*sizes, hw, dtype="bf16", layout="NT")) < len(sizes[0])


@pytest.mark.parametrize(
    ("hw", "dtype", "layout"),
    [("mi300x", "bf16", "NT"), ("mi100", "f32", "TN"), ("mi210", "f64", "NN"), ("mi355x", "fp8_e4m3fn", "TT")],
)
def test_a_batch_is_derived_as_each_of_its_products(hw: str, dtype: str, layout: str) -> None:
    rng = np.random.default_rng(1)
    sizes = np.concatenate([rng.integers(1, 9000, (3, 100)), 64 * rng.integers(1, 130, (3, 100))], axis=1)
    batch = derive_batch(*sizes, hw, dtype=dtype, layout=layout)
    for i in range(200):
        tiles = derived(hw, Gemm(*map(int, sizes[:, i]), dtype=dtype, layout=layout)).tiles
        assert tiles is not None
        for name, column in batch.items():
            assert getattr(tiles, name) == column[i], (name, sizes[:, i])


def test_small_grids_get_smaller_tiles() -> None:
    sides = [derived("mi300x", square(n)).require()[0].tile_m for n in (512, 2048, 4096)]
    assert sides == sorted(sides)
    assert sides[-1] == 256


def test_the_xcd_factor_divides_the_visible_cus() -> None:
    for cus in (304, 228, 80, 64, 38, 20):
        hw = catalogue.get("mi300x").with_cus(cus)
        tiles = derive(square(), hw, "default").require()[0]
        assert cus % tiles.xcds == 0


def test_the_emitted_text_is_deterministic() -> None:
    derivation = derived("mi355x", square(layout="TN"))
    assert emit_source(derivation) == emit_source(derivation)
