"""Pre-shuffled operands: the packed layout, its two implementations, the derivation, the addresses, the binaries."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import closedform
from closedform.cli import cli
from closedform.emission import broken_promises
from closedform.hw.errors import BadInput
from closedform.operators.gemm import DTYPES, LAYOUTS, Gemm
from closedform.schemas import schema
from closedform.visitors.compile import missing_dependency
from closedform.visitors.emit import emit_source
from closedform.visitors.gemm_shape import GemmShape

from .gemm_addresses import Int, namespace
from .gemm_host import Host
from .gemm_kernels import derived, kernel, simulate, whole_numbers
from .test_simulated_gemm import TARGETS, offered

needs_compiler = pytest.mark.skipif(missing_dependency() is not None, reason="needs flydsl and torch")
EVERY = [(hw, dtype) for hw in TARGETS for dtype in offered(hw)]
CLIPPED = (136, 272, 208)


def large(dtype: str = "bf16", preshuffled: str = "B", layout: str = "NT", **fields: Any) -> Gemm:
    return Gemm(4096, 4096, 4096, dtype=dtype, layout=layout, preshuffled=preshuffled, **fields)


def shape_of(derivation: Any) -> GemmShape:
    return GemmShape(derivation.op, derivation.tiles, derivation.hw)


# --- the layout -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hw", "dtype"), EVERY)
def test_lanes_hold_what_they_would_read_from_lds(hw: str, dtype: str) -> None:
    """A lane's chunk is the one that the image in LDS would give it: image row by lane, k by lane group and read."""
    derivation = derived(hw, large(dtype, "AB"))
    tile = shape_of(derivation).layout
    rows, k = 2 * tile.span + 5, tile.tile_k + 3
    numbers = np.arange(1, rows * k + 1).reshape(rows, k)
    for name, stored, image_row in (("A", numbers, int), ("B", numbers, tile.image_row)):
        packed = closedform.pack(derivation, name, stored)[0]
        places = {image_row(row): row for row in range(packed.shape[0] * tile.atom.m)}
        for (block, read, lane, element), value in np.ndenumerate(packed):
            row = places[block * tile.atom.m + lane % tile.atom.m]
            at = read * tile.groups * tile.vec + lane // tile.atom.m * tile.vec + element
            assert value == (numbers[row, at] if row < rows and at < k else 0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_unpack_undoes_pack(data: Any) -> None:
    hw, dtype = data.draw(st.sampled_from(EVERY))
    op = large(dtype, "AB", data.draw(st.sampled_from(LAYOUTS)))
    derivation = derived(hw, op)
    name, batch = data.draw(st.sampled_from("AB")), data.draw(st.integers(1, 2))
    rows, k = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 300))
    run = dataclasses.replace(op, M=rows, N=rows, K=k)
    stored = np.random.default_rng(rows * k).integers(1, 100, (batch, *(run.shape_a if name == "A" else run.shape_b)))
    packed = closedform.pack(derivation, name, stored)
    assert np.array_equal(closedform.unpack(derivation, name, packed, rows, k), stored)
    assert np.count_nonzero(packed) == stored.size
    assert packed[0, 0, 0].nbytes == 64 * 16 * packed.itemsize // op.elem_bytes


def test_one_packing_serves_other_tiles() -> None:
    stored = np.arange(300 * 100).reshape(300, 100)
    packings = [
        closedform.pack(derived("mi300x", large(), tile_m=m, tile_n=n), "B", stored)
        for m, n in ((256, 256), (64, 128), (32, 256))
    ]
    assert all(np.array_equal(packings[0], packing) for packing in packings)


def test_what_is_not_packed_is_refused() -> None:
    derivation = derived("mi300x", large())
    with pytest.raises(BadInput, match=r"'A' is not pre-shuffled in this kernel \(B is"):
        closedform.pack(derivation, "A", np.zeros((4, 4)))
    with pytest.raises(BadInput, match="none is"):
        closedform.pack(derived("mi300x", large(preshuffled="none")), "B", np.zeros((4, 4)))
    packed = closedform.pack(derivation, "B", np.zeros((100, 64)))
    with pytest.raises(BadInput, match="B of 200 x 64 is packed as"):
        closedform.unpack(derivation, "B", packed, 200, 64)
    with pytest.raises(BadInput, match="preshuffled='C' is not offered"):
        large(preshuffled="C")
    with pytest.raises(BadInput, match="ldb=8192: a pre-shuffled operand has no leading dimension"):
        large(ldb=8192)
    assert large(lda=8192).leading[0] == 8192


# --- the emitted host functions ---------------------------------------------------------------------------------


def module(derivation: Any, folder: Path) -> Any:
    path = folder / "emitted_gemm.py"
    path.write_text(emit_source(derivation), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("emitted_gemm", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("hw", "dtype", "out"),
    [
        ("mi300x", "bf16", ""),
        ("mi300x", "fp8_e4m3fnuz", "bf16"),
        ("mi355x", "fp8_e4m3fn", ""),
        ("mi210", "f32", "f16"),
        ("mi100", "f16", ""),
    ],
)
def test_emitted_pack_functions_agree(hw: str, dtype: str, out: str, layout: str, tmp_path: Path) -> None:
    import torch

    derivation = derived(hw, large(dtype, "AB", layout, out_dtype=out))
    emitted = module(derivation, tmp_path)
    run = dataclasses.replace(derivation.op, M=77, N=133, K=100)
    for name, low, rows, shape in (("A", "a", 77, run.shape_a), ("B", "b", 133, run.shape_b)):
        values = torch.randint(-3, 4, (2, *shape), generator=torch.Generator().manual_seed(1))
        stored = values.to(emitted.TORCH_DTYPE)
        given = getattr(emitted, f"pack_{low}")(stored)
        assert (given.rows, given.k, given.data.dtype) == (rows, 100, emitted.TORCH_DTYPE)
        bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}[stored.element_size()]
        want = closedform.pack(derivation, name, stored.view(bits).numpy())
        assert np.array_equal(given.data.view(bits).numpy(), want)
        alone = getattr(emitted, f"pack_{low}")(stored[1])
        assert torch.equal(alone.data.view(bits)[0], given.data.view(bits)[1])


@needs_compiler
def test_run_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    import torch

    emitted = module(derived("mi300x", large()), tmp_path)
    a, b = torch.zeros(64, 64, dtype=torch.bfloat16), torch.zeros(72, 64, dtype=torch.bfloat16)
    packed = emitted.pack_b(b)
    wide = torch.zeros(64, 128, dtype=torch.bfloat16)
    for wrong, match in (
        (b, "pre-shuffled by its own pack function"),
        (packed._replace(order=packed.order[::-1]), "one of the same order"),
        (packed._replace(rows=200), "200 x 64 is packed as"),
        (packed._replace(data=packed.data.half()), "torch.float16"),
        (emitted.pack_b(wide), "shapes do not agree"),
    ):
        with pytest.raises(ValueError, match=match):
            emitted.run(a, wrong)
    with pytest.raises(ValueError, match=r"2-D or 3-D torch\.bfloat16"):
        emitted.pack_b(b.float())


@needs_compiler
@pytest.mark.parametrize("preshuffled", ["A", "B", "AB"])
def test_run_takes_packed_operands_without_terms(preshuffled: str) -> None:
    import torch

    host = Host("mi300x", large(preshuffled=preshuffled, has_c=True, out_dtype="f32"))
    a, b, c = torch.ones(40, 0).bfloat16(), torch.ones(24, 0).bfloat16(), torch.randn(40, 24)
    a, b = (host.file.pack_a(a) if "A" in preshuffled else a), (host.file.pack_b(b) if "B" in preshuffled else b)
    assert torch.equal(host.file.run(a, b, c, beta=2.0)[0], 2 * c)


# --- the derivation ---------------------------------------------------------------------------------------------


def test_lds_holds_only_what_is_not_packed() -> None:
    for preshuffled, rows in (("none", 128 + 64), ("A", 64), ("B", 128), ("AB", 0)):
        derivation = derived("mi300x", large(preshuffled=preshuffled), tile_m=128, tile_n=64, buffers=1)
        assert derivation.require()[1].lds_bytes == rows * 64 * 2


def test_registers_name_the_packed_tile() -> None:
    """Wave tile 128 x 64 of bf16 at depth 64: 64 columns x 128 bytes over 64 lanes are 32 registers."""
    derivation = derived("mi300x", large())
    items = {item.name: item.registers for item in derivation.require()[1].items}
    assert derivation.tiles.wave_tile == (128, 64)
    assert items["packed"] == 32
    assert "fragments" not in {item.name for item in derived("mi300x", large(preshuffled="AB")).resources.items}


def test_direct_loads_bring_the_other_operand() -> None:
    assert derived("mi355x", large()).tiles.direct
    assert derived("mi355x", large(layout="TN", preshuffled="A")).infeasible is None
    assert not derived("mi355x", large(layout="TN")).tiles.direct  # rows of A contiguous
    assert derived("mi355x", large(layout="NN")).tiles.direct  # the letter of the packed B does not matter


@pytest.mark.parametrize(
    ("rule", "op", "fixed"),
    [
        ("packed reads", large(), {"read_b": 4}),
        ("packed reads", large(preshuffled="A"), {"tail_a": 2}),
        ("packed stagger", large(), {"stagger": 2}),
        ("packed direct", large(preshuffled="AB"), {"direct": True, "buffers": 2}),
        ("direct operands", large(layout="TN"), {"direct": True, "buffers": 2}),
        ("offsets", dataclasses.replace(large(), K=2**23), {}),
    ],
)
def test_every_illegal_setting_names_its_rule(rule: str, op: Gemm, fixed: dict[str, Any]) -> None:
    reason = derived("mi355x", op, **fixed).infeasible
    assert reason is not None
    assert reason.resource == rule


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_any_setting_derives_or_names_a_rule(data: Any) -> None:
    hw, dtype = data.draw(st.sampled_from(EVERY))
    draw = lambda *values: data.draw(st.sampled_from(values))  # noqa: E731
    op = large(dtype, draw("A", "B", "AB"), draw(*LAYOUTS))
    knobs = {
        "tile_m": draw(16, 64, 256),
        "tile_k": draw(16, 64, 128),
        "buffers": draw(1, 2),
        "direct": draw(True, False),
    }
    derivation = derived(hw, op, **{name: knobs[name] for name in knobs if draw(True, False)})
    if derivation.infeasible is None:
        compile(emit_source(derivation), "emitted.py", "exec")
        assert derivation.require()[1].lds_bytes == shape_of(derivation).lds_bytes


def test_the_manifest_records_the_layout(tmp_path: Path) -> None:
    from jsonschema import Draft202012Validator

    emission = closedform.emit(large(), "mi300x", tmp_path, compile=False)
    manifest = json.loads(emission.manifest.read_text())
    assert list(Draft202012Validator(schema("manifest")).iter_errors(manifest)) == []
    bits = [0, 1, 3, 2, 4]  # a lane holds 4 of every 8 rows of the C map, and stores 8 columns
    assert manifest["packed"] == {
        "B": {"block_rows": 32, "read_k": 16, "lanes": 64, "vec": 8, "tile_k": 64, "row_bits": bits}
    }
    assert "packedb" in emission.kernel.name


def test_the_option_of_the_command_line() -> None:
    from click.testing import CliRunner

    command = "derive gemm --M 512 --N 512 --K 512 --dtype f16 --layout NT --hw mi300x --preshuffle AB --json"
    answer = json.loads(CliRunner().invoke(cli, command.split(), catch_exceptions=False).stdout)
    assert answer["op"]["preshuffled"] == "AB"
    assert answer["resources"]["lds_bytes"] == 0


# --- addresses --------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.data())
@pytest.mark.parametrize("shape", [(65536, 65536, 64), (46341, 46337, 4128), (10**7, 1, 256), (1, 10**7, 256)])
def test_reads_are_the_fragments_of_the_tile(shape: tuple[int, int, int], data: Any) -> None:
    """64-bit addresses of packed operands far past 2 GiB: inside, of the tile's rows, from the first k of a sum on."""
    M, N, K = shape
    derivation = derived("mi300x", Gemm(M, N, K, dtype="f32", layout="NT", preshuffled="AB"))
    tiles, layouts, names = derivation.tiles, shape_of(derivation).packed, namespace(emit_source(derivation))
    lane, wave = data.draw(st.integers(0, 63)), data.draw(st.integers(0, tiles.waves - 1))
    first_tile = data.draw(st.integers(0, -(-K // tiles.tile_k) - 1))
    first_k = first_tile * tiles.tile_k
    tile = data.draw(st.integers(0, -(-(K - first_k) // tiles.tile_k)))
    names["load"] = lambda source, offsets, access, beyond=0: (source, int(offsets[0]) + int(beyond), access)
    names["chunk_of"] = lambda parts: parts
    for name, extent, side, waves, turn in (
        ("A", M, tiles.tile_m, tiles.wave_m, names["ATOM_MN"]),
        ("B", N, tiles.tile_n, tiles.wave_n, names["COLUMN_SPAN"]),
    ):
        layout = layouts[name]
        blocks, reads, *_ = layout.shape(extent, K)
        first = data.draw(st.integers(0, -(-extent // side) - 1)) * side
        operand = names["Packed"](side, turn, waves, Int(wave % waves, 32), Int(lane, 32))
        elements = reads * 64 * layout.vec
        strides = (blocks * elements, elements)
        sizes = (Int(v, 32) for v in (first, extent, first_tile, K - first_k))
        operand.source_of(strides, Int(0, 64), *sizes)
        places = [function() for _, _, function in operand.loads(Int(tile, 32))]
        for number, ((base, length), offset, access) in enumerate(places):
            if tile == -(-(K - first_k) // tiles.tile_k):
                assert length == 0  # past the last tile of k
                continue
            assert offset + access <= length
            block, inside = divmod((base + offset) // 16, reads * 64)
            read, found = divmod(inside, 64)
            step, atom = divmod(number // names["READS"], len(operand.places))
            image = first + wave % waves * turn + operand.row_of(atom)
            assert block == (image // layout.rows if image // layout.rows < blocks else first // layout.rows)
            assert found == lane
            in_tile = step * names["READS"] + number % names["READS"]
            assert read == (first_tile + tile) * (tiles.tile_k // layout.read_k) + in_tile


# --- binaries ---------------------------------------------------------------------------------------------------


def exact(hw: str, op: Gemm, shape: tuple[int, ...], fixed: tuple[tuple[str, Any], ...] = ()) -> None:
    M, N, K, batch = (*shape, 1)[:4]
    run_op = dataclasses.replace(op, M=M, N=N, K=K, batch=batch)
    result, out, want = simulate(hw, op, run_op, fixed)
    assert result.ok, str(result)
    assert np.array_equal(out, want)


def promised(hw: str, op: Gemm, fixed: tuple[tuple[str, Any], ...] = ()) -> None:
    derivation, binary = kernel(hw, op, fixed)
    assert broken_promises(derivation, binary) == []
    assert derivation.require()[1].registers <= 1.25 * binary.vgpr_total


#: Targets, types, operands, layouts: each kernel has the tiles of 4096^3 and runs a clipped shape, two batch entries.
COVER = [
    ("mi100", "f32", "B", "NT"),
    ("mi100", "f16", "AB", "TN"),
    ("mi210", "bf16", "B", "NN"),
    ("mi210", "f32", "A", "TT"),
    ("mi300x", "bf16", "B", "NT"),
    ("mi300x", "fp8_e4m3fnuz", "B", "TN"),
    ("mi300x", "f16", "A", "NT"),
    ("mi300x", "f32", "AB", "NN"),
    ("mi355x", "bf16", "B", "NN"),
    ("mi355x", "fp8_e4m3fn", "B", "NT"),
    ("mi355x", "f32", "A", "NN"),
    ("mi355x", "fp8_e4m3fn", "AB", "NT"),
]


@pytest.mark.compile
@needs_compiler
@pytest.mark.parametrize(("hw", "dtype", "preshuffled", "layout"), COVER)
def test_large_tiles_on_a_clipped_shape(hw: str, dtype: str, preshuffled: str, layout: str) -> None:
    op = large(dtype, preshuffled, layout)
    promised(hw, op)
    exact(hw, op, (*CLIPPED, 2))


@pytest.mark.slow
@pytest.mark.compile
@needs_compiler
@pytest.mark.parametrize("preshuffled", ["A", "B", "AB"])
@pytest.mark.parametrize("layout", ["NT", "TN"])
@pytest.mark.parametrize(("hw", "dtype"), EVERY)
def test_every_type(hw: str, dtype: str, preshuffled: str, layout: str) -> None:
    op = large(dtype, preshuffled, layout)
    promised(hw, op)
    exact(hw, op, (256, 256, 512))
    exact(hw, op, (*CLIPPED, 2))


@pytest.mark.compile
@needs_compiler
@pytest.mark.parametrize(
    ("hw", "dtype", "preshuffled", "shape", "fixed"),
    [
        ("mi300x", "bf16", "B", (64, 72, 64 * 3), (("buffers", 1),)),
        ("mi355x", "bf16", "A", (64, 72, 64 * 3), (("direct", False),)),
        ("mi355x", "f16", "B", (48, 64, 64 * 5), (("tile_k", 16),)),
        ("mi300x", "bf16", "AB", (17, 40, 64 * 4 + 3), ()),
    ],
)
def test_other_pipelines(
    hw: str, dtype: str, preshuffled: str, shape: tuple[int, ...], fixed: tuple[tuple[str, Any], ...]
) -> None:
    op = large(dtype, preshuffled)
    promised(hw, op, fixed)
    exact(hw, op, shape, fixed)


@pytest.mark.compile
@needs_compiler
@pytest.mark.parametrize(
    ("hw", "dtype", "preshuffled", "shape"),
    [
        ("mi300x", "bf16", "B", (1, 1, 1)),
        ("mi300x", "fp8_e4m3fnuz", "A", (65, 127, 5)),
        ("mi355x", "f16", "AB", (133, 65, 127)),
        ("mi100", "f32", "B", (17, 15, 3)),
        ("mi210", "bf16", "AB", (3, 200, 2)),
    ],
)
def test_small_and_odd_shapes(hw: str, dtype: str, preshuffled: str, shape: tuple[int, int, int]) -> None:
    op = Gemm(*shape, dtype=dtype, layout="NT", preshuffled=preshuffled)
    derivation, binary = kernel(hw, op)
    assert broken_promises(derivation, binary) == []
    exact(hw, op, shape)


@pytest.mark.compile
@needs_compiler
def test_what_lies_between_rows_does_not_leak() -> None:
    """K stops inside a tile and NaN follows in every row of A; the packed zeros of B there must not meet it."""
    from closedform.hw.sim import Out, flydsl_args, parse_file, run

    op = large("f32")
    derivation, binary = kernel("mi300x", op)
    rng, (M, N, K) = np.random.default_rng(3), (40, 72, 44)
    padded = np.full((1, M, K + 20), np.nan, np.float32)
    padded[:, :, :K] = whole_numbers(rng, (1, M, K), "f32")
    b, out = whole_numbers(rng, (1, N, K), "f32"), np.zeros((1, M, N), np.float32)
    packed = closedform.pack(derivation, "B", b)
    program = parse_file(binary.isa)
    arguments = [
        padded[:, :, :K],
        packed.reshape(*packed.shape[:2], -1),
        Out(out),
        M,
        N,
        K,
        np.float32(1),
        np.float32(0),
    ]
    result = run(program, flydsl_args(program.kernel(), arguments), grid=(1, 1, 1))
    assert result.ok, str(result)
    assert np.array_equal(out, padded[:, :, :K] @ b.transpose(0, 2, 1))


@pytest.mark.compile
@needs_compiler
@pytest.mark.parametrize("hw", ["mi300x", "mi355x"])
@pytest.mark.parametrize("preshuffled", ["A", "B", "AB"])
def test_the_main_loop_waits_for_old_loads_only(hw: str, preshuffled: str) -> None:
    """Chunks of the next tile are under way for most of a tile: no wait of the main loop drains the loads."""
    _, binary = kernel(hw, large(preshuffled=preshuffled))
    loops = re.split(r"^\.LBB0_\d+:", binary.isa, flags=re.MULTILINE)
    loop = max((text.split("s_cbranch")[0] for text in loops), key=lambda text: text.count("v_mfma"))
    waits = [int(n) for n in re.findall(r"vmcnt\((\d+)\)", loop)]
    assert waits
    assert min(waits) >= 4
    assert ("ds_read" in loop, "s_barrier" in loop) == (preshuffled != "AB",) * 2


def test_types_are_those_of_gemm() -> None:
    assert {dtype for _, dtype in EVERY} == set(DTYPES)
