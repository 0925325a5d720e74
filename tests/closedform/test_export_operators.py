"""Exports of attention and convolution: round trips of every format, refusals by name, options that files leave out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from closedform.hw import catalogue
from closedform.hw.errors import BadInput
from closedform.interop import triton_config
from closedform.interop.attention_kernel import AttentionKernel
from closedform.interop.attention_offers import AttentionOffer, AttentionTool, attention_offer
from closedform.interop.conv2d_offers import Conv2dKernel, Conv2dOffer, Conv2dTool, conv2d_offer, pixels_of
from closedform.interop.exporting import Place, export_operator
from closedform.interop.offers import accepted
from closedform.interop.rules import Refused, broken_rules
from closedform.interop.tools import ATTENTION_TOOLS, CONV2D_TOOLS, NAMES, NotOffered, format_named
from closedform.operators.attention import Attention
from closedform.operators.conv2d import Conv2d
from closedform.schemas import schema

Run = Callable[..., Result]
RunJson = Callable[..., Any]

ATTENTION_FORMS = [pytest.param(tool, id=f"{tool.name}{tool.suffix}") for tool in ATTENTION_TOOLS]
CONV2D_FORMS = [pytest.param(tool, id=f"{tool.name}{tool.suffix}") for tool in CONV2D_TOOLS]
GPUS = ("mi100", "mi210", "mi300x", "mi355x")
ATTENTION = ("attention", "--L", 4096, "--d", 128, "--heads", 16, "--dtype", "bf16")
SIZES = {"N": 8, "IC": 64, "IH": 56, "IW": 56, "OC": 64, "KH": 3, "KW": 3, "pad": 1}
CONV2D = ("conv2d", *(part for name, size in SIZES.items() for part in (f"--{name}", size)), "--dtype", "bf16")
ATTENTION_NAMES = tuple(dict.fromkeys(tool.name for tool in ATTENTION_TOOLS))
CONV2D_NAMES = tuple(dict.fromkeys(tool.name for tool in CONV2D_TOOLS))


@st.composite
def attention_offers(draw: st.DrawFn, tool: AttentionTool) -> AttentionOffer:
    """Kernels that the tool takes."""
    hw = catalogue.get(draw(st.sampled_from(GPUS)))
    kind = draw(st.sampled_from(("f16", "bf16") if tool.name == "flydsl" else ("f16", "bf16", "f32")))
    atom = draw(st.sampled_from([a for a in hw.atoms_for(kind) if a.blocks == 1]))
    waves = draw(st.sampled_from((1, 2, 4, 8)))
    rows = 32 if tool.name == "flydsl" else draw(st.sampled_from((atom.m, 32)))
    length = draw(st.integers(1, 5000))
    kernel = AttentionKernel(
        block_q=rows * waves,
        tile_kv=64 if tool.name == "flydsl" else draw(st.sampled_from((32, 64, 128))),
        dtype=kind,
        mfma=(atom.m, atom.n, atom.k, 1),
        waves=waves,
        stages=draw(st.integers(1, 3)),
        waves_per_simd=draw(st.integers(1, 4)),
    )
    op = Attention(length, length, draw(st.sampled_from((64, 96, 128))), heads=draw(st.integers(1, 64)), dtype=kind)
    offer = AttentionOffer(op, hw, kernel, draw(st.one_of(st.none(), st.floats(1, 1e6))))
    try:
        return accepted(tool, offer)[0]
    except Refused:
        return draw(st.nothing())


@st.composite
def conv2d_offers(draw: st.DrawFn, tool: Conv2dTool) -> Conv2dOffer:
    """Kernels that the tool takes."""
    hw = catalogue.get("mi355x" if tool.name == "flydsl" else draw(st.sampled_from(GPUS)))
    kind = "bf16" if tool.name == "flydsl" else draw(st.sampled_from(("f16", "bf16", "f32", "i8")))
    atom = draw(st.sampled_from([a for a in hw.atoms_for(kind) if a.blocks == 1]))
    wave_m, wave_n = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 2)))
    images, rows = draw(st.sampled_from((1, 2))), draw(st.sampled_from((1, 2, 4)))
    columns = draw(st.sampled_from((32, 64)))
    op = Conv2d(
        *(draw(st.integers(1, 9)), draw(st.integers(1, 300)), draw(st.integers(3, 70)), draw(st.integers(3, 70))),
        *(draw(st.integers(1, 300)), draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        stride=draw(st.integers(1, 2)),
        pad=draw(st.integers(0, 2)),
        dtype=kind,
    )
    kernel = Conv2dKernel(
        tile_m=images * rows * columns,
        tile_n=wave_n * atom.n * draw(st.sampled_from((1, 2))),
        tile_k=32 if tool.name == "flydsl" else draw(st.sampled_from((64, 128))),
        dtype=kind,
        out_dtype=op.result,
        mfma=(atom.n, atom.m, atom.k, 1),
        wave_m=wave_m,
        wave_n=wave_n,
        stages=draw(st.integers(2, 3)),
        waves_per_simd=draw(st.integers(1, 4)),
        pixels=(images, rows, columns),
        replicate=draw(st.sampled_from((None, (1, 3)))),
    )
    offer = Conv2dOffer(op, hw, kernel, draw(st.one_of(st.none(), st.floats(1, 1e6))))
    try:
        return accepted(tool, offer)[0]
    except Refused:
        return draw(st.nothing())


def comes_back(tool: Any, offers: Callable[[Any], st.SearchStrategy[Any]]) -> None:
    seen = 0

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        nonlocal seen
        offer = data.draw(offers(tool))
        seen += 1
        assert not broken_rules(tool.rules, offer)
        assert tool.read(tool.write((offer,)), offer.hw) == (offer.kernel.only(tool.carries),)

    check()
    assert seen >= 5


@pytest.mark.parametrize("tool", ATTENTION_FORMS)
def test_attention_comes_back(tool: AttentionTool) -> None:
    comes_back(tool, attention_offers)


@pytest.mark.parametrize("tool", CONV2D_FORMS)
def test_convolutions_come_back(tool: Conv2dTool) -> None:
    comes_back(tool, conv2d_offers)


OP = Attention(4096, 4096, 128, heads=16, dtype="bf16")
CONV = Conv2d(**SIZES, dtype="bf16")


@pytest.mark.parametrize("tool", [p for p in (*ATTENTION_FORMS, *CONV2D_FORMS) if p.values[0].many])
def test_a_list_keeps_its_order(tool: Any) -> None:
    op, hw = OP if isinstance(tool, AttentionTool) else CONV, catalogue.get("mi355x")
    made = export_operator(op, hw, tool.name, form=tool.suffix, count=2)
    assert len(made.offers) == 2
    assert [o.predicted_us for o in made.offers] == sorted(o.predicted_us for o in made.offers if o.predicted_us)
    assert tool.read(made.text, hw) == tuple(o.kernel.only(tool.carries) for o in made.offers)


@pytest.mark.parametrize("gpu", catalogue.names()[:7])
@pytest.mark.parametrize("to", ATTENTION_NAMES)
@pytest.mark.parametrize("d", [64, 128, 256])
def test_every_tool_gets_a_legal_attention(to: str, gpu: str, d: int) -> None:
    hw, tool = catalogue.get(gpu), format_named("attention", to)
    op = dataclasses.replace(OP, d=d, dtype="f16")
    if to == "flydsl" and d == 256:  # a step of its kernel is 64 keys, and that of the closed form 32
        with pytest.raises(Refused, match="64 of a step"):
            export_operator(op, hw, to)
        return
    made = export_operator(op, hw, to)
    assert all(not broken_rules(tool.rules, offer) for offer in made.offers)
    assert tool.read(made.text, hw)


@pytest.mark.parametrize("gpu", catalogue.names()[:7])
@pytest.mark.parametrize("to", [name for name in CONV2D_NAMES if name != "flydsl"])
def test_every_tool_gets_a_legal_convolution(to: str, gpu: str) -> None:
    hw, tool = catalogue.get(gpu), format_named("conv2d", to)
    made = export_operator(CONV, hw, to)
    assert all(not broken_rules(tool.rules, offer) for offer in made.offers)
    assert tool.read(made.text, hw)


@pytest.mark.parametrize("kind", ["i8", "fp8_e4m3fnuz", "f16", "f32"])
def test_few_channels_have_a_ranking(kind: str) -> None:
    op = dataclasses.replace(CONV, IC=16, dtype=kind)
    made = export_operator(op, catalogue.get("mi300x"), "inductor", count=2)
    assert len(made.offers) == 2


def test_flydsl_convolves_where_its_instruction_is() -> None:
    assert export_operator(CONV, catalogue.get("mi355x"), "flydsl").offers
    with pytest.raises(Refused, match="16x16x32 of bf16"):
        export_operator(CONV, catalogue.get("mi300x"), "flydsl")


@pytest.mark.parametrize(("op", "names"), [(OP, ATTENTION_NAMES), (CONV, CONV2D_NAMES)], ids=["attention", "conv2d"])
def test_a_tool_without_the_operator_names_those_with_it(op: Any, names: tuple[str, ...]) -> None:
    others = [name for name in NAMES if name not in names]
    assert others
    for to in others:
        with pytest.raises(NotOffered, match=f"no format for {op.name}: {', '.join(names)}"):
            export_operator(op, catalogue.get("mi300x"), to)


REFUSALS = [
    (OP, "triton", {"waves": 3}, "powers of two"),
    (OP, "aiter", {"atom": "16x16"}, "no place for atom"),
    (OP, "tilelang", {"waves": 8, "tile_q": 32}, "Q and images of K and V"),
    (dataclasses.replace(OP, dtype="f32"), "flydsl", {}, "f16 and bf16"),
    (dataclasses.replace(OP, d=80), "flydsl", {}, "a multiple of 32"),
    (OP, "flydsl", {"tile_kv": 32}, "64 of a step"),
    (dataclasses.replace(CONV, dilation=2), "inductor", {}, "has no dilation"),
    (dataclasses.replace(CONV, pad=(1, 2, 1, 1)), "inductor", {}, "same zeros on both sides"),
    (dataclasses.replace(CONV, layout="NCHW"), "iree", {}, "channels last"),
    (dataclasses.replace(CONV, groups=4), "iree", {}, "one group"),
    (CONV, "iree", {"tile_w": 8, "tile_h": 16}, "whole instructions"),
    (CONV, "triton", {"tile_h": 8}, "no place for tile_h"),
    (CONV, "json", {"read_x": 4}, "no place for read_x"),
    (dataclasses.replace(CONV, groups=64), "json", {}, "kernel=mfma"),
]


@pytest.mark.parametrize(("op", "to", "overrides", "what"), REFUSALS)
def test_refusals_name_the_rule(op: Any, to: str, overrides: dict[str, Any], what: str) -> None:
    with pytest.raises(Refused, match=what):
        export_operator(op, catalogue.get("mi300x"), to, **overrides)


def test_a_depthwise_convolution_has_a_tile_with_matrix_instructions() -> None:
    op = dataclasses.replace(CONV, groups=64)
    made = export_operator(op, catalogue.get("mi300x"), "json", kernel="mfma")
    assert made.offers[0].kernel.mfma is not None


def test_what_is_fixed_is_what_is_written() -> None:
    hw = catalogue.get("mi300x")
    kernel = export_operator(OP, hw, "triton", tile_q=32, tile_kv=32, waves=4, atom="16x16").offers[0].kernel
    assert (kernel.block_q, kernel.tile_kv, kernel.waves, kernel.mfma_m) == (128, 32, 4, 16)
    kernel = export_operator(CONV, hw, "json", tile_h=4, tile_w=32, tile_ic=32, kernel="mfma").offers[0].kernel
    assert (kernel.pixels[1:], kernel.tile_k, kernel.tile_m) == ((4, 32), 32, kernel.pixels[0] * 128)


@pytest.mark.parametrize("to", ATTENTION_NAMES)
def test_options_that_are_set_are_said(to: str) -> None:
    """Every option of the operator, whichever it has: in plain JSON as a field, elsewhere as a note."""
    hw = catalogue.get("mi300x")
    op = dataclasses.replace(OP, kv_heads=4, softmax_scale=0.5, lse=True)
    made = export_operator(op, hw, to)
    for name in ("kv_heads", "softmax_scale", "lse"):
        assert name in Attention.optional
        assert (name in made.text) if to == "json" else any(note.startswith(f"{name} of") for note in made.notes)
    assert not [note for note in export_operator(OP, hw, to).notes if " of the attention" in note]


def test_a_block_mask_must_have_blocks_that_inductors_divide() -> None:
    hw = catalogue.get("mi300x")
    assert "multiples of 256 queries and 64 keys" in export_operator(OP, hw, "inductor").notes[0]
    assert not export_operator(OP, hw, "inductor", waves=4).notes


def test_another_variant_is_said() -> None:
    notes = export_operator(dataclasses.replace(OP, variant="lds", d=64), catalogue.get("mi300x"), "triton").notes
    assert "variant of the attention" in " ".join(notes)


def test_parts_of_a_convolution_that_a_format_lacks_are_said() -> None:
    op = dataclasses.replace(CONV, bias=True, activation="relu")
    for to in ("triton", "inductor", "iree"):
        notes = " ".join(export_operator(op, catalogue.get("mi300x"), to).notes)
        assert "bias of the convolution" in notes
        assert "activation of the convolution" in notes
    assert not export_operator(op, catalogue.get("mi300x"), "json").notes


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 10))
def test_pixels_are_the_rows_of_the_product(rows: int, columns: int, power: int) -> None:
    assert prod(pixels_of(Conv2d(4, 1, rows, columns, 1, 1, 1), 1 << power)) == 1 << power


@pytest.mark.parametrize(
    ("fields", "what"),
    [({"pixels": (1, 2, 3)}, "6 together"), ({"pixels": (8,)}, "3 counts"), ({"replicate": (0, 1)}, "at least 1")],
)
def test_pixels_that_are_none(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(BadInput, match=what):
        Conv2dKernel(tile_m=8, tile_n=8, tile_k=8, **fields)


def test_a_step_is_halved_until_it_fits() -> None:
    """K and V of f32 at this head dim fill the LDS: fewer tiles under way, then fewer keys."""
    op, hw = Attention(4096, 4096, 128, dtype="f32"), catalogue.get("mi300x")
    tool = format_named("attention", "triton")
    kernel = dataclasses.replace(attention_offer(op, hw).kernel, block_q=64, tile_kv=96)
    offer, notes = accepted(tool, AttentionOffer(op, hw, kernel))
    assert offer.kernel.tile_kv == 64
    assert "tile_kv 96 -> 64" in notes[0]
    assert triton_config.attention_lds_bytes(offer.kernel, hw, 128, 4) <= hw.lds_max_per_workgroup_bytes


def test_chiplets_are_nothing_that_a_convolution_gives_up() -> None:
    offer = conv2d_offer(CONV, catalogue.get("mi300x"))
    assert all(kernel.xcds is None for kernel in offer.kernel.smaller(304, whole=False))


@pytest.mark.parametrize(
    ("operator", "arguments", "what"),
    [
        (ATTENTION, ("--to", "tritn"), "did you mean triton"),
        (ATTENTION, ("--to", "ck"), "Composable Kernel has no format for attention"),
        (ATTENTION, ("--to", "triton", "--form", "xml"), "no form"),
        (ATTENTION, ("--to", "aiter", "--count", 2), "holds one kernel"),
        (ATTENTION, ("--to", "json", "--count", 2, "--waves", 4), "takes no overrides"),
        (ATTENTION, ("--to", "triton", "--artifact", "x"), "--artifact is of flydsl"),
        (CONV2D, ("--to", "hipblaslt"), "hipBLASLt has no format for conv2d"),
    ],
)
def test_bad_input(run: Run, operator: tuple[object, ...], arguments: tuple[object, ...], what: str) -> None:
    result = run("export", *operator, "--hw", "mi300x", *arguments)
    assert result.exit_code == 2
    assert what in result.stderr


@pytest.mark.parametrize(
    ("operator", "to"),
    [*((ATTENTION, to) for to in ATTENTION_NAMES), *((CONV2D, to) for to in CONV2D_NAMES)],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_json_and_files(run_json: RunJson, tmp_path: Path, operator: tuple[object, ...], to: str) -> None:
    answer = run_json("export", *operator, "--hw", "mi355x", "--to", to, "--out", tmp_path)
    assert list(Draft202012Validator(schema("export")).iter_errors(answer)) == []
    (path,) = tmp_path.iterdir()
    assert answer["file"] == str(path)
    assert path.read_text() == answer["text"]
    if to == "json":
        assert list(Draft202012Validator(schema("kernels")).iter_errors(json.loads(answer["text"]))) == []


@pytest.mark.parametrize("op", [OP, CONV], ids=["attention", "conv2d"])
def test_an_artifact_has_the_name_that_is_looked_up(op: Any) -> None:
    hw = catalogue.get("mi355x")
    made = export_operator(op, hw, "flydsl", place=Place(artifact="mine", device="GPU"))
    identity = json.loads(made.text)["identity"]
    assert (identity["name"], identity["device"]["name"]) == ("mine", "GPU")
    assert made.file.startswith("mine-")
    config = json.loads(made.text)["config"]
    assert not set(config) & set(identity["key"])
