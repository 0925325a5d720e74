"""AITER: rows of its tuned GEMM tables, with FlyDSL and CK kernel names, and its Triton configurations in JSON."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from typing import Any

from closedform.hw.atoms import MFMA_LANES
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import ALIASES, dtype
from closedform.hw.errors import BadInput

from . import flydsl
from .attention_kernel import AttentionKernel
from .attention_offers import AttentionOffer, AttentionTool
from .kernel import Kernel
from .rules import Rule
from .tool import Offer, Tool, lds_rule
from .triton_config import (
    ATTENTION_RULES,
    BACKEND_RULES,
    attention_config_of,
    attention_kernel_of_config,
    config_of,
    kernel_of_config,
)

__all__ = [
    "ATTENTION",
    "HEADER",
    "TOOL",
    "TOOL_TRITON",
    "flydsl_name",
    "forward_configs",
    "is_flydsl",
    "kernel_of_name",
    "kernel_of_row",
    "lds_bytes_of_name",
]

_SOURCE = "aiter/ops/flydsl/gemm_kernels.py"
HEADER = (
    *("gfx", "cu_num", "M", "N", "K", "bias", "dtype", "outdtype", "scaleAB", "bpreshuffle", "libtype", "solidx"),
    *("splitK", "us", "kernelName", "err_ratio", "tflops", "bw"),
)
SPLIT_EXPONENT_MOST = 20
TILES_M = (16, 32, 48, 64, 80, 96, 128, 256)
TILES = (64, 128, 256)
_TORCH = {"f16": "torch.float16", "bf16": "torch.bfloat16", "f32": "torch.float32"}
_SHORT = {"f16": "f16", "bf16": "bf16", "f32": "f32"}

_FLYDSL = re.compile(
    r"flydsl_gemm(?P<stages>\d{1,9})_a(?P<a>[a-z]+\d{1,9})_w(?P<w>[a-z]+\d{1,9})_(?P<out>[a-z]+\d{1,9})"
    r"_t(?P<m>\d{1,9})x(?P<n>\d{1,9})x(?P<k>\d{1,9})_split_k(?P<split>\d{1,9})"
    r"_block_m_warp(?P<wm>\d{1,9})_block_n_warp(?P<wn>\d{1,9})(?:_block_k_warp(?P<wk>\d{1,9}))?(?P<rest>(?:_\w+)?)"
)
_PRESHUFFLE = re.compile(r"flydsl_bpreshu(?:ff|fl)le_(\d{1,9})x(\d{1,9})x(\d{1,9})_(\w+?)_(\w+?)_(\w+?)_.*")
#: Blockscale names have the widths of loads in front of the instruction, and older ones no repeats behind it.
_CK = re.compile(
    r"a8w8_(?:(?P<scaled>blockscale)_\d{1,9}x\d{1,9}x\d{1,9}|\w+?)_(?P<threads>\d{1,9})x(?P<m>\d{1,9})x(?P<n>\d{1,9})x(?P<k>\d{1,9})"
    r"(?(scaled)_\d{1,9}x\d{1,9})_(?P<xm>\d{1,9})x(?P<xn>\d{1,9})(?:_(?P<rm>\d{1,9})x(?P<rn>\d{1,9}))?_\d{1,9}x\d{1,9}x\d{1,9}_.*"
)


def _waves(offer: Offer) -> bool:
    k = offer.kernel
    if k.wave_m is None or k.wave_n is None:
        return True
    return k.tile_m % (16 * k.wave_m) > 0 or k.tile_n % (16 * k.wave_n) > 0


def _loads(offer: Offer) -> bool:
    k = offer.kernel
    threads = (k.waves or 1) * offer.hw.wavefront_size
    return k.tile_m * k.tile_k % (8 * threads) > 0 or k.tile_n * k.tile_k % (8 * threads) > 0


_RULES: tuple[Rule[Offer], ...] = (
    Rule("type", "f16 and bf16", _SOURCE, lambda o: o.op.dtype not in ("f16", "bf16") or o.op.result not in _TORCH),
    lds_rule(
        lambda o: flydsl.lds_bytes(o.kernel, o.elem_bytes),
        "stages x (A + B), and D for waves along k, fit the LDS",
        _SOURCE,
    ),
    Rule("layout", "B stored as [N, K]: NT", _SOURCE, lambda o: o.op.layout != "NT"),
    Rule("tile m", f"one of {TILES_M}", _SOURCE, lambda o: o.kernel.tile_m not in TILES_M, alone=True),
    Rule(
        "tile n and k",
        f"of {TILES}",
        _SOURCE,
        lambda o: {o.kernel.tile_n, o.kernel.tile_k} - set(TILES) != set(),
        alone=True,
    ),
    Rule("stages", "2 to 8", _SOURCE, lambda o: not 2 <= (o.kernel.stages or 2) <= 8, alone=True),
    Rule("split", "1 to 13", _SOURCE, lambda o: not 1 <= (o.kernel.split_k or 1) <= 13, alone=True),
    Rule("Stream-K", "is not offered", _SOURCE, lambda o: bool(o.kernel.stream_k)),
    Rule("batch", "the table has no batch", _SOURCE, lambda o: o.op.batch > 1),
    Rule("pre-shuffled", "these kernels take B as stored", _SOURCE, lambda o: bool(o.op.packed)),
    Rule("columns", "N is whole tiles", _SOURCE, lambda o: o.op.N % o.kernel.tile_n > 0),
    Rule(
        "k",
        "K / splitK is whole tiles",
        _SOURCE,
        lambda o: o.op.K % ((o.kernel.split_k or 1) * o.kernel.tile_k) > 0,
    ),
    Rule("wave tiles", "a wave's part is whole 16 x 16", _SOURCE, _waves, alone=True),
    Rule("loads", "a tile is whole loads of 8 elements of every thread", _SOURCE, _loads),
)


def flydsl_name(offer: Offer) -> str:
    """Name of the FlyDSL kernel with that tile."""
    k, op = offer.kernel, offer.op
    return (
        f"flydsl_gemm{k.stages or 2}_a{_SHORT[op.dtype]}_w{_SHORT[op.dtype]}_{_SHORT[op.result]}"
        f"_t{k.tile_m}x{k.tile_n}x{k.tile_k}_split_k{k.split_k or 1}"
        f"_block_m_warp{k.wave_m}_block_n_warp{k.wave_n}_block_k_warp{k.wave_k}"
        f"_async_copyFalse_b_to_ldsTrue_b_preshuffleFalse_c_to_ldsFalse_{offer.hw.gfx}"
    )


def is_flydsl(name: str) -> bool:
    """Whether the name is that of one of FlyDSL's split-K kernels."""
    return _FLYDSL.fullmatch(name) is not None


def lds_bytes_of_name(name: str) -> int | None:
    """LDS of a FlyDSL kernel, of B only where its name says that B passes through it; None for other names."""
    match = _FLYDSL.fullmatch(name)
    if match is None:
        return None
    kernel = kernel_of_name(name)
    bits = int(re.sub(r"[a-z]+", "", match["a"]))
    if "_b_to_ldsFalse" in match["rest"]:
        return int(match["stages"]) * kernel.tile_m * kernel.tile_k * bits // 8
    return flydsl.lds_bytes(kernel, bits / 8)


def kernel_of_name(name: str) -> Kernel:
    """The kernel of an AITER kernel name: FlyDSL's and CK's. BadInput for one of another backend."""
    match = _FLYDSL.fullmatch(name)
    if match is not None:
        same = match["a"] == match["w"] and match["a"] in _SHORT
        return Kernel(
            tile_m=int(match["m"]),
            tile_n=int(match["n"]),
            tile_k=int(match["k"]),
            dtype=match["a"] if same else None,
            out_dtype=match["out"] if match["out"] in _SHORT else None,
            layout="NT",
            wave_m=int(match["wm"]),
            wave_n=int(match["wn"]),
            wave_k=int(match["wk"] or 1),
            stages=int(match["stages"]),
            split_k=int(match["split"]),
        )
    match = _PRESHUFFLE.fullmatch(name)
    if match is not None:
        return Kernel(tile_m=int(match[1]), tile_n=int(match[2]), tile_k=int(match[3]), layout="NT")
    match = _CK.fullmatch(name)
    if match is not None:
        return _ck_kernel(name, match)
    raise BadInput(f"{name!r} is no kernel name of AITER that is known here: flydsl_gemm.. and a8w8_..")


def _ck_kernel(name: str, match: re.Match[str]) -> Kernel:
    """The kernel of CK's name; waves along a side are its tile over the instructions of a wave along it."""
    m, n = int(match["m"]), int(match["n"])
    grid: dict[str, Any] = {"waves": int(match["threads"]) // MFMA_LANES}
    if match["rm"]:
        along_m, along_n = int(match["xm"]) * int(match["rm"]), int(match["xn"]) * int(match["rn"])
        if (
            not along_m * along_n
            or m % along_m
            or n % along_n
            or m * n * MFMA_LANES != along_m * along_n * int(match["threads"])
        ):
            raise BadInput(f"{name}: {match['threads']} threads with {along_m}x{along_n} a wave are no tile of {m}x{n}")
        grid |= {"wave_m": m // along_m, "wave_n": n // along_n}
    return Kernel(tile_m=m, tile_n=n, tile_k=int(match["k"]), layout="NT", mfma_m=int(match["xm"]), **grid)


def kernel_of_row(row: dict[str, str], hw: HardwareDescriptor) -> Kernel:
    """The kernel of a table's row: that of its name, with the split of its column."""
    if not row.get("kernelName"):
        raise BadInput("a row without kernelName")
    kernel = kernel_of_name(row["kernelName"])
    given = row.get("splitK")
    if kernel.split_k is None and given:
        # Of CK's blockscale kernels the column is an exponent.
        if not given.isdecimal() or len(given) > 2 or int(given) > SPLIT_EXPONENT_MOST:
            raise BadInput(f"splitK {given[:40]!r} is no exponent of at most {SPLIT_EXPONENT_MOST}")
        kernel = dataclasses.replace(kernel, split_k=1 << int(given))
    word = row.get("q_dtype_w") or row.get("dtype") or ""
    names = {torch: name for name, torch in _TORCH.items()}
    if kernel.dtype is None and word in names:
        kernel = dataclasses.replace(kernel, dtype=names[word])
    if kernel.dtype is None and word.startswith("torch.float8_e4m3"):
        here = [t for t in ALIASES["fp8"] if dtype(t).flavour == hw.fp8_flavour]
        kernel = dataclasses.replace(kernel, dtype=here[0] if here else None)
    return kernel


def _write(offers: tuple[Offer, ...]) -> str:
    stream = io.StringIO()
    rows = csv.DictWriter(stream, HEADER, lineterminator="\n")
    rows.writeheader()
    for offer in offers:
        op = offer.op
        rows.writerow(
            {
                "gfx": offer.hw.gfx,
                "cu_num": offer.hw.num_cus,
                "M": op.M,
                "N": op.N,
                "K": op.K,
                "bias": op.bias != "none",
                "dtype": _TORCH[op.dtype],
                "outdtype": _TORCH[op.result],
                "scaleAB": False,
                "bpreshuffle": False,
                "libtype": "flydsl",
                "solidx": -1,
                "splitK": offer.kernel.split_k or 1,
                "us": "",  # of measured rows
                "kernelName": flydsl_name(offer),
                "err_ratio": 0.0,
                "tflops": "",
                "bw": "",
            }
        )
    return stream.getvalue()


def _read(text: str, hw: HardwareDescriptor) -> tuple[Kernel, ...]:
    return tuple(kernel_of_row(row, hw) for row in csv.DictReader(io.StringIO(text)))


def _write_triton(offers: tuple[Offer, ...]) -> str:
    """One configuration for every number of rows: the best offer's."""
    config = config_of(offers[0])
    words = config["kwargs"] | {"num_warps": config["num_warps"], "num_stages": config["num_stages"]}
    words["NUM_KSPLIT"] = words.pop("SPLIT_K", 1)
    return json.dumps({"any": {**words, "cache_modifier": None}}, indent=2) + "\n"


def _read_triton(text: str, hw: HardwareDescriptor) -> tuple[Kernel, ...]:
    return tuple(kernel_of_config(words) for words in _by_rows(text))


def _by_rows(text: str) -> list[dict[str, Any]]:
    """Configurations of a table by rows."""
    body: Any = json.loads(text)
    if not isinstance(body, dict) or not all(isinstance(words, dict) for words in body.values()):
        raise BadInput("not a table of configurations by rows, such as M_LEQ_64 and any")
    return list(body.values())


_CARRIES = ("dtype", "out_dtype", "layout", "wave_m", "wave_n", "wave_k", "stages", "split_k")
TOOL = Tool("aiter", "AITER", ".csv", _CARRIES, _RULES, _write, _read, features=("bias",))
TOOL_TRITON = Tool(
    "aiter",
    "AITER's Triton kernels",
    ".json",
    ("mfma_m", "waves", "stages", "split_k", "group_m", "waves_per_simd"),
    BACKEND_RULES,
    _write_triton,
    _read_triton,
    many=False,
    words=_by_rows,
)

#: Which of the forward kernels a configuration is of: f32 has one of its own.
_FORWARD = {"f32": "dropout_or_fp32"}


def _write_attention(offers: tuple[AttentionOffer, ...]) -> str:
    """One configuration of the forward kernel for the type, in the order of AITER's own file."""
    config = attention_config_of(offers[0])
    words = {name: config["kwargs"][name] for name in ("BLOCK_M", "BLOCK_N")}
    words |= {"PRELOAD_V": False, "waves_per_eu": config["kwargs"]["waves_per_eu"]}
    words |= {name: config[name] for name in ("num_warps", "num_ctas", "num_stages")}
    return json.dumps({"fwd": {_FORWARD.get(offers[0].op.dtype, "default"): words}}, indent=2) + "\n"


def forward_configs(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Configurations of the forward kernels in a file such as gfx942-MHA-DEFAULT.json, by their names."""
    body: Any = json.loads(text)
    found = body.get("fwd") if isinstance(body, dict) else None
    if not isinstance(found, dict) or not all(isinstance(words, dict) for words in found.values()):
        raise BadInput("not a table of attention: no configurations under fwd")
    return list(found.items())


def _read_attention(text: str, hw: HardwareDescriptor) -> tuple[AttentionKernel, ...]:
    return tuple(attention_kernel_of_config(words) for words in _forward(text))


def _forward(text: str) -> list[dict[str, Any]]:
    return [words for _, words in forward_configs(text)]


ATTENTION = AttentionTool(
    "aiter",
    "AITER's Triton attention",
    ".json",
    ("waves", "stages", "waves_per_simd"),
    ATTENTION_RULES,
    _write_attention,
    _read_attention,
    many=False,
    words=_forward,
    remarks=lambda offer: (f"put its configuration under fwd of {offer.hw.gfx}-MHA-DEFAULT.json",),
)
