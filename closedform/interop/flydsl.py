"""FlyDSL: the portable artifact that `flydsl.autotune` loads for its half-precision GEMM, and `Config` objects."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput

from .kernel import Kernel
from .python_text import keywords_of_calls
from .rules import Rule
from .tool import Offer, Proposal, Tool, lds_rule

__all__ = [
    "ARTIFACT",
    "TOOL",
    "TOOL_PYTHON",
    "artifact",
    "artifact_file",
    "artifact_of",
    "artifact_text",
    "configs_of_module",
    "kernel_of_artifact",
    "kernel_of_name",
    "lds_bytes",
    "module_text",
]

_SOURCE = "kernels/gemm/gemm_a16w16_gfx950.py and flydsl/autotune.py of FlyDSL"
#: Name of the tuned function's artifacts.
ARTIFACT = "gemm_a16w16"
VERSION = 1
WAVES_MOST = 16
#: Elements that a thread loads of an operand at a time.
LOAD_ELEMENTS = 8
_CONFIG = ("block_m", "block_n", "block_k", "stages", "split_k", "m_waves", "n_waves", "k_waves", "group_m")


def lds_bytes(kernel: Kernel, elem_bytes: float) -> int:
    """LDS of the stages, or of the partial sums of waves that share k where those are larger."""
    stages = (kernel.stages or 2) * (kernel.tile_m + kernel.tile_n) * kernel.tile_k
    return int(max(stages, kernel.wave_k * kernel.tile_m * kernel.tile_n) * elem_bytes)


def _threads(offer: Offer) -> int:
    """Threads of a workgroup; 1, which no load is too wide for, where its waves are unknown."""
    return offer.kernel.waves * offer.hw.wavefront_size if offer.kernel.waves else 1


_RULES: tuple[Rule[Offer], ...] = (
    Rule("type", "f16 and bf16", _SOURCE, lambda o: o.op.dtype not in ("f16", "bf16")),
    lds_rule(
        lambda o: lds_bytes(o.kernel, o.elem_bytes),
        "stages x (A + B), and D for waves along k, fit the LDS",
        _SOURCE,
    ),
    Rule("stages", "at least 2", _SOURCE, lambda o: (o.kernel.stages or 2) < 2, alone=True),
    Rule("waves", f"at most {WAVES_MOST}", _SOURCE, lambda o: (o.kernel.waves or 1) > WAVES_MOST, alone=True),
    Rule("grid", "waves are a grid", _SOURCE, lambda o: o.kernel.wave_m is None or o.kernel.wave_n is None),
    Rule("Stream-K", "persistent workgroups are not offered", _SOURCE, lambda o: bool(o.kernel.stream_k)),
    Rule(
        "loads",
        f"a tile of an operand is whole loads of {LOAD_ELEMENTS} elements of every thread",
        _SOURCE,
        lambda o: any(t * o.kernel.tile_k % (_threads(o) * LOAD_ELEMENTS) for t in (o.kernel.tile_m, o.kernel.tile_n)),
        alone=True,
    ),
    Rule(
        "k",
        "K is whole tiles, for every part of a split",
        _SOURCE,
        lambda o: o.op.K % (o.kernel.tile_k * (o.kernel.split_k or 1)) > 0,
    ),
    Rule(
        "wave tiles",
        "a wave's part is whole instructions of 16 x 16",
        _SOURCE,
        lambda o: (
            o.kernel.tile_m % (16 * (o.kernel.wave_m or 1)) > 0 or o.kernel.tile_n % (16 * (o.kernel.wave_n or 1)) > 0
        ),
        alone=True,
    ),
)


_NAME = re.compile(
    r"hgemm_(?P<kind>[a-z]+\d*)(?P<out>_fp32)?_t(?P<m>\d{1,9})x(?P<n>\d{1,9})x(?P<k>\d{1,9})x(?P<stages>\d{1,9})_ks(?P<split>1|d)"
    r"_w(?P<wm>\d{1,9})x(?P<wn>\d{1,9})x(?P<wk>\d{1,9})"
    r"(?:_gm(?P<group>\d{1,9}))?(?:_bias\w+?)?(?:_l(?P<a>[nt])(?P<b>[nt]))?(?:_phti|_pft)?"
)
_KINDS = {"bf16": "bf16", "fp16": "f16", "f16": "f16", "half": "f16"}
#: The instruction that the half-precision GEMM is written with.
INSTRUCTION = (16, 16, 32, 1)


def kernel_of_name(name: str) -> Kernel:
    """The kernel of a name of FlyDSL's half-precision GEMM; a split that is fixed at run time stays unknown.

    >>> kernel_of_name("hgemm_bf16_t256x256x64x2_ks1_w2x4x1_gm0_bias0_lnt_phti").waves
    8
    """
    match = _NAME.fullmatch(name)
    if match is None or match["kind"] not in _KINDS:
        raise BadInput(f"{name!r} is no name of FlyDSL's half-precision GEMM")
    kind = _KINDS[match["kind"]]
    return Kernel(
        tile_m=int(match["m"]),
        tile_n=int(match["n"]),
        tile_k=int(match["k"]),
        dtype=kind,
        out_dtype="f32" if match["out"] else kind,
        layout=f"{match['a']}{match['b']}".upper() if match["a"] else None,
        mfma=INSTRUCTION,
        wave_m=int(match["wm"]),
        wave_n=int(match["wn"]),
        wave_k=int(match["wk"]),
        stages=int(match["stages"]),
        split_k=1 if match["split"] == "1" else None,
        group_m=int(match["group"] or 0) or None,
    )


def artifact_of(offer: Offer, name: str = ARTIFACT, device: str = "") -> dict[str, Any]:
    """The artifact's contents; `device` is the name that torch gives the GPU."""
    op = offer.op
    return artifact(offer, name, {"M": op.M, "N": op.N, "K": op.K}, config_of(offer), device)


def artifact(
    offer: Proposal[Any, Any], name: str, key: dict[str, int], config: dict[str, Any], device: str = ""
) -> dict[str, Any]:
    """An artifact of that tuned function for the values of its key and the GPU."""
    hw = offer.hw
    identity = {
        "name": name,
        "key": key,
        "device": {
            "name": device or f"AMD Instinct {hw.name.upper()}",
            "arch": hw.gfx,
            "compute_units": hw.num_cus,
        },
    }
    return {"version": VERSION, "identity": identity, "config": config}


def config_of(offer: Offer) -> dict[str, Any]:
    """The kernel's compile-time names with their values, and the compiler's hint."""
    k = offer.kernel
    values = (k.tile_m, k.tile_n, k.tile_k, k.stages, k.split_k or 1, k.wave_m, k.wave_n, k.wave_k, k.group_m or 0)
    hint = {"waves_per_eu": k.waves_per_simd} if k.waves_per_simd else {}
    return {**dict(zip(_CONFIG, values, strict=True)), **hint}


def artifact_file(artifact: dict[str, Any]) -> str:
    """Name of the file under which the artifact is looked for: of the SHA-256 of its canonical identity."""
    canonical = json.dumps(artifact["identity"], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{artifact['identity']['name']}-{hashlib.sha256(canonical.encode()).hexdigest()}.json"


def kernel_of_artifact(artifact: Any) -> Kernel:
    """The kernel of an artifact, or of a configuration alone. BadInput where it is not of a GEMM with those names."""
    config = artifact.get("config", artifact) if isinstance(artifact, dict) else {}
    missing = [name for name in _CONFIG[:3] if not isinstance(config.get(name), int)]
    if missing:
        raise BadInput(f"not a configuration of FlyDSL's GEMM: no {', '.join(missing)}")
    return Kernel(
        tile_m=config["block_m"],
        tile_n=config["block_n"],
        tile_k=config["block_k"],
        wave_m=config.get("m_waves"),
        wave_n=config.get("n_waves"),
        wave_k=config.get("k_waves", 1),
        stages=config.get("stages"),
        split_k=config.get("split_k"),
        group_m=config.get("group_m") or None,
        waves_per_simd=config.get("waves_per_eu"),
    )


def artifact_text(contents: dict[str, Any]) -> str:
    """The artifact's file."""
    return json.dumps(contents, indent=2, sort_keys=True, allow_nan=False) + "\n"


def _write(offers: tuple[Offer, ...]) -> str:
    return artifact_text(artifact_of(offers[0]))


def _read(text: str, hw: HardwareDescriptor) -> tuple[Kernel, ...]:
    return (kernel_of_artifact(json.loads(text)),)


_MODULE = '''"""FlyDSL configurations of {shape} for {hw}, the best predicted first.

    @flydsl.autotune.autotune(configs=CONFIGS, key={key})
"""

from flydsl.autotune import Config

CONFIGS = [
{configs}
]
'''


def module_text(shape: str, hw: HardwareDescriptor, key: tuple[str, ...], configs: list[dict[str, Any]]) -> str:
    """A module of `Config` objects of an operator in words; `key` are the names that the function is tuned for."""
    calls = (", ".join(f"{name}={value!r}" for name, value in config.items()) for config in configs)
    names = "[" + ", ".join(f'"{name}"' for name in key) + "]"
    return _MODULE.format(shape=shape, hw=hw, key=names, configs="\n".join(f"    Config({call})," for call in calls))


def _write_python(offers: tuple[Offer, ...]) -> str:
    op = offers[0].op
    shape = f"gemm M={op.M} N={op.N} K={op.K} {op.dtype} {op.layout}"
    return module_text(shape, offers[0].hw, ("M", "N", "K"), [config_of(offer) for offer in offers])


def configs_of_module(text: str) -> list[dict[str, Any]]:
    """Keywords of every Config of a module; BadInput where it has none."""
    calls = keywords_of_calls(text, "Config")
    if not calls:
        raise BadInput("no Config in this module")
    return calls


def _read_python(text: str, hw: HardwareDescriptor) -> tuple[Kernel, ...]:
    return tuple(kernel_of_artifact(words) for words in configs_of_module(text))


_CARRIES = ("wave_m", "wave_n", "wave_k", "waves", "stages", "split_k", "group_m", "waves_per_simd")
TOOL = Tool("flydsl", "FlyDSL", ".json", _CARRIES, _RULES, _write, _read, many=False)
TOOL_PYTHON = Tool("flydsl", "FlyDSL", ".py", _CARRIES, _RULES, _write_python, _read_python, words=configs_of_module)
