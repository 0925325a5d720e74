"""`predict` and `select` of every operator: the GEMM and attention models, and what reduces to them.

A softmax is a pass over memory with its arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype as dtype_named
from closedform.hw.errors import BadInput
from closedform.operators.attention import Attention
from closedform.operators.gemm import Gemm
from closedform.operators.node import check_extent
from closedform.traffic import attention_flops, fused_bytes

from .answer import Candidate, Prediction, Selection
from .attention_time import AttentionConfigs, AttentionShape, attention_lattice, attention_time
from .bands import band_for, borrowed_band
from .configs import configs
from .constants import Constants, constants_for
from .families import gemm_family
from .gemm import gemm_timing
from .gemm_time import GemmShapes
from .quantise import rounds, utilisation
from .select import gemm_selector

__all__ = ["predict_attention", "predict_gemm", "predict_softmax", "select_attention", "select_gemm"]

#: Operations of a softmax for each element: subtract, exponential, add, multiply, and the maximum.
SOFTMAX_OPS = 5


def _notes(k: Constants, hw: HardwareDescriptor) -> tuple[str, ...]:
    if k.gpu == hw.name:
        return ()
    if k.family == "attention":
        return (f"constants of {k.gpu}; attention was not measured on {hw.name}",)
    return (f"constants of {k.gpu}, scaled by the descriptor: run `closedform fit` for this GPU",)


def predict_gemm(
    op: Gemm, hw: HardwareDescriptor, *, constants: Constants | None = None, **config: int
) -> Prediction:
    """Latency of a product with a configuration, or with the one `select` takes where none is given.

    `config`: tile_m, tile_n, tile_k, waves, stages, split_k; what is left out is the selected one's. `constants`: a
    user's own, from `constants_from`.
    Raises BadInput for a type that is not of the GPU and for a value below 1.
    """
    for name, value in config.items():
        check_extent(name, value)
    import numpy as np

    out = dtype_named(op.result)
    selector = gemm_selector(hw, op.dtype, op.layout, out.bits, constants)
    k = selector.constants
    ranking = selector.rank(op.M, op.N, op.K, op.batch)
    chosen = {**ranking.configs.at(int(ranking.order(1)[0])), **config}
    if "waves" in config:
        chosen["wave_m"] = math.gcd(config["waves"], max(1, chosen["tile_m"] // 16))
        chosen["wave_n"] = config["waves"] // chosen["wave_m"]
    keys = ("wave_m", "wave_n", "stages", "mfma_m", "split_k")
    c = configs(chosen["tile_m"], chosen["tile_n"], chosen["tile_k"], **{n: chosen[n] for n in keys})
    cols = [np.array([[float(v)]]) for v in (op.M, op.N, op.K, op.batch)]
    s = GemmShapes(cols[0], cols[1], cols[2], selector.elem_bytes, selector.out_bytes, op.layout, cols[3])
    t = gemm_timing(hw, c, s, op.dtype, constants=k, detail=True)
    assert t.levels is not None
    assert t.parts_us is not None
    assert t.rounds is not None
    assert t.tiles is not None
    levels = {name: float(v.ravel()[0]) for name, v in t.levels.items()}
    parts = {name: float(v.ravel()[0]) for name, v in t.parts_us.items()}
    latency = float(t.latency_us.ravel()[0])
    bound = max(levels, key=lambda name: levels[name])
    if parts["launch"] + parts["prologue_epilogue"] > latency / 2:
        bound = "launch"
    low, high = band_for(k, hw, latency)
    flop = 2.0 * op.M * op.N * op.K * op.batch
    grid = int(t.tiles.ravel()[0]) * chosen["split_k"]
    return Prediction(
        op="gemm",
        hw=hw.name,
        latency_us=latency,
        low_us=latency * low,
        high_us=latency * high,
        bound=bound,
        rounds=int(t.rounds.ravel()[0]),
        utilisation=utilisation(grid, hw.num_cus),
        tflops=flop / latency / 1e6,
        flop=flop,
        hbm_bytes=op.batch * ((op.M + op.N) * op.K * s.elem_bytes + op.M * op.N * s.out_bytes),
        config=_public(chosen),
        levels_clk=levels,
        parts_us=parts,
        constants_of=k.gpu,
        calibrated=k.gpu == hw.name,
        notes=_notes(k, hw),
    )


def _grounds(k: Constants, hw: HardwareDescriptor, latency_us: float) -> tuple[float, str, bool]:
    """(upper factor of the error band, GPU of the constants, whether it is this one)."""
    return band_for(k, hw, latency_us)[1], k.gpu, k.gpu == hw.name


def _public(config: Mapping[str, int]) -> dict[str, int]:
    return {n: config[n] for n in ("tile_m", "tile_n", "tile_k", "waves", "stages", "split_k")}


def select_gemm(
    op: Gemm, hw: HardwareDescriptor, count: int = 4, *, constants: Constants | None = None
) -> Selection:
    """The fastest legal configuration by the model, and `count` - 1 runners-up."""
    selector = gemm_selector(hw, op.dtype, op.layout, dtype_named(op.result).bits, constants)
    ranking = selector.rank(op.M, op.N, op.K, op.batch)
    found = [
        Candidate(_public(ranking.configs.at(int(i))), float(ranking.latency_us[i]))
        for i in ranking.order(count)
        if math.isfinite(ranking.latency_us[i])
    ]
    return Selection(
        "gemm",
        hw.name,
        found[0],
        tuple(found[1:]),
        len(ranking.configs),
        *_grounds(selector.constants, hw, found[0].latency_us),
        explain=lambda: predict_gemm(op, hw, constants=constants, **found[0].config).bound,
    )


def _attention_shape(op: Attention, causal: bool) -> AttentionShape:
    return AttentionShape(float(op.batch * op.heads), float(op.L_q), float(op.L_kv), float(op.d), causal, op.elem_bytes)


def predict_attention(op: Attention, hw: HardwareDescriptor, *, causal: bool = False, **config: int) -> Prediction:
    """Latency of fused attention with a configuration (tile_q, tile_kv, waves, stages), or the selected one."""
    for name, value in config.items():
        check_extent(name, value)
    import numpy as np

    k = constants_for(hw, "attention")
    chosen = {**(select_attention(op, hw, causal=causal, count=1).best.config if len(config) < 4 else {}), **config}
    c = AttentionConfigs(*(np.array([float(chosen[n])]) for n in ("tile_q", "tile_kv", "waves", "stages")))
    t = attention_time(hw, k, c, _attention_shape(op, causal), hw.flops_per_clk_cu(op.dtype), detail=True)
    assert t.levels is not None
    assert t.workgroups is not None
    assert t.rounds is not None
    latency = float(t.latency_us[0])
    levels = {name: float(np.ravel(v)[0]) for name, v in t.levels.items()}
    low, high = band_for(k, hw, latency)
    flop = attention_flops(op) * (0.5 if causal else 1.0)
    return Prediction(
        op="attention",
        hw=hw.name,
        latency_us=latency,
        low_us=latency * low,
        high_us=latency * high,
        bound="launch" if k["launch_us"] > latency / 2 else max(levels, key=lambda name: levels[name]),
        rounds=int(np.ravel(t.rounds)[0]),
        utilisation=utilisation(int(np.ravel(t.workgroups)[0]), hw.num_cus),
        tflops=flop / latency / 1e6,
        flop=flop,
        hbm_bytes=float(fused_bytes(op)),
        config={n: int(chosen[n]) for n in ("tile_q", "tile_kv", "waves", "stages")},
        levels_clk=levels,
        parts_us={"launch": k["launch_us"], "main_loop": latency - k["launch_us"]},
        constants_of=k.gpu,
        calibrated=k.gpu == hw.name,
        notes=_notes(k, hw),
    )


def select_attention(op: Attention, hw: HardwareDescriptor, *, causal: bool = False, count: int = 4) -> Selection:
    """The fastest legal (tile_q, tile_kv, waves, stages) by the model, and runners-up."""
    import numpy as np

    hw.resolve_dtype(op.dtype)
    k = constants_for(hw, "attention")
    c = attention_lattice(hw, op.d, float(op.elem_bytes))
    if not len(c):
        raise BadInput(f"{hw.name} holds no tile of attention with d={op.d}")
    times = attention_time(hw, k, c, _attention_shape(op, causal), hw.flops_per_clk_cu(op.dtype)).latency_us
    order = np.argsort(times, kind="stable")[:count]
    found = [Candidate(c.at(int(i)), float(times[i])) for i in order]
    return Selection(
        "attention",
        hw.name,
        found[0],
        tuple(found[1:]),
        len(c),
        *_grounds(k, hw, found[0].latency_us),
        explain=lambda: predict_attention(op, hw, causal=causal, **found[0].config).bound,
    )


def predict_softmax(rows: int, cols: int, dtype: str, hw: HardwareDescriptor) -> Prediction:
    """Latency of a softmax over rows: launch plus the slower of one read and one write, and the arithmetic.

    Rates are those of the GPU's GEMM constants, so the figure is a derivation and not a fit.
    """
    for name, value in (("rows", rows), ("cols", cols)):
        check_extent(name, value)
    k = constants_for(hw, gemm_family(hw))
    kind = hw.resolve_dtype(dtype)
    active = min(rows, hw.num_cus)
    saturation = active / (active + k["cus_half"]) * (1 + k["cus_half"] / hw.num_cus)
    moved = 2.0 * rows * cols * kind.bits / 8
    memory = moved / (k["hbm_share"] * hw.hbm_bytes_per_s / 1e6 * saturation)
    flop = float(SOFTMAX_OPS * rows * cols)
    vector = flop / (hw.vector_f32_flops_per_clk_cu / 2 * active * hw.clock_mhz * k["clock_share"])
    latency = k["launch_us"] + max(memory, vector)
    low, high = borrowed_band(latency)
    bound = "launch" if k["launch_us"] > latency / 2 else "hbm" if memory >= vector else "vector"
    return Prediction(
        op="softmax",
        hw=hw.name,
        latency_us=latency,
        low_us=latency * low,
        high_us=latency * high,
        bound=bound,
        rounds=rounds(rows, hw.num_cus),
        utilisation=utilisation(rows, hw.num_cus),
        tflops=flop / latency / 1e6,
        flop=flop,
        hbm_bytes=moved,
        config={},
        levels_clk={},
        parts_us={"launch": k["launch_us"], "hbm": memory, "vector": vector},
        constants_of=k.gpu,
        calibrated=False,
        notes=("derived from the constants of the GEMM model, not measured",),
    )
